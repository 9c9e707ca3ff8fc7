//! Cases that a module is tested with, as a TOML file has them.
//!
//! ```toml
//! [[case]]
//! function = "add"        # else: what the name of the module alone stands for
//! key = "visits"          # else: "key"
//! value = "41"            # else: the key is absent
//! param = "1"             # else: empty
//! reply = "42"            # else: no reply is compared; false: there must be none
//! after = "42"            # else: the value must be as before; false: the key must be absent
//! status = 0              # else: 0
//! error = "took longer"   # else: none; a part of the error's text
//! update = true           # else: true
//! now = 1700000000000     # milliseconds since 1970; else: those of the case before
//! ```
//!
//! Bytes are text, or `{ hex = "00ff" }`, `{ file = "value.bin" }` (beside the cases), or
//! `{ repeat = "x", count = 1000 }`.

use anyhow::{Context, Result, bail};
use serde::Deserialize;
use std::path::Path;

/// The cases of one file.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    #[serde(default)]
    case: Vec<Case>,
}

/// One call.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Case {
    pub(super) name: Option<String>,
    pub(super) function: Option<String>,
    #[serde(default = "key")]
    pub(super) key: String,
    pub(super) value: Option<Bytes>,
    pub(super) param: Option<Bytes>,
    pub(super) reply: Option<Expected>,
    pub(super) after: Option<Expected>,
    #[serde(default)]
    pub(super) status: i32,
    pub(super) error: Option<String>,
    #[serde(default = "yes")]
    pub(super) update: bool,
    pub(super) now: Option<u64>,
}

fn key() -> String {
    String::from("key")
}

fn yes() -> bool {
    true
}

/// Bytes in one of several forms.
#[derive(Deserialize)]
#[serde(untagged)]
pub(super) enum Bytes {
    Text(String),
    Hex { hex: String },
    File { file: String },
    Repeat { repeat: String, count: usize },
}

/// Bytes that are to be there; or whether there are any.
#[derive(Deserialize)]
#[serde(untagged)]
pub(super) enum Expected {
    Is(bool),
    Bytes(Bytes),
}

impl Bytes {
    /// The bytes; files are looked for in `folder`.
    pub(super) fn get(&self, folder: &Path) -> Result<Vec<u8>> {
        Ok(match self {
            Self::Text(text) => text.clone().into_bytes(),
            Self::Hex { hex } => {
                let digits: Vec<u8> =
                    hex.bytes().filter(|byte| !byte.is_ascii_whitespace()).collect();
                if !digits.len().is_multiple_of(2) {
                    bail!("hex: half a byte at the end of '{hex}'");
                }
                let byte = |pair: &[u8]| {
                    let pair = str::from_utf8(pair).ok()?;
                    u8::from_str_radix(pair, 16).ok()
                };
                let bytes: Option<Vec<u8>> = digits.chunks(2).map(byte).collect();
                bytes.with_context(|| format!("hex: '{hex}' has other characters"))?
            }
            Self::File { file } => {
                let path = folder.join(file);
                std::fs::read(&path).with_context(|| path.display().to_string())?
            }
            Self::Repeat { repeat, count } => repeat.repeat(*count).into_bytes(),
        })
    }
}

/// The cases that a file has.
pub(super) fn read(path: &Path) -> Result<Vec<Case>> {
    let text = std::fs::read_to_string(path).with_context(|| path.display().to_string())?;
    let File { case } = toml::from_str(&text).with_context(|| path.display().to_string())?;
    if case.is_empty() {
        bail!("{}: there is no [[case]]", path.display());
    }
    Ok(case)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_have_four_forms() {
        let text = "[[case]]\nvalue = 'a'\nparam = { hex = '00 fF' }\nreply = false\n\
                    after = { repeat = 'ab', count = 2 }";
        let File { case } = toml::from_str(text).unwrap();
        let get = |bytes: &Bytes| bytes.get(Path::new("")).unwrap();
        assert_eq!(get(case[0].value.as_ref().unwrap()), b"a");
        assert_eq!(get(case[0].param.as_ref().unwrap()), [0, 255]);
        let Some(Expected::Bytes(after)) = &case[0].after else { panic!() };
        assert_eq!(get(after), b"abab");
        assert!(matches!(case[0].reply, Some(Expected::Is(false))));
        for hex in ["0", "0g", "é0"] {
            assert!(Bytes::Hex { hex: hex.into() }.get(Path::new("")).is_err(), "{hex}");
        }
        assert!(toml::from_str::<File>("[[case]]\nvalu = 'a'").is_err());
    }
}
