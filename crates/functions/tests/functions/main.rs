//! Functions through their host: what they can do, what they cannot, and the examples.

mod calls;
mod examples;
mod hostile;
mod plain;
