//! How a flow does at all shards, from what each says.

use crate::answer::Answer;
use alloc::string::ToString;
use alloc::vec::Vec;
use headwater_base::Shard;
use headwater_command::Reply;

/// Facts of which the greatest counts; the others are added up.
const MOST: [&[u8]; 2] = [b"paused", b"oldest-pending-ms"];

/// Writes the answer to FLOW.INFO: facts with numbers, and the cursor of each shard by itself, since it is a place in
/// that shard's journal.
pub(super) fn write_info(parts: &[(Shard, Answer<'_>)], out: &mut impl Reply) {
    let mut facts: Vec<(Vec<u8>, i64)> = Vec::new();
    // Whose it is, which all of them know.
    let mut texts: Vec<(&[u8], &[u8])> = Vec::new();
    for (shard, reply) in parts {
        let facts_here = reply.list();
        for fact in facts_here.chunks_exact(2) {
            let name = fact[0].text().unwrap_or_default();
            if let Some(text) = fact[1].text() {
                if texts.iter().all(|(known, _)| *known != name) {
                    texts.push((name, text));
                }
                continue;
            }
            let number = fact[1].integer().unwrap_or(0);
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
    out.map(facts.len() + texts.len());
    for (name, number) in facts {
        out.bulk(&name);
        out.integer(number);
    }
    for (name, text) in texts {
        out.bulk(name);
        out.bulk(text);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::answer::answer_of;

    #[test]
    fn amounts_are_added_up_and_cursors_stay_apart() {
        let of = |cursor: i64| {
            answer_of(|out| {
                out.map(4);
                for (name, number) in [("backlog", 2), ("cursor", cursor), ("paused", 1)] {
                    out.bulk(name.as_bytes());
                    out.integer(number);
                }
                out.bulk(b"owner");
                out.bulk(b"ann");
            })
        };
        let (one, two) = (of(7), of(9));
        let parts = [(Shard(0), &one), (Shard(1), &two)];
        let parts = parts.map(|(shard, part)| (shard, Answer::whole(part).unwrap()));
        let merged = answer_of(|out| write_info(&parts, out));
        let facts = Answer::whole(&merged).unwrap().list();
        let shown: Vec<_> =
            facts.chunks_exact(2).map(|it| (it[0].text(), it[1].integer())).collect();
        let expected = [("backlog", 4), ("cursor-0", 7), ("paused", 1), ("cursor-1", 9)];
        let numbers = expected.map(|(name, number)| (Some(name.as_bytes()), Some(number)));
        assert_eq!(shown[..4], numbers);
        assert_eq!((facts[8].text(), facts[9].text()), (Some(&b"owner"[..]), Some(&b"ann"[..])));
        assert_eq!(facts.len(), 10);
    }
}
