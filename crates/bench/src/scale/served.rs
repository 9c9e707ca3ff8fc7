//! Twip on a server with many shards.

use super::{Crossed, Measured};
use crate::experiment::Progress;
use crate::peer::{Launch, System};
use crate::twip::plan::Plan;
use crate::twip::run::Twip;
use crate::wire::{Connection, resp};
use anyhow::Result;

/// One run on a server of its own.
///
/// # Errors
/// The server does not start or answers wrongly.
pub fn run(
    twip: &Twip,
    plan: &Plan,
    launch: &Launch,
    shards: u16,
    pair: usize,
) -> Result<Measured> {
    let arguments = vec![String::from("--shards"), shards.to_string()];
    let launch = Launch { arguments, ..launch.clone() };
    let progress = Progress::new(System::Headwater, pair, twip.common().pairs);
    let mut seen = Vec::new();
    let turn = twip.one(plan, &launch, System::Headwater, pair, &progress, &mut |control| {
        seen.push(look(control)?);
        Ok(())
    })?;
    progress.bar.finish_and_clear();
    let before = seen.first().copied().unwrap_or_default();
    let after = seen.last().copied().unwrap_or_default();
    let crossed = Crossed {
        requests: after.requests - before.requests,
        batches: after.batches - before.batches,
        packets: after.packets - before.packets,
        changes: after.changes - before.changes,
        bytes: after.bytes - before.bytes,
        replica_bytes: after.replica_bytes,
    };
    Ok(Measured { shards, run: turn.run, crossed })
}

/// What INFO tells of the shards.
fn look(control: &mut Connection) -> Result<Crossed> {
    resp::command(&mut control.out, &[b"INFO", b"shards"]);
    control.flush()?;
    let text = String::from_utf8_lossy(resp::string(&mut control.input)?).into_owned();
    let figure = |name: &str| -> u64 {
        let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
        // One shard has none of them.
        line.and_then(|number| number.parse().ok()).unwrap_or(0)
    };
    Ok(Crossed {
        requests: figure("shards_requests_forwarded"),
        batches: figure("shards_batches_sent"),
        packets: figure("shards_packets_sent"),
        changes: figure("shards_changes_sent"),
        bytes: figure("shards_letter_bytes_sent") + figure("shards_data_bytes_sent"),
        replica_bytes: figure("shards_replica_bytes"),
    })
}
