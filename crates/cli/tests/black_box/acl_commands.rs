//! Every command there is, sent by users of every kind. The commands are those that the server names, so that none is forgotten.

use crate::acl::ask;
use crate::support::{Server, Socket, request};
use redis::{Value, from_redis_value};
use std::collections::BTreeSet;

/// The kinds of users, with their rules. Whoever has no login is `default`, which is off.
const USERS: [(&str, &str); 8] = [
    ("reader", "~* &* +@read"),
    ("writer", "~* &* +@read +@write"),
    ("definer", "~* &* +@read +@define"),
    ("connector", "~* &* +@connect"),
    ("keyless", "&* +@all"),
    ("looker", "%R~* &* +@all"),
    ("setter", "%W~* &* +@all"),
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

/// Scripts that are not known, as they are sent here, have no keys: they are refused in any case.
const UNKNOWN: [&str; 3] = ["eval", "eval_ro", "evalsha_ro"];

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
        "keyless" if UNKNOWN.contains(&&*command.words[0]) => true,
        "keyless" => command.first_key == 0 && !is_about_all_keys(command),
        "looker" => !changes_keys(command),
        "setter" => !shows_keys(command),
        _ => true,
    }
}

/// Commands that change keys, by their flag in the table: who may read all keys, and write none, is refused these.
fn changes_keys(command: &Described) -> bool {
    let is_flagged = command.flags.iter().any(|flag| flag == "write");
    match &*command.words.join("|") {
        // As they are sent here, they change nothing.
        "bitfield" | "fn.call" => false,
        script if UNKNOWN.contains(&script) => false,
        // It says how the keys of a table are kept.
        "table.set" => true,
        _ => is_flagged && (command.first_key > 0 || is_about_all_keys(command)),
    }
}

/// Commands that tell of keys that they are there, of which type, how long and until when: any right on the key is enough.
const LOOKS: [&str; 16] = [
    "strlen",
    "exists",
    "type",
    "touch",
    "ttl",
    "pttl",
    "expiretime",
    "pexpiretime",
    "stream.len",
    "stream.info",
    "object|encoding",
    "object|idletime",
    "object|freq",
    "object|refcount",
    "memory|usage",
    "watch",
];

/// Commands that change keys, and show what they held or what becomes of it.
const SHOWS: [&str; 21] = [
    "setbit",
    "bitfield",
    "bitop",
    "delifeq",
    "pexpireifeq",
    "cl.throttle",
    "evalsha",
    "getset",
    "getdel",
    "getex",
    "incr",
    "decr",
    "incrby",
    "decrby",
    "incrbyfloat",
    "rename",
    "renamenx",
    "copy",
    "fn.call",
    "table.set",
    "backup.end",
];

/// Commands that show values: who may write all keys, and read none, is refused these.
fn shows_keys(command: &Described) -> bool {
    let name = &*command.words.join("|");
    if SHOWS.contains(&name) || LOOKS.contains(&name) || UNKNOWN.contains(&name) {
        return SHOWS.contains(&name);
    }
    let writes = command.flags.iter().any(|flag| flag == "write");
    !writes && (command.first_key > 0 || is_about_all_keys(command))
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
        "backup.begin",
        "backup.read",
        "backup.end",
    ];
    names.contains(&name.as_str())
}

#[test]
fn every_command_is_refused_to_whoever_has_no_right_to_it() {
    every_command("1");
}

#[test]
fn every_command_of_several_shards_is_refused_to_whoever_has_no_right_to_it() {
    every_command("3");
}

fn every_command(shards: &str) {
    let server = Server::start(&["--shards", shards]);
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
            "backup.read" | "backup.end" => words[1..].fill(b"1"),
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

/// Requests of memcached's protocol, and the command of Redis by whose rights each is judged: one that does the same.
const ITEMS: [(&str, &str); 32] = [
    ("get k", "get"),
    ("get k j", "get"),
    ("gets k k", "get"),
    ("gat 10 k", "getex"),
    ("gats 10 k", "getex"),
    ("set k 0 0 1\r\nx", "set"),
    ("add k 0 0 1\r\nx", "setnx"),
    ("replace k 0 0 1\r\nx", "set"),
    ("append k 0 0 1\r\nx", "append"),
    ("prepend k 0 0 1\r\nx", "append"),
    ("cas k 0 0 1 7\r\nx", "set"),
    ("incr k 1", "incrby"),
    ("decr k 1", "incrby"),
    ("delete k", "del"),
    ("touch k 1", "expire"),
    ("mg k v", "get"),
    ("mg k v T10", "getex"),
    ("mg k N10", "getex"),
    ("ms k 1\r\nx", "set"),
    ("ms k 1 ME\r\nx", "set"),
    ("md k", "del"),
    ("ma k", "incrby"),
    ("me k", "object|encoding"),
    ("mn", "ping"),
    ("invoke k f R 1\r\nx", "fn.call"),
    ("invoke k f UR 1\r\nx", "fn.call"),
    ("register f a.wasm call", "fn.load"),
    ("flush_all", "flushall"),
    ("stats", "info"),
    ("stats settings", "info"),
    ("version", "ping"),
    ("verbosity 1", "ping"),
];

/// The commands that the parser of memcached's protocol knows, as its source names them.
fn parsed_commands() -> BTreeSet<&'static str> {
    let source = include_str!("../../../protocol/src/memcached/parser.rs");
    let arms = source.lines().filter_map(|line| line.split_once("=>").map(|(arm, _)| arm));
    let names =
        arms.flat_map(|arm| arm.split("b\"").skip(1)).filter_map(|rest| rest.split('"').next());
    names
        .filter(|name| name.bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'_'))
        .collect()
}

#[test]
fn items_are_refused_to_whoever_has_no_right_to_them() {
    every_item("1");
}

#[test]
fn items_of_several_shards_are_refused_to_whoever_has_no_right_to_them() {
    every_item("3");
}

fn every_item(shards: &str) {
    let server = Server::start(&["--memcached-port", "0", "--shards", shards]);
    let mut admin = server.client(3);
    for (user, rules) in USERS {
        let rules = ["on", ">pw"].into_iter().chain(rules.split(' '));
        let words: Vec<&str> = ["ACL", "SETUSER", user].into_iter().chain(rules).collect();
        ask(&mut admin, &words).unwrap();
    }
    let mut commands = Vec::new();
    let Value::Array(all) = ask(&mut admin, &["COMMAND"]).unwrap() else { panic!("no commands") };
    all.iter().for_each(|command| described(command, &mut commands));
    ask(&mut admin, &["ACL", "SETUSER", "default", "off"]).unwrap();
    // Whoever adds a command says here whose rights it needs. These do nothing that needs any.
    let tried: BTreeSet<&str> = ITEMS
        .iter()
        .map(|(text, _)| text.split(' ').next().unwrap())
        .chain(["quit", "shutdown"])
        .collect();
    let parsed = parsed_commands();
    assert!(parsed.contains("get") && parsed.contains("flush_all"), "{parsed:?}");
    assert_eq!(parsed.difference(&tried).collect::<Vec<_>>(), Vec::<&&str>::new());
    let first_line = |socket: &mut Socket, text: &str| {
        socket.send(format!("{text}\r\n").as_bytes());
        String::from_utf8_lossy(&socket.until(b"\n")).into_owned()
    };
    let mut refused = 0;
    for (text, name) in ITEMS {
        let told = first_line(&mut server.memcached(), text);
        // A block of data is taken for a user and a password.
        assert!(told.starts_with("CLIENT_ERROR") && told.contains("auth"), "{text}: {told}");
        let command = commands.iter().find(|it| it.words.join("|") == name).unwrap();
        for (user, _) in USERS {
            let mut socket = server.memcached();
            let login = format!("set x 0 0 {}\r\n{user} pw", user.len() + 3);
            assert_eq!(first_line(&mut socket, &login), "STORED\r\n");
            let told = first_line(&mut socket, text);
            let is_refused = told.starts_with("CLIENT_ERROR NOPERM");
            // A function that updates is one command with one that does not.
            let updates = text.starts_with("invoke k f U") && user == "looker";
            assert_eq!(is_refused, updates || !may(user, command), "{text} by {user}: {told}");
            refused += u32::from(is_refused);
        }
    }
    assert!(refused > 80, "{refused}");
}
