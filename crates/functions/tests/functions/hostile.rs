//! Modules that want to do harm: each costs an error, and nothing else.
//!
//! `HEADWATER_FUZZ_FIRST` and `HEADWATER_FUZZ_ROUNDS` run other or more mutations.

use crate::plain::{Plain, REPLY_MAX, call, host, limits, load, module};
use headwater_base::functions::{CallError, FunctionLimits, Functions, Refused, Source};
use headwater_base::hash::Secret;
use headwater_functions::Host;
use std::time::{Duration, Instant};

/// A function beside the hostile ones, which must go on working.
const GOOD: &str = "(func (export \"call\") (result i32)
    (drop (call $reply_value (i32.const 0) (i32.const 100))) (i32.const 0))";

fn hostile(text: &str) -> CallError {
    let mut host = host();
    load(&mut host, "good", GOOD);
    load(&mut host, "bad", text);
    let error = call(&mut host, "bad", b"value", b"param").unwrap_err();
    // Again, on an instance that has to be made.
    assert_eq!(call(&mut host, "bad", b"value", b"param").unwrap_err(), error);
    assert_eq!(call(&mut host, "good", b"value", b"").unwrap().reply, b"value");
    error
}

#[test]
fn endless_loops_end() {
    let out_of_time = CallError::TimeLimit(limits().milliseconds_max);
    for text in [
        "(func (export \"call\") (result i32) (loop (br 0)) (i32.const 0))",
        "(func (export \"call\") (result i32) (loop (drop (call $value_len)) (br 0)) (i32.const 0))",
        "(func $a (call $b)) (func $b) (func (export \"call\") (result i32)
            (loop (call $a) (br 0)) (i32.const 0))",
        "(func (export \"call\") (result i32)
            (loop (memory.fill (i32.const 0) (i32.const 1) (i32.const 65536)) (br 0)) (i32.const 0))",
        "(func (export \"call\") (result i32)
            (loop (call $value_replace (i32.const 0) (i32.const 65536)) (br 0)) (i32.const 0))",
    ] {
        assert_eq!(hostile(text), out_of_time);
    }
}

#[test]
fn a_loop_has_all_its_time() {
    let mut host = host();
    load(&mut host, "loop", "(func (export \"call\") (result i32) (loop (br 0)) (i32.const 0))");
    for _ in 0..20 {
        let started = Instant::now();
        call(&mut host, "loop", b"", b"").unwrap_err();
        assert!(started.elapsed() >= Duration::from_millis(limits().milliseconds_max));
    }
}

#[test]
fn memory_is_bounded() {
    let grows = "(func (export \"call\") (result i32)
        (loop (br_if 0 (i32.ge_s (memory.grow (i32.const 1)) (i32.const 0)))) (i32.const 0))";
    assert_eq!(hostile(grows), CallError::MemoryLimit(limits().memory_bytes_max));
    let mut host = host();
    let large =
        wat::parse_str("(module (memory 17) (func (export \"call\") (result i32) (i32.const 0)))");
    let told = host.load_now("large", Source::Bytes(&large.unwrap()), None, false).unwrap_err();
    assert!(told.contains("function-memory-bytes-max"), "{told}");
}

#[test]
fn recursion_ends() {
    for text in [
        "(func $f (export \"call\") (result i32) (call $f))",
        "(func $f (export \"call\") (result i32) (local i64 i64 i64) (i32.add (call $f) (call $f)))",
        "(table 1 funcref) (elem (i32.const 0) $f) (type $t (func (result i32)))
         (func $f (export \"call\") (result i32) (i32.add (i32.const 1) (call_indirect (type $t) (i32.const 0))))",
    ] {
        assert!(matches!(hostile(text), CallError::Trap(text) if text.contains("stack")));
    }
}

#[test]
fn addresses_outside_of_memory_are_refused() {
    for text in [
        "(call $reply (i32.const 65536) (i32.const 1))",
        "(call $reply (i32.const -1) (i32.const -1))",
        "(call $reply (i32.const 1) (i32.const 65536))",
        "(call $value_write (i32.const 0) (i32.const 65535) (i32.const 2))",
        "(call $value_append (i32.const -8) (i32.const 16))",
        "(call $value_replace (i32.const 0) (i32.const -1))",
        "(drop (call $value_read (i32.const 0) (i32.const 65530) (i32.const 7)))",
        "(drop (call $value_read (i32.const 0) (i32.const -7) (i32.const 7)))",
        "(drop (call $key_read (i32.const 0) (i32.const 0) (i32.const -1)))",
        "(drop (call $param_read (i32.const -1) (i32.const -1) (i32.const 2)))",
        "(i32.store (i32.const -1) (i32.const 0))",
        "(i32.store offset=4294967295 (i32.const -1) (i32.const 0))",
        "(memory.fill (i32.const 1) (i32.const 0) (i32.const 65536))",
        "(memory.copy (i32.const 0) (i32.const -1) (i32.const 2))",
    ] {
        let error = hostile(&format!("(func (export \"call\") (result i32) {text} (i32.const 0))"));
        let CallError::Trap(told) = error else { panic!("{text}: {error}") };
        assert!(told.contains("out of bounds"), "{text}: {told}");
    }
    // Offsets of the value are another matter: nothing is there.
    let mut host = host();
    load(
        &mut host,
        "far",
        "(func (export \"call\") (result i32) (i32.add
            (call $value_read (i32.const -1) (i32.const 0) (i32.const 9))
            (call $reply_value (i32.const -1) (i32.const -1))))",
    );
    assert_eq!(call(&mut host, "far", b"value", b"").unwrap().reply, b"");
}

#[test]
fn other_traps_are_errors() {
    for (text, told) in [
        ("unreachable", "unreachable"),
        ("(drop (i32.div_u (i32.const 1) (i32.const 0)))", "divide by zero"),
        ("(drop (i32.trunc_f32_s (f32.const 1e30)))", "integer overflow"),
        ("(call_indirect (i32.const 5))", "out of bounds"),
    ] {
        let text =
            format!("(table 1 funcref) (func (export \"call\") (result i32) {text} (i32.const 0))");
        let CallError::Trap(found) = hostile(&text) else { panic!("{text}") };
        assert!(found.contains(told), "{text}: {found}");
    }
}

#[test]
fn huge_replies_and_values_are_refused() {
    let call = |what: &str| {
        format!("(func (export \"call\") (result i32) (loop {what} (br 0)) (i32.const 0))")
    };
    let reply = call("(call $reply (i32.const 0) (i32.const 60000))");
    assert_eq!(hostile(&reply), CallError::Refused(Refused::ReplyTooLong(REPLY_MAX)));
    let append = call("(call $value_append (i32.const 0) (i32.const 60000))");
    assert_eq!(hostile(&append), CallError::Refused(Refused::ValueTooLong(REPLY_MAX)));
}

#[test]
fn modules_beyond_the_limits_are_refused() {
    let mut host = Host::new(
        &FunctionLimits { module_bytes_max: 100_000, functions_max: 2, ..limits() },
        None,
        Secret::fixed(7),
    )
    .unwrap();
    let many = "(func)".repeat(10_001);
    let long = format!("(func {})", "(drop (i32.const 1))".repeat(40_000));
    let locals = format!("(func (local {}))", "i64 ".repeat(2_001));
    let data = format!("(memory 4) (data (i32.const 0) \"{}\")", "x".repeat(100_000));
    for (text, told) in [
        (many.as_str(), "functions"),
        (&long, "bytes"),
        (&locals, "locals"),
        (&data, "function-module-bytes-max"),
        ("(import \"wasi_snapshot_preview1\" \"fd_write\" (func))", "fd_write"),
        ("(import \"headwater\" \"value_len\" (func (param i32)))", "value_len"),
        ("(import \"env\" \"memory\" (memory 1))", "memory"),
        ("(func (export \"headwater marks\"))", "duplicate"),
        ("", "it exports no function"),
        ("(func $s (loop (br 0))) (start $s)", "took longer"),
        ("(func $s unreachable) (start $s)", "unreachable"),
        ("(memory 1 1 shared)", "shared"),
        ("(memory i64 1)", "64"),
        ("(memory 1) (memory 1)", "memor"),
        ("(func (result v128) (v128.const i64x2 0 0))", "SIMD"),
        (
            "(import \"headwater\" \"value_len\" (func $l (result i32)))
          (func $s (drop (call $l))) (start $s)",
            "module's start",
        ),
    ] {
        let call = if text.is_empty() {
            ""
        } else {
            "(func (export \"call\") (result i32) (i32.const 0))"
        };
        let whole = if text.starts_with("(import") {
            format!("(module {text} {call})")
        } else {
            format!("(module {call} {text})")
        };
        let module = wat::parse_str(&whole).unwrap();
        let found = host.load_now("x", Source::Bytes(&module), None, false).unwrap_err();
        assert!(found.contains(told), "{}: {found}", &text[..text.len().min(60)]);
    }
    for bytes in [&b""[..], b"\0asm", b"\0asm\x0d\0\x01\0", b"(module)", b"\0asm\x01\0\0\0\xff"] {
        assert!(host.load_now("x", Source::Bytes(bytes), None, false).is_err());
    }
    for name in ["a", "b"] {
        load(&mut host, name, GOOD);
    }
    let told = host.load_now("c", Source::Bytes(&module(GOOD)), None, false).unwrap_err();
    assert!(told.contains("functions-max"), "{told}");
    load(&mut host, "b", GOOD);
}

fn setting(name: &str, otherwise: u64) -> u64 {
    std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(otherwise)
}

/// Mutated modules are refused, or run within their limits.
#[test]
fn mutated_modules_do_no_harm() {
    let seeds = [
        GOOD.to_owned(),
        "(data (i32.const 8) \"hello\") (global $g (mut i32) (i32.const 1)) (table 2 funcref)
         (elem (i32.const 0) $f $f)
         (func $f (param i32) (result i32) (i32.store8 offset=3 (local.get 0) (i32.const 65))
            (global.set $g (i32.add (global.get $g) (i32.const 1))) (i32.load (local.get 0)))
         (func (export \"call\") (result i32) (local $i i32)
            (drop (call $value_read (i32.const 0) (i32.const 100) (i32.const 50)))
            (loop (local.set $i (i32.add (local.get $i) (i32.const 1)))
                (drop (call_indirect (param i32) (result i32) (local.get $i) (i32.const 1)))
                (br_if 0 (i32.lt_u (local.get $i) (i32.const 10))))
            (call $value_write (i32.const 2) (i32.const 100) (i32.const 9))
            (call $reply (i32.const 0) (global.get $g)) (i32.const 0))"
            .to_owned(),
    ];
    let seeds: Vec<Vec<u8>> = seeds.iter().map(|text| module(text)).collect();
    let first = setting("HEADWATER_FUZZ_FIRST", 1);
    let mut host =
        Host::new(&FunctionLimits { milliseconds_max: 1, ..limits() }, None, Secret::fixed(7))
            .unwrap();
    let (mut refused, mut failed, mut well) = (0, 0, 0);
    for round in first..first + setting("HEADWATER_FUZZ_ROUNDS", 1500) {
        let mut draw = round.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let mut next = || {
            draw ^= draw << 13;
            draw ^= draw >> 7;
            draw ^= draw << 17;
            draw as usize
        };
        let mut bytes = seeds[next() % seeds.len()].clone();
        for _ in 0..=next() % 3 {
            let at = 8 + next() % (bytes.len() - 8);
            match next() % 4 {
                0 => bytes[at] = next() as u8,
                1 => bytes[at] ^= 1 << (next() % 8),
                2 => bytes.truncate(at.max(9)),
                _ => bytes.insert(at, next() as u8),
            }
        }
        if host.load_now("x", Source::Bytes(&bytes), None, true).is_err() {
            refused += 1;
            continue;
        }
        for name in host.list().into_iter().flat_map(|report| report.exports) {
            let mut plain = Plain { value: Some(b"some value".to_vec()), ..Plain::default() };
            match host.call(name.as_bytes(), &mut plain) {
                Ok(()) => well += 1,
                Err(_) => failed += 1,
            }
        }
        host.remove("x");
    }
    assert!(refused > 0 && failed > 0 && well > 0, "{refused} {failed} {well}");
}

#[test]
fn outputs_of_one_operation_share_the_time_of_slow_calls() {
    let mut host =
        Host::new(&FunctionLimits { milliseconds_max: 5, ..limits() }, None, Secret::fixed(7))
            .unwrap();
    let spin = module("(func (export \"call\") (result i32) (loop (br 0)) (i32.const 0))");
    let quick = module("(func (export \"call\") (result i32) (i32.const 0))");
    host.load_now("spin", Source::Bytes(&spin), None, false).unwrap();
    host.load_now("quick", Source::Bytes(&quick), None, false).unwrap();
    let called = |host: &mut Host, name: &str| {
        let mut plain = Plain::default();
        host.call_shared(name.as_bytes(), &mut plain)
    };
    let calls = |host: &Host| host.list().iter().map(|report| report.calls).sum::<u64>();
    host.begin_shared();
    (0..20_000).for_each(|_| assert_eq!(called(&mut host, "quick"), Ok(())));
    for _ in 0..5000 {
        assert_eq!(called(&mut host, "spin"), Err(CallError::TimeLimit(5)));
    }
    // Two where nothing else runs; one where a quick call was put aside by the system, so that the first of these is looked at;
    // more where the system gives the thread little of their time.
    let spun = calls(&host) - 20_000;
    assert!((1..2500).contains(&spun), "{spun} of 5 000 calls were made");
    // What is over is over for this operation alone.
    assert_eq!(called(&mut host, "quick"), Err(CallError::TimeLimit(5)));
    host.begin_shared();
    assert_eq!(called(&mut host, "quick"), Ok(()));
    // Quick calls between the slow ones change nothing.
    let before = calls(&host);
    for _ in 0..1000 {
        assert_eq!(called(&mut host, "spin"), Err(CallError::TimeLimit(5)));
        let _whether_time_is_left = called(&mut host, "quick");
    }
    let made = calls(&host) - before;
    assert!((1..1000).contains(&made), "{made} of 2 000 calls were made");
}

#[test]
fn time_in_which_the_thread_stands_still_is_not_the_functions() {
    let limits = FunctionLimits { milliseconds_max: 5, ..limits() };
    let mut host = Host::new(&limits, None, Secret::fixed(7)).unwrap();
    // It looks at the clock at each turn of the loop.
    let turns = "(local $at i32)
        (loop (local.set $at (i32.add (local.get $at) (call $value_len)))
            (br_if 0 (i32.lt_u (local.get $at) (i32.const 40))))
        (i32.const 0)";
    let waits = module(&format!("(func (export \"call\") (result i32) {turns})"));
    host.load_now("waits", Source::Bytes(&waits), None, false).unwrap();
    let mut plain = Plain {
        value: Some(vec![b'v'; 10]),
        stands_still: Duration::from_millis(30),
        ..Plain::default()
    };
    assert_eq!(host.call(b"waits", &mut plain), Ok(()));
    host.begin_shared();
    assert_eq!(host.call_shared(b"waits", &mut plain), Ok(()));
    assert_eq!(host.call_shared(b"waits", &mut plain), Ok(()));
}
