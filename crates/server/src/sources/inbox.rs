//! Where sources put their news, and what wakes the loop for it.
//!
//! # Cost
//! A queue of bounded length: a source that tells faster than the shard applies is held up. The loop
//! is woken once for all news that it has not begun to take.

use headwater_base::source::{News, Sink};
use mio::Waker;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, OnceLock};

/// News that may wait to be taken.
const WAITING_MAX: usize = 1024;
/// News taken in one turn, so that clients have theirs.
const TAKEN_MAX: usize = 256;

/// The loop's side.
#[derive(Debug)]
pub(crate) struct Inbox {
    receiver: Receiver<(Arc<str>, News)>,
    sender: SyncSender<(Arc<str>, News)>,
    bell: Arc<Bell>,
}

#[derive(Debug, Default)]
struct Bell {
    waker: OnceLock<Arc<Waker>>,
    /// It has been rung, and nobody has come yet.
    rung: AtomicBool,
}

/// One source's side.
struct Outlet {
    source: Arc<str>,
    sender: SyncSender<(Arc<str>, News)>,
    bell: Arc<Bell>,
}

impl Inbox {
    pub(crate) fn new() -> Self {
        let (sender, receiver) = sync_channel(WAITING_MAX);
        Self { receiver, sender, bell: Arc::default() }
    }

    /// Sets what wakes the loop.
    pub(crate) fn set_waker(&self, waker: Arc<Waker>) {
        // There is one loop, which sets it once.
        let _ = self.bell.waker.set(waker);
    }

    /// What the source named so tells its news to.
    pub(crate) fn sink(&self, source: &str) -> Arc<dyn Sink> {
        let (sender, bell) = (self.sender.clone(), self.bell.clone());
        Arc::new(Outlet { source: source.into(), sender, bell })
    }

    /// Has the loop come round, from any thread.
    pub(crate) fn bell(&self) -> impl Fn() + Send + Sync + 'static {
        let bell = self.bell.clone();
        move || bell.ring()
    }

    /// Takes the next news, each with its source; rings again where some is left.
    pub(crate) fn take(&self) -> Vec<(Arc<str>, News)> {
        if !self.bell.rung.swap(false, Ordering::AcqRel) {
            return Vec::new();
        }
        let taken: Vec<_> = self.receiver.try_iter().take(TAKEN_MAX).collect();
        if taken.len() == TAKEN_MAX {
            self.bell.ring();
        }
        taken
    }
}

impl Bell {
    fn ring(&self) {
        if !self.rung.swap(true, Ordering::AcqRel)
            && let Some(waker) = self.waker.get()
        {
            // Without it the loop comes round by itself, a little later.
            let _ = waker.wake();
        }
    }
}

impl Sink for Outlet {
    fn tell(&self, news: News) -> bool {
        let told = self.sender.send((self.source.clone(), news)).is_ok();
        self.bell.ring();
        told
    }
}

#[cfg(test)]
mod tests {
    use super::{Inbox, TAKEN_MAX};
    use headwater_base::source::{News, Position};

    #[test]
    fn everything_is_taken_in_order_a_part_at_a_time() {
        let inbox = Inbox::new();
        let sink = inbox.sink("shop");
        let count = TAKEN_MAX as u64 + 10;
        for position in 0..count {
            let news = News::Changed { position: Position(position), changes: Vec::new() };
            assert!(sink.tell(news));
        }
        let first = inbox.take();
        assert_eq!(first.len(), TAKEN_MAX);
        let all: Vec<_> = first.into_iter().chain(inbox.take()).collect();
        assert!(inbox.take().is_empty());
        let seen = all.iter().map(|(source, news)| match news {
            News::Changed { position, .. } => (&**source, position.0),
            other => panic!("{other:?}"),
        });
        assert!(seen.eq((0..count).map(|position| ("shop", position))));
    }

    #[test]
    fn a_source_is_told_when_nobody_listens() {
        let inbox = Inbox::new();
        let sink = inbox.sink("shop");
        drop(inbox);
        assert!(!sink.tell(News::Changed { position: Position(1), changes: Vec::new() }));
    }
}
