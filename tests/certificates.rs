//! Certificates for tests, made by `openssl`. It is a module of the tests of several crates, by its path.

use std::path::Path;
use std::process::Command;

/// Who vouches for a certificate.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Signed<'a> {
    /// Nobody: whoever trusts it trusts it alone.
    ByItself,
    /// Nobody, and it vouches for others.
    AsAuthority,
    /// The authority with this key and certificate.
    By(&'a Path, &'a Path),
}

/// Makes a key, and a certificate of it for the host `localhost`. `openssl` is the command that runs it.
pub(crate) fn make(mut openssl: Command, signed: Signed<'_>, key: &Path, certificate: &Path) {
    openssl.args(["req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2"]);
    let authority = matches!(signed, Signed::AsAuthority);
    if authority {
        openssl.args(["-subj", "/CN=An authority", "-addext", "basicConstraints=critical,CA:TRUE"]);
    } else {
        openssl.args(["-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost"]);
        openssl.args(["-addext", "basicConstraints=critical,CA:FALSE"]);
    }
    if let Signed::By(key, certificate) = signed {
        openssl.arg("-CAkey").arg(key).arg("-CA").arg(certificate);
    }
    openssl.arg("-keyout").arg(key).arg("-out").arg(certificate);
    let made = openssl.output().unwrap();
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
}
