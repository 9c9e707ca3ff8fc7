//! Answers, appended to an output buffer.
//!
//! # Cost
//! Bytes are copied once, those of long values not at all where the output can hold them.

use super::meta::{Meta, MetaFlags};
use crate::held::Held;
use alloc::vec::Vec;
use core::fmt::{Display, Write};
use headwater_command::items::{Item, Lease};
use headwater_command::number;
use headwater_pool::Value;

/// Appends answers to an output buffer.
#[derive(Debug)]
pub struct Encoder<'o> {
    out: &'o mut Vec<u8>,
    held: &'o mut Held,
    /// Values are left out that would make the output longer.
    most: usize,
    overflowed: bool,
}

/// Lets formatted text flow into the output buffer, on one line.
struct Line<'v>(&'v mut Vec<u8>);

impl Write for Line<'_> {
    fn write_str(&mut self, text: &str) -> core::fmt::Result {
        let plain = |byte| if matches!(byte, b'\r' | b'\n') { b' ' } else { byte };
        self.0.extend(text.bytes().map(plain));
        Ok(())
    }
}

impl<'o> Encoder<'o> {
    /// An encoder that appends to `out`, except for long values: those are put into `held`. The
    /// output is to have at most `most` bytes, with those from before.
    #[inline]
    #[must_use]
    pub fn new(out: &'o mut Vec<u8>, held: &'o mut Held, most: usize) -> Self {
        Self { out, held, most, overflowed: false }
    }

    /// Whether a value was left out for want of room: the answer is to be taken back.
    #[inline]
    #[must_use]
    pub fn overflowed(&self) -> bool {
        self.overflowed
    }

    /// A line.
    #[inline]
    pub fn line(&mut self, line: &str) {
        self.out.extend_from_slice(line.as_bytes());
        self.out.extend_from_slice(b"\r\n");
    }

    /// A failure of the server's: a code word and a text for people.
    #[cold]
    pub fn failed(&mut self, code: &str, text: &dyn Display) {
        let always_fits = write!(Line(self.out), "SERVER_ERROR {code} {text}");
        debug_assert!(always_fits.is_ok());
        self.out.extend_from_slice(b"\r\n");
    }

    /// A statistic.
    pub fn stat(&mut self, name: &str, value: &dyn Display) {
        let always_fits = write!(Line(self.out), "STAT {name} {value}");
        debug_assert!(always_fits.is_ok());
        self.out.extend_from_slice(b"\r\n");
    }

    /// The end of values or statistics.
    #[inline]
    pub fn end(&mut self) {
        self.out.extend_from_slice(b"END\r\n");
    }

    #[inline]
    fn digits(&mut self, number: u64) {
        if number < 10 {
            self.out.push(b'0' + number as u8);
        } else {
            self.out.extend_from_slice(number::unsigned(number).as_bytes());
        }
    }

    /// A number.
    pub fn number(&mut self, number: u64) {
        self.digits(number);
        self.out.extend_from_slice(b"\r\n");
    }

    /// The bytes of a value, and the line end behind them.
    #[inline]
    fn data(&mut self, value: &Value<'_>) {
        let fits = value.len() <= self.most.saturating_sub(self.out.len());
        match value.as_contiguous() {
            Some(bytes) if fits => self.out.extend_from_slice(bytes),
            None if self.held.hold(self.out.len(), value) => {}
            None if fits => value.write_to(self.out),
            _ => self.overflowed = true,
        }
        self.out.extend_from_slice(b"\r\n");
    }

    /// An item that was found.
    #[inline]
    pub fn value(&mut self, key: &[u8], flags: u32, version: Option<u64>, value: &Value<'_>) {
        self.out.reserve(key.len() + 64);
        self.out.extend_from_slice(b"VALUE ");
        self.out.extend_from_slice(key);
        self.out.push(b' ');
        self.digits(u64::from(flags));
        self.out.push(b' ');
        self.digits(value.len() as u64);
        if let Some(version) = version {
            self.out.push(b' ');
            self.digits(version);
        }
        self.out.extend_from_slice(b"\r\n");
        self.data(value);
    }

    /// One flag of an answer, with a number.
    fn flag(&mut self, letter: u8, number: u64) {
        self.out.extend_from_slice(&[b' ', letter]);
        self.digits(number);
    }

    /// Seconds that are left; a part of one counts.
    fn time_left(&mut self, left: Option<u64>) {
        match left {
            Some(millis) => self.flag(b't', millis.div_ceil(1000)),
            None => self.out.extend_from_slice(b" t-1"),
        }
    }

    /// What is given back whatever became of the request: key and opaque token. `false`: it is
    /// another flag.
    fn give_back(&mut self, meta: &Meta<'_>, flags: &MetaFlags, word: &[u8]) -> bool {
        match word[0] {
            b'O' => {
                self.out.push(b' ');
                self.out.extend_from_slice(word);
            }
            b'k' => {
                self.out.extend_from_slice(b" k");
                self.out.extend_from_slice(meta.sent_key());
                if flags.base64 {
                    self.out.extend_from_slice(b" b");
                }
            }
            _ => return false,
        }
        true
    }

    /// What `mg` answers of an item, whose value has so many bytes; it need not be there where it is not wanted.
    pub fn meta_item(&mut self, meta: &Meta<'_>, flags: &MetaFlags, item: &Item<'_>, length: u64) {
        if flags.value {
            self.out.extend_from_slice(b"VA ");
            self.digits(length);
        } else {
            self.out.extend_from_slice(b"HD");
        }
        let mut left = item.left_before;
        for word in meta.words() {
            match word[0] {
                b'T' => left = item.left,
                b's' => self.flag(b's', length),
                b't' => self.time_left(left),
                b'c' => self.flag(b'c', item.version),
                b'f' => self.flag(b'f', u64::from(item.flags)),
                b'l' => self.flag(b'l', u64::from(item.idle_seconds)),
                b'h' => self.flag(b'h', u64::from(item.read)),
                _ => _ = self.give_back(meta, flags, word),
            }
        }
        if item.lease == Lease::Taken {
            self.out.extend_from_slice(b" Z");
        }
        if item.stale {
            self.out.extend_from_slice(b" X");
        }
        if item.lease == Lease::Won {
            self.out.extend_from_slice(b" W");
        }
        self.out.extend_from_slice(b"\r\n");
        if flags.value {
            self.data(&item.value);
        }
    }

    /// A code word with what is given back; where the version is wanted and the command writes
    /// values, `version` is told too.
    pub fn meta_code(
        &mut self,
        code: &str,
        meta: &Meta<'_>,
        flags: &MetaFlags,
        version: Option<u64>,
    ) {
        self.out.extend_from_slice(code.as_bytes());
        for word in meta.words() {
            if !self.give_back(meta, flags, word)
                && word[0] == b'c'
                && let Some(version) = version
            {
                self.flag(b'c', version);
            }
        }
        self.out.extend_from_slice(b"\r\n");
    }

    /// What `ma` answers of a number.
    pub fn meta_number(
        &mut self,
        meta: &Meta<'_>,
        flags: &MetaFlags,
        (number, version): (u64, u64),
        (mut left, left_after): (Option<u64>, Option<u64>),
    ) {
        let text = number::unsigned(number);
        if flags.value {
            self.out.extend_from_slice(b"VA ");
            self.digits(text.as_bytes().len() as u64);
        } else {
            self.out.extend_from_slice(b"HD");
        }
        for word in meta.words() {
            match word[0] {
                b'T' => left = left_after,
                b't' => self.time_left(left),
                b'c' => self.flag(b'c', version),
                _ => _ = self.give_back(meta, flags, word),
            }
        }
        self.out.extend_from_slice(b"\r\n");
        if flags.value {
            self.out.extend_from_slice(text.as_bytes());
            self.out.extend_from_slice(b"\r\n");
        }
    }

    /// What `me` answers of an item.
    pub fn meta_debug(&mut self, meta: &Meta<'_>, size: usize, item: &Item<'_>) {
        self.out.extend_from_slice(b"ME ");
        self.out.extend_from_slice(meta.sent_key());
        let left = item.left.map_or(-1, |left| left.div_ceil(1000) as i64);
        let read = if item.read { "yes" } else { "no" };
        let (idle, version) = (item.idle_seconds, item.version);
        let always_fits = write!(
            Line(self.out),
            " exp={left} la={idle} cas={version} fetch={read} cls=1 size={size}"
        );
        debug_assert!(always_fits.is_ok());
        self.out.extend_from_slice(b"\r\n");
    }
}
