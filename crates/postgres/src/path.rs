//! Paths into values of json and jsonb, `data->'address'->>'city'`, with what PostgreSQL's operators give.
//!
//! Both loads and the log bring the whole column as PostgreSQL prints it, and the path is followed here: so a value is the same
//! whichever way it came (K2 in [`crate::mapping`]), whatever the log tells of a row.
//!
//! A `json` keeps the text that was written, and of several fields of one name the last counts; a part of it is its text between
//! blanks. A `jsonb` is printed in one way, and so are its parts. Where PostgreSQL's operators would fail, as at escaped halves of characters, the
//! result is NULL.
//!
//! # Cost
//! One pass over the text up to the end of what each step looks into.

use crate::json;

/// The steps from a column's value to a part of it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Path {
    steps: Vec<Step>,
    /// The last operator was `->>`: the part is given as text.
    as_text: bool,
}

#[derive(Clone, PartialEq, Eq, Debug)]
enum Step {
    Field(String),
    /// From the beginning, or below zero from the end.
    Element(i64),
}

/// A part of a value.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Part<'a> {
    /// SQL's NULL.
    Null,
    /// JSON, by `->`.
    Json(&'a str),
    /// A text, by `->>`.
    Text(String),
}

impl Path {
    /// Reads a path at the beginning of `text`, if one stands there, and gives what follows it.
    ///
    /// # Errors
    /// What is wrong with it.
    pub(crate) fn read(text: &str) -> Result<(Option<Self>, &str), String> {
        let (mut steps, mut as_text, mut rest) = (Vec::new(), false, text.trim_start());
        while let Some(behind) = rest.strip_prefix("->") {
            if as_text {
                return Err("what `->>` gives is a text, and has no fields".to_owned());
            }
            let behind = match behind.strip_prefix('>') {
                Some(behind) => {
                    as_text = true;
                    behind
                }
                None => behind,
            };
            let (step, after) = Step::read(behind.trim_start()).ok_or(
                "behind `->` and `->>` stands a field's name, as in 'city', or an element's number",
            )?;
            steps.push(step);
            rest = after.trim_start();
        }
        let path = (!steps.is_empty()).then_some(Self { steps, as_text });
        Ok((path, rest))
    }

    /// The part of a value that PostgreSQL prints as `text`. `binary`: it is a jsonb.
    pub(crate) fn of<'a>(&self, text: &'a str, binary: bool) -> Part<'a> {
        let mut part = text.trim_ascii();
        for step in &self.steps {
            let found = match step {
                Step::Field(name) => field(part, name),
                Step::Element(at) => element(part, *at, binary),
            };
            match found {
                Some(found) => part = found,
                None => return Part::Null,
            }
        }
        match part {
            _ if !self.as_text => Part::Json(part),
            "null" => Part::Null,
            _ if part.starts_with('"') => json::string(part).map_or(Part::Null, Part::Text),
            _ => Part::Text(part.to_owned()),
        }
    }
}

impl Step {
    fn read(text: &str) -> Option<(Self, &str)> {
        let Some(quoted) = text.strip_prefix('\'') else {
            let digits = text.strip_prefix('-').unwrap_or(text);
            let end = digits.find(|next: char| !next.is_ascii_digit()).unwrap_or(digits.len());
            let (number, rest) = text.split_at(text.len() - digits.len() + end);
            return Some((Self::Element(number.parse::<i32>().ok()?.into()), rest));
        };
        let mut name = String::new();
        let mut rest = quoted;
        loop {
            let (part, behind) = rest.split_once('\'')?;
            name.push_str(part);
            match behind.strip_prefix('\'') {
                Some(more) => {
                    name.push('\'');
                    rest = more;
                }
                None => return Some((Self::Field(name), behind)),
            }
        }
    }
}

/// The value of an object's field; the last one of that name.
fn field<'a>(object: &'a str, name: &str) -> Option<&'a str> {
    let mut rest = object.strip_prefix('{')?.trim_ascii_start();
    let mut found = None;
    while !rest.starts_with('}') {
        let (key, behind) = value(rest)?;
        let (inner, behind) = value(behind.trim_ascii_start().strip_prefix(':')?)?;
        if json::string(key).is_some_and(|key| key == name) {
            found = Some(inner);
        }
        let behind = behind.trim_ascii_start();
        rest = behind.strip_prefix(',').unwrap_or(behind).trim_ascii_start();
    }
    found
}

/// The value of an array's element.
fn element(array: &str, at: i64, binary: bool) -> Option<&str> {
    let Some(inner) = array.strip_prefix('[') else {
        // A jsonb that is neither an object nor an array is kept as an array of one.
        return (binary && !array.starts_with('{') && matches!(at, 0 | -1)).then_some(array);
    };
    let mut rest = inner.trim_ascii_start();
    let mut all = Vec::new();
    while !rest.starts_with(']') {
        let (one, behind) = value(rest)?;
        if at >= 0 && all.len() as i64 == at {
            return Some(one);
        }
        all.push(one);
        let behind = behind.trim_ascii_start();
        rest = behind.strip_prefix(',').unwrap_or(behind).trim_ascii_start();
    }
    let at = usize::try_from(all.len() as i64 + at).ok()?;
    all.get(at).copied().filter(|_| at < all.len())
}

/// The value that `text` begins with, and what follows it.
fn value(text: &str) -> Option<(&str, &str)> {
    let text = text.trim_ascii_start();
    let (mut depth, mut within) = (0_usize, false);
    let mut bytes = text.bytes().enumerate();
    while let Some((at, byte)) = bytes.next() {
        let ended = match byte {
            b'\\' if within => {
                bytes.next();
                false
            }
            b'"' => {
                within = !within;
                !within && depth == 0
            }
            _ if within => false,
            b'{' | b'[' => {
                depth += 1;
                false
            }
            b'}' | b']' if depth > 0 => {
                depth -= 1;
                depth == 0
            }
            b'}' | b']' | b',' | b':' | b' ' | b'\t' | b'\n' | b'\r' if depth == 0 => {
                return (at > 0).then(|| text.split_at(at));
            }
            _ => false,
        };
        if ended {
            return Some(text.split_at(at + 1));
        }
    }
    (depth == 0 && !within && !text.is_empty()).then_some((text, ""))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(path: &str, text: &str, binary: bool) -> Option<String> {
        let (path, rest) = Path::read(path).unwrap();
        assert_eq!(rest, "");
        match path.unwrap().of(text, binary) {
            Part::Null => None,
            Part::Json(part) => Some(part.to_owned()),
            Part::Text(part) => Some(part),
        }
    }

    #[test]
    fn parts_of_values() {
        let text = r#" {"a" : [1, {"b": "x\"\u00e9]"}, null], "it's":{ "c":1.50 },"d": "\ud800", "a2":true,"e":1,"e" : 2} "#;
        for (path, expected) in [
            ("->'a'", Some(r#"[1, {"b": "x\"\u00e9]"}, null]"#)),
            ("->'a'->0", Some("1")),
            ("->'a' -> 1 ->> 'b'", Some("x\"é]")),
            ("->'a'->-2->'b'", Some(r#""x\"\u00e9]""#)),
            ("->'a'->2", Some("null")),
            ("->'a'->>2", None),
            ("->'a'->3", None),
            ("->'a'->-4", None),
            ("->'a'->'b'", None),
            ("->'it''s'", Some(r#"{ "c":1.50 }"#)),
            ("->'it''s'->>'c'", Some("1.50")),
            ("->>'d'", None),
            ("->>'a2'", Some("true")),
            ("->>'e'", Some("2")),
            ("->0", None),
            ("->'b'", None),
        ] {
            assert_eq!(found(path, text, false).as_deref(), expected, "{path}");
        }
        assert_eq!(
            (found("->0", "5", true).as_deref(), found("->0", "5", false)),
            (Some("5"), None)
        );
        assert_eq!(found("->>'a'", "{}", true), None);
        assert_eq!(found("->0", "[]", true), None);
        // No text of PostgreSQL's, but nothing to fail at.
        for odd in ["", "{", "[", "{\"a", "{\"a\"", "{\"a\":", "[1", "{,", "[,", "{}}", "\"", "\\"]
        {
            for path in ["->'a'", "->0", "->>-1"] {
                let _ = found(path, odd, true);
            }
        }
    }

    #[test]
    fn paths() {
        assert_eq!(Path::read(" , b"), Ok((None, ", b")));
        assert_eq!(Path::read("->0 AS x").unwrap().1, "AS x");
        for wrong in ["->", "->>", "->a", "->'a", "->99999999999", "->>'a'->'b'", "->-"] {
            assert!(Path::read(wrong).is_err(), "{wrong}");
        }
    }
}
