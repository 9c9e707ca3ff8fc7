//! `headwater fn`: projects that it begins are built and pass, and what fails is told.

use crate::support::program;
use std::path::Path;
use std::process::Output;

fn run(folder: &Path, words: &[&str]) -> Output {
    program().arg("fn").args(words).current_dir(folder).output().unwrap()
}

fn told(output: &Output) -> String {
    let text = [&output.stdout[..], &output.stderr].concat();
    String::from_utf8(text).unwrap()
}

/// Begins, builds and tests a project. `Some` of what was missing, if its compiler is not there.
fn begin_build_and_test(language: &str) -> Option<String> {
    let folder = tempfile::tempdir().unwrap();
    let here = folder.path();
    let begun = run(here, &["new", "visits", "--language", language]);
    assert!(begun.status.success(), "{}", told(&begun));
    let again = run(here, &["new", "visits"]);
    assert!(told(&again).contains("cannot make the folder visits"), "{}", told(&again));
    let built = run(here, &["build", "visits"]);
    if !built.status.success() {
        return Some(told(&built));
    }
    let passed = run(here, &["test", "visits"]);
    assert_eq!(told(&passed), "5 passed, 0 failed\n");
    assert!(passed.status.success());
    None
}

#[expect(clippy::print_stderr, reason = "a skipped test must be seen")]
fn skipped(language: &str, why: &str) {
    eprintln!("SKIPPED: no project in {language} was built: {why}");
}

#[test]
fn a_project_in_c() {
    let found = |name: &str| std::process::Command::new(name).arg("--version").output().is_ok();
    let missing = begin_build_and_test("c");
    if let Some(why) = missing {
        assert!(!found("clang") || !found("wasm-ld"), "{why}");
        assert!(why.contains("apt install clang lld"), "{why}");
        skipped("C", &why);
    }
}

#[test]
fn a_project_in_rust() {
    if let Some(why) = begin_build_and_test("rust") {
        // Its WebAssembly is not part of every installation.
        assert!(why.contains("rustup target add wasm32-unknown-unknown"), "{why}");
        skipped("Rust", &why);
    }
}

#[test]
fn a_project_in_assemblyscript_says_what_is_missing() {
    if let Some(why) = begin_build_and_test("assemblyscript") {
        assert!(why.contains("npm install --save-dev assemblyscript"), "{why}");
        skipped("AssemblyScript", &why);
    }
}

/// The block of docs/functions.md in a language.
fn shown(language: &str) -> &'static str {
    let page = include_str!("../../../../docs/functions.md");
    let (_, rest) = page.split_once(&format!("```{language}\n")).expect("a block");
    rest.split_once("```").expect("its end").0
}

#[test]
fn what_the_page_about_functions_shows_is_built_and_runs() {
    let folder = tempfile::tempdir().unwrap();
    let here = folder.path();
    let cases = "[[case]]\nfunction = 'last'\nvalue = 'abc'\nreply = 'c'\n[[case]]\nfunction = 'last'\nreply = false\n";
    std::fs::write(here.join("cases.toml"), cases).unwrap();
    for (language, file) in [("c", "last.c"), ("rust", "last.rs"), ("ts", "last.ts")] {
        std::fs::write(here.join(file), shown(language)).unwrap();
        let built = run(here, &["build", file]);
        if built.status.success() {
            let passed = run(here, &["test", "last.wasm", "cases.toml"]);
            assert_eq!(told(&passed), "2 passed, 0 failed\n", "{language}");
            std::fs::remove_file(here.join("last.wasm")).unwrap();
        } else {
            // What is missing is said, and how to get it.
            let why = told(&built);
            assert!(["install", "rustup"].iter().any(|it| why.contains(it)), "{why}");
            skipped(language, &why);
        }
    }
    std::fs::write(here.join("last.wasm"), wat::parse_str(shown("wat")).unwrap()).unwrap();
    // In the text form the absent key has no last byte either, but is not asked about.
    let cases = "[[case]]\nfunction = 'last'\nvalue = 'abc'\nreply = 'c'\n";
    std::fs::write(here.join("cases.toml"), cases).unwrap();
    assert_eq!(told(&run(here, &["test", "last.wasm", "cases.toml"])), "1 passed, 0 failed\n");
    // The cases that the page shows are ones; they are of another module.
    std::fs::write(here.join("shown.toml"), shown("toml")).unwrap();
    let failed = told(&run(here, &["test", "last.wasm", "shown.toml"]));
    assert!(failed.contains("0 passed, 2 failed"), "{failed}");
    assert!(failed.contains("is not loaded") || failed.contains("no function"), "{failed}");
}

const MODULE: &str = r#"(module
    (import "headwater" "value_write" (func $value_write (param i32 i32 i32)))
    (import "headwater" "value_delete" (func $value_delete))
    (import "headwater" "reply_value" (func $reply_value (param i32 i32) (result i32)))
    (import "headwater" "now_ms" (func $now_ms (result i64)))
    (memory 1)
    (func (export "first") (result i32) (drop (call $reply_value (i32.const 0) (i32.const 1))) (i32.const 0))
    (func (export "clear") (result i32) (call $value_delete) (i32.const 0))
    (func (export "now") (result i32)
        (i64.store (i32.const 0) (call $now_ms))
        (call $value_write (i32.const 0) (i32.const 0) (i32.const 8)) (i32.const 0))
    (func (export "fail") (result i32)
        (call $value_write (i32.const 0) (i32.const 0) (i32.const 8)) (i32.const -7))
    (func (export "spin") (result i32) (loop (br 0)) (i32.const 0)))"#;

#[test]
fn cases_pass_and_fail_for_what_they_say() {
    let folder = tempfile::tempdir().unwrap();
    let here = folder.path();
    std::fs::write(here.join("m.wasm"), wat::parse_str(MODULE).unwrap()).unwrap();
    std::fs::write(here.join("bytes"), "of a file").unwrap();
    std::fs::write(
        here.join("m.cases.toml"),
        "[[case]]\nfunction = 'first'\nvalue = { file = 'bytes' }\nreply = 'o'\n\
         [[case]]\nfunction = 'clear'\nvalue = { repeat = 'x', count = 100 }\nafter = false\nreply = false\n\
         [[case]]\nfunction = 'now'\nnow = 258\nafter = { hex = '02 01 00000000 0000' }\n\
         [[case]]\nfunction = 'fail'\nvalue = 'stays'\nstatus = -7\n\
         [[case]]\nfunction = 'spin'\nerror = 'took longer than 10 ms'\n",
    )
    .unwrap();
    let passed = run(here, &["test", "m.wasm"]);
    assert_eq!(told(&passed), "5 passed, 0 failed\n");
    std::fs::write(
        here.join("other.toml"),
        "[[case]]\nname = 'wrong'\nfunction = 'first'\nvalue = 'abc'\nreply = 'b'\nafter = 'x'\nstatus = 1\n\
         [[case]]\nfunction = 'clear'\nvalue = 'v'\n\
         [[case]]\nfunction = 'first'\nvalue = 'a'\nerror = 'anything'\n\
         [[case]]\nfunction = 'spin'\n",
    )
    .unwrap();
    let failed = run(here, &["test", "m.wasm", "other.toml"]);
    assert!(!failed.status.success());
    assert_eq!(
        told(&failed),
        "case wrong:\n  status 0 instead of 1\n  reply \"a\" instead of \"b\"\n  value \"abc\" instead of \"x\"\n\
         case 2:\n  value (none) instead of \"v\", as it was\n\
         case 3:\n  it did not fail with 'anything'\n\
         case 4:\n  it failed: function 'm.spin' took longer than 10 ms (function-milliseconds-max)\n\
         0 passed, 4 failed\n"
    );
    for (file, text, why) in [
        ("none.toml", "", "there is no [[case]]"),
        ("odd.toml", "[[case]]\nvalu = 'a'", "unknown field `valu`"),
        ("hex.toml", "[[case]]\nvalue = { hex = '0' }", "half a byte"),
    ] {
        std::fs::write(here.join(file), text).unwrap();
        let refused = run(here, &["test", "m.wasm", file]);
        assert!(!refused.status.success() && told(&refused).contains(why), "{}", told(&refused));
    }
    std::fs::write(here.join("no.wasm"), "no module").unwrap();
    let refused = run(here, &["test", "no.wasm", "other.toml"]);
    assert!(told(&refused).contains("it is no WebAssembly module"), "{}", told(&refused));
}

#[test]
fn names_and_sources_that_are_none_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let here = folder.path();
    for name in ["Visits", "9lives", "a-b"] {
        let refused = run(here, &["new", name]);
        assert!(told(&refused).contains("small letters"), "{}", told(&refused));
    }
    std::fs::write(here.join("x.py"), "").unwrap();
    let refused = run(here, &["build", "x.py"]);
    assert!(told(&refused).contains("none of .c, .rs, .ts"), "{}", told(&refused));
    let refused = run(here, &["build", "nothing"]);
    assert!(told(&refused).contains("no such file or folder"), "{}", told(&refused));
}
