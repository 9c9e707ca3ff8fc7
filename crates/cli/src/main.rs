//! The program `headwater`: `serve` runs the server, `demo` runs it with a real follower
//! graph loaded, `cli` talks to one, `cluster` looks after several on several machines, `check` runs random
//! histories against an oracle, `fn` begins, builds and tests functions, `bench` measures speed and memory beside other systems.
//!
//! Each subcommand is one file in `commands`, with its arguments and its `run`.

mod client;
mod commands;
mod dial;
mod notify;
mod output;

use clap::Parser;
use std::io::Write;
use std::process::ExitCode;

/// A cache with joins that are always fresh.
#[derive(Parser)]
#[command(name = "headwater", version, arg_required_else_help = true)]
struct Program {
    #[command(subcommand)]
    command: commands::Command,
}

fn main() -> ExitCode {
    match Program::parse().command.run() {
        Ok(code) => code,
        Err(error) if output::has_ended(&error) => ExitCode::SUCCESS,
        Err(error) => {
            // A closed standard error leaves nothing to be done.
            let _ = writeln!(std::io::stderr(), "headwater: {error:#}");
            ExitCode::FAILURE
        }
    }
}
