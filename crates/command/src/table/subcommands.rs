//! The rows of the command table for containers: CLIENT, COMMAND, CONFIG and the like.

use super::{Flags, Group, Id, KeyArgs, Spec};

const READ: Flags = Flags::READONLY;
const ALWAYS: Flags = Flags::LOADING.and(Flags::STALE);
const CHANNEL_FACT: Flags = Flags::PUBSUB.and(Flags::LOADING).and(Flags::STALE);
const OWN: Flags = Flags::NOSCRIPT.and(Flags::LOADING).and(Flags::STALE);
const ADMIN: Flags =
    Flags::ADMIN.and(Flags::NOSCRIPT).and(Flags::LOADING).and(Flags::STALE).and(Flags::DANGEROUS);
const NO_FLAGS: Flags = Flags::NONE;
const LOG: Flags = Flags::ADMIN.and(Flags::LOADING).and(Flags::STALE).and(Flags::DANGEROUS);

const SECOND: KeyArgs = KeyArgs { first: 2, last: 2, step: 1 };

/// A row of a container's table.
macro_rules! sub {
    ($id:ident $container:literal $name:literal $arity:literal, $flags:ident, $keys:expr, $group:ident,
     $since:literal, $usage:literal, $summary:literal) => {
        Spec {
            id: Id::$id,
            name: $name,
            full_name: concat!($container, "|", $name),
            arity: $arity,
            flags: $flags,
            keys: $keys,
            group: Group::$group,
            since: $since,
            summary: $summary,
            usage: $usage,
            subcommands: &[],
        }
    };
}

pub(super) static OBJECT: &[Spec] = &[
    sub!(ObjectEncoding "object" "encoding" 3, READ, SECOND, Generic, "2.2.3",
        "key",
        "How a value is stored."),
    sub!(ObjectIdleTime "object" "idletime" 3, READ, SECOND, Generic, "2.2.3",
        "key",
        "Seconds since the last use."),
    sub!(ObjectFreq "object" "freq" 3, READ, SECOND, Generic, "4.0.0",
        "key",
        "How often a key is used."),
    sub!(ObjectRefCount "object" "refcount" 3, READ, SECOND, Generic, "2.2.3",
        "key",
        "References to a value."),
    sub!(ObjectHelp "object" "help" 2, ALWAYS, KeyArgs::NONE, Generic, "6.2.0",
        "",
        "These lines."),
];

pub(super) static PUBSUB: &[Spec] = &[
    sub!(PubSubChannels "pubsub" "channels" -2, CHANNEL_FACT, KeyArgs::NONE, PubSub, "2.8.0",
        "[pattern]",
        "Channels that someone listens to."),
    sub!(PubSubNumSub "pubsub" "numsub" -2, CHANNEL_FACT, KeyArgs::NONE, PubSub, "2.8.0",
        "[channel ...]",
        "How many listen to each channel."),
    sub!(PubSubNumPat "pubsub" "numpat" 2, CHANNEL_FACT, KeyArgs::NONE, PubSub, "2.8.0",
        "",
        "How many patterns are listened to."),
    sub!(PubSubHelp "pubsub" "help" 2, ALWAYS, KeyArgs::NONE, PubSub, "6.2.0",
        "",
        "These lines."),
];

pub(super) static CLIENT: &[Spec] = &[
    sub!(ClientId "client" "id" 2, OWN, KeyArgs::NONE, Connection, "5.0.0",
        "",
        "The connection's number."),
    sub!(ClientGetName "client" "getname" 2, OWN, KeyArgs::NONE, Connection, "2.6.9",
        "",
        "The connection's name."),
    sub!(ClientSetName "client" "setname" 3, OWN, KeyArgs::NONE, Connection, "2.6.9",
        "name",
        "Names the connection."),
    sub!(ClientSetInfo "client" "setinfo" 4, OWN, KeyArgs::NONE, Connection, "7.2.0",
        "LIB-NAME|LIB-VER value",
        "Tells which client library is used."),
    sub!(ClientList "client" "list" -2, ADMIN, KeyArgs::NONE, Connection, "2.4.0",
        "[TYPE NORMAL|MASTER|REPLICA|PUBSUB] [ID id ...]",
        "The connections, a line each."),
    sub!(ClientInfo "client" "info" 2, OWN, KeyArgs::NONE, Connection, "6.2.0",
        "",
        "The line of this connection."),
    sub!(ClientKill "client" "kill" -3, ADMIN, KeyArgs::NONE, Connection, "2.4.0",
        "address:port | [ID id] [TYPE type] [USER name] [ADDR address:port] [LADDR address:port] [SKIPME YES|NO]",
        "Ends connections."),
    sub!(ClientNoEvict "client" "no-evict" 3, ADMIN, KeyArgs::NONE, Connection, "7.0.0",
        "ON|OFF",
        "Exempts the connection from eviction."),
    sub!(ClientNoTouch "client" "no-touch" 3, OWN, KeyArgs::NONE, Connection, "7.2.0",
        "ON|OFF",
        "Keeps the connection's reads from counting as uses."),
    sub!(ClientCapa "client" "capa" -3, OWN, KeyArgs::NONE, Connection, "8.0.0",
        "capability [capability …]",
        "What the client can deal with: blob-errors, errors of several lines in RESP3."),
    sub!(ClientReply "client" "reply" 3, OWN, KeyArgs::NONE, Connection, "3.2.0",
        "ON|OFF|SKIP",
        "Whether requests are answered."),
    sub!(ClientTracking "client" "tracking" -3, OWN, KeyArgs::NONE, Connection, "6.0.0",
        "ON|OFF [REDIRECT id] [PREFIX prefix [PREFIX prefix ...]] [BCAST] [OPTIN] [OPTOUT] [NOLOOP]",
        "Has the client told when what it has read changes."),
    sub!(ClientCaching "client" "caching" 3, OWN, KeyArgs::NONE, Connection, "6.0.0",
        "YES|NO",
        "Whether the next command's reads are remembered."),
    sub!(ClientTrackingInfo "client" "trackinginfo" 2, OWN, KeyArgs::NONE, Connection, "6.2.0",
        "",
        "How the client tracks."),
    sub!(ClientGetRedir "client" "getredir" 2, OWN, KeyArgs::NONE, Connection, "6.0.0",
        "",
        "The number of the client that is told instead."),
    sub!(ClientHelp "client" "help" 2, ALWAYS, KeyArgs::NONE, Connection, "5.0.0",
        "",
        "These lines."),
];

pub(super) static COMMAND: &[Spec] = &[
    sub!(CommandCount "command" "count" 2, ALWAYS, KeyArgs::NONE, Server, "2.8.13",
        "",
        "How many commands there are."),
    sub!(CommandInfo "command" "info" -2, ALWAYS, KeyArgs::NONE, Server, "2.8.13",
        "[name ...]",
        "Descriptions of commands."),
    sub!(CommandDocs "command" "docs" -2, ALWAYS, KeyArgs::NONE, Server, "7.0.0",
        "[name ...]",
        "Documentation of commands."),
    sub!(CommandList "command" "list" -2, ALWAYS, KeyArgs::NONE, Server, "7.0.0",
        "[FILTERBY MODULE name|ACLCAT category|PATTERN pattern]",
        "Names of commands."),
    sub!(CommandGetKeys "command" "getkeys" -3, ALWAYS, KeyArgs::NONE, Server, "2.8.13",
        "command [arg ...]",
        "The keys of a request."),
    sub!(CommandGetKeysAndFlags "command" "getkeysandflags" -3, ALWAYS, KeyArgs::NONE, Server, "7.0.0",
        "command [arg ...]",
        "The keys of a request and what is done to each."),
    sub!(CommandHelp "command" "help" 2, ALWAYS, KeyArgs::NONE, Server, "5.0.0",
        "",
        "These lines."),
];

pub(super) static CONFIG: &[Spec] = &[
    sub!(ConfigGet "config" "get" -3, ADMIN, KeyArgs::NONE, Server, "2.0.0",
        "pattern [pattern ...]",
        "Settings that match patterns."),
    sub!(ConfigSet "config" "set" -4, ADMIN, KeyArgs::NONE, Server, "2.0.0",
        "name value [name value ...]",
        "Changes settings."),
    sub!(ConfigResetStat "config" "resetstat" 2, ADMIN, KeyArgs::NONE, Server, "2.0.0",
        "",
        "Sets counters back to zero."),
    sub!(ConfigRewrite "config" "rewrite" 2, ADMIN, KeyArgs::NONE, Server, "2.8.0",
        "",
        "Writes the settings to the file."),
    sub!(ConfigHelp "config" "help" 2, ALWAYS, KeyArgs::NONE, Server, "5.0.0",
        "",
        "These lines."),
];

pub(super) static MEMORY: &[Spec] = &[
    sub!(MemoryUsage "memory" "usage" -3, READ, SECOND, Server, "4.0.0",
        "key [SAMPLES count]",
        "Bytes that a key and its value occupy."),
    sub!(MemoryStats "memory" "stats" 2, NO_FLAGS, KeyArgs::NONE, Server, "4.0.0",
        "",
        "Bytes by kind."),
    sub!(MemoryPurge "memory" "purge" 2, NO_FLAGS, KeyArgs::NONE, Server, "4.0.0",
        "",
        "Gives unused memory back."),
    sub!(MemoryDoctor "memory" "doctor" 2, NO_FLAGS, KeyArgs::NONE, Server, "4.0.0",
        "",
        "What may be wrong with memory."),
    sub!(MemoryHelp "memory" "help" 2, ALWAYS, KeyArgs::NONE, Server, "4.0.0",
        "",
        "These lines."),
];

pub(super) static SLOWLOG: &[Spec] = &[
    sub!(SlowlogGet "slowlog" "get" -2, LOG, KeyArgs::NONE, Server, "2.2.12",
        "[count]",
        "The slowest recent commands."),
    sub!(SlowlogLen "slowlog" "len" 2, LOG, KeyArgs::NONE, Server, "2.2.12",
        "",
        "How many are remembered."),
    sub!(SlowlogReset "slowlog" "reset" 2, LOG, KeyArgs::NONE, Server, "2.2.12",
        "",
        "Forgets them."),
    sub!(SlowlogHelp "slowlog" "help" 2, ALWAYS, KeyArgs::NONE, Server, "6.2.0",
        "",
        "These lines."),
];

pub(super) static LATENCY: &[Spec] = &[
    sub!(LatencyLatest "latency" "latest" 2, ADMIN, KeyArgs::NONE, Server, "2.8.13",
        "",
        "The last spike of each event."),
    sub!(LatencyHistory "latency" "history" 3, ADMIN, KeyArgs::NONE, Server, "2.8.13",
        "event",
        "The spikes of one event."),
    sub!(LatencyReset "latency" "reset" -2, ADMIN, KeyArgs::NONE, Server, "2.8.13",
        "[event ...]",
        "Forgets spikes."),
    sub!(LatencyHelp "latency" "help" 2, ALWAYS, KeyArgs::NONE, Server, "2.8.13",
        "",
        "These lines."),
];

pub(super) static DEBUG: &[Spec] = &[
    sub!(DebugSleep "debug" "sleep" 3, ADMIN, KeyArgs::NONE, Server, "1.0.0",
        "seconds",
        "Occupies the server for a while."),
    sub!(DebugHelp "debug" "help" 2, ALWAYS, KeyArgs::NONE, Server, "1.0.0",
        "",
        "These lines."),
];

pub(super) static ACL: &[Spec] = &[
    sub!(AclCat "acl" "cat" -2, OWN, KeyArgs::NONE, Server, "6.0.0",
        "[category]",
        "The categories of commands, or the commands of one."),
    sub!(AclDelUser "acl" "deluser" -3, ADMIN, KeyArgs::NONE, Server, "6.0.0",
        "user [user ...]",
        "Removes users and ends their connections."),
    sub!(AclDryRun "acl" "dryrun" -4, ADMIN, KeyArgs::NONE, Server, "7.0.0",
        "user command [arg ...]",
        "Whether a user may run a command, without running it."),
    sub!(AclGenPass "acl" "genpass" -2, OWN, KeyArgs::NONE, Server, "6.0.0",
        "[bits]",
        "A random password."),
    sub!(AclGetUser "acl" "getuser" 3, ADMIN, KeyArgs::NONE, Server, "6.0.0",
        "user",
        "The rules of a user."),
    sub!(AclHelp "acl" "help" 2, ALWAYS, KeyArgs::NONE, Server, "6.0.0",
        "",
        "These lines."),
    sub!(AclList "acl" "list" 2, ADMIN, KeyArgs::NONE, Server, "6.0.0",
        "",
        "All users, each as a line of an ACL file."),
    sub!(AclLoad "acl" "load" 2, ADMIN, KeyArgs::NONE, Server, "6.0.0",
        "",
        "Reads the users from the ACL file."),
    sub!(AclLog "acl" "log" -2, ADMIN, KeyArgs::NONE, Server, "6.0.0",
        "[count|RESET]",
        "What was refused lately."),
    sub!(AclOwners "acl" "owners" 2, ADMIN, KeyArgs::NONE, Server, "0.2.0",
        "",
        "Who defined each join, flow and module, and which are refused because their owner lost a right."),
    sub!(AclSave "acl" "save" 2, ADMIN, KeyArgs::NONE, Server, "6.0.0",
        "",
        "Writes the users to the ACL file."),
    sub!(AclSetUser "acl" "setuser" -3, ADMIN, KeyArgs::NONE, Server, "6.0.0",
        "user [rule ...]",
        "Adds a user, or changes the rules of one."),
    sub!(AclUsers "acl" "users" 2, ADMIN, KeyArgs::NONE, Server, "6.0.0",
        "",
        "The names of the users."),
    sub!(AclWhoAmI "acl" "whoami" 2, OWN, KeyArgs::NONE, Server, "6.0.0",
        "",
        "The user of this connection."),
];
