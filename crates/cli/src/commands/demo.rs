//! `headwater demo`: a server with a real follower graph, generated posts, the timeline
//! join, a front page and real stories by their votes, and commands to try on it.
//!
//! The graph is SNAP's wiki-Vote (see data/graphs/SOURCES.md), unless `--graph` names another.
//! Posts are drawn by seed: their authors in proportion to the logarithm of their followers,
//! their lengths from real tweets, their times evenly over the last seven days. The stories are real questions with the votes
//! that they were given (see data/stories/SOURCES.md).

use super::serve::{ListenArgs, say_others, say_ready};
use anyhow::Context;
use headwater_engine::{Engine, Expiry, TableOptions};
use headwater_server::{Config, Server, ShardCount, log};
use headwater_workload::{Graph, Rng, TweetLengths, Vote};
use indicatif::{ProgressBar, ProgressStyle};
use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;
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

/// Flags of `headwater demo`.
#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    listen: ListenArgs,
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

/// The newest post of someone whom the chosen user follows, and that user.
struct Tour {
    user: String,
    poster: String,
    time: u64,
}

impl Args {
    /// Loads, says what to try, and serves until SIGTERM, SIGINT or SHUTDOWN.
    pub(crate) fn run(self) -> anyhow::Result<ExitCode> {
        let mut config = Config::default();
        // Everything is loaded into one engine before the start.
        config.listen.shards = ShardCount::Number(1);
        // What it shows is told on standard output: a log beside it is only what went wrong.
        config.log.log_level = String::from("warn");
        self.listen.apply(&mut config);
        log::start(&config.log)?;
        let mut server = Server::bind(config)?;
        let graph = match &self.graph {
            Some(path) => Graph::read(path)?,
            None => Graph::wiki_vote(),
        };
        let now = SystemTime::now().duration_since(UNIX_EPOCH).context("the clock")?.as_secs();
        let tour = load(server.engine_mut(), &graph, self.posts, self.seed, now)?;
        let addresses = server.addresses();
        let port = addresses.first().context("no address")?.port();
        let mut out = std::io::stdout().lock();
        writeln!(
            out,
            "{} users, {} subscriptions, {} posts; join timeline: {TIMELINE}\njoins of the front page: {}; {}\njoins of the stories: {}; {}",
            graph.users,
            graph.edges(),
            self.posts,
            FRONT[0].1,
            FRONT[1].1,
            STORIES[0].1,
            STORIES[1].1
        )?;
        if let Some(tour) = tour {
            write!(out, "{}", tour.text(port))?;
        }
        drop(out);
        say_others(&server)?;
        say_ready(&addresses)?;
        server.run().context("serving")?;
        Ok(ExitCode::SUCCESS)
    }
}

/// Loads subscriptions and posts and installs the join; what to show of it, if anything.
fn load(
    engine: &mut Engine,
    graph: &Graph,
    posts: u64,
    seed: u64,
    now: u64,
) -> anyhow::Result<Option<Tour>> {
    for name in ["s", "p", "t"] {
        let options = TableOptions { boundary: Some(1), ..TableOptions::default() };
        engine.table_set(name.as_bytes(), &options)?;
    }
    engine.join_add("timeline", TIMELINE, false)?;
    for (name, spec) in FRONT.into_iter().chain(STORIES) {
        engine.join_add(name, spec, false)?;
    }
    load_stories(engine)?;

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
            engine.set(key.as_bytes(), b"1", Expiry::Never)?;
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
            engine.set(key.as_bytes(), texts.text(&mut rng).as_bytes(), Expiry::Never)?;
            newest[poster] = Some(time);
            step(&bar);
        }
    }
    bar.finish_and_clear();
    Ok(choose(graph, &newest))
}

/// Loads stories and the votes on them.
fn load_stories(engine: &mut Engine) -> anyhow::Result<()> {
    for (number, Vote { story, up }) in Vote::real().into_iter().enumerate() {
        let key = format!("story|{story:05}");
        engine.set(key.as_bytes(), format!("{SITE}{story}").as_bytes(), Expiry::Never)?;
        let key = format!("vote|{story:05}|{number:04}");
        engine.set(key.as_bytes(), if up { b"1" } else { b"-1" }, Expiry::Never)?;
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
    /// Commands to try, and how to do without redis-cli.
    fn text(&self, port: u16) -> String {
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
