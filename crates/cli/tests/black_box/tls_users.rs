//! Certificates that name users, lists of those that are good no longer, and the command line's own client over TLS.

use crate::support::{Server, program};
use crate::tls::{Authority, Dial, Identity, address, identity, run, settings, start};
use std::io::{Read, Write};
use std::path::PathBuf;
use std::process::{Command, Stdio};

impl Authority {
    /// A certificate for whoever is called so.
    pub(crate) fn issue_to(&self, name: &str) -> Identity {
        let made = identity(self.folder.path(), name);
        let mut openssl = Command::new("openssl");
        openssl.args(["req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj"]);
        openssl.args([&format!("/CN={name}"), "-addext", "basicConstraints=critical,CA:FALSE"]);
        openssl.arg("-CAkey").arg(&self.own.key).arg("-CA").arg(&self.own.certificate);
        run(openssl.arg("-keyout").arg(&made.key).arg("-out").arg(&made.certificate));
        made
    }

    /// A list of certificates that are good no longer.
    fn revoke(&self, gone: &[&Identity]) -> PathBuf {
        let file = |name: &str| self.folder.path().join(name);
        std::fs::write(file("crl.index"), "").unwrap();
        std::fs::write(file("crl.number"), "01").unwrap();
        let text = format!(
            "[ca]\ndefault_ca=d\n[d]\ndatabase={0}/crl.index\ncrlnumber={0}/crl.number\n\
             default_md=sha256\ndefault_crl_days=30\n",
            self.folder.path().display()
        );
        std::fs::write(file("crl.settings"), text).unwrap();
        let openssl = || {
            let mut openssl = Command::new("openssl");
            openssl.args(["ca", "-config"]).arg(file("crl.settings"));
            openssl.arg("-keyfile").arg(&self.own.key).arg("-cert").arg(&self.own.certificate);
            openssl
        };
        for one in gone {
            run(openssl().arg("-revoke").arg(&one.certificate));
        }
        let list = file("revoked.pem");
        run(openssl().args(["-gencrl", "-out"]).arg(&list));
        list
    }
}

const USERS: &str = "[[user]]\nname = 'default'\nrules = 'off'\n\
    [[user]]\nname = 'ann'\nrules = 'on ~a* +@all -@dangerous'\n\
    [[user]]\nname = 'shop'\ncertificate = 'shop.example'\nrules = 'on ~s* +@all'\n\
    [[user]]\nname = 'gone'\nrules = 'off ~* +@all'\n";

#[test]
fn a_certificate_names_its_user_wherever_tls_is_spoken() {
    let authority = Authority::new();
    let own = authority.issue("server");
    let [ann, shop, gone, nobody] =
        ["ann", "shop.example", "gone", "nobody"].map(|name| authority.issue_to(name));
    for (shards, names) in [("1", "CN"), ("3", "CN"), ("1", "off")] {
        let trusts = format!(
            "tls-ca-cert-file = '{}'\ntls-auth-clients = 'optional'\n\
             tls-auth-clients-user = '{names}'\n[http]\nhttp-token = 'figures'\n{USERS}",
            authority.own.certificate.display()
        );
        let server = start(shards, &settings(&own, &trusts));
        let dial = |who: &Identity| Dial::new(&server, &authority).with(who).connect();
        let by_name = names == "CN";
        let who = |who: &Identity| dial(who).ask(&["CLIENT", "ID"]).unwrap();
        assert_eq!(who(&ann).starts_with(':'), by_name);
        assert!(who(&shop).starts_with(':'), "the configuration says so");
        for stranger in [&gone, &nobody] {
            assert!(who(stranger).starts_with("-NOAUTH"), "{}", who(stranger));
        }
        let mut client = dial(&shop);
        assert_eq!(client.ask(&["SET", "s1", "x"]).unwrap(), "+OK");
        assert!(client.ask(&["SET", "a1", "x"]).unwrap().starts_with("-NOPERM"));
        assert_eq!(client.ask(&["RESET"]).unwrap(), "+RESET");
        assert_eq!(
            client.ask(&["SET", "s1", "y"]).unwrap(),
            "+OK",
            "its certificate is still there"
        );
        // Passwords are as good as they were: nobody is bound to a certificate.
        assert!(client.ask(&["AUTH", "ann", "none"]).unwrap().starts_with("-WRONGPASS"));

        let memcached = |who: &Identity| {
            let at = address(&server, "memcached's protocol over TLS on ");
            let mut client =
                Dial { address: at, ..Dial::new(&server, &authority) }.with(who).connect();
            client.0.write_all(b"set s2 0 0 1\r\nx\r\n").unwrap();
            client.line().unwrap()
        };
        assert_eq!(memcached(&shop), "STORED");
        let told = memcached(&ann);
        assert_eq!(told.starts_with("CLIENT_ERROR NOPERM"), by_name, "{told}");
        assert!(memcached(&nobody).starts_with("CLIENT_ERROR auth"), "{}", memcached(&nobody));

        // Figures are for who may send INFO, which `ann` may not; a token is as good.
        let figures = |who: &Identity, proof: &str| {
            let at = address(&server, "HTTPS on ");
            let mut client =
                Dial { address: at, ..Dial::new(&server, &authority) }.with(who).connect();
            let request = format!("GET /metrics HTTP/1.0\r\nHost: localhost\r\n{proof}\r\n");
            client.0.write_all(request.as_bytes()).unwrap();
            let mut answer = String::new();
            client.0.read_to_string(&mut answer).unwrap();
            answer.contains(" 200 ")
        };
        assert!(figures(&shop, ""));
        for other in [&ann, &gone, &nobody] {
            assert!(!figures(other, ""));
            assert!(figures(other, "Authorization: Bearer figures\r\n"));
        }
    }
}

#[test]
fn what_is_said_of_certificates_must_go_together() {
    let authority = Authority::new();
    let own = authority.issue("server");
    let trusts = format!("tls-ca-cert-file = '{}'\n", authority.own.certificate.display());
    let twice =
        format!("{USERS}[[user]]\nname = 'b'\ncertificate = 'shop.example'\nrules = 'on'\n");
    for (text, told) in [
        (settings(&own, &format!("tls-auth-clients = 'no'\n{USERS}")), "user 'shop': certificate"),
        (
            settings(&own, "tls-auth-clients = 'no'\ntls-auth-clients-user = 'CN'"),
            "tls-auth-clients-user needs",
        ),
        (settings(&own, &format!("{trusts}{twice}")), "another user has the certificate"),
        (settings(&own, &format!("{trusts}tls-crl-file = '/none'")), "tls-crl-file"),
        (
            settings(&own, &format!("{trusts}tls-crl-file = '{}'", own.certificate.display())),
            "tls-crl-file",
        ),
    ] {
        let file = crate::support::TempFile::new(&text);
        let mut command = program();
        command.args(["serve", "--port", "0", "--config", file.path.to_str().unwrap()]);
        let told_all = command.output().unwrap();
        let text = String::from_utf8_lossy(&told_all.stderr);
        assert!(!told_all.status.success() && text.contains(told), "{told}: {text}");
    }
}

#[test]
fn what_was_revoked_lets_nobody_in() {
    let authority = Authority::new();
    let own = authority.issue("server");
    let [good, bad] = ["good", "bad"].map(|name| authority.issue_to(name));
    let list = authority.revoke(&[&bad]);
    let more = format!(
        "tls-ca-cert-file = '{}'\ntls-crl-file = '{}'",
        authority.own.certificate.display(),
        list.display()
    );
    let server = start("1", &settings(&own, &more));
    let is_let_in = |who: &Identity| Dial::new(&server, &authority).with(who).is_let_in();
    assert!(is_let_in(&good) && !is_let_in(&bad));
    // A newer list holds for whoever comes then.
    authority.revoke(&[&bad, &good]);
    let set: Result<(), _> = redis::cmd("CONFIG")
        .arg(&["SET", "tls-crl-file", list.to_str().unwrap()])
        .query(&mut server.client(3));
    set.unwrap();
    assert!(!is_let_in(&good) && !is_let_in(&bad));
}

/// What `headwater cli` says to these words.
fn cli(words: &[&str], request: &[&str]) -> (bool, String) {
    let mut command = program();
    command.arg("cli").args(words).args(request).stdin(Stdio::null());
    let told = command.output().unwrap();
    let text = [told.stdout, told.stderr].concat();
    (told.status.success(), String::from_utf8_lossy(&text).into_owned())
}

#[test]
fn the_command_lines_client_talks_tls() {
    let authority = Authority::new();
    let (own, ann) = (authority.issue("server"), authority.issue_to("ann"));
    let file = |path: &PathBuf| path.to_str().unwrap().to_owned();
    let trusted = file(&authority.own.certificate);
    let more = format!(
        "tls-ca-cert-file = '{trusted}'\ntls-auth-clients = 'optional'\n\
         tls-auth-clients-user = 'CN'\n{USERS}"
    );
    let server: Server = start("1", &settings(&own, &more));
    let port = address(&server, "TLS on ").port().to_string();
    let place = ["-h", "localhost", "-p", &port, "--cacert", &trusted];
    let (certificate, key) = (file(&ann.certificate), file(&ann.key));
    let shows = ["--cert", certificate.as_str(), "--key", key.as_str()];
    let by_place = [&place[..], &["--tls"]].concat();
    let whoami = ["CLIENT", "GETNAME"];
    assert_eq!(cli(&[&by_place[..], &shows].concat(), &whoami), (true, "\n".into()));
    let (done, told) = cli(&by_place, &whoami);
    assert!(!done && told.starts_with("NOAUTH"), "{told}");
    let url = format!("rediss://localhost:{port}");
    let by_url = ["-u", url.as_str(), "--cacert", trusted.as_str()];
    let long = "x".repeat(100_000);
    let set = ["SET", "a1", &long];
    assert_eq!(cli(&[&by_url[..], &shows].concat(), &set), (true, "OK\n".into()));
    let got = cli(&[&by_url[..], &shows].concat(), &["GET", "a1"]);
    assert_eq!(got, (true, format!("{long}\n")));
    // Whoever answers in the server's place is not talked to; nor is it by another name, or in the clear.
    let strange = file(&Authority::new().own.certificate);
    assert!(!strange.is_empty());
    for words in [
        &["-u", &url, "--cacert", &certificate][..],
        &["-h", "127.0.0.1", "-p", &port, "--tls", "--cacert", &trusted],
        &["-h", "localhost", "-p", &port],
        &["-u", &url, "--cacert", "/none"],
        &["-u", &url, "--cert", &certificate],
    ] {
        assert!(!cli(words, &["PING"]).0, "{words:?}");
    }
    let (done, told) = cli(
        &["-h", "127.0.0.1", "-p", &port, "--tls", "--cacert", &trusted, "--sni", "localhost"],
        &["PING"],
    );
    assert!(!done && told.starts_with("NOAUTH"), "{told}");
}

#[test]
fn the_hardened_configuration_of_the_documents_keeps_everything_else_out() {
    let authority = Authority::new();
    let (own, app) = (authority.issue("server"), authority.issue_to("app"));
    let password = authority.folder.path().join("password");
    std::fs::write(&password, "the password\n").unwrap();
    let document = include_str!("../../../../docs/security-network.md");
    let (_, rest) = document.split_once("```toml\n").unwrap();
    let mut text = rest.split_once("```").unwrap().0.to_owned();
    for (there, here) in [
        ("/etc/headwater/password", &password),
        ("/etc/headwater/server.crt", &own.certificate),
        ("/etc/headwater/server.key", &own.key),
        ("/etc/headwater/clients.crt", &authority.own.certificate),
        ("/etc/headwater/databases.crt", &authority.own.certificate),
    ] {
        assert!(text.contains(there), "{there}");
        text = text.replace(there, here.to_str().unwrap());
    }
    let text = text.replace("0.0.0.0", "127.0.0.1").replace("tls-port = 7379", "tls-port = 0");
    let file = crate::support::TempFile::new(&text);
    let mut command = program();
    command.args(["serve", "--config", file.path.to_str().unwrap()]);
    // It tells the address of TLS alone.
    let server = Server::spawn(command);
    assert_eq!(address(&server, "TLS on ").port(), server.port);
    assert!(!Dial::new(&server, &authority).is_let_in(), "it shows no certificate");
    let mut client = Dial::new(&server, &authority).with(&app).connect();
    assert!(client.ask(&["PING"]).unwrap().starts_with("-NOAUTH"));
    assert_eq!(client.ask(&["AUTH", "the password"]).unwrap(), "+OK");
    assert!(client.ask(&["SHUTDOWN"]).unwrap().starts_with("-ERR unknown command"));
    for (place, told) in [("db.internal:22", "-ERR connect-allow"), ("db.internal:5432", "+OK")] {
        let url = format!("postgres://ann@{place}/shop");
        let answer = client.ask(&["SOURCE.ADD", "s", "postgres", &url]).unwrap();
        assert!(answer.starts_with(told), "{place}: {answer}");
    }
}
