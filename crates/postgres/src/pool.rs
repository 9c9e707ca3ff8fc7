//! The threads that ask the database: loads and declarations, positions and writes, each on a connection that
//! it has to itself. What blocks those that write keeps nobody from loading.

use crate::catalog::refusal;
use crate::declare;
use crate::mapping::literal;
use crate::query::{
    ALTERED_CODE, Alone, TOO_LARGE_CODE, TOO_MUCH_CODE, UNWANTED, load_all, load_pages,
};
use crate::room::Held;
use crate::signature;
use crate::source::{position_of, show};
use crate::state::{Line, Shared, State, TableReadiness, Way};
use crate::wire::{Connection, Error};
use crate::work::{Job, Work};
use crate::write::{self, Failed};
use headwater_base::source::{Change, FetchId, Health, News, Position, Written};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How long a job is put off that met a broken connection.
const RETRY: Duration = Duration::from_millis(50);
/// How often a job that cannot begin yet is looked at.
const LOOK: Duration = Duration::from_millis(20);
/// How long a job is left to threads that have a connection and nothing to do.
const CONNECTED_FIRST: Duration = Duration::from_millis(2);
/// How long a connection is kept that nobody needs.
const IDLE_MAX: Duration = Duration::from_secs(60);

/// What a thread of the pool does: those that load never keep those that write from their work, nor the other way round.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Side {
    /// Loads and declarations.
    Load,
    /// Writes, and questions where the log ends.
    Write,
}

impl Side {
    pub(crate) fn of(work: &Work) -> Self {
        match work {
            Work::Load(_) | Work::Declare { .. } | Work::Examine { .. } => Self::Load,
            Work::Position { .. } | Work::Mark | Work::Write { .. } => Self::Write,
        }
    }
}

/// A connection to the server whose log is followed.
struct Pooled {
    connection: Connection,
    line: Option<Line>,
}

/// Loads and compares tables until the source ends.
pub(crate) fn load(shared: &Arc<Shared>) {
    run(shared, Side::Load);
}

/// Whether more waits to be written than threads wait to write it.
pub(crate) fn lacks_writers(state: &State) -> bool {
    let jobs = state.jobs.iter().filter(|job| Side::of(&job.work) == Side::Write);
    jobs.count() > state.waiting[Side::Write as usize].iter().sum()
}

/// Begins a thread that writes, until the source ends or nothing has been written for long.
pub(crate) fn spawn_writer(shared: &Arc<Shared>) -> std::io::Result<()> {
    let shared = Arc::clone(shared);
    let thread = std::thread::Builder::new().name("pg-write".to_owned());
    thread.spawn(move || run(&shared, Side::Write)).map(drop)
}

/// Works through the jobs of one side until the source ends.
fn run(shared: &Arc<Shared>, side: Side) {
    let mut connection: Option<Pooled> = None;
    loop {
        shared.pass_on();
        let Some(job) = next(shared, &mut connection, side) else { break };
        let outcome = attempt(shared, &mut connection, &job);
        let Err(Trouble { error, again }) = outcome else { continue };
        if error.is_broken() {
            connection = None;
        }
        if again && Instant::now() + RETRY < job.deadline {
            let job =
                Job { not_before: Instant::now() + RETRY, trouble: Some(error.message), ..job };
            shared.lock().jobs.push_back(job);
        } else {
            let unreachable =
                error.is_passing() || error.is_broken() && error.code != TOO_MUCH_CODE;
            shared.lock().refuse(job.work, error.message, unreachable);
        }
    }
}

/// Why a job was not done, and whether it can be tried again.
struct Trouble {
    error: Error,
    again: bool,
}

impl From<Error> for Trouble {
    fn from(error: Error) -> Self {
        let again = error.is_broken() && error.code != TOO_MUCH_CODE;
        Self { error, again }
    }
}

/// The next job that can be done now; `None` where the source is to end. Jobs whose time is up are answered.
fn next(shared: &Shared, connection: &mut Option<Pooled>, side: Side) -> Option<Job> {
    let mut state = shared.lock();
    let begun = Instant::now();
    loop {
        if state.stopping {
            return None;
        }
        let now = Instant::now();
        let mut at = 0;
        let (mut waiting, mut wait) = (false, LOOK);
        while at < state.jobs.len() {
            let job = &state.jobs[at];
            let late = job.deadline <= now;
            if Side::of(&job.work) != side {
                at += 1;
                continue;
            }
            if job.not_before > now && !late {
                wait = wait.min(job.not_before - now);
                waiting = true;
                at += 1;
                continue;
            }
            let work = match job.work {
                Work::Load(fetch) => state.can_load(fetch),
                Work::Declare { .. } | Work::Examine { .. } if state.way.is_none() => {
                    Err(state.trouble())
                }
                Work::Write { ref changes, .. } => state.can_write(changes),
                _ => Ok(()),
            };
            // These are read where the changes are.
            let elsewhere = state.way == Some(Way::Queue) && matches!(job.work, Work::Load(_));
            if elsewhere && work.is_ok() && !late {
                waiting = true;
                at += 1;
                continue;
            }
            // Connections that are there are taken before new ones are made.
            let theirs = connection.is_none() && state.waiting[side as usize][0] > 0;
            if theirs && now < job.not_before + CONNECTED_FIRST && work.is_ok() && !late {
                wait = wait.min(CONNECTED_FIRST);
                waiting = true;
                at += 1;
                continue;
            }
            let job = &mut state.jobs[at];
            match work {
                Ok(()) if !late => {
                    let job = state.jobs.remove(at);
                    let more = state.jobs.iter().any(|job| Side::of(&job.work) == side);
                    if more || state.has_news() {
                        shared.wake(&state, side);
                    }
                    return job;
                }
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
        if begun.elapsed() > IDLE_MAX {
            *connection = None;
            if side == Side::Write && !waiting {
                state.writers -= 1;
                return None;
            }
        }
        let length = if waiting { wait } else { Duration::from_millis(500) };
        state = shared.wait(state, (side, connection.is_some()), length);
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

    /// Whether writes can be done: `Err` says what they wait for. What is wrong with them is said where they are done.
    fn can_write(&self, changes: &[Change]) -> Result<(), String> {
        for change in changes {
            if let Some((_, table)) = self.table_of(&change.key)
                && let standing @ (TableReadiness::Asked | TableReadiness::Unchecked(_)) =
                    &table.standing
            {
                return Err(standing.reason());
            }
        }
        Ok(())
    }

    /// Answers a job that is not done. `unreachable`: it is the connection's fault.
    fn refuse(&mut self, work: Work, message: String, unreachable: bool) {
        match work {
            Work::Load(fetch) => self.fail_load(fetch, message),
            Work::Declare { request, prefix, generation } => {
                let answer = if unreachable {
                    self.set_standing(
                        &prefix,
                        generation,
                        TableReadiness::Unchecked(message.clone()),
                    );
                    let warning = format!(
                        "the table is compared with the database once it can be: {message}"
                    );
                    Ok(vec![warning])
                } else {
                    self.note("table refused", &format!("{}: {message}", prefix.escape_ascii()));
                    if self.tables.get(&prefix).is_some_and(|table| table.generation == generation)
                    {
                        self.tables.remove(&prefix);
                    }
                    Err(message)
                };
                self.tell(News::Declared { request, answer });
            }
            Work::Examine { request, .. } => {
                self.tell(News::Declared { request, answer: Err(message) });
            }
            Work::Position { request } => {
                self.tell(News::Position { request, answer: Err(message) })
            }
            // Whoever waits for it waits on.
            Work::Mark => {}
            Work::Write { request, .. } => {
                self.tell(News::Written { request, answer: Err(message) })
            }
        }
    }
}

/// A connection to work with: the one that is there, or a new one.
fn ready<'a>(
    shared: &Shared,
    connection: &'a mut Option<Pooled>,
) -> Result<&'a mut Connection, Error> {
    let line = shared.lock().line.clone();
    // One that the server has ended, or that was to another server, is of no use, and nothing was sent on it.
    if let Some(pooled) = connection
        && (pooled.line != line || !pooled.connection.is_alive())
    {
        *connection = None;
    }
    if connection.is_none() {
        let mut opened = Connection::open(&shared.settings.target, false)?;
        let patience = shared.settings.patience;
        // A row may have columns that make no part of its key and value.
        let longest = shared.settings.load_bytes_max.saturating_add(1 << 20);
        opened.set_message_bytes_max(longest.min(shared.room.message_bytes_max()));
        opened.set_patience(patience + Duration::from_secs(1))?;
        let millis = patience.as_millis();
        let rows = opened.rows(&format!(
            "SET statement_timeout = {millis}; SET lock_timeout = {millis}; \
             SELECT CASE WHEN NOT pg_is_in_recovery() THEN pg_walfile_name(pg_current_wal_insert_lsn()) END, \
             (SELECT system_identifier FROM pg_control_system())"
        ))?;
        let row = rows.first().cloned().unwrap_or_default();
        let at = |at: usize| row.get(at).cloned().flatten().unwrap_or_default();
        if let Some(line) = &line {
            // The first eight digits of a file of the log are its timeline.
            let timeline = at(0).get(..8).and_then(|text| u32::from_str_radix(text, 16).ok());
            if timeline != Some(line.timeline) || at(1) != line.system {
                return Err(Error::broken("the server is not the one whose changes are followed"));
            }
        }
        *connection = Some(Pooled { connection: opened, line });
    }
    let pooled = connection.as_mut();
    pooled.map(|pooled| &mut pooled.connection).ok_or_else(|| Error::broken("no connection"))
}

fn attempt(
    shared: &Arc<Shared>,
    connection: &mut Option<Pooled>,
    job: &Job,
) -> Result<(), Trouble> {
    match &job.work {
        Work::Load(fetch) => attempt_load(shared, connection, job, *fetch)?,
        Work::Declare { request, prefix, generation } => {
            let table = shared.lock().tables.get(prefix).map(|table| table.words.clone());
            let answer = match table {
                Some(words) => {
                    let connection = ready(shared, connection)?;
                    let way = shared.lock().way.unwrap_or(Way::Log);
                    let (ready, warnings) =
                        declare::check(connection, &shared.settings, way, prefix, &words)?;
                    let standing = TableReadiness::Ready(Arc::new(ready));
                    shared.lock().set_standing(prefix, *generation, standing);
                    Ok(warnings)
                }
                None => Err("the table was withdrawn".to_owned()),
            };
            shared.lock().tell(News::Declared { request: *request, answer });
            // What waited for it.
            shared.wake_all();
        }
        Work::Examine { request, words } => {
            let connection = ready(shared, connection)?;
            let way = shared.lock().way.unwrap_or(Way::Log);
            let findings = declare::examine(connection, &shared.settings, way, words)?;
            let answer = Ok(findings);
            shared.lock().tell(News::Declared { request: *request, answer });
        }
        Work::Position { request } => {
            let way = shared.lock().way;
            let at = match way {
                Some(Way::Queue) => shared.lock().after_now(),
                Some(Way::Log) | None => {
                    let connection = ready(shared, connection)?;
                    if !shared.lock().alterations_told {
                        signature::look(shared, connection)?;
                    }
                    mark(connection)?
                }
            };
            let mut state = shared.lock();
            state.given = Some(at);
            let answer = Ok(state.position_at(at));
            state.tell(News::Position { request: *request, answer });
        }
        Work::Mark => {
            mark(ready(shared, connection)?)?;
        }
        Work::Write { request, changes } => {
            let all = write::statements(&shared.lock(), changes).map_err(refusal)?;
            let connection = ready(shared, connection)?;
            let done = match write::run(connection, &all) {
                Ok(done) => done,
                Err(Failed::Undone { error, again }) => return Err(Trouble { error, again }),
                Err(Failed::Unknown(error)) => return Err(Trouble { error, again: false }),
            };
            let mut state = shared.lock();
            let queue = state.way == Some(Way::Queue);
            let at = match queue {
                true => state.after_now(),
                // The end of the log may lie within the head of a block, where nothing is ever told.
                false => before_head(done.position, state.watch.log_block_bytes),
            };
            let written = Written { position: state.position_at(at), removed: done.removed };
            state.tell(News::Written { request: *request, answer: Ok(written) });
        }
    }
    Ok(())
}

/// Loads ranges that wait, the one of `fetch` among them.
fn attempt_load(
    shared: &Arc<Shared>,
    connection: &mut Option<Pooled>,
    job: &Job,
    fetch: FetchId,
) -> Result<(), Trouble> {
    ready(shared, connection)?;
    let Some(Pooled { connection, line }) = connection else { return Ok(()) };
    let (beside, queries) = {
        let mut state = shared.lock();
        if state.line != *line {
            return Err(Error::broken("another server has taken the place of this one").into());
        }
        state.begin_together(fetch, job.alone)
    };
    let looks = !shared.lock().alterations_told;
    let threads = shared.settings.connections;
    let held = Held::new(&shared.room, threads, job.deadline);
    let most = shared.settings.load_bytes_max;
    let found = match &queries[..] {
        [(fetch, query)] => {
            let alone = Alone { shared, fetch: *fetch, query, deadline: job.deadline, looks };
            load_pages(connection, &alone).and_then(|found| match found {
                Some(found) => Ok(vec![(*fetch, found)]),
                None => load_all(connection, &queries, most, held, looks),
            })
        }
        _ => load_all(connection, &queries, most, held, looks),
    };
    if found.is_err() {
        // Which of them went wrong is seen when each is alone.
        let again = beside.into_iter().map(|job| Job { alone: true, ..job });
        let mut state = shared.lock();
        state.jobs.extend(again);
        state.put_back = true;
    }
    let outdated = |state: &State| match &queries[..] {
        [(fetch, query)] => state.is_outdated(*fetch, query.attempt),
        _ => false,
    };
    let found = match found {
        // Another query of the load is under way, or will be: what has become of this one is nothing to anybody.
        Err(error) if outdated(&shared.lock()) => {
            if error.is_broken() {
                connection.abandon();
            }
            return Ok(());
        }
        Err(error) if error.code == ALTERED_CODE => {
            signature::look(shared, connection)?;
            let mut state = shared.lock();
            state.again(fetch, Duration::ZERO, &error.message);
            return Ok(());
        }
        Err(error) if error.code == UNWANTED => return Ok(()),
        Err(error) if error.code == TOO_LARGE_CODE => {
            // What is left of the answer is not read.
            connection.abandon();
            return too_large(shared, job, fetch, error, queries.len());
        }
        found => found?,
    };
    let attempts: Vec<_> = queries.iter().map(|(_, query)| query.attempt).collect();
    for ((fetch, found), attempt) in found.into_iter().zip(attempts) {
        shared.lock().found(fetch, attempt, found);
    }
    Ok(())
}

/// What becomes of a load for which an answer was too large, which was for so many loads.
fn too_large(
    shared: &Shared,
    job: &Job,
    fetch: FetchId,
    error: Error,
    loads: usize,
) -> Result<(), Trouble> {
    let mut state = shared.lock();
    if loads > 1 {
        let (work, now) = (Work::Load(fetch), Instant::now());
        let (deadline, trouble) = (job.deadline, Some(error.message));
        state.jobs.push_back(Job { work, not_before: now, deadline, trouble, alone: true });
        state.put_back = true;
        return Ok(());
    }
    let deadline = Instant::now() + shared.settings.patience;
    match state.begin_in_pages(fetch, deadline, &error.message) {
        true => Ok(()),
        false => Err(Error { code: TOO_MUCH_CODE.to_owned(), ..error }.into()),
    }
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
    shared.wake_all();
}

/// The name of a slot's position for a statement.
pub(crate) fn lsn(position: u64) -> String {
    literal(&show(Position(position)))
}
