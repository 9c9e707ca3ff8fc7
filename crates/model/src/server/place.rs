//! How clients reach a server: over sockets, or however else it is run.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

/// A client's end of a connection.
pub trait Stream: Read + Write {
    /// The address of this end, as the server tells it.
    fn own_address(&self) -> String;

    /// Lets a moment pass, so that what was written comes by itself, mostly.
    fn pause(&self);
}

/// A server.
pub trait Place {
    /// A new connection to it.
    ///
    /// # Errors
    /// There is none.
    fn connect(&self) -> Result<Box<dyn Stream>, String>;

    /// How it is named in what is told of it.
    fn name(&self) -> String;

    /// Lets a moment pass; `false`: too many have passed for whatever is waited for, which began at the moment `began`.
    fn wait(&self, began: Duration) -> bool;

    /// How long it is since some moment.
    fn now(&self) -> Duration;

    /// Has clients be busy with the accounts from now on, if there are any to do so; they may have partitions move where that makes no
    /// difference to the script.
    fn disturb(&self, may_move: bool) {
        let _ = may_move;
    }

    /// Whether partitions get other homes meanwhile: a scan may then give a key twice.
    fn moves(&self) -> bool {
        false
    }

    /// Ends that.
    ///
    /// # Errors
    /// What these clients have found wrong.
    fn calm(&self) -> Result<(), String> {
        Ok(())
    }
}

/// A server that listens at an address.
#[derive(Clone, Copy, Debug)]
pub struct Listening {
    /// Where.
    pub address: SocketAddr,
    /// Nothing takes longer.
    pub patience: Duration,
    begun: Instant,
}

impl Listening {
    /// The server at an address.
    #[must_use]
    pub fn at(address: SocketAddr, patience: Duration) -> Self {
        Self { address, patience, begun: Instant::now() }
    }
}

impl Place for Listening {
    fn connect(&self) -> Result<Box<dyn Stream>, String> {
        let connect = || {
            let stream = TcpStream::connect(self.address)?;
            stream.set_nodelay(true)?;
            stream.set_read_timeout(Some(self.patience))?;
            stream.set_write_timeout(Some(self.patience))?;
            Ok(stream)
        };
        let stream: std::io::Result<TcpStream> = connect();
        Ok(Box::new(stream.map_err(|error| format!("{}: {error}", self.address))?))
    }

    fn name(&self) -> String {
        self.address.to_string()
    }

    fn wait(&self, began: Duration) -> bool {
        std::thread::sleep(Duration::from_millis(1));
        self.now() < began + self.patience
    }

    fn now(&self) -> Duration {
        self.begun.elapsed()
    }
}

impl Stream for TcpStream {
    fn own_address(&self) -> String {
        self.local_addr().map(|address| address.to_string()).unwrap_or_default()
    }

    fn pause(&self) {
        std::thread::sleep(Duration::from_micros(200));
    }
}
