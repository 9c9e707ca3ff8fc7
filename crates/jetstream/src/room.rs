//! What room the servers have for what is appended.
//!
//! A server whose JetStream has no room left takes nothing any more: no record of a log, and no renewal of a lease either, so
//! that nobody could own the shard. Owners are to stop writing before that. A server says how much it has, and may have, at
//! its monitoring address.
//!
//! # Cost
//! A page of each server every other second.

use crate::check::fetch;
use crate::settings::JetStreamSettings;
use serde_json::Value;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

/// How often servers are asked.
const LOOK: Duration = Duration::from_secs(2);
/// Of so many parts of what a server may have one is left for what must go on: renewals, claims, and what was under way.
const RESERVED: u64 = 20;
/// At least, and at most, so many bytes of it are.
const RESERVED_MIN: u64 = 16 << 20;
const RESERVED_MAX: u64 = 1 << 30;

/// What a server may have, and has, in bytes; `None`: it does not say, or there is no limit.
fn figures(page: &str) -> Option<(u64, u64)> {
    let page: Value = serde_json::from_str(page).ok()?;
    let most = page["jetstream"]["config"]["max_storage"].as_u64().filter(|most| *most > 0)?;
    Some((most, page["jetstream"]["stats"]["storage"].as_u64()?))
}

/// Whether a server has too little room, which had too little before or not.
fn is_short((most, has): (u64, u64), before: bool) -> bool {
    let reserved = (most / RESERVED).clamp(RESERVED_MIN, RESERVED_MAX).min(most / 2);
    // What is freed and taken again at the edge is not told each time.
    let wanted = if before { reserved + reserved / 4 } else { reserved };
    most.saturating_sub(has) < wanted
}

/// Stands for what is not known.
const UNKNOWN: u64 = u64::MAX;

/// What room the servers have, as it was seen last.
#[derive(Clone, Debug)]
pub struct RoomSeen(Arc<Room>);

#[derive(Debug)]
struct Room {
    /// Whether some server has too little.
    short: AtomicBool,
    /// The part that the fullest one has left, in millionths.
    left: AtomicU64,
}

impl Default for RoomSeen {
    fn default() -> Self {
        Self(Arc::new(Room { short: AtomicBool::new(false), left: AtomicU64::new(UNKNOWN) }))
    }
}

/// The part of its room that a server has left, in millionths.
fn left((most, has): (u64, u64)) -> u64 {
    u64::try_from(u128::from(most.saturating_sub(has)) * 1_000_000 / u128::from(most.max(1)))
        .unwrap_or(UNKNOWN)
}

impl RoomSeen {
    /// Whether nothing more is to be appended than what must be.
    #[must_use]
    pub fn is_short(&self) -> bool {
        self.0.short.load(Ordering::Relaxed)
    }

    /// The part of its room that the fullest server has left; `None`: no server says what it may have, or there are no monitoring addresses.
    #[must_use]
    pub fn part_left(&self) -> Option<f64> {
        let left = self.0.left.load(Ordering::Relaxed);
        (left != UNKNOWN).then(|| left as f64 / 1e6)
    }

    /// Looks from now on, as long as the process lives. Without monitoring addresses nothing is known, and there is room.
    ///
    /// # Errors
    /// There can be no thread.
    pub(crate) fn watch(settings: &JetStreamSettings) -> std::io::Result<Self> {
        let (seen, addresses) = (Self::default(), settings.monitoring.clone());
        if addresses.is_empty() {
            return Ok(seen);
        }
        let told = seen.clone();
        let look = move || {
            let mut all = vec![(false, UNKNOWN); addresses.len()];
            loop {
                for (address, (short, part)) in addresses.iter().zip(&mut all) {
                    // Who does not answer has what it had.
                    if let Some(known) = fetch(address).ok().and_then(|page| figures(&page)) {
                        (*short, *part) = (is_short(known, *short), left(known));
                    }
                }
                told.0.short.store(all.iter().any(|(short, _)| *short), Ordering::Relaxed);
                let least = all.iter().map(|(_, part)| *part).min().unwrap_or(UNKNOWN);
                told.0.left.store(least, Ordering::Relaxed);
                std::thread::sleep(LOOK);
            }
        };
        std::thread::Builder::new().name(String::from("nats-room")).spawn(look)?;
        Ok(seen)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_server_says_of_its_room() {
        let page = |most: &str, has: u64| {
            format!(
                r#"{{"jetstream":{{"config":{{"max_storage":{most}}},"stats":{{"storage":{has}}}}}}}"#
            )
        };
        assert_eq!(figures(&page("1000", 7)), Some((1000, 7)));
        for none in ["-1", "0", "\"x\"", "null"] {
            assert_eq!(figures(&page(none, 7)), None);
        }
        assert_eq!((figures(""), figures("{}")), (None, None));
    }

    #[test]
    fn a_part_of_the_room_is_left() {
        const GIB: u64 = 1 << 30;
        for (most, reserved) in
            [(GIB / 1024, GIB / 2048), (GIB / 16, 16 << 20), (10 * GIB, GIB / 2), (100 * GIB, GIB)]
        {
            assert!(!is_short((most, most - reserved), false), "{most}");
            assert!(is_short((most, most - reserved + 1), false), "{most}");
            // It takes a little more for it to be enough again.
            assert!(is_short((most, most - reserved), true), "{most}");
            assert!(!is_short((most, most - reserved - reserved / 4), true), "{most}");
        }
        assert!(is_short((100, 1000), false));
        for (figures, millionths) in [
            ((1000, 0), 1_000_000),
            ((1000, 250), 750_000),
            ((100, 1000), 0),
            ((u64::MAX, 0), 1_000_000),
        ] {
            assert_eq!(left(figures), millionths, "{figures:?}");
        }
        assert_eq!(RoomSeen::default().part_left(), None);
    }
}
