//! SIGHUP: what can be changed while the server runs is put into force, at all shards; the rest is told.

use super::ShardService;
use crate::log::{self, event};
use crate::reload::{Changes, SettingsSource};
use crate::shards::ShardMessage;
use headwater_config::settings::change_all;
use headwater_config::{Config, ConfigError};

impl ShardService {
    /// Has SIGHUP read the settings from here.
    pub(crate) fn set_settings_source(&mut self, source: SettingsSource) {
        self.settings.source = Some(Box::new(source));
    }

    /// Reads everything again. What cannot be read leaves all as it was.
    pub(super) fn reload_all(&mut self) {
        if let Some(mut source) = self.settings.source.take() {
            let done = source.read().and_then(|now| {
                let changes = source.changes(&now);
                self.reload_settings(&changes, &now)?;
                source.took(now);
                Ok(())
            });
            if let Err(why) = done {
                event!(
                    error,
                    "server",
                    "settings_not_reloaded",
                    why = %why,
                    "SIGHUP: the settings cannot be used, and those in force stay"
                );
            }
            self.settings.source = Some(source);
        }
        self.reload_certificates();
    }

    fn reload_settings(&mut self, changes: &Changes, now: &Config) -> Result<(), ConfigError> {
        let before = self.settings.config.clone();
        let mut config = change_all(&before, &changes.live).map_err(ConfigError)?;
        self.bound.check_memory(&config)?;
        if config.tls != before.tls && config.tls.is_on() {
            self.load_certificates(&config).map_err(ConfigError)?;
        }
        // The last that can fail.
        config.users.clone_from(&now.users);
        self.admission.registry.reload(&changes.users, &changes.removed_users, &config)?;
        if let Some(keeping) = &mut self.stores.keeping {
            changes.removed_users.iter().for_each(|name| keeping.user_removed(name.as_bytes()));
        }
        let names_default = now.users.iter().any(|user| user.name == "default");
        if before.listen.requirepass != config.listen.requirepass && !names_default {
            self.admission.registry.set_default_password(&config.listen.requirepass);
        }
        let changed = log::differences(&before, &config);
        let users: Vec<&str> = changes.users.iter().map(|user| &*user.name).collect();
        let (users, removed) = (users.join(" "), changes.removed_users.join(" "));
        log::apply(&config.log);
        event!(
            info,
            "server",
            "settings_reloaded",
            changed,
            users,
            removed,
            "SIGHUP: the settings were read again; settings and users that have changed, and users that are gone"
        );
        if !changes.for_restart.is_empty() {
            let what = changes.for_restart.join(" ");
            event!(
                warn,
                "server",
                "restart_needed",
                what,
                "what the settings say is other than at the start, and waits for the next one"
            );
        }
        self.apply(config);
        if changes.live.iter().any(|(name, _)| name == "max") {
            // What the process may take of its node's memory is told beside the settings, and goes before them.
            self.bound.share = None;
        }
        if !changes.live.is_empty()
            && let Some(shards) = &mut self.others.shards
        {
            for to in shards.outbox.of_process().filter(|to| *to != shards.me) {
                let message = ShardMessage::Settings(changes.live.clone());
                shards.outbox.to(to).messages.push(message);
            }
        }
        Ok(())
    }

    /// The first shard has put these settings into force.
    pub(super) fn take_settings(&mut self, pairs: &[(String, String)]) {
        // They were checked there, against the same settings.
        if let Ok(config) = change_all(&self.settings.config, pairs) {
            self.apply(config);
        }
    }
}
