//! Sockets that a process has from the process that it was, before it began anew as the same program.
//!
//! They go through a socket that is the new program's standard input, which is the first thing that comes out of it: so no descriptor is open for any other
//! program, and none has to be known by its number. An environment variable says that this is so.

use super::greeting::Tag;
use headwater_base::wire::{WireReader, put_bytes, put_u16, put_u32, put_u64};
use rustix::fs::MemfdFlags;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketFlags, SocketType,
};
use std::ffi::OsStr;
use std::fs::File;
use std::io::{IoSlice, IoSliceMut, Read, Seek, Write};
use std::mem::MaybeUninit;
use std::net::{TcpListener, TcpStream};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// Says that the standard input brings sockets; of which process.
pub(crate) const VARIABLE: &str = "HEADWATER_INHERITS";
/// Descriptors in a message; the system lets 253 be.
const BATCH: usize = 128;

/// A client whose session goes on at another owner.
#[derive(Debug)]
pub(crate) struct InheritedClient {
    /// Its socket.
    pub(crate) stream: TcpStream,
    /// What the next owner is told of its session.
    pub(crate) state: Vec<u8>,
    /// Input that was not executed.
    pub(crate) input: Vec<u8>,
    /// The owner that has it, if one does.
    pub(crate) upstream: Option<InheritedUpstream>,
}

/// A connection that a client is passed on by.
#[derive(Debug)]
pub(crate) struct InheritedUpstream {
    /// The connection.
    pub(crate) stream: TcpStream,
    /// Whose it is: its address, its shard, and its epoch.
    pub(crate) owner: (String, u16, u64),
    /// What it is known by there.
    pub(crate) tag: Option<Tag>,
    /// What is still to be sent there, and to the client.
    pub(crate) requests: Vec<u8>,
    pub(crate) answers: Vec<u8>,
    /// Whether the client sends no more, and whether the owner does.
    pub(crate) ended: (bool, bool),
    /// What may be the beginning of the tag.
    pub(crate) held: Vec<u8>,
}

impl InheritedUpstream {
    fn encode(&self, out: &mut Vec<u8>) {
        put_bytes(out, self.owner.0.as_bytes());
        put_u16(out, usize::from(self.owner.1));
        put_u64(out, self.owner.2);
        put_bytes(out, self.tag.as_ref().map_or(&[], |tag| &tag[..]));
        put_bytes(out, &self.requests);
        put_bytes(out, &self.answers);
        out.extend([u8::from(self.ended.0), u8::from(self.ended.1)]);
        put_bytes(out, &self.held);
    }

    fn read(stream: OwnedFd, from: &mut WireReader<'_>) -> Option<Self> {
        Some(Self {
            stream: stream.into(),
            owner: (from.text()?.to_owned(), u16::try_from(from.u16()?).ok()?, from.u64()?),
            tag: from.bytes()?.try_into().ok(),
            requests: from.bytes()?.to_vec(),
            answers: from.bytes()?.to_vec(),
            ended: (from.flag()?, from.flag()?),
            held: from.bytes()?.to_vec(),
        })
    }
}

/// What a process has from the one that it was.
#[derive(Debug, Default)]
pub struct Inherited {
    /// Where that listened for clients.
    pub(crate) listeners: Vec<TcpListener>,
    /// Its clients.
    pub(crate) clients: Vec<InheritedClient>,
}

impl Inherited {
    /// What this process has from the one that it was, if it has: the standard input is then what it was. To be called first of all.
    #[must_use]
    pub fn take() -> Self {
        let own = std::process::id().to_string();
        if std::env::var_os(VARIABLE).as_deref() != Some(OsStr::new(&own)) {
            return Self::default();
        }
        receive().unwrap_or_default()
    }

    /// Leaves all of it to the program that this process becomes by `exec`: gives what has to be in its environment. `None`: there is nothing, or the system
    /// refuses.
    pub(crate) fn leave(&self) -> Option<(&'static str, String)> {
        let is_empty = self.listeners.is_empty() && self.clients.is_empty();
        (!is_empty && self.offer().is_ok()).then(|| (VARIABLE, std::process::id().to_string()))
    }

    fn offer(&self) -> std::io::Result<()> {
        let input = std::io::stdin();
        let (to, from) = rustix::net::socketpair(
            AddressFamily::UNIX,
            SocketType::SEQPACKET,
            SocketFlags::CLOEXEC | SocketFlags::NONBLOCK,
            None,
        )?;
        let mut says = File::from(rustix::fs::memfd_create("headwater", MemfdFlags::CLOEXEC)?);
        says.write_all(&self.told())?;
        let mut descriptors = vec![input.as_fd(), says.as_fd()];
        descriptors.extend(self.listeners.iter().map(AsFd::as_fd));
        for client in &self.clients {
            descriptors.push(client.stream.as_fd());
            descriptors.extend(client.upstream.as_ref().map(|upstream| upstream.stream.as_fd()));
        }
        for batch in descriptors.chunks(BATCH) {
            send(&to, batch)?;
        }
        rustix::stdio::dup2_stdin(&from)?;
        Ok(())
    }

    /// What has to be known of the sockets, in their order.
    fn told(&self) -> Vec<u8> {
        let mut out = Vec::new();
        let upstreams = self.clients.iter().filter(|client| client.upstream.is_some()).count();
        put_u32(&mut out, self.listeners.len() + self.clients.len() + upstreams);
        put_u32(&mut out, self.listeners.len());
        put_u32(&mut out, self.clients.len());
        for client in &self.clients {
            put_bytes(&mut out, &client.state);
            put_bytes(&mut out, &client.input);
            out.push(client.upstream.is_some().into());
            client.upstream.iter().for_each(|upstream| upstream.encode(&mut out));
        }
        out
    }
}

fn send(to: &OwnedFd, batch: &[BorrowedFd<'_>]) -> rustix::io::Result<()> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(BATCH))];
    let mut rights = SendAncillaryBuffer::new(&mut space);
    rights.push(SendAncillaryMessage::ScmRights(batch));
    rustix::net::sendmsg(to, &[IoSlice::new(b"+")], &mut rights, SendFlags::empty()).map(drop)
}

/// The descriptors of the next message; none: there is no further one.
fn receive_batch(from: BorrowedFd<'_>) -> rustix::io::Result<Vec<OwnedFd>> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(BATCH))];
    let mut rights = RecvAncillaryBuffer::new(&mut space);
    let mut byte = [0];
    let into = &mut [IoSliceMut::new(&mut byte)];
    rustix::net::recvmsg(from, into, &mut rights, RecvFlags::CMSG_CLOEXEC)?;
    let of = |message| match message {
        RecvAncillaryMessage::ScmRights(descriptors) => Some(descriptors),
        _ => None,
    };
    Ok(rights.drain().filter_map(of).flatten().collect())
}

fn receive() -> Option<Inherited> {
    let mut descriptors = Vec::new();
    {
        let input = std::io::stdin();
        // The other end was closed with the old program, so the last message is followed by the end.
        while let Ok(batch) = receive_batch(input.as_fd()) {
            if batch.is_empty() {
                break;
            }
            descriptors.extend(batch);
        }
    }
    let mut descriptors = descriptors.into_iter();
    // Whatever becomes of the rest.
    rustix::stdio::dup2_stdin(&descriptors.next()?).ok()?;
    let mut says = File::from(descriptors.next()?);
    let mut told = Vec::new();
    says.rewind().and_then(|()| says.read_to_end(&mut told)).ok()?;
    let from = &mut WireReader::of(&told);
    // If one were missing, sessions would be others' from there on.
    let all = from.u32()?;
    (descriptors.len() == all).then_some(())?;
    let (listeners, clients) = (from.u32()?, from.u32()?);
    let listeners = descriptors.by_ref().take(listeners).map(TcpListener::from).collect();
    let client = |_| {
        let stream = descriptors.next()?.into();
        let (state, input) = (from.bytes()?.to_vec(), from.bytes()?.to_vec());
        let upstream = match from.flag()? {
            true => Some(InheritedUpstream::read(descriptors.next()?, from)?),
            false => None,
        };
        Some(InheritedClient { stream, state, input, upstream })
    };
    Some(Inherited { listeners, clients: (0..clients).map_while(client).collect() })
}
