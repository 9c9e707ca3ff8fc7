//! The source as the rest of Headwater sees it.

use crate::mapping::{self, Words};
use crate::pool::{Side, before_head};
use crate::settings::Settings;
use crate::state::{Shared, Way};
use crate::terms::Terms;
use crate::work::Work;
use crate::{follow, pool, watch};
use headwater_base::KeyRange;
use headwater_base::source::{Change, FetchId, News, Portion, Position, Sink, Source};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// PostgreSQL as a source. It ends, and gives its slot up, when dropped.
pub struct Postgres {
    shared: Arc<Shared>,
}

/// How long its end may take.
const END_MAX: Duration = Duration::from_millis(500);

/// Makes a source of the database at `url`, which connects by itself and tells `sink`.
///
/// # Errors
/// The URL or an option is none, or the system gives no threads. That the database is not there is no error but
/// news.
pub fn connect(
    name: &str,
    url: &str,
    options: &[(String, String)],
    sink: Arc<dyn Sink>,
) -> Result<Postgres, String> {
    connect_for(name, url, options, &Terms::default(), sink)
}

/// As [`connect`], for somebody who may do what these terms say.
///
/// # Errors
/// As there, or the terms forbid what the URL names.
pub fn connect_for(
    name: &str,
    url: &str,
    options: &[(String, String)],
    terms: &Terms,
    sink: Arc<dyn Sink>,
) -> Result<Postgres, String> {
    let settings = Settings::read_for(name, url, options, terms)?;
    let connections = settings.connections;
    let shared = Arc::new(Shared::new(settings, sink));
    let spawn = |name: &str, body: fn(&Arc<Shared>)| {
        let shared = Arc::clone(&shared);
        let thread = std::thread::Builder::new().name(name.to_owned());
        thread.spawn(move || body(&shared)).map_err(|error| format!("no thread: {error}"))
    };
    let source = Postgres { shared: Arc::clone(&shared) };
    spawn("pg-follow", follow::run)?;
    spawn("pg-watch", watch::run)?;
    for _ in 0..connections {
        spawn("pg-load", pool::load)?;
    }
    Ok(source)
}

/// Reads `0/16B3748`.
pub(crate) fn position_of(text: &str) -> Option<u64> {
    let (high, low) = text.trim().split_once('/')?;
    let part = |text: &str| {
        let digits =
            (1..=8).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_hexdigit());
        digits.then(|| u64::from_str_radix(text, 16).ok()).flatten()
    };
    Some(part(high)? << 32 | part(low)?)
}

/// Writes `0/16B3748`.
pub(crate) fn show(position: Position) -> String {
    format!("{:X}/{:X}", position.0 >> 32, position.0 & 0xFFFF_FFFF)
}

impl std::fmt::Debug for Postgres {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.debug_struct("Postgres")
            .field("settings", &self.shared.settings)
            .finish_non_exhaustive()
    }
}

impl Postgres {
    /// The words of a mapping; where they are none, that is the answer to the request.
    fn words(&self, request: u64, mapping: &[(String, String)]) -> Option<Words> {
        let words = mapping::words(mapping).map_err(|why| {
            let mut state = self.shared.lock();
            state.tell(News::Declared { request, answer: Err(why) });
            self.shared.wake(&state, Side::Load);
        });
        words.ok()
    }
}

impl Source for Postgres {
    fn declare(&mut self, request: u64, prefix: &[u8], mapping: &[(String, String)]) {
        let Some(words) = self.words(request, mapping) else { return };
        let generation = self.shared.lock().declare(prefix, words);
        self.shared.queue(Work::Declare { request, prefix: prefix.to_vec(), generation });
    }

    fn examine(&mut self, request: u64, mapping: &[(String, String)]) {
        if let Some(words) = self.words(request, mapping) {
            self.shared.queue(Work::Examine { request, words });
        }
    }

    fn withdraw(&mut self, prefix: &[u8]) {
        let mut state = self.shared.lock();
        state.tables.remove(prefix);
        state.plans.clear();
    }

    fn load(&mut self, fetch: FetchId, range: &KeyRange, portion: Portion) {
        let deadline = Instant::now() + self.shared.settings.patience;
        let mut state = self.shared.lock();
        state.load(fetch, range, portion, deadline);
        self.shared.wake(&state, Side::Load);
    }

    fn unfollow(&mut self, range: &KeyRange) {
        let mut state = self.shared.lock();
        let Some((prefix, _)) = state.table_of(&range.first) else { return };
        let prefix = prefix.clone();
        if let Some(table) = state.tables.get_mut(&prefix) {
            table.followed.remove(range);
        }
    }

    fn position(&mut self, request: u64) {
        self.shared.queue(Work::Position { request });
    }

    fn write(&mut self, request: u64, changes: &[Change]) {
        self.shared.queue(Work::Write { request, changes: changes.to_vec() });
    }

    fn parse_position(&self, text: &[u8]) -> Result<Position, String> {
        let position = std::str::from_utf8(text).ok().and_then(position_of).ok_or(
            "a position is a location in the database's log, like 0/16B3748, as pg_current_wal_lsn() gives it",
        )?;
        let mut state = self.shared.lock();
        if state.way == Some(Way::Queue) {
            // Whoever knows it has seen what was committed there: all that was so until now will do.
            let location = state.after_now();
            return Ok(state.position_at(location));
        }
        let location = before_head(position, state.watch.log_block_bytes);
        if state.alterations_told || state.given == Some(position) {
            return Ok(state.position_at(location));
        }
        // What was altered before there may have left nothing in the log.
        let after = state.after_look(location);
        let is_marked =
            after == location || state.jobs.iter().any(|job| matches!(job.work, Work::Mark));
        let at = state.position_at(after);
        drop(state);
        if !is_marked {
            self.shared.queue(Work::Mark);
        }
        Ok(at)
    }

    fn show_position(&self, position: Position) -> String {
        show(Position(self.shared.lock().location(position)))
    }

    fn set_memory_bound(&mut self, bytes: Option<u64>) {
        self.shared.room.set_bound(bytes);
    }

    fn facts(&self) -> Vec<(&'static str, String)> {
        let state = self.shared.lock();
        let watch = &state.watch;
        let way = match state.way {
            Some(Way::Log) => "log",
            Some(Way::Queue) => "triggers",
            None => "unknown",
        };
        vec![
            ("follow", way.to_owned()),
            ("publication", self.shared.settings.publication.clone()),
            ("slot", watch.slot.clone()),
            (
                "seconds_since_heard",
                watch
                    .heard
                    .map_or(String::new(), |at| format!("{:.3}", at.elapsed().as_secs_f64())),
            ),
            ("alterations", (if state.alterations_told { "told" } else { "looked at" }).to_owned()),
            ("lag_bytes", watch.behind_bytes.to_string()),
            ("slot_retained_bytes", watch.retained_bytes.to_string()),
            ("lag_bytes_max", self.shared.settings.lag_bytes_max.to_string()),
            ("reconnections", watch.reconnections.to_string()),
            ("resets", watch.resets.to_string()),
            ("transactions", watch.transactions.to_string()),
            ("changes", watch.changes.to_string()),
            ("loads", watch.loads.to_string()),
            ("loads_failed", watch.loads_failed.to_string()),
            ("loads_again", watch.loads_again.to_string()),
            ("loads_together", watch.loads_together.to_string()),
            ("rows_loaded", watch.rows.to_string()),
            ("rows_without_key", watch.rows_without_key.to_string()),
        ]
    }
}

impl Drop for Postgres {
    fn drop(&mut self) {
        self.shared.lock().stopping = true;
        self.shared.wake_all();
        // The thread that reads the log drops the slot; but it may wait for the one that drops us.
        let until = Instant::now() + END_MAX;
        while !self.shared.lock().ended && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn positions() {
        assert_eq!(position_of("16/B374D848"), Some(0x16_B374_D848));
        assert_eq!(show(Position(0x16_B374_D848)), "16/B374D848");
        for wrong in ["", "16", "16/", "/1", "x/1", "1/+1", "1/123456789"] {
            assert_eq!(position_of(wrong), None, "{wrong}");
        }
        assert_eq!(before_head(8192 * 3 + 24, 8192), 8192 * 3);
        assert_eq!(before_head(8192 * 3 + 48, 8192), 8192 * 3 + 48);
    }
}
