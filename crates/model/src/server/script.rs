//! What clients ask, as text that can be read, changed and asked again.
//!
//! ```text
//! clients 3 2
//! 0 cut 250
//!   SET s|ann|bob 1
//!   GET s|ann|bob
//! 1
//!   MGET k1 k2
//! ```
//!
//! The first line says what protocols the clients speak, and whether others are busy meanwhile (`busy`). Each further
//! line that is not indented names the client that sends the requests behind it in one pipeline, and where its bytes are cut into pieces, in
//! thousandths. Words are escaped as in golden scripts. `#2` and `@2` stand for the number and the address of client 2; `LONG.KEY` for a key that
//! is too long; `SCAN.ALL 3` is a whole scan by threes.

use super::commands::Words;
use headwater_script::bytes::{escape, unescape};
use std::fmt::{self, Display, Formatter};

/// A pipeline of one client.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Step {
    /// Who sends it.
    pub client: usize,
    /// Where its bytes are cut into pieces, in thousandths.
    pub cuts: Vec<usize>,
    /// What is asked.
    pub requests: Vec<Words>,
}

/// What several clients ask, one pipeline after the other.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Script {
    /// What version of the protocol each client speaks.
    pub protocols: Vec<u8>,
    /// Whether other clients are busy with keys of their own meanwhile.
    pub busy: bool,
    /// The pipelines.
    pub steps: Vec<Step>,
}

impl Script {
    /// Whether a client sends this command.
    #[must_use]
    pub fn asks_for(&self, command: &str) -> bool {
        let mut requests = self.steps.iter().flat_map(|step| &step.requests);
        requests.any(|words| {
            words.first().is_some_and(|word| word.eq_ignore_ascii_case(command.as_bytes()))
        })
    }
}

impl Display for Script {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.write_str("clients")?;
        self.protocols.iter().try_for_each(|protocol| write!(f, " {protocol}"))?;
        writeln!(f, "{}", if self.busy { " busy" } else { "" })?;
        for step in &self.steps {
            write!(f, "{}", step.client)?;
            for (at, cut) in step.cuts.iter().enumerate() {
                write!(f, "{} {cut}", if at == 0 { " cut" } else { "" })?;
            }
            for words in &step.requests {
                write!(f, "\n  {}", request(words))?;
            }
            writeln!(f)?;
        }
        Ok(())
    }
}

/// A request, for people and scripts.
#[must_use]
pub fn request(words: &[Vec<u8>]) -> String {
    words.iter().map(|word| escape(word)).collect::<Vec<_>>().join(" ")
}

impl Script {
    /// Reads the text.
    ///
    /// # Errors
    /// What line cannot be read.
    pub fn parse(text: &str) -> Result<Self, String> {
        let is_said = |line: &&str| !line.trim().is_empty() && !line.starts_with("//");
        let mut lines = text.lines().filter(is_said);
        let head = lines.next().and_then(|line| line.strip_prefix("clients"));
        let mut script = Self { protocols: Vec::new(), busy: false, steps: Vec::new() };
        for word in head.ok_or("a script begins with 'clients'")?.split_whitespace() {
            match word {
                "busy" => script.busy = true,
                "2" | "3" => script.protocols.push(if word == "2" { 2 } else { 3 }),
                _ => return Err(format!("'{word}' is no version of the protocol")),
            }
        }
        for line in lines {
            let wrong = |why: &str| format!("{why}: {line}");
            let mut words = line.split_whitespace();
            if line.starts_with(' ') {
                let words = words.map(unescape).collect::<Result<Words, _>>()?;
                let step = script.steps.last_mut().ok_or_else(|| wrong("no client asks"))?;
                step.requests.push(words);
                continue;
            }
            let client = words.next().and_then(|word| word.parse().ok());
            let known = client.filter(|client| *client < script.protocols.len());
            let client = known.ok_or_else(|| wrong("no such client"))?;
            let cuts = words.skip(1).map(|word| word.parse().map_err(|_| wrong("no number")));
            let cuts = cuts.collect::<Result<_, _>>()?;
            script.steps.push(Step { client, cuts, requests: Vec::new() });
        }
        Ok(script)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_and_back() {
        for seed in 0..20 {
            let script = super::super::draw::script(seed, &[]);
            assert_eq!(Script::parse(&script.to_string()), Ok(script));
        }
        for text in
            ["", "clients 4\n", "clients 3\n1\n", "clients 3\n  GET a\n", "clients 3\n0 cut x"]
        {
            assert!(Script::parse(text).is_err(), "{text}");
        }
    }
}
