//! What another owner has to know of a session to go on with it.

use crate::wire_protocol::WireProtocol;
use headwater_base::wire::{WireReader, put_bytes, put_u16, put_u32, put_u64};
use headwater_command::OwnedArgs;
use std::net::SocketAddr;

/// Where a session stands that goes on.
#[derive(Clone, PartialEq, Debug, Default)]
pub(crate) struct SessionRest {
    /// Whose rights it has; `None`: it has yet to log in.
    pub(crate) user: Option<Vec<u8>>,
    /// The requests that make it what it is, in order. Nobody reads their answers.
    pub(crate) requests: Vec<OwnedArgs>,
    /// Those that it has queued for EXEC, if MULTI has come.
    pub(crate) queued: Option<Vec<OwnedArgs>>,
    /// One could not be queued.
    pub(crate) broken: bool,
    /// Keys that it watches; they count as changed.
    pub(crate) watched: Vec<Vec<u8>>,
    /// Where other shards stood after its last writes there: the shard, its owner's epoch, and the position.
    pub(crate) positions: Vec<(u16, u64, u64)>,
}

/// A client that somebody else has the socket of.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct SessionState {
    /// Where it comes from.
    pub(crate) peer: SocketAddr,
    /// What it speaks.
    pub(crate) speaks: WireProtocol,
    /// Where its session stands; `None`: it has just come.
    pub(crate) sits: Option<SessionRest>,
}

/// Says that a client speaks memcached's protocol.
const MEMCACHED: &[u8] = b"memcached";

fn put_request(out: &mut Vec<u8>, request: &OwnedArgs) {
    put_u32(out, request.args().len());
    request.args().iter().for_each(|arg| put_bytes(out, arg));
}

fn put_requests(out: &mut Vec<u8>, requests: &[OwnedArgs]) {
    put_u32(out, requests.len());
    requests.iter().for_each(|request| put_request(out, request));
}

fn read_request(from: &mut WireReader<'_>) -> Option<OwnedArgs> {
    (0..from.u32()?).map(|_| from.bytes()).collect()
}

fn read_requests(from: &mut WireReader<'_>) -> Option<Vec<OwnedArgs>> {
    (0..from.u32()?).map(|_| read_request(from)).collect()
}

impl SessionRest {
    /// That of a client who has done nothing but log in.
    pub(crate) fn of_user(user: Vec<u8>) -> Self {
        Self { user: Some(user), ..Self::default() }
    }

    fn encode(&self, out: &mut Vec<u8>) {
        out.push(self.user.is_some().into());
        put_bytes(out, self.user.as_deref().unwrap_or_default());
        put_requests(out, &self.requests);
        out.push(self.queued.is_some().into());
        put_requests(out, self.queued.as_deref().unwrap_or_default());
        out.push(self.broken.into());
        put_request(out, &self.watched.iter().map(|key| &key[..]).collect());
        put_u32(out, self.positions.len());
        for (shard, epoch, position) in &self.positions {
            put_u16(out, usize::from(*shard));
            put_u64(out, *epoch);
            put_u64(out, *position);
        }
    }

    fn read(from: &mut WireReader<'_>) -> Option<Self> {
        let has_user = from.flag()?;
        let user = from.bytes()?;
        let requests = read_requests(from)?;
        let (has_queue, queued) = (from.flag()?, read_requests(from)?);
        let broken = from.flag()?;
        let watched = read_request(from)?;
        let position = |from: &mut WireReader<'_>| {
            Some((u16::try_from(from.u16()?).ok()?, from.u64()?, from.u64()?))
        };
        Some(Self {
            user: has_user.then(|| user.to_vec()),
            requests,
            queued: has_queue.then_some(queued),
            broken,
            watched: watched.args().iter().map(<[u8]>::to_vec).collect(),
            positions: (0..from.u32()?).map(|_| position(from)).collect::<Option<_>>()?,
        })
    }
}

impl SessionState {
    /// As bytes. That a client speaks memcached's protocol stands behind all else, where a program that knows nothing of it refuses the whole.
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut out = Vec::new();
        put_bytes(&mut out, self.peer.to_string().as_bytes());
        out.push(self.sits.is_some().into());
        self.sits.iter().for_each(|sits| sits.encode(&mut out));
        if self.speaks == WireProtocol::Memcached {
            out.extend_from_slice(MEMCACHED);
        }
        out
    }

    /// What these bytes say; `None`: they are none.
    pub(crate) fn decode(bytes: &[u8]) -> Option<Self> {
        let from = &mut WireReader::of(bytes);
        let peer = from.text()?.parse().ok()?;
        let sits = if from.flag()? { Some(SessionRest::read(from)?) } else { None };
        let speaks = match from.rest() {
            [] => WireProtocol::Resp,
            MEMCACHED => WireProtocol::Memcached,
            _ => return None,
        };
        Some(Self { peer, speaks, sits })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(words: &[&str]) -> OwnedArgs {
        words.iter().map(|word| word.as_bytes()).collect()
    }

    #[test]
    fn a_state_is_read_as_it_was_and_nothing_else_is() {
        let peer = "10.1.2.3:4".parse().unwrap();
        let sits = SessionRest {
            user: Some(b"ann".to_vec()),
            requests: vec![request(&["HELLO", "3"]), request(&["SUBSCRIBE", "a", ""])],
            queued: Some(vec![request(&["SET", "k", "v"])]),
            broken: true,
            watched: vec![b"w".to_vec(), b"\r\n".to_vec()],
            positions: vec![(2, 7, u64::MAX)],
        };
        for sits in [None, Some(SessionRest::default()), Some(sits)] {
            let state = SessionState { peer, speaks: WireProtocol::Resp, sits };
            let bytes = state.encode();
            assert_eq!(SessionState::decode(&bytes), Some(state.clone()));
            for cut in 0..bytes.len() {
                assert_eq!(SessionState::decode(&bytes[..cut]), None);
            }
            assert_eq!(SessionState::decode(&[&bytes[..], b"x"].concat()), None);
            // A program that knows of RESP alone reads these bytes, and takes no client of memcached's protocol for one of RESP.
            let state = SessionState { speaks: WireProtocol::Memcached, ..state };
            let longer = state.encode();
            assert_eq!(longer, [&bytes[..], b"memcached"].concat());
            assert_eq!(SessionState::decode(&longer), Some(state));
            for cut in bytes.len() + 1..longer.len() {
                assert_eq!(SessionState::decode(&longer[..cut]), None);
            }
        }
    }
}
