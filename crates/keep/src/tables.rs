//! Which tables may have keys on disk: so that a new table is known to be empty without a look.

use fjall::Keyspace;
use headwater_base::KeyRange;
use headwater_base::key::{SEPARATOR, prefix_end, table_of};
use std::collections::BTreeSet;

/// With more tables than this, or as many keys without one, any table may have keys.
const TABLES_MAX: usize = 4096;

/// The tables that have had keys since all were removed; the empty name stands for keys without a table.
#[derive(Debug, Default)]
pub(crate) struct Tables {
    names: BTreeSet<Vec<u8>>,
    /// There are too many to know them all.
    any: bool,
    /// The table of the last key, which is likely that of the next.
    last: Option<Vec<u8>>,
}

/// The name of a key's table, as it is in the key.
fn name_of(key: &[u8]) -> &[u8] {
    table_of(key).unwrap_or_default()
}

impl Tables {
    /// Finds the tables of the keys that are there: two searches for each.
    pub(crate) fn find(keys: &Keyspace) -> fjall::Result<Self> {
        let mut found = Self::default();
        let (mut next, mut steps) = (Vec::new(), 0);
        while let Some(guard) = keys.range(next.as_slice()..).next() {
            let key = guard.key()?;
            found.add(&key);
            steps += 1;
            if found.any || steps > TABLES_MAX {
                found.any = true;
                break;
            }
            next = match table_of(&key) {
                Some(name) => prefix_end(&[name, &[SEPARATOR]].concat()),
                // Keys without a table lie between those of tables.
                None => [&*key, &[0]].concat(),
            };
        }
        Ok(found)
    }

    /// A key is put.
    pub(crate) fn add(&mut self, key: &[u8]) {
        let name = name_of(key);
        if self.last.as_deref() != Some(name) {
            if !self.any && !self.names.contains(name) {
                self.names.insert(name.to_vec());
                self.any = self.names.len() > TABLES_MAX;
            }
            let last = self.last.get_or_insert_default();
            last.clear();
            last.extend_from_slice(name);
        }
    }

    /// All keys are gone.
    pub(crate) fn clear(&mut self) {
        *self = Self::default();
    }

    /// Whether there is surely no key in `range`.
    pub(crate) fn surely_none(&self, range: &KeyRange) -> bool {
        if self.names.is_empty() {
            return true;
        }
        let Some(name) = table_of(&range.first) else { return false };
        let within = KeyRange::prefix(&[name, &[SEPARATOR]].concat());
        !self.any && within.covers(range) && !self.names.contains(name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_tables_that_never_had_a_key_are_surely_empty() {
        let mut tables = Tables::default();
        assert!(tables.surely_none(&KeyRange::all()));
        tables.add(b"p|bob|1");
        tables.add(b"p|bob|2");
        tables.add(b"plain");
        assert!(!tables.surely_none(&KeyRange::prefix(b"p|ann|")));
        assert!(tables.surely_none(&KeyRange::prefix(b"q|")));
        assert!(tables.surely_none(&KeyRange::point(b"q|x")));
        assert!(!tables.surely_none(&KeyRange::new(b"q|", b"z")));
        assert!(!tables.surely_none(&KeyRange::point(b"q")));
        for number in 0..=TABLES_MAX {
            tables.add(format!("t{number}|x").as_bytes());
        }
        assert!(!tables.surely_none(&KeyRange::prefix(b"q|")), "they are no longer all known");
        tables.clear();
        assert!(tables.surely_none(&KeyRange::prefix(b"p|")));
    }
}
