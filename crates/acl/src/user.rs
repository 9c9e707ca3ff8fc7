//! One user: passwords, whether it may log in, and its rights.

use crate::demand::{Demand, Denied};
use crate::error::{RuleError, SetUserError};
use crate::places::Places;
use crate::selector::Selector;
use crate::text::unhex;
use alloc::string::String;
use alloc::vec::Vec;
use headwater_command::Spec;
use sha2::{Digest, Sha256};

/// The SHA-256 of a password.
#[must_use]
pub fn hash_of(password: &[u8]) -> [u8; 32] {
    Sha256::digest(password).into()
}

/// A user.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct User {
    /// Its name.
    pub name: Vec<u8>,
    /// It may log in.
    pub enabled: bool,
    /// Any password is right.
    pub nopass: bool,
    /// Redis's rule of this name, which means nothing here.
    skip_sanitize: bool,
    /// The hashes of its passwords.
    pub passwords: Vec<[u8; 32]>,
    password_places: Places<[u8; 32]>,
    /// Its rights.
    pub root: Selector,
    /// Others, each of which is enough for what it allows.
    pub selectors: Vec<Selector>,
    unrestricted: bool,
}

impl User {
    /// A user who may do nothing yet.
    #[must_use]
    pub fn new(name: &[u8]) -> Self {
        Self {
            name: name.to_vec(),
            enabled: false,
            nopass: false,
            skip_sanitize: false,
            passwords: Vec::new(),
            password_places: Places::default(),
            root: Selector::default(),
            selectors: Vec::new(),
            unrestricted: false,
        }
    }

    /// The user that every connection has which did not log in: everything is allowed, without a password.
    #[must_use]
    pub fn default_user() -> Self {
        let mut user = Self::new(b"default");
        for rule in ["on", "nopass", "~*", "&*", "+@all"] {
            // All of them are rules.
            let _ = user.apply(rule.as_bytes());
        }
        user
    }

    /// The words of what holds for it, in Redis's order.
    pub fn flags(&self) -> impl Iterator<Item = &'static str> {
        let sanitize =
            if self.skip_sanitize { "skip-sanitize-payload" } else { "sanitize-payload" };
        let enabled = if self.enabled { "on" } else { "off" };
        let nopass = self.nopass.then_some("nopass");
        [Some(enabled), nopass, Some(sanitize)].into_iter().flatten()
    }

    /// Its name, to be read by a person.
    #[must_use]
    pub fn shown(&self) -> String {
        String::from_utf8_lossy(&self.name).into_owned()
    }

    /// Whether no request is refused.
    #[inline]
    #[must_use]
    pub fn is_unrestricted(&self) -> bool {
        self.unrestricted
    }

    /// Whether a password is one of its own. All are compared, so that the time taken tells nothing.
    #[must_use]
    pub fn has_password(&self, password: &[u8]) -> bool {
        if self.nopass {
            return true;
        }
        let hash = hash_of(password);
        self.passwords.iter().fold(false, |found, own| {
            let differ = own.iter().zip(hash).fold(0, |differ, (a, b)| differ | (a ^ b));
            found | (differ == 0)
        })
    }

    /// Applies one rule.
    ///
    /// # Errors
    /// It is none.
    pub fn apply(&mut self, rule: &[u8]) -> Result<(), RuleError> {
        let done = self.apply_one(rule);
        self.note_unrestricted();
        done
    }

    fn note_unrestricted(&mut self) {
        self.unrestricted =
            self.root.is_unrestricted() || self.selectors.iter().any(Selector::is_unrestricted);
    }

    fn apply_one(&mut self, rule: &[u8]) -> Result<(), RuleError> {
        let is = |word: &str| rule.eq_ignore_ascii_case(word.as_bytes());
        if is("on") {
            self.enabled = true;
        } else if is("off") {
            self.enabled = false;
        } else if is("nopass") {
            (self.nopass, self.passwords) = (true, Vec::new());
        } else if is("resetpass") {
            (self.nopass, self.passwords) = (false, Vec::new());
        } else if is("sanitize-payload") {
            self.skip_sanitize = false;
        } else if is("skip-sanitize-payload") {
            self.skip_sanitize = true;
        } else if is("clearselectors") {
            self.selectors.clear();
        } else if is("reset") {
            *self = Self::new(&self.name);
        } else {
            return match rule {
                [b'>', password @ ..] => {
                    self.add(hash_of(password));
                    Ok(())
                }
                [b'#', hash @ ..] => {
                    self.add(unhex(hash).ok_or(RuleError::BadHash)?);
                    Ok(())
                }
                [b'<', password @ ..] => self.remove(&hash_of(password)),
                [b'!', hash @ ..] => self.remove(&unhex(hash).ok_or(RuleError::BadHash)?),
                [b'(', rules @ .., b')'] => self.add_selector(rules),
                _ => self.root.apply(rule, &self.name),
            };
        }
        Ok(())
    }

    fn add(&mut self, hash: [u8; 32]) {
        if self.password_places.find_or_add(&hash, self.passwords.len()).is_none() {
            self.passwords.push(hash);
        }
        self.nopass = false;
    }

    fn remove(&mut self, hash: &[u8; 32]) -> Result<(), RuleError> {
        let before = self.passwords.len();
        self.passwords.retain(|own| own != hash);
        self.password_places = Places::of(self.passwords.iter().copied());
        if self.passwords.len() == before { Err(RuleError::NoSuchPassword) } else { Ok(()) }
    }

    fn add_selector(&mut self, rules: &[u8]) -> Result<(), RuleError> {
        let mut selector = Selector::default();
        for rule in rules.split(|byte| *byte == b' ').filter(|rule| !rule.is_empty()) {
            selector.apply(rule, &self.name)?;
        }
        self.selectors.push(selector);
        Ok(())
    }

    /// The user with these rules applied, in order.
    ///
    /// # Errors
    /// The first rule that is none.
    pub fn with<'r>(&self, rules: impl Iterator<Item = &'r [u8]>) -> Result<Self, SetUserError> {
        let mut user = self.clone();
        let mut open: Option<Vec<u8>> = None;
        for word in rules {
            let rule = match open.take() {
                Some(mut selector) => {
                    selector.push(b' ');
                    selector.extend_from_slice(word);
                    selector
                }
                None => word.to_vec(),
            };
            if rule.first() == Some(&b'(') && rule.last() != Some(&b')') {
                open = Some(rule);
                continue;
            }
            user.apply_one(&rule)
                .map_err(|error| SetUserError::Rule { rule: shown(&rule), error })?;
        }
        match open {
            // As in Redis, by its first word.
            Some(selector) => {
                let first = selector.split(|byte| *byte == b' ').next().unwrap_or_default();
                Err(SetUserError::Unmatched { selector: shown(first) })
            }
            None => {
                user.note_unrestricted();
                Ok(user)
            }
        }
    }

    /// Whether a request may be run; `first`: the first argument behind the command's name.
    ///
    /// # Errors
    /// What is refused; of several selectors, what the one refuses that comes furthest.
    pub fn check(
        &self,
        spec: &Spec,
        first: Option<&[u8]>,
        needs: &[Demand<'_>],
    ) -> Result<(), Denied> {
        if self.unrestricted {
            return Ok(());
        }
        let mut denied = match self.root.check(spec, first, needs) {
            Ok(()) => return Ok(()),
            Err(denied) => denied,
        };
        for selector in &self.selectors {
            match selector.check(spec, first, needs) {
                Ok(()) => return Ok(()),
                Err(other) if other.0 > denied.0 => denied = other,
                Err(_) => {}
            }
        }
        Err(denied.1)
    }

    /// Whether it may do all that another one may, as far as that can be told: with the other's sets of rights one by one.
    #[must_use]
    pub fn covers(&self, other: &Self) -> bool {
        let own = || [&self.root].into_iter().chain(&self.selectors);
        let mut others = [&other.root].into_iter().chain(&other.selectors);
        self.unrestricted || others.all(|other| own().any(|own| own.covers(other)))
    }

    /// Whether one thing is allowed, whatever command asks for it.
    ///
    /// # Errors
    /// It is not.
    pub fn meets(&self, need: &Demand<'_>) -> Result<(), Denied> {
        if self.unrestricted {
            return Ok(());
        }
        let denied = match self.root.meets(need) {
            Ok(()) => return Ok(()),
            Err(denied) => denied,
        };
        let met = self.selectors.iter().any(|selector| selector.meets(need).is_ok());
        if met { Ok(()) } else { Err(denied) }
    }
}

/// A rule as an error shows it: no password, not even within a set of further rights, where none belongs.
fn shown(rule: &[u8]) -> String {
    let words = rule.split(|byte| *byte == b' ').map(|word| {
        let brackets = word.iter().take_while(|byte| **byte == b'(').count();
        match word.get(brackets) {
            Some(b'>' | b'<') => {
                String::from_utf8_lossy(&word[..=brackets]).into_owned() + "(hidden)"
            }
            _ => String::from_utf8_lossy(word).into_owned(),
        }
    });
    words.collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::string::ToString;

    #[test]
    fn errors_show_no_password() {
        for (rules, shown) in [
            (&["<hunter2"][..], "'<(hidden)'"),
            (&["(>hunter2)"], "'(>(hidden)'"),
            (&["(", ">hunter2", ")"], "'( >(hidden) )'"),
            (&["(~a", "+get", "((>hunter2)"], "'(~a +get ((>(hidden)'"),
            (&["(~a", "<hunter2"], "starting at '(~a'"),
            (&["(>hunter2", "~a"], "starting at '(>(hidden)'"),
            (&["+nosuch"], "'+nosuch'"),
        ] {
            let rules = rules.iter().map(|rule| rule.as_bytes());
            let error = User::new(b"ann").with(rules).unwrap_err().to_string();
            assert!(error.contains(shown) && !error.contains("hunter2"), "{error}");
        }
    }
}
