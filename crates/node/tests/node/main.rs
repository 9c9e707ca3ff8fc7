//! The node, asked as a server asks it. One program, so that the node and what is under it are linked once.

mod answers;
mod flows;
mod kept;
mod locks;
mod redis;
mod slices;
mod streams;
