//! EVAL and its kin: the scripts of clients' locks are commands here, and there are no others.

use super::options::{integer, is};
use super::refusal::Refusal;
use headwater_command::{Args, Command, Data, Id, LockScript, Server, Spec, Strings, lock_script};
use sha1::{Digest, Sha1};

/// Why a script is refused, with what to use instead.
const NO_SCRIPTS: &str = "Headwater runs no scripts but those of redis-py's Lock: use DELIFEQ, PEXPIREIFEQ, CL.THROTTLE, \
     SET with NX or XX, MULTI with WATCH, or a function next to the data (FN.CALL)";

/// Clients that are told so send the text, and are told the rest then.
const UNKNOWN: Refusal<'_> =
    Refusal::Coded { code: "NOSCRIPT", text: "No matching script. Please use EVAL." };

pub(super) fn decode<'a>(spec: &'static Spec, args: Args<'a>) -> Result<Command<'a>, Refusal<'a>> {
    match spec.id {
        Id::Eval => {
            let (_, script) = of_text(args.at(1)).ok_or(Refusal::Text(NO_SCRIPTS))?;
            evaluated(script, args)
        }
        Id::EvalSha => {
            let (_, script) = lock_script(args.at(1)).ok_or(UNKNOWN)?;
            evaluated(script, args)
        }
        // All that are known write.
        Id::EvalRo => Err(Refusal::Text(NO_SCRIPTS)),
        Id::EvalShaRo => Err(UNKNOWN),
        Id::ScriptLoad => {
            let (sha, _) = of_text(args.at(2)).ok_or(Refusal::Text(NO_SCRIPTS))?;
            Ok(Command::Server(Server::ScriptLoad { sha }))
        }
        Id::ScriptExists => Ok(Command::Server(Server::ScriptExists { shas: args.from(2) })),
        Id::ScriptFlush => {
            let mode = args.get(2);
            if args.len() > 3 || mode.is_some_and(|mode| !is(mode, "async") && !is(mode, "sync")) {
                return Err(Refusal::Text("SCRIPT FLUSH only support SYNC|ASYNC option"));
            }
            Ok(Command::Server(Server::ScriptFlush))
        }
        _ => Ok(super::introspection::help("script")),
    }
}

/// The known script with this text.
fn of_text(text: &[u8]) -> Option<(&'static str, LockScript)> {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    let mut sha = [0; 40];
    for (pair, byte) in sha.chunks_exact_mut(2).zip(Sha1::digest(text)) {
        pair.copy_from_slice(&[DIGITS[usize::from(byte >> 4)], DIGITS[usize::from(byte & 15)]]);
    }
    lock_script(&sha)
}

/// What a script asks: behind it come the number of its keys, the key, and its arguments.
fn evaluated(script: LockScript, args: Args<'_>) -> Result<Command<'_>, Refusal<'_>> {
    let count = match script {
        LockScript::Release => 1,
        LockScript::Reacquire => 2,
        LockScript::Extend => 3,
    };
    if integer(args.at(2))? != 1 || args.len() < 4 + count {
        return Err(Refusal::Text(
            "this script takes one key, with the arguments that redis-py's Lock gives",
        ));
    }
    let (key, value) = (args.at(3), args.at(4));
    Ok(Command::Data(Data::Strings(match script {
        LockScript::Release => Strings::DelIfEqual { key, value },
        LockScript::Reacquire => {
            let millis = integer(args.at(5))?;
            Strings::ExpireIfEqual { key, value, millis, add: false, expires: false }
        }
        LockScript::Extend => {
            let (millis, add) = (integer(args.at(5))?, args.at(6) == b"0");
            Strings::ExpireIfEqual { key, value, millis, add, expires: true }
        }
    })))
}
