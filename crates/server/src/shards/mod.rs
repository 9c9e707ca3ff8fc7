//! Several shards in one process: each a thread with an engine, a loop and clients of its own.
//!
//! A client's requests are parsed by the shard that it is connected to. What concerns keys is executed at their
//! home (`route`): requests go there by mail (`mail`), as bytes of the client's protocol, and are
//! executed there by a connection that stands for the client. Its replies come back as bytes,
//! and are put in the order of the requests (`front`); replies of several shards to one request are put together
//! (`gather`).
//!
//! # Cost
//! A forwarded request is copied once each way, and parsed twice. Locks and wake-ups are one for
//! each pair of shards in a turn, however many requests there are.

mod count;
mod flows;
mod front;
mod gather;
mod holding;
mod info;
mod items;
mod mail;
mod meeting;
mod position;
mod program;
mod route;
mod turns;

pub(crate) use count::settle;
pub(crate) use front::{Front, HELD_BACK_FOR, Kind};
pub(crate) use gather::{Gather, Merge};
pub(crate) use holding::{Hold, Holding, Leading, Moving, Want};
pub(crate) use mail::{Letter, Mail, Office, Post, Voice};
pub(crate) use meeting::Stays;
pub(crate) use position::{of_text as position_of_text, text_of as text_of_position};
pub(crate) use program::{Next, Program, Step, is_between_shards, words};
pub(crate) use route::{Request, Route, route};

use crate::connection::ConnectionId;
use crate::memory::CommonShare;
use crate::resp::Origin;
use headwater_base::hash::KeyHashBuilder;
use headwater_base::{Millis, Shard};
use headwater_command::{Args, Reply};
use headwater_node::{Peers, WaitId};
use headwater_protocol::resp::{Encoder, Version};
use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

/// What a shard knows of the others.
#[derive(Debug)]
pub(crate) struct Shards {
    /// Which one this is.
    pub(crate) me: Shard,
    /// Letters.
    pub(crate) post: Post,
    /// Loads from other shards, and theirs from here.
    pub(crate) peers: Peers,
    /// Sessions that wait until what is here shows their writes elsewhere.
    pub(crate) waits: HashMap<WaitId, ConnectionId>,
    /// The connections here that stand for clients of other shards.
    pub(crate) backs: HashMap<Origin, ConnectionId, KeyHashBuilder>,
    /// Who has asked this shard to find the keys of a partition, and was not told yet that it has.
    pub(crate) surveys_for: Option<Shard>,
    /// Times at which all hold.
    pub(crate) holding: Holding,
    /// Clients for whom answers are ready that wait for others, with the moment since when.
    pub(crate) held_back: VecDeque<(ConnectionId, u64)>,
    /// Sessions whose next request waits until less waits for its shard.
    pub(crate) crowded: Vec<ConnectionId>,
}

impl Shards {
    /// What the shard `me` knows when it begins.
    pub(crate) fn of(me: Shard, office: &Arc<Office>) -> Box<Self> {
        let post = Post::new(me, office.clone());
        // Shards live and end together, and letters are not lost: there is one epoch, and time says nothing.
        let peers = Peers::new(me, post.shards(), 1, Millis(0));
        let backs = HashMap::with_hasher(KeyHashBuilder::default());
        let (waits, held_back) = (HashMap::new(), VecDeque::new());
        let (holding, surveys_for, crowded) = (Holding::default(), None, Vec::new());
        Box::new(Self { me, post, peers, waits, backs, surveys_for, holding, held_back, crowded })
    }

    /// What this shard and the others know of each other's memory.
    pub(crate) fn common_memory(&self) -> CommonShare {
        CommonShare::new(self.me, self.post.office().clone())
    }

    /// Posts what the engines have to say to one another.
    pub(crate) fn post_packets(&mut self) {
        for (to, packet) in self.peers.take_packets() {
            self.post.to(to).letters.push(Letter::Packet(Box::new(packet)));
        }
    }

    /// Sends a request of a session of this shard to another shard (or to this one, behind what it does
    /// now).
    #[inline]
    pub(crate) fn request(
        &mut self,
        to: Shard,
        session: ConnectionId,
        voice: Voice,
        args: Args<'_>,
    ) {
        let bytes = &mut self.post.to(to).bytes;
        match args.as_sent() {
            Some(sent) => bytes.extend_from_slice(sent),
            None => write_request(args, bytes),
        }
        self.requested(to, session, voice);
    }

    /// The same for a request as the client has sent it.
    pub(crate) fn request_bytes(
        &mut self,
        to: Shard,
        session: ConnectionId,
        voice: Voice,
        bytes: &[u8],
    ) {
        self.post.to(to).bytes.extend_from_slice(bytes);
        self.requested(to, session, voice);
    }

    /// A request was written behind the others.
    #[inline]
    fn requested(&mut self, to: Shard, session: ConnectionId, voice: Voice) {
        self.post.count_request();
        let mail = self.post.to(to);
        let end = mail.bytes.len();
        if let Some(Letter::Requests { session: last, voice: how, end: upto }) =
            mail.letters.last_mut()
            && (*last, *how) == (session, voice)
        {
            *upto = end;
            return;
        }
        mail.letters.push(Letter::Requests { session, voice, end });
    }
}

/// A request as clients send it.
fn write_request(args: Args<'_>, out: &mut Vec<u8>) {
    out.reserve(args.bytes() + 16 * (args.len() + 1));
    let mut request = Encoder::new(out, Version::Resp2);
    request.array(args.len());
    args.iter().for_each(|arg| request.bulk(arg));
}
