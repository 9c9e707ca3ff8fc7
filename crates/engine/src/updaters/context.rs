//! Contexts: slot values that targets need beyond what their status range fixes, each distinct
//! set stored once and counted. One slot with a short number, as keys that go by ids have it, is
//! told by the id itself and takes no memory: a page with a thousand comments has as many.

use alloc::vec::Vec;
use headwater_base::InlineBytes;
use headwater_base::hash::Secret;
use headwater_pattern::Bindings;
use headwater_store::{Index, Slab};

/// A context; [`NO_CONTEXT`] binds nothing.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct ContextId(pub(crate) u32);

/// The bit of an id that tells its context: one slot and the digits of its value.
const NUMBER: u32 = 1 << 31;
/// Most digits of a value that an id tells.
const DIGITS_MAX: usize = 8;
/// How many values of 1 to [`DIGITS_MAX`] digits there are.
const NUMBERS: u32 = 111_111_110;
/// Slots below this one can be told by an id.
const NUMBERED_SLOTS: u32 = NUMBER / NUMBERS;
/// Bytes of a slot's id and its value's length.
const HEAD_BYTES: usize = 3;

/// Room for a context that its id tells.
pub(crate) type ContextRoom = [u8; HEAD_BYTES + DIGITS_MAX];

/// The room for a context's bytes, with nothing in it yet.
pub(crate) const CONTEXT_ROOM: ContextRoom = [0; HEAD_BYTES + DIGITS_MAX];

impl ContextId {
    /// The context of these encoded slots, if an id can tell it.
    #[inline]
    fn of_number(bytes: &[u8]) -> Option<Self> {
        let (&[slot, low, 0], digits) = bytes.split_first_chunk()? else { return None };
        let fits = usize::from(low) == digits.len() && (1..=DIGITS_MAX).contains(&digits.len());
        if !fits || u32::from(slot) >= NUMBERED_SLOTS || !digits.iter().all(u8::is_ascii_digit) {
            return None;
        }
        // The values of fewer digits come first: a leading zero is part of a value.
        let (mut fewer, mut count, mut number) = (0, 1, 0);
        for digit in digits {
            fewer += count;
            count *= 10;
            number = number * 10 + u32::from(digit - b'0');
        }
        Some(Self(NUMBER | (u32::from(slot) * NUMBERS + fewer - 1 + number)))
    }

    /// Whether the id tells the context.
    #[inline]
    fn is_number(self) -> bool {
        self.0 & NUMBER != 0
    }

    /// Writes the encoded slots of the context that the id tells.
    #[inline]
    fn write_number(self, room: &mut ContextRoom) -> &[u8] {
        let told = self.0 & !NUMBER;
        let (slot, mut number) = (told / NUMBERS, told % NUMBERS);
        let (mut len, mut count) = (1, 10);
        while number >= count {
            number -= count;
            count *= 10;
            len += 1;
        }
        (room[0], room[1], room[2]) = (slot as u8, len as u8, 0);
        for digit in room[HEAD_BYTES..HEAD_BYTES + len].iter_mut().rev() {
            *digit = b'0' + (number % 10) as u8;
            number /= 10;
        }
        &room[..HEAD_BYTES + len]
    }
}

/// The context that binds nothing; it is never stored, and those that are have numbers from 1 on.
pub(crate) const NO_CONTEXT: ContextId = ContextId(0);

#[derive(Debug)]
struct Context {
    /// For each slot: its id, the length of its value in two bytes, and the value.
    bytes: InlineBytes<22>,
    references: u32,
}

/// All contexts of one shard.
#[derive(Debug)]
pub(crate) struct Contexts {
    contexts: Slab<Context>,
    by_bytes: Index,
    /// What texts take that are too long for their records.
    long_bytes: usize,
    secret: Secret,
}

/// Appends the slots in `mask` and their values to `out`.
pub(crate) fn encode(bindings: &Bindings<'_>, mask: u32, out: &mut Vec<u8>) {
    for (slot, value) in bindings.iter() {
        if mask & (1 << slot) != 0 {
            out.push(slot as u8);
            out.extend_from_slice(&(value.len() as u16).to_le_bytes());
            out.extend_from_slice(value);
        }
    }
}

/// Binds what [`encode`] wrote.
pub(crate) fn decode<'k>(mut bytes: &'k [u8], bindings: &mut Bindings<'k>) {
    while let [slot, low, high, rest @ ..] = bytes {
        let (value, rest) = rest.split_at(usize::from(u16::from_le_bytes([*low, *high])));
        bindings.set(usize::from(*slot), value);
        bytes = rest;
    }
}

impl Contexts {
    pub(crate) fn new(secret: Secret) -> Self {
        Self { contexts: Slab::new(), by_bytes: Index::new(), long_bytes: 0, secret }
    }

    pub(crate) fn bytes(&self) -> usize {
        self.contexts.bytes() + self.by_bytes.bytes() + self.long_bytes
    }

    /// How many contexts are stored.
    pub(crate) fn len(&self) -> usize {
        self.contexts.len()
    }

    /// The context of these encoded slots, counted once more.
    pub(crate) fn intern(&mut self, bytes: &[u8]) -> ContextId {
        if bytes.is_empty() {
            return NO_CONTEXT;
        }
        if let Some(id) = ContextId::of_number(bytes) {
            return id;
        }
        let hash = self.secret.hash(bytes);
        let found = self.by_bytes.find(hash, |number| *self.contexts[number].bytes == *bytes);
        if let Some(number) = found {
            self.contexts[number].references += 1;
            return ContextId(number + 1);
        }
        let bytes = InlineBytes::new(bytes);
        self.long_bytes += bytes.bytes_elsewhere();
        let number = self.contexts.insert(Context { bytes, references: 1 });
        assert!(number < NUMBER - 1, "an id is of 31 bits");
        self.by_bytes.insert(hash, number);
        ContextId(number + 1)
    }

    fn get_mut(&mut self, id: ContextId) -> &mut Context {
        &mut self.contexts[id.0 - 1]
    }

    /// Counts one more use.
    pub(crate) fn retain(&mut self, id: ContextId) {
        if id != NO_CONTEXT && !id.is_number() {
            self.get_mut(id).references += 1;
        }
    }

    /// Counts one use less; the last one forgets the context.
    pub(crate) fn release(&mut self, id: ContextId) {
        if id == NO_CONTEXT || id.is_number() {
            return;
        }
        let context = self.get_mut(id);
        context.references -= 1;
        if context.references == 0 {
            let number = id.0 - 1;
            let context = self.contexts.remove(number).expect("just now it was there");
            self.long_bytes -= context.bytes.bytes_elsewhere();
            self.by_bytes.remove(self.secret.hash(&context.bytes), number);
        }
    }

    /// The encoded slots of a context, in `room` where its id tells them.
    #[inline]
    pub(crate) fn get<'c>(&'c self, id: ContextId, room: &'c mut ContextRoom) -> &'c [u8] {
        if id == NO_CONTEXT {
            return &[];
        }
        if id.is_number() {
            return id.write_number(room);
        }
        &self.contexts[id.0 - 1].bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn encoded(slots: &[(usize, &[u8])]) -> Vec<u8> {
        let (mut bindings, mut mask, mut bytes) = (Bindings::new(), 0, Vec::new());
        for &(slot, value) in slots {
            bindings.set(slot, value);
            mask |= 1 << slot;
        }
        encode(&bindings, mask, &mut bytes);
        bytes
    }

    #[test]
    fn contexts_are_what_was_interned_and_short_numbers_take_no_memory() {
        let mut contexts = Contexts::new(Secret::new([7; Secret::WORDS]));
        let numbers: [&[u8]; 10] = [
            b"0",
            b"9",
            b"00",
            b"10",
            b"99",
            b"000",
            b"0000001",
            b"00000000",
            b"12345678",
            b"99999999",
        ];
        let others: [&[u8]; 7] =
            [b"", b"x", b"1x", b"-1", b"123456789", b"u0000042", b"longer than what fits inside"];
        let mut ids = Vec::new();
        for slot in [0, 1, 18, 19, 31] {
            for value in numbers {
                let id = contexts.intern(&encoded(&[(slot, value)]));
                assert_eq!(id.is_number(), slot < 19, "{slot} {value:?}");
                ids.push((id, encoded(&[(slot, value)])));
            }
            for value in others {
                let id = contexts.intern(&encoded(&[(slot, value)]));
                assert!(!id.is_number());
                ids.push((id, encoded(&[(slot, value)])));
            }
        }
        let two = encoded(&[(1, b"1"), (2, b"2")]);
        ids.push((contexts.intern(&two), two));
        assert_eq!(contexts.len(), 5 * others.len() + 2 * numbers.len() + 1);
        let mut room = CONTEXT_ROOM;
        for (at, (id, bytes)) in ids.iter().enumerate() {
            assert_eq!(contexts.get(*id, &mut room), bytes);
            assert_eq!(contexts.intern(bytes), *id);
            contexts.retain(*id);
            assert!(ids[..at].iter().all(|(other, _)| other != id));
        }
        assert!(ids.iter().all(|(id, _)| *id != NO_CONTEXT));
        for _ in 0..3 {
            assert!(contexts.len() > 0);
            ids.iter().for_each(|(id, _)| contexts.release(*id));
        }
        assert_eq!((contexts.len(), contexts.bytes()), (0, 0));
    }
}
