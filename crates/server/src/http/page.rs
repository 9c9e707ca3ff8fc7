//! The page at `/`: its files, which are part of the program.
//!
//! It asks nobody but this server, and browsers are told to let it do nothing else: no script, style or connection from elsewhere, no
//! script or style within its text, no frame around it.

use super::api::protect;
use axum::Router;
use axum::body::Body;
use axum::http::{HeaderValue, header};
use axum::middleware::from_fn;
use axum::response::{IntoResponse, Response};
use axum::routing::get;

const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; \
base-uri 'none'; form-action 'none'; frame-ancestors 'none'";
const SCRIPT: &str = "text/javascript; charset=utf-8";

/// Paths, types and texts.
const FILES: [(&str, &str, &str); 12] = [
    ("/", "text/html; charset=utf-8", include_str!("page/index.html")),
    ("/page/style.css", "text/css; charset=utf-8", include_str!("page/style.css")),
    ("/page/icon.svg", "image/svg+xml", include_str!("page/icon.svg")),
    ("/page/app.js", SCRIPT, include_str!("page/app.js")),
    ("/page/api.js", SCRIPT, include_str!("page/api.js")),
    ("/page/dom.js", SCRIPT, include_str!("page/dom.js")),
    ("/page/overview.js", SCRIPT, include_str!("page/overview.js")),
    ("/page/keys.js", SCRIPT, include_str!("page/keys.js")),
    ("/page/joins.js", SCRIPT, include_str!("page/joins.js")),
    ("/page/graph.js", SCRIPT, include_str!("page/graph.js")),
    ("/page/explain.js", SCRIPT, include_str!("page/explain.js")),
    ("/favicon.ico", "image/svg+xml", include_str!("page/icon.svg")),
];

/// The page's routes.
pub(super) fn routes() -> Router {
    let mut router = Router::new();
    for (path, kind, text) in FILES {
        router = router.route(path, get(move || async move { file(kind, text) }));
    }
    router.layer(from_fn(protect))
}

fn file(kind: &'static str, text: &'static str) -> Response {
    let mut answer = Body::from(text).into_response();
    let add = answer.headers_mut();
    add.insert(header::CONTENT_TYPE, HeaderValue::from_static(kind));
    add.insert(header::CONTENT_SECURITY_POLICY, HeaderValue::from_static(POLICY));
    add.insert("cross-origin-opener-policy", HeaderValue::from_static("same-origin"));
    add.insert("cross-origin-resource-policy", HeaderValue::from_static("same-origin"));
    add.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    answer
}
