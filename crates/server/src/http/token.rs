//! Who may have figures: those who show the token of the settings, if there is one.

use axum::http::{HeaderMap, header};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;

/// What is to be shown; empty: nothing.
#[derive(Clone, Debug)]
pub(super) struct Token(String);

impl Token {
    pub(super) fn new(token: &str) -> Self {
        Self(token.to_owned())
    }

    /// Whether a request shows it: as a bearer token, or as the password of any user.
    pub(super) fn admits(&self, headers: &HeaderMap) -> bool {
        if self.0.is_empty() {
            return true;
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
