//! `headwater cli`: one request from the command line, a line at a time from the standard input, or on a terminal with an editor
//! for lines, completion and hints; replies are shown as redis-cli shows them, and messages as they come.
//!
//! A message (RESP3's push) is no reply, so that replies stay beside their requests: before the first request that makes messages
//! come, the connection goes over to RESP3, where the two can be told apart.

mod editor;
mod json;
mod words;

use crate::client::{Client, Reply, ServerArgs, split_words};
use std::io::{BufRead, ErrorKind, IsTerminal, Read, Write};
use std::process::ExitCode;
use std::time::Duration;

/// Flags of `headwater cli`.
#[derive(clap::Args)]
#[command(disable_help_flag = true)]
pub(crate) struct Args {
    /// Show this help
    #[arg(long, action = clap::ArgAction::Help)]
    help: Option<bool>,
    #[command(flatten)]
    server: ServerArgs,
    /// Use RESP3, which shows maps as such
    #[arg(short = '3')]
    resp3: bool,
    #[command(flatten)]
    look: Look,
    /// Take the request's last word from the standard input, all of it
    #[arg(short = 'x')]
    last_from_input: bool,
    /// Send the request so many times; -1: until it is ended
    #[arg(short = 'r', value_name = "TIMES", allow_negative_numbers = true, default_value_t = 1)]
    times: i64,
    /// Wait so many seconds between two of them
    #[arg(short = 'i', value_name = "SECONDS", default_value_t = 0.0, value_parser = seconds)]
    interval: f64,
    /// The request; without one, requests are read from the standard input, one a line
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    request: Vec<String>,
}

/// How replies are printed.
#[derive(Clone, Copy, clap::Args)]
struct Look {
    /// Print replies bare (the default where the output is no terminal)
    #[arg(long)]
    raw: bool,
    /// Print replies for people (the default on a terminal)
    #[arg(long, conflicts_with = "raw")]
    no_raw: bool,
    /// Print each reply as a line of JSON; uses RESP3. Bytes that are no text are {"hex": "…"}, errors {"error": "…"}, messages
    /// {"push": […]}
    #[arg(long, conflicts_with_all = ["raw", "no_raw"])]
    json: bool,
}

/// Whoever reads what is printed has gone.
#[derive(Debug)]
struct OutputEnded;

impl std::fmt::Display for OutputEnded {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("nobody reads the output any more")
    }
}

impl std::error::Error for OutputEnded {}

/// Prints, unless nobody reads it any more.
fn print(bytes: &[u8]) -> anyhow::Result<()> {
    let mut out = std::io::stdout();
    match out.write_all(bytes).and_then(|()| out.flush()) {
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Err(OutputEnded.into()),
        done => Ok(done?),
    }
}

impl Look {
    /// A reply as it is printed.
    fn of(self, reply: &Reply) -> Vec<u8> {
        if self.json {
            json::line(reply).into_bytes()
        } else if self.no_raw || (std::io::stdout().is_terminal() && !self.raw) {
            reply.pretty().into_bytes()
        } else {
            reply.raw()
        }
    }

    fn show(self, reply: &Reply) -> anyhow::Result<()> {
        print(&self.of(reply))
    }
}

/// How a request is answered.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Answered {
    /// With a reply.
    Reply,
    /// With so many messages, in RESP3.
    Messages(usize),
    /// With a reply, and whatever follows until the connection ends.
    Lines,
}

/// How a request is answered, and whether messages may come from then on.
fn answered(words: &[Vec<u8>]) -> (Answered, bool) {
    let name = words.first().map(|word| word.to_ascii_uppercase()).unwrap_or_default();
    let names = words.len().saturating_sub(1);
    match name.as_slice() {
        b"SUBSCRIBE" | b"PSUBSCRIBE" | b"SSUBSCRIBE" if names > 0 => {
            (Answered::Messages(names), true)
        }
        b"UNSUBSCRIBE" | b"PUNSUBSCRIBE" | b"SUNSUBSCRIBE" => {
            (Answered::Messages(names.max(1)), true)
        }
        b"RANGE.WATCH" => (Answered::Reply, true),
        b"CLIENT" if words[1..].first().is_some_and(|it| it.eq_ignore_ascii_case(b"tracking")) => {
            (Answered::Reply, true)
        }
        b"MONITOR" => (Answered::Lines, false),
        _ => (Answered::Reply, false),
    }
}

/// A connection in the version of the protocol that its requests need.
struct Talk {
    client: Client,
    /// It has RESP3 now.
    resp3: bool,
    /// RESP3 was asked for, whatever the requests need.
    prefers_resp3: bool,
    /// Messages may come.
    listens: bool,
}

impl Talk {
    fn new(client: Client, prefers_resp3: bool) -> Self {
        Self { client, resp3: false, prefers_resp3, listens: false }
    }

    /// Notes what a request that was granted has made of the connection.
    fn note(&mut self, words: &[Vec<u8>]) {
        let name = words.first().map(|word| word.to_ascii_uppercase()).unwrap_or_default();
        match (name.as_slice(), words.get(1).map(Vec::as_slice)) {
            (b"RESET", _) => (self.resp3, self.listens) = (false, false),
            (b"HELLO", Some(b"2")) => (self.resp3, self.prefers_resp3) = (false, false),
            (b"HELLO", Some(b"3")) => self.resp3 = true,
            _ => {}
        }
    }

    fn use_resp3(&mut self) -> anyhow::Result<()> {
        if !self.resp3 {
            let reply = self.client.call(&["HELLO", "3"])?;
            self.resp3 = !matches!(reply, Reply::Error(_));
            // Servers that do not know it answer an error, which is as well.
            self.client.call(&["CLIENT", "CAPA", "blob-errors"])?;
        }
        Ok(())
    }

    /// Sends a request and gives its reply, and what messages come before that, to `show`; whether it was an error.
    fn ask(
        &mut self,
        words: &[Vec<u8>],
        show: &mut dyn FnMut(&Reply) -> anyhow::Result<()>,
    ) -> anyhow::Result<bool> {
        let (answered, pushes) = answered(words);
        // Whoever goes back to RESP2 while it listens stays there: no other request is taken then.
        if (pushes || self.prefers_resp3) && !self.listens {
            self.use_resp3()?;
        }
        self.listens |= pushes;
        self.client.send(words)?;
        let mut left = match answered {
            // An older server answers in RESP2 all the same.
            Answered::Messages(count) => count,
            Answered::Reply | Answered::Lines => 1,
        };
        loop {
            let reply = self.client.read()?;
            let is_push = matches!(reply, Reply::Push(_))
                || self.listens && !self.resp3 && is_message(&reply);
            let is_error = matches!(reply, Reply::Error(_));
            let counts = match answered {
                Answered::Messages(_) => !is_push || confirms(&reply),
                Answered::Reply => !is_push,
                Answered::Lines => is_error,
            };
            show(&reply)?;
            left -= usize::from(counts);
            if is_error || left == 0 {
                if !is_error {
                    self.note(words);
                }
                return Ok(is_error);
            }
        }
    }
}

/// Whether a reply is a message that came in RESP2.
fn is_message(reply: &Reply) -> bool {
    let Reply::Array(items) = reply else { return false };
    matches!(items.first(), Some(Reply::Bulk(kind)) if kind.ends_with(b"message"))
}

/// Whether a message tells that a client listens to something now, or no more.
fn confirms(reply: &Reply) -> bool {
    let Reply::Push(items) = reply else { return false };
    matches!(items.first(), Some(Reply::Bulk(kind)) if kind.ends_with(b"subscribe"))
}

fn seconds(text: &str) -> Result<f64, String> {
    let seconds = text.parse::<f64>().ok().filter(|it| Duration::try_from_secs_f64(*it).is_ok());
    seconds.ok_or_else(|| format!("'{text}' is no number of seconds, such as 0.5"))
}

impl Args {
    /// The words of the request; none where requests are read from the standard input.
    fn words(&self) -> anyhow::Result<Vec<Vec<u8>>> {
        if let Some(flag) = self.request.first().filter(|word| word.starts_with('-')) {
            anyhow::bail!("there is no flag {flag} (headwater cli --help shows which there are)");
        }
        let mut words: Vec<_> = self.request.iter().map(|word| word.clone().into_bytes()).collect();
        if self.last_from_input {
            let mut last = Vec::new();
            std::io::stdin().lock().read_to_end(&mut last)?;
            words.push(last);
        }
        Ok(words)
    }

    /// Sends the request, or those of the standard input; fails where a reply is an error.
    pub(crate) fn run(self) -> anyhow::Result<ExitCode> {
        match self.talk() {
            Err(error) if error.is::<OutputEnded>() => Ok(ExitCode::SUCCESS),
            done => done,
        }
    }

    fn talk(self) -> anyhow::Result<ExitCode> {
        let words = self.words()?;
        let (place, look) = (self.server.place()?, self.look);
        let (client, login) = self.server.connect(&place)?;
        if let Some(reply @ Reply::Error(_)) = login {
            look.show(&reply)?;
        }
        let mut talk = Talk::new(client, self.resp3 || look.json);
        let mut show = |reply: &Reply| look.show(reply);
        if words.is_empty() {
            if std::io::stdin().is_terminal() {
                return editor::run(&place, talk, look);
            }
            return lines(&mut talk, &mut show);
        }
        let mut failed = talk.ask(&words, &mut show)?;
        let mut sent = 1;
        while self.times < 0 || sent < self.times {
            std::thread::sleep(Duration::from_secs_f64(self.interval));
            failed = talk.ask(&words, &mut show)?;
            sent += 1;
        }
        // What messages it has asked for are shown until it is ended.
        let name = words[0].to_ascii_uppercase();
        while !failed && (name.ends_with(b"SUBSCRIBE") || name == b"RANGE.WATCH") {
            show(&talk.client.read()?)?;
        }
        Ok(if failed { ExitCode::FAILURE } else { ExitCode::SUCCESS })
    }
}

/// Reads requests until the input ends.
fn lines(
    talk: &mut Talk,
    show: &mut dyn FnMut(&Reply) -> anyhow::Result<()>,
) -> anyhow::Result<ExitCode> {
    for line in std::io::stdin().lock().lines() {
        match request_of(&line?) {
            Ok(Line::Nothing) => {}
            Ok(Line::End) => break,
            Ok(Line::Help(text)) => print(text.as_bytes())?,
            Ok(Line::Request(words)) => _ = talk.ask(&words, show)?,
            Err(text) => print(format!("{text}\n").as_bytes())?,
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// What a line is.
enum Line {
    Nothing,
    End,
    Help(String),
    Request(Vec<Vec<u8>>),
}

fn request_of(line: &str) -> Result<Line, &'static str> {
    let words = split_words(line).ok_or("Invalid argument(s): a quote is not closed")?;
    let name = words.first().map(|word| word.to_ascii_lowercase());
    Ok(match name.as_deref() {
        None => Line::Nothing,
        Some(b"exit" | b"quit") => Line::End,
        Some(b"help" | b"?") => Line::Help(words::help(&words[1..])),
        Some(_) => Line::Request(words),
    })
}
