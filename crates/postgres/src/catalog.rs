//! What the database's catalog says, and refusals that come of it.

use crate::mapping::quoted_name;
use crate::wire::Error;

/// What the database has under a table's name.
#[derive(PartialEq, Eq)]
pub(crate) struct Found {
    /// Its number.
    pub(crate) relation: u32,
    /// Its name with its schema's, quoted where need be.
    pub(crate) name: String,
    /// `relkind`.
    pub(crate) kind: String,
    /// How changes tell which row it was: `relreplident`.
    pub(crate) identity: String,
}

/// A row of the catalog, as text.
pub(crate) type Row = Vec<Option<String>>;

/// A column of a row; nothing where it is null.
pub(crate) fn text(row: &Row, at: usize) -> &str {
    row.get(at).and_then(Option::as_deref).unwrap_or_default()
}

/// Whether the connection's role may do what a table's owner may.
pub(crate) fn owned(relation: u32) -> String {
    format!("SELECT pg_has_role(c.relowner, 'USAGE') FROM pg_class c WHERE c.oid = {relation}")
}

/// The table cannot be kept here.
pub(crate) fn refusal(message: String) -> Error {
    Error { message, code: "HW000".to_owned() }
}

/// A name for statements that people read.
pub(crate) fn ident(name: &str) -> String {
    let plain = |next: char| next.is_ascii_lowercase() || next.is_ascii_digit() || next == '_';
    let first = name.chars().next().is_some_and(|next| next.is_ascii_lowercase() || next == '_');
    if first && name.chars().all(plain) { name.to_owned() } else { quoted_name(name) }
}
