//! What processes use, as the kernel counts it in `/proc`.
//!
//! CPU is read per thread from `schedstat` (nanoseconds; user and system together), because
//! the ticks of `stat` are 10 ms: too coarse for a run of a second. A server that starts and
//! ends processes (PostgreSQL) is read from `stat`, which also keeps the CPU of children that
//! have ended.

use anyhow::{Context, Result, bail};
use core::time::Duration;
use std::collections::HashMap;
use std::fs;

/// The CPU time of this process so far.
#[must_use]
pub fn own_cpu() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

/// The CPU time so far of a process that starts no others.
///
/// # Errors
/// There is no such process.
pub fn cpu(pid: u32) -> Result<Duration> {
    let sum: Duration = cpu_of_threads(pid)?.values().sum();
    if sum.is_zero() { ticks(pid).map(|ticks| ticks.own) } else { Ok(sum) }
}

/// The CPU time so far of each thread of a process, by its number.
///
/// # Errors
/// There is no such process.
pub fn cpu_of_threads(pid: u32) -> Result<HashMap<u32, Duration>> {
    let mut threads = HashMap::new();
    let tasks = fs::read_dir(format!("/proc/{pid}/task"))
        .with_context(|| format!("the server (process {pid}) is gone"))?;
    for task in tasks {
        let task = task?;
        // A thread may end between being listed and being read.
        let Ok(text) = fs::read_to_string(task.path().join("schedstat")) else { continue };
        let number = task.file_name().to_str().and_then(|name| name.parse().ok());
        let nanos = text.split_ascii_whitespace().next().and_then(|word| word.parse().ok());
        threads.insert(number.unwrap_or(0), Duration::from_nanos(nanos.unwrap_or(0)));
    }
    Ok(threads)
}

/// The CPU time so far of a process, its children, and its children that have ended.
///
/// # Errors
/// There is no such process.
pub fn cpu_of_family(pid: u32) -> Result<Duration> {
    let parent = ticks(pid)?;
    let mut sum = parent.own + parent.ended;
    for child in children(pid)? {
        // One that ended meanwhile is counted in `ended` next time.
        if let Ok(child) = ticks(child) {
            sum += child.own + child.ended;
        }
    }
    Ok(sum)
}

/// The most memory that a process had resident so far, in bytes.
///
/// # Errors
/// There is no such process.
pub fn rss_max(pid: u32) -> Result<u64> {
    let text = fs::read_to_string(format!("/proc/{pid}/status"))
        .with_context(|| format!("the server (process {pid}) is gone"))?;
    kilobytes(&text, "VmHWM:")
}

/// What a process and its children have resident now, shared pages counted once.
///
/// # Errors
/// There is no such process, or its memory may not be looked at.
pub fn pss_of_family(pid: u32) -> Result<u64> {
    let mut sum = 0;
    for member in children(pid)?.into_iter().chain([pid]) {
        if let Ok(text) = fs::read_to_string(format!("/proc/{member}/smaps_rollup")) {
            sum += kilobytes(&text, "Pss:")?;
        } else if member == pid {
            bail!("the memory of the server (process {pid}) cannot be read");
        }
    }
    Ok(sum)
}

fn kilobytes(text: &str, name: &str) -> Result<u64> {
    text.lines()
        .find_map(|line| line.strip_prefix(name))
        .and_then(|rest| rest.split_ascii_whitespace().next())
        .and_then(|word| word.parse::<u64>().ok())
        .map(|kilobytes| kilobytes * 1024)
        .with_context(|| format!("the kernel does not tell {name}"))
}

struct Ticks {
    own: Duration,
    ended: Duration,
    parent: u32,
}

fn ticks(pid: u32) -> Result<Ticks> {
    let text = fs::read_to_string(format!("/proc/{pid}/stat"))
        .with_context(|| format!("the server (process {pid}) is gone"))?;
    ticks_of(&text).with_context(|| format!("/proc/{pid}/stat cannot be read"))
}

/// Reads the fields behind the process name, which may hold anything.
fn ticks_of(stat: &str) -> Option<Ticks> {
    let fields: Vec<&str> = stat.get(stat.rfind(')')? + 2..)?.split_ascii_whitespace().collect();
    let per_second = rustix::param::clock_ticks_per_second();
    let sum = |first: usize| {
        let ticks: u64 =
            fields[first].parse::<u64>().ok()? + fields[first + 1].parse::<u64>().ok()?;
        Some(Duration::from_secs_f64(ticks as f64 / per_second as f64))
    };
    if fields.len() < 15 {
        return None;
    }
    Some(Ticks { own: sum(11)?, ended: sum(13)?, parent: fields[1].parse().ok()? })
}

fn children(pid: u32) -> Result<Vec<u32>> {
    let mut found = Vec::new();
    for entry in fs::read_dir("/proc")? {
        let name = entry?.file_name();
        let Some(other) = name.to_str().and_then(|name| name.parse().ok()) else { continue };
        if ticks(other).is_ok_and(|ticks| ticks.parent == pid) {
            found.push(other);
        }
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_fields_behind_an_awkward_name_are_found() {
        let text = "7 (a) b (c) S 3 7 7 0 -1 4194560 1 2 3 4 150 50 20 30 20 0 1 0 5";
        let ticks = ticks_of(text).unwrap();
        let second = Duration::from_secs(1).as_secs_f64();
        let unit = rustix::param::clock_ticks_per_second() as f64;
        assert_eq!(ticks.parent, 3);
        assert_eq!(ticks.own.as_secs_f64(), 200.0 * second / unit);
        assert_eq!(ticks.ended.as_secs_f64(), 50.0 * second / unit);
    }

    #[test]
    fn own_figures_are_there() {
        let pid = std::process::id();
        assert!(cpu(pid).unwrap() > Duration::ZERO);
        assert!(rss_max(pid).unwrap() > 1 << 20);
        assert!(pss_of_family(pid).unwrap() > 1 << 18);
    }

    #[test]
    fn a_process_that_is_gone_is_named() {
        let error = cpu(u32::MAX / 2).unwrap_err().to_string();
        assert!(error.starts_with("the server (process 2147483647) is gone"), "{error}");
    }
}
