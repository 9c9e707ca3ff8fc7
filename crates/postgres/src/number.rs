//! Numbers with a fraction in keys: they are written as numbers of values are in the keys of joins ([`headwater_base::ordered`]), and a
//! range of such texts is a range of numbers in SQL.
//!
//! A `numeric` is its decimal, without zeros that say nothing: PostgreSQL takes 1.0 and 1.00 for equal, and a unique index has one of them.
//! A `real` or `double precision` is the shortest decimal that is read back as the same number; these are in the order of the numbers. (PostgreSQL
//! prints a longer one where the shortest lies in the middle between two numbers, and reads both alike.) NaN and infinities have no text.
//!
//! # Bounds
//! A range of keys may begin and end anywhere, also within a text or at bytes that no text has. What can be read of an end says in which
//! order of magnitude the numbers are, and with which digits they begin; the bound is the least or greatest number that may. It may hold for some more
//! numbers, never for fewer.
//!
//! # Invariants
//! - B1. A number whose text may begin a key's rest within `[low, high)` is within the bounds.
//! - X1 and X2 of [`crate::text`].

use crate::mapping::literal;
use headwater_base::Ordered;
use headwater_base::ordered::Kind;

/// How numbers are encoded.
const ENCODING: Ordered = Ordered { kind: Kind::Number, descending: false };
/// Texts of numbers below one say how many zeros follow the point as this less the zeros.
const ZEROS_MAX: i32 = 9999;
/// The most digits before a number's point that one letter says at the beginning of its text; of more, their count follows the letter.
const LETTERED: i32 = 20;

/// A type of numbers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Number {
    /// `numeric`: exact, with so many digits behind the point at most where the column says so. Fewer than none: it ends in zeros.
    Exact {
        /// How many.
        scale: Option<i32>,
    },
    /// `real`.
    Real,
    /// `double precision`.
    Double,
}

/// An end of the numbers of a range.
#[derive(Clone, PartialEq, Eq, Debug)]
enum End {
    /// All numbers are on the side that is asked for.
    All,
    /// None is.
    None,
    /// This one, or one beyond it.
    At(String),
}

impl Number {
    /// The type of a name in `pg_type`, for a column with this modifier (`atttypmod`).
    #[must_use]
    pub fn of(type_name: &str, modifier: i32) -> Option<Self> {
        match type_name {
            // The modifier is 4 more than the precision in its upper half and the scale, of 11 bits, in its lower one.
            "numeric" if modifier >= 4 => {
                let scale = (modifier - 4) & 0x7ff;
                Some(Self::Exact { scale: Some((scale ^ 1024) - 1024) })
            }
            "numeric" => Some(Self::Exact { scale: None }),
            "float4" => Some(Self::Real),
            "float8" => Some(Self::Double),
            _ => None,
        }
    }

    /// The shortest decimal of a number that PostgreSQL prints, or that stands for it.
    fn decimal(self, printed: &str) -> Option<String> {
        match self {
            Self::Exact { .. } => Some(printed.to_owned()),
            Self::Real => {
                printed.parse().ok().filter(|value: &f32| value.is_finite()).map(|v| v.to_string())
            }
            Self::Double => {
                printed.parse().ok().filter(|value: &f64| value.is_finite()).map(|v| v.to_string())
            }
        }
    }

    /// Appends the text of a number; gives `false`, with nothing appended, where it has none.
    pub(crate) fn write(self, printed: &str, out: &mut Vec<u8>) -> bool {
        let decimal = self.decimal(printed);
        decimal.is_some_and(|decimal| ENCODING.encode(decimal.as_bytes(), out))
    }

    /// What PostgreSQL reads the number from whose text is `text`; `None` if no number of the type has it.
    pub(crate) fn read(self, text: &[u8]) -> Option<String> {
        let decimal = String::from_utf8(ENCODING.decode(text)?).ok()?;
        let fits = match self {
            Self::Exact { scale: None } => true,
            Self::Exact { scale: Some(scale) } => {
                let fraction = decimal.split_once('.').map_or(0, |(_, digits)| digits.len());
                let whole = decimal.trim_end_matches('0');
                let zeros = if whole.is_empty() { usize::MAX } else { decimal.len() - whole.len() };
                match usize::try_from(scale) {
                    Ok(scale) => fraction <= scale,
                    Err(_) => fraction == 0 && zeros >= scale.unsigned_abs() as usize,
                }
            }
            Self::Real | Self::Double => self.decimal(&decimal).as_ref() == Some(&decimal),
        };
        fits.then_some(decimal)
    }

    /// The conditions on a column whose text begins a key's rest within `[low, high)`; `None` where no number does (B1). NaN and infinities,
    /// which sort behind and before all numbers, meet none.
    pub(crate) fn bounds(self, name: &str, low: &[u8], high: Option<&[u8]>) -> Option<Vec<String>> {
        let low = match self.end(least(low), true) {
            End::All => format!("{name} > '-Infinity'"),
            End::None => return None,
            End::At(number) => format!("{name} >= {}", literal(&number)),
        };
        let high = match high.map_or(End::All, |high| self.end(greatest(high), false)) {
            End::All => format!("{name} < 'Infinity'"),
            End::None => return None,
            End::At(number) => format!("{name} <= {}", literal(&number)),
        };
        Some(vec![low, high])
    }

    /// An end as a number of the type. Those that are rounded stay on their side of it: rounding never changes an order.
    fn end(self, end: End, is_low: bool) -> End {
        let End::At(number) = end else { return end };
        let rounded = match self {
            Self::Exact { .. } => return End::At(number),
            Self::Real => number.parse::<f32>().map(f64::from),
            Self::Double => number.parse::<f64>(),
        };
        match rounded {
            Ok(value) if value.is_finite() => match self.decimal(&number) {
                Some(decimal) => End::At(decimal),
                None => End::All,
            },
            // Beyond all numbers of the type, on this side or on that.
            Ok(value) if (value > 0.0) == is_low => End::None,
            _ => End::All,
        }
    }
}

/// The least number whose text may begin a key's rest of at least `bytes`.
fn least(bytes: &[u8]) -> End {
    match bytes.split_first() {
        Some((b'-', rest)) => match rest.first() {
            Some(b'A'..=b'V') => {
                let head = Head::read(rest, true);
                End::At(format!("-{}", head.greatest(head.tail.is_none_or(|byte| byte < b'0'))))
            }
            Some(b'W'..) => End::At("0".to_owned()),
            _ => End::All,
        },
        None | Some((..b'-', _)) => End::All,
        Some((b'A'..=b'V', _)) => End::At(Head::read(bytes, false).least()),
        Some((b'W'.., _)) => End::None,
        Some(_) => End::At("0".to_owned()),
    }
}

/// The greatest number whose text may begin a key's rest of less than `bytes`.
fn greatest(bytes: &[u8]) -> End {
    match bytes.split_first() {
        Some((b'-', rest)) => match rest.first() {
            Some(b'A'..=b'V') => End::At(format!("-{}", Head::read(rest, true).least())),
            Some(b'W'..) => End::At("0".to_owned()),
            _ => End::None,
        },
        None | Some((..b'-', _)) => End::None,
        Some((b'A'..=b'V', _)) => {
            let head = Head::read(bytes, false);
            End::At(head.greatest(head.tail.is_some_and(|byte| byte > b'9')))
        }
        Some((b'W'.., _)) => End::All,
        Some(_) => End::At("0".to_owned()),
    }
}

/// What begins the text of a number above zero, perhaps cut off. The number is 0.digits × 10^exponent.
struct Head {
    /// The least and the greatest exponent that it may have.
    exponents: (i32, i32),
    /// Whether all of the exponent stands there, and the digits behind it.
    is_known: bool,
    digits: Vec<u8>,
    /// The byte behind the digits.
    tail: Option<u8>,
}

impl Head {
    /// Reads what begins with a letter from `A` to `V`. `turned`: the number is below zero, and its text turned round.
    fn read(bytes: &[u8], turned: bool) -> Self {
        let digit = |byte: &u8| match byte {
            b'0'..=b'9' if turned => Some(b'9' - byte),
            b'0'..=b'9' => Some(byte - b'0'),
            _ => None,
        };
        let place = i32::from(bytes.first().map_or(0, |letter| letter.saturating_sub(b'A')));
        let letters = LETTERED + 1;
        let place = if turned { letters - place } else { place };
        let mut rest = bytes.get(1..).unwrap_or_default();
        let mut exponents = (place, place);
        if place == 0 || place == letters {
            let counted: Vec<_> = rest.iter().map_while(digit).take(4).collect();
            let filled = |fill: u8| {
                let all = counted.iter().copied().chain(std::iter::repeat(fill)).take(4);
                all.fold(0, |number, digit| number * 10 + i32::from(digit))
            };
            exponents = (filled(0), filled(9));
            if place == 0 {
                exponents = (exponents.0 - ZEROS_MAX, exponents.1 - ZEROS_MAX);
            }
            // Fewer have a letter of their own: between those and the first that is counted lies no number.
            let between = place == letters && exponents.0 <= LETTERED;
            if between {
                exponents = (letters, exponents.1.max(LETTERED));
            }
            if counted.len() < 4 || between {
                return Self { exponents, is_known: false, digits: Vec::new(), tail: None };
            }
            rest = &rest[4..];
        }
        let digits: Vec<_> = rest.iter().map_while(digit).collect();
        let tail = rest.get(digits.len()).copied();
        Self { exponents, is_known: true, digits, tail }
    }

    /// The least number that begins so. No digits begin with a zero.
    fn least(&self) -> String {
        match self.digits.first() {
            None | Some(0) => decimal(&[1], self.exponents.0),
            Some(_) => decimal(&self.digits, self.exponents.0),
        }
    }

    /// A number that none is beyond: of those that begin so where `further` digits may stand behind these, else of those with no more digits.
    fn greatest(&self, further: bool) -> String {
        let exponent = self.exponents.1;
        if !self.is_known || self.digits.is_empty() && further {
            return decimal(&[1], exponent + 1);
        }
        if let None | Some(0) = self.digits.first() {
            return decimal(&[1], exponent);
        }
        let mut digits = self.digits.clone();
        if !further {
            return decimal(&digits, exponent);
        }
        // One more in the last place.
        while digits.last() == Some(&9) {
            digits.pop();
        }
        match digits.last_mut() {
            Some(last) => {
                *last += 1;
                decimal(&digits, exponent)
            }
            None => decimal(&[1], exponent + 1),
        }
    }
}

/// 0.digits × 10^exponent, as SQL reads it.
fn decimal(digits: &[u8], exponent: i32) -> String {
    let digits: String = digits.iter().map(|digit| char::from(b'0' + digit)).collect();
    format!("0.{digits}e{exponent}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use headwater_base::Decimal;

    const ANY: Number = Number::Exact { scale: None };

    fn written(number: Number, printed: &str) -> Option<String> {
        let mut out = Vec::new();
        number.write(printed, &mut out).then(|| String::from_utf8(out).unwrap())
    }

    #[test]
    fn types_and_modifiers() {
        assert_eq!(Number::of("numeric", -1), Some(ANY));
        // numeric(10, 2) and numeric(3, -2).
        let of = |precision: i32, scale: i32| {
            Number::of("numeric", (precision << 16 | scale & 0x7ff) + 4)
        };
        assert_eq!(of(10, 2), Some(Number::Exact { scale: Some(2) }));
        assert_eq!(of(3, -2), Some(Number::Exact { scale: Some(-2) }));
        assert_eq!(Number::of("float4", -1), Some(Number::Real));
        assert_eq!(Number::of("money", -1), None);
    }

    #[test]
    fn numbers_that_are_printed_in_several_ways_have_one_text() {
        for (number, printed, text) in [
            (ANY, "42", "C42."),
            (ANY, "42.00", "C42."),
            (ANY, "-0.000", "0"),
            (ANY, "0.5", "A99995."),
            (Number::Double, "1e+20", "V00211."),
            (Number::Double, "-0", "0"),
            (Number::Double, "1.5e-07", "A999315."),
            (Number::Real, "3.4028235e+38", "V003934028235."),
            (Number::Real, "0.1", "A99991."),
        ] {
            assert_eq!(written(number, printed).as_deref(), Some(text), "{printed}");
            let read = number.read(text.as_bytes()).unwrap();
            assert_eq!(written(number, &read).as_deref(), Some(text), "{read}");
        }
        for number in [ANY, Number::Real, Number::Double] {
            for printed in ["NaN", "Infinity", "-Infinity", ""] {
                assert_eq!(written(number, printed), None);
            }
            assert_eq!(number.read(b"C420."), None);
        }
    }

    #[test]
    fn texts_of_numbers_that_a_column_cannot_hold_are_none() {
        let read = |number: Number, printed: &str| number.read(written(ANY, printed)?.as_bytes());
        let scaled = |scale| Number::Exact { scale: Some(scale) };
        assert_eq!(read(scaled(2), "-1.25").as_deref(), Some("-1.25"));
        assert_eq!(read(scaled(2), "1.255"), None);
        assert_eq!(read(scaled(0), "0").as_deref(), Some("0"));
        assert_eq!(read(scaled(-2), "1200").as_deref(), Some("1200"));
        assert_eq!(read(scaled(-2), "0").as_deref(), Some("0"));
        assert_eq!((read(scaled(-2), "1210"), read(scaled(-2), "0.5")), (None, None));
        assert_eq!(read(Number::Real, "0.1").as_deref(), Some("0.1"));
        assert_eq!(read(Number::Real, "0.10000000149011612"), None);
        assert_eq!(read(Number::Double, "0.10000000000000000001"), None);
        assert_eq!(read(Number::Double, &format!("1{}", "0".repeat(400))), None);
    }

    #[test]
    fn texts_are_in_the_order_of_binary_numbers() {
        let mut random = fastrand::Rng::with_seed(4);
        for _ in 0..20_000 {
            let a = f64::from_bits(random.u64(..));
            let b = match random.bool() {
                true => f64::from_bits(random.u64(..)),
                false => f64::from_bits(a.to_bits().wrapping_add(1)),
            };
            if !a.is_finite() || !b.is_finite() {
                continue;
            }
            // As PostgreSQL prints them, with an exponent.
            let text = |value: f64| written(Number::Double, &format!("{value:e}")).unwrap();
            assert_eq!(text(a).cmp(&text(b)), a.partial_cmp(&b).unwrap(), "{a} {b}");
            assert_eq!(Number::Double.read(text(a).as_bytes()).unwrap().parse(), Ok(a));
            let (a, b) = (a as f32, b as f32);
            if a.is_finite() && b.is_finite() {
                let text = |value: f32| written(Number::Real, &format!("{value:e}")).unwrap();
                assert_eq!(text(a).cmp(&text(b)), a.partial_cmp(&b).unwrap(), "{a} {b}");
            }
        }
    }

    #[test]
    fn bounds_of_whole_and_cut_texts() {
        type Case = (&'static [u8], Option<&'static [u8]>, &'static str);
        let cases: [Case; 16] = [
            (b"", None, "> '-Infinity', < 'Infinity'"),
            (b"C42.", None, ">= '0.42e2', < 'Infinity'"),
            (b"C42.", Some(b"C42.\0"), ">= '0.42e2', <= '0.42e2'"),
            (b"C42.|x", Some(b"C42.}"), ">= '0.42e2', <= '0.42e2'"),
            (b"C4", Some(b"C5"), ">= '0.4e2', <= '0.5e2'"),
            (b"C", Some(b"C:"), ">= '0.1e2', <= '0.1e3'"),
            (b"C9", Some(b"C99:"), ">= '0.9e2', <= '0.1e3'"),
            (b"-T57~", Some(b"-T57~|"), ">= '-0.42e2', <= '-0.42e2'"),
            (b"-T57", Some(b"-T58"), ">= '-0.43e2', <= '-0.41e2'"),
            (b"-", Some(b"."), "> '-Infinity', <= '0'"),
            (b"-W", Some(b"A"), ">= '0', <= '0.1e1'"),
            (b"0", Some(b"1"), ">= '0', <= '0'"),
            (b"A99", Some(b"V0005"), ">= '0.1e-99', <= '0.1e21'"),
            (b"V00", Some(b"W"), ">= '0.1e21', < 'Infinity'"),
            (b"-A9", Some(b"-B"), ">= '-0.1e1000', <= '-0.1e20'"),
            (b"A99995", Some(b"B"), ">= '0.5e0', <= '0.1e1'"),
        ];
        for (low, high, expected) in cases {
            let bounds = ANY.bounds("", low, high).unwrap().join(",");
            assert_eq!(bounds.trim(), expected, "{low:?} {high:?}");
        }
        for (low, high) in [(&b"W"[..], None), (b"", Some(&b"-"[..])), (b"", Some(b"#"))] {
            assert_eq!(ANY.bounds("", low, high), None);
        }
        let real = |low: &[u8], high: &[u8]| Number::Real.bounds("", low, Some(high));
        assert_eq!(real(b"V0050", b"W"), None);
        let bounds = real(b"-", b"V0050").unwrap().join(",");
        assert_eq!(bounds.trim(), "> '-Infinity', < 'Infinity'");
        let bounds = real(b"A00015", b"A99991.").unwrap().join(",");
        assert_eq!(bounds.trim(), ">= '0', <= '0.1'");
    }

    /// A bound, written out; one that is far from all numbers of the test as one that is less far.
    fn plain(bound: &str) -> Decimal {
        let (sign, bound) = bound.strip_prefix('-').map_or(("", bound), |rest| ("-", rest));
        let (digits, exponent) = bound.split_once('e').unwrap_or(("0.0", "0"));
        let exponent = exponent.parse::<i32>().unwrap().clamp(-400, 400);
        let zeros = "0".repeat((-exponent).max(0) as usize);
        let at = exponent.max(0) as usize;
        let digits = format!("{zeros}{:0<at$}", &digits[2..]);
        let text = format!("{sign}0{}.{}0", &digits[..at], &digits[at..]);
        Decimal::parse(text.as_bytes()).unwrap_or_else(|| panic!("{text}"))
    }

    fn holds(bound: &str, value: &Decimal) -> bool {
        let (way, end) = bound.trim().split_once(' ').unwrap();
        match way {
            ">=" => *value >= plain(end.trim_matches('\'')),
            "<=" => *value <= plain(end.trim_matches('\'')),
            _ => true,
        }
    }

    fn drawn(random: &mut fastrand::Rng) -> String {
        let count = random.usize(0..=20);
        let digits: String = (0..count).map(|_| random.char('0'..='9')).collect();
        let sign = if random.bool() { "-" } else { "" };
        let zeros = "0".repeat(if random.u8(0..4) == 0 { random.usize(0..200) } else { 0 });
        match random.bool() {
            true => format!("{sign}1{digits}{zeros}.0"),
            false => format!("{sign}0.{zeros}{digits}0"),
        }
    }

    #[test]
    fn bounds_hold_every_number_that_can_begin_a_key() {
        let mut random = fastrand::Rng::with_seed(5);
        let (mut met, mut beside) = (0, 0);
        for _ in 0..20_000 {
            let ends = [(); 2].map(|()| {
                let mut text = written(ANY, &drawn(&mut random)).unwrap().into_bytes();
                text.truncate(random.usize(0..=text.len()));
                if random.bool() {
                    text.push(random.u8(0x20..0x7f));
                }
                text
            });
            let [low, high] = &ends;
            let bounds = ANY.bounds("", low, Some(high));
            let mut numbers: Vec<_> = (0..6).map(|_| drawn(&mut random)).collect();
            // Those about the ends.
            for end in &ends {
                for more in [&b"."[..], b"~", b"1.", b"8~", b"5.", b"98.", b"01~"] {
                    numbers.extend(ANY.read(&[end, more].concat()));
                }
            }
            for number in numbers {
                let text = written(ANY, &number).unwrap();
                let value = Decimal::parse(number.as_bytes()).unwrap();
                let found =
                    bounds.as_ref().is_some_and(|all| all.iter().all(|bound| holds(bound, &value)));
                for rest in ["", "|", "|~~~"] {
                    let key = [text.as_bytes(), rest.as_bytes()].concat();
                    let within = key >= *low && key < *high;
                    assert!(found || !within, "{number} {low:?} {high:?} {bounds:?}");
                    met += u32::from(within);
                    beside += u32::from(!found);
                }
            }
        }
        assert!(met > 10_000 && beside > 50_000, "{met} {beside}");
    }
}
