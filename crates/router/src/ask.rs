//! What one shard asks another to do for a client, as bytes.
//!
//! Frames follow one another: a length, then what is asked. Requests of one session to one shard are executed in their order, and
//! each is answered once, by its id. The format has no version of its own: a link between processes tells the version of
//! both sides when it begins.
//!
//! # Invariants
//! - F1. Bytes that are no frame are refused, and nothing is read beyond their end; what a frame promises to have, it has, and nothing else.
//!
//! # Cost
//! A request is copied once as it is written; its arguments are read where they lie.

use crate::items::{put_item_command, read_item_command};
use crate::locks::{LockSet, TransactionId};
use crate::purpose::PutPurpose;
use alloc::vec::Vec;
use headwater_base::placement::Partition;
use headwater_base::wire::{WireReader, put_bytes, put_u16, put_u32, put_u64};
use headwater_base::{Millis, Shard};
use headwater_command::items::ItemCommand;
use headwater_command::table::spec_of;
use headwater_command::{ArgVec, Args, OwnedArgs, Span, Spec};

/// How a client keeps copies of what it reads, which the home of the keys must know.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
pub enum Copies {
    /// It keeps none of which it wants to be told.
    #[default]
    None,
    /// It is told of all keys of its prefixes.
    Broadcast,
    /// The keys that it reads are to be remembered.
    Keys,
}

/// What every request tells.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct AskHeader {
    /// Names the request among those of its session.
    pub id: u64,
    /// How the client keeps copies.
    pub copies: Copies,
    /// Whether the answer is to tell the digests of the shard's transactions.
    pub wants_digests: bool,
    /// Its client stays where all clients together take too much.
    pub no_evict: bool,
    /// The digest of the placement by which it was sent there.
    pub placement: u64,
    /// How far each shard must have come, by the shard that executes this, before it reads what is derived; empty: no matter.
    pub after: Vec<u64>,
    /// What a shard that keeps data is to keep with what the request writes ([`crate::Transaction::record_of`]), and the number of
    /// its transaction among those of which something is kept.
    pub record: Option<(u64, Vec<u8>)>,
    /// The client's user, where shards in other processes are to know whose definition it is, or what may be shown of one.
    pub user: Option<Vec<u8>>,
}

/// What requests need besides their locks.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Budget {
    /// Bytes of memory that they may take.
    pub bytes: u64,
    /// One of them may need more memory.
    pub denies_oom: bool,
    /// One of them writes to the store, and not by removing alone.
    pub stores: bool,
}

/// A value that another key had, with what belongs to it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PutValue<'a> {
    /// Where it goes.
    pub key: &'a [u8],
    /// Its bytes.
    pub value: &'a [u8],
    /// When it expires, if it does.
    pub expires: Option<Millis>,
    /// The flags that clients keep beside it.
    pub flags: u32,
    /// Only where the key holds nothing.
    pub if_absent: bool,
    /// What it is put for.
    pub purpose: PutPurpose,
}

/// Requests as their clients sent them, in order.
pub type Requests = Vec<OwnedArgs>;

/// What a shard is asked.
#[derive(Clone, PartialEq, Debug)]
pub enum Ask<'a> {
    /// To execute a command; its arguments begin with its name.
    Command(&'static Spec, Args<'a>),
    /// To execute a transaction all of whose keys live there, unless a watched key has changed: an array of answers, or nothing.
    Exec(Requests),
    /// To let nobody else at these partitions, and to find out whether its part of the transaction would be done: OK, nothing
    /// where a watched key has changed, a number of keys that are in the way, or an error.
    Lock {
        /// Which transaction.
        transaction: TransactionId,
        /// What nobody else may touch.
        set: LockSet,
        /// Whether keys that are watched there for the client are to be looked at.
        watches: bool,
        /// Milliseconds that this may take.
        wait: u64,
        /// What its requests need.
        budget: Budget,
        /// Requests that must be refused now, if at all.
        prepare: Requests,
    },
    /// To execute a part of a transaction that has locked: an array of answers.
    Execute {
        /// Which transaction.
        transaction: TransactionId,
        /// All shards that have a part in it.
        shards: Vec<Shard>,
        /// No further part comes: the locks are given back behind it.
        last: bool,
        /// The requests.
        requests: Requests,
    },
    /// To give locks back; what was prepared will not be done.
    Release {
        /// Which transaction.
        transaction: TransactionId,
        /// What was prepared.
        prepared: Requests,
    },
    /// What a key holds, as value, expiry (or -1) and flags; nothing, where it holds nothing.
    Carry {
        /// The key.
        key: &'a [u8],
        /// It will be removed.
        leaves: bool,
    },
    /// To give a key what another one had: OK, or 0 where it stays as it is.
    Put(PutValue<'a>),
    /// To do something about items ([`crate::items`]).
    Item(ItemCommand<'a>),
}

mod kind {
    pub(super) const COMMAND: u8 = 0;
    pub(super) const EXEC: u8 = 1;
    pub(super) const LOCK: u8 = 2;
    pub(super) const EXECUTE: u8 = 3;
    pub(super) const RELEASE: u8 = 4;
    pub(super) const CARRY: u8 = 5;
    pub(super) const PUT: u8 = 6;
    pub(super) const ITEM: u8 = 7;
}

/// What the byte of copies tells besides.
const WANTS_DIGESTS: u8 = 0x80;
const HAS_RECORD: u8 = 0x40;
const NO_EVICT: u8 = 0x20;
const HAS_USER: u8 = 0x10;
/// What stands for no expiry.
const NEVER: u64 = u64::MAX;
/// Bytes of a frame's length.
const LENGTH: usize = 4;

fn put_args(out: &mut Vec<u8>, args: Args<'_>) {
    put_u32(out, args.len());
    args.iter().for_each(|arg| put_u32(out, arg.len()));
    args.iter().for_each(|arg| out.extend_from_slice(arg));
}

pub(crate) fn put_requests(out: &mut Vec<u8>, requests: &Requests) {
    put_u32(out, requests.len());
    requests.iter().for_each(|request| put_args(out, request.args()));
}

fn put_transaction(out: &mut Vec<u8>, transaction: TransactionId) {
    put_u16(out, usize::from(transaction.coordinator.0));
    put_u64(out, transaction.number);
}

/// Writes a frame with what `body` writes.
fn frame(out: &mut Vec<u8>, body: impl FnOnce(&mut Vec<u8>)) {
    let start = out.len();
    out.extend_from_slice(&[0; LENGTH]);
    body(out);
    let len = (out.len() - start - LENGTH) as u32;
    out[start..start + LENGTH].copy_from_slice(&len.to_le_bytes());
}

/// Writes a request behind what `out` has.
pub fn write_ask(header: &AskHeader, ask: &Ask<'_>, out: &mut Vec<u8>) {
    frame(out, |out| {
        put_u64(out, header.id);
        let digests = if header.wants_digests { WANTS_DIGESTS } else { 0 };
        let record = if header.record.is_some() { HAS_RECORD } else { 0 };
        let no_evict = if header.no_evict { NO_EVICT } else { 0 };
        let user = if header.user.is_some() { HAS_USER } else { 0 };
        out.push(header.copies as u8 | digests | record | no_evict | user);
        put_u64(out, header.placement);
        put_u16(out, header.after.len());
        header.after.iter().for_each(|&position| put_u64(out, position));
        if let Some((number, record)) = &header.record {
            put_u64(out, *number);
            put_bytes(out, record);
        }
        if let Some(user) = &header.user {
            put_bytes(out, user);
        }
        write_body(ask, out);
    });
}

fn write_body(ask: &Ask<'_>, out: &mut Vec<u8>) {
    match ask {
        Ask::Command(spec, args) => {
            out.push(kind::COMMAND);
            put_u16(out, spec.id as usize);
            put_args(out, *args);
        }
        Ask::Exec(requests) => {
            out.push(kind::EXEC);
            put_requests(out, requests);
        }
        Ask::Lock { transaction, set, watches, wait, budget, prepare } => {
            out.push(kind::LOCK);
            put_transaction(out, *transaction);
            match set {
                LockSet::All => out.push(0),
                LockSet::Of(partitions) => {
                    out.push(1);
                    put_u32(out, partitions.len());
                    partitions.iter().for_each(|partition| put_u16(out, partition.0.into()));
                }
            }
            out.push(u8::from(*watches));
            put_u64(out, *wait);
            put_u64(out, budget.bytes);
            out.push(u8::from(budget.denies_oom));
            out.push(u8::from(budget.stores));
            put_requests(out, prepare);
        }
        Ask::Execute { transaction, shards, last, requests } => {
            out.push(kind::EXECUTE);
            put_transaction(out, *transaction);
            put_u16(out, shards.len());
            shards.iter().for_each(|shard| put_u16(out, shard.0.into()));
            out.push(u8::from(*last));
            put_requests(out, requests);
        }
        Ask::Release { transaction, prepared } => {
            out.push(kind::RELEASE);
            put_transaction(out, *transaction);
            put_requests(out, prepared);
        }
        Ask::Carry { key, leaves } => {
            out.push(kind::CARRY);
            out.push(u8::from(*leaves));
            put_bytes(out, key);
        }
        Ask::Put(PutValue { key, value, expires, flags, if_absent, purpose }) => {
            out.push(kind::PUT);
            put_bytes(out, key);
            put_bytes(out, value);
            put_u64(out, expires.map_or(NEVER, |at| at.0));
            put_u32(out, *flags as usize);
            out.push(u8::from(*if_absent) | purpose.bits());
        }
        Ask::Item(command) => {
            out.push(kind::ITEM);
            put_item_command(out, command);
        }
    }
}

/// An answer's frame that is being written: its answer goes behind it.
#[derive(Clone, Copy, Debug)]
pub struct OpenFrame {
    start: usize,
    digests: usize,
}

impl OpenFrame {
    /// Begins the frame of the answer to the request of this id, with as many digests as `digests` has.
    #[inline]
    pub fn begin(id: u64, digests: &[u64], out: &mut Vec<u8>) -> Self {
        let start = out.len();
        out.extend_from_slice(&[0; LENGTH]);
        put_u64(out, id);
        put_u64(out, 0);
        put_u16(out, digests.len());
        digests.iter().for_each(|&digest| put_u64(out, digest));
        Self { start, digests: digests.len() }
    }

    /// Where its answer begins.
    #[inline]
    #[must_use]
    pub fn answer_begins(self) -> usize {
        self.start + LENGTH + 18 + 8 * self.digests
    }

    /// Whether there is room in it for these digests.
    #[inline]
    #[must_use]
    pub fn fits(self, digests: &[u64]) -> bool {
        self.digests == digests.len()
    }

    /// Takes it back, with what is behind it.
    pub fn take_back(self, out: &mut Vec<u8>) {
        out.truncate(self.start);
    }

    /// Ends it: the answer is behind it, the shard has come to `position` by its session's writes there, and has these digests of its
    /// transactions with each other shard ([`crate::Transaction`]), if they were wanted.
    #[inline]
    pub fn end(self, position: u64, digests: &[u64], out: &mut [u8]) {
        let len = (out.len() - self.start - LENGTH) as u32;
        let frame = &mut out[self.start..];
        frame[..LENGTH].copy_from_slice(&len.to_le_bytes());
        frame[LENGTH + 8..LENGTH + 16].copy_from_slice(&position.to_le_bytes());
        for (at, digest) in digests.iter().enumerate().take(self.digests) {
            let at = LENGTH + 18 + 8 * at;
            frame[at..at + 8].copy_from_slice(&digest.to_le_bytes());
        }
    }
}

/// Writes an answer's frame behind what `out` has.
pub fn write_answer(id: u64, position: u64, digests: &[u64], answer: &[u8], out: &mut Vec<u8>) {
    let frame = OpenFrame::begin(id, digests, out);
    out.extend_from_slice(answer);
    frame.end(position, digests, out);
}

/// An answer's frame.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct AnswerFrame<'a> {
    /// Which request it answers.
    pub id: u64,
    /// How far the shard had come by the session's last write there.
    pub position: u64,
    /// The digests of its transactions with each other shard; empty: there were none.
    pub digests: Vec<u64>,
    /// The answer.
    pub answer: &'a [u8],
}

/// Cuts frames out of bytes.
#[derive(Clone, Copy, Debug)]
pub struct Frames<'a> {
    rest: &'a [u8],
}

impl<'a> Frames<'a> {
    /// The frames of `bytes`.
    #[must_use]
    pub fn of(bytes: &'a [u8]) -> Self {
        Self { rest: bytes }
    }

    /// Bytes that were not cut out yet.
    #[must_use]
    pub fn left(&self) -> usize {
        self.rest.len()
    }

    /// The next frame's content; `None`: what is left is none.
    fn next_frame(&mut self) -> Option<WireReader<'a>> {
        let (head, rest) = self.rest.split_first_chunk::<LENGTH>()?;
        let (body, rest) = rest.split_at_checked(u32::from_le_bytes(*head) as usize)?;
        self.rest = rest;
        Some(WireReader::of(body))
    }

    /// The next request; `None`: what is left is none. Its arguments are spans in `spans`.
    pub fn next_ask<'s>(&mut self, spans: &'s mut ArgVec) -> Option<(AskHeader, Ask<'s>)>
    where
        'a: 's,
    {
        let mut frame = self.next_frame()?;
        let id = frame.u64()?;
        let kinds = frame.u8()?;
        let (wants_digests, no_evict) = (kinds & WANTS_DIGESTS != 0, kinds & NO_EVICT != 0);
        let copies = match kinds & !(WANTS_DIGESTS | HAS_RECORD | NO_EVICT | HAS_USER) {
            0 => Copies::None,
            1 => Copies::Broadcast,
            2 => Copies::Keys,
            _ => return None,
        };
        let placement = frame.u64()?;
        let count = frame.u16()?;
        let after = frame.numbers(count)?;
        let record = match kinds & HAS_RECORD {
            0 => None,
            _ => Some((frame.u64()?, frame.bytes()?.to_vec())),
        };
        let user = match kinds & HAS_USER {
            0 => None,
            _ => Some(frame.bytes()?.to_vec()),
        };
        let ask = read_ask(&mut frame, spans)?;
        if !frame.rest().is_empty() {
            return None;
        }
        let header =
            AskHeader { id, copies, wants_digests, no_evict, placement, after, record, user };
        Some((header, ask))
    }

    /// Passes over the next request; the first key that it names, where that is a command's first argument. `None`: what is left is
    /// none.
    #[inline]
    pub fn pass_key(&mut self) -> Option<Option<&'a [u8]>> {
        let mut frame = self.next_frame()?;
        Some(first_key(&mut frame))
    }

    /// The next answer; `None`: what is left is none.
    pub fn next_answer(&mut self) -> Option<AnswerFrame<'a>> {
        let mut frame = self.next_frame()?;
        let (id, position, count) = (frame.u64()?, frame.u64()?, frame.u16()?);
        let digests = frame.numbers(count)?;
        Some(AnswerFrame { id, position, digests, answer: frame.rest() })
    }
}

/// The first key that a request names, where that is a command's first argument.
fn first_key<'a>(frame: &mut WireReader<'a>) -> Option<&'a [u8]> {
    if frame.cut(17)?[8] & (HAS_RECORD | HAS_USER) != 0 {
        return None;
    }
    let after = frame.u16()?;
    frame.cut(8 * after)?;
    if frame.u8()? != kind::COMMAND {
        return None;
    }
    frame.u16()?;
    let count = frame.u32()?;
    let lens = frame.cut(count.checked_mul(4)?)?.as_chunks::<4>().0;
    let len = |at: usize| lens.get(at).map(|len| u32::from_le_bytes(*len) as usize);
    let (name, key) = (len(0)?, len(1)?);
    frame.cut(name)?;
    frame.cut(key)
}

fn read_transaction(bytes: &mut WireReader<'_>) -> Option<TransactionId> {
    let coordinator = Shard(bytes.u16()? as u16);
    Some(TransactionId { coordinator, number: bytes.u64()? })
}

/// The places of arguments behind their lengths, and the arguments; all of them are there.
fn read_args<'a>(bytes: &mut WireReader<'a>, spans: &mut ArgVec) -> Option<&'a [u8]> {
    let count = bytes.u32()?;
    let lens = bytes.cut(count.checked_mul(4)?)?.as_chunks::<4>().0.iter();
    let mut end = 0_usize;
    spans.clear();
    for len in lens {
        let len = u32::from_le_bytes(*len) as usize;
        spans.push(Span::new(end, len));
        end = end.checked_add(len).filter(|&end| end <= bytes.rest().len())?;
    }
    bytes.cut(end)
}

pub(crate) fn read_requests(bytes: &mut WireReader<'_>) -> Option<Requests> {
    let mut spans = ArgVec::new();
    // Each has four bytes at least.
    bytes.list(4, |bytes| {
        let buffer = read_args(bytes, &mut spans)?;
        Some(OwnedArgs::of(spans.args(buffer)))
    })
}

fn read_ask<'a: 's, 's>(bytes: &mut WireReader<'a>, spans: &'s mut ArgVec) -> Option<Ask<'s>> {
    Some(match bytes.u8()? {
        kind::COMMAND => {
            let spec = spec_of(bytes.u16()?)?;
            let buffer = read_args(bytes, spans)?;
            let args = spans.args(buffer);
            // Whoever executes it has as many as it takes.
            Ask::Command(spec, spec.arity_fits(args.len()).then_some(args)?)
        }
        kind::EXEC => Ask::Exec(read_requests(bytes)?),
        kind::LOCK => {
            let transaction = read_transaction(bytes)?;
            let set = match bytes.u8()? {
                0 => LockSet::All,
                _ => {
                    let count = bytes.u32()?;
                    LockSet::of(bytes.shorts(count)?.map(Partition))
                }
            };
            let (watches, wait) = (bytes.flag()?, bytes.u64()?);
            let budget =
                Budget { bytes: bytes.u64()?, denies_oom: bytes.flag()?, stores: bytes.flag()? };
            let prepare = read_requests(bytes)?;
            Ask::Lock { transaction, set, watches, wait, budget, prepare }
        }
        kind::EXECUTE => {
            let transaction = read_transaction(bytes)?;
            let count = bytes.u16()?;
            let shards = bytes.shorts(count)?.map(Shard).collect();
            let last = bytes.flag()?;
            Ask::Execute { transaction, shards, last, requests: read_requests(bytes)? }
        }
        kind::RELEASE => {
            let transaction = read_transaction(bytes)?;
            Ask::Release { transaction, prepared: read_requests(bytes)? }
        }
        kind::CARRY => {
            let leaves = bytes.flag()?;
            Ask::Carry { key: bytes.bytes()?, leaves }
        }
        kind::PUT => {
            let (key, value) = (bytes.bytes()?, bytes.bytes()?);
            let expires = bytes.u64()?;
            let expires = (expires != NEVER).then_some(Millis(expires));
            let (flags, how) = (bytes.u32()? as u32, bytes.u8()?);
            let (if_absent, purpose) = (how & 1 != 0, PutPurpose::of(how));
            Ask::Put(PutValue { key, value, expires, flags, if_absent, purpose })
        }
        kind::ITEM => Ask::Item(read_item_command(bytes)?),
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use headwater_command::table::lookup;

    fn request(words: &[&str]) -> OwnedArgs {
        words.iter().map(|word| word.as_bytes()).collect()
    }

    fn each(then: &mut dyn FnMut(&AskHeader, &Ask<'_>)) {
        let get = request(&["GET", "a|b"]);
        let transaction = TransactionId { coordinator: Shard(3), number: 1 << 40 };
        let requests = || alloc::vec![request(&["SET", "a", ""]), request(&["DEL", "b"])];
        let set = LockSet::of([Partition(9), Partition(2)].into_iter());
        let budget = Budget { bytes: 7, denies_oom: true, stores: false };
        let put = PutValue {
            key: b"k",
            value: b"v",
            expires: Some(Millis(5)),
            flags: 6,
            if_absent: true,
            purpose: PutPurpose::Rename,
        };
        let asks = [
            Ask::Command(lookup(b"get").unwrap(), get.args()),
            Ask::Exec(requests()),
            Ask::Lock { transaction, set, watches: true, wait: 9, budget, prepare: requests() },
            Ask::Lock {
                transaction,
                set: LockSet::All,
                watches: false,
                wait: 0,
                budget,
                prepare: Vec::new(),
            },
            Ask::Execute {
                transaction,
                shards: alloc::vec![Shard(1)],
                last: true,
                requests: requests(),
            },
            Ask::Release { transaction, prepared: requests() },
            Ask::Carry { key: b"k", leaves: true },
            Ask::Put(put.clone()),
            Ask::Put(PutValue { expires: None, purpose: PutPurpose::Copy, ..put }),
            Ask::Item(ItemCommand::Examine { key: b"k" }),
        ];
        for (at, ask) in asks.iter().enumerate() {
            let after = (0..at as u64 % 3).collect();
            then(
                &AskHeader {
                    id: at as u64,
                    copies: Copies::Keys,
                    wants_digests: at % 2 == 0,
                    no_evict: at % 3 == 0,
                    placement: 3,
                    after,
                    record: (at % 4 == 1).then(|| (7, b"record".to_vec())),
                    user: (at % 4 == 2).then(|| b"ada".to_vec()),
                },
                ask,
            );
        }
    }

    #[test]
    fn what_is_asked_arrives() {
        let mut bytes = Vec::new();
        each(&mut |header, ask| write_ask(header, ask, &mut bytes));
        let mut frames = Frames::of(&bytes);
        each(&mut |header, ask| {
            let mut spans = ArgVec::new();
            let (told, asked) = frames.next_ask(&mut spans).unwrap();
            assert_eq!((&told, &asked), (header, ask));
        });
        let mut passing = Frames::of(&bytes);
        assert_eq!(passing.pass_key(), Some(Some(&b"a|b"[..])));
        assert_eq!(passing.pass_key(), Some(None));
        assert_eq!(frames.left(), 0);
    }

    #[test]
    fn what_is_cut_is_refused() {
        each(&mut |header, ask| {
            let mut bytes = Vec::new();
            write_ask(header, ask, &mut bytes);
            for end in 0..bytes.len() {
                // The frame says that it is shorter, and its content is cut.
                let mut cut = bytes[..end].to_vec();
                if let Some(head) = cut.get_mut(..LENGTH) {
                    head.copy_from_slice(&(end as u32).saturating_sub(4).to_le_bytes());
                }
                assert!(Frames::of(&cut).next_ask(&mut ArgVec::new()).is_none(), "{ask:?} {end}");
            }
        });
    }

    #[test]
    fn answers_arrive() {
        let mut bytes = Vec::new();
        write_answer(5, 6, &[7, 8], b"answer", &mut bytes);
        write_answer(9, 0, &[], b"", &mut bytes);
        let mut frames = Frames::of(&bytes);
        let first =
            AnswerFrame { id: 5, position: 6, digests: alloc::vec![7, 8], answer: b"answer" };
        assert_eq!(frames.next_answer(), Some(first));
        assert_eq!(frames.next_answer().map(|frame| frame.id), Some(9));
        assert_eq!(frames.next_answer(), None);
    }
}
