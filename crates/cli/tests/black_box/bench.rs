//! `headwater bench` as a user runs it: tiny, but whole.

use serde_json::{Value, json};
use std::process::{Command, Output};

fn bench(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_headwater")).arg("bench").args(arguments).output().unwrap()
}

fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// Runs a workload against one peer and gives its JSON; `None`, with a message, where the
/// peer is not installed.
#[expect(clippy::print_stderr, reason = "a test that did less than it could must say so")]
fn report(workload: &[&str], peer: &str) -> Option<Value> {
    let folder = tempfile::tempdir().unwrap();
    let (json, svg) = (folder.path().join("bench.json"), folder.path().join("bench.svg"));
    let files = ["--json", json.to_str().unwrap(), "--svg", svg.to_str().unwrap()];
    let common = ["--against", peer, "--pairs", "1", "--no-pin", "--connections", "4"];
    let output = bench(&[workload, &files, &common].concat());
    let errors = stderr(&output);
    if errors.contains("is not installed") {
        eprintln!("skipped: {}", errors.trim());
        return None;
    }
    assert!(output.status.success(), "{workload:?} against {peer}: {errors}");
    let table = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(table.lines().any(|line| line.contains("headwater")), "{table}");
    assert!(std::fs::read_to_string(svg).unwrap().starts_with("<svg "));
    Some(serde_json::from_str(&std::fs::read_to_string(json).unwrap()).unwrap())
}

/// Checks one object of the agreed shape.
fn check(report: &Value, peer: &str) {
    let systems: Vec<&str> = report["runs"]
        .as_array()
        .unwrap()
        .iter()
        .map(|run| run["system"].as_str().unwrap())
        .collect();
    assert_eq!(systems, ["headwater", peer], "{report}");
    let operations = report["runs"][0]["operations"].as_u64().unwrap();
    assert!(operations > 0, "{report}");
    for run in report["runs"].as_array().unwrap() {
        assert_eq!(run["verified"], Value::Bool(true), "{run}");
        assert_eq!(run["operations"].as_u64(), Some(operations), "all do the same: {run}");
        for figure in ["generator_cpu_s", "wall_s", "rss_bytes_max"] {
            assert!(run[figure].as_f64().unwrap() > 0.0, "{figure}: {run}");
        }
    }
}

#[test]
fn timelines_agree_in_every_system() {
    let twip = ["twip", "--users", "300", "--scale", "0.2"];
    let peers = [
        "client",
        "push-all",
        "pull",
        "celebrities",
        "boundary",
        "valkey",
        "redis",
        "memcached",
        "postgres",
    ];
    for peer in peers {
        if let Some(report) = report(&twip, peer) {
            assert_eq!(report["workload"], "twip");
            check(&report, peer);
            let (load, whole) = (&report["phases"][0], &report["phases"][1]);
            assert_eq!((&load["name"], &whole["name"]), (&json!("load"), &json!("whole")));
            check(load, peer);
            check(whole, peer);
            let took = |phase: &Value| phase["runs"][1]["wall_s"].as_f64().unwrap();
            assert!(took(whole) > took(load) && took(whole) > took(&report), "{report}");
        }
    }
    let prototype = ["twip", "--pequod", "--users", "100", "--scale", "0.05", "--warm"];
    for peer in ["client", "valkey"] {
        let Some(report) = report(&prototype, peer) else { continue };
        check(&report, peer);
        assert_eq!(report["phases"][1]["name"], "warm");
        // Posts, subscriptions, logins and checks are as 1 to 10 to 5 to 100: of 70 users, 5 checks each.
        assert_eq!(report["runs"][0]["operations"], 406);
    }
}

#[test]
fn pages_agree_in_every_system() {
    let newp = ["newp", "--scale", "0.002", "--vote", "30"];
    for peer in ["separate", "valkey", "redis", "postgres"] {
        if let Some(report) = report(&newp, peer) {
            assert_eq!(report["workload"], "newp");
            check(&report, peer);
        }
    }
}

#[test]
fn boards_agree_in_every_system() {
    let top = ["top", "--scale", "0.004", "--changes", "40", "--shown", "20"];
    for peer in ["valkey", "redis", "postgres"] {
        if let Some(report) = report(&top, peer) {
            assert_eq!(report["workload"], "top");
            check(&report, peer);
        }
    }
    if let Some(report) = report(&[&top[..], &["--keep"]].concat(), "valkey") {
        check(&report, "valkey");
    }
}

#[test]
fn values_and_ranges_agree_in_every_system() {
    let operations = "get,set,mixed,mget,range,range-lex";
    let raw = ["raw", "--op", operations, "--value", "64", "--pipeline", "16", "--range", "10"];
    let raw = [&raw[..], &["--keys", "20000", "--scale", "0.005"]].concat();
    for peer in ["valkey", "redis"] {
        let Some(report) = report(&raw, peer) else { continue };
        let cases = report["cases"].as_array().unwrap();
        assert_eq!(cases.len(), 6);
        cases.iter().for_each(|case| check(case, peer));
    }
}

#[test]
#[expect(clippy::print_stderr, reason = "a test that did less than it could must say so")]
fn a_trace_hits_at_equal_memory() {
    let folder = tempfile::tempdir().unwrap();
    let json = folder.path().join("cache.json");
    let options = ["--requests", "20000", "--memory", "40mb", "--policy", "allkeys-lfu"];
    let common = ["--pairs", "2", "--no-pin", "--json", json.to_str().unwrap()];
    for peer in ["valkey", "redis"] {
        let output = bench(&[&["cache", "--against", peer][..], &options, &common].concat());
        if stderr(&output).contains("is not installed") {
            eprintln!("skipped: {}", stderr(&output).trim());
            continue;
        }
        assert!(output.status.success(), "{}", stderr(&output));
        let report: Value = serde_json::from_str(&std::fs::read_to_string(&json).unwrap()).unwrap();
        let runs = report["cases"][0]["runs"].as_array().unwrap();
        let runs: Vec<&Value> = runs.iter().filter(|run| run["system"] == peer).collect();
        assert_eq!(runs.len(), 2, "{report}");
        for run in runs {
            // All of it fits, so what misses is what was never asked for before.
            assert_eq!(run["level"], "fits", "{run}");
            assert_eq!(run["verified"], Value::Bool(true), "{run}");
            let missed = run["reads"].as_u64().unwrap() - run["hits"].as_u64().unwrap();
            assert_eq!(Some(missed), report["params"]["objects"].as_u64(), "{run}");
        }
    }
}

#[test]
fn a_wrong_option_is_told_with_what_is_allowed() {
    let refused = |arguments: &[&str]| {
        let output = bench(arguments);
        assert!(!output.status.success());
        stderr(&output)
    };
    let error = refused(&["twip", "--against", "oracle"]);
    assert!(error.contains("not a peer for twip (allowed: valkey, redis, memcached"), "{error}");
    let error = refused(&["twip", "--active", "101"]);
    assert!(error.contains("--active 101: out of bounds"), "{error}");
    let error = refused(&["twip", "--graph", "/nowhere"]);
    assert!(error.contains("graph file /nowhere"), "{error}");
    let error = refused(&["cache", "--trace", "nowhere", "--against", "redis", "--peers-only"]);
    assert!(error.contains("known by name: cluster52, ") || error.contains("installed"), "{error}");
    let error = refused(&["cache", "--memory", "lots"]);
    assert!(error.contains("--memory 'lots': not a size"), "{error}");
    let error = refused(&["twip", "--json", "/nowhere/x.json"]);
    assert!(error.contains("--json: there is no folder /nowhere"), "{error}");
}

#[test]
fn the_pool_and_its_peers_hold_what_they_were_given() {
    let folder = tempfile::tempdir().unwrap();
    let json = folder.path().join("pool.json");
    let peers = ["--against", "hashmap,hashmap-reuse,small-pages,memcpy"];
    let files = ["--scale", "0.0005", "--pairs", "1", "--json", json.to_str().unwrap()];
    let output = bench(&[&["pool"], &peers[..], &files[..]].concat());
    assert!(output.status.success(), "{}", stderr(&output));
    let report: Value = serde_json::from_str(&std::fs::read_to_string(json).unwrap()).unwrap();
    let cases = report["cases"].as_array().unwrap();
    assert_eq!(cases.len(), 10);
    for case in cases {
        let runs = case["runs"].as_array().unwrap();
        assert_eq!(runs.len(), 5, "{case}");
        for run in runs {
            assert_eq!(run["verified"], Value::Bool(true), "{run}");
            assert_eq!(run["operations"], runs[0]["operations"], "all do the same: {run}");
        }
    }
    let output = bench(&["pool", "--against", "rocksdb", "--rocksdb", "missing"]);
    assert!(stderr(&output).contains("bench-rocksdb/build"), "{}", stderr(&output));
}

#[test]
fn posts_reach_all_followers_in_every_way() {
    let folder = tempfile::tempdir().unwrap();
    let (json, svg) = (folder.path().join("bench.json"), folder.path().join("bench.svg"));
    let mut words = vec!["flows", "--users", "200", "--follows", "5", "--scale", "0.01"];
    words.extend(["--pairs", "1", "--kills", "1", "--no-pin", "--connections", "4"]);
    words.extend(["--json", json.to_str().unwrap(), "--svg", svg.to_str().unwrap()]);
    let redis = bench(&[&words[..], &["--against", "redis"]].concat());
    let output = if stderr(&redis).contains("is not installed") { bench(&words) } else { redis };
    assert!(output.status.success(), "{}", stderr(&output));
    let report: Value = serde_json::from_str(&std::fs::read_to_string(json).unwrap()).unwrap();
    let runs = report["runs"].as_array().unwrap();
    assert!(runs.len() >= 2, "{report}");
    for run in runs {
        // Workers side by side may do two posts to one place in the other order.
        let strict = run["way"] == "flow";
        assert!(!strict || run["wrong"] == 0 && run["kills_missing"] == 0, "{run}");
        assert!(!strict || run["kills_acknowledged"].as_u64() > Some(0), "{run}");
        for phase in run["phases"].as_array().unwrap() {
            assert!(phase["posts"].as_u64() > Some(0) && phase["refused"] == 0, "{phase}");
        }
    }
    assert!(std::fs::read_to_string(svg).unwrap().starts_with("<svg "));
}

/// Instructions are the same in every run, times are not: so this bar is a test.
#[test]
#[expect(clippy::print_stderr, reason = "a test that did less than it could must say so")]
fn a_user_with_all_rights_costs_a_hundredth_of_a_get_at_most() {
    let ratio = |table: &str, asker: &str| -> f64 {
        let row =
            table.lines().find(|line| line.contains(asker)).unwrap_or_else(|| panic!("{table}"));
        row.split_whitespace().last().unwrap().trim_matches('|').parse().unwrap()
    };
    let mut table = String::new();
    // On a busy machine a run takes longer, and what the server does from time to time counts as well.
    for _ in 0..3 {
        let output =
            bench(&["rights", "--gets", "5000", "--pipelines", "16", "--pairs", "1", "--no-pin"]);
        let errors = stderr(&output);
        if errors.contains("is not installed") {
            eprintln!("skipped: {}", errors.trim());
            return;
        }
        assert!(output.status.success(), "{errors}");
        table = String::from_utf8_lossy(&output.stdout).into_owned();
        if ratio(&table, "a user with all rights") <= 1.01 {
            break;
        }
    }
    assert!(ratio(&table, "a user with all rights") <= 1.01, "{table}");
    // The check of those who may not do everything is measured at all.
    assert!(ratio(&table, "a user with one prefix") > 1.0, "{table}");
}

/// Whoever writes timelines, what was acknowledged while the owner was killed is in each of them.
#[test]
#[expect(clippy::print_stderr, reason = "a test that did less than it could must say so")]
fn what_is_posted_while_the_owner_is_killed_reaches_all_timelines() {
    let folder = tempfile::tempdir().unwrap();
    let svg = folder.path().join("faults.svg");
    let small =
        ["faults", "--scale", "0.03", "--rate", "60", "--users", "50", "--connections", "4"];
    let run = || bench(&[&small[..], &["--svg", svg.to_str().unwrap()]].concat());
    let mut output = run();
    // On a machine that is too busy the owner loses its lease while all is prepared, too, which the benchmark does not survive.
    for _again in 0..2 {
        if stderr(&output).contains("closed the connection") {
            output = run();
        }
    }
    let errors = stderr(&output);
    if errors.contains("is not installed") {
        eprintln!("skipped: {}", errors.trim());
        return;
    }
    assert!(output.status.success(), "{errors}");
    let table = String::from_utf8_lossy(&output.stdout);
    let totals = table.split_once("longest silence").expect("a table of totals").1;
    for way in ["synchronous", "queue", "flow"] {
        let line = totals.lines().find(|line| line.starts_with(way)).expect("a line for each way");
        let words: Vec<_> = line.split_whitespace().collect();
        assert_eq!(words[words.len() - 2..], ["0", "0"], "{table}");
    }
    assert!(std::fs::read_to_string(svg).unwrap().starts_with("<svg "));
}

/// A figure in each form that has a table; all of them are made by `.ci/run`.
#[test]
fn figures_of_papers_are_on_one_page() {
    let folder = tempfile::tempdir().unwrap();
    let page = folder.path().join("page.md");
    let papers = ["papers", "--page", page.to_str().unwrap(), "--pairs", "1", "--no-pin"];
    let small = ["--scale", "0.003", "--only", "systems,shards,blocks,top-of-the-hour"];
    let output = bench(&[&papers[..], &small].concat());
    assert!(output.status.success(), "{}", stderr(&output));
    let text = std::fs::read_to_string(&page).unwrap();
    for (name, row) in [
        ("systems", " time ÷ Pequod's, in the paper |"),
        ("shards", "| 48 | "),
        ("blocks", "| insert "),
        ("top-of-the-hour", "| burst, 44 reads to 56 changes"),
    ] {
        assert!(text.contains(&format!("](page-{name}.svg)")) && text.contains(row), "{text}");
        let picture = folder.path().join(format!("page-{name}.svg"));
        assert!(std::fs::read_to_string(picture).unwrap().starts_with("<svg "));
    }
    let refused = bench(&[&papers[..], &["--only", "figure-7"]].concat());
    assert!(!refused.status.success());
    assert!(stderr(&refused).contains("there is no such figure (allowed: systems, "));
}

#[test]
fn threads_are_measured_one_by_one() {
    let few = ["--keys", "2000", "--scale", "0.002", "--pairs", "1", "--connections", "4"];
    let words = ["threads", "--op", "get,set", "--pipeline", "16", "--threads", "2", "--no-pin"];
    let output = bench(&[&words[..], &few].concat());
    assert!(output.status.success(), "{}", stderr(&output));
    let table = String::from_utf8(output.stdout).unwrap();
    for name in ["one thread", "2 I/O threads", "2 shards"] {
        let rows: Vec<_> = table.lines().filter_map(|line| line.strip_prefix(name)).collect();
        assert_eq!(rows.len(), 2, "{table}");
        for row in rows {
            let figures: Vec<f64> =
                row.split_whitespace().take(3).map(|word| word.parse().unwrap()).collect();
            let [all, _, busiest] = figures[..] else { panic!("{row}") };
            assert!(busiest > 0.0 && busiest <= all, "{row}");
        }
    }
    for wrong in [["--op", "range"], ["--threads", "1"], ["--against", "valkey"]] {
        let output = bench(&[&["threads"][..], &wrong].concat());
        assert!(stderr(&output).contains(wrong[0]), "{}", stderr(&output));
    }
}
