//! Commands about shards.

use super::refusal::Refusal;
use headwater_command::{Args, Command, Id, Sharding, Spec, number};

pub(super) fn decode<'a>(spec: &'static Spec, args: Args<'a>) -> Result<Command<'a>, Refusal<'a>> {
    let number = |at: usize, otherwise| {
        args.get(at).and_then(number::parse_u64).ok_or(Refusal::Text(otherwise))
    };
    Ok(Command::Sharding(match spec.id {
        Id::Wait => Sharding::Wait {
            shards: number(1, "the number of shards is a whole number that is not negative")?,
            millis: number(2, "timeout is not an integer or out of range")?,
        },
        Id::ShardHome => Sharding::Home { key: args.at(1) },
        Id::ShardMove => Sharding::Move {
            partition: number(1, "a partition is a whole number, as SHARD.HOME gives it")?,
            shard: number(2, "a shard is a whole number, as SHARD.LIST gives it")?,
        },
        Id::ShardList => Sharding::List,
        _ => Sharding::Position,
    }))
}
