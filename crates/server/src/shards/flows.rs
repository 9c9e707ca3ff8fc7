//! How a flow does at all shards, from what each says.

use headwater_base::Shard;
use headwater_command::Reply;
use headwater_protocol::resp::{Encoder, Version, elements, integer, text};

/// Facts of which the greatest counts; the others are added up.
const MOST: [&[u8]; 2] = [b"paused", b"oldest-pending-ms"];

/// Writes the answer to FLOW.INFO: facts with numbers, and the cursor of each shard by itself, since it is a place in
/// that shard's journal.
pub(super) fn write_info(parts: &[(Shard, Vec<u8>)], version: Version, out: &mut Vec<u8>) {
    let mut facts: Vec<(Vec<u8>, i64)> = Vec::new();
    for (shard, reply) in parts {
        for fact in elements(reply).unwrap_or_default().chunks_exact(2) {
            let name = text(fact[0]).unwrap_or_default();
            let number = integer(fact[1]).unwrap_or(0);
            let own = [name, b"-", shard.0.to_string().as_bytes()].concat();
            let is_cursor = name == b"cursor";
            let name = if is_cursor { &own } else { name };
            match facts.iter_mut().find(|(known, _)| known == name) {
                Some((_, known)) if MOST.contains(&name) => *known = number.max(*known),
                Some((_, known)) => *known += number,
                None => facts.push((name.to_vec(), number)),
            }
        }
    }
    let mut encoder = Encoder::new(out, version);
    encoder.map(facts.len());
    for (name, number) in facts {
        encoder.bulk(&name);
        encoder.integer(number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn amounts_are_added_up_and_cursors_stay_apart() {
        let of = |cursor: u64| {
            let mut reply = Vec::new();
            let mut encoder = Encoder::new(&mut reply, Version::Resp3);
            encoder.map(3);
            for (name, number) in [("backlog", 2), ("cursor", cursor as i64), ("paused", 1)] {
                encoder.bulk(name.as_bytes());
                encoder.integer(number);
            }
            reply
        };
        let mut out = Vec::new();
        write_info(&[(Shard(0), of(7)), (Shard(1), of(9))], Version::Resp2, &mut out);
        let text = String::from_utf8(out).unwrap();
        let expected = "*8\r\n$7\r\nbacklog\r\n:4\r\n$8\r\ncursor-0\r\n:7\r\n$6\r\npaused\r\n:1\r\n$8\r\ncursor-1\r\n:9\r\n";
        assert_eq!(text, expected);
    }
}
