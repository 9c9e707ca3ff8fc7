//! Commands that name many keys: what the next few of them will touch is on its way into the processor's cache before the first
//! of them is looked up, so that their cache misses overlap.

use headwater_command::Args;
use headwater_engine::{Engine, WARM_MAX};

/// Arguments in chunks of as many keys as are fetched ahead together, each of which has `step` arguments. A chunk's keys are fetched
/// with [`fetch`].
pub(crate) fn chunks<'k>(args: Args<'k>, step: usize) -> impl Iterator<Item = Args<'k>> {
    let most = WARM_MAX * step;
    (0..args.len()).step_by(most).map(move |at| args.from(at).first(most))
}

/// Fetches what operations on a chunk's keys will touch. A hint.
pub(crate) fn fetch(engine: &Engine, chunk: Args<'_>, step: usize) {
    let mut keys: [&[u8]; WARM_MAX] = [&[]; WARM_MAX];
    let mut count = 0;
    for (place, key) in keys.iter_mut().zip(chunk.iter().step_by(step)) {
        (*place, count) = (key, count + 1);
    }
    if count > 1 {
        engine.warm(&keys[..count]);
    }
}
