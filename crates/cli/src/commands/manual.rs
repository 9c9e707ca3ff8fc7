//! `headwater completions` and `headwater man`: what shells and `man` know of the program, from its arguments.

use crate::output::show;
use clap::{Command, CommandFactory};
use clap_complete::Shell;
use clap_mangen::Man;
use std::path::{Path, PathBuf};
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
        show(&script)?;
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
            show(&page(program)?)?;
            return Ok(ExitCode::SUCCESS);
        };
        std::fs::create_dir_all(&folder)?;
        write_pages(&program, "headwater", &folder)?;
        Ok(ExitCode::SUCCESS)
    }
}

/// Writes the page of a command, and those of its subcommands, and of theirs.
fn write_pages(command: &Command, name: &str, folder: &Path) -> anyhow::Result<()> {
    std::fs::write(folder.join(format!("{name}.1")), page(command.clone())?)?;
    for inner in command.get_subcommands().filter(|inner| inner.get_name() != "help") {
        write_pages(inner, &format!("{name}-{}", inner.get_name()), folder)?;
    }
    Ok(())
}

fn page(command: Command) -> anyhow::Result<Vec<u8>> {
    let mut page = Vec::new();
    Man::new(command).render(&mut page)?;
    Ok(page)
}
