//! What a client has yet to take: bytes, and long values that are sent from where they are.
//!
//! # Invariants
//! - O1. `bytes[sent..]` is unsent, with the bytes of each value in `held` behind the first so many
//!   bytes; places ascend, and none is before `sent`.
//! - O2. Each held value has a reference of its own, which is released when its last byte is
//!   sent, or the connection ends.
//!
//! # Cost
//! A write without values is one `write` of the bytes. With values it is a `writev` of up to 2 MiB
//! from their blocks, for which the rest of the value's blocks is looked at.

use crate::service::Service;
use headwater_engine::{Value, ValueRef};
use headwater_protocol::Held;
use std::collections::VecDeque;
use std::io::{self, IoSlice, Write};

/// Unsent rests up to this size are copied; for larger ones the shared buffer is given away.
const COPIED_REST_MAX: usize = 64 << 10;
/// Pieces of one `writev`.
const SLICES_MAX: usize = 512;
/// A part of a value is at most a block of so many bytes.
const PART_BYTES_MAX: usize = 4096;

/// The unsent output of one connection.
#[derive(Default)]
pub(crate) struct Output {
    bytes: Vec<u8>,
    sent: usize,
    held: VecDeque<(usize, ValueRef)>,
    /// Bytes of the first held value that were sent.
    value_sent: usize,
    /// Bytes of held values that are unsent.
    held_unsent: usize,
}

impl Output {
    /// Bytes that are unsent.
    #[inline]
    pub(crate) fn unsent(&self) -> usize {
        self.bytes.len() - self.sent + self.held_unsent
    }

    /// Whether nothing is unsent.
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    /// Memory reserved for bytes.
    pub(crate) fn reserved_bytes(&self) -> usize {
        self.bytes.capacity()
    }

    /// The end of the output, to write behind it.
    pub(crate) fn end(&mut self) -> &mut Vec<u8> {
        &mut self.bytes
    }

    /// Takes over what is behind the first `count` bytes of `out`, with the values that belong
    /// there, and leaves both empty.
    pub(crate) fn add(&mut self, out: &mut Vec<u8>, held: &mut Held, count: usize) {
        let mut before = self.bytes.len();
        if before == 0 && out.len() - count > COPIED_REST_MAX {
            core::mem::swap(&mut self.bytes, out);
            self.sent = count;
            before = count;
        } else {
            self.bytes.extend_from_slice(&out[count..]);
        }
        for (at, value) in held.take() {
            self.held_unsent += value.len();
            self.held.push_back((before + at - count, value));
        }
        out.clear();
    }

    /// Writes once, as much as `socket` takes.
    pub(crate) fn write(
        &mut self,
        socket: &mut impl Write,
        service: &mut impl Service,
    ) -> io::Result<()> {
        if self.held.is_empty() {
            self.sent += socket.write(&self.bytes[self.sent..])?;
            return Ok(());
        }
        let views: Vec<Value<'_>> =
            self.held.iter().take(SLICES_MAX).map(|(_, value)| service.value(*value)).collect();
        let count = socket.write_vectored(&self.slices(&views))?;
        drop(views);
        self.advance(count, service);
        Ok(())
    }

    /// The first unsent pieces, in order. `views` are those of the first held values.
    fn slices<'s>(&'s self, views: &'s [Value<'_>]) -> Vec<IoSlice<'s>> {
        let mut slices = Vec::with_capacity(SLICES_MAX.min(2 + self.unsent() / 2048));
        let (mut done, mut skip) = (self.sent, self.value_sent);
        for (&(at, _), view) in self.held.iter().zip(views) {
            if at > done {
                slices.push(IoSlice::new(&self.bytes[done..at]));
            }
            done = at;
            let room = SLICES_MAX.saturating_sub(slices.len());
            let parts = view.read_at(skip, room * PART_BYTES_MAX).take(room);
            slices.extend(parts.map(IoSlice::new));
            if slices.len() >= SLICES_MAX {
                return slices;
            }
            skip = 0;
        }
        if self.held.len() == views.len() && done < self.bytes.len() {
            slices.push(IoSlice::new(&self.bytes[done..]));
        }
        slices
    }

    /// Notes that `count` bytes more were sent.
    fn advance(&mut self, mut count: usize, service: &mut impl Service) {
        while count > 0 {
            let until = match self.held.front() {
                Some(&(at, value)) if at == self.sent => {
                    let step = count.min(value.len() - self.value_sent);
                    self.value_sent += step;
                    self.held_unsent -= step;
                    count -= step;
                    if self.value_sent == value.len() {
                        self.value_sent = 0;
                        self.held.pop_front();
                        service.release(value);
                    }
                    continue;
                }
                Some(&(at, _)) => at,
                None => self.bytes.len(),
            };
            let step = count.min(until - self.sent);
            self.sent += step;
            count -= step;
        }
    }

    /// Gives memory back that was sent.
    pub(crate) fn trim(&mut self) {
        if self.unsent() == 0 {
            *self = Self::default();
        } else if self.sent > self.bytes.len() / 2 {
            self.bytes.drain(..self.sent);
            for (at, _) in &mut self.held {
                *at -= self.sent;
            }
            self.sent = 0;
        }
    }

    /// Takes the values that were not sent, to be released.
    pub(crate) fn take_held(&mut self) -> impl Iterator<Item = ValueRef> {
        self.held_unsent = 0;
        self.held.drain(..).map(|(_, value)| value)
    }
}
