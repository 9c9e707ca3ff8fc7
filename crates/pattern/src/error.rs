//! What is wrong with the text of a join, and where.
//!
//! Shown as the message with its column, the line of the text it is on, and a caret under the
//! place; of a text of several lines the line is named. A long line is cut around the caret, so that an error is never much longer than its
//! message.

use alloc::string::{String, ToString};
use core::fmt;

/// Most characters of a line that are shown before and after the caret.
const SHOWN_BEFORE: usize = 100;
const SHOWN_AFTER: usize = 60;

/// Why a text is not a join.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct JoinError {
    /// What is wrong, and what is allowed.
    pub message: String,
    /// Where: the byte of `text`, from 1; one more than its length for what is missing at its end.
    pub column: usize,
    /// The text that was read.
    pub text: String,
}

impl JoinError {
    /// `at` counts bytes from 0.
    pub(crate) fn new(text: &str, at: usize, message: impl ToString) -> Self {
        Self { message: message.to_string(), column: at + 1, text: text.to_string() }
    }

    /// The line that the error is on, perhaps cut, and what of it lies before the caret.
    fn line(&self) -> (&str, &str) {
        let (before, after) = self.text.split_at(self.place());
        let at = before.len();
        let start = before.rfind(['\n', '\r']).map_or(0, |end| end + 1);
        let start = match before[start..].char_indices().rev().nth(SHOWN_BEFORE - 1) {
            Some((from, _)) => start + from,
            None => start,
        };
        let end = after.find(['\n', '\r']).unwrap_or(after.len());
        let end = after[..end].char_indices().nth(SHOWN_AFTER).map_or(end, |(to, _)| to);
        (&self.text[start..at + end], &self.text[start..at])
    }

    /// The byte of the text that the caret is under.
    fn place(&self) -> usize {
        // The fields are public: a column beyond the text or within a character must not panic.
        let mut at = self.column.saturating_sub(1).min(self.text.len());
        while !self.text.is_char_boundary(at) {
            at -= 1;
        }
        at
    }
}

impl fmt::Display for JoinError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (line, before) = self.line();
        write!(f, "column {}", self.column)?;
        if self.text.contains(['\n', '\r']) {
            let before = &self.text[..self.place()];
            let lines = before.matches('\n').count() + before.matches('\r').count();
            write!(f, " of the text, line {}", 1 + lines - before.matches("\r\n").count())?;
        }
        writeln!(f, ": {}", self.message)?;
        writeln!(f, "{line}")?;
        for character in before.chars() {
            // A tab is as wide here as in the line above.
            f.write_str(if character == '\t' { "\t" } else { " " })?;
        }
        f.write_str("^")
    }
}

impl core::error::Error for JoinError {}
