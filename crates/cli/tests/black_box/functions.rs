//! Functions through a client library: the thesis' four uses, what hostile modules cost others, and
//! that nothing is lost where many clients change one value.

use crate::support::{Server, Stops, TempFile};
use redis::{Commands, Connection, RedisResult, cmd};

/// A whole number as text in the value: adds the parameter's first byte less `0`, and replies.
const COUNTER: &str = r#"(module
    (import "headwater" "value_read" (func $value_read (param i32 i32 i32) (result i32)))
    (import "headwater" "param_read" (func $param_read (param i32 i32 i32) (result i32)))
    (import "headwater" "value_replace" (func $value_replace (param i32 i32)))
    (import "headwater" "reply" (func $reply (param i32 i32)))
    (memory 1)
    (func (export "call") (result i32) (local $n i64) (local $len i32) (local $at i32)
        (local.set $len (call $value_read (i32.const 0) (i32.const 0) (i32.const 20)))
        (block (loop
            (br_if 1 (i32.ge_u (local.get $at) (local.get $len)))
            (local.set $n (i64.add (i64.mul (local.get $n) (i64.const 10))
                (i64.sub (i64.load8_u (local.get $at)) (i64.const 48))))
            (local.set $at (i32.add (local.get $at) (i32.const 1)))
            (br 0)))
        (drop (call $param_read (i32.const 0) (i32.const 32) (i32.const 1)))
        (local.set $n (i64.add (local.get $n) (i64.sub (i64.load8_u (i32.const 32)) (i64.const 48))))
        (local.set $at (i32.const 64))
        (loop
            (local.set $at (i32.sub (local.get $at) (i32.const 1)))
            (i64.store8 (local.get $at) (i64.add (i64.const 48) (i64.rem_u (local.get $n) (i64.const 10))))
            (br_if 0 (i64.ne (i64.const 0) (local.tee $n (i64.div_u (local.get $n) (i64.const 10))))))
        (local.set $len (i32.sub (i32.const 64) (local.get $at)))
        (call $value_replace (local.get $at) (local.get $len))
        (call $reply (local.get $at) (local.get $len))
        (i32.const 0)))"#;

/// `get` replies 4 bytes, `put` writes the parameter, each 100 bytes from the start; `spin` never ends.
const FIELDS: &str = r#"(module
    (import "headwater" "value_len" (func $value_len (result i32)))
    (import "headwater" "value_write" (func $value_write (param i32 i32 i32)))
    (import "headwater" "param_read" (func $param_read (param i32 i32 i32) (result i32)))
    (import "headwater" "reply" (func $reply (param i32 i32)))
    (import "headwater" "reply_value" (func $reply_value (param i32 i32) (result i32)))
    (memory 1)
    (global $sum (mut i32) (i32.const 0))
    (func (export "get") (result i32) (drop (call $reply_value (i32.const 100) (i32.const 4))) (i32.const 0))
    (func (export "put") (result i32)
        (call $value_write (i32.const 100) (i32.const 0)
            (call $param_read (i32.const 0) (i32.const 0) (i32.const 1000)))
        (i32.const 0))
    (func (export "spoil") (result i32)
        (call $value_write (i32.const 0) (i32.const 0) (i32.const 9)) (loop (br 0)) (i32.const 0))
    (func (export "sum") (result i32)
        (global.set $sum (i32.add (global.get $sum) (call $value_len))) (i32.const 0))
    (func (export "sum_end") (result i32)
        (i32.store (i32.const 0) (global.get $sum)) (call $reply (i32.const 0) (i32.const 4)) (i32.const 0)))"#;

fn load(client: &mut Connection, name: &str, text: &str) {
    let module = wat::parse_str(text).unwrap();
    cmd("FN.LOAD").arg(name).arg(module).exec(client).unwrap();
}

fn call(client: &mut Connection, words: &[&str]) -> RedisResult<Option<Vec<u8>>> {
    cmd("FN.CALL").arg(words).query(client)
}

fn bytes(text: &str) -> RedisResult<Option<Vec<u8>>> {
    Ok(Some(text.as_bytes().to_vec()))
}

#[test]
fn the_four_uses() {
    for protocol in [2, 3] {
        let server = Server::start(&[]);
        let client = &mut server.client(protocol);
        load(client, "fields", FIELDS);
        load(client, "counter", COUNTER);
        let mut value = vec![b'.'; 10_000];
        value[100..104].copy_from_slice(b"five");
        client.set::<_, _, ()>("k", &value).unwrap();
        // Filter.
        assert_eq!(call(client, &["fields.get", "k", ""]), bytes("five"));
        // Set and go: without a reply, and without a key where there is none.
        let go = ["fields.put", "k", "UPDATE", "NOREPLY", "seventeen"];
        assert_eq!(cmd("FN.CALL").arg(&go).query(client), Ok(String::from("OK")));
        value[100..109].copy_from_slice(b"seventeen");
        assert_eq!(client.get("k"), Ok(value));
        let absent = ["fields.put", "absent", "UPDATE", "NOREPLY", "x"];
        assert_eq!(cmd("FN.CALL").arg(&absent).query(client), Ok(String::from("OK")));
        assert_eq!(client.exists("absent"), Ok(false));
        // Fetch and phi.
        assert_eq!(call(client, &["counter", "n", "UPDATE", "ATOMIC", "5"]), bytes("5"));
        assert_eq!(call(client, &["counter", "n", "update", "atomic", "7"]), bytes("12"));
        assert_eq!(client.get("n"), Ok(12));
        // A fold over a range, and a filter.
        let folded: Vec<u8> =
            cmd("FN.RANGE").arg(&["fields.sum", "", "", ""]).query(client).unwrap();
        assert_eq!(folded, 10_002_u32.to_le_bytes());
        let pairs: Vec<(String, String)> =
            cmd("FN.RANGE").arg(&["fields.get", "a", "", "LIMIT", "5", ""]).query(client).unwrap();
        assert_eq!(pairs[0], (String::from("k"), String::from("seve")));
        let told = call(client, &["counter", "n", "5"]).unwrap_err();
        assert!(told.to_string().contains("needs UPDATE"), "{told}");
        let told = call(client, &["counter", "n", "UPDTE", "5"]).unwrap_err();
        assert!(told.to_string().contains("unknown option 'UPDTE'"), "{told}");
        assert_eq!(call(client, &["nothing", "n", "5"]).unwrap_err().code(), Some("NOFUNCTION"));
    }
}

#[test]
fn many_clients_lose_no_increment() {
    const CLIENTS: usize = 8;
    const CALLS: usize = 500;
    let server = Server::start(&[]);
    load(&mut server.client(2), "counter", COUNTER);
    std::thread::scope(|scope| {
        for _ in 0..CLIENTS {
            scope.spawn(|| {
                let client = &mut server.client(2);
                for _ in 0..CALLS {
                    call(client, &["counter", "n", "UPDATE", "ATOMIC", "1"]).unwrap();
                }
            });
        }
    });
    assert_eq!(server.client(2).get("n"), Ok(CLIENTS * CALLS));
}

#[test]
fn an_endless_loop_costs_its_caller_an_error_and_others_little() {
    let server = Server::start(&[]);
    let client = &mut server.client(2);
    load(client, "fields", FIELDS);
    client.set::<_, _, ()>("k", "precious value").unwrap();
    let done = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let _stops = Stops(&done);
            let hostile = &mut server.client(2);
            for _ in 0..50 {
                let told = call(hostile, &["fields.spoil", "k", "UPDATE", "x"]).unwrap_err();
                assert_eq!(told.code(), Some("FUNCTION"), "{told}");
                assert!(told.to_string().contains("took longer than 10 ms"), "{told}");
            }
        });
        while !done.load(std::sync::atomic::Ordering::SeqCst) {
            assert_eq!(client.get("k"), Ok(String::from("precious value")));
        }
    });
    let info: redis::InfoDict = cmd("INFO").arg("functions").query(client).unwrap();
    let counted: String = info.get("function_fields").unwrap();
    assert!(counted.contains("calls=50,errors=50,timeouts=50"), "{counted}");
}

#[test]
fn modules_are_listed_dropped_and_replaced() {
    let server = Server::start(&[]);
    let client = &mut server.client(3);
    load(client, "counter", COUNTER);
    let module = wat::parse_str(FIELDS).unwrap();
    let again = cmd("FN.LOAD").arg("counter").arg(&module).exec(client).unwrap_err();
    assert!(again.to_string().contains("REPLACE"), "{again}");
    let wrong = cmd("FN.LOAD").arg("x").arg("no module").exec(client).unwrap_err();
    assert!(wrong.to_string().contains("it is no WebAssembly module"), "{wrong}");
    let file = cmd("FN.LOAD").arg("x").arg("../x.wasm").arg("FILE").exec(client).unwrap_err();
    assert!(file.to_string().contains("--functions"), "{file}");
    cmd("FN.LOAD")
        .arg("counter")
        .arg(&module)
        .arg(&["EXPORT", "get", "REPLACE"])
        .exec(client)
        .unwrap();
    let list: Vec<std::collections::HashMap<String, redis::Value>> =
        cmd("FN.LIST").query(client).unwrap();
    let names: Vec<String> = redis::from_redis_value(list[0]["functions"].clone()).unwrap();
    assert_eq!(names[..2], ["counter", "counter.get"]);
    let info: std::collections::HashMap<String, redis::Value> =
        cmd("FN.INFO").arg("counter").query(client).unwrap();
    assert_eq!(info["pure"], redis::Value::Int(1));
    assert_eq!(cmd("FN.DROP").arg("counter").query(client), Ok(String::from("OK")));
    assert!(cmd("FN.DROP").arg("counter").exec(client).is_err());
    assert_eq!(call(client, &["counter", "n", "5"]).unwrap_err().code(), Some("NOFUNCTION"));
    // A module is compiled outside of transactions.
    cmd("MULTI").exec(client).unwrap();
    assert!(cmd("FN.LOAD").arg("x").arg(&module).exec(client).is_err());
}

#[test]
fn clients_call_what_the_settings_allow() {
    let directory = tempfile::tempdir().unwrap();
    std::fs::write(directory.path().join("c.wasm"), wat::parse_str(COUNTER).unwrap()).unwrap();
    let path = directory.path().display();
    let config = TempFile::new(&format!(
        "[functions]\nfunctions-dir = '{path}'\nfunctions-callable = 'count* x.get'\n\
         [[function]]\nname = 'counter'\nfile = 'c.wasm'\n"
    ));
    let server = Server::start(&["--config", config.path.to_str().unwrap()]);
    let client = &mut server.client(2);
    assert_eq!(call(client, &["counter", "n", "UPDATE", "5"]), bytes("5"));
    cmd("FN.LOAD").arg(&["other", "c.wasm", "FILE"]).exec(client).unwrap();
    assert_eq!(call(client, &["other", "n", "UPDATE", "5"]).unwrap_err().code(), Some("NOPERM"));
    let told = cmd("FN.LOAD").arg(&["out", "../c.wasm", "FILE"]).exec(client).unwrap_err();
    assert!(told.to_string().contains("below the directory"), "{told}");
    cmd("CONFIG").arg(&["SET", "functions-callable", "*"]).exec(client).unwrap();
    assert_eq!(call(client, &["other", "n", "UPDATE", "5"]), bytes("10"));
}

#[test]
fn compiling_leaves_others_alone() {
    let server = Server::start(&["--memory", "0"]);
    let body = "(i32.store (i32.const 0) (i32.mul (i32.load (i32.const 0)) (i32.const 3)))";
    let text = format!(
        "(module (memory 1) (func (export \"call\") (result i32) {} (i32.const 0)))",
        body.repeat(4000)
    );
    let module = wat::parse_str(text).unwrap();
    let done = std::sync::atomic::AtomicBool::new(false);
    let mut pings = 0;
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let _stops = Stops(&done);
            cmd("FN.LOAD").arg("long").arg(&module).exec(&mut server.client(2)).unwrap();
        });
        let client = &mut server.client(2);
        while !done.load(std::sync::atomic::Ordering::SeqCst) {
            cmd("PING").exec(client).unwrap();
            pings += 1;
        }
    });
    assert!(pings > 1);
    assert_eq!(call(&mut server.client(2), &["long", "k", ""]), Ok(None));
}

/// Functions that end in an error: without end, with all memory, without a bottom, out of bounds, with a
/// reply without end; each has written before.
const HOSTILE: &str = r#"(module
    (import "headwater" "value_write" (func $value_write (param i32 i32 i32)))
    (import "headwater" "value_read" (func $value_read (param i32 i32 i32) (result i32)))
    (import "headwater" "reply" (func $reply (param i32 i32)))
    (memory 1)
    (func $spoil (call $value_write (i32.const 0) (i32.const 0) (i32.const 64)))
    (func (export "spin") (result i32) (call $spoil) (loop (br 0)) (i32.const 0))
    (func (export "hog") (result i32) (call $spoil)
        (loop
            (memory.fill (i32.const 0) (i32.const 7) (i32.shl (memory.size) (i32.const 16)))
            (br_if 0 (i32.ne (i32.const -1) (memory.grow (i32.const 16)))))
        (i32.const 1))
    (func $deep (param i32) (result i32)
        (i32.add (local.get 0) (call $deep (i32.add (local.get 0) (i32.const 1)))))
    (func (export "recurse") (result i32) (call $spoil) (call $deep (i32.const 0)))
    (func (export "outside") (result i32) (call $spoil)
        (drop (call $value_read (i32.const 0) (i32.const 65500) (i32.const 64))) (i32.const 0))
    (func (export "flood") (result i32) (call $spoil)
        (loop (call $reply (i32.const 0) (i32.const 65536)) (br 0)) (i32.const 0)))"#;

#[test]
fn hostile_functions_under_load_spoil_and_leak_nothing() {
    const CALLS: usize = 60;
    const COUNTS: usize = 300;
    let server = Server::start(&[]);
    let client = &mut server.client(2);
    load(client, "hostile", HOSTILE);
    load(client, "counter", COUNTER);
    let names = ["spin", "hog", "recurse", "outside", "flood"];
    let value = "precious ".repeat(20);
    for name in names {
        client.set::<_, _, ()>(name, &value).unwrap();
    }
    let round = || {
        std::thread::scope(|scope| {
            for name in names {
                let server = &server;
                scope.spawn(move || {
                    let caller = &mut server.client(2);
                    let name = format!("hostile.{name}");
                    for _ in 0..CALLS / if name.ends_with("spin") { 6 } else { 1 } {
                        let words = [&name, &name["hostile.".len()..], "UPDATE", ""];
                        let told = call(caller, &words).unwrap_err();
                        assert_eq!(told.code(), Some("FUNCTION"), "{told}");
                    }
                });
            }
            for _ in 0..2 {
                scope.spawn(|| {
                    let counting = &mut server.client(2);
                    for _ in 0..COUNTS {
                        call(counting, &["counter", "n", "UPDATE", "ATOMIC", "1"]).unwrap();
                    }
                });
            }
        });
    };
    round();
    let before = server.memory_bytes("VmRSS");
    round();
    round();
    // What one call may take, and no more with each.
    let taken = server.memory_bytes("VmRSS").saturating_sub(before);
    assert!(taken < 16 << 20, "{taken} bytes more after as many calls again");
    for name in names {
        assert_eq!(client.get(name), Ok(value.clone()));
    }
    assert_eq!(client.get("n"), Ok(3 * 2 * COUNTS));
    let info: redis::InfoDict = cmd("INFO").arg("functions").query(client).unwrap();
    let counted: String = info.get("function_hostile").unwrap();
    let calls = 3 * (4 * CALLS + CALLS / 6);
    assert!(counted.contains(&format!("calls={calls},errors={calls},")), "{counted}");
}
