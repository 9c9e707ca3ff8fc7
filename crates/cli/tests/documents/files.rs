//! Blocks that are files, or parts of files: settings, what other programs read, and what the log has.

use crate::PATIENCE;
use crate::commands::{is_there, shell, skipped, told};
use crate::pages::{Block, blocks, root};
use crate::server::Server;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::process::Command;
use std::time::Instant;

/// How the blocks begin that the tests of this file hold against what reads, or writes, such text.
const BEGINNINGS: [(&str, &str); 9] = [
    ("README.md", JOIN),
    ("docs/cluster.md", NATS),
    ("docs/concepts.md", JOIN),
    ("docs/logging.md", LOG),
    ("docs/logging.md", ROTATION),
    ("docs/memcached.md", MEMCACHED),
    ("docs/operating.md", MISTAKE),
    ("docs/operating.md", SCRAPED),
    ("docs/postgres.md", "wal_level = "),
];
const JOIN: &str = "t|<user>|<time>|<poster> = check";
const NATS: &str = "server_name: ";
const LOG: &str = "20";
const ROTATION: &str = "/var/log/headwater.log {";
const MEMCACHED: &str = "printf 'set k";
const MISTAKE: &str = "headwater: configuration file";
const SCRAPED: &str = "scrape_configs:";

/// Whether a test of this file runs a block.
pub(crate) fn runs(block: &Block) -> bool {
    let is_settings = block.is_indented() && block.text.starts_with("[[");
    let is_one =
        |(page, begins): &(&str, &str)| *page == block.page && block.text.starts_with(begins);
    is_settings || BEGINNINGS.iter().any(is_one)
}

/// The block of a page that begins so.
fn block(page: &str, begins: &str) -> Block {
    assert!(BEGINNINGS.contains(&(page, begins)), "{begins} is not among the beginnings");
    let found = blocks().into_iter().find(|it| it.page == page && it.text.starts_with(begins));
    found.unwrap_or_else(|| panic!("{page} has no block that begins with {begins}"))
}

fn headwater(words: &[&str]) -> std::process::Output {
    Command::new(env!("CARGO_BIN_EXE_headwater")).args(words).output().expect("the program runs")
}

#[test]
fn settings_that_pages_show_are_taken() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("headwater.toml");
    let mut seen = 0;
    for block in blocks() {
        let is_settings =
            block.is_in("toml") || block.is_indented() && block.text.starts_with("[[");
        // Cases of a function: `function_projects` runs them.
        if !is_settings || block.text.starts_with("[[case]]") {
            continue;
        }
        std::fs::write(&file, &block.text).expect("a file");
        let checked = headwater(&["config", "check", file.to_str().expect("text")]);
        let told = told(&checked);
        // What is told of files that are somebody else's is no mistake in the names or values of settings.
        let only_files = told.contains("/etc/headwater/") && !told.contains("unknown field");
        assert!(checked.status.success() || only_files, "{}: {told}", block.place());
        seen += 1;
    }
    assert!(seen >= 3, "{seen} blocks");
}

#[test]
fn a_wrong_setting_is_told_as_the_page_shows() {
    let shown = block("docs/operating.md", MISTAKE);
    let folder = tempfile::tempdir().expect("a folder");
    std::fs::write(
        folder.path().join("headwater.toml"),
        format!("[clients]\n{}client-max = 3\n", "\n".repeat(10)),
    )
    .expect("a file");
    let ran = shell("headwater config check headwater.toml", folder.path());
    let told = told(&ran);
    let mut rest = told.as_str();
    for part in shown.text.split('…') {
        let at = rest.find(part.trim());
        rest = &rest[at.unwrap_or_else(|| panic!("{part:?} is not in {told}"))..];
    }
}

#[test]
fn joins_in_sentences_are_taken() {
    let server = Server::start(&["--shards", "1"]);
    for page in ["README.md", "docs/concepts.md"] {
        let join = block(page, JOIN);
        let taken = headwater(&[
            "cli",
            "-p",
            server.port(),
            "JOIN.ADD",
            "shown",
            join.text.trim(),
            "REPLACE",
        ]);
        assert!(taken.status.success(), "{}: {}", join.place(), told(&taken));
    }
}

#[test]
fn the_line_for_memcached_runs() {
    let shown = block("docs/memcached.md", MEMCACHED);
    let (_, rest) = shown.text.split_once("printf '").expect("a request");
    let request = rest.split('\'').next().unwrap_or_default().replace("\\r\\n", "\r\n");
    let server = Server::start(&["--shards", "1", "--memcached-port", "0"]);
    let mut stream =
        TcpStream::connect(server.memcached.as_deref().expect("an address")).expect("a connection");
    stream.write_all(request.as_bytes()).expect("a request is sent");
    let mut told = String::new();
    stream.read_to_string(&mut told).expect("an answer");
    assert_eq!(told, "STORED\r\nVALUE k 0 5\r\nhello\r\nEND\r\n");
}

/// A line of the log without what differs each time: numbers with more than one digit, and the settings of this test.
fn without_numbers(line: &str) -> String {
    let own = ["port=0 ", "shards=1 ", " log-file="];
    let line = own.iter().fold(line.to_owned(), |line, own| match line.split_once(own) {
        // The name of a file ends with the quote around all settings.
        Some((before, after)) if own.ends_with('=') => {
            format!("{before}{}", after.find('"').map_or("", |at| &after[at..]))
        }
        Some((before, after)) => format!("{before}{after}"),
        None => line,
    });
    let words = line.split_inclusive(|it: char| !it.is_ascii_alphanumeric());
    words
        .map(|word| match word.trim_end_matches(|it: char| !it.is_ascii_alphanumeric()) {
            digits if digits.len() > 1 && digits.starts_with(|it: char| it.is_ascii_digit()) => {
                word.replacen(digits, "N", 1)
            }
            _ => word.to_owned(),
        })
        .collect()
}

#[test]
fn the_log_has_the_lines_that_the_page_shows() {
    let shown = block("docs/logging.md", LOG);
    let folder = tempfile::tempdir().expect("a folder");
    let (settings, log) = (folder.path().join("headwater.toml"), folder.path().join("log"));
    let declared = "[listen]\nrequirepass = \"secret\"\n[clients]\nclients-max = 3\n[[table]]\nname = \"s\"\n[[table]]\nname = \"p\"\n\
         [[join]]\nname = \"timeline\"\nspec = \"t|<user>|<time> = check s|<user>|<poster> copy p|<poster>|<time>\"\n";
    std::fs::write(&settings, declared).expect("a file");
    let [settings, log] = [&settings, &log].map(|path| path.to_str().expect("text"));
    let server = Server::start(&[
        "--shards",
        "1",
        "--config",
        settings,
        "--log-file",
        log,
        "--log-level",
        "info",
    ]);
    let refused = headwater(&["cli", "-p", server.port(), "AUTH", "wrong"]);
    assert!(!refused.status.success());
    let end = Instant::now() + PATIENCE;
    for line in shown.text.lines() {
        let wanted = without_numbers(line);
        loop {
            let text = std::fs::read_to_string(log).unwrap_or_default();
            if text.lines().any(|line| without_numbers(line) == wanted) {
                break;
            }
            assert!(Instant::now() < end, "{line}\nis not in\n{text}");
            std::thread::sleep(std::time::Duration::from_millis(10));
        }
    }
}

/// Runs a program, which says whether a file is one of its own; skipped, visibly, where it is not installed.
fn is_taken(block: &Block, program: &str, words: &[&str]) {
    if !is_there(program) {
        return skipped(&block.place(), &format!("{program} is not installed"));
    }
    let ran = Command::new(program).args(words).output().expect("it runs");
    assert!(ran.status.success(), "{}: {}", block.place(), told(&ran));
}

#[test]
fn other_programs_take_what_pages_have_them_read() {
    let folder = tempfile::tempdir().expect("a folder");
    let place = |name: &str| folder.path().join(name).to_str().expect("text").to_owned();
    let rotation = block("docs/logging.md", ROTATION);
    let log = place("headwater.log");
    std::fs::write(&log, "a line\n").expect("a file");
    std::fs::write(place("rotate"), rotation.text.replace("/var/log/headwater.log", &log))
        .expect("a file");
    is_taken(&rotation, "logrotate", &["--debug", "--state", &place("state"), &place("rotate")]);
    let scraped = block("docs/operating.md", SCRAPED);
    std::fs::write(place("prometheus.yml"), &scraped.text).expect("a file");
    is_taken(&scraped, "promtool", &["check", "config", &place("prometheus.yml")]);
    let alerts = root().join("deploy/alerts.yml");
    is_taken(&scraped, "promtool", &["check", "rules", alerts.to_str().expect("text")]);
    let nats = block("docs/cluster.md", NATS);
    std::fs::write(place("nats.conf"), nats.text.replace("/var/lib/nats", &place("nats")))
        .expect("a file");
    is_taken(&nats, "nats-server", &["-t", "-c", &place("nats.conf")]);
    let postgres = block("docs/postgres.md", "wal_level = ");
    let settings: Vec<&str> =
        postgres.text.lines().filter_map(|line| line.split(" = ").next()).collect();
    assert_eq!(settings, ["wal_level", "max_slot_wal_keep_size"]);
}
