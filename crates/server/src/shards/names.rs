//! Names that clients of any shard listen to, counted once however many shards have such clients.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

/// Names of one kind, with the number of shards at which somebody listens.
#[derive(Debug, Default)]
pub(crate) struct Names(Mutex<HashMap<Vec<u8>, usize>>);

impl Names {
    fn with<T>(&self, look: impl FnOnce(&mut HashMap<Vec<u8>, usize>) -> T) -> T {
        look(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Somebody listens at one more shard.
    pub(crate) fn add(&self, name: &[u8]) {
        self.with(|names| *names.entry(name.to_vec()).or_default() += 1);
    }

    /// Nobody listens any more at one shard.
    pub(crate) fn remove(&self, name: &[u8]) {
        self.with(|names| {
            if let Some(count) = names.get_mut(name) {
                *count -= 1;
                if *count == 0 {
                    names.remove(name);
                }
            }
        });
    }

    /// How many names there are.
    pub(crate) fn count(&self) -> usize {
        self.with(|names| names.len())
    }
}

/// Names of channels, and patterns.
#[derive(Clone, Debug, Default)]
pub(crate) struct Heard {
    /// Channels.
    pub(crate) channels: Arc<Names>,
    /// Patterns.
    pub(crate) patterns: Arc<Names>,
    /// Channels of SSUBSCRIBE.
    pub(crate) shard_channels: Arc<Names>,
}

#[cfg(test)]
mod tests {
    use super::Names;

    #[test]
    fn a_name_counts_once() {
        let names = Names::default();
        for name in [b"a", b"a", b"b"] {
            names.add(name);
        }
        assert_eq!(names.count(), 2);
        names.remove(b"b");
        names.remove(b"a");
        names.remove(b"unknown");
        assert_eq!(names.count(), 1);
        names.remove(b"a");
        assert_eq!(names.count(), 0);
    }
}
