//! Stories and the votes on them: real ones, without texts and names.
//!
//! The file is `data/stories/votes.txt.gz` (see the SOURCES.md beside it).

use std::io::{BufRead, BufReader};

const VOTES: &[u8] = include_bytes!("../../../data/stories/votes.txt.gz");

/// A vote on a story.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Vote {
    /// The story's number.
    pub story: u32,
    /// It is for the story, not against it.
    pub up: bool,
}

impl Vote {
    /// 5,292 votes on 612 questions of a site of Stack Exchange, in the order in which they were given.
    ///
    /// # Panics
    /// Never: the file is part of the program and a test reads it.
    #[must_use]
    pub fn real() -> Vec<Self> {
        let lines = BufReader::new(flate2::read::GzDecoder::new(VOTES)).lines();
        let vote = |line: std::io::Result<String>| {
            let number: i64 = line.expect("the shipped votes read").parse().expect("a number");
            Self { story: number.unsigned_abs() as u32, up: number > 0 }
        };
        lines.map(vote).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_shipped_votes_read() {
        let votes = Vote::real();
        assert_eq!(votes.len(), 5_292);
        let mut stories: Vec<u32> = votes.iter().map(|vote| vote.story).collect();
        stories.sort_unstable();
        stories.dedup();
        assert_eq!(stories.len(), 612);
        let of = |up: bool| {
            votes.iter().filter(|vote| vote.story == 2_499 && vote.up == up).count() as i64
        };
        assert_eq!(of(true) - of(false), 113);
    }
}
