//! What is wrong with a rule, in Redis's own words.

use alloc::string::String;
use core::fmt;

/// Why a rule is refused.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RuleError {
    /// It is no rule.
    Syntax,
    /// It names a command or a category that does not exist.
    UnknownCommand,
    /// It adds a key pattern behind `~*`.
    BehindAllKeys,
    /// It adds a channel behind `&*`.
    BehindAllChannels,
    /// It removes a password that is not there.
    NoSuchPassword,
    /// It is a hash that is none.
    BadHash,
    /// It allows a subcommand of a command that has none with its first argument.
    FirstArgument,
    /// It binds a pattern to a user whose name could reach beyond it.
    UserInPattern,
}

impl fmt::Display for RuleError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Syntax => "Syntax error",
            Self::UnknownCommand => "Unknown command or category name in ACL",
            Self::BehindAllKeys => {
                "Adding a pattern after the * pattern (or the 'allkeys' flag) is not valid and does \
                 not have any effect. Try 'resetkeys' to start with an empty list of patterns"
            }
            Self::BehindAllChannels => {
                "Adding a pattern after the * pattern (or the 'allchannels' flag) is not valid and \
                 does not have any effect. Try 'resetchannels' to start with an empty list of channels"
            }
            Self::NoSuchPassword => {
                "The password you are trying to remove from the user does not exist"
            }
            Self::BadHash => {
                "The password hash must be exactly 64 characters and contain only lowercase \
                 hexadecimal characters"
            }
            Self::FirstArgument => "Allowing first-arg of a subcommand is not supported",
            Self::UserInPattern => {
                "A pattern with <user> needs a user whose name has no '|', which would reach into \
                 the keys of others"
            }
        })
    }
}

/// Why `ACL SETUSER`, or a line of an ACL file, is refused.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum SetUserError {
    /// The name has a space or a zero byte.
    Name,
    /// A new user cannot have this name.
    Alphabet {
        /// The name, in printable characters.
        name: String,
    },
    /// A rule is refused.
    Rule {
        /// The rule; a password is not shown.
        rule: String,
        /// Why.
        error: RuleError,
    },
    /// A selector is not closed.
    Unmatched {
        /// Where it begins.
        selector: String,
    },
    /// `default` cannot be removed.
    Default,
    /// A line does not begin with `user` and a name.
    Line,
    /// A user is named twice.
    Duplicate {
        /// Its name.
        name: String,
    },
}

impl fmt::Display for SetUserError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Name => f.write_str("Usernames can't contain spaces or null characters"),
            Self::Alphabet { name } => write!(
                f,
                "'{name}' cannot be a user's name: it has 1 to 128 letters of ASCII, digits, '_', '-', '.', ':', '@' and '+'"
            ),
            Self::Rule { rule, error } => {
                write!(f, "Error in ACL SETUSER modifier '{rule}': {error}")
            }
            Self::Unmatched { selector } => {
                write!(f, "Unmatched parenthesis in acl selector starting at '{selector}'.")
            }
            Self::Default => f.write_str("The 'default' user cannot be removed"),
            Self::Line => f.write_str("line should start with user keyword 'user' and a name"),
            Self::Duplicate { name } => write!(f, "Duplicate user '{name}' found"),
        }
    }
}
