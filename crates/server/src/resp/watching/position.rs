//! Positions: what a client that watches has been told, as one text that it gives back when it returns.
//!
//! A position names the run of the server and, for each shard whose changes it is about, the number of the last one. With
//! one shard it is `run-17`; with several `run-0:17.2:4`, shard by shard.

use headwater_base::Shard;
use headwater_command::number;
use std::fmt::Write;

/// How far a client has been told, of each shard that it concerns.
pub(super) type Marks = Vec<(Shard, u64)>;

/// Writes and reads positions of this run.
#[derive(Debug)]
pub(super) struct Positions {
    run: String,
    /// There are several shards.
    several: bool,
    text: String,
}

impl Positions {
    /// Those of a run of this name.
    pub(super) fn new(run: u64, several: bool) -> Self {
        Self { run: format!("{run:016x}"), several, text: String::new() }
    }

    /// A position.
    pub(super) fn text(&mut self, marks: impl IntoIterator<Item = (Shard, u64)>) -> &str {
        self.text.clear();
        self.text.push_str(&self.run);
        let mut between = '-';
        for (shard, number) in marks {
            self.text.push(between);
            between = '.';
            if self.several {
                // Writing to a String cannot fail.
                let _ = write!(self.text, "{}:", shard.0);
            }
            let _ = write!(self.text, "{number}");
        }
        &self.text
    }

    /// What a position says of each shard; `None`: it is of another run, or none at all.
    pub(super) fn marks(&self, position: &[u8]) -> Option<Marks> {
        let rest = position.strip_prefix(self.run.as_bytes())?.strip_prefix(b"-")?;
        if !self.several {
            return Some(vec![(Shard(0), number::parse_u64(rest)?)]);
        }
        let mark = |part: &[u8]| {
            let colon = part.iter().position(|&byte| byte == b':')?;
            let shard = u16::try_from(number::parse_u64(&part[..colon])?).ok()?;
            Some((Shard(shard), number::parse_u64(&part[colon + 1..])?))
        };
        rest.split(|&byte| byte == b'.').map(mark).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_position_says_what_it_was_made_of() {
        let mut one = Positions::new(0x0123_4567_89ab_cdef, false);
        assert_eq!(one.text([(Shard(0), 17)]), "0123456789abcdef-17");
        assert_eq!(one.marks(b"0123456789abcdef-17"), Some(vec![(Shard(0), 17)]));
        let mut three = Positions::new(7, true);
        let marks = [(Shard(0), 17), (Shard(2), 4)];
        assert_eq!(three.text(marks), "0000000000000007-0:17.2:4");
        assert_eq!(three.marks(b"0000000000000007-0:17.2:4"), Some(marks.to_vec()));
        for wrong in ["-17", "-", "", "8-0:1", "-0:1.", "-0:x", "-70000:1"] {
            let wrong = format!("0000000000000007{wrong}");
            assert_eq!(three.marks(wrong.as_bytes()), None, "{wrong}");
        }
        assert_eq!(three.marks(b"0123456789abcdef-0:1"), None);
    }
}
