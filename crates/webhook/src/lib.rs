//! Webhooks: what flows post to URLs, on threads of their own.
//!
//! A [`Poster`] takes posts and never has its caller wait; what came of them is asked for with [`Poster::take`]
//! when the bell was rung. Each *lane* has threads of its own, so that a receiver that hangs holds up nobody but those
//! that wait for it. An answer of 200 to 299 is a success, everything else is not; redirections are not followed.
//!
//! # Cost
//! A thread for each post of a lane under way, up to the lane's width. Connections are used again.

mod body;
mod lookup;
mod reach;

pub use body::Message;
pub use reach::place_of;

use headwater_base::connect::Allowed;
use headwater_base::text::redact_words;
use lookup::HostLookup;
use reach::Reach;
use rustls::crypto::ring;
use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;
use ureq::config::Config;
use ureq::tls::{PemItem, RootCerts, TlsConfig, parse_pem};
use ureq::unversioned::transport::DefaultConnector;

/// Threads of one lane, whatever its width.
const THREADS_MAX: usize = 32;
/// An answer's body is read so far, so that its connection can be used again.
const ANSWER_BYTES_MAX: u64 = 64 << 10;
/// Where systems keep the certificates that they trust.
const TRUSTED: [&str; 3] =
    ["/etc/ssl/certs/ca-certificates.crt", "/etc/pki/tls/certs/ca-bundle.crt", "/etc/ssl/cert.pem"];

/// One post.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Post {
    /// Names it in [`Poster::take`].
    pub id: u64,
    /// Where it goes.
    pub url: String,
    /// How long all of it may take.
    pub timeout: Duration,
    /// The header `Idempotency-Key`.
    pub idempotency_key: String,
    /// The header `Headwater-Sequence`.
    pub sequence: u64,
    /// The body, which is JSON.
    pub body: Vec<u8>,
    /// A client has named the URL: it must be one that [`Poster::new`]'s rules admit.
    pub by_client: bool,
}

type Done = (u64, Result<(), String>);
type OnDone = Arc<dyn Fn() + Send + Sync>;
/// Sends a post and waits for the answer.
type Client = Box<dyn Fn(&Post) -> Result<(), String> + Send + Sync>;

/// Posts of one kind.
struct Lane {
    sender: Sender<Post>,
    receiver: Arc<Mutex<Receiver<Post>>>,
    threads: usize,
    under_way: usize,
}

/// Posts, side by side.
pub struct Poster {
    shared: Arc<Shared>,
    sender: Sender<Done>,
    receiver: Receiver<Done>,
    lanes: HashMap<String, Lane>,
    /// The lanes of posts under way.
    under_way: HashMap<u64, String>,
}

/// What the threads share.
struct Shared {
    /// For URLs of the administrator's.
    client: OnceLock<Result<Client, String>>,
    /// For those of clients; they share no connection.
    client_of_clients: OnceLock<Result<Client, String>>,
    /// Where clients may have posts go.
    allowed: Allowed,
    /// A file of certificates to trust; empty: the system's.
    certificates: PathBuf,
    bell: OnDone,
}

impl std::fmt::Debug for Poster {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Poster").field("under_way", &self.under_way.len()).finish_non_exhaustive()
    }
}

impl Poster {
    /// No posts yet. `certificates` is a PEM file of those who may sign for `https`, empty: the system's.
    /// Posts of clients go where `allowed` says. `bell` is called, from any thread, when [`Poster::take`] has something.
    #[must_use]
    pub fn new(
        certificates: &Path,
        allowed: Allowed,
        bell: impl Fn() + Send + Sync + 'static,
    ) -> Self {
        let (sender, receiver) = channel();
        let shared = Shared {
            client: OnceLock::new(),
            client_of_clients: OnceLock::new(),
            allowed,
            certificates: certificates.to_owned(),
            bell: Arc::new(bell),
        };
        Self {
            shared: Arc::new(shared),
            sender,
            receiver,
            lanes: HashMap::new(),
            under_way: HashMap::new(),
        }
    }

    /// Sends a post on its way, beside at most `width` others of its lane.
    ///
    /// # Errors
    /// The system gives no thread.
    pub fn post(&mut self, lane: &str, width: usize, post: Post) -> Result<(), String> {
        let entry = self.lanes.entry(lane.to_owned()).or_insert_with(|| {
            let (sender, receiver) = channel();
            let receiver = Arc::new(Mutex::new(receiver));
            Lane { sender, receiver, threads: 0, under_way: 0 }
        });
        if entry.threads <= entry.under_way && entry.threads < width.clamp(1, THREADS_MAX) {
            let (shared, posts, done) =
                (self.shared.clone(), entry.receiver.clone(), self.sender.clone());
            std::thread::Builder::new()
                .name(String::from("webhook"))
                .spawn(move || work(&shared, &posts, &done))
                .map_err(|error| format!("no thread: {error}"))?;
            entry.threads += 1;
        }
        entry.under_way += 1;
        self.under_way.insert(post.id, lane.to_owned());
        // The lane holds the other end.
        let _ = entry.sender.send(post);
        Ok(())
    }

    /// What came of posts since the last time, each with its name and why it failed, if it did.
    pub fn take(&mut self) -> Vec<(u64, Result<(), String>)> {
        let done: Vec<Done> = self.receiver.try_iter().collect();
        for (id, _) in &done {
            if let Some(lane) = self.under_way.remove(id)
                && let Some(lane) = self.lanes.get_mut(&lane)
            {
                lane.under_way -= 1;
            }
        }
        done
    }

    /// Forgets a lane: its threads end when what is under way has ended.
    pub fn forget(&mut self, lane: &str) {
        self.lanes.remove(lane);
        self.under_way.retain(|_, of| of != lane);
    }
}

/// A thread's life.
fn work(shared: &Shared, posts: &Mutex<Receiver<Post>>, done: &Sender<Done>) {
    loop {
        // Whoever waits for a post holds the lock: the others wait for that.
        let next = posts.lock().unwrap_or_else(PoisonError::into_inner).recv();
        let Ok(post) = next else { return };
        let outcome = send(shared, &post);
        if done.send((post.id, outcome)).is_err() {
            return;
        }
        (shared.bell)();
    }
}

fn send(shared: &Shared, post: &Post) -> Result<(), String> {
    let client = if post.by_client {
        let allowed = Some(&shared.allowed);
        shared.client_of_clients.get_or_init(|| client(&shared.certificates, allowed))
    } else {
        shared.client.get_or_init(|| client(&shared.certificates, None))
    };
    client.as_ref()?(post)
}

/// What posts are sent with, to anywhere or where rules say.
fn client(certificates: &Path, allowed: Option<&Allowed>) -> Result<Client, String> {
    let tls = TlsConfig::builder()
        .root_certs(trusted(certificates)?)
        .unversioned_rustls_crypto_provider(Arc::new(ring::default_provider()))
        .build();
    let builder = Config::builder();
    // A proxy would look names up by itself.
    let builder = if allowed.is_some() { builder.proxy(None) } else { builder };
    let settings = builder
        .tls_config(tls)
        .user_agent(concat!("headwater/", env!("CARGO_PKG_VERSION")))
        .http_status_as_error(false)
        .max_redirects(0)
        .max_redirects_will_error(false)
        .max_idle_connections_per_host(THREADS_MAX)
        .build();
    let connector = DefaultConnector::default();
    let client = match allowed {
        None => ureq::Agent::with_parts(settings, connector, HostLookup),
        Some(allowed) => {
            ureq::Agent::with_parts(settings, connector, Reach { allowed: allowed.clone() })
        }
    };
    Ok(Box::new(move |post| {
        let request = client
            .post(&post.url)
            .config()
            .timeout_global(Some(post.timeout))
            .build()
            .header("Content-Type", "application/json")
            .header("Idempotency-Key", &post.idempotency_key)
            .header("Headwater-Sequence", post.sequence.to_string());
        let answer =
            request.send(&post.body[..]).map_err(|error| redact_words(&error.to_string()))?;
        let status = answer.status();
        // What it says besides is of no use, and neither is an error on the way.
        let _ = answer.into_body().into_with_config().limit(ANSWER_BYTES_MAX).read_to_vec();
        if status.is_success() { Ok(()) } else { Err(format!("answered {status}")) }
    }))
}

fn trusted(certificates: &Path) -> Result<RootCerts, String> {
    let named = !certificates.as_os_str().is_empty();
    let file = if named {
        certificates
    } else {
        let found = TRUSTED.iter().map(Path::new).find(|path| path.exists());
        // Without any, plain http works still.
        let Some(file) = found else { return Ok(RootCerts::Specific(Arc::default())) };
        file
    };
    let refuse = |why: String| format!("certificates '{}': {why}", file.display());
    let text = std::fs::read(file).map_err(|error| refuse(error.to_string()))?;
    let items = parse_pem(&text).filter_map(|item| match item {
        Ok(PemItem::Certificate(certificate)) => Some(Ok(certificate)),
        Ok(_) => None,
        Err(error) => Some(Err(refuse(error.to_string()))),
    });
    Ok(RootCerts::Specific(Arc::new(items.collect::<Result<_, _>>()?)))
}
