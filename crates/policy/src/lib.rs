//! Which entries a full cache gives up: one byte an entry, a few random candidates, and the one
//! that is worth least goes.
//!
//! The engine owns entries and finds candidates; this crate judges. It keeps no list and no
//! pointer: of each entry there is one byte, its [`Heat`] (how often it was used, and how long
//! ago), and of those that were evicted a fingerprint of 16 bits ([`Ghosts`]).
//!
//! | event | the engine calls | and |
//! | --- | --- | --- |
//! | a key comes | [`Evictor::inserted`] | stores the heat beside the entry |
//! | a key is used | [`Evictor::hit`] | stores the heat, if it is another one |
//! | memory is needed | [`Evictor::score`] of [`SAMPLES`] random entries, [`Least`] | gives up the least |
//! | an entry is evicted | [`Evictor::evicted`] | |
//!
//! Time is counted in *turnovers*: one is over when as many entries have come as are there. So
//! ages mean the same to small caches and large ones, at any speed, without a clock.
//!
//! # What an entry is worth
//! By [`Order::Cost`]: uses, halved every four turnovers, times what it costs to bring the entry
//! back, by its bytes. This is greedy dual by size and frequency (Cherkasova, 1998) with decay
//! in place of inflation, so that no score has to be kept. The others leave out the cost and the
//! size (`Frequency`), or look at age alone (`Recency`). [`Score`] shows every part.
//!
//! # Cost
//! A hit is a few instructions on a byte that lies beside what the hit has read anyway, and
//! changes nothing for an entry that is hot and was used in this turnover. An eviction judges
//! 16 candidates in integers. Ghosts take 2 to 4 bytes per resident entry, and are
//! touched by insertions and evictions alone: one cache miss each.
//!
//! # Measured
//! `cargo run --release -p headwater-policy --example study` compares hit ratios with those of
//! Redis' policies, LRU, LFU, CLOCK, SIEVE, S3-FIFO, W-TinyLFU and GDSF;
//! `docs/eviction.md` tells what came out. Each part earns its place there: 16 samples rather than 5, the count and its decay,
//! the ghosts, the size.

#![no_std]
extern crate alloc;

mod evictor;
mod ghosts;
mod heat;
mod score;

pub use evictor::{Evictor, Least, SAMPLES};
pub use ghosts::Ghosts;
pub use heat::Heat;
pub use score::{Candidate, FETCH_BYTES, Score};

/// By what an entry is judged.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Order {
    /// How long ago it was used.
    Recency,
    /// How often it was used lately.
    Frequency,
    /// How often it was used lately, what it costs to bring back, and its bytes.
    Cost,
    /// When it expires: what expires first goes first.
    Expiry,
    /// Chance.
    Random,
}

/// A policy by its name in configurations.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Policy {
    /// Whether only entries that expire may be evicted.
    pub volatile: bool,
    /// By what they are judged; `None`: nothing is evicted.
    pub order: Option<Order>,
}

impl Policy {
    /// Every policy and its name. All are Redis' but for the two by cost.
    pub const ALL: [(&'static str, Self); 10] = [
        ("noeviction", Self { volatile: false, order: None }),
        ("allkeys-cost", Self { volatile: false, order: Some(Order::Cost) }),
        ("allkeys-lru", Self { volatile: false, order: Some(Order::Recency) }),
        ("allkeys-lfu", Self { volatile: false, order: Some(Order::Frequency) }),
        ("allkeys-random", Self { volatile: false, order: Some(Order::Random) }),
        ("volatile-cost", Self { volatile: true, order: Some(Order::Cost) }),
        ("volatile-lru", Self { volatile: true, order: Some(Order::Recency) }),
        ("volatile-lfu", Self { volatile: true, order: Some(Order::Frequency) }),
        ("volatile-random", Self { volatile: true, order: Some(Order::Random) }),
        ("volatile-ttl", Self { volatile: true, order: Some(Order::Expiry) }),
    ];

    /// The policy of this name.
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|(known, _)| *known == name).map(|(_, policy)| policy)
    }

    /// Its name.
    #[must_use]
    pub fn name(self) -> &'static str {
        let found = Self::ALL.into_iter().find(|(_, policy)| *policy == self);
        // A combination that has no name of its own is of no use to anyone.
        found.map_or("noeviction", |(name, _)| name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_lead_to_policies_and_back() {
        for (name, policy) in Policy::ALL {
            assert_eq!((Policy::named(name), policy.name()), (Some(policy), name));
        }
        assert_eq!(Policy::named("allkeys-fifo"), None);
    }
}
