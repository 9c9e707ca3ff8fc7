//! Twip: timelines over a follower graph, the workload of the Pequod paper.
//!
//! Users log in (read their recent timeline in full), check it for what is newer than the
//! last post they saw, subscribe to others, and post. [`plan`] draws all of that beforehand;
//! [`world`] is the generator's own model of the result; each system has a [`Backend`] that
//! says how its experts would do it. Every run ends by comparing sampled timelines with a
//! recomputation from the model.

pub mod client;
pub mod headwater;
pub mod memcached;
pub mod plan;
pub mod postgres;
pub mod redis;
pub mod run;
pub mod world;

use crate::wire::{Connection, Input};
use anyhow::Result;
use std::io;
use world::World;

/// Which joins Headwater keeps timelines with.
#[derive(Clone, Copy, PartialEq, Eq, Debug, clap::ValueEnum)]
pub enum Mode {
    /// Push join: a timeline is materialized when it is first read, then kept up to date.
    Push,
    /// The same, with every timeline materialized before the run, inactive users' too.
    PushAll,
    /// Auto join: each timeline is kept, or computed on every read, as it is read and changed.
    Auto,
    /// Pull join: computed on every read.
    Pull,
    /// No join: the clients keep timelines up to date in plain keys.
    Client,
}

/// One post in a timeline.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Entry {
    /// When it was posted.
    pub time: u32,
    /// By whom.
    pub poster: u32,
    /// What it says.
    pub text: Vec<u8>,
}

/// What a read of a timeline brought.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Seen {
    /// How many posts.
    pub count: usize,
    /// The moment of the newest; 0 where there is none.
    pub newest: u32,
}

/// A post that is being delivered.
#[derive(Clone, Copy, Debug)]
pub struct Post<'a> {
    /// By whom.
    pub poster: u32,
    /// When.
    pub time: u32,
    /// What it says.
    pub text: &'a [u8],
}

/// How timelines are kept in one system.
///
/// A batch is sent in the order in which its operations happen. Reads that follow one another stand between
/// `begin_reads` and `end_reads`, so that a system can be asked for many at once. The second half of a post
/// or a subscription is written by `after_post` and `after_subscribe`, which tell how many
/// replies [`Backend::skip`] will have to read for it.
pub trait Backend {
    /// Brings the graph and the first posts into a server.
    ///
    /// # Errors
    /// The connection fails or the server refuses.
    fn load(&mut self, world: &World<'_>, connection: &mut Connection) -> Result<()>;

    /// Readies another connection.
    ///
    /// # Errors
    /// As for [`Backend::load`].
    fn prepare(&self, _connection: &mut Connection) -> Result<()> {
        Ok(())
    }

    /// Starts reads that follow one another.
    fn begin_reads(&mut self, _out: &mut Vec<u8>) {}
    /// Asks for the posts in `user`'s timeline at `since` or later.
    fn read(&mut self, out: &mut Vec<u8>, user: u32, since: u32);
    /// Ends reads that follow one another.
    fn end_reads(&mut self, _out: &mut Vec<u8>) {}

    /// Takes the answer to one read; `each` gets the posts if it is wanted.
    ///
    /// # Errors
    /// The connection fails or the answer is none.
    fn seen(
        &mut self,
        input: &mut Input,
        since: u32,
        each: Option<&mut Vec<Entry>>,
    ) -> io::Result<Seen>;
    /// Takes what follows the answers to reads that follow one another.
    ///
    /// # Errors
    /// As for [`Backend::seen`].
    fn seen_all(&mut self, _input: &mut Input) -> io::Result<()> {
        Ok(())
    }

    /// Writes a post.
    fn post(&mut self, out: &mut Vec<u8>, post: Post<'_>);
    /// Takes its answer, writes what must follow, and gives the number of its replies.
    ///
    /// # Errors
    /// As for [`Backend::seen`].
    fn after_post(
        &mut self,
        input: &mut Input,
        next: &mut Vec<u8>,
        post: Post<'_>,
    ) -> io::Result<usize>;

    /// Lets `user` follow `poster`, whose posts since `since` belong in his timeline.
    fn subscribe(&mut self, out: &mut Vec<u8>, user: u32, poster: u32, since: u32);
    /// Takes its answer, writes what must follow, and gives the number of its replies.
    ///
    /// # Errors
    /// As for [`Backend::seen`].
    fn after_subscribe(
        &mut self,
        input: &mut Input,
        next: &mut Vec<u8>,
        user: u32,
        since: u32,
    ) -> io::Result<usize>;

    /// Takes one reply to what must follow.
    ///
    /// # Errors
    /// As for [`Backend::seen`].
    fn skip(&mut self, input: &mut Input) -> io::Result<()>;
}
