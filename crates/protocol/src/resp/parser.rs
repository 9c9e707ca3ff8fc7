//! An incremental parser that cuts the arguments of a request out of the receive buffer.
//!
//! The caller keeps the bytes from the request's first one on and calls [`RequestParser::parse`]
//! whenever more have come; the parser remembers how far it got. It copies nothing but the
//! arguments of inline commands, whose quotes and escapes it takes away.
//!
//! # Invariants
//! - R1. What is reserved is proportional to bytes received, never to lengths declared.
//! - R2. The same requests come out however the bytes are cut: every decision depends on a
//!   prefix of the request alone, not on how much of it has arrived.
//! - R3. Each byte is looked at a constant number of times, however often `parse` is called,
//!   but for the header of the argument that is incomplete.
//!
//! # Cost
//! `*2 GET key` takes some 20 ns; spans go into a vector that is used again.

use super::inline;
use alloc::vec::Vec;
use headwater_command::{ArgVec, Args, Span};

/// Bounds on requests.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Most arguments of one request.
    pub args_max: usize,
    /// Longest argument, in bytes. A little more than the longest value, so that a value that is
    /// too long is refused by name instead of ending the connection.
    pub bulk_bytes_max: usize,
    /// Longest inline command, in bytes.
    pub inline_bytes_max: usize,
    /// Longest request altogether, in bytes (less than 4 GiB).
    pub request_bytes_max: usize,
    /// The bounds for a client that has yet to authenticate are in force.
    pub unauthenticated: bool,
}

impl Limits {
    /// Most arguments of a request before authentication.
    pub const UNAUTHENTICATED_ARGS_MAX: usize = 10;
    /// Longest argument before authentication, in bytes.
    pub const UNAUTHENTICATED_BULK_BYTES_MAX: usize = 16 << 10;
    /// How much longer than the longest value an argument may be.
    pub const BULK_SLACK_BYTES: usize = 1 << 20;

    /// The usual bounds where values have at most `value_bytes_max` bytes.
    #[must_use]
    pub fn for_values(value_bytes_max: usize) -> Self {
        let bulk_bytes_max = value_bytes_max.saturating_add(Self::BULK_SLACK_BYTES);
        Self {
            args_max: 1 << 20,
            bulk_bytes_max,
            inline_bytes_max: 64 << 10,
            request_bytes_max: bulk_bytes_max.saturating_mul(4).clamp(256 << 20, 4_000_000_000),
            unauthenticated: false,
        }
    }

    /// The same bounds, narrowed for a client that has yet to authenticate.
    #[must_use]
    pub fn before_authentication(&self) -> Self {
        Self { unauthenticated: true, ..self.clone() }
    }
}

/// What the bytes received so far amount to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Parsed {
    /// More bytes are needed. The bytes so far must be given again, with more behind them.
    Incomplete,
    /// A request without arguments (an empty line, or `*0`): these bytes mean nothing.
    Nothing {
        /// Bytes to drop from the buffer's front.
        consumed: usize,
    },
    /// A request: see [`RequestParser::args`].
    Request {
        /// Bytes to drop from the buffer's front once the request is done with.
        consumed: usize,
    },
    /// The bytes are no request; nothing after them can be understood. Answer and close.
    Error(ProtocolError),
}

/// Why bytes are no request, in Redis's words.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ProtocolError {
    /// The number of arguments is no number, or beyond the limit.
    InvalidMultibulkLength,
    /// The number of arguments has too many digits.
    TooBigMultibulkCount,
    /// A client that has yet to authenticate sends many arguments.
    UnauthenticatedMultibulkLength,
    /// An argument does not start with `$`.
    ExpectedDollar(u8),
    /// An argument's length is no number, or beyond the limit.
    InvalidBulkLength,
    /// An argument's length has too many digits.
    TooBigBulkCount,
    /// A client that has yet to authenticate sends a long argument.
    UnauthenticatedBulkLength,
    /// An argument is not followed by a line end.
    ExpectedLineEnd,
    /// An inline command is too long.
    TooBigInlineRequest,
    /// An inline command has an opening quote without a closing one.
    UnbalancedQuotes,
    /// The request as a whole is too long.
    TooBigRequest,
}

impl core::fmt::Display for ProtocolError {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str("Protocol error: ")?;
        f.write_str(match self {
            Self::InvalidMultibulkLength => "invalid multibulk length",
            Self::TooBigMultibulkCount => "too big mbulk count string",
            Self::UnauthenticatedMultibulkLength => "unauthenticated multibulk length",
            Self::ExpectedDollar(got) => {
                return write!(f, "expected '$', got '{}'", got.escape_ascii());
            }
            Self::InvalidBulkLength => "invalid bulk length",
            Self::TooBigBulkCount => "too big bulk count string",
            Self::UnauthenticatedBulkLength => "unauthenticated bulk length",
            Self::ExpectedLineEnd => "expected a line end after a bulk",
            Self::TooBigInlineRequest => "too big inline request",
            Self::UnbalancedQuotes => "unbalanced quotes in request",
            Self::TooBigRequest => "too big request",
        })
    }
}

impl core::error::Error for ProtocolError {}

/// Longest line that can hold a length: sign, 19 digits and some that will be refused.
const LENGTH_LINE_MAX: usize = 32;

/// Where the parser stands in the present request.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
enum Stage {
    /// At its first byte.
    #[default]
    Start,
    /// Within a multibulk request: so many arguments are missing.
    Bulks { missing: usize },
    /// Within an inline command: no line end in the bytes before the position.
    Inline,
    /// It was handed out.
    Done,
}

/// Cuts requests out of a stream of bytes. One per connection.
#[derive(Debug, Default)]
pub struct RequestParser {
    stage: Stage,
    /// Bytes of the present request that are dealt with.
    position: usize,
    args: ArgVec,
    /// The arguments of an inline command, without quotes and escapes.
    inline: Vec<u8>,
    is_inline: bool,
}

impl RequestParser {
    /// A parser at the start of a request.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Looks at `buffer`, which begins with the first byte of a request: the same one as in the
    /// call before, if that said [`Parsed::Incomplete`], else the next one.
    #[inline]
    pub fn parse(&mut self, buffer: &[u8], limits: &Limits) -> Parsed {
        if matches!(self.stage, Stage::Start | Stage::Done) {
            self.restart();
        }
        let parsed = match self.stage {
            Stage::Bulks { missing } => self.bulks(buffer, limits, missing),
            Stage::Inline => self.inline(buffer, limits),
            Stage::Start | Stage::Done => match buffer.first() {
                None => Ok(Parsed::Incomplete),
                Some(b'*') => self.multibulk(buffer, limits),
                Some(_) => self.inline(buffer, limits),
            },
        };
        match parsed {
            Ok(parsed) => parsed,
            Err(error) => {
                self.stage = Stage::Done;
                Parsed::Error(error)
            }
        }
    }

    /// The arguments of the request that [`RequestParser::parse`] reported from this `buffer`.
    #[inline]
    #[must_use]
    pub fn args<'a>(&'a self, buffer: &'a [u8]) -> Args<'a> {
        self.args.args(if self.is_inline { &self.inline } else { buffer })
    }

    /// Bytes of memory that the parser holds.
    #[must_use]
    pub fn reserved_bytes(&self) -> usize {
        self.args.reserved_bytes() + self.inline.capacity()
    }

    #[inline]
    fn restart(&mut self) {
        self.stage = Stage::Start;
        self.position = 0;
        self.args.clear();
        self.is_inline = false;
    }

    fn multibulk(&mut self, buffer: &[u8], limits: &Limits) -> Result<Parsed, ProtocolError> {
        let (count, next) = match length_line(buffer, 1) {
            Line::Length(count, next) => (count, next),
            Line::Negative(next) => (0, next),
            Line::Incomplete => return Ok(Parsed::Incomplete),
            Line::Malformed => return Err(ProtocolError::InvalidMultibulkLength),
            Line::TooLong => return Err(ProtocolError::TooBigMultibulkCount),
        };
        if count > limits.args_max as u64 {
            return Err(ProtocolError::InvalidMultibulkLength);
        }
        if limits.unauthenticated && count > Limits::UNAUTHENTICATED_ARGS_MAX as u64 {
            return Err(ProtocolError::UnauthenticatedMultibulkLength);
        }
        if count == 0 {
            self.stage = Stage::Done;
            return Ok(Parsed::Nothing { consumed: next });
        }
        self.position = next;
        self.bulks(buffer, limits, count as usize)
    }

    #[inline]
    fn bulks(
        &mut self,
        buffer: &[u8],
        limits: &Limits,
        mut missing: usize,
    ) -> Result<Parsed, ProtocolError> {
        let mut position = self.position;
        while missing > 0 {
            let Some((start, len)) = bulk_header(buffer, position, limits)? else { break };
            let Some(line_end) = buffer.get(start + len..start + len + 2) else { break };
            if line_end != b"\r\n" {
                return Err(ProtocolError::ExpectedLineEnd);
            }
            self.args.push(Span::new(start, len));
            position = start + len + 2;
            missing -= 1;
        }
        self.position = position;
        if missing > 0 {
            self.stage = Stage::Bulks { missing };
            return Ok(Parsed::Incomplete);
        }
        self.stage = Stage::Done;
        Ok(Parsed::Request { consumed: position })
    }

    fn inline(&mut self, buffer: &[u8], limits: &Limits) -> Result<Parsed, ProtocolError> {
        let fresh = buffer.get(self.position..).unwrap_or(&[]);
        let Some(found) = fresh.iter().position(|&byte| byte == b'\n') else {
            if buffer.len() > limits.inline_bytes_max {
                return Err(ProtocolError::TooBigInlineRequest);
            }
            self.stage = Stage::Inline;
            self.position = buffer.len();
            return Ok(Parsed::Incomplete);
        };
        let end = self.position + found;
        if end > limits.inline_bytes_max {
            return Err(ProtocolError::TooBigInlineRequest);
        }
        let consumed = end + 1;
        let line = buffer[..end].strip_suffix(b"\r").unwrap_or(&buffer[..end]);
        self.inline.clear();
        self.args.clear();
        if !inline::split(line, &mut self.inline, &mut self.args) {
            return Err(ProtocolError::UnbalancedQuotes);
        }
        self.is_inline = true;
        self.stage = Stage::Done;
        if self.args.is_empty() {
            return Ok(Parsed::Nothing { consumed });
        }
        Ok(Parsed::Request { consumed })
    }
}

/// Reads `$length` at `position`: where the argument's bytes start and how many they are;
/// `None` where bytes are missing.
#[inline]
fn bulk_header(
    buffer: &[u8],
    position: usize,
    limits: &Limits,
) -> Result<Option<(usize, usize)>, ProtocolError> {
    match buffer.get(position) {
        None => return Ok(None),
        Some(b'$') => {}
        Some(&other) => return Err(ProtocolError::ExpectedDollar(other)),
    }
    let (len, start) = match length_line(buffer, position + 1) {
        Line::Length(len, start) => (len, start),
        Line::Incomplete => return Ok(None),
        Line::Negative(_) | Line::Malformed => return Err(ProtocolError::InvalidBulkLength),
        Line::TooLong => return Err(ProtocolError::TooBigBulkCount),
    };
    if len > limits.bulk_bytes_max as u64 {
        return Err(ProtocolError::InvalidBulkLength);
    }
    let len = len as usize;
    if limits.unauthenticated && len > Limits::UNAUTHENTICATED_BULK_BYTES_MAX {
        return Err(ProtocolError::UnauthenticatedBulkLength);
    }
    if start + len > limits.request_bytes_max {
        return Err(ProtocolError::TooBigRequest);
    }
    Ok(Some((start, len)))
}

/// A line that should hold a length.
enum Line {
    /// It does; the next line starts there.
    Length(u64, usize),
    /// It holds a number below zero; the next line starts there.
    Negative(usize),
    /// Its end has yet to come.
    Incomplete,
    /// It holds something else.
    Malformed,
    /// It has no end where a length's line would have one.
    TooLong,
}

/// Reads the number from `start` to the line end. Anything but the canonical text of a number
/// is malformed.
#[inline]
fn length_line(buffer: &[u8], start: usize) -> Line {
    // The common lengths have one or two digits.
    match buffer.get(start..) {
        Some([a @ b'0'..=b'9', b'\r', b'\n', ..]) => Line::Length(u64::from(a - b'0'), start + 3),
        Some([a @ b'1'..=b'9', b @ b'0'..=b'9', b'\r', b'\n', ..]) => {
            Line::Length(u64::from((a - b'0') * 10 + (b - b'0')), start + 4)
        }
        _ => long_length_line(buffer, start),
    }
}

fn long_length_line(buffer: &[u8], start: usize) -> Line {
    let rest = buffer.get(start..).unwrap_or(&[]);
    let window = &rest[..rest.len().min(LENGTH_LINE_MAX)];
    let Some(end) = window.iter().position(|&byte| byte == b'\r') else {
        return if rest.len() >= LENGTH_LINE_MAX { Line::TooLong } else { Line::Incomplete };
    };
    match rest.get(end + 1) {
        None => return Line::Incomplete,
        Some(b'\n') => {}
        Some(_) => return Line::Malformed,
    }
    match headwater_command::number::parse_i64(&rest[..end]) {
        Some(number) if number < 0 => Line::Negative(start + end + 2),
        Some(number) => Line::Length(number as u64, start + end + 2),
        None => Line::Malformed,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec;
    use headwater_command::OwnedArgs;

    fn limits() -> Limits {
        Limits::for_values(1 << 20)
    }

    /// All requests in `bytes`, cut into pieces of `piece` bytes, and how the stream ends.
    fn requests(bytes: &[u8], piece: usize, limits: &Limits) -> (Vec<Vec<Vec<u8>>>, Parsed) {
        let mut parser = RequestParser::new();
        let (mut found, mut begin, mut end) = (vec![], 0, 0);
        loop {
            match parser.parse(&bytes[begin..end], limits) {
                Parsed::Incomplete if end == bytes.len() => return (found, Parsed::Incomplete),
                Parsed::Incomplete => end = (end + piece).min(bytes.len()),
                Parsed::Nothing { consumed } => begin += consumed,
                Parsed::Request { consumed } => {
                    let args = parser.args(&bytes[begin..end]);
                    found.push(args.iter().map(<[u8]>::to_vec).collect());
                    begin += consumed;
                }
                error @ Parsed::Error(_) => return (found, error),
            }
        }
    }

    #[test]
    fn a_request_can_be_passed_on_as_it_was_sent() {
        let sent = b"*2\r\n$3\r\nGET\r\n$1\r\nk\r\n";
        let bytes = [&sent[..], b"get *1\r\n*1\r\n$4\r\nPING\r\n"].concat();
        let (mut parser, mut begin, mut passed) = (RequestParser::new(), 0, vec![]);
        while let Parsed::Request { consumed } = parser.parse(&bytes[begin..], &limits()) {
            let args = parser.args(&bytes[begin..]);
            passed.push(args.as_sent().map(<[u8]>::to_vec));
            assert_eq!(OwnedArgs::of(args).args().as_sent(), None);
            begin += consumed;
        }
        // An inline command is to be written anew.
        assert_eq!(passed, [Some(sent.to_vec()), None, Some(b"*1\r\n$4\r\nPING\r\n".to_vec())]);
    }

    #[test]
    fn requests_come_out_however_the_bytes_are_cut() {
        let bytes = b"*2\r\n$3\r\nGET\r\n$1\r\nk\r\n\r\n*0\r\n*-1\r\nset \"a b\" 'c'\r\nPING\n\
            *1\r\n$12\r\n0123456789\r\n\r\n*3\r\n$0\r\n\r\n$100\r\n"
            .iter()
            .copied()
            .chain([b'x'; 100])
            .chain(*b"\r\n$1\r\ny\r\n")
            .collect::<Vec<u8>>();
        let whole = requests(&bytes, bytes.len(), &limits());
        assert_eq!(whole.0.len(), 5);
        assert_eq!(whole.0[1], [&b"set"[..], b"a b", b"c"]);
        assert_eq!(whole.0[3], [b"0123456789\r\n"]);
        assert_eq!(whole.0[4][1].len(), 100);
        for piece in 1..bytes.len() {
            assert_eq!(requests(&bytes, piece, &limits()), whole, "pieces of {piece}");
        }
    }

    #[test]
    fn errors_have_the_words_of_redis() {
        let long_inline = vec![b'a'; (64 << 10) + 1];
        let cases: [(&[u8], &str); 13] = [
            (b"*x\r\n", "invalid multibulk length"),
            (b"*1048577\r\n", "invalid multibulk length"),
            (b"*1000000000\r\n", "invalid multibulk length"),
            (b"*11111111111111111111111111111111111", "too big mbulk count string"),
            (b"*1\r\nx", "expected '$', got 'x'"),
            (b"*1\r\n$-1\r\n", "invalid bulk length"),
            (b"*1\r\n$03\r\n", "invalid bulk length"),
            (b"*1\r\n$10737418240\r\n", "invalid bulk length"),
            (b"*1\r\n$11111111111111111111111111111111111", "too big bulk count string"),
            (b"*1\r\n$1\r\nabc", "expected a line end after a bulk"),
            (b"set \"a\r\n", "unbalanced quotes in request"),
            (b"set 'a'b\r\n", "unbalanced quotes in request"),
            (&long_inline, "too big inline request"),
        ];
        for (bytes, text) in cases {
            for piece in [1, 7, bytes.len()] {
                let (_, end) = requests(bytes, piece, &limits());
                let Parsed::Error(error) = end else { panic!("{text}: {end:?}") };
                assert_eq!(alloc::format!("{error}"), alloc::format!("Protocol error: {text}"));
            }
        }
    }

    #[test]
    fn a_stranger_may_send_little() {
        let narrow = limits().before_authentication();
        let refused = |bytes: &[u8]| requests(bytes, bytes.len(), &narrow).1;
        assert_eq!(
            refused(b"*11\r\n"),
            Parsed::Error(ProtocolError::UnauthenticatedMultibulkLength)
        );
        assert_eq!(
            refused(b"*1\r\n$16385\r\n"),
            Parsed::Error(ProtocolError::UnauthenticatedBulkLength)
        );
        assert_eq!(refused(b"*10\r\n$16384\r\n"), Parsed::Incomplete);
    }

    #[test]
    fn declared_lengths_reserve_nothing() {
        let mut parser = RequestParser::new();
        let bytes = b"*1048576\r\n$1048576\r\nabc";
        assert_eq!(parser.parse(bytes, &limits()), Parsed::Incomplete);
        assert!(parser.reserved_bytes() < 1024);
    }

    #[test]
    fn a_request_is_bounded_as_a_whole() {
        let mut narrow = limits();
        narrow.request_bytes_max = 100;
        let bytes = b"*2\r\n$3\r\nGET\r\n$90\r\n";
        assert_eq!(requests(bytes, 1, &narrow).1, Parsed::Error(ProtocolError::TooBigRequest));
    }
}
