//! Which tables may have keys on disk: what is there at start, and that a new table is empty, without a look.
//!
//! Tables are known by what their keys begin with: `name|`, or nothing for keys without a table.

use headwater_base::KeyRange;
use headwater_base::key::{SEPARATOR, table_of};
use std::collections::BTreeSet;

/// What the keys of a key's table begin with.
fn prefix_of(key: &[u8]) -> &[u8] {
    table_of(key).map_or(&[], |name| &key[..=name.len()])
}

/// The tables that have had keys since all were removed.
#[derive(Clone, Debug, Default)]
pub(crate) struct Tables {
    prefixes: BTreeSet<Vec<u8>>,
    /// The table of the last key, which is likely that of the next.
    last: Option<Vec<u8>>,
}

impl Tables {
    /// The tables with these prefixes.
    pub(crate) fn of(prefixes: impl Iterator<Item = Vec<u8>>) -> Self {
        Self { prefixes: prefixes.collect(), last: None }
    }

    /// A key is put; gives the prefix of its table, if the table is new.
    pub(crate) fn add<'k>(&mut self, key: &'k [u8]) -> Option<&'k [u8]> {
        let prefix = prefix_of(key);
        if self.last.as_deref() == Some(prefix) {
            return None;
        }
        let last = self.last.get_or_insert_default();
        last.clear();
        last.extend_from_slice(prefix);
        let is_new = !self.prefixes.contains(prefix);
        is_new.then(|| {
            self.prefixes.insert(prefix.to_vec());
            prefix
        })
    }

    /// All keys are gone; gives the tables that there were.
    pub(crate) fn clear(&mut self) -> BTreeSet<Vec<u8>> {
        core::mem::take(self).prefixes
    }

    /// The prefixes, in order.
    pub(crate) fn prefixes(&self) -> impl Iterator<Item = &[u8]> {
        self.prefixes.iter().map(Vec::as_slice)
    }

    /// Whether there is surely no key in `range`.
    pub(crate) fn surely_none(&self, range: &KeyRange) -> bool {
        if self.prefixes.is_empty() {
            return true;
        }
        let Some(name) = table_of(&range.first) else { return false };
        let prefix = [name, &[SEPARATOR]].concat();
        KeyRange::prefix(&prefix).covers(range) && !self.prefixes.contains(&prefix)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_tables_that_never_had_a_key_are_surely_empty() {
        let mut tables = Tables::default();
        assert!(tables.surely_none(&KeyRange::all()));
        assert_eq!(tables.add(b"p|bob|1"), Some(&b"p|"[..]));
        assert_eq!((tables.add(b"p|bob|2"), tables.add(b"plain")), (None, Some(&b""[..])));
        assert_eq!((tables.add(b"|x"), tables.add(b"p|")), (Some(&b"|"[..]), None));
        assert!(!tables.surely_none(&KeyRange::prefix(b"p|ann|")));
        assert!(tables.surely_none(&KeyRange::prefix(b"q|")));
        assert!(tables.surely_none(&KeyRange::point(b"q|x")));
        assert!(!tables.surely_none(&KeyRange::new(b"q|", b"z")));
        assert!(!tables.surely_none(&KeyRange::point(b"q")));
        assert!(tables.prefixes().eq([&b""[..], b"p|", b"|"]));
        assert_eq!(tables.clear().len(), 3);
        assert!(tables.surely_none(&KeyRange::prefix(b"p|")));
    }
}
