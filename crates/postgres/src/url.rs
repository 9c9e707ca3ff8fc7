//! Where a database is: `postgres://user:password@host:port/database?…`, as `psql` takes it.
//!
//! The parameters `host` (a folder with a socket, if it begins with `/`), `port`, `user`, `password`, `passfile`, `dbname`,
//! `sslmode`, `sslrootcert`, `application_name` and `connect_timeout` may follow the `?`, and the options of
//! [`crate::settings`]. What is missing is taken as `libpq` takes it, but for its environment variables
//! and files, of which only those for passwords are read (`password`).

use std::time::Duration;

/// Where and who.
#[derive(Clone, PartialEq, Eq)]
pub struct Target {
    /// A host, or a folder with a socket.
    pub host: String,
    /// The port.
    pub port: u16,
    /// Who connects.
    pub user: String,
    /// What proves it; empty: nothing.
    pub password: String,
    /// The file that it is in where it is not here; empty: where `libpq` looks.
    pub passfile: String,
    /// The database.
    pub database: String,
    /// Whether the connection is encrypted.
    pub encryption: Encryption,
    /// How the connection is called in `pg_stat_activity`.
    pub application: String,
    /// How long connecting may take.
    pub patience: Duration,
    /// Parameters that are not the connection's, but the source's.
    pub options: Vec<(String, String)>,
}

/// Whether connections are encrypted, and who is at the other end.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Encryption {
    /// No.
    Off,
    /// Where the server offers it; unencrypted otherwise.
    Prefer,
    /// Always; the server may be anybody.
    Require,
    /// Always, and its certificate is checked against those in this file, its name too where `name` is set.
    Verify {
        /// PEM.
        roots: String,
        /// Whether the certificate must be for this host.
        name: bool,
    },
}

// A password is not for logs.
impl std::fmt::Debug for Target {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.write_str(&self.shown())
    }
}

impl Target {
    /// The URL without its password, to be shown.
    #[must_use]
    pub fn shown(&self) -> String {
        if self.host.starts_with('/') {
            return format!(
                "postgres://{}@/{}?host={}&port={}",
                self.user, self.database, self.host, self.port
            );
        }
        format!("postgres://{}@{}:{}/{}", self.user, self.host, self.port, self.database)
    }

    /// Reads a URL.
    ///
    /// # Errors
    /// A sentence that says what is wrong with it, without the password.
    pub fn parse(url: &str) -> Result<Self, String> {
        let rest = url
            .strip_prefix("postgres://")
            .or_else(|| url.strip_prefix("postgresql://"))
            .ok_or("a URL of a database begins with postgres://")?;
        let (rest, parameters) = rest.split_once('?').unwrap_or((rest, ""));
        let (place, database) = rest.split_once('/').unwrap_or((rest, ""));
        let (who, place) = place.rsplit_once('@').map_or(("", place), |(who, place)| (who, place));
        let (user, password) = who.split_once(':').unwrap_or((who, ""));
        let (host, port) = match place.strip_prefix('[').and_then(|place| place.split_once(']')) {
            Some((host, port)) => (host, port.strip_prefix(':').unwrap_or("")),
            None => place.split_once(':').unwrap_or((place, "")),
        };
        if host.contains(',') {
            return Err("several hosts in one URL are not supported".to_owned());
        }
        let mut target = Self {
            host: decoded(host)?,
            port: 5432,
            user: decoded(user)?,
            password: decoded(password)?,
            passfile: String::new(),
            database: decoded(database)?,
            encryption: Encryption::Prefer,
            application: "headwater".to_owned(),
            patience: Duration::from_secs(5),
            options: Vec::new(),
        };
        if !port.is_empty() {
            target.port = port_of(port)?;
        }
        let (mut mode, mut roots) = ("prefer".to_owned(), String::new());
        for parameter in parameters.split('&').filter(|parameter| !parameter.is_empty()) {
            let (name, value) = parameter.split_once('=').unwrap_or((parameter, ""));
            let value = decoded(value)?;
            match name {
                "host" => target.host = value,
                "port" => target.port = port_of(&value)?,
                "user" => target.user = value,
                "password" => target.password = value,
                "passfile" => target.passfile = value,
                "dbname" => target.database = value,
                "application_name" => target.application = value,
                "sslmode" => mode = value,
                "sslrootcert" => roots = value,
                "connect_timeout" => {
                    let seconds = value.parse().ok().filter(|seconds| *seconds > 0);
                    let seconds = seconds.ok_or("connect_timeout is a number of seconds")?;
                    target.patience = Duration::from_secs(seconds);
                }
                other => target.options.push((other.to_owned(), value)),
            }
        }
        target.complete(&mode, roots)
    }

    fn complete(mut self, mode: &str, roots: String) -> Result<Self, String> {
        if self.host.is_empty() {
            "localhost".clone_into(&mut self.host);
        }
        if self.user.is_empty() {
            return Err("the URL names no user: postgres://user@host/database".to_owned());
        }
        if self.database.is_empty() {
            self.database.clone_from(&self.user);
        }
        let given = |wanted: Encryption| match roots.is_empty() {
            true => Err(format!("sslmode={mode} needs sslrootcert, a file of certificates (PEM)")),
            false => Ok(wanted),
        };
        self.encryption = match mode {
            "disable" => Encryption::Off,
            "allow" | "prefer" => Encryption::Prefer,
            "require" if roots.is_empty() => Encryption::Require,
            "require" | "verify-ca" => {
                given(Encryption::Verify { roots: roots.clone(), name: false })?
            }
            "verify-full" => given(Encryption::Verify { roots: roots.clone(), name: true })?,
            other => {
                return Err(format!(
                    "sslmode is disable, prefer, require, verify-ca or verify-full, not `{other}`"
                ));
            }
        };
        if self.host.starts_with('/') {
            self.encryption = Encryption::Off;
        }
        Ok(self)
    }
}

fn port_of(text: &str) -> Result<u16, String> {
    text.parse().map_err(|_| format!("`{text}` is no port"))
}

/// Reads `%41` as `A`.
fn decoded(text: &str) -> Result<String, String> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((&first, behind)) = rest.split_first() {
        rest = behind;
        if first != b'%' {
            bytes.push(first);
            continue;
        }
        let digits = behind.get(..2).and_then(|digits| std::str::from_utf8(digits).ok());
        let byte = digits.and_then(|digits| u8::from_str_radix(digits, 16).ok());
        bytes.push(byte.ok_or("`%` in the URL stands before two hexadecimal digits")?);
        rest = &behind[2..];
    }
    String::from_utf8(bytes).map_err(|_| "the URL is not UTF-8".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls() {
        let target =
            Target::parse("postgres://ann:p%40ss@db.example:5433/shop?sslmode=require").unwrap();
        assert_eq!((&*target.host, target.port), ("db.example", 5433));
        assert_eq!((&*target.user, &*target.password), ("ann", "p@ss"));
        assert_eq!((&*target.database, target.encryption.clone()), ("shop", Encryption::Require));
        assert!(!format!("{target:?}").contains("p@ss"));
        let target =
            Target::parse("postgresql://ann@/shop?host=/run/pg&port=1&connect_timeout=2").unwrap();
        assert_eq!((&*target.host, target.port), ("/run/pg", 1));
        assert_eq!(target.encryption, Encryption::Off);
        assert_eq!(target.patience, Duration::from_secs(2));
        let target = Target::parse("postgres://ann@[::1]:7").unwrap();
        assert_eq!((&*target.host, target.port, &*target.database), ("::1", 7, "ann"));
        for wrong in [
            "mysql://ann@x/y",
            "postgres://x/y",
            "postgres://ann@x:port/y",
            "postgres://ann@x/y?sslmode=verify-full",
            "postgres://ann@x/y?sslmode=never",
            "postgres://a%zz@x/y",
            "postgres://ann@x,y/z",
        ] {
            assert!(Target::parse(wrong).is_err(), "{wrong}");
        }
    }
}
