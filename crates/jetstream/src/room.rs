//! Whether the servers have room for what is appended.
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
use std::sync::atomic::{AtomicBool, Ordering};
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

/// Whether some server has too little room, as it was seen last.
#[derive(Clone, Debug, Default)]
pub struct RoomSeen(Arc<AtomicBool>);

impl RoomSeen {
    /// Whether nothing more is to be appended than what must be.
    #[must_use]
    pub fn is_short(&self) -> bool {
        self.0.load(Ordering::Relaxed)
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
            let mut short = vec![false; addresses.len()];
            loop {
                for (address, short) in addresses.iter().zip(&mut short) {
                    // Who does not answer has what it had.
                    if let Some(known) = fetch(address).ok().and_then(|page| figures(&page)) {
                        *short = is_short(known, *short);
                    }
                }
                told.0.store(short.contains(&true), Ordering::Relaxed);
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
    }
}
