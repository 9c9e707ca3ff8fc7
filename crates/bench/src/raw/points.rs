//! GET, SET, their mix, and multi-gets of single keys.

use super::{Filler, Operation};
use crate::drive::{Driver, Schedule};
use crate::wire::{Connection, Input, Key, Loader, bad, memcached, resp};
use anyhow::Result;
use headwater_workload::Rng;
use std::io;

/// One value in so many is compared byte by byte.
pub const LOOK: u64 = 64;
/// Percent of writes in the mix.
const WRITE_PERCENT: u64 = 10;

/// The protocol of a server.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Protocol {
    /// Headwater, Redis, Valkey.
    Resp,
    /// memcached.
    Memcached,
    /// RESP, and the values are constants.
    Constant,
}

/// One access.
#[derive(Clone, Copy, Debug)]
pub struct Access {
    key: u32,
    write: bool,
}

/// Draws `count` accesses of `keys` keys.
#[must_use]
pub fn draw(
    operation: Operation,
    keys: u32,
    count: u64,
    lanes: usize,
    pipeline: usize,
    seed: u64,
) -> Schedule<Access> {
    let mut rng = Rng::new(seed);
    let accesses = (0..count).map(|_| Access {
        key: rng.below(u64::from(keys)) as u32,
        write: match operation {
            Operation::Set => true,
            Operation::Mixed => rng.below(100) < WRITE_PERCENT,
            _ => false,
        },
    });
    Schedule::deal(accesses, lanes, pipeline, |access| access.key)
}

/// Keys and the generation of each one's value: the model, and the driver.
#[derive(Debug)]
pub struct Points {
    protocol: Protocol,
    multi: bool,
    value_bytes: usize,
    generations: Vec<u8>,
    filler: Filler,
    value: Vec<u8>,
    looked: u64,
    wrong: u64,
}

fn name(key: u32) -> Key {
    Key::new(b"k:").number(u64::from(key), 10)
}

impl Points {
    /// `keys` keys with values of `value_bytes`.
    #[must_use]
    pub fn new(protocol: Protocol, keys: u32, value_bytes: usize) -> Self {
        Self {
            protocol,
            multi: false,
            value_bytes,
            generations: vec![0; keys as usize],
            filler: Filler::new(value_bytes),
            value: Vec::new(),
            looked: 0,
            wrong: 0,
        }
    }

    /// Whether the reads of a batch are one request from now on.
    pub fn set_multi(&mut self, multi: bool) {
        self.multi = multi;
    }

    /// Brings all keys into a server.
    ///
    /// # Errors
    /// The connection fails or the server refuses.
    pub fn load(&mut self, connection: &mut Connection) -> Result<()> {
        let skip = match self.protocol {
            Protocol::Memcached => memcached::stored,
            Protocol::Resp | Protocol::Constant => resp::skip,
        };
        let mut loader = Loader::new(connection, skip);
        for key in 0..self.generations.len() as u32 {
            self.write(&mut loader.connection.out, key);
            loader.sent(1)?;
        }
        loader.finish()
    }

    /// Reads `count` keys drawn by chance and compares each; `false` at a difference there or
    /// in any comparison since the last call.
    ///
    /// # Errors
    /// The connection fails or the server refuses.
    pub fn verify(&mut self, connection: &mut Connection, count: usize, seed: u64) -> Result<bool> {
        let mut rng = Rng::new(seed);
        for _ in 0..count {
            let key = rng.index(self.generations.len()) as u32;
            self.ask(&mut connection.out, key);
            connection.flush()?;
            self.looked = 0;
            self.take(&mut connection.input, key)?;
            if self.protocol == Protocol::Memcached {
                memcached::end(&mut connection.input)?;
            }
        }
        Ok(core::mem::take(&mut self.wrong) == 0)
    }

    #[inline]
    fn write(&mut self, out: &mut Vec<u8>, key: u32) {
        self.value.clear();
        let generation = self.generations[key as usize];
        self.filler.write(&mut self.value, key, generation, self.value_bytes);
        match self.protocol {
            Protocol::Memcached => memcached::store(out, b"set", &name(key), &self.value),
            Protocol::Resp | Protocol::Constant => {
                resp::command(out, &[b"SET", &name(key), &self.value]);
            }
        }
    }

    #[inline]
    fn ask(&self, out: &mut Vec<u8>, key: u32) {
        match self.protocol {
            Protocol::Memcached => memcached::get(out, &[&name(key)]),
            Protocol::Resp | Protocol::Constant => resp::command(out, &[b"GET", &name(key)]),
        }
    }

    fn ask_all(&self, out: &mut Vec<u8>, batch: &[Access]) {
        match self.protocol {
            Protocol::Memcached => {
                out.extend_from_slice(b"get");
                for access in batch {
                    out.push(b' ');
                    out.extend_from_slice(&name(access.key));
                }
                out.extend_from_slice(b"\r\n");
            }
            Protocol::Resp | Protocol::Constant => {
                resp::begin(out, 1 + batch.len());
                resp::argument(out, b"MGET");
                for access in batch {
                    resp::argument(out, &name(access.key));
                }
            }
        }
    }

    /// Takes one value and looks at some.
    #[inline]
    fn take(&mut self, input: &mut Input, key: u32) -> io::Result<()> {
        let value = match self.protocol {
            Protocol::Memcached => {
                memcached::value(input)?.ok_or_else(|| bad("a key is missing"))?
            }
            Protocol::Resp | Protocol::Constant => resp::string(input)?,
        };
        if value.len() != self.value_bytes {
            let (is, should) = (value.len(), self.value_bytes);
            return Err(bad(format!("a value has {is} bytes instead of {should}")));
        }
        if self.looked.is_multiple_of(LOOK) && self.protocol != Protocol::Constant {
            let generation = self.generations[key as usize];
            if !self.filler.is(value, key, generation, self.value_bytes) {
                self.wrong += 1;
            }
        }
        self.looked += 1;
        Ok(())
    }
}

impl Driver for Points {
    type Op = Access;

    #[inline]
    fn send(&mut self, _lane: usize, batch: &[Access], out: &mut Vec<u8>) {
        if self.multi {
            self.ask_all(out, batch);
            return;
        }
        for access in batch {
            if access.write {
                let generation = &mut self.generations[access.key as usize];
                *generation = generation.wrapping_add(1);
                self.write(out, access.key);
            } else {
                self.ask(out, access.key);
            }
        }
    }

    #[inline]
    fn receive(
        &mut self,
        _lane: usize,
        batch: &[Access],
        connection: &mut Connection,
    ) -> Result<bool> {
        let input = &mut connection.input;
        if self.multi && self.protocol != Protocol::Memcached && resp::array(input)? != batch.len()
        {
            return Err(bad("an answer to MGET has another length").into());
        }
        for access in batch {
            match (self.protocol, access.write) {
                (Protocol::Memcached, true) => memcached::stored(input)?,
                (Protocol::Resp | Protocol::Constant, true) => resp::skip(input)?,
                (Protocol::Memcached, false) => {
                    self.take(input, access.key)?;
                    if !self.multi {
                        memcached::end(input)?;
                    }
                }
                (Protocol::Resp | Protocol::Constant, false) => self.take(input, access.key)?,
            }
        }
        if self.multi && self.protocol == Protocol::Memcached {
            memcached::end(input)?;
        }
        Ok(false)
    }
}
