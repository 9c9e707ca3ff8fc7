//! What a demonstration shows: a follower graph, generated posts, the joins over them, real stories, and commands to try.
//!
//! It is loaded through a [`DemoTarget`]: into an engine before the server starts, or into a cluster by its protocol.
//!
//! Posts are drawn by seed: their authors in proportion to the logarithm of their followers,
//! their lengths from real tweets, their times evenly over the last seven days. The stories are real questions with the votes
//! that they were given (see data/stories/SOURCES.md).

use anyhow::Context;
use headwater_engine::{Engine, Expiry, TableOptions};
use headwater_workload::{Graph, Rng, TweetLengths, Vote};
use indicatif::{ProgressBar, ProgressStyle};
use std::path::PathBuf;
use std::time::{SystemTime, UNIX_EPOCH};

/// The timeline join of the paper, in the `<slot>` form.
const TIMELINE: &str = "t|<user>|<time>|<poster> = check s|<user>|<poster> copy p|<poster>|<time>";
/// Whom most follow, the first ones first: how many follow somebody, and all by that number.
const FRONT: [(&str, &str); 2] = [
    ("followers", "followers|<poster> = count s|<user>|<poster>"),
    ("front", "front|<count:number:desc>|<poster> = index followers|<poster> as <count>"),
];
/// Stories by their votes: what those for and against each sum up to, and all stories by that number.
const STORIES: [(&str, &str); 2] = [
    ("score", "score|<story> = sum vote|<story>|<number>"),
    (
        "stories",
        "stories|<score:number:desc>|<story> = check score|<story> as <score> copy story|<story>",
    ),
];
/// Where a story is, by its number.
const SITE: &str = "https://quantumcomputing.stackexchange.com/q/";
/// Seconds over which the posts are spread.
const WEEK: u64 = 7 * 24 * 3600;
/// Keys loaded between two steps of the progress bar.
const STEP: u64 = 1000;

/// What is loaded.
#[derive(clap::Args)]
pub(super) struct DataArgs {
    /// Follower graph to load instead of the shipped one: two ids per line, a follows b
    /// (plain, .gz or .zst)
    #[arg(long, value_name = "FILE")]
    graph: Option<PathBuf>,
    /// Posts to generate
    #[arg(long, value_name = "NUMBER", default_value_t = 50_000)]
    posts: u64,
    /// Seed of the generated posts
    #[arg(long, default_value_t = 1)]
    seed: u64,
}

/// Where it is loaded.
pub(super) trait DemoTarget {
    /// Declares a table whose keys are grouped by their first component.
    fn table(&mut self, name: &str) -> anyhow::Result<()>;
    /// Installs a join.
    fn join(&mut self, name: &str, spec: &str) -> anyhow::Result<()>;
    /// Sets a key; it may be done later, at [`DemoTarget::finish`] at the latest.
    fn set(&mut self, key: String, value: String) -> anyhow::Result<()>;
    /// Does what is not done yet.
    fn finish(&mut self) -> anyhow::Result<()>;
}

impl DemoTarget for Engine {
    fn table(&mut self, name: &str) -> anyhow::Result<()> {
        let options = TableOptions { boundary: Some(1), ..TableOptions::default() };
        Ok(self.table_set(name.as_bytes(), &options)?)
    }

    fn join(&mut self, name: &str, spec: &str) -> anyhow::Result<()> {
        self.join_add(name, spec, false)?;
        Ok(())
    }

    fn set(&mut self, key: String, value: String) -> anyhow::Result<()> {
        Ok(Engine::set(self, key.as_bytes(), value.as_bytes(), Expiry::Never)?)
    }

    fn finish(&mut self) -> anyhow::Result<()> {
        Ok(())
    }
}

/// What was loaded.
pub(super) struct Loaded {
    /// A sentence or two about it.
    pub(super) summary: String,
    /// What to show of it, if anything.
    pub(super) tour: Option<Tour>,
}

/// The newest post of someone whom the chosen user follows, and that user.
pub(super) struct Tour {
    user: String,
    poster: String,
    time: u64,
}

impl DataArgs {
    /// Loads subscriptions and posts, and installs the joins.
    pub(super) fn load(&self, target: &mut impl DemoTarget) -> anyhow::Result<Loaded> {
        let graph = match &self.graph {
            Some(path) => Graph::read(path)?,
            None => Graph::wiki_vote(),
        };
        let now = SystemTime::now().duration_since(UNIX_EPOCH).context("the clock")?.as_secs();
        let tour = load(target, &graph, self.posts, self.seed, now)?;
        let summary = format!(
            "{} users, {} subscriptions, {} posts; join timeline: {TIMELINE}\njoins of the front page: {}; {}\njoins of the stories: {}; {}\n",
            graph.users,
            graph.edges(),
            self.posts,
            FRONT[0].1,
            FRONT[1].1,
            STORIES[0].1,
            STORIES[1].1
        );
        Ok(Loaded { summary, tour })
    }
}

/// Loads subscriptions and posts and installs the join; what to show of it, if anything.
fn load(
    target: &mut impl DemoTarget,
    graph: &Graph,
    posts: u64,
    seed: u64,
    now: u64,
) -> anyhow::Result<Option<Tour>> {
    for name in ["s", "p", "t"] {
        target.table(name)?;
    }
    target.join("timeline", TIMELINE)?;
    for (name, spec) in FRONT.into_iter().chain(STORIES) {
        target.join(name, spec)?;
    }
    load_stories(target)?;

    let bar = ProgressBar::new(graph.edges() as u64 + posts);
    let style = "{msg:14} [{bar:40}] {pos}/{len} {per_sec}";
    bar.set_style(ProgressStyle::with_template(style)?.progress_chars("=> "));
    bar.set_message("subscriptions");
    let mut loaded = 0;
    let mut step = |bar: &ProgressBar| {
        loaded += 1;
        if loaded % STEP == 0 {
            bar.inc(STEP);
        }
    };
    for (user, followees) in (0..).zip(&graph.follows) {
        let user = graph.user_name(user);
        for &followee in followees {
            let key = format!("s|{user}|{}", graph.user_name(followee));
            target.set(key, String::from("1"))?;
            step(&bar);
        }
    }
    bar.set_message("posts");
    let mut newest: Vec<Option<u64>> = vec![None; graph.users];
    if graph.edges() > 0 {
        let (mut rng, texts, posters) = (Rng::new(seed), TweetLengths::real(), graph.posters());
        for at in 0..posts {
            let poster = posters.draw(&mut rng);
            let time = now - WEEK + (at + 1) * WEEK / posts;
            let key = format!("p|{}|{time:010}", graph.user_name(poster as u32));
            target.set(key, texts.text(&mut rng))?;
            newest[poster] = Some(time);
            step(&bar);
        }
    }
    target.finish()?;
    bar.finish_and_clear();
    Ok(choose(graph, &newest))
}

/// Loads stories and the votes on them.
fn load_stories(target: &mut impl DemoTarget) -> anyhow::Result<()> {
    for (number, Vote { story, up }) in Vote::real().into_iter().enumerate() {
        target.set(format!("story|{story:05}"), format!("{SITE}{story}"))?;
        let vote = if up { "1" } else { "-1" };
        target.set(format!("vote|{story:05}|{number:04}"), vote.to_owned())?;
    }
    Ok(())
}

/// The user among those with 20 to 60 followees (or any number, if there are none such) most
/// of whose followees have posted, and the newest post that he sees.
fn choose(graph: &Graph, newest: &[Option<u64>]) -> Option<Tour> {
    let seen = |user: u32| {
        let followees = graph.follows[user as usize].iter();
        followees.filter_map(|&poster| Some((newest[poster as usize]?, poster)))
    };
    let moderate = |user: &u32| (20..=60).contains(&graph.follows[*user as usize].len());
    let users = || 0..graph.users as u32;
    let lively = |user: &u32| seen(*user).count();
    let user =
        users().filter(moderate).max_by_key(lively).or_else(|| users().max_by_key(lively))?;
    let (time, poster) = seen(user).max()?;
    Some(Tour { user: graph.user_name(user), poster: graph.user_name(poster), time })
}

impl Tour {
    /// A command that reads the newest posts of those whom the chosen user follows.
    pub(super) fn read(&self, port: u16) -> String {
        format!("redis-cli -p {port} PREFIX 't|{}|' REV LIMIT 3", self.user)
    }

    /// Commands to try, and how to do without redis-cli.
    pub(super) fn text(&self, port: u16) -> String {
        let Self { user, poster, time } = self;
        let new = time + 60;
        format!(
            "\nTry, in another terminal (or `headwater cli -p {port}` for `redis-cli -p {port}`):\n\n\
             1. The newest posts of those whom {user} follows, joined when they are read first:\n   \
             redis-cli -p {port} PREFIX 't|{user}|' REV LIMIT 10\n\n\
             2. Why the first of them is there:\n   \
             redis-cli -p {port} EXPLAIN 't|{user}|{time:010}|{poster}'\n\n\
             3. The front page: whom most follow, kept in order by every subscription:\n   \
             redis-cli -p {port} PREFIX 'front|' LIMIT 5 KEYS\n   \
             redis-cli -p {port} JOIN.KEY front count 400\n\n\
             4. Real stories by the votes that they were given, and by sixty more for one of them:\n   \
             redis-cli -p {port} PREFIX 'stories|' LIMIT 5\n   \
             redis-cli -p {port} SET 'vote|00012|me' 60\n   \
             redis-cli -p {port} PREFIX 'stories|' LIMIT 5\n\n\
             5. {poster} posts, and every timeline has it at once:\n   \
             redis-cli -p {port} SET 'p|{poster}|{new:010}' 'Hello, followers'\n   \
             redis-cli -p {port} PREFIX 't|{user}|' REV LIMIT 3\n\n"
        )
    }
}
