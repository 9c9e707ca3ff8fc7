//! How two shards that connect to each other tell who they are, and prove that they are of one cluster.
//!
//! ```text
//! dials    magic:4 oldest:2 cluster:4+ from:2 epoch:8 to:2 nonce:32 [newest:2 …]
//! accepts  magic:4 oldest:2 epoch:8 nonce:32 [newest:2 …] proof:32
//! dials    proof:32
//! ```
//!
//! Each tells the formats of messages that its program reads. The newest one is left out where it is the oldest as well, and what is behind it is passed over: a later
//! program may tell more. The link has the newest format that both read; where there is none, both see that and end it.
//!
//! Each is a frame: a length of 4 bytes, and what it says. A proof is an HMAC-SHA-256 of all that was said before it, with the secret of the cluster:
//! so nobody can take what one has said to another for its own, nor say it again later.

use headwater_base::Shard;
use headwater_base::wire::{WireReader, put_bytes, put_u16, put_u64};
use headwater_log::FormatRange;
use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;

const MAGIC: [u8; 4] = *b"HWLK";
/// The formats of the messages that go over a link, which this program reads and writes. Whatever changes the bytes of messages (`shards::codec`, and what it
/// calls) needs a newer one, beside which those before go on being read and written until no program of a cluster has them alone.
pub(crate) const LINK_FORMATS: FormatRange = FormatRange::one(4);
pub(super) const NONCE_BYTES: usize = 32;
const PROOF_BYTES: usize = 32;
/// No frame of a handshake has more bytes.
pub(super) const FRAME_BYTES_MAX: usize = 1024;

pub(crate) const SECRET_BYTES: usize = 32;

/// The secret of a cluster.
pub(crate) type Secret = [u8; SECRET_BYTES];

/// Who proves something.
#[derive(Clone, Copy)]
pub(crate) enum Side {
    Dials,
    Accepts,
    /// One that passes a client on, which is no shard.
    Forwards,
}

/// What the shard that dials says of itself, and of whom it wants.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Greeting {
    pub(super) cluster: String,
    pub(super) from: Shard,
    pub(super) epoch: u64,
    pub(super) to: Shard,
    pub(super) nonce: [u8; NONCE_BYTES],
    pub(super) formats: FormatRange,
}

/// What the shard that accepts says of itself.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Answer {
    pub(super) epoch: u64,
    pub(super) formats: FormatRange,
}

/// The format of a link.
///
/// # Errors
/// The other one reads none that this one reads.
pub(super) fn agree(mine: FormatRange, theirs: FormatRange) -> Result<u16, String> {
    mine.agree(theirs).ok_or_else(|| {
        format!("its program reads {theirs} of messages between shards, and this one {mine}")
    })
}

fn mac(secret: &Secret, side: Side, said: &[&[u8]]) -> Hmac<Sha256> {
    let mut mac = Hmac::<Sha256>::new_from_slice(secret).expect("a key of any length serves");
    mac.update(match side {
        Side::Dials => &b"dials"[..],
        Side::Accepts => b"accepts",
        Side::Forwards => b"forwards",
    });
    for part in said {
        mac.update(&(part.len() as u64).to_le_bytes());
        mac.update(part);
    }
    mac
}

/// What proves that a side knows the secret, after all that was said.
pub(crate) fn proof(secret: &Secret, side: Side, said: &[&[u8]]) -> Vec<u8> {
    mac(secret, side, said).finalize().into_bytes().to_vec()
}

/// Whether these bytes prove it.
pub(crate) fn is_proof(secret: &Secret, side: Side, said: &[&[u8]], proof: &[u8]) -> bool {
    mac(secret, side, said).verify_slice(proof).is_ok()
}

fn begin(formats: FormatRange) -> Vec<u8> {
    let mut bytes = MAGIC.to_vec();
    put_u16(&mut bytes, formats.oldest.into());
    bytes
}

/// Reads how a frame begins: the oldest format.
fn read_beginning(bytes: &mut WireReader<'_>) -> Result<u16, String> {
    if bytes.cut(MAGIC.len()) != Some(&MAGIC[..]) {
        return Err(String::from("it is no shard of a Headwater cluster"));
    }
    bytes.u16().map(|oldest| oldest as u16).ok_or_else(|| String::from("its greeting is cut"))
}

fn put_newest(out: &mut Vec<u8>, formats: FormatRange) {
    if formats.newest != formats.oldest {
        put_u16(out, formats.newest.into());
    }
}

/// Reads the rest of what a side says, where the newest format may be.
fn read_newest(oldest: u16, rest: &[u8]) -> Option<FormatRange> {
    let newest = match rest.is_empty() {
        true => oldest,
        false => WireReader::of(rest).u16()? as u16,
    };
    (oldest <= newest).then_some(FormatRange { oldest, newest })
}

impl Greeting {
    pub(super) fn encode(&self) -> Vec<u8> {
        let mut bytes = begin(self.formats);
        put_bytes(&mut bytes, self.cluster.as_bytes());
        put_u16(&mut bytes, self.from.0.into());
        put_u64(&mut bytes, self.epoch);
        put_u16(&mut bytes, self.to.0.into());
        bytes.extend_from_slice(&self.nonce);
        put_newest(&mut bytes, self.formats);
        bytes
    }

    /// # Errors
    /// Why these bytes are none.
    pub(super) fn decode(bytes: &[u8]) -> Result<Self, String> {
        let mut bytes = WireReader::of(bytes);
        let oldest = read_beginning(&mut bytes)?;
        let mut read = || {
            let cluster = bytes.text()?.to_owned();
            let from = Shard(bytes.u16()? as u16);
            let (epoch, to) = (bytes.u64()?, Shard(bytes.u16()? as u16));
            let nonce = bytes.cut(NONCE_BYTES)?.try_into().ok()?;
            let formats = read_newest(oldest, bytes.rest())?;
            Some(Self { cluster, from, epoch, to, nonce, formats })
        };
        read().ok_or_else(|| String::from("its greeting is cut"))
    }
}

/// What the shard that accepts answers: its epoch and formats, a number of its own, and its proof.
pub(super) fn answer(
    secret: &Secret,
    greeting: &[u8],
    says: Answer,
    nonce: &[u8; NONCE_BYTES],
) -> Vec<u8> {
    let mut bytes = begin(says.formats);
    put_u64(&mut bytes, says.epoch);
    bytes.extend_from_slice(nonce);
    put_newest(&mut bytes, says.formats);
    let proof = proof(secret, Side::Accepts, &[greeting, &bytes]);
    bytes.extend_from_slice(&proof);
    bytes
}

/// Reads an answer to a greeting.
///
/// # Errors
/// The bytes are no answer to a greeting, or do not prove that who answers knows the secret.
pub(super) fn read_answer(
    secret: &Secret,
    greeting: &[u8],
    answer: &[u8],
) -> Result<Answer, String> {
    let cut = || String::from("its answer is cut");
    let proof_at = answer.len().checked_sub(PROOF_BYTES).ok_or_else(cut)?;
    let (said, proof) = answer.split_at(proof_at);
    let mut bytes = WireReader::of(said);
    let oldest = read_beginning(&mut bytes)?;
    let (Some(epoch), Some(_)) = (bytes.u64(), bytes.cut(NONCE_BYTES)) else { return Err(cut()) };
    let formats = read_newest(oldest, bytes.rest()).ok_or_else(cut)?;
    match is_proof(secret, Side::Accepts, &[greeting, said], proof) {
        true => Ok(Answer { epoch, formats }),
        false => Err(String::from("it does not know the secret of the cluster")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FORMAT: FormatRange = FormatRange::one(3);
    const FORMATS: FormatRange = FormatRange { oldest: 3, newest: 5 };

    fn greeting(formats: FormatRange) -> Greeting {
        let (cluster, nonce) = (String::from("shop"), [7; NONCE_BYTES]);
        Greeting { cluster, from: Shard(1), epoch: 1 << 40, to: Shard(2), nonce, formats }
    }

    #[test]
    fn greetings_arrive_and_what_is_cut_or_foreign_is_refused() {
        for formats in [FORMAT, FORMATS] {
            let bytes = greeting(formats).encode();
            assert_eq!(Greeting::decode(&bytes), Ok(greeting(formats)));
            for end in 0..bytes.len() {
                // What is before the newest format is the greeting of one format alone.
                let is_older = formats == FORMATS && end == bytes.len() - 2;
                assert_eq!(Greeting::decode(&bytes[..end]).is_ok(), is_older, "{end}");
            }
        }
        // What a later program tells beside it is passed over.
        let longer = [&greeting(FORMATS).encode()[..], b"more"].concat();
        assert_eq!(Greeting::decode(&longer), Ok(greeting(FORMATS)));
        let mut wrong = greeting(FORMATS).encode();
        wrong[4] = 6;
        assert!(Greeting::decode(&wrong).is_err(), "the oldest is behind the newest");
        assert!(Greeting::decode(b"GET / HTTP/1.1\r\n").unwrap_err().contains("no shard"));
    }

    #[test]
    fn a_side_that_reads_no_format_of_the_other_one_names_both() {
        assert_eq!(agree(FORMATS, FORMAT), Ok(3));
        assert_eq!(
            agree(FORMATS, FormatRange::one(2)).unwrap_err(),
            "its program reads format 2 alone of messages between shards, and this one formats 3 to 5"
        );
    }

    #[test]
    fn a_proof_is_of_one_conversation_one_side_and_one_secret() {
        let (secret, other) = ([1; 32], [2; 32]);
        let greeting = greeting(FORMATS).encode();
        for formats in [FORMAT, FORMATS] {
            let says = Answer { epoch: 9, formats };
            let answer = answer(&secret, &greeting, says, &[3; NONCE_BYTES]);
            assert_eq!(read_answer(&secret, &greeting, &answer), Ok(says));
            assert!(read_answer(&other, &greeting, &answer).is_err());
            assert!(read_answer(&secret, &greeting[1..], &answer).is_err());
            for end in 0..answer.len() {
                assert!(read_answer(&secret, &greeting, &answer[..end]).is_err(), "{end}");
            }
            // Whoever changes what formats were told is found out.
            let mut changed = answer.clone();
            changed[4] = 1;
            assert!(read_answer(&secret, &greeting, &changed).is_err());
            let said = [&greeting[..], &answer];
            let proof = proof(&secret, Side::Dials, &said);
            assert!(is_proof(&secret, Side::Dials, &said, &proof));
            assert!(!is_proof(&secret, Side::Accepts, &said, &proof));
            assert!(!is_proof(&secret, Side::Dials, &said[..1], &proof));
            assert!(!is_proof(&secret, Side::Dials, &said, &proof[1..]));
        }
    }

    /// The greeting of a program that reads one format is the one of programs before there were ranges.
    #[test]
    fn programs_before_there_were_ranges_are_understood() {
        let before = b"HWLK\x03\x00";
        let greeting = greeting(FORMAT).encode();
        assert_eq!(greeting[..6], before[..]);
        assert_eq!(greeting.len(), 6 + 4 + 4 + 2 + 8 + 2 + NONCE_BYTES);
        let says = Answer { epoch: 9, formats: FORMAT };
        let answer = answer(&[1; 32], &greeting, says, &[3; NONCE_BYTES]);
        assert_eq!(answer[..6], before[..]);
        assert_eq!(answer.len(), 6 + 8 + NONCE_BYTES + PROOF_BYTES);
    }
}
