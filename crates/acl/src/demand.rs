//! What a request needs: keys, ranges of keys, channels.
//!
//! [`demands`] names every command: one that is added to the table does not compile before somebody has said here what it needs.
//!
//! As in Redis, what only tells of a key that it is there, of which type, how long and until when (`EXISTS`, `TYPE`, `STRLEN`, `TTL` …)
//! needs any right on the key; what shows its value needs the right to read; what changes it, the right to write.

use crate::journal::AclReason;
use crate::keys::glob_prefix;
use alloc::string::String;
use alloc::vec::Vec;
use headwater_base::KeyRange;
use headwater_command::{
    Args, Bits, CallFlags, Command, Connection, Data, Flags, Functions, Id, Keys, RangeWatch,
    Ranges, Spec, Strings,
};

/// What is done with a key.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Access(u8);

impl Access {
    /// Nothing but to see whether it is there, of which type, how long and until when.
    pub const NONE: Self = Self(0);
    /// Its value is shown.
    pub const READ: Self = Self(1);
    /// It is changed.
    pub const WRITE: Self = Self(2);
    /// Both.
    pub const ALL: Self = Self(3);

    /// Whether all of `other` is in this.
    #[must_use]
    pub const fn has(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }

    /// This and that.
    #[must_use]
    pub const fn and(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// What `R`, `W` or both say.
    #[must_use]
    pub fn of_letters(letters: &[u8]) -> Option<Self> {
        let mut access = Self::NONE;
        for letter in letters {
            access = access.and(match letter.to_ascii_uppercase() {
                b'R' => Self::READ,
                b'W' => Self::WRITE,
                _ => return None,
            });
        }
        (access != Self::NONE).then_some(access)
    }
}

/// One thing that a request needs.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Demand<'a> {
    /// A key.
    Key {
        /// The key.
        key: &'a [u8],
        /// What is done with it.
        access: Access,
    },
    /// Every key of a range.
    Range {
        /// The range.
        range: KeyRange,
        /// What is done with them.
        access: Access,
    },
    /// A channel.
    Channel(&'a [u8]),
    /// All channels that a glob matches.
    ChannelPattern(&'a [u8]),
    /// What another command does.
    Command(Id),
}

/// What is refused.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Denied {
    /// The command of this name.
    Command(&'static str),
    /// A key.
    Key(Vec<u8>),
    /// A range.
    Range(KeyRange),
    /// A channel.
    Channel(Vec<u8>),
}

impl Demand<'_> {
    pub(crate) fn denied(&self) -> Denied {
        match self {
            Self::Key { key, .. } => Denied::Key(key.to_vec()),
            Self::Range { range, .. } => Denied::Range(range.clone()),
            Self::Channel(channel) | Self::ChannelPattern(channel) => {
                Denied::Channel(channel.to_vec())
            }
            Self::Command(id) => {
                let spec = headwater_command::table::spec_of(*id as usize);
                Denied::Command(spec.map_or("", |spec| spec.full_name))
            }
        }
    }
}

impl Denied {
    /// Why, in one word.
    #[must_use]
    pub fn reason(&self) -> AclReason {
        match self {
            Self::Command(_) => AclReason::Command,
            Self::Key(_) | Self::Range(_) => AclReason::Key,
            Self::Channel(_) => AclReason::Channel,
        }
    }

    /// What was asked for, to be read by a person.
    #[must_use]
    pub fn object(&self) -> String {
        let lossy = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        match self {
            Self::Command(name) => String::from(*name),
            Self::Key(bytes) | Self::Channel(bytes) => lossy(bytes),
            Self::Range(range) => {
                let last = if range.last.is_empty() { "end" } else { &lossy(&range.last) };
                alloc::format!("[{}, {last})", lossy(&range.first))
            }
        }
    }

    /// The text that ACL DRYRUN answers, which names what is refused, and to whom.
    #[must_use]
    pub fn told(&self, user: &str) -> String {
        let object = self.object();
        match self {
            Self::Command(_) => {
                alloc::format!("User {user} has no permissions to run the '{object}' command")
            }
            Self::Key(_) => {
                alloc::format!("User {user} has no permissions to access the '{object}' key")
            }
            Self::Range(_) => {
                alloc::format!("User {user} has no permissions to access the keys of {object}")
            }
            Self::Channel(_) => {
                alloc::format!("User {user} has no permissions to access the '{object}' channel")
            }
        }
    }

    /// The text behind `NOPERM` for the user whose request it was.
    #[must_use]
    pub fn refusal(&self, user: &str) -> String {
        match self {
            Self::Command(_) => self.told(user),
            Self::Key(_) => String::from("No permissions to access a key"),
            Self::Range(_) => String::from("No permissions to access all keys of a range"),
            Self::Channel(_) => String::from("No permissions to access a channel"),
        }
    }
}

/// What the keys of a command are to it, by their places in the table.
fn keys<'a>(spec: &Spec, args: Args<'a>, access: Access, out: &mut Vec<Demand<'a>>) {
    let positions = spec.keys.positions(args.len());
    let keys = positions.filter_map(|at| args.get(at));
    out.extend(keys.map(|key| Demand::Key { key, access }));
}

fn pair<'a>(args: Args<'a>, first: Access, second: Access, out: &mut Vec<Demand<'a>>) {
    for (at, access) in [(1, first), (2, second)] {
        out.extend(args.get(at).map(|key| Demand::Key { key, access }));
    }
}

fn all_keys<'a>(access: Access) -> Demand<'a> {
    Demand::Range { range: KeyRange::all(), access }
}

/// What a request needs of the keys that it names, where something else is wrong with it.
pub fn key_demands<'a>(spec: &Spec, args: Args<'a>, out: &mut Vec<Demand<'a>>) {
    if !named_keys(needs_of(spec.id), spec, args, out) {
        let reads = spec.flags.has(Flags::READONLY);
        keys(spec, args, if reads { Access::READ } else { Access::ALL }, out);
    }
}

/// The same of commands of which no option says what is done with their keys; whether this is one.
fn named_keys<'a>(needs: Needs, spec: &Spec, args: Args<'a>, out: &mut Vec<Demand<'a>>) -> bool {
    match needs {
        Needs::Reads => keys(spec, args, Access::READ, out),
        Needs::Looks => keys(spec, args, Access::NONE, out),
        Needs::Writes => keys(spec, args, Access::WRITE, out),
        Needs::Both => keys(spec, args, Access::ALL, out),
        Needs::Moves => pair(args, Access::ALL, Access::WRITE, out),
        Needs::Copies => pair(args, Access::READ, Access::WRITE, out),
        Needs::Combines => {
            let mut places = spec.keys.positions(args.len()).filter_map(|at| args.get(at));
            out.extend(places.next().map(|key| Demand::Key { key, access: Access::WRITE }));
            out.extend(places.map(|key| Demand::Key { key, access: Access::READ }));
        }
        _ => return false,
    }
    true
}

/// What kind of demands a command has.
#[derive(Clone, Copy, Debug)]
enum Needs {
    /// It shows values.
    Reads,
    /// It tells of keys that they are there, their type, length and expiry.
    Looks,
    /// It changes keys, and shows nothing of what they held.
    Writes,
    /// It changes keys, and shows what they held, or what becomes of it.
    Both,
    /// Its options say which of these.
    SetOptions,
    CallOptions,
    FieldOptions,
    /// From a key to another one.
    Moves,
    Copies,
    /// From keys to the one before them.
    Combines,
    /// Keys that are not named.
    Whole,
    /// All keys.
    Everything,
    /// A range of keys.
    Range,
    /// The keys of a table.
    Table,
    /// Channels that it hears, or the one to which it speaks.
    Channels,
    Channel,
    ChannelPatterns,
    /// Keys of which its client is told.
    Tracks,
    /// Whatever all clients ask.
    Monitors,
    /// What its text says, or that of what it names.
    Definition,
    /// No key and no channel: the right to the command is all there is.
    Nothing,
}

macro_rules! needs {
    ($($needs:ident: $($id:ident)+;)+) => {
        fn needs_of(id: Id) -> Needs {
            match id {
                $($(Id::$id)|+ => Needs::$needs,)+
            }
        }
    };
}

needs! {
    Reads: Get MGet GetRange SubStr Lcs StreamRead Explain GetBit BitCount BitPos BitFieldRo Dump;
    Looks: StrLen Exists Type Touch Ttl PTtl ExpireTime PExpireTime StreamLen StreamInfo
        ObjectEncoding ObjectIdleTime ObjectFreq ObjectRefCount MemoryUsage Watch;
    Writes: SetNx SetEx PSetEx MSet MSetNx Append SetRange Del Unlink Expire PExpire ExpireAt
        PExpireAt Persist StreamAppend StreamTrim Restore;
    Both: SetBit DelIfEq PExpireIfEq ClThrottle Eval EvalSha EvalRo EvalShaRo GetSet GetDel GetEx Incr Decr IncrBy DecrBy IncrByFloat;
    SetOptions: Set;
    CallOptions: FnCall;
    FieldOptions: BitField;
    Moves: Rename RenameNx;
    Copies: Copy;
    Combines: BitOp;
    Whole: Keys Scan RandomKey ClusterGetKeysInSlot FlushAll FlushDb;
    Everything: BackupBegin BackupRead BackupEnd;
    Range: Range Prefix RangeDel ExplainRange Verify RangeWatch FnRange;
    Table: TableSet;
    Channels: Subscribe SSubscribe;
    Channel: Publish SPublish;
    ChannelPatterns: PSubscribe;
    Tracks: ClientTracking;
    Monitors: Monitor;
    Definition: JoinAdd JoinDrop FlowAdd FlowDrop FlowPause FlowResume FlowDead FlowRetry
        FlowDiscard FlowReplay;
    Nothing: Cluster ClusterSlots ClusterShards ClusterNodes ClusterInfo ClusterMyId ClusterKeySlot ClusterHelp ReadOnly
        ClusterCountKeysInSlot ReadWrite DbSize Object ObjectHelp RangeUnwatch JoinList JoinInfo JoinKey JoinDecode TableList TableInfo FlowList
        FlowInfo ShardHome ShardList ShardMove ShardPosition Wait SourceAdd SourceDrop SourceList
        SourceInfo SourcePosition SourceCheck FnLoad FnDrop FnList FnInfo Unsubscribe PUnsubscribe SUnsubscribe PubSub
        PubSubShardChannels PubSubShardNumSub ClientPause ClientUnpause ClientUnblock
        PubSubChannels PubSubNumSub PubSubNumPat PubSubHelp Multi Exec Discard Unwatch Hello Auth
        Ping Echo Quit Reset Select Client ClientId ClientGetName ClientSetName ClientSetInfo
        ClientList ClientInfo ClientKill ClientNoEvict ClientNoTouch ClientCapa ClientReply
        ClientCaching ClientTrackingInfo ClientGetRedir ClientHelp Command CommandCount CommandInfo
        CommandDocs CommandList CommandGetKeys CommandGetKeysAndFlags CommandHelp Info Config
        ConfigGet ConfigSet ConfigResetStat ConfigRewrite ConfigHelp Time Role Memory MemoryStats
        MemoryPurge MemoryDoctor MemoryHelp Slowlog SlowlogGet SlowlogLen SlowlogReset SlowlogHelp
        Latency LatencyLatest LatencyHistory LatencyHistogram LatencyDoctor LatencyReset LatencyHelp Acl AclCat AclDelUser
        AclDryRun AclGenPass AclGetUser AclHelp AclList AclLoad AclLog AclOwners AclSave AclSetUser
        AclUsers AclWhoAmI Debug DebugSleep DebugSetActiveExpire DebugProtocol DebugHelp Script
        ScriptLoad ScriptExists ScriptFlush ScriptHelp Shutdown;
}

/// What a request needs besides the right to its command. What joins and flows read and write is not said here: their
/// texts are ([`crate::Reach`]).
pub fn demands<'a>(spec: &Spec, args: Args<'a>, command: &Command<'a>, out: &mut Vec<Demand<'a>>) {
    let needs = needs_of(spec.id);
    if named_keys(needs, spec, args, out) {
        return;
    }
    match needs {
        Needs::SetOptions => {
            let shows =
                matches!(command, Command::Data(Data::Strings(Strings::Set { get: true, .. })));
            keys(spec, args, if shows { Access::ALL } else { Access::WRITE }, out);
        }
        Needs::CallOptions => {
            let updates = |flags: &CallFlags| flags.update;
            let changes = matches!(
                command,
                Command::Data(Data::Functions(Functions::Call { flags, .. })) if updates(flags)
            );
            keys(spec, args, if changes { Access::ALL } else { Access::READ }, out);
        }
        Needs::FieldOptions => {
            let looks =
                matches!(command, Command::Data(Data::Bits(Bits::Fields { read_only: true, .. })));
            keys(spec, args, if looks { Access::READ } else { Access::ALL }, out);
        }
        Needs::Whole => whole(spec, command, out),
        Needs::Everything => out.push(all_keys(Access::READ)),
        Needs::Range => out.extend(range_of(command)),
        Needs::Table => {
            let Some(name) = args.get(1) else { return };
            let range = KeyRange::prefix(&[name, b"|"].concat());
            out.push(Demand::Range { range, access: Access::ALL });
            if args.iter().any(|word| word.eq_ignore_ascii_case(b"source")) {
                out.push(Demand::Command(Id::SourceAdd));
            }
        }
        Needs::Channels => out.extend(args.iter().skip(1).map(Demand::Channel)),
        Needs::Channel => out.extend(args.get(1).map(Demand::Channel)),
        Needs::ChannelPatterns => out.extend(args.iter().skip(1).map(Demand::ChannelPattern)),
        Needs::Tracks => tracked(command, out),
        Needs::Monitors => out.extend([all_keys(Access::READ), Demand::ChannelPattern(b"*")]),
        Needs::Reads
        | Needs::Looks
        | Needs::Writes
        | Needs::Both
        | Needs::Moves
        | Needs::Copies
        | Needs::Combines
        | Needs::Definition
        | Needs::Nothing => {}
    }
}

/// What concerns keys that nobody has named.
fn whole<'a>(spec: &Spec, command: &Command<'a>, out: &mut Vec<Demand<'a>>) {
    let access =
        if matches!(spec.id, Id::FlushAll | Id::FlushDb) { Access::WRITE } else { Access::READ };
    out.push(match command {
        Command::Data(Data::Keys(
            Keys::Matching { pattern } | Keys::Scan { pattern: Some(pattern), .. },
        )) => Demand::Range { range: glob_prefix(pattern), access },
        _ => all_keys(access),
    });
}

/// The range that a command reads or removes.
fn range_of<'a>(command: &Command<'a>) -> Option<Demand<'a>> {
    let (range, access) = match command {
        Command::Data(Data::Ranges(ranges)) => match ranges {
            Ranges::Range { first, last, .. }
            | Ranges::Explain { first, last }
            | Ranges::Verify { first, last } => (KeyRange::new(first, last), Access::READ),
            Ranges::Prefix { prefix, .. } => (KeyRange::prefix(prefix), Access::READ),
            Ranges::Remove { first, last } => (KeyRange::new(first, last), Access::WRITE),
            Ranges::ExplainKey { key } => (KeyRange::point(key), Access::READ),
        },
        Command::Data(Data::Functions(Functions::Range { first, last, .. }))
        | Command::RangeWatch(RangeWatch::Begin { first, last, .. }) => {
            (KeyRange::new(first, last), Access::READ)
        }
        _ => return None,
    };
    Some(Demand::Range { range, access })
}

/// Whoever is told of all keys with a prefix must be allowed to read them; whoever is told of what it has read was.
fn tracked<'a>(command: &Command<'a>, out: &mut Vec<Demand<'a>>) {
    let Command::Connection(Connection::ClientTracking(asked)) = command else { return };
    if !asked.on || !asked.broadcast {
        return;
    }
    let before = out.len();
    let access = Access::READ;
    let of = |prefix: &[u8]| Demand::Range { range: KeyRange::prefix(prefix), access };
    out.extend(asked.prefixes().map(of));
    if out.len() == before {
        out.push(all_keys(access));
    }
}
