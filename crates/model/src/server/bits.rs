//! What commands about bits answer, bit by bit.

use super::commands::{number, upper};
use super::expected::Expected;
use super::state::State;

/// The bits of a value, the highest of each byte first.
fn bits(value: &[u8]) -> Vec<bool> {
    value.iter().flat_map(|byte| (0..8).map(move |at| byte >> (7 - at) & 1 == 1)).collect()
}

fn bytes(bits: &[bool]) -> Vec<u8> {
    let byte = |eight: &[bool]| eight.iter().fold(0, |byte, &bit| byte << 1 | u8::from(bit));
    bits.chunks(8).map(byte).collect()
}

impl State {
    /// Executes a command about bits; `None` for one about something else.
    pub(super) fn bits(&mut self, name: &str, words: &[Vec<u8>]) -> Option<Expected> {
        let key = words.get(1)?;
        Some(match name {
            "GETBIT" => {
                let bits = bits(&self.read(key).unwrap_or_default());
                let bit = bits.get(number(&words[2])? as usize).copied();
                Expected::Integer(i64::from(bit.unwrap_or(false)))
            }
            "BITCOUNT" => {
                let bits = bits(&self.read(key).unwrap_or_default());
                Expected::Integer(bits.iter().filter(|bit| **bit).count() as i64)
            }
            "SETBIT" => {
                if let Some(refusal) = self.refusal(&[key]) {
                    return Some(refusal);
                }
                let (at, bit) = (number(&words[2])? as usize, number(&words[3])? == 1);
                let old = self.value(key);
                let mut bits = bits(&old.clone().unwrap_or_default());
                bits.resize(bits.len().max((at / 8 + 1) * 8), false);
                let was = std::mem::replace(&mut bits[at], bit);
                let (new, expiry) = (bytes(&bits), self.expiry(key));
                if old.as_ref() != Some(&new) {
                    self.put(key, new, expiry);
                }
                Expected::Integer(i64::from(was))
            }
            "BITOP" => {
                let to = &words[2];
                let all: Vec<Vec<bool>> = words[3..]
                    .iter()
                    .map(|key| bits(&self.value(key).unwrap_or_default()))
                    .collect();
                let len = all.iter().map(Vec::len).max().unwrap_or(0);
                let operation = upper(key);
                let bit = |at: usize| {
                    let mut own = all.iter().map(|bits| bits.get(at).copied().unwrap_or(false));
                    match operation.as_str() {
                        "AND" => own.all(|bit| bit),
                        "OR" => own.any(|bit| bit),
                        "NOT" => own.all(|bit| !bit),
                        _ => own.filter(|bit| *bit).count() % 2 == 1,
                    }
                };
                let made = bytes(&(0..len).map(bit).collect::<Vec<_>>());
                // What is too long is not there, and is removed without a refusal.
                let writes = !made.is_empty() || self.owned(to);
                if let Some(refusal) = self.refusal(&[to]).filter(|_| writes) {
                    return Some(refusal);
                }
                let len = made.len();
                if made.is_empty() {
                    self.remove(to);
                } else {
                    self.put(to, made, None);
                }
                Expected::Integer(len as i64)
            }
            _ => return None,
        })
    }
}
