//! Users as text: the lines of `ACL LIST` and of an ACL file.

use crate::demand::Access;
use crate::keys::KeyPattern;
use crate::selector::Selector;
use crate::user::User;
use alloc::string::String;
use alloc::vec::Vec;
use core::fmt::Write;

/// Hexadecimal digits of a hash.
pub(crate) fn hex(hash: &[u8; 32]) -> String {
    let mut text = String::new();
    for byte in hash {
        // Writing to a String cannot fail.
        let _ = write!(text, "{byte:02x}");
    }
    text
}

/// A hash as its hexadecimal digits say.
pub(crate) fn unhex(text: &[u8]) -> Option<[u8; 32]> {
    let digit = |byte: u8| match byte {
        b'0'..=b'9' => Some(byte - b'0'),
        b'a'..=b'f' => Some(byte - b'a' + 10),
        _ => None,
    };
    if text.len() != 64 {
        return None;
    }
    let mut hash = [0; 32];
    for (byte, pair) in hash.iter_mut().zip(text.chunks(2)) {
        *byte = digit(pair[0])? << 4 | digit(pair[1])?;
    }
    Some(hash)
}

impl KeyPattern {
    fn write(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(match self.access {
            Access::READ => b"%R~",
            Access::WRITE => b"%W~",
            _ => b"~",
        });
        out.extend_from_slice(&self.text);
    }
}

impl Selector {
    /// Its key patterns, with spaces between.
    #[must_use]
    pub fn keys_text(&self) -> Vec<u8> {
        if self.all_keys {
            return b"~*".to_vec();
        }
        let mut out = Vec::new();
        for pattern in &self.keys {
            if !out.is_empty() {
                out.push(b' ');
            }
            pattern.write(&mut out);
        }
        out
    }

    /// Its channels, with spaces between.
    #[must_use]
    pub fn channels_text(&self) -> Vec<u8> {
        if self.all_channels {
            return b"&*".to_vec();
        }
        let channels: Vec<Vec<u8>> =
            self.channels.iter().map(|channel| [b"&", &channel[..]].concat()).collect();
        channels.join(&b' ')
    }

    /// Its rules for commands, with spaces between.
    #[must_use]
    pub fn commands_text(&self) -> String {
        let mut text = String::from(if self.future { "+@all" } else { "-@all" });
        for rule in &self.rules {
            text.push(' ');
            text.push_str(rule);
        }
        text
    }

    /// All of it, as rules that give an equal selector.
    pub(crate) fn write(&self, out: &mut Vec<u8>) {
        let keys = self.keys_text();
        if !keys.is_empty() {
            out.extend_from_slice(&keys);
            out.push(b' ');
        }
        if !self.all_channels {
            out.extend_from_slice(b"resetchannels ");
        }
        let channels = self.channels_text();
        if !channels.is_empty() {
            out.extend_from_slice(&channels);
            out.push(b' ');
        }
        out.extend_from_slice(self.commands_text().as_bytes());
    }
}

impl User {
    /// The rules that give an equal user, with spaces between.
    #[must_use]
    pub fn rules_text(&self) -> Vec<u8> {
        let mut out = Vec::new();
        for flag in self.flags() {
            out.extend_from_slice(flag.as_bytes());
            out.push(b' ');
        }
        for password in &self.passwords {
            out.push(b'#');
            out.extend_from_slice(hex(password).as_bytes());
            out.push(b' ');
        }
        self.root.write(&mut out);
        for selector in &self.selectors {
            out.extend_from_slice(b" (");
            selector.write(&mut out);
            out.push(b')');
        }
        out
    }

    /// A line of `ACL LIST`.
    #[must_use]
    pub fn line(&self) -> Vec<u8> {
        [b"user ", &self.name[..], b" ", &self.rules_text()].concat()
    }

    /// Its passwords, as hexadecimal digits of their hashes.
    pub fn password_texts(&self) -> impl ExactSizeIterator<Item = String> {
        self.passwords.iter().map(hex)
    }
}
