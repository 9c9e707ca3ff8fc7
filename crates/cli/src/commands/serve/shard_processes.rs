//! A node of a cluster that is for all shards: one process for each of them.
//!
//! What a shard's process has in memory is void when it loses its lease, so it begins anew then, and nobody else is to notice. And a shard that is
//! stopped, because its log cannot be believed, stops no other. The process that was started watches over them: it passes signals
//! on, starts again what has ended by an error, and ends with them. If it is killed, the system kills them.

use crate::commands::processes::{NodeNews, Process};
use anyhow::{Context, bail};
use headwater_server::{Config, ConfigError, MemoryShare, NodeSignal, NodeSignals, log};
use rustix::process::{Pid, Signal, getpid, getppid, set_parent_process_death_signal};
use std::ffi::OsString;
use std::io::Write;
use std::process::ExitCode;
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant, SystemTime};

/// How often it is looked who has ended, and whether a signal has come.
const LOOK: Duration = Duration::from_millis(50);
/// How long it takes until a process is started again: this the first time, and twice as long each time that follows.
const RESTART: Duration = Duration::from_secs(1);
/// At most so long; and who has run for so long is started again as if for the first time.
const RESTART_MAX: Duration = Duration::from_secs(60);

/// For how long others should own the shard of a process that has ended by an error: what it needs to own it may not be there.
const RECOVERS: Duration = Duration::from_secs(300);
/// How often processes are asked to end that have not yet: one that was about to begin anew has not heard it.
const ASKS_AGAIN: Duration = Duration::from_secs(1);
/// Owners are asked to end one after the other, until it has taken so long.
const ENDS_TOGETHER: Duration = Duration::from_secs(10);
/// What stands before the bytes that a process may take, in a line on its standard input.
const MEMORY: &str = "memory ";
/// What a process takes that stands by, about: the others of its node may take that less.
const STANDBY_BYTES: u64 = 32 << 20;

/// What a process of a node is told on its command line.
#[derive(clap::Args)]
pub(super) struct ShardProcessArgs {
    /// The shard that this process is for
    #[arg(long, hide = true, requires = "node_process")]
    shard_process: Option<u16>,
    /// The process of the node
    #[arg(long, hide = true, requires = "shard_process")]
    node_process: Option<i32>,
    /// Until then others should own the shard: seconds since 1970
    #[arg(long, hide = true, requires = "shard_process")]
    recovers_until: Option<u64>,
    /// What it is told on its standard input.
    #[arg(skip)]
    memory: MemoryShare,
}

impl ShardProcessArgs {
    /// The settings of this process, by those of the node.
    pub(super) fn apply(&self, config: Config) -> Result<Config, ConfigError> {
        let Some(shard) = self.shard_process else { return Ok(config) };
        let mut config = config.of_shard(shard)?;
        let until = self.recovers_until.unwrap_or(0);
        config.cluster.recovers_seconds = until.saturating_sub(seconds_since_1970());
        Ok(config)
    }

    /// What of its node's memory this process may take.
    pub(super) fn memory(&self) -> MemoryShare {
        self.memory.clone()
    }

    /// Has this process end with that of the node, and hear what that says.
    pub(super) fn bind_to_node(&self) -> anyhow::Result<()> {
        let Some(node) = self.node_process else { return Ok(()) };
        set_parent_process_death_signal(Some(Signal::KILL)).context("the node's process")?;
        if getppid() != Pid::from_raw(node) {
            bail!("the node's process has ended");
        }
        let memory = self.memory();
        std::thread::Builder::new().name(String::from("node")).spawn(move || {
            for line in std::io::stdin().lines().map_while(Result::ok) {
                let bytes = line.strip_prefix(MEMORY).and_then(|text| text.parse().ok());
                bytes.into_iter().for_each(|bytes| memory.set(bytes));
            }
        })?;
        Ok(())
    }
}

fn seconds_since_1970() -> u64 {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

/// A process for a shard, and how it does.
struct ShardProcess {
    process: Process,
    /// It has said that it serves clients, in this life or an earlier one.
    begun: bool,
    /// It has said that it serves clients in this life: from then on it hears SIGHUP.
    hears: bool,
    /// SIGHUP is to be passed on to it.
    reload_due: bool,
    /// It has said that it owns its shard.
    owns: bool,
    /// The line that it was told last, since it has said something.
    told: String,
    started: Instant,
    /// When it is started again, after having ended.
    due: Option<Instant>,
    /// How long that takes the next time.
    pause: Duration,
}

impl ShardProcess {
    fn new(shard: u16) -> anyhow::Result<Self> {
        let program = std::env::current_exe().context("this program")?;
        let mut arguments: Vec<OsString> = std::env::args_os().skip(1).collect();
        let (shard, node) = (shard.to_string(), getpid().as_raw_pid().to_string());
        let words = ["--shard-process", &shard, "--node-process", &node, "--recovers-until", "0"];
        arguments.extend(words.map(OsString::from));
        // The service manager is told of all processes at once.
        let process =
            Process::new(&shard, &program, arguments).without(&["NOTIFY_SOCKET"]).listening();
        let (started, pause) = (Instant::now(), RESTART);
        let (told, due) = (String::new(), None);
        let (begun, hears, reload_due, owns) = (false, false, false, false);
        Ok(Self { process, begun, hears, reload_due, owns, told, started, due, pause })
    }

    /// How long it takes until it is started again, after it has ended just now.
    fn next_pause(&mut self) -> Duration {
        if self.started.elapsed() >= RESTART_MAX {
            self.pause = RESTART;
        }
        let pause = self.pause;
        self.pause = (pause * 2).min(RESTART_MAX);
        pause
    }
}

/// What a process may take (0: there is no bound) where so many of a node's `shards` processes own their shards, this one among them, of the node's `max` bytes.
fn share(max: u64, shards: u64, owning: u64) -> u64 {
    let standing_by = (shards - owning) * STANDBY_BYTES;
    if max == 0 { 0 } else { (max.saturating_sub(standing_by) / owning).max(max / shards) }
}

/// The processes of a node.
pub(super) struct NodeProcesses {
    /// What all of them may take; 0: there is no bound.
    memory: u64,
    shards: Vec<ShardProcess>,
    lines: Receiver<(usize, String)>,
    tells: std::sync::mpsc::Sender<(usize, String)>,
    signals: NodeSignals,
    /// SIGTERM or SIGINT has come.
    ends: bool,
    /// All have said that they serve clients.
    ready: bool,
}

impl NodeProcesses {
    /// Checks the settings of all processes; none is started yet.
    pub(super) fn new(config: &Config) -> anyhow::Result<Self> {
        let (count, memory) = (config.listen.shards.number(), config.memory.max.0);
        config.check_shard_processes()?;
        let shards = (0..count).map(ShardProcess::new).collect::<anyhow::Result<_>>()?;
        let (tells, lines) = channel();
        Ok(Self {
            memory,
            shards,
            lines,
            tells,
            signals: NodeSignals::new()?,
            ends: false,
            ready: false,
        })
    }

    /// Runs them until SIGTERM or SIGINT, or until a client has one end by SHUTDOWN; another such signal kills them. SIGHUP has the settings read again.
    pub(super) fn run(
        mut self,
        read: &dyn Fn() -> Result<Config, ConfigError>,
    ) -> anyhow::Result<ExitCode> {
        let done = self.watch(read);
        // They complete what is under way, which takes as long as it takes; who asks once more does not want to wait for that.
        let mut asked: Option<Instant> = None;
        let (begun, mut first) = (Instant::now(), None);
        while self
            .shards
            .iter_mut()
            .any(|shard| shard.process.ended().is_none() && shard.process.runs())
        {
            let owning = self.owning();
            if owning != first || asked.is_none_or(|at| at.elapsed() >= ASKS_AGAIN) {
                // Those that give shards up at once could not answer each other's clients.
                let all = first.is_some() && begun.elapsed() >= ENDS_TOGETHER;
                for at in 0..self.shards.len() {
                    if all || !self.shards[at].owns || owning == Some(at) {
                        self.shards[at].process.ask_to_end();
                    }
                }
                (asked, first) = (Some(Instant::now()), owning);
            }
            if self.signals.came() == Some(NodeSignal::End)
                && std::mem::replace(&mut self.ends, true)
            {
                self.shards.iter().for_each(|shard| shard.process.signal(Signal::KILL));
            }
            self.pass_lines()?;
            std::thread::sleep(LOOK);
        }
        self.pass_lines()?;
        log::end();
        done
    }

    /// The first process that owns its shard and runs still.
    fn owning(&mut self) -> Option<usize> {
        self.shards
            .iter_mut()
            .position(|it| it.owns && it.process.ended().is_none() && it.process.runs())
    }

    fn watch(
        &mut self,
        read: &dyn Fn() -> Result<Config, ConfigError>,
    ) -> anyhow::Result<ExitCode> {
        for at in 0..self.shards.len() {
            self.start(at)?;
        }
        loop {
            if self.hear(read) {
                return Ok(ExitCode::SUCCESS);
            }
            self.pass_lines()?;
            for at in 0..self.shards.len() {
                if let Some(status) = self.shards[at].process.ended() {
                    // Who ends all processes of a service may have reached that one first.
                    std::thread::sleep(LOOK);
                    if self.hear(read) || status.success() {
                        return Ok(ExitCode::SUCCESS);
                    }
                    let shard = &mut self.shards[at];
                    if !shard.begun {
                        bail!("the process of shard {at} cannot begin: {status}");
                    }
                    let pause = shard.next_pause();
                    shard.due = Some(Instant::now() + pause);
                    // A moment, since a process that begins anew has the same arguments.
                    let until = seconds_since_1970() + RECOVERS.as_secs();
                    shard.process.set_last_argument(&until.to_string());
                    log::shard_process_ended(at, &status, pause);
                }
                let shard = &mut self.shards[at];
                if shard.due.take_if(|due| *due <= Instant::now()).is_some() {
                    self.start(at)?;
                }
            }
            std::thread::sleep(LOOK);
        }
    }

    /// Does what signals have asked for; whether the node is to end.
    fn hear(&mut self, read: &dyn Fn() -> Result<Config, ConfigError>) -> bool {
        match self.signals.came() {
            Some(NodeSignal::End) => self.ends = true,
            Some(NodeSignal::Reload) => {
                log::reopen();
                self.shards.iter_mut().for_each(|shard| shard.reload_due = true);
                self.reload_due();
                // What cannot be used each process tells of, and it changes nothing.
                let usable =
                    read().and_then(|config| config.check_shard_processes().map(|()| config));
                self.memory = usable.map_or(self.memory, |config| config.memory.max.0);
                self.share_memory();
            }
            None => {}
        }
        self.ends
    }

    /// Has those read their settings again that are to, and hear it: the others are told when they do.
    fn reload_due(&mut self) {
        for shard in self.shards.iter_mut().filter(|shard| shard.hears) {
            if std::mem::take(&mut shard.reload_due) {
                shard.process.signal(Signal::HUP);
            }
        }
    }

    fn start(&mut self, at: usize) -> anyhow::Result<()> {
        let shard = &mut self.shards[at];
        (shard.started, shard.owns, shard.hears) = (Instant::now(), false, false);
        shard.process.start(Some((at, self.tells.clone())))
    }

    /// Tells each process what it may take, where that has changed: those that own shards share equally, and one that stands by is told what it may
    /// take when it owns.
    fn share_memory(&mut self) {
        let shards = self.shards.len() as u64;
        let owning = self.shards.iter().filter(|shard| shard.owns).count() as u64;
        for shard in self.shards.iter_mut().filter(|shard| shard.begun) {
            let owning = if shard.owns { owning } else { owning + 1 };
            let line = format!("{MEMORY}{}", share(self.memory, shards, owning));
            // Where there is no bound, and was none, nothing is to be said.
            let is_news = self.memory > 0 || !shard.told.is_empty();
            if is_news && shard.told != line {
                shard.process.tell(&line);
                shard.told = line;
            }
        }
    }

    /// Shows what the processes say.
    fn pass_lines(&mut self) -> anyhow::Result<()> {
        let mut out = std::io::stdout().lock();
        while let Ok((at, line)) = self.lines.try_recv() {
            // Who reads this may have gone: the node goes on.
            let _unread = writeln!(out, "{line}").and_then(|()| out.flush());
            let shard = &mut self.shards[at];
            if let Some(news) = NodeNews::of(&line) {
                (shard.begun, shard.hears, shard.owns) = (true, true, news == NodeNews::Owns);
                // One that has begun anew knows nothing of before.
                shard.told.clear();
            }
        }
        drop(out);
        self.reload_due();
        self.share_memory();
        if !self.ready && self.shards.iter().all(|shard| shard.begun) {
            self.ready = true;
            crate::notify::ready()?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn those_that_own_share_what_those_that_stand_by_leave() {
        let of = |owning| share(1 << 30, 4, owning);
        assert_eq!(of(4), (1 << 30) / 4);
        assert_eq!(of(2), ((1 << 30) - 2 * STANDBY_BYTES) / 2);
        assert_eq!(of(1), (1 << 30) - 3 * STANDBY_BYTES);
        // Never less than where all own.
        assert_eq!(share(64 << 20, 4, 1), 16 << 20);
        for owning in 1..=4 {
            assert!(of(owning) * owning <= 1 << 30);
        }
    }
}
