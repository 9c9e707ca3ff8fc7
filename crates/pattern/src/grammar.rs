//! The text of a join.
//!
//! ```text
//! join     = pattern "=" [ "push" | "auto" | "pull" | "snapshot" SECONDS ] source { source } [ keep ]
//! source   = operator pattern clauses
//! operator = "check" | "using" | "copy" | "map:" function | "count" | "sum" | "min" | "max" | "avg" | "first" | "last" | tally
//! pattern  = table { "|" component }
//! component= literal | "<" slot [ ":" width | ":" kind [ ":" "asc" | ":" "desc" ] ] ">"
//! kind     = "text" | "number" | "time"
//! ```
//!
//! Clauses are in `clauses.rs`, `keep` is in `keep.rs`, operators with numbers in `tally.rs`. A kind may stand in the output alone, in a slot that a value binds.
//!
//! Any ASCII white space separates words; `=` needs none. In the bare style (no `<` in the whole
//! text) every component of a source is a slot, and one of the output is a slot if a source binds
//! it. Names and literals are any bytes but white space and `| < > =`; a slot's name has no `:`
//! either. A width that is given once counts for every occurrence of its slot.
//!
//! The text is cut into words and patterns first, each with its place; names are resolved after,
//! since in the bare style the sources decide what the output's words mean.
//!
//! # Cost
//! Linear in the text times the number of slots, which is bounded.

use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec::Vec;
use headwater_base::{Kind, Limits, Ordered};

use crate::{Join, JoinError, Mode, Operator, SLOTS_MAX, Source};
use clauses::RawLens;
use names::Names;
pub(crate) use names::nearest;

mod clauses;
mod keep;
mod names;
mod tally;

const OPERATORS: &str = "check (or using), copy, index, map:function, count, sum, min, max, avg, first, last, distinct, \
     distinct~ NUMBER, topk NUMBER, percentile PERCENT";
/// What is before the name of a function.
const MAP: &str = "map:";
const MODES: &str = "push, auto, pull, snapshot SECONDS";

/// Most digits before the point of a snapshot's seconds; keeps its milliseconds within 64 bits.
const SECONDS_DIGITS_MAX: usize = 12;

type Parsed<T> = Result<T, JoinError>;

pub(crate) fn parse(text: &str, limits: &Limits) -> Parsed<Join> {
    let mut reader = Reader { text, at: 0, bare: !text.contains('<') };
    let output = reader.output()?;
    let mode = reader.mode()?;
    let (sources, function) = reader.sources(limits.sources_max)?;
    let keep = reader.keep()?;
    let mut names = Names { text, known: Vec::new(), slots_max: limits.slots_max.min(SLOTS_MAX) };
    let bound = names.bound_by(&sources)?;
    let forms = forms_of(&output);
    let output = names.output(output, &bound, reader.bare)?;
    let mut resolved = Vec::with_capacity(sources.len());
    let mut on = None;
    for RawSource { operator, pattern, lens } in sources {
        let at = pattern.at;
        let pattern = names.source(pattern)?;
        let word = lens.on;
        let lens = names.lens(&pattern, lens)?;
        let source = Source { operator, pattern, lens };
        if let Some(word) = word {
            on = Some(tally::slot_of(text, word, names.find(word.text), &source, &output)?);
        }
        resolved.push((at, source));
    }
    names.give_forms(&forms, &mut resolved)?;
    let keep_of = |join: &Join| keep.map(|keep| keep.of(text, join)).transpose();
    let join = names.finish(output, mode, resolved, limits.key_bytes_max)?;
    let keep = keep_of(&join)?;
    Ok(Join { function, keep, on, ..join })
}

/// A piece of the text and its first byte.
#[derive(Clone, Copy)]
struct Word<'t> {
    text: &'t str,
    at: usize,
}

/// Sources whose slots have names still, and the function of the one that gives the value.
type RawSources<'t> = (Vec<RawSource<'t>>, Option<String>);

/// A source whose slots have names still.
struct RawSource<'t> {
    operator: Operator,
    pattern: RawPattern<'t>,
    lens: RawLens<'t>,
}

/// A pattern whose slots have names still.
struct RawPattern<'t> {
    at: usize,
    table: &'t str,
    components: Vec<RawComponent<'t>>,
}

enum RawComponent<'t> {
    Literal(&'t str),
    Slot(RawSlot<'t>),
    /// Bare style: a slot or, in the output, perhaps a literal.
    Bare(Word<'t>),
}

struct RawSlot<'t> {
    name: &'t str,
    at: usize,
    width: Option<usize>,
    form: Option<Ordered>,
}

/// The slots of an output that have a kind, each with where that stands.
fn forms_of<'t>(output: &RawPattern<'t>) -> Vec<(&'t str, usize, Ordered)> {
    let form = |component: &RawComponent<'t>| match component {
        RawComponent::Slot(slot) => Some((slot.name, slot.at, slot.form?)),
        _ => None,
    };
    output.components.iter().filter_map(form).collect()
}

/// Cuts the text into words and patterns.
struct Reader<'t> {
    text: &'t str,
    at: usize,
    bare: bool,
}

impl<'t> Reader<'t> {
    fn fail<T>(&self, at: usize, message: impl ToString) -> Parsed<T> {
        Err(JoinError::new(self.text, at, message))
    }

    /// The next word without taking it; empty, and just behind the last word, at the text's end.
    fn peek(&self) -> Word<'t> {
        let rest = &self.text[self.at..];
        let word = rest.trim_start_matches(is_space);
        if word.is_empty() {
            return Word { text: "", at: self.text.trim_end_matches(is_space).len() };
        }
        let at = self.text.len() - word.len();
        let len = if word.starts_with('=') {
            1
        } else {
            word.find(|c| c == '=' || is_space(c)).unwrap_or(word.len())
        };
        Word { text: &word[..len], at }
    }

    fn take(&mut self, word: Word<'t>) {
        self.at = word.at + word.text.len();
    }

    fn output(&mut self) -> Parsed<RawPattern<'t>> {
        let word = self.peek();
        if word.text.is_empty() || word.text == "=" {
            return self.fail(word.at, "expected an output pattern, then `=` and sources");
        }
        self.take(word);
        let output = self.pattern(word)?;
        let equals = self.peek();
        if equals.text != "=" {
            let found = found(equals);
            return self.fail(equals.at, format!("expected `=` after the output, found {found}"));
        }
        self.take(equals);
        Ok(output)
    }

    fn mode(&mut self) -> Parsed<Mode> {
        let word = self.peek();
        let mode = match word.text {
            "push" => Mode::Push,
            "auto" => Mode::Auto,
            "pull" => Mode::Pull,
            "snapshot" => {
                self.take(word);
                return self.seconds();
            }
            _ => return Ok(Mode::Push),
        };
        self.take(word);
        Ok(mode)
    }

    fn seconds(&mut self) -> Parsed<Mode> {
        let word = self.peek();
        let bad = || {
            format!(
                "`snapshot` needs a number of seconds, 0.001 or more, with at most \
                 {SECONDS_DIGITS_MAX} digits before and 3 behind the point, found {}",
                found(word)
            )
        };
        let (whole, fraction) = match word.text.split_once('.') {
            Some((whole, fraction)) if !fraction.is_empty() => (whole, fraction),
            Some(_) => return self.fail(word.at, bad()),
            None => (word.text, ""),
        };
        let digits = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
        let fraction = fraction.trim_end_matches('0');
        let counted = (1..=SECONDS_DIGITS_MAX).contains(&whole.len()) && fraction.len() <= 3;
        if !counted || !digits(whole) || !digits(fraction) {
            return self.fail(word.at, bad());
        }
        let millis = whole
            .bytes()
            .chain(fraction.bytes().chain("000".bytes()).take(3))
            .fold(0, |millis: u64, digit| millis * 10 + u64::from(digit - b'0'));
        if millis == 0 {
            return self.fail(word.at, bad());
        }
        self.take(word);
        Ok(Mode::Snapshot { millis })
    }

    /// The sources, and the function that makes the value, if one does.
    fn sources(&mut self, sources_max: usize) -> Parsed<RawSources<'t>> {
        let mut sources = Vec::new();
        let mut value: Option<Word<'t>> = None;
        loop {
            let word = self.peek();
            if word.text.is_empty() || (word.text == keep::KEEP && !sources.is_empty()) {
                break;
            }
            let numbered = self.numbered(word)?;
            let operator = match numbered {
                Some(operator) => operator,
                None => self.operator(word, sources.is_empty())?,
            };
            if sources.len() >= sources_max {
                let message = format!("a join has at most {sources_max} sources");
                return self.fail(word.at, message);
            }
            if operator != Operator::Check {
                if let Some(value) = value {
                    let message = format!(
                        "two sources give the value: `{}` at byte {} and `{}`; all but one must be \
                         check",
                        value.text,
                        value.at + 1,
                        word.text
                    );
                    return self.fail(word.at, message);
                }
                value = Some(word);
            }
            if numbered.is_none() {
                self.take(word);
            }
            let pattern = self.peek();
            if pattern.text.is_empty() || pattern.text == "=" {
                let (operator, found) = (word.text, found(pattern));
                let message = format!("expected a pattern after `{operator}`, found {found}");
                return self.fail(pattern.at, message);
            }
            self.take(pattern);
            let pattern = self.pattern(pattern)?;
            let lens = self.clauses(operator)?;
            sources.push(RawSource { operator, pattern, lens });
        }
        let end = self.peek().at;
        if sources.is_empty() {
            return self
                .fail(end, format!("expected a source: an operator ({OPERATORS}), a pattern"));
        }
        if value.is_none() {
            let message = "no source gives the value: one source must not be check, but one of \
                           copy, index, map:function, count, sum, min, max, avg, first, last, distinct, \
                           distinct~ NUMBER, topk NUMBER, percentile PERCENT";
            return self.fail(end, message);
        }
        let function = value.and_then(|word| word.text.strip_prefix(MAP));
        Ok((sources, function.map(String::from)))
    }

    fn operator(&self, word: Word<'t>, leading: bool) -> Parsed<Operator> {
        if word.text == "using" {
            return Ok(Operator::Check);
        }
        match word.text.strip_prefix(MAP) {
            Some("") => return self.fail(word.at, "`map:` needs the name of a function behind it"),
            Some(_) => return Ok(Operator::Map),
            None => {}
        }
        if let Some(operator) = Operator::ALL.into_iter().find(|each| each.name() == word.text) {
            return Ok(operator);
        }
        let shown = found(word);
        let message = match word.text {
            "=" => "a join has only one `=`".to_string(),
            "push" | "auto" | "pull" | "snapshot" if leading => {
                format!("{shown} follows another mode")
            }
            "push" | "auto" | "pull" | "snapshot" => {
                format!("the mode {shown} belongs directly after the `=`")
            }
            text if text.contains('|') => {
                format!("expected an operator before {shown}; operators are {OPERATORS}")
            }
            _ if leading => {
                format!(
                    "{shown} is neither a mode nor an operator; modes are {MODES}; operators are \
                     {OPERATORS}"
                )
            }
            _ => format!("unknown operator {shown}; operators are {OPERATORS}"),
        };
        self.fail(word.at, message)
    }

    fn pattern(&self, word: Word<'t>) -> Parsed<RawPattern<'t>> {
        let mut pieces = word.text.split('|').scan(word.at, |next, text| {
            let at = *next;
            *next += text.len() + 1;
            Some(Word { text, at })
        });
        let table = pieces.next().unwrap_or(word);
        if table.text.is_empty() {
            return self.fail(table.at, "the table name is empty");
        }
        let colon = table.text.find(':');
        let is_misread =
            if self.bare { !self.text.contains('|') } else { table.text.contains('<') };
        if let Some(colon) = colon.filter(|_| is_misread) {
            let message = "components of a key are separated by `|`, not by `:`";
            return self.fail(table.at + colon, message);
        }
        if let Some(at) = table.text.find(['<', '>']) {
            return self.fail(table.at + at, "a table name cannot be a slot");
        }
        let components = pieces.map(|piece| self.component(piece)).collect::<Parsed<_>>()?;
        Ok(RawPattern { at: word.at, table: table.text, components })
    }

    fn component(&self, word: Word<'t>) -> Parsed<RawComponent<'t>> {
        if word.text.is_empty() {
            return self.fail(word.at, "a component is empty");
        }
        let Some(open) = word.text.find(['<', '>']) else {
            return Ok(if self.bare {
                RawComponent::Bare(word)
            } else {
                RawComponent::Literal(word.text)
            });
        };
        if word.text[open..].starts_with('>') {
            return self.fail(word.at + open, "`>` without `<`");
        }
        let inner = &word.text[open + 1..];
        let Some(len) = inner.find('>') else {
            return self.fail(word.at + open, "`<` without `>`");
        };
        if let Some(at) = inner[..len].find('<') {
            return self.fail(word.at + open + 1 + at, "`<` within a slot");
        }
        let beyond = open + 1 + len + 1;
        if open > 0 || beyond < word.text.len() {
            let at = word.at + if open > 0 { open } else { beyond };
            if self.text[at..].starts_with(':') {
                return self.fail(at, "components of a key are separated by `|`, not by `:`");
            }
            return self.fail(at, "a component is a literal or one <slot>, not both");
        }
        let (name, width) = match inner[..len].split_once(':') {
            Some((name, width)) => (name, Some(width)),
            None => (&inner[..len], None),
        };
        if name.is_empty() {
            return self.fail(word.at, "a slot needs a name");
        }
        let mut slot = RawSlot { name, at: word.at, width: None, form: None };
        if let Some(text) = width {
            let word = Word { text, at: word.at + name.len() + 2 };
            slot.form = self.form(word)?;
            if slot.form.is_none() {
                slot.width = Some(self.width(word)?);
            }
        }
        Ok(RawComponent::Slot(slot))
    }

    /// The kind that stands behind a slot's name, if it is one.
    fn form(&self, word: Word<'t>) -> Parsed<Option<Ordered>> {
        let (name, order) = match word.text.split_once(':') {
            Some((name, order)) => (name, Some(order)),
            None => (word.text, None),
        };
        let Some(kind) = Kind::ALL.into_iter().find(|kind| kind.name() == name) else {
            if !name.starts_with(char::is_alphabetic) {
                return Ok(None);
            }
            let message = format!(
                "behind a slot's name stands its width in bytes, or text, number or time, and then asc or \
                 desc; found {}",
                found(word)
            );
            return self.fail(word.at, message);
        };
        let descending = match order {
            None | Some("asc") => false,
            Some("desc") => true,
            Some(_) => {
                return self.fail(word.at + name.len() + 1, "an order is asc or desc");
            }
        };
        Ok(Some(Ordered { kind, descending }))
    }

    fn width(&self, word: Word<'t>) -> Parsed<usize> {
        let digits = word.text.bytes().all(|byte| byte.is_ascii_digit());
        match word.text.parse() {
            Ok(width) if digits && width > 0 => Ok(width),
            _ => {
                let shown = if word.text.is_empty() { "nothing".into() } else { found(word) };
                let message = format!("a slot's width is a number of bytes from 1, found {shown}");
                self.fail(word.at, message)
            }
        }
    }
}

fn is_space(character: char) -> bool {
    matches!(character, ' ' | '\t' | '\n' | '\r' | '\x0b' | '\x0c')
}

/// How messages name a word; a long one is cut.
fn found(word: Word<'_>) -> String {
    match word.text.char_indices().nth(40) {
        Some((cut, _)) => format!("`{}…`", &word.text[..cut]),
        None if word.text.is_empty() => "the end".into(),
        None => format!("`{}`", word.text),
    }
}
