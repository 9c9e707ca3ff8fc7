//! A source that the test speaks for: what it is asked, and what comes of its news.

use super::Stage;
use crate::service::{Service, Stopped, Time};
use headwater_base::memory::Meter;
use headwater_base::source::{
    Attributes, Change, FetchId, Health, Loaded, LoadedPart, News, Pair, Portion, Position, Sink,
    Source, Written,
};
use headwater_base::{KeyRange, Millis};
use std::cell::Cell;
use std::rc::Rc;
use std::sync::{Arc, Mutex};

/// What was asked of the source.
#[derive(Clone, PartialEq, Debug)]
enum Request {
    Declare(u64, Vec<(String, String)>),
    Examine(u64, Vec<(String, String)>),
    Load(FetchId, KeyRange),
    Unfollow(KeyRange),
    Position(u64),
    Write(u64, Vec<Change>),
}

/// Its record of what it was asked, and the last position that it gave for `#next`.
struct Speaker(Arc<Mutex<Vec<Request>>>, Cell<u64>);

impl Source for Speaker {
    fn declare(&mut self, request: u64, prefix: &[u8], mapping: &[(String, String)]) {
        assert_eq!(prefix, b"p|");
        self.0.lock().unwrap().push(Request::Declare(request, mapping.to_vec()));
    }
    fn examine(&mut self, request: u64, mapping: &[(String, String)]) {
        self.0.lock().unwrap().push(Request::Examine(request, mapping.to_vec()));
    }
    fn withdraw(&mut self, _prefix: &[u8]) {}
    fn load(&mut self, fetch: FetchId, range: &KeyRange, _: Portion) {
        self.0.lock().unwrap().push(Request::Load(fetch, range.clone()));
    }
    fn unfollow(&mut self, range: &KeyRange) {
        self.0.lock().unwrap().push(Request::Unfollow(range.clone()));
    }
    fn position(&mut self, request: u64) {
        self.0.lock().unwrap().push(Request::Position(request));
    }
    fn write(&mut self, request: u64, changes: &[Change]) {
        self.0.lock().unwrap().push(Request::Write(request, changes.to_vec()));
    }
    fn parse_position(&self, text: &[u8]) -> Result<Position, String> {
        if text == b"#next" {
            // Later each time that somebody asks.
            self.1.set(self.1.get() + 10);
            return Ok(Position(self.1.get()));
        }
        let number =
            str::from_utf8(text).ok().and_then(|text| text.strip_prefix('#')?.parse().ok());
        number.map(Position).ok_or_else(|| format!("'{}' is not like #7", text.escape_ascii()))
    }
    fn show_position(&self, position: Position) -> String {
        format!("#{}", position.0)
    }
    fn facts(&self) -> Vec<(&'static str, String)> {
        vec![("mood", String::from("good"))]
    }
}

/// All memory is taken.
#[derive(Debug)]
struct Full;

impl Meter for Full {
    fn used(&self) -> usize {
        2
    }
}

struct Scene {
    stage: Stage,
    asked: Arc<Mutex<Vec<Request>>>,
    sink: Arc<dyn Sink>,
}

impl Scene {
    fn new() -> Self {
        let stage = Stage::new();
        let asked = Arc::<Mutex<Vec<Request>>>::default();
        let speaker = Box::new(Speaker(asked.clone(), Cell::new(0)));
        let sink = stage.service.stores.hub.insert("db", speaker);
        Self { stage, asked, sink }
    }

    /// With table `p` at the source.
    fn declared(set: &str) -> Self {
        let mut scene = Self::new();
        assert_eq!(scene.serve(0, set), ("".into(), Stopped::Parked));
        let Some(Request::Declare(request, _)) = scene.ask() else { panic!("nothing is declared") };
        scene.tell(News::Declared { request, answer: Ok(Vec::new()) }, &[0]);
        assert_eq!(scene.serve(0, ""), ("*2 $8 warnings *0 ".into(), Stopped::Incomplete));
        scene
    }

    fn serve(&mut self, client: usize, input: &str) -> (String, Stopped) {
        self.stage.serve(client, input)
    }

    /// The one thing that was asked since the last look.
    fn ask(&mut self) -> Option<Request> {
        self.stage.woken();
        let mut asked = std::mem::take(&mut *self.asked.lock().unwrap());
        assert!(asked.len() <= 1, "{asked:?}");
        asked.pop()
    }

    /// The source tells something, upon which these clients may go on.
    fn tell(&mut self, news: News, woken: &[usize]) {
        assert!(self.sink.tell(news));
        assert_eq!(self.stage.woken(), woken);
    }

    fn changed(&mut self, position: u64, changes: &[(&str, Option<&str>)], woken: &[usize]) {
        let changes = changes.iter().map(|(key, value)| Change {
            key: key.as_bytes().to_vec(),
            value: value.map(|value| value.as_bytes().to_vec()),
        });
        let changes = changes.collect();
        self.tell(News::Changed { position: Position(position), changes }, woken);
    }

    fn pass_time(&mut self, uptime: u64) {
        self.stage.service.turn(Time { wall: Millis(1), uptime }, 0);
    }
}

const SET: &str = "TABLE.SET p SOURCE db TABLE posts KEY (who, at) VALUE text\r\n";

fn pair(key: &str, value: &str) -> Pair {
    Pair { key: key.into(), value: value.into(), attributes: Attributes::default() }
}

#[test]
fn a_table_is_declared_at_its_source_before_it_is_there() {
    let mut scene = Scene::new();
    assert_eq!(scene.serve(0, SET), ("".into(), Stopped::Parked));
    let Some(Request::Declare(request, mapping)) = scene.ask() else { panic!("not declared") };
    let word = |name: &str, value: &str| (name.to_owned(), value.to_owned());
    assert_eq!(mapping, [word("table", "posts"), word("key", "who, at"), word("value", "text")]);
    let answer = Ok(vec![String::from("slow")]);
    scene.tell(News::Declared { request, answer }, &[0]);
    assert_eq!(scene.serve(0, "").0, "*2 $8 warnings *1 $4 slow ");
    let (info, _) = scene.serve(0, "SOURCE.DROP db\r\n");
    assert_eq!(info, "-ERR source 'db' keeps tables: p ");
}

#[test]
fn a_source_says_what_a_mapping_would_need_and_no_table_is_there() {
    let mut scene = Scene::new();
    let check = "SOURCE.CHECK db TABLE posts KEY (who, at) VALUE text\r\n";
    let tables = scene.serve(0, "TABLE.LIST\r\n").0;
    assert_eq!(scene.serve(0, check), ("".into(), Stopped::Parked));
    let Some(Request::Examine(request, mapping)) = scene.ask() else { panic!("not asked") };
    let word = |name: &str, value: &str| (name.to_owned(), value.to_owned());
    assert_eq!(mapping, [word("table", "posts"), word("key", "who, at"), word("value", "text")]);
    let answer = Ok(vec![String::from("refused: a"), String::from("warning: b")]);
    scene.tell(News::Declared { request, answer }, &[0]);
    assert_eq!(scene.serve(0, "").0, "*2 $10 refused: a $10 warning: b ");
    assert_eq!(scene.serve(0, "TABLE.LIST\r\n").0, tables);
    scene.serve(0, "MULTI\r\n");
    let queued = scene.serve(0, check).0;
    assert!(queued.starts_with("-ERR Command not allowed inside a transaction"), "{queued}");
    scene.serve(0, "DISCARD\r\n");
    assert_eq!(scene.serve(0, "SOURCE.DROP db\r\n").0, "+OK ");
    assert_eq!(scene.serve(0, check).0, "-ERR no source is named 'db' ");
    let unknown = scene.serve(0, "SOURCE.CHECK db KEY id VALUE text BOUNDARY 1\r\n").0;
    assert!(unknown.starts_with("-ERR syntax error: unknown option 'BOUNDARY'"), "{unknown}");
}

#[test]
fn a_table_that_its_source_refuses_is_not_there() {
    let mut scene = Scene::new();
    scene.serve(0, SET);
    let Some(Request::Declare(request, _)) = scene.ask() else { panic!("not declared") };
    scene.tell(News::Declared { request, answer: Err(String::from("no table posts")) }, &[0]);
    assert_eq!(scene.serve(0, "").0, "-ERR source 'db': no table posts ");
    assert_eq!(scene.serve(0, "SOURCE.DROP db\r\n").0, "+OK ");
    assert_eq!(scene.serve(0, SET).0, "-ERR no source is named 'db' ");
}

#[test]
fn reads_are_loaded_and_followed() {
    let mut scene = Scene::declared(SET);
    assert_eq!(scene.serve(0, "GET p|1\r\n").1, Stopped::Parked);
    let Some(Request::Load(fetch, range)) = scene.ask() else { panic!("nothing is loaded") };
    assert_eq!(range, KeyRange::point(b"p|1"));
    let loaded = Loaded { position: Position(3), pairs: vec![pair("p|1", "one")], known: None };
    scene.tell(News::Loaded { fetch, answer: Ok(loaded) }, &[0]);
    assert_eq!(scene.serve(0, "").0, "$3 one ");
    scene.changed(4, &[("p|1", Some("two"))], &[]);
    assert_eq!(scene.serve(1, "GET p|1\r\n").0, "$3 two ");
    scene.tell(News::Reset { range: KeyRange::prefix(b"p|") }, &[]);
    assert_eq!(scene.ask(), Some(Request::Unfollow(KeyRange::point(b"p|1"))));
    assert_eq!(scene.serve(1, "GET p|1\r\n").1, Stopped::Parked);
}

#[test]
fn a_source_that_does_not_answer_is_named_in_time() {
    let mut scene = Scene::declared(SET);
    assert_eq!(scene.serve(0, "GET p|1\r\n").1, Stopped::Parked);
    scene.ask();
    scene.pass_time(4999);
    assert_eq!(scene.stage.woken(), [0; 0]);
    scene.pass_time(5001);
    assert_eq!(scene.stage.woken(), [0]);
    let (text, _) = scene.serve(0, "");
    assert!(text.contains("db") && text.contains("no answer within 5000 ms"), "{text}");
    // What is there is served, and marked.
    scene.tell(News::Health(Health::Down(String::from("gone fishing"))), &[]);
    let (text, _) = scene.serve(1, "EXPLAIN p|1\r\n");
    assert!(text.contains("gone fishing"), "{text}");
    assert_eq!(scene.serve(1, "GET p|1\r\n").1, Stopped::Parked);
}

#[test]
fn a_read_waits_for_a_position() {
    let mut scene = Scene::declared(SET);
    assert_eq!(scene.serve(0, "SOURCE.POSITION db\r\n").1, Stopped::Parked);
    let Some(Request::Position(request)) = scene.ask() else { panic!("not asked") };
    scene.tell(News::Position { request, answer: Ok(Position(9)) }, &[0]);
    assert_eq!(scene.serve(0, "").0, "$5 db:#9 ");
    assert_eq!(scene.serve(0, "RANGE q| q} AT db:#9\r\n").1, Stopped::Parked);
    scene.changed(8, &[], &[]);
    scene.changed(9, &[], &[0]);
    assert_eq!(scene.serve(0, "").0, "*0 ");
    assert_eq!(scene.serve(0, "RANGE q| q} AT #9\r\n").0, "*0 ");
    assert_eq!(scene.serve(0, "PREFIX q| COUNT AT #10\r\n").1, Stopped::Parked);
    scene.pass_time(6000);
    assert_eq!(scene.stage.woken(), [0]);
    let (text, _) = scene.serve(0, "");
    assert!(text.contains("'db'") && text.contains("not reached within 5000 ms"), "{text}");
    let (text, _) = scene.serve(0, "RANGE q| q} AT nine\r\n");
    assert_eq!(text, "-ERR 'nine' is not like #7 ");
    let (text, _) = scene.serve(0, "RANGE q| q} AT other:#1\r\n");
    assert_eq!(text, "-ERR 'other:#1' is no position: there is no such source ");
}

#[test]
fn a_position_is_named_once_however_often_the_command_is_run_again() {
    let mut scene = Scene::declared(SET);
    assert_eq!(scene.serve(0, "PREFIX p| COUNT AT #next\r\n").1, Stopped::Parked);
    scene.changed(10, &[], &[0]);
    assert_eq!(scene.serve(0, "").1, Stopped::Parked);
    let Some(Request::Load(fetch, _)) = scene.ask() else { panic!("nothing is loaded") };
    let loaded = Loaded { position: Position(10), pairs: vec![pair("p|1", "one")], known: None };
    scene.tell(News::Loaded { fetch, answer: Ok(loaded) }, &[0]);
    assert_eq!(scene.serve(0, "").0, ":1 ");
    // The next command names a position of its own, also after one that failed.
    assert_eq!(scene.serve(0, "PREFIX p| COUNT AT #next\r\n").1, Stopped::Parked);
    scene.pass_time(6000);
    assert_eq!(scene.stage.woken(), [0]);
    assert!(scene.serve(0, "").0.contains("not reached"));
    scene.changed(29, &[], &[]);
    assert_eq!(scene.serve(0, "PREFIX p| COUNT AT #next\r\n").1, Stopped::Parked);
    scene.changed(30, &[], &[0]);
    assert_eq!(scene.serve(0, "").0, ":1 ");
}

#[test]
fn an_answer_that_comes_too_late_is_not_followed() {
    let mut scene = Scene::declared(SET);
    assert_eq!(scene.serve(0, "GET p|1\r\n").1, Stopped::Parked);
    let Some(Request::Load(late, range)) = scene.ask() else { panic!("nothing is loaded") };
    scene.pass_time(5001);
    assert_eq!(scene.stage.woken(), [0]);
    scene.serve(0, "");
    assert_eq!(scene.serve(0, "GET p|1\r\n").1, Stopped::Parked);
    let Some(Request::Load(fetch, _)) = scene.ask() else { panic!("nothing is loaded") };
    let loaded =
        |text| Loaded { position: Position(3), pairs: vec![pair("p|1", text)], known: None };
    scene.tell(News::Loaded { fetch: late, answer: Ok(loaded("late")) }, &[]);
    assert_eq!(scene.ask(), Some(Request::Unfollow(range)));
    // The other load of that range is waited for, and followed.
    scene.tell(News::Loaded { fetch, answer: Ok(loaded("one")) }, &[0]);
    assert_eq!(scene.serve(0, "").0, "$3 one ");
    assert_eq!(scene.ask(), None);
}

#[test]
fn an_answer_that_is_too_large_is_not_followed() {
    let mut scene = Scene::declared(SET);
    assert_eq!(scene.serve(0, "GET p|1\r\n").1, Stopped::Parked);
    let Some(Request::Load(fetch, range)) = scene.ask() else { panic!("nothing is loaded") };
    scene.stage.service.node.engine_mut().set_memory(Rc::new(Full), Some(1));
    let loaded = Loaded { position: Position(3), pairs: vec![pair("p|1", "one")], known: None };
    scene.tell(News::Loaded { fetch, answer: Ok(loaded) }, &[0]);
    assert!(scene.serve(0, "").0.contains("leaves no room"));
    assert_eq!(scene.ask(), Some(Request::Unfollow(range)));
}

#[test]
fn writes_go_through_and_are_seen_by_their_writer() {
    let set = SET.replace("\r\n", " WRITE THROUGH\r\n");
    let mut scene = Scene::declared(&set);
    assert_eq!(scene.serve(0, "SET p|1 one\r\n").1, Stopped::Parked);
    let Some(Request::Write(request, changes)) = scene.ask() else { panic!("not written") };
    assert_eq!(changes, [Change { key: b"p|1".to_vec(), value: Some(b"one".to_vec()) }]);
    // The answer waits until the change has come back.
    let written = |at, removed| Ok(Written { position: Position(at), removed });
    scene.tell(News::Written { request, answer: written(5, 0) }, &[]);
    scene.changed(5, &[("p|1", Some("one"))], &[0]);
    assert_eq!(scene.serve(0, "").0, "+OK ");
    // What was not there was not removed.
    assert_eq!(scene.serve(0, "DEL p|1 p|2\r\n").1, Stopped::Parked);
    let Some(Request::Write(request, _)) = scene.ask() else { panic!("not written") };
    scene.tell(News::Written { request, answer: written(6, 1) }, &[]);
    scene.changed(6, &[("p|1", None)], &[0]);
    assert_eq!(scene.serve(0, "").0, ":1 ");
    assert_eq!(scene.serve(0, "DEL p|1\r\n").1, Stopped::Parked);
    let Some(Request::Write(request, _)) = scene.ask() else { panic!("not written") };
    scene.tell(News::Written { request, answer: Err(String::from("read-only")) }, &[0]);
    assert_eq!(scene.serve(0, "").0, "-ERR source 'db': read-only ");
    let (text, _) = scene.serve(0, "SET p|1 two EX 10\r\n");
    assert!(text.starts_with("-ERR a table with WRITE THROUGH takes SET"), "{text}");
    let (text, _) = scene.serve(0, "APPEND p|1 two\r\n");
    assert!(text.contains("kept by source 'db'"), "{text}");
    let (text, _) = scene.serve(0, "MSET p|1 two q 3\r\n");
    assert!(text.contains("one of these keys is elsewhere"), "{text}");
}

#[test]
fn a_client_that_leaves_is_not_answered() {
    let mut scene = Scene::declared(SET);
    scene.serve(0, "SOURCE.POSITION db\r\n");
    let Some(Request::Position(request)) = scene.ask() else { panic!("not asked") };
    let slot = scene.stage.ids[0].slot;
    let mut connection = scene.stage.connections.take(slot).unwrap();
    scene.stage.service.closed(&mut connection);
    scene.tell(News::Position { request, answer: Ok(Position(9)) }, &[]);
}

#[test]
fn what_is_known_of_a_source_is_told() {
    let mut scene = Scene::declared(SET);
    // Nobody is told that it is up before it has said so.
    let (text, _) = scene.serve(0, "SOURCE.INFO db\r\n");
    assert!(text.contains("state $4 down $6 reason $23 it has said nothing yet"), "{text}");
    scene.tell(News::Health(Health::Up), &[]);
    let (text, _) = scene.serve(0, "SOURCE.LIST\r\n");
    assert!(text.contains("$2 db $4 kind $4 test $3 url $7 test:// $5 state $2 up"), "{text}");
    let (text, _) = scene.serve(0, "SOURCE.INFO db\r\n");
    assert!(text.contains("mood $4 good") && text.contains("tables $1 p"), "{text}");
    let (text, _) = scene.serve(0, "SOURCE.ADD db postgres postgres://x\r\n");
    assert!(text.contains("a source is named 'db' already"), "{text}");
    let (text, _) = scene.serve(0, "SOURCE.ADD d|b postgres postgres://x\r\n");
    assert!(text.contains("cannot be a source's name"), "{text}");
}

fn some(text: &str, first: &str, last: &str, position: u64) -> LoadedPart {
    let known = KeyRange::new(first.as_bytes(), last.as_bytes());
    let pairs = [(first.as_bytes(), text.as_bytes())].into_iter().collect();
    LoadedPart { position: Position(position), pairs, known }
}

#[test]
fn a_load_brings_parts_before_its_answer() {
    let mut scene = Scene::declared(SET);
    assert_eq!(scene.serve(0, "RANGE p|1 p|4\r\n").1, Stopped::Parked);
    let Some(Request::Load(fetch, _)) = scene.ask() else { panic!("nothing is loaded") };
    scene.tell(News::LoadedPart { fetch, part: some("one", "p|1", "p|2", 3) }, &[]);
    assert_eq!(scene.serve(1, "GET p|1\r\n").0, "$3 one ");
    scene.tell(News::LoadedPart { fetch, part: some("two", "p|2", "p|3", 3) }, &[]);
    let loaded = Loaded { position: Position(3), pairs: vec![pair("p|3", "three")], known: None };
    scene.tell(News::Loaded { fetch, answer: Ok(loaded) }, &[0]);
    assert_eq!(scene.serve(0, "").0, "*6 $3 p|1 $3 one $3 p|2 $3 two $3 p|3 $5 three ");
    assert_eq!(scene.ask(), None);
}

#[test]
fn parts_that_come_too_late_are_not_followed() {
    let mut scene = Scene::declared(SET);
    assert_eq!(scene.serve(0, "RANGE p|1 p|4\r\n").1, Stopped::Parked);
    let Some(Request::Load(fetch, _)) = scene.ask() else { panic!("nothing is loaded") };
    scene.tell(News::LoadedPart { fetch, part: some("one", "p|1", "p|2", 3) }, &[]);
    scene.pass_time(5001);
    assert_eq!(scene.stage.woken(), [0]);
    assert!(scene.serve(0, "").0.contains("no answer within"));
    // What had come stays, and only what comes now is given up.
    assert_eq!(scene.serve(1, "GET p|1\r\n").0, "$3 one ");
    scene.tell(News::LoadedPart { fetch, part: some("two", "p|2", "p|3", 3) }, &[]);
    assert_eq!(scene.ask(), Some(Request::Unfollow(KeyRange::new(b"p|2", b"p|3"))));
    let loaded = Loaded { position: Position(3), pairs: Vec::new(), known: None };
    scene.tell(News::Loaded { fetch, answer: Ok(loaded) }, &[]);
    assert_eq!(scene.ask(), Some(Request::Unfollow(KeyRange::new(b"p|3", b"p|4"))));
}

#[test]
fn a_load_that_finds_no_room_for_a_part_has_failed() {
    let mut scene = Scene::declared(SET);
    assert_eq!(scene.serve(0, "RANGE p|1 p|4\r\n").1, Stopped::Parked);
    let Some(Request::Load(fetch, _)) = scene.ask() else { panic!("nothing is loaded") };
    scene.stage.service.node.engine_mut().set_memory(Rc::new(Full), Some(1));
    scene.tell(News::LoadedPart { fetch, part: some("one", "p|1", "p|2", 3) }, &[0]);
    assert!(scene.serve(0, "").0.contains("leaves no room"));
    assert_eq!(scene.ask(), Some(Request::Unfollow(KeyRange::new(b"p|1", b"p|2"))));
    let loaded = Loaded { position: Position(3), pairs: Vec::new(), known: None };
    scene.tell(News::Loaded { fetch, answer: Ok(loaded) }, &[]);
    assert_eq!(scene.ask(), Some(Request::Unfollow(KeyRange::new(b"p|2", b"p|4"))));
}
