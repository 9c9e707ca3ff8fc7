//! What paths lead to does not depend on one another, and is what a reader of whole documents finds.

use super::{Document, Found, Path, Step, find_all, found};
use crate::lens::{Bind, Field, Lens};
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;
use serde_json::Value;
use serde_json::value::RawValue;

struct Draws(u64);

impl Draws {
    fn below(&mut self, n: usize) -> usize {
        self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (self.0 >> 33) as usize % n
    }

    fn name(&mut self) -> &'static str {
        ["a", "b", "a", "b", "c", r"\u0061", "", r"\ud800", "ü"][self.below(9)]
    }

    fn document(&mut self, depth: usize) -> String {
        let gap = ["", "", " ", "\n\t"][self.below(4)];
        match if depth == 0 { 4 + self.below(9) } else { self.below(10) } {
            0..3 => {
                let parts: Vec<_> = (0..self.below(4))
                    .map(|_| format!("{gap}\"{}\"{gap}:{}", self.name(), self.document(depth - 1)))
                    .collect();
                format!("{gap}{{{}{gap}}}", parts.join(","))
            }
            3 => {
                let parts: Vec<_> = (0..self.below(4)).map(|_| self.document(depth - 1)).collect();
                format!("[{}]{gap}", parts.join(","))
            }
            4 => String::from("1e999"),
            5 => String::from("-0.50"),
            6 => format!("\"{}\"", self.name()),
            7 => String::from("null"),
            8 => String::from("true"),
            _ => format!("{}{gap}", self.below(30)),
        }
    }

    fn path(&mut self) -> Path {
        let step = |draws: &mut Self| match draws.below(4) {
            0 => Step::Element(draws.below(3)),
            _ => Step::Member(String::from(["a", "b", "a", "b", "ü"][draws.below(5)])),
        };
        Path { steps: (0..self.below(4)).map(|_| step(self)).collect() }
    }
}

/// What a path leads to in a document that was read as a whole.
fn naive(document: &Value, path: &Path) -> Option<Found> {
    let mut at = document;
    for step in &path.steps {
        at = match step {
            Step::Member(name) => at.as_object()?.get(name)?,
            Step::Element(index) => at.as_array()?.get(*index)?,
        };
    }
    match at {
        Value::Null => None,
        Value::Bool(truth) => Some(Found::Bool(*truth)),
        Value::Number(number) => found(&format!("{number}")),
        Value::String(text) => Some(Found::Text(text.clone().into_bytes())),
        Value::Array(_) | Value::Object(_) => Some(Found::Parts),
    }
}

#[test]
fn whether_a_value_is_json_does_not_depend_on_the_path() {
    let (mut whole, mut broken, mut led) = (0, 0, 0);
    for seed in 0..20_000 {
        let mut draws = Draws(seed);
        let mut document = draws.document(4).into_bytes();
        // Most have a fault somewhere: a byte that is no UTF-8, or one too many or too few.
        if draws.below(3) > 0 && !document.is_empty() {
            let at = draws.below(document.len());
            match draws.below(3) {
                0 => document[at] = [0xff, b'"', b'{', 1, b'\\'][draws.below(5)],
                1 => document.insert(at, [0xff, b',', b' ', 0x0c][draws.below(4)]),
                _ => drop(document.remove(at)),
            }
        }
        let is_json = core::str::from_utf8(&document)
            .is_ok_and(|text| serde_json::from_str::<&RawValue>(text).is_ok());
        *(if is_json { &mut whole } else { &mut broken }) += 1;
        let paths: Vec<Path> = (0..1 + draws.below(5)).map(|_| draws.path()).collect();
        let together = find_all(&document, &paths.iter().collect::<Vec<_>>());
        let read = serde_json::from_slice::<Value>(&document).ok();
        for (path, text) in paths.iter().zip(&together) {
            assert_eq!(find_all(&document, &[path]), [*text], "seed {seed}: {path}");
            assert!(is_json || text.is_none(), "seed {seed}: {path} in what is no JSON");
            if let Some(read) = &read {
                assert_eq!(text.and_then(found), naive(read, path), "seed {seed}: {path}");
                led += u32::from(text.is_some() && !path.steps.is_empty());
            }
        }
        let root = find_all(&document, &[&Path::default()]);
        assert_eq!(root[0].is_some(), is_json, "seed {seed}: {}", document.escape_ascii());
    }
    assert!(whole > 5000 && broken > 5000 && led > 200, "{whole} {broken} {led}");
}

#[test]
fn what_paths_do_not_lead_to_means_nothing_to_them() {
    let path = |name: &str| Path { steps: [Step::Member(String::from(name))].into() };
    for (document, leads) in [
        (&br#"{"x":"\xff","a":1}"#[..], false),
        (b"{\"x\":\"\xff\",\"a\":1}", false),
        (b"{\"a\":1,\"x\":{\"\xff\":1}}", false),
        (br#"{"x":"\ud800","a":1}"#, true),
        (br#"{"x":{"\ud800":1},"\ud800":2,"a":1}"#, true),
        (br#"{"x":1e999,"a":1}"#, true),
        (br#"{"x":01,"a":1}"#, false),
        (br#"{"a":1}x"#, false),
    ] {
        let (a, within, x) =
            (path("a"), Path { steps: [path("x").steps, path("b").steps].concat() }, path("x"));
        let texts = find_all(document, &[&a, &within, &x]);
        assert_eq!(texts[0], leads.then_some("1"), "{}", document.escape_ascii());
        assert_eq!(texts[1], None);
        assert!(leads || texts[2].is_none());
    }
    let deep = format!("{{\"x\":{}1{},\"a\":1}}", "[".repeat(10_000), "]".repeat(10_000));
    assert_eq!(find_all(deep.as_bytes(), &[&path("a")]), [Some("1")]);
}

#[test]
fn a_document_is_read_once_for_all_paths() {
    let field = |name: &str| Field::Json(Path { steps: [Step::Member(String::from(name))].into() });
    let bind = |(slot, name)| Bind { field: field(name), slot, width: None, form: None };
    let binds = ["a", "b", "a", "c"].into_iter().enumerate().map(bind).collect();
    let lens = Lens { binds, filter: None };
    let document = Document::new(br#"{"a":1,"b":"x"}"#, &lens);
    assert!(document.fields.get().is_none(), "nothing was asked for");
    let Field::Json(path) = &lens.binds[1].field else { unreachable!() };
    assert_eq!(document.find(path), Some(Found::Text(b"x".to_vec())));
    let texts: Vec<_> =
        document.fields.get().into_iter().flatten().map(|(_, text)| *text).collect();
    assert_eq!(texts, [Some("1"), Some("\"x\""), None]);
}
