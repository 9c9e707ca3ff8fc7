//! The HTTP port.

use crate::support::Server;
use std::io::{Read, Write};
use std::net::TcpStream;

/// Where the HTTP port of a server is that was started with `--http-port 0`.
pub(crate) fn address(server: &Server) -> &str {
    let told = server.told().lines();
    told.filter_map(|line| line.strip_prefix("HTTP on ")).next().expect("a port")
}

/// Asks the HTTP port of a server that was started with `--http-port 0`.
pub(crate) fn get(server: &Server, request: &str) -> String {
    get_at(address(server), request).unwrap()
}

/// Asks whoever speaks HTTP at an address.
pub(crate) fn get_at(address: &str, request: &str) -> std::io::Result<String> {
    let mut stream = TcpStream::connect(address)?;
    write!(stream, "{request} HTTP/1.0\r\n\r\n")?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    Ok(answer)
}

#[test]
fn figures_and_signs_of_life() {
    let server = Server::start(&["--http-port", "0"]);
    let mut client = server.client(3);
    let () = redis::cmd("SET").arg("p|bob|1").arg("x").query(&mut client).unwrap();
    let _: redis::Value = redis::cmd("FLOW.ADD")
        .arg(&["news", "ON", "n|<id>", "PUBLISH", "channel"])
        .query(&mut client)
        .unwrap();
    for path in ["/healthz", "/readyz"] {
        let answer = get(&server, &format!("GET {path}"));
        assert!(answer.contains(" 200 ") && answer.ends_with("ok\n"), "{answer}");
    }
    let answer = get(&server, "GET /metrics");
    assert!(answer.contains("application/openmetrics-text"), "{answer}");
    for line in [
        "headwater_keys 1.0",
        "headwater_table_keys{table=\"p\"} 1.0",
        "headwater_commands_total{command=\"set\"} 1.0",
        "headwater_flow_backlog{flow=\"news\"} 0.0",
        "# EOF",
    ] {
        assert!(answer.lines().any(|other| other == line), "{line} is not in\n{answer}");
    }
    assert!(!answer.contains("headwater_store_"), "{answer}");
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().join("data");
    let kept = Server::start(&["--http-port", "0", "--data", data.to_str().unwrap()]);
    let () = redis::cmd("SET").arg("p|bob|1").arg("x").query(&mut kept.client(3)).unwrap();
    let answer = get(&kept, "GET /metrics");
    for name in ["store_disk_bytes", "store_pending_bytes", "store_syncs_total"] {
        assert!(answer.contains(&format!("\nheadwater_{name} ")), "{name} is not in\n{answer}");
    }
    let position = answer.lines().find_map(|l| l.strip_prefix("headwater_store_position_total "));
    assert!(position.unwrap().parse::<f64>().unwrap() >= 1.0);
    assert!(get(&server, "GET /other").contains(" 404 "));
    assert!(get(&server, "POST /metrics").contains(" 405 "));
}

#[test]
fn figures_of_all_shards_are_told_once() {
    let server = Server::start(&["--http-port", "0", "--shards", "3", "--memory", "100mb"]);
    let mut client = server.client(3);
    for number in 0..60 {
        let () =
            redis::cmd("SET").arg(format!("p|u{number}|1")).arg("x").query(&mut client).unwrap();
        let () = redis::cmd("SET").arg(number).arg("x").query(&mut client).unwrap();
    }
    for path in ["/healthz", "/readyz"] {
        let answer = get(&server, &format!("GET {path}"));
        assert!(answer.contains(" 200 ") && answer.ends_with("ok\n"), "{answer}");
    }
    let answer = get(&server, "GET /metrics");
    for line in [
        "headwater_keys 120.0",
        "headwater_table_keys{table=\"p\"} 60.0",
        "headwater_clients 1.0",
        "headwater_memory_bound_bytes 104857600.0",
        "# EOF",
    ] {
        let count = answer.lines().filter(|other| *other == line).count();
        assert_eq!(count, 1, "{line} is not once in\n{answer}");
    }
    let resident = answer.lines().find_map(|l| l.strip_prefix("headwater_memory_resident_bytes "));
    let resident: f64 = resident.unwrap().parse().unwrap();
    assert!(resident < 2.0 * server.memory_bytes("VmRSS:") as f64, "{resident}");
}
