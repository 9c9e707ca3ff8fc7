//! The generator's own model: who follows whom, who posted when, what each user saw.

use super::plan::Plan;
use super::{Entry, Seen};
use anyhow::{Result, bail};

/// The first post's moment is one later; a recent timeline never reaches before 0.
pub const START: u32 = 1_000_000;

/// The state of all users in one run.
#[derive(Debug)]
pub struct World<'p> {
    /// What is being done.
    pub plan: &'p Plan,
    /// Whom each user follows beyond the graph.
    followed: Vec<Vec<u32>>,
    /// When each user posted.
    posts: Vec<Vec<u32>>,
    /// The newest post each user saw.
    newest: Vec<u32>,
    now: u32,
    /// Posts that reads brought.
    pub delivered: u64,
}

impl<'p> World<'p> {
    /// The world before the run: the graph and the first posts.
    #[must_use]
    pub fn new(plan: &'p Plan) -> Self {
        let users = plan.graph.users;
        let mut world = Self {
            plan,
            followed: vec![Vec::new(); users],
            posts: vec![Vec::new(); users],
            newest: Vec::new(),
            now: START,
            delivered: 0,
        };
        for &poster in &plan.first_posters {
            world.post(poster);
        }
        world.newest = vec![world.now; users];
        world
    }

    /// The moment of the newest post.
    #[must_use]
    pub fn now(&self) -> u32 {
        self.now
    }

    /// Where a recent timeline begins.
    #[must_use]
    pub fn recent(&self) -> u32 {
        self.now.saturating_sub(self.plan.window)
    }

    /// The first moment that `user` has not seen.
    #[must_use]
    pub fn unseen(&self, user: u32) -> u32 {
        self.newest[user as usize] + 1
    }

    /// Notes what a read brought to `user`.
    pub fn saw(&mut self, user: u32, seen: Seen) {
        self.delivered += seen.count as u64;
        let newest = &mut self.newest[user as usize];
        *newest = (*newest).max(seen.newest);
    }

    /// Lets `poster` post now; gives the moment.
    pub fn post(&mut self, poster: u32) -> u32 {
        self.now += 1;
        self.posts[poster as usize].push(self.now);
        self.now
    }

    /// Lets `user` follow `poster`.
    pub fn subscribe(&mut self, user: u32, poster: u32) {
        self.followed[user as usize].push(poster);
    }

    /// Notes a post whose moment somebody else has given.
    pub fn posted(&mut self, poster: u32, time: u32) {
        self.now = self.now.max(time);
        self.posts[poster as usize].push(time);
    }

    /// Whom `user` follows.
    pub fn follows(&self, user: u32) -> impl Iterator<Item = u32> {
        let more = &self.followed[user as usize];
        self.plan.graph.follows[user as usize].iter().chain(more).copied()
    }

    /// When `poster` posted.
    #[must_use]
    pub fn posts(&self, poster: u32) -> &[u32] {
        &self.posts[poster as usize]
    }

    /// Who follows each user, by the graph.
    #[must_use]
    pub fn followers(&self) -> Vec<Vec<u32>> {
        let mut followers = vec![Vec::new(); self.plan.graph.users];
        for (user, follows) in self.plan.graph.follows.iter().enumerate() {
            for &poster in follows {
                followers[poster as usize].push(user as u32);
            }
        }
        followers
    }

    /// The timeline of `user` from `since` on, recomputed.
    #[must_use]
    pub fn timeline(&self, user: u32, since: u32) -> Vec<Entry> {
        let mut entries: Vec<Entry> = self
            .follows(user)
            .flat_map(|poster| self.posts(poster).iter().map(move |&time| (time, poster)))
            .filter(|&(time, _)| time >= since)
            .map(|(time, poster)| Entry { time, poster, text: self.plan.text(time).to_vec() })
            .collect();
        entries.sort();
        entries
    }

    /// Compares a timeline that a system answered with the recomputation.
    ///
    /// # Errors
    /// They differ; the message names the first difference.
    pub fn verify(&self, user: u32, since: u32, answered: &[Entry]) -> Result<()> {
        let expected = self.timeline(user, since);
        if expected == answered {
            return Ok(());
        }
        let name = |entry: Option<&Entry>| match entry {
            Some(entry) => {
                format!("u{} at {} '{}'", entry.poster, entry.time, entry.text.escape_ascii())
            }
            None => String::from("nothing"),
        };
        let at = expected.iter().zip(answered).take_while(|(a, b)| a == b).count();
        bail!(
            "the timeline of u{user} since {since} is wrong: {} posts instead of {}; post {} is {} \
             instead of {}",
            answered.len(),
            expected.len(),
            at + 1,
            name(answered.get(at)),
            name(expected.get(at)),
        )
    }
}

#[cfg(test)]
mod tests {
    use super::super::plan::Params;
    use super::*;
    use crate::twip::plan::Mix;
    use headwater_workload::Graph;

    fn plan() -> Plan {
        let graph = Graph::parse(&b"0 1\n0 2\n1 2\n"[..]).unwrap();
        let params = Params {
            active: 100.0,
            seldom: 0.0,
            seldom_times: 50.0,
            mix: Mix::PAPER,
            posting: 1.0,
            text_bytes: None,
            checks: 1.0,
            posts: 0,
            window: 10,
            seed: 1,
            connections: 1,
            pipeline: 1,
        };
        Plan::draw(graph, &params)
    }

    #[test]
    fn a_timeline_holds_the_posts_of_the_followed() {
        let plan = plan();
        let mut world = World::new(&plan);
        let first = world.post(1);
        let second = world.post(2);
        let times = |world: &World<'_>, user, since| -> Vec<u32> {
            world.timeline(user, since).iter().map(|entry| entry.time).collect()
        };
        assert_eq!(times(&world, 0, 0), [first, second]);
        assert_eq!(times(&world, 0, second), [second]);
        assert!(times(&world, 2, 0).is_empty());
        world.subscribe(2, 1);
        assert_eq!(times(&world, 2, 0), [first]);
    }

    #[test]
    fn a_planted_error_is_found() {
        let plan = plan();
        let mut world = World::new(&plan);
        world.post(1);
        world.post(2);
        let right = world.timeline(0, 0);
        world.verify(0, 0, &right).unwrap();
        assert!(world.verify(0, 0, &right[..1]).is_err(), "a lost post");
        let mut twice = right.clone();
        twice.insert(0, right[0].clone());
        assert!(world.verify(0, 0, &twice).is_err(), "a post twice");
        let mut text = right.clone();
        text[1].text[0] ^= 1;
        let error = world.verify(0, 0, &text).unwrap_err().to_string();
        assert!(error.contains("2 posts instead of 2; post 2 is u2 at 1000002"), "{error}");
    }

    #[test]
    fn a_user_sees_forward_only() {
        let plan = plan();
        let mut world = World::new(&plan);
        world.saw(0, Seen { count: 2, newest: START + 7 });
        world.saw(0, Seen { count: 0, newest: 0 });
        assert_eq!(world.unseen(0), START + 8);
        assert_eq!(world.delivered, 2);
    }
}
