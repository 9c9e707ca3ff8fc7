//! The connections to shards in processes of their own that a shard's loop carries itself.

use super::Transport;
use super::links::{DirectLine, NewLine};
use super::message::MessageBatch;
use crate::service::SocketNews;
use headwater_base::Shard;
use mio::{Registry, Token};

/// One for each shard at most.
#[derive(Debug)]
pub(crate) struct DirectLines {
    /// By shard.
    all: Vec<Option<DirectLine>>,
    /// Where they are registered, and the first of their tokens: each shard has two, for connections of odd and of even counts.
    registry: Option<(Registry, usize)>,
    /// The turn's time, in milliseconds of the server's life, and that of the turn before.
    now: u64,
    before: u64,
}

impl DirectLines {
    pub(super) fn new(shards: usize) -> Self {
        Self { all: (0..shards).map(|_| None).collect(), registry: None, now: 0, before: 0 }
    }

    pub(super) fn set_registry(&mut self, registry: Registry, first: usize) {
        self.registry = Some((registry, first));
    }

    /// What a shard is connected by from now on, if it is; the connection of this count.
    pub(super) fn replace(&mut self, shard: Shard, (count, new): (u64, Option<NewLine>)) {
        let (at, Some((registry, first))) = (usize::from(shard.0), &self.registry) else { return };
        if let Some(line) = self.all[at].take() {
            // Its socket is closed, so that nothing comes of it either way.
            let _gone = line.close(registry);
        }
        let token = Token(first + 2 * at + (count % 2) as usize);
        // It was made since the turn before, however long ago that is.
        let begin = |new| DirectLine::new(new, (registry, token), self.now).heard_by(self.before);
        self.all[at] = new.map(begin);
    }

    /// There is news of a connection, whose token is so much behind the first one.
    pub(crate) fn news(&mut self, at: usize, news: SocketNews) {
        let (at, is_odd) = (at / 2, at % 2 == 1);
        let line = self.all.get_mut(at).and_then(Option::as_mut);
        // There may be late news of the one before.
        if let Some(line) = line.filter(|line| line.is_odd() == is_odd) {
            line.take_news(news);
        }
    }

    /// A turn begins; `now` in milliseconds of the server's life.
    #[inline]
    pub(crate) fn turn(&mut self, now: u64) {
        (self.before, self.now) = (self.now, now);
        self.all.iter_mut().flatten().for_each(|line| line.turn(now));
    }

    /// For how many milliseconds nothing has been heard over a connection, `now` as in [`Self::turn`]; `None`: it is carried elsewhere.
    pub(crate) fn silence(&self, shard: Shard, now: u64) -> Option<u64> {
        let line = self.all.get(usize::from(shard.0))?.as_ref()?;
        Some(line.silence(now))
    }

    /// Whether something may be read.
    pub(super) fn is_any_readable(&self) -> bool {
        self.all.iter().flatten().any(DirectLine::is_readable)
    }

    /// Whether something was taken to be sent, and is not with the system.
    pub(super) fn has_unsent(&self) -> bool {
        self.all.iter().flatten().any(DirectLine::has_unsent)
    }

    /// Takes what has come, and looks who is there.
    #[inline]
    pub(super) fn read(&mut self, transport: &Transport) -> Vec<MessageBatch> {
        let mut batches = Vec::new();
        for line in self.all.iter_mut().flatten() {
            line.read(transport, &mut batches);
            line.look();
        }
        batches
    }

    /// Sends what was written.
    #[inline]
    pub(super) fn write(&mut self, transport: &Transport) {
        self.all.iter_mut().flatten().for_each(|line| line.write(transport));
    }
}
