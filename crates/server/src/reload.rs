//! The settings, read again while the server runs (SIGHUP).
//!
//! What is compared is what was read before with what is read now, not with what is in force: a setting that `CONFIG SET` has changed
//! stays as it is until the file says something new about it. So a log that is rotated undoes nothing.

use crate::resp::check_again;
use headwater_config::settings::SETTINGS;
use headwater_config::{Config, ConfigError, User};
use std::collections::BTreeMap;

/// Reads the settings as the start has read them: the file, and what the command line says.
pub type ReadSettings = Box<dyn Fn() -> Result<Config, ConfigError>>;

/// Where the settings come from, and what they were.
pub(crate) struct SettingsSource {
    read: ReadSettings,
    /// At the start.
    started: Config,
    /// When they were read last.
    last: Config,
}

/// What is new in settings that were read again.
#[derive(Debug, Default, PartialEq)]
pub(crate) struct Changes {
    /// Settings that can be changed at run time: names, and values as `CONFIG SET` takes them.
    pub(crate) live: Vec<(String, String)>,
    /// Users that are new, or have other rules.
    pub(crate) users: Vec<User>,
    /// Users that are gone.
    pub(crate) removed_users: Vec<String>,
    /// What differs from the start, and has to wait for the next one.
    pub(crate) for_restart: Vec<String>,
}

impl SettingsSource {
    /// Notes what the start has read.
    ///
    /// # Errors
    /// A file with a secret cannot be read any more.
    pub(crate) fn new(read: ReadSettings, mut started: Config) -> Result<Self, ConfigError> {
        started.read_secrets()?;
        Ok(Self { read, last: started.clone(), started })
    }

    /// Reads and checks the settings.
    ///
    /// # Errors
    /// They cannot be read, or the server could not begin with them.
    pub(crate) fn read(&self) -> Result<Config, ConfigError> {
        let mut config = (self.read)()?;
        check_again(&mut config)?;
        Ok(config)
    }

    /// What is new in these settings.
    pub(crate) fn changes(&self, now: &Config) -> Changes {
        let is_live = |name: &str| SETTINGS.iter().any(|it| it.name == name && it.set.is_some());
        let live = SETTINGS.iter().filter(|setting| {
            setting.set.is_some() && (setting.get)(&self.last) != (setting.get)(now)
        });
        let live = live.map(|setting| (setting.name.to_owned(), (setting.get)(now))).collect();
        let users = now.users.iter().filter(|user| !self.last.users.contains(user));
        let gone = |user: &&User| now.users.iter().all(|other| other.name != user.name);
        let (defaults, removed): (Vec<_>, Vec<_>) =
            self.last.users.iter().filter(gone).partition(|user| user.name == "default");
        let (before, after) = (flat(&self.started), flat(now));
        let names = before.keys().chain(after.keys().filter(|name| !before.contains_key(*name)));
        let for_restart = names.filter(|name| {
            before.get(*name) != after.get(*name) && !is_live(name) && *name != USERS
        });
        // The first user of all cannot be removed, and what it would be without rules is for a start to say.
        let defaults = defaults.iter().map(|_| String::from("[[user]] default"));
        Changes {
            live,
            users: users.cloned().collect(),
            removed_users: removed.iter().map(|user| user.name.clone()).collect(),
            for_restart: for_restart.cloned().chain(defaults).collect(),
        }
    }

    /// These are in force now, as far as they can be without a restart.
    pub(crate) fn took(&mut self, now: Config) {
        self.last = now;
    }
}

/// The list of users among the settings.
const USERS: &str = "[[user]]";

/// Settings by name, and the lists by their heads in a file.
fn flat(config: &Config) -> BTreeMap<String, toml::Value> {
    // A configuration can always be written as TOML: it was read from that.
    let sections = toml::Table::try_from(config).unwrap_or_default();
    let mut all = BTreeMap::new();
    for (name, value) in sections {
        match value {
            toml::Value::Table(section) => all.extend(section),
            // A list that is not there and one without entries are the same.
            toml::Value::Array(list) if list.is_empty() => {}
            list => _ = all.insert(format!("[[{name}]]"), list),
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use super::{Changes, SettingsSource};
    use headwater_config::Config;

    fn source(text: &str) -> SettingsSource {
        let read = Box::new(|| Ok(Config::default()));
        SettingsSource::new(read, Config::parse(text).unwrap()).unwrap()
    }

    fn changes(source: &SettingsSource, text: &str) -> Changes {
        source.changes(&Config::parse(text).unwrap())
    }

    #[test]
    fn what_is_as_it_was_read_last_is_no_change() {
        let mut source = source("[clients]\nclients-max = 5\n[http]\nhttp-token = \"a\"\n");
        let live = |name: &str, value: &str| vec![(name.to_owned(), value.to_owned())];
        let text = "[clients]\nclients-max = 6\n[http]\nhttp-token = \"a\"\n";
        let expected = Changes { live: live("clients-max", "6"), ..Changes::default() };
        assert_eq!(changes(&source, text), expected);
        source.took(Config::parse(text).unwrap());
        assert_eq!(changes(&source, text), Changes::default());
        // What goes out of the file has its default again, and a secret is compared though it is never shown.
        let expected = Changes {
            live: live("clients-max", "10000"),
            for_restart: vec![String::from("http-token")],
            ..Changes::default()
        };
        assert_eq!(changes(&source, "[http]\nhttp-token = \"b\"\n"), expected);
    }

    #[test]
    fn users_and_lists_are_compared() {
        let user =
            |name: &str, rules: &str| format!("[[user]]\nname = \"{name}\"\nrules = \"{rules}\"\n");
        let of = |users: &[(&str, &str)]| -> String {
            users.iter().map(|(name, rules)| user(name, rules)).collect()
        };
        let source = source(&of(&[("default", "on"), ("ann", "on"), ("bob", "on")]));
        let found = changes(&source, &of(&[("ann", "off"), ("bob", "on"), ("eve", "on")]));
        let names: Vec<&str> = found.users.iter().map(|user| &*user.name).collect();
        assert_eq!(names, ["ann", "eve"]);
        assert_eq!(found.removed_users, Vec::<String>::new());
        assert_eq!(found.for_restart, ["[[user]] default"]);
        let found = changes(&source, &of(&[("default", "on"), ("bob", "on")]));
        assert_eq!((found.removed_users, found.for_restart), (vec![String::from("ann")], vec![]));
        let all = of(&[("default", "on"), ("ann", "on"), ("bob", "on")]);
        let with = format!("{all}[[join]]\nname = \"j\"\nspec = \"a|<x> = copy b|<x>\"\n");
        assert_eq!(changes(&source, &with).for_restart, ["[[join]]"]);
    }
}
