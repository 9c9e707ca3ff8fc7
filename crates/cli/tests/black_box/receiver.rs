//! A receiver of webhooks, which can behave badly and speak TLS.

use crate::support::PATIENCE;
use rustls::{ServerConfig, ServerConnection, StreamOwned};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// How the receiver answers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Manner {
    /// It takes what comes.
    Takes,
    /// It answers that it cannot.
    Fails,
    /// It does not answer.
    Hangs,
}

/// A request that the receiver got, and whether it took it.
#[derive(Clone, Debug)]
pub(crate) struct Got {
    /// The request up to its body, in lower case.
    pub(crate) head: String,
    /// The body.
    pub(crate) body: serde_json::Value,
    /// Whether the answer said so.
    pub(crate) taken: bool,
}

/// An HTTP server that can behave badly.
pub(crate) struct Receiver {
    /// Where it listens.
    pub(crate) address: SocketAddr,
    manner: Arc<Mutex<Manner>>,
    got: Arc<Mutex<Vec<Got>>>,
}

impl Receiver {
    /// Starts one that speaks plain HTTP.
    pub(crate) fn start() -> Self {
        Self::with(Some)
    }

    /// Starts one that speaks HTTP over TLS.
    pub(crate) fn with_tls(tls: Arc<ServerConfig>) -> Self {
        Self::with(move |stream| {
            Some(StreamOwned::new(ServerConnection::new(tls.clone()).ok()?, stream))
        })
    }

    fn with<S: Read + Write>(
        open: impl Fn(TcpStream) -> Option<S> + Clone + Send + 'static,
    ) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let manner = Arc::new(Mutex::new(Manner::Takes));
        let got = Arc::new(Mutex::new(Vec::new()));
        let shared = (manner.clone(), got.clone());
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let ((manner, got), open) = (shared.clone(), open.clone());
                std::thread::spawn(move || {
                    if let Some(stream) = open(stream) {
                        serve(stream, &manner, &got);
                    }
                });
            }
        });
        Self { address, manner, got }
    }

    /// From now on it answers like this.
    pub(crate) fn behaves(&self, manner: Manner) {
        *self.manner.lock().unwrap() = manner;
    }

    /// What has come.
    pub(crate) fn got(&self) -> Vec<Got> {
        self.got.lock().unwrap().clone()
    }

    /// Waits until so much has come.
    pub(crate) fn wait_for(&self, count: usize) {
        let began = Instant::now();
        while self.got.lock().unwrap().len() < count {
            assert!(began.elapsed() < PATIENCE, "{:?}", self.got());
            std::thread::sleep(Duration::from_millis(2));
        }
    }
}

fn serve(stream: impl Read + Write, manner: &Mutex<Manner>, got: &Mutex<Vec<Got>>) {
    let mut input = BufReader::new(stream);
    loop {
        let mut head = String::new();
        while !head.ends_with("\r\n\r\n") {
            if input.read_line(&mut head).unwrap_or(0) == 0 {
                return;
            }
        }
        let lower = head.to_lowercase();
        let length = lower.lines().find_map(|line| line.strip_prefix("content-length: ")).unwrap();
        let mut body = vec![0; length.parse().unwrap()];
        input.read_exact(&mut body).unwrap();
        let now = *manner.lock().unwrap();
        let taken = now == Manner::Takes;
        got.lock().unwrap().push(Got {
            head: lower,
            body: serde_json::from_slice(&body).unwrap(),
            taken,
        });
        let answer = match now {
            Manner::Takes => "HTTP/1.1 204 No Content\r\n\r\n",
            Manner::Fails => "HTTP/1.1 503 Service Unavailable\r\nContent-Length: 2\r\n\r\nno",
            // The connection stays open, and nothing comes.
            Manner::Hangs => "",
        };
        if input.get_mut().write_all(answer.as_bytes()).is_err() {
            return;
        }
    }
}
