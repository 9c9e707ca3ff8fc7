//! The first request on a connection that a node passes a client on by.
//!
//! ```text
//! HEADWATER.FORWARD tag proof state
//! ```
//!
//! The owner answers `+OK`, and is the client's from then on, in the protocol that the state names; any other answer says that it does not know the request, as
//! an older program does, or does not believe it. The tag is 16 random bytes, which neither the client nor anybody else knows: [`parting`](super::parting) begins with it. None of them ends a
//! line: who looks for the tag keeps back what may be its beginning, and never the end of an answer.

use crate::shards::links::{ProofOf, Secret, is_proof, proof, random};
use headwater_command::{Args, Reply};
use headwater_protocol::resp::{Encoder, Version};

/// The request's name.
const NAME: &[u8] = b"HEADWATER.FORWARD";
/// No state has more bytes: nobody has logged in where it comes.
pub(crate) const STATE_BYTES_MAX: usize = 256 << 10;
/// What is answered to it.
pub(crate) const TAKEN: &[u8] = b"+OK\r\n";
/// The bytes of a tag.
pub(crate) const TAG_BYTES: usize = 16;

/// What the two ends of a forwarded connection know it by.
pub(crate) type Tag = [u8; TAG_BYTES];

/// A tag for a connection.
pub(crate) fn new_tag() -> Tag {
    without_line_ends(random())
}

fn without_line_ends(tag: Tag) -> Tag {
    tag.map(|byte| if byte == b'\n' { 0 } else { byte })
}

/// The request, to the owner of a shard in an epoch.
pub(crate) fn request(
    secret: &Secret,
    (shard, epoch): (u16, u64),
    tag: &Tag,
    state: &[u8],
) -> Vec<u8> {
    let said = [&shard.to_be_bytes()[..], &epoch.to_be_bytes(), tag, state];
    let proof = proof(secret, ProofOf::Forwards, &said);
    let mut out = Vec::new();
    let mut request = Encoder::new(&mut out, Version::Resp2);
    request.array(4);
    [NAME, tag, &proof, state].into_iter().for_each(|arg| request.bulk(arg));
    out
}

/// Whether this is such a request, whatever it says.
pub(crate) fn is_request(args: Args<'_>) -> bool {
    args.get(0) == Some(NAME)
}

/// The tag and the state of a request to the owner of this shard in this epoch; `None`: it is not to be believed.
pub(crate) fn read<'a>(
    secret: &Secret,
    (shard, epoch): (u16, u64),
    args: Args<'a>,
) -> Option<(Tag, &'a [u8])> {
    let (tag, shown, state) = (args.get(1)?, args.get(2)?, args.get(3)?);
    let said = [&shard.to_be_bytes()[..], &epoch.to_be_bytes(), tag, state];
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
    fn a_greeting_is_believed_by_the_owner_that_it_is_for_alone() {
        let (secret, tag, to) = ([7; 32], [9; TAG_BYTES], (2, 5));
        let request = parsed(&request(&secret, to, &tag, b"state"));
        assert!(is_request(request.args()));
        assert_eq!(read(&secret, to, request.args()), Some((tag, &b"state"[..])));
        assert_eq!(read(&[8; 32], to, request.args()), None, "another cluster");
        assert_eq!(read(&secret, (2, 6), request.args()), None, "another epoch");
        assert_eq!(read(&secret, (1, 5), request.args()), None, "another shard");
        for at in 1..4 {
            let mut words: Vec<Vec<u8>> = request.args().iter().map(<[u8]>::to_vec).collect();
            words[at][0] ^= 1;
            let changed: OwnedArgs = words.iter().map(|word| &word[..]).collect();
            assert_eq!(read(&secret, to, changed.args()), None, "argument {at}");
            words.truncate(at);
            let cut: OwnedArgs = words.iter().map(|word| &word[..]).collect();
            assert_eq!(read(&secret, to, cut.args()), None);
        }
    }
}
