//! What an installation needs beside the server: a look at its configuration, completions, the manual.

use crate::support::{TempFile, program};
use std::path::Path;

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
        ("[clients]\nclients-max = \"many\"\n", &["line 2", "clients-max", "expected usize"]),
        ("[listen]\nshards = 100000\n", &["shards"]),
        (
            "[[join]]\nname = \"a\"\nspec = \"a|<b = copy c|<b>\"\n",
            &["join 'a'", "`<` without `>`"],
        ),
        ("[listen]\nrequirepass-file = \"/nowhere/at/all\"\n", &["requirepass-file"]),
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
