//! Exact decimal numbers, as the aggregates `sum`, `avg`, `min` and `max` use them.
//!
//! A number is read from `[+-]digits[.digits]`: ASCII, at most [`Decimal::TEXT_BYTES_MAX`] bytes,
//! digits required on both sides of a point, no exponent, no white space. Nothing is ever rounded
//! but by [`Decimal::average`], so a sum kept by adding and subtracting equals the one computed
//! afresh, in any order: equality, order, average and text depend on the value alone, never on
//! how it came about.
//!
//! # Representation
//! A 128-bit mantissa and a scale where that suffices (up to 38 digits), else limbs of 18 decimal
//! digits. Limbs keep the decimal point between two limbs: numbers of any scales are then added
//! without multiplications, and printed without divisions.
//!
//! # Invariants
//! - I1. A small number has at most `SMALL_SCALE_MAX` fractional digits.
//! - I2. A large number needs three limbs or more: no limb at either end is zero but for those
//!   that the point needs. (One number may have both forms; they are equal.)
//!
//! # Cost
//! Small additions are a few instructions; large ones are linear in the digits.

use alloc::vec::Vec;
use core::cmp::Ordering;
use core::fmt;

use large::{LIMB, LIMB_DIGITS, Large};

mod large;

/// Most fractional digits of a small number.
const SMALL_SCALE_MAX: usize = 38;
/// An average that does not end is rounded to this many fractional digits, or the sum's if more.
const AVERAGE_SCALE: usize = 18;

/// `10^n`; every `n` up to 38 fits.
const fn power(n: usize) -> i128 {
    POWERS[n]
}

const POWERS: [i128; SMALL_SCALE_MAX + 1] = {
    let mut powers = [1; SMALL_SCALE_MAX + 1];
    let mut n = 1;
    while n < powers.len() {
        powers[n] = powers[n - 1] * 10;
        n += 1;
    }
    powers
};

/// An exact decimal number.
#[derive(Clone)]
pub struct Decimal(Form);

#[derive(Clone)]
enum Form {
    /// `mantissa / 10^scale`.
    Small {
        mantissa: i128,
        scale: usize,
    },
    Large(Large),
}

impl Decimal {
    /// Longest text that is read as a number.
    pub const TEXT_BYTES_MAX: usize = 1024;

    /// Zero.
    pub const ZERO: Self = Self(Form::Small { mantissa: 0, scale: 0 });

    /// Reads `[+-]digits[.digits]`; `None` for anything else.
    #[must_use]
    pub fn parse(text: &[u8]) -> Option<Self> {
        if text.len() > Self::TEXT_BYTES_MAX {
            return None;
        }
        let (negative, digits) = match text.split_first()? {
            (b'-', digits) => (true, digits),
            (b'+', digits) => (false, digits),
            _ => (false, text),
        };
        let (whole, fraction) = match digits.iter().position(|&byte| byte == b'.') {
            Some(point) if point + 1 < digits.len() => (&digits[..point], &digits[point + 1..]),
            Some(_) => return None,
            None => (digits, &[][..]),
        };
        let all_digits = |part: &[u8]| part.iter().all(u8::is_ascii_digit);
        if whole.is_empty() || !all_digits(whole) || !all_digits(fraction) {
            return None;
        }
        let zeros = whole.iter().take_while(|&&byte| byte == b'0').count();
        let whole = &whole[zeros..];
        let zeros = fraction.iter().rev().take_while(|&&byte| byte == b'0').count();
        let fraction = &fraction[..fraction.len() - zeros];
        if whole.len() + fraction.len() <= SMALL_SCALE_MAX {
            let mantissa = number(whole) * power(fraction.len()) + number(fraction);
            let mantissa = if negative { -mantissa } else { mantissa };
            return Some(Self(Form::Small { mantissa, scale: fraction.len() }));
        }
        Some(Large::parse(negative, whole, fraction).into_decimal())
    }

    /// The number `value`.
    #[must_use]
    pub fn from_u64(value: u64) -> Self {
        Self(Form::Small { mantissa: i128::from(value), scale: 0 })
    }

    /// Adds `other`.
    #[inline]
    pub fn add(&mut self, other: &Self) {
        self.combine(other, false);
    }

    /// Subtracts `other`.
    #[inline]
    pub fn sub(&mut self, other: &Self) {
        self.combine(other, true);
    }

    #[inline]
    fn combine(&mut self, other: &Self, negate: bool) {
        if let (Form::Small { mantissa, scale }, Form::Small { mantissa: more, scale: by }) =
            (&mut self.0, &other.0)
        {
            let aligned = if scale == by {
                Some((*mantissa, *more))
            } else {
                align(*mantissa, *scale, *more, *by)
            };
            let sum =
                aligned.and_then(
                    |(one, two)| {
                        if negate { one.checked_sub(two) } else { one.checked_add(two) }
                    },
                );
            if let Some(sum) = sum {
                *mantissa = sum;
                *scale = (*scale).max(*by);
                return;
            }
        }
        let mut more = other.to_large();
        more.negative ^= negate;
        *self = self.to_large().plus(&more).into_decimal();
    }

    /// This sum divided by `count`: rounded half to even to 18 fractional digits, or to as many as
    /// the sum itself has if those are more. Exact where the quotient ends within them.
    ///
    /// # Panics
    /// If `count` is zero.
    #[must_use]
    pub fn average(&self, count: u64) -> Self {
        assert!(count > 0, "an average of no numbers");
        if let Form::Small { mantissa, scale } = self.0 {
            // What the value itself needs decides, not how its scale came about.
            let (mantissa, scale) = strip(mantissa, scale, AVERAGE_SCALE);
            let digits = scale.max(AVERAGE_SCALE);
            if let Some(scaled) = mantissa.checked_mul(power(digits - scale)) {
                let by = i128::from(count);
                let (mut quotient, rest) = (scaled / by, scaled % by);
                let up = match (rest.unsigned_abs() * 2).cmp(&u128::from(count)) {
                    Ordering::Less => false,
                    Ordering::Equal => quotient % 2 != 0,
                    Ordering::Greater => true,
                };
                if up {
                    quotient += scaled.signum();
                }
                let (mantissa, scale) = strip(quotient, digits, 0);
                return Self(Form::Small { mantissa, scale });
            }
        }
        self.to_large().divided(count).into_decimal()
    }

    /// Appends the canonical text: no `+`, no zeros that say nothing, no `-0`.
    pub fn write_to(&self, out: &mut Vec<u8>) {
        match &self.0 {
            Form::Small { mantissa, scale } => {
                let mut digits = [b'0'; 40];
                let mut rest = mantissa.unsigned_abs();
                let mut at = digits.len();
                while rest > 0 {
                    // Most numbers need 64 bits: divisions of 128 are many times as slow.
                    if let Ok(mut rest) = u64::try_from(rest) {
                        while rest > 0 {
                            at -= 1;
                            digits[at] += (rest % 10) as u8;
                            rest /= 10;
                        }
                        break;
                    }
                    at -= 1;
                    digits[at] += (rest % 10) as u8;
                    rest /= 10;
                }
                write(*mantissa < 0, &digits[at.min(digits.len() - scale)..], *scale, out);
            }
            Form::Large(large) => {
                let digits = large.digits();
                write(large.negative, &digits, large.fraction * LIMB_DIGITS, out);
            }
        }
    }

    fn to_large(&self) -> Large {
        match &self.0 {
            Form::Small { mantissa, scale } => {
                let mut rest = mantissa.unsigned_abs();
                let mut limbs = Vec::with_capacity(4);
                while rest > 0 {
                    limbs.push((rest % u128::from(LIMB)) as u64);
                    rest /= u128::from(LIMB);
                }
                Large::scaled(*mantissa < 0, limbs, *scale)
            }
            Form::Large(large) => large.clone(),
        }
    }
}

/// The number that at most 38 digits spell.
fn number(digits: &[u8]) -> i128 {
    let piece = |digits: &[u8]| {
        digits.iter().fold(0, |number: u64, &digit| number * 10 + u64::from(digit - b'0'))
    };
    digits
        .chunks(LIMB_DIGITS)
        .fold(0, |number, chunk| number * power(chunk.len()) + i128::from(piece(chunk)))
}

/// Two mantissas at the larger of their scales, if they fit.
fn align(one: i128, one_scale: usize, two: i128, two_scale: usize) -> Option<(i128, i128)> {
    if one_scale < two_scale {
        Some((one.checked_mul(power(two_scale - one_scale))?, two))
    } else {
        Some((one, two.checked_mul(power(one_scale - two_scale))?))
    }
}

/// Takes zeros from the fraction's end, down to `scale_min` digits at most.
fn strip(mut mantissa: i128, mut scale: usize, scale_min: usize) -> (i128, usize) {
    while scale > scale_min && mantissa % 10 == 0 {
        mantissa /= 10;
        scale -= 1;
    }
    (mantissa, scale)
}

/// Appends `digits / 10^scale`; `digits` has at least `scale` bytes.
fn write(negative: bool, digits: &[u8], scale: usize, out: &mut Vec<u8>) {
    let (whole, fraction) = digits.split_at(digits.len() - scale);
    let zeros = whole.iter().take_while(|&&digit| digit == b'0').count();
    let whole = &whole[zeros..];
    let zeros = fraction.iter().rev().take_while(|&&digit| digit == b'0').count();
    let fraction = &fraction[..fraction.len() - zeros];
    if whole.is_empty() && fraction.is_empty() {
        out.push(b'0');
        return;
    }
    if negative {
        out.push(b'-');
    }
    out.extend_from_slice(if whole.is_empty() { b"0" } else { whole });
    if !fraction.is_empty() {
        out.push(b'.');
        out.extend_from_slice(fraction);
    }
}

impl Ord for Decimal {
    fn cmp(&self, other: &Self) -> Ordering {
        if let (Form::Small { mantissa: one, scale }, Form::Small { mantissa: two, scale: by }) =
            (&self.0, &other.0)
            && let Some((one, two)) = align(*one, *scale, *two, *by)
        {
            return one.cmp(&two);
        }
        self.to_large().compare(&other.to_large())
    }
}

impl PartialOrd for Decimal {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Decimal {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for Decimal {}

impl Default for Decimal {
    fn default() -> Self {
        Self::ZERO
    }
}

impl fmt::Display for Decimal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut text = Vec::new();
        self.write_to(&mut text);
        text.iter().try_for_each(|&byte| fmt::Write::write_char(f, char::from(byte)))
    }
}

impl fmt::Debug for Decimal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}
