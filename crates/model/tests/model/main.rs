//! The engine against the oracle. One program, so that all of them are linked once and their tests run beside one another.

mod at_the_bound;
mod can_fail;
mod can_fail_sources;
mod fan_outs;
mod faulty;
mod histories;
mod lenses;
mod on_disk;
mod pages;
mod scripts;
mod setups;
mod wasm;

/// Its counts are what bounds of memory go by.
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;
