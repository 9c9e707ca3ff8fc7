//! Where sources put their news, and what wakes the loop for it.
//!
//! Each shard has an inbox. What a source says to all (changes, resets, how it does) goes to each of them, in one order; an
//! answer goes to the shard that asked. So every shard sees its own loads and all changes in the source's order, as a
//! single one would, and applies of the changes those whose keys are its own.
//!
//! # Invariants
//! - N1. What a source tells all shards arrives at each in the order in which it was told, and so does an answer among it.
//!
//! # Cost
//! A queue of bounded length: a source that tells faster than the slowest shard applies is held up. The loop
//! is woken once for all news that it has not begun to take. With several shards the changes of a transaction are shared,
//! not copied.

use crate::log::event;
use headwater_base::Shard;
use headwater_base::source::{Change, FetchId, Health, News, Position, Sink};
use mio::Waker;
#[cfg(test)]
use std::collections::VecDeque;
#[cfg(test)]
use std::sync::MutexGuard;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Condvar, Mutex, OnceLock, PoisonError};
use std::time::Duration;

/// News that may wait to be taken.
const WAITING_MAX: usize = 1024;
/// How long a source waits for answers to what it asks for room, how often it asks where room is to come, and how long it pauses before.
const ROOM_PATIENCE: Duration = Duration::from_secs(1);
const ROOM_TRIES: u32 = 20;
const ROOM_PAUSE: Duration = Duration::from_millis(20);
/// News taken in one turn, so that clients have theirs.
const TAKEN_MAX: usize = 256;

/// The bits of a number given to a source that are the asking shard's own.
const OWN_BITS: u32 = 48;

/// A number that names a load or a request of a shard among those of all.
pub(super) fn of_all(shard: Shard, number: u64) -> u64 {
    debug_assert!(number >> OWN_BITS == 0, "a shard asks less often");
    u64::from(shard.0) << OWN_BITS | number
}

/// Whose number it is, and what the shard calls it.
fn of_one(number: u64) -> (Shard, u64) {
    (Shard((number >> OWN_BITS) as u16), number & ((1 << OWN_BITS) - 1))
}

/// The place of a shard among those of a process that begin with `first`.
pub(super) fn place(first: Shard, shard: Shard) -> Option<usize> {
    shard.0.checked_sub(first.0).map(usize::from)
}

/// Which source tells something.
#[derive(Debug)]
pub(crate) struct Tag {
    /// Its name.
    pub(crate) name: Box<str>,
    /// Greater for each source that is added: a name may be used again.
    pub(crate) number: u64,
    /// The position that each shard of this process has applied.
    applied: Box<[AtomicU64]>,
    /// The first of these shards.
    first: Shard,
}

impl Tag {
    pub(super) fn new(name: &str, number: u64, slots: &Slots) -> Arc<Self> {
        let applied = slots.all.iter().map(|_| AtomicU64::new(0)).collect();
        Arc::new(Self { name: name.into(), number, applied, first: slots.first })
    }

    /// Notes that a shard has applied what the source told up to `position`.
    pub(crate) fn reach(&self, shard: Shard, position: Position) {
        if let Some(applied) = place(self.first, shard).and_then(|at| self.applied.get(at)) {
            applied.fetch_max(position.0, Ordering::Relaxed);
        }
    }

    /// The position that all shards have applied.
    pub(super) fn reached(&self) -> Position {
        let all = self.applied.iter().map(|applied| applied.load(Ordering::Relaxed));
        Position(all.min().unwrap_or_default())
    }
}

/// What a source tells one shard.
#[derive(Debug)]
pub(crate) enum Told {
    /// As it said it.
    News(News),
    /// One transaction, of which other shards are told as well.
    Changed {
        /// Where the source stands after it.
        position: Position,
        /// What it changed.
        changes: Arc<Vec<Change>>,
    },
    /// That it is about to take what it has [promised](SourceMemory::promised), for which each shard is to make room.
    Taking {
        /// Who waits for that.
        asked: Arc<AskedRoom>,
    },
}

/// Room that was asked for, and that some shards have yet to make.
#[derive(Debug)]
pub(crate) struct AskedRoom {
    state: Mutex<RoomAnswers>,
    answered: Condvar,
}

#[derive(Clone, Copy, Debug)]
struct RoomAnswers {
    /// How many shards have not answered.
    left: usize,
    best: RoomAnswer,
}

/// What a shard says to who asks for room.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum RoomAnswer {
    /// There is none, and nothing more can go.
    None,
    /// There will be some when rows that wait are stored, or refused.
    Frees,
    /// There will be some in a moment.
    Comes,
    /// There is.
    There,
}

impl RoomAnswer {
    /// Whether it is worth asking again.
    pub(crate) fn is_for_later(self) -> bool {
        matches!(self, Self::Comes | Self::Frees)
    }
}

impl AskedRoom {
    fn of(shards: usize) -> Arc<Self> {
        let state = Mutex::new(RoomAnswers { left: shards, best: RoomAnswer::None });
        Arc::new(Self { state, answered: Condvar::new() })
    }

    /// A shard has done what it can.
    pub(crate) fn answer(&self, answer: RoomAnswer) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        *state = RoomAnswers { left: state.left.saturating_sub(1), best: state.best.max(answer) };
        self.answered.notify_all();
    }

    /// Waits until all have answered, or for so long. Where one is busy for longer, room may come.
    fn wait(&self, most: Duration) -> RoomAnswer {
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let waited = self.answered.wait_timeout_while(state, most, |state| state.left > 0);
        let (state, _) = waited.unwrap_or_else(PoisonError::into_inner);
        if state.left > 0 { state.best.max(RoomAnswer::Comes) } else { state.best }
    }
}

/// The loop's side.
#[derive(Debug)]
pub(crate) struct Inbox {
    receiver: Receiver<(Arc<Tag>, Told)>,
    slot: Slot,
}

/// The way into an inbox.
#[derive(Clone, Debug)]
pub(super) struct Slot {
    sender: SyncSender<(Arc<Tag>, Told)>,
    bell: Arc<Bell>,
    memory: Arc<SourceMemory>,
}

#[derive(Debug, Default)]
struct Bell {
    waker: OnceLock<Arc<Waker>>,
    /// It has been rung, and nobody has come yet.
    rung: AtomicBool,
    /// Where a simulation says when news comes.
    #[cfg(test)]
    simulated: Mutex<Option<SimulatedNews>>,
}

/// News that a simulation has let come.
#[cfg(test)]
#[derive(Debug, Default)]
struct SimulatedNews {
    come: VecDeque<(Arc<Tag>, Told)>,
    /// How many answers of loads were among all of it.
    loads: u64,
}

/// The side of a source that one shard has alone.
struct Outlet {
    tag: Arc<Tag>,
    slot: Slot,
}

/// The ways into the inboxes of all shards of this process.
#[derive(Clone, Debug)]
pub(super) struct Slots {
    /// The first of these shards; the others follow.
    pub(super) first: Shard,
    pub(super) all: Arc<[Slot]>,
}

/// What rows of all sources take, or are about to, that no shard has in its count.
#[derive(Debug, Default)]
pub(crate) struct SourceMemory {
    /// Bytes that room was made for, and that may not have been taken yet.
    promised: AtomicUsize,
    /// How many answers of loads with rows are in inboxes.
    answers: AtomicUsize,
}

impl SourceMemory {
    /// Bytes that sources may take at any time.
    pub(crate) fn promised(&self) -> usize {
        self.promised.load(Ordering::Relaxed)
    }

    /// Whether rows wait in an inbox: once they are stored, or refused, the memory that they came in is free.
    pub(crate) fn has_answers(&self) -> bool {
        self.answers.load(Ordering::Relaxed) > 0
    }

    /// An answer was taken out of its inbox.
    pub(crate) fn end_answer(&self, told: &Told) {
        if told.has_rows() {
            self.answers.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

impl Told {
    fn has_rows(&self) -> bool {
        // Where an answer has few rows, they are not worth waiting for.
        matches!(self, Self::News(News::LoadedPart { .. }))
    }
}

/// The side of a source that all shards of a process share.
pub(super) struct Outlets {
    pub(super) tag: Arc<Tag>,
    pub(super) slots: Slots,
}

impl Inbox {
    /// Waits until so many loads were answered since the beginning, and has the answers come in the order in which they were asked for. From then on nothing is taken
    /// that this was not called for: what a thread has answered within the turn in which it was asked comes no earlier than what it answers later, and a
    /// simulation is the same each time. `false`: all of them had come.
    #[cfg(test)]
    pub(crate) fn simulate_answers(&self, answered: u64) -> bool {
        let fetch = |told: &Told| match told {
            Told::News(News::Loaded { fetch, .. }) => Some(fetch.0),
            _ => None,
        };
        let simulated = &mut *self.slot.bell.simulated();
        let simulated = simulated.get_or_insert_default();
        let awaited = answered - simulated.loads;
        let mut all = Vec::new();
        while (all.iter().filter(|(_, told)| fetch(told).is_some()).count() as u64) < awaited {
            let one = self.receiver.recv_timeout(Duration::from_secs(60));
            all.push(one.expect("a disk that answers"));
        }
        all.sort_by_key(|(_, told)| fetch(told));
        simulated.loads = answered;
        simulated.come.extend(all);
        self.slot.bell.ring();
        awaited > 0
    }

    /// An inbox of one of the shards whose sources take of this memory.
    pub(crate) fn new(memory: &Arc<SourceMemory>) -> Self {
        let (sender, receiver) = sync_channel(WAITING_MAX);
        Self { receiver, slot: Slot { sender, bell: Arc::default(), memory: memory.clone() } }
    }

    /// What rows of sources take beside data.
    pub(crate) fn memory(&self) -> &Arc<SourceMemory> {
        &self.slot.memory
    }

    pub(super) fn slot(&self) -> Slot {
        self.slot.clone()
    }

    /// Sets what wakes the loop.
    pub(crate) fn set_waker(&self, waker: Arc<Waker>) {
        // There is one loop, which sets it once.
        let _ = self.slot.bell.waker.set(waker);
    }

    /// What a source that is this shard's own tells its news to.
    pub(crate) fn sink(&self, source: &str) -> Arc<dyn Sink> {
        let none = Slots { first: Shard(0), all: [].into() };
        Arc::new(Outlet { tag: Tag::new(source, 0, &none), slot: self.slot() })
    }

    /// Has the loop come round, from any thread.
    pub(crate) fn bell(&self) -> impl Fn() + Send + Sync + 'static {
        let bell = self.slot.bell.clone();
        move || bell.ring()
    }

    /// The next news.
    fn take_some(&self) -> Vec<(Arc<Tag>, Told)> {
        #[cfg(test)]
        if let Some(SimulatedNews { come, .. }) = &mut *self.slot.bell.simulated() {
            return come.drain(..come.len().min(TAKEN_MAX)).collect();
        }
        self.receiver.try_iter().take(TAKEN_MAX).collect()
    }

    /// Takes the next news, each with its source; rings again where some is left.
    pub(crate) fn take(&self) -> Vec<(Arc<Tag>, Told)> {
        if !self.slot.bell.rung.swap(false, Ordering::AcqRel) {
            return Vec::new();
        }
        let taken = self.take_some();
        if taken.len() == TAKEN_MAX {
            self.slot.bell.ring();
        }
        taken
    }
}

impl Bell {
    #[cfg(test)]
    fn simulated(&self) -> MutexGuard<'_, Option<SimulatedNews>> {
        self.simulated.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn ring(&self) {
        if !self.rung.swap(true, Ordering::AcqRel)
            && let Some(waker) = self.waker.get()
        {
            // Without it the loop comes round by itself, a little later.
            let _ = waker.wake();
        }
    }
}

impl Slot {
    fn put(&self, tag: &Arc<Tag>, told: Told) -> bool {
        if told.has_rows() {
            self.memory.answers.fetch_add(1, Ordering::Relaxed);
        }
        let sent = self.sender.send((tag.clone(), told));
        if let Err(refused) = &sent {
            self.memory.end_answer(&refused.0.1);
        }
        self.bell.ring();
        sent.is_ok()
    }
}

impl Sink for Outlet {
    fn tell(&self, news: News) -> bool {
        self.slot.put(&self.tag, Told::News(news))
    }
}

impl Outlets {
    fn to(&self, shard: Shard, news: News) -> bool {
        let slot = place(self.slots.first, shard).and_then(|at| self.slots.all.get(at));
        slot.is_some_and(|slot| slot.put(&self.tag, Told::News(news)))
    }

    fn memory(&self) -> Option<&SourceMemory> {
        self.slots.all.first().map(|slot| &*slot.memory)
    }

    fn to_all(&self, news: &dyn Fn() -> Told) -> bool {
        self.slots.all.iter().all(|slot| slot.put(&self.tag, news()))
    }
}

impl Sink for Outlets {
    fn tell(&self, news: News) -> bool {
        match news {
            News::Loaded { fetch, mut answer } => {
                let (shard, fetch) = of_one(fetch.0);
                // Here, where no client waits for it: the engine takes them in parts.
                if let Ok(loaded) = &mut answer {
                    loaded.pairs.sort_by(|one, next| one.key.cmp(&next.key));
                }
                self.to(shard, News::Loaded { fetch: FetchId(fetch), answer })
            }
            News::LoadedPart { fetch, part } => {
                let (shard, fetch) = of_one(fetch.0);
                self.to(shard, News::LoadedPart { fetch: FetchId(fetch), part })
            }
            News::Declared { request, answer } => {
                let (shard, request) = of_one(request);
                self.to(shard, News::Declared { request, answer })
            }
            News::Position { request, answer } => {
                let (shard, request) = of_one(request);
                self.to(shard, News::Position { request, answer })
            }
            News::Written { request, answer } => {
                let (shard, request) = of_one(request);
                self.to(shard, News::Written { request, answer })
            }
            News::Changed { position, changes } => {
                let changes = Arc::new(changes);
                self.to_all(&|| Told::Changed { position, changes: changes.clone() })
            }
            news @ (News::Reset { .. } | News::Health(_)) => {
                if let News::Health(health) = &news {
                    tell_health(&self.tag.name, health);
                }
                self.to_all(&|| Told::News(news.clone()))
            }
        }
    }

    fn make_room(&self, bytes: usize) -> bool {
        let Some(memory) = self.memory() else { return false };
        memory.promised.fetch_add(bytes, Ordering::Relaxed);
        let mut last = RoomAnswer::None;
        for _ in 0..ROOM_TRIES {
            let asked = AskedRoom::of(self.slots.all.len());
            let told = self.to_all(&|| Told::Taking { asked: asked.clone() });
            last = asked.wait(ROOM_PATIENCE);
            match last {
                RoomAnswer::There if told => return true,
                later if told && later.is_for_later() => std::thread::sleep(ROOM_PAUSE),
                _ => break,
            }
        }
        // What a load asks for at a time is little beside the bound: where others give some back it goes on, and data is evicted for it sooner or later.
        if last != RoomAnswer::Comes {
            self.took(bytes);
        }
        last == RoomAnswer::Comes
    }

    fn took(&self, bytes: usize) {
        if let Some(memory) = self.memory() {
            memory.promised.fetch_sub(bytes, Ordering::Relaxed);
        }
    }

    fn note(&self, what: &'static str, why: &str) {
        let source = &*self.tag.name;
        event!(
            info,
            "sources",
            "source_changed",
            source,
            what,
            why,
            "something happened to a source"
        );
    }
}

/// Tells those who run the server how a source does, which is told here once for all shards.
fn tell_health(source: &str, health: &Health) {
    match health {
        Health::Up => event!(info, "sources", "source_up", source, "a source is there"),
        Health::Down(why) => {
            event!(warn, "sources", "source_down", source, why, "a source is not there");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use headwater_base::source::{LoadedPart, Written};
    use headwater_base::{KeyRange, PackedPairs};

    fn shared(inboxes: &[Inbox]) -> Outlets {
        let slots = Slots { first: Shard(0), all: inboxes.iter().map(Inbox::slot).collect() };
        Outlets { tag: Tag::new("shop", 1, &slots), slots }
    }

    fn at(position: u64) -> News {
        News::Changed { position: Position(position), changes: Vec::new() }
    }

    #[test]
    fn everything_is_taken_in_order_a_part_at_a_time() {
        let inbox = Inbox::new(&Arc::default());
        let sink = inbox.sink("shop");
        let count = TAKEN_MAX as u64 + 10;
        for position in 0..count {
            assert!(sink.tell(at(position)));
        }
        let first = inbox.take();
        assert_eq!(first.len(), TAKEN_MAX);
        let all: Vec<_> = first.into_iter().chain(inbox.take()).collect();
        assert!(inbox.take().is_empty());
        let seen = all.iter().map(|(tag, told)| match told {
            Told::News(News::Changed { position, .. }) => (&*tag.name, position.0),
            other => panic!("{other:?}"),
        });
        assert!(seen.eq((0..count).map(|position| ("shop", position))));
    }

    /// What a source gets that asks for room, where a shard always says so.
    fn asks(answer: RoomAnswer) -> (bool, usize) {
        let inbox = Inbox::new(&Arc::default());
        let sink = shared(std::slice::from_ref(&inbox));
        std::thread::scope(|scope| {
            let asking = scope.spawn(|| sink.make_room(100));
            while !asking.is_finished() {
                for (_, told) in inbox.take() {
                    let Told::Taking { asked } = told else { panic!("{told:?}") };
                    assert_eq!(inbox.memory().promised(), 100);
                    asked.answer(answer);
                }
                std::thread::yield_now();
            }
            (asking.join().unwrap(), inbox.memory().promised())
        })
    }

    #[test]
    fn room_is_promised_until_it_is_taken() {
        assert_eq!(asks(RoomAnswer::There), (true, 100));
        assert_eq!(asks(RoomAnswer::None), (false, 0));
        // It comes later where others give some back, and not because rows wait that get none themselves.
        assert_eq!(asks(RoomAnswer::Comes), (true, 100));
        assert_eq!(asks(RoomAnswer::Frees), (false, 0));
        let inbox = Inbox::new(&Arc::default());
        let sink = shared(std::slice::from_ref(&inbox));
        inbox.memory().promised.store(100, Ordering::Relaxed);
        sink.took(60);
        assert_eq!(inbox.memory().promised(), 40);
    }

    #[test]
    fn rows_wait_until_they_are_taken() {
        let inbox = Inbox::new(&Arc::default());
        let sink = shared(std::slice::from_ref(&inbox));
        let fetch = FetchId(of_all(Shard(0), 1));
        let part = || {
            let (position, pairs, known) =
                (Position(1), PackedPairs::default(), KeyRange::prefix(b"p|"));
            News::LoadedPart { fetch, part: LoadedPart { position, pairs, known } }
        };
        assert!(sink.tell(at(1)) && sink.tell(part()) && sink.tell(part()));
        for (_, told) in inbox.take() {
            assert!(inbox.memory().has_answers());
            inbox.memory().end_answer(&told);
        }
        assert!(!inbox.memory().has_answers());
        let memory = inbox.memory().clone();
        drop(inbox);
        assert!(!sink.tell(part()) && !memory.has_answers());
    }

    #[test]
    fn a_source_is_told_when_nobody_listens() {
        let inbox = Inbox::new(&Arc::default());
        let sink = inbox.sink("shop");
        drop(inbox);
        assert!(!sink.tell(at(1)));
        let mut inboxes: Vec<_> = (0..2).map(|_| Inbox::new(&Arc::default())).collect();
        let sink = shared(&inboxes);
        assert!(sink.tell(at(1)));
        inboxes.pop();
        assert!(!sink.tell(at(2)));
    }

    #[test]
    fn answers_go_to_the_shard_that_asked_and_the_rest_to_all() {
        let inboxes: Vec<_> = (0..3).map(|_| Inbox::new(&Arc::default())).collect();
        let sink = shared(&inboxes);
        let range = KeyRange::point(b"p|1");
        let fetch = FetchId(of_all(Shard(2), 7));
        sink.tell(at(3));
        sink.tell(News::Loaded { fetch, answer: Err(String::from("no")) });
        sink.tell(News::Reset { range: range.clone() });
        let request = of_all(Shard(0), 9);
        sink.tell(News::Written {
            request,
            answer: Ok(Written { position: Position(4), removed: 1 }),
        });
        let shown = |inbox: &Inbox| -> Vec<String> {
            let all = inbox.take().into_iter();
            all.map(|(_, told)| match told {
                Told::Changed { position, .. } => format!("at {}", position.0),
                Told::News(News::Loaded { fetch, .. }) => format!("loaded {}", fetch.0),
                Told::News(News::Reset { .. }) => String::from("reset"),
                Told::News(News::Written { request, .. }) => format!("written {request}"),
                other => panic!("{other:?}"),
            })
            .collect()
        };
        assert_eq!(shown(&inboxes[0]), ["at 3", "reset", "written 9"]);
        assert_eq!(shown(&inboxes[1]), ["at 3", "reset"]);
        assert_eq!(shown(&inboxes[2]), ["at 3", "loaded 7", "reset"]);
    }

    #[test]
    fn all_have_come_as_far_as_the_last_one() {
        let inboxes = [Inbox::new(&Arc::default()), Inbox::new(&Arc::default())];
        let tag = shared(&inboxes).tag;
        tag.reach(Shard(0), Position(9));
        assert_eq!(tag.reached(), Position(0));
        tag.reach(Shard(1), Position(5));
        tag.reach(Shard(1), Position(4));
        assert_eq!(tag.reached(), Position(5));
    }
}
