//! The thread that reads the log: connects, makes the slot or takes it up again, and tells transactions as they come.
//!
//! # The slot
//! Nothing is loaded when a source begins, so it needs no history: a slot of the name that is still there is dropped, and a new one
//! made. Where the slot is *kept*, a lost connection costs nothing: following goes on where it was. Where it is
//! *temporary*, the server drops it with the connection, and what was loaded is reset. By default it is kept only where the
//! server itself bounds what slots hold back (`max_slot_wal_keep_size`): a Headwater that is gone for good cannot drop
//! its slot, and no slot of ours is to fill a disk.
//!
//! # Another server
//! A standby that was promoted goes on with the history of its primary up to where it left that, and numbers its timeline anew. Where
//! all that was read lies before that place and the slot is there (from PostgreSQL 17 on standbys keep it), following goes on.
//! Otherwise what was told is not what this server has: everything is loaded again, and positions go on from the last one.

use crate::mapping::{literal, quoted_name};
use crate::output::{Message, message};
use crate::pool::{before_head, lsn, up};
use crate::queue;
use crate::settings::{Follow, Settings, SlotKind};
use crate::signature;
use crate::snapshot::Snapshot;
use crate::source::{position_of, show};
use crate::state::{Line, Shared, Way};
use crate::transaction::Transaction;
use crate::wire::{Connection, Error};
use headwater_base::source::{Health, Position};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The shortest and the longest pause before connecting again.
const PAUSES: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(10));
/// How long to wait for the log before looking at other things.
const LOOK: Duration = Duration::from_millis(100);
/// How often the server is told how far we are.
const STATUS: Duration = Duration::from_secs(1);
/// A server that is silent for so many times as long as makes it one that is not there is given up, and connected to anew. It may be at a
/// transaction that takes it long to read.
const SILENCES: u32 = 12;
/// How long a slot's user may take to end that may be ours from before.
const SLOT_ENDS_MAX: Duration = Duration::from_secs(2);
/// PostgreSQL's oldest version that is known to do.
const VERSION_LEAST: u32 = 140_000;

/// What is remembered from one connection to the next.
#[derive(Default)]
struct Memory {
    /// The slot, if it is kept and can be taken up again.
    slot: Option<String>,
    /// The server's process that read it for us last.
    process: u32,
    /// When the last connection came to work.
    worked: bool,
}

/// Reads the log until the source ends.
pub(crate) fn run(shared: &Arc<Shared>) {
    let mut memory = Memory::default();
    let mut pause = PAUSES.0;
    loop {
        memory.worked = false;
        let Err(error) = session(shared, &mut memory) else { break };
        let mut state = shared.lock();
        if state.stopping {
            break;
        }
        state.set_health(Health::Down(error.message));
        state.watch.reconnections += 1;
        drop(state);
        shared.pass_on();
        if memory.worked {
            pause = PAUSES.0;
        }
        // Up to twice as long, so that many do not come at once.
        if !shared.pause(pause.mul_f64(1.0 + fastrand::f64())) {
            break;
        }
        pause = (pause * 2).min(PAUSES.1);
    }
    if let Some(slot) = memory.slot {
        // Nobody needs its history any more.
        if let Ok(mut connection) = Connection::open(&shared.settings.target, false) {
            let _ = drop_slot(&mut connection, &slot, memory.process);
        }
    }
    shared.lock().ended = true;
    shared.wake_all();
}

/// Drops our slot. One that somebody else reads, or that is another database's, is not ours.
fn drop_slot(connection: &mut Connection, slot: &str, process: u32) -> Result<(), Error> {
    let name = literal(slot);
    let sql = format!(
        "SELECT active_pid, database, database = current_database() AND plugin = 'pgoutput', \
         (SELECT concat_ws(' ', application_name, host(client_addr)) FROM pg_stat_activity WHERE pid = active_pid) \
         FROM pg_replication_slots WHERE slot_name = {name}"
    );
    let begun = Instant::now();
    loop {
        let rows = connection.rows(&sql)?;
        let Some(row) = rows.first() else { return Ok(()) };
        let at = |at: usize| row.get(at).and_then(Option::as_deref).unwrap_or_default();
        let named = "each server that reads a database needs a name of its own: slot-name";
        if at(2) != "t" {
            let why = format!("the slot {slot} is that of the database {}; {named}", at(1));
            return Err(Error::broken(why));
        }
        let reader = at(0);
        if reader.is_empty() {
            let sql = format!("SELECT pg_drop_replication_slot({name})");
            match connection.query(&sql, |_, _| {}) {
                // Somebody has taken it meanwhile, or dropped it.
                Err(error) if error.code == "55006" || error.code == "42704" => {}
                other => return other,
            }
        } else if reader == process.to_string() {
            // The server may take a moment to see that we have gone.
            let sql = format!("SELECT pg_terminate_backend({process})");
            let _ = connection.query(&sql, |_, _| {});
        }
        if begun.elapsed() > SLOT_ENDS_MAX {
            let why = format!(
                "the slot {slot} is read by somebody else (process {reader}, {}); {named}",
                at(3)
            );
            return Err(Error::broken(why));
        }
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// What the server is like.
struct Server {
    /// It bounds what slots hold back.
    bounded: bool,
    /// Why its log cannot be followed, if so.
    lacks: Option<&'static str>,
    /// It keeps slots on standbys, so that a promoted one has them.
    keeps_for_standbys: bool,
}

fn examine(shared: &Shared, connection: &mut Connection) -> Result<Server, Error> {
    let rows = connection.rows(
        "SELECT current_setting('server_version_num'), current_setting('wal_level'), \
         current_setting('wal_block_size'), current_setting('max_slot_wal_keep_size'), \
         pg_is_in_recovery(), (SELECT rolreplication OR rolsuper FROM pg_roles WHERE rolname = current_user)",
    )?;
    let row = rows.first().cloned().unwrap_or_default();
    let at = |at: usize| row.get(at).and_then(Option::as_deref).unwrap_or_default();
    let refuse = |why: &str| Err(Error::broken(why));
    let version = at(0).parse().unwrap_or(0);
    if version < VERSION_LEAST {
        return refuse("the database is older than PostgreSQL 14");
    }
    if at(4) == "t" {
        return refuse("the database is a standby; connect to the primary");
    }
    let lacks = if at(1) != "logical" {
        Some("changes cannot be followed: the database needs the setting wal_level = logical")
    } else if at(5) != "t" {
        Some("changes cannot be followed: the user lacks the right, ALTER ROLE … REPLICATION")
    } else {
        None
    };
    shared.lock().watch.log_block_bytes = at(2).parse().unwrap_or(8192);
    Ok(Server { bounded: at(3) != "-1", lacks, keeps_for_standbys: version >= 170_000 })
}

/// Sees to it that the publication is there. Gives whether it was.
pub(crate) fn publish(settings: &Settings, connection: &mut Connection) -> Result<bool, Error> {
    let name = &settings.publication;
    let there = format!("SELECT 1 FROM pg_publication WHERE pubname = {}", literal(name));
    if connection.value(&there)? == "1" {
        return Ok(true);
    }
    let sql = publication(settings);
    match connection.query(&sql, |_, _| {}) {
        // Another Headwater was faster, or another of our threads.
        Err(error) if matches!(&*error.code, "42710" | "23505") => Ok(true),
        Err(error) if !error.is_broken() => {
            let message = format!("{}; whoever may do it has to: {sql}", error.message);
            Err(Error::broken(message))
        }
        other => other.map(|()| false),
    }
}

/// The statement that makes the publication.
pub(crate) fn publication(settings: &Settings) -> String {
    format!(
        "CREATE PUBLICATION {} WITH (publish_via_partition_root = true)",
        quoted_name(&settings.publication)
    )
}

/// One connection, from its beginning to its end.
fn session(shared: &Arc<Shared>, memory: &mut Memory) -> Result<(), Error> {
    let settings = &shared.settings;
    let mut control = Connection::open(&settings.target, false)?;
    control.set_message_bytes_max(shared.room.message_bytes_max());
    control.set_patience(settings.patience)?;
    let server = examine(shared, &mut control)?;
    let way = match (settings.follow, server.lacks) {
        (Follow::Log, Some(lacks)) => return Err(Error::broken(lacks)),
        (Follow::Triggers, _) | (Follow::Auto, Some(_)) => Way::Queue,
        (Follow::Log | Follow::Auto, None) => Way::Log,
    };
    shared.lock().set_way(way);
    if way == Way::Queue {
        return queue::session(shared, control, &mut memory.worked);
    }
    let was_published = publish(settings, &mut control)?;
    let told = signature::install(&mut control, settings)?;
    shared.lock().alterations_told = told;
    let kept = match settings.slot_kind {
        SlotKind::Auto => server.bounded,
        SlotKind::Temporary => false,
        SlotKind::Kept => true,
    };
    let mut log = Connection::open(&settings.target, true)?;
    log.set_message_bytes_max(shared.room.message_bytes_max());
    let (line, same) = identify(shared, &mut log)?;
    if queue::line(&mut control)? != line {
        return Err(Error::broken("the hosts are changing places"));
    }
    let again = match memory.slot.take() {
        Some(slot) if same && was_published => {
            takes_up(shared, &mut control, &slot, memory.process)?.then_some(slot)
        }
        other => {
            memory.slot = other;
            None
        }
    };
    let slot = match again {
        Some(slot) => {
            // What was altered while nobody looked: its words are in the log, but not those of tables that were dropped.
            signature::look(shared, &mut control)?;
            shared.lock().line = Some(line);
            shared.note(
                "log goes on",
                &format!("the slot {slot} was kept, and nothing is loaded again"),
            );
            slot
        }
        None => {
            let failover = kept && server.keeps_for_standbys;
            begin(shared, &mut control, &mut log, memory, (line, kept, failover))?
        }
    };
    let position = shared.lock().position;
    let messages = if told { ", messages 'true'" } else { "" };
    let sql = format!(
        "START_REPLICATION SLOT {} LOGICAL {} (proto_version '1', publication_names {}{messages})",
        quoted_name(&slot),
        show(Position(position)),
        literal(&quoted_name(&settings.publication))
    );
    shared.lock().watch.slot.clone_from(&slot);
    let started = log.copy_both(&sql);
    if kept && started.as_ref().err().is_none_or(Error::is_broken) {
        memory.slot = Some(slot.clone());
        memory.process = log.process();
    }
    started?;
    memory.worked = true;
    up(shared);
    let ended = read(shared, &mut log, &mut control);
    if let Err(error) = &ended
        && !error.is_broken()
        && let Some(slot) = memory.slot.take()
    {
        // What the slot holds cannot be read: it is of no more use.
        shared.note("slot given up", &error.message);
        drop(log);
        let mut control = Connection::open(&settings.target, false)?;
        let _ = drop_slot(&mut control, &slot, memory.process);
    }
    ended
}

/// Which server this is, and which line of its history; and whether what was told before is part of that: everything up to
/// where the log was read.
fn identify(shared: &Shared, log: &mut Connection) -> Result<(Line, bool), Error> {
    let rows = log.rows("IDENTIFY_SYSTEM")?;
    let row = rows.first().cloned().unwrap_or_default();
    let at = |at: usize| row.get(at).cloned().flatten().unwrap_or_default();
    let line = Line { system: at(0), timeline: at(1).parse().unwrap_or(0) };
    let end = position_of(&at(2)).unwrap_or(0);
    let (known, position) = {
        let state = shared.lock();
        (state.line.clone(), state.position)
    };
    let mut same = true;
    if let Some(known) = known {
        if known.system != line.system {
            let why = "the database is another one than before: remove the source and add it again";
            return Err(Error::broken(why));
        }
        same = end >= position;
        if known.timeline != line.timeline {
            // A server that was promoted has the history of the one before up to where it left that.
            let history = match line.timeline {
                0 | 1 => String::new(),
                timeline => {
                    let rows = log.rows(&format!("TIMELINE_HISTORY {timeline}"))?;
                    rows.first().and_then(|row| row.get(1).cloned().flatten()).unwrap_or_default()
                }
            };
            let left = left_at(&history, known.timeline);
            same = same && left.is_some_and(|left| position <= left);
            shared.note(
                "another server",
                &format!(
                    "timeline {} after {}, {}",
                    line.timeline,
                    known.timeline,
                    match same {
                        true => "with all that was read before".to_owned(),
                        false => format!(
                            "which left it at {}; {} had been read: everything is loaded again",
                            left.map_or("an unknown place".to_owned(), |at| show(Position(at))),
                            show(Position(position))
                        ),
                    }
                ),
            );
        }
    }
    Ok((line, same))
}

/// Where a history left a timeline.
fn left_at(history: &str, timeline: u32) -> Option<u64> {
    history.lines().find_map(|line| {
        let mut words = line.split_whitespace();
        let of: u32 = words.next()?.parse().ok()?;
        (of == timeline).then(|| position_of(words.next()?)).flatten()
    })
}

/// Whether a kept slot is there still and holds what is needed.
fn takes_up(
    shared: &Shared,
    control: &mut Connection,
    slot: &str,
    process: u32,
) -> Result<bool, Error> {
    let position = shared.lock().position;
    let sql = format!(
        "SELECT confirmed_flush_lsn <= {} AND coalesce(wal_status, '') <> 'lost' AND plugin = 'pgoutput' \
         AND database = current_database(), \
         CASE WHEN active_pid = {process} THEN pg_terminate_backend(active_pid) END \
         FROM pg_replication_slots WHERE slot_name = {}",
        lsn(position),
        literal(slot)
    );
    let taken = control.value(&sql)? == "t";
    if !taken {
        shared.note("slot lost", &format!("{slot} is gone, or does not hold what is needed"));
    }
    Ok(taken)
}

/// Makes a new slot, and has everything loaded anew.
fn begin(
    shared: &Shared,
    control: &mut Connection,
    log: &mut Connection,
    memory: &mut Memory,
    (line, kept, failover): (Line, bool, bool),
) -> Result<String, Error> {
    let settings = &shared.settings;
    // The name is free, or it is ours from an earlier time.
    let slot = match kept {
        true => settings.slot.clone(),
        false => format!("{}_{:08x}", settings.slot, fastrand::u32(..)),
    };
    memory.slot = None;
    if kept {
        drop_slot(control, &slot, memory.process)?;
    }
    let kind = if kept { "" } else { "TEMPORARY " };
    let options = if failover { "(SNAPSHOT 'export', FAILOVER true)" } else { "EXPORT_SNAPSHOT" };
    let sql =
        format!("CREATE_REPLICATION_SLOT {} {kind}LOGICAL pgoutput {options}", quoted_name(&slot));
    // It waits for the transactions that are under way.
    log.set_patience(Duration::from_secs(600))?;
    let rows = log.rows(&sql)?;
    log.set_patience(settings.patience)?;
    let row = rows.first().cloned().unwrap_or_default();
    let at = |at: usize| row.get(at).cloned().flatten().unwrap_or_default();
    let position = position_of(&at(1)).ok_or_else(|| Error::broken("the slot has no position"))?;
    let sql = format!(
        "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY; SET TRANSACTION SNAPSHOT {}; \
         SELECT pg_current_snapshot()",
        literal(&at(2))
    );
    let base = Snapshot::parse(&control.value(&sql)?);
    control.query("COMMIT", |_, _| {})?;
    let base = base.ok_or_else(|| Error::broken("the slot has no snapshot"))?;
    let mut state = shared.lock();
    state.watch.begin_anew = None;
    // At once: positions of this server are none of the one before.
    state.line = Some(line);
    state.begin_anew(position, base);
    drop(state);
    shared.note(
        "log begun",
        &format!("at {}; what was loaded is loaded again", show(Position(position))),
    );
    Ok(slot)
}

/// Reads the log until something goes wrong, or the source ends.
fn read(shared: &Shared, log: &mut Connection, control: &mut Connection) -> Result<(), Error> {
    log.set_patience(LOOK)?;
    let silence = shared.settings.silence;
    let mut transaction = Transaction::default();
    let mut within = false;
    let (mut heard, mut told) = (Instant::now(), Instant::now());
    let (mut noted, mut silent) = (Instant::now(), false);
    shared.lock().watch.heard = Some(heard);
    loop {
        // The memory bound may be another one by now.
        log.set_message_bytes_max(shared.room.message_bytes_max());
        let more = log.has_more();
        if !more {
            let state = shared.lock();
            if state.stopping {
                return Ok(());
            }
            if let Some(message) = state.watch.begin_anew.clone() {
                // A code, so that the slot is not taken up again.
                return Err(Error { message, code: "HW001".to_owned() });
            }
        }
        let mut reply = told.elapsed() >= STATUS;
        match log.piece(Instant::now() + LOOK)? {
            None => {
                if heard.elapsed() > silence {
                    let why = format!(
                        "the database does not answer: it was heard last {} ms ago or before that (silence-ms)",
                        silence.as_millis()
                    );
                    if heard.elapsed() > silence * SILENCES {
                        return Err(Error::broken(why));
                    }
                    silent = true;
                    shared.lock().set_health(Health::Down(why));
                }
            }
            Some(piece) => {
                heard = Instant::now();
                if std::mem::take(&mut silent) || heard.duration_since(noted) > LOOK {
                    noted = heard;
                    let mut state = shared.lock();
                    state.watch.heard = Some(heard);
                    state.set_health(Health::Up);
                }
                match piece.split_first() {
                    Some((b'w', rest)) => {
                        // Three numbers stand before the message.
                        let bytes = rest.get(24..).unwrap_or_default();
                        match bytes.first() {
                            Some(b'B' | b'C') => match message(bytes) {
                                Some(Message::Begin { xid }) => {
                                    within = true;
                                    transaction.begin(xid);
                                }
                                Some(Message::Commit { end }) if within => {
                                    within = false;
                                    let end = before_head(end, 1 << 63);
                                    if transaction.describes() {
                                        // What it changes is told after what was altered before it.
                                        signature::look_behind(shared, control, transaction.xid)?;
                                    }
                                    signature::look_before(shared, control, end)?;
                                    let more = log.has_more();
                                    let mut state = shared.lock();
                                    // What a slot sends again after a crash was told already.
                                    if end > state.position {
                                        transaction.commit(&mut state, end, more);
                                    }
                                }
                                _ => return Err(Error::broken("a message that is cut short")),
                            },
                            _ => {
                                let most = shared.settings.transaction_bytes_max;
                                let most = shared.room.transaction_bytes_max(most);
                                transaction.push(bytes, most)?;
                            }
                        }
                    }
                    Some((b'k', rest)) => {
                        let (end, asks) = keepalive(rest)?;
                        reply |= asks;
                        let more = log.has_more();
                        if !within {
                            signature::look_before(shared, control, end)?;
                            shared.lock().come_to(end, more);
                        }
                    }
                    _ => return Err(Error::broken("an unknown piece of the log")),
                }
            }
        }
        shared.pass_on();
        if reply {
            told = Instant::now();
            let position = shared.lock().position;
            log.send_piece(&status(position, true))?;
        }
    }
}

/// How far the server is, and whether it asks for an answer.
fn keepalive(rest: &[u8]) -> Result<(u64, bool), Error> {
    let end = rest.first_chunk().map(|bytes| u64::from_be_bytes(*bytes));
    match (end, rest.get(16)) {
        (Some(end), Some(asks)) => Ok((end, *asks != 0)),
        _ => Err(Error::broken("a message that is cut short")),
    }
}

/// That all up to `position` was taken; nothing here outlives a slot, so nothing need be kept longer.
fn status(position: u64, ask: bool) -> Vec<u8> {
    let mut body = vec![b'r'];
    for _ in 0..3 {
        body.extend_from_slice(&position.to_be_bytes());
    }
    // The clock is of no use to the server.
    body.extend_from_slice(&[0; 8]);
    body.push(u8::from(ask));
    body
}
