//! A client that writes and reads, one request at a time, and takes the time of each: what others' commands cost it.

use crate::peer::stop;
use crate::wire::{Connection, Key, resp};
use anyhow::{Result, bail};
use core::time::Duration;
use std::time::Instant;

/// Keys that it writes.
pub const KEYS: u64 = 1000;
/// Bytes of a value.
const VALUE_BYTES: usize = 1000;

/// Writes and reads keys until it is `over`; how long each request took, in ascending order.
///
/// # Errors
/// The connection fails, or what is read is not what was written.
pub fn exchange(
    connection: &mut Connection,
    mut over: impl FnMut() -> bool,
) -> Result<Vec<Duration>> {
    let (mut times, mut missed) = (Vec::new(), false);
    for at in 0.. {
        if over() {
            break;
        }
        let key = Key::new(b"k:").number(at % KEYS, 5);
        let value = [b'a' + (at % 26) as u8; VALUE_BYTES];
        for words in [&[&b"SET"[..], &key, &value][..], &[b"GET", &key]] {
            resp::command(&mut connection.out, words);
            let asked = Instant::now();
            connection.flush()?;
            if words.len() == 3 {
                resp::skip(&mut connection.input)?;
            } else {
                match resp::bulk(&mut connection.input)? {
                    Some(found) if found == value => {}
                    // Everything was removed between the two requests, as happens once at most.
                    None if !missed => missed = true,
                    _ => bail!("a value is not what was written"),
                }
            }
            times.push(asked.elapsed());
        }
        if at.is_multiple_of(1024) {
            stop::check()?;
        }
    }
    times.sort_unstable();
    Ok(times)
}

/// The time, in milliseconds, that this part of the requests did not take longer than.
#[must_use]
pub fn quantile(times: &[Duration], part: f64) -> String {
    let index = (times.len() as f64 * part) as usize;
    let time = times.get(index.min(times.len().saturating_sub(1)));
    format!("{:.3}", time.copied().unwrap_or_default().as_secs_f64() * 1e3)
}
