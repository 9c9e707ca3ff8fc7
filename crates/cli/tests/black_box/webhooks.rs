//! Flows' posts over https: who is believed to be the receiver.

use crate::certificates::{self, Signed};
use crate::flows::{ask, settle};
use crate::receiver::Receiver;
use crate::support::Server;
use redis::Value;
use rustls::ServerConfig;
use rustls::crypto::ring;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;

/// A receiver with a new certificate for `localhost`.
fn receiver(folder: &Path, name: &str, signed: Signed<'_>) -> Receiver {
    let [key, certificate] = ["key", "crt"].map(|end| folder.join(format!("{name}.{end}")));
    certificates::make(Command::new("openssl"), signed, &key, &certificate);
    let chain = vec![CertificateDer::from_pem_file(&certificate).unwrap()];
    let key = PrivateKeyDer::from_pem_file(&key).unwrap();
    let tls = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(chain, key)
        .unwrap();
    Receiver::with_tls(Arc::new(tls))
}

#[test]
fn https_goes_to_whom_the_named_authority_vouches_for_and_to_nobody_else() {
    let folder = tempfile::tempdir().unwrap();
    let [key, authority] = ["key", "pem"].map(|end| folder.path().join(format!("ca.{end}")));
    certificates::make(Command::new("openssl"), Signed::AsAuthority, &key, &authority);
    let known = receiver(folder.path(), "known", Signed::By(&key, &authority));
    let stranger = receiver(folder.path(), "stranger", Signed::ByItself);
    let server = Server::with_config(&format!(
        "[flows]\nwebhook-certificates = '{}'\n",
        authority.display()
    ));
    let mut client = server.client(3);
    let places = [
        ("known", "localhost", &known),
        ("stranger", "localhost", &stranger),
        // The certificate is for another name.
        ("misnamed", "127.0.0.1", &known),
    ];
    for (name, host, receiver) in places {
        let url = format!("https://{host}:{}/hook", receiver.address.port());
        let add = ["FLOW.ADD", name, "ON", "n|<id>", "HTTP", "POST", &url, "MAX-ATTEMPTS", "1"];
        let _: Value = ask(&mut client, &add).unwrap();
    }
    let () = ask(&mut client, &["SET", "n|1", "secret"]).unwrap();
    places.iter().for_each(|(name, ..)| settle(&mut client, name));
    let got = known.got();
    assert_eq!(got.len(), 1, "{got:?}");
    assert_eq!((&got[0].body["flow"], &got[0].body["value"]), (&"known".into(), &"secret".into()));
    assert_eq!(stranger.got().len(), 0);
    for (name, dead) in [("known", 0), ("stranger", 1), ("misnamed", 1)] {
        let found: Vec<BTreeMap<String, String>> = ask(&mut client, &["FLOW.DEAD", name]).unwrap();
        assert_eq!(found.len(), dead, "{name}: {found:?}");
        assert!(found.iter().all(|dead| dead["error"].contains("certificate")), "{found:?}");
    }
}
