//! A connection to another shard that the loop of this one carries itself.
//!
//! What it does is what [`super::line`] does, without a thread in between: where a request is executed by another shard, that
//! thread would be woken twice at either end of it. Who the other one is has been proved when the loop gets the connection.
//!
//! # Invariants
//! - D1. What has come over a connection is taken in before the news that it is lost, and nothing of it behind that: its batches come before those of the
//!   inbox ([`Outbox::take`](crate::shards::Outbox::take)), which has that news.
//! - D2. What is written for the other shard waits in its inbox until what was taken before is with the system.

use super::line::{HEARTBEAT, frame};
use crate::service::SocketNews;
use crate::shards::{FrameSequence, MessageBatch, Sender, Transport};
use mio::event::Source;
use mio::net::TcpStream;
use mio::{Interest, Registry, Token};
use std::io::{self, ErrorKind, Read, Write};
use std::net::Shutdown;
use std::sync::{Arc, Mutex, PoisonError};
use tokio::sync::Notify;

/// So many bytes are read at once, and so much room is kept.
const READ_BYTES: usize = 64 << 10;
/// So much is read of one connection in a turn.
const TURN_BYTES: usize = 1 << 20;
/// After so many looks in a row, [`HEARTBEAT`] apart, between which nothing was heard, nobody is there. A loop that could not look does not count what it has missed.
const SILENT_LOOKS: u32 = 4;
/// How often it is looked, in milliseconds.
const LOOK_MILLIS: u64 = HEARTBEAT.as_millis() as u64;

/// How a connection has ended.
#[derive(Debug, Default)]
struct LineEnd {
    why: Mutex<Option<String>>,
    came: Notify,
}

impl LineEnd {
    fn tell(&self, why: String) {
        self.why.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(why);
        self.came.notify_one();
    }
}

/// What is left of a connection with who has given it to the loop: it ends when this is dropped.
pub(super) struct GivenLine {
    socket: std::net::TcpStream,
    end: Arc<LineEnd>,
}

impl GivenLine {
    /// Waits until it has ended; why it has.
    pub(super) async fn end(&self) -> String {
        self.end.came.notified().await;
        self.end.why.lock().unwrap_or_else(PoisonError::into_inner).take().unwrap_or_default()
    }
}

impl Drop for GivenLine {
    fn drop(&mut self) {
        // It may have ended.
        let _ended = self.socket.shutdown(Shutdown::Both);
    }
}

/// A connection that the loop is to carry.
#[derive(Debug)]
pub(crate) struct NewLine {
    sender: Sender,
    count: u64,
    stream: std::net::TcpStream,
    batch_bytes_max: usize,
    end: Arc<LineEnd>,
}

impl NewLine {
    /// One to a sender, over a socket that does not block; `count`: connections to it that there were, with this one.
    ///
    /// # Errors
    /// The process has no descriptor left.
    pub(super) fn new(
        (sender, count): (Sender, u64),
        stream: std::net::TcpStream,
        batch_bytes_max: usize,
    ) -> io::Result<(Self, GivenLine)> {
        let (socket, end) = (stream.try_clone()?, Arc::<LineEnd>::default());
        let given = GivenLine { socket, end: end.clone() };
        Ok((Self { sender, count, stream, batch_bytes_max, end }, given))
    }

    /// Connections to that shard that there were, with it.
    pub(crate) fn count(&self) -> u64 {
        self.count
    }
}

/// One that the loop carries.
#[derive(Debug)]
pub(crate) struct DirectLine {
    sender: Sender,
    count: u64,
    batch_bytes_max: usize,
    end: Arc<LineEnd>,
    /// `None`: it has ended.
    stream: Option<TcpStream>,
    /// What has come, up to `filled`, and is no whole frame yet.
    input: Vec<u8>,
    filled: usize,
    /// What is to be sent, from `sent` on.
    output: Vec<u8>,
    sent: usize,
    came: FrameSequence,
    went: FrameSequence,
    readable: bool,
    writable: bool,
    /// The other side says nothing more.
    closed: bool,
    /// Something was heard, or said, since it was looked.
    heard: bool,
    said: bool,
    looked: u64,
    silent_looks: u32,
}

impl DirectLine {
    /// Has the loop told when there is something to be read, or room to write.
    pub(crate) fn new(new: NewLine, registry: &Registry, token: Token) -> Self {
        let NewLine { sender, count, stream, batch_bytes_max, end } = new;
        let mut stream = TcpStream::from_std(stream);
        let registered = stream.register(registry, token, Interest::READABLE | Interest::WRITABLE);
        let mut line = Self {
            sender,
            count,
            batch_bytes_max,
            end,
            stream: Some(stream),
            input: Vec::new(),
            filled: 0,
            output: Vec::new(),
            sent: 0,
            came: FrameSequence::default(),
            went: FrameSequence::default(),
            readable: true,
            writable: true,
            closed: false,
            heard: true,
            said: false,
            looked: 0,
            silent_looks: 0,
        };
        if let Err(why) = registered {
            line.end(format!("it cannot be waited for: {why}"));
        }
        line
    }

    /// The system has something for the connection, or takes something.
    pub(crate) fn take_news(&mut self, news: SocketNews) {
        self.readable |= news.readable || news.closed;
        self.writable |= news.writable;
        self.closed |= news.closed;
    }

    /// Whether something may be read.
    #[inline]
    pub(crate) fn is_readable(&self) -> bool {
        self.readable && self.stream.is_some()
    }

    fn end(&mut self, why: String) {
        if self.stream.take().is_some() {
            self.end.tell(why);
        }
        (self.input, self.output) = Default::default();
        (self.filled, self.sent) = (0, 0);
    }

    /// Reads what has come.
    pub(crate) fn read(&mut self, transport: &Transport, batches: &mut Vec<MessageBatch>) {
        let mut rest = TURN_BYTES;
        while self.is_readable() && rest > 0 {
            if self.input.len() < self.filled + READ_BYTES / 2 {
                self.input.resize(self.filled + READ_BYTES, 0);
            }
            let Some(stream) = &mut self.stream else { return };
            match stream.read(&mut self.input[self.filled..]) {
                Ok(0) => return self.end(String::from("it has ended")),
                Ok(count) => {
                    // There is news of what comes behind a read that had room for more, but of an end that had come before it there was.
                    self.readable = self.closed || count == self.input.len() - self.filled;
                    (self.filled, self.heard) = (self.filled + count, true);
                    rest = rest.saturating_sub(count);
                    if let Err(why) = self.take_frames(transport, batches) {
                        return self.end(why);
                    }
                }
                Err(why) if why.kind() == ErrorKind::WouldBlock => self.readable = false,
                Err(why) if why.kind() == ErrorKind::Interrupted => {}
                Err(why) => return self.end(format!("it has ended: {why}")),
            }
        }
    }

    /// Takes the whole frames out of what has come.
    fn take_frames(
        &mut self,
        transport: &Transport,
        batches: &mut Vec<MessageBatch>,
    ) -> Result<(), String> {
        let mut taken = 0;
        while let Some((head, rest)) = self.input[taken..self.filled].split_first_chunk() {
            let len = u32::from_le_bytes(*head) as usize;
            if len > self.batch_bytes_max {
                transport.count_refused();
                return Err(super::line::too_long(len, self.batch_bytes_max));
            }
            let Some(bytes) = rest.get(..len) else { break };
            taken += size_of_val(head) + len;
            if len > 0 {
                let batch = super::line::batch(bytes, &self.sender, &mut self.came, transport)?;
                batches.extend(batch);
            }
        }
        self.input.copy_within(taken..self.filled, 0);
        self.filled -= taken;
        if self.input.len() > READ_BYTES && self.filled < READ_BYTES / 2 {
            self.input.truncate(READ_BYTES);
            self.input.shrink_to_fit();
        }
        Ok(())
    }

    /// Sends what was written for the other shard, as far as the system takes it.
    pub(crate) fn write(&mut self, transport: &Transport) {
        while self.writable && self.stream.is_some() {
            if self.sent == self.output.len() {
                self.output.clear();
                self.output.shrink_to(READ_BYTES);
                self.sent = 0;
                for batch in transport.take_for(self.sender.shard) {
                    if batch.connection == self.count {
                        let stamp = (self.sender.format, self.went.stamp());
                        frame(stamp, &batch, &mut self.output);
                    }
                }
                if self.output.is_empty() {
                    return;
                }
            }
            self.send();
        }
    }

    fn send(&mut self) {
        let Some(stream) = &mut self.stream else { return };
        match stream.write(&self.output[self.sent..]) {
            Ok(count) => (self.sent, self.said) = (self.sent + count, true),
            Err(why) if why.kind() == ErrorKind::WouldBlock => self.writable = false,
            Err(why) if why.kind() == ErrorKind::Interrupted => {}
            Err(why) => self.end(format!("nothing can be sent: {why}")),
        }
    }

    /// Says that this shard is there, where it has said nothing for a while, and looks whether the other one is. `now` in milliseconds of the server's life.
    pub(crate) fn look(&mut self, now: u64) {
        if now < self.looked + LOOK_MILLIS {
            return;
        }
        self.looked = now;
        self.silent_looks = if self.heard { 0 } else { self.silent_looks + 1 };
        if self.silent_looks >= SILENT_LOOKS {
            return self.end(String::from("nothing was heard for two seconds"));
        }
        if !self.said && self.writable && self.sent == self.output.len() {
            self.output.extend_from_slice(&[0; 4]);
            self.send();
        }
        (self.heard, self.said) = (false, false);
    }

    /// No more news of it is wanted.
    pub(crate) fn close(mut self, registry: &Registry) -> io::Result<()> {
        self.stream.take().map_or(Ok(()), |mut stream| stream.deregister(registry))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use headwater_base::Shard;
    use mio::{Events, Poll};
    use std::net::{TcpListener, TcpStream};

    /// The system tells of both in one piece of news, and of neither again.
    #[test]
    fn an_end_that_comes_with_the_last_frame_is_seen_at_once() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut other = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (own, _) = listener.accept().unwrap();
        own.set_nonblocking(true).unwrap();
        let sender = Sender { shard: Shard(1), epoch: 1, shards: 2, format: 4 };
        let (new, given) = NewLine::new((sender, 1), own, 1000).unwrap();
        other.write_all(&[0; 4]).unwrap();
        other.shutdown(Shutdown::Write).unwrap();
        let mut poll = Poll::new().unwrap();
        let mut line = DirectLine::new(new, poll.registry(), Token(0));
        let mut events = Events::with_capacity(8);
        let mut news = SocketNews::default();
        while !news.closed {
            poll.poll(&mut events, None).unwrap();
            for event in &events {
                news.readable |= event.is_readable();
                news.closed |= event.is_read_closed();
            }
        }
        line.take_news(news);
        line.read(&Transport::apart(Shard(0), 2, 1), &mut Vec::new());
        assert!(!line.is_readable());
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        assert_eq!(runtime.block_on(given.end()), "it has ended");
    }
}
