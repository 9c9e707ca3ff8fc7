//! Which modules of a crate name one another in a circle.
//!
//! Modules that can be read one after the other name one another in one direction. Where a crate has grown otherwise, the names that make its circles are listed here:
//! none is added, and one that is gone leaves the list. What a module takes by way of the crate's root counts as the root's, which
//! names all.

mod known;

use crate::Finding;
use crate::source::{code, is_test};
use crate::tree::File;
use std::collections::{BTreeMap, BTreeSet};

/// A folder whose modules are held apart.
#[derive(Debug)]
pub struct Folder {
    /// Where they lie.
    pub path: &'static str,
    /// How they are named from anywhere in the crate.
    pub prefix: &'static str,
    /// The names within circles that there are: of each module, those that it names.
    pub known: Names,
}

/// Modules, each with those that it names.
pub type Names = &'static [(&'static str, &'static [&'static str])];

/// The folders that are looked at.
pub const FOLDERS: &[Folder] = &[
    Folder { path: "crates/server/src/", prefix: "crate::", known: known::SERVER },
    Folder { path: "crates/server/src/resp/", prefix: "crate::resp::", known: known::RESP },
];

/// The module of a folder in which a file lies; `None`: it lies elsewhere, is the folder's own, or holds tests.
fn module_of<'p>(folder: &Folder, path: &'p str) -> Option<&'p str> {
    let inner = path.strip_prefix(folder.path)?.strip_suffix(".rs")?;
    let module = inner.split('/').next()?;
    let is_one = !["lib", "main", "mod", "tests", "simulated"].contains(&module);
    (is_one && !is_test(path) && !path.contains("/simulated/")).then_some(module)
}

fn is_word(next: char) -> bool {
    next.is_alphanumeric() || next == '_'
}

/// What begins a path, or each of the paths in its braces.
fn first_names(path: &str) -> Vec<&str> {
    let word = |text: &'_ str| text.find(|next| !is_word(next)).unwrap_or(text.len());
    let Some(list) = path.strip_prefix('{') else { return vec![&path[..word(path)]] };
    let (mut names, mut depth, mut is_next) = (Vec::new(), 1, true);
    for (at, next) in list.char_indices() {
        match next {
            '{' => depth += 1,
            '}' => depth -= 1,
            ',' if depth == 1 => is_next = true,
            _ if is_next && is_word(next) => {
                names.push(&list[at..at + word(&list[at..])]);
                is_next = false;
            }
            _ => {}
        }
        if depth == 0 {
            break;
        }
    }
    names
}

/// The modules of its folder that each module names, with a file that does.
fn named<'f>(folder: &Folder, files: &'f [File]) -> BTreeMap<&'f str, BTreeMap<String, &'f str>> {
    let of = |file: &'f File| Some((module_of(folder, &file.path)?, file));
    let own: Vec<(&str, &File)> = files.iter().filter_map(of).collect();
    let all: BTreeSet<&str> = own.iter().map(|(module, _)| *module).collect();
    let mut named: BTreeMap<&str, BTreeMap<String, &str>> = BTreeMap::new();
    for (module, file) in own {
        let lines = code(&file.text).map(|(_, line)| line.split("//").next().unwrap_or(""));
        let text: String = lines.flat_map(|line| [line, "\n"]).collect();
        let inner = &file.path[folder.path.len()..];
        let is_near =
            !inner.contains('/') || inner.ends_with("/mod.rs") && inner.matches('/').count() == 1;
        let near = if is_near { "super::" } else { folder.prefix };
        for prefix in BTreeSet::from([folder.prefix, near]) {
            for (at, _) in text.match_indices(prefix) {
                let before = text[..at].chars().next_back();
                if before.is_some_and(|it| is_word(it) || it == ':') {
                    continue;
                }
                for name in first_names(&text[at + prefix.len()..]) {
                    if name != module && all.contains(name) {
                        named.entry(module).or_default().insert(name.to_owned(), &file.path);
                    }
                }
            }
        }
    }
    named
}

/// Names within circles that the list has not, or has in vain.
#[must_use]
pub fn check(folder: &Folder, files: &[File]) -> Vec<Finding> {
    let named = named(folder, files);
    let reaches = |from: &str, to: &str| {
        let (mut seen, mut next) = (BTreeSet::new(), vec![from.to_owned()]);
        while let Some(at) = next.pop() {
            if at == to {
                return true;
            }
            if seen.insert(at.clone()) {
                next.extend(named.get(&*at).into_iter().flat_map(|names| names.keys().cloned()));
            }
        }
        false
    };
    let is_known = |from: &str, to: &str| {
        folder.known.iter().any(|(module, names)| *module == from && names.contains(&to))
    };
    let mut found = Vec::new();
    for (module, names) in &named {
        for (name, path) in names {
            if reaches(name, module) && !is_known(module, name) {
                let text = format!(
                    "names `{}{name}`, which names `{module}` by whatever way: what both need belongs below both",
                    folder.prefix
                );
                found.push(Finding::new(path, 0, text));
            }
        }
    }
    for (module, names) in folder.known {
        for name in *names {
            let is_there = named.get(module).is_some_and(|it| it.contains_key(*name));
            if !is_there || !reaches(name, module) {
                let text = format!(
                    "`{module}` and `{name}` are in no circle by that any more: they leave the list"
                );
                found.push(Finding::new(folder.path, 0, text));
            }
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(path: &str, text: &str) -> File {
        File { path: path.to_owned(), text: text.to_owned() }
    }

    #[test]
    fn circles_are_found_and_lists_are_kept() {
        let folder = |known| Folder { path: "crates/x/src/", prefix: "crate::", known };
        let files = [
            file("crates/x/src/lib.rs", "mod a;\nmod b;\nmod c;\nuse crate::a;\n"),
            file("crates/x/src/a.rs", "use crate::{\n    b::{self, c},\n    Root,\n};\n"),
            file("crates/x/src/b/mod.rs", "// crate::d\nfn b() { super::c::go() }\n"),
            file("crates/x/src/c.rs", "#[cfg(test)]\nuse crate::d;\nfn c() { crate::a::go() }\n"),
            file("crates/x/src/d.rs", "use crate::a;\nuse other::crate::d;\n"),
            file("crates/x/src/c/tests.rs", "use crate::d;\n"),
        ];
        let shown = |known: Names| -> Vec<String> {
            check(&folder(known), &files).iter().map(ToString::to_string).collect()
        };
        let [a, b, c] = &shown(&[])[..] else { panic!("three names make the circle") };
        assert!(a.starts_with("crates/x/src/a.rs: names `crate::b`"), "{a}");
        assert!(b.contains("names `crate::c`") && c.contains("names `crate::a`"), "{b} {c}");
        assert_eq!(shown(&[("a", &["b"]), ("b", &["c"]), ("c", &["a"])]), [""; 0]);
        let stale = shown(&[("a", &["b"]), ("b", &["c"]), ("c", &["a"]), ("d", &["a"])]);
        assert_eq!(stale.len(), 1, "{stale:?}");
        assert!(stale[0].contains("`d` and `a` are in no circle"), "{stale:?}");
    }
}
