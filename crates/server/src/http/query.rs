//! What a request's path and query say: percent-encoded bytes.

use super::problem::Problem;

/// The parameters of a query, of which each is there once at most.
#[derive(Debug, Default)]
pub(super) struct Query(Vec<(String, Vec<u8>)>);

impl Query {
    /// Reads a query that may have these parameters.
    pub(super) fn parse(text: Option<&str>, allowed: &[&str]) -> Result<Self, Problem> {
        let may = || {
            if allowed.is_empty() { String::from("no parameters") } else { allowed.join(", ") }
        };
        let mut all: Vec<(String, Vec<u8>)> = Vec::new();
        for part in text.unwrap_or_default().split('&').filter(|part| !part.is_empty()) {
            let (name, value) = part.split_once('=').unwrap_or((part, ""));
            let name = decode(name, true)?;
            let known = allowed.iter().find(|known| known.as_bytes() == name);
            let Some(known) = known else {
                let name = String::from_utf8_lossy(&name).into_owned();
                return Err(Problem::bad(format!("there is no parameter '{name}' here"), may()));
            };
            if all.iter().any(|(other, _)| other == known) {
                let text = format!("the parameter '{known}' is there twice");
                return Err(Problem::bad(text, "each parameter once"));
            }
            all.push(((*known).to_owned(), decode(value, true)?));
        }
        Ok(Self(all))
    }

    /// The bytes of a parameter.
    pub(super) fn get(&self, name: &str) -> Option<&[u8]> {
        self.0.iter().find(|(other, _)| other == name).map(|(_, value)| value.as_slice())
    }

    /// Whether a flag is set: `rev`, `rev=1` or `rev=true`.
    pub(super) fn flag(&self, name: &str) -> Result<bool, Problem> {
        match self.get(name) {
            None | Some(b"0" | b"false") => Ok(false),
            Some(b"" | b"1" | b"true") => Ok(true),
            Some(other) => {
                let other = String::from_utf8_lossy(other);
                let text = format!("{name} is '{other}'");
                Err(Problem::bad(text, "1 or true, 0 or false"))
            }
        }
    }

    /// A whole number from 1 to `most`.
    pub(super) fn number(&self, name: &str, most: u64) -> Result<Option<u64>, Problem> {
        self.number_within(name, (1, most))
    }

    /// A whole number of these, and between them.
    pub(super) fn number_within(
        &self,
        name: &str,
        (least, most): (u64, u64),
    ) -> Result<Option<u64>, Problem> {
        let Some(text) = self.get(name) else { return Ok(None) };
        let text = String::from_utf8_lossy(text);
        let digits = text.bytes().all(|byte| byte.is_ascii_digit());
        match text.parse::<u64>() {
            Ok(number) if digits && (least..=most).contains(&number) => Ok(Some(number)),
            _ => {
                let what = format!("{name} is '{text}'");
                Err(Problem::bad(what, format!("a whole number from {least} to {most}")))
            }
        }
    }

    /// The range that `first` and `last`, or `prefix`, name.
    pub(super) fn range(&self) -> Result<(Vec<u8>, Vec<u8>), Problem> {
        let allowed = "first and last (an empty last: to the end), or prefix";
        match (self.get("prefix"), self.get("first"), self.get("last")) {
            (Some(prefix), None, None) => Ok((prefix.to_vec(), after_prefix(prefix))),
            (None, None, None) => Err(Problem::bad("no range is named", allowed)),
            (None, first, last) => {
                Ok((first.unwrap_or_default().to_vec(), last.unwrap_or_default().to_vec()))
            }
            (Some(_), ..) => Err(Problem::bad(
                "a range is named twice: by prefix, and by first or last",
                allowed,
            )),
        }
    }
}

/// The least key behind all that begin so; empty where there is none.
fn after_prefix(prefix: &[u8]) -> Vec<u8> {
    let mut after = prefix.to_vec();
    while let Some(last) = after.pop() {
        if last < u8::MAX {
            after.push(last + 1);
            break;
        }
    }
    after
}

/// The bytes of percent-encoded text; in queries `+` is a space.
pub(super) fn decode(text: &str, in_query: bool) -> Result<Vec<u8>, Problem> {
    let digit = |byte: Option<&u8>| byte.and_then(|&byte| char::from(byte).to_digit(16));
    let bytes = text.as_bytes();
    let mut out = Vec::with_capacity(bytes.len());
    let mut at = 0;
    while let Some(&byte) = bytes.get(at) {
        at += 1;
        match byte {
            b'%' => {
                let (Some(high), Some(low)) = (digit(bytes.get(at)), digit(bytes.get(at + 1)))
                else {
                    let what = format!("'{text}' has a % that begins no byte");
                    return Err(Problem::bad(what, "% and two hexadecimal digits"));
                };
                out.push((high * 16 + low) as u8);
                at += 2;
            }
            b'+' if in_query => out.push(b' '),
            other => out.push(other),
        }
    }
    Ok(out)
}

/// Percent-encodes bytes, so that [`decode`] gives them back.
pub(super) fn encode(bytes: &[u8]) -> String {
    const HEX: &[u8; 16] = b"0123456789ABCDEF";
    let mut out = String::with_capacity(bytes.len());
    for &byte in bytes {
        if byte.is_ascii_alphanumeric() || b"-_.~".contains(&byte) {
            out.push(char::from(byte));
        } else {
            out.push('%');
            out.push(char::from(HEX[usize::from(byte >> 4)]));
            out.push(char::from(HEX[usize::from(byte & 15)]));
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::{Query, after_prefix, decode, encode};

    #[test]
    fn bytes_come_through_as_they_are() {
        let all: Vec<u8> = (0..=255).collect();
        assert_eq!(decode(&encode(&all), true).unwrap(), all);
        assert_eq!(decode("a+b%7c%FF", true).unwrap(), b"a b|\xff");
        assert_eq!(decode("a+b", false).unwrap(), b"a+b");
        for bad in ["%", "%1", "%zz", "a%4"] {
            assert!(decode(bad, false).is_err(), "{bad}");
        }
    }

    #[test]
    fn queries_are_read_strictly() {
        let parse = |text| Query::parse(Some(text), &["first", "last", "prefix", "limit", "rev"]);
        let query = parse("first=t%7Cann%7C&last=&limit=10&rev").unwrap();
        assert_eq!(query.range().unwrap(), (b"t|ann|".to_vec(), Vec::new()));
        assert_eq!(query.number("limit", 10).unwrap(), Some(10));
        assert!(query.number("limit", 9).is_err() && query.flag("rev").unwrap());
        assert_eq!(parse("prefix=t%FF").unwrap().range().unwrap().1, b"u");
        for bad in ["limt=1", "first=a&first=b", "first=%"] {
            assert!(parse(bad).is_err(), "{bad}");
        }
        for bad in ["", "prefix=a&first=b", "limit=1"] {
            assert!(parse(bad).unwrap().range().is_err(), "{bad}");
        }
        for bad in ["limit=-1", "limit=0", "limit=+1", "limit=1e3", "limit=99999999999999999999"] {
            assert!(parse(bad).unwrap().number("limit", 1000).is_err(), "{bad}");
        }
        assert!(parse("rev=maybe").unwrap().flag("rev").is_err());
        assert_eq!(after_prefix(b"\xff\xff"), b"");
    }
}
