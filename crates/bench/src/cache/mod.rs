//! A trace replayed to caches that are full: what share of the reads hit, at equal *resident*
//! memory.
//!
//! The generator is a look-aside client: it reads, and what is missing it writes, with the size
//! that the object has in the trace. Requests keep the order of the trace, on one connection.
//!
//! A limit that a server is given is not what it takes: allocators, tables and buffers come on
//! top, to each its own. So the limit of every server is found by trial, until its peak resident
//! memory after the whole trace is what was asked for; only then it is measured.

pub mod replay;
pub mod run;
pub mod tell;

use crate::peer::System;
use anyhow::{Context, Result, bail};

/// The policies that are compared unless others are named.
pub const POLICIES: &str = "allkeys-lru,allkeys-lfu,allkeys-cost";
/// What Headwater alone knows.
const OWN: [&str; 2] = ["allkeys-cost", "volatile-cost"];

/// Whether `system` knows a policy of this name.
#[must_use]
pub fn knows(system: System, policy: &str) -> bool {
    system == System::Headwater || !OWN.contains(&policy)
}

/// The arguments that give a server a limit.
#[must_use]
pub fn limit(system: System, bytes: u64, policy: &str) -> Vec<String> {
    let (memory, eviction) = match system {
        System::Headwater => ("--memory", "--memory-policy"),
        _ => ("--maxmemory", "--maxmemory-policy"),
    };
    [memory, &bytes.to_string(), eviction, policy].map(String::from).to_vec()
}

/// Reads an amount of memory: `64mb`, `1gb`, `1000000`.
///
/// # Errors
/// It is none, or less than 1 MB.
pub fn memory(text: &str) -> Result<u64> {
    let lower = text.trim().to_ascii_lowercase();
    let digits = lower.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let unit = match &lower[digits.len()..] {
        "" | "b" => 1,
        "k" | "kb" => 1 << 10,
        "m" | "mb" => 1 << 20,
        "g" | "gb" => 1 << 30,
        _ => bail!("--memory '{text}': not a size (allowed: a number, with kb, mb or gb)"),
    };
    let number: u64 = digits.parse().with_context(|| format!("--memory '{text}': not a size"))?;
    let bytes = number.saturating_mul(unit);
    if !(1 << 20..1 << 40).contains(&bytes) {
        bail!("--memory '{text}': out of bounds (allowed: 1mb to 1024gb)");
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read_as_redis_reads_them() {
        assert_eq!(memory("64mb").unwrap(), 64 << 20);
        assert_eq!(memory("2GB").unwrap(), 2 << 30);
        assert_eq!(memory("5000000").unwrap(), 5_000_000);
        for text in ["", "mb", "12", "64 lots", "-3mb"] {
            assert!(memory(text).is_err(), "{text}");
        }
    }

    #[test]
    fn each_server_is_limited_in_its_own_words() {
        let words = limit(System::Valkey, 7, "allkeys-lfu");
        assert_eq!(words, ["--maxmemory", "7", "--maxmemory-policy", "allkeys-lfu"]);
        assert_eq!(
            limit(System::Headwater, 7, "allkeys-cost")[2..],
            ["--memory-policy", "allkeys-cost"]
        );
        assert!(!knows(System::Redis, "allkeys-cost") && knows(System::Redis, "allkeys-lru"));
    }
}
