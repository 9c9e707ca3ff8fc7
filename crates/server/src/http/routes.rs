//! What is answered to which request.
//!
//! Nothing but a few routes of the interface for programs takes a body: elsewhere a request that announces one is refused before any of it is read.

use super::api::{self, Api};
use super::hosts::Hosts;
use super::token::Proofs;
use super::{Asker, Vitals};
use super::{metrics, page};
use crate::log::event;
use axum::Router;
use axum::body::{Body, HttpBody};
use axum::extract::{Request, State};
use axum::http::{StatusCode, header};
use axum::middleware::{Next, from_fn, from_fn_with_state};
use axum::response::{IntoResponse, Response};
use axum::routing::get;

const TEXT: &str = "text/plain; charset=utf-8";

/// What operators and their programs ask.
fn signs(asker: Asker, proofs: Proofs) -> Router {
    Router::new()
        .route("/metrics", get(figures).layer(from_fn_with_state(proofs, prove)))
        .route("/healthz", get(sign_of_life))
        .route("/readyz", get(readiness))
        .fallback(nothing)
        .method_not_allowed_fallback(not_allowed)
        .layer(from_fn(refuse_body))
        .with_state(asker)
}

/// All routes, for requests to these hosts.
pub(super) fn all(asker: Asker, api: Api, hosts: Hosts, proofs: Proofs) -> Router {
    signs(asker, proofs)
        .merge(page::routes())
        .merge(api::routes(api))
        .layer(from_fn(api::challenge))
        .layer(from_fn_with_state(hosts, admit))
}

/// Refuses what is not to be answered at all.
async fn admit(State(hosts): State<Hosts>, request: Request, next: Next) -> Response {
    if !hosts.admit(request.uri(), request.headers()) {
        event!(
            warn,
            "http",
            "http_host_refused",
            "a request was refused: its Host is no name of this server"
        );
        let text = "Host is no name of this server: ask for an address, for localhost, or for a name in http-hosts\n";
        return say(StatusCode::MISDIRECTED_REQUEST, text);
    }
    next.run(request).await
}

/// Refuses a body before any of it is read.
async fn refuse_body(request: Request, next: Next) -> Response {
    if !request.body().is_end_stream() {
        let mut answer = say(StatusCode::PAYLOAD_TOO_LARGE, "no body is taken here\n");
        answer.headers_mut().insert(header::CONNECTION, header::HeaderValue::from_static("close"));
        return answer;
    }
    next.run(request).await
}

/// Refuses who neither shows the token nor has a certificate of somebody who may have figures.
async fn prove(State(proofs): State<Proofs>, request: Request, next: Next) -> Response {
    if proofs.admit(request.headers(), request.extensions()) {
        return next.run(request).await;
    }
    event!(warn, "http", "http_token_refused", "figures were refused: no token, or a wrong one");
    let mut answer = say(StatusCode::UNAUTHORIZED, "a token is needed (http-token)\n");
    let ways = header::HeaderValue::from_static("Bearer, Basic realm=\"headwater\"");
    answer.headers_mut().insert(header::WWW_AUTHENTICATE, ways);
    answer
}

async fn figures(State(asker): State<Asker>) -> Response {
    let Some(vitals) = asker.vitals().await else { return stuck() };
    match metrics::encode(vitals.metrics) {
        Ok(text) => ([(header::CONTENT_TYPE, metrics::CONTENT_TYPE)], text).into_response(),
        Err(_) => say(StatusCode::INTERNAL_SERVER_ERROR, "the metrics cannot be written\n"),
    }
}

async fn sign_of_life(State(asker): State<Asker>) -> Response {
    match asker.vitals().await {
        Some(_) => say(StatusCode::OK, "ok\n"),
        None => stuck(),
    }
}

/// Whether clients may be sent here.
async fn readiness(State(asker): State<Asker>) -> Response {
    match asker.vitals().await {
        Some(Vitals { unready: None, .. }) => say(StatusCode::OK, "ok\n"),
        Some(Vitals { unready: Some(why), .. }) => {
            say(StatusCode::SERVICE_UNAVAILABLE, format!("{why}\n"))
        }
        None => stuck(),
    }
}

fn stuck() -> Response {
    say(StatusCode::SERVICE_UNAVAILABLE, "the server does not answer\n")
}

async fn nothing() -> Response {
    say(StatusCode::NOT_FOUND, "there are /, /v1/…, /metrics, /healthz and /readyz\n")
}

async fn not_allowed() -> Response {
    say(StatusCode::METHOD_NOT_ALLOWED, "only GET is allowed here\n")
}

fn say(status: StatusCode, text: impl Into<Body>) -> Response {
    (status, [(header::CONTENT_TYPE, TEXT)], text.into()).into_response()
}
