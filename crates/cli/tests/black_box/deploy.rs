//! What `deploy/` has is right: the unit for systemd, and what Prometheus and Grafana are to ask.

use crate::cluster_shards::Cluster;
use crate::http::{get, get_at};
use crate::shards_told::eventually;
use crate::support::{Server, program};
use redis::{Value, cmd};
use std::collections::BTreeSet;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::process::Command;

fn file(name: &str) -> String {
    let path = format!("{}/../../deploy/{name}", env!("CARGO_MANIFEST_DIR"));
    std::fs::read_to_string(path).unwrap()
}

fn document(name: &str) -> String {
    let path = format!("{}/../../docs/{name}", env!("CARGO_MANIFEST_DIR"));
    std::fs::read_to_string(path).unwrap()
}

/// The figures that a text names.
fn names(text: &str) -> BTreeSet<String> {
    let words = text.split(|letter: char| !letter.is_ascii_alphanumeric() && letter != '_');
    let words = words.filter(|word| word.starts_with("headwater_"));
    words.map(str::to_owned).collect()
}

#[test]
fn a_service_manager_is_told_when_the_server_is_ready() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("notify");
    let name = format!("headwater-test-{}", std::process::id());
    let hidden = SocketAddr::from_abstract_name(&name).unwrap();
    for (socket, place) in [
        (UnixDatagram::bind(&path).unwrap(), path.to_str().unwrap().to_owned()),
        (UnixDatagram::bind_addr(&hidden).unwrap(), format!("@{name}")),
    ] {
        socket.set_read_timeout(Some(crate::support::PATIENCE)).unwrap();
        let mut command = program();
        command.args(["serve", "--port", "0", "--shards", "3"]).env("NOTIFY_SOCKET", place);
        let server = Server::spawn(command);
        let mut told = [0; 64];
        let count = socket.recv(&mut told).unwrap();
        assert_eq!(&told[..count], b"READY=1\n");
        let _: Value = cmd("PING").query(&mut server.client(3)).unwrap();
    }
}

/// What the owners of two shards tell, and one that stands by; `None`: there is no `nats-server` on this machine.
fn figures_of_clusters() -> Option<String> {
    let cluster = Cluster::start_with(&[0, 1, 1], &["--http-port", "0"])?;
    let figures = || {
        let nodes = (0..3).map(|at| get_at(&cluster.said(at, "HTTP on "), "GET /metrics"));
        nodes.collect::<Result<Vec<_>, _>>().unwrap_or_default()
    };
    // The connection between the owners takes a moment.
    eventually("the owners are connected", || {
        let all = figures();
        let up = "\nheadwater_cluster_link_up{shard=\"1\"} 1.0\n";
        if all.iter().any(|answer| answer.contains(up)) { Ok(()) } else { Err(all.concat()) }
    });
    let all = figures().concat();
    // What the documents name is there as well.
    let of_documents: Vec<BTreeSet<String>> =
        ["cluster.md", "operating.md"].iter().map(|name| names(&document(name))).collect();
    let there = names(&all);
    for name in of_documents.iter().flatten().filter(|it| it.starts_with("headwater_cluster_")) {
        // `headwater_cluster_…` stands for all.
        assert!(name == "headwater_cluster_" || there.contains(name), "{name} is not in\n{all}");
    }
    Some(all)
}

#[test]
fn alerts_and_the_board_ask_for_figures_that_there_are() {
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().join("data");
    let words = ["--http-port", "0", "--memory", "500mb", "--data", data.to_str().unwrap()];
    let server = Server::start(&words);
    let client = &mut server.client(3);
    let ask = |client: &mut redis::Connection, words: &[&str]| {
        let mut all = cmd(words[0]);
        all.arg(&words[1..]);
        all.query::<Value>(client)
    };
    ask(client, &["FLOW.ADD", "news", "ON", "n|<id>", "PUBLISH", "channel"]).unwrap();
    // Nobody is there: it is down.
    ask(client, &["SOURCE.ADD", "s", "postgres", "postgres://a@127.0.0.1:1/x"]).unwrap();
    ask(client, &["INCR", "n|1"]).unwrap();
    ask(client, &["GET", "n|1"]).unwrap();
    ask(client, &["GET"]).unwrap_err();
    let mut answer = get(&server, "GET /metrics");
    let of_cluster = figures_of_clusters();
    let has_cluster = of_cluster.is_some();
    answer.extend(of_cluster);
    let there = names(&answer);
    for (of, asked) in [("alerts", file("alerts.yml")), ("board", file("grafana.json"))] {
        let mut asked = names(&asked);
        assert!(asked.len() > 8, "{asked:?}");
        asked.retain(|name| has_cluster || !name.starts_with("headwater_cluster_"));
        for name in &asked {
            assert!(there.contains(name), "the {of}: {name} is not in\n{answer}");
            // A name in a line of help is no sample.
            let is_told = answer.lines().any(|line| {
                line.strip_prefix(&**name).is_some_and(|rest| rest.starts_with([' ', '{']))
            });
            assert!(is_told, "the {of}: {name} has no sample in\n{answer}");
        }
    }
    eventually("the source is down", || {
        let answer = get(&server, "GET /metrics");
        let is_down = answer.contains("\nheadwater_source_up{source=\"s\"} 0.0\n");
        if is_down { Ok(()) } else { Err(answer) }
    });
    let board: serde_json::Value = serde_json::from_str(&file("grafana.json")).unwrap();
    assert!(board["panels"].as_array().unwrap().len() > 8);
}

#[test]
fn systemd_takes_the_unit() {
    let unit = file("headwater.service");
    for line in ["Type=notify", "DynamicUser=yes", "NoNewPrivileges=yes", "ProtectSystem=strict"] {
        assert!(unit.lines().any(|other| other == line), "{line}");
    }
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("headwater.service");
    // systemd-analyze looks whether the programs that a unit starts are there.
    let unit = unit.replace("/usr/bin/headwater", env!("CARGO_BIN_EXE_headwater"));
    std::fs::write(&path, unit).unwrap();
    let checked = Command::new("systemd-analyze").args(["verify", "--man=no"]).arg(&path).output();
    // Where there is no systemd, the lines above are all that is checked.
    let Ok(checked) = checked else { return };
    let told = String::from_utf8_lossy(&checked.stderr);
    let own: Vec<&str> = told.lines().filter(|line| line.contains("headwater")).collect();
    assert_eq!(own, Vec::<&str>::new());
}
