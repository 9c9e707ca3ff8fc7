//! Asks one server, or several beside each other, what a script says, and holds the replies against the oracle and against each
//! other.
//!
//! Between the pipelines of different clients `WAIT` is asked where there are joins: only then must others see what follows from the writes.

use super::busy::Busy;
use super::commands::{Words, upper};
use super::expected::{Expected, shown};
use super::place::{Listening, Place};
use super::script::{Script, Step, request};
use super::site::Site;
use super::wire::Frame;
use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::time::Duration;

/// Behind every so many pipelines all clients must have been told of everything.
const SETTLED_EVERY: usize = 3;

/// Runs a script on servers, which must be empty, and empties them again; nothing takes longer than `patience`.
///
/// # Errors
/// The first thing that is wrong.
pub fn run(script: &Script, servers: &[SocketAddr], patience: Duration) -> Result<(), String> {
    let places: Vec<_> = servers.iter().map(|at| Listening::at(*at, patience)).collect();
    let mut sites = begin(script, &mut places.iter().map(|place| place as &dyn Place))?;
    let busy = script.busy.then(|| {
        let start = |address: &SocketAddr| Busy::start(*address, patience);
        servers.iter().map(start).collect::<Vec<_>>()
    });
    let done = all_steps(script, &mut sites);
    // What disturbs the script tells of itself, too.
    let others = busy.into_iter().flatten().map(Busy::end);
    let others: Vec<Result<(), String>> = others.collect();
    done?;
    others.into_iter().collect::<Result<(), _>>()?;
    sites.iter_mut().try_for_each(Site::clear)
}

/// The same with a server that is reached in another way.
///
/// # Errors
/// The first thing that is wrong.
pub fn run_at(script: &Script, place: &dyn Place) -> Result<(), String> {
    let mut sites = begin(script, &mut [place].into_iter())?;
    if script.busy {
        // A watched key whose home changes counts as changed.
        place.disturb(!script.asks_for("WATCH"));
    }
    let done = all_steps(script, &mut sites);
    place.calm()?;
    done?;
    sites.iter_mut().try_for_each(Site::clear)
}

fn begin<'p>(
    script: &Script,
    places: &mut dyn Iterator<Item = &'p dyn Place>,
) -> Result<Vec<Site<'p>>, String> {
    places.map(|place| Site::begin(place, script)).collect()
}

fn all_steps(script: &Script, sites: &mut [Site<'_>]) -> Result<(), String> {
    for (at, step) in script.steps.iter().enumerate() {
        let within = |wrong| format!("pipeline {at} (client {}): {wrong}", step.client);
        let mut first: Option<Vec<(Frame, bool)>> = None;
        for site in &mut *sites {
            let label = site.label();
            let last = at + 1 == script.steps.len();
            let replies = run_step(site, step, last || at % SETTLED_EVERY == 0);
            let replies = replies.map_err(|wrong| format!("{label}: {}", within(wrong)))?;
            match &first {
                None => first = Some(replies),
                Some(first) => compare(step, first, &replies).map_err(within)?,
            }
        }
    }
    Ok(())
}

fn compare(step: &Step, one: &[(Frame, bool)], other: &[(Frame, bool)]) -> Result<(), String> {
    for (at, ((one, whole), (other, _))) in one.iter().zip(other).enumerate() {
        if *whole && one != other {
            let asked = request(&step.requests[at]);
            let (one, other) = (shown(one), shown(other));
            return Err(format!("{asked}: the first server: {one}, another one: {other}"));
        }
    }
    Ok(())
}

/// The replies to a pipeline, and of each whether another server must give the very same.
fn run_step(site: &mut Site<'_>, step: &Step, settles: bool) -> Result<Vec<(Frame, bool)>, String> {
    site.see_all_writes(step.client)?;
    let mut replies = Vec::new();
    if let [words] = &step.requests[..]
        && upper(&words[0]) == "SCAN.ALL"
    {
        if !site.queues(step.client) {
            scan(site, step.client, words)?;
        }
    } else {
        let barrier = barrier_at(site, step);
        let requests = with_barrier(&step.requests, barrier);
        site.send(step.client, &requests, &step.cuts)?;
        for (at, words) in requests.iter().enumerate() {
            let reply = reply_to(site, step.client, words);
            let (reply, whole) = reply.map_err(|wrong| format!("{}: {wrong}", request(words)))?;
            if Some(at) != barrier {
                replies.push((reply, whole));
            }
        }
        site.wrote(step.client, barrier.is_some());
    }
    site.settle(step.client, settles)?;
    Ok(replies)
}

/// Where `WAIT` is to be asked within a pipeline: before a transaction that goes on beyond it.
fn barrier_at(site: &Site<'_>, step: &Step) -> Option<usize> {
    let mut open = None;
    let mut queues = site.queues(step.client);
    for (at, words) in step.requests.iter().enumerate() {
        match upper(&words[0]).as_str() {
            "MULTI" if !queues => (queues, open) = (true, Some(at)),
            "EXEC" | "DISCARD" => (queues, open) = (false, None),
            _ => {}
        }
    }
    open
}

fn with_barrier(requests: &[Words], at: Option<usize>) -> Vec<Words> {
    let mut all = requests.to_vec();
    if let Some(at) = at {
        all.insert(at, ["WAIT", "SHARDS", "0"].map(|word| word.as_bytes().to_vec()).to_vec());
    }
    all
}

fn reply_to(site: &mut Site<'_>, client: usize, words: &Words) -> Result<(Frame, bool), String> {
    let name = upper(&words[0]);
    let subscribes = ["SUBSCRIBE", "UNSUBSCRIBE", "PSUBSCRIBE"].contains(&name.as_str());
    let reply = if subscribes && !site.queues(client) && words.len() > 1 {
        site.confirmations(client, &name.to_lowercase(), words.len() - 1)?
    } else {
        site.reply(client)?
    };
    let expected = site.state.execute(client, words, &reply);
    expected.check(&reply)?;
    if matches!(expected, Expected::Clients)
        && let Frame::Bulk(text) = &reply
    {
        site.check_clients(&String::from_utf8_lossy(text))?;
    }
    Ok((reply, expected.is_whole()))
}

/// A whole scan gives all base keys, each once unless partitions move meanwhile.
fn scan(site: &mut Site<'_>, client: usize, words: &Words) -> Result<(), String> {
    let keys = site.state.all_keys();
    let (mut cursor, mut given) = (b"0".to_vec(), Vec::new());
    for round in 0.. {
        let name = |word: &str| word.as_bytes().to_vec();
        let count = words.get(1).cloned().unwrap_or_else(|| name("1"));
        let words = vec![name("SCAN"), cursor, name("COUNT"), count];
        site.send(client, core::slice::from_ref(&words), &[])?;
        let (reply, _) = reply_to(site, client, &words)?;
        let Frame::Array(mut parts) = reply else { unreachable!("it was checked") };
        let (Some(Frame::Array(some)), Some(next)) = (parts.pop(), parts.pop()) else {
            unreachable!("it was checked")
        };
        given.extend(some);
        cursor = next.text().unwrap_or_default();
        if cursor == b"0" {
            break;
        }
        if round > 10_000 {
            return Err(String::from("a scan does not end"));
        }
    }
    if site.place.moves() {
        let mut known = BTreeSet::new();
        given.retain(|key| known.insert(key.text()));
    }
    keys.are(&given).map_err(|wrong| format!("a whole scan: {wrong}"))
}
