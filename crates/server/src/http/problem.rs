//! Refusals as JSON (`application/problem+json`, RFC 9457): what was wrong, and what is allowed.

use super::trials::place;
use axum::body::Body;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde_json::json;

/// The type of a problem's text.
const CONTENT_TYPE: &str = "application/problem+json";

/// Why a request is refused.
#[derive(Clone, PartialEq, Debug)]
pub(super) struct Problem {
    status: StatusCode,
    /// A word for programs: a code of RESP, or one of this interface.
    code: String,
    detail: String,
    /// What would have been accepted, where that is not said already.
    allowed: Option<String>,
}

impl Problem {
    pub(super) fn new(status: StatusCode, code: &str, detail: impl Into<String>) -> Self {
        Self { status, code: code.to_owned(), detail: detail.into(), allowed: None }
    }

    /// A request that cannot be understood.
    pub(super) fn bad(detail: impl Into<String>, allowed: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, "BAD_REQUEST", detail).allowing(allowed)
    }

    /// Says what would have been accepted.
    pub(super) fn allowing(mut self, allowed: impl Into<String>) -> Self {
        self.allowed = Some(allowed.into());
        self
    }

    /// What was wrong.
    pub(super) fn detail(&self) -> &str {
        &self.detail
    }

    /// Whether who asks lacks a right.
    pub(super) fn is_about_rights(&self) -> bool {
        self.code == "NOPERM"
    }

    /// The same with another status.
    pub(super) fn with_status(mut self, status: StatusCode) -> Self {
        self.status = status;
        self
    }

    /// The same without the line that a command quotes of a text behind what is wrong with it: where that is, is told by a
    /// number (`at`).
    pub(super) fn without_quote(mut self, text: &str) -> Self {
        let lines = text.lines().filter(|line| !line.trim().is_empty());
        let mut before = lines.filter_map(|line| self.detail.strip_suffix(line)?.strip_suffix(' '));
        let length = before.next().map(str::len).filter(|_| place(&self.detail).is_some());
        self.detail.truncate(length.unwrap_or(self.detail.len()));
        self
    }

    /// The session ended before it answered.
    pub(super) fn lost() -> Self {
        let text = "the session ended before it answered: its client was ended, or the server ends";
        Self::new(StatusCode::SERVICE_UNAVAILABLE, "LOST", text)
    }

    /// What a command was refused for.
    pub(super) fn of_reply(text: &str) -> Self {
        let (code, rest) = text.split_once(' ').unwrap_or((text, ""));
        let is_code = !code.is_empty() && code.bytes().all(|byte| byte.is_ascii_uppercase());
        let (code, detail) = if is_code { (code, rest) } else { ("ERR", text) };
        let status = match code {
            "NOAUTH" | "WRONGPASS" => StatusCode::UNAUTHORIZED,
            "NOPERM" | "DENIED" => StatusCode::FORBIDDEN,
            "JOINED" | "WRONGTYPE" => StatusCode::CONFLICT,
            "OOM" => StatusCode::INSUFFICIENT_STORAGE,
            "TIMEOUT" => StatusCode::GATEWAY_TIMEOUT,
            "SOURCE" => StatusCode::BAD_GATEWAY,
            "CLUSTERDOWN" | "LOADING" | "TRYAGAIN" | "BUSY" | "MISCONF" | "READONLY" | "MOVED" => {
                StatusCode::SERVICE_UNAVAILABLE
            }
            _ if detail.starts_with("max number of clients") => StatusCode::SERVICE_UNAVAILABLE,
            _ if detail.starts_with("unknown command") => StatusCode::NOT_IMPLEMENTED,
            _ => StatusCode::BAD_REQUEST,
        };
        let detail = match code {
            // What a request reads that nobody is named for speaks of commands.
            "NOAUTH" if ["HELLO ", "Authentication "].iter().any(|it| detail.starts_with(it)) => {
                "a login is needed: the user 'default' has a password, or is off"
            }
            _ => detail,
        };
        let problem = Self::new(status, code, detail);
        match code {
            "NOAUTH" | "WRONGPASS" => {
                problem.allowing("Authorization: Basic with a user of this server and its password")
            }
            _ => problem,
        }
    }
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        let mut text = json!({
            "type": "about:blank",
            "title": self.status.canonical_reason().unwrap_or("refused"),
            "status": self.status.as_u16(),
            "code": self.code,
            "detail": self.detail,
        });
        if let Some(at) =
            place(&self.detail).filter(|_| matches!(self.code.as_str(), "JOIN" | "ERR"))
        {
            text["at"] = json!(at);
        }
        if let Some(allowed) = self.allowed {
            text["allowed"] = json!(allowed);
        }
        let kind = [(header::CONTENT_TYPE, CONTENT_TYPE)];
        let mut answer = (self.status, kind, Body::from(text.to_string())).into_response();
        if self.status == StatusCode::SERVICE_UNAVAILABLE {
            answer.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from_static("1"));
        }
        answer
    }
}

#[cfg(test)]
mod tests {
    use super::Problem;
    use axum::http::StatusCode;

    #[test]
    fn refusals_of_commands_have_their_status() {
        for (text, status, code) in [
            ("NOPERM no", StatusCode::FORBIDDEN, "NOPERM"),
            ("WRONGPASS x", StatusCode::UNAUTHORIZED, "WRONGPASS"),
            ("ERR nonsense", StatusCode::BAD_REQUEST, "ERR"),
            ("ERR max number of clients reached", StatusCode::SERVICE_UNAVAILABLE, "ERR"),
            ("ERR unknown command 'GET'", StatusCode::NOT_IMPLEMENTED, "ERR"),
            ("something else", StatusCode::BAD_REQUEST, "ERR"),
        ] {
            let problem = Problem::of_reply(text);
            assert_eq!((problem.status, problem.code.as_str()), (status, code), "{text}");
        }
        let detail = |text| String::from(Problem::of_reply(text).detail());
        assert!(detail("NOAUTH HELLO must be called").starts_with("a login is needed"));
        assert_eq!(detail("NOAUTH the user is gone"), "the user is gone");
    }
}
