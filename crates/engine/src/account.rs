//! What keeping a range of an `auto` join saves and costs ([`crate::choose`]).

/// A range is let go after changes have taken as much as so many of its reads would have if they were computed.
pub(crate) const PATIENCE: u64 = 4;
/// The same while nobody has read it again since its first read, of computations of the whole range.
const TRIAL_PATIENCE: u64 = 2;
/// Accounts are looked at after this part of the balance.
const LOOK_SHARE: u64 = 4;
/// A rate is a number of changes of a range, of so many changes of the join's tables.
const RATE_SHIFT: u32 = 20;

/// What keeping a range of an `auto` join has saved and cost, in rows.
#[derive(Debug)]
pub(crate) struct Account {
    /// What is left, as of the last look.
    pub(crate) balance: u64,
    /// What may be spent before the next look.
    pub(crate) granted: u32,
    /// What reads have saved since the last look, besides those that the group's note has counted.
    saved: u64,
    /// How many reads that were.
    reads: u64,
    /// What a read usually saves; 0 before the first one.
    usual: u64,
    pub(crate) saved_in_all: u64,
    pub(crate) spent_in_all: u64,
    /// Changes of the join's tables when it began to be kept, and at the last look.
    since: u64,
    pub(crate) looked: u64,
    /// The range is kept since its first read, and reads have not yet saved what computing it took.
    pub(crate) is_trial: bool,
}

impl Account {
    /// That of a range which begins to be kept; `is_trial`: since its first read.
    pub(crate) fn open(granted: u32, is_trial: bool, tick: u64) -> Self {
        Self {
            balance: u64::MAX,
            granted,
            saved: 0,
            reads: 0,
            usual: 0,
            saved_in_all: 0,
            spent_in_all: 0,
            since: tick,
            looked: tick,
            is_trial,
        }
    }

    /// What may be spent before it is looked at.
    pub(crate) fn granted(&self) -> u32 {
        self.granted
    }

    /// A read has saved so many rows.
    pub(crate) fn save(&mut self, rows: u64) {
        self.saved += rows;
        self.reads += 1;
    }

    /// Enters what was granted as spent, and what reads have saved since the last look, so many more with these rows among them. A computation of
    /// all takes `whole` rows. Whether it has turned out just now that keeping it from its first read on was right.
    pub(crate) fn look(
        &mut self,
        (reads, rows): (u64, u64),
        whole: u64,
        eagerly: bool,
        tick: u64,
    ) -> bool {
        let (spent, saved) = (u64::from(self.granted), rows + core::mem::take(&mut self.saved));
        let reads = reads + core::mem::take(&mut self.reads);
        self.saved_in_all += saved;
        self.spent_in_all += spent;
        self.looked = tick;
        if let Some(mean) = saved.checked_div(reads) {
            let mean = mean.max(1);
            self.usual = if self.usual == 0 { mean } else { (3 * self.usual + mean) / 4 };
        }
        let has_paid = self.is_trial && self.saved_in_all >= whole;
        self.is_trial &= !has_paid;
        let most = match (eagerly, self.is_trial, self.usual) {
            (true, ..) => 1,
            (_, true, _) => TRIAL_PATIENCE * whole,
            (_, _, 0) => PATIENCE * whole,
            // To let it go, and to keep it again, costs about as much as to compute it.
            (_, _, usual) => (PATIENCE * usual).max(whole),
        };
        self.balance = (self.balance.min(most) + saved).saturating_sub(spent).min(most);
        has_paid
    }

    /// Grants a part of the balance, or so much at least.
    pub(crate) fn grant(&mut self, least: u64) -> u32 {
        let grant = (self.balance / LOOK_SHARE).max(least).max(1);
        self.granted = u32::try_from(grant).unwrap_or(u32::MAX);
        self.granted
    }

    /// How often the range changes.
    pub(crate) fn rate(&self) -> u32 {
        rate_of(self.spent_in_all, self.looked - self.since)
    }
}

/// How often a range changes that has changed so often while the join's tables did.
pub(crate) fn rate_of(changes: u64, ticks: u64) -> u32 {
    u32::try_from((changes << RATE_SHIFT) / ticks.max(1)).unwrap_or(u32::MAX)
}

/// How often a range changes at this rate.
pub(crate) fn changes_in(rate: u32, ticks: u64) -> u64 {
    u64::from(rate).saturating_mul(ticks) >> RATE_SHIFT
}
