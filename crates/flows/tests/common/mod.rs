//! What tests of crashes have in common: patterns, a journal that can be taken back, and chance.

use headwater_base::Limits;
use headwater_flows::{Journal, Memory, Record};
use headwater_pattern::{Join, Pattern};
use std::cell::RefCell;
use std::rc::Rc;

/// The pattern that is written so.
pub(crate) fn pattern(text: &str) -> Pattern {
    Join::parse(&format!("{text} = copy {text}"), &Limits::default()).unwrap().output
}

/// A journal that a crash can take back to the last commit.
#[derive(Clone, Debug, Default)]
pub(crate) struct Shared(pub(crate) Rc<RefCell<Memory>>);

impl Journal for Shared {
    fn append(&mut self, record: &Record) {
        self.0.borrow_mut().append(record);
    }
    fn read(&mut self, from: u64, most: usize, each: &mut dyn FnMut(Record)) {
        let mut read = Vec::new();
        self.0.borrow_mut().read(from, most, &mut |record| read.push(record));
        read.into_iter().for_each(each);
    }
    fn release(&mut self, below: u64) {
        self.0.borrow_mut().release(below);
    }
    fn first(&self) -> u64 {
        self.0.borrow().first()
    }
    fn end(&self) -> u64 {
        self.0.borrow().end()
    }
    fn put(&mut self, name: &[u8], state: Option<&[u8]>) {
        self.0.borrow_mut().put(name, state);
    }
    fn states(&mut self, prefix: &[u8], each: &mut dyn FnMut(&[u8], &[u8])) {
        let mut all = Vec::new();
        self.0.borrow_mut().states(prefix, &mut |a, b| all.push((a.to_vec(), b.to_vec())));
        all.iter().for_each(|(name, state)| each(name, state));
    }
}

/// Random numbers from a seed.
pub(crate) struct Draws(pub(crate) u64);

impl Draws {
    /// One below `most`.
    pub(crate) fn below(&mut self, most: u64) -> u64 {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % most
    }
}
