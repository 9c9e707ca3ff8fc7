//! Where a command's answer goes: to a client, in its protocol, or to the shard of a client, typed.

use headwater_command::{Counted, Mark, Reply};
use headwater_engine::Value;
use headwater_protocol::resp::Encoder;
use headwater_router::AnswerWriter;

/// In which form a session is answered.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) enum Form {
    /// As its client reads it; long values are not copied.
    #[default]
    Client,
    /// Typed, for the shard of its client, or to be put together with others.
    Typed,
}

/// Writes the answer to a command.
#[derive(Debug)]
pub(crate) enum SessionReply<'o> {
    /// For a client of this shard.
    Client(Encoder<'o>),
    /// For a shard.
    Typed(AnswerWriter<'o>),
}

/// The same of either.
macro_rules! of_either {
    ($self:expr, $out:ident => $do:expr) => {
        match $self {
            Self::Client($out) => $do,
            Self::Typed($out) => $do,
        }
    };
}

impl SessionReply<'_> {
    /// Lets the output have at most `bytes`, with those from before: see [`Encoder::at_most`].
    #[inline]
    pub(crate) fn at_most(self, bytes: usize) -> Self {
        match self {
            Self::Client(out) => Self::Client(out.at_most(bytes)),
            Self::Typed(out) => Self::Typed(out.at_most(bytes)),
        }
    }

    /// Whether something was left out.
    #[inline]
    pub(crate) fn overflowed(&self) -> bool {
        of_either!(self, out => out.overflowed())
    }
}

impl Reply for SessionReply<'_> {
    #[inline]
    fn ok(&mut self) {
        of_either!(self, out => out.ok());
    }

    fn simple(&mut self, text: &str) {
        of_either!(self, out => out.simple(text));
    }

    fn error(&mut self, code: &str, text: core::fmt::Arguments<'_>) {
        of_either!(self, out => out.error(code, text));
    }

    #[inline]
    fn bulk(&mut self, bytes: &[u8]) {
        of_either!(self, out => out.bulk(bytes));
    }

    #[inline]
    fn joined(&mut self, stem: &[u8], rest: &[u8]) {
        of_either!(self, out => out.joined(stem, rest));
    }

    #[inline]
    fn value(&mut self, value: &Value<'_>) {
        of_either!(self, out => out.value(value));
    }

    #[inline]
    fn pair(&mut self, stem: &[u8], rest: &[u8], value: &Value<'_>) {
        of_either!(self, out => out.pair(stem, rest, value));
    }

    fn bulk_begin(&mut self, len: usize) {
        of_either!(self, out => out.bulk_begin(len));
    }

    fn bulk_part(&mut self, bytes: &[u8]) {
        of_either!(self, out => out.bulk_part(bytes));
    }

    fn bulk_end(&mut self) {
        of_either!(self, out => out.bulk_end());
    }

    fn verbatim(&mut self, format: [u8; 3], text: &[u8]) {
        of_either!(self, out => out.verbatim(format, text));
    }

    #[inline]
    fn null(&mut self) {
        of_either!(self, out => out.null());
    }

    fn null_array(&mut self) {
        of_either!(self, out => out.null_array());
    }

    #[inline]
    fn integer(&mut self, number: i64) {
        of_either!(self, out => out.integer(number));
    }

    fn double(&mut self, number: f64) {
        of_either!(self, out => out.double(number));
    }

    fn boolean(&mut self, truth: bool) {
        of_either!(self, out => out.boolean(truth));
    }

    #[inline]
    fn array(&mut self, len: usize) {
        of_either!(self, out => out.array(len));
    }

    fn map(&mut self, pairs: usize) {
        of_either!(self, out => out.map(pairs));
    }

    fn set(&mut self, len: usize) {
        of_either!(self, out => out.set(len));
    }

    fn push(&mut self, len: usize) {
        of_either!(self, out => out.push(len));
    }

    fn begin_counted(&mut self, form: Counted, expected: u64) -> Mark {
        of_either!(self, out => out.begin_counted(form, expected))
    }

    fn end_counted(&mut self, form: Counted, mark: Mark, count: u64) {
        of_either!(self, out => out.end_counted(form, mark, count));
    }

    fn mark(&self) -> Mark {
        of_either!(self, out => out.mark())
    }

    fn rewind(&mut self, mark: Mark) {
        of_either!(self, out => out.rewind(mark));
    }
}
