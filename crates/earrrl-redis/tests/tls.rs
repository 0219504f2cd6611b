//! TLS, with a certificate of the test's own.
#![cfg(feature = "tls")]
#![allow(clippy::unwrap_used, clippy::panic)]

mod support;

use earrrl::{Charge, Cost, Engine, Mode};
use earrrl_redis::{Certificates, Options, RedisEngine};

use support::{Folder, PATIENCE, Server, free_port};

#[tokio::test]
async fn a_decision_over_tls() {
    let folder = Folder::new();
    let made = rcgen::generate_simple_self_signed(vec!["localhost".into()]).unwrap();
    let certificate = made.cert.pem();
    let file = |name: &str, text: &str| {
        let path = folder.path().join(name).display().to_string();
        std::fs::write(&path, text).unwrap();
        path
    };
    let (cert, key) =
        (file("cert.pem", &certificate), file("key.pem", &made.signing_key.serialize_pem()));
    let port = free_port().to_string();
    let options = ["--tls-port", &port, "--tls-cert-file", &cert, "--tls-key-file", &key];
    let more = ["--tls-ca-cert-file", &cert, "--tls-auth-clients", "no"];
    let _server = Server::start(
        &[options, ["--tls-replication", "no", more[0], more[1], more[2], more[3]]].concat(),
    )
    .await;

    let mut options = Options::new(&format!("rediss://localhost:{port}"));
    options.deadline = PATIENCE;
    options.certificates = Some(Certificates::trusting(certificate.into_bytes()));
    let engine = RedisEngine::connect(options.clone(), PATIENCE).await.unwrap();
    assert!(engine.ready(PATIENCE).await, "{:?}", engine.status());
    let rule = engine.prepare("tls", &"gcra 1/1h burst=2".parse().unwrap()).unwrap();
    let charge = Charge { rule, key: b"k", cost: Cost::ONE };
    assert_eq!(engine.decide(&[charge], Mode::Check, None).await.unwrap().remaining, 1);
    assert_eq!(engine.status().counts.shared, 1);

    options.certificates = None;
    let engine = RedisEngine::new(options).unwrap();
    support::until("an unknown authority is refused", || engine.status().last_failure.is_some())
        .await;
}
