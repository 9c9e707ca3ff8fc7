//! Exact decimals against schoolbook arithmetic on digit strings.

use std::cmp::Ordering;

use headwater_base::Decimal;

/// A number as one learns it at school: a sign, decimal digits (the least significant first), and
/// how many of them are behind the point.
#[derive(Clone, Debug)]
struct School {
    negative: bool,
    digits: Vec<u8>,
    scale: usize,
}

impl School {
    fn parse(text: &str) -> Self {
        let (negative, rest) = match text.strip_prefix('-') {
            Some(rest) => (true, rest),
            None => (false, text.strip_prefix('+').unwrap_or(text)),
        };
        let scale = rest.split_once('.').map_or(0, |(_, fraction)| fraction.len());
        let digits = rest.bytes().rev().filter(|&byte| byte != b'.').map(|byte| byte - b'0');
        Self { negative, digits: digits.collect(), scale }
    }

    /// The digits at `scale`, with zeros above up to `len`.
    fn at(&self, scale: usize, len: usize) -> Vec<u8> {
        let mut digits = vec![0; scale - self.scale];
        digits.extend(&self.digits);
        digits.resize(len, 0);
        digits
    }

    fn magnitude_order(one: &[u8], two: &[u8]) -> Ordering {
        one.iter().rev().cmp(two.iter().rev())
    }

    fn aligned(&self, other: &Self) -> (Vec<u8>, Vec<u8>, usize) {
        let scale = self.scale.max(other.scale);
        let len = scale + 2 + self.digits.len().max(other.digits.len());
        (self.at(scale, len), other.at(scale, len), scale)
    }

    fn add(&self, other: &Self) -> Self {
        let (one, two, scale) = self.aligned(other);
        if self.negative == other.negative {
            let mut carry = 0;
            let digits = one.iter().zip(&two).map(|(one, two)| {
                let sum = one + two + carry;
                carry = sum / 10;
                sum % 10
            });
            return Self { negative: self.negative, digits: digits.collect(), scale };
        }
        let swap = Self::magnitude_order(&one, &two) == Ordering::Less;
        let (more, less) = if swap { (two, one) } else { (one, two) };
        let mut borrow = 0;
        let digits = more.iter().zip(&less).map(|(more, less)| {
            let from = more + 10 - less - borrow;
            borrow = 1 - from / 10;
            from % 10
        });
        let negative = if swap { other.negative } else { self.negative };
        Self { negative, digits: digits.collect(), scale }
    }

    fn negated(&self) -> Self {
        Self { negative: !self.negative, ..self.clone() }
    }

    fn cmp(&self, other: &Self) -> Ordering {
        match self.add(&other.negated()) {
            difference if difference.digits.iter().all(|&digit| digit == 0) => Ordering::Equal,
            difference if difference.negative => Ordering::Less,
            _ => Ordering::Greater,
        }
    }

    fn average(&self, count: u64) -> Self {
        // Digits that the value needs behind the point.
        let zeros = self.digits.iter().take(self.scale).take_while(|&&digit| digit == 0).count();
        let wanted = (self.scale - zeros).max(18);
        let mut quotient = Vec::new();
        let mut rest: u128 = 0;
        let padded = wanted.saturating_sub(self.scale);
        let cut = self.scale.saturating_sub(wanted);
        let digits = vec![0; padded].into_iter().chain(self.digits.iter().skip(cut).copied());
        for digit in digits.collect::<Vec<u8>>().into_iter().rev() {
            rest = rest * 10 + u128::from(digit);
            quotient.push((rest / u128::from(count)) as u8);
            rest %= u128::from(count);
        }
        quotient.reverse();
        let average = Self { negative: self.negative, digits: quotient, scale: wanted };
        let odd = average.digits.first().is_some_and(|digit| digit % 2 == 1);
        let up = match (rest * 2).cmp(&u128::from(count)) {
            Ordering::Less => false,
            Ordering::Equal => odd,
            Ordering::Greater => true,
        };
        let one = Self { negative: self.negative, digits: vec![u8::from(up)], scale: wanted };
        average.add(&one)
    }

    fn text(&self) -> String {
        let mut digits = self.digits.clone();
        digits.resize(digits.len().max(self.scale + 1), 0);
        let shown: String = digits.iter().rev().map(|&digit| char::from(b'0' + digit)).collect();
        let (whole, fraction) = shown.split_at(shown.len() - self.scale);
        let whole = match whole.trim_start_matches('0') {
            "" => "0",
            whole => whole,
        };
        let text = match fraction.trim_end_matches('0') {
            "" => whole.to_string(),
            fraction => format!("{whole}.{fraction}"),
        };
        if self.negative && text != "0" { format!("-{text}") } else { text }
    }
}

struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) % bound
    }

    fn digits(&mut self, count: u64) -> String {
        // Runs of nines and zeros are where carries and ends go wrong.
        let style = self.below(4);
        let digit = |random: &mut Self| match style {
            0 => *b"09".get(random.below(2) as usize).unwrap_or(&b'0'),
            1 => b'9',
            2 if random.below(8) > 0 => b'0',
            _ => b'0' + random.below(10) as u8,
        };
        (0..count).map(|_| char::from(digit(self))).collect()
    }

    fn number(&mut self) -> String {
        let long = self.below(8) == 0;
        let most = if long { 120 } else { [3, 19, 22, 40][self.below(4) as usize] };
        let len = 1 + self.below(most);
        let sign = ["", "-", "+", "-"][self.below(4) as usize];
        let whole = self.digits(len);
        if self.below(2) == 0 {
            return format!("{sign}{whole}");
        }
        let len = 1 + self.below(most);
        format!("{sign}{whole}.{}", self.digits(len))
    }
}

fn decimal(text: &str) -> Decimal {
    Decimal::parse(text.as_bytes()).unwrap_or_else(|| panic!("{text} is a number"))
}

#[test]
fn arithmetic_agrees_with_schoolbook_arithmetic() {
    let mut random = Random(0x9E37_79B9_7F4A_7C15);
    for round in 0..30_000 {
        let (one, two) = (random.number(), random.number());
        let (a, b) = (School::parse(&one), School::parse(&two));
        assert_eq!(decimal(&one).to_string(), a.text(), "round {round}: {one}");
        let mut sum = decimal(&one);
        sum.add(&decimal(&two));
        assert_eq!(sum.to_string(), a.add(&b).text(), "round {round}: {one} + {two}");
        let mut difference = decimal(&one);
        difference.sub(&decimal(&two));
        let expected = a.add(&b.negated()).text();
        assert_eq!(difference.to_string(), expected, "round {round}: {one} - {two}");
        let order = decimal(&one).cmp(&decimal(&two));
        assert_eq!(order, a.cmp(&b), "round {round}: {one} <=> {two}");
        let count = match random.below(4) {
            0 => 1 + random.below(10),
            1 => 1 << random.below(64),
            2 => u64::MAX - random.below(3),
            _ => 1 + random.below(100_000),
        };
        let average = decimal(&one).average(count).to_string();
        assert_eq!(average, a.average(count).text(), "round {round}: {one} / {count}");
    }
}

#[test]
fn a_sum_does_not_remember_how_it_came_about() {
    let mut random = Random(77);
    for round in 0..2_000 {
        let kept: Vec<String> = (0..random.below(4)).map(|_| random.number()).collect();
        let gone: Vec<String> = (0..1 + random.below(4)).map(|_| random.number()).collect();
        let mut through = Decimal::ZERO;
        kept.iter().chain(&gone).for_each(|text| through.add(&decimal(text)));
        gone.iter().for_each(|text| through.sub(&decimal(text)));
        let mut afresh = Decimal::default();
        kept.iter().rev().for_each(|text| afresh.add(&decimal(text)));
        assert_eq!(through, afresh, "round {round}: {kept:?}, {gone:?}");
        assert_eq!(through.to_string(), afresh.to_string(), "round {round}");
        for count in [1, 3, 7, 64] {
            let averages = [&through, &afresh].map(|sum| sum.average(count).to_string());
            assert_eq!(averages[0], averages[1], "round {round}: {kept:?}, {gone:?} / {count}");
        }
    }
}

#[test]
fn canonical_text() {
    let long = "1".repeat(1024);
    for (text, canonical) in [
        ("0", "0"),
        ("-0", "0"),
        ("-0.000", "0"),
        ("+007.50", "7.5"),
        ("-00.10", "-0.1"),
        ("10", "10"),
        ("100.0", "100"),
        ("170141183460469231731687303715884105727", "170141183460469231731687303715884105727"),
        ("-170141183460469231731687303715884105728", "-170141183460469231731687303715884105728"),
        (&long, &long),
    ] {
        assert_eq!(decimal(text).to_string(), canonical);
    }
    assert_eq!(Decimal::from_u64(u64::MAX).to_string(), u64::MAX.to_string());
}

#[test]
fn what_is_not_a_number() {
    let long = "1".repeat(1025);
    for text in [
        "", "+", "-", ".", ".5", "5.", "-.5", "1e3", " 1", "1 ", "1_000", "1,5", "0x10", "--1",
        "+-1", "1.2.3", "1.-2", "nan", "inf", "١", &long,
    ] {
        assert_eq!(Decimal::parse(text.as_bytes()), None, "{text}");
    }
    assert_eq!(Decimal::parse(&[b'1', 0xFF]), None);
}

#[test]
fn averages() {
    for (sum, count, average) in [
        ("10", 4, "2.5"),
        ("1", 3, "0.333333333333333333"),
        ("-2", 3, "-0.666666666666666667"),
        // Half to even, at the eighteenth digit.
        ("0.000000000000000001", 2, "0"),
        ("0.000000000000000003", 2, "0.000000000000000002"),
        ("-0.000000000000000005", 2, "-0.000000000000000002"),
        // A sum with more digits keeps them.
        ("0.0000000000000000000003", 2, "0.0000000000000000000002"),
        // Zeros behind are no digits.
        ("0.1000000000000000000000", 3, "0.033333333333333333"),
    ] {
        assert_eq!(decimal(sum).average(count).to_string(), average, "{sum} / {count}");
    }
}

#[test]
fn a_sum_that_outgrows_128_bits_comes_back() {
    let most = decimal("170141183460469231731687303715884105727");
    let mut sum = most.clone();
    sum.add(&most);
    assert_eq!(sum.to_string(), "340282366920938463463374607431768211454");
    assert!(sum > most);
    sum.sub(&most);
    assert_eq!(sum, most);
    sum.sub(&most);
    assert_eq!(sum, Decimal::ZERO);
}
