//! Waiting for data in memcached's protocol, where a request stays in the input until it is answered.

use super::Stage;
use crate::service::{Service, Stopped};
use crate::wire_protocol::WireProtocol;

fn told(out: &str, stopped: Stopped) -> (String, Stopped) {
    (String::from(out), stopped)
}

#[test]
fn a_request_is_executed_anew_when_its_data_has_come() {
    let mut stage = Stage::at(WireProtocol::Memcached);
    let asked = stage.serve(0, "set a 0 0 1\r\n1\r\nget a x|k\r\nget a\r\n");
    assert_eq!(asked, told("STORED ", Stopped::Parked), "nothing of the answer is there");
    let fetch = stage.load();
    let other = stage.serve(1, "set a 5 0 1\r\n2\r\n");
    assert_eq!(other, told("STORED ", Stopped::Incomplete));
    assert_eq!(stage.answer(fetch, &[("x|k", "far")]), [0]);
    let answered = stage.serve(0, "get a x|k\r\nget a\r\n");
    let values = "VALUE a 5 1 2 VALUE x|k 0 3 far END VALUE a 5 1 2 END ";
    assert_eq!(answered, told(values, Stopped::Incomplete));
}

#[test]
fn a_load_that_fails_is_told_to_who_waits_for_it() {
    let mut stage = Stage::at(WireProtocol::Memcached);
    for request in ["get x|k\r\n", "mg x|k v\r\n", "gets a x|k\r\n"] {
        assert_eq!(stage.serve(0, request), told("", Stopped::Parked));
        let fetch = stage.load();
        stage.service.node_mut().engine_mut().loaded(fetch, Err(String::from("gone")));
        assert_eq!(stage.woken(), [0]);
        let answered = stage.serve(0, &format!("{request}mn\r\n"));
        let error = "SERVER_ERROR SOURCE source 'far': gone MN ";
        assert_eq!(answered, told(error, Stopped::Incomplete));
    }
}

#[test]
fn who_leaves_while_waiting_is_forgotten() {
    let mut stage = Stage::at(WireProtocol::Memcached);
    assert_eq!(stage.serve(0, "get x|k\r\n").1, Stopped::Parked);
    let fetch = stage.load();
    let mut left = stage.connections.take(stage.ids[0].slot).unwrap();
    stage.service.closed(&mut left);
    assert!(stage.service.waits.tickets.is_empty());
    assert!(stage.answer(fetch, &[]).is_empty());
}

/// Whoever says that he reads no answer reads none, also where what he asked for has waited, and failed.
#[test]
fn a_failure_is_not_told_to_who_reads_no_answer() {
    let mut stage = Stage::at(WireProtocol::Memcached);
    let error = "SERVER_ERROR SOURCE source 'far': gone ";
    for (request, told_why) in [
        ("touch a 5\r\n", error),
        ("touch a 5 noreply\r\n", ""),
        ("delete a noreply\r\n", ""),
        ("incr a 1 noreply\r\n", ""),
        ("set a 0 0 1 noreply\r\n1\r\n", ""),
        ("flush_all noreply\r\n", ""),
    ] {
        // Whatever it was that has waited: what is executed anew has failed.
        assert_eq!(stage.serve(0, "get x|k\r\n"), told("", Stopped::Parked));
        let fetch = stage.load();
        stage.service.node_mut().engine_mut().loaded(fetch, Err(String::from("gone")));
        assert_eq!(stage.woken(), [0]);
        let answered = stage.serve(0, &format!("{request}mn\r\n"));
        assert_eq!(answered, told(&format!("{told_why}MN "), Stopped::Incomplete), "{request}");
    }
}
