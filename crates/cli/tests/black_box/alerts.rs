//! Each alert of `deploy/alerts.yml` in the state that it names: its rule is true of `/metrics` then, and the log says why.

use crate::http::get;
use crate::support::{PATIENCE, Server, Socket};
use redis::{Value, cmd};
use std::time::Instant;

/// A rule: its alert, its expression, whether that is true of some figures, and the event in the log.
struct Rule {
    alert: &'static str,
    expression: &'static str,
    is_true: fn(&Figures) -> bool,
    event: &'static str,
}

/// What a server tells.
struct Figures(String);

impl Figures {
    /// The sum of all samples of a name; 0 where there are none.
    fn sum(&self, name: &str) -> f64 {
        let samples = self.0.lines().filter_map(|line| {
            let rest = line.strip_prefix(name)?;
            let rest = match rest.strip_prefix('{') {
                Some(labels) => labels.split_once('}')?.1,
                None => rest,
            };
            rest.strip_prefix(' ')?.split(' ').next()?.parse::<f64>().ok()
        });
        samples.sum()
    }

    /// The least sample of a name.
    fn least(&self, name: &str) -> Option<f64> {
        let named = self.0.lines().filter(|line| line.starts_with(&format!("{name}{{")));
        named.filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok()).reduce(f64::min)
    }
}

/// What takes minutes is looked at from the server's start on: `rate` and `increase` are the counters themselves.
const RULES: [Rule; 9] = [
    Rule {
        alert: "HeadwaterWritesRefused",
        expression: "headwater_store_writes_refused > 0",
        is_true: |it| it.sum("headwater_store_writes_refused") > 0.0,
        event: "store_refuses",
    },
    Rule {
        alert: "HeadwaterSourceDown",
        expression: "headwater_source_up == 0",
        is_true: |it| it.least("headwater_source_up") == Some(0.0),
        event: "source_down",
    },
    Rule {
        alert: "HeadwaterMemoryFull",
        expression: "increase(headwater_writes_without_room_total[5m]) > 0",
        is_true: |it| it.sum("headwater_writes_without_room_total") > 0.0,
        event: "no_room",
    },
    Rule {
        alert: "HeadwaterClientsRefused",
        expression: "increase(headwater_connections_refused_total[5m]) > 0",
        is_true: |it| it.sum("headwater_connections_refused_total") > 0.0,
        event: "client_refused",
    },
    Rule {
        alert: "HeadwaterClientsEnded",
        expression: "increase(headwater_clients_evicted_total[5m]) > 0",
        is_true: |it| it.sum("headwater_clients_evicted_total") > 0.0,
        event: "client_evicted",
    },
    Rule {
        alert: "HeadwaterManyErrors",
        expression: "sum(rate(headwater_error_replies_total[5m])) / sum(rate(headwater_commands_total[5m])) > 0.05 \
            and sum(increase(headwater_error_replies_total[5m])) > 100",
        is_true: |it| {
            let errors = it.sum("headwater_error_replies_total");
            errors / it.sum("headwater_commands_total") > 0.05 && errors > 100.0
        },
        event: "many_errors",
    },
    Rule {
        alert: "HeadwaterFewHits",
        expression: "rate(headwater_lookup_hits_total[15m]) / (rate(headwater_lookup_hits_total[15m]) + rate(headwater_lookup_misses_total[15m])) < 0.5 \
            and increase(headwater_lookup_hits_total[15m]) + increase(headwater_lookup_misses_total[15m]) > 1000",
        is_true: |it| {
            let [hits, misses] =
                ["hits", "misses"].map(|it| format!("headwater_lookup_{it}_total"));
            let (hits, misses) = (it.sum(&hits), it.sum(&misses));
            hits + misses > 1000.0 && hits / (hits + misses) < 0.5
        },
        event: "few_hits",
    },
    Rule {
        alert: "HeadwaterFlowDead",
        expression: "headwater_flow_dead > 0",
        is_true: |it| it.sum("headwater_flow_dead") > 0.0,
        event: "dead_letter",
    },
    Rule {
        alert: "HeadwaterFlowLate",
        expression: "headwater_flow_oldest_pending_ms > 60000",
        // A test has no minute: it is late by as many milliseconds.
        is_true: |it| it.sum("headwater_flow_oldest_pending_ms") > 60.0,
        event: "flow_late",
    },
];

/// The rules of the file, in its order: alerts with their expressions, in one line.
fn rules_of_the_file() -> Vec<(String, String)> {
    let path = format!("{}/../../deploy/alerts.yml", env!("CARGO_MANIFEST_DIR"));
    let text = std::fs::read_to_string(path).unwrap();
    let rules = text.split("- alert: ").skip(1).map(|rule| {
        let (alert, rest) = rule.split_once('\n').unwrap();
        let (expression, _) = rest
            .trim_start()
            .strip_prefix("expr: ")
            .unwrap()
            .split_once("\n        labels:")
            .unwrap();
        let expression = expression.split("\n        for:").next().unwrap();
        let words: Vec<&str> = expression.split_whitespace().filter(|word| *word != ">-").collect();
        (alert.trim().to_owned(), words.join(" "))
    });
    rules.collect()
}

fn metrics(server: &Server) -> Figures {
    Figures(get(server, "GET /metrics"))
}

/// Waits until a rule is true, and until the log says why.
fn until_true(alert: &str, server: &Server, log: &std::path::Path) {
    let rule = RULES.iter().find(|rule| rule.alert == alert).unwrap();
    let began = Instant::now();
    loop {
        let figures = metrics(server);
        let text = std::fs::read_to_string(log).unwrap_or_default();
        let is_told = text.contains(&format!("event=\"{}\"", rule.event));
        if is_told && (rule.is_true)(&figures) {
            return;
        }
        assert!(began.elapsed() < PATIENCE, "{alert}: {}\n{text}", figures.0);
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
}

fn ask(client: &mut redis::Connection, words: &[&str]) -> redis::RedisResult<Value> {
    cmd(words[0]).arg(&words[1..]).query(client)
}

/// What is looked up and is not there, what is refused, a source that is down, and flows.
fn misses_errors_and_definitions(server: &Server, log: &std::path::Path) {
    let client = &mut server.client(2);
    let keys: Vec<String> = (0..1100).map(|key| format!("nothing|{key}")).collect();
    let mget: Vec<&str> = ["MGET"].into_iter().chain(keys.iter().map(String::as_str)).collect();
    ask(client, &mget).unwrap();
    until_true("HeadwaterFewHits", server, log);
    (0..200).for_each(|_| _ = ask(client, &["INCR", "k"]).unwrap_err());
    until_true("HeadwaterManyErrors", server, log);

    // Nobody is there.
    ask(client, &["SOURCE.ADD", "s", "postgres", "postgres://a@127.0.0.1:1/x"]).unwrap();
    until_true("HeadwaterSourceDown", server, log);

    let dead = [
        "FLOW.ADD",
        "dead",
        "ON",
        "in|<id>",
        "COPY",
        "out|<id> = copy in|<id>",
        "MAX-ATTEMPTS",
        "1",
    ];
    ask(client, &dead).unwrap();
    // What the flow writes is a join's from now on: it cannot.
    ask(client, &["JOIN.ADD", "taken", "out|<id:1> = copy other|<id:1>"]).unwrap();
    ask(client, &["SET", "in|1", "v"]).unwrap();
    until_true("HeadwaterFlowDead", server, log);
    ask(client, &["CONFIG", "SET", "flow-late-milliseconds", "60"]).unwrap();
    ask(client, &["FLOW.ADD", "late", "ON", "news|<id>", "PUBLISH", "channel"]).unwrap();
    ask(client, &["FLOW.PAUSE", "late"]).unwrap();
    ask(client, &["SET", "news|1", "v"]).unwrap();
    until_true("HeadwaterFlowLate", server, log);
}

#[test]
fn each_alert_is_raised_in_its_state_and_in_no_other() {
    let rules = rules_of_the_file();
    // Who is down tells nothing: Prometheus says so.
    assert_eq!(rules[0], ("HeadwaterDown".into(), "up{job=\"headwater\"} == 0".into()));
    let known = RULES.iter().map(|rule| (rule.alert.to_owned(), rule.expression.to_owned()));
    assert_eq!(rules[1..], known.collect::<Vec<_>>());
    for shards in ["1", "3"] {
        let folder = tempfile::tempdir().unwrap();
        let log = folder.path().join("log");
        let words = [
            "--http-port",
            "0",
            "--log-file",
            log.to_str().unwrap(),
            "--log-level",
            "info",
            "--shards",
            shards,
        ];
        let start = |more: &[&str]| Server::start(&[&words[..], more].concat());

        // Nothing is wrong.
        let server = start(&["--memory", "256mb"]);
        let client = &mut server.client(2);
        for _ in 0..40 {
            ask(client, &["SET", "k", "v"]).unwrap();
            ask(client, &["GET", "k"]).unwrap();
        }
        let figures = metrics(&server);
        for rule in &RULES {
            assert!(!(rule.is_true)(&figures), "{} is true of\n{}", rule.alert, figures.0);
        }

        misses_errors_and_definitions(&server, &log);

        // Clients that begin more than there is room for.
        ask(client, &["CLIENT", "NO-EVICT", "ON"]).unwrap();
        let begun = [&b"*2\r\n$3\r\nGET\r\n$1000000\r\n"[..], &[b'k'; 500_000]].concat();
        let many: Vec<Socket> = (0..12)
            .map(|_| {
                let mut one = server.socket();
                let _ = one.try_send(&begun);
                one
            })
            .collect();
        ask(client, &["CONFIG", "SET", "clients-bytes-max", "3mb"]).unwrap();
        until_true("HeadwaterClientsEnded", &server, &log);
        drop(many);
        drop(server);

        let file = folder.path().join("headwater.toml");
        let config = |text: &str| std::fs::write(&file, text).unwrap();
        config("[clients]\nclients-max = 16\n");
        let server = start(&["--config", file.to_str().unwrap()]);
        let many: Vec<Socket> = (0..24).map(|_| server.socket()).collect();
        until_true("HeadwaterClientsRefused", &server, &log);
        drop(many);
        drop(server);

        let server = start(&["--memory", "64mb", "--memory-policy", "noeviction"]);
        let client = &mut server.client(2);
        let value = "v".repeat(1000);
        let lacks =
            (0..200_000).any(|key| ask(client, &["SET", &format!("k|{key}"), &value]).is_err());
        assert!(lacks);
        until_true("HeadwaterMemoryFull", &server, &log);
        drop(server);

        // No disk has so much left.
        config("[data]\ndata-free-bytes-min = \"1000000000gb\"\n");
        let data = folder.path().join("data");
        let server = start(&[
            "--data",
            data.to_str().unwrap(),
            "--data-plain",
            "yes",
            "--config",
            file.to_str().unwrap(),
        ]);
        let client = &mut server.client(2);
        // The disk is looked at when something is written to it.
        let began = Instant::now();
        while ask(client, &["SET", "k", "v"]).is_ok() {
            assert!(began.elapsed() < PATIENCE, "writes are taken");
        }
        until_true("HeadwaterWritesRefused", &server, &log);
    }
}
