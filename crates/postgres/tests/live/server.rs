//! A PostgreSQL of the test's own, in a folder of its own, with a socket there and no port.

use crate::certificates::{self, Signed};
use headwater_postgres::url::Target;
use headwater_postgres::wire::Connection;
use std::fs::File;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Mutex;
use std::time::{Duration, Instant};

/// How long the server may take to start.
const START_MAX: Duration = Duration::from_secs(60);

/// A running server.
pub(crate) struct Server {
    programs: PathBuf,
    folder: tempfile::TempDir,
    settings: Vec<String>,
    /// Where its socket is, and for servers that listen the port on the loopback address.
    pub(crate) port: u16,
    child: Mutex<Option<Child>>,
}

/// Where PostgreSQL's programs are: where `HEADWATER_PG_BIN` says, or where Debian puts those of its newest version.
fn programs() -> Option<PathBuf> {
    if let Some(folder) = std::env::var_os("HEADWATER_PG_BIN") {
        return Some(folder.into());
    }
    let versions = std::fs::read_dir("/usr/lib/postgresql").into_iter().flatten().flatten();
    let mut folders: Vec<_> = versions.map(|entry| entry.path().join("bin")).collect();
    folders.retain(|folder| folder.join("initdb").is_file());
    folders.sort();
    folders.pop()
}

/// User and group of `postgres`, where we are root, which PostgreSQL refuses to run as.
fn plain_user() -> Option<(u32, u32)> {
    let mine = std::fs::metadata("/proc/self").ok()?;
    if std::os::unix::fs::MetadataExt::uid(&mine) != 0 {
        return None;
    }
    let text = std::fs::read_to_string("/etc/passwd").ok()?;
    let fields = |name: &str| -> Option<(u32, u32)> {
        let line = text.lines().find(|line| line.split(':').next() == Some(name))?;
        let mut fields = line.split(':').skip(2);
        Some((fields.next()?.parse().ok()?, fields.next()?.parse().ok()?))
    };
    fields("postgres").or_else(|| fields("nobody"))
}

impl Server {
    /// Starts one, with further settings; `None`, said aloud, where PostgreSQL is not installed.
    pub(crate) fn start(settings: &[&str]) -> Option<Self> {
        let Some(programs) = programs() else {
            eprintln!("skipped: PostgreSQL is not installed (Debian package postgresql-15)");
            return None;
        };
        let folder = tempfile::Builder::new().prefix("hw-pg-").tempdir().unwrap();
        if let Some((uid, gid)) = plain_user() {
            std::os::unix::fs::chown(folder.path(), Some(uid), Some(gid)).unwrap();
        }
        let settings = settings.iter().map(|setting| (*setting).to_owned()).collect();
        let server = Self { programs, folder, settings, port: 5432, child: Mutex::new(None) };
        let made = server
            .command("initdb")
            .args([
                "--no-sync",
                "--auth=trust",
                "--encoding=UTF8",
                "--locale=C.UTF-8",
                "-U",
                "postgres",
            ])
            .arg("-D")
            .arg(server.data())
            .output()
            .unwrap();
        assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
        server.launch();
        Some(server)
    }

    /// Has it listen on a port, encrypted for those who want that, and asking for passwords; gives its certificate's file.
    pub(crate) fn open_port(&mut self) -> PathBuf {
        self.open_port_as(Signed::ByItself)
    }

    /// The same, with another kind of certificate.
    pub(crate) fn open_port_as(&mut self, signed: Signed<'_>) -> PathBuf {
        let certificate = self.data().join("server.crt");
        let key = self.data().join("server.key");
        certificates::make(self.command("/usr/bin/openssl"), signed, &key, &certificate);
        let rules = "local all all trust\nhost all all 127.0.0.1/32 scram-sha-256\n";
        std::fs::write(self.data().join("pg_hba.conf"), rules).unwrap();
        self.stop();
        let free = std::net::TcpListener::bind(("127.0.0.1", 0)).unwrap();
        self.port = free.local_addr().unwrap().port();
        drop(free);
        self.settings.push("listen_addresses=127.0.0.1".to_owned());
        self.settings.push("ssl=on".to_owned());
        self.launch();
        certificate
    }

    /// Whether its programs can encrypt; those of packages that embed a server cannot.
    pub(crate) fn can_encrypt(&self) -> bool {
        let output = self.command("pg_config").arg("--configure").output();
        // Without `pg_config`, which Debian has in another package, they are Debian's.
        output.map_or(true, |output| {
            !output.status.success() || String::from_utf8_lossy(&output.stdout).contains("openssl")
        })
    }

    /// A collation that does not compare bytes, or is not known to; servers without ICU have none that compares otherwise.
    pub(crate) fn collation(&self) -> &'static str {
        let sql = "SELECT EXISTS (SELECT FROM pg_collation WHERE collname = 'und-x-icu')";
        match self.connect().value(sql).as_deref() {
            Ok("t") => "\"und-x-icu\"",
            _ => "\"C.utf8\"",
        }
    }

    fn data(&self) -> PathBuf {
        self.folder.path().join("data")
    }

    fn command(&self, program: &str) -> Command {
        let mut command = Command::new(self.programs.join(program));
        if let Some((uid, gid)) = plain_user() {
            command.uid(uid).gid(gid);
        }
        command.current_dir(self.folder.path()).stdin(Stdio::null());
        command
    }

    /// Starts the server again, and waits until it answers.
    pub(crate) fn launch(&self) {
        let begun = Instant::now();
        loop {
            let log = File::options().create(true).append(true).open(self.log_path()).unwrap();
            let mut command = self.command("postgres");
            command.arg("-D").arg(self.data()).arg("-k").arg(self.folder.path());
            for setting in [
                "listen_addresses=",
                "fsync=off",
                "wal_level=logical",
                "max_wal_size=512MB",
                "max_replication_slots=8",
                "max_wal_senders=8",
                "jit=off",
            ] {
                command.args(["-c", setting]);
            }
            for setting in &self.settings {
                command.args(["-c", setting]);
            }
            command.args(["-p", &self.port.to_string()]);
            let mut child = command.stdout(log.try_clone().unwrap()).stderr(log).spawn().unwrap();
            loop {
                if Connection::open(&self.target(), false).is_ok() {
                    *self.child.lock().unwrap() = Some(child);
                    return;
                }
                assert!(begun.elapsed() < START_MAX, "PostgreSQL does not start: {}", self.log());
                std::thread::sleep(Duration::from_millis(20));
                if child.try_wait().unwrap().is_some() {
                    // What is left of one that was killed may have to end first.
                    break;
                }
            }
        }
    }

    fn log_path(&self) -> PathBuf {
        self.folder.path().join("log")
    }

    /// What the server has printed last.
    pub(crate) fn log(&self) -> String {
        let text = std::fs::read(self.log_path()).unwrap_or_default();
        String::from_utf8_lossy(&text[text.len().saturating_sub(3000)..]).into_owned()
    }

    /// Ends the server as its operators do.
    pub(crate) fn stop(&self) {
        self.end("INT");
    }

    /// Ends it and all of its processes at once.
    pub(crate) fn kill(&self) {
        self.end("KILL");
    }

    fn end(&self, signal: &str) {
        let Some(mut child) = self.child.lock().unwrap().take() else { return };
        let mut pids = vec![child.id()];
        if signal == "KILL" {
            pids.extend(children(child.id()));
        }
        for pid in pids {
            let _ = Command::new("kill").args(["-s", signal, &pid.to_string()]).status();
        }
        let _ = child.wait();
    }

    pub(crate) fn url(&self) -> String {
        let folder = self.folder.path().display();
        format!("postgres://postgres@/postgres?host={folder}&port={}", self.port)
    }

    pub(crate) fn target(&self) -> Target {
        Target::parse(&self.url()).unwrap()
    }

    pub(crate) fn connect(&self) -> Connection {
        let mut connection = Connection::open(&self.target(), false).unwrap();
        connection.set_patience(Duration::from_secs(60)).unwrap();
        connection
    }

    /// Runs statements.
    pub(crate) fn run(&self, sql: &str) {
        self.connect().query(sql, |_, _| {}).unwrap_or_else(|error| panic!("{sql}: {error}"));
    }
}

fn children(parent: u32) -> Vec<u32> {
    let entries = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    let is_child = |pid: &u32| {
        let stat = std::fs::read_to_string(Path::new("/proc").join(pid.to_string()).join("stat"));
        // The name, in parentheses, may hold spaces.
        let behind =
            stat.ok().and_then(|stat| stat.rsplit_once(')').map(|(_, rest)| rest.to_owned()));
        behind.and_then(|rest| rest.split_whitespace().nth(1)?.parse().ok()) == Some(parent)
    };
    pids.filter(is_child).collect()
}

impl Drop for Server {
    fn drop(&mut self) {
        // Nobody needs its data.
        self.end("KILL");
    }
}
