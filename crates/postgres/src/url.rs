//! Where a database is: `postgres://user:password@host:port/database?…`, as `psql` takes it.
//!
//! There may be several hosts, with commas between. The parameters `host` (a folder with a socket, if it begins with `/`), `port`,
//! `target_session_attrs`, `user`, `password`, `passfile`, `dbname`,
//! `sslmode`, `sslrootcert`, `application_name` and `connect_timeout` may follow the `?`, and the options of
//! [`crate::settings`]. What is missing is taken as `libpq` takes it, but for its environment variables
//! and files, of which only those for passwords are read (`password`).

use crate::terms::Terms;
use std::time::Duration;

/// Where and who.
#[derive(Clone, PartialEq, Eq)]
pub struct Target {
    /// A host, or a folder with a socket.
    pub host: String,
    /// The port.
    pub port: u16,
    /// Further hosts and ports, tried in turn: the first that is a primary is taken.
    pub others: Vec<(String, u16)>,
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
    /// On whose behalf.
    pub terms: Terms,
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
            let hosts: Vec<_> = self.each().map(|one| one.host).collect();
            let ports: Vec<_> = self.each().map(|one| one.port.to_string()).collect();
            return format!(
                "postgres://{}@/{}?host={}&port={}",
                self.user,
                self.database,
                hosts.join(","),
                ports.join(",")
            );
        }
        let places: Vec<_> = self.each().map(|one| format!("{}:{}", one.host, one.port)).collect();
        format!("postgres://{}@{}/{}", self.user, places.join(","), self.database)
    }

    /// Whether a password may be sent as it is: to who has shown a certificate that was checked, over a socket of this machine, or where
    /// the administrator has said so.
    pub(crate) fn may_say_password(&self) -> bool {
        matches!(self.encryption, Encryption::Verify { .. })
            || self.host.starts_with('/')
            || self.terms.clear_passwords
    }

    /// Each of the hosts, as the only one.
    pub(crate) fn each(&self) -> impl Iterator<Item = Self> {
        let first = std::iter::once((self.host.clone(), self.port));
        first.chain(self.others.iter().cloned()).map(|(host, port)| {
            let encryption = match host.starts_with('/') {
                true => Encryption::Off,
                false => self.encryption.clone(),
            };
            Self { host, port, encryption, others: Vec::new(), ..self.clone() }
        })
    }

    /// Sets the hosts and their ports, from lists with commas: one port is that of all.
    fn place(&mut self, hosts: &[String], ports: &[String]) -> Result<(), String> {
        if ports.len() > 1 && ports.len() != hosts.len().max(1) {
            return Err(format!("the URL names {} hosts and {} ports", hosts.len(), ports.len()));
        }
        let port = |at: usize| match ports.get(at).or(ports.first()).map(String::as_str) {
            None | Some("") => Ok(5432),
            Some(text) => port_of(text),
        };
        let host = |text: &String| match text.as_str() {
            "" => "localhost".to_owned(),
            _ => text.clone(),
        };
        let places = hosts.iter().enumerate();
        let places: Result<Vec<_>, String> =
            places.map(|(at, text)| Ok((host(text), port(at)?))).collect();
        let mut places = places?.into_iter();
        (self.host, self.port) = match places.next() {
            Some(first) => first,
            None => ("localhost".to_owned(), port(0)?),
        };
        self.others = places.collect();
        Ok(())
    }

    /// Reads a URL of the administrator's.
    ///
    /// # Errors
    /// A sentence that says what is wrong with it, without the password.
    pub fn parse(url: &str) -> Result<Self, String> {
        Self::parse_for(url, &Terms::default())
    }

    /// Reads a URL of somebody who may do what these terms say.
    ///
    /// # Errors
    /// A sentence that says what is wrong with it, without the password.
    pub fn parse_for(url: &str, terms: &Terms) -> Result<Self, String> {
        let rest = url
            .strip_prefix("postgres://")
            .or_else(|| url.strip_prefix("postgresql://"))
            .ok_or("a URL of a database begins with postgres://")?;
        let (rest, parameters) = rest.split_once('?').unwrap_or((rest, ""));
        let (place, database) = rest.split_once('/').unwrap_or((rest, ""));
        let (who, place) = place.rsplit_once('@').map_or(("", place), |(who, place)| (who, place));
        let (user, password) = who.split_once(':').unwrap_or((who, ""));
        let (mut hosts, mut ports) = (Vec::new(), Vec::new());
        for place in place.split(',') {
            let bracketed = place.strip_prefix('[').and_then(|place| place.split_once(']'));
            let (host, port) = match bracketed {
                Some((host, port)) => (host, port.strip_prefix(':').unwrap_or("")),
                None => place.split_once(':').unwrap_or((place, "")),
            };
            hosts.push(decoded(host)?);
            ports.push(port.to_owned());
        }
        let mut target = Self {
            host: String::new(),
            port: 5432,
            others: Vec::new(),
            user: decoded(user)?,
            password: decoded(password)?,
            passfile: String::new(),
            database: decoded(database)?,
            encryption: Encryption::Prefer,
            application: "headwater".to_owned(),
            patience: Duration::from_secs(5),
            options: Vec::new(),
            terms: terms.clone(),
        };
        let (mut mode, mut roots) = ("prefer".to_owned(), String::new());
        for parameter in parameters.split('&').filter(|parameter| !parameter.is_empty()) {
            let (name, value) = parameter.split_once('=').unwrap_or((parameter, ""));
            let value = decoded(value)?;
            terms.check_parameter(name)?;
            match name {
                "host" => hosts = value.split(',').map(str::to_owned).collect(),
                "port" => ports = value.split(',').map(str::to_owned).collect(),
                "target_session_attrs" => match &*value {
                    "any" | "read-write" | "primary" => {}
                    other => {
                        return Err(format!(
                            "target_session_attrs is any, read-write or primary, not `{other}`: changes are told by a primary"
                        ));
                    }
                },
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
        target.place(&hosts, &ports)?;
        for place in target.each() {
            terms.check_place(&place.host, place.port)?;
        }
        if roots.is_empty() && mode.starts_with("verify-") {
            roots.clone_from(&terms.certificates);
        }
        target.complete(&mode, roots)
    }

    fn complete(mut self, mode: &str, roots: String) -> Result<Self, String> {
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
    // It may be a part of a password that was not encoded.
    text.parse().map_err(|_| "a port of the URL is no number from 0 to 65535".to_owned())
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
        let byte = byte.ok_or("`%` in the URL stands before two hexadecimal digits")?;
        if byte == 0 {
            return Err("`%00` in the URL: no name or password holds a zero byte".to_owned());
        }
        bytes.push(byte);
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
        let hosts = |url: &str| -> Vec<String> {
            let target = Target::parse(url).unwrap();
            target.each().map(|one| format!("{} {}", one.host, one.port)).collect()
        };
        let attributes = "target_session_attrs=read-write";
        assert_eq!(hosts(&format!("postgres://ann@a,b:7/z?{attributes}")), ["a 5432", "b 7"]);
        assert_eq!(hosts("postgres://ann@/z?host=/run/a,b&port=1,2"), ["/run/a 1", "b 2"]);
        assert_eq!(hosts("postgres://ann@a,[::1]:9,c/z?port=3"), ["a 3", "::1 3", "c 3"]);
        assert_eq!(hosts("postgres://ann@/z"), ["localhost 5432"]);
        let shown = Target::parse("postgres://ann:x@a,b:7/z").unwrap().shown();
        assert_eq!(shown, "postgres://ann@a:5432,b:7/z");
        for wrong in [
            "mysql://ann@x/y",
            "postgres://x/y",
            "postgres://ann@x:port/y",
            "postgres://ann@x/y?sslmode=verify-full",
            "postgres://ann@x/y?sslmode=never",
            "postgres://a%zz@x/y",
            "postgres://ann@x,y,z/d?port=1,2",
            "postgres://ann@x/y?target_session_attrs=standby",
            "postgres://ann%00@x/y",
            "postgres://ann@x/y?sslrootcert=%00",
        ] {
            assert!(Target::parse(wrong).is_err(), "{wrong}");
        }
    }
}
