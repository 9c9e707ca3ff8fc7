//! Decimal numbers of any length: limbs of 18 decimal digits, with the point between two limbs.

use alloc::vec::Vec;
use core::cmp::Ordering;

use super::{AVERAGE_SCALE, Decimal, Form, SMALL_SCALE_MAX, number, power, strip};

/// A limb holds this many decimal digits.
pub(super) const LIMB_DIGITS: usize = 18;
/// Limbs are below this.
pub(super) const LIMB: u64 = 10_u64.pow(18);

/// The sum of `limbs[i] * LIMB^(i - fraction)`, or its negation.
#[derive(Clone)]
pub(super) struct Large {
    pub(super) negative: bool,
    /// The least significant comes first.
    limbs: Vec<u64>,
    /// How many of the limbs lie behind the point.
    pub(super) fraction: usize,
}

impl Large {
    pub(super) fn parse(negative: bool, whole: &[u8], fraction: &[u8]) -> Self {
        let limb = |digits: &[u8]| number(digits) as u64;
        let mut limbs: Vec<u64> = fraction
            .chunks(LIMB_DIGITS)
            .map(|chunk| limb(chunk) * power(LIMB_DIGITS - chunk.len()) as u64)
            .collect();
        limbs.reverse();
        let fraction = limbs.len();
        limbs.extend(whole.rchunks(LIMB_DIGITS).map(limb));
        Self { negative, limbs, fraction }
    }

    /// The integer `limbs` divided by `10^scale`.
    pub(super) fn scaled(negative: bool, mut limbs: Vec<u64>, scale: usize) -> Self {
        let fraction = scale.div_ceil(LIMB_DIGITS);
        multiply(&mut limbs, power(fraction * LIMB_DIGITS - scale) as u64);
        limbs.resize(limbs.len().max(fraction), 0);
        Self { negative, limbs, fraction }
    }

    /// As a decimal number, small if it can be.
    pub(super) fn into_decimal(mut self) -> Decimal {
        let zeros = self.limbs[..self.fraction].iter().take_while(|&&limb| limb == 0).count();
        self.limbs.drain(..zeros);
        self.fraction -= zeros;
        while self.limbs.len() > self.fraction && self.limbs.last() == Some(&0) {
            self.limbs.pop();
        }
        if self.limbs.len() <= SMALL_SCALE_MAX / LIMB_DIGITS {
            let mantissa =
                self.limbs.iter().rev().fold(0, |mantissa: i128, &limb| {
                    mantissa * i128::from(LIMB) + i128::from(limb)
                });
            let (mantissa, scale) = strip(mantissa, self.fraction * LIMB_DIGITS, 0);
            let mantissa = if self.negative { -mantissa } else { mantissa };
            return Decimal(Form::Small { mantissa, scale });
        }
        Decimal(Form::Large(self))
    }

    /// The limb at `place`, counted from the point: 0 is the ones'.
    fn limb(&self, place: isize) -> u64 {
        let at = usize::try_from(place + self.fraction as isize);
        at.ok().and_then(|at| self.limbs.get(at)).copied().unwrap_or(0)
    }

    /// The places at which one of the two has a limb, the least first.
    fn places(&self, other: &Self) -> core::ops::Range<isize> {
        let start = -(self.fraction.max(other.fraction) as isize);
        let whole = (self.limbs.len() - self.fraction).max(other.limbs.len() - other.fraction);
        start..whole as isize
    }

    fn compare_magnitude(&self, other: &Self) -> Ordering {
        let places = self.places(other).rev();
        places.fold(Ordering::Equal, |order, place| {
            order.then_with(|| self.limb(place).cmp(&other.limb(place)))
        })
    }

    fn is_zero(&self) -> bool {
        self.limbs.iter().all(|&limb| limb == 0)
    }

    pub(super) fn compare(&self, other: &Self) -> Ordering {
        let sign = |large: &Self| match (large.is_zero(), large.negative) {
            (true, _) => 0,
            (false, true) => -1,
            (false, false) => 1,
        };
        sign(self).cmp(&sign(other)).then_with(|| {
            let order = self.compare_magnitude(other);
            if self.negative { order.reverse() } else { order }
        })
    }

    pub(super) fn plus(&self, other: &Self) -> Self {
        let places = self.places(other);
        let fraction = places.start.unsigned_abs();
        let mut limbs = Vec::with_capacity(places.len() + 1);
        if self.negative == other.negative {
            let mut carry = 0;
            for place in places {
                let sum = self.limb(place) + other.limb(place) + carry;
                limbs.push(sum % LIMB);
                carry = sum / LIMB;
            }
            limbs.push(carry);
            return Self { negative: self.negative, limbs, fraction };
        }
        let (more, less) = match self.compare_magnitude(other) {
            Ordering::Less => (other, self),
            _ => (self, other),
        };
        let mut borrow = 0;
        for place in places {
            let from = more.limb(place) + LIMB - less.limb(place) - borrow;
            limbs.push(from % LIMB);
            borrow = 1 - from / LIMB;
        }
        Self { negative: more.negative, limbs, fraction }
    }

    /// How many fractional digits the value needs.
    fn scale(&self) -> usize {
        let zeros = self.limbs[..self.fraction].iter().take_while(|&&limb| limb == 0).count();
        let Some(mut limb) = self.limbs[..self.fraction].get(zeros).copied() else { return 0 };
        let mut scale = (self.fraction - zeros) * LIMB_DIGITS;
        while limb % 10 == 0 {
            limb /= 10;
            scale -= 1;
        }
        scale
    }

    /// See [`Decimal::average`].
    pub(super) fn divided(mut self, count: u64) -> Self {
        let digits = self.scale().max(AVERAGE_SCALE);
        // The integer `self * 10^digits`: whole limbs first, then what is less than a limb.
        let shift = digits.div_ceil(LIMB_DIGITS);
        if shift > self.fraction {
            self.limbs.splice(0..0, core::iter::repeat_n(0, shift - self.fraction));
        } else {
            self.limbs.drain(..self.fraction - shift);
        }
        let spare = shift * LIMB_DIGITS - digits;
        if spare > 0 {
            // Exact: the last `spare` digits are beyond the scale, so zeros.
            let rest = divide(&mut self.limbs, power(spare) as u64);
            assert_eq!(rest, 0, "no digit of a number lies beyond its scale");
        }
        let rest = u128::from(divide(&mut self.limbs, count));
        let odd = self.limbs.first().is_some_and(|limb| limb % 2 == 1);
        let up = match (rest * 2).cmp(&u128::from(count)) {
            Ordering::Less => false,
            Ordering::Equal => odd,
            Ordering::Greater => true,
        };
        let mut carry = u64::from(up);
        for limb in &mut self.limbs {
            let sum = *limb + carry;
            *limb = sum % LIMB;
            carry = sum / LIMB;
        }
        self.limbs.push(carry);
        Self::scaled(self.negative, self.limbs, digits)
    }

    /// All limbs' digits, the most significant first.
    pub(super) fn digits(&self) -> Vec<u8> {
        let mut digits = alloc::vec![b'0'; self.limbs.len() * LIMB_DIGITS];
        for (place, limb) in digits.rchunks_mut(LIMB_DIGITS).zip(&self.limbs) {
            let mut rest = *limb;
            for digit in place.iter_mut().rev() {
                *digit += (rest % 10) as u8;
                rest /= 10;
            }
        }
        digits
    }
}

/// Multiplies an integer by `by`, at most [`LIMB`].
fn multiply(limbs: &mut Vec<u64>, by: u64) {
    let mut carry = 0;
    for limb in &mut *limbs {
        let product = u128::from(*limb) * u128::from(by) + carry;
        *limb = (product % u128::from(LIMB)) as u64;
        carry = product / u128::from(LIMB);
    }
    if carry > 0 {
        limbs.push(carry as u64);
    }
}

/// Divides an integer by `by`; returns what remains.
fn divide(limbs: &mut [u64], by: u64) -> u64 {
    let mut rest = 0;
    for limb in limbs.iter_mut().rev() {
        let part = rest * u128::from(LIMB) + u128::from(*limb);
        *limb = (part / u128::from(by)) as u64;
        rest = part % u128::from(by);
    }
    rest as u64
}
