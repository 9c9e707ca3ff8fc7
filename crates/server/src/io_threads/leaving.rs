//! Clients whose connections have ended for the loop, and that were not sent everything yet.
//!
//! What was written to a client is sent also where its connection ends then, as the system does with what it has taken. There is a bound on how many may wait
//! for that, and on how long: whoever connects again and again and takes nothing holds no more than that.

use super::client::Client;
use mio::{Interest, Registry, Token};
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// How long a client may take for what it was sent last.
const PATIENCE: Duration = Duration::from_secs(60);
/// How many may wait at each thread; beyond that, the one that has waited longest is given up.
pub(crate) const LEAVING_MAX: usize = 64;

/// The first token of theirs.
pub(super) const FIRST_LEAVING: usize = 1 << 40;

/// Those of one thread, by their tokens: oldest first.
#[derive(Default)]
pub(super) struct Leaving {
    all: BTreeMap<usize, (Box<Client>, Instant)>,
    last: usize,
}

impl Leaving {
    /// Goes on sending to a client, whose slot is for others from now on.
    pub(super) fn add(&mut self, mut client: Box<Client>, registry: &Registry) {
        self.last += 1;
        let token = FIRST_LEAVING + self.last;
        let source = client.stream.source();
        if registry.reregister(source, Token(token), Interest::WRITABLE).is_err() {
            return;
        }
        self.all.insert(token, (client, Instant::now() + PATIENCE));
        if self.all.len() > LEAVING_MAX {
            self.all.pop_first();
        }
    }

    /// The socket of this token takes bytes again.
    pub(super) fn writable(&mut self, token: usize) {
        let Some((client, _)) = self.all.get_mut(&token) else { return };
        client.blocked = false;
        if !client.flush() || client.is_sent() {
            self.all.remove(&token);
        }
    }

    /// Gives up those that have had their time.
    pub(super) fn end_late(&mut self) {
        while let Some(first) = self.all.first_entry()
            && first.get().1 <= Instant::now()
        {
            first.remove();
        }
    }

    /// Whether there is none.
    pub(super) fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    /// Takes all of them.
    pub(super) fn take(&mut self) -> impl Iterator<Item = Box<Client>> + use<> {
        core::mem::take(&mut self.all).into_values().map(|(client, _)| client)
    }
}
