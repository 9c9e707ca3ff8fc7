//! Execution of the commands about joins and tables.

use crate::node::Node;
use crate::owners::Ownership;
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;
use headwater_command::{Joins, Reply, Tables};
use headwater_engine::{Engine, EngineError, JoinReport, Stop, TableOptions, TableReport};

pub(crate) fn joins(
    node: &mut Node,
    command: &Joins<'_>,
    reply: &mut impl Reply,
) -> Result<(), Stop> {
    if let Joins::Add { name, spec, .. } = *command {
        node.may_declare_join(spec).map_err(|error| error.of_join(name))?;
    }
    let engine = &mut node.engine;
    match *command {
        Joins::Add { name, spec, replace } => {
            let installed = engine.join_add_sliced(name, spec, replace);
            let installed = installed.map_err(|stop| match stop {
                Stop::Failed(error) => Stop::Failed(error.of_join(name)),
                other => other,
            })?;
            reply.map(2);
            write_text("spec", &installed.canonical, reply);
            write_warnings(&installed.warnings, reply);
        }
        Joins::Drop { name } => {
            engine.join_drop_ahead(name)?;
            engine.join_drop(name)?;
            reply.ok();
        }
        Joins::List => {
            let joins = engine.joins();
            reply.array(joins.len());
            for join in &joins {
                reply.map(2);
                write_text("name", &join.name, reply);
                write_text("spec", &join.canonical, reply);
            }
        }
        Joins::Info { name } => {
            let missing = || EngineError::NoSuchJoin(String::from(name));
            let report = engine.join_report(name).ok_or_else(missing)?;
            write_join(&report, &node.ownership("join", name), reply);
        }
        Joins::Key { name, slots } => {
            let names = slots.iter().step_by(2);
            let pairs: Vec<_> = names.zip(slots.from(1).iter().step_by(2)).collect();
            reply.bulk(&engine.join_key(name, &pairs)?);
        }
        Joins::Decode { key } => match engine.join_decode(key) {
            Some(components) => {
                reply.array(components.len());
                components.iter().for_each(|component| reply.bulk(component));
            }
            None => reply.null(),
        },
    }
    Ok(())
}

fn write_text(title: &str, text: &str, reply: &mut impl Reply) {
    reply.bulk(title.as_bytes());
    reply.bulk(text.as_bytes());
}

fn write_number(title: &str, number: u64, reply: &mut impl Reply) {
    reply.bulk(title.as_bytes());
    reply.integer(number as i64);
}

fn write_warnings(warnings: &[String], reply: &mut impl Reply) {
    reply.bulk(b"warnings");
    reply.array(warnings.len());
    for warning in warnings {
        reply.bulk(warning.as_bytes());
    }
}

fn write_join(join: &JoinReport, ownership: &Ownership, reply: &mut impl Reply) {
    reply.map(4 + Ownership::FACTS + join.counters.len());
    write_text("name", &join.name, reply);
    write_text("spec", &join.canonical, reply);
    write_warnings(&join.warnings, reply);
    reply.bulk(b"boundaries");
    reply.array(join.boundaries.len());
    for (table, boundary) in &join.boundaries {
        reply.bulk(format!("{table} {boundary}").as_bytes());
    }
    ownership.write(reply);
    for (title, number) in &join.counters {
        write_number(title, *number, reply);
    }
}

/// What TABLE.SET says of a table; nothing, where it is another command.
#[must_use]
pub fn table_options(command: &Tables<'_>) -> TableOptions {
    let Tables::Set { boundary, source, evict, keep, .. } = *command else {
        return TableOptions::default();
    };
    let source = source.map(|(name, _)| String::from(name));
    TableOptions { boundary, source, evict, keep }
}

pub(crate) fn tables(
    engine: &mut Engine,
    command: &Tables<'_>,
    reply: &mut impl Reply,
) -> Result<(), Stop> {
    // Keys are counted, or must not be there.
    engine.settle_dead()?;
    match *command {
        Tables::Set { name, .. } => {
            let options = table_options(command);
            engine.table_set_ahead(name, &options)?;
            engine.table_set(name, &options)?;
            reply.ok();
        }
        Tables::List => {
            let tables = engine.tables();
            reply.array(tables.len());
            for table in &tables {
                reply.map(3);
                write_table_name(table, reply);
                write_number("boundary", table.boundary as u64, reply);
                write_number("keys", table.keys, reply);
            }
        }
        Tables::Info { name } => match engine.table(name) {
            Some(table) => write_table(&table, reply),
            None => reply.error("ERR", format_args!("no table is named '{}'", name.escape_ascii())),
        },
    }
    Ok(())
}

fn write_table_name(table: &TableReport, reply: &mut impl Reply) {
    reply.bulk(b"name");
    reply.bulk(&table.name);
}

fn write_table(table: &TableReport, reply: &mut impl Reply) {
    let numbers = [
        ("boundary", table.boundary as u64),
        ("keys", table.keys),
        ("groups", table.groups),
        ("key-bytes", table.key_bytes),
        ("index-bytes", table.index_bytes),
        ("value-bytes", table.value_bytes),
    ];
    reply.map(2 + numbers.len());
    write_table_name(table, reply);
    write_text("kind", if table.named { "named" } else { "unnamed" }, reply);
    for (title, number) in numbers {
        write_number(title, number, reply);
    }
}
