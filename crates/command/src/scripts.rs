//! The scripts that clients of Redis send for locks, by their SHA-1: what they ask is done natively.
//!
//! There is no interpreter of Lua. The lock of redis-py sends the same three scripts since its version 3; each is a comparison
//! with one write behind it, which is a command here.

/// What a known script asks; each has one key, and the token of a lock as its first argument.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum LockScript {
    /// Removes the key if it holds the token.
    Release,
    /// Gives the key more time if it holds the token and expires at all: milliseconds, and `0` where these are added to what is left.
    Extend,
    /// Gives the key so many milliseconds if it holds the token.
    Reacquire,
}

/// The known scripts by their SHA-1, in hexadecimal.
pub const LOCK_SCRIPTS: [(&str, LockScript); 3] = [
    ("c3f8721cbb97f72bc19e972846bd7aaf91901658", LockScript::Release),
    ("a4e8783852e6b949f9ef3a97212805108459a890", LockScript::Extend),
    ("1cac51482acf5858da00f6d685d68f886cd6b6b2", LockScript::Reacquire),
];

/// The known script with this SHA-1, in either case.
#[must_use]
pub fn lock_script(sha: &[u8]) -> Option<(&'static str, LockScript)> {
    LOCK_SCRIPTS.into_iter().find(|(known, _)| known.as_bytes().eq_ignore_ascii_case(sha))
}
