//! A proxy before a server, whose rule says of each message whether it passes, waits, is left out or is the end of its connection: so a test
//! chooses what happens between two messages, which a server alone would leave to chance.

use crate::model::PATIENCE;
use crate::server::Server;
use std::io::{self, BufReader, ErrorKind, Read, Write};
use std::net::Shutdown;
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// What becomes of a message.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Fate {
    Pass,
    /// The rule is asked again whenever something has happened.
    Wait,
    LeaveOut,
    /// The connection ends, and the message is not passed on.
    Cut,
}

/// A message on its way.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Message {
    pub(crate) from_server: bool,
    /// What kind it is, as in PostgreSQL's protocol.
    pub(crate) tag: u8,
}

/// A connection, and what has passed on it.
#[derive(Default, Debug)]
pub(crate) struct Line {
    /// Whether the server's log is read on this connection.
    pub(crate) is_log: bool,
    /// The texts of the statements that were last sent or prepared, each time from the first one on.
    pub(crate) asked: String,
    /// Rows that have passed since.
    pub(crate) rows: usize,
    /// The server has answered everything that has passed.
    pub(crate) is_answered: bool,
    /// A message of the client's waits.
    pub(crate) client_waits: bool,
}

/// All that was seen.
#[derive(Default, Debug)]
pub(crate) struct Seen {
    /// What the test has come to.
    pub(crate) step: usize,
    pub(crate) lines: Vec<Line>,
    /// Each text that was sent as it is, and each that was prepared, also of messages that wait: with the number of its line.
    pub(crate) sent: Vec<(usize, String)>,
    pub(crate) prepared: Vec<(usize, String)>,
    /// How many prepared statements were executed.
    pub(crate) executed: usize,
    /// How many connections were cut.
    pub(crate) cuts: usize,
    is_ended: bool,
}

impl Seen {
    /// How many texts with such a part were sent or prepared.
    pub(crate) fn asked(&self, part: &str) -> usize {
        let all = self.sent.iter().chain(&self.prepared);
        all.filter(|(_, text)| text.contains(part)).count()
    }
}

type Rule = dyn Fn(&Seen, &Line, Message) -> Fate + Send + Sync;

struct Inner {
    seen: Mutex<Seen>,
    changed: Condvar,
    rule: Box<Rule>,
}

/// A running proxy.
pub(crate) struct Proxy {
    folder: tempfile::TempDir,
    inner: Arc<Inner>,
}

impl Proxy {
    /// Begins one before a server.
    pub(crate) fn start(
        server: &Server,
        rule: impl Fn(&Seen, &Line, Message) -> Fate + Send + Sync + 'static,
    ) -> Self {
        let folder = tempfile::Builder::new().prefix("hw-proxy-").tempdir().unwrap();
        let listener = UnixListener::bind(folder.path().join(".s.PGSQL.5432")).unwrap();
        let target = server.target();
        let behind = format!("{}/.s.PGSQL.{}", target.host, target.port);
        let (seen, changed) = Default::default();
        let inner = Arc::new(Inner { seen, changed, rule: Box::new(rule) });
        let shared = Arc::clone(&inner);
        std::thread::spawn(move || {
            for client in listener.incoming() {
                let (Ok(client), false) = (client, shared.lock().is_ended) else { break };
                let Ok(server) = UnixStream::connect(&behind) else { break };
                shared.serve(client, server).unwrap();
            }
        });
        Self { folder, inner }
    }

    pub(crate) fn url(&self) -> String {
        format!("postgres://postgres@/postgres?host={}&port=5432", self.folder.path().display())
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, Seen> {
        self.inner.lock()
    }

    /// Goes on to a step, at which the rule may say other things of what waits.
    pub(crate) fn step(&self, step: usize) {
        self.lock().step = step;
        self.inner.changed.notify_all();
    }

    /// Waits until something holds.
    pub(crate) fn wait(&self, what: &str, holds: impl Fn(&Seen) -> bool) {
        let begun = Instant::now();
        let mut seen = self.lock();
        while !holds(&seen) {
            assert!(begun.elapsed() < PATIENCE, "waited for {what}: {seen:?}");
            seen = self.inner.changed.wait_timeout(seen, Duration::from_millis(100)).unwrap().0;
        }
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.lock().is_ended = true;
        self.inner.changed.notify_all();
        // The thread that accepts clients looks whether it has ended when the next one comes: this is one.
        let _ = UnixStream::connect(self.folder.path().join(".s.PGSQL.5432"));
    }
}

impl Inner {
    fn lock(&self) -> MutexGuard<'_, Seen> {
        // A rule that panics is the test's failure, not that of each thread.
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Passes on what comes on a connection, in threads of its own.
    fn serve(self: &Arc<Self>, client: UnixStream, server: UnixStream) -> io::Result<()> {
        let line = {
            let mut seen = self.lock();
            seen.lines.push(Line::default());
            seen.lines.len() - 1
        };
        for from_server in [false, true] {
            let ends = [client.try_clone()?, server.try_clone()?];
            let [from, to] = match from_server {
                true => [server.try_clone()?, client.try_clone()?],
                false => [client.try_clone()?, server.try_clone()?],
            };
            let inner = Arc::clone(self);
            std::thread::spawn(move || {
                // However it ends, both are told.
                let _ = inner.pass(line, from_server, (from, to));
                for end in ends {
                    let _ = end.shutdown(Shutdown::Both);
                }
                inner.changed.notify_all();
            });
        }
        Ok(())
    }

    /// Passes on what comes from one side.
    fn pass(
        &self,
        line: usize,
        from_server: bool,
        (from, mut to): (UnixStream, UnixStream),
    ) -> io::Result<()> {
        let mut from = BufReader::new(from);
        // A client's first message has no tag.
        let mut has_tag = from_server;
        loop {
            let mut message = Vec::new();
            let head = if has_tag { 5 } else { 4 };
            take(&mut from, &mut message, head)?;
            let length = message.last_chunk::<4>().map_or(0, |bytes| u32::from_be_bytes(*bytes));
            take(&mut from, &mut message, (length as usize).saturating_sub(4))?;
            let tag = if has_tag { message[0] } else { 0 };
            has_tag = true;
            if self.passes(line, Message { from_server, tag }, &message[head..])? {
                to.write_all(&message)?;
            }
        }
    }

    /// Whether a message is passed on, once that is clear.
    ///
    /// # Errors
    /// Its connection is to end.
    fn passes(&self, line: usize, message: Message, body: &[u8]) -> io::Result<bool> {
        let mut seen = self.lock();
        seen.note_asked(line, message, body);
        self.changed.notify_all();
        loop {
            let fate = match seen.is_ended {
                true => Fate::Cut,
                false => (self.rule)(&seen, &seen.lines[line], message),
            };
            let Message { from_server, tag } = message;
            let of = &mut seen.lines[line];
            of.client_waits = of.client_waits && from_server || fate == Fate::Wait && !from_server;
            match fate {
                Fate::Pass => {
                    of.rows += usize::from(from_server && tag == b'D');
                    of.is_answered = from_server && (of.is_answered || tag == b'Z');
                    self.changed.notify_all();
                    return Ok(true);
                }
                Fate::LeaveOut => return Ok(false),
                Fate::Cut => {
                    seen.cuts += 1;
                    return Err(ErrorKind::ConnectionAborted.into());
                }
                Fate::Wait => {
                    self.changed.notify_all();
                    seen = self.changed.wait(seen).unwrap_or_else(PoisonError::into_inner);
                }
            }
        }
    }
}

impl Seen {
    /// Notes what a message asks for.
    fn note_asked(&mut self, line: usize, message: Message, body: &[u8]) {
        if message.from_server {
            return;
        }
        let text = |body: &[u8]| String::from_utf8_lossy(body).replace('\0', " ");
        let of = &mut self.lines[line];
        match message.tag {
            0 => of.is_log = text(body).contains("replication"),
            b'Q' => {
                (of.asked, of.rows) = (text(body), 0);
                self.sent.push((line, text(body)));
            }
            b'P' => {
                if of.is_answered {
                    (of.asked, of.rows) = (String::new(), 0);
                }
                of.asked.push_str(&text(body));
                self.prepared.push((line, text(body)));
            }
            b'E' => self.executed += 1,
            _ => {}
        }
    }
}

/// Appends so many bytes.
fn take(from: &mut impl Read, out: &mut Vec<u8>, length: usize) -> io::Result<()> {
    let read = from.take(length as u64).read_to_end(out)?;
    if read < length { Err(ErrorKind::UnexpectedEof.into()) } else { Ok(()) }
}
