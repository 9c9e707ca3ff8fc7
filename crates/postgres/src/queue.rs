//! Following by triggers, where the log cannot be: each declared table has a trigger that notes its changes in a table of
//! ours and notifies us.
//!
//! One connection reads what was noted, and loads ranges as well, in one snapshot after the other: what a snapshot sees and the one
//! before did not is what was committed between, whole transactions, in the order of their writes to each row. A load in a
//! snapshot is exact as of what was told before it. So there is no gap, at the price of one load after the other.
//!
//! # Who is noting
//! Nothing is noted where nobody reads: the table would fill the disk. The reader holds an advisory lock; a trigger that
//! can share it knows that there is no reader, notes nothing, and keeps its share until its transaction ends. So whoever becomes the
//! reader has waited for all transactions that have left something out. What was loaded before is reset then.
//!
//! # Positions
//! Snapshots have none, and locations of the log do not serve: a transaction is in the log before it can be seen. So each reading
//! is given the next number before its snapshot is taken, counted from where the log ended at first. Whoever asks for a position, or names one, is
//! given that of the next reading to begin: it sees all that was committed before.

use crate::catalog::{owned, refusal};
use crate::mapping::{Cell, Mapping, literal, quoted_name};
use crate::pool::{end_of_log, up};
use crate::query::{Pairs, pair_of, rows_sql};
use crate::room::{Full, Held};
use crate::settings::Settings;
use crate::signature;
use crate::snapshot::Snapshot;
use crate::state::{Line, Shared, TableReadiness};
use crate::transaction::{Outcome, Plan};
use crate::wire::{Connection, Error};
use crate::work::{Job, Work};
use headwater_base::KeyRange;
use headwater_base::hash::stable_hash;
use headwater_base::source::FetchId;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How often loads are looked for.
const LOOK: Duration = Duration::from_millis(5);
/// How often changes are looked for without a notification.
const TURN: Duration = Duration::from_millis(100);
/// How often what was read is removed.
const SWEEP: Duration = Duration::from_secs(1);
/// How long a load waits that has found no room beside others.
const BESIDE_PAUSE: Duration = Duration::from_millis(20);

/// A change as it was noted.
struct Noted {
    prefix: Vec<u8>,
    old: Option<Vec<Option<String>>>,
    new: Option<Vec<Option<String>>>,
}

fn hex(prefix: &[u8]) -> String {
    prefix.iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

fn unhex(text: &str) -> Vec<u8> {
    let digits = |at| text.get(at..at + 2).and_then(|pair| u8::from_str_radix(pair, 16).ok());
    (0..text.len()).step_by(2).map_while(digits).collect()
}

/// The lock that the reader holds.
fn lock_key(settings: &Settings) -> i64 {
    // FNV-1a: all that use one schema have the same.
    let mix = |hash: u64, byte: u8| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01B3);
    settings.slot.bytes().fold(0xCBF2_9CE4_8422_2325, mix) as i64
}

/// Which server this is, and which line of its history.
pub(crate) fn line(connection: &mut Connection) -> Result<Line, Error> {
    let rows = connection.rows(
        "SELECT system_identifier, left(pg_walfile_name(pg_current_wal_insert_lsn()), 8) FROM pg_control_system()",
    )?;
    let row = rows.first().cloned().unwrap_or_default();
    let at = |at: usize| row.get(at).cloned().flatten().unwrap_or_default();
    let timeline = u32::from_str_radix(&at(1), 16).unwrap_or(0);
    Ok(Line { system: at(0), timeline })
}

/// What the triggers need.
fn prepare(connection: &mut Connection, settings: &Settings) -> Result<(), Error> {
    let schema = quoted_name(&settings.slot);
    let there =
        format!("SELECT to_regclass({}) IS NOT NULL", literal(&format!("{schema}.changes")));
    if connection.value(&there)? == "t" {
        return Ok(());
    }
    let sql = format!(
        "CREATE SCHEMA IF NOT EXISTS {schema}; CREATE TABLE {schema}.changes (turn bigserial PRIMARY KEY, \
         xid xid8 NOT NULL DEFAULT pg_current_xact_id(), prefix text NOT NULL, old text[], new text[])"
    );
    match connection.query(&sql, |_, _| {}) {
        // Another thread, or another Headwater, makes it at the same time.
        Err(error) if matches!(&*error.code, "23505" | "42P06" | "42P07") => {
            match connection.value(&there)?.as_str() {
                "t" => Ok(()),
                _ => prepare(connection, settings),
            }
        }
        done => done.map_err(|error| Error {
            message: format!("{}; whoever may do it has to: {sql}", error.message),
            ..error
        }),
    }
}

/// PostgreSQL cuts longer names.
const NAME_BYTES_MAX: usize = 63;

/// What the trigger of a table is called, or that for TRUNCATE, which ends so. The table's name is in it, but for one that is too long: then it is a hash.
fn table_trigger_name(settings: &Settings, prefix: &[u8], end: &str) -> String {
    let (slot, shown) = (&settings.slot, hex(prefix));
    // Both names of a table are made in the same way.
    if slot.len() + shown.len() + "__t".len() <= NAME_BYTES_MAX {
        return format!("{slot}_{shown}{end}");
    }
    let hash = stable_hash(stable_hash(0, slot.as_bytes()), prefix);
    let slot: String = slot.chars().take(NAME_BYTES_MAX - "_0123456789abcdef_t".len()).collect();
    format!("{slot}_{hash:016x}{end}")
}

/// Makes the trigger of a table.
pub(crate) fn install(
    connection: &mut Connection,
    settings: &Settings,
    mapping: &Mapping,
) -> Result<(), Error> {
    prepare(connection, settings)?;
    let schema = quoted_name(&settings.slot);
    let prefix = hex(&mapping.prefix);
    let name = quoted_name(&table_trigger_name(settings, &mapping.prefix, ""));
    let cells = |row: &str, count: usize| {
        let cell = |column: &crate::mapping::Column| {
            // What is computed from NULL is NULL.
            let (raw, value) =
                (format!("{row}.{}", quoted_name(&column.name)), column.sql(&format!("{row}.")));
            format!("CASE WHEN {raw} IS DISTINCT FROM NULL THEN format('%s', {value}) END")
        };
        let cells: Vec<_> = mapping.columns[..count].iter().map(cell).collect();
        format!("ARRAY[{}]", cells.join(", "))
    };
    let (old, new) = (cells("OLD", mapping.kinds.len()), cells("NEW", mapping.columns.len()));
    let insert = format!("INSERT INTO {schema}.changes (prefix, old, new) VALUES ('{prefix}', ");
    // The settings are those of our own sessions. Whatever goes wrong within must not keep anybody from writing.
    let sql = format!(
        "BEGIN; CREATE OR REPLACE FUNCTION {schema}.{name}() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER \
         SET search_path = pg_catalog SET DateStyle = 'ISO, YMD' SET IntervalStyle = 'postgres' \
         SET TimeZone = 'UTC' SET extra_float_digits = 3 SET bytea_output = 'hex' AS $headwater$ BEGIN \
         IF pg_try_advisory_xact_lock_shared({lock}) THEN RETURN NULL; END IF; \
         PERFORM pg_notify('{channel}', ''); \
         BEGIN \
         IF TG_OP = 'TRUNCATE' THEN {insert}NULL, NULL); \
         ELSIF TG_OP = 'DELETE' THEN {insert}{old}, NULL); \
         ELSIF TG_OP = 'INSERT' THEN {insert}NULL, {new}); \
         ELSE {insert}{old}, {new}); END IF; \
         EXCEPTION WHEN OTHERS THEN {insert}NULL, NULL); END; \
         RETURN NULL; END $headwater$; \
         CREATE OR REPLACE TRIGGER {name} AFTER INSERT OR UPDATE OR DELETE ON {table} \
         FOR EACH ROW EXECUTE FUNCTION {schema}.{name}(); \
         CREATE OR REPLACE TRIGGER {truncate} AFTER TRUNCATE ON {table} EXECUTE FUNCTION {schema}.{name}(); \
         ALTER TABLE {table} ENABLE ALWAYS TRIGGER {name}; \
         ALTER TABLE {table} ENABLE ALWAYS TRIGGER {truncate}; COMMIT",
        lock = lock_key(settings),
        channel = settings.slot,
        table = mapping.table,
        truncate = quoted_name(&table_trigger_name(settings, &mapping.prefix, "_t")),
    );
    let done = connection.query(&sql, |_, _| {});
    if done.as_ref().is_err_and(|error| !error.is_broken()) {
        connection.query("ROLLBACK", |_, _| {})?;
    }
    done.map_err(|error| Error {
        message: format!("the trigger that would tell changes cannot be made: {}", error.message),
        ..error
    })
}

/// What [`install`] will do to a table.
///
/// # Errors
/// The role may not do it.
pub(crate) fn needs(
    connection: &mut Connection,
    relation: u32,
    table: &str,
) -> Result<Vec<String>, Error> {
    if connection.value(&owned(relation))? == "t" {
        return Ok(vec![format!("CREATE TRIGGER … ON {table}, which notes its changes")]);
    }
    Err(refusal(format!(
        "this role may not make a trigger on {table} that is always enabled: its owner may"
    )))
}

/// Reads what was noted, and loads ranges, until something goes wrong or the source ends.
pub(crate) fn session(
    shared: &Arc<Shared>,
    mut connection: Connection,
    worked: &mut bool,
) -> Result<(), Error> {
    let settings = &shared.settings;
    prepare(&mut connection, settings)?;
    let schema = quoted_name(&settings.slot);
    let lock = lock_key(settings);
    let free = connection.value(&format!("SELECT pg_try_advisory_lock({lock})"))?;
    if free != "t" {
        // Another reader, or transactions that noted nothing and have not ended.
        connection.set_patience(Duration::from_secs(60))?;
        let sql = format!(
            "SET lock_timeout = '50s'; SELECT pg_advisory_lock({lock}); RESET lock_timeout"
        );
        connection.query(&sql, |_, _| {}).map_err(|error| match &*error.code {
            "55P03" => Error {
                message: format!(
                    "somebody else reads the changes that {schema} notes, or a transaction has been writing for long: \
                     each server that reads a database needs a name of its own: slot-name"
                ),
                ..error
            },
            _ => error,
        })?;
    }
    connection.set_patience(settings.patience + Duration::from_secs(1))?;
    let millis = settings.patience.as_millis();
    connection.query(
        &format!(
            "LISTEN {}; SET statement_timeout = {millis}; SET lock_timeout = {millis}",
            quoted_name(&settings.slot)
        ),
        |_, _| {},
    )?;
    let position = end_of_log(&mut connection)?;
    let text = connection.value("SELECT pg_current_snapshot()")?;
    let base = Snapshot::parse(&text).ok_or_else(|| Error::broken("no snapshot"))?;
    let line = line(&mut connection)?;
    {
        let mut state = shared.lock();
        state.watch.slot.clear();
        state.alterations_told = false;
        state.line = Some(line);
        state.begin_anew(position, base);
    }
    *worked = true;
    shared.note("changes read", "what was loaded is loaded again");
    up(shared);
    let mut reader = Reader { connection, schema, seen: text };
    let (mut turned, mut swept) = (Instant::now(), Instant::now());
    loop {
        reader.connection.set_patience(LOOK)?;
        let told = reader.connection.notified(Instant::now() + LOOK)?;
        reader.connection.set_patience(settings.patience + Duration::from_secs(1))?;
        let (loads, hurry) = {
            let mut state = shared.lock();
            if state.stopping {
                return Ok(());
            }
            let hurry = std::mem::take(&mut state.hurry);
            (state.take_loads(), hurry)
        };
        if told || hurry || !loads.is_empty() || turned.elapsed() >= TURN {
            turned = Instant::now();
            if let Err(error) = reader.turn(shared, &loads) {
                let mut state = shared.lock();
                // Those that were answered are not there any more.
                for job in loads {
                    if let Work::Load(fetch) = job.work {
                        state.again(fetch, Duration::ZERO, &error.message);
                    }
                }
                return Err(error);
            }
            shared.lock().watch.heard = Some(Instant::now());
            shared.pass_on();
        }
        if swept.elapsed() >= SWEEP {
            swept = Instant::now();
            let sql = format!(
                "DELETE FROM {}.changes WHERE pg_visible_in_snapshot(xid, {})",
                reader.schema,
                literal(&reader.seen)
            );
            reader.connection.query(&sql, |_, _| {})?;
        }
    }
}

/// The one connection that reads.
struct Reader {
    connection: Connection,
    schema: String,
    /// The last snapshot, as text: what it sees has been told.
    seen: String,
}

impl Reader {
    /// One snapshot: what it sees for the first time, then the loads.
    fn turn(&mut self, shared: &Shared, loads: &[Job]) -> Result<(), Error> {
        let mut queries = Vec::new();
        let at = {
            let mut state = shared.lock();
            for job in loads {
                if let Work::Load(fetch) = job.work
                    && let Some(query) = state.begin_load(fetch)
                {
                    queries.push((fetch, query));
                }
            }
            state.begun = state.begun.max(state.position) + 1;
            state.begun
        };
        let mut sql = "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY".to_owned();
        for (_, query) in &queries {
            // Before the snapshot is taken: see `pool`.
            let _ = write!(sql, "; LOCK TABLE {} IN ACCESS SHARE MODE", query.ready.mapping.table);
        }
        let before = queries.len() + 1;
        let tables = signature::ready(shared);
        let _ = write!(
            sql,
            "; {}; SELECT prefix, old, new FROM {}.changes \
             WHERE NOT pg_visible_in_snapshot(xid, {}) ORDER BY turn",
            signature::sql(&tables),
            self.schema,
            literal(&self.seen)
        );
        let (mut seen, mut signatures) = (None, Vec::new());
        let most = shared.settings.transaction_bytes_max;
        let mut noted = NotedChanges::new(shared.room.transaction_bytes_max(most));
        let begun = self.connection.query(&sql, |statement, columns| {
            if statement == before {
                let mut texts = columns.iter().map(|text| text.unwrap_or_default().to_owned());
                seen = texts.next().filter(|text| !text.is_empty());
                signatures = texts.collect();
            } else if let [Some(prefix), old, new] = columns {
                let prefix = unhex(prefix);
                noted.push(prefix, *old, *new);
            }
        });
        if let Err(error) = begun {
            return self.fail(shared, queries.iter().map(|(fetch, _)| *fetch), error);
        }
        self.seen = seen.ok_or_else(|| Error::broken("no snapshot"))?;
        let (mut answers, mut beside) = (Vec::new(), Vec::new());
        let mut left = queries.iter();
        while let Some((fetch, query)) = left.next() {
            let mut pairs = Pairs::new(query, shared.settings.load_bytes_max);
            let mut held = Held::new(&shared.room, 1, Instant::now());
            let (mut full, mut room) = (None, Vec::new());
            match self.connection.query(&rows_sql(&[query]), |_, columns| {
                if full.is_none()
                    && let Some((key, value)) = pair_of(query, columns, &mut room)
                {
                    full = held.add(key.len() + value.len()).err();
                    // This connection is the only one that reads: it takes the rest, and leaves it.
                    let _ = pairs.take(key, value);
                }
            }) {
                Ok(()) => match full {
                    // Those before it are let go once they are stored.
                    Some(Full::Beside) => {
                        beside.push(*fetch);
                        // Nothing is stored before this turn ends: there is no room for the others either.
                        beside.extend(left.by_ref().map(|(fetch, _)| *fetch));
                    }
                    Some(why) => answers.push((*fetch, Err(refusal(why.to_string())))),
                    None => {
                        let mut pairs = pairs.end();
                        if let Ok(pairs) = &mut pairs {
                            pairs.hold(held.told());
                        }
                        answers.push((*fetch, pairs));
                    }
                },
                Err(error) if error.is_broken() => return Err(error),
                Err(error) => {
                    // The others have to wait for the next snapshot.
                    answers.push((*fetch, Err(error)));
                    break;
                }
            }
        }
        let mut state = shared.lock();
        // Before the changes, and loads of such tables begin again.
        signature::compare(&mut state, &tables, signatures.into_iter());
        noted.tell(&mut state, at);
        for (fetch, answer) in answers {
            match answer {
                Ok(pairs) => state.answer_now(fetch, pairs),
                Err(error) => state.fail_load(fetch, error.message),
            }
        }
        for (fetch, _) in left {
            state.again(*fetch, Duration::ZERO, "another load failed beside it");
        }
        for fetch in beside {
            state.again(fetch, BESIDE_PAUSE, &Full::Beside.to_string());
        }
        drop(state);
        self.connection.query("COMMIT", |_, _| {})
    }

    /// Nothing of this turn came to pass.
    fn fail(
        &mut self,
        shared: &Shared,
        loads: impl Iterator<Item = FetchId>,
        error: Error,
    ) -> Result<(), Error> {
        if error.is_broken() {
            return Err(error);
        }
        let mut state = shared.lock();
        for fetch in loads {
            state.fail_load(fetch, error.message.clone());
        }
        drop(state);
        self.connection.query("ROLLBACK", |_, _| {})
    }
}

/// What triggers have noted since the turn before.
struct NotedChanges {
    all: Vec<Noted>,
    bytes: usize,
    bytes_max: usize,
    /// It has become too much: these are the prefixes of the tables that were changed.
    tables: Option<BTreeSet<Vec<u8>>>,
}

impl NotedChanges {
    fn new(bytes_max: usize) -> Self {
        Self { all: Vec::new(), bytes: 0, bytes_max, tables: None }
    }

    fn push(&mut self, prefix: Vec<u8>, old: Option<&str>, new: Option<&str>) {
        if let Some(tables) = &mut self.tables {
            tables.insert(prefix);
            return;
        }
        let texts = [old, new].into_iter().flatten().map(str::len).sum::<usize>();
        self.bytes += size_of::<Noted>() + prefix.len() + 2 * texts;
        self.all.push(Noted { prefix, old: old.map(array), new: new.map(array) });
        if self.bytes > self.bytes_max {
            let all = std::mem::take(&mut self.all);
            self.tables = Some(all.into_iter().map(|noted| noted.prefix).collect());
        }
    }

    fn tell(self, state: &mut crate::state::State, at: u64) {
        let Some(tables) = self.tables else { return tell(state, at, &self.all) };
        state.note_too_large(tables.len());
        let whole = |prefix| Noted { prefix, old: None, new: None };
        tell(state, at, &tables.into_iter().map(whole).collect::<Vec<_>>());
    }
}

/// Tells what was noted.
fn tell(state: &mut crate::state::State, at: u64, noted: &[Noted]) {
    let mut outcome = Outcome::default();
    let mut plans: BTreeMap<&[u8], Plan> = BTreeMap::new();
    for Noted { prefix, old, new } in noted {
        let Some(table) = state.tables.get(prefix) else { continue };
        let TableReadiness::Ready(ready) = &table.standing else { continue };
        let plan = plans.entry(prefix).or_insert_with(|| Plan::plain(Arc::clone(ready)));
        let (old, new) = (old.as_deref().map(cells), new.as_deref().map(cells));
        // What an older trigger noted has other columns.
        let odd = new.as_ref().is_some_and(|new| new.len() != ready.mapping.columns.len())
            || old.as_ref().is_some_and(|old| old.len() != ready.mapping.kinds.len());
        if odd || (old.is_none() && new.is_none()) {
            outcome.resets.push(KeyRange::prefix(prefix));
        } else {
            outcome.row(plan, old.as_deref(), new.as_deref(), state);
        }
    }
    state.watch.transactions += u64::from(!noted.is_empty());
    state.watch.changes += outcome.changes.len() as u64;
    state.watch.rows_without_key += outcome.rows_without_key;
    state.apply(at, outcome.changes, outcome.resets, false);
}

fn cells(texts: &[Option<String>]) -> Vec<Cell<'_>> {
    texts.iter().map(|text| text.as_deref().map_or(Cell::Null, Cell::Text)).collect()
}

/// Reads an array of texts as PostgreSQL prints it: `{a,"b c",NULL}`.
fn array(text: &str) -> Vec<Option<String>> {
    let mut all = Vec::new();
    let mut chars = text.chars().skip(1).peekable();
    while let Some(&first) = chars.peek() {
        let mut element = String::new();
        let quoted = first == '"';
        if quoted {
            chars.next();
            while let Some(next) = chars.next() {
                match next {
                    '"' => break,
                    '\\' => element.extend(chars.next()),
                    other => element.push(other),
                }
            }
        } else {
            while let Some(next) = chars.next_if(|next| !matches!(next, ',' | '}')) {
                element.push(next);
            }
        }
        if quoted || !element.is_empty() {
            all.push((quoted || element != "NULL").then_some(element));
        }
        // A comma, or the end.
        chars.next();
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arrays() {
        let some = |text: &str| Some(text.to_owned());
        assert_eq!(
            array(r#"{a,"b \"c\\",NULL,"NULL","",é}"#),
            [some("a"), some("b \"c\\"), None, some("NULL"), some(""), some("é")]
        );
        assert_eq!(array("{}"), []);
        assert_eq!(array("{NULL}"), [None]);
    }

    #[test]
    fn prefixes() {
        assert_eq!(unhex(&hex(b"p|\xff\0")), b"p|\xff\0");
    }

    #[test]
    fn triggers_have_names_of_their_own_however_long_those_of_tables_are() {
        let url = "postgres://ann@localhost/shop";
        let settings = Settings::read("shop", url, &[]).unwrap();
        assert_eq!(table_trigger_name(&settings, b"p|", "_t"), "headwater_shop_707c_t");
        let mut names = BTreeSet::new();
        for length in 20..30 {
            for last in ["a|", "b|"] {
                let prefix = format!("{}{last}", "n".repeat(length));
                for end in ["", "_t"] {
                    let name = table_trigger_name(&settings, prefix.as_bytes(), end);
                    assert!(name.len() <= NAME_BYTES_MAX, "{name}");
                    assert!(names.insert(name), "{prefix}{end}");
                }
            }
        }
    }
}
