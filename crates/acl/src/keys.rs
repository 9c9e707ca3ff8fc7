//! Patterns of keys that are granted: literal prefixes, whole keys, and globs.
//!
//! A range of keys is decided by prefixes and whole keys alone. Of a glob nothing is known but which single key it matches, so
//! it contains no range (A1).

use crate::demand::Access;
use crate::error::RuleError;
use alloc::vec::Vec;
use headwater_base::KeyRange;
use headwater_command::glob;

/// What stands for the user's own name in a pattern.
const USER: &[u8] = b"<user>";

/// What a pattern matches, besides single keys.
#[derive(Clone, PartialEq, Eq, Debug)]
enum Reach {
    /// All keys that begin so, or one key.
    Range(KeyRange),
    /// Only what the glob matches.
    Glob,
}

/// A granted pattern of keys.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct KeyPattern {
    /// As it was given.
    pub text: Vec<u8>,
    /// What may be done with the keys.
    pub access: Access,
    /// The glob, with the user's name in it.
    glob: Vec<u8>,
    reach: Reach,
}

/// Which part of a glob is literal, and what is behind it: nothing, one `*`, or anything else.
enum Rest {
    Nothing,
    Star,
    Other,
}

fn literal_of(glob: &[u8]) -> (Vec<u8>, Rest) {
    let mut prefix = Vec::new();
    let mut rest = glob;
    loop {
        rest = match rest {
            [] => return (prefix, Rest::Nothing),
            [b'*'] => return (prefix, Rest::Star),
            [b'*' | b'?' | b'[', ..] => return (prefix, Rest::Other),
            [b'\\', byte, rest @ ..] => {
                prefix.push(*byte);
                rest
            }
            [byte, rest @ ..] => {
                prefix.push(*byte);
                rest
            }
        };
    }
}

/// A range that has every key that a glob matches.
#[must_use]
pub fn glob_prefix(glob: &[u8]) -> KeyRange {
    match literal_of(glob) {
        (key, Rest::Nothing) => KeyRange::point(&key),
        (prefix, _) => KeyRange::prefix(&prefix),
    }
}

/// The pattern with the user's name for `<user>`, its bytes standing for themselves.
fn bind(text: &[u8], user: &[u8]) -> Result<Vec<u8>, RuleError> {
    let mut bound = Vec::new();
    let mut rest = text;
    while let Some(byte) = rest.first() {
        if !rest.starts_with(USER) {
            bound.push(*byte);
            rest = &rest[1..];
            continue;
        }
        if user.contains(&headwater_base::key::SEPARATOR) || user.is_empty() {
            return Err(RuleError::UserInPattern);
        }
        for &byte in user {
            if matches!(byte, b'*' | b'?' | b'[' | b']' | b'\\' | b'^' | b'-') {
                bound.push(b'\\');
            }
            bound.push(byte);
        }
        rest = &rest[USER.len()..];
    }
    Ok(bound)
}

impl KeyPattern {
    /// What `text` grants to the user of this name.
    ///
    /// # Errors
    /// It names the user, whose name could reach beyond the pattern.
    pub fn new(text: &[u8], access: Access, user: &[u8]) -> Result<Self, RuleError> {
        let glob = bind(text, user)?;
        let reach = match literal_of(&glob) {
            (key, Rest::Nothing) => Reach::Range(KeyRange::point(&key)),
            (prefix, Rest::Star) => Reach::Range(KeyRange::prefix(&prefix)),
            (_, Rest::Other) => Reach::Glob,
        };
        Ok(Self { text: text.to_vec(), access, glob, reach })
    }

    /// Whether it grants this access to a key.
    #[must_use]
    pub fn grants(&self, key: &[u8], access: Access) -> bool {
        if !self.access.has(access) {
            return false;
        }
        match &self.reach {
            Reach::Range(range) => range.contains(key),
            Reach::Glob => glob::matches(&self.glob, key),
        }
    }

    /// Whether it grants this access to every key of a range.
    #[must_use]
    pub fn grants_range(&self, range: &KeyRange, access: Access) -> bool {
        let Reach::Range(own) = &self.reach else { return false };
        self.access.has(access) && own.covers(range)
    }

    /// Whether it grants all that another one does, as far as that can be told.
    #[must_use]
    pub fn covers(&self, other: &Self) -> bool {
        match &other.reach {
            Reach::Range(range) => self.grants_range(range, other.access),
            Reach::Glob => self.glob == other.glob && self.access.has(other.access),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pattern(text: &str) -> KeyPattern {
        KeyPattern::new(text.as_bytes(), Access::ALL, b"ann").unwrap()
    }

    #[test]
    fn a_prefix_contains_ranges_and_a_glob_contains_none() {
        let prefix = pattern("t|*");
        assert!(prefix.grants_range(&KeyRange::prefix(b"t|ann|"), Access::READ));
        assert!(prefix.grants_range(&KeyRange::new(b"t|", b"t}"), Access::READ));
        assert!(!prefix.grants_range(&KeyRange::new(b"t|", b"t}a"), Access::READ));
        assert!(!prefix.grants_range(&KeyRange::new(b"t|", b""), Access::READ));
        assert!(!prefix.grants_range(&KeyRange::new(b"t", b"t|b"), Access::READ));
        for glob in ["t|*|x", "t|?*", "[t]*", "*t"] {
            let glob = pattern(glob);
            assert!(!glob.grants_range(&KeyRange::point(b"t|a|x"), Access::READ));
        }
        assert!(pattern("t|*|x").grants(b"t|a|x", Access::READ));
        let key = pattern("t|a");
        assert!(key.grants(b"t|a", Access::ALL) && !key.grants(b"t|ab", Access::ALL));
        assert!(key.grants_range(&KeyRange::point(b"t|a"), Access::READ));
        assert!(!key.grants_range(&KeyRange::prefix(b"t|a"), Access::READ));
    }

    #[test]
    fn a_slot_stands_for_the_user_and_for_nobody_else() {
        let own = pattern("t|<user>|*");
        assert!(own.grants(b"t|ann|1", Access::READ) && !own.grants(b"t|anna|1", Access::READ));
        assert!(!own.grants(b"t|<user>|1", Access::READ));
        assert!(own.grants_range(&KeyRange::prefix(b"t|ann|0"), Access::READ));
        let star = KeyPattern::new(b"t|<user>|*", Access::ALL, b"a*").unwrap();
        assert!(star.grants(b"t|a*|1", Access::READ) && !star.grants(b"t|ab|1", Access::READ));
        for name in [&b"ann|x"[..], b"|", b""] {
            let refused = KeyPattern::new(b"t|<user>|*", Access::ALL, name);
            assert_eq!(refused, Err(RuleError::UserInPattern));
        }
    }

    #[test]
    fn what_a_glob_matches_is_in_its_range() {
        assert_eq!(glob_prefix(b"t|a*b"), KeyRange::prefix(b"t|a"));
        assert_eq!(glob_prefix(b"t\\*"), KeyRange::point(b"t*"));
        assert_eq!(glob_prefix(b"[a]"), KeyRange::all());
        // A class that is not closed, and a backslash at the end.
        assert_eq!(glob_prefix(b"a\\"), KeyRange::point(b"a\\"));
        assert_eq!(glob_prefix(b"a["), KeyRange::prefix(b"a"));
    }
}
