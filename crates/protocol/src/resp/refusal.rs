//! Why a request is no command, in Redis's own words.

use core::fmt;
use headwater_command::{Args, Id, Reply, Spec};

/// Why a request is no command. Its `Display` text is complete but for the code word.
#[derive(Clone, Copy, Debug)]
pub enum Refusal<'a> {
    /// No command has this name.
    UnknownCommand(Args<'a>),
    /// The container has no such subcommand.
    UnknownSubcommand {
        /// The container.
        container: &'static Spec,
        /// The name that was asked for.
        name: &'a [u8],
    },
    /// Too few or too many arguments.
    Arity(&'static Spec),
    /// A subcommand with arguments that it does not take.
    SubcommandArity {
        /// The container's name in capitals.
        container: &'static str,
        /// The subcommand as the client named it.
        name: &'a [u8],
    },
    /// Options that do not fit together, or are unknown.
    Syntax,
    /// Something that must be a whole number is not.
    NotInteger,
    /// An expiry that is not positive, or beyond all numbers.
    InvalidExpire(&'static Spec),
    /// Another refusal, with a fixed text.
    Text(&'static str),
    /// Another refusal, with a fixed text and a code word other than `ERR`.
    Coded {
        /// The code word.
        code: &'static str,
        /// What is wrong.
        text: &'static str,
    },
    /// Another refusal, which quotes what the client sent.
    Quoting {
        /// The text before the quoted bytes.
        before: &'static str,
        /// What the client sent.
        bytes: &'a [u8],
        /// The text behind.
        after: &'static str,
    },
}

/// Longest quotation, as in Redis.
const QUOTED_BYTES_MAX: usize = 128;

impl Refusal<'_> {
    /// The command that is refused, where only its arguments are wrong in number.
    #[must_use]
    pub fn spec(&self) -> Option<&'static Spec> {
        match self {
            Self::Arity(spec) => Some(spec),
            _ => None,
        }
    }

    /// The word that the error starts with.
    #[must_use]
    pub fn code(&self) -> &'static str {
        match self {
            Self::Coded { code, .. } => code,
            Self::Arity(spec) if spec.id == Id::Exec => "EXECABORT",
            _ => "ERR",
        }
    }

    /// Answers with this refusal.
    #[cold]
    pub fn write(&self, reply: &mut impl Reply) {
        reply.error(self.code(), format_args!("{self}"));
    }
}

impl fmt::Display for Refusal<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::UnknownCommand(args) => {
                let name = args.get(0).unwrap_or_default();
                let quoted = Quoted(name, QUOTED_BYTES_MAX);
                write!(f, "unknown command '{quoted}', with args beginning with: ")?;
                let mut room = QUOTED_BYTES_MAX;
                for arg in args.from(1).iter() {
                    if room == 0 {
                        break;
                    }
                    write!(f, "'{}' ", Quoted(arg, room))?;
                    room = room.saturating_sub(arg.len().min(room) + 3);
                }
                Ok(())
            }
            Self::UnknownSubcommand { container, name } => {
                let quoted = Quoted(name, QUOTED_BYTES_MAX);
                write!(f, "unknown subcommand '{quoted}'. Try ")?;
                for letter in container.name.chars() {
                    write!(f, "{}", letter.to_ascii_uppercase())?;
                }
                f.write_str(" HELP.")
            }
            Self::SubcommandArity { container, name } => {
                let quoted = Quoted(name, QUOTED_BYTES_MAX);
                let before = "unknown subcommand or wrong number of arguments for";
                write!(f, "{before} '{quoted}'. Try {container} HELP.")
            }
            Self::Arity(spec) => {
                if spec.id == Id::Exec {
                    f.write_str("Transaction discarded because of: ")?;
                }
                write!(f, "wrong number of arguments for '{}' command", spec.full_name)
            }
            Self::Syntax => f.write_str("syntax error"),
            Self::NotInteger => f.write_str("value is not an integer or out of range"),
            Self::InvalidExpire(spec) => {
                write!(f, "invalid expire time in '{}' command", spec.full_name)
            }
            Self::Text(text) | Self::Coded { text, .. } => f.write_str(text),
            Self::Quoting { before, bytes, after } => {
                write!(f, "{before}{}{after}", Quoted(bytes, QUOTED_BYTES_MAX))
            }
        }
    }
}

/// The first bytes of what a client sent, readable where they are text, on one line.
struct Quoted<'a>(&'a [u8], usize);

impl fmt::Display for Quoted<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let shown = &self.0[..self.0.len().min(self.1)];
        for chunk in shown.utf8_chunks() {
            for (at, line) in chunk.valid().split(['\r', '\n']).enumerate() {
                f.write_str(if at > 0 { " " } else { "" })?;
                f.write_str(line)?;
            }
            if !chunk.invalid().is_empty() {
                write!(f, "{}", chunk.invalid().escape_ascii())?;
            }
        }
        Ok(())
    }
}
