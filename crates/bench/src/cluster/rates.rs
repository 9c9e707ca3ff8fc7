//! What acknowledged writes and reads of a cluster cost, beside what NATS and a single server do.

use super::Figure;
use super::site::{MACHINES, Site};
use crate::args::Common;
use crate::flows::nats;
use crate::measure::stats::spread;
use crate::peer::{Server, System, stop};
use crate::wire::{Connection, Key, resp};
use anyhow::{Context, Result, bail};
use core::time::Duration;
use headwater_workload::{Rng, TweetLengths};
use indicatif::ProgressBar;
use rustix::process::Signal;
use std::time::Instant;

/// Bytes of a value.
const VALUE_BYTES: usize = 100;
/// Writes in a message of NATS's.
const PACKED: usize = 100;
/// Bytes of which values are parts.
const TEXT_BYTES: usize = 1 << 20;
/// Messages of NATS's under way.
const WINDOW: usize = 16;
/// Requests under way over each connection.
const PIPELINE: usize = 128;
/// The same for reads.
const READ_PIPELINE: usize = 16;
/// For how long each rate is measured, in seconds.
const SECONDS: f64 = 4.0;
/// Timelines that are read, and posts in each.
const TIMELINES: u64 = 500;
const POSTS: u64 = 20;

/// Rounds of some seconds each, in turn; medians.
pub(super) fn measure(site: &Site, common: &Common, bar: &ProgressBar) -> Result<Vec<Figure>> {
    let time = Duration::from_secs_f64(SECONDS * common.scale);
    let owner = site.owner()?;
    let other = (owner + 1) % MACHINES;
    prepare(site)?;
    let leader = site.leader("RATE")?;
    load(&mut Connection::open(site.port(owner))?)?;
    let (mut waited, mut forwarded) = (Vec::new(), Vec::new());
    let (mut posts, mut noise) = (WriteRates::of(posts()), WriteRates::of(noise()));
    for round in 0..common.pairs {
        bar.set_message(format!("writes, round {round}"));
        for written in [&mut posts, &mut noise] {
            let text = &written.text;
            let own = publish_packed(site, leader, time, text)?;
            let rate = write(site.port(owner), common.connections, time, text)?;
            written.writes.push(rate);
            written.packed.push(own);
        }
        waited.push(
            median_of_sets(site.port(owner), time)? / median_of_messages(site, leader, time)?,
        );
        bar.set_message(format!("reads, round {round}"));
        let gets = |node: usize| cost(|| site.cpu_of_all(), site.port(node), time, &get);
        forwarded.push(gets(other)? / gets(owner)?);
    }
    let mut single = common.launch(0)?;
    single.pinning = crate::measure::pin::Pinning::Free;
    let server = Server::start(System::Headwater, &single)?;
    load(&mut server.connect()?)?;
    let mut derived = Vec::new();
    for round in 0..common.pairs {
        bar.set_message(format!("timelines, round {round}"));
        let alone = cost(|| server.cpu(), server.port, time, &timeline)?;
        derived.push(cost(|| site.cpu_of_all(), site.port(owner), time, &timeline)? / alone);
    }
    server.signal(Signal::KILL);
    manage(site, "DELETE", "")?;
    let median = |values: Vec<f64>| spread(values).map_or(String::new(), |it| it.shown(2, ""));
    Ok(vec![
        Figure {
            name: "acknowledged writes/s of posts, pipeline 128 ÷ NATS's own packed rate",
            value: posts.shown(),
            bar: "0.5",
            goal: "0.8",
        },
        Figure {
            name: "the same, of bytes that cannot be compressed",
            value: noise.shown(),
            bar: "",
            goal: "",
        },
        Figure {
            name: "p50 of one acknowledged SET ÷ one message of its size",
            value: median(waited),
            bar: "1.3",
            goal: "1.1",
        },
        Figure {
            name: "GET through another node ÷ at home, pipeline 16, CPU of all nodes",
            value: median(forwarded),
            bar: "2.5",
            goal: "1.8",
        },
        Figure {
            name: "timelines at the owner of three ÷ a single server, CPU a read",
            value: median(derived),
            bar: "1.3",
            goal: "1.1",
        },
    ])
}

/// Writes a second of values that are parts of a text.
struct WriteRates {
    text: Vec<u8>,
    /// Acknowledged by Headwater, and by NATS where they are packed; in each round.
    writes: Vec<f64>,
    packed: Vec<f64>,
}

impl WriteRates {
    fn of(text: Vec<u8>) -> Self {
        Self { text, writes: Vec::new(), packed: Vec::new() }
    }

    fn shown(&self) -> String {
        let ratios = self.writes.iter().zip(&self.packed).map(|(writes, packed)| writes / packed);
        let ratio = spread(ratios).map_or(String::new(), |it| it.shown(2, ""));
        let thousands = |values: &[f64]| {
            let median = spread(values.iter().copied()).map_or(0.0, |it| it.median);
            format!("{:.0}k", median / 1e3)
        };
        format!("{ratio} ({} ÷ {})", thousands(&self.writes), thousands(&self.packed))
    }
}

/// Posts, one behind the other.
fn posts() -> Vec<u8> {
    let (lengths, mut rng, mut text) = (TweetLengths::real(), Rng::new(1), String::new());
    while text.len() < TEXT_BYTES {
        text += &lengths.text(&mut rng);
    }
    text.truncate(TEXT_BYTES);
    text.into_bytes()
}

/// Bytes without any order.
fn noise() -> Vec<u8> {
    let mut rng = Rng::new(2);
    (0..TEXT_BYTES / 8).flat_map(|_| rng.next_u64().to_le_bytes()).collect()
}

/// The part of a text with this number, `bytes` long: each follows the one before it, and behind the last one comes the first.
fn part(text: &[u8], number: u64, bytes: usize) -> &[u8] {
    let at = (number as usize % (text.len() / bytes)) * bytes;
    &text[at..at + bytes]
}

fn key(number: u64) -> Key {
    Key::new(b"k|").number(number % 10_000, 5)
}

fn get(out: &mut Vec<u8>, at: u64) {
    resp::command(out, &[b"GET", &key(at)]);
}

fn timeline(out: &mut Vec<u8>, at: u64) {
    let user = Key::new(b"t|").number(at % TIMELINES, 4);
    resp::command(out, &[b"PREFIX", &[&user[..], b"|"].concat()]);
}

/// Loads keys that are read, and the posts, subscriptions and join of timelines.
fn load(connection: &mut Connection) -> Result<()> {
    let join = b"t|<user>|<time>|<poster> = check s|<user>|<poster> copy p|<poster>|<time>";
    resp::command(&mut connection.out, &[b"JOIN.ADD", b"timeline", join]);
    for number in 0..10_000 {
        resp::command(&mut connection.out, &[b"SET", &key(number), &[b'v'; VALUE_BYTES]]);
    }
    for post in 0..POSTS {
        let key = Key::new(b"p|bob|").number(post, 4);
        resp::command(&mut connection.out, &[b"SET", &key, &[b'p'; VALUE_BYTES]]);
    }
    for user in 0..TIMELINES {
        let name = Key::new(b"s|").number(user, 4);
        resp::command(&mut connection.out, &[b"SET", &[&name[..], b"|bob"].concat(), b"1"]);
    }
    for user in 0..TIMELINES {
        timeline(&mut connection.out, user);
    }
    let sent = 1 + 10_000 + POSTS + 2 * TIMELINES;
    connection.flush()?;
    (0..sent).try_for_each(|_| resp::skip(&mut connection.input)).context("loading")
}

/// Makes the stream that NATS's own rate is measured with, as the log's is made.
fn prepare(site: &Site) -> Result<()> {
    let text = format!(
        r#"{{"name":"RATE","subjects":["rate"],"storage":"file","num_replicas":{MACHINES}}}"#
    );
    manage(site, "CREATE", &text)
}

/// Makes that stream, or deletes it.
fn manage(site: &Site, what: &str, text: &str) -> Result<()> {
    let inbox = "_INBOX.manage";
    let mut connection = site.nats(0, inbox)?;
    let subject = format!("$JS.API.STREAM.{what}.RATE");
    nats::publish(&mut connection.out, &subject, inbox, text.as_bytes());
    connection.flush()?;
    let answer = nats::message(&mut connection)?.payload.unwrap_or_default();
    let answer = String::from_utf8_lossy(&answer).into_owned();
    if answer.contains("\"error\"") || answer.is_empty() {
        bail!("JetStream refuses: {answer}");
    }
    Ok(())
}

/// A message with its receipt, of those that are under way.
fn receipt(connection: &mut Connection) -> Result<()> {
    let answer = nats::message(connection)?.payload.unwrap_or_default();
    if !answer.windows(5).any(|word| word == b"\"seq\"") {
        bail!("no receipt: {}", answer.escape_ascii());
    }
    Ok(())
}

/// Writes a second in messages that NATS acknowledges.
fn publish_packed(site: &Site, leader: usize, time: Duration, text: &[u8]) -> Result<f64> {
    let inbox = "_INBOX.packed";
    let mut connection = site.nats(leader, inbox)?;
    let (mut sent, mut had) = (0, 0);
    let begun = Instant::now();
    while begun.elapsed() < time || had < sent {
        while sent < had + WINDOW && begun.elapsed() < time {
            let message = part(text, sent as u64, PACKED * VALUE_BYTES);
            nats::publish(&mut connection.out, "rate", inbox, message);
            sent += 1;
        }
        connection.flush()?;
        if had < sent {
            receipt(&mut connection)?;
            had += 1;
        }
        stop::check()?;
    }
    Ok((had * PACKED) as f64 / begun.elapsed().as_secs_f64())
}

/// Writes a second that Headwater acknowledges, over so many connections.
fn write(port: u16, connections: usize, time: Duration, text: &[u8]) -> Result<f64> {
    let begun = Instant::now();
    let one = |number: usize| -> Result<usize> {
        let mut connection = Connection::open(port)?;
        let (mut done, mut at) = (0, number as u64 * 1000);
        while begun.elapsed() < time {
            stop::check()?;
            for _ in 0..PIPELINE {
                resp::command(
                    &mut connection.out,
                    &[b"SET", &key(at), part(text, at, VALUE_BYTES)],
                );
                at += 1;
            }
            connection.flush()?;
            for _ in 0..PIPELINE {
                resp::skip(&mut connection.input)?;
            }
            done += PIPELINE;
        }
        Ok(done)
    };
    let done = std::thread::scope(|scope| {
        let threads: Vec<_> =
            (0..connections).map(|number| scope.spawn(move || one(number))).collect();
        let ends = threads
            .into_iter()
            .map(|thread| thread.join().unwrap_or_else(|_| bail!("a thread panicked")));
        ends.sum::<Result<usize>>()
    })?;
    Ok(done as f64 / begun.elapsed().as_secs_f64())
}

fn median(mut times: Vec<Duration>) -> f64 {
    times.sort_unstable();
    times.get(times.len() / 2).copied().unwrap_or_default().as_secs_f64()
}

/// The median time of a SET, of those that are sent one by one.
fn median_of_sets(port: u16, time: Duration) -> Result<f64> {
    let mut connection = Connection::open(port)?;
    let (begun, mut times) = (Instant::now(), Vec::new());
    while begun.elapsed() < time / 2 {
        stop::check()?;
        let asked = Instant::now();
        let value = [b'x'; VALUE_BYTES];
        resp::command(&mut connection.out, &[b"SET", &key(times.len() as u64), &value]);
        connection.flush()?;
        resp::skip(&mut connection.input)?;
        times.push(asked.elapsed());
    }
    Ok(median(times))
}

/// The same of a message of about the same size.
fn median_of_messages(site: &Site, leader: usize, time: Duration) -> Result<f64> {
    let inbox = "_INBOX.single";
    let mut connection = site.nats(leader, inbox)?;
    let (begun, mut times) = (Instant::now(), Vec::new());
    while begun.elapsed() < time / 2 {
        stop::check()?;
        let asked = Instant::now();
        nats::publish(&mut connection.out, "rate", inbox, &[b'x'; VALUE_BYTES + 60]);
        connection.flush()?;
        receipt(&mut connection)?;
        times.push(asked.elapsed());
    }
    Ok(median(times))
}

/// CPU for each read, in seconds, of what `cpu` counts.
fn cost(
    cpu: impl Fn() -> Result<Duration>,
    port: u16,
    time: Duration,
    ask: &dyn Fn(&mut Vec<u8>, u64),
) -> Result<f64> {
    let mut connection = Connection::open(port)?;
    let (begun, before, mut done) = (Instant::now(), cpu()?, 0);
    while begun.elapsed() < time / 2 {
        stop::check()?;
        for _ in 0..READ_PIPELINE {
            ask(&mut connection.out, done);
            done += 1;
        }
        connection.flush()?;
        for _ in 0..READ_PIPELINE {
            resp::skip(&mut connection.input)?;
        }
    }
    Ok((cpu()? - before).as_secs_f64() / done as f64)
}
