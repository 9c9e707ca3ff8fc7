//! What servers say of how they sync, at their monitoring addresses.

use crate::settings::{JetStreamError, JetStreamSettings};
use crate::waiting::Failure;
use serde_json::Value;
use std::collections::BTreeSet;
use std::time::Duration;

/// What helps where servers do not sync, and what it costs.
pub(crate) const UNSAFE_SYNC: &str =
    "--unsafe-sync starts all the same, and loses acknowledged writes when power fails";

/// What one server says of itself.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ServerSync {
    /// Its name.
    pub name: String,
    /// Whether it syncs each message before it acknowledges it.
    pub sync_always: bool,
    /// How many servers its cluster has.
    pub cluster_size: u64,
}

/// What the page of a server's variables says.
///
/// # Errors
/// It is no such page, or the server has no JetStream.
pub fn server_sync(address: &str, page: &str) -> Result<ServerSync, JetStreamError> {
    let refuse = |why: &str| Err(JetStreamError(format!("{address}/varz {why}")));
    let Ok(page) = serde_json::from_str::<Value>(page) else {
        return refuse("is no page of a NATS server");
    };
    let Some(name) = page["server_name"].as_str() else {
        return refuse("is no page of a NATS server");
    };
    let config = &page["jetstream"]["config"];
    if !config.is_object() {
        return refuse("says that JetStream is not enabled there");
    }
    Ok(ServerSync {
        name: name.into(),
        sync_always: config["sync_always"].as_bool() == Some(true),
        cluster_size: page["jetstream"]["meta"]["cluster_size"].as_u64().unwrap_or(1),
    })
}

/// Whether this is the page of a server that began less than a minute ago. Such a server may be asked before it has enabled JetStream.
fn has_just_begun(page: &str) -> bool {
    let page = serde_json::from_str::<Value>(page).unwrap_or_default();
    let seconds = page["uptime"].as_str().and_then(|uptime| uptime.strip_suffix('s'));
    seconds.is_some_and(|seconds| seconds.parse::<u32>().is_ok())
}

/// A server's page of variables.
pub(crate) fn fetch(address: &str) -> Result<String, JetStreamError> {
    let url = format!("{}/varz", address.trim_end_matches('/'));
    let timeout = Some(Duration::from_secs(5));
    // A limit that includes the lookup of the name would take a thread for each, and end this one where there can be none.
    let limited = ureq::get(&url).config().timeout_connect(timeout).timeout_recv_response(timeout);
    let page = limited.timeout_recv_body(timeout).build().call();
    let text = page.and_then(|mut page| page.body_mut().read_to_string());
    text.map_err(|error| JetStreamError(format!("{url} cannot be read: {error}")))
}

/// What the servers say of how they sync.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct SyncReport {
    /// What must be changed: a sentence for each.
    pub(crate) wrong: Vec<String>,
    /// Why servers could not be asked, or have just begun and may enable JetStream yet: a sentence for each.
    pub(crate) away: Vec<String>,
    is_enough: bool,
}

impl SyncReport {
    /// Whether more than half of the servers could be asked.
    pub(crate) fn is_enough(&self) -> bool {
        self.is_enough
    }
}

/// Asks every server at its monitoring address.
pub(crate) fn ask_servers(settings: &JetStreamSettings) -> SyncReport {
    let (mut names, mut size, mut report) = (BTreeSet::new(), 0, SyncReport::default());
    if settings.monitoring.is_empty() {
        report.wrong.push(String::from(
            "whether the NATS servers sync each message cannot be seen without their monitoring addresses",
        ));
        return report;
    }
    for address in &settings.monitoring {
        let page = match fetch(address) {
            Ok(page) => page,
            Err(JetStreamError(why)) => {
                report.away.push(why);
                continue;
            }
        };
        match server_sync(address, &page) {
            Ok(server) => {
                if !server.sync_always {
                    report.wrong.push(format!(
                        "NATS server '{}' acknowledges messages before it has synced them: its configuration lacks `sync_interval: always`",
                        server.name
                    ));
                }
                size = size.max(server.cluster_size);
                names.insert(server.name);
            }
            Err(JetStreamError(why)) if has_just_begun(&page) => report.away.push(why),
            Err(JetStreamError(why)) => report.wrong.push(why),
        }
    }
    let addresses = names.len() + report.away.len();
    report.is_enough = 2 * names.len() > addresses;
    if report.wrong.is_empty() && report.is_enough && (addresses as u64) < size {
        report.wrong.push(format!(
            "of {size} NATS servers, {addresses} have a monitoring address here, and all must say that they sync each message"
        ));
    }
    report
}

/// Sees that servers sync each message before they acknowledge it. One that cannot be asked may be away, as long as more than half can: so a node
/// begins while a server is down, or begins itself.
pub(crate) fn check_sync(settings: &JetStreamSettings) -> Result<(), Failure> {
    if settings.unsafe_sync {
        return Ok(());
    }
    let report = ask_servers(settings);
    if !report.wrong.is_empty() {
        let why = report.wrong.join("; ");
        return Err(Failure::Refused(JetStreamError(format!("{why}; {UNSAFE_SYNC}"))));
    }
    if !report.is_enough {
        return Err(Failure::NotYet(JetStreamError(report.away.join("; "))));
    }
    for why in report.away {
        tracing::warn!(
            name: "sync_unknown",
            target: "cluster",
            event = "sync_unknown",
            why,
            "a NATS server cannot be asked whether it syncs each message, or has just begun"
        );
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Write};
    use std::net::TcpListener;

    #[test]
    fn pages_say_who_syncs() {
        let page = |config: &str| {
            let text = format!(
                r#"{{"server_name":"a","jetstream":{{"config":{config},"meta":{{"cluster_size":3}}}}}}"#
            );
            server_sync("http://a:8222", &text)
        };
        let server = |sync_always| ServerSync { name: "a".into(), sync_always, cluster_size: 3 };
        assert_eq!(page(r#"{"sync_always":true}"#), Ok(server(true)));
        assert_eq!(page(r#"{"sync_interval":1}"#), Ok(server(false)));
        assert_eq!(page(r#"{"sync_always":"yes"}"#), Ok(server(false)));
        assert!(page("null").unwrap_err().0.contains("not enabled"));
        assert!(server_sync("http://a:8222", "<html>").unwrap_err().0.contains("no page"));
        assert!(server_sync("http://a:8222", "{}").unwrap_err().0.contains("no page"));
    }

    /// What is made of a server whose page of variables this is.
    fn report_of(page: &str) -> SyncReport {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = format!("http://{}", listener.local_addr().unwrap());
        let answer = format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n{page}", page.len());
        let server = std::thread::spawn(move || {
            let (mut client, _) = listener.accept().unwrap();
            let _request = client.read(&mut [0; 4096]).unwrap();
            client.write_all(answer.as_bytes()).unwrap();
        });
        let settings =
            JetStreamSettings { monitoring: vec![address], ..JetStreamSettings::default() };
        let report = ask_servers(&settings);
        server.join().unwrap();
        report
    }

    #[test]
    fn a_server_that_has_just_begun_may_enable_jetstream_yet() {
        for (uptime, comes) in [("0s", true), ("59s", true), ("1m0s", false), ("2d3h4m5s", false)] {
            let page = format!(r#"{{"server_name":"a","uptime":"{uptime}","jetstream":{{}}}}"#);
            let report = report_of(&page);
            assert_eq!(
                (report.wrong.is_empty(), report.away.is_empty()),
                (comes, !comes),
                "{uptime}"
            );
            let why = report.wrong.iter().chain(&report.away).next().unwrap();
            assert!(why.contains("JetStream is not enabled"), "{why}");
            assert!(!report.is_enough());
        }
        assert!(report_of("{}").away.is_empty());
    }

    #[test]
    fn without_monitoring_nothing_begins() {
        let mut settings = JetStreamSettings::default();
        let Err(Failure::Refused(why)) = check_sync(&settings) else { panic!("it is let pass") };
        assert!(why.0.contains("--unsafe-sync"));
        settings.unsafe_sync = true;
        assert_eq!(check_sync(&settings), Ok(()));
    }
}
