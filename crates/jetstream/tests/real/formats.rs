//! Nodes whose programs read different formats of records, beside real servers.

use crate::member::Member;
use crate::servers::Servers;
use crate::{ALL, quiet, read_up_to, servers, settings, until};
use headwater_jetstream::JetStream;
use headwater_log::{FormatRange, Formats};

const OLD: FormatRange = FormatRange::one(1);
const BOTH: FormatRange = FormatRange { oldest: 1, newest: 2 };

/// An upgrade: an owner that could write a newer format does so when the last node of a program that does not read it was upgraded, and who
/// comes later with that program stops.
#[test]
fn a_newer_format_is_written_from_when_all_nodes_have_announced_that_they_read_it() {
    let Some(program) = servers() else { return };
    let servers = Servers::start(program, "always");
    servers.wait();
    let settings = settings(&servers, &ALL);
    let new = (BOTH, Some(Formats { records: BOTH, ..Formats::UNANNOUNCED }));
    let observer = JetStream::connect(settings.clone()).unwrap();
    let (nodes, mut log) = (observer.nodes(), observer.log(0, quiet()).unwrap());
    let old = Member::start_as("b", settings.clone(), false, (OLD, None));
    until("the old one is known", || !nodes.known().is_empty());
    let owner = Member::start_as("a", settings.clone(), true, new);
    until("it owns", || owner.done().serves.is_some());
    let mut number = 0;
    let mut append = || {
        number += 1;
        owner.append(number);
        until("it is acknowledged", || owner.done().acknowledged.contains(&number));
        let last = owner.done().position.sequence.0;
        let messages = read_up_to(&mut log, last);
        let (_, bytes) = &messages[last as usize - 1];
        u16::from_le_bytes([bytes[4], bytes[5]])
    };
    until("both are known", || nodes.known().iter().filter(|it| it.is_heard).count() == 2);
    for _ in 0..5 {
        assert_eq!(append(), 1);
    }
    until("the old one has all", || old.done().list == [1, 2, 3, 4, 5]);
    drop(old);
    // It holds that up while it is away.
    until("it is not heard", || {
        nodes.known().iter().all(|it| it.owner.node == "a" || !it.is_heard)
    });
    assert_eq!(append(), 1);
    let upgraded = Member::start_as("b", settings.clone(), false, new);
    until("all read it", || append() == 2);
    until("who reads both has all", || {
        let (has, is) = (upgraded.done().list, owner.done().list);
        has == is && has.len() > 6
    });
    let late = Member::start_as("c", settings, false, (OLD, None));
    until("it stops", || late.done().halted.is_some());
    let why = late.done().halted.unwrap();
    assert!(why.contains("of stream HW_test_0 cannot be read: it has format 2, and this version of Headwater reads format 1 alone"), "{why}");
    // There is no way back, and no need for one.
    assert_eq!(append(), 2);
}
