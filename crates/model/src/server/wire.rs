//! One connection to a server, read strictly: every byte must belong to a reply or to a push between two.
//!
//! Written a second time, for the reason that the oracle is: what a client library forgives is not forgiven here.

use super::place::{Listening, Place, Stream};
use std::io::ErrorKind;
use std::net::SocketAddr;
use std::time::Duration;

/// Nesting that a reply may have.
const DEPTH_MAX: usize = 16;
/// Longest byte string, or array, that is believed.
const LENGTH_MAX: usize = 1 << 26;
/// How many of the last bytes are shown where some are wrong.
const SHOWN_BYTES: usize = 160;

/// One reply, or a push.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Frame {
    /// A status text.
    Simple(String),
    /// An error.
    Error(String),
    /// A whole number.
    Integer(i64),
    /// A byte string; verbatim text, too.
    Bulk(Vec<u8>),
    /// Nothing, as a value.
    Null,
    /// Nothing, as an array; RESP3 has one null alone.
    NullArray,
    /// An array or a set.
    Array(Vec<Frame>),
    /// Pairs.
    Map(Vec<(Frame, Frame)>),
    /// True or false, or a number with a fraction: as it was written.
    Other(String),
    /// What is told besides replies.
    Push(Vec<Frame>),
}

impl Frame {
    /// The text of a status or byte string.
    #[must_use]
    pub fn text(&self) -> Option<Vec<u8>> {
        match self {
            Self::Simple(text) => Some(text.clone().into_bytes()),
            Self::Bulk(bytes) => Some(bytes.clone()),
            _ => None,
        }
    }
}

/// A connection.
pub struct Wire {
    stream: Box<dyn Stream>,
    /// 2 or 3.
    pub protocol: u8,
    /// Bytes that have come, and how many of them have been looked at.
    bytes: Vec<u8>,
    at: usize,
}

impl Wire {
    /// Connects; nothing takes longer than `patience`.
    ///
    /// # Errors
    /// There is no connection.
    pub fn connect(address: SocketAddr, patience: Duration) -> Result<Self, String> {
        Self::to(&Listening::at(address, patience))
    }

    /// Connects to a server.
    ///
    /// # Errors
    /// There is no connection.
    pub fn to(place: &dyn Place) -> Result<Self, String> {
        Ok(Self::over(place.connect()?))
    }

    /// Speaks over a connection.
    #[must_use]
    pub fn over(stream: Box<dyn Stream>) -> Self {
        Self { stream, protocol: 2, bytes: Vec::new(), at: 0 }
    }

    /// The address of the client's end.
    #[must_use]
    pub fn own_address(&self) -> String {
        self.stream.own_address()
    }

    /// Sends bytes, in pieces that end at `cuts` (in thousandths of the whole).
    ///
    /// # Errors
    /// The server has hung up.
    pub fn send(&mut self, bytes: &[u8], cuts: &[usize]) -> Result<(), String> {
        let mut from = 0;
        for &cut in cuts {
            let to = (bytes.len() * cut / 1000).clamp(from, bytes.len());
            self.piece(&bytes[from..to])?;
            // So that the pieces come one by one, mostly.
            self.stream.pause();
            from = to;
        }
        self.piece(&bytes[from..])
    }

    fn piece(&mut self, bytes: &[u8]) -> Result<(), String> {
        self.stream.write_all(bytes).map_err(|error| format!("cannot send: {error}"))
    }

    /// Sends a request and reads to its reply, of which it gives what came before, too.
    ///
    /// # Errors
    /// What is wrong with the bytes, or that none come.
    pub fn ask(&mut self, words: &[&str]) -> Result<(Vec<Frame>, Frame), String> {
        let words: Vec<Vec<u8>> = words.iter().map(|word| word.as_bytes().to_vec()).collect();
        self.send(&encoded(&words), &[])?;
        let mut pushes = Vec::new();
        loop {
            match self.frame()? {
                Frame::Push(push) => pushes.push(Frame::Push(push)),
                reply => return Ok((pushes, reply)),
            }
        }
    }

    /// The next reply or push.
    ///
    /// # Errors
    /// What is wrong with the bytes, or that none come.
    pub fn frame(&mut self) -> Result<Frame, String> {
        if self.at > 1 << 16 {
            self.bytes.drain(..self.at);
            self.at = 0;
        }
        let frame = self.value(0).map_err(|wrong| {
            let from = self.at.saturating_sub(SHOWN_BYTES);
            let to = (self.at + SHOWN_BYTES).min(self.bytes.len());
            let (before, after) = (&self.bytes[from..self.at], &self.bytes[self.at..to]);
            format!("{wrong}: {} [HERE] {}", before.escape_ascii(), after.escape_ascii())
        })?;
        Ok(frame)
    }

    /// Reads on to the end of the connection: nothing but pushes may come before it.
    ///
    /// # Errors
    /// What came instead.
    pub fn end(&mut self) -> Result<(), String> {
        loop {
            if self.at == self.bytes.len() && !self.more()? {
                return Ok(());
            }
            match self.frame()? {
                Frame::Push(_) => {}
                reply => return Err(format!("{reply:?}, where nothing was asked")),
            }
        }
    }

    /// Reads what has come; whether there was anything before the end.
    fn more(&mut self) -> Result<bool, String> {
        let mut room = [0; 1 << 14];
        match self.stream.read(&mut room) {
            Ok(0) => Ok(false),
            Ok(count) => {
                self.bytes.extend_from_slice(&room[..count]);
                Ok(true)
            }
            Err(error) if error.kind() == ErrorKind::ConnectionReset => Ok(false),
            Err(error) => Err(format!("no reply ({error})")),
        }
    }

    fn need(&mut self, count: usize) -> Result<(), String> {
        while self.bytes.len() < self.at + count {
            if !self.more()? {
                return Err(String::from("the server hung up"));
            }
        }
        Ok(())
    }

    fn line(&mut self) -> Result<String, String> {
        let mut length = 0;
        loop {
            self.need(length + 1)?;
            match self.bytes[self.at + length] {
                b'\r' => break,
                b'\n' => return Err(String::from("a line ends without CR")),
                _ => length += 1,
            }
        }
        let line = self.bytes[self.at..self.at + length].to_vec();
        self.at += length;
        self.line_end()?;
        String::from_utf8(line).map_err(|_| String::from("a line is no text"))
    }

    fn line_end(&mut self) -> Result<(), String> {
        self.need(2)?;
        if &self.bytes[self.at..self.at + 2] != b"\r\n" {
            return Err(String::from("no CRLF where one must be"));
        }
        self.at += 2;
        Ok(())
    }

    /// A length, as it may be written; `None` for -1.
    fn length(text: &str) -> Result<Option<usize>, String> {
        if text == "-1" {
            return Ok(None);
        }
        match text.parse::<usize>() {
            Ok(length) if length <= LENGTH_MAX && length.to_string() == text => Ok(Some(length)),
            _ => Err(format!("{text:?} is no length")),
        }
    }

    fn bytes_of(&mut self, length: usize) -> Result<Vec<u8>, String> {
        self.need(length)?;
        let bytes = self.bytes[self.at..self.at + length].to_vec();
        self.at += length;
        self.line_end()?;
        Ok(bytes)
    }

    fn values(&mut self, length: usize, depth: usize) -> Result<Vec<Frame>, String> {
        (0..length).map(|_| self.value(depth + 1)).collect()
    }

    fn value(&mut self, depth: usize) -> Result<Frame, String> {
        if depth > DEPTH_MAX {
            return Err(String::from("nested too deeply"));
        }
        self.need(1)?;
        let kind = self.bytes[self.at];
        if self.protocol == 2 && !b"+-:$*".contains(&kind) {
            return Err(format!("{:?} is nothing that RESP2 has", char::from(kind)));
        }
        if kind == b'>' && depth > 0 {
            return Err(String::from("a push within a reply"));
        }
        self.at += 1;
        let line = self.line()?;
        let count = |text: &str| Self::length(text)?.ok_or(String::from("a length of -1"));
        Ok(match kind {
            b'+' => Frame::Simple(line),
            b'-' => Frame::Error(line),
            b':' => match line.parse::<i64>() {
                Ok(number) if number.to_string() == line => Frame::Integer(number),
                _ => return Err(format!("{line:?} is no number")),
            },
            b'$' | b'*' => match (Self::length(&line)?, kind) {
                (Some(length), b'$') => Frame::Bulk(self.bytes_of(length)?),
                (Some(length), _) => Frame::Array(self.values(length, depth)?),
                (None, _) if self.protocol == 3 => {
                    return Err(String::from("a null of RESP2 in RESP3"));
                }
                (None, b'$') => Frame::Null,
                (None, _) => Frame::NullArray,
            },
            b'=' => {
                let bytes = self.bytes_of(count(&line)?)?;
                Frame::Bulk(bytes.get(4..).ok_or("verbatim text without a kind")?.to_vec())
            }
            b'_' if line.is_empty() => Frame::Null,
            b'~' => Frame::Array(self.values(count(&line)?, depth)?),
            b'>' => Frame::Push(self.values(count(&line)?, depth)?),
            b'%' => {
                let length = count(&line)?;
                let pair = |_| Ok((self.value(depth + 1)?, self.value(depth + 1)?));
                Frame::Map((0..length).map(pair).collect::<Result<_, String>>()?)
            }
            b'#' | b',' => Frame::Other(line),
            _ => return Err(format!("a reply begins with {:?}", char::from(kind))),
        })
    }
}

/// A request as clients send it.
#[must_use]
pub fn encoded(words: &[Vec<u8>]) -> Vec<u8> {
    let mut bytes = format!("*{}\r\n", words.len()).into_bytes();
    for word in words {
        bytes.extend_from_slice(format!("${}\r\n", word.len()).as_bytes());
        bytes.extend_from_slice(word);
        bytes.extend_from_slice(b"\r\n");
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;
    use std::net::TcpListener;

    /// What is read of these bytes until they end or are wrong.
    fn read(protocol: u8, bytes: &[u8]) -> Vec<Result<Frame, String>> {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let patience = Duration::from_secs(30);
        let mut wire = Wire::connect(listener.local_addr().unwrap(), patience).unwrap();
        listener.accept().unwrap().0.write_all(bytes).unwrap();
        wire.protocol = protocol;
        let mut all = Vec::new();
        while wire.at < wire.bytes.len() || wire.more().unwrap() {
            all.push(wire.frame());
            if all.last().unwrap().is_err() {
                break;
            }
        }
        all
    }

    #[test]
    fn a_push_stands_between_replies_alone() {
        let between = read(3, b"+OK\r\n>2\r\n+invalidate\r\n_\r\n*1\r\n$1\r\n6\r\n");
        assert_eq!(between.len(), 3);
        assert!(between.iter().all(Result::is_ok), "{between:?}");
        let within = read(3, b"*2\r\n$1\r\n6\r\n>2\r\n+invalidate\r\n_\r\n:1\r\n");
        let wrong = within[0].as_ref().unwrap_err();
        assert!(wrong.starts_with("a push within a reply"), "{wrong}");
    }

    #[test]
    fn what_is_not_exactly_the_protocol_is_refused() {
        for (protocol, bytes) in [
            (2, &b">1\r\n+x\r\n"[..]),
            (2, b"_\r\n"),
            (2, b"%0\r\n"),
            (3, b"$-1\r\n"),
            (3, b"*-1\r\n"),
            (2, b":01\r\n"),
            (2, b"$3\r\nabcd\r\n"),
            (2, b"$+1\r\na\r\n"),
            (2, b"+OK\n"),
            (2, b"OK\r\n"),
            (2, b"*2\r\n:1\r\n"),
        ] {
            assert!(read(protocol, bytes)[0].is_err(), "{}", bytes.escape_ascii());
        }
        let good = read(2, b"$-1\r\n*-1\r\n:-5\r\n$0\r\n\r\n*0\r\n-ERR x\r\n");
        assert!(good.iter().all(Result::is_ok), "{good:?}");
    }
}
