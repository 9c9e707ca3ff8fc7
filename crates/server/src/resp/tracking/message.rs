//! What a client that keeps copies is told, in both versions of the protocol.

use headwater_command::Reply;
use headwater_protocol::resp::{Encoder, Version};

/// Where clients of RESP2 listen.
pub(super) const CHANNEL: &[u8] = b"__redis__:invalidate";

/// The start of a message whose copies count no longer.
fn begin(version: Version, out: &mut Vec<u8>) {
    let mut out = Encoder::new(out, version);
    match version {
        Version::Resp3 => {
            out.push(2);
            out.bulk(b"invalidate");
        }
        Version::Resp2 => {
            out.push(3);
            out.bulk(b"message");
            out.bulk(CHANNEL);
        }
    }
}

/// These keys have changed.
pub(super) fn changed<'k>(
    version: Version,
    keys: impl ExactSizeIterator<Item = &'k [u8]>,
) -> Vec<u8> {
    let mut bytes = Vec::new();
    begin(version, &mut bytes);
    let mut out = Encoder::new(&mut bytes, version);
    out.array(keys.len());
    keys.for_each(|key| out.bulk(key));
    bytes
}

/// Any key may have.
pub(in crate::resp) fn all(version: Version) -> Vec<u8> {
    let mut bytes = Vec::new();
    begin(version, &mut bytes);
    Encoder::new(&mut bytes, version).null();
    bytes
}

/// The connection that should be told is gone.
pub(super) fn broken(redirect: u64) -> Vec<u8> {
    let mut bytes = Vec::new();
    let mut out = Encoder::new(&mut bytes, Version::Resp3);
    out.push(2);
    out.bulk(b"tracking-redir-broken");
    out.integer(redirect as i64);
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_are_those_of_redis() {
        let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap().replace("\r\n", " ");
        let keys = || [&b"a"[..], b"bc"].into_iter();
        let (two, three) = (Version::Resp2, Version::Resp3);
        assert_eq!(text(changed(three, keys())), ">2 $10 invalidate *2 $1 a $2 bc ");
        let channel = "*3 $7 message $20 __redis__:invalidate ";
        assert_eq!(text(changed(two, keys())), format!("{channel}*2 $1 a $2 bc "));
        assert_eq!(text(all(three)), ">2 $10 invalidate _ ");
        assert_eq!(text(all(two)), format!("{channel}$-1 "));
        assert_eq!(text(broken(7)), ">2 $21 tracking-redir-broken :7 ");
    }
}
