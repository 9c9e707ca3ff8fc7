//! The connections by their slots, and the lists of those that want attention.
//!
//! While a connection's requests are executed it is taken out of its slot, so that the
//! service can reach all others at the same time.

use crate::connection::{Connection, ConnectionId, Phase};
use crate::memory::CLIENT_BYTES;
use crate::resp::Session;
use headwater_base::Shard;

/// All connections but the one that is being served.
pub(crate) struct Connections<S> {
    slots: Vec<Option<Box<Connection<S>>>>,
    free: Vec<usize>,
    open: usize,
    /// Those of them that are of clients of other shards.
    remote: usize,
    last_number: u64,
    /// From each number to the next: numbers of different shards differ.
    step: u64,
    /// Connections that others wrote to, ended or woke since the last flush.
    dirty: Vec<ConnectionId>,
    /// Bytes that all connections together take, as far as they were counted.
    bytes: usize,
}

/// Bytes that a connection takes, whose session takes `session_bytes`.
pub(crate) fn bytes_of<S>(connection: &Connection<S>, session_bytes: usize) -> usize {
    let (input, output) = connection.reserved_bytes();
    // Values that are sent from where they are count with the client that they wait for.
    let wire = connection.wire_bytes();
    CLIENT_BYTES + wire + input + output.max(connection.unsent()) + session_bytes
}

impl<S> Connections<S> {
    /// None yet.
    pub(crate) fn new() -> Self {
        Self {
            slots: Vec::new(),
            free: Vec::new(),
            open: 0,
            remote: 0,
            last_number: 0,
            step: 1,
            dirty: Vec::new(),
            bytes: 0,
        }
    }

    /// Numbers from `first` on, `step` apart.
    pub(crate) fn set_numbers(&mut self, first: u64, step: u64) {
        self.last_number = first.wrapping_sub(step);
        self.step = step;
    }

    /// How many clients there are, the one being served included.
    pub(crate) fn open(&self) -> usize {
        self.open - self.remote
    }

    /// As [`Connections::next_id`], for a client of another shard.
    pub(crate) fn next_id_of_remote(&mut self) -> ConnectionId {
        self.remote += 1;
        self.next_id()
    }

    /// The client of a connection has gone, which goes on without it.
    pub(crate) fn unplugged(&mut self) {
        self.remote += 1;
    }

    /// Chooses slot and number for a new connection, which is then [`Connections::put`] there.
    pub(crate) fn next_id(&mut self) -> ConnectionId {
        let slot = self.free.pop().unwrap_or_else(|| {
            self.slots.push(None);
            self.slots.len() - 1
        });
        self.open += 1;
        self.last_number = self.last_number.wrapping_add(self.step);
        ConnectionId { slot, number: self.last_number }
    }

    /// Takes the connection in `slot` out, to serve it.
    #[inline]
    pub(crate) fn take(&mut self, slot: usize) -> Option<Box<Connection<S>>> {
        self.slots.get_mut(slot).and_then(Option::take)
    }

    /// Puts a connection into its slot.
    #[inline]
    pub(crate) fn put(&mut self, connection: Box<Connection<S>>) {
        let slot = connection.id.slot;
        self.slots[slot] = Some(connection);
    }

    /// Bytes that all connections together take: buffers, queues, and what each has anyway.
    #[inline]
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Counts anew what a connection takes, whose session takes `session_bytes`.
    #[inline]
    pub(crate) fn count(&mut self, connection: &mut Connection<S>, session_bytes: usize) {
        let bytes = bytes_of(connection, session_bytes);
        self.bytes = self.bytes - connection.counted_bytes + bytes;
        connection.counted_bytes = bytes;
    }

    /// Counts bytes that were written to a connection other than the one being served.
    pub(crate) fn count_written(&mut self, id: ConnectionId, bytes: usize) {
        if let Some(connection) = self.get_mut(id) {
            connection.counted_bytes += bytes;
            self.bytes += bytes;
        }
    }

    /// Forgets what a connection took that has ended.
    pub(crate) fn uncount(&mut self, connection: &mut Connection<S>) {
        self.bytes -= core::mem::take(&mut connection.counted_bytes);
    }

    /// The slot of the connection that takes most, among those for which `may_end` says so.
    pub(crate) fn largest(&self, may_end: impl Fn(&S) -> bool) -> Option<usize> {
        let candidates = self.iter().filter(|connection| may_end(&connection.session));
        let largest = candidates.max_by_key(|connection| connection.counted_bytes);
        largest.map(|connection| connection.id.slot)
    }

    /// Bytes that the connections take for which `counts` says so.
    pub(crate) fn bytes_of_those(&self, counts: impl Fn(&S) -> bool) -> usize {
        let those = self.iter().filter(|connection| counts(&connection.session));
        those.map(|connection| connection.counted_bytes).sum()
    }

    /// Frees the slot of a connection that was taken out and has ended.
    pub(crate) fn ended(&mut self, id: ConnectionId, remote: bool) {
        self.open -= 1;
        self.remote -= usize::from(remote);
        self.free.push(id.slot);
    }

    /// The connection of this name, unless it has ended or is the one being served.
    pub(crate) fn get_mut(&mut self, id: ConnectionId) -> Option<&mut Connection<S>> {
        let connection = self.slots.get_mut(id.slot)?.as_deref_mut()?;
        (connection.id.number == id.number).then_some(connection)
    }

    /// The connection of this name, as [`Connections::get_mut`].
    pub(crate) fn get(&self, id: ConnectionId) -> Option<&Connection<S>> {
        let connection = self.slots.get(id.slot)?.as_deref()?;
        (connection.id.number == id.number).then_some(connection)
    }

    /// The slots in use.
    pub(crate) fn slots(&self) -> impl Iterator<Item = usize> + use<'_, S> {
        self.slots.iter().enumerate().filter_map(|(slot, held)| held.is_some().then_some(slot))
    }

    /// Every connection but the one being served.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &Connection<S>> {
        self.slots.iter().filter_map(Option::as_deref)
    }

    /// Ends a connection at once (not the one being served).
    pub(crate) fn kill(&mut self, id: ConnectionId) {
        if let Some(connection) = self.get_mut(id) {
            connection.phase = Phase::Killed;
            self.touch(id);
        }
    }

    /// Lets a parked connection go on.
    pub(crate) fn wake(&mut self, id: ConnectionId) {
        if let Some(connection) = self.get_mut(id)
            && connection.phase == Phase::Parked
        {
            connection.phase = Phase::Open;
            connection.runnable = true;
            self.touch(id);
        }
    }

    /// Has the connection attended to at the end of this turn.
    pub(crate) fn touch(&mut self, id: ConnectionId) {
        if let Some(connection) = self.get_mut(id)
            && !connection.dirty
        {
            connection.dirty = true;
            self.dirty.push(id);
        }
    }

    /// Takes the list of connections that others wrote to, ended or woke.
    pub(crate) fn take_dirty(&mut self) -> Vec<ConnectionId> {
        core::mem::take(&mut self.dirty)
    }

    /// Whether some connection was written to, ended or woken.
    pub(crate) fn any_dirty(&self) -> bool {
        !self.dirty.is_empty()
    }
}

impl Connections<Session> {
    /// Writes a message to a connection that is not being served. One whose output would exceed the first of `most` is
    /// ended, and so is one with which all would take more than the second; how many bytes were written.
    pub(crate) fn deliver(
        &mut self,
        id: ConnectionId,
        bytes: &[u8],
        most: (usize, usize),
    ) -> usize {
        let taken = self.bytes();
        let Some(connection) = self.get_mut(id) else { return 0 };
        let behind = connection.session.held_bytes();
        if connection.unsent() + behind + bytes.len() > most.0 || taken + bytes.len() > most.1 {
            self.kill(id);
            return 0;
        }
        if !connection.session.put_behind_answer(&[bytes]) {
            connection.pending().extend_from_slice(bytes);
        }
        self.count_written(id, bytes.len());
        self.touch(id);
        bytes.len()
    }

    /// Writes a message of which something at `home` (or somewhere) is the cause to a connection that is not being
    /// served, behind the answers that it goes behind.
    pub(crate) fn append(&mut self, id: ConnectionId, home: Option<Shard>, parts: &[&[u8]]) {
        let Some(connection) = self.get_mut(id) else { return };
        if !connection.session.put_behind(home, parts) {
            parts.iter().for_each(|part| connection.pending().extend_from_slice(part));
        }
        let bytes = parts.iter().map(|part| part.len()).sum::<usize>();
        connection.counted_bytes += bytes;
        self.bytes += bytes;
        self.touch(id);
    }

    /// Writes a message to a connection that is not being served, as [`Connections::deliver`], behind the answers that it goes
    /// behind.
    pub(crate) fn tell(
        &mut self,
        id: ConnectionId,
        home: Option<Shard>,
        bytes: &[u8],
        most: (usize, usize),
    ) {
        let taken = self.bytes();
        let Some(connection) = self.get_mut(id) else { return };
        let unsent = connection.unsent() + connection.session.held_bytes();
        if unsent + bytes.len() > most.0 || taken + bytes.len() > most.1 {
            self.kill(id);
            return;
        }
        self.append(id, home, &[bytes]);
    }
}
