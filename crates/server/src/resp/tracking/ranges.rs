//! Ranges that were read by clients who are told by prefixes: what joins and sources give there is followed as a whole, so
//! that these clients are told of each key in it that comes, changes or goes.
//!
//! # Cost
//! A read of a range that is followed already costs a search among the prefixes and among what is followed. From then on joins
//! do at once what they would have left to the next read of the range.

use super::note::Copy;
use super::{RANGES, ShardService, Tracking};
use headwater_base::KeyRange;
use headwater_command::{Args, Command, Data, Functions, Ranges, Spec};
use headwater_engine::{Engine, RangeOptions};
use headwater_protocol::resp::decode;

/// Bytes of keys of one read that are told one by one; beyond, all keys of the range count as changed.
const AT_ONCE_BYTES_MAX: usize = 1 << 20;

/// The range that a command reads, and how.
fn range_of(command: &Command<'_>) -> Option<(KeyRange, RangeOptions)> {
    Some(match *command {
        Command::Data(Data::Ranges(Ranges::Range { first, last, read })) => {
            let options = RangeOptions { reverse: read.reverse, limit: read.limit };
            (KeyRange::new(first, last), options)
        }
        Command::Data(Data::Ranges(Ranges::Prefix { prefix, read })) => {
            let options = RangeOptions { reverse: read.reverse, limit: read.limit };
            (KeyRange::prefix(prefix), options)
        }
        Command::Data(Data::Functions(Functions::Range {
            first, last, reverse, limit, ..
        })) => (KeyRange::new(first, last), RangeOptions { reverse, limit }),
        _ => return None,
    })
}

impl Tracking {
    fn follow_range(&mut self, range: &KeyRange, options: RangeOptions, engine: &mut Engine) {
        for part in self.prefixes.within(range) {
            for given in engine.given_in(&part) {
                if engine.follow(&given, RANGES).is_err() {
                    self.tell_at_once(&given, options, engine);
                }
            }
        }
    }

    /// Nobody maintains what was read of a range: copies of it count no longer.
    fn tell_at_once(&mut self, range: &KeyRange, options: RangeOptions, engine: &mut Engine) {
        let (mut keys, mut bytes) = (vec![range.first.as_slice().into()], 0);
        let read = engine.range(&range.first, &range.last, options, &mut |key, _| {
            bytes += key.len();
            if bytes <= AT_ONCE_BYTES_MAX {
                keys.push(key.into());
            }
        });
        if read.is_ok() && bytes <= AT_ONCE_BYTES_MAX {
            self.at_once.append(&mut keys);
        } else {
            self.lose_range(range);
        }
    }

    /// What becomes of a range that was followed is not known any more.
    pub(in crate::resp) fn lose_range(&mut self, range: &KeyRange) {
        self.lost.push(range.clone());
    }

    /// Tells those under whose prefixes any key may have changed that all of theirs may.
    pub(super) fn tell_lost(&mut self) {
        for range in core::mem::take(&mut self.lost) {
            for to in self.prefixes.shards_within(&range) {
                Copy::All.write(self.out(to));
                self.has_news = true;
            }
            self.prefixes.note_range(&range);
        }
    }
}

impl ShardService {
    /// A client that is told by prefixes has read, perhaps a range.
    pub(super) fn remember_range(&mut self, spec: &'static Spec, args: Args<'_>) {
        if spec.keys.positions(args.len()).next().is_some() {
            return;
        }
        let Ok(command) = decode(spec, args) else { return };
        if let Some((range, options)) = range_of(&command) {
            self.pushes.tracking.follow_range(&range, options, self.node.engine_mut());
        }
    }

    /// Nobody has these prefixes any more.
    pub(super) fn unfollow_ranges(&mut self, prefixes: &[&[u8]]) {
        for prefix in prefixes {
            for range in self.pushes.tracking.prefixes.outside(prefix) {
                self.node.engine_mut().unfollow(&range, RANGES);
            }
        }
    }
}
