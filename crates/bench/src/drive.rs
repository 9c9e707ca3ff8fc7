//! The generator's loop: many connections, many requests in flight on each.
//!
//! A *lane* is a connection with its operations, cut into batches. All requests of a batch
//! are sent with one write; its replies are read when the loop comes round again. While it
//! is with one lane the server works for the others, so one thread without any readiness
//! calls keeps a server busy, at less cost than an event loop.
//!
//! # Invariants
//! - D1. Operations of one user are on one lane and never twice in one batch, so each sees
//!   what the ones before it did.
//! - D2. A lane has one batch in flight at most; an operation that needs several round trips
//!   (look up the followers, then write to each) makes its batch go round again.

use crate::peer::stop;
use crate::wire::Connection;
use anyhow::Result;
use core::ops::Range;
use core::time::Duration;
use indicatif::ProgressBar;
use std::time::Instant;

/// How a system is asked to do operations.
pub trait Driver {
    /// One operation.
    type Op;

    /// Writes the first requests of a batch.
    fn send(&mut self, lane: usize, batch: &[Self::Op], out: &mut Vec<u8>);

    /// Reads the replies of a batch; `true` if it wrote further requests to `out`.
    ///
    /// # Errors
    /// The connection fails, or the server refuses or answers wrongly.
    fn receive(
        &mut self,
        lane: usize,
        batch: &[Self::Op],
        connection: &mut Connection,
    ) -> Result<bool>;
}

/// What each lane does, batch by batch.
#[derive(Clone, Debug)]
pub struct Schedule<Op> {
    lanes: Vec<Lane<Op>>,
}

#[derive(Clone, Debug)]
struct Lane<Op> {
    ops: Vec<Op>,
    /// Where each batch ends.
    ends: Vec<usize>,
}

impl<Op> Schedule<Op> {
    /// Deals operations to `lanes` by `key` (the user), and cuts each lane into batches of at
    /// most `pipeline` operations with different keys (D1).
    #[must_use]
    pub fn deal(
        ops: impl IntoIterator<Item = Op>,
        lanes: usize,
        pipeline: usize,
        key: impl Fn(&Op) -> u32,
    ) -> Self {
        let empty = || Lane { ops: Vec::new(), ends: Vec::new() };
        let mut dealt: Vec<Lane<Op>> = (0..lanes).map(|_| empty()).collect();
        for op in ops {
            dealt[key(&op) as usize % lanes].ops.push(op);
        }
        for lane in &mut dealt {
            let mut first = 0;
            for at in 0..lane.ops.len() {
                let batch = &lane.ops[first..at];
                let here = key(&lane.ops[at]);
                if batch.len() == pipeline || batch.iter().any(|op| key(op) == here) {
                    lane.ends.push(at);
                    first = at;
                }
            }
            if first < lane.ops.len() {
                lane.ends.push(lane.ops.len());
            }
        }
        Self { lanes: dealt }
    }

    /// The same schedule of other operations.
    #[must_use]
    pub fn map<Other>(self, mut change: impl FnMut(Op) -> Other) -> Schedule<Other> {
        let lanes = self.lanes.into_iter().map(|lane| Lane {
            ops: lane.ops.into_iter().map(&mut change).collect(),
            ends: lane.ends,
        });
        Schedule { lanes: lanes.collect() }
    }

    /// How many operations there are in all.
    #[must_use]
    pub fn operations(&self) -> u64 {
        self.lanes.iter().map(|lane| lane.ops.len() as u64).sum()
    }

    /// The operations, lane by lane.
    pub fn all(&self) -> impl Iterator<Item = &Op> + Clone {
        self.lanes.iter().flat_map(|lane| &lane.ops)
    }

    fn batch(&self, lane: usize, number: usize) -> Option<Range<usize>> {
        let ends = &self.lanes[lane].ends;
        let end = *ends.get(number)?;
        Some(if number == 0 { 0..end } else { ends[number - 1]..end })
    }
}

/// Does all operations, or as many as fit into `limit`; gives their number.
///
/// # Errors
/// A connection fails, the server refuses, or we are interrupted.
pub fn drive<D: Driver>(
    driver: &mut D,
    connections: &mut [Connection],
    schedule: &Schedule<D::Op>,
    limit: Option<Duration>,
    bar: &ProgressBar,
) -> Result<u64> {
    let begun = Instant::now();
    let lanes = schedule.lanes.len();
    let mut next = vec![0; lanes];
    let mut in_flight: Vec<Option<Range<usize>>> = vec![None; lanes];
    let mut start = |driver: &mut D, lane: usize, connection: &mut Connection| {
        let Some(range) = schedule.batch(lane, next[lane]) else { return Ok(None) };
        next[lane] += 1;
        driver.send(lane, &schedule.lanes[lane].ops[range.clone()], &mut connection.out);
        connection.flush().map(|()| Some(range))
    };
    for (lane, connection) in connections.iter_mut().enumerate().take(lanes) {
        connection.hurry()?;
        in_flight[lane] = start(driver, lane, connection)?;
    }
    let mut done = 0u64;
    let mut shown = 0u64;
    while in_flight.iter().any(Option::is_some) {
        let over = limit.is_some_and(|limit| begun.elapsed() >= limit);
        for (lane, connection) in connections.iter_mut().enumerate().take(lanes) {
            let Some(range) = in_flight[lane].clone() else { continue };
            if driver.receive(lane, &schedule.lanes[lane].ops[range.clone()], connection)? {
                connection.flush()?;
                continue;
            }
            done += range.len() as u64;
            in_flight[lane] = if over { None } else { start(driver, lane, connection)? };
        }
        stop::check()?;
        // The bar takes a lock and the clock: not every round.
        if done - shown > 4096 {
            shown = done;
            bar.set_position(done);
        }
    }
    bar.set_position(done);
    Ok(done)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn batches_hold_no_user_twice_and_lose_nothing() {
        let users = [0, 2, 4, 0, 2, 6, 8, 10, 1, 1, 3];
        let schedule = Schedule::deal(users, 2, 3, |&user| user);
        let batches = |lane: usize| -> Vec<Vec<u32>> {
            (0..)
                .map_while(|number| schedule.batch(lane, number))
                .map(|range| schedule.lanes[lane].ops[range].to_vec())
                .collect()
        };
        assert_eq!(batches(0), [vec![0, 2, 4], vec![0, 2, 6], vec![8, 10]]);
        assert_eq!(batches(1), [vec![1], vec![1, 3]]);
        assert_eq!(schedule.operations(), 11);
    }
}
