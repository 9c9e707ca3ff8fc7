//! Statements that a connection has prepared. The statements of loads are the same for all ranges of a table but for the values in
//! a condition, and to parse and analyze them takes the server about as long as to find some hundred rows.
//!
//! # Invariants
//! - S1. Statements are prepared before the transaction in which they are executed: to analyze them takes a snapshot, and that of a load is taken
//!   once its table is locked.
//!
//! # Cost
//! The first time as many bytes more as the statements have; no further round trip.

use crate::wire::{Come, Connection, Error};
use postgres_protocol::IsNull;
use postgres_protocol::message::frontend::{self, BindError};
use std::collections::HashMap;

/// So many groups of statements are prepared on a connection.
const GROUPS_MAX: usize = 100;

/// The code of the error that statements were prepared before a table was altered, and give other columns now.
pub(crate) const OUTDATED_CODE: &str = "HW004";

/// The groups of statements that a connection has prepared, by their texts.
#[derive(Debug, Default)]
pub(crate) struct Prepared {
    groups: HashMap<String, u64>,
    /// How many were begun: their names are not used again.
    begun: u64,
}

/// A statement with the values of its parameters.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Statement<'a> {
    pub(crate) sql: &'a str,
    /// What `$1`, `$2` and so on stand for.
    pub(crate) parameters: &'a [String],
}

impl<'a> From<&'a str> for Statement<'a> {
    fn from(sql: &'a str) -> Self {
        Self { sql, parameters: &[] }
    }
}

impl Connection {
    /// As [`Connection::query_while`], of statements that are prepared here, or will be.
    ///
    /// # Errors
    /// One of them failed, or was given up.
    pub(crate) fn query_prepared_while(
        &mut self,
        statements: &[Statement<'_>],
        mut come: impl FnMut(Come<'_>) -> bool,
    ) -> Result<(), Error> {
        let texts = texts_of(statements);
        let known = self.prepared.groups.get(&texts).copied();
        let group = known.unwrap_or(self.prepared.begun);
        if known.is_none() {
            self.prepared.begun += 1;
            for (at, statement) in statements.iter().enumerate() {
                frontend::parse(&name(group, at), statement.sql, [], &mut self.out)?;
            }
            // S1.
            frontend::sync(&mut self.out);
        }
        for (at, statement) in statements.iter().enumerate() {
            let write = |value: &String, out: &mut bytes::BytesMut| {
                out.extend_from_slice(value.as_bytes());
                Ok(IsNull::No)
            };
            let name = name(group, at);
            let bound =
                frontend::bind("", &name, [], statement.parameters, write, [], &mut self.out);
            bound.map_err(|error| match error {
                BindError::Conversion(error) => Error::broken(error.to_string()),
                BindError::Serialization(error) => error.into(),
            })?;
            frontend::execute("", 0, &mut self.out)?;
        }
        frontend::sync(&mut self.out);
        let done = self.answers(1 + usize::from(known.is_none()), &mut come);
        match done {
            Ok(()) if known.is_none() => _ = self.prepared.groups.insert(texts, group),
            Ok(()) => {}
            // Whatever it was, they are prepared again.
            Err(_) => self.prepared.groups.clear(),
        }
        // Also where it was altered between the one and the other.
        done.map_err(|error| match error.code == "0A000" {
            true => Error { code: OUTDATED_CODE.to_owned(), ..error },
            false => error,
        })
    }

    /// Whether these statements are prepared here, or may be.
    pub(crate) fn prepares(&self, statements: &[Statement<'_>]) -> bool {
        let groups = &self.prepared.groups;
        groups.len() < GROUPS_MAX || groups.contains_key(&texts_of(statements))
    }
}

fn texts_of(statements: &[Statement<'_>]) -> String {
    statements.iter().map(|statement| statement.sql).collect::<Vec<_>>().join("; ")
}

fn name(group: u64, at: usize) -> String {
    format!("headwater_{group}_{at}")
}

/// A condition with parameters in place of the literals in it, and their values.
pub(crate) fn parametrized(condition: &str) -> (String, Vec<String>) {
    let (mut text, mut values) = (String::with_capacity(condition.len()), Vec::new());
    let mut rest = condition;
    while let Some(at) = rest.find(['"', '\'']) {
        let (before, quoted) = rest.split_at(at);
        text.push_str(before);
        let quote = &quoted[..1];
        // A quote that is doubled stands for itself.
        let mut end = 1;
        while let Some(at) = quoted[end..].find(quote) {
            end += at + 1;
            if !quoted[end..].starts_with(quote) {
                break;
            }
            end += 1;
        }
        let (quoted, behind) = quoted.split_at(end);
        if quote == "'" {
            values.push(quoted[1..end - 1].replace("''", "'"));
            text.push_str(&format!("${}", values.len()));
        } else {
            text.push_str(quoted);
        }
        rest = behind;
    }
    text.push_str(rest);
    (text, values)
}

#[cfg(test)]
mod tests {
    use super::parametrized;

    #[test]
    fn literals_become_parameters_and_names_stay() {
        let cases = [
            ("true", "true", &[][..]),
            (r#""a" = 'bob'"#, r#""a" = $1"#, &["bob"]),
            (r#""it's" = '' AND "b""'" = 'x'"#, r#""it's" = $1 AND "b""'" = $2"#, &["", "x"]),
            (r#"a BETWEEN 'it''s' AND '''"'"#, "a BETWEEN $1 AND $2", &["it's", "'\""]),
        ];
        for (condition, text, values) in cases {
            let found = parametrized(condition);
            let found = (&*found.0, found.1.iter().map(|value| &**value).collect::<Vec<_>>());
            assert_eq!(found, (text, values.to_vec()));
        }
    }
}
