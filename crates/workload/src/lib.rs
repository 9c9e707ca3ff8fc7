//! What the demonstration and the benchmarks load: follower graphs, posts and cache
//! traces, real or generated, the same in every run with the same seed.
//!
//! - [`Graph`]: who follows whom; the real graph that is shipped, an edge list from a file,
//!   or a generated one of the same shape and any size.
//! - [`TweetLengths`]: texts whose lengths are those of real tweets.
//! - [`Vote`]: votes on real questions, in their order.
//! - [`Trace`]: requests to a cache; the real trace that is shipped, a file in one of three
//!   formats, or a generated one whose distributions are real.
//! - [`newp`]: the joins of a news site's pages.
//! - [`entries`]: the steps that everything which holds entries is measured by.
//! - [`Rng`]: the one source of chance.

pub mod entries;
mod graph;
pub mod newp;
mod open;
mod rng;
mod text;
pub mod trace;
mod votes;

pub use graph::{Graph, GraphError};
pub use rng::{Alias, Rng};
pub use text::TweetLengths;
pub use trace::{Trace, TraceError};
pub use votes::Vote;
