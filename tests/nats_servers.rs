//! Three NATS servers as processes of a test.

use rustix::process::{Pid, Signal, kill_process};
use std::fs;
use std::net::TcpListener;
use std::ops::Range;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread::sleep;
use std::time::Duration;
use tempfile::TempDir;

/// The program, where it is on this machine: `HEADWATER_NATS_SERVER`, on the path, or in the Python environment of `.ci/run`. With `HEADWATER_NEEDS_NATS` it must be.
pub(crate) fn program() -> Option<PathBuf> {
    let named = std::env::var_os("HEADWATER_NATS_SERVER").map(PathBuf::from);
    let path = std::env::var_os("PATH").unwrap_or_default();
    let on_path = std::env::split_paths(&path).map(|folder| folder.join("nats-server"));
    let target = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../target");
    let environment = target.join("ci-python/bin/nats-server");
    let found = named.into_iter().chain(on_path).chain([environment]).find(|path| path.is_file());
    let is_needed = std::env::var_os("HEADWATER_NEEDS_NATS").is_some();
    assert!(
        found.is_some() || !is_needed,
        "there is no nats-server, and HEADWATER_NEEDS_NATS is set"
    );
    found
}

/// Where ports are taken from: those that the system gives to outgoing connections and to servers that name none begin at 32 768, and
/// one of them could be given away before a server of the test binds it.
const PORTS: Range<u16> = 10_000..20_000;
/// Nodes reach each other at their port and so much.
pub(crate) const LINK_PORT_OFFSET: u16 = 10_000;

/// Ports of this machine that nobody listens at, each with the one at which nodes reach each other free as well. None is given twice, until all
/// were given; other processes of tests begin elsewhere.
pub(crate) fn free_ports(count: usize) -> Vec<u16> {
    static TRIED: AtomicU32 = AtomicU32::new(0);
    let first = std::process::id().wrapping_mul(64);
    let all = (0..PORTS.len()).map(|_| {
        let step = first.wrapping_add(TRIED.fetch_add(1, Ordering::Relaxed));
        PORTS.start + (step % PORTS.len() as u32) as u16
    });
    let is_free = |port: u16| TcpListener::bind(("127.0.0.1", port)).is_ok();
    let free = all.filter(|port| is_free(*port) && is_free(port + LINK_PORT_OFFSET));
    let found: Vec<u16> = free.take(count).collect();
    assert_eq!(found.len(), count, "no port from {} to {} is free", PORTS.start, PORTS.end - 1);
    found
}

/// The URLs of servers at these ports, with commas between.
pub(crate) fn urls(ports: &[u16]) -> String {
    let url = |port: &u16| format!("nats://127.0.0.1:{port}");
    ports.iter().map(url).collect::<Vec<_>>().join(",")
}

/// Three servers, which end with this.
pub(crate) struct Servers {
    program: PathBuf,
    folder: TempDir,
    /// Ports for clients, for one another, and for monitoring.
    ports: Vec<u16>,
    processes: Vec<Option<Child>>,
}

pub(crate) const SERVERS: usize = 3;

impl Servers {
    /// Starts servers, of which clients know those alone that they are told; `sync` being their setting of `sync_interval`.
    pub(crate) fn start(program: PathBuf, sync: &str) -> Self {
        Self::start_with(program, sync, "")
    }

    /// The same, with more in their configuration.
    pub(crate) fn start_with(program: PathBuf, sync: &str, more: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let ports = free_ports(3 * SERVERS);
        let mut servers = Self { program, folder, ports, processes: Vec::new() };
        for at in 0..SERVERS {
            let routes: Vec<_> = (0..SERVERS)
                .map(|other| format!("nats://127.0.0.1:{}", servers.ports[SERVERS + other]))
                .collect();
            let text = format!(
                "server_name: s{at}\nlisten: 127.0.0.1:{}\nhttp: 127.0.0.1:{}\n\
                 jetstream {{ store_dir: {:?}, sync_interval: {sync} }}\n\
                 cluster {{ name: c, listen: 127.0.0.1:{}, routes: [{}], no_advertise: true }}\n{more}\n",
                servers.ports[at],
                servers.ports[2 * SERVERS + at],
                servers.folder.path().join(format!("s{at}")),
                servers.ports[SERVERS + at],
                routes.join(", "),
            );
            fs::write(servers.folder.path().join(format!("s{at}.conf")), text).unwrap();
            servers.processes.push(None);
            servers.restart(at);
        }
        servers
    }

    pub(crate) fn restart(&mut self, at: usize) {
        let log = fs::File::create(self.folder.path().join(format!("s{at}.log"))).unwrap();
        let child = Command::new(&self.program)
            .arg("-c")
            .arg(self.folder.path().join(format!("s{at}.conf")))
            .stdout(Stdio::null())
            .stderr(log)
            .spawn()
            .unwrap();
        self.processes[at] = Some(child);
    }

    /// kill -9.
    pub(crate) fn kill(&mut self, at: usize) {
        if let Some(mut child) = self.processes[at].take() {
            child.kill().unwrap();
            child.wait().unwrap();
        }
    }

    fn signal(&self, at: usize, signal: Signal) {
        let child = self.processes[at].as_ref().expect("it runs");
        kill_process(Pid::from_child(child), signal).unwrap();
    }

    pub(crate) fn stop(&self, at: usize) {
        self.signal(at, Signal::STOP);
    }

    pub(crate) fn go_on(&self, at: usize) {
        self.signal(at, Signal::CONT);
    }

    /// The URLs of these of the servers, with commas between.
    pub(crate) fn urls(&self, which: &[usize]) -> String {
        urls(&which.iter().map(|&at| self.port(at)).collect::<Vec<_>>())
    }

    /// The port of a server for clients.
    pub(crate) fn port(&self, at: usize) -> u16 {
        self.ports[at]
    }

    /// The monitoring addresses of all.
    pub(crate) fn monitoring(&self) -> Vec<String> {
        let ports = &self.ports[2 * SERVERS..];
        ports.iter().map(|port| format!("http://127.0.0.1:{port}")).collect()
    }

    /// What a server says of itself.
    pub(crate) fn page(&self, at: usize, page: &str) -> serde_json::Value {
        let address = format!("http://127.0.0.1:{}/{page}", self.ports[2 * SERVERS + at]);
        let page = ureq::get(address).call();
        let text = page.and_then(|mut page| page.body_mut().read_to_string());
        // A server that has just begun may say anything.
        text.ok().and_then(|text| serde_json::from_str(&text).ok()).unwrap_or_default()
    }

    /// What the first server says of a stream.
    fn stream(&self, name: &str) -> Option<serde_json::Value> {
        let page = self.page(0, "jsz?accounts=true&streams=true");
        let streams = page["account_details"][0]["stream_detail"].as_array().cloned();
        streams.into_iter().flatten().find(|one| one["name"] == name)
    }

    /// How many subjects a stream has messages of, as the first server knows it.
    pub(crate) fn subjects(&self, stream: &str) -> Option<u64> {
        self.stream(stream)?["state"]["num_subjects"].as_u64()
    }

    /// The server that leads a stream.
    pub(crate) fn leader(&self, stream: &str) -> usize {
        for _ in 0..600 {
            let found = self.stream(stream);
            let leader = found.and_then(|one| one["cluster"]["leader"].as_str()?[1..].parse().ok());
            if let Some(leader) = leader {
                return leader;
            }
            sleep(Duration::from_millis(100));
        }
        panic!("no leader of {stream} within a minute");
    }

    /// Waits until all three are one cluster.
    pub(crate) fn wait(&self) {
        for _ in 0..600 {
            let up = |at: usize| {
                let meta = &self.page(at, "jsz")["meta_cluster"];
                meta["leader"].is_string() && meta["cluster_size"] == 3
            };
            if (0..SERVERS).all(up) {
                return;
            }
            sleep(Duration::from_millis(100));
        }
        panic!("no cluster of NATS servers within a minute");
    }
}

impl Drop for Servers {
    fn drop(&mut self) {
        for at in 0..SERVERS {
            self.kill(at);
        }
    }
}
