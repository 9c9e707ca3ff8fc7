//! Positions of shards as text, which a client carries from one connection to another.
//!
//! `shards-<run>-<position>.<position>.…`: one for each shard, of one run of the server. What another run
//! was told is no matter any more: its positions are reached.

use headwater_base::Shard;
use headwater_base::source::Position;
use headwater_command::number;
use headwater_node::Positions;

const HEAD: &[u8] = b"shards-";

/// The text of positions of `shards` shards.
pub(crate) fn text_of(run: u64, shards: u16, positions: &Positions) -> String {
    let each: Vec<String> = (0..shards).map(|at| positions.get(Shard(at)).0.to_string()).collect();
    format!("shards-{run:016x}-{}", each.join("."))
}

/// The positions in a text of `shards` shards; those of another run are at the start. `None`: it is none.
pub(crate) fn of_text(run: u64, shards: u16, text: &[u8]) -> Option<Positions> {
    let rest = core::str::from_utf8(text.strip_prefix(HEAD)?).ok()?;
    let (of, numbers) = rest.split_once('-')?;
    let of = u64::from_str_radix(of, 16).ok()?;
    let mut positions = Positions::default();
    let mut count = 0;
    for number in numbers.split('.') {
        let position = number::parse_u64(number.as_bytes())?;
        if of == run {
            (count < shards).then_some(())?;
            positions.reach(Shard(count), Position(position));
        }
        count = count.saturating_add(1);
    }
    (of != run || count == shards).then_some(positions)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn positions_go_through_their_text() {
        let mut positions = Positions::default();
        positions.reach(Shard(2), Position(7));
        let text = text_of(0xab, 3, &positions);
        assert_eq!(text, "shards-00000000000000ab-0.0.7");
        assert_eq!(of_text(0xab, 3, text.as_bytes()), Some(positions));
        assert_eq!(of_text(1, 3, text.as_bytes()), Some(Positions::default()));
        for wrong in [
            "",
            "shards-",
            "shards-ab",
            "shards-ab-1.2",
            "shards-ab-1.x.2",
            "shards-ab-1.2.3.4",
            "main:7",
        ] {
            assert_eq!(of_text(0xab, 3, wrong.as_bytes()), None, "{wrong}");
        }
    }
}
