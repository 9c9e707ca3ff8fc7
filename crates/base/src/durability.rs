//! When writes are made safe: what settings say, and the embedded store does.

use alloc::string::String;
use core::fmt;
use core::str::FromStr;

/// When writes are made safe.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Durability {
    /// When the system sees fit.
    None,
    /// Some time after they are acknowledged.
    #[default]
    Interval,
    /// Before they are acknowledged.
    Always,
}

impl FromStr for Durability {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "none" => Ok(Self::None),
            "interval" => Ok(Self::Interval),
            "always" => Ok(Self::Always),
            _ => Err(String::from("it is one of none, interval, always")),
        }
    }
}

impl fmt::Display for Durability {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::None => "none",
            Self::Interval => "interval",
            Self::Always => "always",
        })
    }
}
