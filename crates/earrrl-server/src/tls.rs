//! TLS: the certificates in force, their replacement while connections continue, and handshakes
//! with a time limit.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, UNIX_EPOCH};

use arc_swap::ArcSwap;
use rustls::crypto::ring;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, UnixTime};
use rustls::server::WebPkiClientVerifier;
use rustls::{RootCertStore, ServerConfig};
use tokio::net::TcpStream;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;

use crate::config::listen::Protocol;
use crate::config::{TlsConfig, read_bytes};
use crate::connections::Connection;
use crate::metrics::{Counter, Family};

/// The certificates in force and the settings that they were read with.
#[derive(Debug)]
pub struct Tls {
    config: TlsConfig,
    current: ArcSwap<ServerConfigs>,
    handshakes: Counter,
    failed_handshakes: Counter,
    reloads: Counter,
    reload_failed: AtomicBool,
}

/// The settings of the listeners, in the order of [`Protocol::ALL`]. They differ in the protocols
/// that they negotiate (ALPN).
type ServerConfigs = [Arc<ServerConfig>; Protocol::ALL.len()];

impl Tls {
    /// Reads the files of certificates and keys that are configured.
    ///
    /// # Errors
    /// Returns the path of a file that cannot be used, and the reason.
    pub fn load(config: &TlsConfig) -> Result<Self, String> {
        Ok(Self {
            config: config.clone(),
            current: ArcSwap::from_pointee(server_configs(config)?),
            handshakes: Counter::default(),
            failed_handshakes: Counter::default(),
            reloads: Counter::default(),
            reload_failed: AtomicBool::new(false),
        })
    }

    /// Reads the certificates again; new connections use them. Session tickets of the old
    /// certificates become invalid, so that every client is verified with the new CA certificates.
    ///
    /// # Errors
    /// Returns the errors of [`Tls::load`]; the old certificates stay in force.
    pub fn reload(&self) -> Result<(), String> {
        let loaded = server_configs(&self.config);
        self.reload_failed.store(loaded.is_err(), Relaxed);
        self.current.store(Arc::new(loaded?));
        self.reloads.increment();
        Ok(())
    }

    /// Returns the files of certificates and keys that are configured.
    pub fn files(&self) -> Vec<PathBuf> {
        let TlsConfig {
            cert,
            key,
            client_ca,
            ..
        } = &self.config;
        [cert, key].into_iter().chain(client_ca).cloned().collect()
    }

    /// Returns true if the listener of this protocol uses TLS.
    pub fn covers(&self, protocol: Protocol) -> bool {
        self.config.covers(protocol)
    }

    /// Performs the handshake with a client, within the time of a request.
    ///
    /// # Errors
    /// Returns an error if the client does not use TLS, lacks a required certificate, or takes too
    /// long.
    pub async fn accept(
        &self,
        protocol: Protocol,
        stream: TcpStream,
        connection: &Connection,
    ) -> io::Result<TlsStream<TcpStream>> {
        let config = Arc::clone(&self.current.load()[protocol as usize]);
        let accepting = TlsAcceptor::from(config).accept(stream);
        let accepted = connection.in_time(accepting).await;
        let accepted = accepted.and_then(|stream| self.check_name(stream));
        match &accepted {
            Ok(_) => self.handshakes.increment(),
            Err(_) => self.failed_handshakes.increment(),
        }
        accepted
    }

    /// Returns the connection of a client whose certificate has one of the configured names. An authority has verified
    /// the certificate.
    fn check_name(&self, stream: TlsStream<TcpStream>) -> io::Result<TlsStream<TcpStream>> {
        let names = &self.config.client_names;
        let shown = stream.get_ref().1.peer_certificates();
        let certificate = shown.and_then(|certificates| certificates.first());
        if names.is_empty() || certificate.is_some_and(|certificate| has_name(certificate, names)) {
            return Ok(stream);
        }
        let why = "the certificate has none of client_names";
        Err(io::Error::new(io::ErrorKind::PermissionDenied, why))
    }

    /// Returns the metrics of handshakes and certificate reloads.
    pub fn metrics(&self) -> [Family; 3] {
        let failed = f64::from(self.reload_failed.load(Relaxed));
        let results = [
            ("ok", &self.handshakes),
            ("failed", &self.failed_handshakes),
        ];
        let results = results.map(|(result, count)| (result, count.get() as f64));
        let stale = "1 while the files' certificates can't be used and older ones are.";
        [
            Family::counter("earrrl_tls_handshakes_total", "TLS handshakes.")
                .labelled("result", results),
            Family::counter("earrrl_tls_reloads_total", "Certificates exchanged.")
                .value(self.reloads.get() as f64),
            Family::gauge("earrrl_tls_reload_failed", stale).value(failed),
        ]
    }
}

fn server_configs(config: &TlsConfig) -> Result<ServerConfigs, String> {
    let base = server_config(config)?;
    if let Some(why) = outdated(&config.cert) {
        tracing::warn!("[server.tls] {why}");
    }
    Ok(Protocol::ALL.map(|protocol| {
        let names: &[&[u8]] = match protocol {
            Protocol::Http | Protocol::Admin => &[b"h2", b"http/1.1"],
            Protocol::Grpc => &[b"h2"],
            Protocol::Resp => &[],
        };
        let mut config = base.clone();
        config.alpn_protocols = names.iter().map(|name| name.to_vec()).collect();
        Arc::new(config)
    }))
}

fn server_config(config: &TlsConfig) -> Result<ServerConfig, String> {
    let provider = Arc::new(ring::default_provider());
    let chain = certificates(&config.cert)?;
    let key = private_key(&config.key)?;
    let builder = ServerConfig::builder_with_provider(Arc::clone(&provider))
        .with_protocol_versions(&[&rustls::version::TLS13, &rustls::version::TLS12])
        .map_err(|error| error.to_string())?;
    let builder = match &config.client_ca {
        None => builder.with_no_client_auth(),
        Some(file) => {
            let verifier =
                WebPkiClientVerifier::builder_with_provider(Arc::new(roots(file)?), provider);
            let verifier = verifier.build();
            builder.with_client_cert_verifier(
                verifier.map_err(|error| format!("{}: {error}", file.display()))?,
            )
        }
    };
    let mut built = builder.with_single_cert(chain, key).map_err(|error| {
        format!(
            "{} and {}: {error}",
            config.cert.display(),
            config.key.display()
        )
    })?;
    built.ticketer = ring::Ticketer::new().map_err(|error| error.to_string())?;
    Ok(built)
}

/// Returns the private key in a PEM file.
///
/// # Errors
/// Returns an error with the file's path if the file has no usable key.
pub(crate) fn private_key(file: &Path) -> Result<PrivateKeyDer<'static>, String> {
    PrivateKeyDer::from_pem_slice(&read(file)?)
        .map_err(|error| format!("{}: no private key: {error}", file.display()))
}

/// Returns the certificates in a PEM file, which must have at least one.
///
/// # Errors
/// Returns an error with the file's path if the file has no usable certificate.
pub(crate) fn certificates(file: &Path) -> Result<Vec<CertificateDer<'static>>, String> {
    let text = read(file)?;
    let found: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&text).collect();
    match found {
        Ok(found) if found.is_empty() => Err(format!("{}: no certificate", file.display())),
        Ok(found) => Ok(found),
        Err(error) => Err(format!("{}: {error}", file.display())),
    }
}

/// Returns the certificate authorities in a PEM file.
///
/// # Errors
/// Returns an error with the file's path if the file has no usable certificate.
pub(crate) fn roots(file: &Path) -> Result<RootCertStore, String> {
    let mut roots = RootCertStore::empty();
    for certificate in certificates(file)? {
        let added = roots.add(certificate);
        added.map_err(|error| format!("{}: {error}", file.display()))?;
    }
    Ok(roots)
}

/// Returns a warning if the first certificate of a file is not valid now, so that clients will refuse it.
pub fn outdated(file: &Path) -> Option<String> {
    let certificates = certificates(file).ok()?;
    let certificate = webpki::EndEntityCert::try_from(certificates.first()?).ok()?;
    let algorithms = webpki::ALL_VERIFICATION_ALGS;
    let usage = webpki::KeyUsage::server_auth();
    // Without authorities the result is always an error. The certificate's times are checked first.
    let (what, instant) = match certificate
        .verify_for_usage(algorithms, &[], &[], UnixTime::now(), usage, None, None)
        .err()?
    {
        webpki::Error::CertExpired { not_after, .. } => ("expired on", not_after),
        webpki::Error::CertNotValidYet { not_before, .. } => ("is not valid before", not_before),
        _ => return None,
    };
    let instant = UNIX_EPOCH.checked_add(Duration::from_secs(instant.as_secs()))?;
    let instant = httpdate::fmt_http_date(instant);
    Some(format!(
        "{}: the certificate {what} {instant}; clients will refuse it",
        file.display()
    ))
}

fn read(file: &Path) -> Result<Vec<u8>, String> {
    read_bytes(file).map_err(|error| format!("{}: {error}", file.display()))
}

/// Returns true if a certificate has one of the names, among its alternative names.
fn has_name(certificate: &CertificateDer<'_>, names: &[String]) -> bool {
    let Ok(parsed) = webpki::EndEntityCert::try_from(certificate) else {
        return false;
    };
    // Names of hosts are compared without regard to upper and lower case.
    let is_host = |name: &str| names.iter().any(|known| known.eq_ignore_ascii_case(name));
    let is_uri = |name: &str| names.iter().any(|known| known == name);
    parsed.valid_dns_names().any(is_host) || parsed.valid_uri_names().any(is_uri)
}
