//! Which requests are refused or fail, and with what: as COMMANDSTATS and ERRORSTATS of INFO tell it.
//!
//! A request counts where it is executed. What all shards execute each in part counts at the shard of its client, which has
//! a part as well: a wrong `CONFIG SET` is one error, whatever the number of shards. What several shards execute step by step counts
//! at the shard of its client, too, which answers it.

use super::reply::Form;
use super::{ShardService, Turn};
use crate::resp::parts::Figures;
use headwater_command::table::{KeyArgs, lookup};
use headwater_command::{Args, Command, Spec};
use headwater_protocol::resp::{decode, find};
use headwater_router::{Answer, Route, Token, route};

impl ShardService {
    /// Looks at what was answered behind the first `before` bytes to a request that was carried out, or rejected before.
    #[inline]
    pub(super) fn note_outcome(
        &mut self,
        spec: &'static Spec,
        args: Args<'_>,
        before: usize,
        work: &Turn<'_>,
    ) {
        if is_refusal(before, work) {
            self.note_failed(spec, args, before, work);
        }
    }

    #[cold]
    fn note_failed(&mut self, spec: &'static Spec, args: Args<'_>, before: usize, work: &Turn<'_>) {
        let is_rejected = core::mem::take(&mut self.figures.stats.is_rejected);
        if work.connection.session.is_step() || self.is_counted_elsewhere(spec, args, work) {
            return;
        }
        if is_rejected {
            self.figures.stats.reject(spec.id, true);
        } else {
            self.figures.stats.fail(spec.id);
        }
        self.figures.note_error(before, work);
    }

    /// Whether this is a part of a request that the shard of its client has a part of, too.
    fn is_counted_elsewhere(&self, spec: &'static Spec, args: Args<'_>, work: &Turn<'_>) -> bool {
        work.connection.is_remote()
            && decode(spec, args).is_ok_and(|command| self.is_part(spec, &command, args))
    }

    /// Whether a request is one that all shards execute, which counts at the client's shard alone: it names no key.
    pub(super) fn is_part_of_all(
        &self,
        spec: &'static Spec,
        command: &Command<'_>,
        args: Args<'_>,
        work: &Turn<'_>,
    ) -> bool {
        work.connection.is_remote()
            && spec.keys == KeyArgs::NONE
            && self.is_part(spec, command, args)
    }

    /// Whether a request is one that several shards execute each in part.
    fn is_part(&self, spec: &'static Spec, command: &Command<'_>, args: Args<'_>) -> bool {
        let placement = self.node.engine().placement();
        placement.is_some_and(|placement| {
            matches!(route(placement, spec, command, args), Route::Parts { .. })
        })
    }
}

impl Figures {
    /// A request was refused that nobody has taken for one to be executed, and the refusal is behind the first `before` bytes.
    #[cold]
    pub(super) fn note_rejected(&mut self, spec: Option<&Spec>, before: usize, work: &Turn<'_>) {
        if let Some(spec) = spec {
            self.stats.reject(spec.id, false);
        }
        self.note_error(before, work);
    }

    /// A request that has waited fails, and the error is behind the first `before` bytes; `None`: it is EXEC.
    #[cold]
    pub(super) fn note_late_failure(
        &mut self,
        request: Option<Args<'_>>,
        before: usize,
        work: &Turn<'_>,
    ) {
        let spec = match request {
            Some(args) => find(args).ok(),
            None => lookup(b"exec"),
        };
        if let Some(spec) = spec {
            self.stats.fail(spec.id);
        }
        self.note_error(before, work);
    }

    /// The error behind the first `before` bytes is counted.
    #[cold]
    pub(super) fn note_error(&mut self, before: usize, work: &Turn<'_>) {
        let answer = work.out.get(before..).unwrap_or_default();
        let code = match work.connection.session.form {
            Form::Typed => match Answer::first(answer).map(|(answer, _)| answer.token()) {
                Some(Token::Error { code, .. }) => code.as_bytes(),
                _ => b"ERR",
            },
            Form::Client => code_of(answer),
        };
        let code = String::from_utf8_lossy(code).into_owned();
        self.stats.count_error(&code);
    }
}

/// The first word of an error as clients read it, on one line or of several.
fn code_of(answer: &[u8]) -> &[u8] {
    let text = match answer.split_first() {
        Some((b'!', rest)) => {
            let line = rest.iter().position(|byte| *byte == b'\n').map_or(0, |at| at + 1);
            &rest[line..]
        }
        Some((_, rest)) => rest,
        None => answer,
    };
    let len = text.iter().position(|byte| matches!(byte, b' ' | b'\r')).unwrap_or(text.len());
    &text[..len]
}

/// Whether what was answered behind the first `before` bytes is an error.
#[inline]
pub(super) fn is_refusal(before: usize, work: &Turn<'_>) -> bool {
    match work.connection.session.form {
        Form::Client => matches!(work.out.get(before), Some(b'-' | b'!')),
        Form::Typed => work.out.get(before..).is_some_and(Answer::is_error_first),
    }
}

#[cfg(test)]
mod tests {
    use super::code_of;

    #[test]
    fn the_code_is_the_first_word() {
        for (answer, code) in [
            (&b"-ERR no such key\r\n"[..], &b"ERR"[..]),
            (b"-NOSCRIPT\r\n", b"NOSCRIPT"),
            (b"!21\r\nSYNTAX invalid syntax\r\n", b"SYNTAX"),
            (b"", b""),
        ] {
            assert_eq!(code_of(answer), code);
        }
    }
}
