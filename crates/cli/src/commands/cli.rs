//! `headwater cli`: one request from the command line, or a line at a time from the
//! standard input, with the replies shown as redis-cli shows them.

use crate::client::{Client, Reply, ServerArgs, split_words};
use crate::dial::Place;
use std::io::{BufRead, IsTerminal, Write};
use std::process::ExitCode;

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
    /// Print replies bare (the default where the output is no terminal)
    #[arg(long)]
    raw: bool,
    /// Print replies for people (the default on a terminal)
    #[arg(long, conflicts_with = "raw")]
    no_raw: bool,
    /// The request; without one, requests are read from the standard input, one a line
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    request: Vec<String>,
}

impl Args {
    /// Sends the request, or those of the standard input; fails where a reply is an error.
    pub(crate) fn run(self) -> anyhow::Result<ExitCode> {
        let place = self.server.place()?;
        let (mut client, login) = self.server.connect(&place)?;
        if let Some(reply) = login {
            self.show(&reply, true)?;
        }
        if self.resp3 {
            client.call(&["HELLO", "3"])?;
            // Servers that do not know it answer an error, which is as well.
            client.call(&["CLIENT", "CAPA", "blob-errors"])?;
        }
        if self.request.is_empty() {
            return self.lines(&place, &mut client);
        }
        let reply = client.call(&self.request)?;
        self.show(&reply, false)?;
        if self.request[0].to_ascii_uppercase().ends_with("SUBSCRIBE") {
            loop {
                self.show(&client.read()?, false)?;
            }
        }
        Ok(if matches!(reply, Reply::Error(_)) { ExitCode::FAILURE } else { ExitCode::SUCCESS })
    }

    /// Reads requests until the input ends.
    fn lines(&self, place: &Place, client: &mut Client) -> anyhow::Result<ExitCode> {
        let input = std::io::stdin();
        let prompt = input.is_terminal();
        let mut out = std::io::stdout();
        let mut lines = input.lock().lines();
        loop {
            if prompt {
                write!(out, "{}:{}> ", place.host, place.port)?;
                out.flush()?;
            }
            let Some(line) = lines.next().transpose()? else {
                return Ok(ExitCode::SUCCESS);
            };
            let Some(words) = split_words(&line) else {
                writeln!(out, "Invalid argument(s): a quote is not closed")?;
                continue;
            };
            match words.first().map(|word| word.to_ascii_lowercase()).as_deref() {
                None => continue,
                Some(b"exit" | b"quit") => return Ok(ExitCode::SUCCESS),
                Some(_) => self.show(&client.call(&words)?, false)?,
            }
        }
    }

    /// Prints a reply; with `errors_alone`, only if it is an error.
    fn show(&self, reply: &Reply, errors_alone: bool) -> anyhow::Result<()> {
        if errors_alone && !matches!(reply, Reply::Error(_)) {
            return Ok(());
        }
        let mut out = std::io::stdout();
        if self.no_raw || (out.is_terminal() && !self.raw) {
            out.write_all(reply.pretty().as_bytes())?;
        } else {
            out.write_all(&reply.raw())?;
        }
        out.flush()?;
        Ok(())
    }
}
