//! Rules for Rust files: how they open, how long they are, what pure rooms leave out.

use crate::Finding;

/// Most lines of code in a file; tests do not count. A file is split when it passes 500.
pub const LINES_MAX: usize = 600;

/// Whether the file at `path` holds tests alone.
#[must_use]
pub fn is_test(path: &str) -> bool {
    path.contains("/tests/") || path.ends_with("/tests.rs")
}

/// The code of `text` without what `#[cfg(test)]` stands before: each line with its number.
///
/// Formatting is relied on: an item ends with a line at its own indentation that closes it
/// (`}`, `};`) or ends it (`;`).
pub fn code(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let mut skipping: Option<usize> = None;
    text.lines().enumerate().filter_map(move |(at, line)| {
        let indent = line.len() - line.trim_start().len();
        match skipping {
            Some(level) => {
                let closes =
                    indent == level && (line.trim().starts_with('}') || line.ends_with(';'));
                if closes {
                    skipping = None;
                }
                None
            }
            None if line.trim() == "#[cfg(test)]" => {
                skipping = Some(indent);
                None
            }
            None => Some((at + 1, line)),
        }
    })
}

/// A file opens with `//!`: what it is, for someone who never reads its code.
#[must_use]
pub fn opening(path: &str, text: &str) -> Vec<Finding> {
    if text.starts_with("//! ") {
        return Vec::new();
    }
    vec![Finding::new(path, 1, "opens without `//! ` and a line that says what is here")]
}

/// Examples in documentation, which `cargo test` runs where the crate's manifest lets it: code without a word for another language.
#[must_use]
pub fn examples(path: &str, text: &str) -> Vec<Finding> {
    let fences = text.lines().enumerate().filter_map(|(at, line)| {
        let line = line.trim_start();
        let comment = line.strip_prefix("//! ").or_else(|| line.strip_prefix("/// "))?;
        comment.strip_prefix("```").map(|language| (at + 1, language))
    });
    let opening = fences.step_by(2).filter(|(_, language)| ["", "rust"].contains(language));
    let text =
        "has an example, which `doctest = false` in the manifest of the crate leaves untried";
    opening.map(|(line, _)| Finding::new(path, line, text)).collect()
}

/// A file is short enough to be known.
#[must_use]
pub fn length(path: &str, text: &str) -> Vec<Finding> {
    let lines = code(text).count();
    if is_test(path) || lines <= LINES_MAX {
        return Vec::new();
    }
    let text = format!("{lines} lines of code, at most {LINES_MAX} are allowed: split by subject");
    vec![Finding::new(path, 0, text)]
}

/// Nothing is left for later, and nothing is left from debugging.
#[must_use]
pub fn unfinished(path: &str, text: &str) -> Vec<Finding> {
    let words = [concat!("to", "do!("), concat!("unimpl", "emented!("), concat!("dbg", "!(")];
    let marks = [concat!("FIX", "ME"), concat!("TO", "DO"), concat!("XX", "X ")];
    let mut found = Vec::new();
    for (at, line) in text.lines().enumerate() {
        for word in words.iter().chain(&marks) {
            if line.contains(word) {
                found.push(Finding::new(path, at + 1, format!("'{word}' is left in the code")));
            }
        }
    }
    found
}

/// The root file of a pure room refuses clocks, sockets, files and threads.
#[must_use]
pub fn pure_root(path: &str, text: &str) -> Vec<Finding> {
    if text.lines().any(|line| line == "#![no_std]") {
        return Vec::new();
    }
    vec![Finding::new(path, 0, "a pure crate is `#![no_std]`")]
}

/// No file of a pure room reaches for `std`, whose `HashMap` has a random order besides; its
/// examples are programs, which have a clock and an output.
#[must_use]
pub fn pure_code(path: &str, text: &str) -> Vec<Finding> {
    if is_test(path) || path.contains("/examples/") {
        return Vec::new();
    }
    let banned = ["extern crate std", "std::", "RandomState"];
    let mut found = Vec::new();
    for (at, line) in code(text) {
        let comment = line.trim_start().starts_with("//");
        for word in banned {
            let starts = line.match_indices(word).any(|(at, _)| {
                !line[..at].ends_with(|before: char| before.is_alphanumeric() || before == '_')
            });
            if starts && !comment {
                let text = format!(
                    "'{word}' in a pure crate; allowed are core, alloc, hashbrown, rapidhash"
                );
                found.push(Finding::new(path, at, text));
            }
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn test_code_is_left_out() {
        let text = "a\n#[cfg(test)]\nmod tests {\n    fn x() {\n    }\n}\nb\n    #[cfg(test)]\n    \
                    fn y() {\n        1;\n    }\n    c\n#[cfg(test)]\nmod tests;\nd\n";
        let left: Vec<_> = code(text).collect();
        assert_eq!(left, [(1, "a"), (7, "b"), (12, "    c"), (15, "d")]);
    }

    #[test]
    fn openings_are_missed() {
        assert!(opening("a.rs", "//! A.\nuse b;\n").is_empty());
        for bad in ["use b;\n", "// A.\n", "\n//! A.\n", "//!\n", ""] {
            assert_eq!(opening("a.rs", bad).len(), 1, "{bad:?}");
        }
    }

    #[test]
    fn long_files_are_found() {
        let at_most = "x\n".repeat(LINES_MAX);
        assert!(length("a.rs", &at_most).is_empty());
        let tested = format!("{at_most}#[cfg(test)]\nmod tests {{\n{}}}\n", "    x\n".repeat(99));
        assert!(length("a.rs", &tested).is_empty());
        assert_eq!(length("a.rs", &format!("{tested}x\n")).len(), 1);
        assert!(length("crates/a/tests/b.rs", &"x\n".repeat(LINES_MAX + 1)).is_empty());
    }

    #[test]
    fn leftovers_are_found() {
        assert!(unfinished("a.rs", "let todos = 1;\n").is_empty());
        for bad in [concat!("to", "do!()"), concat!("// TO", "DO: x"), concat!("dbg", "!(x)")] {
            assert_eq!(unfinished("a.rs", bad)[0].line, 1, "{bad}");
        }
    }

    #[test]
    fn impurity_is_found() {
        assert!(pure_root("a.rs", "//! A.\n#![no_std]\n").is_empty());
        assert_eq!(pure_root("a.rs", "//! A. #![no_std]\n").len(), 1);
        assert!(pure_code("a.rs", "// std::mem\nuse core::mem;\nuse nostd::mem;\n").is_empty());
        let bad = "fn a() {}\nuse std::collections::HashMap;\n";
        assert_eq!(pure_code("a.rs", bad)[0].line, 2);
        assert_eq!(pure_code("a.rs", "extern crate std;\n").len(), 1);
        assert!(pure_code("a.rs", "#[cfg(test)]\nextern crate std;\n").is_empty());
    }
}
