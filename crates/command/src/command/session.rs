//! Commands about channels, transactions and the connection itself.

use crate::args::Args;

/// Commands about channels.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum PubSub<'a> {
    /// Listens to channels.
    Subscribe {
        /// The channels.
        channels: Args<'a>,
    },
    /// Stops listening; to all channels where none is named.
    Unsubscribe {
        /// The channels.
        channels: Args<'a>,
    },
    /// Listens to the channels that match glob patterns.
    PSubscribe {
        /// The patterns.
        patterns: Args<'a>,
    },
    /// Stops listening by pattern; to all patterns where none is named.
    PUnsubscribe {
        /// The patterns.
        patterns: Args<'a>,
    },
    /// Sends a message; answers how many received it.
    Publish {
        /// The channel.
        channel: &'a [u8],
        /// The message.
        message: &'a [u8],
    },
    /// Listens to channels of SPUBLISH.
    SSubscribe {
        /// The channels.
        channels: Args<'a>,
    },
    /// Stops listening to channels of SPUBLISH; to all of them where none is named.
    SUnsubscribe {
        /// The channels.
        channels: Args<'a>,
    },
    /// Sends a message to a channel of SSUBSCRIBE; answers how many received it.
    SPublish {
        /// The channel.
        channel: &'a [u8],
        /// The message.
        message: &'a [u8],
    },
    /// Channels that someone listens to.
    Channels {
        /// Only those that match this glob pattern.
        pattern: Option<&'a [u8]>,
        /// Those of SSUBSCRIBE.
        sharded: bool,
    },
    /// How many listen to each channel.
    NumSub {
        /// The channels.
        channels: Args<'a>,
        /// They are those of SSUBSCRIBE.
        sharded: bool,
    },
    /// How many patterns are listened to.
    NumPat,
}

/// Commands about transactions.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Transaction<'a> {
    /// Begins to queue commands.
    Multi,
    /// Executes what was queued.
    Exec,
    /// Forgets what was queued.
    Discard,
    /// The next EXEC runs only if these keys do not change before.
    Watch {
        /// The keys.
        keys: Args<'a>,
    },
    /// Forgets all watched keys.
    Unwatch,
}

/// User name and password.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Credentials<'a> {
    /// The user; `None`: the default one.
    pub user: Option<&'a [u8]>,
    /// The password.
    pub password: &'a [u8],
}

/// What CLIENT REPLY sets.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ReplyMode {
    /// Every request is answered.
    On,
    /// No request is answered.
    Off,
    /// The next request is not answered.
    Skip,
}

/// The kinds of connection that CLIENT LIST and CLIENT KILL can select.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ClientKind {
    /// Neither of the others.
    Normal,
    /// A replica's link to its home.
    Replica,
    /// The link to a master.
    Master,
    /// In subscribed mode.
    PubSub,
}

/// Which connections CLIENT KILL ends: those that fit every filter given.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct KillFilter<'a> {
    /// The connection with this number.
    pub id: Option<u64>,
    /// Those from this `address:port`.
    pub address: Option<&'a [u8]>,
    /// Those accepted at this `address:port`.
    pub local_address: Option<&'a [u8]>,
    /// Those of this user.
    pub user: Option<&'a [u8]>,
    /// Those of this kind.
    pub kind: Option<ClientKind>,
    /// Those accepted at least so many seconds ago.
    pub age: Option<u64>,
    /// Not the connection that asks (the default).
    pub skip_me: bool,
    /// The old form `CLIENT KILL address:port`, answered with OK or an error instead of a count.
    pub by_address_alone: bool,
}

/// What CLIENT TRACKING asks for.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Tracking<'a> {
    /// Track from now on, or no more.
    pub on: bool,
    /// The number of the client that is told instead.
    pub redirect: Option<i64>,
    /// Tell of all keys with some prefix, whoever has read them.
    pub broadcast: bool,
    /// Remember only reads behind CLIENT CACHING YES.
    pub opt_in: bool,
    /// Remember all but reads behind CLIENT CACHING NO.
    pub opt_out: bool,
    /// Do not tell of the client's own writes.
    pub no_loop: bool,
    /// The options as they were given, each one checked.
    pub options: Args<'a>,
}

impl<'a> Tracking<'a> {
    /// The prefixes.
    pub fn prefixes(&self) -> impl Iterator<Item = &'a [u8]> {
        let mut options = self.options.iter();
        core::iter::from_fn(move || {
            loop {
                let option = options.next()?;
                if option.eq_ignore_ascii_case(b"prefix") {
                    return options.next();
                }
                if option.eq_ignore_ascii_case(b"redirect") {
                    options.next();
                }
            }
        })
    }
}

/// Commands about the connection itself.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Connection<'a> {
    /// Chooses the protocol version; answers facts about the server.
    Hello {
        /// 2 or 3; `None` keeps the version.
        version: Option<u8>,
        /// Authenticates first.
        credentials: Option<Credentials<'a>>,
        /// Names the connection.
        name: Option<&'a [u8]>,
    },
    /// Authenticates.
    Auth(Credentials<'a>),
    /// Answers PONG or the message.
    Ping {
        /// What to answer.
        message: Option<&'a [u8]>,
    },
    /// Answers the message.
    Echo {
        /// What to answer.
        message: &'a [u8],
    },
    /// Ends the connection after OK.
    Quit,
    /// Brings the connection into its first state.
    Reset,
    /// Chooses database 0, the only one.
    Select,
    /// The connection's number.
    ClientId,
    /// The connection's name.
    ClientGetName,
    /// Names the connection.
    ClientSetName {
        /// The name; empty: none.
        name: &'a [u8],
    },
    /// Tells which client library is used.
    ClientSetInfo {
        /// `LIB-NAME` or `LIB-VER`.
        attribute: &'a [u8],
        /// Its value.
        value: &'a [u8],
    },
    /// The connections, a line each.
    ClientList {
        /// Only this kind.
        kind: Option<ClientKind>,
        /// Only these numbers (all, where empty), each one checked to be a number.
        ids: Args<'a>,
    },
    /// The line of this connection.
    ClientInfo,
    /// Ends connections.
    ClientKill(KillFilter<'a>),
    /// Has the requests of clients wait for a while.
    ClientPause {
        /// For so many milliseconds.
        millis: u64,
        /// Only those that write.
        writes_alone: bool,
    },
    /// Ends what CLIENT PAUSE has begun.
    ClientUnpause,
    /// Has a client wait no longer for another one; answers 1 or 0.
    ClientUnblock {
        /// Its number.
        id: u64,
        /// It is answered with an error, not as if its time were up.
        with_error: bool,
    },
    /// Exempts the connection from eviction, or not.
    ClientNoEvict {
        /// Exempt.
        on: bool,
    },
    /// Keeps the connection's reads from counting as uses, or not.
    ClientNoTouch {
        /// Do not count.
        on: bool,
    },
    /// What the client can deal with besides the protocol's usual (Valkey's command); what is unknown is
    /// passed over.
    ClientCapa {
        /// Errors of several lines in RESP3.
        blob_errors: bool,
    },
    /// Whether requests are answered.
    ClientReply(ReplyMode),
    /// Whether the client is told when what it has read changes.
    ClientTracking(Tracking<'a>),
    /// Whether the reads of the next command are remembered.
    ClientCaching {
        /// They are; `None`: the word is neither YES nor NO.
        yes: Option<bool>,
    },
    /// How the client tracks.
    ClientTrackingInfo,
    /// Who is told instead of the client.
    ClientGetRedir,
}
