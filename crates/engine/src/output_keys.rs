//! Output keys from values, and values from output keys, for clients.

use crate::engine::Engine;
use crate::report::EngineError;
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;
use headwater_base::key::SEPARATOR;
use headwater_pattern::{Bindings, Component};

impl Engine {
    /// What the output keys of a join begin with whose slots have these values, each in the form that the output says: up to the first slot
    /// that has none, and a `|`; or all of a key.
    ///
    /// # Errors
    /// There is no such join, its output has no such slot, or the value cannot stand for it.
    pub fn join_key(&self, name: &str, slots: &[(&[u8], &[u8])]) -> Result<Vec<u8>, EngineError> {
        let missing = || EngineError::NoSuchJoin(String::from(name));
        let plan =
            &self.views.catalog.join(self.views.catalog.find(name).ok_or_else(missing)?).plan;
        let join = &plan.join;
        let mut given: Vec<(usize, Vec<u8>)> = Vec::with_capacity(slots.len());
        for &(slot, value) in slots {
            let shown = String::from_utf8_lossy(slot);
            let known = join.slots.iter().position(|own| own.as_bytes() == slot);
            let Some(id) = known.filter(|id| join.output.has_slot(*id)) else {
                let names = join.output.slots().map(|slot| format!("<{}>", join.slots[slot]));
                let names = names.collect::<Vec<_>>().join(" ");
                return Err(EngineError::Refused(format!(
                    "the output of join '{name}' has no slot <{shown}>; it has {names}"
                )));
            };
            let mut component = Vec::new();
            let stands = match join.form_of(id) {
                Some(form) => form.encode(value, &mut component),
                None => {
                    component.extend_from_slice(value);
                    !value.is_empty() && !value.contains(&SEPARATOR)
                }
            };
            if !stands {
                let kind = join.form_of(id).map_or("component of a key", |form| form.kind.name());
                return Err(EngineError::Refused(format!("the value of <{shown}> is no {kind}")));
            }
            given.push((id, component));
        }
        let mut bindings = Bindings::new();
        given.iter().for_each(|(slot, component)| bindings.set(*slot, component));
        let mut key = Vec::new();
        join.output.bound_prefix(&bindings, &mut key);
        Ok(key)
    }

    /// The components of a key, the table's name first, with the values that they stand for; nothing where no join gives it.
    #[must_use]
    pub fn join_decode(&self, key: &[u8]) -> Option<Vec<Vec<u8>>> {
        let table = self.store.table_of(key)?;
        let join = &self.views.catalog.join(self.views.catalog.writer_of(table, key)?).plan.join;
        let mut components = Vec::new();
        for (at, component) in key.split(|&byte| byte == SEPARATOR).enumerate() {
            let form = match at.checked_sub(1).and_then(|at| join.output.components.get(at)) {
                Some(Component::Slot { slot, .. }) => join.form_of(*slot),
                _ => None,
            };
            // What no value stands for is in no output.
            components.push(match form {
                Some(form) => form.decode(component)?,
                None => component.to_vec(),
            });
        }
        Some(components)
    }
}
