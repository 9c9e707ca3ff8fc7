//! The look-aside client: reads, writes what was missing, and counts.
//!
//! What is missing is written with the next batch, before its reads. So a batch ends before a
//! request to an object that it has already, unless the object was there when it was last asked
//! for: each read finds what a client that waits after every request would have found. The
//! exception keeps batches long, for there are objects in every tenth request; it is wrong where
//! an object was evicted meanwhile, and asked for twice in a batch.

use crate::peer::stop;
use crate::wire::{Connection, Key, resp};
use anyhow::Result;
use core::time::Duration;
use headwater_workload::Rng;
use headwater_workload::trace::{Operation, Trace};
use indicatif::ProgressBar;
use std::time::Instant;

/// One value in so many is compared byte by byte.
const LOOK: u64 = 64;
/// Offsets at which values start in the filler.
const STARTS: usize = 4096;

/// What a replay found.
#[derive(Clone, Copy, PartialEq, Default, Debug)]
pub struct Found {
    /// Reads.
    pub reads: u64,
    /// Reads that found the object.
    pub hits: u64,
    /// Bytes of all values that were read or should have been.
    pub bytes: u64,
    /// Bytes of those that were found.
    pub bytes_hit: u64,
    /// Values that are not what was written last.
    pub wrong: u64,
    /// Values that the server did not take, as too large a part of its memory.
    pub refused: u64,
}

impl Found {
    /// Hits of reads.
    #[must_use]
    pub fn ratio(&self) -> f64 {
        self.hits as f64 / self.reads.max(1) as f64
    }

    /// Bytes found of bytes asked for.
    #[must_use]
    pub fn byte_ratio(&self) -> f64 {
        self.bytes_hit as f64 / self.bytes.max(1) as f64
    }
}

/// Replays a trace; one for all runs.
#[derive(Debug)]
pub struct Replay<'t> {
    trace: &'t Trace,
    filler: Vec<u8>,
    digits: usize,
    pipeline: usize,
    /// The bytes of what was last written for each object; 0: nothing.
    written: Vec<u32>,
    /// The batch in which an object last occurred.
    batch: Vec<u32>,
    /// Whether it was there then, or was written.
    there: Vec<bool>,
}

impl<'t> Replay<'t> {
    /// Up to `pipeline` requests go at once.
    #[must_use]
    pub fn new(trace: &'t Trace, pipeline: usize) -> Self {
        let longest = trace.requests.iter().map(|request| request.value_bytes).max().unwrap_or(0);
        let mut rng = Rng::new(7);
        let filler = (0..longest as usize + STARTS).map(|_| b'a' + rng.below(26) as u8).collect();
        let objects = trace.objects as usize;
        Self {
            trace,
            filler,
            // `k:` and the number.
            digits: trace.key_bytes.clamp(12, 90) - 2,
            pipeline,
            written: vec![0; objects],
            batch: vec![u32::MAX; objects],
            there: vec![false; objects],
        }
    }

    /// The hits of a cache that holds everything.
    #[must_use]
    pub fn hits_max(&self) -> u64 {
        let mut known = vec![false; self.trace.objects as usize];
        let mut hits = 0;
        for request in &self.trace.requests {
            let known = &mut known[request.object as usize];
            hits += u64::from(*known && request.operation == Operation::Get);
            *known = request.operation != Operation::Delete;
        }
        hits
    }

    fn name(&self, object: u32) -> Key {
        Key::new(b"k:").number(u64::from(object), self.digits)
    }

    fn value(&self, object: u32, bytes: u32) -> &[u8] {
        let at = object as usize % STARTS;
        &self.filler[at..at + bytes as usize]
    }

    fn write(&mut self, out: &mut Vec<u8>, object: u32, bytes: u32) {
        resp::command(out, &[b"SET", &self.name(object), self.value(object, bytes)]);
        self.written[object as usize] = bytes;
    }

    /// Where the batch that starts at `first` ends.
    fn end(&mut self, first: usize) -> usize {
        let last = (first + self.pipeline).min(self.trace.requests.len());
        for (at, request) in self.trace.requests[first..last].iter().enumerate() {
            let batch = &mut self.batch[request.object as usize];
            if *batch == first as u32 && !self.there[request.object as usize] {
                return first + at;
            }
            *batch = first as u32;
        }
        last
    }

    /// Replays the whole trace, `speed` times as fast as it was recorded, or as fast as the
    /// server can.
    ///
    /// # Errors
    /// The connection fails, the server refuses, or we are interrupted.
    pub fn run(
        &mut self,
        connection: &mut Connection,
        speed: Option<f64>,
        bar: &ProgressBar,
    ) -> Result<Found> {
        self.written.fill(0);
        self.batch.fill(u32::MAX);
        self.there.fill(false);
        let begun = Instant::now();
        let requests = &self.trace.requests;
        let mut found = Found::default();
        let mut missing: Vec<(u32, u32)> = Vec::new();
        let (mut first, mut batches) = (0, 0u32);
        while first < requests.len() {
            if let Some(speed) = speed {
                let due = Duration::from_secs_f64(f64::from(requests[first].time_s) / speed);
                std::thread::sleep(due.saturating_sub(begun.elapsed()));
            }
            for &(object, bytes) in &missing {
                self.write(&mut connection.out, object, bytes);
            }
            let end = self.end(first);
            for request in &requests[first..end] {
                let name = self.name(request.object);
                match request.operation {
                    Operation::Get => resp::command(&mut connection.out, &[b"GET", &name]),
                    Operation::Delete => resp::command(&mut connection.out, &[b"DEL", &name]),
                    Operation::Set => {
                        self.write(&mut connection.out, request.object, request.value_bytes);
                    }
                }
            }
            connection.flush()?;
            for _ in missing.drain(..) {
                found.refused += u64::from(!resp::done(&mut connection.input)?);
            }
            for request in &requests[first..end] {
                if request.operation != Operation::Get {
                    let done = resp::done(&mut connection.input)?;
                    let set = request.operation == Operation::Set;
                    found.refused += u64::from(!done);
                    self.there[request.object as usize] = set && done;
                    continue;
                }
                found.reads += 1;
                let value = resp::bulk(&mut connection.input)?;
                self.there[request.object as usize] = value.is_some();
                let Some(value) = value else {
                    found.bytes += u64::from(request.value_bytes);
                    missing.push((request.object, request.value_bytes));
                    continue;
                };
                found.hits += 1;
                found.bytes += value.len() as u64;
                found.bytes_hit += value.len() as u64;
                let bytes = self.written[request.object as usize];
                let wrong = value.len() != bytes as usize
                    || found.hits.is_multiple_of(LOOK)
                        && value != self.value(request.object, bytes);
                found.wrong += u64::from(wrong);
            }
            first = end;
            batches += 1;
            if batches.is_multiple_of(256) {
                stop::check()?;
                bar.set_position(first as u64);
            }
        }
        bar.set_position(first as u64);
        Ok(found)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn batches_end_before_an_object_comes_again() {
        let text = "0,a,1\n0,b,1\n0,a,1\n0,c,1\n0,b,1\n0,d,1\n0,e,1\n";
        let trace = Trace::parse("t", text.as_bytes()).unwrap();
        let mut replay = Replay::new(&trace, 3);
        let mut ends = vec![0];
        while ends.last() != Some(&7) {
            let next = replay.end(*ends.last().unwrap());
            ends.push(next);
        }
        assert_eq!(ends, [0, 2, 5, 7]);
        assert_eq!(replay.hits_max(), 2);
    }
}
