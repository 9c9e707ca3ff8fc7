//! Answers that are sent while they come about, and requests' bodies.

use super::problem::Problem;
use axum::body::{Body, Bytes, HttpBody};
use axum::http::StatusCode;
use hyper::body::{Frame, Incoming, SizeHint};
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::sync::mpsc;

/// How many answers of a connection are under way, but for those that wait for a request's body: while there is one, the connection makes no room for others.
#[derive(Clone, Debug, Default)]
pub(super) struct Busy(Arc<AtomicUsize>);

/// An answer that is under way, until it is dropped.
#[derive(Debug)]
pub(super) struct BusyGuard(Busy);

impl Busy {
    pub(super) fn is_set(&self) -> bool {
        self.0.load(Ordering::Relaxed) > 0
    }

    pub(super) fn begin(&self) -> BusyGuard {
        self.0.fetch_add(1, Ordering::Relaxed);
        BusyGuard(self.clone())
    }
}

impl Drop for BusyGuard {
    fn drop(&mut self) {
        self.0.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// A request's body. While it is waited for, its connection makes room for others as one does that says nothing: or whoever sends a
/// byte now and then would keep them out.
#[derive(Debug)]
pub(super) struct Awaited {
    body: Incoming,
    busy: Busy,
    is_awaited: bool,
}

impl Awaited {
    /// The body of a request that is being answered, which has begun something of `busy`.
    pub(super) fn new(body: Incoming, busy: Busy) -> Self {
        Self { body, busy, is_awaited: false }
    }

    /// Notes whether it is waited for.
    fn note(&mut self, is_awaited: bool) {
        match (self.is_awaited, is_awaited) {
            (false, true) => drop(self.busy.0.fetch_sub(1, Ordering::Relaxed)),
            (true, false) => drop(self.busy.0.fetch_add(1, Ordering::Relaxed)),
            _ => {}
        }
        self.is_awaited = is_awaited;
    }
}

impl HttpBody for Awaited {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        let frame = Pin::new(&mut self.body).poll_frame(context);
        self.note(frame.is_pending());
        frame
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

impl Drop for Awaited {
    fn drop(&mut self) {
        self.note(false);
    }
}

/// Where a part of an answer goes.
pub(super) type Parts = mpsc::Sender<io::Result<Bytes>>;

/// An answer whose parts another task gives.
#[derive(Debug)]
pub(super) struct Streamed {
    parts: mpsc::Receiver<io::Result<Bytes>>,
}

impl Streamed {
    /// An answer of which so many parts may wait to be sent.
    pub(super) fn begin(waiting_max: usize) -> (Parts, Body) {
        let (sender, parts) = mpsc::channel(waiting_max);
        (sender, Body::new(Self { parts }))
    }
}

impl HttpBody for Streamed {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<io::Result<Frame<Bytes>>>> {
        self.parts.poll_recv(context).map(|part| part.map(|part| part.map(Frame::data)))
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::default()
    }
}

/// The next part of a request's body; `None`: it is over.
pub(super) async fn next_part(
    body: &mut Body,
    patience: Duration,
) -> Result<Option<Bytes>, Problem> {
    let broken = |what: &str| Problem::new(StatusCode::BAD_REQUEST, "BODY", what);
    loop {
        let frame = std::future::poll_fn(|context| Pin::new(&mut *body).poll_frame(context));
        let Ok(frame) = tokio::time::timeout(patience, frame).await else {
            return Err(Problem::new(
                StatusCode::REQUEST_TIMEOUT,
                "BODY",
                "the body did not come in time (http-milliseconds-max)",
            ));
        };
        match frame {
            None => return Ok(None),
            Some(Err(_)) => return Err(broken("the body is broken")),
            // Trailers say nothing here.
            Some(Ok(frame)) => {
                if let Ok(part) = frame.into_data() {
                    return Ok(Some(part));
                }
            }
        }
    }
}

/// A whole body of at most so many bytes.
pub(super) async fn whole(
    mut body: Body,
    bytes_max: usize,
    patience: Duration,
) -> Result<Vec<u8>, Problem> {
    let mut bytes = Vec::new();
    while let Some(part) = next_part(&mut body, patience).await? {
        if bytes.len() + part.len() > bytes_max {
            let text = format!("the body is longer than {bytes_max} bytes");
            return Err(Problem::new(StatusCode::PAYLOAD_TOO_LARGE, "BODY", text));
        }
        bytes.extend_from_slice(&part);
    }
    Ok(bytes)
}
