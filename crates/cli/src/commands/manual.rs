//! `headwater completions` and `headwater man`: what shells and `man` know of the program, from its arguments.

use clap::{Command, CommandFactory};
use clap_complete::Shell;
use clap_mangen::Man;
use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;

/// Arguments of `headwater completions`.
#[derive(clap::Args)]
pub(crate) struct CompletionArgs {
    /// Which shell
    shell: Shell,
}

/// Arguments of `headwater man`.
#[derive(clap::Args)]
pub(crate) struct ManualArgs {
    /// Write a page for each subcommand into this directory instead of the first page to standard output
    #[arg(long, value_name = "DIR")]
    to: Option<PathBuf>,
}

impl CompletionArgs {
    /// Writes the completions to standard output.
    pub(crate) fn run(&self) -> anyhow::Result<ExitCode> {
        let mut script = Vec::new();
        clap_complete::generate(
            self.shell,
            &mut crate::Program::command(),
            "headwater",
            &mut script,
        );
        std::io::stdout().write_all(&script)?;
        Ok(ExitCode::SUCCESS)
    }
}

impl ManualArgs {
    /// Writes the pages.
    pub(crate) fn run(self) -> anyhow::Result<ExitCode> {
        let mut program = crate::Program::command();
        // It names its subcommands after itself.
        program.build();
        let Some(folder) = self.to else {
            std::io::stdout().write_all(&page(program)?)?;
            return Ok(ExitCode::SUCCESS);
        };
        std::fs::create_dir_all(&folder)?;
        for command in program.get_subcommands().filter(|command| command.get_name() != "help") {
            let name = format!("headwater-{}", command.get_name());
            std::fs::write(folder.join(format!("{name}.1")), page(command.clone())?)?;
        }
        std::fs::write(folder.join("headwater.1"), page(program)?)?;
        Ok(ExitCode::SUCCESS)
    }
}

fn page(command: Command) -> anyhow::Result<Vec<u8>> {
    let mut page = Vec::new();
    Man::new(command).render(&mut page)?;
    Ok(page)
}
