//! Commands that read and write, or write several keys, as a node does them: what can refuse or wait comes first.

use crate::command::Command;
use crate::reply::Reply;
use headwater_engine::{Engine, Expiry, Stop};

/// The number that a value is the text of.
fn number(value: &[u8]) -> Option<i64> {
    let number: i64 = str::from_utf8(value).ok()?.parse().ok()?;
    (number.to_string().as_bytes() == value).then_some(number)
}

fn says(text: impl ToString) -> Result<Reply, Stop> {
    Ok(Reply::Lines(vec![text.to_string()]))
}

fn value_of(engine: &mut Engine, key: &[u8]) -> Result<Option<Vec<u8>>, Stop> {
    Ok(engine.get(key)?.map(|value| value.to_vec()))
}

/// Executes a command of the kind.
pub(crate) fn run(engine: &mut Engine, command: &Command) -> Result<Reply, Stop> {
    match command {
        Command::Incr { key, by } => {
            let old = value_of(engine, key)?.unwrap_or_else(|| b"0".to_vec());
            let Some(new) = number(&old).and_then(|old| old.checked_add(*by)) else {
                return says("-");
            };
            engine.set(key, new.to_string().as_bytes(), Expiry::Keep)?;
            says(new)
        }
        Command::Copy { from, to, replace, renames } => {
            let Some(value) = value_of(engine, from)? else { return says("no") };
            let expiry = engine.expiry(from)?.flatten().map_or(Expiry::Never, Expiry::At);
            if *renames {
                engine.check_writable(from)?;
            }
            if !replace && engine.expiry(to)?.is_some() {
                return says("no");
            }
            if !renames || from != to {
                engine.set(to, &value, expiry)?;
            }
            if *renames && from != to {
                engine.remove(from)?;
            }
            says("yes")
        }
        Command::SetAll { pairs } => {
            for (key, _) in pairs {
                engine.check_writable(key)?;
            }
            for (key, value) in pairs {
                engine.set(key, value, Expiry::Never)?;
            }
            Ok(Reply::Done)
        }
        Command::DelAll { keys } => {
            for key in keys {
                engine.check_writable(key)?;
            }
            for key in keys {
                engine.know(key)?;
            }
            let mut removed = 0;
            for key in keys {
                removed += u64::from(engine.remove_known(key)?);
            }
            says(format!("removed {removed}"))
        }
        Command::Multi { begins: true } => {
            engine.begin_transaction();
            Ok(Reply::Done)
        }
        _ => {
            engine.end_transaction();
            Ok(Reply::Done)
        }
    }
}
