//! What a simulated cache is.

/// One request that reads or writes.
#[derive(Clone, Copy)]
pub(crate) struct Access {
    pub(crate) object: u32,
    /// Bytes of the entry if it is resident.
    pub(crate) bytes: u32,
    pub(crate) time_s: u32,
}

/// A cache of so many bytes.
pub(crate) trait Cache {
    /// Takes the object in if it is not there; `true` if it was.
    fn access(&mut self, access: Access) -> bool;
}

/// An entry of a cache that draws its victims.
#[derive(Clone, Copy)]
pub(crate) struct Entry<Note> {
    pub(crate) object: u32,
    pub(crate) bytes: u32,
    pub(crate) note: Note,
}

/// Chance, the same in every run.
pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let word = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        word ^ (word >> 31)
    }

    pub(crate) fn below(&mut self, bound: usize) -> usize {
        ((u128::from(self.next()) * bound as u128) >> 64) as usize
    }

    pub(crate) fn unit(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1u64 << 53) as f64
    }
}
