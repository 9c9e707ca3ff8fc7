//! Reads of what is in memory: those of one table in turns with the same reads of another, on one server.

use super::Size;
use crate::peer::{Launch, Server, System};
use crate::wire::{Connection, Key, Loader, resp};
use anyhow::{Context, Result, ensure};
use headwater_workload::Rng;

/// Requests in flight.
const PIPELINE: u32 = 64;
/// How often each table has its turn.
const TURNS: usize = 5;

/// A post's key in a table named by one letter.
pub(super) fn key(table: u8, poster: u32, time: u32) -> Key {
    group(table, poster).time(time)
}

/// What the keys of a poster begin with.
pub(super) fn group(table: u8, poster: u32) -> Key {
    Key::new(&[table]).text(b"|u").number(u64::from(poster), 4).text(b"|")
}

/// A post's text.
pub(super) fn text(poster: u32, time: u32) -> String {
    format!("a post of some length: {:032x}", u64::from(poster) << 32 | u64::from(time))
}

/// Sends a command and waits for its answer.
pub(super) fn ask(connection: &mut Connection, words: &[&[u8]]) -> Result<()> {
    resp::command(&mut connection.out, words);
    connection.flush()?;
    resp::skip(&mut connection.input).with_context(|| {
        words.iter().map(|word| String::from_utf8_lossy(word)).collect::<Vec<_>>().join(" ")
    })
}

/// Sets all posts of a table.
pub(super) fn fill(connection: &mut Connection, table: u8, size: Size) -> Result<()> {
    let mut loader = Loader::new(connection, resp::skip);
    let posts = (0..size.posters).flat_map(|poster| (0..size.rows).map(move |time| (poster, time)));
    let pairs = posts.map(|(poster, time)| (key(table, poster, time), text(poster, time)));
    resp::set_all(&mut loader, pairs)?;
    loader.finish()
}

/// The CPU of GETs and of ranges of `table` as a part of those of `plain`: of all turns, the median.
pub(super) fn ratios(server: &Server, table: u8, plain: u8, size: Size) -> Result<(f64, f64)> {
    let mut connection = server.connect()?;
    let mut ratio = |reads: &dyn Fn(&mut Connection, u8) -> Result<()>| -> Result<f64> {
        let mut found = Vec::new();
        // The first turn warms up.
        for turn in 0..=TURNS {
            let mut cost = [0.0; 2];
            for (cost, table) in cost.iter_mut().zip([table, plain]) {
                let before = server.cpu()?;
                reads(&mut connection, table)?;
                *cost = (server.cpu()? - before).as_secs_f64();
            }
            if turn > 0 {
                found.push(cost[0] / cost[1]);
            }
        }
        found.sort_by(f64::total_cmp);
        Ok(found[found.len() / 2])
    };
    let gets = ratio(&|connection, table| gets(connection, table, size))?;
    let ranges = ratio(&|connection, table| ranges(connection, table, size))?;
    Ok((gets, ranges))
}

fn gets(connection: &mut Connection, table: u8, size: Size) -> Result<()> {
    let mut rng = Rng::new(size.seed);
    for _ in 0..size.reads.div_ceil(PIPELINE) {
        let mut drawn = Vec::new();
        for _ in 0..PIPELINE {
            let poster = rng.below(u64::from(size.posters)) as u32;
            let time = rng.below(u64::from(size.rows)) as u32;
            resp::command(&mut connection.out, &[b"GET", &key(table, poster, time)]);
            drawn.push((poster, time));
        }
        connection.flush()?;
        for (number, (poster, time)) in drawn.into_iter().enumerate() {
            let found = resp::string(&mut connection.input)?;
            // Comparing all would be what is measured.
            ensure!(number > 0 || found == text(poster, time).as_bytes(), "a wrong post");
        }
    }
    Ok(())
}

fn ranges(connection: &mut Connection, table: u8, size: Size) -> Result<()> {
    for read in 0..(10 * size.reads).div_ceil(size.rows) {
        let words: [&[u8]; 2] = [b"PREFIX", &group(table, read % size.posters)];
        resp::command(&mut connection.out, &words);
        connection.flush()?;
        let count = resp::array(&mut connection.input)?;
        ensure!(count as u32 == 2 * size.rows, "a range of {count} texts");
        for _ in 0..count {
            resp::string(&mut connection.input)?;
        }
    }
    Ok(())
}

/// The ratios of a table that the embedded store keeps.
pub(super) fn kept(launch: &Launch, size: Size) -> Result<(f64, f64)> {
    let folder = tempfile::tempdir().context("cannot make a temporary folder")?;
    let mut launch = launch.clone();
    let path = folder.path().join("data").display().to_string();
    launch.arguments.extend(["--data", &path].map(String::from));
    let server = Server::start(System::Headwater, &launch)?;
    let mut connection = server.connect()?;
    for (table, keep) in [(b"k", &b"YES"[..]), (b"q", b"NO")] {
        ask(&mut connection, &[b"TABLE.SET", table, b"BOUNDARY", b"1", b"KEEP", keep])?;
        fill(&mut connection, table[0], size)?;
    }
    drop(server);
    // What is kept is loaded again, as after any restart; what is not is written again.
    let server = Server::start(System::Headwater, &launch)?;
    let mut connection = server.connect()?;
    fill(&mut connection, b'q', size)?;
    for poster in 0..size.posters {
        ask(&mut connection, &[b"PREFIX", &group(b'k', poster), b"COUNT"])?;
    }
    ratios(&server, b'k', b'q', size)
}
