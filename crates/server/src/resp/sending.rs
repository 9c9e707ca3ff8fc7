//! Answers that are given in slices: what a client asks for that has very many pairs.
//!
//! The answer is that of one moment, which the engine keeps; each slice of it is written when the client has taken the one before,
//! so that an answer takes little memory, however long it is. What else the client is told in the meantime goes behind it.

use super::session::{Sending, Waiting};
use super::{Flow, ShardService, Turn, encoder};
use crate::log::event;
use crate::service::Stopped;
use headwater_command::{Args, Command, Data, OwnedArgs};
use headwater_node::Outcome;
use headwater_protocol::resp::{decode, find};

impl ShardService {
    /// Lets the session go on later with a command about data that has no whole answer yet.
    #[cold]
    pub(super) fn go_on_with(
        &mut self,
        outcome: Outcome,
        data: &Data<'_>,
        args: Args<'_>,
        work: &mut Turn<'_>,
    ) -> Flow {
        match outcome {
            Outcome::Done => Flow::Next,
            Outcome::Waiting(ticket) => self.wait(data, ticket, args, work),
            Outcome::Unfinished(ticket) => {
                let since = self.waits.running_since.take().unwrap_or(self.time.uptime);
                let request = OwnedArgs::of(args);
                self.send_on(Sending { request, ticket, since, begun: false }, work)
            }
            Outcome::Broken => self.break_off(work),
        }
    }

    fn send_on(&mut self, sending: Sending, work: &mut Turn<'_>) -> Flow {
        work.connection.session.waiting = Some(Box::new(Waiting::Sending(sending)));
        Flow::Parked
    }

    /// The next slice of an answer.
    pub(super) fn go_on_sending(&mut self, sending: Sending, work: &mut Turn<'_>) -> Flow {
        let ticket = sending.ticket;
        let flow = self.send_slice(sending, work);
        // Nothing, where it has gone on.
        self.node.engine_mut().forget_ticket(ticket);
        flow
    }

    fn send_slice(&mut self, mut sending: Sending, work: &mut Turn<'_>) -> Flow {
        if work.connection.ended && !sending.begun {
            return Flow::Close;
        }
        let most = self.settings.config.clients.command_milliseconds_max;
        if !sending.begun && most > 0 && self.time.uptime >= sending.since + most {
            self.refuse_late(most, work);
            return Flow::Next;
        }
        let request = core::mem::take(&mut sending.request);
        let args = request.args();
        let Ok(Command::Data(data)) = find(args).and_then(|spec| decode(spec, args)) else {
            return self.break_off(work);
        };
        self.node.engine_mut().resume(sending.ticket);
        let before = work.out.len();
        // A slice is small, and room was made for the answer when it began.
        let outcome = self.node.execute(&data, &mut encoder(work));
        match outcome {
            Outcome::Done => Flow::Next,
            Outcome::Unfinished(next) => {
                sending.begun |= work.out.len() > before;
                (sending.request, sending.ticket) = (request, next);
                self.send_on(sending, work)
            }
            Outcome::Waiting(ticket) if !sending.begun => self.park(ticket, args, work),
            Outcome::Waiting(_) | Outcome::Broken => self.break_off(work),
        }
    }

    /// Ends a connection whose client has been given the beginning of an answer that cannot be had any more.
    fn break_off(&mut self, work: &mut Turn<'_>) -> Flow {
        let peer = &work.connection.peer;
        event!(
            warn,
            "clients",
            "answer_broken_off",
            %peer,
            "the rest of a long answer cannot be had any more: too much of it has changed meanwhile, or is lost; the connection is ended"
        );
        Flow::Close
    }

    /// How the loop goes on with a session that does not go on with its next request.
    pub(super) fn parked(work: &mut Turn<'_>) -> Stopped {
        if work.connection.session.is_sending() {
            // As soon as others were served, and its client has taken what is there.
            *work.requests_left = 0;
            Stopped::Paused
        } else {
            Stopped::Parked
        }
    }
}
