//! A session within the process: how the HTTP port has requests executed.
//!
//! A request is handed to the shards as RESP over a pair of sockets that never leaves the process. So it has a session like any
//! other client's: its user's rights, judged when it begins and at each change that it is told, its limits, its line in `CLIENT LIST`,
//! whatever the number of shards. There is no second way by which commands are executed. A node of a cluster that stands by has them executed by an owner, to whom
//! it passes such a session on as any client's ([`InnerConnector::PassedOn`]).
//!
//! # Cost
//! A pair of sockets, two switches of threads and a login for each HTTP request: some tens of microseconds. Where it is passed on, a connection to the owner as
//! well. What a session has
//! to say waits with it, within the bounds of its output, until it is read here.

use super::problem::Problem;
use crate::arrival::Arrival;
use crate::tls::{Arrivals, ClientStream, InnerStream};
use crate::users::UserRegistry;
use crate::wire_protocol::WireProtocol;
use headwater_command::Reply;
use headwater_protocol::resp::{Encoder, Version};
use std::collections::VecDeque;
use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::UnixStream;
use tokio::sync::mpsc::UnboundedSender;
use tokio::time::{Instant, sleep};

/// Nesting that a reply may have; the server's own have far less.
const DEPTH_MAX: usize = 64;
/// Bytes read from a session at once.
const BUFFER_BYTES: usize = 16 << 10;
/// For how long from the beginning of a process on sessions wait until they can begin, and how often that is looked at.
const PATIENCE: Duration = Duration::from_secs(5);
const LOOK: Duration = Duration::from_millis(20);
/// The name that these sessions have in `CLIENT LIST`.
const NAME: &[u8] = b"http";

/// A reply, or a message.
#[derive(Clone, PartialEq, Debug)]
pub(super) enum InnerReply {
    /// A status text.
    Status(String),
    /// A refusal or failure.
    Error(String),
    /// A whole number.
    Integer(i64),
    /// A floating-point number.
    Double(f64),
    /// True or false.
    Boolean(bool),
    /// A byte string.
    Bytes(Vec<u8>),
    /// A byte string that was longer than was asked for: its length.
    Long(usize),
    /// Nothing.
    Null,
    /// An array or a set.
    List(Vec<InnerReply>),
    /// Names and values, one after the other.
    Map(Vec<InnerReply>),
    /// A message that answers nothing.
    Push(Vec<InnerReply>),
}

impl InnerReply {
    /// Its bytes, if it is a byte string.
    pub(super) fn bytes(&self) -> Option<&[u8]> {
        match self {
            Self::Bytes(bytes) => Some(bytes),
            Self::Status(text) => Some(text.as_bytes()),
            _ => None,
        }
    }

    /// What it lists, if it lists anything.
    pub(super) fn items(&self) -> &[InnerReply] {
        match self {
            Self::List(items) | Self::Map(items) | Self::Push(items) => items,
            _ => &[],
        }
    }

    /// What a map has under this name.
    pub(super) fn field(&self, name: &str) -> Option<&InnerReply> {
        let pairs = self.items().chunks_exact(2);
        pairs
            .map(|pair| (&pair[0], &pair[1]))
            .find_map(|(other, value)| (other.bytes() == Some(name.as_bytes())).then_some(value))
    }

    /// The reply, unless it is an error.
    pub(super) fn accept(self) -> Result<Self, Problem> {
        match self {
            Self::Error(text) => Err(Problem::of_reply(&text)),
            other => Ok(other),
        }
    }
}

/// What stands before a value: its kind, and its length or text.
#[derive(Debug)]
pub(super) struct Head {
    /// The first byte of its line.
    kind: u8,
    text: String,
}

impl Head {
    fn count(&self) -> io::Result<Option<usize>> {
        match self.text.as_str() {
            "-1" => Ok(None),
            text => text.parse().map(Some).map_err(|_| broken("no length")),
        }
    }

    /// How many entries the list or map has that follows, if one does.
    pub(super) fn entries(&self) -> Option<usize> {
        matches!(self.kind, b'*' | b'%').then(|| self.count().ok().flatten()).flatten()
    }

    /// The length of the byte string that follows, if one does.
    pub(super) fn byte_count(&self) -> io::Result<Option<usize>> {
        if self.kind == b'$' { self.count() } else { Ok(None) }
    }
}

fn broken(what: &'static str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what)
}

/// Where sessions begin.
#[derive(Clone)]
pub(super) enum InnerConnector {
    /// At the loop of this process; the second has it come round.
    Here(Arrivals, Arc<dyn Fn() + Send + Sync>),
    /// At an owner to whom this node passes them on, with the users whom certificates name; whether clients speak TLS, and since when
    /// they are accepted.
    PassedOn(ForwardedClients, Arc<UserRegistry>, bool, Instant),
}

/// A client whose requests a thread of this process speaks, and which is to be passed on.
#[derive(Debug)]
pub(crate) struct InnerClient {
    /// The end of the thread's socket.
    pub(crate) stream: std::os::unix::net::UnixStream,
    /// Where its client is.
    pub(crate) peer: SocketAddr,
    /// The user whom its client's certificate names.
    pub(crate) user: Option<Vec<u8>>,
    /// Whether its client speaks TLS.
    pub(crate) is_encrypted: bool,
}

/// Where a node that stands by passes clients on; empty: it cannot yet, and `None` in it: it never can.
pub(crate) type ForwardedClients = Arc<OnceLock<Option<UnboundedSender<InnerClient>>>>;

/// Who asks over HTTP.
#[derive(Clone, Debug)]
pub(super) struct Caller {
    /// Where from.
    pub(super) peer: SocketAddr,
    /// What its certificate calls it, if it has shown one.
    pub(super) certificate: Option<String>,
    /// The user and the password that it gave.
    pub(super) login: Option<Login>,
}

/// A user and a password.
pub(super) type Login = (Vec<u8>, Vec<u8>);

impl InnerConnector {
    /// Begins a session and logs in.
    pub(super) async fn open(&self, caller: &Caller) -> Result<InnerSession, Problem> {
        self.come_about().await;
        let stream = self.connect(caller)?;
        let mut session = InnerSession {
            stream: BufReader::with_capacity(BUFFER_BYTES, stream),
            messages: VecDeque::new(),
        };
        let mut words: Vec<&[u8]> = vec![b"HELLO", b"3"];
        if let Some((user, password)) = &caller.login {
            words.extend([b"AUTH", user.as_slice(), password.as_slice()]);
        }
        words.extend([b"SETNAME", NAME]);
        // One that is refused has been told why before anything was sent: that is read below.
        let _ = session.send(&words).await;
        session.reply(usize::MAX).await?.accept()?;
        Ok(session)
    }

    /// Waits a while until clients can be passed on: a process that has begun anew has its port before it can.
    async fn come_about(&self) {
        let Self::PassedOn(door, _, _, begun) = self else { return };
        while door.get().is_none() && begun.elapsed() < PATIENCE {
            sleep(LOOK).await;
        }
    }

    fn connect(&self, caller: &Caller) -> Result<UnixStream, Problem> {
        let pair = || {
            let (theirs, ours) = std::os::unix::net::UnixStream::pair()?;
            theirs.set_nonblocking(true)?;
            ours.set_nonblocking(true)?;
            io::Result::Ok((theirs, UnixStream::from_std(ours)?))
        };
        let (theirs, ours) = pair().map_err(|_| Problem::lost())?;
        let peer = caller.peer;
        match self {
            Self::Here(arrivals, ring) => {
                let inner = InnerStream {
                    socket: mio::net::UnixStream::from_std(theirs),
                    certificate: caller.certificate.clone(),
                };
                let stream = ClientStream::Inner(Box::new(inner));
                arrivals.put(Arrival::new(stream, peer, WireProtocol::Resp));
                ring();
            }
            Self::PassedOn(door, users, is_encrypted, _) => {
                let user = users.named_by(caller.certificate.as_deref());
                let is_encrypted = *is_encrypted;
                let client = InnerClient { stream: theirs, peer, user, is_encrypted };
                let door = door.get().and_then(Option::as_ref);
                if door.is_none_or(|door| door.send(client).is_err()) {
                    let text = "the node stands by, and cannot forward clients of HTTP: it waits for the NATS servers, or nodes have no port but for TLS";
                    return Err(Problem::of_reply(&format!("CLUSTERDOWN {text}")));
                }
            }
        }
        Ok(ours)
    }
}

/// A session, which ends when it is dropped.
#[derive(Debug)]
pub(super) struct InnerSession {
    stream: BufReader<UnixStream>,
    /// Messages that came before a reply.
    messages: VecDeque<Vec<InnerReply>>,
}

impl InnerSession {
    /// Sends one request.
    pub(super) async fn send(&mut self, words: &[&[u8]]) -> io::Result<()> {
        let mut bytes = Vec::new();
        let mut request = Encoder::new(&mut bytes, Version::Resp2);
        request.array(words.len());
        words.iter().for_each(|word| request.bulk(word));
        self.stream.write_all(&bytes).await
    }

    /// Sends a part of a request as it is.
    pub(super) async fn send_part(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.stream.write_all(bytes).await
    }

    /// Has a request executed; byte strings longer than this are left out.
    pub(super) async fn call(
        &mut self,
        words: &[&[u8]],
        bytes_max: usize,
    ) -> Result<InnerReply, Problem> {
        let sent = self.send(words).await;
        // Where a session has ended, what it said last tells why.
        let reply = self.reply(bytes_max).await?;
        sent.map_err(|_| Problem::lost())?;
        reply.accept()
    }

    /// Reads the next reply; messages before it are kept.
    pub(super) async fn reply(&mut self, bytes_max: usize) -> Result<InnerReply, Problem> {
        loop {
            match self.next(bytes_max).await.map_err(|_| Problem::lost())? {
                InnerReply::Push(message) => self.messages.push_back(message),
                reply => return Ok(reply),
            }
        }
    }

    /// Keeps a message that came before a reply.
    pub(super) fn keep_message(&mut self, message: Vec<InnerReply>) {
        self.messages.push_back(message);
    }

    /// A message that came before a reply.
    pub(super) fn take_message(&mut self) -> Option<Vec<InnerReply>> {
        self.messages.pop_front()
    }

    /// Reads the next message or reply; byte strings longer than this are left out.
    pub(super) async fn next(&mut self, bytes_max: usize) -> io::Result<InnerReply> {
        let head = self.head().await?;
        self.value(head, bytes_max).await
    }

    /// Whether something has been read and not been asked for.
    pub(super) fn has_more(&self) -> bool {
        !self.stream.buffer().is_empty()
    }

    /// Waits until something can be read, or the session has ended. Nothing is lost where it is dropped before.
    pub(super) async fn ready(&mut self) -> io::Result<()> {
        if self.stream.fill_buf().await?.is_empty() {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        Ok(())
    }

    /// Reads what stands before the next value.
    pub(super) async fn head(&mut self) -> io::Result<Head> {
        let mut line = Vec::new();
        self.stream.read_until(b'\n', &mut line).await?;
        let Some(line) = line.strip_suffix(b"\r\n") else {
            return Err(io::ErrorKind::UnexpectedEof.into());
        };
        let (&kind, text) = line.split_first().ok_or_else(|| broken("an empty line"))?;
        Ok(Head { kind, text: String::from_utf8_lossy(text).into_owned() })
    }

    /// Reads the value that a head stands before.
    pub(super) async fn value(&mut self, head: Head, bytes_max: usize) -> io::Result<InnerReply> {
        // Lists that are begun: their kinds, how many items they have, and those that are read.
        let mut open: Vec<(u8, usize, Vec<InnerReply>)> = Vec::new();
        let mut head = head;
        loop {
            let mut done = match head.kind {
                b'*' | b'~' | b'>' | b'%' => match head.count()? {
                    None => InnerReply::Null,
                    Some(count) => {
                        if open.len() >= DEPTH_MAX {
                            return Err(broken("nested too deeply"));
                        }
                        let count = if head.kind == b'%' { 2 * count } else { count };
                        open.push((head.kind, count, Vec::new()));
                        if count > 0 {
                            head = self.head().await?;
                            continue;
                        }
                        close(&mut open)
                    }
                },
                _ => self.scalar(&head, bytes_max).await?,
            };
            loop {
                let Some((_, count, items)) = open.last_mut() else { return Ok(done) };
                items.push(done);
                if items.len() < *count {
                    break;
                }
                done = close(&mut open);
            }
            head = self.head().await?;
        }
    }

    async fn scalar(&mut self, head: &Head, bytes_max: usize) -> io::Result<InnerReply> {
        let text = &head.text;
        Ok(match head.kind {
            b'+' => InnerReply::Status(text.clone()),
            b'-' => InnerReply::Error(text.clone()),
            b':' => InnerReply::Integer(text.parse().map_err(|_| broken("no number"))?),
            b'_' => InnerReply::Null,
            b',' => InnerReply::Double(text.parse().map_err(|_| broken("no number"))?),
            b'(' => InnerReply::Status(text.clone()),
            b'#' => InnerReply::Boolean(text == "t"),
            b'$' | b'=' | b'!' => {
                let Some(count) = head.count()? else { return Ok(InnerReply::Null) };
                if count > bytes_max {
                    self.pass(count).await?;
                    return Ok(InnerReply::Long(count));
                }
                let mut bytes = vec![0; count + 2];
                self.stream.read_exact(&mut bytes).await?;
                bytes.truncate(count);
                match head.kind {
                    b'!' => InnerReply::Error(String::from_utf8_lossy(&bytes).into_owned()),
                    b'=' => InnerReply::Bytes(bytes.split_off(4.min(count))),
                    _ => InnerReply::Bytes(bytes),
                }
            }
            _ => return Err(broken("no RESP")),
        })
    }

    /// Leaves out a byte string of this length.
    async fn pass(&mut self, count: usize) -> io::Result<()> {
        let mut left = count + 2;
        while left > 0 {
            let here = self.stream.fill_buf().await?.len().min(left);
            if here == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            self.stream.consume(here);
            left -= here;
        }
        Ok(())
    }

    /// The next bytes of a byte string of which so many are left, at most as many as are here; its end is left out with the last.
    pub(super) async fn take_bytes(&mut self, left: usize) -> io::Result<Vec<u8>> {
        let here = self.stream.fill_buf().await?;
        let bytes = here[..here.len().min(left)].to_vec();
        if bytes.is_empty() && left > 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        self.stream.consume(bytes.len());
        Ok(bytes)
    }
}

/// The list that was begun last and is complete.
fn close(open: &mut Vec<(u8, usize, Vec<InnerReply>)>) -> InnerReply {
    match open.pop() {
        Some((b'%', _, items)) => InnerReply::Map(items),
        Some((b'>', _, items)) => InnerReply::Push(items),
        Some((_, _, items)) => InnerReply::List(items),
        None => InnerReply::Null,
    }
}

#[cfg(test)]
mod tests {
    use super::{InnerReply, InnerSession};
    use std::collections::VecDeque;
    use tokio::io::{AsyncWriteExt, BufReader};
    use tokio::net::UnixStream;

    fn read(bytes: &[u8], bytes_max: usize) -> Vec<InnerReply> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build().unwrap();
        runtime.block_on(async {
            let (mut theirs, ours) = UnixStream::pair().unwrap();
            theirs.write_all(bytes).await.unwrap();
            drop(theirs);
            let stream = BufReader::new(ours);
            let mut session = InnerSession { stream, messages: VecDeque::new() };
            let mut replies = Vec::new();
            while let Ok(reply) = session.next(bytes_max).await {
                replies.push(reply);
            }
            replies
        })
    }

    #[test]
    fn replies_of_every_kind_are_read() {
        use InnerReply::{
            Boolean, Bytes, Double, Error, Integer, List, Long, Map, Null, Push, Status,
        };
        let all = read(
            b"+OK\r\n-ERR no\r\n:-7\r\n_\r\n$-1\r\n,1.5\r\n#t\r\n$3\r\na\r\n\r\n$5\r\nhello\r\n=8\r\ntxt:some\r\n\
            *0\r\n%1\r\n+k\r\n*2\r\n:1\r\n%0\r\n>2\r\n+x\r\n*1\r\n$0\r\n\r\n!5\r\nERR x\r\n$9\r\ncut",
            4,
        );
        let expected = [
            Status("OK".into()),
            Error("ERR no".into()),
            Integer(-7),
            Null,
            Null,
            Double(1.5),
            Boolean(true),
            Bytes(b"a\r\n".to_vec()),
            Long(5),
            Long(8),
            List(Vec::new()),
            Map(vec![Status("k".into()), List(vec![Integer(1), Map(Vec::new())])]),
            Push(vec![Status("x".into()), List(vec![Bytes(Vec::new())])]),
            Long(5),
        ];
        assert_eq!(all, expected);
        assert!(read(&b"*1\r\n".repeat(100), 4).is_empty(), "nested too deeply");
        assert!(read(b"$x\r\n", 4).is_empty() && read(b"\r\n", 4).is_empty());
    }
}
