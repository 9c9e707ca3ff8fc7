//! Contexts: slot values that targets need beyond what their status range fixes, each distinct
//! set stored once and counted.

use alloc::boxed::Box;
use alloc::vec::Vec;
use headwater_base::hash::Secret;
use headwater_pattern::Bindings;
use headwater_store::{Index, Slab};

/// A context; [`NO_CONTEXT`] binds nothing.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct ContextId(pub(crate) u32);

/// The context that binds nothing; it is never stored, and those that are have numbers from 1 on.
pub(crate) const NO_CONTEXT: ContextId = ContextId(0);

#[derive(Debug)]
struct Context {
    /// For each slot: its id, the length of its value in two bytes, and the value.
    bytes: Box<[u8]>,
    references: u32,
}

/// All contexts of one shard.
#[derive(Debug)]
pub(crate) struct Contexts {
    contexts: Slab<Context>,
    by_bytes: Index,
    text_bytes: usize,
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
        Self { contexts: Slab::new(), by_bytes: Index::new(), text_bytes: 0, secret }
    }

    pub(crate) fn bytes(&self) -> usize {
        self.contexts.bytes() + self.by_bytes.bytes() + self.text_bytes
    }

    /// Bytes of the texts that are held.
    pub(crate) fn text_bytes(&self) -> usize {
        self.text_bytes
    }

    /// The context of these encoded slots, counted once more.
    pub(crate) fn intern(&mut self, bytes: &[u8]) -> ContextId {
        if bytes.is_empty() {
            return NO_CONTEXT;
        }
        let hash = self.secret.hash(bytes);
        let found = self.by_bytes.find(hash, |number| *self.contexts[number].bytes == *bytes);
        if let Some(number) = found {
            self.contexts[number].references += 1;
            return ContextId(number + 1);
        }
        let number = self.contexts.insert(Context { bytes: bytes.into(), references: 1 });
        self.text_bytes += bytes.len();
        self.by_bytes.insert(hash, number);
        ContextId(number + 1)
    }

    fn get_mut(&mut self, id: ContextId) -> &mut Context {
        &mut self.contexts[id.0 - 1]
    }

    /// Counts one more use.
    pub(crate) fn retain(&mut self, id: ContextId) {
        if id != NO_CONTEXT {
            self.get_mut(id).references += 1;
        }
    }

    /// Counts one use less; the last one forgets the context.
    pub(crate) fn release(&mut self, id: ContextId) {
        if id == NO_CONTEXT {
            return;
        }
        let context = self.get_mut(id);
        context.references -= 1;
        if context.references == 0 {
            let number = id.0 - 1;
            let context = self.contexts.remove(number).expect("just now it was there");
            self.text_bytes -= context.bytes.len();
            self.by_bytes.remove(self.secret.hash(&context.bytes), number);
        }
    }

    /// The encoded slots of a context.
    #[inline]
    pub(crate) fn get(&self, id: ContextId) -> &[u8] {
        if id == NO_CONTEXT {
            return &[];
        }
        &self.contexts[id.0 - 1].bytes
    }
}
