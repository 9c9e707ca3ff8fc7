//! Every command, decoded: what is asked, borrowing the bytes it came in.
//!
//! Options are parsed and checked as far as that needs neither data nor a clock. Commands that
//! differ only in spelling (DEL and UNLINK, SETEX and PSETEX) are one variant.

mod acl;
mod bits;
mod cluster;
mod expiry;
mod flows;
mod functions;
mod keys;
mod ranges;
mod server;
mod session;
mod shards;
mod streams;
mod strings;

use crate::table::Spec;
pub use acl::*;
pub use bits::*;
pub use cluster::*;
pub use expiry::*;
pub use flows::*;
pub use functions::*;
pub use keys::*;
pub use ranges::*;
pub use server::*;
pub use session::*;
pub use shards::*;
pub use streams::*;
pub use strings::*;

/// What a client asks.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Command<'a> {
    /// Concerns stored data: a node executes it.
    Data(Data<'a>),
    /// Concerns channels.
    PubSub(PubSub<'a>),
    /// Concerns watches of ranges.
    RangeWatch(RangeWatch<'a>),
    /// Concerns transactions.
    Transaction(Transaction<'a>),
    /// Concerns the connection itself.
    Connection(Connection<'a>),
    /// Concerns sources of base data.
    Sources(Sources<'a>),
    /// Concerns the cluster.
    Cluster(Cluster<'a>),
    /// Concerns shards.
    Sharding(Sharding<'a>),
    /// Concerns users and their rights.
    Acl(Acl<'a>),
    /// Concerns the server as a whole.
    Server(Server<'a>),
    /// `CONTAINER HELP`: see [`crate::describe::help`].
    Help(&'static Spec),
}

/// Commands about stored data.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Data<'a> {
    /// Values.
    Strings(Strings<'a>),
    /// Bits of values.
    Bits(Bits<'a>),
    /// Streams.
    Streams(Streams<'a>),
    /// Keys as such.
    Keys(Keys<'a>),
    /// When keys expire.
    Expiry(Expiry<'a>),
    /// Ranges of keys.
    Ranges(Ranges<'a>),
    /// Cache joins.
    Joins(Joins<'a>),
    /// Tables.
    Tables(Tables<'a>),
    /// Flows.
    Flows(Flows<'a>),
    /// Functions next to the data.
    Functions(Functions<'a>),
}
