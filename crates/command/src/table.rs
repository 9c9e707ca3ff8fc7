//! The command table: name, arity, flags, keys and a summary of every command.
//!
//! It is the one place that knows which commands exist. COMMAND and its kin, arity errors, the
//! admin right, routing by key and the documentation read it.
//!
//! # Cost
//! [`lookup`] is three multiplications, one table byte and one comparison of two words; the
//! multiplier that makes the hash perfect is found while compiling.

mod lookup;
mod rows;
mod subcommands;

pub use lookup::{NUMBERS, lookup, lookup_subcommand, spec_for, spec_of};
pub use rows::SPECS;

/// Properties of a command, as COMMAND names them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Flags(u32);

impl Flags {
    /// None.
    pub const NONE: Self = Self(0);
    /// May change stored data.
    pub const WRITE: Self = Self(1);
    /// Reads stored data.
    pub const READONLY: Self = Self(1 << 1);
    /// May need more memory: refused where the bound is reached.
    pub const DENYOOM: Self = Self(1 << 2);
    /// Needs the admin right.
    pub const ADMIN: Self = Self(1 << 3);
    /// Concerns channels.
    pub const PUBSUB: Self = Self(1 << 4);
    /// Not for scripts.
    pub const NOSCRIPT: Self = Self(1 << 5);
    /// Allowed while loading.
    pub const LOADING: Self = Self(1 << 6);
    /// Allowed on a replica that lags.
    pub const STALE: Self = Self(1 << 7);
    /// Its cost does not depend on the size of data.
    pub const FAST: Self = Self(1 << 8);
    /// Allowed before authentication.
    pub const NO_AUTH: Self = Self(1 << 9);
    /// Not allowed in a transaction.
    pub const NO_MULTI: Self = Self(1 << 10);
    /// Allowed while the server is occupied.
    pub const ALLOW_BUSY: Self = Self(1 << 11);
    /// Never in the slow log.
    pub const SKIP_SLOWLOG: Self = Self(1 << 12);
    /// May wait for other clients.
    pub const BLOCKING: Self = Self(1 << 13);
    /// Which arguments are keys, another one says.
    pub const MOVABLE_KEYS: Self = Self(1 << 14);
    /// Can hurt the service; shown as a category only.
    pub const DANGEROUS: Self = Self(1 << 15);

    /// Flag words in the order of their bits.
    pub const WORDS: [&'static str; 15] = [
        "write",
        "readonly",
        "denyoom",
        "admin",
        "pubsub",
        "noscript",
        "loading",
        "stale",
        "fast",
        "no_auth",
        "no_multi",
        "allow_busy",
        "skip_slowlog",
        "blocking",
        "movablekeys",
    ];

    /// These flags and those.
    #[must_use]
    pub const fn and(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// Whether all of `other` are among these.
    #[inline]
    #[must_use]
    pub const fn has(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }

    /// The words of the flags that are set.
    pub fn words(self) -> impl Iterator<Item = &'static str> + Clone {
        Self::WORDS
            .iter()
            .enumerate()
            .filter(move |(bit, _)| self.0 >> bit & 1 != 0)
            .map(|it| *it.1)
    }
}

/// Which arguments are keys; the command's name is argument 0.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct KeyArgs {
    /// The first one; 0: there are none.
    pub first: i8,
    /// The last one; negative: counted from the end.
    pub last: i8,
    /// From each key to the next.
    pub step: i8,
}

impl KeyArgs {
    /// No argument is a key.
    pub const NONE: Self = Self { first: 0, last: 0, step: 0 };

    /// Positions of the keys among `len` arguments.
    pub fn positions(self, len: usize) -> impl Iterator<Item = usize> + Clone {
        let last = if self.last < 0 {
            (len as isize + isize::from(self.last)).max(-1) + 1
        } else {
            (isize::from(self.last) + 1).min(len as isize)
        };
        let first = if self.first > 0 { self.first as usize } else { usize::MAX };
        (first..(last as usize).max(first.min(last as usize))).step_by(self.step.max(1) as usize)
    }
}

/// The family that a command is documented under.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Group {
    /// Keys as such and their expiry.
    Generic,
    /// Values.
    String,
    /// Bits of values.
    Bitmap,
    /// Streams.
    Stream,
    /// Ranges of keys.
    Range,
    /// Cache joins.
    Join,
    /// Tables.
    Table,
    /// Sources of base data.
    Source,
    /// Shards.
    Shard,
    /// The cluster, as Redis Cluster's clients ask of it.
    Cluster,
    /// Flows.
    Flow,
    /// Functions next to the data.
    Function,
    /// Channels.
    PubSub,
    /// Scripts that are commands here.
    Scripting,
    /// Transactions.
    Transactions,
    /// The connection itself.
    Connection,
    /// The server as a whole.
    Server,
}

impl Group {
    /// The family's name.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Generic => "generic",
            Self::String => "string",
            Self::Bitmap => "bitmap",
            Self::Stream => "stream",
            Self::Range => "range",
            Self::Join => "join",
            Self::Table => "table",
            Self::Source => "source",
            Self::Shard => "shard",
            Self::Cluster => "cluster",
            Self::Flow => "flow",
            Self::Function => "function",
            Self::PubSub => "pubsub",
            Self::Scripting => "scripting",
            Self::Transactions => "transactions",
            Self::Connection => "connection",
            Self::Server => "server",
        }
    }
}

/// One command, or one subcommand of a container such as CONFIG.
#[derive(Debug)]
pub struct Spec {
    /// Which one it is.
    pub id: Id,
    /// Its name in lower case; for a subcommand without the container's.
    pub name: &'static str,
    /// `container|name` for a subcommand, else the name.
    pub full_name: &'static str,
    /// Arguments with the name (and the container's); negative: at least so many.
    pub arity: i8,
    /// Its properties.
    pub flags: Flags,
    /// Which arguments are keys.
    pub keys: KeyArgs,
    /// Its family.
    pub group: Group,
    /// The version that brought it: Redis's for its commands, Headwater's for others.
    pub since: &'static str,
    /// What it does, in one line.
    pub summary: &'static str,
    /// What it takes, in one line, without the name.
    pub usage: &'static str,
    /// Its subcommands, if it is a container.
    pub subcommands: &'static [Self],
}

impl PartialEq for Spec {
    fn eq(&self, other: &Self) -> bool {
        self.id == other.id
    }
}

impl Spec {
    /// Whether a request of `len` arguments has enough of them and not too many.
    #[inline]
    #[must_use]
    pub const fn arity_fits(&self, len: usize) -> bool {
        let arity = self.arity as isize;
        if arity >= 0 { len as isize == arity } else { len as isize >= -arity }
    }

    /// Whether it writes by removing alone, so that a disk has more room behind it, sooner or later.
    #[must_use]
    pub const fn frees_room(&self) -> bool {
        matches!(
            self.id,
            Id::Del
                | Id::Unlink
                | Id::GetDel
                | Id::DelIfEq
                | Id::FlushAll
                | Id::FlushDb
                | Id::RangeDel
                | Id::StreamTrim
                | Id::JoinDrop
                | Id::FlowDrop
                | Id::FlowDiscard
                | Id::SourceDrop
                | Id::FnDrop
        )
    }
}

macro_rules! ids {
    ($($name:ident)*) => {
        /// Every command and subcommand.
        #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
        pub enum Id {
            $(
                #[doc = concat!("`", stringify!($name), "`.")]
                $name,
            )*
        }
    };
}

ids! {
    Get Set SetNx SetEx PSetEx GetSet GetDel GetEx MGet MSet MSetNx Append StrLen GetRange SubStr
    SetRange Incr Decr IncrBy DecrBy IncrByFloat Lcs
    SetBit GetBit BitCount BitPos BitOp BitField BitFieldRo
    Del Unlink Exists Type Touch Rename RenameNx Copy Dump Restore Keys Scan RandomKey DbSize FlushAll FlushDb
    Object ObjectEncoding ObjectIdleTime ObjectFreq ObjectRefCount ObjectHelp
    Expire PExpire ExpireAt PExpireAt Ttl PTtl ExpireTime PExpireTime Persist
    StreamAppend StreamRead StreamTrim StreamLen StreamInfo
    DelIfEq PExpireIfEq ClThrottle Eval EvalSha EvalRo EvalShaRo Script ScriptLoad ScriptExists ScriptFlush ScriptHelp
    Range Prefix RangeDel RangeWatch RangeUnwatch Explain ExplainRange Verify
    JoinAdd JoinDrop JoinList JoinInfo JoinKey JoinDecode
    TableSet TableList TableInfo
    FlowAdd FlowDrop FlowList FlowInfo FlowPause FlowResume FlowDead FlowRetry FlowDiscard FlowReplay
    Cluster ClusterSlots ClusterShards ClusterNodes ClusterInfo ClusterMyId ClusterKeySlot ClusterHelp
    ClusterCountKeysInSlot ClusterGetKeysInSlot ReadOnly ReadWrite
    ShardHome ShardList ShardMove ShardPosition Wait
    SourceAdd SourceDrop SourceList SourceInfo SourcePosition SourceCheck
    FnLoad FnDrop FnList FnInfo FnCall FnRange
    Subscribe Unsubscribe PSubscribe PUnsubscribe Publish SSubscribe SUnsubscribe SPublish
    PubSub PubSubChannels PubSubNumSub PubSubNumPat PubSubShardChannels PubSubShardNumSub PubSubHelp
    Multi Exec Discard Watch Unwatch
    Hello Auth Ping Echo Quit Reset Select
    Client ClientId ClientGetName ClientSetName ClientSetInfo ClientList ClientInfo ClientKill
    ClientNoEvict ClientNoTouch ClientCapa ClientReply ClientTracking ClientCaching ClientTrackingInfo
    ClientGetRedir ClientPause ClientUnpause ClientUnblock ClientHelp
    Command CommandCount CommandInfo CommandDocs CommandList CommandGetKeys
    CommandGetKeysAndFlags CommandHelp
    Info Config ConfigGet ConfigSet ConfigResetStat ConfigRewrite ConfigHelp
    Time Role Memory MemoryUsage MemoryStats MemoryPurge MemoryDoctor MemoryHelp
    Slowlog SlowlogGet SlowlogLen SlowlogReset SlowlogHelp
    Latency LatencyLatest LatencyHistory LatencyHistogram LatencyDoctor LatencyReset LatencyHelp
    Acl AclCat AclDelUser AclDryRun AclGenPass AclGetUser AclHelp AclList AclLoad AclLog AclOwners AclSave
    AclSetUser AclUsers AclWhoAmI
    BackupBegin BackupRead BackupEnd
    Debug DebugSleep DebugSetActiveExpire DebugProtocol DebugHelp Monitor Shutdown
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec::Vec;

    fn positions(first: i8, last: i8, step: i8, len: usize) -> Vec<usize> {
        KeyArgs { first, last, step }.positions(len).collect()
    }

    #[test]
    fn key_positions_follow_the_redis_convention() {
        assert_eq!(positions(1, 1, 1, 3), [1]);
        assert_eq!(positions(1, -1, 1, 4), [1, 2, 3]);
        assert_eq!(positions(1, -1, 2, 5), [1, 3]);
        assert_eq!(positions(1, 2, 1, 3), [1, 2]);
        assert_eq!(positions(0, 0, 0, 3), Vec::<usize>::new());
        assert_eq!(positions(1, -1, 1, 1), Vec::<usize>::new());
        assert_eq!(positions(1, -1, 1, 0), Vec::<usize>::new());
    }

    #[test]
    fn every_spec_is_well_formed() {
        for spec in SPECS {
            assert_eq!(spec.name, spec.full_name);
            assert_eq!(spec.name, spec.name.to_ascii_lowercase());
            assert!(spec.arity != 0 && !spec.summary.is_empty());
            for sub in spec.subcommands {
                assert_eq!(sub.full_name, alloc::format!("{}|{}", spec.name, sub.name));
                assert!(sub.arity.unsigned_abs() >= 2, "{}", sub.full_name);
            }
        }
    }
}
