//! How many outputs of a group there are, behind the sources.
//!
//! ```text
//! keep = "keep" NUMBER [ "desc" | "asc" ] [ "per" "<" slot ">" ]
//! ```
//!
//! A group is what comes before the first component of the output that has a kind; without one, it ends with the output's first slot, or where
//! `per` says.

use super::{Parsed, Reader, Word, found};
use crate::{Component, Join, JoinError, Keep, SlotId};
use alloc::format;
use alloc::string::ToString;

/// The word that begins it.
pub(super) const KEEP: &str = "keep";
/// Most outputs that a group may be said to have.
const MOST: usize = 1_000_000;

/// What the text says, its slot still a name.
#[derive(Clone, Copy)]
pub(super) struct RawKeep<'t> {
    at: usize,
    most: usize,
    greatest: bool,
    per: Option<Word<'t>>,
}

impl<'t> Reader<'t> {
    /// What stands behind the sources.
    pub(super) fn keep(&mut self) -> Parsed<Option<RawKeep<'t>>> {
        let word = self.peek();
        if word.text.is_empty() {
            return Ok(None);
        }
        let at = word.at;
        if self.bare {
            let message =
                "`keep` needs the style in which slots are written <slot>, in the whole text";
            return self.fail(at, message);
        }
        self.take(word);
        let word = self.peek();
        let digits = !word.text.is_empty() && word.text.bytes().all(|byte| byte.is_ascii_digit());
        let most = word.text.parse().ok().filter(|most| digits && (1..=MOST).contains(most));
        let Some(most) = most else {
            let message = format!("`keep` needs a number from 1 to {MOST}, found {}", found(word));
            return self.fail(word.at, message);
        };
        self.take(word);
        let word = self.peek();
        let greatest = word.text != "asc";
        if matches!(word.text, "asc" | "desc") {
            self.take(word);
        }
        let mut per = None;
        if self.peek().text == "per" {
            self.take(self.peek());
            let word = self.peek();
            let inner = word.text.strip_prefix('<').and_then(|text| text.strip_suffix('>'));
            let Some(name) = inner else {
                let message =
                    format!("`per` needs the <slot> that ends the group, found {}", found(word));
                return self.fail(word.at, message);
            };
            self.take(word);
            per = Some(Word { text: name, at: word.at });
        }
        let word = self.peek();
        if !word.text.is_empty() {
            let message = format!(
                "behind `keep {most}` may stand desc or asc, and then per <slot>, and nothing else; found {}",
                found(word)
            );
            return self.fail(word.at, message);
        }
        Ok(Some(RawKeep { at, most, greatest, per }))
    }
}

impl RawKeep<'_> {
    /// What it is of a join.
    pub(super) fn of(self, text: &str, join: &Join) -> Parsed<Keep> {
        let fail =
            |at: usize, message: &dyn ToString| Err(JoinError::new(text, at, message.to_string()));
        let components = &join.output.components;
        let last_of = |slot: SlotId| components.iter().rposition(|each| each.slot() == Some(slot));
        let has_kind =
            |each: &Component| each.slot().is_some_and(|slot| join.form_of(slot).is_some());
        let (mut per, mut end) = (None, components.iter().position(has_kind));
        if let Some(word) = self.per {
            per = join.slots.iter().position(|name| name == word.text);
            end = per.and_then(last_of).map(|at| at + 1);
            if end.is_none() {
                let message = format!("<{}> is no slot of the output", word.text);
                return fail(word.at, &message);
            }
        }
        let behind_first =
            || components.iter().position(|each| each.slot().is_some()).map(|at| at + 1);
        let slots = components.iter().filter(|each| each.slot().is_some()).count();
        let end = end.or_else(|| behind_first().filter(|_| slots > 1)).unwrap_or(0);
        let Some(ordered) = components[end..].iter().find_map(Component::slot) else {
            return fail(
                self.at,
                &"nothing is left to order: no slot of the output follows the group",
            );
        };
        let descends = join.form_of(ordered).is_some_and(|form| form.descending);
        let Self { most, greatest, .. } = self;
        Ok(Keep { most, greatest, last: greatest != descends, components: end, per })
    }
}

#[cfg(test)]
mod tests {
    use crate::{Join, Keep};
    use alloc::string::ToString;
    use headwater_base::Limits;

    fn parse(text: &str) -> Result<Join, crate::JoinError> {
        Join::parse(text, &Limits::default())
    }

    #[test]
    fn groups_end_before_what_is_ordered() {
        for (text, components, last) in [
            ("t|<u>|<t>|<p> = check s|<u>|<p> copy p|<p>|<t> keep 800 desc", 1, true),
            ("t|<u>|<t>|<p> = check s|<u>|<p> copy p|<p>|<t> keep 800 asc", 1, false),
            ("t|x|<u>|<t>|<p> = check s|<u>|<p> copy p|<p>|<t> keep 8 desc per <t>", 3, true),
            ("top|<s:number:desc>|<i> = index v|<i> as <s> keep 5 desc", 0, false),
            ("top|<b>|<c>|<s:number>|<i> = index v|<b>|<c>|<i> as <s> keep 5 desc", 2, true),
            ("best|<x> = copy v|<x> keep 1 asc", 0, false),
        ] {
            let join = parse(text).expect(text);
            assert_eq!(join.to_string(), text);
            let keep: Keep = join.keep.expect(text);
            assert_eq!((keep.components, keep.last), (components, last), "{text}");
        }
        let short = parse("t|<u>|<t> = copy p|<u>|<t> keep 7").unwrap();
        assert_eq!(short.to_string(), "t|<u>|<t> = copy p|<u>|<t> keep 7 desc");
    }

    #[test]
    fn what_cannot_be_kept_is_told() {
        for (text, column, says) in [
            ("t|<u>|<t> = copy p|<u>|<t> keep", 32, "a number from 1"),
            ("t|<u>|<t> = copy p|<u>|<t> keep 0", 33, "a number from 1"),
            ("t|<u>|<t> = copy p|<u>|<t> keep +1", 33, "a number from 1"),
            ("t|<u>|<t> = copy p|<u>|<t> keep 1000001", 33, "from 1 to 1000000"),
            ("t|<u>|<t> = copy p|<u>|<t> keep 1 up", 35, "desc or asc"),
            ("t|<u>|<t> = copy p|<u>|<t> keep 1 desc per u", 44, "needs the <slot>"),
            ("t|<u>|<t> = copy p|<u>|<t> keep 1 desc per <x>", 44, "no slot of the output"),
            ("t|<u>|<t> = copy p|<u>|<t> keep 1 per <t>", 28, "nothing is left to order"),
            ("t|<u>|x = copy p|<u>|<t> keep 1 per <u>", 26, "nothing is left to order"),
            ("t|<u>|<t> = copy p|<u>|<t> keep 1 check s|<u>", 35, "nothing else"),
            ("t|u|t = copy p|u|t keep 1", 20, "<slot>"),
        ] {
            let error = parse(text).expect_err(text);
            assert!(error.message.contains(says), "{text}: {}", error.message);
            assert_eq!(error.column, column, "{text}");
        }
    }
}
