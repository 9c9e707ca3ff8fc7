//! What a client has yet to take: bytes, and long values that are sent from where they are.
//!
//! # Invariants
//! - O1. `bytes[sent..]` is unsent, with the bytes of each value in `held` behind the first so many
//!   bytes; places ascend, and none is before `sent`.
//! - O2. Each held value has a reference of its own, which is released when its last byte is
//!   sent, or the connection ends.
//! - O3. What is behind `open` is not sent yet: it may tell of writes that are not safe. Gates ascend, by place and
//!   by what they wait for; without gates everything may be sent.
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

/// A place in an output: so many bytes, and so many of the values that it ever held.
#[derive(Clone, Copy, Default)]
struct Place {
    bytes: usize,
    values: u64,
}

/// The end of a part that waits until the write of this number is safe.
struct Gate {
    end: Place,
    needs: u64,
}

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
    /// Values that were held and are sent.
    values_done: u64,
    gates: VecDeque<Gate>,
    /// How far it may be sent while there are gates.
    open: Place,
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

    /// Whether a part of it waits for writes to be safe.
    #[inline]
    pub(crate) fn is_gated(&self) -> bool {
        !self.gates.is_empty()
    }

    /// Whether something may be sent now.
    pub(crate) fn may_send(&self) -> bool {
        if self.gates.is_empty() {
            return self.unsent() > 0;
        }
        self.sent < self.open.bytes || self.values_done < self.open.values
    }

    fn end_place(&self) -> Place {
        Place { bytes: self.bytes.len(), values: self.values_done + self.held.len() as u64 }
    }

    /// What is behind this place when the next bytes are added waits until the write `needs` is safe.
    pub(crate) fn add_gated(&mut self, out: &mut Vec<u8>, held: &mut Held, needs: u64) {
        let before = self.end_place();
        self.add(out, held, 0);
        if self.gates.is_empty() {
            self.open = before;
        }
        let end = self.end_place();
        match self.gates.back_mut() {
            Some(last) if last.needs == needs => last.end = end,
            _ => self.gates.push_back(Gate { end, needs }),
        }
    }

    /// Writes up to the number `safe` are safe.
    pub(crate) fn open_gates(&mut self, safe: u64) {
        while let Some(first) = self.gates.front()
            && first.needs <= safe
        {
            self.open = first.end;
            self.gates.pop_front();
        }
    }

    /// How far it may be sent: bytes, and values that it holds.
    fn sendable(&self) -> (usize, usize) {
        if self.gates.is_empty() {
            return (self.bytes.len(), self.held.len());
        }
        (self.open.bytes, (self.open.values - self.values_done) as usize)
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
        let (bytes, values) = self.sendable();
        if values == 0 {
            self.sent += socket.write(&self.bytes[self.sent..bytes])?;
            return Ok(());
        }
        let views = self.held.iter().take(values.min(SLICES_MAX));
        let views: Vec<Value<'_>> = views.map(|(_, value)| service.value(*value)).collect();
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
        let (bytes, values) = self.sendable();
        if values == views.len() && done < bytes {
            slices.push(IoSlice::new(&self.bytes[done..bytes]));
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
                        self.values_done += 1;
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
            for gate in &mut self.gates {
                gate.end.bytes -= self.sent;
            }
            // It is of no account where there are no gates.
            self.open.bytes = self.open.bytes.saturating_sub(self.sent);
            self.sent = 0;
        }
    }

    /// Takes the values that were not sent, to be released.
    pub(crate) fn take_held(&mut self) -> impl Iterator<Item = ValueRef> {
        self.held_unsent = 0;
        self.held.drain(..).map(|(_, value)| value)
    }
}

#[cfg(test)]
mod tests {
    use super::Output;
    use crate::null::Null;
    use crate::service::Bounds;
    use headwater_protocol::Held;
    use headwater_protocol::resp::Limits;

    fn service() -> Null {
        let clients = headwater_config::Clients::default();
        Null::new(Bounds::of(&clients), Limits::for_values(1 << 20), 0)
    }

    fn send(output: &mut Output, service: &mut Null) -> String {
        let mut sent = Vec::new();
        while output.may_send() {
            output.write(&mut sent, service).unwrap();
        }
        output.trim();
        String::from_utf8(sent).unwrap()
    }

    #[test]
    fn replies_wait_for_their_writes_and_keep_their_order() {
        let (mut output, mut service) = (Output::default(), service());
        let mut held = Held::default();
        let mut add = |output: &mut Output, text: &str, needs: Option<u64>| {
            let mut out = text.as_bytes().to_vec();
            match needs {
                Some(needs) => output.add_gated(&mut out, &mut held, needs),
                None => output.add(&mut out, &mut held, 0),
            }
            assert!(out.is_empty());
        };
        add(&mut output, "before ", None);
        add(&mut output, "one ", Some(1));
        add(&mut output, "one too ", Some(1));
        add(&mut output, "three ", Some(3));
        // It tells of no write, but comes behind what does, and may wait with what comes next.
        add(&mut output, "message ", None);
        assert_eq!(send(&mut output, &mut service), "before ");
        assert!(output.is_gated() && !output.may_send());
        output.open_gates(0);
        assert_eq!(send(&mut output, &mut service), "");
        output.open_gates(2);
        assert_eq!(send(&mut output, &mut service), "one one too ");
        add(&mut output, "four", Some(4));
        output.open_gates(3);
        assert_eq!(send(&mut output, &mut service), "three ");
        output.open_gates(4);
        assert_eq!(send(&mut output, &mut service), "message four");
        assert!(!output.is_gated() && output.is_empty());
    }
}
