//! All users.

use crate::error::SetUserError;
use crate::user::User;
use alloc::collections::BTreeMap;
use alloc::string::{String, ToString};
use alloc::sync::Arc;
use alloc::vec::Vec;

/// The user of every connection that did not log in.
const DEFAULT: &[u8] = b"default";

/// Most bytes of a new user's name.
const NAME_BYTES_MAX: usize = 128;

/// Whether a new user may have this name.
fn is_name(name: &[u8]) -> bool {
    let is_safe = |byte: &u8| byte.is_ascii_alphanumeric() || b"_-.:@+".contains(byte);
    (1..=NAME_BYTES_MAX).contains(&name.len()) && name.iter().all(is_safe)
}

/// All users, of which `default` is always one.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Users {
    by_name: BTreeMap<Vec<u8>, Arc<User>>,
}

impl Default for Users {
    fn default() -> Self {
        let default = Arc::new(User::default_user());
        Self { by_name: BTreeMap::from([(DEFAULT.to_vec(), default)]) }
    }
}

impl Users {
    /// The user of this name.
    #[must_use]
    pub fn get(&self, name: &[u8]) -> Option<&Arc<User>> {
        self.by_name.get(name)
    }

    /// The user of every connection that did not log in.
    ///
    /// # Panics
    /// Never: it cannot be removed.
    #[must_use]
    pub fn default_user(&self) -> &Arc<User> {
        self.by_name.get(DEFAULT).expect("`default` is always a user")
    }

    /// All of them, by name.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = &Arc<User>> {
        self.by_name.values()
    }

    /// The user of this name, if the password is right and it may log in. A user who is not there takes as long as one who is.
    #[must_use]
    pub fn authenticate(&self, name: Option<&[u8]>, password: &[u8]) -> Option<Arc<User>> {
        let user = self.get(name.unwrap_or(DEFAULT));
        let Some(user) = user else {
            let _ = User::new(b"").has_password(password);
            return None;
        };
        (user.has_password(password) && user.enabled).then(|| user.clone())
    }

    /// Adds a user, or changes one: all rules or none.
    ///
    /// # Errors
    /// The first rule that is none, or the name of a new user, which stands in lines of the log and of what tells of clients.
    pub fn set<'r>(
        &mut self,
        name: &[u8],
        rules: impl Iterator<Item = &'r [u8]>,
    ) -> Result<Arc<User>, SetUserError> {
        if name.is_empty() || name.iter().any(|byte| byte.is_ascii_whitespace() || *byte == 0) {
            return Err(SetUserError::Name);
        }
        if self.get(name).is_none() && !is_name(name) {
            let name = name.escape_ascii().to_string();
            return Err(SetUserError::Alphabet { name });
        }
        self.keep(name, rules)
    }

    /// As [`Users::set`], where a user may have had any name before.
    ///
    /// # Errors
    /// The first rule that is none.
    pub fn keep<'r>(
        &mut self,
        name: &[u8],
        rules: impl Iterator<Item = &'r [u8]>,
    ) -> Result<Arc<User>, SetUserError> {
        let user = match self.get(name) {
            Some(user) => user.with(rules)?,
            None => User::new(name).with(rules)?,
        };
        let user = Arc::new(user);
        self.by_name.insert(name.to_vec(), user.clone());
        Ok(user)
    }

    /// Removes a user; whether there was one.
    ///
    /// # Errors
    /// It is `default`.
    pub fn remove(&mut self, name: &[u8]) -> Result<bool, SetUserError> {
        if name == DEFAULT {
            return Err(SetUserError::Default);
        }
        Ok(self.by_name.remove(name).is_some())
    }

    /// The users of an ACL file, and nobody else but `default`.
    ///
    /// # Errors
    /// What is wrong, and on which line, counted from 1.
    pub fn from_file(text: &[u8]) -> Result<Self, (usize, SetUserError)> {
        let mut users = Self::default();
        let mut named: Vec<&[u8]> = Vec::new();
        for (at, line) in text.split(|byte| *byte == b'\n').enumerate() {
            let line = line.trim_ascii();
            if line.is_empty() || line.starts_with(b"#") {
                continue;
            }
            let wrong = |error| (at + 1, error);
            let mut words = line.split(u8::is_ascii_whitespace).filter(|word| !word.is_empty());
            let (Some(b"user"), Some(name)) = (words.next(), words.next()) else {
                return Err(wrong(SetUserError::Line));
            };
            if named.contains(&name) {
                let name = String::from_utf8_lossy(name).into_owned();
                return Err(wrong(SetUserError::Duplicate { name }));
            }
            named.push(name);
            // What a line says is all there is of its user.
            let rules = [&b"reset"[..]].into_iter().chain(words);
            users.set(name, rules).map_err(wrong)?;
        }
        Ok(users)
    }

    /// The lines of an ACL file.
    #[must_use]
    pub fn to_file(&self) -> Vec<u8> {
        let mut text = Vec::new();
        for user in self.iter() {
            text.extend_from_slice(&user.line());
            text.push(b'\n');
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_of_one_alphabet_and_old_ones_stay() {
        let mut users = Users::default();
        let rules = || [&b"on"[..]].into_iter();
        for name in ["ann", "ops@example.org", "a:b-c_d.e+1", "X"] {
            users.set(name.as_bytes(), rules()).unwrap();
        }
        for name in ["a\"b", "\u{1b}[31m", "a=b", "\u{b}", "a|b", "\u{e9}", &"x".repeat(129)] {
            let error = users.set(name.as_bytes(), rules()).unwrap_err().to_string();
            let shown = name.as_bytes().escape_ascii().to_string();
            assert!(error.contains(&shown) && error.contains("'@' and '+'"), "{error}");
        }
        for name in ["", "a b", "a\0b", "a\nb"] {
            let error = users.set(name.as_bytes(), rules()).unwrap_err();
            assert_eq!(error, SetUserError::Name);
        }
        // One that was kept when names were free.
        users.keep(b"a|b", rules()).unwrap();
        users.set(b"a|b", [&b"off"[..]].into_iter()).unwrap();
        assert!(!users.get(b"a|b").unwrap().enabled);
        assert!(Users::from_file(b"user a=b on").is_err());
    }
}
