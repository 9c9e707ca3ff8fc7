//! What is defined here, in a form that two shards compare at a glance, and what another shard has in the place of it.
//!
//! A shard of a cluster may have missed a definition because it had no owner when the others executed it, or have one that the first shard
//! has missed. The first shard's count: one that differs takes them over, and begins anew with them.

use super::EmbeddedStore;
use crate::replicated::ReplicaEnd;
use headwater_base::hash::stable_hash;
use headwater_base::wire::{WireReader, put_bytes, put_u32};
use headwater_keep::Definition;
use std::collections::HashMap;

/// A hash of all definitions, whatever their order.
#[derive(Debug, Default)]
pub(super) struct DefinitionDigest {
    /// The hash of the text of each, by kind and name.
    each: HashMap<Vec<u8>, u64>,
    all: u64,
}

fn key_of(kind: &str, name: &[u8]) -> Vec<u8> {
    [kind.as_bytes(), name].join(&0)
}

fn hash_of(key: &[u8], text: &[u8]) -> u64 {
    stable_hash(stable_hash(0, key), text)
}

impl DefinitionDigest {
    pub(super) fn of(definitions: &[Definition]) -> Self {
        let mut digest = Self::default();
        definitions.iter().for_each(|it| digest.define(&it.kind, &it.name, &it.text));
        digest
    }

    pub(super) fn define(&mut self, kind: &str, name: &[u8], text: &[u8]) {
        self.undefine(kind, name);
        let key = key_of(kind, name);
        let hash = hash_of(&key, text);
        self.all ^= hash;
        self.each.insert(key, hash);
    }

    pub(super) fn undefine(&mut self, kind: &str, name: &[u8]) {
        if let Some(hash) = self.each.remove(&key_of(kind, name)) {
            self.all ^= hash;
        }
    }
}

/// The digest of these definitions.
pub(crate) fn digest_of(definitions: &[Definition]) -> u64 {
    DefinitionDigest::of(definitions).all
}

/// Definitions as bytes: what [`read_definitions`] reads.
fn write_definitions(definitions: &[Definition]) -> Vec<u8> {
    let mut bytes = Vec::new();
    put_u32(&mut bytes, definitions.len());
    for Definition { kind, name, text } in definitions {
        [kind.as_bytes(), name, text].into_iter().for_each(|part| put_bytes(&mut bytes, part));
    }
    bytes
}

/// The definitions in these bytes; `None`: they are none.
pub(crate) fn read_definitions(bytes: &[u8]) -> Option<Vec<Definition>> {
    let bytes = &mut WireReader::of(bytes);
    // Each has three lengths at least.
    let all = bytes.list(12, |bytes| {
        let kind = bytes.text()?.to_owned();
        let (name, text) = (bytes.bytes()?.to_vec(), bytes.bytes()?.to_vec());
        Some(Definition { kind, name, text })
    })?;
    bytes.rest().is_empty().then_some(all)
}

impl EmbeddedStore {
    /// The digest of what is defined here, where this is a shard of a cluster.
    pub(crate) fn definitions_digest(&self) -> Option<u64> {
        self.replica.as_ref().map(|_| self.defined.all)
    }

    /// All that is defined here, as bytes; `None`: not all of it can be read yet.
    pub(crate) fn definitions(&self) -> Option<Vec<u8>> {
        let all = self.store.definitions().ok()?;
        (digest_of(&all) == self.defined.all).then(|| write_definitions(&all))
    }

    /// Has these definitions and no others from now on, and the process begin anew with them, once they are in the log.
    pub(crate) fn take_over_definitions(&mut self, definitions: &[Definition]) {
        let theirs = DefinitionDigest::of(definitions);
        let is_gone = |key: &&Vec<u8>| !theirs.each.contains_key(*key);
        let gone: Vec<Vec<u8>> = self.defined.each.keys().filter(is_gone).cloned().collect();
        for key in gone {
            let Some(split) = key.iter().position(|&byte| byte == 0) else { continue };
            if let Ok(kind) = str::from_utf8(&key[..split]) {
                self.undefine(kind, &key[split + 1..]);
            }
        }
        for Definition { kind, name, text } in definitions {
            let key = key_of(kind, name);
            if self.defined.each.get(&key) != theirs.each.get(&key) {
                self.define_text(kind, name, text);
            }
        }
        self.replica.iter().for_each(ReplicaEnd::begin_anew);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn definition(kind: &str, name: &str, text: &str) -> Definition {
        Definition { kind: kind.to_owned(), name: name.into(), text: text.into() }
    }

    #[test]
    fn digests_are_those_of_what_is_defined_whatever_the_way_there() {
        let all = [definition("join", "a", "one"), definition("table", "a", "two")];
        let digest = DefinitionDigest::of(&all);
        let mut other = DefinitionDigest::default();
        for (kind, name, text) in [
            ("table", "a", "before"),
            ("user", "b", ""),
            ("table", "a", "two"),
            ("join", "a", "one"),
        ] {
            other.define(kind, name.as_bytes(), text.as_bytes());
        }
        assert_ne!(other.all, digest.all);
        other.undefine("user", b"b");
        other.undefine("user", b"nobody");
        assert_eq!(other.all, digest.all);
        other.define("join", b"a", b"two");
        assert_ne!(other.all, digest.all);
        assert_ne!(
            DefinitionDigest::of(&[definition("a", "b", "c")]).all,
            DefinitionDigest::of(&[definition("a", "c", "b")]).all
        );
    }

    #[test]
    fn definitions_arrive_and_what_is_cut_is_refused() {
        let all = [definition("join", "a", "one"), definition("user", "", "\0")];
        let bytes = write_definitions(&all);
        let read = read_definitions(&bytes).unwrap();
        assert_eq!(format!("{read:?}"), format!("{all:?}"));
        for end in 0..bytes.len() {
            assert!(read_definitions(&bytes[..end]).is_none(), "{end}");
        }
        assert!(read_definitions(&[&bytes[..], &[0]].concat()).is_none());
    }
}
