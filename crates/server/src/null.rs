//! The ceiling of the input and output path: every command is answered with the same bytes.
//!
//! `headwater serve --null BYTES` uses this service with the very loop and parser of the real
//! one, so that `bench null` can say how much of a command's time is the engine's.

use crate::connection::{Connection, ConnectionId};
use crate::connections::Connections;
use crate::service::{Bounds, Served, Service, Stopped, Time, Work};
use crate::wire_protocol::WireProtocol;
use headwater_engine::{Value, ValueRef};
use headwater_protocol::resp::{Limits, Parsed, RequestParser};

/// Answers every command with a constant byte string.
pub(crate) struct Null {
    bounds: Bounds,
    limits: Limits,
    answer: Vec<u8>,
    parser: RequestParser,
}

impl Null {
    /// A service whose answer has `bytes` bytes.
    pub(crate) fn new(bounds: Bounds, limits: Limits, bytes: usize) -> Self {
        let mut answer = format!("${bytes}\r\n").into_bytes();
        answer.resize(answer.len() + bytes, b'x');
        answer.extend_from_slice(b"\r\n");
        Self { bounds, limits, answer, parser: RequestParser::new() }
    }
}

impl Service for Null {
    /// The parser of an incomplete request.
    type Session = Option<Box<RequestParser>>;

    fn bounds(&self) -> Bounds {
        self.bounds
    }

    fn opened(&mut self, _id: ConnectionId, _door: WireProtocol) -> Self::Session {
        None
    }

    fn turn(&mut self, _time: Time, _clients_bytes: usize) {}

    fn serve(&mut self, work: Work<'_, Self::Session>) -> Served {
        let Work { connection, input, out, requests_left, out_bytes_full, .. } = work;
        let mut parser = match connection.session.take() {
            Some(parser) => *parser,
            None => core::mem::take(&mut self.parser),
        };
        let mut consumed = 0;
        let stopped = loop {
            if *requests_left == 0 || out.len() >= out_bytes_full {
                break Stopped::Paused;
            }
            match parser.parse(&input[consumed..], &self.limits) {
                Parsed::Incomplete => break Stopped::Incomplete,
                Parsed::Nothing { consumed: bytes } => consumed += bytes,
                Parsed::Request { consumed: bytes } => {
                    consumed += bytes;
                    *requests_left -= 1;
                    out.extend_from_slice(&self.answer);
                }
                Parsed::Error(_) => break Stopped::Closing,
            }
        };
        if stopped == Stopped::Incomplete && consumed < input.len() {
            connection.session = Some(Box::new(parser));
        } else {
            self.parser = parser;
        }
        Served { consumed, stopped }
    }

    fn wake(&mut self, _connections: &mut Connections<Self::Session>) {}

    fn is_idle(&self, _connection: &Connection<Self::Session>, _now: u64) -> bool {
        false
    }

    fn output_bytes_max(&self, _session: &Self::Session) -> usize {
        usize::MAX
    }

    fn session_bytes(_session: &Self::Session) -> usize {
        0
    }

    fn clients_bytes_max(&self) -> usize {
        usize::MAX
    }

    fn may_end(_session: &Self::Session) -> bool {
        true
    }

    fn evicted_client(&mut self) {}

    fn refusal(&mut self, _door: WireProtocol) -> &'static [u8] {
        b"-ERR max number of clients reached\r\n"
    }

    fn value(&self, _value: ValueRef) -> Value<'_> {
        Value::of(b"")
    }

    fn release(&mut self, _value: ValueRef) {}

    fn closed(&mut self, _connection: &mut Connection<Self::Session>) {}

    fn is_over(&self, _session: &Self::Session) -> bool {
        false
    }

    fn deadline(&self) -> Option<u64> {
        None
    }

    fn stopping(&self) -> Option<&'static str> {
        None
    }
}
