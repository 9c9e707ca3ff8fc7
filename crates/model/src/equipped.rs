//! The engine with what a server gives it: a memory bound that is reached, an embedded store, a place to spill to, and reads in
//! slices, each where a test asks for it.
//!
//! Operations that wait or lack memory are run again until they are answered, so that a history sees none of it
//! but refusals. A refused write has changed nothing. A read that memory has no room for is counted, and answered with
//! more of it: so that what has come of the refusal is seen.
//!
//! With a store, whatever is evicted, or loaded late, the answers must be those of an engine that has everything. Before
//! some writes a load of the same keys is begun, and answered after them, as of before.

mod subject;

use crate::disk::Disk;
use crate::functions::Doubles;
use crate::pressure::{LIMIT_BY_CHANCE, Outside, Pressure};
use crate::store::{Definition, Map, Stored};
use crate::subject::{Subject, refusal};
use headwater_base::Millis;
use headwater_base::hash::Secret;
use headwater_base::memory::Meter;
use headwater_base::spill::Spill;
use headwater_command::Data;
use headwater_engine::{
    Engine, EngineError, JoinInstalled, Policy, RangeOptions, Settings, Stop, TableOptions, Ticket,
};
use headwater_node::{Node, Outcome};
use headwater_protocol::resp::{Encoder, Version};
use std::rc::Rc;

/// How often an operation may be run again before it counts as stuck.
const PATIENCE: usize = 10_000;
/// How often one may be that lacks memory, as with commands of a node.
const ATTEMPTS_MAX: u32 = 8;
/// What a key takes besides its bytes and its value.
const KEY_BYTES: usize = 128;
/// What a write asks for where others take memory by chance.
const WRITE_BYTES: usize = 512;
/// The part of the bound that a write must leave free: one in so many.
const RESERVE_SHARE: usize = 32;
/// After how many operations it is looked at what values may take.
const LOOK_EVERY: u64 = 16;
/// Values go to a bounded disk from so many bytes on.
pub const SPILLED_MIN: usize = 512;
const TABLE: &str = "table";
const JOIN: &str = "join";
/// The table that holds streams: no store keeps it.
pub const STREAMS: &[u8] = b"st";

/// What has happened for want of memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Short {
    /// Writes that were refused.
    pub refused: u64,
    /// Reads that were answered only with more memory.
    pub relieved: u64,
    /// Restarts after a crash.
    pub crashes: u64,
}

impl std::ops::AddAssign for Short {
    fn add_assign(&mut self, other: Self) {
        self.refused += other.refused;
        self.relieved += other.relieved;
        self.crashes += other.crashes;
    }
}

/// The bound of an [`Equipped`] engine.
#[derive(Clone, Copy, Debug)]
struct Bound {
    /// What may be taken beside the empty engine.
    bytes: usize,
    policy: Policy,
}

/// An engine as a server has it.
pub struct Equipped {
    node: Node,
    pressure: Rc<Pressure>,
    by_chance: bool,
    bound: Option<Bound>,
    /// What the empty engine takes.
    empty: usize,
    disk: Option<Disk>,
    /// The disk loses what it holds when it evicts.
    loses: bool,
    /// There is a place to spill to which forgets the oldest where it has no room.
    may_forget: bool,
    store: Option<Box<dyn Stored>>,
    /// The store keeps streams as well.
    keeps_streams: bool,
    writes: u64,
    slice: Option<usize>,
    growth: Option<usize>,
    /// Whether all slices of a read follow each other at once; otherwise other things happen between them.
    at_once: bool,
    now: Millis,
    operations: u64,
    /// A policy lets base keys go, or did so once.
    may_have_lost: bool,
    short: Short,
}

impl Default for Equipped {
    fn default() -> Self {
        Self::under(0)
    }
}

fn new_node(pressure: &Pressure) -> Node {
    let settings = Settings { secret: Secret::fixed(7), draws: 7, ..Settings::default() };
    pressure.own(|| {
        let mut node = Node::new(settings);
        node.engine_mut().set_functions(Box::new(Doubles));
        node
    })
}

fn out_of_memory<T>(result: &Result<T, Stop>) -> bool {
    matches!(result, Err(Stop::Failed(EngineError::OutOfMemory)))
}

impl Equipped {
    fn under(percent: usize) -> Self {
        let pressure = Pressure::new(percent);
        let node = new_node(&pressure);
        let mut own = Self {
            node,
            by_chance: percent > 0,
            bound: None,
            empty: 0,
            disk: None,
            loses: false,
            may_forget: false,
            store: None,
            keeps_streams: false,
            writes: 0,
            slice: None,
            growth: None,
            at_once: true,
            now: Millis(0),
            operations: 0,
            may_have_lost: false,
            short: Short::default(),
            pressure,
        };
        own.equip(&[]);
        own
    }

    /// There is no room so often in a hundred looks, because others take memory and give it back.
    #[must_use]
    pub fn pressed(percent: usize) -> Self {
        Self::under(percent)
    }

    /// All base data is kept by this store.
    #[must_use]
    pub fn kept(store: Box<dyn Stored>) -> Self {
        let mut own = Self { store: Some(store), keeps_streams: true, ..Self::under(0) };
        own.equip(&[]);
        own
    }

    /// All base data but streams is kept by a store that is a map.
    #[must_use]
    pub fn kept_without_streams() -> Self {
        let mut own = Self { store: Some(Box::new(Map::default())), ..Self::under(0) };
        own.equip(&[]);
        own
    }

    /// All base data is kept by a store that is a map.
    #[must_use]
    pub fn kept_in_a_map() -> Self {
        Self::kept(Box::new(Map::default()))
    }

    /// Every plain value may leave memory at any time, for a disk that keeps what it is given, or `loses` some of it.
    #[must_use]
    pub fn spilling(loses: bool) -> Self {
        let mut own = Self { loses, ..Self::under(0) };
        let disk = Disk::default();
        own.spill_to(disk.clone(), 0);
        (own.disk, own.may_forget) = (Some(disk), false);
        own.engine().set_eviction_policy(Policy::named("allkeys-lru").expect("a policy"));
        own
    }

    /// Reads are done in slices of so many rows. Where `at_once` is not set, they go on when [`Engine::go_on`] is called: for
    /// histories with sources, in which reads wait anyway.
    #[must_use]
    pub fn sliced(mut self, rows: usize, at_once: bool) -> Self {
        (self.slice, self.at_once) = (Some(rows), at_once);
        self.engine().set_slice(Some(rows));
        self
    }

    /// Ranges grow beyond what was asked for only where so many outputs lie there, or as many as they hold.
    #[must_use]
    pub fn growing(mut self, outputs: usize) -> Self {
        self.growth = Some(outputs);
        self.engine().set_growth(outputs);
        self
    }

    /// What has happened for want of memory.
    #[must_use]
    pub fn short(&self) -> Short {
        self.short
    }

    /// How often a value left memory.
    #[must_use]
    pub fn puts(&self) -> u64 {
        self.disk.as_ref().map_or(0, Disk::puts)
    }

    /// Gives a new node what the one before it had, and declares what was kept.
    fn equip(&mut self, kept: &[Definition]) {
        let (engine, pressure) = (self.node.engine_mut(), &self.pressure);
        if let Some(store) = &self.store {
            let names: Vec<Vec<u8>> = store.tables();
            let keep = Box::new(Outside(pressure.clone(), store.keep()));
            let keep_streams = Some(self.keeps_streams);
            let options = TableOptions { keep: keep_streams, ..TableOptions::default() };
            let set = pressure.inside(|| {
                engine.set_base_store(keep, &names, true)?;
                engine.table_set(STREAMS, &options)
            });
            set.expect("tables without keys");
        }
        self.empty = pressure.used();
        if self.by_chance {
            engine.set_memory(pressure.clone(), Some(LIMIT_BY_CHANCE));
        }
        engine.choose_eagerly();
        engine.set_slice(self.slice);
        if let Some(outputs) = self.growth {
            engine.set_growth(outputs);
        }
        engine.advance(self.now);
        if let Some(bound) = self.bound {
            self.set_bound(bound);
        }
        for (kind, name, text) in kept {
            if *kind == TABLE {
                let boundary = Some(usize::from(text[0]));
                let options = TableOptions { boundary, ..TableOptions::default() };
                self.set_table(name, &options).expect("it was accepted before");
            } else {
                let [name, text] = [name, text].map(|bytes| String::from_utf8_lossy(bytes));
                self.add_join(&name, &text, true).expect("it was accepted before");
            }
        }
    }

    fn set_bound(&mut self, bound: Bound) {
        self.bound = Some(bound);
        self.may_have_lost |= bound.policy.order.is_some();
        let engine = self.node.engine_mut();
        engine.set_memory(self.pressure.clone(), Some(self.empty + bound.bytes));
        engine.set_eviction_policy(bound.policy);
        self.look();
    }

    /// Makes room where too much is taken, and has values take no more than what is free.
    fn look(&mut self) {
        let Some(bound) = self.bound else { return };
        let (limit, engine) = (self.empty + bound.bytes, self.node.engine_mut());
        let pressure = &self.pressure;
        pressure.own(|| {
            engine.make_room(0);
            let reserve = limit / RESERVE_SHARE;
            let room = limit.saturating_sub(reserve).cast_signed() - pressure.used().cast_signed();
            let taken = engine.value_memory().taken;
            engine.set_value_memory_limit(taken.saturating_add_signed(room));
        });
    }

    fn look_in_time(&mut self) {
        self.operations += 1;
        if self.operations.is_multiple_of(LOOK_EVERY) {
            self.look();
        }
    }

    /// Gives the engine a place to spill to, values from so many bytes on. For what has no room there the oldest may go.
    pub fn spill_to(&mut self, place: impl Spill + 'static, value_bytes_min: usize) {
        let port = Box::new(Outside(self.pressure.clone(), place));
        self.may_forget = true;
        self.engine().set_spill(port, value_bytes_min);
    }

    /// Answers what the store was asked.
    fn answer(&mut self) {
        let Some(store) = &mut self.store else { return };
        let engine = self.node.engine_mut();
        for (fetch, loaded) in store.answers() {
            self.pressure.own(|| engine.loaded(fetch, loaded.clone()));
        }
        self.pressure.own(|| drop(engine.take_effects()));
    }

    /// Whether an operation that waits is to be run again.
    fn goes_on(&mut self, ticket: Ticket) -> bool {
        self.answer();
        let engine = self.node.engine_mut();
        let is_sliced = self.at_once && engine.goes_on();
        if is_sliced {
            engine.forget_later(ticket);
            self.pressure.own(|| engine.go_on());
        }
        let goes_on = is_sliced || self.store.is_some();
        if goes_on {
            engine.resume(ticket);
        }
        goes_on
    }

    /// The last operation that the store was told.
    fn told_store(&self) -> u64 {
        self.store.as_ref().map_or(0, |store| store.told())
    }

    /// What was told is acknowledged.
    fn commit(&mut self) {
        if let Some(store) = &mut self.store {
            store.commit();
        }
    }

    /// Runs an operation until it is answered, or refused for want of memory.
    fn run<T: Clone>(
        &mut self,
        mut operation: impl FnMut(&mut Node) -> Result<T, Stop>,
    ) -> Result<T, Stop> {
        let mut attempts_left = ATTEMPTS_MAX;
        for _ in 0..PATIENCE {
            let gone = |engine: &Engine| engine.expired_count() + engine.removals_begun();
            let (told, gone_before) = (self.told_store(), gone(self.node.engine()));
            let node = &mut self.node;
            let (result, again) = self.pressure.inside(|| {
                node.engine_mut().begin_slice();
                let result = operation(node);
                let engine = node.engine_mut();
                engine.end_slice();
                let lacks = out_of_memory(&result) && attempts_left > 0;
                (result, lacks && engine.make_room_again())
            });
            match result {
                Err(Stop::Wait(ticket)) => {
                    let may_tell = gone(self.node.engine()) > gone_before;
                    assert!(
                        may_tell || self.told_store() == told,
                        "what waits has written nothing"
                    );
                    if self.node.engine().is_removing(ticket) {
                        // Other operations come between its slices.
                        self.commit();
                        return result;
                    }
                    if !self.goes_on(ticket) {
                        return result;
                    }
                }
                _ if again => attempts_left -= 1,
                done => {
                    self.commit();
                    return done;
                }
            }
        }
        panic!("an operation does not end");
    }

    /// Runs an operation while memory is short.
    fn run_short<T: Clone>(
        &mut self,
        operation: impl FnMut(&mut Node) -> Result<T, Stop>,
    ) -> Result<T, Stop> {
        self.look_in_time();
        self.pressure.ease(false);
        let done = self.run(operation);
        self.pressure.ease(true);
        done
    }

    /// A read, which is answered sooner or later.
    fn read<T: Clone>(
        &mut self,
        mut operation: impl FnMut(&mut Engine) -> Result<T, Stop>,
    ) -> Result<T, Stop> {
        let read = self.run_short(|node| operation(node.engine_mut()));
        if !out_of_memory(&read) {
            return read;
        }
        self.short.relieved += 1;
        let limit = self.bound.map(|bound| self.empty + bound.bytes);
        if limit.is_some() {
            self.engine().set_memory_limit(None);
        }
        let read = self.run(|node| operation(node.engine_mut()));
        if limit.is_some() {
            self.engine().set_memory_limit(limit);
        }
        read
    }

    /// A write of so many bytes in values and keys: room is made for it first.
    fn write<T: Clone>(
        &mut self,
        keys: usize,
        values: usize,
        operation: impl FnMut(&mut Node) -> Result<T, Stop>,
    ) -> Result<T, Stop> {
        let bytes = match self.bound {
            Some(bound) => keys + (self.empty + bound.bytes) / RESERVE_SHARE,
            None => WRITE_BYTES,
        };
        self.look_in_time();
        self.pressure.ease(false);
        let fits = self.pressure.own(|| self.node.engine_mut().make_room_for(bytes, values));
        let done = if fits { self.run(operation) } else { Err(EngineError::OutOfMemory.into()) };
        self.pressure.ease(true);
        self.short.refused += u64::from(out_of_memory(&done));
        done
    }

    /// A command's answer in RESP2, when all that it waits for has come.
    fn command(&mut self, values: usize, command: &Data<'_>) -> Vec<u8> {
        let run = |node: &mut Node| {
            let mut out = Vec::new();
            match node.execute(command, &mut Encoder::new(&mut out, Version::Resp2)) {
                Outcome::Done => Ok(out),
                Outcome::Waiting(ticket) => Err(Stop::Wait(ticket)),
                outcome => panic!("no command here is answered in slices: {outcome:?}"),
            }
        };
        let done = match values {
            0 => self.run_short(run),
            values => self.write(KEY_BYTES, values, run),
        };
        done.unwrap_or_else(|stop| match stop {
            Stop::Failed(EngineError::OutOfMemory) => b"-OOM no room".to_vec(),
            stop => panic!("{stop:?}"),
        })
    }

    /// Has everything in memory.
    fn load_all(&mut self) {
        if self.store.is_some() {
            let options = RangeOptions::default();
            self.read(|engine| engine.range(b"", b"", options, &mut |_, _| {}))
                .expect("the store answers");
        }
    }

    /// Begins a load that some writes come to be late for.
    fn begin_load(&mut self, key: &[u8]) {
        if self.store.is_none() {
            return;
        }
        self.writes += 1;
        if self.writes.is_multiple_of(2) {
            self.answer();
        }
        if self.writes.is_multiple_of(3) {
            self.pressure.own(|| drop(self.node.engine_mut().get(key).map(drop)));
        }
    }

    fn add_join(
        &mut self,
        name: &str,
        text: &str,
        replace: bool,
    ) -> Result<JoinInstalled, EngineError> {
        // Where the slices of reads do not follow each other at once, nothing else is to wait.
        let at_once = self.at_once;
        self.run_short(|node| {
            let engine = node.engine_mut();
            if at_once {
                engine.join_add_sliced(name, text, replace)
            } else {
                Ok(engine.join_add(name, text, replace)?)
            }
        })
        .map_err(refusal)
    }

    fn set_table(&mut self, name: &[u8], options: &TableOptions) -> Result<(), EngineError> {
        self.run_short(|node| Ok(node.engine_mut().table_set(name, options)?)).map_err(refusal)
    }

    /// Whether something of base data may go for want of memory.
    fn loses_some(&self) -> bool {
        let bound = self.bound.is_some_and(|bound| bound.policy.order.is_some());
        bound || self.may_have_lost && self.may_forget
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use headwater_engine::Expiry;

    impl Equipped {
        /// The flags of a key, once it is in memory again.
        fn flags_after_eviction(&mut self, key: &[u8]) -> u32 {
            // Each kind of what can go has its turn.
            (0..60).for_each(|draw| _ = self.node.engine_mut().evict_any(draw));
            assert_eq!(
                self.node.engine_mut().mark(key).flags,
                0,
                "memory holds nothing of what is on disk"
            );
            self.get(key).expect("the store answers").expect("the key is there");
            self.node.engine_mut().check_invariants();
            self.node.engine_mut().mark(key).flags
        }
    }

    #[test]
    fn flags_come_back_with_their_keys() {
        let mut kept = Equipped::kept_in_a_map();
        for key in [&b"p|bob|1"[..], b"plain"] {
            let set = kept.node.engine_mut().set_flagged(key, b"value", Expiry::Never, 7);
            set.expect("a base key");
            assert_eq!(kept.flags_after_eviction(key), 7);
            kept.append(key, b" and more").expect("a base key");
            assert_eq!(kept.flags_after_eviction(key), 7, "appending keeps them");
            kept.set_expiry(key, Some(Millis(1 << 40))).expect("a base key");
            assert_eq!(kept.flags_after_eviction(key), 7, "so does an expiry");
            kept.set(key, b"other", Expiry::Never).expect("a base key");
            assert_eq!(kept.flags_after_eviction(key), 0, "a value without flags has none");
        }
    }
}
