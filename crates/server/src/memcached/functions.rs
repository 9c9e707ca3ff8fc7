//! `register` and `invoke`: functions next to items.
//!
//! A call without `R` is answered by nothing at all, as with `noreply`, whatever came of it; for a key
//! that is absent it is none, and the key stays absent. Who may register is who may do everything
//! else on this port: whoever gave the password, or anybody where there is none. Only files below
//! the directory of functions can be named.

use super::items::Undone;
use super::{answer_unless, encoder};
use crate::resp::{Flow, ShardService, Turn};
use headwater_command::table::spec_of;
use headwater_command::{Command, Data, Functions, Id};
use headwater_engine::{CallOptions, Stop, Value};
use headwater_protocol::memcached::{Encoder, Request};

/// What is told of a module that was loaded.
pub(super) const REGISTERED: &str = "REGISTERED";

impl ShardService {
    /// `invoke`.
    pub(super) fn memcached_invoke(&mut self, request: &Request<'_>, work: &mut Turn<'_>) -> Flow {
        let Request::Invoke { key, function, param, update, reply } = *request else {
            return Flow::Next;
        };
        let Some(param) = param else {
            self.memcached.counts.invoked += 1;
            self.figures.stats.errors += 1;
            answer_unless(!reply, "CLIENT_ERROR bad data chunk", work);
            return Flow::Next;
        };
        let called = self.call_next_to((key, function, param), (update, reply), |answer| {
            if reply {
                write_called(key, answer, &mut encoder(work));
            }
        });
        match called {
            Ok(()) => Flow::Next,
            Err(undone) => self.memcached_undone(undone, !reply, work),
        }
    }

    /// Calls a function next to a value; `reply`: what it answers is wanted.
    pub(super) fn call_next_to(
        &mut self,
        (key, function, param): (&[u8], &[u8], &[u8]),
        (update, reply): (bool, bool),
        answer: impl FnOnce(Option<&[u8]>),
    ) -> Result<(), Undone> {
        self.memcached.counts.invoked += 1;
        if update && !self.has_room_for_item(key, param.len()) {
            return Err(self.no_room_for(key, false));
        }
        if !self.node.may_call(function) {
            self.figures.stats.errors += 1;
            return Err(Undone::Refused(
                "CLIENT_ERROR NOPERM the function is not among those that may be called".into(),
            ));
        }
        let options = CallOptions { update, present_only: !reply };
        self.node.invoke(function, key, param, options, answer)?;
        Ok(())
    }

    /// `register`.
    pub(super) fn memcached_register(
        &mut self,
        named: (&str, &str, &str),
        work: &mut Turn<'_>,
    ) -> Flow {
        match self.register_module(named, work) {
            Ok(()) => {
                encoder(work).line(REGISTERED);
                Flow::Next
            }
            Err(stop) => self.memcached_unanswered(stop, false, work),
        }
    }

    /// Loads a module; one of that name is replaced, for there is no other way to be rid of it.
    pub(super) fn register_module(
        &mut self,
        (name, file, export): (&str, &str, &str),
        work: &Turn<'_>,
    ) -> Result<(), Stop> {
        let load = Functions::Load {
            name,
            module: file.as_bytes(),
            file: true,
            export: Some(export),
            replace: true,
        };
        self.node.register(name, file, export)?;
        let command = Command::Data(Data::Functions(load));
        self.defined(&command);
        if let Some(spec) = spec_of(Id::FnLoad as usize) {
            self.note_definition(spec, &command, work);
        }
        Ok(())
    }
}

/// Writes what a function has answered next to a value.
pub(super) fn write_called(key: &[u8], answer: Option<&[u8]>, out: &mut Encoder<'_>) {
    if let Some(bytes) = answer {
        out.value(key, 0, None, &Value::of(bytes));
    }
    out.end();
}
