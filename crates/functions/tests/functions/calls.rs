//! What functions can do, and that no call sees what another one has left behind.

use crate::plain::{Plain, call, host, load, module};
use headwater_base::functions::{CallError, Functions, Loading, Run, Source};
use headwater_base::hash::Secret;
use headwater_functions::Host;

#[test]
fn every_host_call_does_what_it_says() {
    let mut host = host();
    load(
        &mut host,
        "all",
        r#"(data (i32.const 100) "0123456789")
        (func (export "call") (result i32) (local $n i32)
            ;; The key, the parameter and a part of the value come into memory and go into the reply.
            (call $reply (i32.const 0) (call $key_read (i32.const 1) (i32.const 0) (i32.const 50)))
            (call $reply (i32.const 0) (call $param_read (i32.const 0) (i32.const 0) (call $param_len)))
            (call $reply (i32.const 0) (call $value_read (i32.const 2) (i32.const 0) (i32.const 3)))
            (drop (call $reply_value (i32.const 4) (i32.const 2)))
            (call $value_write (i32.const 1) (i32.const 100) (i32.const 2))
            (call $value_append (i32.const 102) (i32.const 3))
            (call $value_truncate (i32.sub (call $value_len) (i32.const 1)))
            (i32.store (i32.const 0) (i32.wrap_i64 (call $now_ms)))
            (call $reply (i32.const 0) (i32.const 2))
            (i32.const 0))
        (func (export "replace") (result i32)
            (call $value_replace (i32.const 100) (call $key_len)) (i32.const 0))
        (func (export "delete") (result i32) (call $value_delete) (i32.const 0))
        (func (export "status") (result i32) (i32.const 7))
        (func (export "other") (param i32) (result i32) (local.get 0))"#,
    );
    let done = call(&mut host, "all", b"abcdefgh", b"PP").unwrap();
    assert_eq!(done.reply, [&b"eyPPcdeef"[..], &1234_u16.to_le_bytes()].concat());
    assert_eq!(done.value.as_deref(), Some(&b"a01defgh23"[..]));
    assert_eq!(call(&mut host, "all.replace", b"x", b"").unwrap().value, Some(b"012".to_vec()));
    assert_eq!(call(&mut host, "all.delete", b"x", b"").unwrap().value, None);
    assert_eq!(call(&mut host, "all.status", b"x", b""), Err(CallError::Status(7)));
    for absent in ["all.other", "all.nothing", "al", ""] {
        assert_eq!(call(&mut host, absent, b"", b""), Err(CallError::NoSuchFunction), "{absent}");
    }
    let mut absent = Plain::default();
    load(&mut host, "len", "(func (export \"call\") (result i32) (call $value_len))");
    assert_eq!(host.call(b"len", &mut absent), Err(CallError::Status(-1)));
    let report = &host.list()[0];
    assert_eq!((report.name.as_str(), report.calls, report.errors), ("all", 4, 1));
    assert_eq!(report.exports[..2], ["all", "all.call"]);
    assert!(!report.pure);
}

/// Replies what it finds in memory and in a global, after which it spoils both.
fn leaves(how: &str) -> String {
    format!(
        r#"(global $seen (mut i32) (i32.const 5)) (global $big (mut f64) (f64.const 0.5))
        (data (i32.const 1000) "first") (data $passive "xyz")
        (table 2 funcref) (elem $some func $again $again)
        (func $again (result i32) (i32.const 0))
        (func (export "call") (result i32)
            (call $reply (i32.const 1000) (i32.const 5))
            (call $reply (i32.const 2000) (i32.const 40))
            (call $reply (i32.const 65496) (i32.const 40))
            (call $reply (i32.const 1020) (i32.const 12))
            (i32.store8 (i32.const 3000) (i32.add (i32.const 48) (global.get $seen)))
            (call $reply (i32.const 3000) (i32.const 1))
            (i32.store8 (i32.const 3000) (i32.const 0))
            (global.set $seen (i32.const 6)) (global.set $big (f64.const 1.5))
            {how} (i32.const 0))"#
    )
}

#[test]
fn calls_leave_nothing_behind() {
    let ways = [
        "(i32.store (i32.const 1000) (i32.const 1))",
        "(i32.store8 (i32.const 2000) (i32.const 1))",
        "(i32.store16 offset=1000 (i32.const 1000) (i32.const 1))",
        "(i64.store (i32.const 1021) (i64.const -1))",
        "(i64.store8 (i32.const 2001) (i64.const -1))",
        "(i64.store16 (i32.const 2002) (i64.const -1))",
        "(i64.store32 (i32.const 2003) (i64.const -1))",
        "(f32.store (i32.const 65500) (f32.const 1))",
        "(f64.store (i32.const 65528) (f64.const 1))",
        "(memory.fill (i32.const 900) (i32.const 7) (i32.const 3000))",
        "(memory.fill (i32.const 0) (i32.const 7) (i32.const 65536))",
        "(memory.copy (i32.const 2000) (i32.const 1000) (i32.const 5))",
        "(memory.init $passive (i32.const 1000) (i32.const 0) (i32.const 3))",
        "(drop (call $value_read (i32.const 0) (i32.const 1000) (i32.const 6)))",
        "(drop (call $param_read (i32.const 0) (i32.const 2000) (i32.const 6)))",
        "(drop (memory.grow (i32.const 1))) (i32.store (i32.const 1000) (i32.const 1))",
        "(data.drop $passive)",
        "(elem.drop $some)",
        "(table.init $some (i32.const 0) (i32.const 0) (i32.const 2))
         (drop (call_indirect (result i32) (i32.const 1)))",
    ];
    let mut host = host();
    for way in ways {
        load(&mut host, "leaves", &leaves(way));
        let first = call(&mut host, "leaves", b"spoils", b"spoils").unwrap().reply;
        assert!(first.starts_with(b"first\0\0") && first.ends_with(b"\0\x005"), "{way}");
        for _ in 0..3 {
            let again = call(&mut host, "leaves", b"spoils", b"spoils").unwrap().reply;
            assert_eq!(first, again, "{way}");
        }
    }
}

#[test]
fn what_a_failed_call_wrote_is_gone_too() {
    let mut host = host();
    load(
        &mut host,
        "fails",
        r#"(global $seen (mut i32) (i32.const 0))
        (func (export "fail") (result i32)
            (i32.store (i32.const 8) (i32.const 1)) (global.set $seen (i32.const 1))
            (i32.const 1))
        (func (export "trap") (result i32)
            (i32.store (i32.const 8) (i32.const 1)) (global.set $seen (i32.const 1)) unreachable)
        (func (export "look") (result i32)
            (i32.or (global.get $seen) (i32.load (i32.const 8))))"#,
    );
    for way in ["fails.fail", "fails.trap"] {
        assert!(call(&mut host, way, b"", b"").is_err());
        assert_eq!(call(&mut host, "fails.look", b"", b"").map(|_| ()), Ok(()), "{way}");
    }
}

/// Puts a memory back that was written at random places, by random instructions.
#[test]
fn memory_is_put_back_wherever_it_was_written() {
    let mut host = host();
    load(
        &mut host,
        "writes",
        r#"(data (i32.const 30000) "some text that is there from the start")
        (func (export "write") (result i32) (local $at i32) (local $len i32)
            (drop (call $param_read (i32.const 0) (i32.const 0) (i32.const 8)))
            (local.set $at (i32.load (i32.const 0)))
            (local.set $len (i32.load (i32.const 4)))
            (memory.fill (local.get $at) (i32.const 1) (local.get $len))
            (i64.store offset=7 (local.get $at) (i64.const -1))
            (drop (call $value_read (i32.const 0) (local.get $at) (local.get $len)))
            (i32.const 0))
        (func (export "look") (result i32)
            (call $reply (i32.const 0) (i32.const 65536)) (i32.const 0))"#,
    );
    let clean = call(&mut host, "writes.look", b"", b"").unwrap().reply;
    assert!(clean.len() == 65536 && clean[30000..].starts_with(b"some text"));
    let mut draw = 1_u64;
    for _ in 0..2000 {
        draw = draw.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
        let at = (draw >> 33) as u32 % 65_000;
        let len = ((draw >> 20) as u32 % 3000).min(65_536 - at);
        let param = [at.to_le_bytes(), len.to_le_bytes()].concat();
        call(&mut host, "writes.write", &[9; 3000], &param).unwrap();
        let found = call(&mut host, "writes.look", b"", b"").unwrap().reply;
        assert!(found == clean, "after {len} bytes at {at}");
    }
}

#[test]
fn a_run_folds_and_ends() {
    let mut host = host();
    load(
        &mut host,
        "sum",
        r#"(global $bytes (mut i32) (i32.const 0))
        (func (export "len") (result i32)
            (global.set $bytes (i32.add (global.get $bytes) (call $value_len))) (i32.const 0))
        (func (export "len_end") (result i32)
            (i32.store (i32.const 0) (global.get $bytes))
            (call $reply (i32.const 0) (i32.const 4)) (i32.const 0))"#,
    );
    for _ in 0..2 {
        let mut end = Plain::default();
        let mut steps = |run: &mut dyn Run| {
            for len in [1, 20, 300] {
                run.step(&mut Plain { value: Some(vec![0; len]), ..Plain::default() })?;
            }
            assert!(run.has_end());
            run.finish(&mut end)
        };
        // The name alone stands for the only function that is no end.
        host.run(b"sum", &mut steps).unwrap();
        assert_eq!(end.reply, 321_u32.to_le_bytes());
    }
}

#[test]
fn names_and_exports() {
    let mut host = host();
    let two = module(
        r#"(func (export "get") (result i32) (i32.const 0))
        (func (export "set") (result i32) (i32.const 0))"#,
    );
    let bytes = Source::Bytes(&two);
    host.load_now("two", bytes, None, false).unwrap();
    assert_eq!(host.is_pure(b"two"), None, "the name alone stands for neither");
    assert_eq!((host.is_pure(b"two.get"), host.is_pure(b"two.x")), (Some(false), None));
    assert!(host.load_now("two", bytes, None, false).unwrap_err().contains("REPLACE"));
    host.load_now("two", bytes, Some("set"), true).unwrap();
    assert!(host.is_pure(b"two").is_some());
    let told = host.load_now("x", bytes, Some("sot"), false).unwrap_err();
    assert!(told.contains("'sot'") && told.contains("get, set"), "{told}");
    for name in ["", "a.b", "a b", "ü", &"x".repeat(65)] {
        assert!(host.load_now(name, bytes, None, false).is_err(), "{name}");
    }
    assert!(host.remove("two") && !host.remove("two") && host.list().is_empty());
    assert_eq!(call(&mut host, "two.get", b"", b""), Err(CallError::NoSuchFunction));
    assert!(
        host.load_now("x", Source::File("x.wasm"), None, false)
            .unwrap_err()
            .contains("--functions")
    );
}

#[test]
fn a_pure_module_asks_for_no_time() {
    let mut host = host();
    let pure = wat::parse_str(r#"(module (func (export "call") (result i32) (i32.const 0)))"#);
    host.load_now("pure", Source::Bytes(&pure.unwrap()), None, false).unwrap();
    load(&mut host, "timed", "(func (export \"call\") (result i32) (i32.const 0))");
    assert_eq!((host.is_pure(b"pure"), host.is_pure(b"timed")), (Some(true), Some(false)));
}

#[test]
fn files_lie_below_the_directory() {
    let all = tempfile::tempdir().unwrap();
    let below = all.path().join("functions");
    std::fs::create_dir_all(below.join("sub")).unwrap();
    let bytes = module("(func (export \"call\") (result i32) (i32.const 0))");
    std::fs::write(below.join("sub/in.wasm"), &bytes).unwrap();
    std::fs::write(all.path().join("out.wasm"), &bytes).unwrap();
    std::os::unix::fs::symlink(all.path().join("out.wasm"), below.join("link.wasm")).unwrap();
    std::os::unix::fs::symlink(all.path(), below.join("up")).unwrap();
    std::os::unix::fs::symlink("in.wasm", below.join("sub/alias.wasm")).unwrap();
    let mut host = Host::new(&crate::plain::limits(), Some(below), Secret::fixed(7)).unwrap();
    for file in ["sub/in.wasm", "./sub/in.wasm", "sub/alias.wasm"] {
        host.load_now("in", Source::File(file), None, true).unwrap();
    }
    let absolute = all.path().join("functions/sub/in.wasm").display().to_string();
    for file in [
        "",
        ".",
        "..",
        "sub",
        "sub/../../out.wasm",
        "../out.wasm",
        "sub/../sub/in.wasm",
        "link.wasm",
        "up/out.wasm",
        "up/functions/../out.wasm",
        "absent.wasm",
        "in.wasm\0",
        "/etc/passwd",
        &absolute,
    ] {
        assert!(host.load_now("out", Source::File(file), None, true).is_err(), "{file}");
    }
}

#[test]
fn compiling_does_not_keep_the_caller_waiting() {
    let mut host = host();
    let body = "(i32.store (i32.const 0) (i32.mul (i32.load (i32.const 0)) (i32.const 3)))";
    let long = format!("(func (export \"call\") (result i32) {} (i32.const 0))", body.repeat(3000));
    let (long, short) =
        (module(&long), module("(func (export \"call\") (result i32) (i32.const 0))"));
    assert_eq!(host.load("long", Source::Bytes(&long), None, false), Loading::Waiting);
    assert_eq!(host.load("short", Source::Bytes(&short), None, false), Loading::Waiting);
    assert!(host.is_loading());
    host.load_now("short", Source::Bytes(&short), None, false).unwrap();
    host.load_now("long", Source::Bytes(&long), None, false).unwrap();
    assert!(!host.is_loading() && !host.poll());
    assert_eq!(host.list().len(), 2);
}
