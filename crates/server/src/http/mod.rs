//! The HTTP port: `/metrics` for Prometheus, `/healthz` and `/readyz` for whoever keeps the process alive.
//!
//! A thread of its own answers. What it tells it asks of the loop, so that `/healthz` is an answer of
//! the thread that serves clients, or none.

mod metrics;

pub(crate) use metrics::{Kind, Metric};

use std::net::{SocketAddr, TcpListener};
use std::sync::mpsc::{Receiver, Sender, SyncSender, channel, sync_channel};
use std::time::Duration;
use tiny_http::{Header, Method, Request, Response, Server};

/// How long the loop may take to answer before it counts as stuck.
const PATIENCE: Duration = Duration::from_secs(2);

/// Somebody asks how the server does.
pub(crate) struct Probe(SyncSender<Vec<Metric>>);

impl Probe {
    /// Tells it.
    pub(crate) fn answer(self, metrics: Vec<Metric>) {
        // Who asked may have lost patience.
        let _ = self.0.try_send(metrics);
    }
}

/// The loop's side.
pub(crate) struct Probes {
    receiver: Receiver<Probe>,
    sender: Sender<Probe>,
}

impl Probes {
    pub(crate) fn new() -> Self {
        let (sender, receiver) = channel();
        Self { receiver, sender }
    }

    /// Somebody who waits for an answer.
    pub(crate) fn next(&self) -> Option<Probe> {
        self.receiver.try_recv().ok()
    }

    /// Answers HTTP on `listener` until the process ends. `ring` has the loop come round.
    ///
    /// # Errors
    /// The thread cannot be started, or the listener cannot be used.
    pub(crate) fn serve(
        &self,
        listener: TcpListener,
        ring: impl Fn() + Send + 'static,
    ) -> Result<SocketAddr, String> {
        let address = listener.local_addr().map_err(|error| error.to_string())?;
        let server = Server::from_listener(listener, None).map_err(|error| error.to_string())?;
        let sender = self.sender.clone();
        std::thread::Builder::new()
            .name(String::from("http"))
            .spawn(move || {
                for request in server.incoming_requests() {
                    answer(request, &sender, &ring);
                }
            })
            .map_err(|error| error.to_string())?;
        Ok(address)
    }
}

fn answer(request: Request, probes: &Sender<Probe>, ring: &impl Fn()) {
    if !matches!(request.method(), Method::Get | Method::Head) {
        return send(request, 405, "only GET is allowed here\n", "text/plain");
    }
    let path = request.url().split('?').next().unwrap_or_default().to_owned();
    if !matches!(path.as_str(), "/metrics" | "/healthz" | "/readyz") {
        return send(request, 404, "there are /metrics, /healthz and /readyz\n", "text/plain");
    }
    let (sender, receiver) = sync_channel(1);
    let asked = probes.send(Probe(sender)).is_ok();
    ring();
    match receiver.recv_timeout(PATIENCE) {
        Ok(metrics) if asked && path == "/metrics" => match metrics::encode(metrics) {
            Ok(text) => send(request, 200, &text, metrics::CONTENT_TYPE),
            Err(_) => send(request, 500, "the metrics cannot be written\n", "text/plain"),
        },
        Ok(_) => send(request, 200, "ok\n", "text/plain"),
        Err(_) => send(request, 503, "the server does not answer\n", "text/plain"),
    }
}

fn send(request: Request, status: u16, text: &str, kind: &str) {
    let mut response = Response::from_string(text).with_status_code(status);
    if let Ok(header) = Header::from_bytes("Content-Type", kind) {
        response.add_header(header);
    }
    // Whether the client reads it is its own affair.
    let _ = request.respond(response);
}
