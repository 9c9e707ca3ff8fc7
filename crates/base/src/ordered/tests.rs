//! Encodings sort as their values do, and come back.

use super::*;
use alloc::format;
use alloc::string::String;
use core::cmp::Ordering;

const WAYS: [bool; 2] = [false, true];

fn encoded(kind: Kind, descending: bool, value: &[u8]) -> Vec<u8> {
    let mut out = b"before".to_vec();
    assert!(Ordered { kind, descending }.encode(value, &mut out), "{}", value.escape_ascii());
    out.split_off(6)
}

fn shown(kind: Kind, descending: bool, value: &str) -> String {
    String::from_utf8_lossy(&encoded(kind, descending, value.as_bytes())).into_owned()
}

struct Draws(u64);

impl Draws {
    fn below(&mut self, n: usize) -> usize {
        self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (self.0 >> 33) as usize % n
    }

    fn number(&mut self) -> String {
        let mut digits = |most: usize| -> String {
            let count = 1 + self.below(most);
            (0..count).map(|_| ['0', '0', '1', '5', '9'][self.below(5)]).collect()
        };
        let (whole, fraction) = (digits(3), digits(4));
        let long = digits(60);
        match self.below(10) {
            0 => format!("-{long}"),
            1 => format!("{long}.{fraction}"),
            2 => format!("-{whole}.{long}"),
            3 => format!("0.{long}"),
            4..6 => format!("{whole}.{fraction}"),
            6..8 => format!("-{whole}.{fraction}"),
            8 => whole,
            _ => format!("-{whole}"),
        }
    }

    fn text(&mut self) -> Vec<u8> {
        let bytes = b"\x00\x01 !\"#|{}~\x7f\x80\xfd\xfe\xffAaz";
        (0..self.below(5)).map(|_| bytes[self.below(bytes.len())]).collect()
    }
}

/// What follows a component within a key.
const BEHIND: [&[u8]; 4] = [b"", b"|", b"|zzz", b"|\x00"];

fn check(kind: Kind, values: [&[u8]; 2], order: Ordering, draws: &mut Draws) {
    for descending in WAYS {
        let codes = values.map(|value| encoded(kind, descending, value));
        let shown =
            || format!("{} {} {kind:?}", values[0].escape_ascii(), values[1].escape_ascii());
        assert!(codes.iter().all(|code| !code.is_empty() && !code.contains(&b'|')), "{}", shown());
        let order = if descending { order.reverse() } else { order };
        if order == Ordering::Equal {
            assert_eq!(codes[0], codes[1], "{}", shown());
            continue;
        }
        // Whatever follows either of them.
        let keys = codes.map(|code| [&code[..], BEHIND[draws.below(4)]].concat());
        assert_eq!(keys[0].cmp(&keys[1]), order, "{} as {keys:?}", shown());
    }
}

#[test]
fn numbers_sort_and_come_back() {
    let mut draws = Draws(1);
    for _ in 0..40_000 {
        let texts = [draws.number(), draws.number()];
        let [one, two] = [0, 1].map(|at| Decimal::parse(texts[at].as_bytes()).expect("a number"));
        check(Kind::Number, [texts[0].as_bytes(), texts[1].as_bytes()], one.cmp(&two), &mut draws);
        for descending in WAYS {
            let form = Ordered { kind: Kind::Number, descending };
            let code = encoded(Kind::Number, descending, texts[0].as_bytes());
            let text = form.decode(&code).expect("its own code");
            assert_eq!(String::from_utf8_lossy(&text), format!("{one}"));
        }
    }
    for text in ["", "x", "1e3", " 1", "0x10", "1."] {
        for descending in WAYS {
            let mut out = b"kept".to_vec();
            assert!(!Ordered { kind: Kind::Number, descending }.encode(text.as_bytes(), &mut out));
            assert_eq!(out, b"kept");
        }
    }
}

#[test]
fn texts_sort_and_come_back() {
    let mut draws = Draws(2);
    for _ in 0..40_000 {
        let texts = [draws.text(), draws.text()];
        check(Kind::Text, [&texts[0], &texts[1]], texts[0].cmp(&texts[1]), &mut draws);
        for descending in WAYS {
            let code = encoded(Kind::Text, descending, &texts[0]);
            assert_eq!(
                Ordered { kind: Kind::Text, descending }.decode(&code),
                Some(texts[0].clone())
            );
        }
    }
}

#[test]
fn what_is_no_encoding_is_none_of_any_value() {
    let mut draws = Draws(3);
    let bytes = b"0159-.~ABCUV!\"{A#$\x80\xfe\xff";
    let mut taken = 0;
    for _ in 0..200_000 {
        let code: Vec<u8> = (0..draws.below(8)).map(|_| bytes[draws.below(bytes.len())]).collect();
        for kind in [Kind::Text, Kind::Number] {
            for descending in WAYS {
                let form = Ordered { kind, descending };
                if let Some(value) = form.decode(&code) {
                    taken += 1;
                    assert_eq!(encoded(kind, descending, &value), code);
                }
            }
        }
    }
    assert!(taken > 1000, "{taken}");
}

#[test]
fn the_forms_are_as_documented() {
    let number = |text| shown(Kind::Number, false, text);
    let numbers =
        ["0", "42", "100", "0.5", "-42", "1.50", "+7", "0.001"].map(|text| (text, number(text)));
    let expected = ["0", "C42.", "D1.", "A99995.", "-T57~", "B15.", "B7.", "A99971."];
    assert_eq!(numbers.each_ref().map(|(_, code)| code.as_str()), expected);
    assert_eq!(shown(Kind::Number, true, "42"), "-T57~");
    assert_eq!(shown(Kind::Number, false, &"9".repeat(21)), format!("V0021{}.", "9".repeat(21)));
    assert_eq!(shown(Kind::Text, false, "New York"), "New\"CYork!");
    assert_eq!(shown(Kind::Text, false, "a|b{"), "a{Bb{A!");
    assert_eq!(shown(Kind::Time, false, "1970-01-01T00:00:42Z"), "C42.");
}

#[test]
fn times_are_moments() {
    let seconds = |text: &str| moment::seconds(text.as_bytes()).map(|number| format!("{number}"));
    for (text, number) in [
        ("1970-01-01", "0"),
        ("2000-02-29 12:00:00", "951825600"),
        ("2026-11-23T10:00:00.50+01:30", "1795422600.5"),
        ("2026-11-23T10:00Z", "1795428000"),
        ("1969-12-31T23:59:59.25Z", "-0.75"),
        ("0001-01-01 00:00:00+00", "-62135596800"),
        ("1700000000.125", "1700000000.125"),
    ] {
        assert_eq!(seconds(text).as_deref(), Some(number), "{text}");
    }
    for text in ["2026-02-29", "2026-13-01", "2026-1-1", "2026-01-01T25:00:00", "2026-01-01T", "x"]
    {
        assert_eq!(seconds(text), None, "{text}");
    }
    let form = Ordered { kind: Kind::Time, descending: true };
    let mut draws = Draws(4);
    for at in 0..20_000i64 {
        let days = at * 37 - 300_000;
        let (rest, thousandths) = (draws.below(86_400), draws.below(1000));
        let number = format!("{}.{thousandths:03}", days * 86_400 + rest as i64);
        let code = encoded(Kind::Time, true, number.as_bytes());
        let text = form.decode(&code).expect("its own code");
        let again = moment::seconds(&text).map(|number| format!("{number}"));
        let plain = Decimal::parse(number.as_bytes()).map(|number| format!("{number}"));
        assert_eq!(again, plain, "{}", String::from_utf8_lossy(&text));
    }
}
