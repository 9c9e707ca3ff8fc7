//! From requests to what each shard does of them, and locks for it.

use crate::ask::{Budget, Requests};
use crate::locks::{LockSet, TransactionId};
use crate::pending::Kind;
use crate::program::{Checked, Program, renamed};
use crate::route::{Request, Route, parts_of_step, route};
use crate::transaction::{Item, Plan};
use alloc::boxed::Box;
use alloc::collections::{BTreeMap, BTreeSet};
use alloc::vec::Vec;
use headwater_base::{Placement, Shard};
use headwater_command::{Args, Command, Data, Flags, Id, OwnedArgs, Spec};

impl Kind {
    /// What a request does; `derived`: it may read what joins give.
    #[inline]
    #[must_use]
    pub fn of(spec: &Spec, command: &Command<'_>, derived: bool) -> Self {
        if spec.flags.has(Flags::WRITE) {
            let calls = matches!(command, Command::Data(Data::Functions(_)));
            if calls || derived { Self::Both } else { Self::Write }
        } else if spec.id == Id::StreamRead {
            Self::Stream
        } else if derived {
            Self::Derived
        } else {
            Self::Plain
        }
    }
}

/// What a request locks where it has no keys of its own: everything; else the partitions of its keys. By shard.
#[must_use]
pub fn lock_set(placement: &Placement, spec: &Spec, args: Args<'_>) -> LockSet {
    let keys = spec.keys.positions(args.len()).filter_map(|at| args.get(at));
    let set = LockSet::of(keys.map(|key| placement.partition(key)));
    if set == LockSet::Of(Vec::new()) { LockSet::All } else { set }
}

/// Whether a request changes what its session is told, or what is told of it: later ones depend on that.
fn changes_session(id: Id) -> bool {
    matches!(
        id,
        Id::Subscribe
            | Id::Unsubscribe
            | Id::PSubscribe
            | Id::PUnsubscribe
            | Id::SSubscribe
            | Id::SUnsubscribe
            | Id::ClientTracking
            | Id::ClientSetName
    )
}

impl Plan {
    /// A transaction without requests.
    #[must_use]
    pub fn new(id: TransactionId, wait: u64) -> Self {
        Self {
            id,
            items: Vec::new(),
            locks: Some(BTreeMap::new()),
            reads: false,
            watches_at: BTreeSet::new(),
            prepare: BTreeMap::new(),
            order: Vec::new(),
            budget: Budget::default(),
            wait,
            recording: None,
        }
    }

    /// Steps that need not be one.
    #[must_use]
    pub fn of_steps(id: TransactionId, program: Program) -> Self {
        Self { locks: None, items: [Item::Program(program)].into(), ..Self::new(id, 0) }
    }

    fn lock(&mut self, at: Shard, set: &LockSet) {
        if let Some(locks) = &mut self.locks {
            locks.entry(at).or_insert_with(|| LockSet::of(core::iter::empty())).add(set);
        }
    }

    /// Adds a request; `derived`: it may read what joins give; `alone`: it is the only one.
    pub fn add(
        &mut self,
        placement: &Placement,
        (spec, command, args): (&Spec, &Command<'_>, Args<'_>),
        derived: bool,
        alone: bool,
    ) {
        let kind = Kind::of(spec, command, derived);
        let whole = |parts: Vec<(Shard, Request)>| -> Vec<(Shard, OwnedArgs)> {
            parts.into_iter().map(|(at, request)| (at, request.args(args))).collect()
        };
        let keys = spec.keys.positions(args.len()).filter_map(|at| args.get(at));
        let partitions: Vec<_> = keys.map(|key| placement.partition(key)).collect();
        let homes = || partitions.iter().map(|it| placement.home_of(*it)).collect();
        let item = match route(placement, spec, command, args) {
            Route::Here if changes_session(spec.id) => Item::Now,
            Route::Here => Item::Here,
            Route::At(at) => {
                let parts = [(at, OwnedArgs::of(args))].into();
                Item::Parts { merge: crate::Merge::Same, parts, kind }
            }
            Route::Parts { merge, parts } | Route::Read { merge, parts } => {
                Item::Parts { merge, parts: whole(parts), kind }
            }
            Route::Steps(program) => Item::Program(program),
            Route::Several => match (Program::of(command), parts_of_step(placement, command, args))
            {
                (Some(program), _) => Item::Program(program),
                (None, Some((merge, parts))) if alone => {
                    self.order = homes();
                    Item::Parts { merge, parts: whole(parts), kind }
                }
                (None, Some((merge, parts))) => {
                    let (parts, name) = (whole(parts), args.at(0).to_vec());
                    let (order, step) = (homes(), Checked::Ask);
                    Item::Program(Program::Checked { parts, merge, name, order, step })
                }
                (None, None) => Item::Here,
            },
        };
        match &item {
            Item::Here | Item::Now => {}
            // It goes through all keys of all shards.
            Item::Program(Program::Scan { .. }) => {
                (0..placement.shards()).for_each(|at| self.lock(Shard(at), &LockSet::All));
            }
            Item::Program(_) => {
                for partition in partitions {
                    self.lock(placement.home_of(partition), &LockSet::Of([partition].into()));
                }
            }
            Item::Parts { parts, .. } => {
                for (at, _) in parts {
                    let own = partitions.iter().filter(|it| placement.home_of(**it) == *at);
                    let set = match partitions.is_empty() {
                        true => LockSet::All,
                        false => LockSet::of(own.copied()),
                    };
                    self.lock(*at, &set);
                }
            }
        }
        self.items.push(item);
    }

    /// Has its requests refused, if at all, before anything is executed: as requests of this name, which takes the same
    /// arguments.
    #[must_use]
    pub fn prepared(mut self, name: &[u8]) -> Self {
        let mut prepare: BTreeMap<Shard, Requests> = BTreeMap::new();
        for item in &self.items {
            let Item::Parts { parts, .. } = item else { continue };
            for (at, request) in parts {
                prepare.entry(*at).or_default().push(renamed(request, name));
            }
        }
        self.prepare = prepare;
        self
    }

    /// Executes nothing if one of these keys, which shards watch for the client, has changed.
    pub fn watch<'k>(
        &mut self,
        placement: &Placement,
        shards: &BTreeSet<Shard>,
        keys: impl Iterator<Item = &'k Box<[u8]>>,
    ) {
        self.watches_at.extend(shards);
        for &at in shards {
            self.lock(at, &LockSet::of(core::iter::empty()));
        }
        for key in keys {
            let partition = placement.partition(key);
            self.lock(placement.home_of(partition), &LockSet::Of([partition].into()));
        }
    }

    /// Where all of it is executed, if that is one shard: with what is locked and watched there.
    #[must_use]
    pub fn only_shard(&self) -> Option<Shard> {
        let whole = self.items.iter().all(|item| match item {
            Item::Parts { parts, .. } => parts.len() == 1,
            Item::Here | Item::Now | Item::Program(_) => false,
        });
        let mut shards = self.locks.iter().flat_map(|locks| locks.keys());
        shards.next().copied().filter(|_| whole && shards.next().is_none())
    }

    /// Whether a request depends on what another one does elsewhere.
    pub(crate) fn needs_rounds(&self) -> bool {
        self.items.iter().any(|item| matches!(item, Item::Program(_)))
            || self.end_of_round(0) < self.items.len()
    }

    /// The first request that must wait for those from `from` on.
    pub(crate) fn end_of_round(&self, from: usize) -> usize {
        let (mut writes, mut reads) = (BTreeSet::new(), BTreeSet::new());
        for (at, item) in self.items.iter().enumerate().skip(from) {
            let (parts, kind) = match item {
                Item::Here => continue,
                Item::Program(_) | Item::Now => return at,
                Item::Parts { parts, kind, .. } => (parts, kind),
            };
            let here: BTreeSet<Shard> = parts.iter().map(|(shard, _)| *shard).collect();
            let elsewhere = |others: &BTreeSet<Shard>| {
                here.len() > 1 && !others.is_empty()
                    || others.iter().any(|other| !here.contains(other))
            };
            if (kind.reads() && elsewhere(&writes)) || (kind.writes() && elsewhere(&reads)) {
                return at;
            }
            if kind.writes() {
                writes.extend(&here);
            }
            if kind.reads() {
                reads.extend(&here);
            }
        }
        self.items.len()
    }
}
