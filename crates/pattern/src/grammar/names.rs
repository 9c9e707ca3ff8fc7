//! From the names of slots to their ids.

use super::clauses::RawLens;
use super::{Parsed, RawComponent, RawPattern, RawSlot, RawSource, Word, found, is_space};
use crate::lens::{Bind, Filter, Lens, Operand};
use crate::{Component, Join, JoinError, Mode, Pattern, SlotId, Source};
use alloc::boxed::Box;
use alloc::format;
use alloc::string::ToString;
use alloc::vec::Vec;
use headwater_base::Ordered;

/// The slots known so far, by id.
pub(super) struct Names<'t> {
    pub(super) text: &'t str,
    pub(super) known: Vec<Known<'t>>,
    pub(super) slots_max: usize,
}

pub(super) struct Known<'t> {
    name: &'t str,
    /// The width, and where the text gives it first.
    width: Option<(usize, usize)>,
}

impl<'t> Names<'t> {
    fn fail<T>(&self, at: usize, message: impl ToString) -> Parsed<T> {
        Err(JoinError::new(self.text, at, message))
    }

    fn too_many<T>(&self, at: usize) -> Parsed<T> {
        self.fail(at, format!("a join has at most {} slots", self.slots_max))
    }

    /// The names that the sources bind.
    pub(super) fn bound_by(&self, sources: &[RawSource<'t>]) -> Parsed<Vec<&'t str>> {
        let mut bound = Vec::new();
        let by_values = sources.iter().flat_map(|source| &source.lens.binds);
        for component in sources.iter().flat_map(|source| &source.pattern.components) {
            let (name, at) = match component {
                RawComponent::Literal(_) => continue,
                RawComponent::Slot(RawSlot { form: Some(_), at, .. }) => {
                    let message = "a slot's kind and order stand in the output, and only where a value binds it";
                    return self.fail(*at, message);
                }
                RawComponent::Slot(slot) => (slot.name, slot.at),
                RawComponent::Bare(word) => {
                    if let Some(colon) = word.text.find(':') {
                        let message = "a slot's name has no `:`; write <name:width> for a width";
                        return self.fail(word.at + colon, message);
                    }
                    (word.text, word.at)
                }
            };
            if !bound.contains(&name) {
                if bound.len() >= self.slots_max {
                    return self.too_many(at);
                }
                bound.push(name);
            }
        }
        for (_, slot) in by_values {
            if !bound.contains(&slot.name) {
                if bound.len() >= self.slots_max {
                    return self.too_many(slot.at);
                }
                bound.push(slot.name);
            }
        }
        Ok(bound)
    }

    pub(super) fn output(
        &mut self,
        raw: RawPattern<'t>,
        bound: &[&str],
        bare: bool,
    ) -> Parsed<Pattern> {
        let mut components = Vec::with_capacity(raw.components.len());
        for component in raw.components {
            components.push(match component {
                RawComponent::Bare(word) if !bound.contains(&word.text) => {
                    Component::Literal(word.text.into())
                }
                RawComponent::Slot(slot) if !bound.contains(&slot.name) => {
                    debug_assert!(!bare, "the bare style has no `<`");
                    let shown = found(Word { text: slot.name, at: slot.at });
                    let shown = shown.trim_matches('`');
                    let mut message =
                        format!("slot <{shown}> at byte {} is bound by no source", slot.at + 1);
                    if let Some(near) = nearest(slot.name, bound.iter().copied()) {
                        message += &format!("; did you mean <{near}>?");
                    }
                    return self.fail(slot.at, message);
                }
                other => self.component(other)?,
            });
        }
        Ok(Pattern { table: raw.table.into(), components })
    }

    pub(super) fn source(&mut self, raw: RawPattern<'t>) -> Parsed<Pattern> {
        let components = raw.components.into_iter().map(|component| self.component(component));
        Ok(Pattern { table: raw.table.into(), components: components.collect::<Parsed<_>>()? })
    }

    fn component(&mut self, raw: RawComponent<'t>) -> Parsed<Component> {
        let slot = match raw {
            RawComponent::Literal(literal) => return Ok(Component::Literal(literal.into())),
            RawComponent::Slot(slot) => slot,
            RawComponent::Bare(word) => {
                RawSlot { name: word.text, at: word.at, width: None, form: None }
            }
        };
        let id = self.id(&slot)?;
        Ok(Component::Slot { slot: id, width: None })
    }

    /// The slot of this name, if there is one.
    pub(super) fn find(&self, name: &str) -> Option<SlotId> {
        self.known.iter().position(|known| known.name == name)
    }

    /// The lens of a source of this pattern, if it has one.
    pub(super) fn lens(
        &mut self,
        pattern: &Pattern,
        raw: RawLens<'t>,
    ) -> Parsed<Option<Box<Lens>>> {
        let RawLens { binds, mut filter, slots, on: _ } = raw;
        if let Some(filter) = &mut filter {
            let mut ids = Vec::with_capacity(slots.len());
            for word in &slots {
                let known = self.known.iter().position(|known| known.name == word.text);
                let Some(id) = known.filter(|id| pattern.has_slot(*id)) else {
                    let shown = word.text;
                    let message = format!(
                        "<{shown}> is no slot of this source's pattern: a condition looks at one source's key \
                         and value (what the value binds is `value` or json(.path) here)"
                    );
                    return self.fail(word.at, message);
                };
                ids.push(id);
            }
            name_slots(filter, &ids);
        }
        let mut bound: Vec<Bind> = Vec::with_capacity(binds.len());
        for (field, slot) in binds {
            let id = self.id(&slot)?;
            if pattern.has_slot(id) || bound.iter().any(|bind| bind.slot == id) {
                let name = slot.name;
                let message = format!(
                    "<{name}> is bound by this source already; to compare the two, use another slot's name \
                     or `where`"
                );
                return self.fail(slot.at, message);
            }
            bound.push(Bind { field, slot: id, width: None, form: None });
        }
        if bound.is_empty() && filter.is_none() {
            return Ok(None);
        }
        Ok(Some(Box::new(Lens { binds: bound, filter })))
    }

    /// Gives the slots that values bind the kinds which the output says.
    pub(super) fn give_forms(
        &self,
        forms: &[(&'t str, usize, Ordered)],
        sources: &mut [(usize, Source)],
    ) -> Parsed<()> {
        for (at, &(name, column, form)) in forms.iter().enumerate() {
            let same = forms[..at].iter().find(|(other, ..)| *other == name);
            if same.is_some_and(|(.., other)| *other != form) {
                return self.fail(column, format!("<{name}> has another kind or order before"));
            }
            let Some(id) = self.known.iter().position(|known| known.name == name) else {
                continue;
            };
            if sources.iter().any(|(_, source)| source.pattern.has_slot(id)) {
                let message = format!(
                    "<{name}> is a part of a source's key, which stays as it is: only what a value binds \
                     (`as <{name}>`) has a kind"
                );
                return self.fail(column, message);
            }
            let binds = sources.iter_mut().filter_map(|(_, source)| source.lens.as_mut());
            for bind in binds.flat_map(|lens| &mut lens.binds).filter(|bind| bind.slot == id) {
                bind.form = Some(form);
            }
        }
        Ok(())
    }

    /// The id of a slot, which is new or agrees with its other occurrences.
    fn id(&mut self, slot: &RawSlot<'t>) -> Parsed<SlotId> {
        let width = slot.width.map(|width| (width, slot.at));
        let Some(id) = self.known.iter().position(|known| known.name == slot.name) else {
            if self.known.len() >= self.slots_max {
                return self.too_many(slot.at);
            }
            self.known.push(Known { name: slot.name, width });
            return Ok(self.known.len() - 1);
        };
        match (self.known[id].width, width) {
            (Some((known, known_at)), Some((new, _))) if known != new => {
                let shown = found(Word { text: slot.name, at: slot.at });
                let shown = shown.trim_matches('`');
                let message = format!(
                    "slot <{shown}> has width {new} here and {known} at byte {}",
                    known_at + 1
                );
                self.fail(slot.at, message)
            }
            (None, Some(_)) => {
                self.known[id].width = width;
                Ok(id)
            }
            _ => Ok(id),
        }
    }

    /// Gives every occurrence of a slot its width, and checks that keys can be short enough.
    pub(super) fn finish(
        self,
        mut output: Pattern,
        mode: Mode,
        mut sources: Vec<(usize, Source)>,
        key_bytes_max: usize,
    ) -> Parsed<Join> {
        let output_at = self.text.len() - self.text.trim_start_matches(is_space).len();
        let patterns = sources.iter_mut().map(|(at, source)| (*at, &mut source.pattern));
        for (at, pattern) in core::iter::once((output_at, &mut output)).chain(patterns) {
            for component in &mut pattern.components {
                if let Component::Slot { slot, width } = component {
                    *width = self.known[*slot].width.map(|(width, _)| width);
                }
            }
            let shortest = pattern.shortest_key_bytes();
            if shortest > key_bytes_max {
                let message = format!(
                    "a key of this pattern has at least {shortest} bytes; keys have at most \
                     {key_bytes_max}"
                );
                return self.fail(at, message);
            }
        }
        let lenses = sources.iter_mut().filter_map(|(_, source)| source.lens.as_mut());
        for bind in lenses.flat_map(|lens| &mut lens.binds) {
            bind.width = self.known[bind.slot].width.map(|(width, _)| width);
        }
        Ok(Join {
            output,
            mode,
            keep: None,
            function: None,
            on: None,
            sources: sources.into_iter().map(|(_, source)| source).collect(),
            slots: self.known.iter().map(|known| known.name.to_string()).collect(),
        })
    }
}

/// Gives a filter the ids of the slots that it names by their places.
fn name_slots(filter: &mut Filter, ids: &[SlotId]) {
    match filter {
        Filter::All(all) | Filter::Any(all) => {
            all.iter_mut().for_each(|each| name_slots(each, ids))
        }
        Filter::Not(inner) => name_slots(inner, ids),
        Filter::Compare(operand, ..)
        | Filter::In(operand, _)
        | Filter::Prefix(operand, _)
        | Filter::Exists(operand) => {
            if let Operand::Slot(slot) = operand {
                *slot = ids[*slot];
            }
        }
    }
}

/// The name among some that another one is most likely a misspelling of: one letter is wrong, missing or too many, or two have
/// changed places.
pub(crate) fn nearest<'n>(name: &str, all: impl Iterator<Item = &'n str>) -> Option<&'n str> {
    let mut all = all;
    // Of short names each is near to each.
    all.find(|other| *other != name && name.len().min(other.len()) > 2 && is_near(name, other))
}

fn is_near(one: &str, two: &str) -> bool {
    let (one, two): (Vec<char>, Vec<char>) = (one.chars().collect(), two.chars().collect());
    let same = one.iter().zip(&two).take_while(|(one, two)| one == two).count();
    let (one, two) = (&one[same..], &two[same..]);
    match (one, two) {
        ([a, b, rest @ ..], [c, d, other @ ..]) if (a, b) == (d, c) && rest == other => true,
        ([_, rest @ ..], [_, other @ ..]) if rest == other => true,
        _ => {
            one.get(1..).is_some_and(|rest| rest == two)
                || two.get(1..).is_some_and(|rest| rest == one)
        }
    }
}
