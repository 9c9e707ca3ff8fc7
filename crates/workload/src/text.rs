//! Posts: readable generated words, with the lengths of real tweets.
//!
//! The lengths come from `data/tweet_lengths.csv` (28,511 English tweets of 2015; lengths
//! only). A text has exactly the drawn number of bytes, all ASCII.

use crate::rng::{Alias, Rng};

const LENGTHS: &str = include_str!("../../../data/tweet_lengths.csv");

/// Words by their length; every length from 1 to [`LONGEST`] has some.
const WORDS: [&[&str]; 9] = [
    &["a", "I", "o", "y"],
    &["we", "in", "of", "to", "is", "on", "at", "by", "my", "no", "so", "it"],
    &["the", "and", "sun", "sea", "old", "new", "one", "tea", "day", "out", "see", "run", "all"],
    &["with", "from", "rain", "blue", "over", "west", "late", "snow", "some", "here", "good"],
    &["river", "green", "night", "train", "bread", "light", "quiet", "three", "again", "water"],
    &["coffee", "garden", "summer", "bright", "friend", "harbor", "little", "window", "walked"],
    &["morning", "weather", "library", "evening", "tonight", "perfect", "reading", "another"],
    &["mountain", "football", "upstream", "together", "sandwich", "shoulder", "cheerful"],
    &["beautiful", "breakfast", "yesterday", "telephone", "wandering", "something"],
];
const LONGEST: usize = WORDS.len();

/// Draws texts as long as real tweets.
#[derive(Clone, Debug)]
pub struct TweetLengths {
    lengths: Vec<u32>,
    alias: Alias,
}

impl TweetLengths {
    /// The lengths of 28,511 real tweets: from 12 to 425 bytes, 111 on average.
    ///
    /// # Panics
    /// Never: the file is part of the program and a test reads it.
    #[must_use]
    pub fn real() -> Self {
        let rows = LENGTHS.lines().skip(1).map(|line| {
            let (bytes, count) = line.split_once(',').expect("two columns");
            (bytes.parse::<u32>().expect("bytes"), count.trim().parse::<f64>().expect("count"))
        });
        let (lengths, counts): (Vec<u32>, Vec<f64>) = rows.unzip();
        Self { lengths, alias: Alias::new(&counts) }
    }

    /// A length in bytes.
    #[must_use]
    pub fn length(&self, rng: &mut Rng) -> usize {
        self.lengths[self.alias.draw(rng)] as usize
    }

    /// A text of such a length.
    #[must_use]
    pub fn text(&self, rng: &mut Rng) -> String {
        let length = self.length(rng);
        text_of(rng, length)
    }
}

/// Readable words and a full stop, `length` bytes in all.
fn text_of(rng: &mut Rng, length: usize) -> String {
    let mut text = String::with_capacity(length);
    while text.len() + 1 < length {
        let left = length - 1 - text.len();
        if !text.is_empty() {
            text.push(' ');
        }
        let room = left - usize::from(text.ends_with(' '));
        // The rest after this word holds a space and one more letter, or nothing.
        let most = if room <= LONGEST { room } else { LONGEST.min(room - 2) };
        let least = 2.min(most);
        let take = if room <= LONGEST { room } else { least + rng.index(most - least + 1) };
        match take {
            0 => text.push('!'),
            _ => text.push_str(WORDS[take - 1][rng.index(WORDS[take - 1].len())]),
        }
        if text.len() == take
            && let Some(head) = text.get_mut(..1)
        {
            head.make_ascii_uppercase();
        }
    }
    text.truncate(length.saturating_sub(1));
    if length > 0 {
        text.push('.');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_have_the_drawn_length_and_words() {
        let mut rng = Rng::new(3);
        for length in 0..500 {
            let text = text_of(&mut rng, length);
            assert_eq!(text.len(), length, "{text:?}");
            assert!(text.bytes().all(|byte| (b' '..=b'~').contains(&byte)), "{text:?}");
            assert!(!text.contains("  ") && !text.contains(" ."), "{text:?}");
        }
    }

    #[test]
    fn lengths_are_those_of_real_tweets() {
        let lengths = TweetLengths::real();
        let mut rng = Rng::new(9);
        let drawn: Vec<usize> = (0..20_000).map(|_| lengths.text(&mut rng).len()).collect();
        let mean = drawn.iter().sum::<usize>() as f64 / drawn.len() as f64;
        assert!((109.0..113.0).contains(&mean), "mean {mean}");
        assert!(drawn.iter().all(|&length| (12..=425).contains(&length)));
    }

    #[test]
    fn words_stand_at_their_length() {
        for (at, words) in WORDS.iter().enumerate() {
            assert!(words.iter().all(|word| word.len() == at + 1), "{words:?}");
        }
    }
}
