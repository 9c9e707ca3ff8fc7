//! Reads of neighbouring keys: RANGE within a group against a sorted set's ZRANGEBYSCORE, or
//! against `ZRANGE … BYLEX` of a sorted set whose members all have one score.

use super::Filler;
use crate::drive::{Driver, Schedule};
use crate::wire::{Connection, Input, Key, Loader, bad, resp};
use anyhow::Result;
use headwater_workload::Rng;
use std::io;

/// Keys in a group, members in a sorted set.
pub const GROUP: u32 = 10_000;
/// Bytes of a value.
pub const VALUE_BYTES: usize = 64;
/// Members or pairs per command while loading.
const CHUNK: usize = 100;
/// One read in so many is compared byte by byte.
const LOOK: u64 = 64;

/// How the system keeps what is read.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Form {
    /// Keys `r|<group>|<number>` in Headwater.
    Keys,
    /// Sorted sets by score.
    Scores,
    /// Sorted sets by name.
    Names,
}

/// Where a read starts.
#[derive(Clone, Copy, Debug)]
pub struct From {
    group: u32,
    number: u32,
}

/// Draws `count` reads of `length` neighbours among `keys` keys.
#[must_use]
pub fn draw(
    keys: u32,
    length: u32,
    count: u64,
    lanes: usize,
    pipeline: usize,
    seed: u64,
) -> Schedule<From> {
    let mut rng = Rng::new(seed);
    let groups = u64::from(keys.div_ceil(GROUP));
    let froms = (0..count).map(|_| From {
        group: rng.below(groups) as u32,
        number: rng.below(u64::from(GROUP - length + 1)) as u32,
    });
    // Reads disturb nobody: each is a user of its own, on the next lane.
    let froms: Vec<(u32, From)> = (0..).zip(froms).collect();
    Schedule::deal(froms, lanes, pipeline, |&(number, _)| number).map(|(_, from)| from)
}

/// The groups, and the driver.
#[derive(Debug)]
pub struct Ranges {
    form: Form,
    groups: u32,
    /// How many neighbours a read brings.
    pub length: u32,
    filler: Filler,
    value: Vec<u8>,
    looked: u64,
    wrong: u64,
}

fn key(group: u32, number: u32) -> Key {
    Key::new(b"r|").number(u64::from(group), 6).text(b"|").number(u64::from(number), 8)
}

fn set(group: u32) -> Key {
    Key::new(b"r:").decimal(u64::from(group))
}

impl Ranges {
    /// At least `keys` keys in full groups.
    #[must_use]
    pub fn new(form: Form, keys: u32) -> Self {
        Self {
            form,
            groups: keys.div_ceil(GROUP),
            length: 1,
            filler: Filler::new(VALUE_BYTES),
            value: Vec::new(),
            looked: 0,
            wrong: 0,
        }
    }

    /// Brings all groups into a server.
    ///
    /// # Errors
    /// The connection fails or the server refuses.
    pub fn load(&mut self, connection: &mut Connection) -> Result<()> {
        if self.form == Form::Keys {
            resp::command(&mut connection.out, &[b"TABLE.SET", b"r", b"BOUNDARY", b"1"]);
            connection.flush()?;
            resp::skip(&mut connection.input)?;
        }
        let mut loader = Loader::new(connection, resp::skip);
        for group in 0..self.groups {
            for first in (0..GROUP).step_by(CHUNK) {
                self.load_chunk(&mut loader.connection.out, group, first);
                loader.sent(1)?;
            }
        }
        loader.finish()
    }

    fn load_chunk(&mut self, out: &mut Vec<u8>, group: u32, first: u32) {
        let keys = self.form == Form::Keys;
        resp::begin(out, 2 * CHUNK + if keys { 1 } else { 2 });
        resp::argument(out, if keys { b"MSET" } else { b"ZADD" });
        if !keys {
            resp::argument(out, &set(group));
        }
        for number in first..first + CHUNK as u32 {
            self.value.clear();
            match self.form {
                Form::Keys => resp::argument(out, &key(group, number)),
                Form::Scores => {
                    resp::argument(out, &Key::new(b"").decimal(u64::from(number)));
                }
                Form::Names => resp::argument(out, b"0"),
            }
            if !keys {
                self.value.extend_from_slice(&Key::new(b"").number(u64::from(number), 8));
            }
            self.filler.write(&mut self.value, number, 0, VALUE_BYTES);
            resp::argument(out, &self.value);
        }
    }

    /// Whether all comparisons since the last call agreed.
    pub fn verified(&mut self) -> bool {
        core::mem::take(&mut self.wrong) == 0
    }

    #[inline]
    fn take(&mut self, input: &mut Input, from: From) -> io::Result<()> {
        let Self { form, length, filler, looked, wrong, .. } = self;
        let keys = *form == Form::Keys;
        let count = resp::array(input)?;
        if count != *length as usize * if keys { 2 } else { 1 } {
            return Err(bad(format!("a read of {length} brought {count} strings")));
        }
        let look = looked.is_multiple_of(LOOK);
        *looked += 1;
        for number in from.number..from.number + *length {
            if keys {
                let name = resp::string(input)?;
                if look && name != &*key(from.group, number) {
                    *wrong += 1;
                }
            }
            let text = resp::string(input)?;
            if !look {
                continue;
            }
            let (name, value) = if keys { (None, text) } else { (text.get(..8), &text[8..]) };
            let named =
                name.is_none_or(|name| name == &*Key::new(b"").number(u64::from(number), 8));
            if !named || !filler.is(value, number, 0, VALUE_BYTES) {
                *wrong += 1;
            }
        }
        Ok(())
    }
}

impl Driver for Ranges {
    type Op = From;

    fn send(&mut self, _lane: usize, batch: &[From], out: &mut Vec<u8>) {
        for &From { group, number } in batch {
            let last = number + self.length;
            match self.form {
                Form::Keys => {
                    resp::command(out, &[b"RANGE", &key(group, number), &key(group, last)]);
                }
                Form::Scores => {
                    let first = Key::new(b"").decimal(u64::from(number));
                    let last = Key::new(b"(").decimal(u64::from(last));
                    resp::command(out, &[b"ZRANGEBYSCORE", &set(group), &first, &last]);
                }
                Form::Names => {
                    let first = Key::new(b"[").number(u64::from(number), 8);
                    let last = Key::new(b"(").number(u64::from(last), 8);
                    resp::command(out, &[b"ZRANGE", &set(group), &first, &last, b"BYLEX"]);
                }
            }
        }
    }

    fn receive(
        &mut self,
        _lane: usize,
        batch: &[From],
        connection: &mut Connection,
    ) -> Result<bool> {
        for &from in batch {
            self.take(&mut connection.input, from)?;
        }
        Ok(false)
    }
}
