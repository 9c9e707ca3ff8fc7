//! The terminal: an editor for lines, with history, completion and hints; messages are shown above the line as they come.
//!
//! A thread of its own has the connection. It looks for messages while no request is under way.

use super::{Line, Look, Talk, print, request_of, words};
use crate::client::Reply;
use crate::dial::Place;
use rustyline::completion::{Completer, Pair};
use rustyline::error::ReadlineError;
use rustyline::highlight::Highlighter;
use rustyline::hint::Hinter;
use rustyline::history::DefaultHistory;
use rustyline::validate::Validator;
use rustyline::{CompletionType, Config, Context, Editor, ExternalPrinter, Helper};
use std::borrow::Cow;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::mpsc::{Receiver, Sender, TryRecvError, channel};
use std::time::Duration;

/// How long the connection is looked at before the next request is.
const LOOK: Duration = Duration::from_millis(10);
/// Lines that are remembered.
const HISTORY_LINES: usize = 2000;

/// What the editor asks the command table.
struct Table;

impl Helper for Table {}
impl Validator for Table {}

impl Completer for Table {
    type Candidate = Pair;

    fn complete(
        &self,
        line: &str,
        at: usize,
        _context: &Context<'_>,
    ) -> rustyline::Result<(usize, Vec<Pair>)> {
        let (begin, all) = words::completions(&line[..at]);
        let pair = |word: String| Pair { display: word.clone(), replacement: word + " " };
        Ok((begin, all.into_iter().map(pair).collect()))
    }
}

impl Hinter for Table {
    type Hint = String;

    fn hint(&self, line: &str, at: usize, _context: &Context<'_>) -> Option<String> {
        if at < line.len() { None } else { words::hint(line) }
    }
}

impl Highlighter for Table {
    fn highlight_hint<'h>(&self, hint: &'h str) -> Cow<'h, str> {
        Cow::Owned(format!("\x1b[90m{hint}\x1b[0m"))
    }
}

/// The file of the lines that were typed before; `None`: there is none.
fn history_file() -> Option<PathBuf> {
    match std::env::var_os("HEADWATER_HISTORY") {
        Some(file) if file.is_empty() => None,
        Some(file) => Some(file.into()),
        None => std::env::home_dir().map(|home| home.join(".headwater_history")),
    }
}

/// Whether a line may have a secret, which is not kept.
fn is_secret(line: &str) -> bool {
    let line = line.to_ascii_lowercase();
    let begins = |words: &str| line.split_whitespace().take(2).eq(words.split_whitespace());
    line.split_whitespace().next() == Some("auth")
        || begins("acl setuser")
        || ["requirepass", " auth ", "://"].iter().any(|word| line.contains(word))
}

/// What the thread of the connection tells.
enum Told {
    /// A reply, or a message that came before it.
    Shown(Vec<u8>),
    /// The request is answered.
    Done,
    /// The connection has ended.
    Ended(anyhow::Error),
}

/// Sends what is asked, and shows messages through `printer` meanwhile.
fn keep(
    mut talk: Talk,
    look: Look,
    asks: &Receiver<Vec<Vec<u8>>>,
    tells: &Sender<Told>,
    mut printer: impl ExternalPrinter,
) -> anyhow::Result<()> {
    let text = |reply: &Reply| String::from_utf8_lossy(&look.of(reply)).into_owned();
    loop {
        match asks.try_recv() {
            Ok(words) => {
                let mut show = |reply: &Reply| {
                    // Whoever does not listen any more has ended.
                    let _ = tells.send(Told::Shown(look.of(reply)));
                    Ok(())
                };
                talk.ask(&words, &mut show)?;
                let _ = tells.send(Told::Done);
            }
            Err(TryRecvError::Disconnected) => return Ok(()),
            Err(TryRecvError::Empty) if talk.client.wait(LOOK)? => {
                printer.print(text(&talk.client.read()?))?;
            }
            Err(TryRecvError::Empty) => {}
        }
    }
}

/// Reads requests from the terminal until it ends.
pub(super) fn run(place: &Place, talk: Talk, look: Look) -> anyhow::Result<ExitCode> {
    let config = Config::builder()
        .completion_type(CompletionType::List)
        .max_history_size(HISTORY_LINES)?
        .history_ignore_space(true)
        .auto_add_history(false)
        .build();
    let mut editor: Editor<Table, DefaultHistory> = Editor::with_config(config)?;
    editor.set_helper(Some(Table));
    let history = history_file();
    if let Some(file) = &history {
        // There may be none yet.
        let _ = editor.load_history(file);
    }
    let printer = editor.create_external_printer()?;
    let (asks, asked) = channel();
    let (tells, told) = channel();
    std::thread::spawn(move || {
        if let Err(error) = keep(talk, look, &asked, &tells, printer) {
            let _ = tells.send(Told::Ended(error));
        }
    });
    let prompt = format!("{}:{}> ", place.host, place.port);
    let ended = loop {
        let line = match editor.readline(&prompt) {
            Ok(line) => line,
            // As in redis-cli, Ctrl-C ends.
            Err(ReadlineError::Eof | ReadlineError::Interrupted) => break Ok(()),
            Err(error) => break Err(error.into()),
        };
        if !line.trim().is_empty() && !is_secret(&line) {
            editor.add_history_entry(&line)?;
            if let Some(file) = &history {
                // At once, because a terminal may be closed; a history that cannot be kept is no reason to fail.
                let _ = editor.append_history(file);
            }
        }
        match request_of(&line) {
            Ok(Line::Nothing) => {}
            Ok(Line::End) => break Ok(()),
            Ok(Line::Help(text)) => print(text.as_bytes())?,
            Err(text) => print(format!("{text}\n").as_bytes())?,
            Ok(Line::Request(words)) => {
                if let Err(error) = ask(words, &asks, &told) {
                    break Err(error);
                }
            }
        }
    };
    ended.map(|()| ExitCode::SUCCESS)
}

/// Has a request sent, and prints what comes for it.
fn ask(
    words: Vec<Vec<u8>>,
    asks: &Sender<Vec<Vec<u8>>>,
    told: &Receiver<Told>,
) -> anyhow::Result<()> {
    let gone = || anyhow::anyhow!("the connection has ended");
    // Where it has ended, what it has told last says why.
    let _ = asks.send(words);
    loop {
        match told.recv().map_err(|_| gone())? {
            Told::Shown(bytes) => print(&bytes)?,
            Told::Done => return Ok(()),
            Told::Ended(error) => return Err(error),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::is_secret;

    #[test]
    fn lines_with_secrets_are_not_kept() {
        for line in [
            "AUTH p",
            "hello 3 auth u p",
            "acl setuser ann >p",
            "config set requirepass p",
            "source.add db postgres postgres://u:p@h/d",
        ] {
            assert!(is_secret(line), "{line}");
        }
        for line in ["get author", "set k v", "acl list"] {
            assert!(!is_secret(line), "{line}");
        }
    }
}
