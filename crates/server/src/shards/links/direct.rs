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
/// Who has not been heard for so long is not there, in milliseconds. A loop that does not go on has its connections ended before (N4), and this one may be as late.
const SILENCE_MILLIS: u64 = 3000;
/// Of a time in which this loop could not look, no more than this counts: what the other one has said meanwhile may not have been read.
const LOOKED_MILLIS: u64 = 200;
/// After so long in which nothing was said, that is said.
const HEARTBEAT_MILLIS: u64 = HEARTBEAT.as_millis() as u64;

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
    /// Why nothing can be sent any more. What has come is read still.
    broken: Option<String>,
    /// When something was said last.
    said_at: u64,
    /// Time in which it was looked and nothing was heard.
    silent: u64,
    /// The turn's time, in milliseconds of the server's life, and that of the turn in which it was looked last.
    now: u64,
    looked: u64,
    /// That of the last turn which left nothing to be read: what is read next came later.
    drained: u64,
    /// When the last whole frame came at the earliest.
    heard_at: u64,
}

impl DirectLine {
    /// Has the loop told when there is something to be read, or room to write. `now` is the turn's time.
    pub(crate) fn new(new: NewLine, (registry, token): (&Registry, Token), now: u64) -> Self {
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
            broken: None,
            said_at: now,
            silent: 0,
            now,
            looked: now,
            drained: now,
            heard_at: now,
        };
        if let Err(why) = registered {
            line.end(format!("it cannot be waited for: {why}"));
        }
        line
    }

    /// It was made at this time at the earliest, and nothing was heard over it since: what is said of its silence begins there.
    pub(crate) fn heard_by(mut self, at: u64) -> Self {
        (self.drained, self.heard_at) = (at, at);
        self
    }

    /// The system has something for the connection, or takes something.
    pub(crate) fn take_news(&mut self, news: SocketNews) {
        self.readable |= news.may_be_read();
        self.writable |= news.writable;
        self.closed |= news.ended || news.failed;
    }

    /// Whether something may be read.
    #[inline]
    pub(crate) fn is_readable(&self) -> bool {
        self.readable && self.stream.is_some()
    }

    /// Whether this is one of those that the loop knows by an odd count: who looks for the one before it by its token does not find it.
    pub(crate) fn is_odd(&self) -> bool {
        self.count % 2 == 1
    }

    /// Whether something was taken to be sent, and is not with the system.
    pub(crate) fn has_unsent(&self) -> bool {
        self.sent < self.output.len()
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
                    (self.filled, self.silent) = (self.filled + count, 0);
                    rest = rest.saturating_sub(count);
                    if let Err(why) = self.take_frames(transport, batches) {
                        return self.end(why);
                    }
                }
                Err(why) if why.kind() == ErrorKind::WouldBlock => {
                    self.readable = false;
                    if let Some(why) = self.broken.take() {
                        return self.end(why);
                    }
                }
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
            self.heard_at = self.drained;
        }
        if taken > 0 {
            self.input.copy_within(taken..self.filled, 0);
            self.filled -= taken;
        }
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
            Ok(count) => (self.sent, self.said_at) = (self.sent + count, self.now),
            Err(why) if why.kind() == ErrorKind::WouldBlock => self.writable = false,
            Err(why) if why.kind() == ErrorKind::Interrupted => {}
            Err(why) => {
                // What had come before that is read, and its end then (D1).
                self.broken = Some(format!("nothing can be sent: {why}"));
                self.writable = false;
                (self.readable, self.closed) = (true, true);
                self.output.truncate(self.sent);
            }
        }
    }

    /// A turn begins. `now`: its time.
    pub(crate) fn turn(&mut self, now: u64) {
        self.now = now;
    }

    /// Says that this shard is there, where it has said nothing for a while, and looks whether the other one is; behind what the turn has read.
    pub(crate) fn look(&mut self) {
        if !self.is_readable() {
            (self.drained, self.silent) =
                (self.now, self.silent + (self.now - self.looked).min(LOOKED_MILLIS));
        }
        self.looked = self.now;
        if self.silent >= SILENCE_MILLIS {
            return self.end(String::from("nothing was heard for three seconds"));
        }
        if self.now >= self.said_at + HEARTBEAT_MILLIS && self.writable && !self.has_unsent() {
            self.output.extend_from_slice(&[0; 4]);
            self.send();
        }
    }

    /// For how many milliseconds nothing has been heard at most, at the time `now`. What came while the loop was busy counts as having come when it began to be.
    pub(crate) fn silence(&self, now: u64) -> u64 {
        now.saturating_sub(self.heard_at)
    }

    /// No more news of it is wanted.
    pub(crate) fn close(mut self, registry: &Registry) -> io::Result<()> {
        self.stream.take().map_or(Ok(()), |mut stream| stream.deregister(registry))
    }
}

#[cfg(test)]
mod strained;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shards::ShardMessage;
    use headwater_base::Shard;
    use mio::{Events, Poll};
    use std::net::{TcpListener, TcpStream};
    use std::time::{Duration, Instant};

    const PATIENCE: Duration = Duration::from_secs(20);

    /// The socket of the other side, and a connection.
    fn connected() -> (TcpStream, NewLine, GivenLine) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let other = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (own, _) = listener.accept().unwrap();
        own.set_nonblocking(true).unwrap();
        let sender = Sender { shard: Shard(1), epoch: 1, shards: 2, format: 4 };
        let (new, given) = NewLine::new((sender, 1), own, 1000).unwrap();
        (other, new, given)
    }

    /// How a connection has ended.
    fn end_of(given: &GivenLine) -> String {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        let ended = runtime.block_on(async { tokio::time::timeout(PATIENCE, given.end()).await });
        ended.expect("it has ended")
    }

    /// Waits until something has come.
    fn until_readable(poll: &mut Poll) {
        let (mut events, began) = (Events::with_capacity(8), Instant::now());
        while !events.iter().any(|event| event.is_readable()) {
            poll.poll(&mut events, Some(Duration::from_millis(10))).unwrap();
            assert!(began.elapsed() < PATIENCE, "nothing has come");
        }
    }

    /// A batch with this many bytes, as the frame of a number.
    fn frame_of(number: u64, bytes: usize) -> Vec<u8> {
        let messages = vec![ShardMessage::Publish { name: 1, end: bytes }];
        let batch =
            MessageBatch { from: Shard(1), bytes: vec![b'x'; bytes], messages, connection: 1 };
        let mut out = Vec::new();
        frame((4, number), &batch, &mut out);
        out
    }

    /// A loop that goes on is silent no longer than a while, whatever this one was kept from.
    #[test]
    fn who_is_not_heard_is_given_up_but_not_for_what_this_loop_has_missed() {
        let (mut other, new, given) = connected();
        let mut poll = Poll::new().unwrap();
        let transport = Transport::apart(Shard(0), 2, 1);
        let mut line = DirectLine::new(new, (poll.registry(), Token(0)), 0);
        let turn = |line: &mut DirectLine, now| {
            line.take_news(SocketNews { readable: true, ..SocketNews::default() });
            line.turn(now);
            line.read(&transport, &mut Vec::new());
            line.look();
        };
        (0..25).for_each(|at| turn(&mut line, 100 * at));
        // It was held up for an hour, and then has not heard yet.
        turn(&mut line, 3_600_000 - 1);
        assert!(line.stream.is_some());
        line.drained = 2400;
        other.write_all(&[0; 4]).unwrap();
        until_readable(&mut poll);
        turn(&mut line, 3_600_000);
        assert_eq!(
            line.silence(3_600_000),
            3_600_000 - 2400,
            "it may have come when the hour began"
        );
        (1..40).for_each(|at| turn(&mut line, 3_600_000 + 100 * at));
        assert_eq!(end_of(&given), "nothing was heard for three seconds");
        // It has said all the time that this one is there.
        let mut beats = Vec::new();
        drop((line, given));
        other.set_read_timeout(Some(PATIENCE)).unwrap();
        let _reset = other.read_to_end(&mut beats);
        assert!(beats.len() >= 4 * 9 && beats.iter().all(|byte| *byte == 0), "{beats:?}");
    }

    /// D1: the other side had more to say before it ended than this one had read when it could not be told anything any more.
    #[test]
    fn what_has_come_is_taken_though_nothing_can_be_sent() {
        let (mut other, new, given) = connected();
        let mut poll = Poll::new().unwrap();
        let transport = Transport::apart(Shard(0), 2, 1);
        let mut line = DirectLine::new(new, (poll.registry(), Token(0)), 0);
        other.write_all(&frame_of(0, 100)).unwrap();
        until_readable(&mut poll);
        // What it has not read has its end be a reset.
        line.output.extend_from_slice(&[0; 4]);
        line.send();
        drop(other);
        let began = Instant::now();
        while line.broken.is_none() {
            line.output.extend_from_slice(&[0; 4]);
            line.send();
            assert!(began.elapsed() < PATIENCE, "it can be told still");
        }
        let mut batches = Vec::new();
        line.read(&transport, &mut batches);
        assert_eq!(batches.len(), 1);
        assert!(!line.is_readable() && !end_of(&given).is_empty());
    }

    /// The system tells of both in one piece of news, and of neither again.
    #[test]
    fn an_end_that_comes_with_the_last_frame_is_seen_at_once() {
        let (mut other, new, given) = connected();
        other.write_all(&[0; 4]).unwrap();
        other.shutdown(Shutdown::Write).unwrap();
        let mut poll = Poll::new().unwrap();
        let mut line = DirectLine::new(new, (poll.registry(), Token(0)), 0);
        let mut events = Events::with_capacity(8);
        let mut news = SocketNews::default();
        while !news.ended {
            poll.poll(&mut events, None).unwrap();
            for event in &events {
                news.readable |= event.is_readable();
                news.ended |= event.is_read_closed();
            }
        }
        line.take_news(news);
        line.read(&Transport::apart(Shard(0), 2, 1), &mut Vec::new());
        assert!(!line.is_readable());
        assert_eq!(end_of(&given), "it has ended");
    }
}
