//! What may follow a source's pattern: `as <slot>`, `as json(path) <slot>`, `on <slot>`, `where condition`.
//!
//! ```text
//! clauses   = { "as" [ "json(" path ")" ] "<" slot ">" } [ "on" "<" slot ">" ] [ "where" any ]
//! any       = all { "or" all }
//! all       = one { "and" one }
//! one       = "not" one | "(" any ")" | operand test
//! operand   = "value" | "json(" path ")" | "<" slot ">"
//! test      = ( "=" | "!=" | "<" | "<=" | ">" | ">=" ) literal | "in" "(" literal { "," literal } ")"
//!           | "prefix" text | "exists"
//! literal   = text | number | "true" | "false"
//! text      = "'" any but "'", which is written twice "'" ( or the same with double quotes )
//! path      = "." | { "." ( name | '"' any name '"' ) | "[" number "]" }
//! ```

use super::{Parsed, RawSlot, Reader, Word, found, is_space};
use crate::lens::{Comparison, Field, Filter, Literal, Operand, Path, STEPS_MAX, Step, is_plain};
use crate::{JoinError, Operator};
use alloc::boxed::Box;
use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec::Vec;
use headwater_base::Decimal;

/// How deep conditions may stand in one another.
const NESTED_MAX: usize = 32;
/// Most conditions, values in lists included, that one source may have.
const CONDITIONS_MAX: usize = 256;

/// A lens whose slots have names still.
#[derive(Default)]
pub(super) struct RawLens<'t> {
    pub(super) binds: Vec<(Field, RawSlot<'t>)>,
    pub(super) filter: Option<Filter>,
    /// The slot that is looked at in the place of the value.
    pub(super) on: Option<Word<'t>>,
    /// The slots that the filter names: in it they are numbered by their place here.
    pub(super) slots: Vec<Word<'t>>,
}

/// Reads conditions.
struct Conditions<'r, 't> {
    reader: &'r mut Reader<'t>,
    slots: Vec<Word<'t>>,
    count: usize,
}

impl<'t> Reader<'t> {
    /// The clauses behind the pattern of a source that does this.
    pub(super) fn clauses(&mut self, operator: Operator) -> Parsed<RawLens<'t>> {
        let mut lens = RawLens::default();
        loop {
            let word = self.peek();
            match word.text {
                "as" | "on" | "where" if self.bare => {
                    let message = format!(
                        "`{}` needs the style in which slots are written <slot>, in the whole text",
                        word.text
                    );
                    return self.fail(word.at, message);
                }
                "as" if lens.filter.is_some() => {
                    return self.fail(word.at, "`as` stands before `where`");
                }
                "as" if lens.on.is_some() => {
                    return self.fail(word.at, "`as` stands before `on`");
                }
                "on" if lens.filter.is_some() => {
                    return self.fail(word.at, "`on` stands before `where`");
                }
                "on" if lens.on.is_some() => {
                    return self.fail(word.at, "a source has one `on`");
                }
                "on" if !operator.tallies() => {
                    let message = format!(
                        "`on` is for distinct, distinct~, topk and percentile, not for {}",
                        operator.name()
                    );
                    return self.fail(word.at, message);
                }
                "on" => {
                    self.take(word);
                    lens.on = Some(self.on()?);
                }
                "as" => {
                    self.take(word);
                    lens.binds.push(self.bind()?);
                }
                "where" if lens.filter.is_some() => {
                    return self.fail(
                        word.at,
                        "a source has one `where`; conditions are joined by `and` or `or`",
                    );
                }
                "where" => {
                    self.take(word);
                    let mut conditions = Conditions { reader: self, slots: Vec::new(), count: 0 };
                    lens.filter = Some(conditions.any(0)?);
                    lens.slots = conditions.slots;
                }
                _ => return Ok(lens),
            }
        }
    }

    /// `<slot>` or `json(path) <slot>`.
    fn bind(&mut self) -> Parsed<(Field, RawSlot<'t>)> {
        let field = if self.skip_to("json(") { Field::Json(self.path()?) } else { Field::Value };
        let word = self.peek();
        let inner = word.text.strip_prefix('<').and_then(|text| text.strip_suffix('>'));
        let Some(name) = inner.filter(|name| !name.is_empty() && !name.contains(['<', '>', '|']))
        else {
            let message = format!(
                "expected a <slot> for what the value binds, or json(.path) and a <slot>, found {}",
                found(word)
            );
            return self.fail(word.at, message);
        };
        if let Some(colon) = name.find(':') {
            let message = "a slot's type and width stand in the output";
            return self.fail(word.at + 1 + colon, message);
        }
        self.take(word);
        Ok((field, RawSlot { name, at: word.at, width: None, form: None }))
    }

    /// What is left of the text, and where it begins, white space left out.
    fn rest(&mut self) -> (&'t str, usize) {
        let rest = self.text[self.at..].trim_start_matches(is_space);
        let at = self.text.len() - rest.len();
        (rest, at)
    }

    /// Takes a piece of text if it comes next.
    fn skip_to(&mut self, piece: &str) -> bool {
        let (rest, at) = self.rest();
        let is_next = rest.starts_with(piece);
        if is_next {
            self.at = at + piece.len();
        }
        is_next
    }

    /// A path and the `)` behind it.
    fn path(&mut self) -> Parsed<Path> {
        let mut steps = Vec::new();
        if self.skip_to(".)") || self.skip_to(")") {
            return Ok(Path { steps });
        }
        loop {
            let (rest, at) = self.rest();
            if steps.len() == STEPS_MAX && rest.starts_with(['[', '.']) {
                return self.fail(at, format!("a path has at most {STEPS_MAX} steps"));
            }
            if let Some(inner) = rest.strip_prefix('[') {
                let digits =
                    inner.len() - inner.trim_start_matches(|c: char| c.is_ascii_digit()).len();
                match (inner[..digits].parse(), inner[digits..].starts_with(']')) {
                    (Ok(element), true) => steps.push(Step::Element(element)),
                    _ => return self.fail(at, "an element of an array is [n], counted from 0"),
                }
                self.at = at + digits + 2;
            } else if let Some(quoted) = rest.strip_prefix(".\"") {
                self.at = at + 1;
                let (name, len) = self.quoted(quoted, '"', at + 1)?;
                steps.push(Step::Member(name));
                self.at = at + 2 + len;
            } else if let Some(inner) = rest.strip_prefix('.') {
                let ends = |c: char| !is_plain(c.encode_utf8(&mut [0; 4]));
                let len = inner.find(ends).unwrap_or(inner.len());
                if len == 0 {
                    let message = "a member's name follows the `.`, in double quotes if it has other \
                                   characters than letters, digits, `_`, `-`, `$` and `@`";
                    return self.fail(at, message);
                }
                steps.push(Step::Member(inner[..len].to_string()));
                self.at = at + 1 + len;
            } else if rest.starts_with(')') && !steps.is_empty() {
                self.at = at + 1;
                return Ok(Path { steps });
            } else {
                let message = "a path into JSON is .name, .\"any name\" or [n], one after the other, and ends with `)`";
                return self.fail(at, message);
            }
        }
    }

    /// A text up to the quote that ends it, and its length in the text with that quote.
    fn quoted(&self, text: &str, quote: char, at: usize) -> Parsed<(String, usize)> {
        let mut out = String::new();
        let mut characters = text.char_indices().peekable();
        while let Some((at, character)) = characters.next() {
            if character == quote {
                if characters.peek().is_none_or(|(_, next)| *next != quote) {
                    return Ok((out, at + 1));
                }
                characters.next();
            }
            out.push(character);
        }
        self.fail(at, "the text that begins here has no end: its quote is missing")
    }
}

impl<'t> Conditions<'_, 't> {
    fn fail<T>(&mut self, message: impl ToString) -> Parsed<T> {
        let (_, at) = self.reader.rest();
        let at = at.min(self.reader.text.trim_end_matches(is_space).len());
        Err(JoinError::new(self.reader.text, at, message))
    }

    /// Takes a word if it comes next: nothing that a name may go on with follows it.
    fn word(&mut self, word: &str) -> bool {
        let (rest, at) = self.reader.rest();
        let behind = rest.strip_prefix(word).map(|rest| rest.chars().next());
        let ends = |c: char| !c.is_alphanumeric() && c != '_';
        let is_next = behind.is_some_and(|next| next.is_none_or(ends));
        if is_next {
            self.reader.at = at + word.len();
        }
        is_next
    }

    fn any(&mut self, depth: usize) -> Parsed<Filter> {
        let first = self.all(depth)?;
        if !self.word("or") {
            return Ok(first);
        }
        let mut all = alloc::vec![first, self.all(depth)?];
        while self.word("or") {
            all.push(self.all(depth)?);
        }
        Ok(Filter::Any(all))
    }

    fn all(&mut self, depth: usize) -> Parsed<Filter> {
        let first = self.one(depth)?;
        if !self.word("and") {
            return Ok(first);
        }
        let mut all = alloc::vec![first, self.one(depth)?];
        while self.word("and") {
            all.push(self.one(depth)?);
        }
        Ok(Filter::All(all))
    }

    fn one(&mut self, depth: usize) -> Parsed<Filter> {
        if depth > NESTED_MAX {
            return self
                .fail(format!("conditions stand in one another more than {NESTED_MAX} deep"));
        }
        if self.word("not") {
            return Ok(Filter::Not(Box::new(self.one(depth + 1)?)));
        }
        if self.reader.skip_to("(") {
            let inner = self.any(depth + 1)?;
            if !self.reader.skip_to(")") {
                return self.fail("expected `and`, `or`, or the `)` that ends these conditions");
            }
            return Ok(inner);
        }
        self.count()?;
        let operand = self.operand()?;
        self.test(operand)
    }

    fn count(&mut self) -> Parsed<()> {
        self.count += 1;
        if self.count > CONDITIONS_MAX {
            return self.fail(format!(
                "a source has at most {CONDITIONS_MAX} conditions, values in lists included"
            ));
        }
        Ok(())
    }

    fn operand(&mut self) -> Parsed<Operand> {
        if self.word("value") {
            return Ok(Operand::Field(Field::Value));
        }
        if self.reader.skip_to("json(") {
            return Ok(Operand::Field(Field::Json(self.reader.path()?)));
        }
        let (rest, at) = self.reader.rest();
        let slot = rest.strip_prefix('<').and_then(|rest| rest.split_once('>'));
        if let Some((name, _)) = slot.filter(|(name, _)| {
            !name.is_empty()
                && !name.contains(|c| is_space(c) || matches!(c, '|' | '<' | '=' | ':'))
        }) {
            self.reader.at = at + name.len() + 2;
            self.slots.push(Word { text: name, at });
            return Ok(Operand::Slot(self.slots.len() - 1));
        }
        let message = format!(
            "a condition begins with `value`, json(.path), a <slot>, `not` or `(`, found {}",
            found(self.reader.peek())
        );
        self.fail(message)
    }

    fn test(&mut self, operand: Operand) -> Parsed<Filter> {
        if self.word("exists") {
            return Ok(Filter::Exists(operand));
        }
        if self.word("prefix") {
            return match self.literal()? {
                Literal::Text(text) => Ok(Filter::Prefix(operand, text)),
                _ => self.fail("`prefix` needs a text, in quotes"),
            };
        }
        if self.word("in") {
            if !self.reader.skip_to("(") {
                return self.fail("`in` needs values in parentheses: in (1, 2)");
            }
            let mut literals = alloc::vec![self.literal()?];
            while self.reader.skip_to(",") {
                self.count()?;
                literals.push(self.literal()?);
            }
            if !self.reader.skip_to(")") {
                return self
                    .fail("expected a `,` and another value, or the `)` that ends the list");
            }
            return Ok(Filter::In(operand, literals));
        }
        let sign = Comparison::ALL.into_iter().find(|each| self.reader.skip_to(each.sign()));
        let Some(comparison) = sign else {
            let message = format!(
                "expected a comparison (=, !=, <, <=, >, >=), `in`, `prefix` or `exists`, found {}",
                found(self.reader.peek())
            );
            return self.fail(message);
        };
        let literal = self.literal()?;
        let ordered = !matches!(comparison, Comparison::Equal | Comparison::NotEqual);
        if ordered && matches!(literal, Literal::Bool(_)) {
            return self.fail("true and false have no order: they compare by = and != alone");
        }
        Ok(Filter::Compare(operand, comparison, literal))
    }

    fn literal(&mut self) -> Parsed<Literal> {
        if self.word("true") {
            return Ok(Literal::Bool(true));
        }
        if self.word("false") {
            return Ok(Literal::Bool(false));
        }
        let (rest, at) = self.reader.rest();
        if let Some(quote) = rest.chars().next().filter(|c| matches!(c, '\'' | '"')) {
            let (text, len) = self.reader.quoted(&rest[1..], quote, at)?;
            self.reader.at = at + 1 + len;
            return Ok(Literal::Text(text.into_bytes()));
        }
        let is_number = |c: char| c.is_ascii_digit() || matches!(c, '+' | '-' | '.');
        let len = rest.find(|c| !is_number(c)).unwrap_or(rest.len());
        let ends = rest[len..].chars().next().is_none_or(|c| !c.is_alphanumeric() && c != '_');
        match Decimal::parse(&rest.as_bytes()[..len]) {
            Some(number) if ends => {
                self.reader.at = at + len;
                Ok(Literal::Number(number))
            }
            _ => {
                let message = format!(
                    "expected a text in quotes, a number, true or false, found {}",
                    found(self.reader.peek())
                );
                self.fail(message)
            }
        }
    }
}
