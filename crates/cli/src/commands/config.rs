//! `headwater config check`: whether a server would start with a configuration file, without starting one.

use crate::output::show;
use headwater_server::Config;
use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;

/// Arguments of `headwater config`.
#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    action: Action,
}

#[derive(clap::Subcommand)]
enum Action {
    /// Say whether a configuration file can be used: its settings, the files that it names, its joins.
    Check {
        /// The file
        file: PathBuf,
    },
}

impl Args {
    /// Says that it is right, or what is wrong.
    pub(crate) fn run(self) -> anyhow::Result<ExitCode> {
        let Action::Check { file } = self.action;
        let mut config = Config::read(&file)?;
        for text in config.readable_by_others(Some(&file)) {
            writeln!(std::io::stderr(), "headwater: {text}")?;
        }
        headwater_server::check_config(&mut config)?;
        show(format!("{}: it can be used\n", file.display()).as_bytes())?;
        Ok(ExitCode::SUCCESS)
    }
}
