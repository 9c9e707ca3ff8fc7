//! The arguments of one request: byte strings that lie in one buffer.
//!
//! # Invariants
//! - A1. Every span lies within its buffer: [`Args::new`] and [`ArgVec::args`] panic otherwise at
//!   the first access, they never read elsewhere.
//!
//! # Cost
//! 8 bytes per argument; nothing is copied but by [`OwnedArgs`].

use alloc::vec::Vec;

/// Where one argument lies in its buffer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Span {
    start: u32,
    len: u32,
}

impl Span {
    /// `len` bytes from `start`. A buffer holds at most 4 GiB.
    #[inline]
    #[must_use]
    pub fn new(start: usize, len: usize) -> Self {
        debug_assert!(start <= u32::MAX as usize && len <= u32::MAX as usize);
        Self { start: start as u32, len: len as u32 }
    }

    #[inline]
    fn of(self, buffer: &[u8]) -> &[u8] {
        let start = self.start as usize;
        &buffer[start..start + self.len as usize]
    }
}

/// A list of spans that is used again for each request.
#[derive(Clone, Debug, Default)]
pub struct ArgVec {
    spans: Vec<Span>,
}

impl ArgVec {
    /// An empty list.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Forgets all spans; a list that had grown large gives its memory back.
    #[inline]
    pub fn clear(&mut self) {
        const KEPT_MAX: usize = 4096;
        self.spans.clear();
        if self.spans.capacity() > KEPT_MAX {
            self.spans.shrink_to(KEPT_MAX);
        }
    }

    /// Adds an argument.
    #[inline]
    pub fn push(&mut self, span: Span) {
        self.spans.push(span);
    }

    /// How many arguments there are.
    #[inline]
    #[must_use]
    pub fn len(&self) -> usize {
        self.spans.len()
    }

    /// Whether there is no argument.
    #[inline]
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.spans.is_empty()
    }

    /// Bytes of memory reserved for spans.
    #[must_use]
    pub fn reserved_bytes(&self) -> usize {
        self.spans.capacity() * size_of::<Span>()
    }

    /// The arguments, in the buffer that their spans point into.
    #[inline]
    #[must_use]
    pub fn args<'a>(&'a self, buffer: &'a [u8]) -> Args<'a> {
        Args::new(buffer, &self.spans)
    }
}

/// The arguments of one request, or some of them.
#[derive(Clone, Copy)]
pub struct Args<'a> {
    buffer: &'a [u8],
    spans: &'a [Span],
}

impl<'a> Args<'a> {
    /// The arguments that `spans` cut out of `buffer`.
    #[inline]
    #[must_use]
    pub fn new(buffer: &'a [u8], spans: &'a [Span]) -> Self {
        Self { buffer, spans }
    }

    /// How many arguments there are.
    #[inline]
    #[must_use]
    pub fn len(&self) -> usize {
        self.spans.len()
    }

    /// Whether there is no argument.
    #[inline]
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.spans.is_empty()
    }

    /// The argument at `at`. Panics where there is none: check the arity first.
    #[inline]
    #[must_use]
    pub fn at(&self, at: usize) -> &'a [u8] {
        self.spans[at].of(self.buffer)
    }

    /// The argument at `at`, if there is one.
    #[inline]
    #[must_use]
    pub fn get(&self, at: usize) -> Option<&'a [u8]> {
        self.spans.get(at).map(|span| span.of(self.buffer))
    }

    /// The arguments from `at` on (none, where there are fewer).
    #[inline]
    #[must_use]
    pub fn from(&self, at: usize) -> Self {
        Self { buffer: self.buffer, spans: self.spans.get(at..).unwrap_or(&[]) }
    }

    /// The first `count` arguments (all, where there are fewer).
    #[must_use]
    pub fn first(&self, count: usize) -> Self {
        Self { buffer: self.buffer, spans: &self.spans[..count.min(self.spans.len())] }
    }

    /// The arguments, in order.
    #[inline]
    pub fn iter(&self) -> impl ExactSizeIterator<Item = &'a [u8]> + DoubleEndedIterator + use<'a> {
        let buffer = self.buffer;
        self.spans.iter().map(move |span| span.of(buffer))
    }

    /// The arguments two by two, in order; an odd last one is left out.
    #[inline]
    pub fn pairs(&self) -> impl ExactSizeIterator<Item = (&'a [u8], &'a [u8])> + use<'a> {
        let buffer = self.buffer;
        self.spans.chunks_exact(2).map(move |two| (two[0].of(buffer), two[1].of(buffer)))
    }

    /// The bytes of the whole request, where these arguments are all of it and lie in it as clients' libraries send it
    /// (`*2\r\n$3\r\nGET\r\n$1\r\nk\r\n`).
    #[inline]
    #[must_use]
    pub fn as_sent(&self) -> Option<&'a [u8]> {
        // The shortest header before a first argument. Those of copies and of inline commands begin at 0.
        const HEADER_MIN: u32 = 8;
        let (first, last) = (self.spans.first()?, self.spans.last()?);
        let end = last.start as usize + last.len as usize + 2;
        let is_sent = first.start >= HEADER_MIN && self.buffer[0] == b'*';
        if is_sent { self.buffer.get(..end) } else { None }
    }

    /// Bytes of all arguments together.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.spans.iter().map(|span| span.len as usize).sum()
    }
}

impl core::fmt::Debug for Args<'_> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_list().entries(self.iter().map(|arg| arg.escape_ascii())).finish()
    }
}

impl PartialEq for Args<'_> {
    fn eq(&self, other: &Self) -> bool {
        self.len() == other.len() && self.iter().eq(other.iter())
    }
}

/// Arguments that outlive the buffer they came in: queued by MULTI, or waiting for a load.
#[derive(Clone, Debug, Default)]
pub struct OwnedArgs {
    buffer: Vec<u8>,
    spans: Vec<Span>,
}

impl PartialEq for OwnedArgs {
    fn eq(&self, other: &Self) -> bool {
        self.args() == other.args()
    }
}

impl OwnedArgs {
    /// A copy of `args`.
    #[must_use]
    pub fn of(args: Args<'_>) -> Self {
        let buffer = Vec::with_capacity(args.bytes());
        let spans = Vec::with_capacity(args.len());
        let mut own = Self { buffer, spans };
        args.iter().for_each(|arg| own.push(arg));
        own
    }

    /// Adds a copy of `arg`.
    pub fn push(&mut self, arg: &[u8]) {
        self.spans.push(Span::new(self.buffer.len(), arg.len()));
        self.buffer.extend_from_slice(arg);
    }

    /// The arguments.
    #[must_use]
    pub fn args(&self) -> Args<'_> {
        Args::new(&self.buffer, &self.spans)
    }

    /// Bytes of memory that the copy occupies.
    #[must_use]
    pub fn reserved_bytes(&self) -> usize {
        self.buffer.capacity() + self.spans.capacity() * size_of::<Span>()
    }
}

impl<'t> FromIterator<&'t [u8]> for OwnedArgs {
    fn from_iter<I: IntoIterator<Item = &'t [u8]>>(items: I) -> Self {
        let mut own = Self::default();
        for item in items {
            own.push(item);
        }
        own
    }
}
