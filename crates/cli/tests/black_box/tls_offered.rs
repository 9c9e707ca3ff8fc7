//! What encryption servers agree to: every cipher and version that openssl knows is offered at each port.

use crate::support::{Server, Socket};
use crate::tls::{Authority, Dial, address, settings, start};
use std::net::{SocketAddr, TcpStream};
use std::process::{Command, Stdio};

/// What may be agreed on with TLS 1.2; the key exchange is ephemeral, and every cipher authenticates what it encrypts.
const OLD: [&str; 6] = [
    "ECDHE-ECDSA-AES128-GCM-SHA256",
    "ECDHE-ECDSA-AES256-GCM-SHA384",
    "ECDHE-ECDSA-CHACHA20-POLY1305",
    "ECDHE-RSA-AES128-GCM-SHA256",
    "ECDHE-RSA-AES256-GCM-SHA384",
    "ECDHE-RSA-CHACHA20-POLY1305",
];
/// What may be agreed on with TLS 1.3.
const NEW: [&str; 3] =
    ["TLS_AES_128_GCM_SHA256", "TLS_AES_256_GCM_SHA384", "TLS_CHACHA20_POLY1305_SHA256"];
/// Those that openssl knows for TLS 1.3.
const NEW_KNOWN: [&str; 5] = [
    "TLS_AES_128_GCM_SHA256",
    "TLS_AES_256_GCM_SHA384",
    "TLS_CHACHA20_POLY1305_SHA256",
    "TLS_AES_128_CCM_SHA256",
    "TLS_AES_128_CCM_8_SHA256",
];

/// What openssl's client tells of a handshake with these options.
fn told(at: SocketAddr, words: &[&str]) -> String {
    let mut command = Command::new("openssl");
    command.args(["s_client", "-connect", &at.to_string(), "-servername", "localhost"]).args(words);
    let told = command.stdin(Stdio::null()).output().unwrap();
    String::from_utf8_lossy(&told.stdout).into_owned()
}

/// The cipher that is agreed on; none: there is no agreement.
fn agreed(at: SocketAddr, words: &[&str]) -> Option<String> {
    let told = told(at, words);
    let (_, cipher) = told.split_once("Cipher is ")?;
    let cipher = cipher.lines().next()?.trim();
    (cipher != "(NONE)").then(|| cipher.to_owned())
}

/// All ciphers of versions before 1.3 that openssl knows, with those that encrypt nothing or prove nothing.
fn known() -> Vec<String> {
    let all = Command::new("openssl").args(["ciphers", "ALL:COMPLEMENTOFALL@SECLEVEL=0"]).output();
    let text = String::from_utf8(all.unwrap().stdout).unwrap();
    let names = text.trim().split(':').filter(|name| !name.starts_with("TLS_"));
    names.map(str::to_owned).collect()
}

#[test]
fn nothing_weak_is_agreed_on_at_any_port() {
    let authority = Authority::new();
    let server = start("1", &settings(&authority.issue("server"), "tls-auth-clients = 'no'"));
    let known = known();
    assert!(known.len() > 50 && known.iter().any(|name| name == "NULL-SHA"), "{known:?}");
    let weak: Vec<_> =
        known.iter().map(|name| &**name).filter(|name| !OLD.contains(name)).collect();
    let weak = weak.join(":");
    for port in ["TLS on ", "memcached's protocol over TLS on ", "HTTPS on "] {
        let at = address(&server, port);
        let old = |ciphers: &str| agreed(at, &["-tls1_2", "-cipher", ciphers]);
        // All that are weak are offered at once, and then with the one that is to be taken.
        assert_eq!(old(&format!("{weak}:@SECLEVEL=0")), None, "{port}");
        let found: Vec<_> = OLD.into_iter().filter(|name| old(name).is_some()).collect();
        assert!(!found.is_empty(), "{port}");
        for name in found {
            assert_eq!(old(&format!("{weak}:{name}:@SECLEVEL=0")).as_deref(), Some(name), "{port}");
        }
        let found =
            NEW_KNOWN.iter().filter_map(|name| agreed(at, &["-tls1_3", "-ciphersuites", name]));
        assert_eq!(found.collect::<Vec<_>>(), NEW, "{port}");
        for version in ["-tls1", "-tls1_1"] {
            let told = agreed(at, &[version, "-cipher", "ALL:@SECLEVEL=0"]);
            assert_eq!(told, None, "{port}: {version}");
        }
        for version in ["-tls1_2", "-tls1_3"] {
            let told = told(at, &[version]);
            assert!(told.contains("Compression: NONE"), "{port}: {told}");
            assert!(!told.contains("Early data was accepted"), "{port}: {told}");
        }
        let told = told(at, &["-tls1_2"]);
        assert!(told.contains("Secure Renegotiation IS supported"), "{port}: {told}");
        // Groups of keys that are too short.
        for group in ["secp160r1", "secp192r1", "sect163k1", "brainpoolP256r1"] {
            assert_eq!(agreed(at, &["-tls1_2", "-groups", group]), None, "{port}: {group}");
        }
    }
}

#[test]
fn versions_are_set_while_the_server_runs() {
    let authority = Authority::new();
    let server = start("2", &settings(&authority.issue("server"), "tls-auth-clients = 'no'"));
    let spoken = |server: &Server| {
        [crate::tls::OLD, crate::tls::NEW]
            .map(|versions| Dial { versions, ..Dial::new(server, &authority) }.is_let_in())
    };
    let mut client = server.client(3);
    let mut set = |text: &str| {
        redis::cmd("CONFIG").arg(&["SET", "tls-protocols", text]).query::<()>(&mut client)
    };
    assert_eq!(spoken(&server), [true, true]);
    set("TLSv1.2").unwrap();
    assert_eq!(spoken(&server), [true, false]);
    for wrong in ["TLSv1.1", "TLSv1.2 SSLv3"] {
        let error = set(wrong).unwrap_err().to_string();
        let named = wrong.rsplit(' ').next().unwrap();
        assert!(error.contains(&format!("names '{named}'")), "{error}");
        assert!(error.contains("allowed: TLSv1.2, TLSv1.3"), "{error}");
        assert_eq!(spoken(&server), [true, false]);
    }
    set("tlsv1.3").unwrap();
    assert_eq!(spoken(&server), [false, true]);
    // As in Redis: all that there are.
    set("").unwrap();
    assert_eq!(spoken(&server), [true, true]);
}

#[test]
fn who_speaks_no_tls_is_answered_nothing() {
    let authority = Authority::new();
    let server = start("1", &settings(&authority.issue("server"), "tls-auth-clients = 'no'"));
    for port in ["TLS on ", "memcached's protocol over TLS on "] {
        let mut plain = Socket::new(TcpStream::connect(address(&server, port)).unwrap());
        plain.send(b"PING\r\n");
        // No alert of TLS, which it could not read.
        assert_eq!(plain.rest(), b"");
    }
}
