//! Ports of protocols that need not be spoken.

use crate::number_or_word::number_or_word;
use std::fmt;
use std::str::FromStr;

/// The port for a protocol that need not be spoken: a number, or `off`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum OptionalPort {
    /// The protocol is not spoken.
    #[default]
    Off,
    /// This port; 0 lets the system choose one.
    On(u16),
}

impl OptionalPort {
    /// The number, if the protocol is spoken.
    #[must_use]
    pub fn number(self) -> Option<u16> {
        match self {
            Self::Off => None,
            Self::On(port) => Some(port),
        }
    }
}

impl FromStr for OptionalPort {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text == "off" {
            return Ok(Self::Off);
        }
        let port = text.parse().map_err(|_| format!("'{text}' (allowed: 0 to 65535, or off)"))?;
        Ok(Self::On(port))
    }
}

impl fmt::Display for OptionalPort {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Off => f.write_str("off"),
            Self::On(port) => write!(f, "{port}"),
        }
    }
}

number_or_word!(OptionalPort);
