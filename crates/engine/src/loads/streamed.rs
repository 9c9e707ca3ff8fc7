//! Answers that come in parts, so that the first rows of a long one are stored while the source still finds the others (L6).
//!
//! # Cost
//! A part costs what an answer does: its rows, and a few searches in ordered trees.

use super::data::{Answer, Load};
use crate::engine::Engine;
use headwater_base::source::{FetchId, LoadedPart, Portion};

impl Engine {
    /// A part of the answer to [`Effect::Load`](crate::Effect::Load): the first keys of what is left of its range, up to where
    /// [`LoadedPart::known`] ends. [`Engine::loaded`] says what becomes of the rest. A part of a load that nobody knows any more is ignored.
    pub fn loaded_part(&mut self, fetch: FetchId, loaded: LoadedPart) {
        let LoadedPart { position, pairs, mut known } = loaded;
        let Some((part, first)) = self.base.loads.waits.end_load(fetch) else { return };
        let Some((data, waits, _)) = self.base.loads.split(part) else { return };
        let Some((range, mut load)) = data.under_way.remove(&first) else { return };
        known.first.clone_from(&range.first);
        let known = known.intersection(&range);
        let rest = range.without(&known);
        let ([rest], false) = (&rest[..], known.is_empty()) else {
            debug_assert!(false, "a part is less than what was asked for, and something");
            data.under_way.insert(&range, load);
            return waits.file(fetch, part, &range.first);
        };
        let answer = Answer::part(position, pairs);
        let bytes = answer.bytes();
        let bytes_before = load.portion.bytes_before + bytes;
        let left = Load::new(fetch, load.asked_at, Portion { bytes_before, ..load.portion });
        let left = left.after(load.answers).with_changes(load.cut_changes(&rest.first));
        data.under_way.insert(rest, left);
        waits.file(fetch, part, &rest.first);
        self.note_brought(fetch, || bytes);
        let waits = &mut self.base.loads.waits;
        load.fetch = waits.fork(fetch);
        self.take_answer(part, &known, load, answer);
    }
}
