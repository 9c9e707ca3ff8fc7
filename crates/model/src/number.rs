//! Exact decimal numbers of any length, as pupils do it: digit by digit.
//!
//! Written a second time: nothing of the engine's arithmetic is used. A number is a sign, its
//! decimal digits and how many of them are fractional; no trailing zero is kept in the fraction.

use std::cmp::Ordering;

/// Longer texts are no numbers.
const TEXT_BYTES_MAX: usize = 1024;

/// An exact decimal number.
#[derive(Clone, Debug)]
pub struct Number {
    negative: bool,
    /// The digits, the least first.
    digits: Vec<u8>,
    /// How many of the digits are fractional.
    scale: usize,
}

impl Number {
    /// Zero.
    pub const ZERO: Self = Self { negative: false, digits: Vec::new(), scale: 0 };

    /// Reads `[+-]digits[.digits]`; anything else is no number.
    #[must_use]
    pub fn parse(text: &[u8]) -> Option<Self> {
        let (negative, unsigned) = match text {
            [b'-', rest @ ..] => (true, rest),
            [b'+', rest @ ..] => (false, rest),
            _ => (false, text),
        };
        let mut halves = unsigned.split(|&byte| byte == b'.');
        let (whole, fraction) = (halves.next()?, halves.next());
        let all_digits = |half: &[u8]| !half.is_empty() && half.iter().all(u8::is_ascii_digit);
        if text.len() > TEXT_BYTES_MAX
            || !all_digits(whole)
            || fraction.is_some_and(|fraction| !all_digits(fraction))
            || halves.next().is_some()
        {
            return None;
        }
        let fraction = fraction.unwrap_or(&[]);
        let digits = fraction.iter().rev().chain(whole.iter().rev()).map(|byte| byte - b'0');
        Some(Self { negative, digits: digits.collect(), scale: fraction.len() }.stripped())
    }

    /// The digits, the least first, of the magnitude times `10^scale`.
    fn at_scale(&self, scale: usize) -> Vec<u8> {
        let mut digits = vec![0; scale - self.scale];
        digits.extend(&self.digits);
        digits
    }

    /// The exact sum.
    #[must_use]
    pub fn plus(&self, other: &Self) -> Self {
        let scale = self.scale.max(other.scale);
        let (a, b) = (self.at_scale(scale), other.at_scale(scale));
        let (digits, negative) = if self.negative == other.negative {
            (added(&a, &b), self.negative)
        } else if order(&a, &b) == Ordering::Less {
            (subtracted(&b, &a), other.negative)
        } else {
            (subtracted(&a, &b), self.negative)
        };
        Self { negative, digits, scale }.stripped()
    }

    /// Which number is greater.
    #[must_use]
    pub fn order(&self, other: &Self) -> Ordering {
        let minus = Self { negative: !other.negative, ..other.clone() };
        let difference = self.plus(&minus);
        match (difference.digits.is_empty(), difference.negative) {
            (true, _) => Ordering::Equal,
            (false, true) => Ordering::Less,
            (false, false) => Ordering::Greater,
        }
    }

    /// `self / count`, rounded half to even at `max(scale of self, 18)` fractional digits.
    #[must_use]
    pub fn divided_by(&self, count: u64) -> Self {
        let scale = self.scale.max(18);
        let (mut quotient, mut rest) = (Vec::new(), 0_u64);
        for digit in self.at_scale(scale).iter().rev() {
            rest = rest * 10 + u64::from(*digit);
            quotient.insert(0, (rest / count) as u8);
            rest %= count;
        }
        let odd = quotient.first().is_some_and(|digit| digit % 2 == 1);
        if rest * 2 > count || (rest * 2 == count && odd) {
            quotient = added(&quotient, &[1]);
        }
        Self { negative: self.negative, digits: quotient, scale }.stripped()
    }

    /// Without needless zeros, and without a minus before zero.
    fn stripped(mut self) -> Self {
        while self.digits.len() > self.scale && self.digits.last() == Some(&0) {
            self.digits.pop();
        }
        let zeros = self.digits.iter().take(self.scale).take_while(|digit| **digit == 0).count();
        self.digits.drain(..zeros);
        self.scale -= zeros;
        self.negative &= !self.digits.is_empty();
        self
    }

    /// The canonical text: no plus sign, no needless zeros, no minus before zero.
    #[must_use]
    pub fn text(&self) -> Vec<u8> {
        let mut text: Vec<u8> = self.digits.iter().map(|digit| digit + b'0').collect();
        if self.scale > 0 {
            text.insert(self.scale, b'.');
        }
        if self.digits.len() == self.scale {
            text.push(b'0');
        }
        if self.negative {
            text.push(b'-');
        }
        text.reverse();
        text
    }
}

fn order(a: &[u8], b: &[u8]) -> Ordering {
    let digit = |digits: &[u8], at: usize| digits.get(at).copied().unwrap_or(0);
    let length = a.len().max(b.len());
    let unequal = (0..length).rev().find(|&at| digit(a, at) != digit(b, at));
    unequal.map_or(Ordering::Equal, |at| digit(a, at).cmp(&digit(b, at)))
}

fn added(a: &[u8], b: &[u8]) -> Vec<u8> {
    let mut sum = Vec::new();
    let mut carry = 0;
    for at in 0..a.len().max(b.len()) {
        let digit = a.get(at).unwrap_or(&0) + b.get(at).unwrap_or(&0) + carry;
        sum.push(digit % 10);
        carry = digit / 10;
    }
    sum.push(carry);
    sum
}

/// `a - b`, where `a` is not less.
fn subtracted(a: &[u8], b: &[u8]) -> Vec<u8> {
    let mut difference = Vec::new();
    let mut borrowed = 0;
    for at in 0..a.len().max(b.len()) {
        let less = b.get(at).unwrap_or(&0) + borrowed;
        let digit = *a.get(at).unwrap_or(&0);
        borrowed = u8::from(digit < less);
        difference.push(digit + 10 * borrowed - less);
    }
    difference
}

#[cfg(test)]
mod tests {
    use super::Number;

    fn canonical(text: &str) -> Option<String> {
        Number::parse(text.as_bytes()).map(|number| String::from_utf8(number.text()).unwrap())
    }

    #[test]
    fn texts() {
        for (text, expected) in [
            ("0", "0"),
            ("-0.00", "0"),
            ("+007", "7"),
            ("1.50", "1.5"),
            ("-0.05", "-0.05"),
            ("100", "100"),
        ] {
            assert_eq!(canonical(text).as_deref(), Some(expected), "{text}");
        }
        for text in ["", "-", ".5", "5.", "1e3", " 1", "1 ", "1.2.3", "0x1", "--1"] {
            assert_eq!(canonical(text), None, "{text}");
        }
    }

    #[test]
    fn sums_and_means() {
        let sum = |texts: &[&str]| {
            texts.iter().fold(Number::ZERO, |sum, text| {
                sum.plus(&Number::parse(text.as_bytes()).expect("a number"))
            })
        };
        assert_eq!(sum(&["0.1", "0.2", "-0.3"]).text(), b"0");
        assert_eq!(sum(&["1", "0"]).divided_by(3).text(), b"0.333333333333333333");
        assert_eq!(sum(&["2", "0"]).divided_by(3).text(), b"0.666666666666666667");
        assert_eq!(sum(&["1", "2"]).divided_by(2).text(), b"1.5");
        assert_eq!(sum(&["-1"]).divided_by(2).text(), b"-0.5");
        // A tie at the 18th digit goes to the even neighbour.
        assert_eq!(sum(&["0.000000000000000001"]).divided_by(2).text(), b"0");
        assert_eq!(sum(&["0.000000000000000003"]).divided_by(2).text(), b"0.000000000000000002");
    }
}
