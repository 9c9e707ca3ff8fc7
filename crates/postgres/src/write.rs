//! Writes to a table's rows through their keys: one transaction.

use crate::mapping::{Mapping, literal, quoted_name};
use crate::source::position_of;
use crate::state::{Standing, State};
use crate::wire::{Connection, Error};
use headwater_base::source::Change;

/// The statements that do `changes`.
///
/// # Errors
/// A key is none of a declared table, or a value cannot be its row's.
pub(crate) fn statements(state: &State, changes: &[Change]) -> Result<String, String> {
    let mut sql = "BEGIN".to_owned();
    for change in changes {
        let shown = String::from_utf8_lossy(&change.key).into_owned();
        let (_, table) = state
            .table_of(&change.key)
            .ok_or_else(|| format!("{shown} is in no declared table"))?;
        let mapping = match &table.standing {
            Standing::Ready(ready) => &ready.mapping,
            standing => return Err(standing.reason()),
        };
        let key =
            mapping.literals(&change.key).filter(|_| change.key.len() <= mapping.key_bytes_max);
        let key =
            key.ok_or_else(|| format!("{shown} is not the key of a row of {}", mapping.table))?;
        sql.push_str("; ");
        sql.push_str(&match &change.value {
            Some(value) => upsert(mapping, &key, value)?,
            None => removal(mapping, &key),
        });
    }
    sql.push_str("; COMMIT; SELECT pg_current_wal_insert_lsn()");
    Ok(sql)
}

fn names(mapping: &Mapping) -> Vec<String> {
    mapping.columns.iter().map(|column| quoted_name(&column.name)).collect()
}

fn removal(mapping: &Mapping, key: &[String]) -> String {
    let equal = |(name, value): (&String, &String)| format!("{name} = {}", literal(value));
    let wanted: Vec<_> = names(mapping).iter().zip(key).map(equal).collect();
    format!("DELETE FROM {} WHERE {}", mapping.table, wanted.join(" AND "))
}

fn upsert(mapping: &Mapping, key: &[String], value: &[u8]) -> Result<String, String> {
    let value = std::str::from_utf8(value).map_err(|_| "the value is not UTF-8".to_owned())?;
    if value.contains('\0') {
        return Err("the value holds a zero byte, which no text column does".to_owned());
    }
    let names = names(mapping);
    let (keys, values) = names.split_at(key.len());
    // Columns may be part of both the key and the value.
    let own: Vec<_> = values.iter().filter(|name| !keys.contains(name)).cloned().collect();
    if own.is_empty() && !value.is_empty() && !mapping.json {
        return Err("the table has no column for a value: it is empty".to_owned());
    }
    let columns = [keys, &own].concat().join(", ");
    let mut given: Vec<_> = key.iter().map(|value| literal(value)).collect();
    let mut source = String::new();
    if mapping.json {
        let record = literal(value);
        given.extend(own.iter().map(|name| format!("given.{name}")));
        source =
            format!(" FROM jsonb_populate_record(NULL::{}, {record}::jsonb) given", mapping.table);
    } else {
        given.extend(own.iter().map(|_| literal(value)));
    }
    let set: Vec<_> = own.iter().map(|name| format!("{name} = EXCLUDED.{name}")).collect();
    let then = if set.is_empty() {
        "NOTHING".to_owned()
    } else {
        format!("UPDATE SET {}", set.join(", "))
    };
    // VALUES takes literals as the columns' own types; so does SELECT at its outermost.
    Ok(format!(
        "INSERT INTO {} ({columns}) SELECT {}{source} ON CONFLICT ({}) DO {then}",
        mapping.table,
        given.join(", "),
        keys.join(", ")
    ))
}

/// Runs them; the position at which they are done.
///
/// # Errors
/// None of them is done.
pub(crate) fn run(connection: &mut Connection, sql: &str) -> Result<u64, Error> {
    match connection.value(sql) {
        Ok(text) => {
            position_of(&text).ok_or_else(|| Error::broken(format!("`{text}` is no position")))
        }
        Err(error) => {
            if error.is_broken() {
                let message = format!("it is not known whether the writes were done: {error}");
                return Err(Error { message, code: error.code });
            }
            connection.query("ROLLBACK", |_, _| {})?;
            Err(error)
        }
    }
}
