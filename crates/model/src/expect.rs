//! What a read may give, where snapshots make more than one answer right.
//!
//! A part of a `snapshot T` answer equals the recomputation at some moment at most T ago. A part
//! may be a single key, so the rule is applied key by key: a key may have any value (or be
//! absent, if it was) that a recomputation gave it at a moment of the last T. The moments are
//! those that the engine was told of; each change of base keys or joins, and each step of time,
//! makes one.
//!
//! A join over a snapshot's output reads parts of different moments. That is asserted only where
//! it is well defined: the join has that source alone and keeps all its slots, so one key of the
//! answer comes from one key of the snapshot; its moments are then those of the last T of that one, or of its own where
//! it is a snapshot itself, whatever it reads. And nothing else may make the keys that it reads. [`well_defined`] says whether a
//! set of joins keeps to this; histories skip the installation of a join where it does not.

use crate::join::{Join, Mode};
use crate::oracle::{Installed, Oracle, Pairs, View, make_of};
use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

/// What each key may be; keys that are not named are absent.
pub type Allowed = BTreeMap<Vec<u8>, Vec<Option<Vec<u8>>>>;

/// For how long the join's output may be old: its own time, or that of the snapshots below it; `None`: not at all.
fn age(join: &Join, all: &[&Join]) -> Option<u64> {
    if let Mode::Snapshot(millis) = join.mode {
        return Some(millis);
    }
    let below = all.iter().filter(|lower| join.reads(&lower.output));
    below.filter_map(|lower| age(lower, all)).max()
}

/// Whether the right answers of these joins can be told (see the module's essay).
#[must_use]
pub fn well_defined(all: &[&Join]) -> bool {
    all.iter().enumerate().all(|(at, lower)| {
        let mut readers = all.iter().filter(|upper| upper.reads(&lower.output)).peekable();
        if age(lower, all).is_none() || readers.peek().is_none() {
            return true;
        }
        let mut others = all.iter().enumerate().filter(|(other, _)| *other != at);
        let alone = others.all(|(_, other)| !other.output.overlaps(&lower.output));
        let mut faithful = readers.map(|upper| {
            let output = upper.output.slots();
            upper.sources.len() == 1
                && upper.sources[0].1.slots().iter().all(|slot| output.contains(slot))
        });
        alone && faithful.all(|keeps| keeps)
    })
}

/// The moments that snapshots may still show.
#[derive(Default)]
pub struct Moments {
    past: Vec<(u64, Rc<View>)>,
}

impl Moments {
    /// Notes that everything is as `view` says, at the time `now`.
    pub fn note(&mut self, now: u64, view: &Rc<View>) {
        self.past.push((now, Rc::clone(view)));
    }

    /// What each key may be now.
    #[must_use]
    pub fn allowed(&self, oracle: &Oracle, view: &View) -> Allowed {
        let all: Vec<&Join> = oracle.joins.iter().map(|installed| &installed.join).collect();
        let made: Vec<Allowed> =
            oracle.joins.iter().map(|installed| self.made(installed, oracle, view, &all)).collect();
        let keys: BTreeSet<&Vec<u8>> =
            oracle.base.keys().chain(made.iter().flat_map(|made| made.keys())).collect();
        let mut allowed = Allowed::new();
        for key in keys {
            if let Some((value, _)) = oracle.base.get(key) {
                allowed.insert(key.clone(), vec![Some(value.clone())]);
                continue;
            }
            // The later-installed join is seen first, the one before it where that has no key.
            let mut values = Vec::new();
            for of_join in made.iter().rev() {
                let Some(these) = of_join.get(key) else { continue };
                values.extend(these.iter().filter(|value| value.is_some()).cloned());
                if !these.contains(&None) {
                    break;
                }
            }
            if made.iter().all(|made| made.get(key).is_none_or(|these| these.contains(&None))) {
                values.push(None);
            }
            allowed.insert(key.clone(), values);
        }
        allowed
    }

    fn made(&self, installed: &Installed, oracle: &Oracle, view: &View, all: &[&Join]) -> Allowed {
        let now = &view.made[&installed.serial];
        let Some(age) = age(&installed.join, all) else {
            let sure = now.iter().map(|(key, value)| (key.clone(), vec![Some(value.clone())]));
            return sure.collect();
        };
        // A join may be younger than the snapshot that it reads.
        let over_a_snapshot = all
            .iter()
            .any(|lower| installed.join.reads(&lower.output) && self::age(lower, all).is_some());
        let recent = self.past.iter().filter(|(at, _)| at.saturating_add(age) >= oracle.now);
        let mut views: Vec<Cow<'_, Pairs>> = vec![Cow::Borrowed(now)];
        for (_, view) in recent {
            match view.made.get(&installed.serial) {
                Some(made) => views.push(Cow::Borrowed(made)),
                None if over_a_snapshot => {
                    views.push(Cow::Owned(make_of(&installed.join, &view.seen)));
                }
                None => {}
            }
        }
        let mut allowed = Allowed::new();
        for key in views.iter().flat_map(|made| made.keys()) {
            if allowed.contains_key(key) {
                continue;
            }
            let mut values: Vec<Option<Vec<u8>>> = Vec::new();
            for made in &views {
                let value = made.get(key);
                if !values.iter().any(|known| known.as_ref() == value) {
                    values.push(value.cloned());
                }
            }
            allowed.insert(key.clone(), values);
        }
        allowed
    }
}

/// Whether an answer to a range is right: `pairs` in the order of the read, at most `limit`.
///
/// # Errors
/// What is wrong with it.
pub fn check_range(
    pairs: &[(Vec<u8>, Vec<u8>)],
    allowed: &Allowed,
    inside: &dyn Fn(&[u8]) -> bool,
    reverse: bool,
    limit: Option<u64>,
) -> Result<(), String> {
    use headwater_script::bytes::escape;
    let ordered = |two: &[(Vec<u8>, Vec<u8>)]| {
        if reverse { two[0].0 > two[1].0 } else { two[0].0 < two[1].0 }
    };
    if !pairs.windows(2).all(ordered) {
        return Err(String::from("the pairs are not in order"));
    }
    if limit.is_some_and(|limit| pairs.len() as u64 > limit) {
        return Err(String::from("more pairs than the limit"));
    }
    let full = limit.is_some_and(|limit| pairs.len() as u64 == limit);
    for (key, value) in pairs {
        let values = allowed.get(key).map_or(&[][..], Vec::as_slice);
        if !inside(key) || !values.contains(&Some(value.clone())) {
            return Err(format!("{} = {} is wrong", escape(key), escape(value)));
        }
    }
    let beyond = |key: &Vec<u8>| {
        full && pairs.last().is_none_or(|(end, _)| if reverse { key < end } else { key > end })
    };
    let given: BTreeSet<&Vec<u8>> = pairs.iter().map(|(key, _)| key).collect();
    for (key, values) in allowed {
        if inside(key) && !beyond(key) && !given.contains(key) && !values.contains(&None) {
            return Err(format!("{} is missing", escape(key)));
        }
    }
    Ok(())
}
