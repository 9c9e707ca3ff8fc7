//! Secrets in files of their own, and files that others may read.

use super::{Config, ConfigError, User};
use headwater_base::text::redact_url;
use std::fs::{self, File};
use std::io::Read;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

/// A longer file holds no password.
const SECRET_BYTES_MAX: u64 = 4096;

/// The first line of a file.
fn read(setting: &str, path: &str) -> Result<String, ConfigError> {
    let refuse = |why: &dyn std::fmt::Display| ConfigError(format!("{setting} '{path}': {why}"));
    let mut text = String::new();
    let file = File::open(path).map_err(|error| refuse(&error))?;
    file.take(SECRET_BYTES_MAX).read_to_string(&mut text).map_err(|error| refuse(&error))?;
    let line = text.lines().next().unwrap_or_default();
    if line.is_empty() {
        return Err(refuse(&"its first line is empty"));
    }
    Ok(line.to_owned())
}

/// Words of lines that have secrets.
const SECRET_WORDS: [&str; 6] = ["pas", "token", "url", "post", "://", "rules"];

/// Why a configuration file cannot be read. The library shows the line, which is left out where it may have a secret.
pub(super) fn without_values(text: &str, error: &toml::de::Error) -> String {
    let Some(span) = error.span() else { return error.message().to_owned() };
    let start = text[..span.start.min(text.len())].rfind('\n').map_or(0, |at| at + 1);
    if error.message().starts_with("unknown field") {
        // Its name is told, and what it may be; its value may be a secret whose name was mistyped.
        let number = text[..start].lines().count() + 1;
        return format!(
            "line {number}: {}{}",
            error.message(),
            super::hints::hint(error.message())
        );
    }
    let rest = &text[start..];
    let line = rest.lines().next().unwrap_or_default().to_ascii_lowercase();
    if !SECRET_WORDS.iter().any(|word| line.contains(word)) {
        return super::hints::with_allowed_numbers(&error.to_string());
    }
    let number = text[..start].lines().count() + 1;
    let name = line.split('=').next().unwrap_or_default().trim().to_owned();
    let known = name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-');
    let name = if known { name } else { String::from("a setting") };
    format!(
        "line {number}: {name} is unknown, or cannot be this value (which may be a secret, and is not shown)"
    )
}

impl Config {
    /// Reads the secrets that are in files of their own.
    ///
    /// # Errors
    /// A file cannot be read, or is empty.
    pub fn read_secrets(&mut self) -> Result<(), ConfigError> {
        self.check_doors()?;
        if !self.listen.requirepass_file.is_empty() {
            self.listen.requirepass = read("requirepass-file", &self.listen.requirepass_file)?;
        }
        if !self.http.http_token_file.is_empty() {
            self.http.http_token = read("http-token-file", &self.http.http_token_file)?;
        }
        self.secrets_read = true;
        Ok(())
    }

    /// Whether the file that this was read from has secrets. The hash of a password is one: whoever has it may guess as fast as they like.
    fn has_secrets(&self) -> bool {
        let has_password = |user: &User| {
            let mut words = user.rules.split_whitespace().map(|word| word.trim_start_matches('('));
            words.any(|word| word.starts_with(['>', '#']))
        };
        let urls = self.source_list.iter().map(|source| Some(&source.url));
        let mut urls = urls.chain(self.flows.iter().map(|flow| flow.post.as_ref())).flatten();
        !self.listen.requirepass.is_empty()
            || !self.http.http_token.is_empty()
            || self.users.iter().any(has_password)
            || urls.any(|url| redact_url(url) != *url)
            || self.cluster.cluster_nats.contains('@')
    }

    /// Sentences about files with secrets that others on the machine may read; `file` is the configuration's. To be asked
    /// before files of secrets are read.
    #[must_use]
    pub fn readable_by_others(&self, file: Option<&Path>) -> Vec<String> {
        let configured = file.filter(|_| self.has_secrets());
        let named = [
            ("requirepass-file", &self.listen.requirepass_file),
            ("aclfile", &self.listen.aclfile),
            ("http-token-file", &self.http.http_token_file),
            ("tls-key-file", &self.tls.tls_key_file),
            ("cluster-key-file", &self.cluster.cluster_key_file),
            ("cluster-credentials", &self.cluster.cluster_credentials),
        ];
        let named = named.iter().filter(|(_, path)| !path.is_empty());
        let all = named.map(|(what, path)| (*what, Path::new(path.as_str())));
        let all = all.chain(configured.map(|path| ("the configuration file", path)));
        let open = all.filter(|(_, path)| {
            fs::metadata(path).is_ok_and(|it| it.permissions().mode() & 0o077 != 0)
        });
        open.map(|(what, path)| {
            format!("{what} '{}' has secrets, and others may read it: chmod 0600", path.display())
        })
        .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::Config;

    #[test]
    fn errors_show_no_secrets() {
        for text in [
            "[listen]\nrequirepas = \"hunter2\"\n",
            "[listen]\nrequirepass = [\"hunter2\"]\n",
            "[listen]\nrequirepass = \"hunter2\n",
            "[http]\nhttp-token = hunter2\n",
            "[[source]]\nname = \"s\"\nkind = \"postgres\"\nurls = \"postgres://a:hunter2@b/c\"\n",
            "[[flow]]\nname = \"s\"\npost = [\"http://a:hunter2@b/c\"]\n",
            "[[user]]\nname = \"s\"\nrules = \"on >hunter2\n",
            "[[user]]\nname = \"s\"\nrules = [\"on\", \">hunter2\"]\n",
        ] {
            let error = Config::parse(text).unwrap_err().to_string();
            assert!(!error.contains("hunter2") && error.contains("line "), "{error}");
        }
    }

    #[test]
    fn secrets_come_from_files_and_open_files_are_told() {
        use std::os::unix::fs::PermissionsExt;
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("pass");
        std::fs::write(&path, "hunter2\nsecond\n").unwrap();
        let text = format!("[listen]\nrequirepass-file = '{}'\n", path.display());
        let mode = |mode| {
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
        };
        let config = Config::parse(&text).unwrap();
        mode(0o644);
        let told = config.readable_by_others(Some(&path));
        assert!(told.len() == 1 && told[0].contains("requirepass-file"), "{told:?}");
        mode(0o600);
        assert_eq!(config.readable_by_others(Some(&path)), Vec::<String>::new());
        let mut read = config.clone();
        read.read_secrets().unwrap();
        assert_eq!(read.listen.requirepass, "hunter2");
        read.check().unwrap();
        let both = format!("{text}requirepass = 'x'\n");
        assert!(Config::parse(&both).unwrap().check().is_err());
        mode(0o644);
        let own = Config::parse("[listen]\nrequirepass = 'x'\n").unwrap();
        assert_eq!(own.readable_by_others(Some(&path)).len(), 1, "the configuration itself");
        for (rules, told) in [("on >x ~*", 1), ("on #0 ~*", 1), ("on ~a>b", 0)] {
            let text = format!("[[user]]\nname = 'ann'\nrules = '{rules}'\n");
            let config = Config::parse(&text).unwrap();
            assert_eq!(config.readable_by_others(Some(&path)).len(), told, "{rules}");
        }
        let users = Config::parse(&format!("[listen]\naclfile = '{}'\n", path.display())).unwrap();
        let told = users.readable_by_others(None);
        assert!(told.len() == 1 && told[0].contains("aclfile"), "{told:?}");
        std::fs::write(&path, "\n").unwrap();
        assert!(config.clone().read_secrets().is_err());
        std::fs::remove_file(&path).unwrap();
        assert!(config.clone().read_secrets().is_err());
    }
}
