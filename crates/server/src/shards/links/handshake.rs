//! How two shards that connect to each other tell who they are, and prove that they are of one cluster.
//!
//! ```text
//! dials    magic:4 version:2 cluster:4+ from:2 epoch:8 to:2 nonce:32
//! accepts  magic:4 version:2 epoch:8 nonce:32 proof:32
//! dials    proof:32
//! ```
//!
//! Each is a frame: a length of 4 bytes, and what it says. A proof is an HMAC-SHA-256 of all that was said before it, with the secret of the cluster:
//! so nobody can take what one has said to another for its own, nor say it again later.

use headwater_base::Shard;
use headwater_base::wire::{WireReader, put_bytes, put_u16, put_u64};
use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;

const MAGIC: [u8; 4] = *b"HWLK";
/// The version of the messages that go over a link: shards whose versions differ do not understand each other.
const VERSION: u16 = 4;
pub(super) const NONCE_BYTES: usize = 32;
const PROOF_BYTES: usize = 32;
/// No frame of a handshake has more bytes.
pub(super) const FRAME_BYTES_MAX: usize = 1024;

pub(crate) const SECRET_BYTES: usize = 32;

/// The secret of a cluster.
pub(crate) type Secret = [u8; SECRET_BYTES];

/// Who proves something.
#[derive(Clone, Copy)]
pub(super) enum Side {
    Dials,
    Accepts,
}

/// What the shard that dials says of itself, and of whom it wants.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Greeting {
    pub(super) cluster: String,
    pub(super) from: Shard,
    pub(super) epoch: u64,
    pub(super) to: Shard,
    pub(super) nonce: [u8; NONCE_BYTES],
}

fn mac(secret: &Secret, side: Side, said: &[&[u8]]) -> Hmac<Sha256> {
    let mut mac = Hmac::<Sha256>::new_from_slice(secret).expect("a key of any length serves");
    mac.update(match side {
        Side::Dials => b"dials",
        Side::Accepts => b"accepts",
    });
    for part in said {
        mac.update(&(part.len() as u64).to_le_bytes());
        mac.update(part);
    }
    mac
}

/// What proves that a side knows the secret, after all that was said.
pub(super) fn proof(secret: &Secret, side: Side, said: &[&[u8]]) -> Vec<u8> {
    mac(secret, side, said).finalize().into_bytes().to_vec()
}

/// Whether these bytes prove it.
pub(super) fn is_proof(secret: &Secret, side: Side, said: &[&[u8]], proof: &[u8]) -> bool {
    mac(secret, side, said).verify_slice(proof).is_ok()
}

fn begin() -> Vec<u8> {
    let mut bytes = MAGIC.to_vec();
    put_u16(&mut bytes, VERSION.into());
    bytes
}

/// Reads how a frame begins.
fn read_beginning(bytes: &mut WireReader<'_>) -> Result<(), String> {
    if bytes.cut(MAGIC.len()) != Some(&MAGIC[..]) {
        return Err(String::from("it is no shard of a Headwater cluster"));
    }
    match bytes.u16() {
        Some(version) if version == usize::from(VERSION) => Ok(()),
        Some(version) => {
            Err(format!("it speaks version {version} of the links, and this one {VERSION}"))
        }
        None => Err(String::from("its greeting is cut")),
    }
}

impl Greeting {
    pub(super) fn encode(&self) -> Vec<u8> {
        let mut bytes = begin();
        put_bytes(&mut bytes, self.cluster.as_bytes());
        put_u16(&mut bytes, self.from.0.into());
        put_u64(&mut bytes, self.epoch);
        put_u16(&mut bytes, self.to.0.into());
        bytes.extend_from_slice(&self.nonce);
        bytes
    }

    /// # Errors
    /// Why these bytes are none.
    pub(super) fn decode(bytes: &[u8]) -> Result<Self, String> {
        let mut bytes = WireReader::of(bytes);
        read_beginning(&mut bytes)?;
        let mut read = || {
            let cluster = bytes.text()?.to_owned();
            let from = Shard(bytes.u16()? as u16);
            let (epoch, to) = (bytes.u64()?, Shard(bytes.u16()? as u16));
            let nonce = bytes.cut(NONCE_BYTES)?.try_into().ok()?;
            bytes.rest().is_empty().then_some(Self { cluster, from, epoch, to, nonce })
        };
        read().ok_or_else(|| String::from("its greeting is cut"))
    }
}

/// What the shard that accepts answers: its epoch, a number of its own, and its proof.
pub(super) fn answer(
    secret: &Secret,
    greeting: &[u8],
    epoch: u64,
    nonce: &[u8; NONCE_BYTES],
) -> Vec<u8> {
    let mut bytes = begin();
    put_u64(&mut bytes, epoch);
    bytes.extend_from_slice(nonce);
    let proof = proof(secret, Side::Accepts, &[greeting, &bytes]);
    bytes.extend_from_slice(&proof);
    bytes
}

/// Reads an answer to a greeting: the epoch of who answers.
///
/// # Errors
/// The bytes are no answer to a greeting, or do not prove that who answers knows the secret.
pub(super) fn read_answer(secret: &Secret, greeting: &[u8], answer: &[u8]) -> Result<u64, String> {
    let mut bytes = WireReader::of(answer);
    read_beginning(&mut bytes)?;
    let epoch = bytes.u64();
    let nonce = bytes.cut(NONCE_BYTES);
    let (Some(epoch), Some(_), proof) = (epoch, nonce, bytes.rest()) else {
        return Err(String::from("its answer is cut"));
    };
    let said = &answer[..answer.len() - proof.len()];
    match proof.len() == PROOF_BYTES && is_proof(secret, Side::Accepts, &[greeting, said], proof) {
        true => Ok(epoch),
        false => Err(String::from("it does not know the secret of the cluster")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn greeting() -> Greeting {
        let (cluster, nonce) = (String::from("shop"), [7; NONCE_BYTES]);
        Greeting { cluster, from: Shard(1), epoch: 1 << 40, to: Shard(2), nonce }
    }

    #[test]
    fn greetings_arrive_and_what_is_cut_or_foreign_is_refused() {
        let bytes = greeting().encode();
        assert_eq!(Greeting::decode(&bytes), Ok(greeting()));
        for end in 0..bytes.len() {
            assert!(Greeting::decode(&bytes[..end]).is_err(), "{end}");
        }
        let longer = [&bytes[..], &[0]].concat();
        assert!(Greeting::decode(&longer).is_err());
        let mut newer = bytes.clone();
        newer[4] = 9;
        let why = Greeting::decode(&newer).unwrap_err();
        assert!(why.contains("version 9"), "{why}");
        assert!(Greeting::decode(b"GET / HTTP/1.1\r\n").unwrap_err().contains("no shard"));
    }

    #[test]
    fn a_proof_is_of_one_conversation_one_side_and_one_secret() {
        let (secret, other) = ([1; 32], [2; 32]);
        let greeting = greeting().encode();
        let answer = answer(&secret, &greeting, 9, &[3; NONCE_BYTES]);
        assert_eq!(read_answer(&secret, &greeting, &answer), Ok(9));
        assert!(read_answer(&other, &greeting, &answer).is_err());
        assert!(read_answer(&secret, &greeting[1..], &answer).is_err());
        for end in 0..answer.len() {
            assert!(read_answer(&secret, &greeting, &answer[..end]).is_err(), "{end}");
        }
        let said = [&greeting[..], &answer];
        let proof = proof(&secret, Side::Dials, &said);
        assert!(is_proof(&secret, Side::Dials, &said, &proof));
        assert!(!is_proof(&secret, Side::Accepts, &said, &proof));
        assert!(!is_proof(&secret, Side::Dials, &said[..1], &proof));
        assert!(!is_proof(&secret, Side::Dials, &said, &proof[1..]));
    }
}
