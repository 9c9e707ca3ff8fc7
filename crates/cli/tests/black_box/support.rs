//! Starts the built program and talks to it, for black-box tests.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Nothing here takes longer unless something is broken, also where the machine has much else to do.
pub(crate) const PATIENCE: Duration = Duration::from_secs(90);

/// The program under test.
pub(crate) fn program() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_headwater"));
    // Tests of the log name a level of their own; who looks for what failed may name one for all.
    let level = std::env::var("HEADWATER_TEST_LOG_LEVEL");
    command.env("HEADWATER_LOG_LEVEL", level.as_deref().unwrap_or("error"));
    command
}

/// A number that the environment asks for, or the usual one: how much a test tries, or the seed that it begins with.
pub(crate) fn number_from(variable: &str, usual: u64) -> u64 {
    std::env::var(variable).ok().and_then(|text| text.parse().ok()).unwrap_or(usual)
}

/// Has threads that look at this stop when it goes, also where a test fails: who waits for them would wait for ever.
pub(crate) struct Stops<'s>(pub(crate) &'s AtomicBool);

impl Drop for Stops<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::SeqCst);
    }
}

/// Has a server of tests have one shard, or as many as `HEADWATER_TEST_SHARDS` says.
pub(crate) fn name_shards(command: &mut Command) {
    let shards = std::env::var("HEADWATER_TEST_SHARDS");
    command.args(["--shards", shards.as_deref().unwrap_or("1")]);
}

/// A running server; it is killed when the test ends.
pub(crate) struct Server {
    child: Child,
    told: String,
    /// Where it listens.
    pub(crate) port: u16,
}

impl Server {
    /// Starts `headwater serve` on a free port, with further arguments; with one shard, if neither they nor
    /// `HEADWATER_TEST_SHARDS` say something else, with as many I/O threads as `HEADWATER_TEST_IO_THREADS` says, and with slices of as many rows as
    /// `HEADWATER_TEST_SLICE_ROWS` says.
    pub(crate) fn start(arguments: &[&str]) -> Self {
        let mut command = program();
        command.args(["serve", "--port", "0"]).args(arguments);
        // Tests have receivers and databases on this machine.
        for place in ["127.0.0.1:*", "localhost:*", "*:*"] {
            command.args(["--connect-allow", place]);
        }
        command.args(["--enable-debug-command", "local"]);
        let files = arguments.windows(2).filter(|words| words[0] == "--config");
        let texts = files.map(|words| std::fs::read_to_string(words[1]).unwrap());
        let says = texts.into_iter().any(|text| text.contains("\nshards = "));
        if !says && !arguments.contains(&"--shards") {
            name_shards(&mut command);
        }
        // One shard can have I/O threads beside it.
        let is_one = !says && !arguments.windows(2).any(|it| it[0] == "--shards" && it[1] != "1");
        if let Ok(threads) = std::env::var("HEADWATER_TEST_IO_THREADS")
            && is_one
            && !arguments.contains(&"--io-threads")
        {
            command.args(["--io-threads", &threads]);
        }
        // Everything can be tried with slices so short that little is done in one.
        let rows = std::env::var("HEADWATER_TEST_SLICE_ROWS").ok();
        let file = rows
            .filter(|_| !arguments.contains(&"--config"))
            .map(|rows| TempFile::new(&format!("[clients]\nslice-rows = {rows}\n")));
        if let Some(file) = &file {
            command.args([Path::new("--config"), &file.path]);
        }
        Self::spawn(command)
    }

    /// Starts `headwater serve` with a configuration file of this text.
    pub(crate) fn with_config(text: &str) -> Self {
        let file = TempFile::new(text);
        Self::start(&["--config", file.path.to_str().unwrap()])
    }

    /// Starts a command that prints the ready line.
    pub(crate) fn spawn(command: Command) -> Self {
        Self::spawn_with_input(command, "")
    }

    /// As [`Server::spawn`]; the command reads this text, if it is to read any.
    pub(crate) fn spawn_with_input(mut command: Command, text: &str) -> Self {
        let mut child = command.stdout(Stdio::piped()).spawn().expect("the program starts");
        if let Some(mut input) = child.stdin.take() {
            input.write_all(text.as_bytes()).unwrap();
        }
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let mut told = String::new();
        let ready = loop {
            let line = lines.next().expect("a ready line").unwrap();
            if line.contains(" ready on ") {
                break line;
            }
            told.extend([&line, "\n"]);
        };
        let (head, address) = ready.split_once(" ready on ").unwrap();
        assert_eq!(head, concat!("headwater ", env!("CARGO_PKG_VERSION")));
        let port = address.rsplit(':').next().unwrap().parse().expect("a port");
        Self { child, told, port }
    }

    /// What it printed before the ready line.
    pub(crate) fn told(&self) -> &str {
        &self.told
    }

    /// A connection through the client library, in this version of the protocol.
    pub(crate) fn client(&self, protocol: u8) -> redis::Connection {
        let query = if protocol == 3 { "?protocol=resp3" } else { "" };
        let url = format!("redis://127.0.0.1:{}/{query}", self.port);
        let connection = redis::Client::open(url).unwrap().get_connection().unwrap();
        connection.set_read_timeout(Some(PATIENCE)).unwrap();
        connection
    }

    /// A bare connection.
    pub(crate) fn socket(&self) -> Socket {
        Socket::new(TcpStream::connect(("127.0.0.1", self.port)).unwrap())
    }

    /// A bare connection to where memcached's protocol is spoken.
    pub(crate) fn memcached(&self) -> Socket {
        let line = self.told.lines().find_map(|line| line.strip_prefix("memcached's protocol on "));
        Socket::new(TcpStream::connect(line.expect("the line that says where")).unwrap())
    }

    /// Sends a signal.
    pub(crate) fn signal(&self, signal: rustix::process::Signal) {
        let pid = rustix::process::Pid::from_child(&self.child);
        rustix::process::kill_process(pid, signal).unwrap();
    }

    /// The number of its process.
    pub(crate) fn id(&self) -> u32 {
        self.child.id()
    }

    /// Waits for the end.
    pub(crate) fn wait(mut self) -> ExitStatus {
        let began = Instant::now();
        loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                return status;
            }
            assert!(began.elapsed() < PATIENCE, "the server does not end");
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// A field of `/proc/PID/status`, in bytes.
    pub(crate) fn memory_bytes(&self, field: &str) -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.child.id())).unwrap();
        let line = status.lines().find(|line| line.starts_with(field)).expect("the field");
        line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() << 10
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A file that is removed when the test ends.
pub(crate) struct TempFile {
    /// Where it is.
    pub(crate) path: PathBuf,
}

impl TempFile {
    /// A file of this text.
    pub(crate) fn new(text: &str) -> Self {
        use std::sync::atomic::{AtomicUsize, Ordering};
        static COUNT: AtomicUsize = AtomicUsize::new(0);
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let name = format!("headwater-test-{}-{number}.toml", std::process::id());
        let path = std::env::temp_dir().join(name);
        std::fs::write(&path, text).unwrap();
        Self { path }
    }
}

impl Drop for TempFile {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.path);
    }
}

/// A bare connection, for input that no client library would send.
pub(crate) struct Socket {
    stream: TcpStream,
}

impl Socket {
    /// A bare connection over a stream that is connected.
    pub(crate) fn new(stream: TcpStream) -> Self {
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream.set_write_timeout(Some(PATIENCE)).unwrap();
        stream.set_nodelay(true).unwrap();
        Self { stream }
    }

    /// Sends bytes as they are.
    pub(crate) fn send(&mut self, bytes: &[u8]) {
        self.stream.write_all(bytes).unwrap();
    }

    /// Sends bytes to a server that may have hung up.
    pub(crate) fn try_send(&mut self, bytes: &[u8]) -> std::io::Result<()> {
        self.stream.write_all(bytes)
    }

    /// Tells that no more will be sent.
    pub(crate) fn end_sending(&mut self) {
        self.stream.shutdown(std::net::Shutdown::Write).unwrap();
    }

    /// Reads a line, or whatever ends like this.
    pub(crate) fn until(&mut self, end: &[u8]) -> Vec<u8> {
        let mut got = Vec::new();
        while !got.ends_with(end) {
            let mut byte = [0];
            self.stream.read_exact(&mut byte).unwrap();
            got.push(byte[0]);
        }
        got
    }

    /// Reads exactly these bytes.
    #[track_caller]
    pub(crate) fn expect(&mut self, bytes: &[u8]) {
        let mut got = vec![0; bytes.len()];
        if let Err(error) = self.stream.read_exact(&mut got) {
            panic!("{error} instead of {}", bytes.escape_ascii());
        }
        assert_eq!(got.escape_ascii().to_string(), bytes.escape_ascii().to_string());
    }

    /// Reads so many bytes.
    pub(crate) fn take(&mut self, count: usize) -> Vec<u8> {
        let mut got = vec![0; count];
        self.stream.read_exact(&mut got).unwrap();
        got
    }

    /// Reads to the end of the connection.
    #[track_caller]
    pub(crate) fn rest(&mut self) -> Vec<u8> {
        let mut got = Vec::new();
        match self.stream.read_to_end(&mut got) {
            Ok(_) => {}
            // The server closed while it had unread input: bytes before that have arrived.
            Err(error) if error.kind() == std::io::ErrorKind::ConnectionReset => {}
            Err(error) => panic!("the connection is not closed: {error}"),
        }
        got
    }

    /// Reads exactly these bytes, and then the end.
    #[track_caller]
    pub(crate) fn expect_end(&mut self, bytes: &[u8]) {
        let got = self.rest();
        assert_eq!(got.escape_ascii().to_string(), bytes.escape_ascii().to_string());
    }

    /// The stream itself.
    pub(crate) fn stream(&mut self) -> &mut TcpStream {
        &mut self.stream
    }
}

/// One request in the form that client libraries send.
pub(crate) fn request(words: &[&[u8]]) -> Vec<u8> {
    let mut bytes = format!("*{}\r\n", words.len()).into_bytes();
    for word in words {
        bytes.extend_from_slice(format!("${}\r\n", word.len()).as_bytes());
        bytes.extend_from_slice(word);
        bytes.extend_from_slice(b"\r\n");
    }
    bytes
}
