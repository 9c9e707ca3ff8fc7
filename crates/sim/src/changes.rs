//! What operators do, and what befalls shards: joins that come and go, FLUSHALL, crashes.
//!
//! Joins and FLUSHALL go from shard to shard, while clients go on: each shard is asked whether it can have a
//! join before any has it. One such change follows the other, as a driver has to see to it.

use crate::clients::Ask;
use crate::disk::Disk;
use crate::faults::Cut;
use crate::shard::One;
use crate::world::World;
use headwater_base::Shard;
use headwater_base::placement::Partition;
use headwater_model::expect::well_defined;
use headwater_model::join::Join;
use headwater_model::oracle::{Installed, Verdict};

/// A change that goes from shard to shard.
pub(crate) struct Change {
    what: CatalogChange,
    /// Those that it has yet to come to, the next one last.
    left: Vec<usize>,
    /// Those that have agreed.
    agreed: Vec<usize>,
    /// Those that have refused, and how many of them for keys that the join would give.
    refused: (usize, usize),
}

enum CatalogChange {
    Ask { name: String, join: Join, replace: bool, verdict: Verdict },
    Install { name: String, join: Join, replace: bool },
    GiveUp { name: String, join: Join },
    Drop { name: String },
    Flush,
}

impl World {
    fn begin(&mut self, what: CatalogChange) {
        let mut left: Vec<_> = (0..self.shards.len()).collect();
        self.rng.shuffle(&mut left);
        self.events += 1;
        self.change = Some(Change { what, left, agreed: Vec::new(), refused: (0, 0) });
    }

    pub(crate) fn begin_flush(&mut self) {
        if self.change.is_none() {
            self.begin(CatalogChange::Flush);
        }
    }

    /// Begins to install, replace or drop a join.
    pub(crate) fn begin_join(&mut self) -> Result<(), String> {
        if self.change.is_some() || self.domain.joins.is_empty() {
            return Ok(());
        }
        let (name, join) = self.some_join();
        let known = self.joins.joins.iter().any(|join| join.name == name);
        if known && self.rng.chance(60) {
            self.begin(CatalogChange::Drop { name });
            return Ok(());
        }
        let name = match self.joins.joins.first() {
            // Another join of that name.
            Some(first) if self.rng.chance(10) => first.name.clone(),
            _ => name,
        };
        let replace = self.joins.joins.iter().any(|join| join.name == name);
        let others = self.joins.joins.iter().filter(|other| other.name != name);
        let mut all: Vec<&Join> = others.map(|other| &other.join).collect();
        all.push(&join);
        // Without base keys: whether the joins go together.
        let verdict = self.joins.verdict(&name, &join, replace);
        if verdict == Verdict::Unsure || (verdict == Verdict::Accept && !well_defined(&all)) {
            return Ok(());
        }
        self.begin(CatalogChange::Ask { name, join, replace, verdict });
        Ok(())
    }

    /// A join that may be installed: often one that reads what another one gives.
    fn some_join(&mut self) -> (String, Join) {
        let outputs = &self.outputs;
        let reads = |(_, join): &&(String, Join)| outputs.iter().any(|output| join.reads(output));
        let readers: Vec<_> = self.domain.joins.iter().filter(reads).collect();
        if !readers.is_empty() && self.rng.chance(40) {
            return (*self.rng.pick(&readers)).clone();
        }
        self.rng.pick(&self.domain.joins).clone()
    }

    /// Brings a change to its end.
    pub(crate) fn end_change(&mut self) -> Result<(), String> {
        while self.change.is_some() {
            self.pass(10)?;
            self.go_on()?;
        }
        Ok(())
    }

    /// Takes a change to the next shard.
    pub(crate) fn go_on(&mut self) -> Result<(), String> {
        let Some(mut change) = self.change.take() else { return Ok(()) };
        if let Some(&at) = change.left.last()
            && self.shards[at].stopped_until <= self.now
        {
            change.left.pop();
            let result = self.change_at(at, &mut change);
            result.map_err(|text| format!("shard {at}: {text}"))?;
            self.done_at(at);
            self.change = Some(change);
            self.settle(at)?;
            change = self.change.take().expect("it was just put there");
        }
        if change.left.is_empty() {
            self.next_part(change)
        } else {
            self.change = Some(change);
            Ok(())
        }
    }

    fn change_at(&mut self, at: usize, change: &mut Change) -> Result<(), String> {
        let one = &mut self.shards[at];
        match &change.what {
            CatalogChange::Ask { name, join, replace, .. } => {
                let text = join.to_string();
                let matched = one.oracle.base.keys().any(|key| join.output.matches(key));
                match prepare(one, &mut self.rng, (name, &text, *replace)) {
                    Ok(()) if matched => return Err(format!("{text} is accepted over keys")),
                    Ok(()) => change.agreed.push(at),
                    Err(_) => {
                        change.refused.0 += 1;
                        change.refused.1 += usize::from(matched);
                    }
                }
            }
            CatalogChange::Install { name, join, replace } => {
                let added = one.engine.join_add(name, &join.to_string(), *replace);
                added.map_err(|error| format!("has agreed to {name}, but: {error}"))?;
                one.oracle.install(name, join.clone());
            }
            CatalogChange::GiveUp { name, .. } => one.engine.join_unprepare(name),
            CatalogChange::Drop { name } => {
                one.engine.join_drop(name).map_err(|error| error.to_string())?;
                one.oracle.uninstall(name);
            }
            CatalogChange::Flush => {
                one.engine.flush();
                one.oracle.base.clear();
            }
        }
        Ok(())
    }

    /// All shards have done their part.
    fn next_part(&mut self, change: Change) -> Result<(), String> {
        let Change { what, agreed, refused: (refused, matched), .. } = change;
        match what {
            CatalogChange::Ask { name, join, replace, verdict } => {
                let all = self.shards.len();
                if refused == 0 && verdict != Verdict::Accept {
                    return Err(format!("{name} is accepted: {join}"));
                }
                if verdict == Verdict::Accept && refused != matched && refused != all {
                    return Err(format!("{name}: {refused} of {all} refuse {join}"));
                }
                let accepted = refused == 0;
                if accepted {
                    self.outputs.push(join.output.clone());
                }
                self.note(match (accepted, replace) {
                    (true, false) => "joins added",
                    (true, true) => "joins replaced",
                    (false, false) => "joins refused",
                    (false, true) => "joins not replaced",
                });
                self.begin(if accepted {
                    CatalogChange::Install { name, join, replace }
                } else {
                    CatalogChange::GiveUp { name, join }
                });
                if let Some(next) = &mut self.change {
                    if !accepted {
                        next.left.retain(|at| agreed.contains(at));
                    }
                    next.agreed = agreed;
                }
            }
            CatalogChange::Install { name, join, .. } => self.joins.install(&name, join),
            CatalogChange::Drop { name } => drop(self.joins.uninstall(&name)),
            CatalogChange::Flush => self.note("keys flushed"),
            CatalogChange::GiveUp { .. } => {}
        }
        self.events += 1;
        Ok(())
    }

    /// Whether a shard has agreed to a join that gives the key, and not heard any more of it.
    pub(crate) fn is_prepared(&self, at: usize, key: &[u8]) -> bool {
        let Some(Change { what, left, agreed, .. }) = &self.change else { return false };
        match what {
            CatalogChange::Ask { join, .. } => agreed.contains(&at) && join.output.matches(key),
            CatalogChange::Install { join, .. } | CatalogChange::GiveUp { join, .. } => {
                left.contains(&at) && join.output.matches(key)
            }
            _ => false,
        }
    }

    /// Whether joins are installed whose outputs nobody keeps current.
    pub(crate) fn has_lazy_joins(&self) -> bool {
        let mut joins = self.shards.iter().flat_map(|one| &one.oracle.joins);
        joins.any(|join| !join.join.mode.is_maintained())
    }

    pub(crate) fn crash(&mut self) -> Result<(), String> {
        let at = self.rng.below(self.shards.len());
        self.restart(&[at], None)
    }

    /// Some shards crash at once, and start again. One of them may have keys of a partition that lives elsewhere, of which it
    /// must not serve any.
    pub(crate) fn restart(
        &mut self,
        which: &[usize],
        stray: Option<(usize, Partition)>,
    ) -> Result<(), String> {
        for &at in which {
            let old = &self.shards[at];
            let (disk, joins, epoch) = (old.disk.clone(), old.oracle.joins.clone(), old.epoch + 1);
            let lost = match &disk {
                Some(disk) if self.faults.forgetful => disk.crash(|most| self.rng.below(most + 1)),
                Some(disk) => disk.crash(|most| most),
                None => true,
            };
            if let (Some(disk), Some((_, partition))) = (&disk, stray.filter(|it| it.0 == at)) {
                disk.remove_where(|key| self.placement.partition(key) == partition);
            }
            self.lost |= lost;
            self.note(match (&disk, lost) {
                (None, _) => "restarts with nothing",
                (Some(_), false) => "restarts with all keys",
                (Some(_), true) => "restarts with keys of before",
            });
            self.start(at, disk, epoch, joins)?;
        }
        for &at in which {
            self.started(at)?;
        }
        Ok(())
    }

    /// A shard starts, with the joins that it had.
    fn start(
        &mut self,
        at: usize,
        disk: Option<Disk>,
        epoch: u64,
        joins: Vec<Installed>,
    ) -> Result<(), String> {
        let shard = Shard(at as u16);
        let tables = (&*self.boundaries, &*self.sourced);
        let mut one = One::new(shard, &self.placement, tables, disk, epoch, self.now);
        if let Some(key) = one.oracle.base.keys().find(|key| self.placement.home(key) != shard) {
            return Err(format!("shard {at} keeps {}, which lives elsewhere", key.escape_ascii()));
        }
        self.source.restarted(at);
        one.held.clone_from(self.source.held_at(at));
        one.cut = self.faults.cut.filter(|cut| *cut == Cut::Source);
        one.engine.set_slice(self.faults.slice_rows);
        // What has moved to another home is still to be watched there.
        one.lost = std::mem::take(&mut self.shards[at].lost);
        for parked in self.parked.iter().filter(|parked| parked.waits_at == shard) {
            if let Ask::Watch(by, range) = &parked.ask {
                one.lost.push((*by, range.clone()));
            }
        }
        one.lost.retain(|(by, _)| {
            let home = self.watches.get(by).and_then(|it| self.placement.home_of_range(it));
            home.is_some_and(|home| home != shard)
        });
        self.shards[at] = one;
        self.unpark(|parked| parked.shard == shard || parked.waits_at == shard);
        for installed in joins {
            let text = installed.join.to_string();
            let (one, name) = (&mut self.shards[at], &installed.name);
            prepare(one, &mut self.rng, (name, &text, false))?;
            one.engine.join_add(name, &text, false).map_err(|error| error.to_string())?;
            one.oracle.install(name, installed.join);
        }
        Ok(())
    }

    /// A shard has started: what was under way at it begins again.
    fn started(&mut self, at: usize) -> Result<(), String> {
        let shard = Shard(at as u16);
        // What it had agreed to it is asked again.
        if let Some(Change { what, left, agreed, .. }) = &self.change {
            let again = match what {
                CatalogChange::Ask { name, join, replace, .. } if agreed.contains(&at) => {
                    Some((name, join, replace))
                }
                CatalogChange::Install { name, join, replace } if left.contains(&at) => {
                    Some((name, join, replace))
                }
                _ => None,
            };
            if let Some((name, join, replace)) = again {
                let text = join.to_string();
                prepare(&mut self.shards[at], &mut self.rng, (name, &text, *replace))?;
            }
        }
        self.events += 1;
        for (by, range) in self.watches.clone() {
            if self.placement.home_of_range(&range).is_none_or(|home| home == shard) {
                self.ask(0, &Ask::Watch(by, range), at)?;
            }
        }
        self.settle(at)
    }
}

/// Asks a shard whether it can have a join; what it has agreed to it must not forget.
fn prepare(
    one: &mut One,
    rng: &mut headwater_model::rng::Rng,
    (name, text, replace): (&str, &str, bool),
) -> Result<(), String> {
    let known = one.patient(rng, |engine| engine.know_outputs(text));
    known.map_err(|error| error.to_string())?;
    one.engine.join_prepare(name, text, replace).map_err(|error| error.to_string())?;
    if let Some(disk) = &one.disk {
        disk.sync();
    }
    Ok(())
}
