//! Rules for any text: it speaks of the software alone, and its links lead somewhere.

use crate::Finding;

/// Folders of the machines that the software is made on: no file may lead there.
const PLACES: [&str; 3] = [concat!("/wo", "rk/"), concat!("/ro", "ot/"), concat!("/ho", "me/")];
/// Whole words about how, where and by whom the software is made.
const WORDS: [&str; 7] = [
    concat!("ag", "ent"),
    concat!("ag", "ents"),
    concat!("suba", "gent"),
    concat!("work", "place"),
    concat!("C", "EO"),
    concat!("co", "worker"),
    concat!("chat", "bot"),
];
/// What a library calls its client of HTTP, by the path of its type.
const OF_LIBRARY: &str = concat!("ureq::Ag", "ent::");
/// Names that say nothing: a thing is named for what it is.
const NAMES: [&str; 4] =
    [concat!("Man", "ager"), concat!("Hel", "per"), concat!("ut", "ils"), concat!("pre", "lude")];

/// Words of a type's name for which the field has words of its own (docs/glossary.md): letter, mail, office and their like are
/// messages, batches and a transport; to hold is to quiesce, to meet is a barrier; to keep is to persist.
const PRIVATE_WORDS: [&str; 26] = [
    "Letter",
    "Letters",
    "Mail",
    "Mailbox",
    "Office",
    "Voice",
    "Afar",
    "Front",
    "Meeting",
    "Hold",
    "Holding",
    "Leading",
    "Handed",
    "Handing",
    "Crew",
    "Fickle",
    "Outsiders",
    "Door",
    "Standing",
    "Teller",
    "Facts",
    "What",
    "Which",
    "How",
    "Safety",
    "Unsafe",
];

/// The words of a line: runs of letters, digits and `_`.
fn words(line: &str) -> impl Iterator<Item = &str> {
    line.split(|c: char| !c.is_alphanumeric() && c != '_').filter(|word| !word.is_empty())
}

/// Text that speaks of a machine or of who made the software.
#[must_use]
pub fn foreign(path: &str, text: &str) -> Vec<Finding> {
    let mut found = Vec::new();
    for (at, line) in text.lines().enumerate() {
        for place in PLACES {
            // A path that starts here, not one that goes on: `tests/work/x` is the software's.
            let starts = line.match_indices(place).any(|(at, _)| {
                !line[..at].ends_with(|before: char| before.is_alphanumeric() || before == '.')
            });
            if starts {
                let text = format!("'{place}' is a folder of one machine; use a relative path");
                found.push(Finding::new(path, at + 1, text));
            }
        }
        let line = line.replace(OF_LIBRARY, "");
        for word in words(&line).filter(|word| WORDS.iter().any(|w| w.eq_ignore_ascii_case(word))) {
            let text = format!("'{word}': the repository speaks of the software alone");
            found.push(Finding::new(path, at + 1, text));
        }
    }
    found
}

/// Types and modules of Rust code whose names say nothing.
#[must_use]
pub fn empty_names(path: &str, text: &str) -> Vec<Finding> {
    let mut found = Vec::new();
    for (at, line) in text.lines().enumerate() {
        let mut rest = words(line)
            .skip_while(|word| !matches!(*word, "struct" | "enum" | "trait" | "mod" | "type"));
        let Some(name) = rest.nth(1) else { continue };
        let comment = line.trim_start().starts_with("//");
        if let Some(empty) = NAMES.iter().find(|empty| name.ends_with(**empty))
            && !comment
        {
            let text = format!("'{name}': '{empty}' says nothing; name it for what it is");
            found.push(Finding::new(path, at + 1, text));
        }
    }
    found
}

/// The words that a type's name is made of.
fn parts(name: &str) -> impl Iterator<Item = &str> {
    let mut rest = name;
    core::iter::from_fn(move || {
        let end = rest.char_indices().skip(1).find(|(_, c)| c.is_uppercase());
        let (part, behind) = rest.split_at(end.map_or(rest.len(), |(at, _)| at));
        rest = behind;
        (!part.is_empty()).then_some(part)
    })
}

/// Types whose names have a private word for what the field has a word of its own for.
#[must_use]
pub fn private_names(path: &str, text: &str) -> Vec<Finding> {
    let mut found = Vec::new();
    let lines = text.lines().enumerate().filter(|(_, line)| !line.trim_start().starts_with("//"));
    for (at, line) in lines {
        let mut rest =
            words(line).skip_while(|word| !matches!(*word, "struct" | "enum" | "trait" | "type"));
        let Some(name) = rest.nth(1) else { continue };
        if let Some(private) = parts(name).find(|part| PRIVATE_WORDS.contains(part)) {
            let text = format!("'{name}': '{private}' is a private word; use the field's own");
            found.push(Finding::new(path, at + 1, text));
        }
    }
    found
}

/// Links of a page to files that are not there, or to headings that they do not have. `read` gives the text of a file, or an empty one
/// of a folder.
pub fn dead_links(path: &str, text: &str, read: impl Fn(&str) -> Option<String>) -> Vec<Finding> {
    let folder = path.rsplit_once('/').map_or("", |(folder, _)| folder);
    let mut found = Vec::new();
    let mut fenced = false;
    for (at, line) in text.lines().enumerate() {
        fenced ^= line.trim_start().starts_with("```");
        if fenced {
            continue;
        }
        for (begin, _) in line.match_indices("](") {
            let rest = &line[begin + 2..];
            let Some((target, _)) = rest.split_once(')') else { continue };
            if target.contains("://") {
                continue;
            }
            let (file, anchor) = target.split_once('#').unwrap_or((target, ""));
            let there = match file {
                "" => Some(text.to_owned()),
                file => read(&resolved(folder, file)),
            };
            let has = |page: &str| anchor.is_empty() || anchors(page).any(|it| it == anchor);
            if !there.is_some_and(|page| has(&page)) {
                let text = format!("the link '{target}' leads nowhere");
                found.push(Finding::new(path, at + 1, text));
            }
        }
    }
    found
}

/// What links name the headings of a page by: small letters, with `-` for spaces and without other signs.
fn anchors(page: &str) -> impl Iterator<Item = String> {
    let mut fenced = false;
    page.lines().filter_map(move |line| {
        fenced ^= line.trim_start().starts_with("```");
        let heading = line.strip_prefix('#')?.trim_start_matches('#').trim();
        let kept = |letter: char| letter.is_alphanumeric() || matches!(letter, ' ' | '-' | '_');
        let text: String = heading.chars().filter(|it| kept(*it)).collect();
        (!fenced).then(|| text.to_lowercase().replace(' ', "-"))
    })
}

/// `file` as seen from `folder`, without `.` and `..`.
#[must_use]
pub fn resolved(folder: &str, file: &str) -> String {
    let mut parts: Vec<&str> = Vec::new();
    for part in folder.split('/').chain(file.split('/')) {
        match part {
            "" | "." => {}
            ".." => {
                parts.pop();
            }
            part => parts.push(part),
        }
    }
    parts.join("/")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_and_people_are_found() {
        assert!(foreign("a.md", "the path tests/work/x, agentless, a network/home/x\n").is_empty());
        for place in PLACES {
            let text = format!("fine\nsee `{place}x`\n");
            assert_eq!(foreign("a.md", &text)[0].line, 2, "{place}");
        }
        for word in WORDS {
            assert_eq!(foreign("a.md", &format!("the {word}'s")).len(), 1, "{word}");
            assert_eq!(foreign("a.md", &word.to_uppercase()).len(), 1, "{word}");
        }
    }

    #[test]
    fn private_names_are_found() {
        assert!(
            private_names(
                "a.rs",
                "struct Frontier;
// struct Mail
let mail = Which;"
            )
            .is_empty()
        );
        let found = private_names("a.rs", "enum X {}\npub(crate) struct OldLetterBox<'a> {\n");
        assert_eq!((found.len(), found[0].line), (1, 2));
    }

    #[test]
    fn empty_names_are_found() {
        assert!(empty_names("a.rs", "let managers = 1;\nstruct Page;\nmod helpers;\n").is_empty());
        for name in NAMES {
            let text = format!("a\npub(crate) struct Join{name} {{\n");
            assert_eq!(empty_names("a.rs", &text)[0].line, 2, "{name}");
            assert_eq!(empty_names("a.rs", &format!("mod {name};")).len(), 1, "{name}");
        }
    }

    #[test]
    fn dead_links_are_found() {
        let read = |path: &str| {
            let page = "# A\n```\n# no heading\n```\n## `SET`, and what's *else*\n";
            (path == "docs/a.md" || path == "README.md").then(|| page.to_owned())
        };
        let good = "[a](a.md#a) [r](../README.md#set-and-whats-else) [w](https://example.com/x) [here](#x)\n# X\n";
        assert!(dead_links("docs/b.md", good, read).is_empty());
        assert!(dead_links("docs/b.md", "```\n[a](x.md)\n```\n", read).is_empty());
        assert_eq!(dead_links("docs/b.md", "\n[a](README.md)\n", read)[0].line, 2);
        assert_eq!(dead_links("README.md", "[a](a.md)", read).len(), 1);
        assert_eq!(dead_links("docs/b.md", "[a](a.md#no-heading) [b](#x)", read).len(), 2);
    }
}
