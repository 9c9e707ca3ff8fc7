//! What an installation needs beside the server: a look at its configuration, completions, the manual.

use crate::support::{TempFile, program};
use std::path::Path;
use std::process::Stdio;

/// What the program writes, and whether it has ended well.
fn run(arguments: &[&str]) -> (bool, String, String) {
    let output = program().args(arguments).output().unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    (output.status.success(), text(output.stdout), text(output.stderr))
}

#[test]
fn a_configuration_is_checked_without_a_server() {
    let example = concat!(env!("CARGO_MANIFEST_DIR"), "/../../headwater.example.toml");
    let (is_right, told, _) = run(&["config", "check", example]);
    assert!(is_right && told.ends_with("it can be used\n"), "{told}");
    for (text, why) in [
        (
            "[clients]\nclient-max = 5\n",
            &["line 2", "`client-max`", "did you mean `clients-max`?"][..],
        ),
        ("[memory]\nport = 5\n", &["line 2", "`port` belongs into [listen]"]),
        (
            "[clients]\nclients-max = \"many\"\n",
            &["line 2", "clients-max", "expected a whole number from 0 on"],
        ),
        ("[listen]\nshards = 100000\n", &["shards"]),
        (
            "[[join]]\nname = \"a\"\nspec = \"a|<b = copy c|<b>\"\n",
            &["join 'a'", "`<` without `>`"],
        ),
        ("[listen]\nrequirepass-file = \"/nowhere/at/all\"\n", &["requirepass-file"]),
        ("[listen]\naclfile = \"/nowhere/at/all\"\n", &["aclfile"]),
        ("[memory]\nmax = \"1mb\"\n", &["maxmemory is 1048576"]),
        ("[doors]\nrename-command = [\"NOSUCH x\"]\n", &["rename-command 'NOSUCH x'"]),
        ("[[user]]\nname = \"ann\"\nrules = \"on +@nosuch\"\n", &["user 'ann'"]),
        ("[[flow]]\nname = \"f\"\non = \"a|<x>\"\n", &["flow 'f'", "needs one of"]),
        ("[[flow]]\nname = \"f\"\non = \"a|<x\"\npublish = \"c\"\n", &["flow 'f'"]),
        ("[[source]]\nname = \"s\"\nkind = \"mysql\"\nurl = \"x\"\n", &["source 's'", "postgres"]),
        ("[[source]]\nname = \"s\"\nkind = \"postgres\"\nurl = \"nonsense\"\n", &["source 's'"]),
        (
            "[[table]]\nname = \"t\"\nsource = \"nosuch\"\nkey = [\"id\"]\n",
            &["table 't'", "'nosuch'"],
        ),
        ("[[table]]\nname = \"t\"\nkeep = true\n", &["table 't'", "--data"]),
        (
            "[functions]\nfunctions-dir = \"/\"\n[[function]]\nname = \"m\"\nfile = \"nowhere.wasm\"\n",
            &["function 'm'"],
        ),
        (
            "[[join]]\nname = \"j\"\nspec = \"a|<x> = map:m b|<x>\"\n",
            &["join 'j'", "'m' is not loaded"],
        ),
    ] {
        let file = TempFile::new(text);
        let (is_right, told, errors) = run(&["config", "check", file.path.to_str().unwrap()]);
        assert!(!is_right && told.is_empty(), "{text}: {told}");
        for part in why {
            assert!(errors.contains(part), "{part} is not in {errors}");
        }
    }
    let (is_right, _, errors) = run(&["config", "check", "/nowhere/at/all"]);
    assert!(!is_right && errors.contains("/nowhere/at/all"), "{errors}");
}

#[test]
fn a_configuration_may_use_what_it_declares_and_what_is_kept() {
    let folder = tempfile::tempdir().unwrap();
    let module = |name: &str, text: &str| {
        std::fs::write(folder.path().join(name), wat::parse_str(text).unwrap()).unwrap();
    };
    module(
        "m.wasm",
        "(module (memory (export \"memory\") 1) (func (export \"put\") (result i32) (i32.const 0)))",
    );
    let functions = format!(
        "[functions]\nfunctions-dir = '{}'\n[[function]]\nname = \"m\"\nfile = \"m.wasm\"\n",
        folder.path().display()
    );
    let join = |function: &str| {
        format!("[[join]]\nname = \"j\"\nspec = \"a|<x> = map:{function} b|<x>\"\n")
    };
    let checks = |text: &str| {
        let file = TempFile::new(text);
        run(&["config", "check", file.path.to_str().unwrap()])
    };
    let (is_right, _, errors) = checks(&format!("{functions}{}", join("m.put")));
    assert!(is_right, "{errors}");
    let (is_right, _, errors) = checks(&format!("{functions}{}", join("m.nosuch")));
    assert!(!is_right && errors.contains("'m.nosuch' is not loaded"), "{errors}");
    // What clients have loaded and added is there again with the data, which is not looked into.
    let kept = "[data]\ndata-dir = \"/nowhere/at/all\"\n";
    let table = "[[table]]\nname = \"t\"\nsource = \"theirs\"\nkey = [\"id\"]\n[[table]]\nname = \"u\"\nkeep = true\n";
    let (is_right, _, errors) = checks(&format!("{kept}{functions}{}{table}", join("theirs.put")));
    assert!(is_right, "{errors}");
    let (is_right, _, errors) = checks(&format!("{kept}{functions}{}", join("m.nosuch")));
    assert!(!is_right && errors.contains("'m.nosuch'"), "{errors}");
}

#[test]
fn who_reads_no_further_is_no_failure() {
    let example = concat!(env!("CARGO_MANIFEST_DIR"), "/../../headwater.example.toml");
    for arguments in [&["completions", "bash"][..], &["man"], &["config", "check", example]] {
        let mut command = program();
        command.args(arguments).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        drop(child.stdout.take());
        let done = child.wait_with_output().unwrap();
        assert!(done.status.success() && done.stderr.is_empty(), "{arguments:?}: {done:?}");
    }
}

#[test]
fn help_tells_the_default_number_of_shards() {
    let (_, told, _) = run(&["serve", "--help"]);
    let words: Vec<&str> = told.split_whitespace().collect();
    assert!(
        words.join(" ").contains("auto: one, or as many as the data directory's keys"),
        "{told}"
    );
}

#[test]
fn shells_and_man_know_every_subcommand() {
    for shell in ["bash", "zsh", "fish"] {
        let (is_right, script, _) = run(&["completions", shell]);
        assert!(is_right);
        for word in ["serve", "demo", "cluster", "drain", "completions", "memcached-port"] {
            assert!(script.contains(word), "{shell}: {word}");
        }
    }
    assert!(!run(&["completions", "nosuch"]).0);
    let (is_right, page, _) = run(&["man"]);
    assert!(is_right && page.contains(".TH") && page.contains("serve"), "{page}");
    let folder = tempfile::tempdir().unwrap();
    let pages = folder.path().join("man1");
    assert!(run(&["man", "--to", pages.to_str().unwrap()]).0);
    let read = |name: &str| std::fs::read_to_string(Path::new(&pages).join(name)).unwrap();
    assert!(read("headwater.1").contains("headwater"));
    let drain = read("headwater-cluster-drain.1");
    assert!(drain.contains("undo") && drain.contains("headwater\\-cluster\\-drain"), "{drain}");
    let serve = read("headwater-serve.1");
    assert!(serve.contains("requirepass") && serve.contains("headwater\\-serve"), "{serve}");
}
