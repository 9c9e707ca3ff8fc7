//! Glob patterns as Redis matches them, for KEYS, SCAN, PSUBSCRIBE, CONFIG GET and the like.
//!
//! `*` any bytes, `?` one byte, `[a-c]` one of a class, `[^a]` one outside it, `\x` the byte itself. A class
//! that is not closed ends with the pattern; a backslash at the end stands for itself.
//!
//! # Cost
//! O(pattern × text) at worst, without recursion: after a mismatch only the last `*` takes one
//! byte more, since whatever an earlier one could take, the last one can.

/// Whether the whole of `text` matches `pattern`.
#[must_use]
pub fn matches(pattern: &[u8], text: &[u8]) -> bool {
    matches_with(pattern, text, false)
}

/// As [`matches()`], without a difference between upper and lower case.
#[must_use]
pub fn matches_ignoring_case(pattern: &[u8], text: &[u8]) -> bool {
    matches_with(pattern, text, true)
}

fn matches_with(mut pattern: &[u8], mut text: &[u8], fold: bool) -> bool {
    // Where to go on after a mismatch: behind the last `*`, with the text it has yet to take.
    let mut retry: Option<(&[u8], &[u8])> = None;
    loop {
        if let [b'*', rest @ ..] = pattern {
            if rest.is_empty() {
                return true;
            }
            pattern = rest;
            retry = Some((rest, text));
            continue;
        }
        let step = match text {
            [] if pattern.is_empty() => return true,
            // A longer piece for the last star leaves even less text.
            [] => return false,
            [byte, rest @ ..] => one(pattern, *byte, fold).map(|pattern| (pattern, rest)),
        };
        (pattern, text) = match (step, retry) {
            (Some(step), _) => step,
            (None, Some((after_star, from))) => {
                retry = Some((after_star, &from[1..]));
                (after_star, &from[1..])
            }
            (None, None) => return false,
        };
    }
}

/// What remains of `pattern` after its first element, if that matches `byte`.
fn one(pattern: &[u8], byte: u8, fold: bool) -> Option<&[u8]> {
    let same = |own: u8| own == byte || (fold && own.eq_ignore_ascii_case(&byte));
    match pattern {
        [] => None,
        [b'?', rest @ ..] => Some(rest),
        [b'[', rest @ ..] => {
            let (matched, rest) = class(rest, byte, fold);
            matched.then_some(rest)
        }
        [b'\\', own, rest @ ..] | [own, rest @ ..] => same(*own).then_some(rest),
    }
}

/// Whether `byte` is in the class that starts `pattern` (behind the bracket), and what follows it.
fn class(mut pattern: &[u8], byte: u8, fold: bool) -> (bool, &[u8]) {
    let lower = |byte: u8| if fold { byte.to_ascii_lowercase() } else { byte };
    let byte = lower(byte);
    let mut negated = false;
    if let [b'^', rest @ ..] = pattern {
        negated = true;
        pattern = rest;
    }
    let mut matched = false;
    loop {
        pattern = match pattern {
            [] => break,
            [b']', rest @ ..] => {
                pattern = rest;
                break;
            }
            [b'\\', own, rest @ ..] => {
                matched |= *own == byte;
                rest
            }
            [from, b'-', to, rest @ ..] => {
                let (from, to) = (lower(*from.min(to)), lower(*from.max(to)));
                matched |= (from..=to).contains(&byte);
                rest
            }
            [own, rest @ ..] => {
                matched |= lower(*own) == byte;
                rest
            }
        };
    }
    (matched != negated, pattern)
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec::Vec;

    #[test]
    fn elements() {
        let yes: [(&str, &str); 17] = [
            ("", ""),
            ("*", ""),
            ("***", "abc"),
            ("a?c", "abc"),
            ("h[ae]llo", "hallo"),
            ("h[^e]llo", "hallo"),
            ("h[a-b]llo", "hbllo"),
            ("h[b-a]llo", "hallo"),
            ("a*b*c", "aXbYbZc"),
            ("*ab", "aab"),
            ("\\*", "*"),
            ("[\\]]", "]"),
            ("[^]x", "ax"),
            ("[ab", "b"),
            ("a\\", "a\\"),
            ("[a-]", "_"),
            ("a*", "a"),
        ];
        for (pattern, text) in yes {
            assert!(matches(pattern.as_bytes(), text.as_bytes()), "{pattern} {text}");
        }
        let no =
            [("", "a"), ("?", ""), ("h[^a]llo", "hallo"), ("[]", "]"), ("a*b", "abc"), ("A", "a")];
        for (pattern, text) in no {
            assert!(!matches(pattern.as_bytes(), text.as_bytes()), "{pattern} {text}");
        }
        assert!(matches_ignoring_case(b"MaX*[A-C]", b"maxmemoryB"));
    }

    #[test]
    fn a_hostile_pattern_ends_soon() {
        let pattern = b"a*".repeat(2000);
        let text: Vec<u8> = [&b"a".repeat(20_000)[..], b"b"].concat();
        assert!(!matches(&[&pattern[..], b"c"].concat(), &text));
        assert!(matches(&[&pattern[..], b"b"].concat(), &text));
    }
}
