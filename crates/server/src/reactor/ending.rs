//! How the loop ends: signals, and the last replies.

use super::Reactor;
use crate::log::{self, event};
use crate::service::Service;
use std::time::{Duration, Instant};

/// How long pending replies may take at the end.
const FAREWELL: Duration = Duration::from_millis(1000);

pub(super) const SIGHUP: i32 = rustix::process::Signal::HUP.as_raw();
pub(super) const SIGTERM: i32 = rustix::process::Signal::TERM.as_raw();
pub(super) const SIGINT: i32 = rustix::process::Signal::INT.as_raw();

impl<S: Service> Reactor<S> {
    /// Stops accepting, and gives clients a moment to take their pending replies.
    pub(super) fn farewell(&mut self) {
        self.io.end_soon();
        self.attend_dirty();
        self.service.end_turn();
        self.service.send_messages();
        self.service.settle();
        self.hand_over();
        self.listeners.clear();
        let began = Instant::now();
        while began.elapsed() < FAREWELL {
            let slots: Vec<usize> = self.connections.slots().collect();
            let mut pending = false;
            for slot in slots {
                if let Some(mut connection) = self.connections.take(slot) {
                    connection.writable();
                    if self.send(&mut connection) && connection.unsent() > 0 {
                        pending = true;
                        self.connections.put(connection);
                    } else {
                        self.end(connection);
                    }
                }
            }
            if !pending {
                break;
            }
            self.io.hand_over();
            self.hear_last_reports();
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

/// A signal has come; whether it ends the process.
pub(super) fn hear(signal: i32) -> bool {
    let reason = match signal {
        SIGHUP => {
            log::reopen();
            return false;
        }
        SIGTERM => "SIGTERM",
        _ => "SIGINT",
    };
    event!(info, "server", "ending", reason, "the end begins");
    true
}
