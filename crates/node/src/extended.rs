//! Floating-point numbers of 64 significant bits, as INCRBYFLOAT needs them.
//!
//! Redis computes INCRBYFLOAT in the 80-bit format of x86 and prints 17 decimals. Clients see the
//! digits, so the same reading, rounding and printing is done here in whole numbers: reading and
//! adding round to the nearest, ties to even; printing is exact up to the 17th decimal.
//!
//! # Invariants
//! - X1. The significand of a finite number other than zero has its highest bit set.
//!
//! # Cost
//! Adding and printing numbers below 2^63 take a few 128-bit operations; reading takes long
//! division in proportion to the exponent, at most some 500 words.

use alloc::vec::Vec;

/// `±significand × 2^exponent`, an infinity, or no number.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Extended {
    /// A number.
    Finite { negative: bool, significand: u64, exponent: i32 },
    /// Beyond all numbers.
    Infinite { negative: bool },
    /// The sum of opposite infinities.
    NotANumber,
}

/// The greatest exponent that a finite number can have with a full significand.
const EXPONENT_MAX: i32 = 16383 - 63;
/// The least one; smaller numbers lose bits, as denormal numbers do.
const EXPONENT_MIN: i32 = -16382 - 63;
/// Decimal exponents beyond this overflow or underflow whatever the digits are.
const DECIMAL_EXPONENT_MAX: i64 = 20_000;
const DECIMALS: u32 = 17;

impl Extended {
    pub(crate) const ZERO: Self = Self::Finite { negative: false, significand: 0, exponent: 0 };

    /// Reads `[+-]digits[.digits][e[+-]digits]` or an infinity; `None` for anything else, and
    /// for a number that is too large or too small to be told from none.
    pub(crate) fn parse(text: &[u8]) -> Option<Self> {
        let (negative, text) = match text {
            [b'-', rest @ ..] => (true, rest),
            [b'+', rest @ ..] => (false, rest),
            _ => (false, text),
        };
        if text.eq_ignore_ascii_case(b"inf") || text.eq_ignore_ascii_case(b"infinity") {
            return Some(Self::Infinite { negative });
        }
        let at = text.iter().position(|byte| matches!(byte, b'e' | b'E'));
        let (mantissa, exponent) = match at {
            None => (text, 0),
            Some(at) => (&text[..at], decimal_exponent(&text[at + 1..])?),
        };
        let point = mantissa.iter().position(|&byte| byte == b'.');
        let (whole, fraction) = match point {
            None => (mantissa, &b""[..]),
            Some(at) => (&mantissa[..at], &mantissa[at + 1..]),
        };
        if whole.is_empty() && fraction.is_empty() {
            return None;
        }
        let mut digits = BigNatural::of(0);
        for &byte in whole.iter().chain(fraction) {
            let digit = byte.wrapping_sub(b'0');
            if digit > 9 {
                return None;
            }
            digits.multiply_add(10, u32::from(digit));
        }
        if digits.is_zero() {
            return Some(Self::Finite { negative, significand: 0, exponent: 0 });
        }
        let exponent = exponent - fraction.len() as i64;
        if exponent.abs() > DECIMAL_EXPONENT_MAX {
            return None;
        }
        let mut divisor = BigNatural::of(1);
        let scaled = if exponent < 0 { &mut divisor } else { &mut digits };
        for _ in 0..exponent.abs() {
            scaled.multiply_add(10, 0);
        }
        Self::quotient(negative, digits, divisor)
    }

    /// `numerator / denominator`, rounded; `None` beyond the format's range.
    fn quotient(
        negative: bool,
        mut numerator: BigNatural,
        mut denominator: BigNatural,
    ) -> Option<Self> {
        // Scaled so that the quotient has 65 or 66 bits before the point.
        let shift = 65 - (numerator.bits() as i32 - denominator.bits() as i32);
        if shift > 0 {
            numerator.shift_left(shift as u32);
        } else {
            denominator.shift_left(shift.unsigned_abs());
        }
        let (quotient, inexact) = numerator.divide(denominator, 67);
        let wide = (quotient << 1) | u128::from(inexact);
        match Self::rounded(negative, wide, -shift - 1) {
            Self::Finite { significand: 0, .. } | Self::Infinite { .. } => None,
            number => Some(number),
        }
    }

    /// `±wide × 2^exponent` rounded to 64 bits, where the lowest bit of a `wide` number of more
    /// than 66 bits stands for anything that was cut off below it.
    fn rounded(negative: bool, wide: u128, exponent: i32) -> Self {
        if wide == 0 {
            return Self::Finite { negative, significand: 0, exponent: 0 };
        }
        let bits = 128 - wide.leading_zeros() as i32;
        let mut cut = bits - 64;
        cut = cut.max(EXPONENT_MIN - exponent);
        let (mut significand, mut exponent) = if cut <= 0 {
            ((wide as u64) << -cut, exponent + cut)
        } else if cut > 127 {
            (0, exponent)
        } else {
            let kept = (wide >> cut) as u64;
            let (rest, half) = (wide & ((1 << cut) - 1), 1 << (cut - 1));
            let up = rest > half || (rest == half && kept & 1 == 1);
            match kept.checked_add(u64::from(up)) {
                Some(kept) => (kept, exponent + cut),
                None => (1 << 63, exponent + cut + 1),
            }
        };
        if significand == 0 {
            return Self::Finite { negative, significand: 0, exponent: 0 };
        }
        if exponent > EXPONENT_MAX {
            return Self::Infinite { negative };
        }
        let gap = significand.leading_zeros();
        significand <<= gap;
        exponent -= gap as i32;
        Self::Finite { negative, significand, exponent }
    }

    /// The sum, rounded.
    pub(crate) fn plus(self, other: Self) -> Self {
        let (a, b) = match (self, other) {
            (Self::NotANumber, _) | (_, Self::NotANumber) => return Self::NotANumber,
            (Self::Infinite { negative: a }, Self::Infinite { negative: b }) if a != b => {
                return Self::NotANumber;
            }
            (Self::Infinite { .. }, _) => return self,
            (_, Self::Infinite { .. }) => return other,
            (Self::Finite { significand: 0, .. }, _) => return other,
            (_, Self::Finite { significand: 0, .. }) => return self,
            (
                Self::Finite { negative, significand, exponent },
                Self::Finite { negative: negative_b, significand: b, exponent: exponent_b },
            ) => ((negative, significand, exponent), (negative_b, b, exponent_b)),
        };
        let (large, small) = if (a.2, a.1) >= (b.2, b.1) { (a, b) } else { (b, a) };
        let distance = (large.2 - small.2) as u32;
        let wide = u128::from(large.1) << 62;
        let aligned = u128::from(small.1) << 62;
        let aligned = match distance {
            0 => aligned,
            1..=127 => {
                let lost = aligned & ((1 << distance) - 1) != 0;
                (aligned >> distance) | u128::from(lost)
            }
            _ => 1,
        };
        let sum = if large.0 == small.0 { wide + aligned } else { wide - aligned };
        let negative = large.0 && sum != 0;
        Self::rounded(negative, sum, large.2 - 62)
    }

    /// The text with at most 17 decimals and no zeros at its end; `None` where it is no
    /// finite number.
    pub(crate) fn to_text(self) -> Option<Vec<u8>> {
        let Self::Finite { negative, significand, exponent } = self else { return None };
        if significand == 0 {
            return Some(b"0".to_vec());
        }
        let mut text = Vec::new();
        if negative {
            text.push(b'-');
        }
        if exponent >= 0 {
            let mut natural = BigNatural::of(significand);
            natural.shift_left(exponent.unsigned_abs());
            natural.write_decimal(&mut text);
            return Some(text);
        }
        let one = 10_u128.pow(DECIMALS);
        let scaled = u128::from(significand) * one;
        let cut = exponent.unsigned_abs();
        let rounded = if cut > 127 {
            0
        } else {
            let (kept, rest, half) = (scaled >> cut, scaled & ((1 << cut) - 1), 1 << (cut - 1));
            kept + u128::from(rest > half || (rest == half && kept & 1 == 1))
        };
        if rounded == 0 {
            return Some(b"0".to_vec());
        }
        let (whole, fraction) = (rounded / one, rounded % one);
        let digits = alloc::format!("{whole}.{fraction:017}");
        text.extend_from_slice(digits.trim_end_matches('0').trim_end_matches('.').as_bytes());
        Some(text)
    }
}

/// Reads the digits behind an `e`, bounded to what makes a difference.
fn decimal_exponent(text: &[u8]) -> Option<i64> {
    let (negative, digits) = match text {
        [b'-', rest @ ..] => (true, rest),
        [b'+', rest @ ..] => (false, rest),
        _ => (false, text),
    };
    if digits.is_empty() || !digits.iter().all(u8::is_ascii_digit) {
        return None;
    }
    let magnitude = digits.iter().fold(0_i64, |number, digit| {
        (number * 10 + i64::from(digit - b'0')).min(10 * DECIMAL_EXPONENT_MAX)
    });
    Some(if negative { -magnitude } else { magnitude })
}

/// A whole number of any size: 32-bit digits, the lowest first, none at the top zero.
struct BigNatural(Vec<u32>);

impl BigNatural {
    fn of(number: u64) -> Self {
        let mut natural = Self(alloc::vec![number as u32, (number >> 32) as u32]);
        natural.normalize();
        natural
    }

    fn normalize(&mut self) {
        while self.0.last() == Some(&0) {
            self.0.pop();
        }
    }

    fn is_zero(&self) -> bool {
        self.0.is_empty()
    }

    fn bits(&self) -> usize {
        self.0.last().map_or(0, |top| self.0.len() * 32 - top.leading_zeros() as usize)
    }

    fn multiply_add(&mut self, factor: u32, summand: u32) {
        let mut carry = u64::from(summand);
        for digit in &mut self.0 {
            carry += u64::from(*digit) * u64::from(factor);
            *digit = carry as u32;
            carry >>= 32;
        }
        if carry > 0 {
            self.0.push(carry as u32);
        }
    }

    fn shift_left(&mut self, shift: u32) {
        let (words, bits) = ((shift / 32) as usize, shift % 32);
        if bits > 0 {
            self.multiply_add(1 << bits, 0);
        }
        if !self.is_zero() {
            self.0.splice(0..0, core::iter::repeat_n(0, words));
        }
    }

    fn shift_right_once(&mut self) {
        let mut carry = 0;
        for digit in self.0.iter_mut().rev() {
            (*digit, carry) = ((*digit >> 1) | carry, *digit << 31);
        }
        self.normalize();
    }

    fn at_least(&self, other: &Self) -> bool {
        let by_len = self.0.len().cmp(&other.0.len());
        by_len.then_with(|| self.0.iter().rev().cmp(other.0.iter().rev())).is_ge()
    }

    /// Takes `other`, which is not greater, away.
    fn subtract(&mut self, other: &Self) {
        let mut borrow = false;
        for (at, digit) in self.0.iter_mut().enumerate() {
            let taken = other.0.get(at).copied().unwrap_or(0);
            let (rest, under) = digit.overflowing_sub(taken);
            let (rest, under_too) = rest.overflowing_sub(u32::from(borrow));
            *digit = rest;
            borrow = under || under_too;
        }
        self.normalize();
    }

    /// The quotient, which must have at most `bits` bits, and whether something remains.
    fn divide(mut self, mut divisor: Self, bits: u32) -> (u128, bool) {
        divisor.shift_left(bits);
        let mut quotient = 0;
        for _ in 0..=bits {
            quotient <<= 1;
            if self.at_least(&divisor) {
                self.subtract(&divisor);
                quotient |= 1;
            }
            divisor.shift_right_once();
        }
        (quotient, !self.is_zero())
    }

    fn write_decimal(mut self, text: &mut Vec<u8>) {
        const CHUNK: u64 = 1_000_000_000;
        let mut chunks = Vec::new();
        while !self.is_zero() {
            let mut rest = 0;
            for digit in self.0.iter_mut().rev() {
                let here = rest << 32 | u64::from(*digit);
                *digit = (here / CHUNK) as u32;
                rest = here % CHUNK;
            }
            self.normalize();
            chunks.push(rest);
        }
        let top = chunks.pop().unwrap_or(0);
        text.extend_from_slice(alloc::format!("{top}").as_bytes());
        for chunk in chunks.iter().rev() {
            text.extend_from_slice(alloc::format!("{chunk:09}").as_bytes());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::string::String;

    fn sum(a: &str, b: &str) -> Option<String> {
        let sum = Extended::parse(a.as_bytes())?.plus(Extended::parse(b.as_bytes())?);
        sum.to_text().map(|text| String::from_utf8(text).unwrap())
    }

    #[test]
    fn sums_have_the_digits_of_the_80_bit_format() {
        // Each answer was given by redis-server 7.0 on x86-64.
        let cases = [
            ("10.50", "0.1", "10.6"),
            ("3", "1.1", "4.1"),
            ("5.0e3", "2.0e2", "5200"),
            ("0.1", "0.2", "0.3"),
            ("-1.5", "1.5", "0"),
            ("0", "-0.0", "0"),
            ("1e18", "0.5", "1000000000000000000.5"),
        ];
        for (a, b, expected) in cases {
            assert_eq!(sum(a, b).as_deref(), Some(expected), "{a} + {b}");
        }
    }

    #[test]
    fn what_is_no_number_is_refused() {
        for text in
            ["", "-", ".", "1.2.3", "abc", "1e", "e5", " 1", "1 ", "1e5000", "1e-5000", "nan"]
        {
            assert_eq!(Extended::parse(text.as_bytes()), None, "{text:?}");
        }
        assert_eq!(sum("inf", "1"), None);
        assert_eq!(Extended::parse(b"1e999999999999999999999"), None);
    }
}
