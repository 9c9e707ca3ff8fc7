//! What loads from sources bring: given to the engine once there is room for it.
//!
//! # Invariants
//! - B1. What one load brings reaches the engine in the order in which it came: while some of it waits for room, the rest waits behind.
//! - B2. A load that has failed for want of room, or that nobody waits for any more, brings nothing: the source is told of each part that it need not
//!   follow it.

use super::ShardService;
use crate::memory::STORE_LOOK;
use crate::sources::RoomAnswer;
use headwater_base::KeyRange;
use headwater_base::source::{FetchId, Loaded, LoadedPart, Portion};
use headwater_engine::Engine;
use std::collections::VecDeque;

/// What a pair takes besides its bytes: its place in a page, and in indexes.
pub(super) const PAIR_BYTES: usize = 64;

/// Pairs of an answer that are looked at for what all of them will take.
const PAIRS_LOOKED_AT: usize = 4096;

/// How long the rows of a load wait for those of others to be stored, in milliseconds.
const ROWS_PATIENCE: u64 = 1000;

/// What a load has brought.
#[derive(Debug)]
pub(super) enum Brought {
    /// Some of its rows; there are more to come.
    Part(LoadedPart),
    /// What was left, or why that does not come.
    Answer(Result<Loaded, String>),
}

/// What a load has brought, and waits for room.
#[derive(Debug)]
pub(super) struct LateLoad {
    source: String,
    fetch: FetchId,
    brought: Brought,
    /// Since this moment of the server's life, in milliseconds.
    since: u64,
}

impl Brought {
    fn is_failure(&self) -> bool {
        matches!(self, Self::Answer(Err(_)))
    }

    /// What it will take here, of its pairs those whose keys are own ones; of a large one, about so much: it must not take long to know.
    fn bytes(&self, engine: &Engine) -> usize {
        let of = |key: &[u8], value: &[u8]| match engine.owns(key) {
            true => key.len() + value.len() + PAIR_BYTES,
            false => 0,
        };
        let step = |count: usize| count / PAIRS_LOOKED_AT + 1;
        match self {
            Self::Part(LoadedPart { pairs, .. }) => {
                let step = step(pairs.len());
                step * pairs.iter().step_by(step).map(|(key, value)| of(key, value)).sum::<usize>()
            }
            Self::Answer(Ok(Loaded { pairs, .. })) => {
                let step = step(pairs.len());
                let looked_at = pairs.iter().step_by(step);
                step * looked_at.map(|pair| of(&pair.key, &pair.value)).sum::<usize>()
            }
            Self::Answer(Err(_)) => 0,
        }
    }
}

impl ShardService {
    /// Passes a load on to its source.
    pub(super) fn ask_load(
        &mut self,
        fetch: FetchId,
        source: &str,
        range: &KeyRange,
        portion: Portion,
    ) {
        if let Err(text) = self.stores.hub.load(source, fetch, (range, portion), self.patience()) {
            self.node.engine_mut().loaded(fetch, Err(text));
        }
    }

    /// Makes room for so many bytes, for which one has waited so long, in milliseconds.
    fn make_room_for_load(&mut self, bytes: usize, waited: u64) -> RoomAnswer {
        // Threads of sources have taken and freed some that this one has not seen.
        if bytes > self.bound.gauge.step_now() {
            self.look_at_memory();
        }
        self.bound.gauge.begin_postponable(waited);
        let mut fits = self.node.engine_mut().make_room(bytes);
        if !fits {
            self.look_at_memory();
            fits = self.node.engine_mut().make_room(bytes);
        }
        let comes = self.bound.gauge.gains_soon();
        self.bound.gauge.begin_command();
        match () {
            () if fits => RoomAnswer::There,
            () if comes => RoomAnswer::Comes,
            () if waited < ROWS_PATIENCE && self.stores.hub.inbox.memory().has_answers() => {
                RoomAnswer::Frees
            }
            () => RoomAnswer::None,
        }
    }

    fn look_at_memory(&self) {
        self.bound.gauge.refresh(self.node.engine().value_memory().untouched);
    }

    /// Makes room for what sources are about to take beside data, as they have promised.
    pub(super) fn make_room_beside(&mut self) -> RoomAnswer {
        self.look_at_memory();
        self.make_room_for_load(0, 0)
    }

    /// Takes what a load has brought. Where there is no room for it yet, but a store or the rows of another load are about to give some back, it waits.
    pub(super) fn take_loaded(&mut self, source: &str, fetch: FetchId, brought: Brought) {
        // B1.
        let is_behind = self.waits.late_loads.iter().any(|late| late.fetch == fetch);
        if !is_behind {
            let bytes = brought.bytes(self.node.engine());
            let room = self.make_room_for_load(bytes, 0);
            if !room.is_for_later() {
                return self.give_loaded(source, fetch, brought, room == RoomAnswer::There);
            }
        }
        let (source, since) = (source.to_owned(), self.time.uptime);
        self.waits.late_loads.push_back(LateLoad { source, fetch, brought, since });
    }

    /// Tries again what there was no room for.
    pub(super) fn take_late_loads(&mut self) {
        if self.time.uptime < self.waits.late_loads_at {
            return;
        }
        while let Some(late) = self.waits.late_loads.pop_front() {
            let bytes = late.brought.bytes(self.node.engine());
            let waited = self.time.uptime.saturating_sub(late.since);
            let room = self.make_room_for_load(bytes, waited);
            if room.is_for_later() {
                self.waits.late_loads.push_front(late);
                self.waits.late_loads_at = self.time.uptime + STORE_LOOK;
                return;
            }
            let fits = room == RoomAnswer::There;
            self.give_loaded(&late.source, late.fetch, late.brought, fits);
        }
    }

    /// Passes on what waits for room of a source of which something is about to be forgotten: it came before that.
    pub(super) fn settle_late_loads(&mut self, source: &str) {
        let (these, others) = core::mem::take(&mut self.waits.late_loads)
            .into_iter()
            .partition(|late| late.source == source);
        self.waits.late_loads = others;
        let these: VecDeque<LateLoad> = these;
        for late in these {
            self.bound.gauge.begin_command();
            let bytes = late.brought.bytes(self.node.engine());
            let fits = self.node.engine_mut().make_room(bytes);
            self.give_loaded(&late.source, late.fetch, late.brought, fits);
        }
    }

    /// Passes on what a load has brought. What nobody waits for any more, or for which there is no room, leaves its range
    /// followed by the source, which is told that it need not be (B2).
    fn give_loaded(&mut self, source: &str, fetch: FetchId, brought: Brought, fits: bool) {
        // What the answer is not of is not followed.
        let (load, known) = match &brought {
            Brought::Part(part) => {
                (self.stores.hub.take_part(fetch, &part.known), Some(part.known.clone()))
            }
            Brought::Answer(answer) => {
                let known = answer.as_ref().ok().and_then(|loaded| loaded.known.clone());
                (self.stores.hub.take_load(fetch), known)
            }
        };
        let waited = load.as_ref().is_none_or(|(_, waited)| *waited);
        let is_given = waited && (fits || brought.is_failure());
        if let Some((range, _)) = load
            && !is_given
            && !brought.is_failure()
        {
            self.stores.hub.unfollow(source, known.as_ref().unwrap_or(&range));
        }
        if is_given {
            return match brought {
                Brought::Part(part) => self.node.engine_mut().loaded_part(fetch, part),
                Brought::Answer(answer) => self.node.engine_mut().loaded(fetch, answer),
            };
        }
        if waited {
            let bytes = brought.bytes(self.node.engine());
            let message =
                format!("{bytes} bytes were loaded, for which 'maxmemory' leaves no room");
            self.stores.hub.give_up(fetch);
            self.node.engine_mut().loaded(fetch, Err(message));
        }
    }
}
