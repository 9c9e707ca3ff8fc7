//! The three ways that a post goes to its followers, each over its own servers.
//!
//! Timelines are in Headwater in all of them, kept on disk. What differs is who does the fan-out, and when the post
//! is acknowledged: the client, before; workers behind a queue, afterwards; the store itself, afterwards.

use super::nats;
use super::world::{Post, World};
use crate::peer::{Launch, Server, System};
use crate::wire::connection::Loader;
use crate::wire::resp::{self, Head};
use crate::wire::{Connection, bad};
use anyhow::{Context, Result, bail};
use core::time::Duration;
use std::io;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Instant;

/// Workers behind a queue, and of the flow.
const WORKERS: usize = 4;
/// Pairs of one `MSET`.
const PAIRS: usize = 500;
/// Messages that a worker takes at once.
const BATCH: &[u8] = b"16";
/// How long effects may take to be there.
const DRAIN_MAX: Duration = Duration::from_secs(600);

/// How a post goes to its followers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Way {
    /// The client reads the followers and writes all timelines, then the post counts as done.
    Synchronous,
    /// A flow does, after the acknowledgement.
    Flow,
    /// Workers do that read Redis Streams.
    Streams,
    /// Workers do that read a stream of NATS.
    Nats,
}

impl Way {
    /// Its name in reports.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Synchronous => "synchronous",
            Self::Flow => "flow",
            Self::Streams => "redis-streams",
            Self::Nats => "nats",
        }
    }

    /// The queue's server.
    #[must_use]
    pub fn queue(self) -> Option<System> {
        match self {
            Self::Streams => Some(System::Redis),
            Self::Nats => Some(System::Nats),
            Self::Synchronous | Self::Flow => None,
        }
    }
}

/// The servers of one way, loaded.
#[derive(Debug)]
pub struct Site<'w> {
    /// The way.
    pub way: Way,
    /// The users.
    pub world: &'w World,
    /// Headwater.
    pub store: Server,
    /// The queue.
    pub queue: Option<Server>,
    /// Posts that workers have delivered.
    pub delivered: AtomicU64,
    stop: AtomicBool,
    failure: Mutex<Option<String>>,
}

impl<'w> Site<'w> {
    /// Starts the servers; `arguments` are Headwater's own.
    ///
    /// # Errors
    /// One does not start.
    pub fn start(
        way: Way,
        world: &'w World,
        launch: &Launch,
        arguments: &[String],
    ) -> Result<Self> {
        let mut ours = launch.clone();
        ours.arguments.extend_from_slice(arguments);
        let store = Server::start(System::Headwater, &ours)?;
        let queue = match way.queue() {
            None => None,
            Some(system) => {
                let mut launch = launch.clone();
                if system == System::Redis {
                    let kept = ["--appendonly", "yes", "--appendfsync", "everysec"];
                    launch.arguments.extend(kept.map(String::from));
                }
                Some(Server::start(system, &launch)?)
            }
        };
        let (delivered, stop) = (AtomicU64::new(0), AtomicBool::new(false));
        Ok(Self { way, world, store, queue, delivered, stop, failure: Mutex::new(None) })
    }

    /// Loads the followers and declares what the way needs.
    ///
    /// # Errors
    /// A server refuses.
    pub fn load(&self) -> Result<()> {
        let mut connection = self.store.connect()?;
        for table in [b"f", b"t"] {
            resp::command(&mut connection.out, &[b"TABLE.SET", table, b"BOUNDARY", b"1"]);
            connection.flush()?;
            resp::skip(&mut connection.input)?;
        }
        let mut loader = Loader::new(&mut connection, resp::skip);
        let followers = self.world.followers.iter().enumerate();
        let keys = followers.flat_map(|(poster, followers)| {
            let poster = self.world.name(poster as u32);
            followers.iter().map(move |&user| (format!("f|{poster}|{}", self.world.name(user)), []))
        });
        resp::set_all(&mut loader, keys)?;
        loader.finish()?;
        match (self.way, &self.queue) {
            (Way::Flow, _) => {
                let join =
                    b"t|<user>|<time>|<poster> = check f|<poster>|<user> copy p|<poster>|<time>";
                let words: [&[u8]; 6] =
                    [b"FLOW.ADD", b"fan", b"ON", b"p|<poster>|<time>", b"FANOUT", join];
                resp::command(&mut connection.out, &words);
                connection.flush()?;
                resp::skip(&mut connection.input)?;
            }
            (Way::Streams, Some(queue)) => {
                let mut connection = queue.connect()?;
                let words: [&[u8]; 6] = [b"XGROUP", b"CREATE", b"posts", b"g", b"$", b"MKSTREAM"];
                resp::command(&mut connection.out, &words);
                connection.flush()?;
                resp::skip(&mut connection.input)?;
            }
            (Way::Nats, Some(queue)) => nats::prepare(&mut queue.connect()?, 1)?,
            _ => {}
        }
        Ok(())
    }

    /// Runs workers, if the way has any, while `act` runs.
    ///
    /// # Errors
    /// `act` fails, or a worker does.
    pub fn with_workers<R>(&self, act: impl FnOnce() -> Result<R>) -> Result<R> {
        self.stop.store(false, Ordering::SeqCst);
        let done = std::thread::scope(|scope| {
            if self.queue.is_some() {
                for number in 0..WORKERS {
                    scope.spawn(move || {
                        if let Err(error) = self.work(number) {
                            let mut failure =
                                self.failure.lock().unwrap_or_else(|broken| broken.into_inner());
                            *failure = Some(format!("worker: {error:#}"));
                        }
                    });
                }
            }
            let done = act();
            self.stop.store(true, Ordering::SeqCst);
            done
        })?;
        self.check_workers()?;
        Ok(done)
    }

    fn check_workers(&self) -> Result<()> {
        let failure = self.failure.lock().unwrap_or_else(|broken| broken.into_inner());
        match &*failure {
            Some(text) => bail!("{text}"),
            None => Ok(()),
        }
    }

    fn work(&self, number: usize) -> Result<()> {
        let Some(queue) = &self.queue else { return Ok(()) };
        let (mut queue, mut store) = (queue.connect()?, self.store.connect()?);
        let name = format!("w{number}");
        let inbox = format!("_INBOX.{name}");
        if self.way == Way::Nats {
            nats::begin(&mut queue, &inbox)?;
        }
        while !self.stop.load(Ordering::Relaxed) {
            let done = match self.way {
                Way::Nats => take_nats(&mut queue, &inbox, &mut store)?,
                _ => take_streams(&mut queue, &name, &mut store)?,
            };
            self.delivered.fetch_add(done, Ordering::Relaxed);
        }
        Ok(())
    }

    /// A client of this way.
    ///
    /// # Errors
    /// A server does not accept it.
    pub fn client(&self, number: usize) -> Result<Client<'_>> {
        let (store, mut queue) = (self.store.connect()?, None);
        store.hurry()?;
        let inbox = format!("_INBOX.c{number}");
        if let Some(server) = &self.queue {
            let mut connection = server.connect()?;
            if self.way == Way::Nats {
                nats::begin(&mut connection, &inbox)?;
            }
            queue = Some(connection);
        }
        Ok(Client { way: self.way, world: self.world, store, queue, inbox })
    }

    /// Posts whose effects are not there yet, of `posted` so far.
    ///
    /// # Errors
    /// The server is gone.
    pub fn backlog(&self, control: &mut Connection, posted: u64) -> Result<u64> {
        self.check_workers()?;
        match self.way {
            Way::Synchronous => Ok(0),
            Way::Flow => flow_backlog(control),
            Way::Streams | Way::Nats => {
                Ok(posted.saturating_sub(self.delivered.load(Ordering::Relaxed)))
            }
        }
    }

    /// Waits until all effects are there; how long that took.
    ///
    /// # Errors
    /// They do not come, or a server is gone.
    pub fn drain(&self, posted: u64) -> Result<Duration> {
        let mut control = self.store.connect()?;
        let begun = Instant::now();
        while self.backlog(&mut control, posted)? > 0 {
            if begun.elapsed() > DRAIN_MAX {
                bail!("the backlog is not worked off");
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        Ok(begun.elapsed())
    }

    /// Deliveries of the last of `posts` at each place that are not what the post's key has, and posts that are older
    /// than what is expected.
    ///
    /// # Errors
    /// The server is gone.
    pub fn missing(&self, posts: &[Post]) -> Result<u64> {
        let mut last = std::collections::BTreeMap::new();
        for post in posts {
            last.insert((post.poster, post.slot), *post);
        }
        let (mut connection, mut missing) = (self.store.connect()?, 0);
        for post in last.values() {
            let place = self.world.place(post);
            let (poster, time) = place.split_once('|').unwrap_or((&place, ""));
            let followers = &self.world.followers[post.poster as usize];
            resp::begin(&mut connection.out, 2 + followers.len());
            resp::argument(&mut connection.out, b"MGET");
            resp::argument(&mut connection.out, format!("p|{place}").as_bytes());
            for &user in followers {
                let key = format!("t|{}|{time}|{poster}", self.world.name(user));
                resp::argument(&mut connection.out, key.as_bytes());
            }
            connection.flush()?;
            let count = resp::array(&mut connection.input)?;
            let text = resp::bulk(&mut connection.input)?.map(<[u8]>::to_vec);
            let number = text.as_deref().and_then(Post::number_of);
            missing += u64::from(number.is_none_or(|number| number < post.number));
            for _ in 1..count {
                let copy = resp::bulk(&mut connection.input)?;
                missing += u64::from(copy != text.as_deref());
            }
        }
        Ok(missing)
    }
}

fn flow_backlog(control: &mut Connection) -> Result<u64> {
    resp::command(&mut control.out, &[b"FLOW.INFO", b"fan"]);
    control.flush()?;
    let (count, mut backlog) = (resp::array(&mut control.input)?, None);
    for _ in 0..count / 2 {
        match resp::string(&mut control.input)? {
            // Texts, of whose flow it is.
            b"owner" | b"refused" => _ = resp::bulk(&mut control.input)?,
            b"backlog" => backlog = Some(resp::integer(&mut control.input)? as u64),
            _ => _ = resp::integer(&mut control.input)?,
        }
    }
    backlog.context("FLOW.INFO tells no backlog")
}

/// One client.
#[derive(Debug)]
pub struct Client<'s> {
    way: Way,
    world: &'s World,
    store: Connection,
    queue: Option<Connection>,
    inbox: String,
}

impl Client<'_> {
    /// Posts, and waits for the acknowledgement.
    ///
    /// # Errors
    /// A server refuses ([`io::ErrorKind::InvalidData`]) or is gone.
    pub fn post(&mut self, post: &Post) -> io::Result<()> {
        let place = self.world.place(post);
        self.post_as(&place, &post.text())
    }

    /// As [`Client::post`], of any place.
    ///
    /// # Errors
    /// As for [`Client::post`].
    pub fn post_as(&mut self, place: &str, text: &[u8]) -> io::Result<()> {
        match (self.way, &mut self.queue) {
            (Way::Flow, _) => {
                let key = format!("p|{place}");
                resp::command(&mut self.store.out, &[b"SET", key.as_bytes(), text]);
                self.store.flush()?;
                resp::skip(&mut self.store.input)
            }
            (Way::Streams, Some(queue)) => {
                let words: [&[u8]; 5] = [b"XADD", b"posts", b"*", place.as_bytes(), text];
                resp::command(&mut queue.out, &words);
                queue.flush()?;
                resp::skip(&mut queue.input)
            }
            (Way::Nats, Some(queue)) => {
                let payload = [place.as_bytes(), b" ", text].concat();
                nats::put(queue, &self.inbox, &payload)
            }
            _ => deliver(&mut self.store, place, text),
        }
    }
}

/// Writes a post and all timelines that it goes to.
pub(crate) fn deliver(store: &mut Connection, place: &str, text: &[u8]) -> io::Result<()> {
    let (poster, time) = place.split_once('|').ok_or_else(|| bad("no place of a post"))?;
    let prefix = format!("f|{poster}|");
    resp::command(&mut store.out, &[b"SET", format!("p|{place}").as_bytes(), text]);
    resp::command(&mut store.out, &[b"PREFIX", prefix.as_bytes(), b"KEYS"]);
    store.flush()?;
    resp::skip(&mut store.input)?;
    let count = resp::array(&mut store.input)?;
    let (mut left, mut replies) = (count, 0);
    while left > 0 {
        let pairs = left.min(PAIRS);
        resp::begin(&mut store.out, 1 + 2 * pairs);
        resp::argument(&mut store.out, b"MSET");
        for _ in 0..pairs {
            let follower = resp::string(&mut store.input)?;
            let user = follower.get(prefix.len()..).unwrap_or_default();
            let key = [b"t|", user, b"|", time.as_bytes(), b"|", poster.as_bytes()].concat();
            resp::argument(&mut store.out, &key);
            resp::argument(&mut store.out, text);
        }
        left -= pairs;
        replies += 1;
    }
    store.flush()?;
    (0..replies).try_for_each(|_| resp::skip(&mut store.input))
}

/// Takes some posts from Redis Streams and delivers them; how many.
fn take_streams(queue: &mut Connection, name: &str, store: &mut Connection) -> Result<u64> {
    let words: [&[u8]; 11] = [
        b"XREADGROUP",
        b"GROUP",
        b"g",
        name.as_bytes(),
        b"COUNT",
        BATCH,
        b"BLOCK",
        b"50",
        b"STREAMS",
        b"posts",
        b">",
    ];
    resp::command(&mut queue.out, &words);
    queue.flush()?;
    match resp::head(&mut queue.input)? {
        Head::Null => return Ok(0),
        Head::Many(1) => {}
        other => bail!("XREADGROUP answers {other:?}"),
    }
    resp::array(&mut queue.input)?;
    resp::skip(&mut queue.input)?;
    let mut posts = Vec::new();
    for _ in 0..resp::array(&mut queue.input)? {
        resp::array(&mut queue.input)?;
        let id = resp::string(&mut queue.input)?.to_vec();
        resp::array(&mut queue.input)?;
        let place = String::from_utf8_lossy(resp::string(&mut queue.input)?).into_owned();
        posts.push((id, place, resp::string(&mut queue.input)?.to_vec()));
    }
    for (id, place, text) in &posts {
        deliver(store, place, text)?;
        resp::command(&mut queue.out, &[b"XACK", b"posts", b"g", id]);
        resp::command(&mut queue.out, &[b"XDEL", b"posts", id]);
    }
    queue.flush()?;
    for _ in 0..2 * posts.len() {
        resp::skip(&mut queue.input)?;
    }
    Ok(posts.len() as u64)
}

/// Takes some posts from NATS and delivers them; how many.
fn take_nats(queue: &mut Connection, inbox: &str, store: &mut Connection) -> Result<u64> {
    nats::ask(queue, inbox)?;
    let mut done = 0;
    while done < nats::BATCH as u64 {
        let message = nats::message(queue)?;
        let (Some(reply), Some(payload)) = (message.reply, message.payload) else { break };
        let split = payload.iter().position(|&byte| byte == b' ').context("a strange message")?;
        let place = String::from_utf8_lossy(&payload[..split]).into_owned();
        deliver(store, &place, &payload[split + 1..])?;
        nats::receipt(&mut queue.out, &reply);
        done += 1;
    }
    queue.flush()?;
    Ok(done)
}
