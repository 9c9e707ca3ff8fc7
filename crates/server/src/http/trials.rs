//! Joins that are tried before they are installed: `/v1/joins/try`.
//!
//! A trial is an engine of its own, with the join and nothing else, on a thread that serves nobody. Its tables are loaded from what clients read:
//! each range that it asks for is a `RANGE` in the session of who tries, with that user's rights, wherever the keys live. So the join is parsed,
//! executed and folded by the code that will do so when it is installed, and the shards do nothing but answer reads.
//!
//! # Invariants
//! - T1. A trial looks at [`KEYS_MAX`] keys at most, by [`LOADS_MAX`] reads, and takes [`SLICES_MAX`] slices. What it has then is told, and that it
//!   is not complete.

use super::inner::{InnerReply, InnerSession};
use super::problem::Problem;
use super::ranges::{VALUE_BYTES_MAX, begin_list, entry};
use axum::http::StatusCode;
use headwater_base::KeyRange;
use headwater_base::source::Attributes;
use headwater_engine::{
    Effect, EngineError, FetchId, Loaded, Pair, Position, RangeOptions, Settings, Stop,
    TableOptions,
};
use headwater_node::{DefinitionReach, Node};
use serde_json::{Value, json};
use std::time::Instant;
use tokio::sync::{mpsc, oneshot};

/// Keys that a trial looks at.
const KEYS_MAX: usize = 20_000;
/// Keys of one range that it looks at.
const RANGE_KEYS_MAX: usize = 5000;
/// Bytes of keys and values that it looks at.
const BYTES_MAX: usize = 16 << 20;
/// Ranges that it reads.
const LOADS_MAX: usize = 2000;
/// Slices that it takes, and rows of each.
const SLICES_MAX: usize = 200;
const SLICE_ROWS: usize = 10_000;
/// How long it may compute, in milliseconds.
const MILLISECONDS_MAX: u128 = 3000;
/// Outputs that are told at most.
pub(super) const OUTPUTS_MAX: u64 = 100;
/// What its tables are loaded from.
const SOURCE: &str = "server";

/// A range that a trial wants to look at, and where its keys go.
struct Wanted {
    range: KeyRange,
    answer: oneshot::Sender<Result<Vec<Pair>, Problem>>,
}

/// What a join would give.
#[derive(Debug)]
struct Outcome {
    canonical: String,
    warnings: Vec<String>,
    entries: Vec<Value>,
    is_complete: bool,
}

/// Tries a join: its outputs within its range, as far as `limit`.
pub(super) async fn run(
    session: &mut InnerSession,
    spec: String,
    limit: u64,
) -> Result<Value, Problem> {
    let others = others(session).await?;
    let (asks, mut asked) = mpsc::channel::<Wanted>(1);
    let trial =
        tokio::task::spawn_blocking(move || Trial::begin(&spec, &others, asks)?.finish(limit));
    let (mut keys, mut loads, mut bytes) = (0, 0, 0);
    let mut cut = false;
    while let Some(Wanted { range, answer }) = asked.recv().await {
        loads += 1;
        let left = KEYS_MAX.saturating_sub(keys).min(RANGE_KEYS_MAX);
        if left == 0 || loads > LOADS_MAX || bytes > BYTES_MAX {
            // T1.
            cut = true;
            let _ = answer.send(Ok(Vec::new()));
            continue;
        }
        let read = read(session, &range, left).await;
        if let Ok((pairs, is_whole)) = &read {
            cut |= !is_whole;
            keys += pairs.len();
            bytes += pairs.iter().map(|it| it.key.len() + it.value.len()).sum::<usize>();
        }
        let _ = answer.send(read.map(|(pairs, _)| pairs));
    }
    let outcome = trial.await.map_err(|_| Problem::lost())??;
    Ok(json!({
        "spec": outcome.canonical,
        "warnings": outcome.warnings,
        "entries": outcome.entries,
        "complete": outcome.is_complete && !cut,
        "looked_at": keys,
    }))
}

/// The joins that are installed, which the new one must get along with; none where who tries may not know.
async fn others(session: &mut InnerSession) -> Result<Vec<(String, String)>, Problem> {
    let list = match session.call(&[b"JOIN.LIST"], usize::MAX).await {
        Ok(list) => list,
        Err(problem) if problem.is_about_rights() => return Ok(Vec::new()),
        Err(problem) => return Err(problem),
    };
    let text = |item: &InnerReply, name: &str| {
        let bytes = item.field(name).and_then(InnerReply::bytes).unwrap_or_default();
        String::from_utf8_lossy(bytes).into_owned()
    };
    Ok(list.items().iter().map(|item| (text(item, "name"), text(item, "spec"))).collect())
}

/// The first keys of a range, and whether they are all.
async fn read(
    session: &mut InnerSession,
    range: &KeyRange,
    most: usize,
) -> Result<(Vec<Pair>, bool), Problem> {
    let limit = (most + 1).to_string();
    let words: [&[u8]; 5] = [b"RANGE", &range.first, &range.last, b"LIMIT", limit.as_bytes()];
    session.send(&words).await.map_err(|_| Problem::lost())?;
    let count = begin_list(session).await?;
    let (mut pairs, mut is_whole) = (Vec::with_capacity(count.min(most)), count <= most);
    for _ in 0..count {
        let key = session.next(usize::MAX).await.map_err(|_| Problem::lost())?;
        let value = session.next(VALUE_BYTES_MAX).await.map_err(|_| Problem::lost())?;
        let InnerReply::Bytes(key) = key else { return Err(Problem::lost()) };
        match value {
            InnerReply::Bytes(value) if pairs.len() < most => {
                pairs.push(Pair { key, value, attributes: Attributes::default() });
            }
            // A value that is too long is not looked at.
            _ => is_whole = false,
        }
    }
    Ok((pairs, is_whole))
}

/// A join in an engine of its own.
struct Trial {
    node: Node,
    reach: DefinitionReach,
    canonical: String,
    warnings: Vec<String>,
    asks: mpsc::Sender<Wanted>,
}

fn refused(error: &EngineError) -> Problem {
    Problem::new(StatusCode::BAD_REQUEST, "JOIN", error.to_string())
}

/// The name that it has meanwhile: no join of clients' has it, since names have no spaces.
const NAME: &str = "this join";

fn node() -> Node {
    Node::new(Settings::default())
}

impl Trial {
    fn begin(
        spec: &str,
        others: &[(String, String)],
        asks: mpsc::Sender<Wanted>,
    ) -> Result<Self, Problem> {
        // Beside the others it must read neither itself nor what it may not.
        let mut beside = node();
        for (name, spec) in others {
            // Those that need a function are not known here; what reads them can be tried nevertheless.
            let _ = beside.engine_mut().join_add(name, spec, false);
        }
        let known = beside.engine_mut().join_add(NAME, spec, false).map_err(|it| refused(&it))?;
        let mut node = node();
        node.engine_mut().join_add(NAME, spec, false).map_err(|it| refused(&it))?;
        let reach = node.reach_of_join(spec).unwrap_or_default();
        let options = TableOptions { source: Some(SOURCE.to_owned()), ..TableOptions::default() };
        for range in &reach.reads {
            let name = range.first.split(|&byte| byte == b'|').next().unwrap_or_default();
            node.engine_mut().table_set(name, &options).map_err(|it| refused(&it))?;
        }
        let (canonical, warnings) = (known.canonical, known.warnings);
        Ok(Self { node, reach, canonical, warnings, asks })
    }

    fn finish(mut self, limit: u64) -> Result<Outcome, Problem> {
        let range = self.reach.writes.first().cloned().unwrap_or_else(KeyRange::all);
        let options = RangeOptions { reverse: false, limit: Some(limit) };
        let began = Instant::now();
        self.node.engine_mut().set_slice(Some(SLICE_ROWS));
        let mut entries = Vec::new();
        let mut is_complete = false;
        for _ in 0..SLICES_MAX + LOADS_MAX {
            entries.clear();
            let engine = self.node.engine_mut();
            engine.begin_slice();
            let read = engine.range(&range.first, &range.last, options, &mut |key, value| {
                let value = value.to_vec();
                let told = if value.len() > VALUE_BYTES_MAX {
                    InnerReply::Long(value.len())
                } else {
                    InnerReply::Bytes(value)
                };
                entries.push(entry(key, &told));
            });
            engine.end_slice();
            let ticket = match read {
                Ok(_) => {
                    is_complete = true;
                    break;
                }
                Err(Stop::Wait(ticket)) => ticket,
                Err(Stop::Failed(error)) => return Err(refused(&error)),
            };
            if began.elapsed().as_millis() > MILLISECONDS_MAX {
                break;
            }
            self.node.engine_mut().go_on();
            self.load()?;
            self.node.engine_mut().resume(ticket);
        }
        if !is_complete {
            entries.clear();
        }
        let Self { canonical, warnings, .. } = self;
        Ok(Outcome { canonical, warnings, entries, is_complete })
    }

    /// Loads what was asked for.
    fn load(&mut self) -> Result<(), Problem> {
        for effect in self.node.engine_mut().take_effects() {
            let Effect::Load { fetch, range, .. } = effect else { continue };
            let (answer, answered) = oneshot::channel();
            let wanted = Wanted { range, answer };
            self.asks.blocking_send(wanted).map_err(|_| Problem::lost())?;
            let pairs = answered.blocking_recv().map_err(|_| Problem::lost())??;
            self.loaded(fetch, pairs);
        }
        Ok(())
    }

    fn loaded(&mut self, fetch: FetchId, pairs: Vec<Pair>) {
        self.node
            .engine_mut()
            .loaded(fetch, Ok(Loaded { position: Position(0), pairs, known: None }));
        while self.node.engine().goes_on() {
            self.node.engine_mut().go_on();
        }
    }
}

/// Where in its text a join is wrong, if the refusal says so: a character, counted from 0.
pub(super) fn place(detail: &str) -> Option<usize> {
    let (_, rest) = detail.split_once("column ").or_else(|| detail.split_once("at byte "))?;
    let digits = rest.bytes().take_while(u8::is_ascii_digit).count();
    rest[..digits].parse::<usize>().ok()?.checked_sub(1)
}
