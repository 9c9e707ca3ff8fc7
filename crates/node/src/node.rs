//! The node: who executes which command, and what may come of it.

use alloc::string::String;
use headwater_base::Millis;
use headwater_command::{Data, Reply};
use headwater_engine::{Engine, Settings, Ticket};

/// What came of a command.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[must_use = "a waiting command must be run again"]
pub enum Outcome {
    /// The answer is in the reply.
    Done,
    /// Data is being loaded and nothing is in the reply: run the command again when the
    /// engine's effects wake this ticket.
    Waiting(Ticket),
}

/// The parts of INFO that a node tells.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum InfoSection {
    /// Bytes by kind.
    Memory,
    /// Keys and expiries.
    Keyspace,
    /// The installed joins with their counters.
    Joins,
    /// The tables with their sizes.
    Tables,
}

/// One shard: its engine and what commands keep between them.
pub struct Node {
    engine: Engine,
}

impl Node {
    /// A node without keys.
    #[must_use]
    pub fn new(settings: Settings) -> Self {
        Self { engine: Engine::new(settings) }
    }

    /// The engine: watches, effects, limits and statistics are its own.
    #[must_use]
    pub fn engine(&self) -> &Engine {
        &self.engine
    }

    /// The engine, to change.
    pub fn engine_mut(&mut self) -> &mut Engine {
        &mut self.engine
    }

    /// Moves time to `now`; call it before the commands that are executed then.
    pub fn advance(&mut self, now: Millis) {
        self.engine.advance(now);
    }

    /// Executes `command` and writes its answer, refusals included, into `reply`.
    pub fn execute(&mut self, _command: &Data<'_>, reply: &mut impl Reply) -> Outcome {
        reply.error("ERR", format_args!("not there yet"));
        Outcome::Done
    }

    /// Appends the lines of one section of INFO, its title first.
    pub fn write_info(&self, _section: InfoSection, _out: &mut String) {}
}
