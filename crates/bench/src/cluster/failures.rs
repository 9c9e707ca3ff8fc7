//! How long clients wait when nodes and NATS servers end.
//!
//! A client asks again and again, each time over a connection of its own, through a node that goes on; the time without answers
//! is the longest between two of them, counted from when the first was received to when the next was.

use super::Figure;
use super::site::{Kind, LOG, MACHINES, Site, ask};
use crate::measure::stats::spread;
use crate::peer::stop;
use anyhow::{Result, bail};
use core::time::Duration;
use indicatif::ProgressBar;
use rustix::process::Signal;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::sleep;
use std::time::Instant;

/// How long one request may take; then the next one is sent.
const PATIENCE: Duration = Duration::from_millis(500);
/// How long clients are watched after something has ended, at least, and before.
const WATCHED: Duration = Duration::from_secs(3);
const BEFORE: Duration = Duration::from_millis(500);
/// How long may pass until all answers again.
const MOST: Duration = Duration::from_secs(60);

/// What ends.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Failure {
    /// The owner's process is killed.
    Owner,
    /// The owner is asked to end.
    Planned,
    /// The NATS server that leads the log is killed, and the owner with it.
    Machine,
}

/// Brings each failure about so many times.
pub(super) fn measure(site: &mut Site, rounds: usize, bar: &ProgressBar) -> Result<Vec<Figure>> {
    let of = |failure: Failure, site: &mut Site| -> Result<(Vec<f64>, Vec<f64>)> {
        let (mut keys, mut views) = (Vec::new(), Vec::new());
        for round in 0..rounds {
            bar.set_message(format!("{failure:?}, round {round}"));
            let (key, view) = bring_about(site, failure)?;
            keys.push(key.as_secs_f64());
            views.push(view.as_secs_f64());
            site.mend()?;
        }
        Ok((keys, views))
    };
    let (killed, views) = of(Failure::Owner, site)?;
    let (planned, _) = of(Failure::Planned, site)?;
    let (machine, _) = of(Failure::Machine, site)?;
    let seconds = |values: Vec<f64>| spread(values).map_or(String::new(), |it| it.shown(2, " s"));
    let figure = |name, values, bar, goal| Figure { name, value: seconds(values), bar, goal };
    Ok(vec![
        figure("owner killed: time without answers", killed, "4.5 s", "3.5 s"),
        figure("views that were warm answer again after", views, "6 s", "4 s"),
        figure("planned end of the owner: longest pause of a client", planned, "500 ms", "100 ms"),
        figure("owner and the log's leader killed: time without answers", machine, "12 s", "7 s"),
    ])
}

/// The longest time between two answers of those that `is_right` says are, until `over`.
fn longest(port: u16, words: &[&[u8]], right: &[u8], over: &AtomicBool) -> Duration {
    let (mut last, mut longest) = (Instant::now(), Duration::ZERO);
    loop {
        let ends = over.load(Ordering::Acquire);
        if ask(port, words, PATIENCE).is_some_and(|answer| answer == right) {
            longest = longest.max(last.elapsed());
            last = Instant::now();
            if ends {
                return longest;
            }
        } else if last.elapsed() > MOST {
            return last.elapsed();
        }
        sleep(Duration::from_millis(2));
    }
}

fn bring_about(site: &mut Site, failure: Failure) -> Result<(Duration, Duration)> {
    let owner = site.owner()?;
    let leader = site.leader(LOG)?;
    let port = site.port((owner + 1) % MACHINES);
    let over = AtomicBool::new(false);
    let timeline: [&[u8]; 3] = [b"PREFIX", b"t|0007|", b"COUNT"];
    let expected = ask(port, &timeline, PATIENCE * 4).unwrap_or_default();
    if !expected.starts_with(b":") || expected == b":0\r\n" {
        bail!("a timeline gives {} before anything ends", expected.escape_ascii());
    }
    let (over, expected) = (&over, &expected);
    let (key, view) = std::thread::scope(|scope| -> Result<(Duration, Duration)> {
        let key: [&[u8]; 2] = [b"EXISTS", b"k|00007"];
        let keys = scope.spawn(move || longest(port, &key, b":1\r\n", over));
        let views = scope.spawn(move || longest(port, &timeline, expected, over));
        sleep(BEFORE);
        let ended = match failure {
            Failure::Owner => site.end(Kind::Node, owner, Signal::KILL),
            Failure::Planned => site.end(Kind::Node, owner, Signal::TERM),
            Failure::Machine => site
                .end(Kind::Nats, leader, Signal::KILL)
                .and_then(|()| site.end(Kind::Node, owner, Signal::KILL)),
        };
        sleep(WATCHED);
        over.store(true, Ordering::Release);
        let times = (keys.join().unwrap_or(MOST), views.join().unwrap_or(MOST));
        ended.map(|()| times)
    })?;
    stop::check()?;
    if key >= MOST || view >= MOST {
        bail!("a minute after {failure:?} ended nothing answers");
    }
    Ok((key, view))
}
