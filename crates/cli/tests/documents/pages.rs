//! The pages, and the blocks in them.

use std::path::{Path, PathBuf};

/// The root of the repository.
pub(crate) fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// A file of the repository.
pub(crate) fn read(path: &str) -> String {
    std::fs::read_to_string(root().join(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// Every page for readers, by its path and with its text, but for reports of measurements.
pub(crate) fn pages() -> Vec<(String, String)> {
    let mut paths: Vec<String> =
        ["README.md", "ARCHITECTURE.md", "SECURITY.md"].map(str::to_owned).to_vec();
    let mut folders = vec!["docs".to_owned(), "docs/how-to".to_owned()];
    for around in ["clients", "examples"] {
        let inside = std::fs::read_dir(root().join(around)).expect("a folder");
        let names = inside.map(|it| it.expect("an entry").file_name().into_string().expect("text"));
        folders.extend(names.map(|name| format!("{around}/{name}")));
    }
    for folder in folders {
        let Ok(files) = std::fs::read_dir(root().join(&folder)) else { continue };
        for file in files {
            let name = file.expect("a page").file_name().into_string().expect("a name");
            if name.ends_with(".md") {
                paths.push(format!("{folder}/{name}"));
            }
        }
    }
    paths.sort();
    paths.into_iter().map(|path| (path.clone(), read(&path))).collect()
}

/// What a page shows apart from its sentences.
#[derive(Debug)]
pub(crate) struct Block {
    pub(crate) page: String,
    /// The line of the page at which it begins.
    pub(crate) line: usize,
    /// What stands behind its fence; `None`: it is indented by four spaces instead.
    pub(crate) language: Option<String>,
    /// Its text, without what indents all of it.
    pub(crate) text: String,
}

impl Block {
    pub(crate) fn is_indented(&self) -> bool {
        self.language.is_none()
    }

    pub(crate) fn is_in(&self, language: &str) -> bool {
        self.language.as_deref() == Some(language)
    }

    /// Where it is, to be told.
    pub(crate) fn place(&self) -> String {
        format!("{}:{}", self.page, self.line)
    }

    /// Its lines for a shell, those that go on behind a `\` in one.
    pub(crate) fn commands(&self) -> Vec<String> {
        let joined = self.text.replace("\\\n", " ");
        joined.lines().map(str::to_owned).filter(|line| !line.trim().is_empty()).collect()
    }
}

/// The blocks of all pages.
pub(crate) fn blocks() -> Vec<Block> {
    pages().iter().flat_map(|(page, text)| blocks_of(page, text)).collect()
}

fn blocks_of(page: &str, text: &str) -> Vec<Block> {
    let mut blocks: Vec<Block> = Vec::new();
    let (mut fenced, mut before_is_empty) = (false, true);
    for (at, line) in text.lines().enumerate() {
        let begin = |language: Option<&str>| Block {
            page: page.to_owned(),
            line: at + 1,
            language: language.map(str::to_owned),
            text: String::new(),
        };
        if let Some(language) = line.strip_prefix("```") {
            fenced = !fenced;
            if fenced {
                blocks.push(begin(Some(language)));
            }
        } else if let Some(indented) = line.strip_prefix("    ").filter(|_| !fenced) {
            let goes_on = blocks
                .last()
                .is_some_and(|it| it.is_indented() && it.line + it.text.lines().count() == at + 1);
            if !goes_on && !before_is_empty {
                // A sentence of a list goes on.
                continue;
            }
            if !goes_on {
                blocks.push(begin(None));
            }
            add(&mut blocks, indented);
        } else if fenced {
            add(&mut blocks, line);
        }
        before_is_empty = line.is_empty();
    }
    assert!(!fenced, "{page}: a block has no end");
    blocks
}

fn add(blocks: &mut [Block], line: &str) {
    let block = blocks.last_mut().expect("it has begun");
    block.text.push_str(line);
    block.text.push('\n');
}

#[test]
fn blocks_are_found() {
    let page = "A\n\n    one\n      two\n\n- b\n    goes on\n\n```ts\nx\n\ny\n```\n\n    three\n";
    let found: Vec<_> = blocks_of("p", page)
        .into_iter()
        .map(|block| (block.line, block.language, block.text))
        .collect();
    let of = |line, language: Option<&str>, text: &str| {
        (line, language.map(str::to_owned), text.to_owned())
    };
    assert_eq!(
        found,
        [of(3, None, "one\n  two\n"), of(9, Some("ts"), "x\n\ny\n"), of(15, None, "three\n")]
    );
}
