//! Commands about transactions.

use headwater_command::{Args, Command, Id, Spec, Transaction};

pub(super) fn decode<'a>(spec: &'static Spec, args: Args<'a>) -> Command<'a> {
    Command::Transaction(match spec.id {
        Id::Multi => Transaction::Multi,
        Id::Exec => Transaction::Exec,
        Id::Discard => Transaction::Discard,
        Id::Watch => Transaction::Watch { keys: args.from(1) },
        _ => Transaction::Unwatch,
    })
}
