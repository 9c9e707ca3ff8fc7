//! The program, to be asked what the pages show.

use std::io::{BufRead, BufReader};
use std::net::TcpStream;
use std::process::{Child, Command, Stdio};

/// The real program, on a port that the system chose.
pub(crate) struct Server {
    process: Child,
    pub(crate) address: String,
    /// The address of memcached's protocol, where it is spoken.
    pub(crate) memcached: Option<String>,
}

impl Server {
    pub(crate) fn start(options: &[&str]) -> Self {
        let process = Command::new(env!("CARGO_BIN_EXE_headwater"))
            .args(["serve", "--port", "0"])
            .args(options)
            .stdout(Stdio::piped())
            .spawn()
            .expect("the program starts");
        let mut server = Self { process, address: String::new(), memcached: None };
        let out = BufReader::new(server.process.stdout.take().expect("its output"));
        for line in out.lines().map(|line| line.expect("a line")) {
            let address = line.rsplit(' ').next().unwrap_or_default().to_owned();
            if line.contains(" ready on ") {
                server.address = address;
                return server;
            }
            server.memcached = Some(address);
        }
        panic!("the program ends: {options:?}");
    }

    pub(crate) fn port(&self) -> &str {
        self.address.rsplit(':').next().expect("a port")
    }

    pub(crate) fn connect(&self) -> BufReader<TcpStream> {
        BufReader::new(TcpStream::connect(&self.address).expect("a connection"))
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ended_already = self.process.kill();
        let _status = self.process.wait();
    }
}
