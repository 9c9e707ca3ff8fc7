//! Users and owners, kept like other definitions.

use super::{EmbeddedStore, OWNER, USER};

impl EmbeddedStore {
    /// A user was set.
    pub(crate) fn user_set(&mut self, name: &[u8], rules: &[u8]) {
        self.define_text(USER, name, rules);
    }

    /// A user was removed.
    pub(crate) fn user_removed(&mut self, name: &[u8]) {
        self.undefine(USER, name);
    }

    /// Something was defined by a user; `None`: by nobody who can lose a right.
    pub(crate) fn owned(&mut self, kind: &str, name: &str, owner: Option<&[u8]>) {
        let of = format!("{kind}/{name}");
        match owner {
            Some(owner) => self.define_text(OWNER, of.as_bytes(), owner),
            None => self.undefine(OWNER, of.as_bytes()),
        }
    }
}
