//! Drafts are what a plain vector would be after the same operations, whoever shares the value; and
//! calls that fail change nothing.

use headwater_base::KeyRange;
use headwater_base::functions::{
    CallError, Functions, Loading, Refused, Run, Source, Subject, World,
};
use headwater_engine::{
    CallOptions, Engine, EngineError, Expiry, FlowCall, Folded, Follower, NotifiedChange,
    RangeOptions, Settings, Stop, TableOptions,
};
use headwater_pattern::{Component, Pattern};
use headwater_pool::Value;
use std::collections::BTreeMap;
use std::ops::ControlFlow;

/// Functions in plain code: each does what its parameter says.
#[derive(Debug)]
pub(crate) struct Scripted;

/// Numbers from a seed.
struct Draws(u64);

impl Draws {
    fn below(&mut self, bound: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        ((mixed ^ mixed >> 27) % bound as u64) as usize
    }

    fn length(&mut self) -> usize {
        match self.below(6) {
            0 => self.below(3),
            1..4 => self.below(40),
            4 => self.below(600),
            _ => self.below(9000),
        }
    }

    fn bytes(&mut self, len: usize) -> Vec<u8> {
        let first = self.below(256) as u8;
        (0..len).map(|at| first.wrapping_add(at as u8)).collect()
    }
}

/// Does some drawn operations to a subject, whose bytes and replies are compared on the way.
fn act(subject: &mut dyn Subject, seed: u64) -> Result<(), Refused> {
    let mut draws = Draws(seed);
    let mut model = subject.len().map(|len| {
        let mut bytes = std::vec![0; len];
        assert_eq!(subject.read(0, &mut bytes), len);
        bytes
    });
    let mut replied = Vec::new();
    for _ in 0..draws.below(8) {
        let len = draws.length();
        let bytes = draws.bytes(len);
        let at = draws.below(model.as_ref().map_or(0, Vec::len) + 20);
        match draws.below(10) {
            0..4 => {
                subject.write(at, &bytes)?;
                let value = model.get_or_insert_default();
                value.resize(value.len().max(at + len), 0);
                value[at..at + len].copy_from_slice(&bytes);
            }
            4..6 => {
                subject.append(&bytes)?;
                model.get_or_insert_default().extend_from_slice(&bytes);
            }
            6 => {
                subject.truncate(at)?;
                model.as_mut().into_iter().for_each(|value| value.truncate(at));
            }
            7 if draws.below(4) == 0 => {
                subject.replace(&bytes)?;
                model = Some(bytes);
            }
            8 if draws.below(4) == 0 => {
                subject.delete()?;
                model = None;
            }
            _ => {
                let value = model.as_deref().unwrap_or(&[]);
                let from = at.min(value.len());
                let there = &value[from..(from + len).min(value.len())];
                assert_eq!(subject.reply_value(at, len)?, there.len());
                replied.extend_from_slice(there);
            }
        }
        assert_eq!(subject.len(), model.as_ref().map(Vec::len));
        let value = model.as_deref().unwrap_or(&[]);
        let mut found = std::vec![0; len];
        let count = subject.read(at, &mut found);
        let from = at.min(value.len());
        assert_eq!(found[..count], value[from..(from + len).min(value.len())]);
    }
    // What it made of the value comes behind what it replied.
    subject.reply(model.as_deref().unwrap_or(b"absent"))
}

type Pairs = BTreeMap<Vec<u8>, Vec<u8>>;

/// Does some drawn operations to keys `w|…`, whose pairs are compared on the way; without a world, to the pairs alone.
fn act_on_others(
    mut world: Option<&mut dyn World>,
    pairs: &mut Pairs,
    seed: u64,
) -> Result<(), Refused> {
    let mut draws = Draws(seed);
    for _ in 0..draws.below(12) {
        let key = std::format!("w|{}", draws.below(20)).into_bytes();
        let last = std::format!("w|{}", draws.below(20)).into_bytes();
        let most = draws.below(8);
        match draws.below(6) {
            0..2 => {
                let len = draws.below(30);
                let value = draws.bytes(len);
                world.as_mut().map_or(Ok(()), |world| world.put(&key, &value))?;
                pairs.insert(key, value);
            }
            2 => {
                world.as_mut().map_or(Ok(()), |world| world.remove(&key))?;
                pairs.remove(&key);
            }
            3 => {
                let Some(world) = &mut world else { continue };
                let value = pairs.get(&key);
                assert_eq!(world.find(&key)?, value.map(Vec::len));
                assert_eq!(world.found(), value.map(|value| (&*key, &**value)));
            }
            _ => {
                let Some(world) = &mut world else { continue };
                let count = world.find_range(&key, &last, most)?;
                let wanted: Vec<_> =
                    pairs.iter().filter(|(k, _)| **k >= key && **k < last).take(most).collect();
                assert_eq!(count, wanted.len(), "seed {seed}");
                for (at, (key, value)) in wanted.into_iter().enumerate() {
                    assert_eq!(world.found(), Some((&**key, &**value)), "seed {seed}");
                    assert_eq!(world.next_found(), at + 1 < count);
                }
                assert_eq!(world.found(), None);
            }
        }
    }
    Ok(())
}

/// The pairs below `w|`, as a parameter.
fn pairs_of(engine: &mut Engine) -> Pairs {
    let mut pairs = Pairs::new();
    let mut each = |key: &[u8], value: Value<'_>| {
        pairs.insert(key.to_vec(), value.to_vec());
    };
    engine.range(b"w|", b"w}", RangeOptions::default(), &mut each).unwrap();
    pairs
}

impl Functions for Scripted {
    fn load(&mut self, _: &str, _: Source<'_>, _: Option<&str>, _: bool) -> Loading {
        Loading::Done
    }

    fn is_pure(&self, _: &[u8]) -> Option<bool> {
        Some(true)
    }

    fn call(&mut self, name: &[u8], subject: &mut dyn Subject) -> Result<(), CallError> {
        if let Some(mut rest) = subject.param().strip_prefix(b"others") {
            let (seed, mut pairs) = (rest[0], Pairs::new());
            rest = &rest[1..];
            while let [key_len, value_len, more @ ..] = rest {
                let (key, more) = more.split_at(usize::from(*key_len));
                let (value, more) = more.split_at(usize::from(*value_len));
                pairs.insert(key.to_vec(), value.to_vec());
                rest = more;
            }
            let world = subject.world().map_err(CallError::Refused)?;
            act_on_others(Some(world), &mut pairs, u64::from(seed)).map_err(CallError::Refused)?;
            return if name == b"fail" { Err(CallError::Status(1)) } else { Ok(()) };
        }
        let seed = subject.param().try_into().map(u64::from_le_bytes).unwrap_or(0);
        let done = act(subject, seed).map_err(CallError::Refused);
        if name == b"fail" { Err(CallError::Status(1)) } else { done }
    }

    fn run(
        &mut self,
        name: &[u8],
        with: &mut dyn FnMut(&mut dyn Run) -> Result<(), CallError>,
    ) -> Result<(), CallError> {
        with(&mut Lengths { whole: name == b"sum", sum: 0 })
    }
}

/// Replies the length of each value of more than one byte; or the sum of all lengths.
struct Lengths {
    whole: bool,
    sum: usize,
}

impl Run for Lengths {
    fn step(&mut self, subject: &mut dyn Subject) -> Result<(), CallError> {
        let len = subject.len().unwrap_or(0);
        self.sum += len;
        if subject.key().ends_with(b"bad") {
            return Err(CallError::Status(9));
        }
        if !self.whole && len > 1 {
            subject.reply(std::format!("{len}").as_bytes()).map_err(CallError::Refused)?;
        }
        Ok(())
    }

    fn has_end(&self) -> bool {
        self.whole
    }

    fn finish(&mut self, subject: &mut dyn Subject) -> Result<(), CallError> {
        subject.reply(std::format!("{}", self.sum).as_bytes()).map_err(CallError::Refused)
    }
}

fn engine() -> Engine {
    let mut engine = Engine::new(Settings::default());
    engine.set_functions(Box::new(Scripted));
    engine
}

fn get(engine: &mut Engine, key: &[u8]) -> Option<Vec<u8>> {
    engine.get(key).unwrap().map(|value| value.to_vec())
}

const UPDATE: CallOptions = CallOptions { update: true, present_only: false };

#[test]
fn drafts_are_what_a_vector_would_be() {
    for joined in [false, true] {
        let mut engine = engine();
        engine.table_set(b"s", &TableOptions::default()).unwrap();
        if joined {
            engine.join_add("view", "v|<id> = copy s|<id>", false).unwrap();
        }
        for seed in 0..6000_u64 {
            let mut draws = Draws(seed ^ 0xabcd);
            let id = draws.below(12);
            let key = std::format!("s|{id}").into_bytes();
            if draws.below(5) == 0 {
                let len = draws.length();
                engine.set(&key, &draws.bytes(len), Expiry::Never).unwrap();
            }
            let before = get(&mut engine, &key);
            // Someone else holds the value now and then, as a reply that is being sent does.
            let held =
                engine.get(&key).unwrap().filter(|_| draws.below(3) == 0).and_then(|v| v.hold());
            let name: &[u8] = if draws.below(5) == 0 { b"fail" } else { b"act" };
            let called = engine.function_call(name, &key, &seed.to_le_bytes(), UPDATE);
            let reply = called.map(|reply| reply.unwrap_or_default().to_vec());
            let after = get(&mut engine, &key);
            match reply {
                Ok(reply) => {
                    let told = after.as_deref().unwrap_or(b"absent");
                    assert!(reply.ends_with(told), "seed {seed}");
                }
                Err(error) => {
                    assert!(matches!(error, Stop::Failed(EngineError::Function { .. })));
                    assert_eq!(before, after, "seed {seed}: a failed call has done nothing");
                }
            }
            if let Some(held) = held {
                assert_eq!(Some(engine.held(held).to_vec()), before, "seed {seed}");
                engine.release(held);
            }
            if joined {
                let shown = get(&mut engine, std::format!("v|{id}").as_bytes());
                assert_eq!(shown, after, "seed {seed}: the view");
            }
            if seed.is_multiple_of(100) {
                engine.check_invariants();
            }
        }
    }
}

#[test]
fn what_a_call_changes_is_written_in_place() {
    let mut engine = engine();
    engine.set(b"k", &[b'x'; 10_000], Expiry::Never).unwrap();
    let bytes = engine.stats().value_bytes;
    let place = engine.value_place(b"k");
    // This seed writes within the value, and does nothing else.
    let seed = (0..).find(|&seed| {
        let mut draws = Draws(seed);
        let count = draws.below(8);
        let len = draws.length();
        let _ = draws.bytes(len);
        let at = draws.below(10_020);
        count == 1 && draws.below(10) < 4 && len > 0 && at + len < 10_000
    });
    engine.follow(&KeyRange::all(), Follower(0)).unwrap();
    engine.take_notifications();
    engine.function_call(b"act", b"k", &seed.unwrap_or(0_u64).to_le_bytes(), UPDATE).unwrap();
    let told = engine.take_notifications();
    let is_told =
        |what: &NotifiedChange| matches!(what, NotifiedChange::Set { key, .. } if **key == *b"k");
    assert!(told.iter().any(|told| is_told(&told.what)), "who follows the range is told: {told:?}");
    for told in told {
        if let NotifiedChange::Set { value, .. } = told.what {
            engine.release(value);
        }
    }
    assert_ne!(get(&mut engine, b"k").unwrap(), [b'x'; 10_000]);
    assert_eq!(engine.value_place(b"k"), place);
    assert_eq!(engine.stats().value_bytes, bytes);
}

#[test]
fn calls_are_refused_where_writes_are() {
    let mut engine = engine();
    engine.join_add("view", "v|<id> = copy s|<id>", false).unwrap();
    engine.set(b"s|1", b"text", Expiry::Never).unwrap();
    let joined = engine.function_call(b"act", b"v|1", b"", UPDATE).unwrap_err();
    assert!(matches!(joined, Stop::Failed(EngineError::Joined { .. })));
    let read_only = CallOptions::default();
    // Reading is allowed, of derived values too.
    let reply = engine.function_call(b"act", b"v|1", b"", read_only);
    assert!(matches!(
        reply,
        Ok(Some(_))
            | Err(Stop::Failed(EngineError::Function {
                error: CallError::Refused(Refused::ReadOnly),
                ..
            }))
    ));
    assert_eq!(get(&mut engine, b"v|1"), Some(b"text".to_vec()));
    engine.stream_append(b"stream", b"x", 0).unwrap();
    let stream = engine.function_call(b"act", b"stream", b"", UPDATE).unwrap_err();
    assert_eq!(stream, Stop::Failed(EngineError::WrongType));
    let absent = CallOptions { update: true, present_only: true };
    assert_eq!(engine.function_call(b"act", b"absent", &7_u64.to_le_bytes(), absent), Ok(None));
    assert_eq!(get(&mut engine, b"absent"), None);
}

#[test]
fn ranges_are_filtered_and_folded() {
    let mut engine = engine();
    for (key, len) in [("r|1", 1), ("r|2", 20), ("r|3", 300), ("s|bad", 1)] {
        engine.set(key.as_bytes(), &std::vec![b'x'; len], Expiry::Never).unwrap();
    }
    let mut seen = Vec::new();
    let mut range = |name: &[u8], last: &[u8], seen: &mut Vec<(Vec<u8>, Vec<u8>)>| {
        seen.clear();
        let options = RangeOptions::default();
        let mut each = |key: &[u8], reply: &[u8]| seen.push((key.to_vec(), reply.to_vec()));
        engine.function_range(name, (b"r|", last), options, b"", &mut each).map(|folded| {
            match folded {
                Folded::Whole(reply) => (0, reply.map(<[u8]>::to_vec)),
                Folded::Each(count) => (count, None),
            }
        })
    };
    assert_eq!(range(b"len", b"r}", &mut seen), Ok((2, None)));
    let pair = |key: &[u8], reply: &[u8]| (key.to_vec(), reply.to_vec());
    assert_eq!(seen, [pair(b"r|2", b"20"), pair(b"r|3", b"300")]);
    assert_eq!(range(b"sum", b"r}", &mut seen), Ok((0, Some(b"321".to_vec()))));
    assert!(seen.is_empty());
    let failed = range(b"len", b"", &mut seen).unwrap_err();
    let status = CallError::Status(9);
    let name = String::from("len");
    assert_eq!(failed, Stop::Failed(EngineError::Function { name, error: status }));
}

#[test]
fn a_range_ends_where_no_more_is_wanted() {
    let mut engine = Engine::new(Settings::default());
    for key in [&b"a|1"[..], b"a|2", b"b|1", b"b|2", b"c"] {
        engine.set(key, b"value", Expiry::Never).unwrap();
    }
    for wanted in 1..=5 {
        let mut seen = 0;
        let found = engine.range_until(b"", b"", RangeOptions::default(), &mut |_, _| {
            seen += 1;
            if seen < wanted { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
        });
        assert_eq!((found, seen), (Ok(wanted), wanted));
    }
}

/// A call for a removal of `x|1`.
fn flow_call<'a>(function: &'a [u8], param: &'a [u8], writes: &'a [Pattern]) -> FlowCall<'a> {
    FlowCall { function, key: None, changed: b"x|1", value: None, param, slots: &[], writes }
}

fn pattern(table: &str) -> Pattern {
    let slot = Component::Slot { slot: 0, width: None };
    Pattern { table: table.as_bytes().to_vec(), components: std::vec![slot] }
}

#[test]
fn a_flows_function_sees_its_own_changes_of_other_keys_and_nobody_else_does_before_it_ends_well() {
    let mut engine = engine();
    let writes = [pattern("w")];
    for seed in 0..=255_u8 {
        let mut pairs = pairs_of(&mut engine);
        let mut param = [b"others", &[seed][..]].concat();
        for (key, value) in &pairs {
            param.extend([key.len() as u8, value.len() as u8]);
            param.extend([&key[..], value].concat());
        }
        let function: &[u8] = if seed % 3 == 0 { b"fail" } else { b"act" };
        let call = flow_call(function, &param, &writes);
        let called = engine.function_call_for_flow(&call);
        if seed % 3 == 0 {
            let error = CallError::Status(1);
            let name = String::from("fail");
            assert_eq!(called, Err(Stop::Failed(EngineError::Function { name, error })));
        } else {
            assert_eq!(called, Ok(()), "seed {seed}");
            act_on_others(None, &mut pairs, u64::from(seed)).unwrap();
        }
        assert_eq!(pairs_of(&mut engine), pairs, "seed {seed}");
    }
    engine.check_invariants();
}

#[test]
fn a_flows_function_writes_what_is_declared_alone() {
    let mut engine = engine();
    let refused = |called| match called {
        Err(Stop::Failed(EngineError::Function { error: CallError::Refused(why), .. })) => why,
        other => panic!("{other:?}"),
    };
    // This seed puts a key at once.
    let seed = (0..=255_u8).find(|&seed| {
        let mut pairs = Pairs::new();
        act_on_others(None, &mut pairs, u64::from(seed)).unwrap();
        pairs.len() > 1
    });
    let param = [b"others", &[seed.unwrap()][..]].concat();
    let none = [];
    let other = [pattern("v")];
    for writes in [&none[..], &other] {
        let call = flow_call(b"act", &param, writes);
        assert_eq!(refused(engine.function_call_for_flow(&call)), Refused::NotDeclared);
    }
    let called = engine.function_call(b"act", b"x|1", &param, UPDATE).map(|_| ());
    assert_eq!(refused(called), Refused::NotInFlow);
    // What a join maintains cannot be written, whatever is declared.
    engine.join_add("owner", "w|<x> = copy b|<x>", false).unwrap();
    let writes = [pattern("w")];
    let call = flow_call(b"act", &param, &writes);
    let called = engine.function_call_for_flow(&call);
    assert!(matches!(called, Err(Stop::Failed(EngineError::Joined { .. }))), "{called:?}");
}
