//! The engine within a memory bound that is reached again and again, by chance: others in the process take memory and give it back.
//!
//! So what can be evicted is, at any moment at which room is made, and writes and reads are refused for want of memory in
//! earnest. A refused write has changed nothing; a refused read is answered when there is memory again.

use crate::functions::Doubles;
use crate::rng::Rng;
use crate::subject::{Pair, Subject};
use headwater_base::hash::Secret;
use headwater_base::memory::Meter;
use headwater_base::{KeyRange, Millis};
use headwater_engine::{
    Difference, Engine, EngineError, Expiry, Follower, JoinInstalled, RangeOptions, Settings, Stop,
    Value,
};
use std::cell::RefCell;
use std::rc::Rc;

/// What the engine may take.
const LIMIT: usize = 1 << 20;
/// What a write asks for besides its bytes.
const WRITE_BYTES: usize = 512;

/// What others take now.
#[derive(Debug)]
struct Others {
    rng: RefCell<Rng>,
    /// How often of a hundred looks there is no room; 0: there always is.
    percent: RefCell<usize>,
}

impl Meter for Others {
    fn used(&self) -> usize {
        let mut rng = self.rng.borrow_mut();
        if !rng.chance(*self.percent.borrow()) {
            return 0;
        }
        // A little is left, or nothing.
        if rng.chance(50) { LIMIT - 1 - rng.below(3000) } else { LIMIT + 1 }
    }
}

/// An engine for which memory is short.
pub struct Pressed {
    engine: Engine,
    others: Rc<Others>,
    percent: usize,
    /// Writes that were refused.
    refused: u64,
}

impl Pressed {
    /// An engine for which there is no room so often in a hundred looks.
    #[must_use]
    pub fn new(percent: usize) -> Self {
        let mut engine =
            Engine::new(Settings { secret: Secret::fixed(7), draws: 7, ..Settings::default() });
        engine.set_functions(Box::new(Doubles));
        let rng = RefCell::new(Rng::new(percent as u64));
        let others = Rc::new(Others { rng, percent: RefCell::new(0) });
        engine.set_memory(others.clone(), Some(LIMIT));
        Self { engine, others, percent, refused: 0 }
    }

    /// How many writes were refused.
    #[must_use]
    pub fn refused(&self) -> u64 {
        self.refused
    }

    /// Does something while memory is short.
    fn short<T>(&mut self, operation: impl FnOnce(&mut Engine) -> T) -> T {
        *self.others.percent.borrow_mut() = self.percent;
        let done = operation(&mut self.engine);
        *self.others.percent.borrow_mut() = 0;
        done
    }

    /// A write: room is made for it first.
    fn write<T, E: From<EngineError>>(
        &mut self,
        bytes: usize,
        operation: impl FnOnce(&mut Engine) -> Result<T, E>,
    ) -> Result<T, E> {
        let done = self.short(|engine| {
            if !engine.make_room_for(WRITE_BYTES, bytes) {
                return None;
            }
            Some(operation(engine))
        });
        done.unwrap_or_else(|| {
            self.refused += 1;
            Err(EngineError::OutOfMemory.into())
        })
    }

    /// A read, which is answered sooner or later.
    fn read<T>(
        &mut self,
        mut operation: impl FnMut(&mut Engine) -> Result<T, Stop>,
    ) -> Result<T, Stop> {
        let read = self.short(|engine| {
            loop {
                match operation(engine) {
                    Err(Stop::Failed(EngineError::OutOfMemory)) if engine.make_room_again() => {}
                    done => return done,
                }
            }
        });
        match read {
            Err(Stop::Failed(EngineError::OutOfMemory)) => operation(&mut self.engine),
            read => read,
        }
    }
}

impl Subject for Pressed {
    fn engine(&mut self) -> &mut Engine {
        &mut self.engine
    }
    fn may_run_out(&mut self) -> bool {
        true
    }
    fn advance(&mut self, now: Millis) {
        self.short(|engine| engine.advance(now));
    }
    fn get(&mut self, key: &[u8]) -> Result<Option<Vec<u8>>, Stop> {
        self.read(|engine| Ok(engine.get(key)?.map(|value| value.to_vec())))
    }
    fn set(&mut self, key: &[u8], value: &[u8], expiry: Expiry) -> Result<(), EngineError> {
        self.write(value.len(), |engine| engine.set(key, value, expiry))
    }
    fn append(&mut self, key: &[u8], tail: &[u8]) -> Result<usize, Stop> {
        self.write(tail.len(), |engine| engine.append(key, tail))
    }
    fn remove(&mut self, key: &[u8]) -> Result<bool, Stop> {
        self.short(|engine| engine.remove(key))
    }
    fn set_all(&mut self, pairs: &[(Vec<u8>, Vec<u8>)]) -> Result<(), Stop> {
        for (key, _) in pairs {
            self.check(key)?;
        }
        let bytes = pairs.iter().map(|(key, value)| key.len() + value.len() + WRITE_BYTES).sum();
        self.write(bytes, |engine| {
            for (key, value) in pairs {
                engine.set(key, value, Expiry::Never)?;
            }
            Ok(())
        })
    }
    fn rename(&mut self, from: &[u8], to: &[u8]) -> Result<bool, Stop> {
        let Some(value) = self.get(from)? else { return Ok(false) };
        self.check(from)?;
        if from == to {
            return Ok(true);
        }
        let expires = self.expiry(from)?.flatten();
        self.write(value.len(), |engine| {
            engine.set(to, &value, expires.map_or(Expiry::Never, Expiry::At))?;
            engine.remove(from)
        })?;
        Ok(true)
    }
    fn set_expiry(&mut self, key: &[u8], at: Option<Millis>) -> Result<bool, Stop> {
        self.short(|engine| engine.set_expiry(key, at))
    }
    fn expiry(&mut self, key: &[u8]) -> Result<Option<Option<Millis>>, Stop> {
        self.read(|engine| engine.expiry(key))
    }
    fn range(
        &mut self,
        first: &[u8],
        last: &[u8],
        options: RangeOptions,
    ) -> Result<Vec<Pair>, Stop> {
        self.read(|engine| {
            let mut pairs = Vec::new();
            let mut each =
                |key: &[u8], value: Value<'_>| pairs.push((key.to_vec(), value.to_vec()));
            engine.range(first, last, options, &mut each)?;
            Ok(pairs)
        })
    }
    fn remove_range(&mut self, first: &[u8], last: &[u8]) -> Result<u64, Stop> {
        self.short(|engine| engine.remove_range(first, last))
    }
    fn watch(&mut self, key: &[u8]) -> Result<u64, Stop> {
        self.read(|engine| engine.watch(key))
    }
    fn watched(&mut self, key: &[u8]) -> Result<u64, Stop> {
        self.read(|engine| engine.watched(key))
    }
    fn follow(&mut self, by: u32, range: &KeyRange) -> Result<Vec<Pair>, Stop> {
        self.read(|engine| {
            engine.follow(range, Follower(by))?;
            let mut pairs = Vec::new();
            let mut each =
                |key: &[u8], value: Value<'_>| pairs.push((key.to_vec(), value.to_vec()));
            engine.range(&range.first, &range.last, RangeOptions::default(), &mut each)?;
            Ok(pairs)
        })
    }
    fn join_add(
        &mut self,
        name: &str,
        text: &str,
        replace: bool,
    ) -> Result<JoinInstalled, EngineError> {
        self.short(|engine| engine.join_add(name, text, replace))
    }
    fn verify(&mut self, range: &KeyRange, most: usize) -> Result<Vec<Difference>, Stop> {
        self.read(|engine| engine.verify(range, most))
    }
}
