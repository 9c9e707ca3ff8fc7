//! What shards that keep data write down of a transaction, so that a crash in its middle leaves all of it or nothing.
//!
//! Each shard keeps its own log, and a crash cuts each of them at a moment of its own. So whoever has written its part keeps with it, in
//! the same batch, what the other shards were to do: the requests of their parts, and the answers that have decided how the
//! transaction went on. Whichever part survives, the rest of the transaction is with it, and is done at the next start
//! ([`crate::Redo`]).
//!
//! That is right because a log is lost only from some moment on: where a shard's part is missing, so is everything that came
//! behind it there, and the part is executed on what it would have found. Locks have kept everybody else away
//! from its keys until it was done.
//!
//! ```text
//! record    item:4 step:1   time:8   items:4 item…   decisions:4 { item:4 step:1 answers:4 { bytes } }
//! item      0                        the client's session does it
//!           1 reads writes parts     { shard:2 requests }: none, where the shard has done it, or where it keeps nothing
//!           2 from to if_absent leaves shard:2 shard:2
//!           3 name parts             { shard:2 requests }
//!           4                        the client's session does it before anything behind it is done
//! ```
//!
//! # Cost
//! Of a part's requests, a copy in the log of each other shard that has a part. Nothing where one shard alone writes, and all at once.

use crate::answer::{Answer, answer_of};
use crate::ask::{Requests, put_requests, read_requests};
use crate::merge::Merge;
use crate::pending::Kind;
use crate::program::{Carry, Checked, Combine, Program, Step, StepAsk};
use crate::transaction::{Item, Plan};
use alloc::collections::{BTreeMap, BTreeSet};
use alloc::string::ToString;
use alloc::vec::Vec;
use headwater_base::wire::{WireReader, put_bytes, put_u16, put_u32, put_u64};
use headwater_base::{Millis, Placement, Shard};
use headwater_command::bits::BitOperation;
use headwater_command::{Args, Id, OwnedArgs, Reply, number, table};

/// How far a transaction has come: a round begins with this request (step 0), or so many steps of it are asked.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
pub struct Place {
    /// Which request.
    pub item: u32,
    /// Which of its steps.
    pub step: u8,
}

impl Place {
    /// Behind everything.
    pub const END: Self = Self { item: u32::MAX, step: u8::MAX };
    /// Bytes that it takes at the beginning of a record; records of one transaction are in order by them.
    pub const BYTES: usize = 5;

    fn put(self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.item.to_be_bytes());
        out.push(self.step);
    }

    fn read(bytes: &mut WireReader<'_>) -> Option<Self> {
        let item = (bytes.u32()? as u32).swap_bytes();
        Some(Self { item, step: bytes.u8()? })
    }

    /// That of a record.
    #[must_use]
    pub fn of_record(record: &[u8]) -> Option<Self> {
        Self::read(&mut WireReader::of(record))
    }
}

/// What is written down of a transaction.
#[derive(Clone, PartialEq, Debug)]
pub struct Recording {
    /// The moment from which on keys expire that are to expire in a while.
    pub(crate) time: Millis,
    /// Request and part of what writes something that is kept.
    pub(crate) parts: BTreeSet<(usize, usize)>,
    /// The answers to steps, which decide how it goes on.
    pub(crate) decided: BTreeMap<Place, Vec<Vec<u8>>>,
}

impl Plan {
    /// Has the shards that keep data write down what a crash must not leave by half, where what is kept is written at several, or one after the other: `keeps` says
    /// whether a request does. It is `now`.
    pub fn record(&mut self, placement: &Placement, now: Millis, keeps: impl Fn(Args<'_>) -> bool) {
        if self.reads || self.locks.is_none() {
            return;
        }
        let (mut writers, mut recorded) = (BTreeSet::new(), BTreeSet::new());
        for (at, item) in self.items.iter().enumerate() {
            match item {
                Item::Parts { parts, kind, .. } if kind.writes() => {
                    for (place, (shard, request)) in parts.iter().enumerate() {
                        if keeps(request.args()) {
                            writers.insert(*shard);
                            recorded.insert((at, place));
                        }
                    }
                }
                Item::Program(Program::Carry { from, to, leaves, .. }) => {
                    let rename: OwnedArgs = [&b"RENAME"[..], from, to].into_iter().collect();
                    if keeps(rename.args()) {
                        writers.insert(placement.home(to));
                        writers.extend(leaves.then(|| placement.home(from)));
                    }
                }
                Item::Program(Program::Combine { to, .. }) => {
                    let set: OwnedArgs = [&b"SET"[..], to, b""].into_iter().collect();
                    writers.extend(keeps(set.args()).then(|| placement.home(to)));
                }
                Item::Program(Program::Checked { parts, .. }) => {
                    let kept = parts.iter().filter(|(_, request)| keeps(request.args()));
                    writers.extend(kept.map(|(shard, _)| *shard));
                }
                _ => {}
            }
        }
        // One that writes in several rounds has a batch for each.
        let has_rounds = self.items.len() > 1 && self.needs_rounds();
        if writers.len() > 1 || has_rounds && !writers.is_empty() {
            self.recording =
                Some(Recording { time: now, parts: recorded, decided: BTreeMap::new() });
        }
    }
}

/// The answer to what a key holds, without it.
pub(crate) fn no_value() -> Vec<u8> {
    answer_of(|out| {
        out.array(3);
        out.bulk(b"");
        out.integer(-1);
        out.integer(0);
    })
}

impl Recording {
    /// What the shard of a step keeps; the transaction has come to `place`, and the first request that was not executed is `next`.
    pub(crate) fn write(
        &self,
        items: &[Item],
        (place, next): (Place, usize),
        placement: &Placement,
        step: &Step,
    ) -> Vec<u8> {
        let mut out = Vec::new();
        place.put(&mut out);
        put_u64(&mut out, self.time.0);
        put_u32(&mut out, items.len());
        for (at, item) in items.iter().enumerate() {
            match item {
                Item::Here => out.push(0),
                // What is executed behind it belongs to another round.
                Item::Now => out.push(4),
                Item::Parts { parts, kind, .. } => {
                    out.extend_from_slice(&[1, u8::from(kind.reads()), u8::from(kind.writes())]);
                    put_u32(&mut out, parts.len());
                    for (part, (shard, request)) in parts.iter().enumerate() {
                        let is_done = *shard == step.at && at < next;
                        let is_wanted = self.parts.contains(&(at, part)) && !is_done;
                        self.put_part(&mut out, *shard, is_wanted.then_some(request));
                    }
                }
                Item::Program(Program::Combine { operation, to, from, .. }) => {
                    out.push(5);
                    put_bytes(&mut out, operation.name().as_bytes());
                    put_u32(&mut out, from.len());
                    for key in core::iter::once(to).chain(from) {
                        put_bytes(&mut out, key);
                        put_u16(&mut out, placement.home(key).0.into());
                    }
                }
                Item::Program(Program::Carry { from, to, if_absent, leaves, .. }) => {
                    out.push(2);
                    put_bytes(&mut out, from);
                    put_bytes(&mut out, to);
                    out.extend_from_slice(&[u8::from(*if_absent), u8::from(*leaves)]);
                    for key in [from, to] {
                        put_u16(&mut out, placement.home(key).0.into());
                    }
                }
                Item::Program(Program::Checked { parts, name, .. }) => {
                    out.push(3);
                    put_bytes(&mut out, name);
                    put_u32(&mut out, parts.len());
                    for (shard, request) in parts {
                        self.put_part(&mut out, *shard, Some(request));
                    }
                }
                // It only reads; but a round ends there.
                Item::Program(_) => {
                    out.push(3);
                    put_bytes(&mut out, b"");
                    put_u32(&mut out, 0);
                }
            }
        }
        let puts = matches!(step.ask, StepAsk::Put { .. });
        let elsewhere = no_value();
        put_u32(&mut out, self.decided.len());
        for (decided, answers) in &self.decided {
            decided.put(&mut out);
            put_u32(&mut out, answers.len());
            for answer in answers {
                // The value is where it is put.
                let is_here = puts && decided.item == place.item;
                put_bytes(&mut out, if is_here { &elsewhere } else { answer });
            }
        }
        out
    }

    fn put_part(&self, out: &mut Vec<u8>, shard: Shard, request: Option<&OwnedArgs>) {
        put_u16(out, shard.0.into());
        let requests: Requests = request.map(|it| absolute(it, self.time)).into_iter().collect();
        put_requests(out, &requests);
    }
}

/// A request whose key expires at a moment instead of in a while, counted from `now`; any other as it is.
fn absolute(request: &OwnedArgs, now: Millis) -> OwnedArgs {
    let args = request.args();
    let spec = args.get(0).and_then(table::lookup);
    let moment = |at: usize, unit: i64| {
        let given = args.get(at).and_then(number::parse_i64)?;
        let moment = i64::try_from(now.0).ok()?.checked_add(given.checked_mul(unit)?)?;
        Some(moment.to_string().into_bytes())
    };
    let words = || args.iter().map(<[u8]>::to_vec);
    let told = spec.and_then(|spec| match spec.id {
        Id::Expire | Id::PExpire => {
            let moment = moment(2, if spec.id == Id::Expire { 1000 } else { 1 })?;
            let mut words: Vec<_> = words().collect();
            (words[0], words[2]) = (b"PEXPIREAT".to_vec(), moment);
            Some(words)
        }
        Id::SetEx | Id::PSetEx => {
            let moment = moment(2, if spec.id == Id::SetEx { 1000 } else { 1 })?;
            let [key, value] = [1, 3].map(|at| args.get(at).map(<[u8]>::to_vec));
            Some([b"SET".to_vec(), key?, value?, b"PXAT".to_vec(), moment].into())
        }
        Id::Set | Id::GetEx => {
            let from = if spec.id == Id::Set { 3 } else { 2 };
            let is = |at: usize, word: &[u8]| args.at(at).eq_ignore_ascii_case(word);
            let at = (from..args.len()).find(|&at| is(at, b"ex") || is(at, b"px"))?;
            let moment = moment(at + 1, if is(at, b"ex") { 1000 } else { 1 })?;
            let mut words: Vec<_> = words().collect();
            (words[at], words[at + 1]) = (b"PXAT".to_vec(), moment);
            Some(words)
        }
        _ => None,
    });
    told.map_or_else(|| request.clone(), |words| words.iter().map(Vec::as_slice).collect())
}

/// What a record says.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct Record {
    /// The requests, as far as they matter.
    pub(crate) items: Vec<Item>,
    /// What was decided until then, and when it all was.
    pub(crate) recording: Recording,
    /// Where keys of it lived.
    pub(crate) homes: Vec<(Vec<u8>, Shard)>,
}

impl Record {
    /// Reads what was written; `None`: these bytes were not.
    pub(crate) fn read(record: &[u8]) -> Option<Self> {
        let bytes = &mut WireReader::of(record);
        Place::read(bytes)?;
        let time = Millis(bytes.u64()?);
        let (mut items, mut homes, mut recorded) = (Vec::new(), Vec::new(), BTreeSet::new());
        for at in 0..bytes.u32()? {
            items.push(match bytes.u8()? {
                0 => Item::Here,
                4 => Item::Now,
                1 => {
                    let kind = match (bytes.flag()?, bytes.flag()?) {
                        (true, true) => Kind::Both,
                        (true, false) => Kind::Derived,
                        (false, true) => Kind::Write,
                        (false, false) => Kind::Plain,
                    };
                    let parts = read_parts(bytes)?;
                    let wanted = parts.iter().enumerate();
                    let wanted = wanted.filter(|(_, (_, request))| !request.args().is_empty());
                    recorded.extend(wanted.map(|(part, _)| (at, part)));
                    Item::Parts { merge: Merge::Same, parts, kind }
                }
                2 => {
                    let [from, to] = [bytes.bytes()?, bytes.bytes()?].map(<[u8]>::to_vec);
                    let (if_absent, leaves) = (bytes.flag()?, bytes.flag()?);
                    for key in [&from, &to] {
                        homes.push((key.clone(), Shard(bytes.u16()? as u16)));
                    }
                    let step = Carry::Read;
                    Item::Program(Program::Carry { from, to, if_absent, leaves, step })
                }
                5 => {
                    let operation = BitOperation::named(bytes.bytes()?)?;
                    let mut keys = Vec::new();
                    for _ in 0..=bytes.u32()? {
                        let key = bytes.bytes()?.to_vec();
                        homes.push((key.clone(), Shard(bytes.u16()? as u16)));
                        keys.push(key);
                    }
                    let (to, step) = (keys.remove(0), Combine::Read);
                    Item::Program(Program::Combine { operation, to, from: keys, step })
                }
                3 => {
                    let name = bytes.bytes()?.to_vec();
                    let (parts, merge, step) = (read_parts(bytes)?, Merge::Sum, Checked::Ask);
                    let order = Vec::new();
                    Item::Program(Program::Checked { parts, merge, name, order, step })
                }
                _ => return None,
            });
        }
        let mut decided = BTreeMap::new();
        for _ in 0..bytes.u32()? {
            let place = Place::read(bytes)?;
            let mut answers = Vec::new();
            for _ in 0..bytes.u32()? {
                let answer = bytes.bytes()?;
                answers.push(Answer::whole(answer)?.bytes().to_vec());
            }
            decided.insert(place, answers);
        }
        let recording = Recording { time, parts: recorded, decided };
        bytes.rest().is_empty().then_some(Self { items, recording, homes })
    }

    /// The shards that have a part in it, as far as it says.
    pub(crate) fn shards(&self) -> BTreeSet<Shard> {
        let mut shards: BTreeSet<Shard> = self.homes.iter().map(|(_, shard)| *shard).collect();
        for item in &self.items {
            if let Item::Parts { parts, .. } | Item::Program(Program::Checked { parts, .. }) = item
            {
                shards.extend(parts.iter().map(|(shard, _)| *shard));
            }
        }
        shards
    }
}

fn read_parts(bytes: &mut WireReader<'_>) -> Option<Vec<(Shard, OwnedArgs)>> {
    let mut parts = Vec::new();
    for _ in 0..bytes.u32()? {
        let shard = Shard(bytes.u16()? as u16);
        parts.push((shard, read_requests(bytes)?.pop().unwrap_or_default()));
    }
    Some(parts)
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::string::String;

    #[test]
    fn what_expires_in_a_while_expires_at_a_moment() {
        for (asked, told) in [
            ("SET k v EX 2", "SET k v PXAT 3000"),
            ("set k v nx px 5", "set k v nx PXAT 1005"),
            ("SET k EX", "SET k EX"),
            ("SET k v EXAT 9", "SET k v EXAT 9"),
            ("SETEX k 2 v", "SET k v PXAT 3000"),
            ("psetex k 2 v", "SET k v PXAT 1002"),
            ("GETEX k EX 1", "GETEX k PXAT 2000"),
            ("EXPIRE k 3 NX", "PEXPIREAT k 4000 NX"),
            ("PEXPIRE k -3", "PEXPIREAT k 997"),
            ("PEXPIREAT k 3", "PEXPIREAT k 3"),
            ("EXPIRE k x", "EXPIRE k x"),
            ("SETEX k 9223372036854775807 v", "SETEX k 9223372036854775807 v"),
            ("DEL EX 5", "DEL EX 5"),
        ] {
            let words: OwnedArgs = asked.split(' ').map(str::as_bytes).collect();
            let words = absolute(&words, Millis(1000));
            let words: Vec<_> = words.args().iter().map(String::from_utf8_lossy).collect();
            assert_eq!(words.join(" "), told);
        }
    }
}
