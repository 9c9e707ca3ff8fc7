//! One connection to PostgreSQL, in the part of its protocol that is needed here: simple queries, whose answers are
//! texts, and a copy in both directions, which is how replication speaks.
//!
//! It blocks, up to the patience of the call. All of its sessions print values alike (K2 in [`crate::mapping`]): dates in
//! ISO form, times in UTC, numbers with all of their digits.

pub use crate::error::Error;
use crate::error::complaint;
use crate::prepared::Prepared;
use crate::socket::{Socket, Stream};
use crate::tls;
use crate::url::{Encryption, Target};
use bytes::BytesMut;
use postgres_protocol::message::backend::Header;
use postgres_protocol::message::frontend::{self, CopyData};
use std::io::{self, ErrorKind, Read, Write};
use std::time::{Duration, Instant};

/// How much is read at once.
const READ_BYTES: usize = 64 << 10;
/// A message longer than this is not PostgreSQL's.
const MESSAGE_BYTES_MAX: usize = 1 << 30;

/// Answers that are collected, and not taken row by row, are of catalogs: none has more bytes.
const COLLECTED_BYTES_MAX: usize = 8 << 20;
/// The buffer stays for the next message unless it is longer.
const INPUT_BYTES_KEPT: usize = 1 << 20;
/// What is said until we are let in is short.
const GREETING_BYTES_MAX: usize = 1 << 20;
/// An answer may take so many times as long as each of its messages.
const PATIENCES: u32 = 4;
/// What our sessions print values with (K2), and that row security is an error rather than a filter.
const PRINTING: [(&str, &str); 7] = [
    ("DateStyle", "ISO, YMD"),
    ("IntervalStyle", "postgres"),
    ("TimeZone", "UTC"),
    ("extra_float_digits", "3"),
    ("bytea_output", "hex"),
    ("standard_conforming_strings", "on"),
    ("row_security", "off"),
];

/// A connection.
#[derive(Debug)]
pub struct Connection {
    stream: Stream,
    /// What has come, and room for more.
    pub(crate) input: Vec<u8>,
    /// How much of `input` has come.
    filled: usize,
    /// What of that was taken.
    taken: usize,
    pub(crate) out: BytesMut,
    patience: Duration,
    /// A notification has come that nobody asked for yet.
    notified: bool,
    /// The server's process for this connection.
    pub(crate) process: u32,
    /// It follows another server: nothing can be written here.
    pub(crate) standby: bool,
    /// How many rows each statement of the last query changed or gave.
    counts: Vec<u64>,
    /// When the answer to what was asked last must have come to its end.
    ends: Option<Instant>,
    /// A longer message is refused.
    message_bytes_max: usize,
    /// What is on its way is not wanted any more.
    abandoned: bool,
    /// What has been prepared here.
    pub(crate) prepared: Prepared,
}

/// What comes of a query.
pub(crate) enum Come<'a> {
    /// A row: the number of its statement, from 0, and its columns.
    Row(usize, &'a [Option<&'a str>]),
    /// What has arrived was looked at, and the rest is on its way.
    Pause,
}

/// A message: its tag, and where in the input its body is.
pub(crate) struct Message {
    pub(crate) tag: u8,
    pub(crate) first: usize,
    pub(crate) last: usize,
}

impl Connection {
    /// Connects and proves who it is, to the first of the hosts that serves. `replication` makes it one that START_REPLICATION
    /// is for.
    ///
    /// # Errors
    /// Nobody is there, or it does not let us in; of several hosts, none is a primary.
    pub fn open(target: &Target, replication: bool) -> Result<Self, Error> {
        let mut reasons: Vec<Error> = Vec::new();
        for host in target.each() {
            match Self::open_one(&host, replication) {
                Ok(connection) if connection.standby && !target.others.is_empty() => {
                    let why = format!("host {} port {} is a standby", host.host, host.port);
                    reasons.push(Error::broken(why));
                }
                Ok(connection) => return Ok(connection),
                Err(error) => reasons.push(error),
            }
        }
        if reasons.len() > 1 {
            let all: Vec<_> = reasons.iter().map(|error| &*error.message).collect();
            return Err(Error::broken(format!("no host is a primary: {}", all.join("; "))));
        }
        Err(reasons.pop().unwrap_or_else(|| Error::broken("no host is named")))
    }

    fn open_one(target: &Target, replication: bool) -> Result<Self, Error> {
        // Poolers know few parameters; they are set by a statement then, which a pooler of sessions keeps.
        let is_unknown = |error: &Error| error.message.contains("unsupported startup parameter");
        let opened = match Self::open_with(target, replication, &PRINTING) {
            Err(error) if is_unknown(&error) && !error.message.contains("replication") => {
                Self::open_with(target, replication, &[]).and_then(|mut connection| {
                    for (name, value) in PRINTING {
                        connection.query(&format!("SET {name} = '{value}'"), |_, _| {})?;
                    }
                    Ok(connection)
                })
            }
            other => other,
        };
        opened.map_err(|error| match replication && is_unknown(&error) {
            true => Error::broken(format!(
                "the log cannot be read through the pooler that answers, such as PgBouncer before 1.23 ({}): name PostgreSQL's own \
                 host and port, or follow=triggers",
                error.message
            )),
            false => error,
        })
    }

    fn open_with(
        target: &Target,
        replication: bool,
        settings: &[(&str, &str)],
    ) -> Result<Self, Error> {
        let place = |error: io::Error| {
            let place = if target.host.starts_with('/') { "socket in" } else { "host" };
            Error::broken(format!(
                "cannot connect to {place} {} port {}: {error}",
                target.host, target.port
            ))
        };
        let mut socket = Socket::open(target).map_err(place)?;
        socket.patience(target.patience)?;
        let stream = if target.encryption == Encryption::Off {
            Stream::Bare(socket)
        } else {
            // The answer is one byte.
            let (mut request, mut answer) = (BytesMut::new(), [0]);
            frontend::ssl_request(&mut request);
            socket.write_all(&request)?;
            socket.read_exact(&mut answer)?;
            match (answer[0], &target.encryption) {
                (b'S', encryption) => {
                    Stream::Encrypted(Box::new(tls::encrypt(socket, &target.host, encryption)?))
                }
                (_, Encryption::Prefer) => Stream::Bare(socket),
                _ => return Err(Error::broken("the database offers no encryption")),
            }
        };
        let mut connection = Self {
            stream,
            input: Vec::new(),
            filled: 0,
            taken: 0,
            out: BytesMut::new(),
            patience: target.patience,
            abandoned: false,
            prepared: Prepared::default(),
            notified: false,
            process: 0,
            standby: false,
            counts: Vec::new(),
            ends: Some(Instant::now() + target.patience * PATIENCES),
            message_bytes_max: GREETING_BYTES_MAX,
        };
        connection.start(target, replication, settings)?;
        (connection.ends, connection.message_bytes_max) = (None, MESSAGE_BYTES_MAX);
        Ok(connection)
    }

    pub(crate) fn flush(&mut self) -> Result<(), Error> {
        let sent = self.stream.send(&self.out);
        self.out.clear();
        Ok(sent?)
    }

    /// How long to wait for each message from now on.
    ///
    /// # Errors
    /// The socket is closed.
    pub fn set_patience(&mut self, patience: Duration) -> Result<(), Error> {
        if self.patience != patience {
            self.stream.socket().patience(patience)?;
            self.patience = patience;
        }
        Ok(())
    }

    /// The next message, if it is here in full.
    fn parsed(&self) -> Result<Option<Message>, Error> {
        let rest = &self.input[self.taken..self.filled];
        let odd = || Error::broken("what answers does not speak PostgreSQL's protocol");
        let Some(head) = Header::parse(rest).map_err(|_| odd())? else { return Ok(None) };
        let length = usize::try_from(head.len()).unwrap_or(usize::MAX);
        if length > MESSAGE_BYTES_MAX {
            return Err(odd());
        }
        if length > self.message_bytes_max {
            return Err(Error::broken(format!(
                "the database sends a message of {length} bytes (allowed: {})",
                self.message_bytes_max
            )));
        }
        let (first, last) = (self.taken + 5, self.taken + 1 + length);
        Ok((last <= self.filled).then_some(Message { tag: head.tag(), first, last }))
    }

    /// Waits for the next message, and takes it.
    pub(crate) fn next(&mut self) -> Result<Message, Error> {
        if let Some(message) = self.parsed()? {
            self.taken = message.last;
            return Ok(message);
        }
        if self.ends.is_some_and(|ends| Instant::now() > ends) {
            return Err(Error::broken(
                "the answer of the database does not come to its end in time",
            ));
        }
        self.next_within(None)?.ok_or_else(|| io::Error::from(ErrorKind::TimedOut).into())
    }

    /// The same, up to a time; `None` where it has passed.
    fn next_within(&mut self, until: Option<Instant>) -> Result<Option<Message>, Error> {
        loop {
            if let Some(message) = self.parsed()? {
                self.taken = message.last;
                return Ok(Some(message));
            }
            if self.taken > 0 {
                self.input.copy_within(self.taken..self.filled, 0);
                self.filled -= self.taken;
                self.taken = 0;
            }
            if self.filled == 0 && self.input.len() > INPUT_BYTES_KEPT {
                self.input = Vec::new();
            }
            // Room is cleared once, not for each read.
            if self.input.len() < self.filled + READ_BYTES {
                self.input.resize(self.filled + READ_BYTES, 0);
            }
            let read = self.stream.read(&mut self.input[self.filled..]);
            self.filled += *read.as_ref().unwrap_or(&0);
            match read {
                Ok(0) => return Err(io::Error::from(ErrorKind::UnexpectedEof).into()),
                Ok(_) => {}
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error)
                    if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) =>
                {
                    match until {
                        Some(until) if Instant::now() < until => {}
                        Some(_) => return Ok(None),
                        None => return Err(error.into()),
                    }
                }
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Sends statements, and calls `row` with the number of the statement, from 0, and the columns of each row.
    ///
    /// # Errors
    /// One of them failed; those before it are undone, unless they ended a transaction.
    pub fn query(
        &mut self,
        sql: &str,
        mut row: impl FnMut(usize, &[Option<&str>]),
    ) -> Result<(), Error> {
        self.query_while(sql, |come| {
            if let Come::Row(statement, columns) = come {
                row(statement, columns);
            }
            true
        })
    }

    /// As [`Connection::query`], as long as `come` gives `true`; the connection is of no use after that. It is also told before the rest of
    /// the answer is waited for.
    ///
    /// # Errors
    /// One of them failed, or was given up.
    pub(crate) fn query_while(
        &mut self,
        sql: &str,
        mut come: impl FnMut(Come<'_>) -> bool,
    ) -> Result<(), Error> {
        frontend::query(sql, &mut self.out)?;
        self.answers(1, &mut come)
    }

    /// Sends what was written, and reads the answer, in which the server is ready so many times.
    pub(crate) fn answers(
        &mut self,
        ready: usize,
        come: &mut dyn FnMut(Come<'_>) -> bool,
    ) -> Result<(), Error> {
        self.ends = Some(Instant::now() + self.patience * PATIENCES);
        let done = self.flush().and_then(|()| self.answers_within(ready, come));
        self.ends = None;
        done
    }

    fn answers_within(
        &mut self,
        mut ready: usize,
        come: &mut dyn FnMut(Come<'_>) -> bool,
    ) -> Result<(), Error> {
        let unwanted = || Err(Error::broken("the answer is not wanted any more"));
        let (mut statement, mut failed) = (0, None);
        // Each row's columns take the place of those before.
        let mut columns = Vec::new();
        self.counts.clear();
        loop {
            let message = match self.parsed()? {
                None if !come(Come::Pause) => return unwanted(),
                None => self.next()?,
                Some(message) => {
                    self.taken = message.last;
                    message
                }
            };
            let Message { tag, first, last } = message;
            let body = &self.input[first..last];
            match tag {
                b'D' => {
                    let read = row_columns(body, columns)?;
                    if !come(Come::Row(statement, &read)) {
                        return unwanted();
                    }
                    columns = emptied(read);
                }
                b'C' | b'I' => {
                    statement += 1;
                    // `INSERT 0 1`, `DELETE 3`: the number stands last.
                    let text = body.strip_suffix(&[0]).unwrap_or(body);
                    let last = text.rsplit(|&byte| byte == b' ').next().unwrap_or_default();
                    let count = std::str::from_utf8(last).ok().and_then(|text| text.parse().ok());
                    self.counts.push(count.unwrap_or(0));
                }
                b'E' => {
                    let error = complaint(body);
                    if error.is_broken() {
                        return Err(error);
                    }
                    failed.get_or_insert(error);
                }
                b'A' => self.notified = true,
                b'Z' => {
                    ready -= 1;
                    if ready == 0 {
                        return failed.map_or(Ok(()), Err);
                    }
                }
                b'G' | b'H' | b'W' => return Err(Error::broken("a copy begins out of turn")),
                _ => {}
            }
        }
    }

    /// The rows of the last statement, their columns owned; 8 MiB of all statements at most.
    ///
    /// # Errors
    /// A statement failed, or there is more, and the connection is of no use any more.
    pub fn rows(&mut self, sql: &str) -> Result<Vec<Vec<Option<String>>>, Error> {
        let (mut rows, mut last, mut bytes) = (Vec::new(), 0, 0_usize);
        let done = self.query_while(sql, |come| {
            let Come::Row(statement, columns) = come else { return true };
            if statement != last {
                rows.clear();
                last = statement;
            }
            let texts = columns.iter().map(|column| column.map_or(0, str::len));
            bytes += columns.len() * size_of::<Option<String>>() + texts.sum::<usize>();
            rows.push(columns.iter().map(|column| column.map(str::to_owned)).collect());
            bytes <= COLLECTED_BYTES_MAX
        });
        if bytes > COLLECTED_BYTES_MAX {
            return Err(Error::broken(format!(
                "the database answers a question about its catalog with more than {COLLECTED_BYTES_MAX} bytes"
            )));
        }
        done.map(|()| rows)
    }

    /// The first column of the first row; empty where there is none or it is NULL.
    ///
    /// # Errors
    /// A statement failed.
    pub fn value(&mut self, sql: &str) -> Result<String, Error> {
        let first = self.rows(sql)?.into_iter().next().and_then(|row| row.into_iter().next());
        Ok(first.flatten().unwrap_or_default())
    }

    /// How many rows each statement of the last query changed or gave.
    #[must_use]
    pub fn counts(&self) -> &[u64] {
        &self.counts
    }

    /// Refuses longer messages from now on: each row is one.
    pub fn set_message_bytes_max(&mut self, most: usize) {
        self.message_bytes_max = most.min(MESSAGE_BYTES_MAX);
    }

    /// The server's process for this connection.
    #[must_use]
    pub fn process(&self) -> u32 {
        self.process
    }

    /// Whether the server still keeps this connection, as far as can be seen without asking.
    pub fn is_alive(&mut self) -> bool {
        !self.abandoned && self.taken == self.filled && self.stream.is_quiet()
    }

    /// The rest of what was asked for is not wanted any more: nothing else can be asked here.
    pub fn abandon(&mut self) {
        self.abandoned = true;
    }

    /// Waits up to a time for a notification, and whether one has come. The patience must be a short one.
    ///
    /// # Errors
    /// The connection is broken.
    pub fn notified(&mut self, until: Instant) -> Result<bool, Error> {
        while !self.notified {
            let Some(message) = self.next_within(Some(until))? else { break };
            match message.tag {
                b'A' => self.notified = true,
                b'E' => return Err(complaint(&self.input[message.first..message.last])),
                _ => {}
            }
        }
        Ok(std::mem::take(&mut self.notified))
    }

    /// Begins a copy in both directions.
    ///
    /// # Errors
    /// The statement was refused.
    pub fn copy_both(&mut self, sql: &str) -> Result<(), Error> {
        frontend::query(sql, &mut self.out)?;
        self.flush()?;
        loop {
            let message = self.next()?;
            match message.tag {
                b'W' => return Ok(()),
                b'E' => return Err(complaint(&self.input[message.first..message.last])),
                _ => {}
            }
        }
    }

    /// The next piece of the copy; `None` where none came up to `until`.
    ///
    /// # Errors
    /// The copy ended.
    pub fn piece(&mut self, until: Instant) -> Result<Option<&[u8]>, Error> {
        loop {
            let Some(message) = self.next_within(Some(until))? else { return Ok(None) };
            match message.tag {
                // Words beside the log are no sign that it goes on.
                b'N' | b'S' if Instant::now() > until => return Ok(None),
                b'd' => return Ok(Some(&self.input[message.first..message.last])),
                b'E' => return Err(complaint(&self.input[message.first..message.last])),
                b'c' | b'C' | b'Z' => {
                    return Err(Error::broken("the database ended the replication"));
                }
                _ => {}
            }
        }
    }

    /// Whether a further message is here already.
    #[must_use]
    pub fn has_more(&self) -> bool {
        matches!(self.parsed(), Ok(Some(_)))
    }

    /// Sends a piece of the copy.
    ///
    /// # Errors
    /// The connection is broken.
    pub fn send_piece(&mut self, body: &[u8]) -> Result<(), Error> {
        CopyData::new(body)?.write(&mut self.out);
        self.flush()
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        // A polite end, so that the server's log has no word of a broken connection.
        self.out.clear();
        frontend::terminate(&mut self.out);
        let _ = self.stream.send(&self.out);
    }
}

/// The same room for columns of another row.
fn emptied<'b>(mut columns: Vec<Option<&str>>) -> Vec<Option<&'b str>> {
    columns.clear();
    // Collected in place.
    columns.into_iter().map(|_| None).collect()
}

/// The columns of a row, in an empty list.
fn row_columns<'a>(
    body: &'a [u8],
    mut columns: Vec<Option<&'a str>>,
) -> Result<Vec<Option<&'a str>>, Error> {
    let odd = || Error::broken("a row that is cut short");
    let (count, mut rest) = body.split_first_chunk::<2>().ok_or_else(odd)?;
    let count = u16::from_be_bytes(*count);
    columns.reserve(usize::from(count));
    for _ in 0..count {
        let (length, behind) = rest.split_first_chunk::<4>().ok_or_else(odd)?;
        let length = i32::from_be_bytes(*length);
        rest = behind;
        columns.push(if length < 0 {
            None
        } else {
            let (bytes, behind) = rest.split_at_checked(length as usize).ok_or_else(odd)?;
            rest = behind;
            Some(std::str::from_utf8(bytes).map_err(|_| Error::broken("a value is not UTF-8"))?)
        });
    }
    Ok(columns)
}
