//! Functions next to the data against doing the same from the client: after figures 3 to 7 of *Fetch-and-Phi in
//! Memcached* (Schaub, 2015).
//!
//! Headwater is asked with `FN.CALL`; `items` is `invoke` over memcached's protocol; `client` is
//! Headwater without functions: GET, and SET where something is to change, or INCR; memcached
//! does the same; Valkey runs Lua that reads and writes ranges.
//!
//! Every key belongs to one connection and is never twice in a batch, so what each reply must bring is
//! known: all of them are compared.

pub mod hostile;
pub mod run;
pub mod work;

use core::fmt;

/// The functions, compiled from `module.wat`.
pub const MODULE: &[u8] = include_bytes!("module.wasm");

/// What is measured.
#[derive(Clone, Copy, PartialEq, Eq, Debug, clap::ValueEnum)]
pub enum Operation {
    /// 16 bytes of an object are changed; the reply is what was there.
    Change,
    /// The same without a reply.
    ChangeNoreply,
    /// 4 bytes of an object are read.
    Filter,
    /// A number is counted up.
    Count,
    /// The top of the hour: half a minute as fast as it goes, 44 reads to 56 changes, and half a minute of
    /// little traffic, 62 to 38.
    Burst,
}

impl fmt::Display for Operation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Change => "change 16 B",
            Self::ChangeNoreply => "change 16 B, no reply",
            Self::Filter => "filter 4 B",
            Self::Count => "count",
            Self::Burst => "burst",
        })
    }
}

#[cfg(test)]
mod tests {
    /// With `HEADWATER_ASSEMBLE=1`, writes the module instead.
    #[test]
    fn the_module_is_its_text() {
        let assembled = wat::parse_str(include_str!("module.wat")).unwrap();
        if std::env::var_os("HEADWATER_ASSEMBLE").is_some() {
            let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("src/functions");
            std::fs::write(folder.join("module.wasm"), &assembled).unwrap();
            return;
        }
        assert_eq!(assembled, super::MODULE);
    }
}
