//! How an owner parts with clients that other nodes pass on: it tells what is left of their sessions.
//!
//! The owner sends the connection's tag ([`greeting`](super::greeting)), behind all answers. Who passes the client on sends nothing more then, and closes
//! its side. The owner reads what has come until then, and sends the state and all input that it has not executed, each behind its length: what is cut is no
//! parting, and the client's connection ends.

use super::greeting::Tag;
use headwater_base::wire::put_bytes;
use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};
use std::time::{Duration, Instant};

/// Bytes that are read at once.
const PIECE: usize = 64 << 10;
/// A client that has sent more than this ahead is not parted with.
const INPUT_MAX: usize = 64 << 20;

/// A connection that a client is passed on by, all of whose answers are sent.
pub(crate) struct Parting {
    /// The connection.
    pub(crate) stream: TcpStream,
    /// What the other end knows it by.
    pub(crate) tag: Tag,
    /// What is left of the session.
    pub(crate) state: Vec<u8>,
    /// Input that was not executed.
    pub(crate) input: Vec<u8>,
}

impl Parting {
    /// What is waited for until then.
    fn wait(&self, until: Instant) -> std::io::Result<()> {
        let left = until.saturating_duration_since(Instant::now()).max(Duration::from_millis(1));
        self.stream.set_read_timeout(Some(left))?;
        self.stream.set_write_timeout(Some(left))
    }

    fn begin(&mut self, until: Instant) -> std::io::Result<()> {
        self.stream.set_nonblocking(false)?;
        self.wait(until)?;
        self.stream.write_all(&self.tag)
    }

    fn end(mut self, until: Instant) -> std::io::Result<()> {
        let mut piece = vec![0; PIECE];
        loop {
            // It ends with the other side's last byte, which comes at once.
            self.wait(until)?;
            let count = self.stream.read(&mut piece)?;
            if count == 0 {
                break;
            }
            self.input.extend_from_slice(&piece[..count]);
            if Instant::now() > until || self.input.len() > INPUT_MAX {
                return Err(std::io::ErrorKind::TimedOut.into());
            }
        }
        let mut told = Vec::new();
        put_bytes(&mut told, &self.state);
        put_bytes(&mut told, &self.input);
        self.wait(until)?;
        self.stream.write_all(&told)?;
        self.stream.shutdown(Shutdown::Write)
    }
}

/// Parts with all of them, within this time; where one of them does not play its part, its client's connection ends.
pub(crate) fn part(all: Vec<Parting>, within: Duration) {
    let until = Instant::now() + within;
    let begun = all.into_iter().filter_map(|mut it| it.begin(until).is_ok().then_some(it));
    for parting in begun.collect::<Vec<_>>() {
        // A client whose connection breaks finds out by itself.
        drop(parting.end(until));
    }
}

/// Finds the tag in what an owner sends, however that is cut.
#[derive(Debug, Default)]
pub(crate) struct TagFinder {
    /// The beginning of a tag, with which the bytes before have ended.
    held: Vec<u8>,
}

impl TagFinder {
    /// One that has kept these bytes back.
    pub(crate) fn of(held: Vec<u8>) -> Self {
        Self { held }
    }

    /// What it keeps back.
    pub(crate) fn held(self) -> Vec<u8> {
        self.held
    }

    /// Takes bytes that came; what of all that is for the client is put behind `out`. If the tag has come: what stands behind it.
    pub(crate) fn take<'b>(
        &mut self,
        tag: &Tag,
        bytes: &'b [u8],
        out: &mut Vec<u8>,
    ) -> Option<&'b [u8]> {
        let before = self.held.len();
        out.append(&mut self.held);
        let begins = out.len() - before;
        out.extend_from_slice(bytes);
        let here = &out[begins..];
        let is_tag = |at: &usize| here[*at..].starts_with(tag);
        if let Some(at) = memchr::memchr_iter(tag[0], here).find(is_tag) {
            let behind = at + tag.len() - before;
            out.truncate(begins + at);
            return Some(&bytes[behind..]);
        }
        let most = (tag.len() - 1).min(here.len());
        let held = (1..=most).rev().find(|&len| here.ends_with(&tag[..len])).unwrap_or(0);
        self.held = out.split_off(out.len() - held);
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpListener;

    #[test]
    fn a_tag_is_found_however_it_is_cut_and_nothing_else_is_kept_back_for_long() {
        let tag = *b"0123456789abcde0";
        let text = [&b"0123 answers 01234567"[..], &tag, b"state"].concat();
        for first in 0..=text.len() {
            for second in first..=text.len() {
                let (mut finder, mut out, mut behind) = (TagFinder::default(), Vec::new(), None);
                for part in [&text[..first], &text[first..second], &text[second..]] {
                    match &mut behind {
                        None => {
                            behind = finder.take(&tag, part, &mut out).map(<[u8]>::to_vec);
                        }
                        Some(behind) => behind.extend_from_slice(part),
                    }
                }
                assert_eq!((&*out, behind.as_deref()), (&text[..21], Some(&b"state"[..])));
            }
        }
        let (mut finder, mut out) = (TagFinder::default(), Vec::new());
        assert_eq!(finder.take(&tag, b"no tag: 0123", &mut out), None);
        assert_eq!(out, b"no tag: ");
        assert_eq!(finder.take(&tag, b"x", &mut out), None);
        assert_eq!(out, b"no tag: 0123x");
    }

    #[test]
    fn input_that_is_on_its_way_goes_with_the_state() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut other = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (stream, _) = listener.accept().unwrap();
        stream.set_nonblocking(true).unwrap();
        other.write_all(b" and the rest").unwrap();
        let parting = Parting {
            stream,
            tag: [3; 16],
            state: b"state".to_vec(),
            input: b"the beginning".to_vec(),
        };
        let ends = std::thread::spawn(|| part(vec![parting], Duration::from_secs(20)));
        let mut tag = [0; 16];
        other.read_exact(&mut tag).unwrap();
        assert_eq!(tag, [3; 16]);
        other.shutdown(Shutdown::Write).unwrap();
        let mut told = Vec::new();
        other.read_to_end(&mut told).unwrap();
        let mut expected = Vec::new();
        put_bytes(&mut expected, b"state");
        put_bytes(&mut expected, b"the beginning and the rest");
        assert_eq!(told, expected);
        ends.join().unwrap();
    }
}
