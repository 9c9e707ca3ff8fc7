//! Commands about flows.

use super::options::{is, text};
use super::refusal::Refusal;
use headwater_command::{
    Args, Command, Data, FlowAction, FlowFull, FlowOperations, FlowOptions, Flows, Id, Spec, number,
};

pub(super) fn decode<'a>(spec: &'static Spec, args: Args<'a>) -> Result<Command<'a>, Refusal<'a>> {
    let name = match args.get(1) {
        Some(name) => text(name, "the name of a flow must be UTF-8 text")?,
        None => "",
    };
    Ok(Command::Data(Data::Flows(match spec.id {
        Id::FlowAdd => add(name, args)?,
        Id::FlowDrop => Flows::Drop { name },
        Id::FlowInfo => Flows::Info { name },
        Id::FlowPause => Flows::Pause { name, paused: true },
        Id::FlowResume => Flows::Pause { name, paused: false },
        Id::FlowDead => Flows::Dead { name },
        Id::FlowRetry => {
            let force = match args.get(3) {
                None => false,
                Some(word) if is(word, "force") && args.len() == 4 => true,
                Some(_) => return Err(Refusal::Text("FLOW.RETRY name position|ALL [FORCE]")),
            };
            Flows::Retry { name, position: position(args)?, force }
        }
        Id::FlowDiscard => Flows::Discard { name, position: position(args)? },
        Id::FlowReplay => {
            let wrong = Refusal::Text("a position is a whole number");
            Flows::Replay { name, position: number::parse_u64(args.at(2)).ok_or(wrong)? }
        }
        _ => Flows::List,
    })))
}

/// A dead task's position, or `ALL`.
fn position(args: Args<'_>) -> Result<Option<u64>, Refusal<'_>> {
    if is(args.at(2), "all") {
        return Ok(None);
    }
    let wrong =
        Refusal::Text("a dead task is named by its position, as FLOW.DEAD gives it, or ALL");
    Ok(Some(number::parse_u64(args.at(2)).ok_or(wrong)?))
}

const SHAPE: Refusal<'static> = Refusal::Text(
    "FLOW.ADD name ON pattern CALL function [KEY pattern] [WRITES patterns] | FANOUT join | COPY join | \
     PUBLISH channel | HTTP POST url [TIMEOUT ms] [options]",
);

fn add<'a>(name: &'a str, args: Args<'a>) -> Result<Flows<'a>, Refusal<'a>> {
    if !args.get(2).is_some_and(|word| is(word, "on")) {
        return Err(SHAPE);
    }
    let on = pattern(args.get(3))?;
    let (verb, what) = args.get(4).zip(args.get(5)).ok_or(SHAPE)?;
    let mut rest = args.from(6);
    let action = if is(verb, "call") {
        let (mut key, mut writes) = (None, "");
        while let Some(word) = rest.get(0) {
            if is(word, "key") {
                key = Some(pattern(rest.get(1))?);
            } else if is(word, "writes") {
                writes = pattern(rest.get(1))?;
            } else {
                break;
            }
            rest = rest.from(2);
        }
        let function = text(what, "a function's name must be UTF-8 text")?;
        FlowAction::Call { function, key, writes }
    } else if is(verb, "fanout") || is(verb, "copy") {
        FlowAction::Fanout { join: text(what, "a join must be UTF-8 text")? }
    } else if is(verb, "http") && is(what, "post") {
        let url = text(rest.get(0).ok_or(SHAPE)?, "a URL must be UTF-8 text")?;
        rest = rest.from(1);
        let mut timeout_ms = None;
        if rest.get(0).is_some_and(|word| is(word, "timeout")) {
            let wrong = Refusal::Text("TIMEOUT needs a whole number of milliseconds from 1 on");
            let given = rest.get(1).and_then(number::parse_u64).filter(|&given| given > 0);
            timeout_ms = Some(given.ok_or(wrong)?);
            rest = rest.from(2);
        }
        FlowAction::Post { url, timeout_ms }
    } else if is(verb, "publish") {
        FlowAction::Publish { channel: what }
    } else {
        return Err(SHAPE);
    };
    let options = options(rest)?;
    Ok(Flows::Add { name, on, action, options, words: args.from(1) })
}

fn pattern(word: Option<&[u8]>) -> Result<&str, Refusal<'_>> {
    text(word.ok_or(SHAPE)?, "a pattern must be UTF-8 text")
}

/// Words with `|` between.
fn operations(words: &[u8]) -> Option<FlowOperations> {
    let mut operations = FlowOperations::default();
    for word in words.split(|&byte| byte == b'|') {
        let operation = match () {
            () if is(word, "set") => &mut operations.set,
            () if is(word, "del") || is(word, "delete") => &mut operations.delete,
            () if is(word, "expire") => &mut operations.expire,
            () => return None,
        };
        *operation = true;
    }
    Some(operations)
}

fn options(mut rest: Args<'_>) -> Result<FlowOptions, Refusal<'_>> {
    let mut options = FlowOptions::default();
    let whole = |at: usize, rest: &Args<'_>| rest.get(at).and_then(number::parse_u64);
    while let Some(option) = rest.get(0) {
        let mut taken = 2;
        if is(option, "workers") {
            let wrong = Refusal::Text("WORKERS needs a whole number from 1 on");
            options.workers = Some(whole(1, &rest).ok_or(wrong)?);
        } else if is(option, "max-attempts") {
            let wrong = Refusal::Text("MAX-ATTEMPTS needs a whole number from 1 on");
            options.attempts_max = Some(whole(1, &rest).ok_or(wrong)?);
        } else if is(option, "backoff") {
            let wrong = Refusal::Text(
                "BACKOFF needs two whole numbers: the first and the longest rest, in ms",
            );
            let both = whole(1, &rest).zip(whole(2, &rest));
            options.backoff = Some(both.ok_or(wrong)?);
            taken = 3;
        } else if is(option, "backlog") {
            let wrong = Refusal::Text("BACKLOG needs a whole number from 1 on");
            let most = whole(1, &rest).ok_or(wrong)?;
            let full = match rest.get(2) {
                Some(word) if is(word, "reject") => Some(FlowFull::Reject),
                Some(word) if is(word, "block") => Some(FlowFull::Block),
                Some(word) if is(word, "drop-oldest") => Some(FlowFull::DropOldest),
                _ => None,
            };
            taken += usize::from(full.is_some());
            options.backlog = Some((most, full.unwrap_or(FlowFull::Reject)));
        } else if is(option, "operations") {
            let wrong = Refusal::Text("OPERATIONS needs some of set|del|expire, with | between");
            options.operations = Some(rest.get(1).and_then(operations).ok_or(wrong)?);
        } else if is(option, "backfill") {
            options.backfill = true;
            taken = 1;
        } else {
            return Err(Refusal::Quoting {
                before: "syntax error: unknown option '",
                bytes: option,
                after: "'; allowed are WORKERS n, MAX-ATTEMPTS n, BACKOFF first most, BACKLOG n \
                    [REJECT|BLOCK|DROP-OLDEST], OPERATIONS set|del|expire, and BACKFILL",
            });
        }
        rest = rest.from(taken);
    }
    Ok(options)
}
