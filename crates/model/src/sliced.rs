//! The engine whose reads are done in slices of a few rows.

use crate::subject::{Pair, Plain, Subject};
use headwater_base::{KeyRange, Millis};
use headwater_engine::{Difference, Engine, RangeOptions, Stop};

/// How many slices one read may take: far more than the small data of histories is worth.
const SLICES_MAX: usize = 10_000;

/// The engine, with reads that end after a few rows and go on later.
pub struct Sliced {
    engine: Plain,
    /// Whether all slices of a read follow each other at once; otherwise other things happen between them.
    at_once: bool,
    reads: u64,
}

impl Sliced {
    /// Reads go on when [`Engine::go_on`] is called: for histories with sources, in which reads wait anyway.
    #[must_use]
    pub fn with_others_between(rows: usize) -> Self {
        let mut engine = Plain::default();
        engine.engine().set_slice(Some(rows));
        Self { engine, at_once: false, reads: 0 }
    }

    /// Reads go on at once: for histories in which none may wait.
    #[must_use]
    pub fn at_once(rows: usize) -> Self {
        Self { at_once: true, ..Self::with_others_between(rows) }
    }

    fn sliced<R>(
        &mut self,
        mut run: impl FnMut(&mut Engine) -> Result<R, Stop>,
    ) -> Result<R, Stop> {
        self.reads += 1;
        // So reads meet large fan-outs that have not begun, are under way, and have ended.
        if self.at_once && self.reads.is_multiple_of(3) {
            self.engine.engine().go_on();
        }
        for _ in 0..SLICES_MAX {
            let engine = self.engine.engine();
            engine.begin_slice();
            let result = run(engine);
            engine.end_slice();
            match result {
                Err(Stop::Wait(ticket)) if self.at_once && engine.goes_on() => {
                    engine.forget_later(ticket);
                    engine.resume(ticket);
                }
                result => return result,
            }
        }
        panic!("a read does not end within {SLICES_MAX} slices");
    }
}

impl Subject for Sliced {
    fn engine(&mut self) -> &mut Engine {
        self.engine.engine()
    }

    fn get(&mut self, key: &[u8]) -> Result<Option<Vec<u8>>, Stop> {
        self.sliced(|engine| Ok(engine.get(key)?.map(|value| value.to_vec())))
    }

    fn expiry(&mut self, key: &[u8]) -> Result<Option<Option<Millis>>, Stop> {
        self.sliced(|engine| engine.expiry(key))
    }

    fn range(
        &mut self,
        first: &[u8],
        last: &[u8],
        options: RangeOptions,
    ) -> Result<Vec<Pair>, Stop> {
        self.sliced(|engine| {
            let mut pairs = Vec::new();
            engine.range(first, last, options, &mut |key, value| {
                pairs.push((key.to_vec(), value.to_vec()));
            })?;
            Ok(pairs)
        })
    }

    fn watch(&mut self, key: &[u8]) -> Result<u64, Stop> {
        self.sliced(|engine| engine.watch(key))
    }

    fn watched(&mut self, key: &[u8]) -> Result<u64, Stop> {
        self.sliced(|engine| engine.watched(key))
    }

    fn verify(&mut self, range: &KeyRange, most: usize) -> Result<Vec<Difference>, Stop> {
        self.sliced(|engine| engine.verify(range, most))
    }
}
