//! Being interrupted: the servers end with us, and their folders are removed.
//!
//! The handler only kills the servers and sets a flag. The generator then meets a closed
//! connection or the flag, returns an error, and all guards do their work on the way out.

use anyhow::{Context, Result, bail};
use core::time::Duration;
use rustix::process::{Pid, Signal, kill_process};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

/// How often who waits looks whether we were interrupted.
const LOOK: Duration = Duration::from_millis(100);

static STOPPED: AtomicBool = AtomicBool::new(false);
/// Servers that run now, and the signal that ends each at once.
static RUNNING: Mutex<Vec<(u32, Signal)>> = Mutex::new(Vec::new());

/// Handles ctrl-c and SIGTERM from now on.
///
/// # Errors
/// The kernel refuses.
pub fn handle_signals() -> Result<()> {
    ctrlc::set_handler(|| {
        STOPPED.store(true, Ordering::SeqCst);
        if let Ok(running) = RUNNING.lock() {
            for &(pid, signal) in running.iter() {
                send(pid, signal);
            }
        }
    })
    .context("cannot handle signals")
}

/// Fails once we were interrupted.
///
/// # Errors
/// We were.
pub fn check() -> Result<()> {
    if STOPPED.load(Ordering::Relaxed) {
        bail!("interrupted; the servers were stopped and their folders removed");
    }
    Ok(())
}

/// Waits until a moment.
///
/// # Errors
/// We were interrupted.
pub fn sleep_until(moment: Instant) -> Result<()> {
    while Instant::now() < moment {
        check()?;
        std::thread::sleep((moment - Instant::now().min(moment)).min(LOOK));
    }
    check()
}

/// Notes a running server; the caller must [`forget`] it before it waits for its end.
pub fn note(pid: u32, signal: Signal) {
    if let Ok(mut running) = RUNNING.lock() {
        running.push((pid, signal));
    }
    // The signal may have come between the start and the note.
    if STOPPED.load(Ordering::SeqCst) {
        send(pid, signal);
    }
}

/// Forgets a server that is about to be reaped: its number may be given to another process.
pub fn forget(pid: u32) {
    if let Ok(mut running) = RUNNING.lock() {
        running.retain(|&(other, _)| other != pid);
    }
}

/// Sends a signal to a process that we started.
pub fn send(pid: u32, signal: Signal) {
    if let Some(pid) = Pid::from_raw(pid as i32) {
        // It may have ended by itself: then there is nothing to do.
        let _ = kill_process(pid, signal);
    }
}
