//! Values as components of keys whose bytes sort as the values do.
//!
//! Keys sort by bytes, and a component ends with a `|` or with its key. So `9` sorts behind `10`, and `Paris` behind
//! `Paris2`. What is encoded here sorts as the value it stands for, whatever follows: no encoding is the beginning of
//! another one, and none holds a `|`. It is printable ASCII where the value is, without spaces.
//!
//! | a | ascending |
//! | --- | --- |
//! | number | `0` for zero. Above zero a letter says how many digits the whole part has (`B`: 1 … `U`: 20; `V` and four digits for more; `A` and four digits, 9999 less the zeros behind the point, below one), then come all digits but trailing zeros, then `.`: 42 is `C42.`, 100 `D1.`, 0.5 `A99995.`. Below zero `-`, then the same with letters and digits turned round (`A`↔`V`, `0`↔`9`), then `~`: -42 is `-T57~`. |
//! | text | its bytes, then `!`. Bytes up to `"` are `"` and the byte plus 35, `{` is `{A`, and the bar `{B`: `New York` is `New"CYork!`. |
//! | time | the number of its seconds since 1970 |
//!
//! Descending, a number is what its negative is ascending. A text's bytes are each taken from 255, escaped in the same way
//! (with 254 and 255 as byte 254 and `A` or `B`), and byte 255 ends it.
//!
//! # Cost
//! One pass over the value.

mod moment;

use crate::Decimal;
use crate::key::SEPARATOR;
use alloc::vec::Vec;

/// What a value is read as.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Kind {
    /// Any bytes, in their order.
    Text,
    /// An exact decimal, as [`Decimal::parse`] reads it.
    Number,
    /// A moment: RFC 3339 (`2026-11-23T10:00:00.5+01:00`, also with a space for the `T`, and a date alone), in UTC where no
    /// offset is given, or the number of seconds since 1970.
    Time,
}

impl Kind {
    /// All kinds.
    pub const ALL: [Self; 3] = [Self::Text, Self::Number, Self::Time];

    /// The word for it in the text of a join.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Text => "text",
            Self::Number => "number",
            Self::Time => "time",
        }
    }
}

/// How values stand in keys.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Ordered {
    /// What they are read as.
    pub kind: Kind,
    /// The greatest sorts first.
    pub descending: bool,
}

const ESCAPE: u8 = b'"';
const END: u8 = b'!';
/// What is added to an escaped byte: it becomes printable.
const SHIFT: u8 = 35;
const BRACE: u8 = b'{';
/// What ends a descending text, and the byte before it, which is an escape there.
const LAST: u8 = 0xFF;

/// Numbers with more zeros behind the point than this, or more digits before it, have no encoding; none that
/// [`Decimal::parse`] reads has.
const EXPONENT_MAX: usize = 9999;
/// Up to so many digits before the point have a letter of their own.
const LETTERED: usize = 20;

impl Ordered {
    /// Appends the component that stands for `value`; `false`, with `out` as it was, where it is none of its kind.
    pub fn encode(self, value: &[u8], out: &mut Vec<u8>) -> bool {
        match self.kind {
            Kind::Text => {
                if self.descending {
                    text_descending(value, out);
                } else {
                    text_ascending(value, out);
                }
                true
            }
            Kind::Number => match Decimal::parse(value) {
                Some(number) => self.encode_number(&number, out),
                None => false,
            },
            Kind::Time => match moment::seconds(value) {
                Some(seconds) => self.encode_number(&seconds, out),
                None => false,
            },
        }
    }

    fn encode_number(self, number: &Decimal, out: &mut Vec<u8>) -> bool {
        let mut text = Vec::new();
        number.write_to(&mut text);
        let (negative, digits) = match text.split_first() {
            Some((b'-', digits)) => (true, digits),
            _ => (false, &text[..]),
        };
        if digits == b"0" {
            out.push(b'0');
            return true;
        }
        let point = digits.iter().position(|&byte| byte == b'.').unwrap_or(digits.len());
        let (whole, fraction) = (&digits[..point], digits.get(point + 1..).unwrap_or_default());
        let whole = whole.strip_prefix(b"0").unwrap_or(whole);
        let zeros = fraction.iter().take_while(|&&byte| byte == b'0').count();
        if whole.len().max(zeros) > EXPONENT_MAX {
            return false;
        }
        let start = out.len();
        let mut four = |letter: u8, number: usize| {
            out.push(letter);
            out.extend([1000, 100, 10, 1].map(|power| b'0' + (number / power % 10) as u8));
        };
        match whole.len() {
            0 => four(b'A', EXPONENT_MAX - zeros),
            places @ 1..=LETTERED => out.push(b'A' + places as u8),
            places => four(b'V', places),
        }
        let fraction = if whole.is_empty() { &fraction[zeros..] } else { fraction };
        out.extend(whole.iter().chain(fraction));
        while out.last() == Some(&b'0') {
            out.pop();
        }
        out.push(b'.');
        if negative != self.descending {
            for byte in &mut out[start..] {
                *byte = turned(*byte);
            }
            out.insert(start, b'-');
        }
        true
    }

    /// What the value is that a component stands for, in the plainest text; `None` where it stands for none. A time is
    /// written as in RFC 3339, in UTC.
    #[must_use]
    pub fn decode(self, component: &[u8]) -> Option<Vec<u8>> {
        if self.kind == Kind::Text {
            return decode_text(component, self.descending);
        }
        let mut text = self.decode_number(component)?;
        let number = Decimal::parse(&text)?;
        // Only what the encoder gives is taken.
        let mut again = Vec::new();
        if !self.encode_number(&number, &mut again) || again != component {
            return None;
        }
        if self.kind == Kind::Time {
            text = moment::written(&text)?;
        }
        Some(text)
    }

    fn decode_number(self, component: &[u8]) -> Option<Vec<u8>> {
        if component == b"0" {
            return Some(b"0".to_vec());
        }
        let (turned_round, body) = match component.split_first()? {
            (b'-', rest) => (true, rest.iter().map(|&byte| turned(byte)).collect::<Vec<u8>>()),
            _ => (false, component.to_vec()),
        };
        let digits = |text: &[u8]| text.iter().all(u8::is_ascii_digit);
        let (&letter, rest) = body.split_first()?;
        let rest = rest.strip_suffix(b".")?;
        let four = || -> Option<(usize, &[u8])> {
            let (four, rest) = rest.split_at_checked(4)?;
            let number = four.iter().fold(0, |n, &digit| n * 10 + usize::from(digit & 15));
            digits(four).then_some((number, rest))
        };
        let mut text = Vec::new();
        if turned_round != self.descending {
            text.push(b'-');
        }
        let (places, rest) = match letter {
            b'A' => {
                let (less, rest) = four()?;
                text.extend_from_slice(b"0.");
                text.resize(text.len() + EXPONENT_MAX.checked_sub(less)?, b'0');
                text.extend_from_slice(rest);
                return (digits(rest) && !rest.is_empty()).then_some(text);
            }
            b'B'..=b'U' => (usize::from(letter - b'A'), rest),
            b'V' => four()?,
            _ => return None,
        };
        if !digits(rest) || rest.is_empty() {
            return None;
        }
        let whole = rest.len().min(places);
        text.extend_from_slice(&rest[..whole]);
        text.resize(text.len() + places - whole, b'0');
        if rest.len() > places {
            text.push(b'.');
            text.extend_from_slice(&rest[places..]);
        }
        Some(text)
    }
}

/// A byte of a number's encoding on the other side of zero.
fn turned(byte: u8) -> u8 {
    match byte {
        b'0'..=b'9' => b'0' + b'9' - byte,
        b'A'..=b'V' => b'A' + b'V' - byte,
        b'.' => b'~',
        b'~' => b'.',
        other => other,
    }
}

fn text_ascending(value: &[u8], out: &mut Vec<u8>) {
    for &byte in value {
        match byte {
            0..=ESCAPE => out.extend([ESCAPE, byte + SHIFT]),
            BRACE => out.extend([BRACE, b'A']),
            SEPARATOR => out.extend([BRACE, b'B']),
            _ => out.push(byte),
        }
    }
    out.push(END);
}

fn text_descending(value: &[u8], out: &mut Vec<u8>) {
    for byte in value.iter().map(|byte| 255 - byte) {
        match byte {
            0..=ESCAPE => out.extend([ESCAPE, byte + SHIFT]),
            BRACE => out.extend([BRACE, b'A']),
            SEPARATOR => out.extend([BRACE, b'B']),
            0xFE | LAST => out.extend([0xFE, b'A' + (byte - 0xFE)]),
            _ => out.push(byte),
        }
    }
    out.push(LAST);
}

fn decode_text(component: &[u8], descending: bool) -> Option<Vec<u8>> {
    let body = component.strip_suffix(&[if descending { LAST } else { END }])?;
    let mut text = Vec::with_capacity(body.len());
    let mut bytes = body.iter().copied();
    while let Some(byte) = bytes.next() {
        text.push(match byte {
            ESCAPE => bytes.next()?.checked_sub(SHIFT).filter(|byte| *byte <= ESCAPE)?,
            BRACE => BRACE + bytes.next()?.checked_sub(b'A').filter(|more| *more < 2)?,
            0xFE if descending => {
                0xFE + bytes.next()?.checked_sub(b'A').filter(|more| *more < 2)?
            }
            LAST if descending => return None,
            0..ESCAPE | SEPARATOR => return None,
            plain => plain,
        });
    }
    if descending {
        for byte in &mut text {
            *byte = 255 - *byte;
        }
    }
    Some(text)
}

#[cfg(test)]
mod tests;
