//! regex-lite under the name of regex, which async-nats depends on.
//!
//! It reads the number of a server's version and files of credentials by regular expressions: plain ASCII, each once. For that the program would carry all of regex, with
//! the tables of Unicode, of more than 300 KB. regex-lite is by the same authors, and has the same interface for what is used.

pub use regex_lite::*;
