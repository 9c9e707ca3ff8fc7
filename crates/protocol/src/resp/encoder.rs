//! Answers as RESP2 or RESP3, appended to an output buffer.
//!
//! The two differ in what they can say: RESP2 has no map, set, push, double, boolean or verbatim
//! text, and says nothing as a length of -1; the forms taken instead are those of Redis 7.
//!
//! # Cost
//! A short header is written as one 8-byte store and cut to its length; bytes are copied once,
//! those of long values not at all where the output can [hold](Held) them.
//! An aggregate of unknown length leaves room for the expected header; a wrong guess costs one
//! move of its body.

use crate::held::Held;
use alloc::vec::Vec;
use core::fmt::Write;
use headwater_command::{Counted, Mark, Reply, number};
use headwater_pool::Value;

/// Version of the protocol that a connection speaks.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Version {
    /// RESP2, with which every connection starts.
    #[default]
    Resp2,
    /// RESP3, after HELLO 3.
    Resp3,
}

/// Appends answers to an output buffer.
#[derive(Debug)]
pub struct Encoder<'o> {
    out: &'o mut Vec<u8>,
    held: Option<&'o mut Held>,
    version: Version,
    /// Byte strings are left out that would make the output longer.
    most: usize,
    overflowed: bool,
    /// The client takes errors of several lines.
    blob_errors: bool,
}

impl<'o> Encoder<'o> {
    /// An encoder that appends to `out`.
    #[inline]
    #[must_use]
    pub fn new(out: &'o mut Vec<u8>, version: Version) -> Self {
        Self { out, held: None, version, most: usize::MAX, overflowed: false, blob_errors: false }
    }

    /// An encoder that appends to `out`, except for long values: those are put into `held`.
    #[inline]
    #[must_use]
    pub fn holding(out: &'o mut Vec<u8>, held: &'o mut Held, version: Version) -> Self {
        Self {
            out,
            held: Some(held),
            version,
            most: usize::MAX,
            overflowed: false,
            blob_errors: false,
        }
    }

    /// Whether an error may have several lines, which many clients of RESP3 take for the end of the
    /// protocol, as no server that they know sends any.
    #[inline]
    #[must_use]
    pub fn with_blob_errors(self, blob_errors: bool) -> Self {
        Self { blob_errors, ..self }
    }

    /// Lets the output have at most `bytes`, with those from before. A byte string that would exceed
    /// it is left out, and so is what follows; the answer is to be taken back then.
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

    /// Whether `len` bytes more fit; notes it where they do not.
    #[inline]
    fn fits(&mut self, len: usize) -> bool {
        let fits = len <= self.most.saturating_sub(self.out.len());
        self.overflowed |= !fits;
        fits
    }

    /// The version that answers are written in.
    #[must_use]
    pub fn version(&self) -> Version {
        self.version
    }

    /// Changes the version for what follows (HELLO, RESET).
    pub fn set_version(&mut self, version: Version) {
        self.version = version;
    }

    /// Bytes in the output buffer, with those from before.
    #[must_use]
    pub fn len(&self) -> usize {
        self.out.len()
    }

    /// Whether nothing is in the output buffer.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.out.is_empty()
    }

    #[inline]
    fn header(&mut self, kind: u8, number: u64) {
        match short_line(number) {
            Some((line, len)) => {
                let bytes = [kind, line[0], line[1], line[2], line[3], line[4], 0, 0];
                self.append_first(bytes, 1 + len);
            }
            None => self.number_line(kind, number::unsigned(number).as_bytes()),
        }
    }

    /// The end of a byte string, and the header of the next one, of `len` bytes.
    #[inline]
    fn next_header(&mut self, len: usize) {
        match short_line(len as u64) {
            Some((line, len)) => {
                let bytes = [b'\r', b'\n', b'$', line[0], line[1], line[2], line[3], line[4]];
                self.append_first(bytes, 3 + len);
            }
            None => {
                self.out.extend_from_slice(b"\r\n");
                self.header(b'$', len as u64);
            }
        }
    }

    /// Appends the first `len` of some bytes: by one store of all.
    #[inline]
    fn append_first(&mut self, bytes: [u8; 8], len: usize) {
        let end = self.out.len() + len;
        self.out.extend_from_slice(&bytes);
        self.out.truncate(end);
    }

    fn number_line(&mut self, kind: u8, digits: &[u8]) {
        self.out.reserve(digits.len() + 3);
        self.out.push(kind);
        self.out.extend_from_slice(digits);
        self.out.extend_from_slice(b"\r\n");
    }

    /// Bytes of the header of an aggregate with `count` elements or pairs.
    fn counted_header(&self, form: Counted, count: u64) -> (u8, u64) {
        match (form, self.version) {
            (Counted::Array, _) => (b'*', count),
            (Counted::Map, Version::Resp2) => (b'*', count.saturating_mul(2)),
            (Counted::Map, Version::Resp3) => (b'%', count),
        }
    }

    /// A value in several blocks.
    fn long_value(&mut self, value: &Value<'_>) {
        self.header(b'$', value.len() as u64);
        let at = self.out.len();
        if !self.held.as_mut().is_some_and(|held| held.hold(at, value)) && self.fits(value.len()) {
            self.out.reserve(value.len() + 2);
            value.parts().for_each(|part| self.out.extend_from_slice(part));
        }
        self.out.extend_from_slice(b"\r\n");
    }

    /// An error that may hold line ends; see [`Reply::error`].
    fn error_text(&mut self, code: &str, text: core::fmt::Arguments<'_>) {
        let start = self.out.len();
        self.out.push(b'-');
        self.out.extend_from_slice(code.as_bytes());
        self.out.push(b' ');
        let _always_fits = VecText(self.out).write_fmt(text);
        let end = self.out.len();
        if !self.out[start..].iter().any(|byte| matches!(byte, b'\r' | b'\n')) {
            self.out.extend_from_slice(b"\r\n");
            return;
        }
        if self.blob_errors && self.version == Version::Resp3 {
            let body = self.out.split_off(start);
            self.number_line(b'!', number::unsigned((body.len() - 1) as u64).as_bytes());
            self.out.extend_from_slice(&body[1..]);
        } else {
            let end = start + without_caret(&self.out[start..end]).len();
            self.out.truncate(end);
            for byte in &mut self.out[start..end] {
                if matches!(*byte, b'\r' | b'\n') {
                    *byte = b' ';
                }
            }
        }
        self.out.extend_from_slice(b"\r\n");
    }
}

/// A number of at most three digits with a line end behind it, and how many bytes these are.
#[inline]
fn short_line(number: u64) -> Option<([u8; 5], usize)> {
    let digit = |number: u64| b'0' + (number % 10) as u8;
    let (ones, tens, hundreds) = (digit(number), digit(number / 10), digit(number / 100));
    match number {
        0..10 => Some(([ones, b'\r', b'\n', 0, 0], 3)),
        10..100 => Some(([tens, ones, b'\r', b'\n', 0], 4)),
        100..1000 => Some(([hundreds, tens, ones, b'\r', b'\n'], 5)),
        _ => None,
    }
}

/// A text without a last line that shows a place in the line above it, which says nothing where all is one line.
fn without_caret(text: &[u8]) -> &[u8] {
    let Some(before) = text.strip_suffix(b"^") else { return text };
    let blanks = before.iter().rev().take_while(|byte| matches!(byte, b' ' | b'\t')).count();
    before[..before.len() - blanks].strip_suffix(b"\n").unwrap_or(text)
}

/// Lets formatted text flow into the output buffer.
struct VecText<'v>(&'v mut Vec<u8>);

impl Write for VecText<'_> {
    fn write_str(&mut self, text: &str) -> core::fmt::Result {
        self.0.extend_from_slice(text.as_bytes());
        Ok(())
    }
}

impl Reply for Encoder<'_> {
    #[inline]
    fn ok(&mut self) {
        self.out.extend_from_slice(b"+OK\r\n");
    }

    fn simple(&mut self, text: &str) {
        debug_assert!(!text.contains(['\r', '\n']));
        self.out.reserve(text.len() + 3);
        self.out.push(b'+');
        self.out.extend_from_slice(text.as_bytes());
        self.out.extend_from_slice(b"\r\n");
    }

    #[cold]
    fn error(&mut self, code: &str, text: core::fmt::Arguments<'_>) {
        self.error_text(code, text);
    }

    #[inline]
    fn bulk(&mut self, bytes: &[u8]) {
        if !self.fits(bytes.len()) {
            return;
        }
        self.out.reserve(bytes.len() + 16);
        self.header(b'$', bytes.len() as u64);
        self.out.extend_from_slice(bytes);
        self.out.extend_from_slice(b"\r\n");
    }

    #[inline]
    fn joined(&mut self, stem: &[u8], rest: &[u8]) {
        let len = stem.len() + rest.len();
        if !self.fits(len) {
            return;
        }
        self.out.reserve(len + 16);
        self.header(b'$', len as u64);
        self.out.extend_from_slice(stem);
        self.out.extend_from_slice(rest);
        self.out.extend_from_slice(b"\r\n");
    }

    #[inline]
    fn value(&mut self, value: &Value<'_>) {
        match value.as_contiguous() {
            Some(bytes) => self.bulk(bytes),
            None => self.long_value(value),
        }
    }

    #[inline]
    fn pair(&mut self, stem: &[u8], rest: &[u8], value: &Value<'_>) {
        let Some(bytes) = value.as_contiguous() else {
            self.joined(stem, rest);
            return self.long_value(value);
        };
        let len = stem.len() + rest.len();
        // Key and value are left out together.
        if !self.fits(len + bytes.len()) {
            return;
        }
        self.out.reserve(len + bytes.len() + 32);
        self.header(b'$', len as u64);
        self.out.extend_from_slice(stem);
        self.out.extend_from_slice(rest);
        self.next_header(bytes.len());
        self.out.extend_from_slice(bytes);
        self.out.extend_from_slice(b"\r\n");
    }

    fn bulk_begin(&mut self, len: usize) {
        if !self.fits(len) {
            return;
        }
        self.out.reserve(len + 16);
        self.header(b'$', len as u64);
    }

    #[inline]
    fn bulk_part(&mut self, bytes: &[u8]) {
        if !self.fits(bytes.len()) {
            return;
        }
        self.out.extend_from_slice(bytes);
    }

    fn bulk_end(&mut self) {
        self.out.extend_from_slice(b"\r\n");
    }

    fn verbatim(&mut self, format: [u8; 3], text: &[u8]) {
        match self.version {
            Version::Resp2 => self.bulk(text),
            Version::Resp3 => {
                self.out.reserve(text.len() + 20);
                self.header(b'=', text.len() as u64 + 4);
                self.out.extend_from_slice(&format);
                self.out.push(b':');
                self.out.extend_from_slice(text);
                self.out.extend_from_slice(b"\r\n");
            }
        }
    }

    #[inline]
    fn null(&mut self) {
        match self.version {
            Version::Resp2 => self.out.extend_from_slice(b"$-1\r\n"),
            Version::Resp3 => self.out.extend_from_slice(b"_\r\n"),
        }
    }

    fn null_array(&mut self) {
        match self.version {
            Version::Resp2 => self.out.extend_from_slice(b"*-1\r\n"),
            Version::Resp3 => self.out.extend_from_slice(b"_\r\n"),
        }
    }

    #[inline]
    fn integer(&mut self, number: i64) {
        match u64::try_from(number) {
            Ok(number) => self.header(b':', number),
            Err(_) => self.number_line(b':', number::signed(number).as_bytes()),
        }
    }

    fn double(&mut self, number: f64) {
        let mut text = Vec::new();
        // Rust writes "NaN", Redis "nan".
        let _always_fits = if number.is_nan() {
            VecText(&mut text).write_str("nan")
        } else {
            VecText(&mut text).write_fmt(format_args!("{number}"))
        };
        match self.version {
            Version::Resp2 => self.bulk(&text),
            Version::Resp3 => self.number_line(b',', &text),
        }
    }

    fn boolean(&mut self, truth: bool) {
        self.out.extend_from_slice(match (self.version, truth) {
            (Version::Resp2, true) => b":1\r\n",
            (Version::Resp2, false) => b":0\r\n",
            (Version::Resp3, true) => b"#t\r\n",
            (Version::Resp3, false) => b"#f\r\n",
        });
    }

    #[inline]
    fn array(&mut self, len: usize) {
        self.header(b'*', len as u64);
    }

    fn map(&mut self, pairs: usize) {
        let (kind, number) = self.counted_header(Counted::Map, pairs as u64);
        self.header(kind, number);
    }

    fn set(&mut self, len: usize) {
        self.header(if self.version == Version::Resp3 { b'~' } else { b'*' }, len as u64);
    }

    fn push(&mut self, len: usize) {
        self.header(if self.version == Version::Resp3 { b'>' } else { b'*' }, len as u64);
    }

    fn begin_counted(&mut self, form: Counted, expected: u64) -> Mark {
        let (kind, number) = self.counted_header(form, expected);
        self.header(kind, number);
        Mark(self.out.len())
    }

    fn end_counted(&mut self, form: Counted, mark: Mark, count: u64) {
        let body = mark.0;
        // The header that was guessed starts behind the last line end before its own.
        let kinds = |byte: &u8| matches!(byte, b'*' | b'%');
        let start = self.out[..body].iter().rposition(kinds).unwrap_or(body);
        let (kind, number) = self.counted_header(form, count);
        let digits = number::unsigned(number);
        let digits = digits.as_bytes();
        let (room, needed) = (body - start, digits.len() + 3);
        let old_end = self.out.len();
        if needed > room {
            self.out.resize(old_end + needed - room, 0);
        }
        if needed != room {
            self.out.copy_within(body..old_end, start + needed);
            self.out.truncate(old_end - room + needed);
        }
        let header = &mut self.out[start..start + needed];
        header[0] = kind;
        header[1..=digits.len()].copy_from_slice(digits);
        header[needed - 2..].copy_from_slice(b"\r\n");
        if let Some(held) = &mut self.held {
            held.shift(body, start + needed);
        }
    }

    fn mark(&self) -> Mark {
        Mark(self.out.len())
    }

    fn rewind(&mut self, mark: Mark) {
        self.overflowed = false;
        self.out.truncate(mark.0);
        if let Some(held) = &mut self.held {
            held.cut(mark.0);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use headwater_pool::Pool;

    #[test]
    fn a_pair_is_its_key_and_its_value() {
        let bytes = alloc::vec![b'x'; 1100];
        let mut pool = Pool::new();
        for len in [0, 1, 9, 10, 99, 100, 101, 999, 1000, 1001, 1100] {
            let word = pool.insert(&bytes[..len]);
            for (stem, rest) in [(len, 0), (0, len), (len / 2, len - len / 2)] {
                let (stem, rest) = (&bytes[..stem], &bytes[..rest]);
                let (mut together, mut apart) = (Vec::new(), Vec::new());
                let value = pool.view(word);
                Encoder::new(&mut together, Version::Resp2).pair(stem, rest, &value);
                let mut encoder = Encoder::new(&mut apart, Version::Resp2);
                encoder.joined(stem, rest);
                encoder.value(&value);
                let text =
                    [alloc::format!("${len}\r\n").as_bytes(), &bytes[..len], b"\r\n"].concat();
                assert_eq!(apart, [&text[..], &text].concat());
                assert!(together == apart, "{len}");
            }
            pool.release(word);
        }
    }

    #[test]
    fn a_pair_whose_value_is_long_or_does_not_fit() {
        let bytes = alloc::vec![b'x'; 40 << 10];
        let mut pool = Pool::new();
        let (long, short) = (pool.insert(&bytes), pool.insert(b"value"));
        let mut out = Vec::new();
        Encoder::new(&mut out, Version::Resp2).pair(b"a|", b"b", &pool.view(long));
        let expected = [b"$3\r\na|b\r\n$40960\r\n", &bytes[..], b"\r\n"].concat();
        assert!(out == expected);
        for most in [0, 2, 7] {
            out.clear();
            let mut encoder = Encoder::new(&mut out, Version::Resp2).at_most(most);
            encoder.pair(b"a|", b"b", &pool.view(short));
            assert!(encoder.overflowed() && encoder.is_empty(), "{most}");
        }
        [long, short].into_iter().for_each(|word| pool.release(word));
    }

    #[test]
    fn what_does_not_fit_is_left_out_and_told() {
        let mut out = b"+OK\r\n".to_vec();
        let mut encoder = Encoder::new(&mut out, Version::Resp2).at_most(5 + 24);
        let mark = encoder.mark();
        encoder.array(2);
        encoder.bulk(b"0123456789");
        assert!(!encoder.overflowed());
        encoder.bulk(b"0123456789");
        encoder.bulk_begin(10);
        encoder.bulk_part(b"0123456789");
        encoder.bulk_end();
        assert!(encoder.overflowed() && encoder.len() < 5 + 24);
        encoder.rewind(mark);
        assert!(!encoder.overflowed());
        encoder.bulk(b"0123456789");
        assert_eq!(out, b"+OK\r\n$10\r\n0123456789\r\n");
    }

    fn both(write: impl Fn(&mut Encoder<'_>)) -> (Vec<u8>, Vec<u8>) {
        let (mut two, mut three) = (Vec::new(), Vec::new());
        write(&mut Encoder::new(&mut two, Version::Resp2));
        write(&mut Encoder::new(&mut three, Version::Resp3));
        (two, three)
    }

    fn check(write: impl Fn(&mut Encoder<'_>), two: &[u8], three: &[u8]) {
        let (got_two, got_three) = both(write);
        assert_eq!(got_two.escape_ascii().to_string(), two.escape_ascii().to_string());
        assert_eq!(got_three.escape_ascii().to_string(), three.escape_ascii().to_string());
    }

    use alloc::string::ToString;

    #[test]
    fn the_versions_differ_where_redis_does() {
        check(|out| out.null(), b"$-1\r\n", b"_\r\n");
        check(|out| out.null_array(), b"*-1\r\n", b"_\r\n");
        check(|out| out.map(3), b"*6\r\n", b"%3\r\n");
        check(|out| out.set(100), b"*100\r\n", b"~100\r\n");
        check(|out| out.push(3), b"*3\r\n", b">3\r\n");
        check(|out| out.double(1.5), b"$3\r\n1.5\r\n", b",1.5\r\n");
        check(|out| out.boolean(true), b":1\r\n", b"#t\r\n");
        check(|out| out.verbatim(*b"txt", b"hi"), b"$2\r\nhi\r\n", b"=6\r\ntxt:hi\r\n");
    }

    #[test]
    fn numbers_and_bytes() {
        check(|out| out.integer(-5), b":-5\r\n", b":-5\r\n");
        check(
            |out| out.integer(i64::MAX),
            b":9223372036854775807\r\n",
            b":9223372036854775807\r\n",
        );
        for len in [0, 1, 9, 10, 99, 100, 12_345] {
            let bytes = alloc::vec![b'x'; len];
            let mut expected = alloc::format!("${len}\r\n").into_bytes();
            expected.extend_from_slice(&bytes);
            expected.extend_from_slice(b"\r\n");
            check(|out| out.bulk(&bytes), &expected, &expected);
            check(|out| out.value(&Value::of(&bytes)), &expected, &expected);
        }
    }

    #[test]
    fn an_error_stays_on_one_line_where_it_must() {
        let write = |out: &mut Encoder<'_>| out.error("ERR", format_args!("a\n  ^\r\n b"));
        check(write, b"-ERR a   ^   b\r\n", b"-ERR a   ^   b\r\n");
        let blob = b"!13\r\nERR a\n  ^\r\n b\r\n";
        for (version, expected) in
            [(Version::Resp2, &b"-ERR a   ^   b\r\n"[..]), (Version::Resp3, blob)]
        {
            let mut out = Vec::new();
            write(&mut Encoder::new(&mut out, version).with_blob_errors(true));
            assert_eq!(out, expected);
        }
        check(|out| out.error("NO", format_args!("{}", 1)), b"-NO 1\r\n", b"-NO 1\r\n");
    }

    #[test]
    fn a_wrong_guess_of_a_length_is_mended() {
        for expected in [0, 5, 49, 50, 99, 100, 5000, u64::MAX] {
            for count in [0_usize, 1, 5, 49, 50, 100, 1000] {
                let write = |out: &mut Encoder<'_>| {
                    out.bulk(b"*before*");
                    let mark = out.begin_counted(Counted::Map, expected);
                    for _ in 0..count {
                        out.bulk(b"k*");
                        out.integer(1);
                    }
                    out.end_counted(Counted::Map, mark, count as u64);
                    out.ok();
                };
                let body = b"$2\r\nk*\r\n:1\r\n".repeat(count);
                let whole = |header: &str| {
                    [b"$8\r\n*before*\r\n", header.as_bytes(), &body, b"+OK\r\n"].concat()
                };
                let two = whole(&alloc::format!("*{}\r\n", 2 * count));
                check(write, &two, &whole(&alloc::format!("%{count}\r\n")));
            }
        }
    }
}
