//! The clock by which calls are looked at that take long.
//!
//! A thread counts ticks of a millisecond for WebAssembly code to look at, while functions are called;
//! when none has been for a while, it sleeps until one is. So a call costs two stores, and an idle
//! server is not woken a thousand times a second.
//!
//! # Invariants
//! - C1. While a call is under way, the thread ticks, or is about to: a call that finds it
//!   sleeping wakes it, and it looks for calls once more after it has said that it sleeps.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{Builder, JoinHandle, Thread};
use std::time::Duration;
use wasmtime::Engine;

/// How long a tick is.
pub(crate) const TICK: Duration = Duration::from_millis(1);
/// Ticks without a call before the thread sleeps.
const IDLE_TICKS: u32 = 50;

#[derive(Debug)]
struct Shared {
    /// Odd while a call is under way; more with each.
    calls: AtomicU64,
    sleeping: AtomicBool,
    ended: AtomicBool,
}

/// Ticks while functions are called.
#[derive(Debug)]
pub(crate) struct Clock {
    shared: Arc<Shared>,
    calls: u64,
    thread: Thread,
    handle: Option<JoinHandle<()>>,
}

impl Clock {
    pub(crate) fn start(engine: Engine) -> std::io::Result<Self> {
        let shared = Arc::new(Shared {
            calls: AtomicU64::new(0),
            sleeping: AtomicBool::new(false),
            ended: AtomicBool::new(false),
        });
        let of_thread = shared.clone();
        let builder = Builder::new().name(String::from("functions-clock"));
        let handle = builder.spawn(move || of_thread.tick(&engine))?;
        let thread = handle.thread().clone();
        Ok(Self { shared, calls: 0, thread, handle: Some(handle) })
    }

    /// A call begins.
    #[inline]
    pub(crate) fn begin(&mut self) {
        self.calls += 1;
        self.shared.calls.store(self.calls, Ordering::SeqCst);
        if self.shared.sleeping.load(Ordering::SeqCst) {
            self.wake();
        }
    }

    #[cold]
    fn wake(&self) {
        self.shared.sleeping.store(false, Ordering::SeqCst);
        self.thread.unpark();
    }

    /// The call has ended.
    #[inline]
    pub(crate) fn end(&mut self) {
        self.calls += 1;
        self.shared.calls.store(self.calls, Ordering::Release);
    }
}

impl Shared {
    fn tick(&self, engine: &Engine) {
        let (mut seen, mut idle) = (0, 0);
        while !self.ended.load(Ordering::SeqCst) {
            std::thread::sleep(TICK);
            engine.increment_epoch();
            let calls = self.calls.load(Ordering::SeqCst);
            idle = if calls == seen && calls.is_multiple_of(2) { idle + 1 } else { 0 };
            seen = calls;
            if idle < IDLE_TICKS {
                continue;
            }
            self.sleeping.store(true, Ordering::SeqCst);
            if self.calls.load(Ordering::SeqCst) == seen {
                while self.sleeping.load(Ordering::SeqCst) && !self.ended.load(Ordering::SeqCst) {
                    std::thread::park();
                }
            }
            self.sleeping.store(false, Ordering::SeqCst);
            idle = 0;
        }
    }
}

impl Drop for Clock {
    fn drop(&mut self) {
        self.shared.ended.store(true, Ordering::SeqCst);
        self.thread.unpark();
        if let Some(handle) = self.handle.take() {
            // A thread that panicked ticks no more, which is all that is wanted.
            let _ = handle.join();
        }
    }
}
