//! Texts that are told: names of one alphabet, and URLs without what proves who asks.

use alloc::borrow::ToOwned;
use alloc::format;
use alloc::string::String;

/// Longest name of what clients define.
pub const NAME_BYTES_MAX: usize = 128;

/// What stands where a secret was.
const HIDDEN: &str = "(redacted)";

/// Checks a name of something that clients define. Names stand in lines of `INFO`, in labels of metrics and in the log: they have one alphabet, in
/// which nothing ends a line or a word.
///
/// # Errors
/// A sentence; `what` is a word such as `join`.
pub fn check_name(what: &str, name: &str) -> Result<(), String> {
    let fits = |byte: u8| byte.is_ascii_alphanumeric() || b"_-.:".contains(&byte);
    if (1..=NAME_BYTES_MAX).contains(&name.len()) && name.bytes().all(fits) {
        return Ok(());
    }
    let shown: String = name.chars().take(40).flat_map(char::escape_default).collect();
    Err(format!(
        "'{shown}' cannot be a {what}'s name: it has 1 to {NAME_BYTES_MAX} letters of ASCII, digits, '_', '-', '.' or ':'"
    ))
}

/// A URL as it may be shown: without a password, and without the values of parameters that are proofs by their names. What
/// is no URL stays as it is.
#[must_use]
pub fn redact_url(text: &str) -> String {
    let Some((scheme, rest)) = text.split_once("://") else { return text.to_owned() };
    let end = rest.find(['/', '?', '#']).unwrap_or(rest.len());
    // A password may have any of these unescaped: the last `@` before the query ends it.
    let query = rest.find(['?', '#']).unwrap_or(rest.len());
    let at = rest[..query].rfind('@').filter(|at| *at < end || rest[..*at].contains(':'));
    let (who, rest) = match at {
        Some(at) => (&rest[..at], &rest[at..]),
        None => ("", rest),
    };
    let who = match who.split_once(':') {
        Some((user, _)) => format!("{user}:{HIDDEN}"),
        // Alone it is a token, but for databases, where it is a user.
        None if !who.is_empty() && scheme.starts_with("http") => HIDDEN.to_owned(),
        None => who.to_owned(),
    };
    let Some((place, query)) = rest.split_once('?') else {
        return format!("{scheme}://{who}{rest}");
    };
    let mut shown = format!("{scheme}://{who}{place}");
    for (number, parameter) in query.split('&').enumerate() {
        shown.push(if number == 0 { '?' } else { '&' });
        match parameter.split_once('=') {
            Some((name, _)) if is_secret(name) => {
                shown.push_str(name);
                shown.push('=');
                shown.push_str(HIDDEN);
            }
            _ => shown.push_str(parameter),
        }
    }
    shown
}

/// The words of a line, each that is a URL as it may be shown.
#[must_use]
pub fn redact_words(line: &str) -> String {
    let mut shown = String::with_capacity(line.len());
    for (number, word) in line.split(' ').enumerate() {
        if number > 0 {
            shown.push(' ');
        }
        shown.push_str(&redact_url(word));
    }
    shown
}

/// Whether a parameter of this name proves who asks.
fn is_secret(name: &str) -> bool {
    let name = name.to_ascii_lowercase();
    // `%70assword` is `password` to whoever reads it.
    let odd = name.contains('%');
    let words = ["pass", "pwd", "secret", "token", "key", "sig", "auth", "cred", "code"];
    odd || words.iter().any(|word| name.contains(word))
}

#[cfg(test)]
mod tests {
    use super::{check_name, redact_url, redact_words};

    #[test]
    fn names() {
        for good in ["a", "flow-1", "A.b:c_d", &"x".repeat(128)] {
            check_name("flow", good).unwrap();
        }
        for bad in ["", "a b", "a\r\nx:1", "\u{e9}", "a\"", "a,b=c", "a|b", &"x".repeat(129)] {
            let error = check_name("flow", bad).unwrap_err();
            assert!(error.contains("flow's name") && !error.contains('\n'), "{error}");
        }
    }

    #[test]
    fn urls() {
        for (url, shown) in [
            ("postgres://ann:p@ss@db/x", "postgres://ann:(redacted)@db/x"),
            ("postgres://ann:a/b@db/x", "postgres://ann:(redacted)@db/x"),
            ("postgres://ann@db/x", "postgres://ann@db/x"),
            (
                "postgres://ann@db/x?password=p&host=a",
                "postgres://ann@db/x?password=(redacted)&host=a",
            ),
            ("postgres://ann@db/x?%70assword=p", "postgres://ann@db/x?%70assword=(redacted)"),
            ("https://token@h/x", "https://(redacted)@h/x"),
            ("https://h/x?api_key=1&v=2", "https://h/x?api_key=(redacted)&v=2"),
            ("https://h/u@x", "https://h/u@x"),
            ("plain", "plain"),
        ] {
            assert_eq!(redact_url(url), shown);
        }
        assert_eq!(
            redact_words("f ON x HTTP POST http://a:b@c TIMEOUT 5"),
            "f ON x HTTP POST http://a:(redacted)@c TIMEOUT 5"
        );
    }
}
