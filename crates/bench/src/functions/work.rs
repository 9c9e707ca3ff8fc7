//! Changes, filters and counts, in each system's way.

use super::Operation;
use crate::drive::{Driver, Schedule};
use crate::raw::{Filler, MARK_BYTES};
use crate::wire::{Connection, Input, Key, Loader, bad, memcached, resp};
use anyhow::Result;
use headwater_workload::Rng;
use std::io;

/// Bytes that a change writes.
pub const CHANGE_BYTES: usize = 16;
/// The last of them are what a filter reads.
const FILTER_BYTES: usize = 4;

/// Lua that does what the functions do. Both arguments are text.
const SWAP: &[u8] = b"local old = redis.call('GETRANGE', KEYS[1], ARGV[1], ARGV[1] + 15) \
    redis.call('SETRANGE', KEYS[1], ARGV[1], ARGV[2]) return old";
const PUT: &[u8] = b"redis.call('SETRANGE', KEYS[1], ARGV[1], ARGV[2])";
const FIELD: &[u8] = b"return redis.call('GETRANGE', KEYS[1], ARGV[1], ARGV[1] + 3)";
const ADD: &[u8] = b"return redis.call('INCRBY', KEYS[1], ARGV[1])";

/// How a system is asked.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Way {
    /// `FN.CALL`.
    Call,
    /// `invoke`.
    Invoke,
    /// `EVALSHA`.
    Lua,
    /// GET and SET.
    Plain,
    /// The same in memcached's protocol.
    PlainItems,
}

impl Way {
    fn items(self) -> bool {
        matches!(self, Self::Invoke | Self::PlainItems)
    }

    fn plain(self) -> bool {
        matches!(self, Self::Plain | Self::PlainItems)
    }
}

/// One access.
#[derive(Clone, Copy, Debug)]
pub struct Access {
    key: u32,
    write: bool,
}

/// Draws `count` accesses of `keys` keys, of which so many in a hundred write.
#[must_use]
pub fn draw(
    percent: u64,
    keys: u32,
    count: u64,
    (lanes, pipeline): (usize, usize),
    seed: u64,
) -> Schedule<Access> {
    let mut rng = Rng::new(seed);
    let accesses = (0..count).map(|_| Access {
        key: rng.below(u64::from(keys)) as u32,
        write: rng.below(100) < percent,
    });
    Schedule::deal(accesses, lanes, pipeline, |access| access.key)
}

/// Keys and how often each was changed: the model, and the driver.
#[derive(Debug)]
pub struct Work {
    way: Way,
    operation: Operation,
    value_bytes: usize,
    /// How often each object was changed, and each number counted.
    changes: Vec<u32>,
    counts: Vec<u32>,
    /// Names of Lua's scripts: of the change, of the change without a reply, of the filter, of the counter.
    scripts: [Vec<u8>; 4],
    /// Whether the values of a lane's batch were read, and are being written.
    writing: Vec<bool>,
    filler: Filler,
    value: Vec<u8>,
}

fn object(key: u32) -> Key {
    Key::new(b"o:").number(u64::from(key), 10)
}

fn number(key: u32) -> Key {
    Key::new(b"n:").number(u64::from(key), 10)
}

/// The bytes that the change with this number writes.
fn written(change: u32) -> Key {
    Key::new(b"").number(u64::from(change), CHANGE_BYTES)
}

impl Work {
    /// `keys` objects of `value_bytes`, and as many numbers.
    #[must_use]
    pub fn new(way: Way, keys: u32, value_bytes: usize, lanes: usize) -> Self {
        Self {
            way,
            operation: Operation::Change,
            value_bytes,
            changes: vec![0; keys as usize],
            counts: vec![0; keys as usize],
            scripts: Default::default(),
            writing: vec![false; lanes],
            filler: Filler::new(value_bytes),
            value: Vec::new(),
        }
    }

    /// What is done from now on.
    pub fn set_operation(&mut self, operation: Operation) {
        self.operation = operation;
    }

    /// Where the bytes of an object are that change.
    fn place(&self, key: u32) -> usize {
        let room = self.value_bytes - CHANGE_BYTES - MARK_BYTES;
        MARK_BYTES + key as usize * 7919 % (room + 1)
    }

    /// The object as it is now.
    fn content(&mut self, key: u32) {
        self.value.clear();
        self.filler.write(&mut self.value, key, 0, self.value_bytes);
        let place = self.place(key);
        let change = self.changes[key as usize];
        self.value[place..place + CHANGE_BYTES].copy_from_slice(&written(change));
    }

    /// Brings the functions and all keys into a server.
    ///
    /// # Errors
    /// The connection fails or the server refuses.
    pub fn load(&mut self, connection: &mut Connection) -> Result<()> {
        match self.way {
            Way::Call => {
                let words: [&[u8]; 3] = [b"FN.LOAD", b"f", super::MODULE];
                resp::command(&mut connection.out, &words);
                connection.flush()?;
                resp::skip(&mut connection.input)?;
            }
            Way::Invoke => {
                connection.out.extend_from_slice(b"register f f.wasm put\r\n");
                connection.flush()?;
                let line = connection.input.line()?;
                if line != b"REGISTERED" {
                    return Err(bad(String::from_utf8_lossy(line)).into());
                }
            }
            Way::Lua => {
                for (at, script) in [SWAP, PUT, FIELD, ADD].into_iter().enumerate() {
                    resp::command(&mut connection.out, &[b"SCRIPT", b"LOAD", script]);
                    connection.flush()?;
                    self.scripts[at] = resp::string(&mut connection.input)?.to_vec();
                }
            }
            Way::Plain | Way::PlainItems => {}
        }
        let skip = if self.way.items() { memcached::stored } else { resp::skip };
        let mut loader = Loader::new(connection, skip);
        for key in 0..self.changes.len() as u32 {
            self.content(key);
            self.set(&mut loader.connection.out, &object(key));
            self.value.clear();
            self.value.push(b'0');
            self.set(&mut loader.connection.out, &number(key));
            loader.sent(2)?;
        }
        loader.finish()
    }

    /// Reads `count` objects and numbers drawn by chance; whether all are what they should be.
    ///
    /// # Errors
    /// The connection fails or the server refuses.
    pub fn verify(&mut self, connection: &mut Connection, count: usize, seed: u64) -> Result<bool> {
        let mut rng = Rng::new(seed);
        let mut right = true;
        for _ in 0..count {
            let key = rng.index(self.changes.len()) as u32;
            for name in [object(key), number(key)] {
                self.get(&mut connection.out, &name);
            }
            connection.flush()?;
            self.content(key);
            right &= self.take(&mut connection.input)? == self.value;
            self.end(&mut connection.input)?;
            let counted = Key::new(b"").decimal(u64::from(self.counts[key as usize]));
            right &= *self.take(&mut connection.input)? == *counted;
            self.end(&mut connection.input)?;
        }
        Ok(right)
    }

    fn set(&self, out: &mut Vec<u8>, name: &[u8]) {
        if self.way.items() {
            memcached::store(out, b"set", name, &self.value);
        } else {
            resp::command(out, &[b"SET", name, &self.value]);
        }
    }

    fn get(&self, out: &mut Vec<u8>, name: &[u8]) {
        if self.way.items() {
            memcached::get(out, &[name]);
        } else {
            resp::command(out, &[b"GET", name]);
        }
    }

    /// The next value of the answers, which must be there.
    fn take<'i>(&self, input: &'i mut Input) -> io::Result<&'i [u8]> {
        if self.way.items() {
            memcached::value(input)?.ok_or_else(|| bad("a key is missing"))
        } else {
            resp::string(input)
        }
    }

    /// What stands behind one value.
    fn end(&self, input: &mut Input) -> io::Result<()> {
        if self.way.items() { memcached::end(input) } else { Ok(()) }
    }

    /// Asks for one access.
    #[inline]
    fn ask(&mut self, access: Access, out: &mut Vec<u8>) {
        let Access { key, write } = access;
        let silent = self.operation == Operation::ChangeNoreply;
        if self.operation == Operation::Count {
            return self.ask_count(key, out);
        }
        if self.way.plain() {
            return self.get(out, &object(key));
        }
        let filtered = if write { 0 } else { CHANGE_BYTES - FILTER_BYTES };
        let place = self.place(key) + filtered;
        let mut param = [0; 4 + CHANGE_BYTES];
        param[..4].copy_from_slice(&(place as u32).to_le_bytes());
        let change = &mut self.changes[key as usize];
        if write {
            *change += 1;
            param[4..].copy_from_slice(&written(*change));
        }
        let param = &param[..if write { param.len() } else { 4 }];
        let name = object(key);
        match self.way {
            Way::Call if !write => resp::command(out, &[b"FN.CALL", b"f.field", &name, param]),
            Way::Call if silent => {
                resp::command(out, &[b"FN.CALL", b"f.put", &name, b"UPDATE", b"NOREPLY", param]);
            }
            Way::Call => resp::command(out, &[b"FN.CALL", b"f.swap", &name, b"UPDATE", param]),
            Way::Invoke if !write => invoke(out, &name, b" f.field R ", param),
            Way::Invoke if silent => invoke(out, &name, b" f.put U ", param),
            Way::Invoke => invoke(out, &name, b" f.swap UR ", param),
            _ => {
                let at = Key::new(b"").decimal(place as u64);
                let script = match (write, silent) {
                    (true, false) => 0,
                    (true, true) => 1,
                    (false, _) => 2,
                };
                let script = &self.scripts[script];
                if write {
                    resp::command(out, &[b"EVALSHA", script, b"1", &name, &at, &param[4..]]);
                } else {
                    resp::command(out, &[b"EVALSHA", script, b"1", &name, &at]);
                }
            }
        }
    }

    fn ask_count(&mut self, key: u32, out: &mut Vec<u8>) {
        self.counts[key as usize] += 1;
        let name = number(key);
        match self.way {
            Way::Call => resp::command(out, &[b"FN.CALL", b"f.add", &name, b"UPDATE", b"1"]),
            Way::Invoke => invoke(out, &name, b" f.add UR ", b"1"),
            Way::Lua => resp::command(out, &[b"EVALSHA", &self.scripts[3], b"1", &name, b"1"]),
            Way::Plain => resp::command(out, &[b"INCR", &name]),
            Way::PlainItems => {
                for part in [b"incr ", &*name, b" 1\r\n"] {
                    out.extend_from_slice(part);
                }
            }
        }
    }

    /// Takes the answer to one access, and asks for the change of what was read.
    #[inline]
    fn answer(&mut self, access: Access, connection: &mut Connection) -> io::Result<()> {
        let Access { key, write } = access;
        let input = &mut connection.input;
        let differs = || bad("a reply is not what it should be");
        if self.operation == Operation::Count {
            let count = self.counts[key as usize];
            let told = match self.way {
                Way::Plain | Way::Lua => resp::integer(input)? as u64,
                Way::PlainItems => crate::wire::key::number_of(input.line()?).unwrap_or(0),
                Way::Call | Way::Invoke => {
                    let told = crate::wire::key::number_of(self.take(input)?).unwrap_or(0);
                    self.end(input)?;
                    told
                }
            };
            return if told == u64::from(count) { Ok(()) } else { Err(differs()) };
        }
        if !self.way.plain() {
            if write && self.operation == Operation::ChangeNoreply {
                return if self.way == Way::Invoke { Ok(()) } else { resp::skip(input) };
            }
            let change = self.changes[key as usize] - u32::from(write);
            let expected = written(change);
            let expected =
                if write { &expected[..] } else { &expected[CHANGE_BYTES - FILTER_BYTES..] };
            if self.take(input)? != expected {
                return Err(differs());
            }
            return self.end(input);
        }
        let place = self.place(key);
        let bytes = if self.way.items() { memcached::value(input)? } else { resp::bulk(input)? };
        let value = bytes.ok_or_else(|| bad("a key is missing"))?;
        let old = written(self.changes[key as usize]);
        if value.get(place..place + CHANGE_BYTES) != Some(&*old) || value.len() != self.value_bytes
        {
            return Err(differs());
        }
        if write {
            self.value.clear();
            self.value.extend_from_slice(value);
            let change = &mut self.changes[key as usize];
            *change += 1;
            self.value[place..place + CHANGE_BYTES].copy_from_slice(&written(*change));
            let (out, name) = (&mut connection.out, object(key));
            if self.way.items() && self.operation == Operation::ChangeNoreply {
                let length = Key::new(b"").decimal(self.value.len() as u64);
                let parts: [&[u8]; 7] =
                    [b"set ", &name, b" 0 0 ", &length, b" noreply\r\n", &self.value, b"\r\n"];
                parts.iter().for_each(|part| out.extend_from_slice(part));
            } else {
                self.set(out, &name);
            }
        }
        self.end(&mut connection.input)
    }

    /// Whether a batch in this way is ended by a request that is answered in any case.
    fn has_end(&self) -> bool {
        self.way.items() && self.operation == Operation::ChangeNoreply
    }
}

fn invoke(out: &mut Vec<u8>, name: &[u8], how: &[u8], param: &[u8]) {
    let length = Key::new(b"").decimal(param.len() as u64);
    for part in [b"invoke ", name, how, &length, b"\r\n", param, b"\r\n"] {
        out.extend_from_slice(part);
    }
}

impl Driver for Work {
    type Op = Access;

    #[inline]
    fn send(&mut self, lane: usize, batch: &[Access], out: &mut Vec<u8>) {
        self.writing[lane] = false;
        for &access in batch {
            self.ask(access, out);
        }
        if self.has_end() && self.way == Way::Invoke {
            out.extend_from_slice(b"mn\r\n");
        }
    }

    #[inline]
    fn receive(
        &mut self,
        lane: usize,
        batch: &[Access],
        connection: &mut Connection,
    ) -> Result<bool> {
        if self.writing[lane] {
            // The answers to what was written.
            if !self.has_end() {
                for _ in batch.iter().filter(|access| access.write) {
                    let input = &mut connection.input;
                    if self.way.items() { memcached::stored(input)? } else { resp::skip(input)? }
                }
                return Ok(false);
            }
        } else {
            for &access in batch {
                self.answer(access, connection)?;
            }
            let counts = self.operation == Operation::Count;
            if self.way.plain() && !counts && batch.iter().any(|access| access.write) {
                self.writing[lane] = true;
                if self.has_end() {
                    connection.out.extend_from_slice(b"mn\r\n");
                }
                return Ok(true);
            }
        }
        if self.has_end() && connection.input.line()? != b"MN" {
            return Err(bad("an answer where none was wanted").into());
        }
        Ok(false)
    }
}
