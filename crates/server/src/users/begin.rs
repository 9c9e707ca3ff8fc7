//! The users and the owners at the start.
//!
//! `default` comes first, then the users of the ACL file or of the configuration, then those that clients have set before: a user that
//! the file names is as the file says. A password of `requirepass` is that of `default`, whatever was kept of it.

use super::{UserRegistry, reach_of, reach_of_module};
use headwater_acl::{DefinitionKind, Users};
use headwater_command::{Command, Data, OwnedArgs};
use headwater_config::{Config, ConfigError, User};
use headwater_node::{DefinitionReach, Node};
use headwater_protocol::resp::{decode, find};

impl UserRegistry {
    /// Has the users of the settings.
    ///
    /// # Errors
    /// A rule is none; the text says which.
    pub(crate) fn begin(&self, config: &Config) -> Result<(), ConfigError> {
        self.lock().certified = super::certified::Certified::new(config);
        let password = &config.listen.requirepass;
        if !password.is_empty() {
            self.set_default_password(password);
        }
        let path = &config.listen.aclfile;
        if !path.is_empty() {
            let users = super::file::read(path)
                .map_err(|why| ConfigError(format!("aclfile '{path}': {why}")))?;
            self.replace(users);
            return Ok(());
        }
        for user in &config.users {
            let rules = user.rules.split_ascii_whitespace().map(str::as_bytes);
            let rules = [&b"reset"[..]].into_iter().chain(rules);
            self.set_user(user.name.as_bytes(), rules)
                .map_err(|why| ConfigError(format!("user '{}': {why}", user.name)))?;
        }
        for (name, rules) in &config.kept_users {
            if config.users.iter().any(|user| user.name.as_bytes() == *name) {
                continue;
            }
            let rules = rules.split(|byte| *byte == b' ').filter(|rule| !rule.is_empty());
            let rules = [&b"reset"[..]].into_iter().chain(rules);
            self.keep_user(name, rules).map_err(|why| {
                ConfigError(format!("data-dir: the kept user '{}': {why}", name.escape_ascii()))
            })?;
        }
        let names_default = config.users.iter().any(|user| user.name == "default");
        if !password.is_empty() && !names_default {
            self.set_default_password(password);
        }
        Ok(())
    }

    /// Has the users as settings say it that were read again: `changed` are new or have other rules, `removed` are gone.
    ///
    /// # Errors
    /// A rule is none: all are as they were.
    pub(crate) fn reload(
        &self,
        changed: &[User],
        removed: &[String],
        config: &Config,
    ) -> Result<(), ConfigError> {
        let certified = super::certified::Certified::new(config);
        self.change(|state| {
            let mut users = state.users.clone();
            for user in changed {
                let rules = user.rules.split_ascii_whitespace().map(str::as_bytes);
                let rules = [&b"reset"[..]].into_iter().chain(rules);
                users
                    .set(user.name.as_bytes(), rules)
                    .map_err(|why| ConfigError(format!("user '{}': {why}", user.name)))?;
            }
            for name in removed {
                users
                    .remove(name.as_bytes())
                    .map_err(|why| ConfigError(format!("user '{name}': {why}")))?;
            }
            (state.users, state.certified) = (users, certified);
            Ok(())
        })
    }

    /// Has these users and no others.
    pub(crate) fn replace(&self, users: Users) {
        let _ = self.change(|state| {
            state.users = users;
            Ok::<_, ()>(())
        });
    }

    /// Notes what was declared before the start, with its owners.
    pub(crate) fn begin_definitions(&self, config: &Config, node: &Node) {
        let owner = |kind: DefinitionKind, name: &str| {
            let mut owners = config.kept_owners.iter();
            let of = owners.find(|owned| owned.kind == kind.word() && owned.name == name);
            of.map(|owned| owned.owner.clone().into_bytes())
        };
        for join in &config.joins {
            let reach = node.reach_of_join(&join.spec).map(reach_of).unwrap_or_default();
            let kind = DefinitionKind::Join;
            self.defined(kind, &join.name, owner(kind, &join.name), reach);
        }
        let in_file = config.flows.iter().filter_map(|flow| flow.words().ok());
        for words in in_file.chain(config.kept_flows.iter().cloned()) {
            let Some(name) = words.first() else { continue };
            let reach = flow_reach(node, &words).map(reach_of).unwrap_or_default();
            self.defined(DefinitionKind::Flow, name, owner(DefinitionKind::Flow, name), reach);
        }
        let kind = DefinitionKind::Module;
        for owned in config.kept_owners.iter().filter(|owned| owned.kind == kind.word()) {
            let name = owned.owner.clone().into_bytes();
            self.defined(kind, &owned.name, Some(name), reach_of_module());
        }
    }
}

/// What a flow reads and writes that these words declare.
fn flow_reach(node: &Node, words: &[String]) -> Option<DefinitionReach> {
    let words = std::iter::once("FLOW.ADD").chain(words.iter().map(String::as_str));
    let request: OwnedArgs = words.map(str::as_bytes).collect();
    let args = request.args();
    let command = find(args).and_then(|spec| decode(spec, args)).ok()?;
    match command {
        Command::Data(Data::Flows(flows)) => node.reach_of_flow(&flows),
        _ => None,
    }
}
