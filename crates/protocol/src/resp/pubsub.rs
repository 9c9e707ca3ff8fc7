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
        Id::PubSubChannels if args.len() <= 3 => PubSub::Channels { pattern: args.get(2) },
        Id::PubSubChannels => {
            return Err(Refusal::SubcommandArity { container: "PUBSUB", name: args.at(1) });
        }
        Id::PubSubNumSub => PubSub::NumSub { channels: args.from(2) },
        Id::PubSubNumPat => PubSub::NumPat,
        Id::PubSubHelp => return Ok(super::introspection::help("pubsub")),
        _ => return Err(Refusal::Arity(spec)),
    }))
}
