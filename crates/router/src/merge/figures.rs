//! Answers of one shape whose numbers are added up.

use super::is_aggregate;
use crate::answer::{Answer, Form};
use alloc::collections::BTreeMap;
use alloc::vec::Vec;
use headwater_command::Reply;

/// Numbers with these names are the same everywhere.
const NO_AMOUNTS: [&[u8]; 3] = [b"boundary", b"paused", b"pure"];

/// What is left of the process's memory when all shards have taken off what they account for, perhaps a moment apart.
const REST: &[u8] = b"unaccounted.bytes";

/// Adds up the numbers. Lists whose elements are lists or maps with a name in front are taken together by these names, in the
/// order in which the first shards have them.
pub(super) fn write(answers: &[Answer<'_>], out: &mut impl Reply) {
    let Some(&first) = answers.first() else { return };
    if first.integer().is_some() {
        return out.integer(answers.iter().filter_map(|answer| answer.integer()).sum());
    }
    let lists: Vec<_> = answers.iter().filter_map(|answer| answer.elements()).collect();
    if lists.len() < answers.len() {
        return first.replay(out);
    }
    if lists.iter().any(|(_, list)| list.first().is_some_and(|it| is_aggregate(*it))) {
        return write_named(lists.iter().flat_map(|(_, list)| list), out);
    }
    let (form, list) = &lists[0];
    if lists.iter().any(|(_, other)| other.len() != list.len()) {
        return first.replay(out);
    }
    match form {
        Form::Map => out.map(list.len() / 2),
        Form::Set => out.set(list.len()),
        Form::Array | Form::Push => out.array(list.len()),
    }
    for at in 0..list.len() {
        let name = at.checked_sub(1).and_then(|before| list[before].text());
        if name.is_some_and(|name| NO_AMOUNTS.contains(&name)) {
            list[at].replay(out);
        } else if name == Some(REST) {
            let rest: i64 = lists.iter().filter_map(|(_, list)| list[at].integer()).sum();
            out.integer(rest.max(0));
        } else {
            write(&lists.iter().map(|(_, list)| list[at]).collect::<Vec<_>>(), out);
        }
    }
}

/// Elements of which each is `name <its name> …`.
fn write_named<'e>(elements: impl Iterator<Item = &'e Answer<'e>>, out: &mut impl Reply) {
    let mut places: BTreeMap<Option<&[u8]>, usize> = BTreeMap::new();
    let mut named: Vec<Vec<Answer<'_>>> = Vec::new();
    for element in elements {
        let parts = element.list();
        let name = parts.get(1).map(|name| name.bytes());
        let place = *places.entry(name).or_insert(named.len());
        if place == named.len() {
            named.push(Vec::new());
        }
        named[place].push(*element);
    }
    out.array(named.len());
    named.iter().for_each(|same| write(same, out));
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::answer::answer_of;

    #[test]
    fn what_has_a_name_is_added_up_in_the_order_of_the_first() {
        let shard = |rows: &[(&str, i64)]| {
            answer_of(|out| {
                out.array(rows.len());
                for (name, count) in rows {
                    out.map(3);
                    out.bulk(b"name");
                    out.bulk(name.as_bytes());
                    out.bulk(b"keys");
                    out.integer(*count);
                    out.bulk(b"boundary");
                    out.integer(2);
                }
            })
        };
        let parts = [shard(&[("z", 1), ("a", 2)]), shard(&[("z", 5)])];
        let parts = parts.each_ref().map(|part| Answer::whole(part).unwrap());
        let merged = answer_of(|out| write(&parts, out));
        assert_eq!(merged, shard(&[("z", 6), ("a", 2)]));
    }
}
