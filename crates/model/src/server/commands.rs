//! What commands about data do and answer, told by the base keys, the joins and a recomputation.

use super::caches::Event;
use super::expected::{Expected, KeySet};
use super::state::State;
use crate::join::Join;
use crate::oracle::{Pairs, Verdict, within};
use headwater_base::prefix_end;
use std::collections::BTreeSet;

/// A request.
pub type Words = Vec<Vec<u8>>;

const OK: Expected = Expected::Status("OK");
const JOINED: Expected = Expected::Refused(&["JOINED"]);
/// Either refusal is as right where a request has two faults.
const WRONG: Expected = Expected::Refused(&["ERR", "JOINED"]);
/// Stands for a key that has one byte more than keys may have.
pub(super) const LONG_KEY: &str = "LONG.KEY";
/// How many bytes that is.
pub(super) const LONG_KEY_BYTES: usize = 1025;

/// Text in capitals, as names of commands and options are compared.
pub(super) fn upper(word: &[u8]) -> String {
    String::from_utf8_lossy(word).to_ascii_uppercase()
}

pub(super) fn number(word: &[u8]) -> Option<i64> {
    let text = std::str::from_utf8(word).ok()?;
    text.parse::<i64>().ok().filter(|number| number.to_string() == text)
}

/// Whether a request names a command with as many arguments as it must have.
pub(super) fn is_known(words: &[Vec<u8>]) -> bool {
    let least = match upper(&words[0]).as_str() {
        "DBSIZE" | "FLUSHALL" | "MULTI" | "EXEC" | "DISCARD" | "UNWATCH" | "PING" | "JOIN.LIST" => {
            1
        }
        "GET" | "DEL" | "UNLINK" | "EXISTS" | "MGET" | "INCR" | "DECR" | "STRLEN" | "TYPE"
        | "KEYS" | "PREFIX" | "PERSIST" | "PEXPIRETIME" | "GETDEL" | "WATCH" | "ECHO" | "SCAN"
        | "CLIENT" | "JOIN.DROP" | "PUBSUB" | "SUBSCRIBE" | "UNSUBSCRIBE" | "PSUBSCRIBE" => 2,
        "SET" | "MSET" | "MSETNX" | "INCRBY" | "APPEND" | "COPY" | "RENAME" | "RENAMENX"
        | "RANGE" | "RANGE.DEL" | "PEXPIREAT" | "VERIFY" | "PUBLISH" | "WAIT" | "JOIN.ADD"
        | "TABLE.SET" => 3,
        "BITCOUNT" => 2,
        "GETBIT" => 3,
        "GETRANGE" | "SETBIT" | "BITOP" => 4,
        _ => return false,
    };
    words.len() >= least
}

impl State {
    /// The value that a read of `key` sees.
    pub(super) fn value(&mut self, key: &[u8]) -> Option<Vec<u8>> {
        if let Some((value, _)) = self.oracle.base.get(key) {
            return Some(value.clone());
        }
        if self.oracle.owners(key).is_empty() {
            return None;
        }
        self.seen().get(key).cloned()
    }

    pub(super) fn read(&mut self, key: &[u8]) -> Option<Vec<u8>> {
        let value = self.value(key);
        self.events.push(Event::Read(key.to_vec(), value.clone()));
        value
    }

    fn is_there(&mut self, key: &[u8]) -> bool {
        self.value(key).is_some()
    }

    pub(super) fn owned(&self, key: &[u8]) -> bool {
        !self.oracle.owners(key).is_empty()
    }

    /// Why a key cannot be written.
    pub(super) fn refusal(&self, keys: &[&Vec<u8>]) -> Option<Expected> {
        let owned = keys.iter().any(|key| self.owned(key));
        let long = keys.iter().any(|key| *key == LONG_KEY.as_bytes());
        match (owned, long) {
            (false, false) => None,
            (true, false) => Some(JOINED),
            _ => Some(WRONG),
        }
    }

    pub(super) fn put(&mut self, key: &[u8], value: Vec<u8>, expiry: Option<u64>) {
        self.oracle.base.insert(key.to_vec(), (value, expiry));
        self.wrote(key);
        // What would expire in the past is not there.
        self.oracle.base.retain(|_, (_, at)| at.is_none_or(|at| at > super::PAST));
    }

    pub(super) fn remove(&mut self, key: &[u8]) -> bool {
        let was = self.oracle.base.remove(key).is_some();
        if was {
            self.wrote(key);
        }
        was
    }

    pub(super) fn expiry(&self, key: &[u8]) -> Option<u64> {
        self.oracle.base.get(key).and_then(|(_, expiry)| *expiry)
    }

    /// Executes a command about data; `None` for one about something else.
    pub(super) fn data(&mut self, words: &[Vec<u8>]) -> Option<Expected> {
        let name = upper(&words[0]);
        let read = self.reading(&name, words);
        let read = read.or_else(|| self.writing(&name, words));
        let read = read.or_else(|| self.bits(&name, words));
        let read = read.or_else(|| self.over_keys(&name, words));
        read.or_else(|| self.about_all(&name, words))
    }

    fn reading(&mut self, name: &str, words: &[Vec<u8>]) -> Option<Expected> {
        let of = |value: Option<Vec<u8>>| value.map_or(Expected::Null, Expected::Bulk);
        let key = words.get(1);
        Some(match name {
            "GET" => of(self.read(key?)),
            "MGET" => Expected::List(words[1..].iter().map(|key| of(self.read(key))).collect()),
            "EXISTS" => {
                let there = words[1..].iter().filter(|key| self.read(key).is_some()).count();
                Expected::Integer(there as i64)
            }
            "STRLEN" => Expected::Integer(self.read(key?).map_or(0, |value| value.len() as i64)),
            "TYPE" => Expected::Status(if self.read(key?).is_some() { "string" } else { "none" }),
            "GETRANGE" => {
                let value = self.read(key?).unwrap_or_default();
                let (from, to) = (number(&words[2])?, number(&words[3])?);
                let length = value.len() as i64;
                let absolute = |at: i64| if at < 0 { (at + length).max(0) } else { at };
                let backwards = from < 0 && to < 0 && from > to;
                let (from, to) = (absolute(from), absolute(to).min(length - 1));
                let empty = backwards || length == 0 || from > to;
                let part = if empty { &[][..] } else { &value[from as usize..=to as usize] };
                Expected::Bulk(part.to_vec())
            }
            "PEXPIRETIME" => Expected::Integer(match (self.read(key?), self.expiry(key?)) {
                (None, _) => -2,
                (_, None) => -1,
                (_, Some(at)) => at as i64,
            }),
            "RANGE" | "PREFIX" => self.range(name, words),
            _ => return None,
        })
    }

    fn range(&mut self, name: &str, words: &[Vec<u8>]) -> Expected {
        let (first, last, options) = match name {
            "RANGE" => (words[1].clone(), words[2].clone(), &words[3..]),
            _ => (words[1].clone(), prefix_end(&words[1]), &words[2..]),
        };
        let inside = self.seen().iter().filter(|(key, _)| within(key, &first, &last));
        let mut pairs: Vec<_> = inside.map(|(key, value)| (key.clone(), value.clone())).collect();
        let (mut only, mut limited) = (String::new(), false);
        let mut options = options.iter();
        while let Some(word) = options.next() {
            match upper(word).as_str() {
                "REV" => pairs.reverse(),
                "LIMIT" => {
                    let limit = options.next().and_then(|word| number(word)).unwrap_or(0);
                    pairs.truncate(limit as usize);
                    limited = true;
                }
                other => only = other.to_owned(),
            }
        }
        let all: Pairs = pairs.iter().cloned().collect();
        if only.is_empty() && !limited {
            self.events.push(Event::Range { bounds: (first, last), pairs: all });
        }
        let bulk = Expected::Bulk;
        match only.as_str() {
            "COUNT" => Expected::Integer(pairs.len() as i64),
            "KEYS" => Expected::List(pairs.into_iter().map(|(key, _)| bulk(key)).collect()),
            "VALUES" => Expected::List(pairs.into_iter().map(|(_, value)| bulk(value)).collect()),
            _ => Expected::Pairs(
                pairs.into_iter().map(|(key, value)| (bulk(key), bulk(value))).collect(),
            ),
        }
    }

    fn writing(&mut self, name: &str, words: &[Vec<u8>]) -> Option<Expected> {
        let key = words.get(1)?;
        Some(match name {
            "SET" => self.set(words),
            "INCR" | "DECR" | "INCRBY" => {
                let by = match name {
                    "INCR" => 1,
                    "DECR" => -1,
                    _ => number(&words[2])?,
                };
                let old = self.value(key);
                let sum = number(&old.unwrap_or_else(|| b"0".to_vec()));
                let sum = sum.and_then(|number| number.checked_add(by));
                match (self.refusal(&[key]), sum) {
                    (Some(refusal), Some(_)) => refusal,
                    (Some(_), None) => WRONG,
                    (None, None) => Expected::Refused(&["ERR"]),
                    (None, Some(sum)) => {
                        let expiry = self.expiry(key);
                        self.put(key, sum.to_string().into_bytes(), expiry);
                        Expected::Integer(sum)
                    }
                }
            }
            "APPEND" => {
                if let Some(refusal) = self.refusal(&[key]) {
                    return Some(refusal);
                }
                let mut value = self.value(key).unwrap_or_default();
                value.extend_from_slice(&words[2]);
                let (length, expiry) = (value.len(), self.expiry(key));
                if words[2].is_empty() {
                    self.maybe_wrote(key);
                }
                self.put(key, value, expiry);
                Expected::Integer(length as i64)
            }
            "GETDEL" => {
                if self.owned(key) {
                    return Some(JOINED);
                }
                let value = self.value(key);
                self.remove(key);
                value.map_or(Expected::Null, Expected::Bulk)
            }
            "PEXPIREAT" => {
                let at = number(&words[2])? as u64;
                match (self.value(key), self.refusal(&[key])) {
                    (None, _) => Expected::Integer(0),
                    (Some(_), Some(refusal)) => refusal,
                    (Some(value), None) => {
                        self.put(key, value, Some(at));
                        Expected::Integer(1)
                    }
                }
            }
            "PERSIST" => match (self.value(key), self.expiry(key)) {
                (Some(value), Some(_)) => {
                    self.put(key, value, None);
                    Expected::Integer(1)
                }
                _ => Expected::Integer(0),
            },
            _ => return None,
        })
    }

    fn set(&mut self, words: &[Vec<u8>]) -> Expected {
        let key = &words[1];
        let there = self.is_there(key);
        let (mut acts, mut get, mut expiry) = (true, false, None);
        let mut options = words[3..].iter();
        while let Some(word) = options.next() {
            match upper(word).as_str() {
                "NX" => acts = !there,
                "XX" => acts = there,
                "GET" => get = true,
                "KEEPTTL" => expiry = self.expiry(key),
                _ => expiry = options.next().and_then(|at| number(at)).map(|at| at as u64),
            }
        }
        let old = self.value(key).map_or(Expected::Null, Expected::Bulk);
        if acts {
            if let Some(refusal) = self.refusal(&[key]) {
                return refusal;
            }
            self.put(key, words[2].clone(), expiry);
        }
        match (get, acts) {
            (true, _) => old,
            (false, true) => OK,
            (false, false) => Expected::Null,
        }
    }

    fn over_keys(&mut self, name: &str, words: &[Vec<u8>]) -> Option<Expected> {
        Some(match name {
            "DEL" | "UNLINK" => {
                let keys: Vec<&Vec<u8>> = words[1..].iter().collect();
                // A single one that is too long is not there, which is as well.
                let refusal = self.refusal(&keys).filter(|_| keys.len() > 1 || self.owned(keys[0]));
                if let Some(refusal) = refusal {
                    return Some(refusal);
                }
                let removed = words[1..].iter().filter(|key| self.remove(key)).count();
                Expected::Integer(removed as i64)
            }
            "MSET" | "MSETNX" => {
                let keys: Vec<&Vec<u8>> = words[1..].iter().step_by(2).collect();
                if words.len().is_multiple_of(2) {
                    return Some(Expected::Refused(&["ERR"]));
                }
                let absent_wanted = name == "MSETNX";
                if absent_wanted && keys.iter().any(|key| self.is_there(key)) {
                    return Some(Expected::Integer(0));
                }
                if let Some(refusal) = self.refusal(&keys) {
                    return Some(refusal);
                }
                for pair in words[1..].chunks(2) {
                    self.put(&pair[0], pair[1].clone(), None);
                }
                if absent_wanted { Expected::Integer(1) } else { OK }
            }
            "COPY" => {
                let (from, to) = (&words[1], &words[2]);
                let Some(value) = self.value(from) else { return Some(Expected::Integer(0)) };
                if words.len() == 3 && self.is_there(to) {
                    return Some(Expected::Integer(0));
                }
                if let Some(refusal) = self.refusal(&[to]) {
                    return Some(refusal);
                }
                let expiry = self.expiry(from);
                self.put(to, value, expiry);
                Expected::Integer(1)
            }
            "RENAME" | "RENAMENX" => self.rename(&words[1], &words[2], name == "RENAMENX"),
            _ => return None,
        })
    }

    fn rename(&mut self, from: &Vec<u8>, to: &Vec<u8>, if_absent: bool) -> Expected {
        let done = |acts| if if_absent { Expected::Integer(i64::from(acts)) } else { OK };
        let Some(value) = self.value(from) else { return Expected::Refused(&["ERR"]) };
        if self.owned(from) {
            return JOINED;
        }
        if from == to || (if_absent && self.is_there(to)) {
            self.maybe_wrote(from);
            return done(false);
        }
        if let Some(refusal) = self.refusal(&[to]) {
            return refusal;
        }
        let expiry = self.expiry(from);
        self.put(to, value, expiry);
        self.remove(from);
        done(true)
    }

    /// The keys that begin like this, as far as they are stored.
    fn stored(&self, start: &[u8]) -> KeySet {
        let base: BTreeSet<_> = self.oracle.base.keys().cloned().collect();
        let base = base.into_iter().filter(|key| key.starts_with(start)).collect();
        let joins = self.oracle.joins.iter();
        KeySet { base, derived: joins.map(|joined| joined.join.output.clone()).collect() }
    }

    /// All keys that a whole scan gives.
    #[must_use]
    pub fn all_keys(&self) -> KeySet {
        self.stored(b"")
    }

    fn about_all(&mut self, name: &str, words: &[Vec<u8>]) -> Option<Expected> {
        Some(match name {
            "KEYS" => Expected::Keys(self.stored(words[1].strip_suffix(b"*")?)),
            "SCAN" => {
                let some = words[1] == b"0" && !self.oracle.base.is_empty();
                Expected::Scanned(self.stored(b""), some)
            }
            "DBSIZE" => {
                let base = self.oracle.base.len() as i64;
                let exact = self.oracle.joins.is_empty();
                if exact { Expected::Integer(base) } else { Expected::AtLeast(base) }
            }
            "RANGE.DEL" => {
                let keys: Vec<_> = self.oracle.base.keys().cloned().collect();
                let inside = keys.iter().filter(|key| within(key, &words[1], &words[2]));
                let removed = inside.filter(|key| self.remove(key)).count();
                Expected::Integer(removed as i64)
            }
            "FLUSHALL" => {
                for key in self.oracle.base.keys().cloned().collect::<Vec<_>>() {
                    self.remove(&key);
                }
                self.wrote_anything();
                OK
            }
            "VERIFY" => Expected::List(Vec::new()),
            "JOIN.ADD" => self.join_add(words),
            "JOIN.DROP" => {
                let name = String::from_utf8_lossy(&words[1]).into_owned();
                let was = self.oracle.uninstall(&name);
                self.wrote_anything();
                if was { OK } else { Expected::Refused(&["ERR"]) }
            }
            "JOIN.LIST" => {
                let bulk = |text: &str| Expected::Bulk(text.as_bytes().to_vec());
                let joins = self.oracle.joins.iter().map(|joined| {
                    let spec = bulk(&joined.join.to_string());
                    let name = (bulk("name"), bulk(&joined.name));
                    Expected::Pairs(vec![name, (bulk("spec"), spec)])
                });
                Expected::List(joins.collect())
            }
            "TABLE.SET" => Expected::Same,
            _ => return None,
        })
    }

    fn join_add(&mut self, words: &[Vec<u8>]) -> Expected {
        let name = String::from_utf8_lossy(&words[1]).into_owned();
        let Some(join) = Join::parse(&String::from_utf8_lossy(&words[2])) else {
            return Expected::Refused(&["ERR"]);
        };
        match self.oracle.verdict(&name, &join, words.len() > 3) {
            Verdict::Accept => {
                let spec = join.to_string();
                self.oracle.install(&name, join);
                self.wrote_anything();
                let bulk = |text: &str| Expected::Bulk(text.as_bytes().to_vec());
                let spec = (bulk("spec"), bulk(&spec));
                Expected::Pairs(vec![spec, (bulk("warnings"), Expected::Same)])
            }
            Verdict::Refuse(Some(found)) => Expected::Naming(found),
            Verdict::Refuse(None) | Verdict::Unsure => Expected::Refused(&["ERR"]),
        }
    }
}
