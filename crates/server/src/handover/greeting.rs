//! The first requests on a connection that a node passes a client on by.
//!
//! ```text
//! HEADWATER.FORWARD                      the owner answers with a nonce
//! HEADWATER.FORWARD tag proof state      it answers +OK
//! ```
//!
//! The owner gives each connection a nonce of its own, once, and the proof covers it: what somebody has read on the way says nothing on another connection.
//!
//! With `+OK` the client is the owner's, in the protocol that the state names. Another answer to the first request says that the owner does not know it, as an
//! older program does, or lets no client in; another one to the second says that it does not believe it ([`NO_PROOF`]), or does not take this client. The tag is
//! 16 random bytes, which neither the client nor anybody else knows: [`parting`](super::parting) begins with it. None of them ends a
//! line: who looks for the tag keeps back what may be its beginning, and never the end of an answer.

use crate::shards::links::{ProofOf, Secret, is_proof, proof, random};
use headwater_command::{Args, Reply};
use headwater_protocol::resp::{Encoder, Version};

/// The requests' name.
const NAME: &[u8] = b"HEADWATER.FORWARD";
/// No state has more bytes: nobody has logged in where it comes.
pub(crate) const STATE_BYTES_MAX: usize = 256 << 10;
/// What is answered to the second request.
pub(crate) const TAKEN: &[u8; 5] = b"+OK\r\n";
/// What stands before the nonce, in the answer to the first request.
pub(crate) const NONCE_FOLLOWS: &[u8; 5] = b"$32\r\n";
/// The bytes of a nonce.
pub(crate) const NONCE_BYTES: usize = 32;
/// What an owner says behind `-ERR ` that does not believe a request: it may be no owner any more, or not yet.
pub(crate) const NO_PROOF: &str = "it is no proof for the owner of this shard in this epoch";
/// What an owner says behind `-NOAUTH ` to a client who is one of its users no longer.
pub(crate) const NO_USER: &str =
    "the user of this connection is not there any more, or may not log in";
/// What an owner says behind `-ERR ` that has as many clients as it may.
pub(crate) const CLIENTS_MAX: &str = "max number of clients";
/// The bytes of a tag.
pub(crate) const TAG_BYTES: usize = 16;

/// What an owner gives a connection, so that nothing of another one serves there.
pub(crate) type Nonce = [u8; NONCE_BYTES];

/// What the two ends of a forwarded connection know it by.
pub(crate) type Tag = [u8; TAG_BYTES];

/// A tag for a connection.
pub(crate) fn new_tag() -> Tag {
    without_line_ends(random())
}

fn without_line_ends(tag: Tag) -> Tag {
    tag.map(|byte| if byte == b'\n' { 0 } else { byte })
}

/// A nonce for a connection.
pub(crate) fn new_nonce() -> Nonce {
    random()
}

fn encode(args: &[&[u8]]) -> Vec<u8> {
    let mut out = Vec::new();
    let mut request = Encoder::new(&mut out, Version::Resp2);
    request.array(args.len());
    args.iter().for_each(|arg| request.bulk(arg));
    out
}

/// The first request, which asks for a nonce.
pub(crate) fn first_request() -> Vec<u8> {
    encode(&[NAME])
}

/// The second one, to the owner of a shard in an epoch that has given this nonce.
pub(crate) fn request(
    secret: &Secret,
    nonce: &Nonce,
    (shard, epoch): (u16, u64),
    tag: &Tag,
    state: &[u8],
) -> Vec<u8> {
    let said = [nonce, &shard.to_be_bytes()[..], &epoch.to_be_bytes(), tag, state];
    let proof = proof(secret, ProofOf::Forwards, &said);
    encode(&[NAME, tag, &proof, state])
}

/// Whether this is one of these requests, whatever it says.
pub(crate) fn is_request(args: Args<'_>) -> bool {
    args.get(0) == Some(NAME)
}

/// Whether a request of them asks for a nonce.
pub(crate) fn is_first(args: Args<'_>) -> bool {
    args.len() == 1
}

/// The tag and the state of a request to the owner of this shard in this epoch that has given this nonce; `None`: it is not to be believed.
pub(crate) fn read<'a>(
    secret: &Secret,
    nonce: &Nonce,
    (shard, epoch): (u16, u64),
    args: Args<'a>,
) -> Option<(Tag, &'a [u8])> {
    let (tag, shown, state) = (args.get(1)?, args.get(2)?, args.get(3)?);
    let said = [nonce, &shard.to_be_bytes()[..], &epoch.to_be_bytes(), tag, state];
    let is_right = args.len() == 4 && is_proof(secret, ProofOf::Forwards, &said, shown);
    Some((tag.try_into().ok().filter(|_| is_right)?, state))
}

#[cfg(test)]
mod tests {
    use super::*;
    use headwater_command::OwnedArgs;
    use headwater_protocol::resp::{Limits, Parsed, RequestParser};

    fn parsed(bytes: &[u8]) -> OwnedArgs {
        let mut parser = RequestParser::new();
        let parsed = parser.parse(bytes, &Limits::for_values(1024));
        assert_eq!(parsed, Parsed::Request { consumed: bytes.len() });
        OwnedArgs::of(parser.args(bytes))
    }

    /// An answer that looked like the beginning of a tag would be kept back for ever.
    #[test]
    fn no_part_of_a_tag_is_the_end_of_an_answer() {
        let tags = (0..=255).map(|byte| without_line_ends([byte; TAG_BYTES]));
        assert!(tags.chain([new_tag()]).all(|tag| !tag.contains(&b'\n')));
    }

    #[test]
    fn a_greeting_is_believed_by_the_owner_that_it_is_for_and_on_its_connection_alone() {
        let (secret, nonce, tag, to) = ([7; 32], [5; NONCE_BYTES], [9; TAG_BYTES], (2, 5));
        let request = parsed(&request(&secret, &nonce, to, &tag, b"state"));
        assert!(is_request(request.args()) && !is_first(request.args()));
        assert_eq!(read(&secret, &nonce, to, request.args()), Some((tag, &b"state"[..])));
        assert_eq!(read(&[8; 32], &nonce, to, request.args()), None, "another cluster");
        assert_eq!(read(&secret, &[6; NONCE_BYTES], to, request.args()), None, "said again");
        assert_eq!(read(&secret, &nonce, (2, 6), request.args()), None, "another epoch");
        assert_eq!(read(&secret, &nonce, (1, 5), request.args()), None, "another shard");
        for at in 1..4 {
            let mut words: Vec<Vec<u8>> = request.args().iter().map(<[u8]>::to_vec).collect();
            words[at][0] ^= 1;
            let changed: OwnedArgs = words.iter().map(|word| &word[..]).collect();
            assert_eq!(read(&secret, &nonce, to, changed.args()), None, "argument {at}");
            words.truncate(at);
            let cut: OwnedArgs = words.iter().map(|word| &word[..]).collect();
            assert_eq!(read(&secret, &nonce, to, cut.args()), None);
        }
    }

    #[test]
    fn no_nonce_is_given_twice() {
        let first = parsed(&first_request());
        assert!(is_request(first.args()) && is_first(first.args()));
        assert_ne!(new_nonce(), new_nonce());
        assert_eq!(NONCE_FOLLOWS[..], format!("${NONCE_BYTES}\r\n").as_bytes()[..]);
    }
}
