//! The thread that writes lines, to standard error or to a file.
//!
//! Whoever logs hands a line over and goes on: a pipe that nobody reads, or a disk that is slow, would otherwise hold up the
//! thread that serves clients. A few hundred lines may wait; further ones are lost, and counted. Opening the file anew takes
//! the same way as the lines do, so each of them is in the file that was there when it was logged.

use super::event;
use headwater_config::LogFormat;
use std::collections::VecDeque;
use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use tracing_subscriber::fmt::MakeWriter;

/// Lines that are remembered, to be shown.
const LINES_KEPT: usize = 200;
/// Of a line that is remembered, the first bytes.
const LINE_BYTES_KEPT: usize = 1000;
/// Lines that may wait.
const WAITING_MAX: usize = 512;
/// The file is for those who run the server.
const MODE: u32 = 0o640;

/// What the thread is to do.
enum Work {
    Line(Vec<u8>),
    Reopen,
    /// To say that all before it is done.
    Flush(SyncSender<()>),
}

/// What says in each line which process of several has written it.
#[derive(Clone)]
pub(super) enum LineTag {
    /// There is one process.
    None,
    /// A line of text begins with this.
    Text(Arc<str>),
    /// The object of a line begins with this field.
    Json(Arc<str>),
}

impl LineTag {
    /// For a process with this name; empty: there is no other.
    pub(super) fn new(process: &str, format: LogFormat) -> Self {
        match format {
            _ if process.is_empty() => Self::None,
            LogFormat::Text => Self::Text(format!("{process} ").into()),
            LogFormat::Json => {
                let name = process.escape_debug();
                Self::Json(format!("{{\"process\":\"{name}\",").into())
            }
        }
    }

    /// The line with it.
    fn line(&self, line: &[u8]) -> Vec<u8> {
        match (self, line) {
            (Self::Text(tag), line) => [tag.as_bytes(), line].concat(),
            (Self::Json(tag), [b'{', fields @ ..]) => [tag.as_bytes(), fields].concat(),
            (Self::None | Self::Json(_), line) => line.to_vec(),
        }
    }
}

/// Where lines are handed over.
#[derive(Clone)]
pub(super) struct Lines {
    tag: LineTag,
    work: SyncSender<Work>,
    lost: Arc<AtomicU64>,
    recent: Arc<Mutex<VecDeque<String>>>,
}

impl Lines {
    /// Remembers a line.
    fn keep(&self, line: &[u8]) {
        let text = String::from_utf8_lossy(&line[..line.len().min(LINE_BYTES_KEPT)]);
        let mut recent = self.recent.lock().unwrap_or_else(PoisonError::into_inner);
        if recent.len() == LINES_KEPT {
            recent.pop_front();
        }
        recent.push_back(text.trim_end().to_owned());
    }
}

impl Write for Lines {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        // Whoever formats events writes each of them at once.
        let length = line.len();
        let line = self.tag.line(line);
        self.keep(&line);
        if self.work.try_send(Work::Line(line)).is_err() {
            self.lost.fetch_add(1, Ordering::Relaxed);
        }
        Ok(length)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl MakeWriter<'_> for Lines {
    type Writer = Self;

    fn make_writer(&self) -> Self {
        self.clone()
    }
}

/// The thread, from outside.
pub(super) struct Writer(Lines);

impl Writer {
    /// Starts it; it writes to this file, or to standard error if there is no name.
    ///
    /// # Errors
    /// The file cannot be opened, or the thread not started.
    pub(super) fn start(file: &str, tag: LineTag) -> io::Result<(Self, Lines)> {
        let mut out = match file {
            "" => Out::Error(io::stderr()),
            path => Out::open(path.into())?,
        };
        let (sender, receiver) = sync_channel(WAITING_MAX);
        let (lost, recent) = (Arc::default(), Arc::default());
        let lines = Lines { tag, work: sender, lost, recent };
        let lost = lines.lost.clone();
        let write = move || write_all(&receiver, &mut out, &lost);
        std::thread::Builder::new().name(String::from("log")).spawn(write)?;
        Ok((Self(lines.clone()), lines))
    }

    /// Has the file opened anew behind all lines that were logged before.
    pub(super) fn reopen(&self) {
        // Where so many lines wait, nobody notices that one signal was not heard; it can be sent again.
        let _ = self.0.work.try_send(Work::Reopen);
    }

    /// The last lines that were logged, oldest first.
    pub(super) fn recent(&self, most: usize) -> Vec<String> {
        let recent = self.0.recent.lock().unwrap_or_else(PoisonError::into_inner);
        recent.iter().skip(recent.len().saturating_sub(most)).cloned().collect()
    }

    /// How many lines were lost since this was asked last.
    pub(super) fn take_lost(&self) -> u64 {
        self.0.lost.swap(0, Ordering::Relaxed)
    }

    /// Waits until all lines are written, but no longer than this.
    pub(super) fn flush(&self, most: Duration) {
        let until = Instant::now() + most;
        let (sender, receiver) = sync_channel(1);
        let mut work = Work::Flush(sender);
        while let Err(TrySendError::Full(again)) = self.0.work.try_send(work) {
            if Instant::now() >= until {
                return;
            }
            work = again;
            std::thread::sleep(Duration::from_millis(1));
        }
        let _ = receiver.recv_timeout(until.saturating_duration_since(Instant::now()));
    }
}

/// Where lines go.
enum Out {
    Error(io::Stderr),
    File { path: PathBuf, file: File },
}

impl Out {
    fn open(path: PathBuf) -> io::Result<Self> {
        let file = OpenOptions::new().append(true).create(true).mode(MODE).open(&path)?;
        Ok(Self::File { path, file })
    }

    fn write(&mut self, line: &[u8]) -> io::Result<()> {
        match self {
            Self::Error(out) => out.write_all(line),
            Self::File { file, .. } => file.write_all(line),
        }
    }

    /// Opens the file anew; where that fails, the one that is open goes on.
    fn reopen(&mut self) {
        if let Self::File { path, .. } = self {
            match Self::open(path.clone()) {
                Ok(new) => *self = new,
                Err(error) => {
                    let file = path.display().to_string();
                    event!(error, "log", "file_kept", file, error = %error, "it cannot be opened anew");
                }
            }
        }
    }
}

fn write_all(work: &Receiver<Work>, out: &mut Out, lost: &AtomicU64) {
    for work in work {
        match work {
            Work::Line(line) => {
                if out.write(&line).is_err() {
                    lost.fetch_add(1, Ordering::Relaxed);
                }
            }
            Work::Reopen => out.reopen(),
            Work::Flush(done) => drop(done.try_send(())),
        }
    }
}
