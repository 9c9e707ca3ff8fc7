//! Every bound that the core enforces, with its default.

/// Bounds on what a client may ask the store to hold.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Longest key, in bytes (at most [`Limits::KEY_BYTES_CEILING`]).
    pub key_bytes_max: usize,
    /// Longest value, in bytes.
    pub value_bytes_max: usize,
    /// Most joins that may be installed at once.
    pub joins_max: usize,
    /// Most joins that may read one another's outputs in a row (at most [`Limits::JOIN_DEPTH_CEILING`]).
    pub join_depth_max: u32,
    /// Most sources that one join may have.
    pub sources_max: usize,
    /// Most slots that one join may have.
    pub slots_max: usize,
}

impl Limits {
    /// No setting can allow a longer key: a leaf page addresses its keys with 16 bits.
    pub const KEY_BYTES_CEILING: usize = 1024;
    /// No setting can allow more joins in a row: what is read at the end of them takes stack for each.
    pub const JOIN_DEPTH_CEILING: usize = 256;
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            key_bytes_max: 1024,
            value_bytes_max: 64 << 20,
            joins_max: 16_384,
            join_depth_max: 64,
            sources_max: 16,
            slots_max: 32,
        }
    }
}
