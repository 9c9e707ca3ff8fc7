//! Clients of memcached's protocol: they replace values by the versions of those that they have seen, at whichever server.

use super::chain;
use crate::replicated::simulated::history::{CHAINS, Operation, value_of};
use headwater_model::rng::Rng;
use headwater_model::server::wire::Frame;

/// What such a client asks.
pub(super) fn draw(rng: &mut Rng, reads: usize) -> Operation {
    let at = rng.below(CHAINS);
    if rng.chance(reads / 2) { Operation::ReadChain(at) } else { Operation::Hold(at) }
}

/// The request of an operation.
pub(super) fn request(operation: Operation, which: usize) -> Vec<u8> {
    let value = value_of(which);
    let (chain, length) = (|at| chain(at), value.len());
    let text = match operation {
        Operation::Hold(at) => format!("gets {}\r\n", chain(at)),
        Operation::ReadChain(at) => format!("get {}\r\n", chain(at)),
        Operation::Swap(at, None, _) => {
            format!("add {} 0 0 {length}\r\n{value}\r\n", chain(at))
        }
        Operation::Swap(at, Some(_), version) => {
            format!("cas {} 0 0 {length} {version}\r\n{value}\r\n", chain(at))
        }
        _ => unreachable!("{operation:?} is not asked in this protocol"),
    };
    text.into_bytes()
}

/// The first line, without its end.
fn line(bytes: &[u8]) -> Option<&str> {
    let end = bytes.windows(2).position(|two| two == b"\r\n")?;
    std::str::from_utf8(&bytes[..end]).ok()
}

/// The length of the first reply, if that is whole.
pub(super) fn cut(bytes: &[u8]) -> Option<usize> {
    let line = line(bytes)?;
    let behind = line.len() + 2;
    let Some(item) = line.strip_prefix("VALUE ") else { return Some(behind) };
    let length: usize = item.split(' ').nth(2)?.parse().ok()?;
    let whole = behind + length + "\r\nEND\r\n".len();
    (bytes.len() >= whole).then_some(whole)
}

/// A reply, as the other protocol would have it; a value with its version.
pub(super) fn frame(reply: &[u8]) -> Result<Frame, String> {
    let line = line(reply).ok_or("no line")?;
    if let Some(why) = line.strip_prefix("SERVER_ERROR ") {
        let is_of_cluster = !(why.contains("memory") || why.contains("too large"));
        let code = if is_of_cluster { "CLUSTERDOWN" } else { "ERR" };
        return Ok(Frame::Error(format!("{code} {why}")));
    }
    match line {
        "END" | "EXISTS" | "NOT_FOUND" | "NOT_STORED" => Ok(Frame::Null),
        "STORED" => Ok(Frame::Array(Vec::new())),
        item if item.starts_with("VALUE ") => {
            let mut words = item.split(' ').skip(3).map(str::parse::<usize>);
            let length = words.next().and_then(Result::ok).ok_or("no length")?;
            let value = Frame::Bulk(reply[line.len() + 2..][..length].to_vec());
            Ok(match words.next() {
                Some(Ok(version)) => Frame::Array(vec![value, Frame::Integer(version as i64)]),
                _ => value,
            })
        }
        other => Err(format!("'{other}' is no answer")),
    }
}
