//! Whether a server could begin with what its settings declare, told without one.
//!
//! All is declared in a node that serves nobody, by the functions that a start uses, so that both have the same against it. What
//! the settings may leave to others is taken for granted: with a folder of data, modules and sources that clients have added
//! before are there again at the start.

use super::entrance::{Entrance, terms};
use super::sourced::declared_options;
use super::{begin_functions, flows};
use crate::sources::check_source;
use crate::users::UserRegistry;
use headwater_base::functions::{CallError, Functions, Loading, Run, Source, Subject};
use headwater_base::hash::Secret;
use headwater_config::{Config, ConfigError, LEAST_FOR_DATA};
use headwater_engine::{Settings, TableOptions};
use headwater_functions::Host;
use headwater_node::Node;
use std::collections::BTreeSet;

/// Who is to be able to use the settings.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum CheckedFor {
    /// Somebody who is about to start a server: what a start reads is read.
    Start,
    /// A server that reads its settings again: what is declared waits for the next start, by which clients may have loaded any
    /// module.
    Server,
}

/// Checks all that can be told without a server, its sources, and its data: settings, the files that they name, and what they
/// declare.
///
/// # Errors
/// A setting is out of its bounds, a file cannot be used, or something that is declared cannot be accepted.
pub fn check_config(config: &mut Config) -> Result<(), ConfigError> {
    config.read_secrets()?;
    config.check()?;
    let max = config.memory.max.0;
    if max > 0 && max < LEAST_FOR_DATA as u64 {
        // How much more it takes is found at the start.
        return Err(ConfigError(format!(
            "maxmemory is {max} (allowed: 0, or at least {LEAST_FOR_DATA} and what the program itself takes)"
        )));
    }
    if config.has_shard_processes() {
        config.check_shard_processes()?;
    }
    check_declared(config, CheckedFor::Start)
}

/// The same, of settings that a server reads again: files with modules, users and certificates are its own business.
///
/// # Errors
/// As there.
pub(crate) fn check_again(config: &mut Config) -> Result<(), ConfigError> {
    config.read_secrets()?;
    config.check()?;
    check_declared(config, CheckedFor::Server)
}

/// Checks what settings declare. Sources are not connected to, and folders not looked into.
///
/// # Errors
/// What cannot be accepted, and why.
fn check_declared(config: &Config, checked_for: CheckedFor) -> Result<(), ConfigError> {
    let secret = Secret::fixed(1);
    let mut node = Node::new(Settings { limits: config.limits.to_limits(), secret, draws: 1 });
    // What clients have added is declared again at a start with the same data.
    let has_others = checked_for == CheckedFor::Server || !config.data.data_dir.is_empty();
    let host = match checked_for {
        CheckedFor::Start => {
            Entrance::begin(config, None)?;
            UserRegistry::default().begin(config)?;
            Some(begin_functions(config, &[], secret)?)
        }
        CheckedFor::Server => None,
    };
    let declared = config.modules.iter().filter(|_| host.is_some());
    let declared = declared.map(|module| module.name.clone()).collect();
    node.engine_mut().set_functions(Box::new(DeclaredFunctions { host, declared, has_others }));
    check_sources(config, has_others, &mut node)?;
    for join in &config.joins {
        node.engine_mut()
            .join_add(&join.name, &join.spec, false)
            .map_err(|error| ConfigError(format!("join '{}': {error}", join.name)))?;
    }
    for flow in &config.flows {
        flows::add(&mut node, &flow.words()?)
            .map_err(|why| ConfigError(format!("flow '{}': {why}", flow.name)))?;
    }
    Ok(())
}

fn check_sources(config: &Config, has_others: bool, node: &mut Node) -> Result<(), ConfigError> {
    let mut names = BTreeSet::new();
    for source in &config.source_list {
        let refuse = |why: String| ConfigError(format!("source '{}': {why}", source.name));
        check_source(&source.name, &source.kind, &source.url, &terms(config, None))
            .map_err(refuse)?;
        if !names.insert(&*source.name) {
            return Err(refuse(String::from("there are two of this name")));
        }
    }
    for table in &config.tables {
        let refuse = |why: String| ConfigError(format!("table '{}': {why}", table.name));
        let declared = declared_options(table);
        // Whether there is a store is for the start to find.
        let keep = declared.keep.filter(|_| config.data.data_dir.is_empty());
        let options = TableOptions { keep, ..declared };
        node.engine_mut()
            .table_set(table.name.as_bytes(), &options)
            .map_err(|error| refuse(error.to_string()))?;
        if let Some(source) = table.source.as_deref().filter(|source| !source.is_empty())
            && !has_others
            && !names.contains(source)
        {
            return Err(refuse(format!("there is no source '{source}'")));
        }
    }
    Ok(())
}

/// Functions by their names alone: nothing is called.
#[derive(Debug)]
struct DeclaredFunctions {
    host: Option<Host>,
    /// The modules of the settings.
    declared: BTreeSet<String>,
    /// There may be other modules, which are taken for what they are used as.
    has_others: bool,
}

impl Functions for DeclaredFunctions {
    fn load(&mut self, _: &str, _: Source<'_>, _: Option<&str>, _: bool) -> Loading {
        Loading::Failed(String::from("modules are loaded when the server has begun"))
    }

    fn is_pure(&self, name: &[u8]) -> Option<bool> {
        let module = name.split(|byte| *byte == b'.').next().unwrap_or_default();
        let is_declared = self.declared.iter().any(|declared| declared.as_bytes() == module);
        let found = self.host.as_ref().and_then(|host| host.is_pure(name));
        found.or((self.has_others && !is_declared).then_some(true))
    }

    fn call(&mut self, _: &[u8], _: &mut dyn Subject) -> Result<(), CallError> {
        Err(CallError::NoSuchFunction)
    }

    fn run(
        &mut self,
        _: &[u8],
        _: &mut dyn FnMut(&mut dyn Run) -> Result<(), CallError>,
    ) -> Result<(), CallError> {
        Err(CallError::NoSuchFunction)
    }
}
