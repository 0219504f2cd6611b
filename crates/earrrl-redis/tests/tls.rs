//! Tests TLS with a certificate of the test's own.
#![cfg(feature = "tls")]
#![allow(clippy::unwrap_used, clippy::panic)]

use std::sync::Arc;

use earrrl::{Charge, Cost, Engine, Mode};
use earrrl_redis::{Certificates, Options, RedisEngine};
use rcgen::CertifiedKey;
use rustls::pki_types::PrivatePkcs8KeyDer;
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsAcceptor;

use crate::support;
use crate::support::{PATIENCE, Server};

#[tokio::test]
async fn a_decision_over_tls() {
    let server = Server::start(&[]).await;
    let own = rcgen::generate_simple_self_signed(vec!["localhost".into()]).unwrap();
    let certificate = own.cert.pem();
    let port = terminate_tls(own, server.port).await;

    let mut options = Options::new(&format!("rediss://localhost:{port}"));
    options.deadline = PATIENCE;
    options.certificates = Some(Certificates::trusting(certificate.into_bytes()));
    let engine = RedisEngine::connect(options.clone(), PATIENCE)
        .await
        .unwrap();
    assert!(engine.ready(PATIENCE).await, "{:?}", engine.status());
    let rule = engine
        .prepare("tls", &"gcra 1/1h burst=2".parse().unwrap())
        .unwrap();
    let charge = Charge {
        rule,
        key: b"k",
        cost: Cost::ONE,
    };
    assert_eq!(
        engine
            .decide(&[charge], Mode::Check, None)
            .await
            .unwrap()
            .remaining,
        1
    );
    assert_eq!(engine.status().counts.shared, 1);

    options.certificates = None;
    let engine = RedisEngine::new(options).unwrap();
    support::until("an unknown authority is refused", || {
        engine.status().last_failure.is_some()
    })
    .await;
}

#[tokio::test]
async fn a_port_without_tls_is_told_as_such() {
    let server = Server::start(&[]).await;
    let engine = RedisEngine::new(Options::new(&format!("rediss://127.0.0.1:{}", server.port)));
    let engine = engine.unwrap();
    let why = format!("127.0.0.1:{}: no answer in TLS", server.port);
    support::until("the cause is told", || {
        engine
            .status()
            .last_failure
            .is_some_and(|told| told.contains(&why))
    })
    .await;
}

#[test]
fn certificates_that_never_work_are_refused() {
    let new = || rcgen::generate_simple_self_signed(vec!["localhost".into()]).unwrap();
    let one = new();
    let other = new();
    let problem = |url: &str, authority: Option<&str>, key: &CertifiedKey<rcgen::KeyPair>| {
        let mut certificates = Certificates::default();
        certificates.authority = authority.map(|text| text.as_bytes().to_vec());
        let key = key.signing_key.serialize_pem().into_bytes();
        certificates.client = Some((one.cert.pem().into_bytes(), key));
        let mut options = Options::new(url);
        options.certificates = Some(certificates);
        options
            .check()
            .map_err(|error| error.to_string())
            .err()
            .unwrap_or_default()
    };
    let authority = one.cert.pem();
    assert_eq!(problem("rediss://h", Some(&authority), &one), "");
    assert_eq!(problem("REDISS://h", None, &one), "");
    let found = problem("rediss://h", None, &other);
    assert!(
        found.starts_with("certificates.client: keys may not be consistent"),
        "{found}"
    );
    let found = problem("redis://u:p@h", None, &one);
    assert!(
        found.starts_with("certificates: of no use for redis://h; expected"),
        "{found}"
    );
    for wrong in [
        "",
        "a text",
        "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n",
    ] {
        let found = problem("rediss://h", Some(wrong), &one);
        assert!(found.starts_with("certificates.authority: "), "{found}");
    }
}

/// Accepts TLS connections and forwards their content in plain to a port, since the tests' server
/// has no TLS.
async fn terminate_tls(own: CertifiedKey<rcgen::KeyPair>, to: u16) -> u16 {
    let key = PrivatePkcs8KeyDer::from(own.signing_key.serialize_der()).into();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = rustls::ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![own.cert.der().clone()], key)
        .unwrap();
    let acceptor = TlsAcceptor::from(Arc::new(config));
    let listener = TcpListener::bind("localhost:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    tokio::spawn(async move {
        while let Ok((near, _)) = listener.accept().await {
            let acceptor = acceptor.clone();
            tokio::spawn(async move {
                let mut near = acceptor.accept(near).await?;
                let mut far = TcpStream::connect(("127.0.0.1", to)).await?;
                tokio::io::copy_bidirectional(&mut near, &mut far).await
            });
        }
    });
    port
}
