//! Clients at work: as fast as answers come, or at given moments.

use super::site::{Client, Site};
use super::world::Post;
use crate::peer::stop;
use anyhow::{Context, Result};
use core::time::Duration;
use std::io;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

/// One acknowledgement.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Answer {
    /// Which of the posts.
    pub post: usize,
    /// When it was due, in seconds since the start.
    pub due: f64,
    /// How long it took from then on, in milliseconds.
    pub took: f64,
}

/// What came of a load.
#[derive(Clone, Debug, Default)]
pub struct Answered {
    /// The acknowledgements, in no order.
    pub answers: Vec<Answer>,
    /// Posts that were refused.
    pub refused: usize,
    /// Clients whose connection broke.
    pub broken: usize,
    /// Seconds from the first post to the last acknowledgement.
    pub seconds: f64,
}

impl Answered {
    /// The time that a share of the acknowledgements took at most, in milliseconds.
    #[must_use]
    pub fn within(&self, share: f64) -> f64 {
        let mut took: Vec<f64> = self.answers.iter().map(|answer| answer.took).collect();
        took.sort_by(f64::total_cmp);
        let at = ((took.len() as f64 * share).ceil() as usize).clamp(1, took.len().max(1)) - 1;
        took.get(at).copied().unwrap_or(0.0)
    }
}

/// The moments of posts at a constant rate for so many seconds, from `after` on.
pub fn moments(due: &mut Vec<Duration>, after: f64, seconds: f64, rate: f64) {
    let count = (seconds * rate) as usize;
    due.extend((0..count).map(|at| Duration::from_secs_f64(after + at as f64 / rate)));
}

/// Has `connections` clients post. With moments, a post waits for its own, and its time counts from there, whether a
/// client was free or not.
///
/// # Errors
/// A client cannot connect, or we were interrupted.
pub fn run(
    site: &Site<'_>,
    posts: &[Post],
    due: Option<&[Duration]>,
    connections: usize,
) -> Result<Answered> {
    let mut clients = Vec::new();
    for number in 0..connections {
        clients.push(site.client(number)?);
    }
    let (next, all) = (AtomicUsize::new(0), Mutex::new(Answered::default()));
    let begun = Instant::now();
    std::thread::scope(|scope| {
        for mut client in clients {
            let (next, all) = (&next, &all);
            scope.spawn(move || {
                let done = one(&mut client, posts, due, next, begun);
                let mut all = all.lock().unwrap_or_else(|broken| broken.into_inner());
                all.answers.extend(done.answers);
                all.refused += done.refused;
                all.broken += done.broken;
            });
        }
    });
    stop::check()?;
    let mut all = all.into_inner().unwrap_or_else(|broken| broken.into_inner());
    all.seconds = begun.elapsed().as_secs_f64();
    all.answers.first().context("nothing was acknowledged")?;
    Ok(all)
}

fn one(
    client: &mut Client<'_>,
    posts: &[Post],
    due: Option<&[Duration]>,
    next: &AtomicUsize,
    begun: Instant,
) -> Answered {
    let mut done = Answered::default();
    loop {
        let at = next.fetch_add(1, Ordering::Relaxed);
        let Some(post) = posts.get(at) else { return done };
        let from = match due {
            Some(due) => {
                let moment = begun + due[at];
                std::thread::sleep(moment.saturating_duration_since(Instant::now()));
                moment
            }
            None => Instant::now(),
        };
        match client.post(post) {
            Ok(()) => done.answers.push(Answer {
                post: at,
                due: (from - begun).as_secs_f64(),
                took: from.elapsed().as_secs_f64() * 1e3,
            }),
            Err(error) if error.kind() == io::ErrorKind::InvalidData => done.refused += 1,
            Err(_) => {
                done.broken += 1;
                return done;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{Answer, Answered};

    #[test]
    fn shares_of_answers() {
        let answers = (1..=100).map(|took| Answer { post: 0, due: 0.0, took: f64::from(took) });
        let answered = Answered { answers: answers.rev().collect(), ..Answered::default() };
        assert_eq!(answered.within(0.5), 50.0);
        assert_eq!(answered.within(0.99), 99.0);
        assert_eq!(answered.within(1.0), 100.0);
        assert_eq!(Answered::default().within(0.5), 0.0);
    }
}
