//! The thread that looks after things from time to time: how far the log is read, whether tables were altered, and that
//! what waits for the log gets it.
//!
//! Where nobody tells of alterations (see `signature`) the catalog is looked at every second; and tables that were altered are
//! compared again here.

use crate::declare;
use crate::mapping::{Words, literal};
use crate::pool::{before_head, mark};
use crate::signature;
use crate::snapshot::Snapshot;
use crate::source::position_of;
use crate::state::{Shared, TableReadiness, Way};
use crate::wire::{Connection, Error};
use headwater_base::source::Health;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How often the catalog and the slot are looked at.
const LOOK: Duration = Duration::from_secs(1);
/// How often loads are looked at that wait for the log, and how long they may before the log is moved on.
const NUDGE: Duration = Duration::from_millis(10);

/// Looks until the source ends.
pub(crate) fn run(shared: &Arc<Shared>) {
    let mut connection = None;
    let mut broke: Option<Vec<u8>> = None;
    let mut looked: Option<Instant> = None;
    let mut seen: Option<(Instant, u64)> = None;
    while shared.pause(NUDGE) {
        let nudge = shared.lock().waits_for_log(NUDGE);
        let asked = std::mem::take(&mut shared.lock().look);
        let look = asked || looked.is_none_or(|looked| looked.elapsed() >= LOOK);
        if !nudge && !look || shared.lock().health != Health::Up {
            continue;
        }
        let mut turn = || -> Result<(), Error> {
            if connection.is_none() {
                let mut opened = Connection::open(&shared.settings.target, false)?;
                opened.set_message_bytes_max(shared.room.message_bytes_max());
                // What waits for others ends there before the connection is taken for broken.
                let patience = shared.settings.patience;
                opened.set_patience(patience + Duration::from_secs(1))?;
                let millis = patience.as_millis();
                let sql = format!("SET statement_timeout = {millis}; SET lock_timeout = {millis}");
                opened.query(&sql, |_, _| {})?;
                connection = Some(opened);
            }
            let connection = connection.as_mut().ok_or_else(|| Error::broken("no connection"))?;
            if look {
                looked = Some(Instant::now());
                let way = shared.lock().way.unwrap_or(Way::Log);
                if way == Way::Log {
                    slot(shared, connection, &mut seen)?;
                }
                tables(shared, connection, way, &mut broke)?;
            }
            if nudge {
                mark(connection)?;
            }
            Ok(())
        };
        let outcome = turn();
        shared.pass_on();
        if outcome.is_err_and(|error| error.is_broken()) {
            connection = None;
            shared.pause(Duration::from_millis(100));
        }
    }
}

/// Looks at the slot and at where the log ends.
fn slot(
    shared: &Shared,
    connection: &mut Connection,
    seen: &mut Option<(Instant, u64)>,
) -> Result<(), Error> {
    let (name, position) = {
        let state = shared.lock();
        (state.watch.slot.clone(), state.position)
    };
    let rows = connection.rows(&format!(
        "SELECT pg_current_wal_insert_lsn(), pg_current_snapshot(), \
         (SELECT restart_lsn FROM pg_replication_slots WHERE slot_name = {}), {}",
        literal(&name),
        signature::installed_sql(&shared.settings)
    ))?;
    let row = rows.first().cloned().unwrap_or_default();
    let at = |at: usize| row.get(at).cloned().flatten().unwrap_or_default();
    let end = position_of(&at(0)).unwrap_or(0);
    let snapshot = Snapshot::parse(&at(1)).unwrap_or_default();
    let mut state = shared.lock();
    let end = before_head(end, state.watch.log_block_bytes);
    state.watch.behind_bytes = end.saturating_sub(state.position);
    let retained = position_of(&at(2)).map_or(0, |restart| end.saturating_sub(restart));
    state.watch.retained_bytes = retained;
    state.near = state.near.max(snapshot.next);
    if retained > shared.settings.lag_bytes_max {
        let why = format!(
            "the slot held back {retained} bytes of the log, more than lag-bytes-max: everything is loaded again"
        );
        state.watch.begin_anew.get_or_insert(why);
    }
    // Somebody may have dropped it.
    state.alterations_told &= at(3) == "t";
    // Loads that began before that look may have older snapshots.
    match *seen {
        Some((when, oldest)) if state.oldest_load().is_none_or(|begun| begun > when) => {
            state.told.forget_before(oldest);
            *seen = Some((Instant::now(), snapshot.oldest));
        }
        Some(_) => {}
        None => *seen = Some((Instant::now(), snapshot.oldest)),
    }
    // The end of the log may wait in memory for somebody to write it.
    let stuck = state.position == position && end > position;
    drop(state);
    if stuck {
        mark(connection)?;
    }
    Ok(())
}

/// A table to compare.
struct Looked {
    prefix: Vec<u8>,
    generation: u64,
    words: Words,
    standing: TableReadiness,
}

/// Compares tables with the catalog where they were altered, or could not be compared yet. `broke`: the table whose comparison broke the
/// connection last; those behind it come first, or one table could keep all others from being compared.
fn tables(
    shared: &Shared,
    connection: &mut Connection,
    way: Way,
    broke: &mut Option<Vec<u8>>,
) -> Result<(), Error> {
    signature::look(shared, connection)?;
    let mut tables: Vec<_> = {
        let state = shared.lock();
        let looked = state.tables.iter();
        let looked = looked.filter(|(_, table)| {
            !matches!(table.standing, TableReadiness::Asked | TableReadiness::Ready(_))
        });
        looked
            .map(|(prefix, table)| Looked {
                prefix: prefix.clone(),
                generation: table.generation,
                words: table.words.clone(),
                standing: table.standing.clone(),
            })
            .collect()
    };
    let before = |looked: &Looked| broke.as_ref().is_some_and(|broke| looked.prefix <= *broke);
    tables.sort_by_key(|looked| (before(looked), looked.prefix.clone()));
    for Looked { prefix, generation, words, standing } in tables {
        let settings = &shared.settings;
        let standing = match declare::check(connection, settings, way, &prefix, &words) {
            Ok((ready, _)) => TableReadiness::Ready(Arc::new(ready)),
            Err(error) if error.is_broken() => {
                *broke = Some(prefix);
                return Err(error);
            }
            // It is compared when it is looked at the next time.
            Err(error) if error.is_passing() => continue,
            Err(error) => match standing {
                TableReadiness::Broken(reason) if reason == error.message => continue,
                _ => TableReadiness::Broken(error.message),
            },
        };
        shared.lock().set_standing(&prefix, generation, standing);
        shared.wake_all();
    }
    Ok(())
}
