//! Users and their rights: what each may do, over both protocols, through joins, and over a restart.

use crate::support::{Server, Socket, TempFile, request};
use redis::{Connection, RedisError, Value, cmd};
use std::collections::BTreeMap;
use std::path::Path;

/// The reply to a request of words.
pub(crate) fn ask(client: &mut Connection, words: &[&str]) -> Result<Value, RedisError> {
    let mut request = cmd(words[0]);
    words[1..].iter().for_each(|word| _ = request.arg(word));
    request.query(client)
}

/// The text of a refusal; empty where there is none.
pub(crate) fn refusal(client: &mut Connection, words: &[&str]) -> String {
    match ask(client, words) {
        Ok(_) => String::new(),
        Err(error) => {
            format!("{} {}", error.code().unwrap_or("ERR"), error.detail().unwrap_or_default())
        }
    }
}

fn line(client: &mut Connection, text: &str) -> Result<Value, RedisError> {
    ask(client, &text.split(' ').collect::<Vec<_>>())
}

fn done(client: &mut Connection, text: &str) {
    line(client, text).unwrap_or_else(|error| panic!("{text}: {error}"));
}

fn refused(client: &mut Connection, text: &str) -> String {
    let why = refusal(client, &text.split(' ').collect::<Vec<_>>());
    assert!(!why.is_empty(), "{text} is not refused");
    why
}

/// A connection of this user, whose password is `pw`.
pub(crate) fn client_of(server: &Server, user: &str) -> Connection {
    // A greeting would be refused where nobody may come in without a password.
    let mut client = server.client(2);
    done(&mut client, &format!("AUTH {user} pw"));
    client
}

fn text(value: Result<Value, RedisError>) -> String {
    redis::from_redis_value(value.unwrap()).unwrap()
}

#[test]
fn users_log_in_and_are_shown() {
    let server = Server::start(&[]);
    let mut admin = server.client(3);
    assert_eq!(text(line(&mut admin, "ACL WHOAMI")), "default");
    done(&mut admin, "ACL SETUSER ann on >pw ~a|* +@read +ping");
    let mut ann = client_of(&server, "ann");
    for wrong in ["AUTH ann no", "AUTH bob pw", "HELLO 3 AUTH ann no"] {
        assert!(refused(&mut ann, wrong).starts_with("WRONGPASS invalid"), "{wrong}");
    }
    assert_eq!(
        refused(&mut ann, "ACL WHOAMI"),
        "NOPERM User ann has no permissions to run the 'acl|whoami' command"
    );
    assert_eq!(refused(&mut ann, "GET b|1"), "NOPERM No permissions to access a key");
    let range = "NOPERM No permissions to access all keys of a range";
    for text in ["PREFIX a", "RANGE a| b", "RANGE a| ", "SCAN 0", "SCAN 0 MATCH *"] {
        assert_eq!(refused(&mut ann, text), range, "{text}");
    }
    for text in ["PREFIX a|", "RANGE a|x a|y", "SCAN 0 MATCH a|*", "PING"] {
        done(&mut ann, text);
    }
    let clients = text(line(&mut admin, "CLIENT LIST"));
    assert!(clients.contains(" user=ann ") && clients.contains(" user=default "), "{clients}");
    let log = format!("{:?}", line(&mut admin, "ACL LOG").unwrap());
    assert!(log.contains("acl|whoami") && log.contains("AUTH") && !log.contains("\"pw\""), "{log}");
    done(&mut admin, "ACL SETUSER ann off");
    assert!(refused(&mut admin, "AUTH ann pw").starts_with("WRONGPASS"), "she may not log in");
    done(&mut ann, "PING");
    done(&mut admin, "ACL DELUSER ann");
    assert!(line(&mut ann, "PING").is_err(), "her connection has ended");
    // Who does not log in may be nobody.
    done(&mut admin, "ACL SETUSER root on >pw ~* &* +@all");
    done(&mut admin, "ACL SETUSER default off");
    let mut other = server.client(2);
    assert!(refused(&mut other, "GET a").starts_with("NOAUTH"));
    done(&mut other, "AUTH root pw");
    done(&mut other, "GET a");
}

#[test]
fn transactions_are_judged_when_they_are_queued_and_when_they_are_executed() {
    let server = Server::start(&[]);
    let mut admin = server.client(3);
    done(&mut admin, "ACL SETUSER ann on >pw ~a* ~b* +@all");
    let mut ann = client_of(&server, "ann");
    done(&mut ann, "MULTI");
    assert!(refused(&mut ann, "SET c 1").starts_with("NOPERM"));
    assert!(refused(&mut ann, "EXEC").starts_with("EXECABORT"));
}

/// What EXEC says of a request that was allowed when it was queued.
const LOST: &str = "ACLs rules changed between the moment the transaction was accumulated and the EXEC call. \
    This command is no longer allowed for the following reason: no permission to ";

#[test]
fn a_transaction_whose_exec_is_refused_is_over() {
    for shards in ["1", "3"] {
        let server = Server::start(&["--shards", shards]);
        let mut admin = server.client(2);
        done(&mut admin, "ACL SETUSER ann on >pw ~* -@all +get +set +multi +watch");
        let mut ann = client_of(&server, "ann");
        let keys = ["a", "b", "c", "d", "e", "f"];
        done(&mut ann, &format!("WATCH {}", keys.join(" ")));
        done(&mut ann, "MULTI");
        done(&mut ann, "SET a 2");
        let why = refused(&mut ann, "EXEC");
        assert!(why.starts_with("EXECABORT Transaction discarded because of: NOPERM"), "{why}");
        assert_eq!(line(&mut ann, "GET a"), Ok(Value::Nil));
        let why = refused(&mut ann, "EXEC");
        assert!(why.starts_with("NOPERM"), "{why}");
        // Nothing is watched any more, wherever its key lives.
        keys.iter().for_each(|key| done(&mut admin, &format!("SET {key} 1")));
        done(&mut admin, "ACL SETUSER ann +exec");
        done(&mut ann, "MULTI");
        done(&mut ann, "GET a");
        assert!(matches!(line(&mut ann, "EXEC"), Ok(Value::Array(_))));
    }
}

#[test]
fn commands_have_the_categories_of_redis() {
    let server = Server::start(&[]);
    let mut admin = server.client(2);
    done(&mut admin, "ACL SETUSER ann on >pw -@all +@connection");
    done(&mut admin, "ACL SETUSER eve on >pw +@all -@admin");
    let (mut ann, mut eve) = (client_of(&server, "ann"), client_of(&server, "eve"));
    for text in ["COMMAND COUNT", "COMMAND", "WAIT 0 0", "CLIENT ID"] {
        done(&mut ann, text);
    }
    assert!(refused(&mut ann, "INFO").starts_with("NOPERM"));
    assert!(refused(&mut eve, "ROLE").starts_with("NOPERM"));
    done(&mut ann, "CLIENT NO-EVICT ON");
    done(&mut ann, "CLIENT NO-TOUCH ON");
    let clients = text(line(&mut admin, "CLIENT LIST"));
    let own = clients.lines().find(|line| line.contains("user=ann")).unwrap();
    assert!(own.contains(" flags=eT "), "{own}");
}

#[test]
fn exec_refuses_what_lost_its_right_and_executes_the_rest() {
    for shards in ["1", "3"] {
        let server = Server::start(&["--shards", shards]);
        let mut admin = server.client(3);
        // Keys of one partition, of several, and what no shard is asked for.
        for (one, other) in [("a{x}", "b{x}"), ("a1", "b2"), ("a|1", "b|1")] {
            done(&mut admin, "ACL SETUSER ann on >pw ~a* ~b* &* +@all");
            let mut ann = server.socket();
            let send = |ann: &mut Socket, text: &str, end: &str| {
                ann.send(&request(&text.split(' ').map(str::as_bytes).collect::<Vec<_>>()));
                String::from_utf8_lossy(&ann.until(end.as_bytes())).into_owned()
            };
            send(&mut ann, "AUTH ann pw", "+OK\r\n");
            send(&mut ann, "MULTI", "+OK\r\n");
            for text in [
                format!("SET {one} 1"),
                format!("SET {other} 1"),
                "PUBLISH news hi".to_owned(),
                format!("MGET {one} {other}"),
                "PING".to_owned(),
                format!("GET {one}"),
            ] {
                send(&mut ann, &text, "+QUEUED\r\n");
            }
            done(&mut admin, "ACL SETUSER ann resetkeys ~a* resetchannels -ping");
            let answer = send(&mut ann, "EXEC", "$1\r\n1\r\n");
            let lines: Vec<&str> = answer.split("\r\n").collect();
            let lost = |why: &str| format!("-NOPERM {LOST}{why}");
            let (key, channel) = (
                "touch the specified keys",
                "access one of the channels used as arguments to the command",
            );
            let told = [
                "*6".to_owned(),
                "+OK".to_owned(),
                lost(key),
                lost(channel),
                lost(key),
                lost("execute the command or subcommand"),
                "$1".to_owned(),
                "1".to_owned(),
                String::new(),
            ];
            assert_eq!(lines, told, "{shards}");
            assert_eq!(line(&mut admin, &format!("EXISTS {other}")).unwrap(), Value::Int(0));
            let log = format!("{:?}", line(&mut admin, "ACL LOG").unwrap());
            assert!(log.contains("multi") && log.contains(other), "{log}");
            done(&mut admin, &format!("DEL {one}"));
        }
    }
}

#[test]
fn a_view_is_a_grant_for_as_long_as_its_owner_may_give_it() {
    for shards in ["1", "3"] {
        let server = Server::start(&["--shards", shards]);
        let mut admin = server.client(3);
        for text in [
            "ACL SETUSER owner on >pw ~s|* ~p|* ~t|* ~u|* +@all",
            "ACL SETUSER ann on >pw %R~t|<user>|* +@all",
            "ACL SETUSER writer on >pw ~s|* ~p|* +@all",
        ] {
            done(&mut admin, text);
        }
        let (mut owner, mut ann) = (client_of(&server, "owner"), client_of(&server, "ann"));
        let mut writer = client_of(&server, "writer");
        let spec = "t|<user>|<time> = check s|<user>|<poster> copy p|<poster>|<time>";
        let add = |client: &mut Connection, name: &str, spec: &str| {
            refusal(client, &["JOIN.ADD", name, spec])
        };
        assert!(add(&mut writer, "tl", spec).starts_with("NOPERM"), "he may not write t");
        assert_eq!(add(&mut owner, "tl", spec), "");
        assert_eq!(add(&mut owner, "up", "u|<time>|<user> = copy t|<user>|<time>"), "");
        for text in ["SET s|ann|bob 1", "SET p|bob|1 hi", "SET s|eve|bob 1"] {
            done(&mut writer, text);
        }
        // She reads what the join gives her, and none of what it reads.
        assert_eq!(text(line(&mut ann, "GET t|ann|1")), "hi");
        for refused_to_her in
            ["GET p|bob|1", "GET t|eve|1", "EXPLAIN t|eve|1", "EXPLAIN.RANGE t| t}", "JOIN.DROP tl"]
        {
            assert!(refused(&mut ann, refused_to_her).starts_with("NOPERM"), "{refused_to_her}");
        }
        done(&mut ann, "VERIFY t|ann| t|ann}");
        let fact = |client: &mut Connection, fact: &str| -> String {
            let mut facts: BTreeMap<String, Value> =
                redis::from_redis_value(line(client, "JOIN.INFO tl").unwrap()).unwrap();
            redis::from_redis_value(facts.remove(fact).unwrap()).unwrap()
        };
        assert_eq!(fact(&mut ann, "owner") + &fact(&mut ann, "refused"), "owner");
        // The owner loses what the join reads.
        done(&mut admin, "ACL SETUSER owner resetkeys ~t|* ~u|* ~s|*");
        let reason = "the join 'tl' is refused: its owner 'owner' may no longer read [p|, p})";
        for client in [&mut ann, &mut admin] {
            assert_eq!(refused(client, "GET t|ann|1"), format!("NOPERM {reason}"));
            assert!(refused(client, "PREFIX t|ann|").ends_with(reason));
        }
        let why = refused(&mut admin, "GET u|1|ann");
        assert!(why.contains("the join 'up' is refused: the join 'tl' is refused"), "{why}");
        assert_eq!(fact(&mut admin, "refused"), reason);
        let owners = format!("{:?}", line(&mut admin, "ACL OWNERS").unwrap());
        assert!(owners.contains(reason), "{owners}");
        done(&mut writer, "SET p|bob|2 more");
        done(&mut admin, "ACL SETUSER owner ~p|*");
        // Another shard may hear of it a moment later.
        wait_for(&mut ann, "GET t|ann|2", "more");
        done(&mut admin, "ACL DELUSER owner");
        let why = refused(&mut ann, "GET t|ann|1");
        assert!(why.ends_with("its owner 'owner' is no user any more"), "{why}");
        // Somebody who may defines it anew.
        done(&mut admin, "JOIN.DROP tl");
        assert_eq!(add(&mut admin, "tl", spec), "");
        assert_eq!(text(line(&mut ann, "GET t|ann|1")), "hi");
    }
}

#[test]
fn explanations_tell_of_what_their_reader_may_read() {
    for shards in ["1", "3"] {
        let server = Server::start(&["--shards", shards]);
        let mut admin = server.client(3);
        for text in [
            "ACL SETUSER ann on >pw %R~t|<user>|* %R~s|<user>|* +@all",
            "ACL SETUSER eve on >pw %R~t|* %R~s|* %R~p|* +@all",
            "ACL SETUSER pat on >pw %R~t|ann|* +@all (%R~s|* %R~p|* +get)",
        ] {
            done(&mut admin, text);
        }
        let spec = "t|<user>|<score:number:desc> = check s|<user>|<poster> index p|<poster>|<n> as <score>";
        assert_eq!(refusal(&mut admin, &["JOIN.ADD", "tl", spec]), "");
        for text in ["SET s|ann|secret 1", "SET s|eve|secret 1", "SET p|secret|1 oops"] {
            done(&mut admin, text);
        }
        done(&mut admin, "PREFIX t|");
        let asked = ["EXPLAIN.RANGE t|ann| t|ann}", "EXPLAIN t|ann|1"];
        // All but how old it is.
        let told = |client: &mut Connection, text: &str| {
            let told = format!("{:?}", line(client, text).unwrap());
            let parts = told.split("computed ");
            let parts = parts.map(|it| it.trim_start_matches(|c: char| c.is_ascii_digit()));
            parts.collect::<Vec<_>>().join("computed ")
        };
        for text in asked {
            let (all, some) = (told(&mut admin, text), told(&mut client_of(&server, "ann"), text));
            // Her own subscriptions are shown, the posts are not: neither that there are any, nor which are no numbers.
            assert!(
                all.contains("p|secret|1") && all.contains("matching keys stored, of"),
                "{all}"
            );
            assert!(!some.contains("p|secret") && !some.contains("which"), "{some}");
            assert!(some.contains("s|ann|") && some.contains("matching keys stored"), "{some}");
            let hidden = "index p|<poster>|<n> as <score> is hidden";
            assert!(some.contains(hidden) && !all.contains("is hidden"), "{some}");
            assert!(!some.contains("updater targets") && some.contains("maintained"), "{some}");
            assert_eq!(told(&mut client_of(&server, "eve"), text), all, "she may read them all");
            // What one set of rights allows is nothing to another one.
            let none = told(&mut client_of(&server, "pat"), text);
            assert_eq!(
                none.matches("is hidden").count(),
                2 * all.matches("index p|<poster>|<n> as <score> reads").count(),
                "{none}"
            );
        }
        // In a transaction as well, and no longer than the right is there.
        let mut eve = client_of(&server, "eve");
        for text in ["MULTI", asked[1], "GET t|ann|1"] {
            done(&mut eve, text);
        }
        done(&mut admin, "ACL SETUSER eve resetkeys %R~t|*");
        let some = told(&mut eve, "EXEC");
        assert!(some.contains("is hidden") && !some.contains("p|secret|1"), "{some}");
    }
}

#[test]
fn flows_and_functions_have_owners() {
    let server = Server::start(&[]);
    let mut admin = server.client(3);
    done(&mut admin, "ACL SETUSER owner on >pw ~a|* ~b|* &c +@all -@connect");
    let mut owner = client_of(&server, "owner");
    let mut add = |words: &[&str]| {
        refusal(&mut owner, &[&["FLOW.ADD"], words].concat()).split(' ').next().unwrap().to_owned()
    };
    assert_eq!(add(&["f", "ON", "a|<x>", "FANOUT", "b|<x> = copy a|<x>"]), "");
    assert_eq!(add(&["g", "ON", "a|<x>", "FANOUT", "c|<x> = copy a|<x>"]), "NOPERM");
    assert_eq!(add(&["g", "ON", "c|<x>", "PUBLISH", "c"]), "NOPERM");
    assert_eq!(add(&["g", "ON", "a|<x>", "PUBLISH", "d"]), "NOPERM");
    assert_eq!(add(&["g", "ON", "a|<x>", "PUBLISH", "c"]), "");
    assert_eq!(
        add(&["h", "ON", "a|<x>", "HTTP", "POST", "http://127.0.0.1:1/"]),
        "NOPERM",
        "@connect"
    );
    assert_eq!(add(&["h", "ON", "a|<x>", "CALL", "m"]), "NOPERM", "it could look any key up");
    done(&mut admin, "SET a|1 x");
    wait_for(&mut admin, "GET b|1", "x");
    // What is written while the flow is refused is done when it is not any more.
    done(&mut admin, "ACL SETUSER owner resetkeys ~a|*");
    done(&mut admin, "SET a|2 y");
    assert!(refused(&mut admin, "FLOW.RESUME f").contains("may no longer write [b|, b})"));
    let facts = format!("{:?}", line(&mut admin, "FLOW.INFO f").unwrap());
    assert!(facts.contains("'owner'") && facts.contains("may no longer write"), "{facts}");
    assert_eq!(line(&mut admin, "GET b|2").unwrap(), Value::Nil);
    done(&mut admin, "ACL SETUSER owner ~b|*");
    wait_for(&mut admin, "GET b|2", "y");
    let mut other = client_of(&server, "owner");
    done(&mut admin, "ACL SETUSER owner resetkeys ~b|*");
    assert!(refused(&mut other, "FLOW.DEAD f").starts_with("NOPERM"), "it names keys");
    assert!(refused(&mut other, "FLOW.DROP f").starts_with("NOPERM"));
}

fn wait_for(client: &mut Connection, text: &str, wanted: &str) {
    let begun = std::time::Instant::now();
    while line(client, text).unwrap() != Value::BulkString(wanted.into()) {
        assert!(begun.elapsed() < crate::support::PATIENCE, "{text} does not give {wanted}");
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
}

#[test]
fn what_clients_hear_ends_with_the_right_to_it() {
    for shards in ["1", "3"] {
        let server = Server::start(&["--shards", shards]);
        let mut admin = server.client(3);
        done(&mut admin, "ACL SETUSER ann on >pw ~a* &c* +@all");
        let begin = |words: &[u8]| {
            let mut socket = server.socket();
            socket.send(b"HELLO 3 AUTH ann pw\r\n");
            socket.send(words);
            socket
        };
        let mut watcher = begin(b"RANGE.WATCH a b\r\nPING first\r\n");
        watcher.until(b"first\r\n");
        let mut listener = begin(b"SUBSCRIBE c1\r\nPING first\r\n");
        let mut tracker = begin(b"CLIENT TRACKING ON BCAST PREFIX a\r\nPING first\r\n");
        let mut reader = begin(b"CLIENT TRACKING ON\r\nGET a1\r\nPING first\r\n");
        for socket in [&mut listener, &mut tracker, &mut reader] {
            socket.until(b"first\r\n");
        }
        done(&mut admin, "ACL SETUSER ann resetkeys resetchannels ~b*");
        done(&mut admin, "SET a1 secret");
        watcher.until(b"No permissions to access all keys of a range\r\n");
        watcher.send(b"PING two\r\n");
        watcher.expect(b"$3\r\ntwo\r\n");
        for socket in [&mut listener, &mut tracker, &mut reader] {
            assert_eq!(socket.rest(), b"", "it was ended, and told nothing");
        }
    }
}

#[test]
fn who_takes_its_own_rights_away_is_answered_and_then_ended() {
    for shards in ["1", "3"] {
        let place = tempfile::tempdir().unwrap();
        let data = place.path().to_str().unwrap().to_owned();
        let server = Server::start(&["--shards", shards, "--data", &data]);
        let mut admin = server.client(3);
        // They come to all shards, of which one changes the users.
        for turn in 0..40 {
            let (words, answer): (&[u8], &[u8]) = match turn % 2 {
                0 => (b"ACL DELUSER self\r\n", b":1\r\n"),
                _ => (b"ACL SETUSER self resetchannels\r\n", b"+OK\r\n"),
            };
            done(&mut admin, "ACL SETUSER self reset on >pw ~* &* +@all");
            let mut socket = server.socket();
            socket.send(b"HELLO 3 AUTH self pw\r\nSUBSCRIBE channel\r\nPING first\r\n");
            socket.until(b"first\r\n");
            socket.send(words);
            assert_eq!(socket.rest(), answer, "turn {turn} with {shards} shards");
        }
    }
}

#[test]
fn users_and_owners_outlive_the_server() {
    for shards in ["1", "3"] {
        let place = tempfile::tempdir().unwrap();
        let data = place.path().to_str().unwrap().to_owned();
        let arguments = ["--shards", shards, "--data", &data];
        let spec = "t|<user> = copy s|<user>";
        {
            let server = Server::start(&arguments);
            let mut admin = server.client(3);
            done(&mut admin, "ACL SETUSER owner on >pw ~* &* +@all");
            done(&mut admin, "ACL SETUSER gone on");
            done(&mut admin, "ACL DELUSER gone");
            let mut owner = client_of(&server, "owner");
            assert_eq!(refusal(&mut owner, &["JOIN.ADD", "j", spec]), "");
            done(&mut owner, "SET s|1 x");
            // It answers by its end.
            let _ = line(&mut admin, "SHUTDOWN");
            server.wait();
        }
        let server = Server::start(&arguments);
        let mut admin = server.client(3);
        let users = format!("{:?}", line(&mut admin, "ACL USERS").unwrap());
        assert!(users.contains("owner") && !users.contains("gone"), "{users}");
        assert_eq!(text(line(&mut admin, "GET t|1")), "x");
        done(&mut admin, "ACL SETUSER owner resetkeys");
        assert!(refused(&mut admin, "GET t|1").contains("its owner 'owner' may no longer read"));
    }
}

#[test]
fn who_waits_at_another_shard_gets_nothing_that_it_may_not_read_any_more() {
    for shards in ["1", "3"] {
        let server = Server::start(&["--shards", shards]);
        let mut admin = server.client(3);
        done(&mut admin, "ACL SETUSER ann on >pw ~log* +@all");
        // They live at different shards.
        let mut readers = Vec::new();
        for name in 0..6 {
            let mut socket = server.socket();
            let words = format!("AUTH ann pw\r\nSTREAM.READ log{name} 0 100 BLOCK 0\r\n");
            socket.send(words.as_bytes());
            socket.expect(b"+OK\r\n");
            readers.push(socket);
        }
        let blocked = |admin: &mut Connection| {
            text(line(admin, "INFO clients")).contains("blocked_clients:6")
        };
        let begun = std::time::Instant::now();
        while !blocked(&mut admin) {
            assert!(begun.elapsed() < crate::support::PATIENCE, "they do not wait");
            std::thread::sleep(std::time::Duration::from_millis(5));
        }
        done(&mut admin, "ACL SETUSER ann resetkeys");
        for (name, socket) in readers.iter_mut().enumerate() {
            done(&mut admin, &format!("STREAM.APPEND log{name} secret"));
            socket.try_send(b"QUIT\r\n").ok();
            let told = String::from_utf8_lossy(&socket.rest()).into_owned();
            assert!(!told.contains("secret"), "{told}");
        }
    }
}

#[test]
fn the_hardened_configuration_of_the_documents_is_one() {
    let document = include_str!("../../../../docs/security.md");
    let (_, rest) = document.split_once("```toml\n").unwrap();
    let (config, _) = rest.split_once("```").unwrap();
    let server = Server::with_config(&config.replace("10.0.0.5", "127.0.0.1"));
    let mut client = server.client(2);
    assert!(refused(&mut client, "PING").starts_with("NOAUTH"));
    let mut log_in = |user: &str| {
        let password = format!("the password of {user}");
        assert_eq!(ask(&mut client, &["AUTH", user, &password]).unwrap(), Value::Okay);
    };
    log_in("operator");
    log_in("app");
    log_in("deploy");
    let spec = "t|<user>|<time> = check s|<user>|<poster> copy p|<poster>|<time>";
    assert_eq!(refusal(&mut client, &["JOIN.ADD", "tl", spec]), "");
    assert!(refused(&mut client, "SOURCE.ADD s postgres postgres://h/d").starts_with("NOPERM"));
}

#[test]
fn users_come_from_the_configuration_or_from_a_file() {
    let hash = "30c952fab122c3f9759f02a6d95c3758b246b4fee239957b2d4fee46e26170c4";
    let config = format!(
        "[[user]]\nname = \"default\"\nrules = \"off\"\n[[user]]\nname = \"ann\"\nrules = \"on #{hash} ~a +@all\"\n"
    );
    let server = Server::with_config(&config);
    assert!(refused(&mut server.client(2), "GET a").starts_with("NOAUTH"));
    done(&mut client_of(&server, "ann"), "GET a");
    let place = tempfile::tempdir().unwrap();
    let path = place.path().join("users.acl");
    std::fs::write(&path, format!("user ann on #{hash} ~a* +@all\n")).unwrap();
    let config = format!("[listen]\naclfile = \"{}\"\n", path.display());
    let server = Server::with_config(&config);
    let mut admin = server.client(3);
    let mut ann = client_of(&server, "ann");
    done(&mut ann, "GET a1");
    done(&mut admin, "ACL SETUSER bob on >pw ~b* +@all");
    done(&mut admin, "ACL SAVE");
    let saved = std::fs::read_to_string(&path).unwrap();
    assert!(saved.contains("user bob on ") && !saved.contains(">pw"), "{saved}");
    std::fs::write(&path, saved.replace("~a*", "~c*")).unwrap();
    done(&mut admin, "ACL LOAD");
    assert!(refused(&mut ann, "GET a1").starts_with("NOPERM"), "ann has the rights of the file");
    done(&mut client_of(&server, "bob"), "GET b1");
    std::fs::write(&path, "user ann on wrong\n").unwrap();
    let why = refused(&mut admin, "ACL LOAD");
    assert!(
        why.contains("line 1") && why.contains("'wrong'") && why.contains("no change"),
        "{why}"
    );
    let one = "[[user]]\nname = \"x\"\nrules = \"on\"\n";
    for (text, told) in [
        (format!("{config}{one}"), "aclfile"),
        (format!("{one}{}", one.replace("on", "on nopass +@all")), "Duplicate user 'x' found"),
        (one.replace("on", "on +nosuch"), "'+nosuch'"),
        (one.replace('x', "a=b"), "'a=b' cannot be a user's name"),
    ] {
        let file = TempFile::new(&text);
        let failed = crate::support::program()
            .args([Path::new("serve"), Path::new("--config"), &file.path])
            .output()
            .unwrap();
        let error = String::from_utf8_lossy(&failed.stderr).into_owned();
        assert!(!failed.status.success() && error.contains(told), "{told}: {error}");
    }
}
