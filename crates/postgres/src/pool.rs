//! The threads that ask the database: loads, declarations, positions and writes, each on a connection that
//! it has to itself.
//!
//! A load is one round trip. The table is locked against being altered before the snapshot is taken: TRUNCATE and
//! rewriting a table are not to be seen in snapshots, and would make it look empty.

use crate::declare;
use crate::loads::{Found, KeyValues, Query};
use crate::mapping::{Cell, Value, literal, quoted_name};
use crate::range::condition;
use crate::snapshot::Snapshot;
use crate::source::{position_of, show};
use crate::state::{Job, Shared, Standing, State, Way, Work};
use crate::wire::{Connection, Error};
use crate::write;
use headwater_base::source::{FetchId, Health, News, Position};
use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};

/// How long a job is put off that met a broken connection.
const RETRY: Duration = Duration::from_millis(50);
/// How often a job that cannot begin yet is looked at.
const LOOK: Duration = Duration::from_millis(20);
/// How long a connection is kept that nobody needs.
const IDLE_MAX: Duration = Duration::from_secs(60);

/// Works through jobs until the source ends.
pub(crate) fn run(shared: &Arc<Shared>) {
    let mut connection: Option<Connection> = None;
    loop {
        shared.pass_on();
        let Some(job) = next(shared, &mut connection) else { break };
        let outcome = attempt(shared, &mut connection, &job);
        let Err(error) = outcome else { continue };
        if error.is_broken() {
            connection = None;
        }
        let may_again = !matches!(job.work, Work::Write { .. });
        if error.is_broken() && may_again && Instant::now() + RETRY < job.deadline {
            let job =
                Job { not_before: Instant::now() + RETRY, trouble: Some(error.message), ..job };
            shared.lock().jobs.push_back(job);
        } else {
            shared.lock().refuse(job.work, error.message, error.code.is_empty());
        }
    }
}

/// The next job that can be done now; `None` where the source is to end. Jobs whose time is up are answered.
fn next(shared: &Shared, connection: &mut Option<Connection>) -> Option<Job> {
    let mut state = shared.lock();
    let begun = Instant::now();
    loop {
        if state.stopping {
            return None;
        }
        let now = Instant::now();
        let mut at = 0;
        let mut waiting = false;
        while at < state.jobs.len() {
            let job = &state.jobs[at];
            let late = job.deadline <= now;
            if job.not_before > now && !late {
                waiting = true;
                at += 1;
                continue;
            }
            let work = match job.work {
                Work::Load(fetch) => state.can_load(fetch),
                Work::Declare { .. } if state.way.is_none() => Err(state.trouble()),
                _ => Ok(()),
            };
            // These are read where the changes are.
            let elsewhere = state.way == Some(Way::Queue) && matches!(job.work, Work::Load(_));
            if elsewhere && work.is_ok() && !late {
                waiting = true;
                at += 1;
                continue;
            }
            let job = &mut state.jobs[at];
            match work {
                Ok(()) if !late => return state.jobs.remove(at),
                Ok(()) => {}
                Err(reason) => job.trouble = Some(reason),
            }
            if late {
                let Some(job) = state.jobs.remove(at) else { break };
                let trouble = job.trouble.unwrap_or_else(|| "the database is too slow".to_owned());
                state.refuse(job.work, trouble, true);
                continue;
            }
            waiting = true;
            at += 1;
        }
        state.fail_overdue();
        if state.has_news() {
            drop(state);
            shared.pass_on();
            state = shared.lock();
            continue;
        }
        if connection.is_some() && begun.elapsed() > IDLE_MAX {
            *connection = None;
        }
        let length = if waiting { LOOK } else { Duration::from_millis(500) };
        let waited = shared.changed.wait_timeout(state, length);
        state = waited.unwrap_or_else(PoisonError::into_inner).0;
    }
}

impl State {
    /// Why nothing can be done.
    fn trouble(&self) -> String {
        match &self.health {
            Health::Down(reason) => reason.clone(),
            Health::Up => "the database is being examined".to_owned(),
        }
    }

    /// Answers a job that is not done. `unreachable`: it is the connection's fault.
    fn refuse(&mut self, work: Work, message: String, unreachable: bool) {
        match work {
            Work::Load(fetch) => self.fail_load(fetch, message),
            Work::Declare { request, prefix, generation } => {
                let answer = if unreachable {
                    self.set_standing(&prefix, generation, Standing::Unchecked(message.clone()));
                    let warning = format!(
                        "the table is compared with the database once it can be: {message}"
                    );
                    Ok(vec![warning])
                } else {
                    if self.tables.get(&prefix).is_some_and(|table| table.generation == generation)
                    {
                        self.tables.remove(&prefix);
                    }
                    Err(message)
                };
                self.tell(News::Declared { request, answer });
            }
            Work::Position { request } => {
                self.tell(News::Position { request, answer: Err(message) })
            }
            Work::Write { request, .. } => {
                self.tell(News::Written { request, answer: Err(message) })
            }
        }
    }
}

/// A connection to work with: the one that is there, or a new one.
fn ready<'a>(
    shared: &Shared,
    connection: &'a mut Option<Connection>,
) -> Result<&'a mut Connection, Error> {
    if connection.is_none() {
        let mut opened = Connection::open(&shared.settings.target, false)?;
        let patience = shared.settings.patience;
        opened.set_patience(patience + Duration::from_secs(1))?;
        let millis = patience.as_millis();
        let sql = format!("SET statement_timeout = {millis}; SET lock_timeout = {millis}");
        opened.query(&sql, |_, _| {})?;
        *connection = Some(opened);
    }
    connection.as_mut().ok_or_else(|| Error::broken("no connection"))
}

fn attempt(
    shared: &Arc<Shared>,
    connection: &mut Option<Connection>,
    job: &Job,
) -> Result<(), Error> {
    match &job.work {
        Work::Load(fetch) => {
            let connection = ready(shared, connection)?;
            let (beside, queries) = shared.lock().begin_together(*fetch, job.alone);
            let found = load(connection, &queries, shared.settings.load_bytes_max);
            if found.is_err() {
                // Which of them went wrong is seen when each is alone.
                let again = beside.into_iter().map(|job| Job { alone: true, ..job });
                shared.lock().jobs.extend(again);
            }
            for (fetch, found) in found? {
                finish_load(shared, fetch, found);
            }
        }
        Work::Declare { request, prefix, generation } => {
            let table = shared.lock().tables.get(prefix).map(|table| table.words.clone());
            let answer = match table {
                Some(words) => {
                    let connection = ready(shared, connection)?;
                    let way = shared.lock().way.unwrap_or(Way::Log);
                    let (ready, warnings) =
                        declare::check(connection, &shared.settings, way, prefix, &words, None)?;
                    let standing = Standing::Ready(Arc::new(ready));
                    shared.lock().set_standing(prefix, *generation, standing);
                    Ok(warnings)
                }
                None => Err("the table was withdrawn".to_owned()),
            };
            shared.lock().tell(News::Declared { request: *request, answer });
        }
        Work::Position { request } => {
            let way = shared.lock().way;
            let at = match way {
                Some(Way::Queue) => shared.lock().after_now(),
                Some(Way::Log) | None => mark(ready(shared, connection)?)?,
            };
            shared.lock().tell(News::Position { request: *request, answer: Ok(Position(at)) });
        }
        Work::Write { request, changes } => {
            let sql = write::statements(&shared.lock(), changes)
                .map_err(|message| Error { message, code: "HW000".to_owned() })?;
            let connection = ready(shared, connection)?;
            let at = write::run(connection, &sql)?;
            let mut state = shared.lock();
            let at = if state.way == Some(Way::Queue) { state.after_now() } else { at };
            state.tell(News::Written { request: *request, answer: Ok(Position(at)) });
        }
    }
    shared.changed.notify_all();
    Ok(())
}

/// Writes a mark into the log, and sees to it that the log is sent up to there: everything that was committed before is at
/// or below the position that it gives.
pub(crate) fn mark(connection: &mut Connection) -> Result<u64, Error> {
    // A transaction of its own is flushed when it ends, and all before it with it.
    let text = connection.value(
        "BEGIN; SET LOCAL synchronous_commit = local; \
         SELECT pg_logical_emit_message(true, 'headwater', ''); COMMIT; \
         SELECT pg_current_wal_flush_lsn()",
    )?;
    position_of(&text).ok_or_else(|| Error::broken(format!("`{text}` is no position")))
}

/// Where the log ends.
pub(crate) fn end_of_log(connection: &mut Connection) -> Result<u64, Error> {
    let text = connection.value("SELECT pg_current_wal_insert_lsn()")?;
    position_of(&text).ok_or_else(|| Error::broken(format!("`{text}` is no position")))
}

/// The statement that gives the rows of loads of one table.
pub(crate) fn rows_sql(queries: &[&Query]) -> String {
    let Some(first) = queries.first() else { return "SELECT".to_owned() };
    let mapping = &first.ready.mapping;
    let wanted = queries.iter().filter_map(|query| condition(mapping, &query.range));
    let wanted: Vec<_> = wanted.map(|condition| format!("({condition})")).collect();
    let wanted = if wanted.is_empty() { "false".to_owned() } else { wanted.join(" OR ") };
    let names: Vec<_> = mapping.columns.iter().map(|column| quoted_name(&column.name)).collect();
    format!("SELECT {} FROM {} WHERE {wanted}", names.join(", "), mapping.table)
}

/// The key and the value of a row, if it has a key.
pub(crate) fn pair_of(query: &Query, columns: &[Option<&str>]) -> Option<(Vec<u8>, Vec<u8>)> {
    let cells: Vec<_> = columns.iter().map(|text| text.map_or(Cell::Null, Cell::Text)).collect();
    let mapping = &query.ready.mapping;
    let key = mapping.key(&cells)?;
    match mapping.value(&cells) {
        Value::Known(value) => Some((key, value)),
        // No cell of a query is left out.
        _ => None,
    }
}

/// The pairs of a load, as its rows come.
pub(crate) struct Pairs<'a> {
    query: &'a Query,
    bytes_max: usize,
    bytes: usize,
    pub(crate) pairs: KeyValues,
}

impl<'a> Pairs<'a> {
    pub(crate) fn new(query: &'a Query, bytes_max: usize) -> Self {
        Self { query, bytes_max, bytes: 0, pairs: Vec::new() }
    }

    /// Takes a pair that is in the range, unless there are too many.
    pub(crate) fn take(&mut self, key: Vec<u8>, value: Vec<u8>) {
        if self.bytes <= self.bytes_max && self.query.range.contains(&key) {
            self.bytes += key.len() + value.len();
            self.pairs.push((key, value));
        }
    }

    /// All of them.
    ///
    /// # Errors
    /// They are too many.
    pub(crate) fn end(self) -> Result<KeyValues, Error> {
        if self.bytes > self.bytes_max {
            let message =
                format!("the range holds more than load-bytes-max, {} bytes", self.bytes_max);
            return Err(Error { message, code: "HW000".to_owned() });
        }
        Ok(self.pairs)
    }
}

/// Asks for the rows of loads of one table, in one snapshot.
fn load(
    connection: &mut Connection,
    queries: &[(FetchId, Query)],
    bytes_max: usize,
) -> Result<Vec<(FetchId, Found)>, Error> {
    let all: Vec<_> = queries.iter().map(|(_, query)| query).collect();
    let Some(first) = all.first() else { return Ok(Vec::new()) };
    let sql = format!(
        "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY; LOCK TABLE {} IN ACCESS SHARE MODE; \
         SELECT pg_current_snapshot(), pg_current_wal_insert_lsn(); {}; COMMIT",
        first.ready.mapping.table,
        rows_sql(&all)
    );
    let (mut snapshot, mut horizon) = (None, None);
    let mut pairs: Vec<_> = all.iter().map(|query| Pairs::new(query, bytes_max)).collect();
    let done = connection.query(&sql, |statement, columns| match (statement, columns) {
        (2, [Some(seen), Some(at)]) => {
            snapshot = Snapshot::parse(seen);
            horizon = position_of(at);
        }
        (3, columns) => {
            if let Some((key, value)) = pair_of(first, columns)
                && let Some((last, others)) = pairs.split_last_mut()
            {
                others.iter_mut().for_each(|pairs| pairs.take(key.clone(), value.clone()));
                last.take(key, value);
            }
        }
        _ => {}
    });
    if let Err(error) = done {
        if !error.is_broken() {
            connection.query("ROLLBACK", |_, _| {})?;
        }
        return Err(error);
    }
    let (Some(snapshot), Some(horizon)) = (snapshot, horizon) else {
        return Err(Error::broken("the database does not say what its query saw"));
    };
    let fetches = queries.iter().map(|(fetch, _)| *fetch);
    let found = fetches.zip(pairs).map(|(fetch, pairs)| {
        let pairs = pairs.end()?;
        Ok((fetch, Found { snapshot: snapshot.clone(), horizon, pairs }))
    });
    found.collect()
}

/// Hands a load's rows over. The log may end within the head of a block, which is never told.
fn finish_load(shared: &Shared, fetch: FetchId, found: Found) {
    let mut state = shared.lock();
    let horizon = before_head(found.horizon, state.watch.log_block_bytes);
    state.found(fetch, Found { horizon, ..found });
}

/// A position within the head of a block of the log is the end of the block before.
pub(crate) fn before_head(position: u64, block_bytes: u64) -> u64 {
    // The longest head, that of a file's first block, has 40 bytes.
    let within = position % block_bytes;
    if within <= 40 { position - within } else { position }
}

/// Says that the database answers and its changes arrive.
pub(crate) fn up(shared: &Shared) {
    shared.lock().set_health(Health::Up);
    shared.pass_on();
    shared.changed.notify_all();
}

/// The name of a slot's position for a statement.
pub(crate) fn lsn(position: u64) -> String {
    literal(&show(Position(position)))
}
