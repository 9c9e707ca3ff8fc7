//! `register` and `invoke`: functions next to items.
//!
//! A call without `R` is answered by nothing at all, as with `noreply`, whatever came of it; for a key
//! that is absent it is none, and the key stays absent. Who may register is who may do everything
//! else on this port: whoever gave the password, or anybody where there is none. Only files below
//! the directory of functions can be named.

use super::{answer_unless, encoder};
use crate::resp::parts::Figures;
use crate::resp::{Flow, ShardService, Turn};
use headwater_command::table::spec_of;
use headwater_command::{Command, Data, Functions, Id};
use headwater_engine::{CallOptions, Value};
use headwater_protocol::memcached::Request;

impl ShardService {
    /// `invoke`.
    pub(super) fn memcached_invoke(&mut self, request: &Request<'_>, work: &mut Turn<'_>) -> Flow {
        let Request::Invoke { key, function, param, update, reply } = *request else {
            return Flow::Next;
        };
        self.memcached.counts.invoked += 1;
        let Some(param) = param else {
            return self.figures.memcached_not_called(reply, "CLIENT_ERROR bad data chunk", work);
        };
        if update && !self.has_room_for_item(key, param.len()) {
            return self.memcached_no_room(key, false, !reply, work);
        }
        if !self.node.may_call(function) {
            let line = "CLIENT_ERROR NOPERM the function is not among those that may be called";
            return self.figures.memcached_not_called(reply, line, work);
        }
        let options = CallOptions { update, present_only: !reply };
        let called = self.node.invoke(function, key, param, options, |answer| {
            if reply {
                let mut out = encoder(work);
                if let Some(bytes) = answer {
                    out.value(key, 0, None, &Value::of(bytes));
                }
                out.end();
            }
        });
        match called {
            Ok(()) => Flow::Next,
            Err(stop) => self.memcached_unanswered(stop, !reply, work),
        }
    }

    /// `register`: a module of that name is replaced, for there is no other way to be rid of it.
    pub(super) fn memcached_register(
        &mut self,
        (name, file, export): (&str, &str, &str),
        work: &mut Turn<'_>,
    ) -> Flow {
        let load = Functions::Load {
            name,
            module: file.as_bytes(),
            file: true,
            export: Some(export),
            replace: true,
        };
        match self.node.register(name, file, export) {
            Ok(()) => {
                let command = Command::Data(Data::Functions(load));
                self.defined(&command);
                if let Some(spec) = spec_of(Id::FnLoad as usize) {
                    self.note_definition(spec, &command, work);
                }
                encoder(work).line("REGISTERED");
                Flow::Next
            }
            Err(stop) => self.memcached_unanswered(stop, false, work),
        }
    }
}

impl Figures {
    #[cold]
    fn memcached_not_called(&mut self, reply: bool, line: &str, work: &mut Turn<'_>) -> Flow {
        self.stats.errors += 1;
        answer_unless(!reply, line, work);
        Flow::Next
    }
}
