//! What the command table says to whoever types a request: the words that may come next, a hint at what is missing, and help.

use crate::client::split_words;
use headwater_command::table::{SPECS, Spec, lookup, lookup_subcommand};

/// The command that words begin with, and how many of them name it.
fn named(words: &[Vec<u8>]) -> Option<(&'static Spec, usize)> {
    let spec = lookup(words.first()?)?;
    let sub = words.get(1).and_then(|name| lookup_subcommand(spec, name));
    Some(sub.map_or((spec, 1), |sub| (sub, 2)))
}

/// A command's name as it is typed.
fn title(spec: &Spec) -> String {
    spec.full_name.replace('|', " ").to_ascii_uppercase()
}

/// The parts of a usage: words, and what brackets hold together.
fn parts(usage: &str) -> Vec<&str> {
    let (mut all, mut depth, mut begin) = (Vec::new(), 0, None);
    for (at, c) in usage.char_indices() {
        match c {
            ' ' if depth == 0 => all.extend(begin.take().map(|begin| &usage[begin..at])),
            _ => {
                begin.get_or_insert(at);
                depth += i32::from(matches!(c, '[' | '<')) - i32::from(matches!(c, ']' | '>'));
            }
        }
    }
    all.extend(begin.map(|begin| &usage[begin..]));
    all
}

/// The words in capitals of a usage, which are typed as they stand.
fn keywords(usage: &str) -> impl Iterator<Item = &str> {
    let is_of_word = |c: char| c.is_ascii_uppercase() || c == '-';
    usage
        .split(|c: char| !(c.is_ascii_alphanumeric() || c == '-' || c == '.'))
        .filter(move |word| word.len() > 1 && word.chars().all(is_of_word))
}

/// Where the last word of `line` begins, and what it can become.
pub(super) fn completions(line: &str) -> (usize, Vec<String>) {
    let begin = line.rfind(char::is_whitespace).map_or(0, |at| at + 1);
    let (before, typed) = (split_words(&line[..begin]).unwrap_or_default(), &line[begin..]);
    let wanted = typed.to_ascii_uppercase();
    let fits = |word: &str| word.len() > typed.len() && word.starts_with(&wanted);
    let is_lower = !typed.is_empty() && typed == typed.to_ascii_lowercase();
    let mut all: Vec<String> = if before.is_empty() {
        let names = SPECS.iter().map(title).chain([String::from("HELP")]);
        names.filter(|name| fits(name)).collect()
    } else if before.len() == 1 && before[0].eq_ignore_ascii_case(b"help") {
        SPECS.iter().map(title).filter(|name| fits(name)).collect()
    } else {
        match named(&before) {
            Some((spec, 1)) if before.len() == 1 && !spec.subcommands.is_empty() => {
                let subs = spec.subcommands.iter().map(|sub| sub.name.to_ascii_uppercase());
                subs.filter(|name| fits(name)).collect()
            }
            Some((spec, _)) => {
                keywords(spec.usage).filter(|word| fits(word)).map(str::to_owned).collect()
            }
            None => Vec::new(),
        }
    };
    all.sort_unstable();
    all.dedup();
    if is_lower {
        all.iter_mut().for_each(|word| word.make_ascii_lowercase());
    }
    (begin, all)
}

/// What is still to come behind `line`, as the usage of its command says.
pub(super) fn hint(line: &str) -> Option<String> {
    let words = split_words(line)?;
    let (spec, name) = named(&words)?;
    let missing = match (spec.subcommands.is_empty(), parts(spec.usage)) {
        (true, parts) => parts.get(words.len() - name..).unwrap_or_default().join(" "),
        (false, _) if words.len() == 1 => String::from("subcommand"),
        _ => return None,
    };
    let gap = if line.ends_with(' ') { "" } else { " " };
    (!missing.is_empty()).then(|| format!("{gap}{missing}"))
}

/// `help`, or `help COMMAND`.
pub(super) fn help(words: &[Vec<u8>]) -> String {
    if words.is_empty() {
        return String::from(
            "A line is a request: its words, in quotes where they have spaces. TAB completes commands and their words;\n\
             the arrows go through what was asked before. \"help COMMAND\" tells what a command takes; \"exit\" ends.\n",
        );
    }
    let Some((spec, _)) = named(words) else {
        let name = String::from_utf8_lossy(&words[0]).to_ascii_uppercase();
        return format!(
            "There is no command {name}. TAB behind its first letters shows which there are.\n"
        );
    };
    let mut out = format!("{} {}\n", title(spec), spec.usage).replace(" \n", "\n");
    out += &format!("  {}\n", spec.summary);
    for sub in spec.subcommands {
        out += format!("  {} {}", title(sub), sub.usage).trim_end();
        out += &format!("\n    {}\n", sub.summary);
    }
    out += &format!("  Group: {}, since {}\n", spec.group.name(), spec.since);
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_completed() {
        let of = |line: &str| completions(line).1;
        assert!(of("").len() > 100);
        assert_eq!(of("getr"), ["getrange"]);
        assert_eq!(of("SETB"), ["SETBIT"]);
        assert_eq!(completions("set k v ke"), (8, vec![String::from("keepttl")]));
        assert_eq!(of("range a b RE"), ["REV"]);
        assert_eq!(of("client no-"), ["no-evict", "no-touch"]);
        assert_eq!(of("help bitp"), ["bitpos"]);
        assert_eq!(of("nosuch x"), Vec::<String>::new());
        assert_eq!(of("get é"), Vec::<String>::new());
    }

    #[test]
    fn hints_tell_what_is_missing() {
        assert_eq!(hint("setrange").as_deref(), Some(" key offset bytes"));
        assert_eq!(hint("setrange k ").as_deref(), Some("offset bytes"));
        assert_eq!(hint("setrange k 0 x"), None);
        assert_eq!(hint("client").as_deref(), Some(" subcommand"));
        assert_eq!(hint("client setname").as_deref(), Some(" name"));
        assert_eq!(hint("nosuch"), None);
        assert_eq!(parts("a [B <c | d>] e"), ["a", "[B <c | d>]", "e"]);
    }

    #[test]
    fn help_is_that_of_the_table() {
        let of = |words: &[&str]| {
            help(&words.iter().map(|word| word.as_bytes().to_vec()).collect::<Vec<_>>())
        };
        assert!(
            of(&["getdel"]).starts_with("GETDEL key\n  Answers a value and removes the key.\n")
        );
        assert!(of(&["client", "setname"]).starts_with("CLIENT SETNAME name\n"));
        assert!(of(&["nosuch"]).contains("There is no command NOSUCH"));
        assert!(of(&[]).contains("TAB"));
    }
}
