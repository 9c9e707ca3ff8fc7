//! Histories: what happens to a store, as data that can be run, shrunk and printed.
//!
//! [`script`] prints a history in the format of the golden scripts (`tests/scripts`), so that a
//! shrunk failure can be pasted there.

use crate::join::Join;
use headwater_script::bytes::escape;
use headwater_script::command::AsOf;

/// What a `set` does to the expiry; moments are given from now on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Until {
    /// The key keeps its expiry.
    Keep,
    /// The key stays.
    Ever,
    /// The key goes after this many milliseconds.
    In(u64),
}

/// One thing that happens.
#[derive(Clone, PartialEq, Eq, Debug)]
#[expect(missing_docs, reason = "the fields are the operations' operands, by name")]
#[expect(
    clippy::large_enum_variant,
    reason = "a history has a few hundred operations, and few joins"
)]
pub enum Op {
    Set {
        key: Vec<u8>,
        value: Vec<u8>,
        until: Until,
    },
    Append {
        key: Vec<u8>,
        tail: Vec<u8>,
    },
    Remove {
        key: Vec<u8>,
    },
    /// Sets (in so many milliseconds) or clears the expiry.
    Expire {
        key: Vec<u8>,
        after: Option<u64>,
    },
    Advance {
        millis: u64,
    },
    RemoveRange {
        first: Vec<u8>,
        last: Vec<u8>,
    },
    Flush,
    /// Adds to the number that a key holds.
    Incr {
        key: Vec<u8>,
        by: i64,
    },
    /// Gives a key the value of another one.
    Copy {
        from: Vec<u8>,
        to: Vec<u8>,
        replace: bool,
    },
    /// Moves a value to another key.
    Rename {
        from: Vec<u8>,
        to: Vec<u8>,
    },
    /// Gives several keys values, all or none.
    SetAll {
        pairs: Vec<(Vec<u8>, Vec<u8>)>,
    },
    /// Removes several keys, all or none.
    RemoveAll {
        keys: Vec<Vec<u8>>,
    },
    /// What follows is one transaction.
    Multi,
    /// It has ended.
    Exec,
    /// Evicts so many ranges, from the one that `draw` names on.
    Evict {
        draw: u64,
        count: u64,
    },
    /// Moves the values of so many keys to other places in memory.
    Compact {
        keys: usize,
    },
    JoinAdd {
        name: String,
        join: Join,
        replace: bool,
    },
    /// A text that is damaged: it must be refused, or have no effect once dropped.
    JoinText {
        text: String,
    },
    JoinDrop {
        name: String,
    },
    TableSet {
        name: Vec<u8>,
        boundary: usize,
    },
    Get {
        key: Vec<u8>,
    },
    /// Asks when the key expires.
    Expiry {
        key: Vec<u8>,
    },
    Range {
        first: Vec<u8>,
        last: Vec<u8>,
        reverse: bool,
        limit: Option<u64>,
    },
    Verify {
        first: Vec<u8>,
        last: Vec<u8>,
    },
    Scan {
        count: usize,
    },
    /// One step of a scan that goes on while other things happen.
    ScanStep {
        count: usize,
    },
    Watch {
        key: Vec<u8>,
    },
    /// Asks of every watched key whether it has changed.
    Watched,
    /// Ends all watches.
    Unwatch,
    /// A follower is to be told of each change in a range.
    Follow {
        by: u32,
        first: Vec<u8>,
        last: Vec<u8>,
    },
    /// It is told no more of changes in a range.
    Unfollow {
        by: u32,
        first: Vec<u8>,
        last: Vec<u8>,
    },
    Explain {
        first: Vec<u8>,
        last: Vec<u8>,
    },
    /// So many bytes may be taken beside the empty engine, and what goes where that is not enough.
    Bound {
        bytes: usize,
        policy: &'static str,
    },
    /// There is a disk of so many bytes to spill to.
    Spill {
        bytes: u64,
    },
    /// The process is killed, and begins again with what its store has kept.
    Crash,
    StreamAppend {
        key: Vec<u8>,
        tail: Vec<u8>,
    },
    /// Reads a stream; `at` names one of the offsets up to its end.
    StreamRead {
        key: Vec<u8>,
        at: u64,
        count: u64,
    },
    /// Lets go of what lies before an offset, named as for a read.
    StreamTrim {
        key: Vec<u8>,
        at: u64,
    },
    /// Asks for a stream's start and end.
    StreamInfo {
        key: Vec<u8>,
    },
    /// The table's base data is kept by a source.
    Source {
        table: Vec<u8>,
        source: String,
    },
    /// A key changes at a source.
    AtSource {
        source: String,
        key: Vec<u8>,
        value: Option<Vec<u8>>,
    },
    /// A source tells of some of its changes.
    Tell {
        source: String,
        most: usize,
    },
    /// A source never tells of its other changes, and says so.
    Lose {
        source: String,
    },
    /// A source answers one of its open loads.
    Answer {
        source: String,
        load: usize,
        as_of: AsOf,
    },
    /// A source fails to answer one of its open loads.
    Fail {
        source: String,
        load: usize,
    },
}

/// One operation as a line of a golden script. (Scripts have no words for memory bounds, disks, crashes and streams: such a
/// history is read, and run again by its seed.)
#[must_use]
pub fn line(op: &Op) -> String {
    let two = |word: &str, a: &[u8], b: &[u8]| format!("{word} {} {}", escape(a), escape(b));
    let one = |word: &str, a: &[u8]| format!("{word} {}", escape(a));
    match op {
        Op::Set { key, value, until } => {
            let until = match until {
                Until::Keep => String::from(" keep"),
                Until::Ever => String::new(),
                Until::In(millis) => format!(" ttl {millis}"),
            };
            two("set", key, value) + &until
        }
        Op::Append { key, tail } => two("append", key, tail),
        Op::Remove { key } => one("del", key),
        Op::Expire { key, after: Some(millis) } => one("expire", key) + &format!(" {millis}"),
        Op::Expire { key, after: None } => one("persist", key),
        Op::Advance { millis } => format!("advance {millis}"),
        Op::RemoveRange { first, last } => two("delrange", first, last),
        Op::Flush => String::from("flush"),
        Op::Incr { key, by } => one("incr", key) + &format!(" {by}"),
        Op::Copy { from, to, replace } => {
            two("copy", from, to) + if *replace { " replace" } else { "" }
        }
        Op::Rename { from, to } => two("rename", from, to),
        Op::SetAll { pairs } => {
            let pairs = pairs.iter().map(|(key, value)| two("", key, value));
            String::from("mset") + &pairs.collect::<String>()
        }
        Op::RemoveAll { keys } => {
            String::from("mdel") + &keys.iter().map(|key| one("", key)).collect::<String>()
        }
        Op::Multi => String::from("multi"),
        Op::Exec => String::from("exec"),
        Op::Compact { keys } => format!("compact {keys}"),
        Op::Evict { draw, count } => format!("evict {count} from {draw}"),
        Op::JoinAdd { name, join, replace } => {
            format!("{} {name}: {join}", if *replace { "replace" } else { "join" })
        }
        Op::JoinText { text } => format!("join damaged: {}", text.escape_default()),
        Op::JoinDrop { name } => format!("drop {name}"),
        Op::TableSet { name, boundary } => one("table", name) + &format!(" boundary {boundary}"),
        Op::Get { key } => one("get", key),
        Op::Expiry { key } => one("ttl", key),
        Op::Range { first, last, reverse, limit } => {
            let rev = if *reverse { " rev" } else { "" };
            let limit = limit.map(|limit| format!(" limit {limit}")).unwrap_or_default();
            two("range", first, last) + rev + &limit
        }
        Op::Verify { first, last } => two("verify", first, last),
        Op::Scan { .. } | Op::ScanStep { .. } => String::from("scan"),
        Op::Watch { key } => one("watch", key),
        Op::Watched => String::from("watched"),
        Op::Unwatch => String::from("unwatch"),
        Op::Follow { by, first, last } => two(&format!("follow {by}"), first, last),
        Op::Unfollow { by, first, last } => two(&format!("unfollow {by}"), first, last),
        Op::Explain { first, last } => two("explain", first, last),
        Op::Bound { bytes, policy } => format!("bound {bytes} {policy}"),
        Op::Spill { bytes } => format!("spill {bytes}"),
        Op::Crash => String::from("crash"),
        Op::StreamAppend { key, tail } => two("stream append", key, tail),
        Op::StreamRead { key, at, count } => one("stream read", key) + &format!(" {at} {count}"),
        Op::StreamTrim { key, at } => one("stream trim", key) + &format!(" {at}"),
        Op::StreamInfo { key } => one("stream info", key),
        Op::Source { table, source } => one("table", table) + &format!(" source {source}"),
        Op::AtSource { source, key, value: Some(value) } => {
            two(&format!("at {source} set"), key, value)
        }
        Op::AtSource { source, key, value: None } => one(&format!("at {source} del"), key),
        Op::Tell { source, most: usize::MAX } => format!("deliver {source}"),
        Op::Tell { source, most } => format!("deliver {source} {most}"),
        Op::Lose { source } => format!("lose {source}"),
        Op::Answer { source, load, as_of: AsOf::Late(n) } => {
            format!("answer {source} load {load} late {n}")
        }
        Op::Answer { source, load, as_of: AsOf::Ahead(n) } => {
            format!("answer {source} load {load} ahead {n}")
        }
        Op::Fail { source, load } => format!("fail {source} broken load {load}"),
    }
}

/// A whole history as a golden script without its expected output.
#[must_use]
pub fn script(ops: &[Op]) -> String {
    ops.iter().map(|op| line(op) + "\n").collect()
}
