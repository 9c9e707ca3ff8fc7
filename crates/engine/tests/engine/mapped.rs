//! Values that a function makes for a join: made once where outputs share them.

use headwater_base::functions::{CallError, Functions, Loading, Run, Source, Subject};
use headwater_engine::{Engine, Expiry, RangeOptions, Settings};
use std::cell::Cell;
use std::rc::Rc;

/// Replies the value with a mark, or fails for values of no bytes; the key is looked at, or not.
#[derive(Debug)]
struct Marking {
    looks: bool,
    calls: Rc<Cell<u32>>,
}

impl Functions for Marking {
    fn load(&mut self, _: &str, _: Source<'_>, _: Option<&str>, _: bool) -> Loading {
        Loading::Done
    }
    fn is_pure(&self, _: &[u8]) -> Option<bool> {
        Some(true)
    }
    fn call(&mut self, _: &[u8], subject: &mut dyn Subject) -> Result<(), CallError> {
        self.calls.update(|calls| calls + 1);
        let mut value = vec![0; subject.len().unwrap_or(0)];
        subject.read(0, &mut value);
        if value.is_empty() {
            return Err(CallError::Status(1));
        }
        if self.looks {
            value.extend_from_slice(subject.key());
        }
        value.push(b'!');
        subject.reply(&value).map_err(CallError::Refused)
    }
    fn run(
        &mut self,
        _: &[u8],
        _: &mut dyn FnMut(&mut dyn Run) -> Result<(), CallError>,
    ) -> Result<(), CallError> {
        Err(CallError::NoSuchFunction)
    }
}

#[test]
fn outputs_of_one_value_share_what_a_function_makes_of_it_without_the_key() {
    for looks in [false, true] {
        let calls = Rc::new(Cell::new(0));
        let mut engine = Engine::new(Settings::default());
        engine.set_functions(Box::new(Marking { looks, calls: calls.clone() }));
        let join = "v|<user>|<post> = check f|<user> map:mark p|<post>";
        engine.join_add("v", join, false).unwrap();
        let set = |engine: &mut Engine, key: &str, value: &[u8]| {
            engine.set(key.as_bytes(), value, Expiry::Never).unwrap();
        };
        let shown = |engine: &mut Engine, user: u32| {
            let key = format!("v|{user:03}|1");
            engine.get(key.as_bytes()).unwrap().map(|value| value.to_vec())
        };
        for user in 0..300 {
            set(&mut engine, &format!("f|{user:03}"), b"1");
        }
        engine.range(b"v|", b"v}", RangeOptions::default(), &mut |_, _| {}).unwrap();
        for (value, made) in [(&b"short"[..], true), (&[b'x'; 5000], true), (b"", false)] {
            calls.set(0);
            set(&mut engine, "p|1", value);
            // A value of no bytes fails before the key is looked at.
            assert_eq!(calls.get(), if looks && made { 300 } else { 1 });
            for user in [0, 7, 299] {
                let key = if looks { format!("v|{user:03}|1") } else { Default::default() };
                let wanted = [value, key.as_bytes(), b"!"].concat();
                assert_eq!(shown(&mut engine, user), made.then_some(wanted));
            }
        }
        for user in 0..300 {
            engine.remove(format!("f|{user:03}").as_bytes()).unwrap();
        }
        engine.remove(b"p|1").unwrap();
        engine.range(b"v|", b"v}", RangeOptions::default(), &mut |_, _| {}).unwrap();
        assert_eq!(engine.stats().value_bytes, 0, "no reference is left behind");
    }
}
