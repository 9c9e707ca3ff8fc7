//! On whose behalf a source connects, and what that person may.
//!
//! A URL of the administrator's may name files, and goes with the passwords that the process has been given. One that a client has named goes
//! with nothing that the client has not brought along: neither a password of the environment, nor a file, and to no
//! place but those that rules name.

use headwater_base::connect::{Allowed, shown_place};
use std::io;
use std::net::{SocketAddr, ToSocketAddrs};

/// What a URL may be, and what goes with it.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Terms {
    /// The places that a client may name; `None`: it is the administrator's URL.
    pub allowed: Option<Allowed>,
    /// A password may be sent in the clear to somebody who has not shown a certificate that was checked.
    pub clear_passwords: bool,
    /// The certificates (PEM) that are trusted where a URL names no file of them; empty: none.
    pub certificates: String,
    /// The shard that has this source for itself, where others in processes of their own have it as well: what it makes in the
    /// database has names of its own.
    pub shard: Option<u16>,
}

/// Parameters of a URL that name files of this machine.
const FILES: [&str; 7] =
    ["passfile", "sslrootcert", "sslkey", "sslcert", "sslcrl", "service", "servicefile"];

impl Terms {
    /// Whether a URL may have a parameter of this name.
    pub(crate) fn check_parameter(&self, name: &str) -> Result<(), String> {
        if self.allowed.is_some() && FILES.contains(&name) {
            return Err(format!(
                "a client's URL cannot have {name}: files of this machine are named in the configuration file alone"
            ));
        }
        Ok(())
    }

    /// Whether a URL may name a place.
    pub(crate) fn check_place(&self, host: &str, port: u16) -> Result<(), String> {
        match &self.allowed {
            Some(allowed) if !allowed.names(host, port) => {
                Err(format!("connect-allow does not name {}", shown_place(host, port)))
            }
            _ => Ok(()),
        }
    }

    /// The addresses of a place that may be connected to: those that this finds are those that are used.
    pub(crate) fn addresses(&self, host: &str, port: u16) -> io::Result<Vec<SocketAddr>> {
        let found = (host, port).to_socket_addrs()?;
        let Some(allowed) = &self.allowed else { return Ok(found.collect()) };
        let admitted: Vec<_> =
            found.filter(|address| allowed.admits(host, address.ip(), port)).collect();
        if admitted.is_empty() {
            let text = "connect-allow admits none of its addresses";
            return Err(io::Error::new(io::ErrorKind::PermissionDenied, text));
        }
        Ok(admitted)
    }

    /// Whether what the process has been given besides the URL goes with it.
    pub(crate) fn has_own_passwords(&self) -> bool {
        self.allowed.is_none()
    }
}

#[cfg(test)]
mod tests {
    use super::Terms;
    use crate::url::Target;
    use headwater_base::connect::Allowed;

    #[test]
    fn clients_name_what_rules_name_and_no_files() {
        let allowed = Allowed::parse(["db:5432", "127.0.0.1:*", "a:*", "b:1"]).unwrap();
        let client = Terms { allowed: Some(allowed), ..Terms::default() };
        for good in
            ["postgres://ann:x@db/y", "postgres://ann@127.0.0.1:7/y", "postgres://ann@a,b:1/y"]
        {
            Target::parse_for(good, &client).unwrap();
        }
        for (bad, told) in [
            ("postgres://ann@db:5433/y", "connect-allow"),
            ("postgres://ann@localhost/y", "connect-allow"),
            ("postgres://ann@/y", "connect-allow"),
            ("postgres://ann@a,b:2/y", "connect-allow"),
            ("postgres://ann@db/y?host=evil", "connect-allow"),
            ("postgres://ann@db/y?host=/run/postgresql", "connect-allow"),
            ("postgres://ann@db/y?passfile=/etc/passwd", "passfile"),
            ("postgres://ann@db/y?sslmode=verify-full&sslrootcert=/etc/passwd", "sslrootcert"),
            ("postgres://ann@db/y?sslkey=/etc/passwd", "sslkey"),
            ("postgres://ann@db/y?sslcert=/etc/passwd", "sslcert"),
            ("postgres://ann@db/y?service=x", "service"),
        ] {
            let error = Target::parse_for(bad, &client).unwrap_err();
            assert!(error.contains(told), "{bad}: {error}");
        }
        let file = Terms { certificates: String::from("/ca.pem"), ..client };
        Target::parse_for("postgres://ann@db/y?sslmode=verify-full", &file).unwrap();
        assert!(file.addresses("127.0.0.1", 7).is_ok());
        assert!(file.addresses("localhost", 1).is_ok(), "by a rule for its address");
        let names = Terms { allowed: Some(Allowed::parse(["*:*"]).unwrap()), ..Terms::default() };
        assert!(names.addresses("localhost", 1).is_err(), "where a name leads is looked at");
        assert!(Terms::default().addresses("localhost", 1).is_ok());
    }
}
