//! Every command there is, sent by users of every kind. The commands are those that the server names, so that none is forgotten.

use crate::acl::ask;
use crate::support::{Server, Socket, request};
use redis::{Value, from_redis_value};

/// The kinds of users, with their rules. Whoever has no login is `default`, which is off.
const USERS: [(&str, &str); 6] = [
    ("reader", "~* &* +@read"),
    ("writer", "~* &* +@read +@write"),
    ("definer", "~* &* +@read +@define"),
    ("connector", "~* &* +@connect"),
    ("keyless", "&* +@all"),
    ("admin", "~* &* +@all"),
];

/// A command as COMMAND describes it.
struct Described {
    words: Vec<String>,
    arity: usize,
    flags: Vec<String>,
    first_key: i64,
    categories: Vec<String>,
}

fn texts(value: &Value) -> Vec<String> {
    from_redis_value(value.clone()).unwrap()
}

fn described(value: &Value, all: &mut Vec<Described>) {
    let Value::Array(facts) = value else { panic!("{value:?} is no description") };
    let name: String = from_redis_value(facts[0].clone()).unwrap();
    let arity: i64 = from_redis_value(facts[1].clone()).unwrap();
    let Value::Array(subcommands) = &facts[9] else { panic!("{name} has no list of subcommands") };
    subcommands.iter().for_each(|subcommand| described(subcommand, all));
    if !subcommands.is_empty() {
        return;
    }
    all.push(Described {
        words: name.split('|').map(str::to_owned).collect(),
        arity: arity.unsigned_abs() as usize,
        flags: texts(&facts[2]),
        first_key: from_redis_value(facts[3].clone()).unwrap(),
        categories: texts(&facts[6]),
    });
}

/// The first line of the answer to a request over a connection of its own.
fn answer(server: &Server, user: Option<&str>, words: &[&[u8]]) -> String {
    let mut socket = server.socket();
    if let Some(user) = user {
        socket.send(&request(&[b"AUTH", user.as_bytes(), b"pw"]));
        socket.expect(b"+OK\r\n");
    }
    socket.send(&request(words));
    String::from_utf8_lossy(&socket.until(b"\n")).into_owned()
}

/// Whether a user of this kind has the right to a command.
fn may(user: &str, command: &Described) -> bool {
    let is = |category: &str| command.categories.iter().any(|own| own == category);
    if command.flags.iter().any(|flag| flag == "no_auth") {
        return true;
    }
    match user {
        "reader" => is("@read"),
        "writer" => is("@read") || is("@write"),
        "definer" => is("@read") || is("@define"),
        "connector" => is("@connect"),
        // Whatever concerns keys that are not named needs the right to all: those say so below.
        // A script that is not known has no keys: it is refused in any case.
        "keyless" if command.words == ["eval"] => true,
        "keyless" => command.first_key == 0 && !is_about_all_keys(command),
        _ => true,
    }
}

/// Commands that read or write keys without naming them one by one.
fn is_about_all_keys(command: &Described) -> bool {
    let name = command.words.join("|");
    let names = [
        "keys",
        "scan",
        "randomkey",
        "flushall",
        "flushdb",
        "range",
        "prefix",
        "range.del",
        "range.watch",
        "explain.range",
        "verify",
        "fn.range",
        "table.set",
        "monitor",
    ];
    names.contains(&name.as_str())
}

#[test]
fn every_command_is_refused_to_whoever_has_no_right_to_it() {
    let server = Server::start(&[]);
    let mut admin = server.client(3);
    for (user, rules) in USERS {
        let rules = ["on", ">pw"].into_iter().chain(rules.split(' '));
        let words: Vec<&str> = ["ACL", "SETUSER", user].into_iter().chain(rules).collect();
        ask(&mut admin, &words).unwrap();
    }
    let mut commands = Vec::new();
    let Value::Array(all) = ask(&mut admin, &["COMMAND"]).unwrap() else { panic!("no commands") };
    all.iter().for_each(|command| described(command, &mut commands));
    assert!(commands.len() > 150, "{}", commands.len());
    ask(&mut admin, &["ACL", "SETUSER", "default", "off"]).unwrap();
    let mut refused = 0;
    for command in &commands {
        let mut words: Vec<&[u8]> = command.words.iter().map(String::as_bytes).collect();
        while words.len() < command.arity {
            // Empty ranges, and patterns that have all keys, would be no test of rights to keys.
            words.push(if words.len() == 2 { b"y" } else { b"x" });
        }
        match command.words.join("|").as_str() {
            // Nobody is to end the server, or its answers, here.
            "shutdown" => words.push(b"x"),
            // The last is beyond the first.
            "range" | "range.del" | "range.watch" | "explain.range" | "verify" => {
                words[1..].copy_from_slice(&[b"x", b"y"]);
            }
            "fn.range" => words[1..].copy_from_slice(&[b"f", b"x", b"y", b"p"]),
            "keys" => words[1] = b"*",
            "scan" => words[1] = b"0",
            "evalsha" => {
                words[1..].copy_from_slice(&[b"c3f8721cbb97f72bc19e972846bd7aaf91901658", b"1"]);
                words.extend([&b"x"[..], b"token"]);
            }
            "wait" => words[1..].copy_from_slice(&[b"x", b"x"]),
            _ => {}
        }
        let name = command.words.join("|");
        let no_auth = command.flags.iter().any(|flag| flag == "no_auth");
        let told = answer(&server, None, &words);
        let is_let_in = no_auth && !told.starts_with("-NOAUTH");
        assert_eq!(
            told.starts_with("-NOAUTH"),
            !is_let_in && (!no_auth || name == "hello"),
            "{name}: {told}"
        );
        for (user, _) in USERS {
            let told = answer(&server, Some(user), &words);
            let is_refused = told.starts_with("-NOPERM");
            assert_eq!(!is_refused, may(user, command), "{name} by {user}: {told}");
            refused += u32::from(is_refused);
        }
        let queued = command.flags.iter().all(|flag| flag != "no_multi" && flag != "no_auth");
        if queued && !matches!(&*name, "multi" | "exec" | "discard" | "watch") {
            in_transaction(&server, command, &words);
        }
    }
    assert!(refused > 300, "{refused}");
}

/// What MULTI queues is judged as well.
fn in_transaction(server: &Server, command: &Described, words: &[&[u8]]) {
    let mut socket = server.socket();
    socket.send(&request(&[b"AUTH", b"keyless", b"pw"]));
    socket.send(&request(&[b"MULTI"]));
    socket.expect(b"+OK\r\n+OK\r\n");
    socket.send(&request(words));
    let told = String::from_utf8_lossy(&socket.until(b"\n")).into_owned();
    assert_eq!(
        !told.starts_with("-NOPERM"),
        may("keyless", command),
        "{:?}: {told}",
        command.words
    );
    socket.send(&request(&[b"DISCARD"]));
    socket.until(b"+OK\r\n");
}

/// Requests of memcached's protocol, and which of the users may send them: reader, writer, keyless, admin.
const ITEMS: [(&str, [bool; 4]); 21] = [
    ("get k", [true, true, false, true]),
    ("gets k k", [true, true, false, true]),
    ("gat 10 k", [false, true, false, true]),
    ("set k 0 0 1\r\nx", [false, true, false, true]),
    ("add k 0 0 1\r\nx", [false, true, false, true]),
    ("replace k 0 0 1\r\nx", [false, true, false, true]),
    ("append k 0 0 1\r\nx", [false, true, false, true]),
    ("cas k 0 0 1 7\r\nx", [false, true, false, true]),
    ("incr k 1", [false, true, false, true]),
    ("delete k", [false, true, false, true]),
    ("touch k 1", [false, true, false, true]),
    ("mg k v", [true, true, false, true]),
    ("mg k v T10", [false, true, false, true]),
    ("mg k N10", [false, true, false, true]),
    ("ms k 1\r\nx", [false, true, false, true]),
    ("md k", [false, true, false, true]),
    ("ma k", [false, true, false, true]),
    ("me k", [true, true, false, true]),
    ("flush_all", [false, true, false, true]),
    ("stats", [false, false, true, true]),
    ("version", [false, false, true, true]),
];

#[test]
fn items_are_refused_to_whoever_has_no_right_to_them() {
    let server = Server::start(&["--memcached-port", "0"]);
    let mut admin = server.client(3);
    for (user, rules) in USERS {
        let rules = ["on", ">pw"].into_iter().chain(rules.split(' '));
        let words: Vec<&str> = ["ACL", "SETUSER", user].into_iter().chain(rules).collect();
        ask(&mut admin, &words).unwrap();
    }
    ask(&mut admin, &["ACL", "SETUSER", "default", "off"]).unwrap();
    let first_line = |socket: &mut Socket, text: &str| {
        socket.send(format!("{text}\r\n").as_bytes());
        String::from_utf8_lossy(&socket.until(b"\n")).into_owned()
    };
    for (text, allowed) in ITEMS {
        let told = first_line(&mut server.memcached(), text);
        // A block of data is taken for a user and a password.
        assert!(told.starts_with("CLIENT_ERROR") && told.contains("auth"), "{text}: {told}");
        for (user, may) in ["reader", "writer", "keyless", "admin"].into_iter().zip(allowed) {
            let mut socket = server.memcached();
            let login = format!("set x 0 0 {}\r\n{user} pw", user.len() + 3);
            assert_eq!(first_line(&mut socket, &login), "STORED\r\n");
            let told = first_line(&mut socket, text);
            assert_eq!(told.starts_with("CLIENT_ERROR NOPERM"), !may, "{text} by {user}: {told}");
        }
    }
}
