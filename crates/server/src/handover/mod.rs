//! Clients that go on at another owner, over the connections that they have.
//!
//! An owner that gives its shard up, or ends, in the orderly way has for each client nothing under way when it stops. What is left of a session is small: who the
//! client is, what it calls itself, what it listens to, what it has queued ([`SessionState`]). Whoever has the client's socket opens a connection to
//! the next owner, tells it that state with the first requests ([`greeting`]), and passes bytes on from then on: the client notices a pause. That is
//! the node that the client is connected to: one that stands by has the socket all the time, and is told the state on the connection that
//! led to the old owner ([`parting`]); a process that has owned and begins anew to stand by has its sockets from the process that it was ([`inherited`]).
//!
//! # Invariants
//! - H1. A state is told only where nothing of the session is under way, and all its answers have been sent: so no request is lost, and none executed twice. Input that
//!   was not executed goes with it.
//! - H2. A state is believed only with a proof of the cluster's secret, for this shard's owner in this epoch and for this connection: it says who somebody is, without a
//!   password, and may have been read on its way.

pub(crate) mod greeting;
pub(crate) mod inherited;
pub(crate) mod parting;
mod state;

pub use inherited::Inherited;
pub(crate) use inherited::{InheritedClient, InheritedUpstream};
pub(crate) use state::{SessionRest, SessionState};
