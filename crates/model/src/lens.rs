//! What a source sees of its values, a second time: conditions in three-valued logic, and slots that values bind.
//!
//! Documents are read as a whole, and texts of conditions by words; nothing of the engine's language is used. How a number or
//! a text stands in a key is shared with it (`headwater_base::ordered`, which has properties of its own).

use crate::number::Number;
use headwater_base::Ordered;
use serde_json::Value as Json;
use std::cmp::Ordering;
use std::fmt::{self, Display, Formatter};

/// What of a value is meant: all of it, or what a path such as `.a` or `.a[0]` leads to.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Field {
    /// The value.
    Value,
    /// A part of the JSON document that it is: names and indexes, one after the other.
    Json(Vec<String>),
    /// A slot of the key.
    Slot(String),
}

/// What a source sees of its values.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Lens {
    /// Slots that the value binds.
    pub binds: Vec<(Field, String)>,
    /// What must hold.
    pub filter: Option<Filter>,
    /// The slot that is looked at in the place of the value.
    pub on: Option<String>,
}

/// A condition.
#[derive(Clone, PartialEq, Eq, Debug)]
#[expect(missing_docs, reason = "the conditions of the join language, by their names")]
pub enum Filter {
    All(Vec<Self>),
    Any(Vec<Self>),
    Not(Box<Self>),
    Compare(Field, String, Literal),
    In(Field, Vec<Literal>),
    Prefix(Field, String),
    Exists(Field),
}

/// What something is compared with.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Literal {
    /// A text.
    Text(String),
    /// A number, as it is written.
    Number(String),
    /// A truth.
    Bool(bool),
}

/// What a field is.
enum Seen {
    /// Bytes that are not looked into.
    Bytes(Vec<u8>),
    Document(Json),
}

impl Field {
    fn see(&self, value: &[u8], slots: &[(&str, &[u8])]) -> Option<Seen> {
        match self {
            Self::Value => Some(Seen::Bytes(value.to_vec())),
            Self::Slot(name) => {
                let (_, bytes) = slots.iter().find(|(slot, _)| slot == name)?;
                Some(Seen::Bytes(bytes.to_vec()))
            }
            Self::Json(steps) => {
                let mut at: Json = serde_json::from_slice(value).ok()?;
                for step in steps {
                    at = match at {
                        Json::Object(mut members) => members.remove(step)?,
                        Json::Array(mut all) => {
                            let index: usize = step.parse().ok()?;
                            if index >= all.len() {
                                return None;
                            }
                            all.swap_remove(index)
                        }
                        _ => return None,
                    };
                }
                (!at.is_null()).then_some(Seen::Document(at))
            }
        }
    }
}

/// How two things compare, if they do.
fn compare(seen: &Seen, literal: &Literal) -> Option<Ordering> {
    let number = |text: &str| Number::parse(text.as_bytes());
    match (seen, literal) {
        (Seen::Bytes(bytes), Literal::Text(text)) => Some(bytes.as_slice().cmp(text.as_bytes())),
        (Seen::Bytes(bytes), Literal::Number(text)) => {
            Some(Number::parse(bytes)?.order(&number(text)?))
        }
        (Seen::Bytes(bytes), Literal::Bool(truth)) => match bytes.as_slice() {
            b"true" => Some(true.cmp(truth)),
            b"false" => Some(false.cmp(truth)),
            _ => None,
        },
        (Seen::Document(Json::String(own)), Literal::Text(text)) => {
            Some(own.as_bytes().cmp(text.as_bytes()))
        }
        (Seen::Document(Json::Number(own)), Literal::Number(text)) => {
            Some(number(&own.to_string())?.order(&number(text)?))
        }
        (Seen::Document(Json::Bool(own)), Literal::Bool(truth)) => Some(own.cmp(truth)),
        _ => None,
    }
}

impl Filter {
    fn holds(&self, value: &[u8], slots: &[(&str, &[u8])]) -> Option<bool> {
        match self {
            Self::All(all) => {
                let each: Vec<_> = all.iter().map(|one| one.holds(value, slots)).collect();
                if each.contains(&Some(false)) {
                    Some(false)
                } else {
                    each.iter().all(Option::is_some).then_some(true)
                }
            }
            Self::Any(all) => {
                let each: Vec<_> = all.iter().map(|one| one.holds(value, slots)).collect();
                if each.contains(&Some(true)) {
                    Some(true)
                } else {
                    each.iter().all(Option::is_some).then_some(false)
                }
            }
            Self::Not(one) => Some(!one.holds(value, slots)?),
            Self::Compare(field, sign, literal) => {
                let order = compare(&field.see(value, slots)?, literal)?;
                Some(match sign.as_str() {
                    "=" => order.is_eq(),
                    "!=" => order.is_ne(),
                    "<" => order.is_lt(),
                    "<=" => order.is_le(),
                    ">" => order.is_gt(),
                    _ => order.is_ge(),
                })
            }
            Self::In(field, literals) => {
                let equals =
                    |literal: &Literal| Self::Compare(field.clone(), "=".into(), literal.clone());
                Self::Any(literals.iter().map(equals).collect()).holds(value, slots)
            }
            Self::Prefix(field, prefix) => match field.see(value, slots)? {
                Seen::Bytes(bytes) => Some(bytes.starts_with(prefix.as_bytes())),
                Seen::Document(Json::String(text)) => Some(text.starts_with(prefix.as_str())),
                Seen::Document(_) => None,
            },
            Self::Exists(field) => Some(field.see(value, slots).is_some()),
        }
    }
}

/// How a slot stands in keys, and how long it is.
pub type Forms<'f> = dyn Fn(&str) -> (Option<Ordered>, Option<usize>) + 'f;

impl Lens {
    /// What a value binds, by slot, where its key counts. `slots` are those of the key; `form` says how slots stand in keys.
    #[must_use]
    pub fn look(
        &self,
        value: &[u8],
        slots: &[(&str, &[u8])],
        form: &Forms<'_>,
    ) -> Option<Vec<(String, Vec<u8>)>> {
        if self.filter.as_ref().is_some_and(|filter| filter.holds(value, slots) != Some(true)) {
            return None;
        }
        let mut bound = Vec::new();
        for (field, name) in &self.binds {
            let text = match field.see(value, slots)? {
                Seen::Bytes(bytes) => bytes,
                Seen::Document(Json::String(text)) => text.into_bytes(),
                Seen::Document(Json::Number(number)) => {
                    Number::parse(number.to_string().as_bytes())?.text()
                }
                Seen::Document(Json::Bool(truth)) => truth.to_string().into_bytes(),
                Seen::Document(_) => return None,
            };
            let (form, width) = form(name);
            let component = match form {
                None if text.contains(&b'|') => return None,
                None => text,
                Some(form) => {
                    let mut out = Vec::new();
                    if !form.encode(&text, &mut out) {
                        return None;
                    }
                    out
                }
            };
            if component.is_empty()
                || component.len() > 1024
                || width.is_some_and(|width| width != component.len())
            {
                return None;
            }
            bound.push((name.clone(), component));
        }
        Some(bound)
    }

    /// Reads the clauses at the start of `text` (`as …`, `where …`); what is behind them comes second.
    pub(crate) fn parse(text: &str) -> Option<(Option<Self>, &str)> {
        let mut words = Words(text);
        let mut lens = Self::default();
        while words.take("as") {
            lens.binds.push(match words.field()? {
                Field::Slot(name) => (Field::Value, name),
                field => {
                    let Field::Slot(name) = words.field()? else { return None };
                    (field, name)
                }
            });
        }
        if words.take("on") {
            let Field::Slot(name) = words.field()? else { return None };
            lens.on = Some(name);
        }
        if words.take("where") {
            lens.filter = Some(words.any()?);
        }
        Some((Some(lens).filter(|lens| *lens != Self::default()), words.0))
    }
}

/// What is left of a text.
struct Words<'t>(&'t str);

impl Words<'_> {
    /// Takes a word or a sign if it comes next.
    fn take(&mut self, word: &str) -> bool {
        let rest = self.0.trim_start();
        let Some(rest) = rest.strip_prefix(word) else { return false };
        let names = |c: char| c.is_alphanumeric();
        if word.ends_with(names) && rest.starts_with(names) {
            return false;
        }
        self.0 = rest;
        true
    }

    /// A field; nothing is taken where none comes next, or `json(…)` before a slot that it binds.
    fn field(&mut self) -> Option<Field> {
        let rest = self.0.trim_start();
        if let Some(rest) = rest.strip_prefix('<') {
            let (name, rest) = rest.split_once('>')?;
            self.0 = rest;
            return Some(Field::Slot(name.into()));
        }
        if let Some(rest) = rest.strip_prefix("json(") {
            let (path, rest) = rest.split_once(')')?;
            self.0 = rest;
            let steps = path.split(['.', '[', ']']).filter(|step| !step.is_empty());
            return Some(Field::Json(steps.map(str::to_string).collect()));
        }
        self.take("value").then_some(Field::Value)
    }

    fn any(&mut self) -> Option<Filter> {
        let mut all = vec![self.all()?];
        while self.take("or") {
            all.push(self.all()?);
        }
        Some(if all.len() == 1 { all.remove(0) } else { Filter::Any(all) })
    }

    fn all(&mut self) -> Option<Filter> {
        let mut all = vec![self.one()?];
        while self.take("and") {
            all.push(self.one()?);
        }
        Some(if all.len() == 1 { all.remove(0) } else { Filter::All(all) })
    }

    fn one(&mut self) -> Option<Filter> {
        if self.take("not") {
            return Some(Filter::Not(Box::new(self.one()?)));
        }
        if self.take("(") {
            let inner = self.any()?;
            return self.take(")").then_some(inner);
        }
        let field = self.field()?;
        if self.take("exists") {
            return Some(Filter::Exists(field));
        }
        if self.take("prefix") {
            let Literal::Text(text) = self.literal()? else { return None };
            return Some(Filter::Prefix(field, text));
        }
        if self.take("in") {
            let mut all = Vec::new();
            while self.take(if all.is_empty() { "(" } else { "," }) {
                all.push(self.literal()?);
            }
            return self.take(")").then_some(Filter::In(field, all));
        }
        let sign = ["!=", "<=", ">=", "=", "<", ">"].into_iter().find(|sign| self.take(sign))?;
        Some(Filter::Compare(field, sign.into(), self.literal()?))
    }

    fn literal(&mut self) -> Option<Literal> {
        for truth in [true, false] {
            if self.take(if truth { "true" } else { "false" }) {
                return Some(Literal::Bool(truth));
            }
        }
        let rest = self.0.trim_start();
        if let Some(rest) = rest.strip_prefix('\'') {
            let (text, rest) = rest.split_once('\'')?;
            self.0 = rest;
            return Some(Literal::Text(text.into()));
        }
        let end =
            rest.find(|c: char| !c.is_ascii_digit() && !"-.".contains(c)).unwrap_or(rest.len());
        let (number, rest) = rest.split_at(end);
        Number::parse(number.as_bytes())?;
        self.0 = rest;
        Some(Literal::Number(number.into()))
    }
}

impl Display for Field {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self {
            Self::Value => f.write_str("value"),
            Self::Slot(name) => write!(f, "<{name}>"),
            Self::Json(steps) => {
                f.write_str("json(")?;
                for step in steps {
                    if step.bytes().all(|byte| byte.is_ascii_digit()) {
                        write!(f, "[{step}]")?;
                    } else {
                        write!(f, ".{step}")?;
                    }
                }
                f.write_str(if steps.is_empty() { ".)" } else { ")" })
            }
        }
    }
}

impl Display for Literal {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self {
            Self::Text(text) => write!(f, "'{text}'"),
            Self::Number(text) => f.write_str(text),
            Self::Bool(truth) => write!(f, "{truth}"),
        }
    }
}

impl Display for Filter {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let nested = |one: &Self| match one {
            Self::All(_) | Self::Any(_) => format!("({one})"),
            _ => one.to_string(),
        };
        match self {
            Self::All(all) => {
                f.write_str(&all.iter().map(nested).collect::<Vec<_>>().join(" and "))
            }
            Self::Any(all) => f.write_str(&all.iter().map(nested).collect::<Vec<_>>().join(" or ")),
            Self::Not(one) => write!(f, "not {}", nested(one)),
            Self::Compare(field, sign, literal) => write!(f, "{field} {sign} {literal}"),
            Self::In(field, all) => {
                let all: Vec<String> = all.iter().map(Literal::to_string).collect();
                write!(f, "{field} in ({})", all.join(", "))
            }
            Self::Prefix(field, text) => write!(f, "{field} prefix '{text}'"),
            Self::Exists(field) => write!(f, "{field} exists"),
        }
    }
}

impl Display for Lens {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        for (field, name) in &self.binds {
            match field {
                Field::Value => write!(f, " as <{name}>")?,
                field => write!(f, " as {field} <{name}>")?,
            }
        }
        if let Some(name) = &self.on {
            write!(f, " on <{name}>")?;
        }
        match &self.filter {
            Some(filter) => write!(f, " where {filter}"),
            None => Ok(()),
        }
    }
}
