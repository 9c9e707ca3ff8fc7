//! Every block of every page is run by a test, or is one of a few exceptions, each with its reason.

use crate::commands::Place;
use crate::conversations::is_conversation;
use crate::pages::{Block, blocks, read};
use std::collections::{BTreeMap, BTreeSet};

/// Blocks that nothing runs: the page, how the block begins, and why.
const EXCEPTIONS: &[(&str, &str, &str)] = &[
    ("ARCHITECTURE.md", "program     cli", "a drawing of the layers; `xtask` holds its table"),
    (
        "clients/python/README.md",
        "pip install redis",
        "`clients/run` runs these tests with what is installed",
    ),
    ("clients/typescript/README.md", "npm install && HEADWATER=", "`clients/run` does the same"),
    (
        "docs/bench.md",
        "{\"workload\": \"twip\"",
        "the shape of a file; `black_box/bench.rs` reads such files",
    ),
    (
        "docs/cluster.md",
        "livenessProbe:",
        "a part of a manifest; `black_box/cluster_standby.rs` runs its commands",
    ),
    ("docs/commands.md", "TABLE.SET name [BOUNDARY n]", "a syntax"),
    ("docs/concepts.md", "p|bob|0900      table p", "a picture of two keys"),
    ("docs/eviction.md", "worth = ", "formulas"),
    ("docs/joins.md", "join     = pattern", "a grammar"),
    ("docs/joins.md", "conditions = ", "a grammar"),
    (
        "docs/joins.md",
        "t|<user>|<time>|<poster> = check",
        "a picture of a join, with its parts named",
    ),
    ("docs/memcached.md", "register <function>", "a syntax"),
];

/// Blocks in a language, or of a page, that another file of tests runs: the file, and what in it says that it does.
fn elsewhere(block: &Block) -> Option<(&'static str, String)> {
    let page = block.page.as_str();
    let name = page.rsplit('/').next().unwrap_or_default();
    let quoted = |text: &str| format!("\"{text}\"");
    let language = block.language.as_deref();
    let (file, names) = match (page, language) {
        (_, Some("python")) => ("clients/python/tests/test_documents.py", quoted(page)),
        ("docs/functions.md", Some("c" | "rust" | "ts" | "wat" | "toml")) => (
            "crates/cli/tests/black_box/function_projects.rs",
            // A language by itself, or as one of several with their files.
            quoted(language?),
        ),
        (_, Some("ts")) => ("clients/typescript/test/documents.test.ts", quoted(page)),
        ("docs/http.md", Some("sh" | "js" | "json")) => {
            ("tests/page/test_documents.py", quoted(language?))
        }
        (_, Some("mermaid")) => ("tests/page/test_documents.py", "```mermaid".to_owned()),
        ("docs/sources.md" | "docs/postgres.md", Some("text")) => {
            ("tests/postgres/test_documents.py", quoted(name))
        }
        ("docs/postgres.md", None)
            if ["CREATE ROLE", "ALTER TABLE"].iter().any(|sql| block.text.starts_with(sql)) =>
        {
            ("tests/postgres/test_documents.py", quoted(name))
        }
        _ => return None,
    };
    Some((file, names))
}

/// Whether a block is run by another test of this program.
fn is_run_here(block: &Block, conversing: &BTreeSet<String>) -> bool {
    match block.language.as_deref() {
        Some("") => conversing.contains(&block.page),
        Some("toml") => true,
        _ => crate::files::runs(block),
    }
}

/// Whether a block consists of lines for a shell, all of which are run now.
fn is_run_now(block: &Block, places: &mut BTreeMap<String, Place>) -> bool {
    if !block.is_indented() && !block.is_in("sh") {
        return false;
    }
    let place = places.entry(block.page.clone()).or_insert_with(Place::new);
    if block.text.starts_with("for ") {
        return place.is_loop(block);
    }
    block.commands().iter().all(|line| place.run(block, line))
}

#[test]
fn every_block_is_run_or_excepted() {
    let conversing: BTreeSet<String> = blocks()
        .into_iter()
        .filter(|block| is_conversation(&block.text))
        .map(|block| block.page)
        .collect();
    let mut places = BTreeMap::new();
    let (mut left, mut excepted) = (Vec::new(), BTreeSet::new());
    for block in blocks() {
        let exception = EXCEPTIONS
            .iter()
            .position(|(page, begins, _)| *page == block.page && block.text.starts_with(begins));
        if let Some(at) = exception {
            assert!(excepted.insert(at), "{}: two blocks are one exception", block.place());
        } else if let Some((file, names)) = elsewhere(&block) {
            assert!(read(file).contains(&names), "{}: {file} does not name {names}", block.place());
        } else if !is_run_here(&block, &conversing) && !is_run_now(&block, &mut places) {
            left.push(format!("{}\n{}", block.place(), block.text));
        }
    }
    assert!(left.is_empty(), "nothing runs these blocks:\n\n{}", left.join("\n"));
    let unused: Vec<_> =
        EXCEPTIONS.iter().enumerate().filter(|(at, _)| !excepted.contains(at)).collect();
    assert!(unused.is_empty(), "no such blocks: {unused:?}");
}
