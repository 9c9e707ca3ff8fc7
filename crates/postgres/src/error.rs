//! Why something was not done: what the database has against it, or what has become of the connection.

use std::io::{self, ErrorKind};

/// Why something was not done.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Error {
    /// A sentence.
    pub message: String,
    /// PostgreSQL's code, where it is the one that complained; empty where the connection is broken.
    pub code: String,
}

impl Error {
    pub(crate) fn broken(message: impl Into<String>) -> Self {
        Self { message: message.into(), code: String::new() }
    }

    /// Whether the connection is of no use any more.
    #[must_use]
    pub fn is_broken(&self) -> bool {
        // Classes of errors that end the session: it was terminated, or is not let in.
        self.code.is_empty() || self.code.starts_with("57P") || self.code.starts_with("08")
    }
}

impl Error {
    /// Whether it says nothing about what was asked, but that the server was too busy for it: a time that was up, a lock that others
    /// held, a lack of resources.
    #[must_use]
    pub fn is_passing(&self) -> bool {
        matches!(&*self.code, "57014" | "55P03" | "40001" | "40P01") || self.code.starts_with("53")
    }
}

impl std::fmt::Display for Error {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.write_str(&self.message)
    }
}

impl From<io::Error> for Error {
    fn from(error: io::Error) -> Self {
        Self::broken(match error.kind() {
            ErrorKind::WouldBlock | ErrorKind::TimedOut => {
                "the database does not answer".to_owned()
            }
            ErrorKind::UnexpectedEof => "the database closed the connection".to_owned(),
            _ => error.to_string(),
        })
    }
}

/// The sentence and the code of an error message.
pub(crate) fn complaint(body: &[u8]) -> Error {
    let (mut message, mut code) = (String::new(), String::new());
    for field in body.split(|&byte| byte == 0) {
        let Some((kind, text)) = field.split_first() else { continue };
        let text = String::from_utf8_lossy(text).into_owned();
        match kind {
            b'M' => message = text,
            b'C' => code = text,
            _ => {}
        }
    }
    Error { message, code }
}
