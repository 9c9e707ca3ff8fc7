//! `headwater backup`: one state of a running server, in a folder.

use crate::client::{Client, Reply, ServerArgs};
use crate::output::show;
use anyhow::{Context, bail};
use headwater_server::backup::{BackupBytes, NewBackup};
use std::path::PathBuf;
use std::process::ExitCode;
use std::thread;
use std::time::Duration;

/// How long it waits where the server has read nothing out yet.
const PAUSE: Duration = Duration::from_millis(2);

/// Arguments of `headwater backup`.
#[derive(clap::Args)]
#[command(disable_help_flag = true)]
pub(crate) struct Args {
    /// Show this help
    #[arg(long, action = clap::ArgAction::Help)]
    help: Option<bool>,
    /// A new folder for the backup, or an empty one
    #[arg(long, value_name = "DIR")]
    to: PathBuf,
    /// An older backup: parts that are the same are not written again, but linked to its files
    #[arg(long, value_name = "DIR")]
    older: Option<PathBuf>,
    #[command(flatten)]
    server: ServerArgs,
}

/// A reply that is no error.
fn granted(reply: Reply) -> anyhow::Result<Reply> {
    match reply {
        Reply::Error(text) => bail!("the server says: {text}"),
        reply => Ok(reply),
    }
}

/// What BACKUP.BEGIN answers.
struct Begun {
    backup: i64,
    shards: u16,
    placement: Option<Vec<u8>>,
}

impl Begun {
    fn of(reply: Reply) -> Option<Self> {
        let Reply::Array(words) = reply else { return None };
        let field = |name: &[u8]| {
            let at = words.iter().position(|word| *word == Reply::Bulk(name.to_vec()))?;
            words.get(at + 1)
        };
        let number = |name| match field(name)? {
            Reply::Integer(number) => Some(*number),
            _ => None,
        };
        let placement = match field(b"placement")? {
            Reply::Bulk(bytes) => Some(bytes.clone()),
            _ => None,
        };
        let shards = u16::try_from(number(b"shards")?).ok()?;
        Some(Self { backup: number(b"backup")?, shards, placement })
    }
}

impl Args {
    /// Takes the backup, and says how large it is.
    pub(crate) fn run(self) -> anyhow::Result<ExitCode> {
        // Before the server has begun, and another client's backup has ended for it.
        NewBackup::check_folders(&self.to, self.older.as_deref()).map_err(anyhow::Error::msg)?;
        let place = self.server.place()?;
        let (mut client, login) = self.server.connect(&place)?;
        login.map(granted).transpose()?;
        let begun = granted(client.call(&["BACKUP.BEGIN"])?)?;
        let begun =
            Begun::of(begun).context("the server answers BACKUP.BEGIN with something else")?;
        let bytes = self.take(&begun, &mut client);
        // It holds disk at the server, so it ends in any case.
        let ended = client.call(&["BACKUP.END", &begun.backup.to_string()]);
        let bytes = bytes?;
        granted(ended?)?;
        let (to, shards) = (self.to.display(), begun.shards);
        let BackupBytes { all, written } = bytes;
        let written = match &self.older {
            Some(older) => format!(", {written} of them not in {}", older.display()),
            None => String::new(),
        };
        show(format!("{to}: {all} bytes of {shards} shard(s){written}\n").as_bytes())?;
        Ok(ExitCode::SUCCESS)
    }

    fn take(&self, begun: &Begun, client: &mut Client) -> anyhow::Result<BackupBytes> {
        let placement = begun.placement.as_deref();
        let folder = NewBackup::begin(&self.to, self.older.as_deref(), placement);
        let mut folder = folder.map_err(anyhow::Error::msg)?;
        for shard in 0..begun.shards {
            let words = ["BACKUP.READ", &begun.backup.to_string(), &shard.to_string()];
            folder
                .add_shard(|| next(client, &words).map_err(|why| format!("{why:#}")))
                .map_err(anyhow::Error::msg)?;
        }
        folder.finish().map_err(anyhow::Error::msg)
    }
}

/// The next bytes; `None` at the end.
fn next(client: &mut Client, words: &[&str]) -> anyhow::Result<Option<Vec<u8>>> {
    loop {
        match granted(client.call(words)?)? {
            Reply::Bulk(bytes) if bytes.is_empty() => thread::sleep(PAUSE),
            Reply::Bulk(bytes) => return Ok(Some(bytes)),
            Reply::Null => return Ok(None),
            _ => bail!("the server answers BACKUP.READ with something else"),
        }
    }
}
