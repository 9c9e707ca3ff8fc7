//! What was meant by a setting that there is not, and what a value may be.

use super::Config;

/// More differing letters are another word.
const LETTERS_MAX: usize = 3;

/// A sentence about the name that a message refuses, where it resembles one that is allowed there, or is one of another section.
pub(super) fn hint(message: &str) -> String {
    let mut words = message.split('`').skip(1).step_by(2);
    let Some(wrong) = words.next() else { return String::new() };
    let allowed: Vec<&str> = words.collect();
    if let Some(section) = section_of(wrong) {
        return format!("\n`{wrong}` belongs into [{section}]");
    }
    let near = allowed.iter().map(|word| (distance(wrong, word), word));
    match near.filter(|(letters, _)| *letters <= LETTERS_MAX.min(wrong.len() / 2)).min() {
        Some((_, word)) => format!("\ndid you mean `{word}`?"),
        None => String::new(),
    }
}

/// What the library calls the type of a setting, and which numbers that allows.
const NUMBERS: [(&str, &str); 5] = [
    ("usize", "a whole number from 0 on"),
    ("u64", "a whole number from 0 on"),
    ("u32", "a whole number from 0 to 4294967295"),
    ("u16", "a whole number from 0 to 65535"),
    ("u8", "a whole number from 0 to 255"),
];

/// A message that ends with what was expected, with the numbers that are allowed in place of the name of a type.
pub(super) fn with_allowed_numbers(message: &str) -> String {
    let message = message.trim_end();
    let found = NUMBERS.iter().find_map(|(name, numbers)| {
        Some(format!("{}expected {numbers}", message.strip_suffix(&format!("expected {name}"))?))
    });
    found.unwrap_or_else(|| message.to_owned())
}

/// The section that has a setting of this name.
fn section_of(name: &str) -> Option<String> {
    let is_name = name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-');
    let sections = toml::from_str::<Config>("- = 0").err()?;
    let mut sections = sections.message().split('`').skip(3).step_by(2);
    let found = sections.find(|section| {
        // Whatever is wrong with the value, the name is right.
        let refused = toml::from_str::<Config>(&format!("[{section}]\n{name} = {{}}"));
        let unknown = format!("unknown field `{name}`");
        refused.is_err_and(|error| {
            !error.message().starts_with(&unknown) && error.span().is_some_and(|it| it.start > 0)
        })
    });
    found.filter(|_| is_name).map(str::to_owned)
}

/// How many letters have to be put in, taken out or changed.
fn distance(one: &str, other: &str) -> usize {
    let mut row: Vec<usize> = (0..=other.len()).collect();
    for (at, letter) in one.bytes().enumerate() {
        let mut before = core::mem::replace(&mut row[0], at + 1);
        for (place, its) in other.bytes().enumerate() {
            let changed = before + usize::from(letter != its);
            before = row[place + 1];
            row[place + 1] = changed.min(before + 1).min(row[place] + 1);
        }
    }
    row[other.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_meant_is_said() {
        for (text, hint) in [
            ("[clients]\nclient-max = 5\n", "line 2: unknown field `client-max`"),
            ("[clients]\nclient-max = 5\n", "did you mean `clients-max`?"),
            ("[client]\nclients-max = 5\n", "did you mean `clients`?"),
            ("[clients]\nport = 5\n", "`port` belongs into [listen]"),
            ("[limits]\njoins-max = \"many\"\n", "\"many\", expected a whole number from 0 on"),
            ("[limits]\njoins-max = -5\n", "`-5`, expected a whole number from 0 on"),
            ("[data]\ndata-plain = 3\n", "integer `3`, expected a boolean"),
            ("[listen]\nrequirepas = \"hunter2\"\n", "did you mean `requirepass`?"),
        ] {
            let error = Config::parse(text).unwrap_err().to_string();
            assert!(error.contains(hint), "{error}");
        }
        let error = Config::parse("[clients]\nnonsense = 1\n").unwrap_err().to_string();
        assert!(!error.contains('\n'), "{error}");
    }

    #[test]
    fn letters_are_counted() {
        for (one, other, letters) in [("", "abc", 3), ("abc", "abc", 0), ("kitten", "sitting", 3)] {
            assert_eq!(distance(one, other), letters);
        }
    }
}
