//! Flows that the configuration file declares: the words of FLOW.ADD, as settings.

use super::ConfigError;
use headwater_base::connect::check_http_url;
use serde::{Deserialize, Serialize};

/// How flows reach the world.
#[derive(Clone, PartialEq, Debug, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct Flows {
    /// A PEM file of the certificates that `HTTP POST` to `https` trusts; empty: the system's.
    pub webhook_certificates: String,
    /// A flow whose oldest task is older is told of in the log, in milliseconds.
    pub flow_late_milliseconds: u64,
}

impl Default for Flows {
    fn default() -> Self {
        Self { webhook_certificates: String::new(), flow_late_milliseconds: 60_000 }
    }
}

/// A flow to add at start.
#[derive(Clone, PartialEq, Debug, Default, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct Flow {
    /// Its name.
    pub name: String,
    /// The pattern of the keys that concern it.
    pub on: String,
    /// The function that is called.
    pub call: Option<String>,
    /// The key whose value that function may change.
    pub key: Option<String>,
    /// The patterns of other keys that it may write.
    pub writes: Vec<String>,
    /// The join along which the value is copied.
    pub fanout: Option<String>,
    /// The same for one copy.
    pub copy: Option<String>,
    /// The channel that the value is published to.
    pub publish: Option<String>,
    /// The URL that the change is posted to.
    pub post: Option<String>,
    /// How long that may take, in milliseconds.
    pub timeout_milliseconds: Option<u64>,
    /// Which operations concern it: `set`, `del`, `expire`; none: all.
    pub operations: Vec<String>,
    /// Tasks that run at a time.
    pub workers: Option<u64>,
    /// How often a task is tried.
    pub max_attempts: Option<u64>,
    /// The first and the longest rest after a failure, in milliseconds.
    pub backoff_milliseconds: Option<(u64, u64)>,
    /// Tasks that may wait.
    pub backlog: Option<u64>,
    /// What happens beyond: `reject`, `block`, `drop-oldest`.
    pub when_full: Option<String>,
    /// Keys that are there already are tasks as well.
    pub backfill: bool,
}

impl Flow {
    /// The words of FLOW.ADD, from the name on.
    ///
    /// # Errors
    /// It does nothing, or several things.
    pub fn words(&self) -> Result<Vec<String>, ConfigError> {
        let actions = [
            ("CALL", &self.call),
            ("FANOUT", &self.fanout),
            ("COPY", &self.copy),
            ("PUBLISH", &self.publish),
            ("HTTP POST", &self.post),
        ];
        let mut given = actions.iter().filter_map(|(verb, what)| Some((*verb, what.as_ref()?)));
        let (Some((verb, what)), None) = (given.next(), given.next()) else {
            let text = "needs one of call, fanout, copy, publish and post";
            return Err(ConfigError(format!("flow '{}': {text}", self.name)));
        };
        if let Some(url) = &self.post {
            check_http_url(url)
                .map_err(|why| ConfigError(format!("flow '{}': {why}", self.name)))?;
        }
        let mut words = vec![self.name.clone(), String::from("ON"), self.on.clone()];
        words.extend(verb.split(' ').map(str::to_owned));
        words.push(what.clone());
        let mut option = |title: &str, values: Vec<String>| {
            words.push(title.to_owned());
            words.extend(values);
        };
        let listed = |list: &[String], with: &str| (!list.is_empty()).then(|| list.join(with));
        let number = |number: Option<u64>| number.map(|number| number.to_string());
        for (title, value) in [
            ("KEY", self.key.clone()),
            ("WRITES", listed(&self.writes, " ")),
            ("TIMEOUT", number(self.timeout_milliseconds)),
            ("OPERATIONS", listed(&self.operations, "|")),
            ("WORKERS", number(self.workers)),
            ("MAX-ATTEMPTS", number(self.max_attempts)),
        ] {
            if let Some(value) = value {
                option(title, vec![value]);
            }
        }
        if let Some((first, most)) = self.backoff_milliseconds {
            option("BACKOFF", vec![first.to_string(), most.to_string()]);
        }
        if let Some(backlog) = self.backlog {
            let full = self.when_full.iter().cloned();
            option("BACKLOG", std::iter::once(backlog.to_string()).chain(full).collect());
        } else if self.when_full.is_some() {
            let text = "when-full needs backlog";
            return Err(ConfigError(format!("flow '{}': {text}", self.name)));
        }
        if self.backfill {
            option("BACKFILL", Vec::new());
        }
        Ok(words)
    }
}

#[cfg(test)]
mod tests {
    use crate::Config;

    #[test]
    fn a_flow_of_the_file_is_the_words_of_the_command() {
        let words = |text: &str| {
            let flow = &Config::parse(&format!("[[flow]]\n{text}")).unwrap().flows[0];
            flow.words().map(|words| words.join(" ")).map_err(|error| error.to_string())
        };
        let text = r#"
            name = "f"
            on = "a|<x>"
            call = "count"
            key = "n|<x>"
            writes = ["b|<x>", "c|<x>"]
            operations = ["set", "del"]
            workers = 2
            max-attempts = 3
            backoff-milliseconds = [1, 2]
            backlog = 10
            when-full = "block"
            backfill = true
        "#;
        assert_eq!(
            words(text).unwrap(),
            "f ON a|<x> CALL count KEY n|<x> WRITES b|<x> c|<x> OPERATIONS set|del WORKERS 2 \
             MAX-ATTEMPTS 3 BACKOFF 1 2 BACKLOG 10 block BACKFILL"
        );
        let post = "name = 'f'\non = 'a|<x>'\npost = 'http://h'\ntimeout-milliseconds = 5";
        assert_eq!(words(post).unwrap(), "f ON a|<x> HTTP POST http://h TIMEOUT 5");
        let wrong = words(&post.replace("http://h", "ftp://u:hunter2@h")).unwrap_err();
        assert!(wrong.contains("begins with http://") && !wrong.contains("hunter2"), "{wrong}");
        assert!(words("name = 'f'\non = 'a|<x>'").unwrap_err().contains("needs one of"));
        assert!(words(&format!("{post}\npublish = 'c'")).unwrap_err().contains("needs one of"));
        assert!(words(&format!("{post}\nwhen-full = 'block'")).unwrap_err().contains("backlog"));
    }
}
