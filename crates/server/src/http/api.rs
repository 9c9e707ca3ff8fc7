//! The interface for programs and pages, below `/v1`.
//!
//! Each request is one session within the process (`inner`): who asks is the user that it names with `Authorization: Basic`, or whose
//! certificate it shows, or `default`, and may what that user may over RESP.

use super::body::Busy;
use super::inner::{Caller, InnerConnector, Login};
use super::listener::{CertificateName, Peer};
use super::origins::{Origins, guard};
use super::problem::Problem;
use super::{keys, ranges, state, watches};
use axum::Router;
use axum::body::{Body, HttpBody};
use axum::extract::Request;
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::middleware::{Next, from_fn, from_fn_with_state};
use axum::response::{IntoResponse, Response};
use axum::routing::{any, delete, get, post, put};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use headwater_config::Http;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Semaphore;

/// The description of all that is here.
const OPENAPI: &str = include_str!("openapi.json");

/// Joins that may be tried at once: each takes a thread and some memory.
const TRIALS_MAX: usize = 2;

/// What requests share.
#[derive(Clone)]
pub(super) struct Api {
    /// Where sessions begin.
    pub(super) connector: InnerConnector,
    /// How long a part of a body may take to come.
    pub(super) patience: Duration,
    /// How often those who watch are told that the connection is alive.
    pub(super) heartbeat: Duration,
    /// Watches that may still begin.
    pub(super) watches: Arc<Semaphore>,
    /// How many there may be.
    pub(super) watches_max: usize,
    /// Joins that may be tried at once.
    pub(super) trials: Arc<Semaphore>,
    origins: Origins,
}

impl Api {
    pub(super) fn new(settings: &Http, connector: InnerConnector) -> Self {
        Self {
            connector,
            patience: Duration::from_millis(settings.http_milliseconds_max),
            heartbeat: Duration::from_millis(settings.http_heartbeat_milliseconds),
            watches: Arc::new(Semaphore::new(settings.http_watches_max)),
            watches_max: settings.http_watches_max,
            trials: Arc::new(Semaphore::new(TRIALS_MAX)),
            origins: Origins::new(&settings.http_origins),
        }
    }
}

/// The routes below `/v1`.
pub(super) fn routes(api: Api) -> Router {
    let origins = api.origins.clone();
    let key = || get(keys::read).delete(keys::remove);
    let takes_body = Router::new()
        .route("/v1/keys", put(keys::write))
        .route("/v1/keys/", put(keys::write))
        .route("/v1/keys/{*key}", put(keys::write))
        .route("/v1/joins", post(state::add_join))
        .route("/v1/joins/try", post(state::try_join));
    let takes_none = Router::new()
        .route("/v1/keys", key())
        .route("/v1/keys/", key())
        .route("/v1/keys/{*key}", key())
        .route("/v1/range", get(ranges::read))
        .route("/v1/watch", get(watches::begin))
        .route("/v1/explain", get(state::explain))
        .route("/v1/verify", get(state::verify))
        .route("/v1/info", get(state::info))
        .route("/v1/user", get(state::user))
        .route("/v1/joins", get(state::joins))
        .route("/v1/joins/{name}", delete(state::drop_join))
        .route("/v1/tables", get(state::tables))
        .route("/v1/sources", get(state::sources))
        .route("/v1/flows", get(state::flows))
        .route("/v1/shards", get(state::shards))
        .route("/v1/log", get(state::log))
        .route("/v1/openapi.json", get(openapi))
        .route("/v1", any(nothing))
        .route("/v1/{*rest}", any(nothing))
        .layer(from_fn(refuse_body));
    takes_none
        .merge(takes_body)
        .method_not_allowed_fallback(not_allowed)
        .layer(from_fn_with_state(origins, guard))
        .layer(from_fn(protect))
        .with_state(api)
}

/// What every answer says to browsers.
pub(super) async fn protect(request: Request, next: Next) -> Response {
    let mut answer = next.run(request).await;
    let headers = answer.headers_mut();
    headers.insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    headers.insert(header::REFERRER_POLICY, HeaderValue::from_static("no-referrer"));
    headers
        .entry(header::CONTENT_SECURITY_POLICY)
        .or_insert(HeaderValue::from_static("default-src 'none'; frame-ancestors 'none'; sandbox"));
    answer
}

/// Refuses a body before any of it is read.
async fn refuse_body(request: Request, next: Next) -> Response {
    if request.body().is_end_stream() {
        return next.run(request).await;
    }
    let text = "no body is taken here";
    let mut answer = Problem::new(StatusCode::PAYLOAD_TOO_LARGE, "BODY", text).into_response();
    answer.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
    answer
}

async fn openapi() -> Response {
    ([(header::CONTENT_TYPE, "application/json")], Body::from(OPENAPI)).into_response()
}

async fn nothing() -> Problem {
    Problem::new(StatusCode::NOT_FOUND, "NOT_FOUND", "there is nothing here")
        .allowing("what /v1/openapi.json describes")
}

async fn not_allowed() -> Problem {
    Problem::new(StatusCode::METHOD_NOT_ALLOWED, "METHOD", "this method is not allowed here")
        .allowing("what /v1/openapi.json describes, and the Allow header names")
}

/// Who asks.
pub(super) fn caller(request: &Request) -> Result<Caller, Problem> {
    let nowhere = SocketAddr::from((Ipv4Addr::UNSPECIFIED, 0));
    let extensions = request.extensions();
    Ok(Caller {
        peer: extensions.get::<Peer>().map_or(nowhere, |Peer(peer)| *peer),
        certificate: extensions.get::<CertificateName>().map(|CertificateName(name)| name.clone()),
        login: login(request.headers())?,
    })
}

/// Whether an answer of the request's connection is under way.
pub(super) fn busy(request: &Request) -> Busy {
    request.extensions().get::<Busy>().cloned().unwrap_or_default()
}

fn login(headers: &HeaderMap) -> Result<Option<Login>, Problem> {
    let refuse = |text: &str| {
        Problem::new(StatusCode::UNAUTHORIZED, "NOAUTH", text)
            .allowing("Authorization: Basic with a user of this server and its password")
    };
    let mut shown = headers.get_all(header::AUTHORIZATION).iter();
    let shown = match (shown.next(), shown.next()) {
        (None, _) => return Ok(None),
        (Some(shown), None) => shown,
        (Some(_), Some(_)) => return Err(refuse("Authorization is there twice")),
    };
    let pair = shown.to_str().ok().and_then(|text| text.split_once(' '));
    let Some((scheme, proof)) = pair else { return Err(refuse("Authorization cannot be read")) };
    if !scheme.eq_ignore_ascii_case("basic") {
        return Err(refuse("keys are for users: the token of http-token is for /metrics alone"));
    }
    let Ok(pair) = STANDARD.decode(proof.trim()) else {
        return Err(refuse("Authorization: Basic is not followed by Base64"));
    };
    let Some(at) = pair.iter().position(|&byte| byte == b':') else {
        return Err(refuse("Authorization: Basic has no ':' between user and password"));
    };
    let (user, password) = (&pair[..at], &pair[at + 1..]);
    let user = if user.is_empty() { b"default" } else { user };
    Ok(Some((user.to_vec(), password.to_vec())))
}

/// Says how to log in to those who have not. Pages that ask for a password themselves send `Headwater-Request`, and are not
/// answered in a way that has the browser ask for one.
pub(super) async fn challenge(request: Request, next: Next) -> Response {
    let asks_itself = request.headers().contains_key("headwater-request");
    let mut answer = next.run(request).await;
    if answer.status() == StatusCode::UNAUTHORIZED
        && !answer.headers().contains_key(header::WWW_AUTHENTICATE)
    {
        let way = if asks_itself { "X-Basic" } else { "Basic" };
        let way = HeaderValue::from_str(&format!("{way} realm=\"headwater\", charset=\"UTF-8\""));
        if let Ok(way) = way {
            answer.headers_mut().insert(header::WWW_AUTHENTICATE, way);
        }
    }
    answer
}
