//! Writes to a table's rows through their keys: one transaction.
//!
//! Each statement is looked at before the transaction is committed: what a trigger of the database's left out was not written, and
//! whoever asked for it is told so. Up to the COMMIT nothing is done, so a connection that is lost before is no more than a reason
//! to begin again.
//!
//! Rows are written in the order of their keys, so that two writers never wait for each other's.

use crate::catalog::refusal;
use crate::json::{self, Field};
use crate::mapping::{Mapping, literal, quoted_name};
use crate::source::position_of;
use crate::state::{State, TableReadiness};
use crate::wire::{Connection, Error};
use headwater_base::source::Change;

/// One change as a statement.
#[derive(Debug)]
pub(crate) struct Statement {
    sql: String,
    /// What it is to have done, or is left undone as a whole.
    kind: Kind,
    /// The key, to be shown.
    key: String,
}

#[derive(Debug)]
enum Kind {
    /// Rows are removed where they are.
    Removal,
    /// A row is written.
    Upsert,
    /// A row is made where there is none; this finds the one that is there.
    Insert { there: String },
}

/// What a transaction came to.
pub(crate) struct Done {
    pub(crate) position: u64,
    pub(crate) removed: u64,
}

/// Why it came to nothing.
pub(crate) enum Failed {
    /// Nothing was done, for this reason; where it is worth it the same can be tried again.
    Undone { error: Error, again: bool },
    /// It is not known whether it was done.
    Unknown(Error),
}

/// The statements that do `changes`.
///
/// # Errors
/// A key is none of a declared table, or a value cannot be its row's.
pub(crate) fn statements(state: &State, changes: &[Change]) -> Result<Vec<Statement>, String> {
    let mut sorted: Vec<_> = changes.iter().collect();
    // Of one key's changes the last counts, as ever: they keep their order.
    sorted.sort_by(|a, b| a.key.cmp(&b.key));
    sorted.into_iter().map(|change| statement(state, change)).collect()
}

fn statement(state: &State, change: &Change) -> Result<Statement, String> {
    let shown = String::from_utf8_lossy(&change.key).into_owned();
    let (_, table) =
        state.table_of(&change.key).ok_or_else(|| format!("{shown} is in no declared table"))?;
    let mapping = match &table.standing {
        TableReadiness::Ready(ready) => &ready.mapping,
        standing => return Err(standing.reason()),
    };
    if mapping.filter.is_some() {
        return Err(format!(
            "the table of {shown} is declared with WHERE, and is not written here: declare it without for writes"
        ));
    }
    if let Some(item) = mapping.items.iter().find(|item| item.path.is_some()) {
        return Err(format!(
            "the value of {shown} has only a part of {}, and is not written here: declare the whole column for writes",
            item.column
        ));
    }
    if let Some(column) = mapping.columns.iter().find(|column| column.case.is_some()) {
        return Err(format!(
            "the value of {shown} is computed from {}, and is not written here: declare the column itself for writes",
            column.name
        ));
    }
    let key = mapping.literals(&change.key).filter(|_| change.key.len() <= mapping.key_bytes_max);
    let key = key.ok_or_else(|| format!("{shown} is not the key of a row of {}", mapping.table))?;
    let (sql, kind) = match &change.value {
        Some(value) => upsert(mapping, &change.key, &key, value)?,
        None => {
            let sql = format!("DELETE FROM {} WHERE {}", mapping.table, is(mapping, &key));
            (sql, Kind::Removal)
        }
    };
    Ok(Statement { sql, kind, key: shown })
}

fn names(mapping: &Mapping) -> Vec<String> {
    mapping.columns.iter().map(|column| quoted_name(&column.name)).collect()
}

/// The condition for the row of a key.
fn is(mapping: &Mapping, key: &[String]) -> String {
    let equal = |(name, value): (&String, &String)| format!("{name} = {}", literal(value));
    let wanted: Vec<_> = names(mapping).iter().zip(key).map(equal).collect();
    wanted.join(" AND ")
}

fn upsert(
    mapping: &Mapping,
    shown: &[u8],
    key: &[String],
    value: &[u8],
) -> Result<(String, Kind), String> {
    let value = std::str::from_utf8(value).map_err(|_| "the value is not UTF-8".to_owned())?;
    if value.contains('\0') {
        return Err("the value holds a zero byte, which no text column does".to_owned());
    }
    let names = names(mapping);
    let (keys, values) = names.split_at(key.len());
    // Columns may be part of both the key and the value.
    let mut own: Vec<_> = values.iter().filter(|name| !keys.contains(name)).cloned().collect();
    let mut given: Vec<_> = key.iter().map(|value| literal(value)).collect();
    let mut source = String::new();
    if mapping.json {
        let fields = json::fields(value).map_err(|why| format!("the value {why}"))?;
        check_fields(mapping, shown, &fields)?;
        own.retain(|name| fields.iter().any(|field| quoted_name(&field.name) == *name));
        given.extend(own.iter().map(|name| format!("given.{name}")));
        let (table, record) = (&mapping.table, literal(value));
        source = format!(" FROM jsonb_populate_record(NULL::{table}, {record}::jsonb) given");
    } else if own.is_empty() && !value.is_empty() {
        return Err("the table has no column for a value: it is empty".to_owned());
    } else {
        given.extend(own.iter().map(|_| literal(value)));
    }
    let columns = [keys, &own].concat().join(", ");
    let set: Vec<_> = own.iter().map(|name| format!("{name} = EXCLUDED.{name}")).collect();
    let (then, kind) = if set.is_empty() {
        let there = format!("SELECT 1 FROM {} WHERE {}", mapping.table, is(mapping, key));
        ("NOTHING".to_owned(), Kind::Insert { there })
    } else {
        (format!("UPDATE SET {}", set.join(", ")), Kind::Upsert)
    };
    // VALUES takes literals as the columns' own types; so does SELECT at its outermost.
    let sql = format!(
        "INSERT INTO {} ({columns}) SELECT {}{source} ON CONFLICT ({}) DO {then}",
        mapping.table,
        given.join(", "),
        keys.join(", ")
    );
    Ok((sql, kind))
}

/// Refuses fields that the mapping does not have, and those of the key's columns that differ from the key.
fn check_fields(mapping: &Mapping, key: &[u8], fields: &[Field]) -> Result<(), String> {
    let rest = key.strip_prefix(&*mapping.prefix).unwrap_or_default();
    let parts: Vec<_> = rest.split(|&byte| byte == b'|').collect();
    for field in fields {
        let name = &field.name;
        if !mapping.value_columns().iter().any(|column| column.name == *name) {
            let names: Vec<_> =
                mapping.value_columns().iter().map(|column| column.name.as_str()).collect();
            let names = names.join(", ");
            return Err(format!("the value names {name}; its table has VALUE JSON ({names})"));
        }
        let Some(at) = mapping.columns.iter().position(|column| column.name == *name) else {
            continue;
        };
        let Some(kind) = mapping.kinds.get(at) else { continue };
        let mut text = Vec::new();
        let same = field.text.as_ref().is_some_and(|printed| kind.write(printed, &mut text));
        if !same || parts.get(at) != Some(&&*text) {
            return Err(format!("the value's {name} is not that of the key"));
        }
    }
    Ok(())
}

/// Runs them.
///
/// # Errors
/// None of them is done, or nobody knows.
pub(crate) fn run(connection: &mut Connection, all: &[Statement]) -> Result<Done, Failed> {
    let sql: Vec<_> = all.iter().map(|statement| statement.sql.as_str()).collect();
    let sql = format!("BEGIN; {}", sql.join("; "));
    if let Err(error) = connection.query(&sql, |_, _| {}) {
        // A deadlock, or an isolation that the database's own settings ask for: the others are done by then.
        let again = matches!(&*error.code, "40001" | "40P01") || error.is_broken();
        return Err(undone(connection, error, again));
    }
    let counts: Vec<_> = connection.counts().iter().skip(1).copied().collect();
    let mut removed = 0;
    for (statement, count) in all.iter().zip(counts) {
        let done = match &statement.kind {
            Kind::Removal => {
                removed += count;
                true
            }
            Kind::Upsert => count > 0,
            Kind::Insert { there } => match count {
                0 => match connection.value(there) {
                    Ok(found) => found == "1",
                    Err(error) => {
                        let again = error.is_broken();
                        return Err(undone(connection, error, again));
                    }
                },
                _ => true,
            },
        };
        if !done {
            let message = format!(
                "the database left {} as it was: a trigger or a rule of the table kept it from being written",
                statement.key
            );
            let error = refusal(message);
            return Err(undone(connection, error, false));
        }
    }
    let ended = connection.value("COMMIT; SELECT pg_current_wal_insert_lsn()");
    let text = match ended {
        Ok(text) => text,
        Err(error) if error.is_broken() => {
            let message = format!("it is not known whether the writes were done: {error}");
            return Err(Failed::Unknown(Error { message, code: error.code }));
        }
        // A constraint that is looked at when the transaction ends.
        Err(error) => return Err(Failed::Undone { error, again: false }),
    };
    let position = position_of(&text)
        .ok_or_else(|| Failed::Unknown(Error::broken(format!("`{text}` is no position"))))?;
    Ok(Done { position, removed })
}

/// Ends the transaction with nothing done.
fn undone(connection: &mut Connection, error: Error, again: bool) -> Failed {
    if !error.is_broken()
        && let Err(error) = connection.query("ROLLBACK", |_, _| {})
    {
        return Failed::Undone { error, again };
    }
    Failed::Undone { error, again }
}
