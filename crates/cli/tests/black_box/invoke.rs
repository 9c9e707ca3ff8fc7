//! Functions over memcached's protocol: `register` and `invoke`.

use crate::support::{Server, Socket};

/// `call` adds the parameter's first byte less `0` to the digit that the value is, and replies it;
/// `touch` writes the parameter at the start; `four` replies the 4 bytes at 100; `fail` writes and fails;
/// `spin` never ends.
const MODULE: &str = r#"(module
    (import "headwater" "value_read" (func $value_read (param i32 i32 i32) (result i32)))
    (import "headwater" "value_write" (func $value_write (param i32 i32 i32)))
    (import "headwater" "value_replace" (func $value_replace (param i32 i32)))
    (import "headwater" "param_read" (func $param_read (param i32 i32 i32) (result i32)))
    (import "headwater" "reply" (func $reply (param i32 i32)))
    (import "headwater" "reply_value" (func $reply_value (param i32 i32) (result i32)))
    (memory 1)
    (func (export "call") (result i32)
        (local $n i32)
        (if (call $value_read (i32.const 0) (i32.const 0) (i32.const 1))
            (then (local.set $n (i32.sub (i32.load8_u (i32.const 0)) (i32.const 48)))))
        (drop (call $param_read (i32.const 0) (i32.const 1) (i32.const 1)))
        (i32.store8 (i32.const 0) (i32.add (local.get $n) (i32.load8_u (i32.const 1))))
        (call $value_replace (i32.const 0) (i32.const 1))
        (call $reply (i32.const 0) (i32.const 1))
        (i32.const 0))
    (func (export "touch") (result i32)
        (call $value_write (i32.const 0) (i32.const 0)
            (call $param_read (i32.const 0) (i32.const 0) (i32.const 1000)))
        (i32.const 0))
    (func (export "four") (result i32)
        (drop (call $reply_value (i32.const 100) (i32.const 4))) (i32.const 0))
    (func (export "fail") (result i32)
        (call $value_write (i32.const 0) (i32.const 0) (i32.const 4)) (i32.const 9))
    (func (export "spin") (result i32) (loop (br 0)) (i32.const 0)))"#;

/// A folder of functions with the module in it, and a server that may read it.
struct Served {
    server: Server,
    _folder: tempfile::TempDir,
}

fn serve(more: &[&str]) -> Served {
    let folder = tempfile::tempdir().unwrap();
    std::fs::create_dir(folder.path().join("below")).unwrap();
    let module = wat::parse_str(MODULE).unwrap();
    std::fs::write(folder.path().join("below/f.wasm"), module).unwrap();
    std::fs::write(folder.path().join("text"), "no module").unwrap();
    let path = folder.path().to_str().unwrap();
    let mut arguments = vec!["--memcached-port", "0", "--functions", path];
    arguments.extend(more);
    Served { server: Server::start(&arguments), _folder: folder }
}

#[track_caller]
fn ask(socket: &mut Socket, request: &str, answer: &str) {
    socket.send(request.as_bytes());
    socket.expect(answer.as_bytes());
}

#[test]
fn functions_are_registered_and_invoked() {
    let served = serve(&[]);
    let (mut items, mut resp) = (served.server.memcached(), served.server.socket());
    ask(&mut items, "register f below/f.wasm call\r\n", "REGISTERED\r\n");
    // Fetch and phi: an absent key is the function's affair.
    ask(&mut items, "invoke n f AUR 1\r\n5\r\n", "VALUE n 0 1\r\n5\r\nEND\r\n");
    ask(&mut items, "invoke n f UR 1\r\n2\r\n", "VALUE n 0 1\r\n7\r\nEND\r\n");
    ask(&mut resp, "GET n\r\n", "$1\r\n7\r\n");
    // Filter: it may not change the value, and needs not.
    ask(&mut items, "set long 9 0 200\r\n", "");
    ask(&mut items, &format!("{}four{}\r\n", ".".repeat(100), ".".repeat(96)), "STORED\r\n");
    ask(&mut items, "invoke long f.four R 0\r\n\r\n", "VALUE long 0 4\r\nfour\r\nEND\r\n");
    ask(
        &mut items,
        "invoke long f.touch R 1\r\nx\r\n",
        "SERVER_ERROR FUNCTION function 'f.touch' changes the value, which needs UPDATE\r\n",
    );
    // Set and go: nothing is answered, what is absent stays so, flags and versions are as after
    // any other write in part.
    ask(
        &mut items,
        "gets long\r\n",
        &format!("VALUE long 9 200 1\r\n{}four{}\r\nEND\r\n", ".".repeat(100), ".".repeat(96)),
    );
    ask(
        &mut items,
        "invoke long f.touch U 3\r\n\r\n!\r\ninvoke absent f.touch AU 1\r\nx\r\nmn\r\n",
        "MN\r\n",
    );
    ask(&mut items, "cas long 0 0 1 1\r\nx\r\nget absent\r\n", "EXISTS\r\nEND\r\n");
    ask(&mut items, "invoke long f.four R 0\r\n\r\n", "VALUE long 0 4\r\nfour\r\nEND\r\n");
    ask(&mut resp, "GETRANGE long 0 3\r\n", "$4\r\n\r\n!.\r\n");
    ask(&mut items, "mg long f\r\n", "HD f9\r\n");
    // Without a reply of the function there is no value.
    ask(&mut items, "invoke long f.touch UR 1\r\nx\r\n", "END\r\n");
}

#[test]
fn what_fails_is_told_to_those_who_want_to_know() {
    let served = serve(&[]);
    let mut items = served.server.memcached();
    ask(
        &mut items,
        "set k 0 0 5\r\nvalue\r\nregister f below/f.wasm call\r\n",
        "STORED\r\nREGISTERED\r\n",
    );
    let told = [
        ("k f.fail UR 0", "SERVER_ERROR FUNCTION function 'f.fail' ended with status 9"),
        (
            "k f.spin R 0",
            "SERVER_ERROR FUNCTION function 'f.spin' took longer than 10 ms (function-milliseconds-max)",
        ),
        ("k g R 0", "SERVER_ERROR NOFUNCTION function 'g' is not loaded"),
    ];
    for (line, error) in told {
        ask(&mut items, &format!("invoke {line}\r\n\r\n"), &format!("{error}\r\n"));
        let silent = line.replace('R', "");
        let silent = if silent.contains("  ") { silent.replace("  ", " - ") } else { silent };
        ask(&mut items, &format!("invoke {silent}\r\n\r\nmn\r\n"), "MN\r\n");
    }
    ask(&mut items, "get k\r\n", "VALUE k 0 5\r\nvalue\r\nEND\r\n");
    // Errors of form: the connection goes on with what follows.
    let flags = "CLIENT_ERROR flags of invoke are letters of AUR, or -\r\n";
    ask(&mut items, "invoke k f X 4\r\nmn\r\n\r\nmn\r\n", &format!("{flags}MN\r\n"));
    ask(&mut items, "invoke k f R 1\r\nabcmn\r\n", "CLIENT_ERROR bad data chunk\r\nMN\r\n");
    ask(&mut items, "invoke k f R\r\n", "ERROR\r\n");
    let key = "k".repeat(251);
    let format = "CLIENT_ERROR bad command line format\r\n";
    ask(&mut items, &format!("invoke {key} f R 2\r\nmn\r\n"), format);
    ask(&mut items, &format!("invoke {key} f U 2\r\nmn\r\nmn\r\n"), "MN\r\n");
    // Bytes of any kind in the parameter.
    ask(
        &mut items,
        "invoke k f.touch UR 4\r\n\r\n\0\n\r\nget k\r\n",
        "END\r\nVALUE k 0 5\r\n\r\n\0\ne\r\nEND\r\n",
    );
}

#[test]
fn only_files_below_the_directory_are_registered() {
    let served = serve(&[]);
    let mut items = served.server.memcached();
    let mut refused = |line: &str, why: &str| {
        items.send(format!("register {line}\r\n").as_bytes());
        let answer = String::from_utf8(items.until(b"\r\n")).unwrap();
        assert!(answer.starts_with("SERVER_ERROR ERR module ") && answer.contains(why), "{answer}");
    };
    let below = "below the directory";
    refused("f ../f.wasm call", below);
    refused("f /etc/passwd call", below);
    refused("f below/../../x call", below);
    refused("f none.wasm call", "No such file");
    refused("f below call", "is no file");
    refused("f text call", "it is no WebAssembly module");
    refused("f below/f.wasm nothing", "it exports no function 'nothing'");
    refused("f/g below/f.wasm call", "the name of a module");
    // Registering again replaces.
    ask(
        &mut items,
        "register f below/f.wasm call\r\nregister f below/f.wasm four\r\n",
        "REGISTERED\r\nREGISTERED\r\n",
    );
    ask(
        &mut items,
        "set k 0 0 3\r\nabc\r\ninvoke k f R 0\r\n\r\n",
        "STORED\r\nVALUE k 0 0\r\n\r\nEND\r\n",
    );
    let without = Server::start(&["--memcached-port", "0"]);
    let told = "SERVER_ERROR ERR module 'f': files need a directory: see --functions\r\n";
    ask(&mut without.memcached(), "register f f.wasm call\r\n", told);
}

#[test]
fn who_gave_no_password_registers_and_invokes_nothing() {
    let served = serve(&["--requirepass", "secret"]);
    let mut items = served.server.memcached();
    let refused = "CLIENT_ERROR unauthenticated\r\n";
    ask(&mut items, "register f below/f.wasm call\r\n", refused);
    ask(&mut items, "invoke k f R 0\r\n\r\n", refused);
    ask(&mut items, "set any 0 0 14\r\ndefault secret\r\n", "STORED\r\n");
    ask(&mut items, "register f below/f.wasm call\r\n", "REGISTERED\r\n");
    ask(&mut items, "invoke k f UR 1\r\n1\r\n", "VALUE k 0 1\r\n1\r\nEND\r\n");
}

#[test]
fn calls_are_restricted_by_name() {
    let served = serve(&[]);
    let mut items = served.server.memcached();
    ask(&mut items, "register f below/f.wasm call\r\n", "REGISTERED\r\n");
    ask(&mut served.server.socket(), "CONFIG SET functions-callable f.four\r\n", "+OK\r\n");
    let refused = "CLIENT_ERROR NOPERM the function is not among those that may be called\r\n";
    ask(&mut items, "invoke k f UR 1\r\n1\r\n", refused);
    ask(&mut items, "invoke k f U 1\r\n1\r\nget k\r\n", "END\r\n");
    ask(&mut items, "invoke k f.four R 0\r\n\r\n", "VALUE k 0 0\r\n\r\nEND\r\n");
}

#[test]
fn a_registered_module_survives_a_restart() {
    let data = tempfile::tempdir().unwrap();
    let kept = ["--data", data.path().to_str().unwrap(), "--durability", "always"];
    let served = serve(&kept);
    ask(&mut served.server.memcached(), "register f below/f.wasm call\r\n", "REGISTERED\r\n");
    let Served { server, _folder } = served;
    drop(server);
    let folder = _folder.path().to_str().unwrap();
    let mut arguments = vec!["--memcached-port", "0", "--functions", folder];
    arguments.extend(kept);
    let server = Server::start(&arguments);
    ask(&mut server.memcached(), "invoke k f UR 1\r\n4\r\n", "VALUE k 0 1\r\n4\r\nEND\r\n");
}

#[test]
fn many_clients_of_both_protocols_lose_no_change() {
    const CLIENTS: usize = 4;
    const CALLS: usize = 250;
    let served = serve(&[]);
    let server = &served.server;
    ask(
        &mut server.memcached(),
        "register f below/f.wasm call\r\nset k 0 0 1\r\n0\r\n",
        "REGISTERED\r\nSTORED\r\n",
    );
    // A digit that is counted modulo 256: the last of all replies is the sum.
    std::thread::scope(|scope| {
        for _ in 0..CLIENTS {
            scope.spawn(|| {
                let mut items = server.memcached();
                for _ in 0..CALLS {
                    items.send(b"invoke k f AUR 1\r\n1\r\n");
                    assert_eq!(items.until(b"END\r\n").len(), "VALUE k 0 1\r\n0\r\nEND\r\n".len());
                }
            });
            scope.spawn(|| {
                let client = &mut server.client(2);
                for _ in 0..CALLS {
                    let words = ["f", "k", "UPDATE", "ATOMIC", "1"];
                    let replied: Vec<u8> = redis::cmd("FN.CALL").arg(&words).query(client).unwrap();
                    assert_eq!(replied.len(), 1);
                }
            });
        }
    });
    let value: Vec<u8> = redis::cmd("GET").arg("k").query(&mut server.client(2)).unwrap();
    assert_eq!(value, [(usize::from(b'0') + 2 * CLIENTS * CALLS) as u8]);
}

#[test]
fn slow_requests_are_remembered_by_their_words() {
    let served = serve(&[]);
    let mut items = served.server.memcached();
    ask(&mut items, "register f below/f.wasm call\r\n", "REGISTERED\r\n");
    let client = &mut served.server.client(2);
    let told = "SERVER_ERROR FUNCTION function 'f.spin' took longer than 10 ms (function-milliseconds-max)\r\n";
    let set = |client: &mut redis::Connection, micros: &str| {
        let words = ["SET", "slowlog-log-slower-than", micros];
        redis::cmd("CONFIG").arg(&words).exec(client).unwrap();
        redis::cmd("SLOWLOG").arg("RESET").exec(client).unwrap();
    };
    set(client, "-1");
    ask(&mut items, "invoke k f.spin R 3\r\nabc\r\n", told);
    let entries: Vec<redis::Value> = redis::cmd("SLOWLOG").arg("GET").query(client).unwrap();
    assert_eq!(entries.len(), 0);
    set(client, "5000");
    ask(
        &mut items,
        "get k\r\ninvoke k f.spin R 3\r\nabc\r\nget k\r\n",
        &format!("END\r\n{told}END\r\n"),
    );
    let entries: Vec<(u64, u64, u64, Vec<String>, String, String)> =
        redis::cmd("SLOWLOG").arg("GET").query(client).unwrap();
    let words: Vec<_> = entries.iter().map(|entry| entry.3.join(" ")).collect();
    assert_eq!(words, ["invoke k f.spin R 3"]);
}

#[test]
fn a_module_is_called_for_as_long_as_its_owner_may_load_it() {
    for shards in ["1", "3"] {
        let served = serve(&["--shards", shards]);
        let mut admin = served.server.client(2);
        let mut rules = |words: &[&str]| {
            crate::acl::ask(&mut admin, &[&["ACL", "SETUSER"], words].concat()).unwrap();
        };
        rules(&["owner", "on", ">pw", "+@all"]);
        rules(&["ann", "on", ">pw", "+@all", "~*"]);
        // Whoever needs no login is asked for none.
        rules(&["default", "off"]);
        let mut owner = served.server.memcached();
        ask(&mut owner, "set x 0 0 8\r\nowner pw\r\n", "STORED\r\n");
        ask(&mut owner, "register f below/f.wasm call\r\n", "REGISTERED\r\n");
        let mut ann = served.server.memcached();
        ask(&mut ann, "set x 0 0 6\r\nann pw\r\n", "STORED\r\n");
        let (call, one) = ("invoke k f RU 1\r\n1\r\n", "VALUE k 0 1\r\n1\r\nEND\r\n");
        ask(&mut ann, call, one);
        rules(&["owner", "-fn.load"]);
        let why = "the module 'f' is refused: its owner 'owner' may no longer run fn.load";
        ask(&mut ann, call, &format!("CLIENT_ERROR NOPERM {why}\r\n"));
        let mut resp = crate::acl::client_of(&served.server, "ann");
        let told = crate::acl::refusal(&mut resp, &["FN.CALL", "f", "k", "UPDATE", "1"]);
        assert_eq!(told, format!("NOPERM {why}"));
        rules(&["owner", "+fn.load"]);
        ask(&mut ann, call, "VALUE k 0 1\r\n2\r\nEND\r\n");
    }
}
