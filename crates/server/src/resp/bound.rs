//! The memory bound, as commands and clients meet it.
//!
//! A command that may need more memory runs where there is room for what it brings, beside the reserve; to make
//! room, the engine evicts. Other commands always run: what they need for a moment is the reserve.
//!
//! With several shards, each evicts for what it writes, and has the others evict their parts ([`crate::memory`]).
//!
//! # Cost
//! A command pays two loads and a comparison; one that may need memory adds up its arguments.

use super::session::Queue;
use super::{Flow, ShardService, Turn, encoder, times};
use crate::memory::{ClientShare, POSTPONED_PATIENCE, Sample};
use crate::resp::parts::MemoryBound;
use headwater_base::memory::Meter;
use headwater_command::bits::field_steps;
use headwater_command::{Args, Bits, Command, Data, Flags, Joins, Mark, Reply, Spec, Strings};
use headwater_config::{Config, ConfigError};
use headwater_engine::{Deadline, EngineError, Policy};
use headwater_node::Outcome;

/// What a new key takes besides its bytes and its value: its place in a page, and in indexes.
pub(crate) const KEY_BYTES: usize = 128;
/// The least of the bound that a shard gives up where there is too much, one part in so many.
const LEAST_PART: usize = 1024;
/// By which part of it the least bound that an error names exceeds the one that would have been taken.
const NAMED_PART: usize = 8;
/// Bytes for which room is made before they are taken beside data.
pub(super) const TAKEN_MIN: usize = 16 << 10;
/// Bytes that go at once where the bound was lowered: others are served between.
const LOWERED_STEP: usize = 128 << 10;
/// For how long a write has others served while room is made for it, in milliseconds: they may take what it gains.
const IN_STEPS_FOR: u64 = 1000;
/// For how long clients are spared that take no more than half of what they may, in milliseconds.
const FEW_PATIENCE: u64 = 1000;
/// How often memory is looked at when little is allocated, in milliseconds.
const LOOK_EVERY: u64 = 100;

/// Whether there is room for a transaction.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum QueueRoom {
    IsThere,
    /// There will be soon: others may be served until then.
    Comes,
    /// There is none, and the client was told.
    Lacks,
}

/// What a request needs: bytes outside values, and bytes in values.
fn need(spec: &Spec, args: Args<'_>, command: &Command<'_>) -> (usize, usize) {
    let (mut keys, mut count) = (0, 0);
    for key in spec.keys.positions(args.len()).filter_map(|at| args.get(at)) {
        keys += key.len();
        count += 1;
    }
    let all: usize = args.iter().map(<[u8]>::len).sum();
    let (bytes, values) = (keys + count.max(1) * KEY_BYTES, all - keys);
    // The whole value is put together beside the stored one.
    let whole = reached_length(command);
    (bytes.saturating_add(whole), values.saturating_add(whole))
}

/// How long a value is at least behind a command that writes into it at a place.
fn reached_length(command: &Command<'_>) -> usize {
    match command {
        Command::Data(Data::Strings(Strings::SetRange { offset, bytes: with, .. })) => {
            usize::try_from(*offset).unwrap_or(0).saturating_add(with.len())
        }
        Command::Data(Data::Bits(bits)) => {
            let whole = match *bits {
                Bits::Set { offset, .. } => offset / 8 + 1,
                Bits::Fields { steps, read_only: false, .. } => {
                    field_steps(steps).flatten().map(|step| step.end()).max().unwrap_or(0)
                }
                _ => 0,
            };
            usize::try_from(whole).unwrap_or(usize::MAX)
        }
        _ => 0,
    }
}

/// What clients of one shard may take where those of the others take so much: what they leave, at least an even part.
fn share_beside(others: usize, share: usize, shards: usize) -> usize {
    share.saturating_sub(others).max(share / shards)
}

/// What clients may take of their `share` whatever else takes memory.
fn least_share(reserve: usize, share: usize) -> usize {
    (reserve / 2).min(share)
}

impl ShardService {
    /// Puts the memory settings of `config` into force.
    pub(super) fn apply_memory(&mut self, config: &Config) {
        let bound = config.memory.bound();
        let before = self.bound.gauge.limit().unwrap_or(usize::MAX);
        self.bound.gauge.set_bound(bound);
        self.bound.lowers |= self.bound.gauge.limit().is_some_and(|limit| limit < before);
        let ready = self.bound.when_ready();
        let for_data = bound.map(|bound| self.bound.gauge.left_for_data(bound, ready));
        self.stores.hub.set_memory_bound(for_data);
        let engine = self.node.engine_mut();
        engine.set_memory(self.bound.gauge.clone(), self.bound.gauge.limit());
        engine.set_value_memory_limit(usize::MAX);
        if let Some(policy) = Policy::named(&config.memory.policy) {
            engine.set_eviction_policy(policy);
        }
        self.bound.clients_share = ClientShare::of(config).0;
        self.bound.clients_bytes_max = self.bound.clients_share;
        if let Some(shards) = &mut self.others.shards {
            shards.outbox.set_waiting_max(bound);
        }
        self.bound.looked_at = 0;
    }

    /// Looks at memory if it is time to. Clients take `clients` bytes.
    pub(super) fn look_in_time(&mut self, clients: usize) {
        let due = self.bound.gauge.is_due()
            || self.bound.gauge.has_announced()
            || self.bound.lowers
            || self.time.uptime >= self.bound.looked_at + LOOK_EVERY;
        if due && self.bound.gauge.limit().is_some() {
            self.bound.looked_at = self.time.uptime;
            self.bound.gauge.end_announced();
            self.bound.program.forget_in_time(self.time.uptime);
            self.look(clients);
        }
        self.bound.gauge.begin_command();
        self.give_up_what_is_asked();
    }

    /// Looks at what is taken, evicts what is too much, and sets the limits of the moment.
    #[cold]
    fn look(&mut self, clients: usize) {
        let has_grown = self.bound.gauge.is_due();
        self.give_up_what_is_asked();
        // Nobody waits for this.
        self.bound.gauge.begin_postponable(0);
        let engine = self.node.engine_mut();
        self.bound.gauge.refresh(engine.value_memory().untouched);
        let Some(limit) = self.bound.gauge.limit() else { return };
        let reserve = self.bound.gauge.reserve();
        let (fits, share) = match self.bound.gauge.common() {
            None if self.bound.lowers => {
                let over = engine.excess(0);
                let fits = over == 0 || engine.give_up(over.min(LOWERED_STEP));
                self.bound.lowers = over > 0 && fits;
                (fits, self.bound.clients_share)
            }
            None => (engine.make_room(0), self.bound.clients_share),
            Some(common) => {
                // Who writes asks for the parts of others beforehand; who does not lets things be.
                let soon = if has_grown { reserve + self.bound.gauge.step_now() } else { 0 };
                let over = engine.excess(0);
                let mut own = common.own_part(over).max(over.min(limit / LEAST_PART));
                if self.bound.lowers {
                    // All shards do the same.
                    own = own.min(LOWERED_STEP);
                } else {
                    common.ask(engine.excess(soon));
                }
                let gave = over == 0 || engine.give_up(own);
                self.bound.lowers &= over > 0 && gave;
                let fits = gave || common.may_gain();
                if fits {
                    self.bound.lacks_since.set(None);
                }
                let others = common.tell_clients(clients);
                let share = share_beside(others, self.bound.clients_share, common.shards());
                if clients + others <= least_share(reserve, share) {
                    // Nobody would be ended: who comes next is spared anew.
                    self.bound.lacks_since.set(None);
                }
                let fits = fits || self.bound.waits(self.time.uptime, clients + others);
                (fits, share)
            }
        };
        let fits = fits || self.bound.gauge.gains_soon();
        self.bound.gauge.begin_command();
        let used = self.bound.gauge.used();
        let taken = engine.value_memory().taken;
        let room = limit.saturating_sub(reserve) as isize - used as isize;
        // Buffers of values are large: each shard may take its part of what is left.
        let room = room / self.bound.gauge.shards() as isize;
        engine.set_value_memory_limit(taken.saturating_add_signed(room));
        self.bound.clients_bytes_max = if fits {
            share
        } else {
            // Nothing else can go: clients that take most do.
            let over = used.saturating_sub(limit);
            clients.saturating_sub(over).clamp(least_share(reserve, share), share)
        };
    }

    /// Gives up what other shards ask for.
    #[inline]
    fn give_up_what_is_asked(&mut self) {
        if let Some(common) = self.bound.gauge.common()
            && common.asked() > 0
        {
            self.give_up(common.asked());
        }
    }

    #[cold]
    fn give_up(&mut self, asked: usize) {
        let engine = self.node.engine_mut();
        let gave = self.bound.gauge.limit().is_some() && engine.give_up(asked);
        self.bound.gauge.refresh(engine.value_memory().untouched);
        if let Some(common) = self.bound.gauge.common() {
            common.answer(asked, !gave);
        }
    }

    /// Makes room for the bytes of a request that goes to another shard or comes from one.
    #[inline]
    pub(crate) fn make_room_to_pass(&mut self, bytes: usize) {
        if bytes > TAKEN_MIN {
            // A buffer that grows has its old bytes and its new ones for a moment.
            // Where there is none, the request is refused where it is executed.
            self.make_room_to_take(3 * bytes);
        }
    }

    /// Makes room for bytes that are about to be taken at once beside data, and has the other shards count on them; whether there
    /// is any.
    pub(crate) fn make_room_to_take(&mut self, bytes: usize) -> bool {
        if bytes <= TAKEN_MIN || self.bound.gauge.limit().is_none() {
            return true;
        }
        let engine = self.node.engine_mut();
        self.bound.gauge.announce_beside(bytes, || engine.value_memory().untouched);
        engine.make_room(bytes)
    }

    /// Whether there is room for a request, after evicting; otherwise it is refused, or waits until there may be some,
    /// and others are served meanwhile.
    #[inline]
    pub(super) fn admission(
        &mut self,
        spec: &Spec,
        args: Args<'_>,
        command: &Command<'_>,
        work: &mut Turn<'_>,
    ) -> Result<(), Flow> {
        if self.bound.gauge.limit().is_none() {
            return Ok(());
        }
        self.look_if_due(work.peers.bytes());
        if work.connection.session.in_transaction() && reached_length(command) == 0 {
            // All parts were agreed to, and what their requests have is left free for them.
            self.bound.gauge.begin_command();
            return Ok(());
        }
        if self.waits.in_transaction(&work.connection.session) {
            self.bound.gauge.begin_command();
        } else {
            let since = self.waits.running_since.unwrap_or(self.time.uptime);
            let waited = self.time.uptime.saturating_sub(since);
            self.bound.gauge.begin_postponable(waited);
            if spec.flags.has(Flags::DENYOOM) && waited < IN_STEPS_FOR {
                let largest = || args.iter().map(<[u8]>::len).max().unwrap_or(0);
                if self.bound.gauge.store_delays(largest) {
                    let ticket = self.node.engine_mut().next_ticket();
                    return Err(self.park(ticket, args, work));
                }
                match self.make_room_in_steps(spec, args, command) {
                    Some(true) => return Ok(()),
                    Some(false) => {
                        self.notice_lack();
                        return self.without_room(args, command, work);
                    }
                    None => {
                        let ticket = self.node.engine_mut().later_ticket();
                        return Err(self.park(ticket, args, work));
                    }
                }
            }
        }
        if !spec.flags.has(Flags::DENYOOM) || self.has_room_for(spec, args, command) {
            return Ok(());
        }
        self.without_room(args, command, work)
    }

    /// What becomes of a request that there is no room for, now that all has been evicted that can be.
    #[cold]
    fn without_room(
        &mut self,
        args: Args<'_>,
        command: &Command<'_>,
        work: &mut Turn<'_>,
    ) -> Result<(), Flow> {
        if let Command::Data(Data::Joins(Joins::Add { name, .. })) = command
            && self.node.engine().is_join_prepared(name)
        {
            // It was agreed to, and other shards have it, or will.
            return Ok(());
        }
        if self.bound.gauge.gains_soon() {
            let ticket = self.node.engine_mut().next_ticket();
            return Err(self.park(ticket, args, work));
        }
        self.refuse_for_room(work);
        Err(Flow::Next)
    }

    /// As [`ShardService::admission`], without letting others be served.
    pub(super) fn admits(
        &mut self,
        spec: &Spec,
        args: Args<'_>,
        command: &Command<'_>,
        work: &mut Turn<'_>,
    ) -> bool {
        if self.bound.gauge.limit().is_none() {
            return true;
        }
        self.look_if_due(work.peers.bytes());
        self.bound.gauge.begin_command();
        if !spec.flags.has(Flags::DENYOOM) || self.has_room_for(spec, args, command) {
            return true;
        }
        self.refuse_for_room(work);
        false
    }

    fn has_room_for(&mut self, spec: &Spec, args: Args<'_>, command: &Command<'_>) -> bool {
        if self.is_too_long(args, command) {
            return true;
        }
        let (bytes, values) = need(spec, args, command);
        self.has_room_to_write(bytes, values)
    }

    /// Whether a command is going to be refused because of its value's length: nothing is evicted for it.
    fn is_too_long(&self, args: Args<'_>, command: &Command<'_>) -> bool {
        let writes = matches!(command, Command::Data(Data::Strings(_) | Data::Bits(_)));
        let longest = || args.iter().map(<[u8]>::len).max().unwrap_or(0);
        let limits = self.node.engine().limits();
        writes
            && (reached_length(command) > limits.value_bytes_max
                || longest() > limits.value_bytes_max.max(limits.key_bytes_max))
    }

    /// As [`ShardService::has_room_for`], but evicts no more than a step; `None` where there is to be another one.
    #[inline]
    fn make_room_in_steps(
        &mut self,
        spec: &Spec,
        args: Args<'_>,
        command: &Command<'_>,
    ) -> Option<bool> {
        if self.is_too_long(args, command) {
            return Some(true);
        }
        let (bytes, values) = need(spec, args, command);
        let bytes = bytes.saturating_add(self.bound.gauge.beside_values(values));
        let reserve = self.bound.left_free(self.others.reserved_bytes());
        let engine = self.node.engine_mut();
        self.bound
            .gauge
            .announce_beside(bytes.saturating_add(values), || engine.value_memory().untouched);
        engine.make_room_in_steps(bytes, values, reserve)
    }

    #[cold]
    pub(super) fn refuse_for_room(&mut self, work: &mut Turn<'_>) {
        encoder(work).error("OOM", format_args!("{}", EngineError::OutOfMemory));
    }

    /// Looks at memory where the heap could have grown noticeably.
    #[inline]
    pub(crate) fn look_if_due(&mut self, clients: usize) {
        if self.bound.gauge.limit().is_some() && self.bound.gauge.is_due() {
            self.look(clients);
        }
    }

    /// Whether there is room, after evicting, for a write of `bytes` outside values and `values`
    /// within, beside the reserve.
    #[inline]
    pub(crate) fn has_room_to_write(&mut self, bytes: usize, values: usize) -> bool {
        if self.bound.gauge.limit().is_none() {
            return true;
        }
        let bytes = bytes.saturating_add(self.bound.gauge.beside_values(values));
        let reserve = self.bound.left_free(self.others.reserved_bytes());
        let engine = self.node.engine_mut();
        self.bound
            .gauge
            .announce_beside(bytes.saturating_add(values), || engine.value_memory().untouched);
        let fits = engine.make_room_for(bytes.saturating_add(reserve), values);
        if !fits {
            self.notice_lack();
        }
        fits
    }

    /// Has so much memory be taken that half of what writes leave free is left, or hardly any.
    #[cfg(test)]
    pub(crate) fn simulate_memory(&self, is_full: bool) {
        let gauge = &self.bound.gauge;
        let full = gauge.limit().unwrap_or(0).saturating_sub(gauge.reserve() / 2);
        gauge.simulate(if is_full { full } else { full / 10 });
    }

    /// Notes that there is no room, unless some comes.
    #[cold]
    fn notice_lack(&mut self) {
        if !self.bound.gauge.gains_soon() {
            self.notice_no_room();
        }
    }

    /// Makes room for an answer that has more bytes than the reserve allows; what the output may
    /// grow to by it then.
    #[cold]
    pub(crate) fn make_room_to_answer(&mut self, work: &mut Turn<'_>) -> Option<usize> {
        let most = self.bound.clients_share / 4;
        // Beside the answer there may be what reading it computes.
        if !self.node.engine_mut().make_room(2 * most) {
            return None;
        }
        work.out.reserve_exact(most);
        Some(work.out.len() + most)
    }

    /// Executes a command about data, whose answer takes no more than there is room for.
    #[inline]
    pub(super) fn execute_data(
        &mut self,
        spec: &Spec,
        data: &Data<'_>,
        work: &mut Turn<'_>,
    ) -> Outcome {
        let in_transaction = self.waits.in_transaction(&work.connection.session);
        self.node.set_whole(in_transaction);
        let is_whole = in_transaction || matches!(data, Data::Functions(_));
        self.node.end_next_by(if is_whole { self.deadline() } else { None });
        let before = work.out.len();
        let reads = spec.flags.has(Flags::READONLY);
        let most = if reads { self.bound.answer_bytes_max(work) } else { usize::MAX };
        let mut encoder = encoder(work).at_most(most);
        let outcome = self.node.execute(data, &mut encoder);
        if encoder.overflowed() { self.execute_again(data, before, work) } else { outcome }
    }

    /// When a command ends that is executed as a whole: so long after it was begun, or the transaction of which it is a part.
    fn deadline(&self) -> Option<Deadline> {
        let milliseconds = self.settings.config.clients.command_milliseconds_max;
        if milliseconds == 0 {
            return None;
        }
        let since = self.waits.transaction_since.unwrap_or_else(times::now);
        let at = since.saturating_add(milliseconds.saturating_mul(1_000_000));
        Some(Deadline { clock: times::now, at, milliseconds })
    }

    /// Executes a reading command again, whose answer has more bytes than the reserve allows: room
    /// is made for it, or it is refused.
    #[cold]
    fn execute_again(&mut self, data: &Data<'_>, before: usize, work: &mut Turn<'_>) -> Outcome {
        encoder(work).rewind(Mark(before));
        if let Some(most) = self.make_room_to_answer(work) {
            self.node.end_next_by(self.deadline());
            let mut encoder = encoder(work).at_most(most);
            let outcome = self.node.execute(data, &mut encoder);
            if !encoder.overflowed() {
                return outcome;
            }
            encoder.rewind(Mark(before));
        }
        encoder(work).error(
            "OOM",
            format_args!("the reply has too many bytes for 'maxmemory': read it in parts."),
        );
        Outcome::Done
    }

    /// Whether there is room to queue a request, after evicting.
    pub(super) fn has_room_to_queue(&mut self, args: Args<'_>, work: &Turn<'_>) -> bool {
        if self.bound.gauge.limit().is_none() {
            return true;
        }
        if self.bound.gauge.is_due() {
            self.look(work.peers.bytes());
        }
        self.bound.gauge.begin_command();
        let bytes: usize = args.iter().map(<[u8]>::len).sum();
        // Where nothing can go, small transactions may use the reserve.
        self.node.engine_mut().make_room(2 * bytes + self.bound.gauge.reserve() / 2)
    }

    /// Whether there is room for what a transaction stores, in memory and on disk; where there is none, EXEC is refused.
    pub(super) fn room_for_queue(
        &mut self,
        queue: &Queue,
        may_wait: bool,
        work: &mut Turn<'_>,
    ) -> QueueRoom {
        if queue.stores
            && let Some(why) = self.stores.write_refusal()
        {
            // Its removals would be carried out without what belongs to them.
            let code = self.stores.refusal_code();
            let text = format_args!("Transaction discarded because of: {code} {why}");
            encoder(work).error("EXECABORT", text);
            return QueueRoom::Lacks;
        }
        if self.bound.gauge.limit().is_none() || !queue.denies_oom {
            return QueueRoom::IsThere;
        }
        if may_wait {
            let since = self.waits.running_since.unwrap_or(self.time.uptime);
            self.bound.gauge.begin_postponable(self.time.uptime.saturating_sub(since));
        } else {
            self.bound.gauge.begin_command();
        }
        let reserve = self.bound.gauge.reserve().saturating_add(self.others.reserved_bytes());
        let bytes = queue.bytes.saturating_add(reserve);
        if self.node.engine_mut().make_room(bytes) {
            return QueueRoom::IsThere;
        }
        if may_wait && self.bound.gauge.gains_soon() {
            return QueueRoom::Comes;
        }
        self.notice_no_room();
        let text =
            format_args!("Transaction discarded because of: OOM {}", EngineError::OutOfMemory);
        encoder(work).error("EXECABORT", text);
        QueueRoom::Lacks
    }
}

impl MemoryBound {
    /// What a write leaves free, where so many bytes are reserved for what was agreed to. What is a part of that itself may take
    /// it all.
    fn left_free(&self, reserved: usize) -> usize {
        if self.is_agreed { 0 } else { self.gauge.reserve().saturating_add(reserved) }
    }

    /// Whether clients, that take so many bytes altogether, are spared though there is too little memory: it comes, or they take
    /// little, and what others had for a moment is about to be found.
    fn waits(&self, now: u64, clients: usize) -> bool {
        let since = self.lacks_since.get().unwrap_or(now);
        self.lacks_since.set(Some(since));
        let lacks_for = now.saturating_sub(since);
        (lacks_for < FEW_PATIENCE && clients <= self.clients_share / 2)
            || (lacks_for < POSTPONED_PATIENCE && self.gauge.is_coming())
    }

    /// What the server took when it was ready, once it is.
    fn when_ready(&self) -> Option<Sample> {
        (self.at_start.resident > 0).then_some(self.at_start)
    }

    /// Checks the memory settings against what the server takes as it is.
    pub(super) fn check_memory(&self, config: &Config) -> Result<(), ConfigError> {
        let (max, ready) = (config.memory.max.0 as usize, self.when_ready());
        if max > 0 && ready.is_none() {
            self.gauge.let_stores_settle(max);
        }
        let least = self.gauge.least(ready);
        if max == 0 || max >= least {
            return Ok(());
        }
        // What a start takes differs a little from one to the next: what is named is enough for any.
        let named = least + least / NAMED_PART;
        Err(ConfigError(format!("maxmemory is {max} (allowed: 0, or at least {named})")))
    }

    /// Without a bound of the process's, what clients may take together may be bounded: those of one shard may take what
    /// others leave, at least an even part.
    #[inline]
    pub(super) fn share_with_clients_of_others(&mut self, clients: usize) {
        if self.clients_share < usize::MAX
            && self.gauge.limit().is_none()
            && let Some(common) = self.gauge.common()
        {
            let others = common.tell_clients(clients);
            self.clients_bytes_max = share_beside(others, self.clients_share, common.shards());
        }
    }

    /// What the output may grow to by the answer of a reading command.
    #[inline]
    pub(crate) fn answer_bytes_max(&self, work: &Turn<'_>) -> usize {
        match self.gauge.limit() {
            Some(_) => work.out.len() + self.gauge.reserve() / 2 / self.gauge.shards(),
            None => usize::MAX,
        }
    }

    /// What is known of the process's memory now.
    pub(super) fn memory_sample(&self) -> Sample {
        self.gauge.sample()
    }
}
