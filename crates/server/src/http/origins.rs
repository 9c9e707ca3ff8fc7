//! Which web pages may ask: those that come from here, and those of the origins in the settings.
//!
//! A browser lets any page send requests to any address, and may add the password that it was given for it. It says whose page
//! it is (`Origin`) and asks before anything but plain reading (CORS). So a request that names an origin is refused unless that is this server's
//! or an allowed one; and one that changes something must be of a kind that no page can send unasked.

use super::problem::Problem;
use axum::extract::{Request, State};
use axum::http::uri::Authority;
use axum::http::{HeaderMap, HeaderValue, Method, StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use std::sync::Arc;

/// The word that lets every origin in.
const ANY: &str = "*";
const METHODS: &str = "GET, HEAD, PUT, POST, DELETE";
const HEADERS: &str = "authorization, content-type, last-event-id, headwater-request";
const EXPOSED: &str = "headwater-ttl-ms, retry-after";
/// Seconds for which a browser need not ask again.
const REMEMBERED: &str = "600";

/// The origins that are let in besides this server's own.
#[derive(Clone, Debug)]
pub(super) struct Origins(Arc<[String]>);

impl Origins {
    pub(super) fn new(origins: &[String]) -> Self {
        Self(origins.iter().map(|it| it.trim_end_matches('/').to_ascii_lowercase()).collect())
    }

    fn allows(&self, origin: &str) -> bool {
        self.0.iter().any(|it| it == ANY || it.eq_ignore_ascii_case(origin))
    }
}

/// Whether an origin is the server's own, by the name that it was asked under.
fn is_own(origin: &str, headers: &HeaderMap) -> bool {
    let host = headers.get(header::HOST).and_then(|host| host.to_str().ok());
    let Some((scheme, authority)) = origin.split_once("://") else { return false };
    let (Some(host), Ok(ours)) =
        (host.and_then(|it| it.parse::<Authority>().ok()), authority.parse())
    else {
        return false;
    };
    let ours: Authority = ours;
    let port = if scheme.eq_ignore_ascii_case("https") { 443 } else { 80 };
    host.host().eq_ignore_ascii_case(ours.host())
        && host.port_u16().unwrap_or(port) == ours.port_u16().unwrap_or(port)
}

/// Refuses pages of other origins, and tells browsers which may read the answer.
pub(super) async fn guard(
    State(origins): State<Origins>,
    request: Request,
    next: Next,
) -> Response {
    let headers = request.headers();
    let mut named = headers.get_all(header::ORIGIN).iter();
    let origin = match (named.next(), named.next()) {
        (None, _) => None,
        (Some(origin), None) => Some(origin.clone()),
        (Some(_), Some(_)) => {
            return Problem::bad("Origin is there twice", "Origin once").into_response();
        }
    };
    let mut cors = None;
    if let Some(origin) = &origin {
        let text = origin.to_str().unwrap_or_default();
        if origins.allows(text) {
            cors = Some(origin.clone());
        } else if !is_own(text, headers) {
            let shown = text.escape_default();
            return Problem::new(
                StatusCode::FORBIDDEN,
                "ORIGIN",
                format!("pages of the origin '{shown}' may not ask here"),
            )
            .allowing("this server's own origin, and those in http-origins")
            .into_response();
        }
    } else if let Some(site) = headers.get("sec-fetch-site")
        && site == "cross-site"
        && !matches!(*request.method(), Method::GET | Method::HEAD)
    {
        let text = "a page of another site may change nothing here";
        return Problem::new(StatusCode::FORBIDDEN, "ORIGIN", text)
            .allowing("an Origin that is in http-origins")
            .into_response();
    }
    let asks_before = *request.method() == Method::OPTIONS
        && headers.contains_key(header::ACCESS_CONTROL_REQUEST_METHOD);
    let mut answer =
        if asks_before { StatusCode::NO_CONTENT.into_response() } else { next.run(request).await };
    let add = answer.headers_mut();
    add.append(header::VARY, HeaderValue::from_static("origin"));
    add.insert("cross-origin-resource-policy", HeaderValue::from_static("same-origin"));
    add.entry(header::CACHE_CONTROL).or_insert(HeaderValue::from_static("no-store"));
    if let Some(origin) = cors {
        add.insert(header::ACCESS_CONTROL_ALLOW_ORIGIN, origin);
        add.insert(header::ACCESS_CONTROL_EXPOSE_HEADERS, HeaderValue::from_static(EXPOSED));
        if asks_before {
            add.insert(header::ACCESS_CONTROL_ALLOW_METHODS, HeaderValue::from_static(METHODS));
            add.insert(header::ACCESS_CONTROL_ALLOW_HEADERS, HeaderValue::from_static(HEADERS));
            add.insert(header::ACCESS_CONTROL_MAX_AGE, HeaderValue::from_static(REMEMBERED));
        }
    }
    answer
}

#[cfg(test)]
mod tests {
    use super::{Origins, is_own};
    use axum::http::{HeaderMap, HeaderValue, header};

    #[test]
    fn only_named_origins_and_the_own_one_are_let_in() {
        let origins = Origins::new(&[String::from("https://app.example/")]);
        assert!(origins.allows("https://app.example") && origins.allows("https://APP.example"));
        for bad in [
            "http://app.example",
            "https://app.example:444",
            "https://app.example.evil",
            "null",
            "",
        ] {
            assert!(!origins.allows(bad), "{bad}");
        }
        assert!(Origins::new(&[String::from("*")]).allows("null"));
        let own = |origin: &str, host: &'static str| {
            let headers = HeaderMap::from_iter([(header::HOST, HeaderValue::from_static(host))]);
            is_own(origin, &headers)
        };
        assert!(own("http://127.0.0.1:7380", "127.0.0.1:7380"));
        assert!(own("http://[::1]:7380", "[::1]:7380"));
        assert!(own("https://cache.example", "cache.example"));
        assert!(own("https://cache.example", "Cache.example:443"));
        for (bad, host) in [
            ("http://127.0.0.1:7381", "127.0.0.1:7380"),
            ("http://localhost:7380", "127.0.0.1:7380"),
            ("null", "127.0.0.1:7380"),
            ("http://127.0.0.1", "127.0.0.1:7380"),
            ("", ""),
        ] {
            assert!(!own(bad, host), "{bad} {host}");
        }
    }
}
