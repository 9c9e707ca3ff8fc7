//! `lower(name)` and `upper(name)` as values.
//!
//! What letters become depends on the collation, which only the database has. So loads have it compute the value, and so do triggers. The log
//! brings the column as it is: where the database says that it maps ASCII as ASCII (nearly all collations do; Turkish ones do not), a text of printable ASCII is mapped
//! here, and a row with any other text is loaded again. So a value is the same whichever way it came (K2 in [`crate::mapping`]).

use crate::mapping::literal;

/// Which letters a value has.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum TextCase {
    /// Small ones.
    Lower,
    /// Capital ones.
    Upper,
}

impl TextCase {
    /// The one whose function SQL calls so; `None`: that is another function.
    pub(crate) fn named(name: &str) -> Option<Self> {
        [Self::Lower, Self::Upper].into_iter().find(|case| case.name() == name)
    }

    /// The function's name in SQL.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Lower => "lower",
            Self::Upper => "upper",
        }
    }

    /// The value, for the database to compute.
    pub(crate) fn sql(self, of: &str) -> String {
        format!("pg_catalog.{}({of})", self.name())
    }

    fn of_ascii(self, text: &str) -> String {
        match self {
            Self::Lower => text.to_ascii_lowercase(),
            Self::Upper => text.to_ascii_uppercase(),
        }
    }

    /// The value of a text, where it is known without the database: see [`ascii_probe`].
    pub(crate) fn of(self, text: &str, maps_ascii: bool) -> Option<String> {
        let is_plain = text.bytes().all(|byte| matches!(byte, b' '..=b'~'));
        (maps_ascii && is_plain).then(|| self.of_ascii(text))
    }
}

/// All printable characters of ASCII.
fn printable() -> String {
    (b' '..=b'~').map(char::from).collect()
}

/// A statement whose one value says whether the collation of a column maps ASCII as ASCII.
pub(crate) fn ascii_probe(case: TextCase, table: &str, column: &str) -> String {
    let all = printable();
    // The text has the column's collation by being in one list with it.
    format!(
        "SELECT {} = {} COLLATE \"C\" FROM (SELECT {column} AS t FROM {table} WHERE false UNION ALL SELECT {}) probe",
        case.sql("t"),
        literal(&case.of_ascii(&all)),
        literal(&all),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_database_alone_knows_is_not_said_here() {
        assert_eq!(TextCase::Lower.of("Ann [1]", true).as_deref(), Some("ann [1]"));
        assert_eq!(TextCase::Upper.of("Ann [1]", true).as_deref(), Some("ANN [1]"));
        assert_eq!(TextCase::Lower.of("Ann", false), None);
        for text in ["É", "a\u{301}", "a\n"] {
            assert_eq!(TextCase::Lower.of(text, true), None, "{text:?}");
        }
        assert_eq!(TextCase::named("initcap"), None);
        assert_eq!(printable().len(), 95);
    }
}
