//! The laws of patterns, containing ranges and the grammar, each checked over many drawn cases,
//! and the named examples.

mod examples;
mod grammar;
mod patterns;
mod random;
mod ranges;
