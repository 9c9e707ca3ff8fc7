//! Noticing that a table was altered in a way that matters to its mapping.
//!
//! A *signature* is a text made of the catalog's rows about a table: its columns and their types, its partitions and heirs, what
//! identifies its rows, the publication, row security. Where a row may change and change back, the transaction that wrote it stands
//! for it (`xmin`), so that no alteration passes unseen, however short. It takes no locks on tables.
//!
//! # When it is looked at
//! - With each message of the log that describes a table, before the changes behind it are told.
//! - With each message that our event trigger writes when anything is altered, where the user may create one: so what was loaded
//!   before is gone at the position of the alteration, and positions hold across it.
//! - With each load, in its own snapshot, before each position that is given, and before the log is told of behind where somebody reads at a
//!   position of the database's own; where there is no such trigger.
//! - With each reading of what triggers noted, in its own snapshot, where the log is not read: there nothing passes between.
//! - Every second.

use crate::mapping::{Mapping, Words, literal, quoted_name};
use crate::settings::Settings;
use crate::snapshot::Snapshot;
use crate::state::{Ready, Shared, State, TableReadiness};
use crate::wire::{Connection, Error};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// What the messages of our event trigger begin with.
pub(crate) const ALTERED: &str = "headwater_altered";
/// Why a table cannot be loaded whose signature has changed.
pub(crate) const COMPARED_AGAIN: &str = "the table was altered and is being compared again";
/// How long a transaction may be in the log before it can be seen, such as one that waits for a standby.
const SEEN_MAX: Duration = Duration::from_secs(5);

/// The expression for a table's signature. `types` are those of its columns that are not built in.
pub(crate) fn expression(
    settings: &Settings,
    words: &Words,
    mapping: &Mapping,
    types: &str,
    namespaces: bool,
) -> String {
    let names: Vec<_> = mapping.columns.iter().map(|column| literal(&column.name)).collect();
    let list = |columns: &str, from: &str| {
        format!(
            "(SELECT string_agg(o.one, ',' ORDER BY o.one) \
             FROM (SELECT concat_ws(':', {columns}) AS one FROM {from}) o)"
        )
    };
    let types = match types {
        "" => "''".to_owned(),
        types => format!(
            "concat_ws('/', {}, {}, {})",
            list("y.oid, y.xmin", &format!("pg_type y WHERE y.oid IN ({types})")),
            list("e.oid, e.xmin", &format!("pg_enum e WHERE e.enumtypid IN ({types})")),
            list(
                "a.attrelid, a.attnum, a.xmin",
                &format!(
                    "pg_attribute a JOIN pg_type y ON y.typrelid = a.attrelid \
                     WHERE y.oid IN ({types}) AND a.attnum > 0"
                )
            )
        ),
    };
    let schemas = match namespaces {
        true => list("s.oid, s.xmin", "pg_publication_namespace s WHERE s.pnpubid = p.oid"),
        false => "''".to_owned(),
    };
    // `heirs` are the table itself, and its partitions or what inherits from it.
    format!(
        "(WITH RECURSIVE heirs AS (SELECT to_regclass({table})::oid AS id, '' AS told UNION ALL \
          SELECT i.inhrelid, i.xmin::text FROM pg_inherits i JOIN heirs h ON i.inhparent = h.id) \
         SELECT concat_ws(' ', c.oid, c.relkind, c.relpersistence, c.relreplident, c.relrowsecurity, \
         c.relforcerowsecurity, row_security_active(c.oid), {heirs}, {columns}, {types}, {indexes}, {triggers}, \
         (SELECT concat_ws('/', p.oid, p.xmin, {members}, {schemas}) \
          FROM pg_publication p WHERE p.pubname = {publication})) \
         FROM pg_class c WHERE c.oid = to_regclass({table}))",
        table = literal(&words.table),
        publication = literal(&settings.publication),
        heirs = list("h.id, h.told, r.relfilenode", "heirs h JOIN pg_class r ON r.oid = h.id"),
        columns = list(
            "a.attnum, a.xmin",
            &format!(
                "pg_attribute a WHERE a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped \
                 AND a.attname IN ({})",
                names.join(", ")
            )
        ),
        indexes = list(
            "x.indexrelid, x.indisprimary, x.indisreplident",
            "pg_index x WHERE x.indrelid = c.oid AND x.indisunique AND x.indisvalid"
        ),
        triggers = list(
            "g.tgname, g.tgenabled",
            &format!(
                "pg_trigger g WHERE g.tgrelid = c.oid AND NOT g.tgisinternal \
                 AND starts_with(g.tgname::text, {})",
                literal(&settings.slot)
            )
        ),
        members = list(
            "m.oid, m.xmin",
            "pg_publication_rel m WHERE m.prpubid = p.oid AND (m.prrelid IN (SELECT id FROM heirs) \
             OR m.prrelid IN (SELECT relid FROM pg_partition_ancestors(c.oid)))"
        ),
    )
}

/// A table that is ready: its prefix, its declaration, and as what it was compared.
pub(crate) type Compared = (Vec<u8>, u64, Arc<Ready>);

/// The tables that are ready.
pub(crate) fn ready(shared: &Shared) -> Vec<Compared> {
    let state = shared.lock();
    let tables = state.tables.iter();
    let ready = tables.filter_map(|(prefix, table)| match &table.standing {
        TableReadiness::Ready(ready) => Some((prefix.clone(), table.generation, Arc::clone(ready))),
        _ => None,
    });
    ready.collect()
}

/// Has each table compared again whose signature is another by now. Gives the snapshot in which they were looked at.
pub(crate) fn look(shared: &Shared, connection: &mut Connection) -> Result<Snapshot, Error> {
    let tables = ready(shared);
    let sql = sql(&tables);
    let row = connection.rows(&sql)?.into_iter().next().unwrap_or_default();
    let mut found = row.into_iter().map(Option::unwrap_or_default);
    let snapshot = found.next().and_then(|text| Snapshot::parse(&text));
    let snapshot = snapshot.ok_or_else(|| Error::broken("no snapshot"))?;
    compare(&mut shared.lock(), &tables, found);
    shared.wake_all();
    Ok(snapshot)
}

/// The statement that gives the snapshot, and behind it the signatures of tables.
pub(crate) fn sql(tables: &[Compared]) -> String {
    let columns = tables.iter().map(|(_, _, ready)| format!(", {}", ready.signature_sql));
    format!("SELECT pg_current_snapshot(){}", columns.collect::<String>())
}

/// Has each table compared again whose signature is not the one that was found.
pub(crate) fn compare(state: &mut State, tables: &[Compared], found: impl Iterator<Item = String>) {
    for ((prefix, generation, ready), signature) in tables.iter().zip(found) {
        if signature != ready.signature {
            state.altered(prefix, *generation);
        }
    }
}

/// As [`look`], in a snapshot that sees the transaction of this number, which is in the log already.
pub(crate) fn look_behind(
    shared: &Shared,
    connection: &mut Connection,
    xid: u32,
) -> Result<(), Error> {
    let begun = Instant::now();
    loop {
        let snapshot = look(shared, connection)?;
        if snapshot.sees(crate::snapshot::widened(xid, snapshot.next)) {
            return Ok(());
        }
        if begun.elapsed() > SEEN_MAX || shared.lock().stopping {
            // It is noticed when it is looked at the next time.
            return Ok(());
        }
        std::thread::sleep(Duration::from_millis(2));
    }
}

impl State {
    /// The least location that is told after tables have been looked at once more, and that is at or behind this one.
    pub(crate) fn after_look(&mut self, location: u64) -> u64 {
        self.look_first = true;
        location.max(self.begun.max(self.position) + 1)
    }
}

/// As [`look`], before the log up to `end` is told of, where somebody who reads at a position waits for that ([`State::after_look`]).
pub(crate) fn look_before(
    shared: &Shared,
    connection: &mut Connection,
    end: u64,
) -> Result<(), Error> {
    {
        let mut state = shared.lock();
        // Whoever comes now waits for what is told behind.
        state.begun = state.begun.max(end);
        if !std::mem::take(&mut state.look_first) {
            return Ok(());
        }
    }
    let looked = look(shared, connection);
    if looked.is_err() {
        shared.lock().look_first = true;
    }
    looked.map(drop)
}

/// Sees to it that what is altered is told in the log, where the user may do that. Gives whether it is.
pub(crate) fn install(connection: &mut Connection, settings: &Settings) -> Result<bool, Error> {
    if !settings.event_trigger {
        return Ok(false);
    }
    if is_installed(connection, settings)? {
        return Ok(true);
    }
    let schema = quoted_name(&settings.slot);
    let trigger = quoted_name(&trigger_name(settings));
    // Nobody is to be kept from altering anything by it, and temporary tables are nobody's concern.
    let sql = format!(
        "BEGIN; SET LOCAL lock_timeout = '2s'; CREATE SCHEMA IF NOT EXISTS {schema}; \
         CREATE OR REPLACE FUNCTION {schema}.altered() RETURNS event_trigger LANGUAGE plpgsql \
         SET search_path = pg_catalog AS $headwater$ BEGIN \
         IF NOT EXISTS (SELECT FROM pg_event_trigger_ddl_commands()) OR EXISTS \
          (SELECT FROM pg_event_trigger_ddl_commands() WHERE schema_name IS DISTINCT FROM 'pg_temp') THEN \
         PERFORM pg_logical_emit_message(true, '{ALTERED}', ''); END IF; \
         EXCEPTION WHEN OTHERS THEN NULL; END $headwater$; \
         DROP EVENT TRIGGER IF EXISTS {trigger}; CREATE EVENT TRIGGER {trigger} ON ddl_command_end WHEN TAG IN ({tags}) \
         EXECUTE FUNCTION {schema}.altered(); \
         ALTER EVENT TRIGGER {trigger} ENABLE ALWAYS; COMMIT",
        tags = TAGS.map(literal).join(", ")
    );
    match connection.query(&sql, |_, _| {}) {
        Ok(()) => Ok(true),
        Err(error) if error.is_broken() => Err(error),
        // It may not, or another was faster.
        Err(_) => {
            connection.query("ROLLBACK", |_, _| {})?;
            is_installed(connection, settings)
        }
    }
}

/// What can alter what a signature is made of. Dropping a schema drops its tables.
const TAGS: [&str; 29] = [
    "ALTER COLLATION",
    "ALTER DOMAIN",
    "ALTER EXTENSION",
    "ALTER FOREIGN TABLE",
    "ALTER INDEX",
    "ALTER POLICY",
    "ALTER PUBLICATION",
    "ALTER SCHEMA",
    "ALTER TABLE",
    "ALTER TYPE",
    "CREATE FOREIGN TABLE",
    "CREATE INDEX",
    "CREATE POLICY",
    "CREATE PUBLICATION",
    "CREATE SCHEMA",
    "CREATE TABLE",
    "CREATE TABLE AS",
    "DROP DOMAIN",
    "DROP EXTENSION",
    "DROP FOREIGN TABLE",
    "DROP INDEX",
    "DROP OWNED",
    "DROP POLICY",
    "DROP PUBLICATION",
    "DROP SCHEMA",
    "DROP TABLE",
    "DROP TYPE",
    "IMPORT FOREIGN SCHEMA",
    "SELECT INTO",
];

fn trigger_name(settings: &Settings) -> String {
    format!("{}_altered", settings.slot)
}

/// The expression for whether the trigger is there and does its work: one that was made by an older version may fire at less.
pub(crate) fn installed_sql(settings: &Settings) -> String {
    format!(
        "EXISTS (SELECT FROM pg_event_trigger WHERE evtname = {} AND evtenabled = 'A' AND evttags @> ARRAY[{}])",
        literal(&trigger_name(settings)),
        TAGS.map(literal).join(", ")
    )
}

fn is_installed(connection: &mut Connection, settings: &Settings) -> Result<bool, Error> {
    Ok(connection.value(&format!("SELECT {}", installed_sql(settings)))? == "t")
}
