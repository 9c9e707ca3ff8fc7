//! An owner that has a client whom this node passes on: bytes both ways, until the owner parts with the client.

use super::driver::OwnerSeen;
use super::forward::{ForwardContext, ForwardStage, of_std};
use crate::handover::InheritedUpstream;
use crate::handover::greeting::Tag;
use crate::handover::parting::TagFinder;
use headwater_base::wire::WireReader;
use headwater_log::Epoch;
use std::cell::RefCell;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::{sleep, timeout};

/// How long it is awaited that an owner parts with a client when there is another one.
const OVERTAKEN: Duration = Duration::from_secs(1);
/// How long an owner that parts with a client takes to tell of it, at most.
const PARTING: Duration = Duration::from_secs(5);

/// How passing on ends.
pub(super) enum Passed {
    /// One side has closed its connection, or it broke; or the owner is another one.
    Ended,
    /// The owner has parted with the client.
    Parted { state: Vec<u8>, input: Vec<u8> },
    /// The process begins anew.
    Left,
}

/// So much is taken of an owner that its client has not: the owner may part with it behind that.
const ANSWERS_MAX: usize = 256 << 10;

/// What is on its way in one direction.
#[derive(Default)]
pub(super) struct Passage {
    /// Bytes that came.
    pub(super) bytes: Vec<u8>,
    /// So many of them were passed on.
    passed: usize,
    /// No more come.
    ended: bool,
    /// The other side has been told so.
    is_told: bool,
}

impl Passage {
    fn of(left: Vec<u8>, ended: bool) -> Self {
        Self { bytes: left, passed: 0, ended, is_told: false }
    }

    /// Whether the other side is to be told that no more come.
    fn is_to_tell(&mut self) -> bool {
        let is_over = self.ended && self.is_empty();
        is_over && !core::mem::replace(&mut self.is_told, true)
    }

    fn left(&self) -> &[u8] {
        &self.bytes[self.passed..]
    }

    fn is_empty(&self) -> bool {
        self.passed == self.bytes.len()
    }

    /// So many bytes were passed on. What is empty takes no memory.
    fn pass(&mut self, count: usize) {
        self.passed += count;
        if self.is_empty() {
            (self.bytes, self.passed) = (Vec::new(), 0);
        } else if self.passed > ANSWERS_MAX {
            self.bytes.drain(..self.passed);
            self.passed = 0;
        }
    }
}

/// An owner that has a client.
pub(super) struct Upstream {
    pub(super) stream: TcpStream,
    pub(super) owner: OwnerSeen,
    /// Without one, the owner does not part with the client.
    tag: Option<Tag>,
    pub(super) requests: Passage,
    answers: Passage,
    finder: TagFinder,
}

impl Upstream {
    pub(super) fn new(stream: TcpStream, owner: OwnerSeen, tag: Option<Tag>) -> Self {
        let (requests, answers) = (Passage::default(), Passage::default());
        Self { stream, owner, tag, requests, answers, finder: TagFinder::default() }
    }

    pub(super) fn inherit(from: InheritedUpstream) -> Option<Self> {
        let (address, shard, epoch) = from.owner;
        Some(Self {
            stream: of_std(from.stream).ok()?,
            owner: OwnerSeen { address, shard, epoch: Epoch(epoch) },
            tag: from.tag,
            requests: Passage::of(from.requests, from.ended.0),
            answers: Passage::of(from.answers, from.ended.1),
            finder: TagFinder::of(from.held),
        })
    }

    pub(super) fn leave(self) -> Option<InheritedUpstream> {
        let OwnerSeen { address, shard, epoch } = self.owner;
        Some(InheritedUpstream {
            stream: self.stream.into_std().ok()?,
            owner: (address, shard, epoch.0),
            tag: self.tag,
            requests: self.requests.left().to_vec(),
            answers: self.answers.left().to_vec(),
            ended: (self.requests.ended, self.answers.ended),
            held: self.finder.held(),
        })
    }
}

/// Passes bytes on, both ways.
pub(super) async fn pass(
    client: &mut TcpStream,
    to: &mut Upstream,
    door: &ForwardContext,
) -> Passed {
    let (mut owners, mut stages, mut leaves) =
        (door.owners.clone(), door.stages.clone(), door.stages.clone());
    let (shard, owner) = (door.shard, to.owner.clone());
    let another =
        |now: &Vec<OwnerSeen>| now.iter().any(|it| it.shard == owner.shard && *it != owner);
    let is_here = |stage: &ForwardStage| matches!(stage, ForwardStage::Owns(_, epoch) if owner.shard == shard && owner.epoch != *epoch);
    let replaced = async {
        tokio::select! {
            _changed = owners.wait_for(another) => {}
            _owns = stages.wait_for(is_here) => {}
        }
        // The old one may have parted with the client, and that be on its way.
        sleep(OVERTAKEN).await;
    };
    let copied = tokio::select! {
        // However it ends, both sides are closed.
        copied = copy(client, to, &door.piece) => copied,
        () = replaced => return Passed::Ended,
        _leaves = leaves.wait_for(|stage| *stage == ForwardStage::Leaves) => return Passed::Left,
    };
    let Ok(Some(behind)) = copied else { return Passed::Ended };
    // The process waits for it where it begins anew.
    door.kept.borrow_mut().1 += 1;
    let parted = parted(client, behind, to).await;
    door.kept.borrow_mut().1 -= 1;
    parted.ok().flatten().unwrap_or(Passed::Ended)
}

/// Passes bytes on until both sides have ended, one has broken, or the owner parts with the client: then what it has told behind the tag. Wherever
/// it is given up, nothing is lost.
async fn copy(
    client: &mut TcpStream,
    to: &mut Upstream,
    piece: &RefCell<Vec<u8>>,
) -> std::io::Result<Option<Vec<u8>>> {
    let Upstream { stream, tag, requests, answers, finder, .. } = to;
    let (from_client, mut to_client) = client.split();
    let (from_owner, mut to_owner) = stream.split();
    loop {
        if requests.ended && answers.ended && answers.is_empty() {
            return Ok(None);
        }
        tokio::select! {
            ready = from_client.readable(), if requests.is_empty() && !requests.ended => {
                ready?;
                let piece = &mut *piece.borrow_mut();
                let Some(came) = came(from_client.try_read(piece), piece)? else { continue };
                requests.bytes.extend_from_slice(came);
                requests.ended = came.is_empty();
            }
            written = to_owner.write(requests.left()), if !requests.is_empty() => {
                requests.pass(written?);
            }
            ready = from_owner.readable(), if answers.left().len() < ANSWERS_MAX && !answers.ended => {
                ready?;
                let piece = &mut *piece.borrow_mut();
                let Some(came) = came(from_owner.try_read(piece), piece)? else { continue };
                // Nobody answers what else the client sends.
                answers.ended = came.is_empty();
                requests.ended |= answers.ended;
                match tag {
                    None => answers.bytes.extend_from_slice(came),
                    Some(tag) => {
                        if let Some(behind) = finder.take(tag, came, &mut answers.bytes) {
                            return Ok(Some(behind.to_vec()));
                        }
                    }
                }
            }
            written = to_client.write(answers.left()), if !answers.is_empty() => {
                answers.pass(written?);
            }
        }
        // Whoever has gone needs not be told.
        if requests.is_to_tell() {
            drop(to_owner.shutdown().await);
        }
        if answers.is_to_tell() {
            drop(to_client.shutdown().await);
        }
    }
}

/// What a read has brought: nothing, at the end; `None`: nothing yet.
fn came(read: std::io::Result<usize>, piece: &[u8]) -> std::io::Result<Option<&[u8]>> {
    match read {
        Ok(count) => Ok(Some(&piece[..count])),
        Err(why) if why.kind() == std::io::ErrorKind::WouldBlock => Ok(None),
        Err(why) => Err(why),
    }
}

/// What the owner tells of the client that it parts with, which begins with what it has told already; `None`: it breaks off.
async fn parted(
    client: &mut TcpStream,
    mut told: Vec<u8>,
    to: &mut Upstream,
) -> std::io::Result<Option<Passed>> {
    to.stream.shutdown().await?;
    timeout(PARTING, to.stream.read_to_end(&mut told)).await??;
    let from = &mut WireReader::of(&told);
    let (Some(state), Some(input)) = (from.bytes(), from.bytes()) else { return Ok(None) };
    let (state, input) = (state.to_vec(), [input, to.requests.left()].concat());
    // Whatever time its client takes: the owner is free.
    client.write_all(to.answers.left()).await?;
    Ok(Some(Passed::Parted { state, input }))
}
