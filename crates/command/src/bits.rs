//! Arithmetic with the bits of values: whole values put together, and numbers within one.
//!
//! Bit 0 is the highest one of the first byte, as in Redis.

use crate::args::Args;
use crate::number;
use alloc::vec::Vec;

/// How values are put together, bit by bit; shorter ones end with zeros.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum BitOperation {
    /// What all have.
    And,
    /// What any has.
    Or,
    /// What an odd number of them has.
    Xor,
    /// What the only one has not.
    Not,
}

impl BitOperation {
    /// Every operation with its name.
    pub const NAMES: [(&'static str, Self); 4] =
        [("and", Self::And), ("or", Self::Or), ("xor", Self::Xor), ("not", Self::Not)];

    /// The operation of this name, in any mixture of cases.
    #[must_use]
    pub fn named(name: &[u8]) -> Option<Self> {
        let is = |own: &str| name.eq_ignore_ascii_case(own.as_bytes());
        Self::NAMES.into_iter().find(|(own, _)| is(own)).map(|(_, operation)| operation)
    }

    /// The name.
    #[must_use]
    pub fn name(self) -> &'static str {
        Self::NAMES.iter().find(|(_, own)| *own == self).map_or("", |(name, _)| name)
    }

    /// The values put together: as long as the longest one.
    #[must_use]
    pub fn of(self, values: &[Vec<u8>]) -> Vec<u8> {
        let mut made = None;
        values.iter().for_each(|value| self.join(&mut made, core::iter::once(&value[..])));
        made.unwrap_or_default()
    }

    /// Puts the value whose bytes are these parts, one behind the other, together with what others have `made`.
    pub fn join<'p>(self, made: &mut Option<Vec<u8>>, parts: impl Iterator<Item = &'p [u8]>) {
        let Some(made) = made else {
            let first = made.insert(parts.flatten().copied().collect());
            if self == Self::Not {
                first.iter_mut().for_each(|byte| *byte = !*byte);
            }
            return;
        };
        let mut at = 0;
        for part in parts {
            let end = at + part.len();
            if made.len() < end {
                made.resize(end, 0);
            }
            for (byte, with) in made[at..end].iter_mut().zip(part) {
                match self {
                    Self::And => *byte &= with,
                    Self::Or => *byte |= with,
                    Self::Xor | Self::Not => *byte ^= with,
                }
            }
            at = end;
        }
        if self == Self::And {
            made[at..].fill(0);
        }
    }
}

/// The type of a number within a value.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FieldType {
    /// It may be negative.
    pub signed: bool,
    /// How many bits it has: 1 to 64, or to 63 without a sign.
    pub bits: u32,
}

/// What becomes of a number that does not fit its type.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Overflow {
    /// The bits beyond go.
    #[default]
    Wrap,
    /// The nearest that fits takes its place.
    Saturate,
    /// Nothing is written.
    Fail,
}

impl FieldType {
    /// `i8`, `u63` and the like.
    fn parse(text: &[u8]) -> Option<Self> {
        let (signed, digits) = match text {
            [b'i' | b'I', digits @ ..] => (true, digits),
            [b'u' | b'U', digits @ ..] => (false, digits),
            _ => return None,
        };
        let most = if signed { 64 } else { 63 };
        let bits = number::parse_i64(digits).filter(|bits| (1..=most).contains(bits))?;
        Some(Self { signed, bits: bits as u32 })
    }

    /// The number at a bit of `bytes`, behind whose end all bits are zero.
    #[must_use]
    pub fn read(self, bytes: &[u8], offset: u64) -> i64 {
        let mut number = 0_u64;
        for at in offset..offset + u64::from(self.bits) {
            let byte = usize::try_from(at / 8).ok().and_then(|at| bytes.get(at)).copied();
            let bit = byte.unwrap_or(0) >> (7 - at % 8) & 1;
            number = number << 1 | u64::from(bit);
        }
        let unused = 64 - self.bits;
        if self.signed { (number << unused) as i64 >> unused } else { number as i64 }
    }

    /// Writes a number to a bit of `bytes`, which has all bits of it.
    pub fn write(self, bytes: &mut [u8], offset: u64, number: i64) {
        for place in 0..u64::from(self.bits) {
            let at = offset + place;
            let bit = (number as u64 >> (u64::from(self.bits) - 1 - place) & 1) as u8;
            if let Some(byte) = usize::try_from(at / 8).ok().and_then(|at| bytes.get_mut(at)) {
                let shift = 7 - at % 8;
                *byte = *byte & !(1 << shift) | bit << shift;
            }
        }
    }

    /// A number as the type can hold it; `None`: it fails.
    #[must_use]
    pub fn fit(self, number: i128, overflow: Overflow) -> Option<i64> {
        let (least, most) = match self.signed {
            true => (-(1_i128 << (self.bits - 1)), (1_i128 << (self.bits - 1)) - 1),
            false => (0, (1_i128 << self.bits) - 1),
        };
        if (least..=most).contains(&number) {
            return Some(number as i64);
        }
        match overflow {
            Overflow::Fail => None,
            Overflow::Saturate => Some(number.clamp(least, most) as i64),
            Overflow::Wrap => {
                let unused = 64 - self.bits;
                let low = (number as u64) << unused;
                Some(if self.signed { low as i64 >> unused } else { (low >> unused) as i64 })
            }
        }
    }
}

/// What is done with a number within a value.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FieldAction {
    /// It is answered.
    Get,
    /// It becomes another one, and what it was is answered.
    Set(i64),
    /// Something is added to it, and what it becomes is answered.
    Add(i64),
}

/// One number within a value, and what is done with it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FieldStep {
    /// Its type.
    pub field: FieldType,
    /// Its first bit.
    pub offset: u64,
    /// What is done.
    pub action: FieldAction,
    /// What becomes of a number that does not fit.
    pub overflow: Overflow,
}

impl FieldStep {
    /// How many bytes a value has at least that holds the number.
    #[must_use]
    pub fn end(&self) -> u64 {
        (self.offset + u64::from(self.field.bits)).div_ceil(8)
    }

    /// Does it to `bytes`, which hold the number where it is written; what is answered.
    pub fn apply(&self, bytes: &mut [u8]) -> Option<i64> {
        let Self { field, offset, action, overflow } = *self;
        let old = field.read(bytes, offset);
        let (wanted, answers_old) = match action {
            FieldAction::Get => return Some(old),
            // What is set is a number of 64 bits of the type's kind.
            FieldAction::Set(number) if field.signed => (i128::from(number), true),
            FieldAction::Set(number) => (i128::from(number as u64), true),
            FieldAction::Add(number) => (i128::from(old) + i128::from(number), false),
        };
        let new = field.fit(wanted, overflow)?;
        field.write(bytes, offset, new);
        Some(if answers_old { old } else { new })
    }
}

/// Why the words of BITFIELD are refused.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FieldFault {
    /// A word that is unknown, or has too few behind it.
    Syntax,
    /// What OVERFLOW takes.
    Overflow,
    /// The type.
    Type,
    /// Where the number lies.
    Offset,
    /// What is set or added.
    Number,
}

/// The greatest offset of a bit, and one: a value of 512 MiB has no more.
pub const BIT_OFFSETS: u64 = 1 << 32;

/// The offset of a bit, as a client gives it; `bits`: `#n` stands for the place of the number behind n others of as many bits.
#[must_use]
pub fn bit_offset(text: &[u8], bits: Option<u32>) -> Option<u64> {
    let (digits, times) = match (text, bits) {
        ([b'#', digits @ ..], Some(bits)) => (digits, u64::from(bits)),
        _ => (text, 1),
    };
    let offset = u64::try_from(number::parse_i64(digits)?).ok()?.checked_mul(times)?;
    (offset < BIT_OFFSETS).then_some(offset)
}

/// What the words of BITFIELD ask for, in order.
pub fn field_steps(words: Args<'_>) -> impl Iterator<Item = Result<FieldStep, FieldFault>> {
    let (mut words, mut overflow) = (words.iter(), Overflow::Wrap);
    core::iter::from_fn(move || {
        loop {
            let word = words.next()?;
            let is = |name: &str| word.eq_ignore_ascii_case(name.as_bytes());
            let more = words.len();
            if is("overflow") && more >= 1 {
                let how = words.next().unwrap_or_default();
                let is = |name: &str| how.eq_ignore_ascii_case(name.as_bytes());
                overflow = match () {
                    () if is("wrap") => Overflow::Wrap,
                    () if is("sat") => Overflow::Saturate,
                    () if is("fail") => Overflow::Fail,
                    () => return Some(Err(FieldFault::Overflow)),
                };
                continue;
            }
            let takes_number = is("set") || is("incrby");
            if !(is("get") && more >= 2 || takes_number && more >= 3) {
                return Some(Err(FieldFault::Syntax));
            }
            let mut next = || words.next().unwrap_or_default();
            let Some(field) = FieldType::parse(next()) else { return Some(Err(FieldFault::Type)) };
            let Some(offset) = bit_offset(next(), Some(field.bits)) else {
                return Some(Err(FieldFault::Offset));
            };
            let mut action = FieldAction::Get;
            if takes_number {
                let Some(number) = number::parse_i64(next()) else {
                    return Some(Err(FieldFault::Number));
                };
                action =
                    if is("set") { FieldAction::Set(number) } else { FieldAction::Add(number) };
            }
            return Some(Ok(FieldStep { field, offset, action, overflow }));
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_lie_anywhere_in_a_value() {
        let mut bytes = [0; 12];
        for (signed, bits) in
            [(true, 1), (true, 7), (true, 64), (false, 1), (false, 13), (false, 63)]
        {
            let field = FieldType { signed, bits };
            for offset in 0..20 {
                for number in [0, 1, -1, 77, i64::MAX, i64::MIN] {
                    let fits = field.fit(i128::from(number), Overflow::Wrap).unwrap();
                    bytes.fill(0xa5);
                    field.write(&mut bytes, offset, fits);
                    assert_eq!(field.read(&bytes, offset), fits, "{field:?} {offset} {number}");
                    // What lies beside it stays.
                    let around = FieldType { signed: false, bits: 1 };
                    let untouched = [0xa5; 12];
                    for bit in (0..offset).chain(offset + u64::from(bits)..96) {
                        assert_eq!(around.read(&bytes, bit), around.read(&untouched, bit));
                    }
                }
            }
        }
        assert_eq!(FieldType { signed: true, bits: 8 }.read(&[0x7f], 4), -16);
    }

    #[test]
    fn what_does_not_fit_is_wrapped_saturated_or_refused() {
        let [signed, unsigned] = [true, false].map(|signed| FieldType { signed, bits: 8 });
        let fit = |field: FieldType, number, how| field.fit(number, how);
        assert_eq!(fit(signed, 127, Overflow::Fail), Some(127));
        assert_eq!(fit(signed, 128, Overflow::Fail), None);
        assert_eq!(fit(signed, 128, Overflow::Wrap), Some(-128));
        assert_eq!(fit(signed, -129, Overflow::Saturate), Some(-128));
        assert_eq!(fit(unsigned, 257, Overflow::Wrap), Some(1));
        assert_eq!(fit(unsigned, -1, Overflow::Wrap), Some(255));
        assert_eq!(fit(unsigned, -1, Overflow::Saturate), Some(0));
        let whole = FieldType { signed: true, bits: 64 };
        let beyond = i128::from(i64::MAX) + 1;
        assert_eq!(fit(whole, beyond, Overflow::Wrap), Some(i64::MIN));
        assert_eq!(fit(whole, beyond, Overflow::Saturate), Some(i64::MAX));
    }
}
