//! Answers as they go between shards: typed, and in no client's protocol.
//!
//! An answer is a run of tokens: a byte that says what it is, then its content with lengths as 32-bit numbers, least byte
//! first. An aggregate's token is followed by its elements. A shard writes them through [`Reply`] as it would write to
//! a client; the client's session reads them ([`Answer`]), and puts them into its client's protocol ([`Answer::replay`]).
//!
//! # Invariants
//! - A1. Bytes that are no answer are refused by [`Answer::first`]; nothing reads beyond their end, and no aggregate is
//!   believed to have more elements than bytes.
//!
//! # Cost
//! An answer is written and read once from its beginning to its end; aggregates of unknown length are patched in place.

use alloc::string::String;
use alloc::vec::Vec;
use core::fmt::{self, Write};
use headwater_command::{Counted, Mark, Reply};
use headwater_pool::Value;

mod tag {
    pub(super) const NULL: u8 = 0;
    pub(super) const NULL_ARRAY: u8 = 1;
    pub(super) const FALSE: u8 = 2;
    pub(super) const TRUE: u8 = 3;
    pub(super) const OK: u8 = 4;
    pub(super) const INTEGER: u8 = 5;
    pub(super) const DOUBLE: u8 = 6;
    pub(super) const SIMPLE: u8 = 7;
    pub(super) const ERROR: u8 = 8;
    pub(super) const BULK: u8 = 9;
    pub(super) const VERBATIM: u8 = 10;
    pub(super) const ARRAY: u8 = 11;
    pub(super) const MAP: u8 = 12;
    pub(super) const SET: u8 = 13;
    pub(super) const PUSH: u8 = 14;
}

/// Writes answers behind what a buffer has.
#[derive(Debug)]
pub struct AnswerWriter<'o> {
    out: &'o mut Vec<u8>,
    /// Byte strings are left out that would make the output longer.
    most: usize,
    overflowed: bool,
    /// Where the answer begins.
    start: usize,
}

impl<'o> AnswerWriter<'o> {
    /// A writer that appends to `out`.
    #[inline]
    #[must_use]
    pub fn new(out: &'o mut Vec<u8>) -> Self {
        let start = out.len();
        Self { out, most: usize::MAX, overflowed: false, start }
    }

    /// Lets the output have at most `bytes`, with those from before. A byte string that would exceed it is left out, but for a
    /// stored value that is all of the answer: what was taken is given. The answer is to be taken back then.
    #[inline]
    #[must_use]
    pub fn at_most(self, bytes: usize) -> Self {
        Self { most: bytes, ..self }
    }

    /// Whether something was left out.
    #[inline]
    #[must_use]
    pub fn overflowed(&self) -> bool {
        self.overflowed
    }

    fn fits(&mut self, len: usize) -> bool {
        let fits = len <= self.most.saturating_sub(self.out.len());
        self.overflowed |= !fits;
        fits
    }

    #[inline]
    fn head(&mut self, tag: u8, len: usize) {
        debug_assert!(len <= u32::MAX as usize, "values and lists are shorter");
        let [a, b, c, d] = (len as u32).to_le_bytes();
        self.out.extend_from_slice(&[tag, a, b, c, d]);
    }

    fn patch(&mut self, at: usize, len: usize) {
        self.out[at..at + 4].copy_from_slice(&(len as u32).to_le_bytes());
    }
}

/// Lets formatted text flow into a buffer.
struct Text<'v>(&'v mut Vec<u8>);

impl Write for Text<'_> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        self.0.extend_from_slice(text.as_bytes());
        Ok(())
    }
}

impl Reply for AnswerWriter<'_> {
    #[inline]
    fn ok(&mut self) {
        self.out.push(tag::OK);
    }

    fn simple(&mut self, text: &str) {
        self.head(tag::SIMPLE, text.len());
        self.out.extend_from_slice(text.as_bytes());
    }

    fn error(&mut self, code: &str, text: fmt::Arguments<'_>) {
        self.head(tag::ERROR, code.len());
        self.out.extend_from_slice(code.as_bytes());
        let at = self.out.len();
        self.out.extend_from_slice(&[0; 4]);
        let _always_fits = Text(self.out).write_fmt(text);
        let len = self.out.len() - at - 4;
        self.patch(at, len);
    }

    #[inline]
    fn bulk(&mut self, bytes: &[u8]) {
        if self.fits(bytes.len()) {
            self.out.reserve(bytes.len() + 5);
            self.head(tag::BULK, bytes.len());
            self.out.extend_from_slice(bytes);
        }
    }

    #[inline]
    fn value(&mut self, value: &Value<'_>) {
        match value.as_contiguous() {
            Some(bytes) => self.bulk(bytes),
            None if self.out.len() == self.start || self.fits(value.len()) => {
                self.head(tag::BULK, value.len());
                self.out.reserve(value.len());
                value.parts().for_each(|part| self.out.extend_from_slice(part));
            }
            None => {}
        }
    }

    fn bulk_begin(&mut self, len: usize) {
        if self.fits(len) {
            self.out.reserve(len + 5);
            self.head(tag::BULK, len);
        }
    }

    fn bulk_part(&mut self, bytes: &[u8]) {
        if self.fits(bytes.len()) {
            self.out.extend_from_slice(bytes);
        }
    }

    fn bulk_end(&mut self) {}

    fn verbatim(&mut self, format: [u8; 3], text: &[u8]) {
        self.head(tag::VERBATIM, text.len());
        self.out.extend_from_slice(&format);
        self.out.extend_from_slice(text);
    }

    #[inline]
    fn null(&mut self) {
        self.out.push(tag::NULL);
    }

    fn null_array(&mut self) {
        self.out.push(tag::NULL_ARRAY);
    }

    #[inline]
    fn integer(&mut self, number: i64) {
        self.out.push(tag::INTEGER);
        self.out.extend_from_slice(&number.to_le_bytes());
    }

    fn double(&mut self, number: f64) {
        self.out.push(tag::DOUBLE);
        self.out.extend_from_slice(&number.to_le_bytes());
    }

    fn boolean(&mut self, truth: bool) {
        self.out.push(if truth { tag::TRUE } else { tag::FALSE });
    }

    #[inline]
    fn array(&mut self, len: usize) {
        self.head(tag::ARRAY, len);
    }

    fn map(&mut self, pairs: usize) {
        self.head(tag::MAP, pairs);
    }

    fn set(&mut self, len: usize) {
        self.head(tag::SET, len);
    }

    fn push(&mut self, len: usize) {
        self.head(tag::PUSH, len);
    }

    fn begin_counted(&mut self, form: Counted, expected: u64) -> Mark {
        let tag = match form {
            Counted::Array => tag::ARRAY,
            Counted::Map => tag::MAP,
        };
        self.head(tag, expected as usize);
        Mark(self.out.len())
    }

    fn end_counted(&mut self, _form: Counted, mark: Mark, count: u64) {
        self.patch(mark.0 - 4, count as usize);
    }

    fn mark(&self) -> Mark {
        Mark(self.out.len())
    }

    fn rewind(&mut self, mark: Mark) {
        self.overflowed = false;
        self.out.truncate(mark.0);
    }
}

/// The form of an aggregate.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Form {
    /// Elements in order.
    Array,
    /// Keys, each followed by its value; counted as pairs.
    Map,
    /// Elements, each there once.
    Set,
    /// A message that answers no request.
    Push,
}

/// One token of an answer.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Token<'a> {
    /// Nothing, where a byte string could be.
    Null,
    /// Nothing, where an array could be.
    NullArray,
    /// True or false.
    Boolean(bool),
    /// "OK".
    Ok,
    /// A whole number.
    Integer(i64),
    /// A floating-point number.
    Double(f64),
    /// A short status text.
    Simple(&'a str),
    /// A refusal or failure.
    Error {
        /// The code word.
        code: &'a str,
        /// The text for people.
        text: &'a [u8],
    },
    /// A byte string.
    Bulk(&'a [u8]),
    /// Text in a format, for people.
    Verbatim([u8; 3], &'a [u8]),
    /// An aggregate of so many elements (pairs, in a map), which follow.
    Aggregate(Form, usize),
}

/// Cuts `len` bytes off.
fn cut<'a>(bytes: &mut &'a [u8], len: usize) -> Option<&'a [u8]> {
    let (head, rest) = bytes.split_at_checked(len)?;
    *bytes = rest;
    Some(head)
}

fn number(bytes: &mut &[u8]) -> Option<usize> {
    let (head, rest) = bytes.split_first_chunk::<4>()?;
    *bytes = rest;
    Some(u32::from_le_bytes(*head) as usize)
}

impl<'a> Token<'a> {
    /// Reads the first token; `None`: there is none.
    #[inline]
    pub fn read(bytes: &mut &'a [u8]) -> Option<Self> {
        let (&kind, rest) = bytes.split_first()?;
        *bytes = rest;
        Some(match kind {
            tag::BULK => {
                let len = number(bytes)?;
                Self::Bulk(cut(bytes, len)?)
            }
            tag::NULL => Self::Null,
            tag::NULL_ARRAY => Self::NullArray,
            tag::FALSE => Self::Boolean(false),
            tag::TRUE => Self::Boolean(true),
            tag::OK => Self::Ok,
            tag::INTEGER => Self::Integer(i64::from_le_bytes(cut(bytes, 8)?.try_into().ok()?)),
            tag::DOUBLE => Self::Double(f64::from_le_bytes(cut(bytes, 8)?.try_into().ok()?)),
            tag::SIMPLE => {
                let len = number(bytes)?;
                let text = core::str::from_utf8(cut(bytes, len)?).ok()?;
                Self::Simple((!text.contains(['\r', '\n'])).then_some(text)?)
            }
            tag::ERROR => {
                let len = number(bytes)?;
                let code = core::str::from_utf8(cut(bytes, len)?).ok()?;
                let len = number(bytes)?;
                Self::Error { code, text: cut(bytes, len)? }
            }
            tag::VERBATIM => {
                let len = number(bytes)?;
                let format = cut(bytes, 3)?.try_into().ok()?;
                Self::Verbatim(format, cut(bytes, len)?)
            }
            tag::ARRAY | tag::MAP | tag::SET | tag::PUSH => {
                let form = match kind {
                    tag::ARRAY => Form::Array,
                    tag::MAP => Form::Map,
                    tag::SET => Form::Set,
                    _ => Form::Push,
                };
                let count = number(bytes)?;
                // A1: each element has a byte at least.
                let token = Self::Aggregate(form, count);
                (token.elements() <= bytes.len()).then_some(token)?
            }
            _ => return None,
        })
    }

    /// How many answers follow that belong to it.
    #[must_use]
    pub fn elements(self) -> usize {
        match self {
            Self::Aggregate(Form::Map, pairs) => pairs.saturating_mul(2),
            Self::Aggregate(_, count) => count,
            _ => 0,
        }
    }

    /// Writes it.
    #[inline]
    fn write(self, reply: &mut impl Reply) {
        match self {
            Self::Bulk(bytes) => reply.bulk(bytes),
            Self::Null => reply.null(),
            Self::NullArray => reply.null_array(),
            Self::Boolean(truth) => reply.boolean(truth),
            Self::Ok => reply.ok(),
            Self::Integer(number) => reply.integer(number),
            Self::Double(number) => reply.double(number),
            Self::Simple(text) => reply.simple(text),
            Self::Error { code, text } => {
                reply.error(code, format_args!("{}", String::from_utf8_lossy(text)));
            }
            Self::Verbatim(format, text) => reply.verbatim(format, text),
            Self::Aggregate(Form::Array, count) => reply.array(count),
            Self::Aggregate(Form::Map, pairs) => reply.map(pairs),
            Self::Aggregate(Form::Set, count) => reply.set(count),
            Self::Aggregate(Form::Push, count) => reply.push(count),
        }
    }
}

/// One whole answer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Answer<'a> {
    bytes: &'a [u8],
}

impl<'a> Answer<'a> {
    /// The answer that `bytes` begin with, and what is behind it; `None`: they begin with none.
    #[must_use]
    pub fn first(bytes: &'a [u8]) -> Option<(Self, &'a [u8])> {
        let mut rest = bytes;
        let mut missing = 1_usize;
        while missing > 0 {
            missing = (missing - 1).checked_add(Token::read(&mut rest)?.elements())?;
            if missing > rest.len() {
                return None;
            }
        }
        Some((Self { bytes: &bytes[..bytes.len() - rest.len()] }, rest))
    }

    /// The answer that `bytes` are, all of them.
    #[must_use]
    pub fn whole(bytes: &'a [u8]) -> Option<Self> {
        Self::first(bytes).filter(|(_, rest)| rest.is_empty()).map(|(answer, _)| answer)
    }

    /// Its bytes.
    #[must_use]
    pub fn bytes(self) -> &'a [u8] {
        self.bytes
    }

    /// Its first token.
    #[must_use]
    pub fn token(self) -> Token<'a> {
        Token::read(&mut { self.bytes }).unwrap_or(Token::Null)
    }

    /// Whether it is an error.
    #[must_use]
    pub fn is_error(self) -> bool {
        self.bytes.first() == Some(&tag::ERROR)
    }

    /// Whether the first answer in `bytes` is an error.
    #[inline]
    #[must_use]
    pub fn is_error_first(bytes: &[u8]) -> bool {
        bytes.first() == Some(&tag::ERROR)
    }

    /// Whether it is nothing.
    #[must_use]
    pub fn is_nothing(self) -> bool {
        matches!(self.bytes.first(), Some(&(tag::NULL | tag::NULL_ARRAY)))
    }

    /// Its number, if it is one.
    #[must_use]
    pub fn integer(self) -> Option<i64> {
        match self.token() {
            Token::Integer(number) => Some(number),
            _ => None,
        }
    }

    /// Its bytes or its text, if it is one.
    #[must_use]
    pub fn text(self) -> Option<&'a [u8]> {
        match self.token() {
            Token::Bulk(bytes) | Token::Verbatim(_, bytes) => Some(bytes),
            Token::Simple(text) => Some(text.as_bytes()),
            Token::Ok => Some(b"OK"),
            _ => None,
        }
    }

    /// Its form and its elements, if it is an aggregate; a map's keys and values in turn.
    #[must_use]
    pub fn elements(self) -> Option<(Form, Vec<Self>)> {
        let mut rest = self.bytes;
        let Some(token @ Token::Aggregate(form, _)) = Token::read(&mut rest) else { return None };
        let mut elements = Vec::with_capacity(token.elements());
        for _ in 0..token.elements() {
            let (element, behind) = Self::first(rest)?;
            elements.push(element);
            rest = behind;
        }
        Some((form, elements))
    }

    /// Its elements; none, where it is no aggregate.
    #[must_use]
    pub fn list(self) -> Vec<Self> {
        self.elements().map(|(_, elements)| elements).unwrap_or_default()
    }

    /// Writes it in another form.
    #[inline]
    pub fn replay(self, reply: &mut impl Reply) {
        let mut rest = self.bytes;
        while let Some(token) = Token::read(&mut rest) {
            token.write(reply);
        }
    }
}

/// An answer that something writes.
pub fn answer_of(write: impl FnOnce(&mut AnswerWriter<'_>)) -> Vec<u8> {
    let mut out = Vec::new();
    write(&mut AnswerWriter::new(&mut out));
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use headwater_protocol::resp::{Encoder, Version};

    /// Everything that can be said.
    fn say(reply: &mut impl Reply) {
        reply.array(14);
        reply.ok();
        reply.simple("PONG");
        reply.error("ERR", format_args!("no {}", 7));
        reply.bulk(b"a\r\n\0");
        reply.bulk_begin(4);
        reply.bulk_part(b"ab");
        reply.bulk_part(b"cd");
        reply.bulk_end();
        reply.verbatim(*b"txt", b"text");
        reply.null();
        reply.null_array();
        reply.integer(-5);
        reply.double(1.5);
        reply.boolean(true);
        reply.map(1);
        reply.bulk(b"key");
        reply.set(1);
        reply.integer(i64::MAX);
        let mark = reply.begin_counted(Counted::Array, 1000);
        for number in 0..3 {
            reply.integer(number);
        }
        reply.end_counted(Counted::Array, mark, 3);
        reply.push(1);
        reply.bulk(b"");
    }

    #[test]
    fn an_answer_is_what_a_client_would_have_read() {
        let typed = answer_of(|out| say(out));
        let answer = Answer::whole(&typed).unwrap();
        for version in [Version::Resp2, Version::Resp3] {
            let (mut direct, mut replayed) = (Vec::new(), Vec::new());
            say(&mut Encoder::new(&mut direct, version));
            answer.replay(&mut Encoder::new(&mut replayed, version));
            assert_eq!(direct, replayed);
        }
        let mut again = Vec::new();
        answer.replay(&mut AnswerWriter::new(&mut again));
        assert_eq!(again, typed);
        assert_eq!(answer.list().len(), 14);
        for end in 0..typed.len() {
            assert!(Answer::first(&typed[..end]).is_none(), "{end}");
        }
    }

    #[test]
    fn bytes_that_are_no_answer_are_refused() {
        for bytes in
            [&b""[..], b"\xff", b"\x0b\xff\xff\xff\xff", b"\x0c\x01\0\0\0\0", b"\x09\x05\0\0\0ab"]
        {
            assert!(Answer::first(bytes).is_none(), "{bytes:?}");
        }
    }
}
