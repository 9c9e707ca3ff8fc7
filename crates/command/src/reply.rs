//! The port that answers are written into.
//!
//! An executor states the answer in the terms below; a protocol implements them on its output
//! buffer, in the form that its client understands. An aggregate (`array`, `map`, …) is announced
//! with its length and followed by exactly that many answers. Where the length is known only
//! afterwards, [`Reply::begin_counted`] and [`Reply::end_counted`] bracket the elements.
//!
//! [`Reply::mark`] and [`Reply::rewind`] take back what a command has written when it turns out that it
//! must wait for data.

use core::fmt;
use headwater_pool::Value;

/// A place in the output that [`Reply::rewind`] can return to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Mark(pub usize);

/// The form of an aggregate whose length is known only afterwards.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Counted {
    /// The elements of an array.
    Array,
    /// Pairs of key and value; counted as pairs.
    Map,
}

/// Where answers are written.
pub trait Reply {
    /// "OK".
    fn ok(&mut self) {
        self.simple("OK");
    }

    /// A short status text without line ends.
    fn simple(&mut self, text: &str);

    /// A refusal or failure: a code word in capitals and a text for people.
    fn error(&mut self, code: &str, text: fmt::Arguments<'_>);

    /// A byte string.
    fn bulk(&mut self, bytes: &[u8]);

    /// A byte string that lies in two parts.
    #[inline]
    fn joined(&mut self, stem: &[u8], rest: &[u8]) {
        self.bulk_begin(stem.len() + rest.len());
        self.bulk_part(stem);
        self.bulk_part(rest);
        self.bulk_end();
    }

    /// A stored value, as a byte string.
    fn value(&mut self, value: &Value<'_>);

    /// A key that lies in two parts, and its value: [`Reply::joined`], then [`Reply::value`].
    #[inline]
    fn pair(&mut self, stem: &[u8], rest: &[u8], value: &Value<'_>) {
        self.joined(stem, rest);
        self.value(value);
    }

    /// Announces a byte string of `len` bytes that follow through [`Reply::bulk_part`].
    fn bulk_begin(&mut self, len: usize);

    /// Some bytes of the byte string that was announced.
    fn bulk_part(&mut self, bytes: &[u8]);

    /// Ends the byte string that was announced.
    fn bulk_end(&mut self);

    /// Text in a format such as `txt`, for people.
    fn verbatim(&mut self, format: [u8; 3], text: &[u8]);

    /// Nothing, where a byte string could be.
    fn null(&mut self);

    /// Nothing, where an array could be.
    fn null_array(&mut self);

    /// A whole number.
    fn integer(&mut self, number: i64);

    /// A floating-point number.
    fn double(&mut self, number: f64);

    /// True or false.
    fn boolean(&mut self, truth: bool);

    /// Announces an array of `len` elements.
    fn array(&mut self, len: usize);

    /// Announces a map of `pairs` keys, each followed by its value.
    fn map(&mut self, pairs: usize);

    /// Announces a set of `len` elements.
    fn set(&mut self, len: usize);

    /// Announces a message of `len` elements that answers no request.
    fn push(&mut self, len: usize);

    /// Begins an aggregate whose length is given afterwards. `expected` makes ending it cheap
    /// when it is right (or has as many digits); it promises nothing.
    fn begin_counted(&mut self, form: Counted, expected: u64) -> Mark;

    /// Ends what [`Reply::begin_counted`] began: it has `count` elements (pairs, in a map).
    fn end_counted(&mut self, form: Counted, mark: Mark, count: u64);

    /// The present end of the output.
    fn mark(&self) -> Mark;

    /// Takes back everything that was written since `mark`.
    fn rewind(&mut self, mark: Mark);
}
