//! What happens in a Twip run, drawn beforehand from a seed: the same for every system.

use super::world::START;
use crate::drive::Schedule;
use headwater_workload::{Graph, Rng, TweetLengths};
use std::collections::HashSet;

/// How many logins, subscriptions and checks there are for each post.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Mix {
    /// Reads of the recent timeline.
    pub logins: usize,
    /// New subscriptions.
    pub subscriptions: usize,
    /// Reads of what is new.
    pub checks: usize,
}

impl Mix {
    /// That of the Pequod paper.
    pub const PAPER: Self = Self { logins: 5, subscriptions: 9, checks: 85 };

    fn sum(self) -> usize {
        self.logins + self.subscriptions + self.checks
    }

    /// The percent of posts.
    #[must_use]
    pub fn posting(self) -> f64 {
        100.0 / (self.sum() + 1) as f64
    }
}

/// Different texts; a post's moment chooses one.
const TEXTS: usize = 4096;
/// One in so many users is a celebrity in the variant that has them.
const CELEBRITY_ONE_IN: usize = 1000;

/// What a plan is drawn from where the options do not say.
#[derive(Clone, Copy, Debug)]
pub struct Preset {
    /// What is done for each post.
    pub mix: Mix,
    /// Incremental checks per active user.
    pub checks: f64,
    /// Posts before the run; as many as users if not given.
    pub posts: Option<usize>,
    /// How many posts back the recent timeline reaches; to the first if not given.
    pub window: Option<u32>,
    /// Bytes of each post; those of real ones if not given.
    pub text_bytes: Option<usize>,
}

impl Preset {
    /// The workload of the Pequod paper.
    pub const PAPER: Self =
        Self { mix: Mix::PAPER, checks: 50.0, posts: None, window: None, text_bytes: None };
    /// What the program of Pequod's prototype does. It logs users out, too; who was logged out logs in again, and that is what is
    /// counted here. All posts of its run are recent.
    pub const PROTOTYPE: Self = Self {
        mix: Mix { logins: 5, subscriptions: 10, checks: 100 },
        checks: 100.0,
        posts: Some(0),
        window: Some(START),
        text_bytes: Some(5),
    };
}

/// What a user does.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// Reads his recent timeline in full.
    Login,
    /// Reads what is newer than the newest post he saw.
    Check,
    /// Follows the poster.
    Subscribe,
    /// Posts.
    Post,
}

impl Kind {
    /// Whether it reads a timeline.
    #[must_use]
    pub fn is_read(self) -> bool {
        matches!(self, Self::Login | Self::Check)
    }
}

/// One operation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Op {
    /// What is done.
    pub kind: Kind,
    /// Who does it.
    pub user: u32,
    /// Whom he follows, for a subscription.
    pub poster: u32,
}

/// What a plan is drawn from.
#[derive(Clone, Debug)]
pub struct Params {
    /// Percent of users who are active.
    pub active: f64,
    /// Percent of the active users who come seldom.
    pub seldom: f64,
    /// How many times as often the others come.
    pub seldom_times: f64,
    /// What is done for each post, where posts have the share that goes with it.
    pub mix: Mix,
    /// Percent of the operations that are posts; the others keep their ratio.
    pub posting: f64,
    /// Bytes of each post; those of real ones if not given.
    pub text_bytes: Option<usize>,
    /// Incremental checks per active user.
    pub checks: f64,
    /// Posts before the run.
    pub posts: usize,
    /// How many posts back the recent timeline reaches.
    pub window: u32,
    /// The seed of all chance.
    pub seed: u64,
    /// Connections.
    pub connections: usize,
    /// Users in flight per connection.
    pub pipeline: usize,
}

/// The whole workload.
#[derive(Debug)]
pub struct Plan {
    /// Who follows whom at the start.
    pub graph: Graph,
    /// Who is active, in no particular order.
    pub active: Vec<u32>,
    /// The posters of the first posts, in their order.
    pub first_posters: Vec<u32>,
    /// How many posts back the recent timeline reaches.
    pub window: u32,
    /// Who is a celebrity.
    pub celebrity: Vec<bool>,
    /// The operations.
    pub schedule: Schedule<Op>,
    texts: Vec<Vec<u8>>,
}

impl Plan {
    /// Draws a plan over `graph`.
    #[must_use]
    pub fn draw(graph: Graph, params: &Params) -> Self {
        let mut rng = Rng::new(params.seed);
        let lengths = TweetLengths::real();
        let text = |rng: &mut Rng| {
            let mut text = lengths.text(rng).into_bytes();
            if let Some(bytes) = params.text_bytes {
                text.resize(bytes, b'.');
            }
            text
        };
        let texts = (0..TEXTS).map(|_| text(&mut rng)).collect();
        let mut active: Vec<u32> = (0..graph.users as u32).collect();
        rng.shuffle(&mut active);
        let count = (graph.users as f64 * params.active / 100.0).round() as usize;
        active.truncate(count.clamp(1, graph.users));
        let posters = graph.posters();
        let first_posters = (0..params.posts).map(|_| posters.draw(&mut rng) as u32).collect();
        let ops = draw_ops(&graph, &active, params, &mut rng);
        let schedule = Schedule::deal(ops, params.connections, params.pipeline, |op: &Op| op.user);
        let celebrity = celebrities(&graph);
        let window = params.window;
        Self { graph, active, first_posters, window, celebrity, schedule, texts }
    }

    /// The text of the post at `time`.
    #[must_use]
    pub fn text(&self, time: u32) -> &[u8] {
        &self.texts[(time.wrapping_mul(0x9e37_79b1) >> 16) as usize % TEXTS]
    }
}

/// The most-followed of every thousand users.
fn celebrities(graph: &Graph) -> Vec<bool> {
    let followers = graph.followers_count();
    let mut ranked: Vec<u32> = (0..graph.users as u32).collect();
    ranked.sort_by_key(|&user| (core::cmp::Reverse(followers[user as usize]), user));
    let mut found = vec![false; graph.users];
    for &user in &ranked[..graph.users.div_ceil(CELEBRITY_ONE_IN)] {
        found[user as usize] = true;
    }
    found
}

/// Draws the operations in their order over time.
fn draw_ops(graph: &Graph, active: &[u32], params: &Params, rng: &mut Rng) -> Vec<Op> {
    let mix = params.mix;
    let checks = params.checks * active.len() as f64;
    let total = (checks * (mix.sum() + 1) as f64 / mix.checks as f64).round() as usize;
    // How many operations a percent of the usual mix is, since posts have a share of their own.
    let others = (100.0 - params.posting) / mix.sum() as f64;
    let share = |parts: usize| (total as f64 * parts as f64 * others / 100.0) as usize;
    let logins = share(mix.logins);
    let (subscriptions, reads) = (share(mix.subscriptions), share(mix.checks));
    // The last ones come seldom.
    let seldom = (active.len() as f64 * params.seldom / 100.0).round() as usize;
    let often = (active.len() - seldom).max(1);
    let seldom_share = seldom as f64 / (seldom as f64 + often as f64 * params.seldom_times);
    let mut kinds = vec![Kind::Post; total];
    kinds[..logins].fill(Kind::Login);
    kinds[logins..logins + subscriptions].fill(Kind::Subscribe);
    kinds[logins + subscriptions..logins + subscriptions + reads].fill(Kind::Check);
    rng.shuffle(&mut kinds);

    let posters = graph.posters();
    let mut is_active = vec![false; graph.users];
    for &user in active {
        is_active[user as usize] = true;
    }
    let edges: Vec<u32> = graph.follows.iter().flatten().copied().collect();
    let mut new_edges = HashSet::new();
    let mut ops = Vec::with_capacity(total);
    for kind in kinds {
        let mut user = match seldom > 0 && rng.unit() < seldom_share {
            true => active[often + rng.index(active.len() - often)],
            false => active[rng.index(often)],
        };
        let mut poster = user;
        match kind {
            Kind::Login | Kind::Check => {}
            // In proportion to the log of the followers, among the active.
            Kind::Post => {
                let drawn = (0..1000).map(|_| posters.draw(rng)).find(|&user| is_active[user]);
                user = drawn.map_or(user, |user| user as u32);
                poster = user;
            }
            Kind::Subscribe => {
                match draw_subscription(graph, &edges, &mut new_edges, user, rng) {
                    Some(found) => poster = found,
                    // He follows everybody: he only looks.
                    None => {
                        ops.push(Op { kind: Kind::Check, user, poster });
                        continue;
                    }
                }
            }
        }
        ops.push(Op { kind, user, poster });
    }
    log_in_first(&mut ops, graph.users);
    ops
}

/// Someone whom `user` does not follow yet: the end of a random edge (the popular win
/// followers), or anybody if that fails often.
fn draw_subscription(
    graph: &Graph,
    edges: &[u32],
    new_edges: &mut HashSet<(u32, u32)>,
    user: u32,
    rng: &mut Rng,
) -> Option<u32> {
    for attempt in 0..40 {
        let poster = if attempt < 20 {
            edges[rng.index(edges.len())]
        } else {
            rng.index(graph.users) as u32
        };
        if poster != user
            && graph.follows[user as usize].binary_search(&poster).is_err()
            && new_edges.insert((user, poster))
        {
            return Some(poster);
        }
    }
    None
}

/// Lets each user's first read be his login, if he has one, by swapping the two.
fn log_in_first(ops: &mut [Op], users: usize) {
    const NONE: usize = usize::MAX;
    let mut first_check = vec![NONE; users];
    let mut logged_in = vec![false; users];
    for at in 0..ops.len() {
        let user = ops[at].user as usize;
        match ops[at].kind {
            Kind::Check if first_check[user] == NONE => first_check[user] = at,
            Kind::Login if !logged_in[user] => {
                logged_in[user] = true;
                if first_check[user] != NONE {
                    ops[first_check[user]].kind = Kind::Login;
                    ops[at].kind = Kind::Check;
                }
            }
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn params() -> Params {
        Params {
            active: 70.0,
            seldom: 0.0,
            seldom_times: 50.0,
            mix: Mix::PAPER,
            posting: 1.0,
            text_bytes: None,
            checks: 50.0,
            posts: 0,
            window: 10,
            seed: 1,
            connections: 1,
            pipeline: 1,
        }
    }

    fn share(ops: &[Op], kind: Kind) -> f64 {
        ops.iter().filter(|op| op.kind == kind).count() as f64 / ops.len() as f64
    }

    #[test]
    fn operations_have_the_ratio_of_the_paper() {
        let graph = Graph::generate(1_000, 20.0, 1);
        let active: Vec<u32> = (0..700).collect();
        let ops = draw_ops(&graph, &active, &params(), &mut Rng::new(2));
        assert_eq!(ops.len(), 41_176);
        for (kind, percent) in
            [(Kind::Login, 5.0), (Kind::Subscribe, 9.0), (Kind::Check, 85.0), (Kind::Post, 1.0)]
        {
            let found = share(&ops, kind) * 100.0;
            assert!((found - percent).abs() < 0.05, "{kind:?}: {found} %");
        }
        assert!(ops.iter().all(|op| op.user < 700), "only active users do anything");
    }

    #[test]
    fn who_comes_seldom_does_a_fiftieth_and_posts_are_as_many_as_asked_for() {
        let graph = Graph::generate(1_000, 20.0, 1);
        let active: Vec<u32> = (0..1_000).collect();
        let params = Params { seldom: 80.0, posting: 20.0, ..params() };
        let ops = draw_ops(&graph, &active, &params, &mut Rng::new(2));
        let posts = share(&ops, Kind::Post) * 100.0;
        assert!((posts - 20.0).abs() < 0.1, "{posts} %");
        let of = |users: std::ops::Range<u32>| {
            let checks = ops.iter().filter(|op| op.kind == Kind::Check && users.contains(&op.user));
            checks.count() as f64 / users.len() as f64
        };
        let part = of(0..200) / of(200..1_000);
        assert!((40.0..60.0).contains(&part), "{part} times as often");
    }

    #[test]
    fn subscriptions_are_new() {
        let graph = Graph::generate(300, 10.0, 1);
        let active: Vec<u32> = (0..300).collect();
        let ops = draw_ops(&graph, &active, &params(), &mut Rng::new(2));
        let mut new = HashSet::new();
        for op in ops.iter().filter(|op| op.kind == Kind::Subscribe) {
            assert_ne!(op.user, op.poster);
            assert!(!graph.follows[op.user as usize].contains(&op.poster));
            assert!(new.insert((op.user, op.poster)), "twice: {op:?}");
        }
    }

    #[test]
    fn who_logs_in_does_so_before_he_checks() {
        let graph = Graph::generate(300, 10.0, 1);
        let active: Vec<u32> = (0..300).collect();
        let ops = draw_ops(&graph, &active, &params(), &mut Rng::new(2));
        for user in 0..300 {
            let mut reads =
                ops.iter().filter(|op| op.user == user && op.kind.is_read()).map(|op| op.kind);
            let first = reads.next();
            assert!(first != Some(Kind::Check) || reads.all(|kind| kind == Kind::Check));
        }
    }

    #[test]
    fn one_in_a_thousand_is_a_celebrity() {
        let graph = Graph::generate(2_500, 10.0, 1);
        let followers = graph.followers_count();
        let found = celebrities(&graph);
        let least = (0..2_500).filter(|&user| found[user]).map(|user| followers[user]).min();
        assert_eq!(found.iter().filter(|&&is| is).count(), 3);
        assert!((0..2_500).filter(|&user| !found[user]).all(|user| Some(followers[user]) <= least));
    }
}
