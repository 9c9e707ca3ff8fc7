//! The fault experiment of *Data flows in key-value stores* (ETH TR 742, Figures 7 and 8): posts at a constant rate to the timelines of
//! followers, while the node that owns the data is killed and comes back.
//!
//! Three ways to write timelines, each on a cluster of its own: the client does, before it counts the post as done; workers behind a
//! queue (a JetStream stream of three replicas on the same NATS servers); a flow of the cluster. A client whose request fails asks
//! another node, until it is acknowledged: what is acknowledged must be once in every timeline in the end.
//!
//! - `clients`: who posts, and the workers. `picture`: throughput and response time over time.

mod clients;
mod picture;

use crate::args::{Common, within};
use crate::cluster::site::{Kind, MACHINES, Site};
use crate::flows::nats;
use crate::flows::world::{Post, World};
use crate::peer::{System, stop};
use crate::report::{self, table};
use crate::wire::connection::Loader;
use crate::wire::{Connection, resp};
use anyhow::{Result, bail};
use clients::{Acknowledged, Run, Way};
use core::time::Duration;
use indicatif::ProgressBar;
use rustix::process::Signal;
use std::io::Write;
use std::time::Instant;

/// When the owner is killed, when its node is started again, and when the last post is due, in seconds.
const KILLED_AT: f64 = 60.0;
const BACK_AT: f64 = 90.0;
const SECONDS: f64 = 150.0;
/// Seconds of a row of the table.
const ROW: f64 = 10.0;
/// How long deliveries may take that are left when the last post is acknowledged.
const DRAIN: Duration = Duration::from_secs(300);

/// Posts to followers' timelines while a node of a cluster is killed: by the client, by workers behind a queue, by a flow.
#[derive(Clone, Debug, clap::Args)]
pub struct Faults {
    #[command(flatten)]
    common: Common,
    /// Posts a second.
    #[arg(long, default_value_t = 1000.0, value_name = "N")]
    rate: f64,
    /// Users of the follower graph.
    #[arg(long, default_value_t = 1000, value_name = "N")]
    users: usize,
    /// Whom a user follows, on average.
    #[arg(long, default_value_t = 5.0, value_name = "N")]
    follows: f64,
}

/// What a way has come to.
#[derive(Debug)]
struct Measured {
    way: Way,
    acknowledged: Vec<Acknowledged>,
    /// The longest time in which nothing was acknowledged.
    silence: Duration,
    /// From the last acknowledgement to the last delivery.
    drained: Duration,
    /// Deliveries that are missing, and keys of timelines that nobody has posted.
    missing: u64,
    surplus: u64,
}

impl Faults {
    /// Measures, prints a table, and draws the picture that was asked for.
    ///
    /// # Errors
    /// An option is wrong, a program is missing, or what was acknowledged is not there.
    pub fn run(&self) -> Result<()> {
        self.common.check()?;
        within("--rate", self.rate, 1.0, 1e5)?;
        within("--users", self.users as f64, 10.0, 1e6)?;
        within("--follows", self.follows, 1.0, 1000.0)?;
        if !self.common.against.is_empty() || self.common.peers_only || self.common.json.is_some() {
            bail!("--against, --peers-only, --json: faults measures Headwater alone, as a table");
        }
        let launch = self.common.launch(0)?;
        launch.check(&[System::Headwater, System::Nats])?;
        stop::handle_signals()?;
        let bar = ProgressBar::new_spinner();
        bar.enable_steady_tick(Duration::from_millis(200));
        let mut measured = Vec::new();
        for way in Way::ALL {
            bar.set_message(format!("{}: three NATS servers and three nodes", way.name()));
            measured.push(self.measure(way, launch.headwater.clone())?);
        }
        bar.finish_and_clear();
        let text = self.tell(&measured);
        std::io::stdout().lock().write_all(text.as_bytes())?;
        if let Some(path) = &self.common.svg {
            let times = [KILLED_AT, BACK_AT].map(|at| at * self.common.scale);
            report::write(path, &picture::picture(&measured, times, self.seconds())?)?;
        }
        match measured.iter().find(|it| it.missing > 0 || it.surplus > 0) {
            None => Ok(()),
            Some(wrong) => bail!("{}: timelines are not what was posted", wrong.way.name()),
        }
    }

    fn seconds(&self) -> f64 {
        SECONDS * self.common.scale
    }

    fn measure(&self, way: Way, headwater: std::path::PathBuf) -> Result<Measured> {
        let mut world = World::new(self.users, self.follows, self.common.seed);
        let posts = world.posts((self.seconds() * self.rate).max(1.0) as usize);
        let mut site = Site::start(headwater)?;
        load(&site, &world, way)?;
        let ports = (0..MACHINES).map(|at| site.port(at)).collect::<Vec<_>>();
        let run = Run::new(way, &world, ports, site.nats_port(0));
        let begun = Instant::now();
        let at = |seconds: f64| begun + Duration::from_secs_f64(seconds * self.common.scale);
        let (acknowledged, drained) =
            run.act((&posts, self.rate, begun), self.common.connections, |until_acknowledged| {
                stop::sleep_until(at(KILLED_AT))?;
                let owner = site.owner()?;
                site.end(Kind::Node, owner, Signal::KILL)?;
                stop::sleep_until(at(BACK_AT))?;
                site.restart(Kind::Node, owner)?;
                until_acknowledged();
                delivered(&site, &world, &posts)
            })?;
        if acknowledged.len() < posts.len() {
            bail!("{} of {} posts were acknowledged", acknowledged.len(), posts.len());
        }
        let missing = missing(&site, &world, &posts)?;
        let expected = world.deliveries(&posts);
        let surplus = (timelines(&site, &world)? + missing).saturating_sub(expected);
        let mut moments: Vec<f64> = acknowledged.iter().map(|it| it.at).collect();
        moments.sort_by(f64::total_cmp);
        let silence = moments.windows(2).map(|two| two[1] - two[0]).fold(0.0, f64::max);
        let silence = Duration::from_secs_f64(silence);
        Ok(Measured { way, acknowledged, silence, drained, missing, surplus })
    }

    fn tell(&self, measured: &[Measured]) -> String {
        let scale = self.common.scale;
        let mut text = format!(
            "\nfaults: {} posts/s to {} followers each, on a cluster of three nodes; the owner is killed at {:.0} s, and back at {:.0} s\n",
            self.rate,
            self.follows,
            KILLED_AT * scale,
            BACK_AT * scale
        );
        let mut head = vec![String::from("seconds")];
        for it in measured {
            head.extend(["posts/s", "p50 ms", "p99 ms"].map(|title| {
                if title == "posts/s" {
                    format!("{}: {title}", it.way.name())
                } else {
                    title.into()
                }
            }));
        }
        let mut grid = vec![head];
        let row = ROW * scale;
        let last =
            measured.iter().flat_map(|it| &it.acknowledged).map(|it| it.at).fold(0.0, f64::max);
        for at in 0..=(last / row) as usize {
            let (from, to) = (at as f64 * row, (at + 1) as f64 * row);
            let mut cells = vec![format!("{from:.1}–{to:.1}")];
            for it in measured {
                let (count, half, most) = within_times(&it.acknowledged, from, to);
                cells.push(format!("{:.0}", count as f64 / row));
                cells.extend([half, most].map(|took| format!("{took:.1}")));
            }
            grid.push(cells);
        }
        table::rows(&mut text, &grid);
        text.push('\n');
        let mut grid = vec![
            ["", "longest silence", "last delivery after", "missing", "twice"]
                .map(String::from)
                .to_vec(),
        ];
        grid.extend(measured.iter().map(|it| {
            vec![
                it.way.name().to_owned(),
                format!("{:.2} s", it.silence.as_secs_f64()),
                format!("{:.2} s", it.drained.as_secs_f64()),
                it.missing.to_string(),
                it.surplus.to_string(),
            ]
        }));
        table::rows(&mut text, &grid);
        text
    }
}

/// How many posts were acknowledged in a time, and what half of them and 99 % of them took at most, in milliseconds.
fn within_times(all: &[Acknowledged], from: f64, to: f64) -> (usize, f64, f64) {
    let mut took: Vec<f64> =
        all.iter().filter(|it| (from..to).contains(&it.at)).map(|it| it.took * 1e3).collect();
    took.sort_by(f64::total_cmp);
    let share = |share: f64| {
        let at = ((took.len() as f64 * share).ceil() as usize).clamp(1, took.len().max(1)) - 1;
        took.get(at).copied().unwrap_or(0.0)
    };
    (took.len(), share(0.5), share(0.99))
}

/// Loads the followers, and declares what a way needs.
fn load(site: &Site, world: &World, way: Way) -> Result<()> {
    let mut connection = Connection::open(site.port(site.owner()?))?;
    for table in [b"f", b"t"] {
        resp::command(&mut connection.out, &[b"TABLE.SET", table, b"BOUNDARY", b"1"]);
        connection.flush()?;
        resp::skip(&mut connection.input)?;
    }
    let mut loader = Loader::new(&mut connection, resp::skip);
    let followers = world.followers.iter().enumerate();
    let keys = followers.flat_map(|(poster, followers)| {
        let poster = world.name(poster as u32);
        followers.iter().map(move |&user| (format!("f|{poster}|{}", world.name(user)), []))
    });
    resp::set_all(&mut loader, keys)?;
    loader.finish()?;
    match way {
        Way::Synchronous => {}
        Way::Flow => {
            let join = b"t|<user>|<time>|<poster> = check f|<poster>|<user> copy p|<poster>|<time>";
            let words: [&[u8]; 6] =
                [b"FLOW.ADD", b"fan", b"ON", b"p|<poster>|<time>", b"FANOUT", join];
            resp::command(&mut connection.out, &words);
            connection.flush()?;
            resp::skip(&mut connection.input)?;
        }
        Way::Queue => nats::prepare(&mut Connection::open(site.nats_port(0))?, MACHINES)?,
    }
    Ok(())
}

/// Keys of all timelines, one after the other: all of them may be more than a node reads from its disk at once.
fn timelines(site: &Site, world: &World) -> Result<u64> {
    let mut connection = Connection::open(site.port(site.owner()?))?;
    let mut keys = 0;
    for user in 0..world.followers.len() {
        let prefix = format!("t|{}|", world.name(user as u32));
        resp::command(&mut connection.out, &[b"PREFIX", prefix.as_bytes(), b"COUNT"]);
        connection.flush()?;
        keys += resp::integer(&mut connection.input)? as u64;
    }
    Ok(keys)
}

/// Waits until as many deliveries are there as there are to be, or for long; how long that took.
fn delivered(site: &Site, world: &World, posts: &[Post]) -> Result<Duration> {
    let (begun, expected) = (Instant::now(), world.deliveries(posts));
    while timelines(site, world)? < expected && begun.elapsed() < DRAIN {
        stop::check()?;
        std::thread::sleep(Duration::from_millis(100));
    }
    Ok(begun.elapsed())
}

/// Deliveries that are not there.
fn missing(site: &Site, world: &World, posts: &[Post]) -> Result<u64> {
    let mut connection = Connection::open(site.port(site.owner()?))?;
    let mut missing = 0;
    for post in posts {
        let (poster, time) = (world.name(post.poster), clients::time_of(post));
        let followers = &world.followers[post.poster as usize];
        resp::begin(&mut connection.out, 2 + followers.len());
        resp::argument(&mut connection.out, b"MGET");
        resp::argument(&mut connection.out, format!("p|{poster}|{time}").as_bytes());
        for &user in followers {
            let key = format!("t|{}|{time}|{poster}", world.name(user));
            resp::argument(&mut connection.out, key.as_bytes());
        }
        connection.flush()?;
        let text = post.text();
        for _ in 0..resp::array(&mut connection.input)? {
            let found = resp::bulk(&mut connection.input)?;
            missing += u64::from(found != Some(&text));
        }
    }
    Ok(missing)
}
