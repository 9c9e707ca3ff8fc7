//! Who follows whom, and what is posted.

use headwater_workload::{Alias, Graph, Rng};

/// Posts of one poster that are there at a time: a newer one takes the place of an old one, so that long runs need no
/// more memory than short ones.
const SLOTS: u32 = 8;
/// Bytes of a post's text.
const TEXT_BYTES: usize = 200;
/// Digits of a post's number, which begins its text.
const NUMBER_DIGITS: usize = 12;

/// Users and their followers.
#[derive(Debug)]
pub struct World {
    graph: Graph,
    posters: Alias,
    /// The followers of each user.
    pub followers: Vec<Vec<u32>>,
    /// Posts of each user so far.
    posted: Vec<u32>,
    rng: Rng,
    number: u64,
}

/// One post.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Post {
    /// Who posts.
    pub poster: u32,
    /// Which of his posts it replaces.
    pub slot: u32,
    /// Which post it is, of all.
    pub number: u64,
}

impl Post {
    /// Its text.
    #[must_use]
    pub fn text(&self) -> Vec<u8> {
        let mut text = format!("{:0NUMBER_DIGITS$} ", self.number).into_bytes();
        text.resize(TEXT_BYTES, b'a' + (self.number % 26) as u8);
        text
    }

    /// The number of the post that has this text.
    #[must_use]
    pub fn number_of(text: &[u8]) -> Option<u64> {
        str::from_utf8(text.get(..NUMBER_DIGITS)?).ok()?.parse().ok()
    }
}

impl World {
    /// A power-law graph of so many users, who follow `mean` others on average.
    #[must_use]
    pub fn new(users: usize, mean: f64, seed: u64) -> Self {
        let graph = Graph::generate(users, mean, seed);
        let mut followers = vec![Vec::new(); graph.users];
        for (user, follows) in graph.follows.iter().enumerate() {
            for &poster in follows {
                followers[poster as usize].push(user as u32);
            }
        }
        let (posters, posted) = (graph.posters(), vec![0; graph.users]);
        Self { graph, posters, followers, posted, rng: Rng::new(seed), number: 0 }
    }

    /// A user's name in keys.
    #[must_use]
    pub fn name(&self, user: u32) -> String {
        self.graph.user_name(user)
    }

    /// The next posts.
    pub fn posts(&mut self, count: usize) -> Vec<Post> {
        let mut one = |_| {
            let poster = self.posters.draw(&mut self.rng) as u32;
            let posted = &mut self.posted[poster as usize];
            let slot = *posted % SLOTS;
            *posted += 1;
            self.number += 1;
            Post { poster, slot, number: self.number }
        };
        (0..count).map(&mut one).collect()
    }

    /// Timelines that a post goes to.
    #[must_use]
    pub fn deliveries(&self, posts: &[Post]) -> u64 {
        posts.iter().map(|post| self.followers[post.poster as usize].len() as u64).sum()
    }

    /// What of a post's key stands behind `p|`.
    #[must_use]
    pub fn place(&self, post: &Post) -> String {
        format!("{}|{:04}", self.name(post.poster), post.slot)
    }
}

#[cfg(test)]
mod tests {
    use super::{Post, World};

    #[test]
    fn posts_are_the_same_for_the_same_seed_and_texts_tell_their_numbers() {
        let draw = || World::new(300, 10.0, 7).posts(500);
        let posts = draw();
        assert_eq!(posts, draw());
        for (at, post) in posts.iter().enumerate() {
            assert_eq!(post.number, at as u64 + 1);
            assert_eq!(Post::number_of(&post.text()), Some(post.number));
            assert_eq!(post.text().len(), 200);
        }
        assert_eq!(Post::number_of(b"short"), None);
    }
}
