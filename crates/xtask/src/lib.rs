//! The tidy test: habits of this repository that the compiler cannot check.
//!
//! `cargo test -p xtask` reads the repository's files and checks what ARCHITECTURE.md and the
//! style of the code promise: which room may use which, how long files get, what every file
//! opens with. Each rule is a function from text to
//! [`Finding`]s, so that its own tests can show it bad text and see it object.
//!
//! - [`tree`]: the files. [`source`]: rules for Rust files. [`words`]: rules for any text.
//! - [`modules`]: circles among the modules of a crate.
//! - [`edges`]: which crate may depend on which. Licences of dependencies are `cargo deny`'s (`deny.toml`).

pub mod edges;
pub mod modules;
pub mod source;
pub mod tree;
pub mod words;

/// One breach of a rule: which file, which line (0: the file as a whole), what is wrong.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Finding {
    /// Path from the repository's root.
    pub path: String,
    /// Line, from 1; 0 where no line is to blame.
    pub line: usize,
    /// What is wrong, and what is allowed.
    pub text: String,
}

impl Finding {
    /// A finding about a line, or (with 0) about the file as a whole.
    #[must_use]
    pub fn new(path: &str, line: usize, text: impl Into<String>) -> Self {
        Self { path: path.to_owned(), line, text: text.into() }
    }
}

impl std::fmt::Display for Finding {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.line {
            0 => write!(f, "{}: {}", self.path, self.text),
            line => write!(f, "{}:{line}: {}", self.path, self.text),
        }
    }
}
