//! Commands about the connection itself.

use super::options::{integer, is};
use super::refusal::Refusal;
use headwater_command::{
    Args, ClientKind, Command, Connection, Credentials, Id, KillFilter, ReplyMode, Spec, Tracking,
    number,
};

pub(super) fn decode<'a>(spec: &'static Spec, args: Args<'a>) -> Result<Command<'a>, Refusal<'a>> {
    Ok(Command::Connection(match spec.id {
        Id::Hello => hello(args)?,
        Id::Auth => auth(args)?,
        Id::Ping if args.len() <= 2 => Connection::Ping { message: args.get(1) },
        Id::Echo => Connection::Echo { message: args.at(1) },
        Id::Quit => Connection::Quit,
        Id::Reset => Connection::Reset,
        Id::Select => match integer(args.at(1))? {
            0 => Connection::Select,
            _ => return Err(Refusal::Text("DB index is out of range")),
        },
        Id::ClientId => Connection::ClientId,
        Id::ClientGetName => Connection::ClientGetName,
        Id::ClientSetName => Connection::ClientSetName { name: client_name(args.at(2))? },
        Id::ClientSetInfo => set_info(args)?,
        Id::ClientList => list(args)?,
        Id::ClientInfo => Connection::ClientInfo,
        Id::ClientKill => Connection::ClientKill(kill(args)?),
        Id::ClientPause => pause(args)?,
        Id::ClientUnpause => Connection::ClientUnpause,
        Id::ClientUnblock => unblock(args)?,
        Id::ClientNoEvict => Connection::ClientNoEvict { on: switch(args.at(2))? },
        Id::ClientNoTouch => Connection::ClientNoTouch { on: switch(args.at(2))? },
        Id::ClientCapa => Connection::ClientCapa {
            blob_errors: args.from(2).iter().any(|name| is(name, "blob-errors")),
        },
        Id::ClientReply => Connection::ClientReply(reply_mode(args.at(2))?),
        Id::ClientTracking => Connection::ClientTracking(tracking(args)?),
        // Whether the client tracks at all is asked before the word.
        Id::ClientCaching => {
            let word = args.at(2);
            let yes = is(word, "yes");
            Connection::ClientCaching { yes: (yes || is(word, "no")).then_some(yes) }
        }
        Id::ClientTrackingInfo => Connection::ClientTrackingInfo,
        Id::ClientGetRedir => Connection::ClientGetRedir,
        Id::ClientHelp => return Ok(super::introspection::help("client")),
        _ => return Err(Refusal::Arity(spec)),
    }))
}

fn hello(args: Args<'_>) -> Result<Connection<'_>, Refusal<'_>> {
    let (mut credentials, mut name) = (None, None);
    let version = match args.get(1) {
        None => None,
        Some(version) => {
            let text = "Protocol version is not an integer or out of range";
            match number::parse_i64(version).ok_or(Refusal::Text(text))? {
                2 => Some(2),
                3 => Some(3),
                _ => {
                    let text = "unsupported protocol version";
                    return Err(Refusal::Coded { code: "NOPROTO", text });
                }
            }
        }
    };
    let mut options = args.from(2).iter();
    while let Some(option) = options.next() {
        let more = options.len();
        if is(option, "auth") && more >= 2 {
            let user = options.next();
            credentials = Some(Credentials { user, password: options.next().unwrap_or_default() });
        } else if is(option, "setname") && more >= 1 {
            name = Some(client_name(options.next().unwrap_or_default())?);
        } else {
            let before = "Syntax error in HELLO option '";
            return Err(Refusal::Quoting { before, bytes: option, after: "'" });
        }
    }
    Ok(Connection::Hello { version, credentials, name })
}

fn auth(args: Args<'_>) -> Result<Connection<'_>, Refusal<'_>> {
    match args.len() {
        2 => Ok(Connection::Auth(Credentials { user: None, password: args.at(1) })),
        3 => Ok(Connection::Auth(Credentials { user: args.get(1), password: args.at(2) })),
        _ => Err(Refusal::Syntax),
    }
}

fn client_name(name: &[u8]) -> Result<&[u8], Refusal<'_>> {
    if name.iter().all(|byte| matches!(byte, b'!'..=b'~')) {
        return Ok(name);
    }
    let text = "Client names cannot contain spaces, newlines or special characters.";
    Err(Refusal::Text(text))
}

fn set_info(args: Args<'_>) -> Result<Connection<'_>, Refusal<'_>> {
    let (attribute, value) = (args.at(2), args.at(3));
    if !is(attribute, "lib-name") && !is(attribute, "lib-ver") {
        return Err(Refusal::Quoting {
            before: "Unrecognized option '",
            bytes: attribute,
            after: "'",
        });
    }
    if !value.iter().all(|byte| matches!(byte, b'!'..=b'~')) {
        return Err(Refusal::Quoting {
            before: "",
            bytes: attribute,
            after: " cannot contain spaces, newlines or special characters.",
        });
    }
    Ok(Connection::ClientSetInfo { attribute, value })
}

fn kind(name: &[u8]) -> Result<ClientKind, Refusal<'_>> {
    if is(name, "normal") {
        Ok(ClientKind::Normal)
    } else if is(name, "replica") || is(name, "slave") {
        Ok(ClientKind::Replica)
    } else if is(name, "master") {
        Ok(ClientKind::Master)
    } else if is(name, "pubsub") {
        Ok(ClientKind::PubSub)
    } else {
        Err(Refusal::Quoting { before: "Unknown client type '", bytes: name, after: "'" })
    }
}

fn list(args: Args<'_>) -> Result<Connection<'_>, Refusal<'_>> {
    let nobody = args.from(args.len());
    match args.get(2) {
        None => Ok(Connection::ClientList { kind: None, ids: nobody }),
        Some(option) if is(option, "type") && args.len() == 4 => {
            Ok(Connection::ClientList { kind: Some(kind(args.at(3))?), ids: nobody })
        }
        Some(option) if is(option, "id") && args.len() > 3 => {
            let ids = args.from(3);
            if ids.iter().any(|id| number::parse_u64(id).is_none()) {
                return Err(Refusal::Text("Invalid client ID"));
            }
            Ok(Connection::ClientList { kind: None, ids })
        }
        Some(_) => Err(Refusal::Syntax),
    }
}

fn kill(args: Args<'_>) -> Result<KillFilter<'_>, Refusal<'_>> {
    let mut filter = KillFilter {
        id: None,
        address: None,
        local_address: None,
        user: None,
        kind: None,
        age: None,
        skip_me: true,
        by_address_alone: false,
    };
    if args.len() == 3 {
        filter.address = args.get(2);
        filter.skip_me = false;
        filter.by_address_alone = true;
        return Ok(filter);
    }
    let mut options = args.from(2).iter();
    while let Some(option) = options.next() {
        let value = options.next().ok_or(Refusal::Syntax)?;
        if is(option, "id") {
            let id = number::parse_u64(value).filter(|&id| id > 0);
            filter.id = Some(id.ok_or(Refusal::Text("client-id should be greater than 0"))?);
        } else if is(option, "type") {
            filter.kind = Some(kind(value)?);
        } else if is(option, "addr") {
            filter.address = Some(value);
        } else if is(option, "laddr") {
            filter.local_address = Some(value);
        } else if is(option, "user") {
            filter.user = Some(value);
        } else if is(option, "maxage") {
            filter.age = Some(age(value)?);
        } else if is(option, "skipme") && (is(value, "yes") || is(value, "no")) {
            filter.skip_me = is(value, "yes");
        } else {
            return Err(Refusal::Syntax);
        }
    }
    Ok(filter)
}

/// Whole seconds, at least one.
fn age(text: &[u8]) -> Result<u64, Refusal<'_>> {
    let seconds =
        number::parse_i64(text).ok_or(Refusal::Text("maxage is not an integer or out of range"))?;
    let seconds = u64::try_from(seconds).ok().filter(|&seconds| seconds > 0);
    seconds.ok_or(Refusal::Text("maxage should be greater than 0"))
}

fn pause(args: Args<'_>) -> Result<Connection<'_>, Refusal<'_>> {
    let writes_alone = match args.get(3) {
        None => false,
        Some(mode) if args.len() == 4 && is(mode, "write") => true,
        Some(mode) if args.len() == 4 && is(mode, "all") => false,
        Some(_) => return Err(Refusal::Text("CLIENT PAUSE mode must be WRITE or ALL")),
    };
    let millis = number::parse_i64(args.at(2))
        .ok_or(Refusal::Text("timeout is not an integer or out of range"))?;
    let millis = u64::try_from(millis).map_err(|_| Refusal::Text("timeout is negative"))?;
    Ok(Connection::ClientPause { millis, writes_alone })
}

fn unblock(args: Args<'_>) -> Result<Connection<'_>, Refusal<'_>> {
    let with_error = match args.get(3) {
        None => false,
        Some(how) if args.len() == 4 && is(how, "timeout") => false,
        Some(how) if args.len() == 4 && is(how, "error") => true,
        Some(_) => {
            return Err(Refusal::Text("CLIENT UNBLOCK reason should be TIMEOUT or ERROR"));
        }
    };
    // No client has a negative number.
    let id = u64::try_from(integer(args.at(2))?).unwrap_or(0);
    Ok(Connection::ClientUnblock { id, with_error })
}

fn switch(arg: &[u8]) -> Result<bool, Refusal<'_>> {
    match (is(arg, "on"), is(arg, "off")) {
        (true, _) => Ok(true),
        (_, true) => Ok(false),
        _ => Err(Refusal::Syntax),
    }
}

fn tracking(args: Args<'_>) -> Result<Tracking<'_>, Refusal<'_>> {
    let mut asked = Tracking {
        on: false,
        redirect: None,
        broadcast: false,
        opt_in: false,
        opt_out: false,
        no_loop: false,
        options: args.from(3),
    };
    let mut options = asked.options.iter();
    while let Some(option) = options.next() {
        let more = options.len() > 0;
        if is(option, "redirect") && more {
            if asked.redirect.is_some_and(|number| number != 0) {
                return Err(Refusal::Text("A client can only redirect to a single other client"));
            }
            asked.redirect = Some(integer(options.next().unwrap_or_default())?);
        } else if is(option, "prefix") && more {
            options.next();
        } else if is(option, "bcast") {
            asked.broadcast = true;
        } else if is(option, "optin") {
            asked.opt_in = true;
        } else if is(option, "optout") {
            asked.opt_out = true;
        } else if is(option, "noloop") {
            asked.no_loop = true;
        } else {
            return Err(Refusal::Syntax);
        }
    }
    asked.on = switch(args.at(2))?;
    Ok(asked)
}

fn reply_mode(arg: &[u8]) -> Result<ReplyMode, Refusal<'_>> {
    if is(arg, "skip") {
        return Ok(ReplyMode::Skip);
    }
    Ok(if switch(arg)? { ReplyMode::On } else { ReplyMode::Off })
}
