//! CONFIG GET and CONFIG SET.

use super::{ShardService, Turn, encoder};
use crate::log::{self, event};
use crate::resp::parts::InForce;
use headwater_command::glob;
use headwater_command::{Args, Reply};
use headwater_config::settings::{FOREIGN, SETTINGS, change};

impl ShardService {
    /// CONFIG SET: all or none.
    pub(super) fn config_set(&mut self, pairs: Args<'_>, work: &mut Turn<'_>) {
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        let pairs: Vec<(String, String)> =
            pairs.pairs().map(|(name, value)| (text(name), text(value))).collect();
        let changed = change(&self.settings.config, &pairs).and_then(|config| {
            let failed = |error| format!("CONFIG SET failed - {error}");
            self.bound.check_memory(&config).map_err(failed)?;
            self.admission.change_certificates(&config, &pairs)?;
            Ok(config)
        });
        match changed {
            Ok(config) => {
                let changed = log::differences(&self.settings.config, &config);
                // The first shard is told by message of what others are asked.
                if !changed.is_empty() && !work.connection.is_remote() {
                    event!(info, "server", "settings_changed", changed, "CONFIG SET");
                }
                if self.settings.config.listen.requirepass != config.listen.requirepass {
                    self.admission.registry.set_default_password(&config.listen.requirepass);
                }
                log::apply(&config.log);
                self.apply(config);
                encoder(work).ok();
            }
            Err(why) => {
                encoder(work).error("ERR", format_args!("{why}"));
            }
        }
    }
}

impl InForce {
    /// CONFIG GET: names and values of the settings that fit one of the patterns.
    pub(super) fn config_get(&self, patterns: Args<'_>, work: &mut Turn<'_>) {
        let patterns: Vec<Vec<u8>> = patterns.iter().map(<[u8]>::to_ascii_lowercase).collect();
        let wanted =
            |name: &str| patterns.iter().any(|pattern| glob::matches(pattern, name.as_bytes()));
        let mut found: Vec<(&str, String)> = Vec::new();
        for setting in SETTINGS {
            for &name in setting.aliases.iter().chain([&setting.name]) {
                if wanted(name) {
                    found.push((name, setting.get_as(name, &self.config)));
                }
            }
        }
        for (name, value) in FOREIGN {
            if wanted(name) {
                found.push((name, (*value).to_owned()));
            }
        }
        let mut out = encoder(work);
        out.map(found.len());
        for (name, value) in found {
            out.bulk(name.as_bytes());
            out.bulk(value.as_bytes());
        }
    }
}
