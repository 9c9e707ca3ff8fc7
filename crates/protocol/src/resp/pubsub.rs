//! Commands about channels.

use super::refusal::Refusal;
use headwater_command::{Args, Command, Id, PubSub, Spec};

pub(super) fn decode<'a>(spec: &'static Spec, args: Args<'a>) -> Result<Command<'a>, Refusal<'a>> {
    let rest = args.from(1);
    Ok(Command::PubSub(match spec.id {
        Id::Subscribe => PubSub::Subscribe { channels: rest },
        Id::Unsubscribe => PubSub::Unsubscribe { channels: rest },
        Id::PSubscribe => PubSub::PSubscribe { patterns: rest },
        Id::PUnsubscribe => PubSub::PUnsubscribe { patterns: rest },
        Id::Publish => PubSub::Publish { channel: args.at(1), message: args.at(2) },
        Id::SSubscribe => PubSub::SSubscribe { channels: rest },
        Id::SUnsubscribe => PubSub::SUnsubscribe { channels: rest },
        Id::SPublish => PubSub::SPublish { channel: args.at(1), message: args.at(2) },
        Id::PubSubChannels | Id::PubSubShardChannels if args.len() <= 3 => {
            let sharded = spec.id == Id::PubSubShardChannels;
            PubSub::Channels { pattern: args.get(2), sharded }
        }
        Id::PubSubChannels | Id::PubSubShardChannels => {
            return Err(Refusal::SubcommandArity { container: "PUBSUB", name: args.at(1) });
        }
        Id::PubSubNumSub => PubSub::NumSub { channels: args.from(2), sharded: false },
        Id::PubSubShardNumSub => PubSub::NumSub { channels: args.from(2), sharded: true },
        Id::PubSubNumPat => PubSub::NumPat,
        Id::PubSubHelp => return Ok(super::introspection::help("pubsub")),
        _ => return Err(Refusal::Arity(spec)),
    }))
}
