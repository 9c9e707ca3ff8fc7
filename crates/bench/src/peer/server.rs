//! A server of our own: started on a private port in a temporary folder, pinned, measured,
//! and ended when dropped.
//!
//! # Settings of the peers
//! - Valkey and Redis: no snapshots, no append-only file; all else as it comes.
//! - memcached: one thread (it has one core), items up to 64 MiB, and no limit on requests
//!   per event that would make long pipelines wait.
//! - PostgreSQL: `fsync`, `synchronous_commit` and `full_page_writes` off, minimal WAL, 1 GiB
//!   of shared buffers, no parallel workers and no JIT (they lose time on short statements):
//!   it stands in for a cache, and a cache may lose its content in a crash.

use super::{Measured, System, program, stop, tls};
use crate::measure::{pin::Pinning, process};
use crate::wire::{Connection, postgres, resp};
use anyhow::{Context, Result, bail};
use core::ops::Range;
use core::sync::atomic::{AtomicU32, Ordering};
use core::time::Duration;
use rustix::process::Signal;
use rustls::ClientConfig;
use std::fs::File;
use std::net::{Ipv4Addr, TcpListener};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::Instant;

/// How long a server may take until it answers.
const START_MAX: Duration = Duration::from_secs(60);
/// How long a server may take to end before it is killed.
const END_MAX: Duration = Duration::from_secs(10);
/// The user name under which PostgreSQL's cluster is made.
pub const POSTGRES_USER: &str = "postgres";
/// Where ports for servers are taken from: below those of outgoing connections.
const PORTS: Range<u16> = 10_000..32_000;
/// memcached's memory in MB: enough that it evicts nothing.
const MEMCACHED_MB: &str = "16384";

const POSTGRES_SETTINGS: [&str; 19] = [
    "listen_addresses=127.0.0.1",
    "fsync=off",
    "synchronous_commit=off",
    "full_page_writes=off",
    "wal_level=minimal",
    "max_wal_senders=0",
    "max_wal_size=8GB",
    "checkpoint_timeout=1h",
    "shared_buffers=1GB",
    "effective_cache_size=4GB",
    "work_mem=16MB",
    "maintenance_work_mem=512MB",
    "max_parallel_workers_per_gather=0",
    "max_parallel_maintenance_workers=0",
    "jit=off",
    "huge_pages=try",
    "max_connections=200",
    "random_page_cost=1.1",
    "track_activities=off",
];

/// How servers are started.
#[derive(Clone, Debug)]
pub struct Launch {
    /// Which cores are used.
    pub pinning: Pinning,
    /// The program `headwater`.
    pub headwater: PathBuf,
    /// How many bytes the null server answers with.
    pub null_bytes: usize,
    /// Further arguments of the server's command line.
    pub arguments: Vec<String>,
    /// The program that runs `headwater`, with its arguments; none: it runs by itself.
    pub within: Vec<String>,
}

impl Launch {
    /// Checks that the programs of all `systems` are there.
    ///
    /// # Errors
    /// One is missing; the message names the package that has it.
    pub fn check(&self, systems: &[System]) -> Result<()> {
        self.pinning.check()?;
        for system in systems {
            match system {
                System::Valkey | System::ValkeyTls => drop(program::valkey()?),
                System::Redis | System::RedisTls => drop(program::redis()?),
                System::Nats => drop(program::nats()?),
                System::Memcached => drop(program::memcached()?),
                System::Postgres => {
                    program::postgres()?;
                    program::plain_user()?;
                }
                _ => {
                    let path = &self.headwater;
                    if !path.is_file() {
                        bail!("{}: no such program (--headwater names it)", path.display());
                    }
                }
            }
        }
        Ok(())
    }
}

/// A running server.
#[derive(Debug)]
pub struct Server {
    name: &'static str,
    child: Child,
    /// What its clients encrypt with, if they do.
    encryption: Option<Arc<ClientConfig>>,
    /// Whether it answers from child processes, which then must be counted.
    family: bool,
    /// Removed with all its content at the end.
    folder: tempfile::TempDir,
    /// The port it listens on, on the loopback address.
    pub port: u16,
}

impl Server {
    /// Starts `system` and waits until it answers.
    ///
    /// # Errors
    /// It is not installed, does not start, or does not answer within a minute.
    pub fn start(system: System, launch: &Launch) -> Result<Self> {
        stop::check()?;
        let name = system.name();
        let folder = tempfile::Builder::new()
            .prefix("headwater-bench-")
            .tempdir()
            .context("cannot make a temporary folder")?;
        let port = free_port()?;
        let files = tls::Files::within(folder.path());
        let encryption = match system.speaks_tls() {
            true => {
                files.make()?;
                Some(files.client()?)
            }
            false => None,
        };
        let mut command = command(system, launch, folder.path(), port)?;
        command.args(&launch.arguments);
        let log = File::create(folder.path().join("log")).context("cannot write the log")?;
        command.stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log);
        launch.pinning.enter_server()?;
        let spawned = command.spawn();
        launch.pinning.enter_generator()?;
        let child = spawned.with_context(|| format!("{name} does not start"))?;
        let family = system == System::Postgres;
        stop::note(child.id(), if family { Signal::QUIT } else { Signal::KILL });
        let mut server = Self { name, child, encryption, family, folder, port };
        server.wait(system)?;
        Ok(server)
    }

    fn wait(&mut self, system: System) -> Result<()> {
        let begun = Instant::now();
        loop {
            stop::check()?;
            if self.answers(system) {
                return Ok(());
            }
            let name = self.name;
            if let Some(status) = self.child.try_wait()? {
                bail!("{name} ended at its start ({status}):\n{}", self.log());
            }
            if begun.elapsed() > START_MAX {
                bail!("{name} does not answer on port {}:\n{}", self.port, self.log());
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// The end of what the server printed.
    #[must_use]
    pub fn log(&self) -> String {
        let bytes = std::fs::read(self.folder.path().join("log")).unwrap_or_default();
        let text = String::from_utf8_lossy(&bytes[bytes.len().saturating_sub(2000)..]).into_owned();
        if text.trim().is_empty() { String::from("(it printed nothing)") } else { text }
    }

    /// CPU that the server has used since its start.
    ///
    /// # Errors
    /// It is gone.
    pub fn cpu(&self) -> Result<Duration> {
        let pid = self.child.id();
        if self.family { process::cpu_of_family(pid) } else { process::cpu(pid) }
    }

    /// The number of its process.
    #[must_use]
    pub fn process(&self) -> u32 {
        self.child.id()
    }

    /// The most memory it had resident; for PostgreSQL what its processes share and own now.
    ///
    /// # Errors
    /// It is gone.
    pub fn rss_max(&self) -> Result<u64> {
        let pid = self.child.id();
        if self.family { process::pss_of_family(pid) } else { process::rss_max(pid) }
    }

    /// Sends it a signal.
    pub fn signal(&self, signal: Signal) {
        stop::send(self.child.id(), signal);
    }

    /// Has it end as an administrator would, and gives the end of what it printed.
    ///
    /// # Errors
    /// It does not end in time.
    pub fn end(mut self) -> Result<String> {
        self.signal(Signal::TERM);
        let begun = Instant::now();
        while self.child.try_wait()?.is_none() {
            if begun.elapsed() > END_MAX {
                bail!("{} does not end:\n{}", self.name, self.log());
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        Ok(self.log())
    }

    fn open(&self) -> std::io::Result<Connection> {
        match &self.encryption {
            Some(settings) => Connection::open_encrypted(self.port, settings.clone()),
            None => Connection::open(self.port),
        }
    }

    fn answers(&self, system: System) -> bool {
        let ask = || -> std::io::Result<()> {
            if system == System::Postgres {
                return postgres::open(self.port, POSTGRES_USER).map(drop);
            }
            let mut connection = self.open()?;
            if system == System::Nats {
                // It introduces itself.
                return connection.input.line().map(drop);
            }
            if system.speaks_memcached() {
                connection.out.extend_from_slice(b"version\r\n");
                connection.flush()?;
                return connection.input.line().map(drop);
            }
            resp::command(&mut connection.out, &[b"PING"]);
            connection.flush()?;
            resp::skip(&mut connection.input)
        };
        ask().is_ok()
    }

    /// Opens a connection in the server's protocol.
    ///
    /// # Errors
    /// The server does not accept it.
    pub fn connect(&self) -> Result<Connection> {
        let connection =
            if self.family { postgres::open(self.port, POSTGRES_USER) } else { self.open() };
        connection.with_context(|| format!("cannot connect to {} on port {}", self.name, self.port))
    }
}

impl Measured for Server {
    fn connect_to(&self, _number: usize) -> Result<Connection> {
        self.connect()
    }

    fn cpu_used(&self) -> Result<Duration> {
        self.cpu()
    }

    fn resident_max(&self) -> Result<u64> {
        self.rss_max()
    }

    fn printed(&self) -> String {
        self.log()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let pid = self.child.id();
        if matches!(self.child.try_wait(), Ok(Some(_))) {
            // Its number may be another's by now.
            return stop::forget(pid);
        }
        stop::send(pid, last_signal(self.family));
        stop::forget(pid);
        let begun = Instant::now();
        while matches!(self.child.try_wait(), Ok(None)) {
            if begun.elapsed() > END_MAX {
                let _ = self.child.kill();
                let _ = self.child.wait();
                break;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

/// What ends a server whose data is thrown away, so that nobody is asked to save it. PostgreSQL must end its children, which
/// it does on SIGQUIT. A program that counts for a profile writes its counts when it ends by itself.
fn last_signal(is_family: bool) -> Signal {
    if is_family {
        Signal::QUIT
    } else if std::env::var_os("LLVM_PROFILE_FILE").is_some() {
        Signal::TERM
    } else {
        Signal::KILL
    }
}

/// A port that nobody listens on. It is none that the system gives to outgoing connections, and
/// none that this process was given before: either could be taken before the server binds it.
///
/// # Errors
/// All are taken.
pub fn free_port() -> Result<u16> {
    static TRIED: AtomicU32 = AtomicU32::new(0);
    let first = std::process::id().wrapping_mul(64);
    for _ in PORTS {
        let step = first.wrapping_add(TRIED.fetch_add(1, Ordering::Relaxed));
        let port = PORTS.start + (step % PORTS.len() as u32) as u16;
        if TcpListener::bind((Ipv4Addr::LOCALHOST, port)).is_ok() {
            return Ok(port);
        }
    }
    bail!("no port from {} to {} is free", PORTS.start, PORTS.end - 1)
}

fn command(system: System, launch: &Launch, folder: &Path, port: u16) -> Result<Command> {
    let port = port.to_string();
    let made = match system {
        System::Valkey | System::Redis | System::ValkeyTls | System::RedisTls => {
            let is_valkey = matches!(system, System::Valkey | System::ValkeyTls);
            let mut command =
                Command::new(if is_valkey { program::valkey()? } else { program::redis()? });
            if system.speaks_tls() {
                let files = tls::Files::within(folder);
                command.args(["--port", "0", "--tls-port", &port, "--tls-auth-clients", "no"]);
                command.arg("--tls-cert-file").arg(&files.certificate);
                command.arg("--tls-ca-cert-file").arg(&files.certificate);
                command.arg("--tls-key-file").arg(&files.key);
            } else {
                command.args(["--port", &port]);
            }
            command.args(["--bind", "127.0.0.1", "--save", ""]);
            command.args(["--appendonly", "no", "--daemonize", "no", "--loglevel", "warning"]);
            command.arg("--dir").arg(folder);
            command
        }
        System::Nats => {
            let mut command = Command::new(program::nats()?);
            command.args(["--addr", "127.0.0.1", "--port", &port, "--jetstream", "--store_dir"]);
            command.arg(folder);
            command
        }
        System::Memcached => {
            let mut command = Command::new(program::memcached()?);
            command.args(["-p", &port, "-U", "0", "-l", "127.0.0.1", "-t", "1", "-c", "1024"]);
            command.args(["-m", MEMCACHED_MB, "-I", "64m", "-R", "1000"]);
            if rustix::process::geteuid().is_root() {
                command.args(["-u", "root"]);
            }
            command
        }
        System::Postgres => postgres_command(folder, &port)?,
        _ => {
            let mut command = match &*launch.within {
                [program, arguments @ ..] => {
                    let mut command = Command::new(program);
                    command.args(arguments).arg(&launch.headwater);
                    command
                }
                [] => Command::new(&launch.headwater),
            };
            let port_of = match system {
                System::Items => "--memcached-port",
                System::Tls => "--tls-port",
                _ => "--port",
            };
            command.args(["serve", "--bind", "127.0.0.1", port_of, &port]);
            if system == System::Items {
                command.args(["--port", "0"]);
            }
            if system == System::Tls {
                let files = tls::Files::within(folder);
                let text = format!(
                    "[listen]\nport = 'off'\n[tls]\ntls-auth-clients = 'no'\ntls-cert-file = '{}'\ntls-key-file = '{}'\n",
                    files.certificate.display(),
                    files.key.display()
                );
                let settings = folder.join("tls.toml");
                std::fs::write(&settings, text).context("cannot write the settings")?;
                command.arg("--config").arg(settings);
            }
            // Peers have one thread, too.
            if !launch.arguments.iter().any(|word| word == "--shards") {
                command.args(["--shards", if system == System::Shards { "2" } else { "1" }]);
            }
            if system == System::Null {
                command.args(["--null", &launch.null_bytes.to_string()]);
            }
            command.current_dir(folder);
            command
        }
    };
    Ok(made)
}

/// Makes a cluster in `folder` and gives the command that serves it.
fn postgres_command(folder: &Path, port: &str) -> Result<Command> {
    let programs = program::postgres()?;
    let user = program::plain_user()?;
    let data = folder.join("data");
    let as_user = |program: &str| {
        let mut command = Command::new(programs.join(program));
        if let Some((uid, gid)) = user {
            command.uid(uid).gid(gid);
        }
        command.current_dir(folder);
        command
    };
    if let Some((uid, gid)) = user {
        std::os::unix::fs::chown(folder, Some(uid), Some(gid))
            .context("cannot give the folder to the user of postgres")?;
    }
    let output = as_user("initdb")
        .args(["--no-sync", "--auth=trust", "--encoding=UTF8", "--locale=C", "-U", POSTGRES_USER])
        .arg("-D")
        .arg(&data)
        .stdin(Stdio::null())
        .output()
        .context("initdb does not start")?;
    if !output.status.success() {
        bail!("initdb failed:\n{}", String::from_utf8_lossy(&output.stderr));
    }
    let mut command = as_user("postgres");
    command.arg("-D").arg(&data).args(["-p", port, "-k"]).arg(folder);
    for setting in POSTGRES_SETTINGS {
        command.args(["-c", setting]);
    }
    Ok(command)
}
