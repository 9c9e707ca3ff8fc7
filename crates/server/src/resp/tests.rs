//! Waiting for data: the engine's requests are answered by the test, late.

mod items;
mod kept;
mod sourced;
mod sourced_shards;

use super::{Session, ShardService};
use crate::connection::{Connection, ConnectionId, Phase};
use crate::connections::Connections;
use crate::service::{Service, Stopped, Time, Work};
use crate::tls::ClientStream;
use crate::wire_protocol::WireProtocol;
use headwater_config::Config;
use headwater_config::Size;
use headwater_engine::{Effect, FetchId, Loaded, Pair, Position, TableOptions};
use headwater_protocol::Held;

/// A service with a table `x` whose data is elsewhere, and two connections.
struct Stage {
    service: ShardService,
    connections: Connections<Session>,
    ids: Vec<ConnectionId>,
}

impl Stage {
    fn new() -> Self {
        Self::with(Config::default())
    }

    /// Clients come in at this door.
    fn at(door: WireProtocol) -> Self {
        Self::made(Config::default(), door)
    }

    fn with(config: Config) -> Self {
        Self::made(config, WireProtocol::Resp)
    }

    fn made(config: Config, door: WireProtocol) -> Self {
        let mut service = ShardService::new(config, None, None).unwrap();
        let options = TableOptions { source: Some(String::from("far")), ..TableOptions::default() };
        service.node_mut().engine_mut().table_set(b"x", &options).unwrap();
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let mut connections = Connections::new();
        let ids = (0..2)
            .map(|_| {
                let socket = mio::net::TcpStream::connect(address).unwrap();
                let id = connections.next_id();
                let session = service.opened(id, door);
                let addresses = (address, address);
                connections.put(Box::new(Connection::new(
                    id,
                    ClientStream::Bare(socket),
                    addresses,
                    session,
                    0,
                )));
                id
            })
            .collect();
        Self { service, connections, ids }
    }

    /// Gives a client's requests to the service: the answers, and why it stopped.
    fn serve(&mut self, client: usize, input: &str) -> (String, Stopped) {
        let mut connection = self.connections.take(self.ids[client].slot).unwrap();
        connection.dirty = false;
        let mut out = Vec::new();
        let served = self.service.serve(Work {
            peers: &mut self.connections,
            connection: &mut connection,
            input: input.as_bytes(),
            out: &mut out,
            held: &mut Held::default(),
            requests_left: &mut 1000,
            out_bytes_full: 1 << 20,
            published_bytes: 0,
            time: Time::default(),
        });
        if served.stopped == Stopped::Parked {
            connection.phase = Phase::Parked;
        }
        self.connections.put(connection);
        (String::from_utf8(out).unwrap().replace("\r\n", " "), served.stopped)
    }

    /// The one load that the engine has asked for.
    fn load(&mut self) -> FetchId {
        match self.service.node_mut().engine_mut().take_effects().as_slice() {
            [Effect::Load { fetch, .. }] => *fetch,
            other => panic!("{other:?}"),
        }
    }

    /// Answers a load with these pairs, and tells which clients may go on.
    fn answer(&mut self, fetch: FetchId, pairs: &[(&str, &str)]) -> Vec<usize> {
        let pairs = pairs.iter().map(|(key, value)| Pair {
            key: key.as_bytes().into(),
            value: value.as_bytes().into(),
            attributes: headwater_base::source::Attributes::default(),
        });
        let loaded = Loaded { position: Position(1), pairs: pairs.collect(), known: None };
        self.service.node_mut().engine_mut().loaded(fetch, Ok(loaded));
        self.woken()
    }

    fn woken(&mut self) -> Vec<usize> {
        self.service.wake(&mut self.connections);
        let woken = self.connections.take_dirty();
        woken.iter().filter_map(|id| self.ids.iter().position(|other| other == id)).collect()
    }
}

#[test]
fn what_a_library_says_of_itself_outlives_reset_and_unknown_users_are_named() {
    let mut stage = Stage::new();
    let said = "CLIENT SETINFO LIB-NAME lib\r\nCLIENT SETNAME me\r\nRESET\r\nCLIENT INFO\r\n";
    let (told, _) = stage.serve(0, said);
    assert!(told.contains(" lib-name=lib ") && told.contains(" name= "), "{told}");
    let (told, _) = stage.serve(0, "CLIENT KILL USER nosuch\r\nCLIENT KILL USER default\r\n");
    assert_eq!(told, "-ERR No such user 'nosuch' :1 ");
}

#[test]
fn a_waiting_request_holds_up_its_own_client_alone() {
    let mut stage = Stage::new();
    let (out, stopped) = stage.serve(0, "SET a 1\r\nGET x|k\r\nGET a\r\n");
    assert_eq!((out.as_str(), stopped), ("+OK ", Stopped::Parked));
    let fetch = stage.load();
    assert_eq!(stage.serve(1, "SET a 2\r\n"), (String::from("+OK "), Stopped::Incomplete));
    assert_eq!(stage.answer(fetch, &[("x|k", "far")]), [0]);
    // What came behind the waiting request has stayed in the input.
    let (out, stopped) = stage.serve(0, "GET a\r\n");
    assert_eq!((out.as_str(), stopped), ("$3 far $1 2 ", Stopped::Incomplete));
}

#[test]
fn a_transaction_waits_before_its_first_step() {
    let mut stage = Stage::new();
    let (out, stopped) = stage.serve(0, "MULTI\r\nINCR a\r\nGET x|k\r\nINCR a\r\nEXEC\r\n");
    assert_eq!((out.as_str(), stopped), ("+OK +QUEUED +QUEUED +QUEUED ", Stopped::Parked));
    let fetch = stage.load();
    assert_eq!(stage.serve(1, "INCR a\r\n"), (String::from(":1 "), Stopped::Incomplete));
    assert_eq!(stage.answer(fetch, &[]), [0]);
    assert_eq!(stage.serve(0, ""), (String::from("*3 :2 $-1 :3 "), Stopped::Incomplete));
}

#[test]
fn a_transaction_whose_data_cannot_be_had_is_not_executed() {
    let mut stage = Stage::new();
    let (_, stopped) = stage.serve(0, "WATCH b\r\nMULTI\r\nINCR a\r\nGET x|k\r\nEXEC\r\n");
    assert_eq!(stopped, Stopped::Parked);
    let fetch = stage.load();
    stage.service.node_mut().engine_mut().loaded(fetch, Err(String::from("it is down")));
    assert_eq!(stage.woken(), [0]);
    let (out, stopped) = stage.serve(0, "");
    assert!(out.starts_with("-SOURCE ") && stopped == Stopped::Incomplete, "{out}");
    assert_eq!(stage.serve(0, "GET a\r\nEXEC\r\n").0, "$-1 -ERR EXEC without MULTI ");
}

/// A transaction that makes data necessary which nobody could know of before.
const SURPRISE: &str = "MULTI\r\nINCR a\r\nSET s|u|k 1\r\nPREFIX t|\r\nINCR a\r\nEXEC\r\n";
const SURPRISED: &str = "+OK +QUEUED +QUEUED +QUEUED +QUEUED *4 :1 +OK ";
const JOIN: &str = "JOIN.ADD t \"t|<u>|<k> = check s|<u>|<k> copy x|<k>\"\r\n";

#[test]
fn a_transaction_that_waits_stays_one_step() {
    let mut stage = Stage::new();
    stage.serve(0, JOIN);
    let (out, stopped) = stage.serve(0, SURPRISE);
    assert_eq!((out.as_str(), stopped), (SURPRISED, Stopped::Parked));
    let fetch = stage.load();
    assert_eq!(stage.serve(1, "INCR a\r\n"), (String::new(), Stopped::Parked));
    assert_eq!(stage.answer(fetch, &[]), [0]);
    assert_eq!(stage.serve(0, ""), (String::from("*0 :2 "), Stopped::Incomplete));
    assert_eq!(stage.woken(), [1]);
    assert_eq!(stage.serve(1, "INCR a\r\n"), (String::from(":3 "), Stopped::Incomplete));
}

#[test]
fn a_client_that_leaves_in_the_middle_lets_the_others_go_on() {
    let mut stage = Stage::new();
    stage.serve(0, JOIN);
    let (_, stopped) = stage.serve(0, SURPRISE);
    assert_eq!(stopped, Stopped::Parked);
    let fetch = stage.load();
    assert_eq!(stage.serve(1, "INCR a\r\n").1, Stopped::Parked);
    let mut left = stage.connections.take(stage.ids[0].slot).unwrap();
    stage.service.closed(&mut left);
    stage.connections.ended(left.id, false);
    assert_eq!(stage.woken(), [1]);
    assert_eq!(stage.serve(1, "INCR a\r\n").0, ":2 ");
    // The late answer wakes nobody.
    assert_eq!(stage.answer(fetch, &[]), [0; 0]);
}

#[test]
fn watching_what_is_elsewhere_waits_and_then_counts_once() {
    let mut stage = Stage::new();
    assert_eq!(stage.serve(0, "WATCH a x|k\r\n"), (String::new(), Stopped::Parked));
    let fetch = stage.load();
    assert_eq!(stage.answer(fetch, &[("x|k", "far")]), [0]);
    assert_eq!(stage.serve(0, "").0, "+OK ");
    assert_eq!(stage.serve(1, "SET a 1\r\n").0, "+OK ");
    assert_eq!(stage.serve(0, "MULTI\r\nPING\r\nEXEC\r\n").0, "+OK +QUEUED *-1 ");
    assert_eq!(stage.serve(0, "MULTI\r\nPING\r\nEXEC\r\n").0, "+OK +QUEUED *1 +PONG ");
}

#[test]
fn skipped_replies_stay_skipped_while_waiting() {
    let mut stage = Stage::new();
    let (out, stopped) = stage.serve(0, "CLIENT REPLY SKIP\r\nGET x|k\r\n");
    assert_eq!((out.as_str(), stopped), ("", Stopped::Parked));
    let fetch = stage.load();
    assert_eq!(stage.answer(fetch, &[]), [0]);
    assert_eq!(stage.serve(0, "PING\r\n").0, "+PONG ");
}

#[test]
fn a_transaction_that_takes_too_long_answers_what_is_left_to_compute_with_an_error() {
    let mut config = Config::default();
    config.clients.command_milliseconds_max = 1;
    let mut stage = Stage::with(config);
    let join = "JOIN.ADD c \"c|<x>|<y> = check a|<x> copy b|<y>\"\r\n";
    assert!(stage.serve(0, join).0.contains("spec"));
    for number in 0..500 {
        stage.serve(0, &format!("SET a|{number} 1\r\nSET b|{number} 1\r\n"));
    }
    let transaction =
        "MULTI\r\nSET before 1\r\nPREFIX c| COUNT\r\nSET behind 1\r\nGET behind\r\nEXEC\r\n";
    let answer = stage.serve(0, transaction).0;
    let late = "-TIMEOUT the command took longer than 1 ms (command-milliseconds-max)";
    // What only writes or reads a key does so, whatever the time is.
    let expected = format!("*4 +OK {late} +OK $1 1 ");
    assert!(answer.ends_with(&expected), "{answer}");
    assert_eq!(stage.serve(0, "GET before\r\n").0, "$1 1 ");
}

#[test]
fn what_is_told_of_all_tables_goes_through_them_once_or_twice() {
    let mut stage = Stage::with(Config::default());
    for number in 0..1000 {
        stage.serve(0, &format!("SET t{number}|x 1\r\n"));
    }
    let visited = |stage: &mut Stage| {
        let stats = stage.service.node_mut().engine().stats();
        stats.counters.iter().find(|(name, _)| *name == "tables_visited").expect("a counter").1
    };
    // With the two walks that ask for the counter, of which one counts.
    for (request, walks) in
        [("INFO everything", 3), ("INFO server", 1), ("TABLE.INFO t7", 1), ("SCAN 0", 1)]
    {
        let before = visited(&mut stage);
        assert_ne!(stage.serve(0, &format!("{request}\r\n")).0, "");
        let tables = (visited(&mut stage) - before) / 1000;
        assert_eq!(tables, walks, "{request}");
    }
}

#[test]
fn a_stream_comes_back_from_disk_and_a_restart_finds_none() {
    let place = tempfile::tempdir().unwrap();
    let mut config = Config::default();
    config.spill.spill_dir = place.path().to_str().unwrap().to_owned();
    config.spill.spill_bytes_max = Size(64 << 20);
    let mut stage = Stage::with(config.clone());
    let words: Vec<String> = (0..150_000).map(|at| format!("word{at:06}")).collect();
    for some in words.chunks(20_000) {
        let text = some.concat();
        let request =
            format!("*3\r\n$13\r\nSTREAM.APPEND\r\n$1\r\ns\r\n${}\r\n{text}\r\n", text.len());
        assert!(stage.serve(0, &request).0.starts_with(':'));
    }
    while stage.service.node_mut().engine_mut().evict_one() {}
    let info = stage.serve(0, "STREAM.INFO s\r\n").0;
    assert!(info.contains("first :0 ") && info.contains("end :1500000 "), "{info}");
    assert!(stage.service.node_mut().engine().stats().spilled_bytes > 1_000_000);
    for at in [0, 1, 26_000, 77_777, 149_999] {
        let read = format!("STREAM.READ s {} 10\r\n", at * 10);
        assert_eq!(stage.serve(0, &read).0.get(4..14), Some(&*words[at]), "word {at}");
    }
    for line in ["EXISTS s", "DEL s"] {
        assert_eq!(stage.serve(0, &format!("{line}\r\n")).0, ":1 ");
    }
    assert!(
        ShardService::new(config.clone(), None, None)
            .is_err_and(|error| error.to_string().contains("spill-dir"))
    );
    drop(stage);
    let mut stage = Stage::with(config);
    assert_eq!(stage.serve(0, "STREAM.READ s 0 10\r\n").0, "$-1 ");
}
