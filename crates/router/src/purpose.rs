//! What a value is put for that comes from another shard.

/// What a value is put for, by which the event of its key is named.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum PutPurpose {
    /// The key is given a value.
    #[default]
    Set,
    /// It is a copy of another key's.
    Copy,
    /// It was another key's.
    Rename,
}

impl PutPurpose {
    /// As bits above that of `if_absent`.
    pub(crate) fn bits(self) -> u8 {
        match self {
            Self::Set => 0,
            Self::Copy => 1 << 1,
            Self::Rename => 2 << 1,
        }
    }

    /// That of such bits.
    pub(crate) fn of(byte: u8) -> Self {
        match byte >> 1 {
            1 => Self::Copy,
            2 => Self::Rename,
            _ => Self::Set,
        }
    }
}
