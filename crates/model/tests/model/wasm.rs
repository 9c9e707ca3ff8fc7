//! Joins through WebAssembly modules: they are what the plain doubles are.

use headwater_base::functions::{FunctionLimits, Source};
use headwater_base::hash::Secret;
use headwater_functions::Host;
use headwater_model::functions::Function;
use headwater_model::join::Operator;
use headwater_model::subject::{Plain, Subject};
use headwater_model::{drive, generate, history::Op};

/// As [`Function::Upper`]: the value in capitals, behind the key's last byte.
const UPPER: &str = r#"(module
    (import "headwater" "value_len" (func $value_len (result i32)))
    (import "headwater" "value_read" (func $value_read (param i32 i32 i32) (result i32)))
    (import "headwater" "key_len" (func $key_len (result i32)))
    (import "headwater" "key_read" (func $key_read (param i32 i32 i32) (result i32)))
    (import "headwater" "reply" (func $reply (param i32 i32)))
    (memory 1)
    (func (export "call") (result i32) (local $at i32) (local $end i32) (local $c i32)
        (if (call $key_len) (then
            (call $reply (i32.const 0)
                (call $key_read (i32.sub (call $key_len) (i32.const 1)) (i32.const 0) (i32.const 1)))))
        (local.set $end (call $value_read (i32.const 0) (i32.const 0) (call $value_len)))
        (block (loop
            (br_if 1 (i32.ge_u (local.get $at) (local.get $end)))
            (local.set $c (i32.load8_u (local.get $at)))
            (if (i32.lt_u (i32.sub (local.get $c) (i32.const 97)) (i32.const 26))
                (then (i32.store8 (local.get $at) (i32.sub (local.get $c) (i32.const 32)))))
            (local.set $at (i32.add (local.get $at) (i32.const 1)))
            (br 0)))
        (call $reply (i32.const 0) (local.get $end))
        (i32.const 0)))"#;

/// As [`Function::Long`]: a value of more than one byte.
const LONG: &str = r#"(module
    (import "headwater" "value_len" (func $value_len (result i32)))
    (import "headwater" "reply_value" (func $reply_value (param i32 i32) (result i32)))
    (func (export "call") (result i32)
        (if (i32.gt_u (call $value_len) (i32.const 1))
            (then (drop (call $reply_value (i32.const 0) (i32.const -1)))))
        (i32.const 0)))"#;

fn host() -> Host {
    let limits = FunctionLimits::default();
    let mut host = Host::new(&limits, None, Secret::fixed(7)).expect("WebAssembly runs here");
    for (function, text) in [(Function::Upper, UPPER), (Function::Long, LONG)] {
        let name = function.word().strip_prefix("map:").expect("the operator's word");
        let module = wat::parse_str(text).expect("the text of a module");
        host.load_now(name, Source::Bytes(&module), None, false).expect("it can be loaded");
    }
    host
}

/// Whether a history has a join through a function.
fn maps(ops: &[Op]) -> bool {
    let is_map = |(operator, _): &(Operator, _)| matches!(operator, Operator::Map(_));
    ops.iter().any(|op| matches!(op, Op::JoinAdd { join, .. } if join.sources.iter().any(is_map)))
}

#[test]
fn joins_through_modules_equal_recomputation() {
    let histories = (9_000_000..).map(generate::history).filter(|ops| maps(ops));
    for ops in histories.take(300) {
        let mut engine = Plain::with(Box::new(host()));
        let run = drive::run(&mut engine, &ops);
        assert_eq!(run.err(), None, "{:?}", engine.engine().functions());
    }
}
