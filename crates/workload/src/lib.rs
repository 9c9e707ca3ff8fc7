//! What the demonstration and the benchmarks load: follower graphs and posts, real or
//! generated, the same in every run with the same seed.
//!
//! - [`Graph`]: who follows whom; the real graph that is shipped, an edge list from a file,
//!   or a generated one of the same shape and any size.
//! - [`TweetLengths`]: texts whose lengths are those of real tweets.
//! - [`Rng`]: the one source of chance.

mod graph;
mod rng;
mod text;

pub use graph::{Graph, GraphError};
pub use rng::{Alias, Rng};
pub use text::TweetLengths;
