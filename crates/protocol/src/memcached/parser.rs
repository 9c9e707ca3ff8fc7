//! From bytes to a request.
//!
//! # Invariants
//! - Q1. The same bytes give the same requests however they are cut; a request is given as soon as
//!   its last byte is there.
//! - Q2. No more than a line of [`Limits::line_bytes_max`] and a value of [`Limits::value_bytes_max`]
//!   must be kept to go on.
//!
//! # Cost
//! Each byte of a line is looked at twice, eight at a time; those of a value not at all. Nothing
//! is kept between calls but how much of an incomplete line was searched.

use super::functions;
use super::meta::{KEY_BYTES_MAX, Meta};
use super::words::{Words, find};
use headwater_command::items::StoreMode;
use headwater_command::{Deadline, GetExpiry, SetExpiry, number};

/// A line without end that is longer must be a multi-get.
const LONE_LINE_BYTES_MAX: usize = 2048;
/// Spaces that a multi-get may begin with.
const LEADING_SPACES_MAX: usize = 100;
/// A longer lifetime than 30 days is a moment since the epoch.
const RELATIVE_SECONDS_MAX: i64 = 60 * 60 * 24 * 30;
/// The last numbers of 32 bits: up to 30 days less than 0.
const NEGATIVE_FIRST: i64 = NEGATIVE_LAST + 1 - RELATIVE_SECONDS_MAX;
const NEGATIVE_LAST: i64 = u32::MAX as i64;
/// Words of a meta command, with its name and its key.
const META_WORDS_MAX: usize = 19;

pub(super) const BAD_FORMAT: &str = "CLIENT_ERROR bad command line format";
const BAD_EXPTIME: &str = "CLIENT_ERROR invalid exptime argument";

/// Bounds that the parser enforces.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Limits {
    /// Longest line: a multi-get of many keys.
    pub line_bytes_max: usize,
    /// Longest value.
    pub value_bytes_max: usize,
}

/// What the bytes received so far amount to.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Parsed<'a> {
    /// More bytes are needed. The bytes so far must be given again, with more behind them.
    Incomplete {
        /// How many of them need not be searched again.
        searched: usize,
    },
    /// A request.
    Request {
        /// What is asked.
        request: Request<'a>,
        /// Bytes to drop from the buffer's front once it is answered.
        consumed: usize,
        /// Bytes to drop behind those, as they come: the data of a refused value.
        skip: usize,
    },
    /// A line without end. Answer and close.
    LineTooLong,
}

/// What a request asks for.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Request<'a> {
    /// `get`, `gets`, `gat`, `gats`.
    Get {
        /// The keys; at least one, but for `gat` and `gats`.
        keys: Words<'a>,
        /// Versions are wanted.
        versions: bool,
        /// What becomes of the expiry.
        expiry: GetExpiry,
    },
    /// `set`, `add`, `replace`, `append`, `prepend`, `cas`.
    Store {
        /// The key.
        key: &'a [u8],
        /// The bytes; `None`: no line end follows them.
        value: Option<&'a [u8]>,
        /// What is kept beside them.
        flags: u32,
        /// What becomes of the expiry.
        expiry: SetExpiry,
        /// How.
        mode: StoreMode,
        /// Only if the item's version is this one.
        seen: Option<u64>,
        /// No answer is wanted.
        noreply: bool,
    },
    /// A value that is too long, whose data will be skipped.
    TooLarge {
        /// The key.
        key: &'a [u8],
        /// It was to take the place of what is there.
        replaces: bool,
        /// No answer is wanted.
        noreply: bool,
    },
    /// `incr`, `decr`.
    Count {
        /// The key.
        key: &'a [u8],
        /// How much.
        by: u64,
        /// It is taken away.
        down: bool,
        /// No answer is wanted.
        noreply: bool,
    },
    /// `delete`.
    Delete {
        /// The key.
        key: &'a [u8],
        /// No answer is wanted.
        noreply: bool,
    },
    /// `touch`.
    Touch {
        /// The key.
        key: &'a [u8],
        /// What becomes of the expiry.
        expiry: GetExpiry,
        /// No answer is wanted.
        noreply: bool,
    },
    /// `flush_all`.
    FlushAll {
        /// Seconds from now, or since the epoch; at once where that has passed.
        when: SetExpiry,
        /// No answer is wanted.
        noreply: bool,
    },
    /// `stats`.
    Stats {
        /// What kind, with arguments.
        words: Words<'a>,
    },
    /// `version`.
    Version,
    /// `verbosity`: nothing changes.
    Verbosity {
        /// No answer is wanted.
        noreply: bool,
    },
    /// `quit`.
    Quit,
    /// `mn`.
    MetaNoop,
    /// `mg`.
    MetaGet(Meta<'a>),
    /// `ms`.
    MetaSet {
        /// Key and flags.
        meta: Meta<'a>,
        /// The bytes; `None`: no line end follows them.
        value: Option<&'a [u8]>,
    },
    /// `md`.
    MetaDelete(Meta<'a>),
    /// `ma`.
    MetaCount(Meta<'a>),
    /// `me`.
    MetaDebug(Meta<'a>),
    /// `invoke`: calls a function next to a value.
    Invoke {
        /// The key.
        key: &'a [u8],
        /// The function: `module` or `module.export`.
        function: &'a [u8],
        /// What it is given besides; `None`: no line end follows it.
        param: Option<&'a [u8]>,
        /// It may change the value.
        update: bool,
        /// An answer is wanted.
        reply: bool,
    },
    /// `register`: loads a module of functions.
    Register {
        /// Its name.
        name: &'a str,
        /// Its file, below the directory of functions.
        file: &'a str,
        /// The export that the name alone stands for.
        export: &'a str,
    },
    /// No request: the line says why.
    Refused {
        /// The answer.
        line: &'static str,
    },
    /// Nothing is to be answered.
    Silent,
    /// A request of another protocol: the connection is to end.
    Foreign,
}

/// What a lifetime in seconds means: 0 for ever, up to 30 days from now, more since the epoch.
pub(super) fn lifetime(seconds: i64) -> SetExpiry {
    let millis = seconds.saturating_mul(1000);
    match seconds {
        0 => SetExpiry::Never,
        // At once; what has passed is as good as the epoch. Some clients write what is less than 0 in
        // 32 bits without a sign.
        ..0 | NEGATIVE_FIRST..=NEGATIVE_LAST => SetExpiry::Deadline(Deadline::At(0)),
        1..=RELATIVE_SECONDS_MAX => SetExpiry::Deadline(Deadline::After(millis)),
        _ => SetExpiry::Deadline(Deadline::At(millis)),
    }
}

/// The same, of a key that is there.
pub(super) fn new_lifetime(seconds: i64) -> GetExpiry {
    match lifetime(seconds) {
        SetExpiry::Deadline(deadline) => GetExpiry::Deadline(deadline),
        _ => GetExpiry::Persist,
    }
}

/// The request that `input` begins with, whose first `searched` bytes have no line end.
#[inline]
pub fn parse<'a>(input: &'a [u8], searched: usize, limits: &Limits) -> Parsed<'a> {
    let searched = searched.min(input.len());
    let Some(end) = find(&input[searched..], b'\n').map(|at| searched + at) else {
        return line_goes_on(input, limits);
    };
    // A line with nothing else keeps its carriage return, as in memcached, and is an error so.
    let line = match &input[..end] {
        [line @ .., b'\r'] if !line.is_empty() => line,
        line => line,
    };
    let after = end + 1;
    let mut words = Words::of(line);
    let Some(verb) = words.next() else { return refused("ERROR", after) };
    let request = match verb {
        b"get" | b"gets" => get(words, verb == b"gets"),
        b"set" => return store(input, after, line, words, StoreMode::Set, limits),
        b"mg" | b"md" | b"ma" | b"me" => meta(verb, line, words),
        b"ms" => return meta_set(input, after, line, words, limits),
        b"mn" => Request::MetaNoop,
        b"cas" | b"add" | b"replace" | b"append" | b"prepend" => {
            let mode = match verb {
                b"add" => StoreMode::Add,
                b"replace" => StoreMode::Replace,
                b"append" => StoreMode::Append,
                b"prepend" => StoreMode::Prepend,
                _ => StoreMode::Set,
            };
            return store(input, after, line, words, mode, limits);
        }
        b"invoke" => return functions::invoke(input, after, words, limits),
        _ => rare(verb, line, words),
    };
    Parsed::Request { request, consumed: after, skip: 0 }
}

#[cold]
fn line_goes_on<'a>(input: &[u8], limits: &Limits) -> Parsed<'a> {
    let text = input.trim_ascii_start();
    let multi_get = input.len() - text.len() <= LEADING_SPACES_MAX
        && (text.starts_with(b"get ") || text.starts_with(b"gets "));
    let most = if multi_get { limits.line_bytes_max } else { LONE_LINE_BYTES_MAX };
    if input.len() > most {
        return Parsed::LineTooLong;
    }
    Parsed::Incomplete { searched: input.len() }
}

pub(super) const fn refuse<'a>(line: &'static str) -> Request<'a> {
    Request::Refused { line }
}

pub(super) fn refused<'a>(line: &'static str, consumed: usize) -> Parsed<'a> {
    Parsed::Request { request: refuse(line), consumed, skip: 0 }
}

/// A refusal of a request that may not want to know.
fn refuse_unless<'a>(noreply: bool, line: &'static str) -> Request<'a> {
    if noreply { Request::Silent } else { refuse(line) }
}

/// Whether the last word says that no answer is wanted.
fn is_noreply(line: &[u8]) -> bool {
    line.trim_ascii_end().ends_with(b" noreply")
}

#[inline]
fn get(keys: Words<'_>, versions: bool) -> Request<'_> {
    if keys.clone().next().is_none() {
        return refuse("ERROR");
    }
    Request::Get { keys, versions, expiry: GetExpiry::Keep }
}

/// A command that stores: its line, and the data behind it.
#[inline]
fn store<'a>(
    input: &'a [u8],
    after: usize,
    line: &'a [u8],
    mut words: Words<'a>,
    mode: StoreMode,
    limits: &Limits,
) -> Parsed<'a> {
    let is_cas = line.trim_ascii_start().starts_with(b"cas");
    let (Some(key), Some(flags), Some(exptime), Some(length)) =
        (words.next(), words.next(), words.next(), words.next())
    else {
        return refused("ERROR", after);
    };
    let seen = if is_cas {
        let Some(seen) = words.next() else { return refused("ERROR", after) };
        Some(number::read_u64(seen))
    } else {
        None
    };
    let noreply = match (words.next(), words.next()) {
        (None, _) => false,
        (Some(word), None) => word == b"noreply",
        (Some(_), Some(_)) => return refused("ERROR", after),
    };
    let numbers = (number::read_u64(flags), number::read_i64(exptime), data_length(length));
    let bad = key.len() > KEY_BYTES_MAX || seen == Some(None);
    let (Some(flags), Some(exptime), Some(length), false) = (numbers.0, numbers.1, numbers.2, bad)
    else {
        let request = refuse_unless(noreply, BAD_FORMAT);
        return Parsed::Request { request, consumed: after, skip: 0 };
    };
    if length > limits.value_bytes_max {
        let replaces = mode == StoreMode::Set && seen.is_none();
        let request = Request::TooLarge { key, replaces, noreply };
        return Parsed::Request { request, consumed: after, skip: length + 2 };
    }
    let Some(data) = input.get(after..after + length + 2) else {
        return Parsed::Incomplete { searched: 0 };
    };
    let request = Request::Store {
        key,
        value: data.strip_suffix(b"\r\n"),
        flags: flags as u32,
        expiry: lifetime(exptime),
        mode,
        seen: seen.flatten(),
        noreply,
    };
    Parsed::Request { request, consumed: after + length + 2, skip: 0 }
}

/// The length of a data block, which memcached counts in 31 bits with its line end.
#[inline]
pub(super) fn data_length(word: &[u8]) -> Option<usize> {
    let length = number::read_u64(word)?;
    (length <= i32::MAX as u64 - 2).then_some(length as usize)
}

/// A meta command without data.
fn meta<'a>(verb: &[u8], line: &'a [u8], mut words: Words<'a>) -> Request<'a> {
    let Some(key) = words.next() else {
        return refuse(if verb == b"me" { BAD_FORMAT } else { "ERROR" });
    };
    if key.len() > KEY_BYTES_MAX {
        return refuse(BAD_FORMAT);
    }
    let meta = Meta::new(key, words);
    if verb == b"me" {
        return Request::MetaDebug(meta);
    }
    if words.count() + 2 > META_WORDS_MAX || line.len() > LONE_LINE_BYTES_MAX {
        return refuse("CLIENT_ERROR options flags are too long");
    }
    match verb {
        b"mg" => Request::MetaGet(meta),
        b"md" => Request::MetaDelete(meta),
        _ => Request::MetaCount(meta),
    }
}

fn meta_set<'a>(
    input: &'a [u8],
    after: usize,
    line: &'a [u8],
    mut words: Words<'a>,
    limits: &Limits,
) -> Parsed<'a> {
    let Some(key) = words.next() else { return refused("ERROR", after) };
    let length = words.next();
    let flags = words;
    if length.is_none() || key.len() > KEY_BYTES_MAX {
        return refused(BAD_FORMAT, after);
    }
    if flags.count() + 3 > META_WORDS_MAX || line.len() > LONE_LINE_BYTES_MAX {
        return refused("CLIENT_ERROR options flags too long", after);
    }
    let Some(length) = length.and_then(data_length) else { return refused(BAD_FORMAT, after) };
    let meta = Meta::new(key, flags);
    if length > limits.value_bytes_max {
        let request = match meta.flags() {
            Ok(_) => Request::TooLarge { key, replaces: true, noreply: false },
            Err(line) => refuse(line),
        };
        return Parsed::Request { request, consumed: after, skip: length + 2 };
    }
    let Some(data) = input.get(after..after + length + 2) else {
        return Parsed::Incomplete { searched: 0 };
    };
    let request = Request::MetaSet { meta, value: data.strip_suffix(b"\r\n") };
    Parsed::Request { request, consumed: after + length + 2, skip: 0 }
}

/// The commands that make little of the traffic.
fn rare<'a>(verb: &[u8], line: &'a [u8], mut words: Words<'a>) -> Request<'a> {
    let count = words.count();
    let noreply = is_noreply(line);
    let mut next = || words.next().unwrap_or_default();
    match verb {
        b"gat" | b"gats" if count > 0 => match number::read_i64(next()) {
            Some(exptime) => {
                let expiry = new_lifetime(exptime);
                Request::Get { keys: words, versions: verb == b"gats", expiry }
            }
            None => refuse(BAD_EXPTIME),
        },
        b"incr" | b"decr" if (2..=3).contains(&count) => {
            let (key, by) = (next(), next());
            if key.len() > KEY_BYTES_MAX {
                return refuse_unless(noreply, BAD_FORMAT);
            }
            match number::read_u64(by) {
                Some(by) => Request::Count { key, by, down: verb == b"decr", noreply },
                None => refuse_unless(noreply, "CLIENT_ERROR invalid numeric delta argument"),
            }
        }
        b"delete" if (1..=3).contains(&count) => {
            let (key, hold) = (next(), next());
            let zero = hold == b"0";
            let valid = match count {
                1 => true,
                2 => zero || noreply,
                _ => zero && noreply,
            };
            if !valid {
                let usage = "CLIENT_ERROR bad command line format.  Usage: delete <key> [noreply]";
                return refuse_unless(noreply, usage);
            }
            if key.len() > KEY_BYTES_MAX {
                return refuse_unless(noreply, BAD_FORMAT);
            }
            Request::Delete { key, noreply: noreply && count > 1 }
        }
        b"touch" if (2..=3).contains(&count) => {
            let (key, exptime) = (next(), next());
            if key.len() > KEY_BYTES_MAX {
                return refuse_unless(noreply, BAD_FORMAT);
            }
            match number::read_i64(exptime) {
                Some(exptime) => Request::Touch { key, expiry: new_lifetime(exptime), noreply },
                None => refuse_unless(noreply, BAD_EXPTIME),
            }
        }
        b"flush_all" if count <= 2 => {
            let when = if count == usize::from(noreply) { b"0" } else { next() };
            match number::read_i64(when) {
                Some(0) => {
                    Request::FlushAll { when: SetExpiry::Deadline(Deadline::At(0)), noreply }
                }
                Some(when) => Request::FlushAll { when: lifetime(when), noreply },
                None => refuse_unless(noreply, BAD_EXPTIME),
            }
        }
        b"verbosity" if (1..=2).contains(&count) => match number::read_u64(next()) {
            Some(_) => Request::Verbosity { noreply },
            None => refuse_unless(noreply, BAD_FORMAT),
        },
        b"stats" => Request::Stats { words },
        b"register" => functions::register(words),
        b"version" => Request::Version,
        b"quit" => Request::Quit,
        b"shutdown" => refuse("ERROR: shutdown not enabled"),
        b"POST" | b"Host:" | b"host:" => Request::Foreign,
        _ if words.last().is_some_and(|word| word.starts_with(b"HTTP/")) => Request::Foreign,
        _ => refuse("ERROR"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: Limits = Limits { line_bytes_max: 10_000, value_bytes_max: 1000 };

    fn request(input: &[u8]) -> Request<'_> {
        match parse(input, 0, &LIMITS) {
            Parsed::Request { request, consumed, skip: 0 } => {
                assert_eq!(consumed, input.len());
                request
            }
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_value_is_given_when_its_last_byte_is_there() {
        let whole = b"set k 7 0 5\r\na\r\nbc\r\n";
        for len in 0..whole.len() {
            assert!(matches!(parse(&whole[..len], 0, &LIMITS), Parsed::Incomplete { .. }));
        }
        let Request::Store { key, value, flags, .. } = request(whole) else { panic!() };
        assert_eq!((key, value, flags), (&b"k"[..], Some(&b"a\r\nbc"[..]), 7));
    }

    #[test]
    fn data_without_line_end_is_told_from_data() {
        let Parsed::Request { request: Request::Store { value, .. }, consumed, .. } =
            parse(b"set k 0 0 2\r\nabcdef\r\n", 0, &LIMITS)
        else {
            panic!()
        };
        assert_eq!((value, consumed), (None, 17));
    }

    #[test]
    fn long_values_are_skipped() {
        let parsed = parse(b"set k 0 0 1001\r\nab", 0, &LIMITS);
        let request = Request::TooLarge { key: b"k", replaces: true, noreply: false };
        assert_eq!(parsed, Parsed::Request { request, consumed: 16, skip: 1003 });
    }

    #[test]
    fn only_multi_gets_have_long_lines() {
        let long = |start: &[u8], len| {
            let mut line = start.to_vec();
            line.resize(len, b'x');
            line
        };
        for start in [&b"get "[..], b"   gets k "] {
            let line = long(start, 10_000);
            assert_eq!(parse(&line, 0, &LIMITS), Parsed::Incomplete { searched: 10_000 });
            assert_eq!(parse(&long(start, 10_001), 0, &LIMITS), Parsed::LineTooLong);
        }
        for start in [&b"x"[..], b"set ", b"mg foo "] {
            let line = long(start, 2048);
            assert_eq!(parse(&line, 0, &LIMITS), Parsed::Incomplete { searched: 2048 });
            assert_eq!(parse(&long(start, 2049), 0, &LIMITS), Parsed::LineTooLong);
        }
    }

    #[test]
    fn lifetimes_are_relative_up_to_thirty_days() {
        let day = 24 * 60 * 60;
        assert_eq!(lifetime(0), SetExpiry::Never);
        assert_eq!(lifetime(-1), SetExpiry::Deadline(Deadline::At(0)));
        assert_eq!(lifetime(i64::from(u32::MAX)), SetExpiry::Deadline(Deadline::At(0)));
        assert_eq!(lifetime(4_000_000_000), SetExpiry::Deadline(Deadline::At(4_000_000_000_000)));
        assert_eq!(lifetime(1), SetExpiry::Deadline(Deadline::After(1000)));
        assert_eq!(lifetime(30 * day), SetExpiry::Deadline(Deadline::After(30 * day * 1000)));
        assert_eq!(
            lifetime(30 * day + 1),
            SetExpiry::Deadline(Deadline::At((30 * day + 1) * 1000))
        );
        assert_eq!(new_lifetime(0), GetExpiry::Persist);
    }

    #[test]
    fn a_request_is_small() {
        // Sixteen of them are kept on the way from parsing to execution.
        assert!(size_of::<Request<'_>>() <= 96, "{}", size_of::<Request<'_>>());
    }
}
