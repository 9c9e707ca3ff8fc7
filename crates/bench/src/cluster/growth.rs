//! What an operation costs on more nodes: the same timelines on clusters of few and of many shards, one node for each.
//!
//! A tenth of the requests are posts, the others read the newest posts of timelines. They go to all nodes in turn, so that most of them are passed on to the node that owns the
//! key, and what a node posts goes to those whose timelines show it. CPU that nodes use anyway, for leases and looks at who is there, is measured before each round,
//! and does not count.

use super::Figure;
use super::site::{Site, ask};
use crate::args::Common;
use crate::measure::stats::spread;
use crate::peer::stop;
use crate::wire::{Connection, Key, resp};
use anyhow::{Context, Result, bail};
use core::time::Duration;
use indicatif::ProgressBar;
use std::path::Path;
use std::time::Instant;

/// Users, and how many others each of them follows.
const USERS: u64 = 2000;
const FOLLOWED: u64 = 10;
/// Posts of each at the beginning.
const POSTS: u64 = 5;
/// One in this many requests is a post; the others read.
const ONE_POST_IN: u64 = 10;
/// Requests under way over each connection.
const PIPELINE: u64 = 16;
/// For how long a cluster is measured at a time, in seconds.
const SECONDS: f64 = 4.0;
/// How many nodes are compared with how many.
const MANY: usize = 12;
const FEW: usize = 3;

/// A cluster that is measured again and again.
struct MeasuredCluster {
    site: Site,
    /// The number of the next request.
    at: u64,
}

/// What a round has found.
#[derive(Clone, Copy)]
struct RequestCost {
    /// CPU of all nodes for a request, in microseconds.
    micros: f64,
    /// Requests a second.
    rate: f64,
}

/// Compares twelve nodes with three, in pairs.
pub(super) fn measure(headwater: &Path, common: &Common, bar: &ProgressBar) -> Result<Figure> {
    bar.set_message(format!("{FEW} and {MANY} nodes start"));
    let mut few = MeasuredCluster::start(headwater, FEW)?;
    let mut many = MeasuredCluster::start(headwater, MANY)?;
    let (mut ratios, mut costs) = (Vec::new(), [Vec::new(), Vec::new()]);
    for round in 0..common.pairs {
        bar.set_message(format!("{FEW} and {MANY} nodes, round {round}"));
        let of = [few.round(common)?, many.round(common)?];
        ratios.push(of[1].micros / of[0].micros);
        costs.iter_mut().zip(of).for_each(|(all, one)| all.push(one.micros));
    }
    few.expect_timelines()?;
    many.expect_timelines()?;
    let middle = |all: &[f64]| spread(all.iter().copied()).map_or(0.0, |it| it.median);
    let ratio = spread(ratios).map_or(String::new(), |it| it.shown(2, ""));
    Ok(Figure {
        name: "posts and timelines through all nodes, CPU of all, 12 ÷ 3 nodes",
        value: format!("{ratio} ({:.1} ÷ {:.1} µs)", middle(&costs[1]), middle(&costs[0])),
        bar: "1.3",
        goal: "1.1",
    })
}

/// A line for each number of nodes: requests a second, and CPU of all nodes for each.
pub(super) fn by_nodes(
    headwater: &Path,
    common: &Common,
    counts: &[usize],
    bar: &ProgressBar,
) -> Result<Vec<Vec<String>>> {
    let mut lines = Vec::new();
    for &count in counts {
        bar.set_message(format!("{count} nodes"));
        let mut measured = MeasuredCluster::start(headwater, count)?;
        let rounds = (0..common.pairs).map(|_| measured.round(common));
        let rounds = rounds.collect::<Result<Vec<_>>>()?;
        measured.expect_timelines()?;
        let told = |of: fn(&RequestCost) -> f64, decimals: usize| {
            spread(rounds.iter().map(of)).map_or(String::new(), |it| it.shown(decimals, ""))
        };
        lines.push(vec![count.to_string(), told(|it| it.rate, 0), told(|it| it.micros, 1)]);
    }
    Ok(lines)
}

impl MeasuredCluster {
    /// Starts a cluster, declares timelines, and loads them.
    fn start(headwater: &Path, nodes: usize) -> Result<Self> {
        let site = Site::start_shards(headwater.to_owned(), nodes)?;
        let join =
            &b"t|<user>|<time>|<poster> = check s|<user>|<poster> copy p|<poster>|<time>"[..];
        let boundary: [&[u8]; 4] = [b"TABLE.SET", b"t", b"BOUNDARY", b"1"];
        let timelines: [&[u8]; 3] = [b"JOIN.ADD", b"timeline", join];
        for words in [&boundary[..], &timelines] {
            // Not all shards are connected at once.
            site.until("all nodes know the join", |site| {
                let answer = ask(site.port(0), words, Duration::from_secs(30)).unwrap_or_default();
                let is_there = answer.windows(6).any(|word| word == b"exists");
                is_there || answer.first().is_some_and(|it| *it != b'-')
            })?;
        }
        let mut connection = Connection::open(site.port(0))?;
        let mut under_way = 0;
        for user in 0..USERS {
            for other in followed(user) {
                let key = [&subscription(user), &poster(other)[..]].concat();
                resp::command(&mut connection.out, &[b"SET", &key, b"1"]);
            }
            for number in 0..POSTS {
                post(&mut connection.out, user + number * USERS);
            }
            read(&mut connection.out, user);
            under_way += FOLLOWED + POSTS + 1;
            if user % 50 == 49 {
                connection.flush()?;
                (0..under_way)
                    .try_for_each(|_| resp::skip(&mut connection.input))
                    .context("loading")?;
                under_way = 0;
            }
        }
        let measured = Self { site, at: POSTS * USERS };
        measured.expect_timelines()?;
        Ok(measured)
    }

    /// Each timeline has the posts of all that its user follows, through whichever node it is read.
    fn expect_timelines(&self) -> Result<()> {
        let mut posts = vec![POSTS; USERS as usize];
        for at in (POSTS * USERS..self.at).filter(|at| is_post(*at)) {
            posts[(post_number(at) % USERS) as usize] += 1;
        }
        for user in (0..USERS).step_by(101) {
            let port = self.site.port(user as usize % self.site.nodes());
            let answer =
                ask(port, &[b"PREFIX", &timeline(user), b"COUNT"], Duration::from_secs(10));
            let answer = answer.unwrap_or_default();
            let expected: u64 = followed(user).map(|it| posts[it as usize]).sum();
            if answer != format!(":{expected}\r\n").as_bytes() {
                bail!("timeline {user} has {}, and is to have {expected}", answer.escape_ascii());
            }
        }
        Ok(())
    }

    /// Some seconds of requests, over connections to all nodes.
    fn round(&mut self, common: &Common) -> Result<RequestCost> {
        let time = Duration::from_secs_f64(SECONDS * common.scale);
        let all = self.site.nodes() * common.connections;
        let ports = (0..all).map(|at| self.site.port(at % self.site.nodes()));
        let mut connections = ports.map(Connection::open).collect::<std::io::Result<Vec<_>>>()?;
        let (begun, before) = (Instant::now(), self.site.cpu_of_all()?);
        std::thread::sleep(time / 4);
        let idle = (self.site.cpu_of_all()? - before).as_secs_f64() / begun.elapsed().as_secs_f64();
        let (begun, before, mut done) = (Instant::now(), self.site.cpu_of_all()?, 0);
        while begun.elapsed() < time {
            stop::check()?;
            for connection in &mut connections {
                for _ in 0..PIPELINE {
                    request(&mut connection.out, self.at);
                    self.at += 1;
                }
                connection.flush()?;
            }
            for connection in &mut connections {
                (0..PIPELINE).try_for_each(|_| resp::skip(&mut connection.input))?;
                done += PIPELINE;
            }
        }
        let (took, cpu) = (begun.elapsed(), self.site.cpu_of_all()? - before);
        Ok(RequestCost {
            micros: (cpu.as_secs_f64() - idle * took.as_secs_f64()) * 1e6 / done as f64,
            rate: done as f64 / took.as_secs_f64(),
        })
    }
}

fn request(out: &mut Vec<u8>, at: u64) {
    if is_post(at) {
        post(out, post_number(at));
    } else {
        read(out, at * 13);
    }
}

fn is_post(at: u64) -> bool {
    at.is_multiple_of(ONE_POST_IN)
}

/// The number of a post that is a request of this number: all users post.
fn post_number(at: u64) -> u64 {
    at + at / USERS
}

/// Whom a user follows.
fn followed(user: u64) -> impl Iterator<Item = u64> {
    (0..FOLLOWED).map(move |number| (user + 1 + number * 7) % USERS)
}

fn poster(user: u64) -> Key {
    Key::new(b"u").number(user % USERS, 5)
}

fn timeline(user: u64) -> Vec<u8> {
    [b"t|", &poster(user)[..], b"|"].concat()
}

fn subscription(user: u64) -> Vec<u8> {
    [b"s|", &poster(user)[..], b"|"].concat()
}

/// The newest posts of a timeline.
fn read(out: &mut Vec<u8>, user: u64) {
    resp::command(out, &[b"PREFIX", &timeline(user), b"REV", b"LIMIT", b"10"]);
}

/// A post whose time is its number.
fn post(out: &mut Vec<u8>, number: u64) {
    let key = [b"p|", &poster(number)[..], b"|", &Key::new(b"").number(number, 10)[..]].concat();
    resp::command(out, &[b"SET", &key, &[b'p'; 100]]);
}
