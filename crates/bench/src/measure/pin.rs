//! Which core runs what: servers on one, the generator on another.
//!
//! A child inherits the mask of the thread that starts it, so a server is pinned from its
//! first instruction by moving this thread for the moment of the start.

use anyhow::{Context, Result, bail};
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

/// The cores of servers and generator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pinning {
    /// Wherever the kernel puts them.
    Free,
    /// Each on its own core.
    Cores {
        /// The servers' core.
        server: usize,
        /// The generator's core.
        generator: usize,
    },
}

impl Pinning {
    /// Checks that this process may use the cores.
    ///
    /// # Errors
    /// It may not use one of them.
    pub fn check(self) -> Result<()> {
        let Self::Cores { server, generator } = self else { return Ok(()) };
        let allowed = sched_getaffinity(None).context("cannot ask which cores are allowed")?;
        for (what, core) in [("--server-core", server), ("--generator-core", generator)] {
            if core >= CpuSet::MAX_CPU || !allowed.is_set(core) {
                let cores: Vec<String> = (0..CpuSet::MAX_CPU)
                    .filter(|&core| allowed.is_set(core))
                    .map(|core| core.to_string())
                    .collect();
                bail!(
                    "{what} {core}: no such core for this process (allowed: {}; --no-pin \
                     leaves the placement to the kernel)",
                    cores.join(", ")
                );
            }
        }
        Ok(())
    }

    /// Servers on the generator's core: for what serves a server that is measured.
    #[must_use]
    pub fn aside(self) -> Self {
        match self {
            Self::Free => Self::Free,
            Self::Cores { generator, .. } => Self::Cores { server: generator, generator },
        }
    }

    /// Moves this thread to the servers' core: what it starts now stays there.
    ///
    /// # Errors
    /// The kernel refuses.
    pub fn enter_server(self) -> Result<()> {
        match self {
            Self::Free => Ok(()),
            Self::Cores { server, .. } => pin(server),
        }
    }

    /// Moves this thread to the generator's core.
    ///
    /// # Errors
    /// The kernel refuses.
    pub fn enter_generator(self) -> Result<()> {
        match self {
            Self::Free => Ok(()),
            Self::Cores { generator, .. } => pin(generator),
        }
    }
}

fn pin(core: usize) -> Result<()> {
    let mut set = CpuSet::new();
    set.set(core);
    sched_setaffinity(None, &set).with_context(|| format!("cannot pin to core {core}"))
}
