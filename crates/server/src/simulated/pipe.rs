//! A connection between a client and a server within one process, which nothing but its two ends knows.

use std::collections::VecDeque;
use std::io::{self, ErrorKind, Read, Write};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

#[derive(Debug, Default)]
pub(crate) struct State {
    /// On their way to the server.
    pub(crate) asked: VecDeque<u8>,
    /// On their way to the client.
    pub(crate) told: VecDeque<u8>,
    /// The client has sent its last byte.
    pub(crate) client_ended: bool,
    /// The server has hung up.
    pub(crate) server_ended: bool,
    /// The server has not heard yet of what has changed.
    pub(crate) news: bool,
}

/// What both ends share.
#[derive(Clone, Debug, Default)]
pub(crate) struct Pipe(Arc<Mutex<State>>);

impl Pipe {
    pub(crate) fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The client sends these bytes.
    pub(crate) fn ask(&self, bytes: &[u8]) {
        let mut state = self.state();
        state.asked.extend(bytes);
        state.news = true;
    }

    /// The client hangs up.
    pub(crate) fn end(&self) {
        let mut state = self.state();
        (state.client_ended, state.news) = (true, true);
    }
}

/// The server's end.
#[derive(Debug)]
pub(crate) struct ServerEnd(pub(super) Pipe);

impl ServerEnd {
    /// That of a connection.
    pub(crate) fn of(pipe: &Pipe) -> Self {
        Self(pipe.clone())
    }
}

impl Read for ServerEnd {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let mut state = self.0.state();
        if state.asked.is_empty() && !state.client_ended {
            return Err(ErrorKind::WouldBlock.into());
        }
        state.asked.read(into)
    }
}

impl Write for ServerEnd {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let mut state = self.0.state();
        if state.client_ended {
            return Err(ErrorKind::BrokenPipe.into());
        }
        state.told.extend(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Drop for ServerEnd {
    fn drop(&mut self) {
        self.0.state().server_ended = true;
    }
}
