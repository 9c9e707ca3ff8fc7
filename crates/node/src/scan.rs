//! Execution of SCAN and KEYS.
//!
//! The engine continues a scan at a key, a client at a number: the node remembers which key a
//! number stands for, for the last [`CURSORS_MAX`] numbers given out. A number that is forgotten is
//! refused by name, since starting over silently might never end.

use crate::keys::{STREAM, STRING};
use alloc::boxed::Box;
use alloc::vec::Vec;
use headwater_base::slots::slot_of;
use headwater_command::{OwnedArgs, Reply, glob, number};
use headwater_engine::{Engine, Stop, Ticket};

/// How many unfinished scans can be continued.
const CURSORS_MAX: usize = 4096;

/// Where unfinished scans continue. At most [`CURSORS_MAX`] keys.
#[derive(Default)]
pub(crate) struct Cursors {
    /// The key that number `n` stands for is at `n % CURSORS_MAX`, if it is still there.
    places: Vec<(u64, Box<[u8]>)>,
    last: u64,
}

impl Cursors {
    /// A number that stands for `key`.
    fn give(&mut self, key: Vec<u8>) -> u64 {
        self.last += 1;
        let entry = (self.last, key.into_boxed_slice());
        let at = self.last as usize % CURSORS_MAX;
        if self.places.len() < CURSORS_MAX {
            self.places.resize(self.places.len().max(at + 1), (0, Box::default()));
        }
        self.places[at] = entry;
        self.last
    }

    /// The key that `number` stands for; 0 is the start of all keys.
    fn find(&self, number: u64) -> Option<&[u8]> {
        if number == 0 {
            return Some(&[]);
        }
        let (own, key) = self.places.get(number as usize % CURSORS_MAX)?;
        (*own == number).then_some(key)
    }
}

/// Which keys a scan wants.
pub(crate) struct Wanted<'a> {
    pub(crate) pattern: Option<&'a [u8]>,
    pub(crate) count: u64,
    pub(crate) type_name: Option<&'a [u8]>,
}

pub(crate) fn scan(
    engine: &Engine,
    cursors: &mut Cursors,
    cursor: u64,
    wanted: &Wanted<'_>,
    reply: &mut impl Reply,
) {
    let Some(start) = cursors.find(cursor) else {
        let text = "invalid cursor: it is unknown, or was forgotten after";
        return reply.error("ERR", format_args!("{text} {CURSORS_MAX} newer ones; start at 0"));
    };
    let is = |name: &str| {
        wanted.type_name.is_none_or(|wanted| wanted.eq_ignore_ascii_case(name.as_bytes()))
    };
    let (strings, streams) = (is(STRING), is(STREAM));
    let count = usize::try_from(wanted.count).unwrap_or(usize::MAX).min(engine.keys_at_once());
    let mut found = OwnedArgs::default();
    let next = engine.scan(start, count, &mut |key| {
        // Without a type, or with an unknown one, no key is looked up.
        let fits = if strings == streams { strings } else { engine.is_stream(key) == streams };
        if fits && wanted.pattern.is_none_or(|pattern| glob::matches(pattern, key)) {
            found.push(key);
        }
    });
    let next = if next.is_empty() { 0 } else { cursors.give(next) };
    reply.array(2);
    reply.bulk(number::unsigned(next).as_bytes());
    let found = found.args();
    reply.array(found.len());
    found.iter().for_each(|key| reply.bulk(key));
}

/// The keys that match, or the next slice of them; if there are more, when others were served and these taken, the ticket for
/// the next run.
pub(crate) fn matching(
    engine: &mut Engine,
    pattern: &[u8],
    reply: &mut impl Reply,
) -> Result<Option<Ticket>, Stop> {
    let matches = &mut |key: &[u8]| glob::matches(pattern, key);
    if let Some(count) = engine.list_keys(usize::MAX, matches)? {
        reply.array(count);
    }
    Ok(engine.give_listed(&mut |key| reply.bulk(key)))
}

/// The keys of this shard that are in a slot, as [`matching`] gives them, `most` of them at most; `None`: how many there are.
pub(crate) fn in_slot(
    engine: &mut Engine,
    slot: u16,
    most: Option<u64>,
    reply: &mut impl Reply,
) -> Result<Option<Ticket>, Stop> {
    let placement = engine.placement().cloned();
    let is_in = &mut |key: &[u8]| {
        // Where there is one shard, nothing is placed, and a key has the slot that clients give it.
        placement.as_ref().map_or_else(|| slot_of(key), |placement| placement.slot(key)) == slot
    };
    let limit = most.map_or(usize::MAX, |most| usize::try_from(most).unwrap_or(usize::MAX));
    let count = engine.list_keys(limit, is_in)?;
    if most.is_none() {
        reply.integer(count.unwrap_or_default() as i64);
        return Ok(None);
    }
    if let Some(count) = count {
        reply.array(count);
    }
    Ok(engine.give_listed(&mut |key| reply.bulk(key)))
}
