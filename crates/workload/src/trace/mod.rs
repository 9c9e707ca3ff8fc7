//! Cache traces: which object was asked for, when, and how large it is.
//!
//! Objects are numbered from 0 without gaps, in the order of their first request, so that a
//! simulation or a benchmark can address them with plain vectors. Three formats are read
//! ([`Trace::read`]); traces of other shapes are generated ([`Shape`]).
//!
//! # Cost
//! A request takes 16 bytes; a file is decompressed and read as a stream.

mod generate;
mod read;
mod shapes;

pub use read::TraceError;
pub use shapes::{SHAPES, Shape};

use std::path::Path;

/// Where the real trace is in the repository; `data/traces/SOURCES.md` says where it comes from. It is too large to be in
/// every program.
const CLUSTER52_FILE: &str = "data/traces/twitter-cluster52.csv.zst";
/// Its name among the [`SHAPES`].
pub const CLUSTER52: &str = "cluster52";
/// Bytes of a key where a trace does not tell: the mean of Twitter's cluster 52.
const KEY_BYTES: usize = 20;

/// What a request does.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Operation {
    /// Reads; a look-aside cache that misses is filled with the object then.
    Get,
    /// Writes.
    Set,
    /// Removes.
    Delete,
}

/// One request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Request {
    /// Seconds since the start of the trace.
    pub time_s: u32,
    /// The object's number.
    pub object: u32,
    /// Bytes of the object's value at this time.
    pub value_bytes: u32,
    /// What is done with it.
    pub operation: Operation,
}

/// A sequence of requests.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Trace {
    /// What people call it.
    pub name: String,
    /// The requests, in their order.
    pub requests: Vec<Request>,
    /// How many objects there are.
    pub objects: u32,
    /// Bytes of a key: the mean.
    pub key_bytes: usize,
}

impl Trace {
    /// The first 500,000 requests of Twitter's cluster 52, from the repository that the working folder is in.
    fn cluster52() -> Result<Self, TraceError> {
        let here = std::env::current_dir().unwrap_or_default();
        let mut files = here.ancestors().map(|folder| folder.join(CLUSTER52_FILE));
        let file = files.find(|file| file.is_file());
        let mut trace = Self::read(&file.ok_or(TraceError::Elsewhere(CLUSTER52, CLUSTER52_FILE))?)?;
        trace.name = String::from(CLUSTER52);
        Ok(trace)
    }

    /// The trace of this name, or in the file of this path; generated ones have so many
    /// requests and are the same for the same seed.
    ///
    /// # Errors
    /// There is neither such a name nor such a file, or the file is no trace.
    pub fn open(name_or_path: &str, requests: usize, seed: u64) -> Result<Self, TraceError> {
        if name_or_path == CLUSTER52 {
            let mut trace = Self::cluster52()?;
            trace.truncate(requests);
            return Ok(trace);
        }
        if let Some(shape) = SHAPES.iter().find(|shape| shape.name == name_or_path) {
            return Ok(shape.generate(requests, seed));
        }
        let path = Path::new(name_or_path);
        if !path.exists() {
            let names: Vec<_> = SHAPES.iter().map(|shape| shape.name).collect();
            let names = format!("{CLUSTER52}, {}", names.join(", "));
            return Err(TraceError::Unknown(String::from(name_or_path), names));
        }
        let mut trace = Self::read(path)?;
        trace.truncate(requests);
        Ok(trace)
    }

    /// Drops all requests but the first so many.
    pub fn truncate(&mut self, requests: usize) {
        self.requests.truncate(requests);
        self.objects =
            self.requests.iter().map(|request| request.object + 1).max().unwrap_or_default();
    }

    /// Bytes of all objects, keys and values, each at its last size.
    #[must_use]
    pub fn footprint_bytes(&self) -> u64 {
        let mut sizes = vec![0u32; self.objects as usize];
        for request in &self.requests {
            sizes[request.object as usize] = request.value_bytes;
        }
        let values: u64 = sizes.iter().map(|&bytes| u64::from(bytes)).sum();
        values + u64::from(self.objects) * self.key_bytes as u64
    }
}
