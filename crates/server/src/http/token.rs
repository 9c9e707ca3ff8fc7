//! Who may have figures: those who show the token of the settings, if there is one; and those whose certificate names a user who may send `INFO`.

use super::listener::CertificateName;
use crate::users::UserRegistry;
use axum::http::{Extensions, HeaderMap, header};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use headwater_command::table::lookup;
use std::sync::Arc;

/// Who may have figures.
#[derive(Clone, Debug)]
pub(super) struct Proofs {
    pub(super) token: Token,
    pub(super) users: Arc<UserRegistry>,
}

impl Proofs {
    /// Whether a request may be answered with figures.
    pub(super) fn admit(&self, headers: &HeaderMap, extensions: &Extensions) -> bool {
        let named = extensions.get::<CertificateName>().map(|CertificateName(name)| name);
        let user = named.map(|name| self.users.user_of_certificate(name));
        match user {
            // Somebody of whom is known what it may, which no open door changes.
            Some(Ok(Some(user))) => {
                let may = lookup(b"info").is_some_and(|info| user.check(info, None, &[]).is_ok());
                may || self.token.is_shown(headers)
            }
            Some(Err(_)) => self.token.is_shown(headers),
            Some(Ok(None)) | None => self.token.admits(headers),
        }
    }
}

/// What is to be shown; empty: nothing.
#[derive(Clone, Debug)]
pub(super) struct Token(String);

impl Token {
    pub(super) fn new(token: &str) -> Self {
        Self(token.to_owned())
    }

    /// Whether a request shows it: as a bearer token, or as the password of any user.
    pub(super) fn admits(&self, headers: &HeaderMap) -> bool {
        self.0.is_empty() || self.is_shown(headers)
    }

    /// Whether there is one, and a request shows it.
    fn is_shown(&self, headers: &HeaderMap) -> bool {
        if self.0.is_empty() {
            return false;
        }
        let mut shown = headers.get_all(header::AUTHORIZATION).iter();
        let (Some(shown), None) = (shown.next(), shown.next()) else { return false };
        let Some((scheme, proof)) = shown.to_str().ok().and_then(|text| text.split_once(' '))
        else {
            return false;
        };
        let proof = proof.trim();
        if scheme.eq_ignore_ascii_case("bearer") {
            return same(self.0.as_bytes(), proof.as_bytes());
        }
        if !scheme.eq_ignore_ascii_case("basic") {
            return false;
        }
        let Ok(pair) = STANDARD.decode(proof) else { return false };
        let password = pair.iter().position(|&byte| byte == b':').map(|at| &pair[at + 1..]);
        password.is_some_and(|password| same(self.0.as_bytes(), password))
    }
}

/// Compares all bytes in any case, so that the time taken does not tell where they differ.
fn same(secret: &[u8], given: &[u8]) -> bool {
    let mut differ = secret.len() ^ given.len();
    for (at, &byte) in given.iter().enumerate() {
        differ |= usize::from(byte ^ secret.get(at).copied().unwrap_or(0));
    }
    differ == 0
}

#[cfg(test)]
mod tests {
    use super::Token;
    use axum::http::{HeaderMap, HeaderValue, header};

    #[test]
    fn only_who_shows_it_has_figures() {
        let admits = |token: &str, shown: &[&'static str]| {
            let mut headers = HeaderMap::new();
            for text in shown {
                headers.append(header::AUTHORIZATION, HeaderValue::from_static(text));
            }
            Token::new(token).admits(&headers)
        };
        // "any:s3:cret"
        for good in ["Bearer s3:cret", "bearer  s3:cret", "Basic YW55OnMzOmNyZXQ="] {
            assert!(admits("s3:cret", &[good]), "{good}");
        }
        for bad in [
            "",
            "Bearer",
            "Bearer s3:cre",
            "Bearer s3:crett",
            "s3:cret",
            "Basic czM6Y3JldA==",
            "Basic !",
            "Digest s3:cret",
        ] {
            assert!(!admits("s3:cret", &[bad]), "{bad}");
        }
        assert!(!admits("s3:cret", &[]));
        assert!(!admits("s3:cret", &["Bearer s3:cret", "Bearer s3:cret"]));
        assert!(admits("", &[]));
    }
}
