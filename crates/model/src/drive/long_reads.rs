//! Each range that is read is read a second time, in slices between the operations that follow: it must give the same
//! pairs, whatever becomes of them in the meantime.

use crate::subject::Pair;
use core::ops::ControlFlow;
use headwater_base::KeyRange;
use headwater_engine::{Engine, Evicted, RangeOptions, ReadProgress, Stop, Ticket, Value};
use headwater_script::bytes::escape;

/// Reads at once; where there are as many, no further one is begun.
const MOST: usize = 3;
/// A range that is not read after so many slices is left alone.
const RUNS_MAX: usize = 200;

struct SlowRead {
    ticket: Ticket,
    expected: Vec<Pair>,
    given: Vec<Pair>,
}

/// The reads under way.
#[derive(Default)]
pub(super) struct SlowReads(Vec<SlowRead>);

impl SlowReads {
    /// Begins to read a range again that was read just now, unless reading it has had more evicted than there was then.
    pub(super) fn begin(
        &mut self,
        engine: &mut Engine,
        (range, options): (&KeyRange, RangeOptions),
        (expected, evicted): (&[Pair], Evicted),
    ) -> Result<(), String> {
        if self.0.len() >= MOST || expected.is_empty() {
            return Ok(());
        }
        engine.begin_slice();
        if engine.at_once().is_some()
            && has_read(engine, range, options)
            && engine.evicted() == evicted
        {
            engine.begin_long_read(&range.first, &range.last, options);
            let ticket = engine.next_ticket();
            let expected = expected.to_vec();
            let mut read = SlowRead { ticket, expected, given: Vec::new() };
            // The first slice only counts.
            read.slice(engine)?;
            self.0.push(read);
        }
        engine.end_slice();
        Ok(())
    }

    /// The next slice of each.
    pub(super) fn go_on(&mut self, engine: &mut Engine) -> Result<(), String> {
        for mut read in std::mem::take(&mut self.0) {
            engine.begin_slice();
            engine.resume(read.ticket);
            // One that has only counted begins anew when all keys were removed: nothing is left of it.
            let goes_on = engine.goes_on_reading() && read.slice(engine)?;
            engine.end_slice();
            if goes_on {
                self.0.push(read);
            }
        }
        Ok(())
    }
}

/// Reads the range in the operation under way, or in one of a few that follow it; whether it could be read.
fn has_read(engine: &mut Engine, range: &KeyRange, options: RangeOptions) -> bool {
    for _ in 0..RUNS_MAX {
        let mut none = |_: &[u8], _: Value<'_>| ControlFlow::Break(());
        match engine.range_until(&range.first, &range.last, options, &mut none) {
            Ok(_) => return true,
            Err(Stop::Failed(_)) => return false,
            Err(Stop::Wait(ticket)) => {
                engine.end_slice();
                engine.forget_later(ticket);
                engine.begin_slice();
                engine.resume(ticket);
            }
        }
    }
    false
}

impl SlowRead {
    /// Whether it goes on.
    fn slice(&mut self, engine: &mut Engine) -> Result<bool, String> {
        let given = &mut self.given;
        let progress =
            engine.go_on_reading(&mut |key, value| given.push((key.to_vec(), value.to_vec())));
        match progress {
            ReadProgress::Counting(ticket) | ReadProgress::Given(ticket) => {
                self.ticket = ticket;
                return Ok(true);
            }
            ReadProgress::Counted(count, ticket) => {
                self.ticket = ticket;
                let expected = self.expected.len() as u64;
                if count != expected {
                    return Err(format!("a long read counts {count} pairs of {expected}"));
                }
                return Ok(true);
            }
            // All of the range has gone at once.
            ReadProgress::GivenUp { .. } => {}
            ReadProgress::Done if *self.given == self.expected => {}
            ReadProgress::Done => {
                let shown = |pairs: &[Pair]| {
                    let line =
                        |(key, value): &Pair| format!("\n    {} = {}", escape(key), escape(value));
                    pairs.iter().map(line).collect::<String>()
                };
                let (given, expected) = (shown(&self.given), shown(&self.expected));
                return Err(format!("a long read gives{given}\n  expected{expected}"));
            }
        }
        Ok(false)
    }
}
