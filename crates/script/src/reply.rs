//! What commands answer, and how a script prints it.

use crate::bytes::escape;

/// The answer to one command.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Reply {
    /// It was done; nothing is printed.
    Done,
    /// What `get` found.
    Value {
        /// The key that was asked for.
        key: Vec<u8>,
        /// Its value.
        value: Option<Vec<u8>>,
    },
    /// The pairs of a range, in the order of the read.
    Pairs(Vec<(Vec<u8>, Vec<u8>)>),
    /// Lines as they are.
    Lines(Vec<String>),
    /// A refusal: its code word and its text, which may have several lines.
    Refused {
        /// The word that an error reply starts with.
        code: String,
        /// The rest of it.
        text: String,
    },
}

impl Reply {
    /// What is printed.
    #[must_use]
    pub fn lines(&self) -> Vec<String> {
        match self {
            Self::Done => Vec::new(),
            Self::Value { key, value: Some(value) } => vec![pair(key, value)],
            Self::Value { key, value: None } => vec![format!("{} -", escape(key))],
            Self::Pairs(pairs) if pairs.is_empty() => vec![String::from("(nothing)")],
            Self::Pairs(pairs) => pairs.iter().map(|(key, value)| pair(key, value)).collect(),
            Self::Lines(lines) => lines.clone(),
            Self::Refused { code, text } => {
                format!("{code} {text}").lines().map(str::to_string).collect()
            }
        }
    }
}

fn pair(key: &[u8], value: &[u8]) -> String {
    format!("{} = {}", escape(key), escape(value))
}
