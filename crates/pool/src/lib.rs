//! Value memory: a pool of blocks with values of any length, shared by reference, that can be
//! appended to.
//!
//! A [`ValueRef`] is 8 bytes, whatever the value. Values of up to 7 bytes are held in the
//! reference itself; a longer one is a chain of blocks, and its reference names the *last*, so that an
//! append costs what is appended, however long the value is. References are counted by hand
//! ([`Pool::retain`], [`Pool::release`]): the pages of an ordered map hold them as plain words, so that
//! splitting a page is a copy of bytes, and a value under ten thousand keys is stored once.
//!
//! ```
//! use headwater_pool::Pool;
//!
//! let mut pool = Pool::new();
//! let story = pool.insert(b"It was a dark and stormy night; ");
//! pool.retain(story); // A second reference: each is released once.
//! let longer = pool.append(story, b"the rain fell in torrents.", 0);
//!
//! // Who holds the first reference sees what it was.
//! assert!(pool.view(story).equals(b"It was a dark and stormy night; "));
//! assert_eq!(pool.view(longer).len(), 58);
//!
//! pool.release(story);
//! pool.release(longer);
//! assert_eq!(pool.bytes(), 0);
//! ```
//!
//! A long value is read in [parts](Value::parts), where its bytes are; one of up to 4 KiB has one:
//!
//! ```
//! # let mut pool = headwater_pool::Pool::new();
//! let song = pool.insert(&[b'x'; 10_000]);
//! let mut bytes = Vec::new();
//! for part in pool.view(song).parts() {
//!     bytes.extend_from_slice(part);
//! }
//! assert_eq!(bytes.len(), 10_000);
//! let (song, dropped) = pool.truncate_head(song, 5000);
//! assert_eq!((dropped, pool.view(song).len()), (4096, 5904));
//! ```
//!
//! A pool with a [limit](Pool::with_limit) takes no more from the system. All that is free in it can be used:
//! where there is no block of the fitting size, others serve.
//!
//! ```
//! # use headwater_pool::{Full, Pool};
//! let mut pool = Pool::with_limit(1 << 20);
//! let mut values = Vec::new();
//! while let Ok(value) = pool.try_insert(&[b'x'; 1000], 0) {
//!     values.push(value);
//! }
//! assert!(values.len() > 900 && pool.allocated() <= 1 << 20);
//! pool.release(values.pop().unwrap());
//! assert!(pool.try_insert(&[b'y'; 900], 0).is_ok());
//! ```
//!
//! A short value that changes often and is under many keys can be a [cell](Pool::share): setting it
//! changes it for all that hold a reference to it.
//!
//! # How it is built
//! Memory comes in [buffers](Buffers) of up to 2 MiB. A buffer has blocks of one size, and their metadata in
//! front, out of the blocks' way: 12 bytes each. There are 55 sizes from 16 bytes to 4 KiB. This
//! follows the block cache of Pravega, whose blocks are all of 4 KiB; small values want smaller
//! ones. Free blocks are chained, buffers with room are listed, and a buffer that becomes empty may
//! take any size: churn leaves no holes. Where values go in another order than they came and leave a few in every
//! buffer, a [compaction](Pool::begin_compaction) brings them together.
//!
//! What values take, with all metadata, in buffers of 2 MiB (`cargo run --release -p headwater-pool
//! --example overhead` shows it):
//!
//! | value | takes | overhead |
//! | ---: | ---: | ---: |
//! | 64 B | 76.0 B | 18.8 % |
//! | 100 B | 116.0 B | 16.0 % |
//! | 150 B | 172.0 B | 14.7 % |
//! | 280 B | 300.0 B | 7.2 % |
//! | 1 KiB | 1036.2 B | 1.2 % |
//! | 4 KiB | 4112.3 B | 0.40 % |
//! | 10 KiB | 10285 B | 0.44 % |
//! | 100 000 B | 100 417 B | 0.42 % |
//! | 1 MiB | 1 052 759 B | 0.40 % |
//! | 10–100 KiB, random |  | 0.47 % on average |
//! | 8–300 B, random |  | 12.7 % on average |
//! | real tweets, 111 B on average |  | 16.0 % on average |
//!
//! # Invariants
//! - P1. Each reference that the pool hands out is released exactly once; a retained one is
//!   another reference. A block counts the references to values that end in it and the blocks
//!   that follow it; without any, it is free.
//! - P2. The bytes of a value up to a block's `end` are in the chain up to that block, all of them
//!   written, each block with at least one.
//! - P3. Bytes that a reference covers never change, but by who holds the only one. A block grows only
//!   behind its `end`, or behind the one reference that is left; and not if a block follows, which
//!   says where its bytes start.
//! - P4, on cells, is in `cells.rs`.
//! - K1–K3, on blocks and buffers, are in `blocks.rs`, K4 and K5, on compaction, in `compaction.rs`.
//!
//! # Cost
//! Reading a value of one block: one look at the table of buffers, then the bytes; retaining and
//! releasing: one look at the table and one at metadata. Everything else is O(blocks concerned).

#![no_std]
#![expect(unsafe_code, reason = "the one home of raw memory, with its invariants stated above")]
extern crate alloc;

mod blocks;
mod buffers;
mod cells;
mod check;
mod classes;
mod compaction;
mod edit;
mod head;
mod pool;
mod reference;
mod value;

pub use buffers::{Buffers, GlobalBuffers, OwnedBuffers, Owner, Owners};
pub use pool::{Full, Pool};
pub use reference::{INLINE_BYTES_MAX, VALUE_BYTES_MAX, ValueRef};
pub use value::{Parts, Value};

/// Asks the processor to fetch the cache line of `place`. A hint: it reads nothing that the
/// program could see, and is nothing at all where the processor has no such instruction.
#[inline]
pub fn prefetch<T>(place: &T) {
    prefetch_address(core::ptr::from_ref(place).cast());
}

#[inline]
fn prefetch_address(address: *const i8) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: prefetching has no effect but on the cache, whatever the address; SSE is part of
    // every x86-64 processor.
    unsafe {
        use core::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        _mm_prefetch::<_MM_HINT_T0>(address);
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = address;
}
