//! The names of a JSON object's own fields, which say what of a row a client wants to write.
//!
//! Whether the text is JSON altogether is for the database to say; here it is read only as far as its names.

/// A field of an object.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Field {
    pub(crate) name: String,
    /// The value as PostgreSQL would print it, where it is a string, a number or a truth value.
    pub(crate) text: Option<String>,
}

/// The fields of an object.
///
/// # Errors
/// What follows "the value".
pub(crate) fn fields(text: &str) -> Result<Vec<Field>, String> {
    let odd = || "is no JSON object".to_owned();
    let mut rest = Rest(text.trim_ascii());
    rest.token('{').ok_or_else(odd)?;
    let mut fields = Vec::new();
    if rest.token('}').is_none() {
        loop {
            let name = rest.string().ok_or_else(odd)?;
            rest.token(':').ok_or_else(odd)?;
            let text = rest.value().ok_or_else(odd)?;
            fields.push(Field { name, text });
            if rest.token(',').is_none() {
                rest.token('}').ok_or_else(odd)?;
                break;
            }
        }
    }
    if rest.0.is_empty() { Ok(fields) } else { Err(odd()) }
}

/// The text of a JSON string, given with its quotes.
pub(crate) fn string(quoted: &str) -> Option<String> {
    let mut rest = Rest(quoted);
    rest.string().filter(|_| rest.0.is_empty())
}

/// What was not read yet.
struct Rest<'a>(&'a str);

impl Rest<'_> {
    /// Takes a character, and the blanks around it.
    fn token(&mut self, token: char) -> Option<()> {
        self.0 = self.0.trim_ascii_start().strip_prefix(token)?.trim_ascii_start();
        Some(())
    }

    fn string(&mut self) -> Option<String> {
        let mut text = String::new();
        let mut chars = self.0.strip_prefix('"')?.chars();
        loop {
            match chars.next()? {
                '"' => break,
                '\\' => match chars.next()? {
                    'n' => text.push('\n'),
                    'r' => text.push('\r'),
                    't' => text.push('\t'),
                    'b' => text.push('\u{8}'),
                    'f' => text.push('\u{c}'),
                    'u' => {
                        let first = unit(&mut chars)?;
                        let all = if (0xD800..0xDC00).contains(&first) {
                            (chars.next()? == '\\' && chars.next()? == 'u').then_some(())?;
                            vec![first, unit(&mut chars)?]
                        } else {
                            vec![first]
                        };
                        text.push_str(&String::from_utf16(&all).ok()?);
                    }
                    plain => text.push(plain),
                },
                plain => text.push(plain),
            }
        }
        self.0 = chars.as_str();
        Some(text)
    }

    /// Takes a value of any kind; gives its text where it is a plain one.
    fn value(&mut self) -> Option<Option<String>> {
        if self.0.starts_with('"') {
            return self.string().map(Some);
        }
        if self.0.starts_with(['{', '[']) {
            let mut depth = 0_usize;
            loop {
                match self.0.chars().next()? {
                    '"' => {
                        self.string()?;
                        continue;
                    }
                    '{' | '[' => depth += 1,
                    '}' | ']' => depth -= 1,
                    _ => {}
                }
                let mut chars = self.0.chars();
                chars.next();
                self.0 = chars.as_str();
                if depth == 0 {
                    return Some(None);
                }
            }
        }
        let end = self.0.find([',', '}', ' ', '\n', '\r', '\t'])?;
        let (text, rest) = self.0.split_at(end);
        self.0 = rest;
        match text {
            "" => None,
            "null" => Some(None),
            "true" => Some(Some("t".to_owned())),
            "false" => Some(Some("f".to_owned())),
            number => Some(Some(number.to_owned())),
        }
    }
}

/// Four hexadecimal digits.
fn unit(chars: &mut std::str::Chars<'_>) -> Option<u16> {
    let mut unit = 0;
    for _ in 0..4 {
        unit = unit * 16 + chars.next()?.to_digit(16)? as u16;
    }
    Some(unit)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_fields() {
        let given =
            r#" { "a" : 1, "b\"\u00e9\ud83d\ude00":{"x":[1,"]"]},"c":"t\n" ,"d":true,"e":null} "#;
        let all = fields(given).unwrap();
        let shown: Vec<_> =
            all.iter().map(|field| (field.name.as_str(), field.text.as_deref())).collect();
        let expected =
            [("a", Some("1")), ("b\"é😀", None), ("c", Some("t\n")), ("d", Some("t")), ("e", None)];
        assert_eq!(shown, expected);
        assert_eq!(fields("{}"), Ok(vec![]));
        for wrong in [
            "",
            "[]",
            "1",
            "{",
            "{\"a\"}",
            "{\"a\":}",
            "{\"a\":1,}",
            "{\"a\":[1}",
            "{} x",
            "{\"a\":\"\\u12",
        ] {
            assert!(fields(wrong).is_err(), "{wrong}");
        }
    }
}
