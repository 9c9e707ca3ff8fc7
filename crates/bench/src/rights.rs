//! What rights cost: the instructions of one GET, by what its user may do.
//!
//! Times differ from run to run by more than what is asked here, so instructions are counted: the server runs in valgrind's callgrind,
//! once with few requests and once with many, and what the further ones took is divided by their number. The kernel's own are not counted.
//! Each run repeats to about a thousandth.

use crate::args::{Common, within};
use crate::peer::{Launch, Server, System, program, stop};
use crate::report::table;
use crate::wire::{Connection, resp};
use anyhow::{Context, Result, bail};
use std::io::{self, Write};

/// Keys that are read in turn.
const KEYS: u64 = 100;
/// Other users that there are beside one who has logged in.
const OTHERS: u64 = 100;
/// Requests that go ahead of those that are counted, as a part of these.
const AHEAD: u64 = 10;
/// What is read.
const VALUE: &[u8] = b"0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";

/// What rights cost, in instructions; Headwater alone, within valgrind.
#[derive(Clone, Debug, clap::Args)]
pub struct Rights {
    #[command(flatten)]
    common: Common,
    /// Requests that are counted in each run.
    #[arg(long, default_value_t = 50_000, value_name = "N")]
    gets: u64,
    /// Requests that are sent at once, separated by commas.
    #[arg(long, default_value = "1,16", value_name = "N,…", value_delimiter = ',')]
    pipelines: Vec<usize>,
    /// Shards of the server.
    #[arg(long, default_value_t = 1, value_name = "N")]
    shards: u16,
}

/// Whose requests are counted.
struct Asker {
    shown: &'static str,
    /// The rules of the user who logs in; none: nobody does, and there are no users.
    rules: Option<&'static [&'static str]>,
}

const ASKERS: [Asker; 4] = [
    Asker { shown: "default, no users", rules: None },
    Asker { shown: "a user with all rights", rules: Some(&["~*", "&*", "+@all"]) },
    Asker { shown: "a user with one prefix", rules: Some(&["~key:*", "+get"]) },
    Asker {
        shown: "a user with ten patterns",
        rules: Some(&[
            "~a:*",
            "~b:*:c",
            "~d:*",
            "~e:*:f",
            "~g:*",
            "~h:*:i",
            "~j:*",
            "~k:*:l",
            "~m:*",
            "~key:*",
            "+@read",
            "-@dangerous",
        ]),
    },
];

impl Rights {
    /// Counts, and prints a table.
    ///
    /// # Errors
    /// An option is wrong, valgrind is not installed, or a run fails.
    pub fn run(&self) -> Result<()> {
        self.common.check()?;
        within("--gets", self.gets as f64, 1000.0, 10_000_000.0)?;
        within("--shards", f64::from(self.shards), 1.0, 256.0)?;
        for &pipeline in &self.pipelines {
            within("--pipelines", pipeline as f64, 1.0, 1000.0)?;
        }
        if !self.common.against.is_empty() || self.common.peers_only {
            bail!("--against: rights counts Headwater alone");
        }
        if self.common.json.is_some() || self.common.svg.is_some() {
            bail!("--json, --svg: rights prints a table alone");
        }
        let mut launch = self.common.launch(0)?;
        launch.check(&[System::Headwater])?;
        launch.arguments = vec![String::from("--shards"), self.shards.to_string()];
        launch.within = program::callgrind()?;
        stop::handle_signals()?;
        let mut head = vec![String::from("who asks")];
        for pipeline in &self.pipelines {
            head.push(format!("instructions a GET, pipeline {pipeline}"));
            head.push(String::from("ratio"));
        }
        let mut rows = vec![head];
        let mut first: Vec<f64> = Vec::new();
        for asker in ASKERS {
            let mut row = vec![asker.shown.to_owned()];
            for (at, &pipeline) in self.pipelines.iter().enumerate() {
                let each = self.each(&launch, &asker, pipeline)?;
                if first.len() == at {
                    first.push(each);
                }
                row.push(format!("{each:.1}"));
                row.push(format!("{:.4}", each / first[at]));
            }
            rows.push(row);
        }
        let mut text = String::from("\nrights: what they cost\n");
        table::rows(&mut text, &rows);
        io::stdout().lock().write_all(text.as_bytes())?;
        Ok(())
    }

    /// Instructions of one request.
    fn each(&self, launch: &Launch, asker: &Asker, pipeline: usize) -> Result<f64> {
        let ahead = self.gets / AHEAD;
        let few = count(launch, asker, pipeline, ahead)?;
        let many = count(launch, asker, pipeline, ahead + self.gets)?;
        Ok(many.saturating_sub(few) as f64 / self.gets as f64)
    }
}

/// Instructions of a server from its start to its end, with so many requests between.
fn count(launch: &Launch, asker: &Asker, pipeline: usize, gets: u64) -> Result<u64> {
    let server = Server::start(System::Headwater, launch)?;
    let mut connection = server.connect()?;
    prepare(&mut connection, asker)?;
    let mut sent = 0;
    while sent < gets {
        stop::check()?;
        let batch = (gets - sent).min(pipeline as u64);
        for at in sent..sent + batch {
            resp::command(&mut connection.out, &[b"GET", key(at).as_bytes()]);
        }
        connection.flush()?;
        for _ in 0..batch {
            if resp::string(&mut connection.input)? != VALUE {
                bail!("a GET did not give what was set");
            }
        }
        sent += batch;
    }
    drop(connection);
    let told = server.end()?;
    collected(&told).with_context(|| format!("valgrind counted nothing:\n{told}"))
}

fn key(at: u64) -> String {
    format!("key:{:04}", at % KEYS)
}

/// Sets the keys, defines users, and logs in.
fn prepare(connection: &mut Connection, asker: &Asker) -> Result<()> {
    let mut ask = |words: &[&[u8]]| -> Result<()> {
        resp::command(&mut connection.out, words);
        connection.flush()?;
        Ok(resp::skip(&mut connection.input)?)
    };
    for at in 0..KEYS {
        ask(&[b"SET", key(at).as_bytes(), VALUE])?;
    }
    let Some(rules) = asker.rules else { return Ok(()) };
    for at in 0..OTHERS {
        let name = format!("user{at}");
        ask(&[b"ACL", b"SETUSER", name.as_bytes(), b"on", b">password", b"~key:*", b"+@read"])?;
    }
    let mut words: Vec<&[u8]> = vec![b"ACL", b"SETUSER", b"asker", b"on", b">password"];
    words.extend(rules.iter().map(|rule| rule.as_bytes()));
    ask(&words)?;
    ask(&[b"AUTH", b"asker", b"password"])
}

/// What callgrind tells at the end.
fn collected(told: &str) -> Option<u64> {
    let (_, rest) = told.split_once("Collected :")?;
    rest.split_whitespace().next()?.replace(',', "").parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_count_is_read() {
        let told = "==7== Events    : Ir\n==7== Collected : 6241896\n==7== \n==7== I   refs: 6";
        assert_eq!(collected(told), Some(6_241_896));
        assert_eq!(collected("==7== Killed"), None);
    }
}
