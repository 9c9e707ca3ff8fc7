//! Cache joins through the whole program: RESP2 and RESP3, the configuration file, and the
//! demonstration.

use crate::support::{Server, program};
use redis::{Commands, Connection, RedisResult, Value, cmd};

const TIMELINE: &str = "t|<user>|<time>|<poster> = check s|<user>|<poster> copy p|<poster>|<time>";

fn run<T: redis::FromRedisValue>(client: &mut Connection, words: &[&str]) -> RedisResult<T> {
    cmd(words[0]).arg(&words[1..]).query(client)
}

fn set(client: &mut Connection, key: &str, value: &str) {
    let _: () = client.set(key, value).unwrap();
}

fn pairs(client: &mut Connection, words: &[&str]) -> Vec<(String, String)> {
    run(client, words).unwrap()
}

fn keys(client: &mut Connection, prefix: &str) -> Vec<String> {
    run(client, &["PREFIX", prefix, "KEYS"]).unwrap()
}

fn refusal(result: RedisResult<Value>) -> String {
    let error = result.unwrap_err();
    format!("{} {}", error.code().unwrap_or("ERR"), error.detail().unwrap_or_default())
}

#[test]
fn timelines_are_always_fresh() {
    for protocol in [2, 3] {
        let server = Server::start(&[]);
        let client = &mut server.client(protocol);
        run::<()>(client, &["TABLE.SET", "t", "BOUNDARY", "1"]).unwrap();
        set(client, "s|ann|bob", "1");
        set(client, "p|bob|0100", "Hi");
        run::<Value>(client, &["JOIN.ADD", "timeline", TIMELINE]).unwrap();
        let hi = (String::from("t|ann|0100|bob"), String::from("Hi"));
        assert_eq!(pairs(client, &["PREFIX", "t|ann|"]), std::slice::from_ref(&hi));
        set(client, "p|bob|0200", "Again");
        set(client, "p|liz|0150", "Hello");
        assert_eq!(keys(client, "t|ann|"), ["t|ann|0100|bob", "t|ann|0200|bob"]);
        set(client, "s|ann|liz", "1");
        assert_eq!(keys(client, "t|ann|"), ["t|ann|0100|bob", "t|ann|0150|liz", "t|ann|0200|bob"]);
        let newest = pairs(client, &["PREFIX", "t|ann|", "REV", "LIMIT", "1"]);
        assert_eq!(newest, [(String::from("t|ann|0200|bob"), String::from("Again"))]);
        assert_eq!(client.get("t|ann|0150|liz"), Ok(String::from("Hello")));
        assert_eq!(client.del("s|ann|liz"), Ok(1));
        assert_eq!(client.del("p|bob|0200"), Ok(1));
        assert_eq!(pairs(client, &["PREFIX", "t|ann|"]), [hi]);
        let differences: Vec<Value> = run(client, &["VERIFY", "t|", "t}"]).unwrap();
        assert_eq!(differences, []);
        let refused = refusal(run(client, &["SET", "t|ann|0100|bob", "x"]));
        assert_eq!(refused, "JOINED key is maintained by join 'timeline'");
        run::<()>(client, &["JOIN.DROP", "timeline"]).unwrap();
        assert!(keys(client, "t|").is_empty());
    }
}

#[test]
fn expiry_reaches_the_views() {
    let server = Server::start(&[]);
    let client = &mut server.client(2);
    run::<Value>(client, &["JOIN.ADD", "karma", "k|<a> = count v|<a>|<id>|<voter>"]).unwrap();
    set(client, "v|ann|1|bob", "1");
    run::<()>(client, &["SET", "v|ann|1|liz", "1", "PX", "50"]).unwrap();
    assert_eq!(client.get("k|ann"), Ok(2));
    std::thread::sleep(std::time::Duration::from_millis(300));
    assert_eq!(client.get("k|ann"), Ok(1));
    assert_eq!(client.del("v|ann|1|bob"), Ok(1));
    assert_eq!(client.get("k|ann"), Ok(None::<String>));
}

#[test]
fn a_bad_join_is_shown_with_a_caret() {
    let server = Server::start(&[]);
    let mut socket = server.socket();
    // RESP2 errors are one line; the text is there all the same.
    let client = &mut server.client(2);
    let text = refusal(run(client, &["JOIN.ADD", "x", "t|<a> = copy p|<b>"]));
    assert!(text.contains("join 'x': column 3: ") && text.contains("<a>"), "{text}");
    assert!(text.ends_with(" t|<a> = copy p|<b>"), "a mark would stand below nothing: {text}");
    let text = refusal(run(client, &["JOIN.ADD", "x", "t|<a> = copy t|<a>"]));
    assert!(text.contains("its own output") || text.contains("cycle"), "{text}");
    let bad = "JOIN.ADD x \"t|<a> = copy p|<b>\"\r\n";
    let requests = format!("HELLO 3\r\n{bad}CLIENT CAPA redirect blob-errors\r\n{bad}QUIT\r\n");
    socket.send(requests.as_bytes());
    let got = String::from_utf8(socket.rest()).unwrap();
    // Clients' libraries know no errors of several lines, unless they say that they do.
    let (one_line, lines) = got.split_once("+OK\r\n").unwrap();
    let error = one_line.lines().last().unwrap();
    assert!(error.starts_with("-ERR join 'x': column 3: ") && !error.contains('^'), "{got}");
    assert!(lines.starts_with('!') && lines.contains("\nt|<a> = copy p|<b>\n  ^\r\n"), "{got}");
}

#[test]
fn the_file_declares_tables_and_joins() {
    let server = Server::with_config(&format!(
        "[[table]]\nname = \"t\"\nboundary = 1\n[[join]]\nname = \"timeline\"\nspec = \"{TIMELINE}\"\n"
    ));
    let client = &mut server.client(2);
    set(client, "s|ann|bob", "1");
    set(client, "p|bob|0100", "Hi");
    assert_eq!(keys(client, "t|"), ["t|ann|0100|bob"]);
    let listed = format!("{:?}", run::<Value>(client, &["JOIN.LIST"]).unwrap());
    assert!(listed.contains("timeline") && listed.contains("copy p|<poster>|<time>"), "{listed}");
}

#[test]
fn a_transaction_sees_its_own_writes_in_the_views_and_a_watch_sees_derived_keys() {
    let server = Server::start(&[]);
    let client = &mut server.client(2);
    run::<Value>(client, &["JOIN.ADD", "karma", "k|<a> = count v|<a>|<id>|<voter>"]).unwrap();
    let (first, second): (i64, i64) = redis::pipe()
        .atomic()
        .set("v|ann|1|bob", 1)
        .ignore()
        .get("k|ann")
        .set("v|ann|1|liz", 1)
        .ignore()
        .get("k|ann")
        .query(client)
        .unwrap();
    assert_eq!((first, second), (1, 2));
    run::<()>(client, &["WATCH", "k|ann"]).unwrap();
    set(&mut server.client(2), "v|ann|2|bob", "1");
    let exec = |client: &mut Connection| {
        run::<()>(client, &["MULTI"]).unwrap();
        run::<()>(client, &["GET", "k|ann"]).unwrap();
        run::<Value>(client, &["EXEC"]).unwrap()
    };
    assert_eq!(exec(client), Value::Nil);
    assert_ne!(exec(client), Value::Nil);
}

#[test]
fn the_demonstration_shows_a_lively_timeline() {
    let mut command = program();
    command.args(["demo", "--port", "0", "--posts", "5000"]);
    let server = Server::spawn(command);
    let told = server.told();
    assert!(told.contains("7115 users, 103689 subscriptions, 5000 posts"), "{told}");
    let quoted: Vec<&str> = told.split('\'').collect();
    let client = &mut server.client(2);
    // What it says to try works, and gives what it promises.
    let (prefix, newest, front, post) = (quoted[1], quoted[3], quoted[5], quoted[13]);
    let (stories, vote) = (quoted[7], quoted[9]);
    let timeline = pairs(client, &["PREFIX", prefix, "REV", "LIMIT", "10"]);
    assert_eq!(timeline.len(), 10);
    assert_eq!(timeline[0].0, newest);
    run::<Value>(client, &["EXPLAIN", newest]).unwrap();
    let most = run::<Vec<String>>(client, &["PREFIX", front, "LIMIT", "5", "KEYS"]).unwrap();
    let counts = most.iter().map(|key| {
        let components: Vec<String> = run(client, &["JOIN.DECODE", key]).unwrap();
        let followers = format!("followers|{}", components[2]);
        assert_eq!(run::<String>(client, &["GET", &followers]).unwrap(), components[1]);
        components[1].parse().unwrap()
    });
    let counts: Vec<u32> = counts.collect();
    assert!(counts.len() == 5 && counts.is_sorted_by(|one, next| one >= next), "{counts:?}");
    let best = |client: &mut Connection| {
        let shown = pairs(client, &["PREFIX", stories, "LIMIT", "5"]);
        let (key, value) = shown.into_iter().next().expect("a story");
        let components: Vec<String> = run(client, &["JOIN.DECODE", &key]).unwrap();
        (components[1].clone(), value)
    };
    let site = "https://quantumcomputing.stackexchange.com/q/";
    assert_eq!(best(client), (String::from("113"), format!("{site}2499")));
    set(client, vote, "60");
    assert_eq!(best(client), (String::from("115"), format!("{site}12")));
    set(client, post, "Hello, followers");
    let timeline = pairs(client, &["PREFIX", prefix, "REV", "LIMIT", "3"]);
    assert_eq!(timeline[0].1, "Hello, followers");
    let differences: Vec<Value> =
        run(client, &["VERIFY", prefix, &format!("{prefix}\x7f")]).unwrap();
    assert_eq!(differences, []);
}

#[test]
fn a_source_that_is_not_there_keeps_no_table() {
    let server = Server::start(&[]);
    let mut socket = server.socket();
    socket.send(b"TABLE.SET x SOURCE far\r\nSET x|k 1\r\nGET x|k\r\n");
    socket.expect(b"-ERR no source is named 'far'\r\n+OK\r\n$1\r\n1\r\n");
}

#[test]
fn as_many_joins_in_a_row_as_may_be_have_room_on_the_stack() {
    for (shards, mode) in [("1", ""), ("3", ""), ("1", "pull "), ("3", "pull ")] {
        let server = Server::start(&["--shards", shards]);
        let client = &mut server.client(2);
        run::<()>(client, &["CONFIG", "SET", "join-depth-max", "256"]).unwrap();
        // Each has as many sources as it may, so that its execution is nested as deeply as it can be.
        let checks: String = (0..15).map(|at| format!("check k{at}|<user> ")).collect();
        for at in 0..256 {
            let (from, to) = (at, at + 1);
            let spec = format!("c{to}|<user>|<id> = {mode}{checks}copy c{from}|<user>|<id>");
            run::<Value>(client, &["JOIN.ADD", &format!("j{at}"), &spec]).unwrap();
        }
        (0..15).for_each(|at| set(client, &format!("k{at}|u"), "1"));
        set(client, "c0|u|1", "first");
        assert_eq!(client.get("c256|u|1"), Ok(String::from("first")));
        set(client, "c0|u|1", "second");
        assert_eq!(client.get("c256|u|1"), Ok(String::from("second")));
        let differences: Vec<Value> = run(client, &["VERIFY", "c256|", "c256}"]).unwrap();
        assert_eq!(differences, []);
        assert_eq!(client.del("k7|u"), Ok(1));
        assert!(keys(client, "c256|").is_empty());
        let spec = "late|<user>|<id> = copy c256|<user>|<id>";
        let refused = refusal(run(client, &["JOIN.ADD", "late", spec]));
        assert!(refused.contains("at most 256 may (join-depth-max)"), "{refused}");
        run::<()>(client, &["FLUSHALL"]).unwrap();
    }
}
