//! Commands about functions next to the data.

/// How a function is called for one key.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct CallFlags {
    /// It may change the value.
    pub update: bool,
    /// No other change of the value may come between. On one shard none ever does.
    pub atomic: bool,
    /// Nothing that it replies is wanted, and nothing happens to a key that is absent.
    pub no_reply: bool,
}

/// Commands about functions.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Functions<'a> {
    /// Loads a module.
    Load {
        /// Its name.
        name: &'a str,
        /// Its bytes, or the name of a file.
        module: &'a [u8],
        /// It is the name of a file.
        file: bool,
        /// The export that the name alone stands for.
        export: Option<&'a str>,
        /// In place of one of that name.
        replace: bool,
    },
    /// Drops a module.
    Drop {
        /// Its name.
        name: &'a str,
    },
    /// The loaded modules.
    List,
    /// One module with its counters.
    Info {
        /// Its name.
        name: &'a str,
    },
    /// Calls a function for one key.
    Call {
        /// The function: `module` or `module.export`.
        name: &'a [u8],
        /// The key.
        key: &'a [u8],
        /// How.
        flags: CallFlags,
        /// What it is given besides.
        param: &'a [u8],
    },
    /// Calls a function for each pair of `[first, last)`.
    Range {
        /// The function.
        name: &'a [u8],
        /// The least key wanted.
        first: &'a [u8],
        /// The least key beyond; empty: to the end.
        last: &'a [u8],
        /// Greatest key first.
        reverse: bool,
        /// At most so many pairs.
        limit: Option<u64>,
        /// What it is given besides.
        param: &'a [u8],
    },
}
