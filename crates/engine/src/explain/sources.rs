//! What a source of a join reads, and which of its keys give nothing, and why.

use super::{Budget, shown, shown_range};
use crate::catalog::Plan;
use crate::engine::Engine;
use crate::rows::look;
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;
use headwater_base::{KeyRange, Limits};
use headwater_pattern::lens::Look;
use headwater_pattern::{Bindings, Source};

/// For each reason why keys of a source give nothing, so many of these keys are named at most.
const NAMED_MAX: usize = 5;

/// The first keys that give nothing for a reason.
#[derive(Default)]
struct Named(Vec<String>);

impl Named {
    fn add(&mut self, key: &[u8]) {
        if self.0.len() < NAMED_MAX {
            self.0.push(shown(key));
        }
    }

    /// Appends the reason and the keys, if there are any.
    fn tell(&self, reason: &str, text: &mut String) {
        if !self.0.is_empty() {
            *text += &format!("; {reason} at {}", self.0.join(", "));
        }
    }
}

/// Whether no output of a source's row can have a key that is short enough.
fn is_too_long(plan: &Plan, source: &Source, row: &[u8]) -> bool {
    let mut bindings = Bindings::new();
    source.bind(row, &mut bindings)
        && plan.join.output.shortest_key_bytes_with(&bindings) > Limits::KEY_BYTES_CEILING
}

impl Engine {
    /// Tells of the source at `at`, which is `shown_source`, how many keys of `span` it finds, and how many of them count.
    pub(super) fn explain_reading(
        &self,
        plan: &Plan,
        at: usize,
        span: &KeyRange,
        budget: &mut Budget,
        shown_source: String,
    ) -> String {
        let source = plan.source(at);
        let tells = at == plan.value_source() && plan.needs_values();
        let (mut keys, mut rows) = (0u64, 0u64);
        let [mut unreadable, mut useless, mut too_long] = <[Named; 3]>::default();
        let (pool, mut row) = (&self.store.pool, Vec::new());
        let table = plan.source_tables[at];
        let part_of_all = self.look_at_some(table, span, budget, &mut |key, value| {
            if !source.pattern.matches(key) {
                return 0;
            }
            keys += 1;
            let seen = match source.lens.is_some() {
                true => look(source, pool, key, value, &mut row),
                false => Look::Row,
            };
            let row = if source.lens.is_some() { &row[..] } else { key };
            match seen {
                Look::Unreadable => unreadable.add(key),
                Look::Excluded => {}
                Look::Row if is_too_long(plan, source, row) => too_long.add(key),
                Look::Row if tells && !plan.takes(pool, key, value) => useless.add(key),
                Look::Row => rows += 1,
            }
            match source.lens.is_some() || tells {
                true => pool.view(pool.content(value)).len(),
                false => 0,
            }
        });
        let read = shown_range(span);
        let mut text =
            format!("{shown_source} reads {read}: {part_of_all}{keys} matching keys stored");
        if source.lens.is_some() || tells {
            text += &format!(", of which {rows} count");
        }
        unreadable.tell("the value does not give what a slot is to stand for", &mut text);
        let most = Limits::KEY_BYTES_CEILING;
        too_long.tell(&format!("the output's key would have more than {most} bytes"), &mut text);
        useless.tell(&format!("the value is nothing that {} takes", source.operator), &mut text);
        text
    }
}
