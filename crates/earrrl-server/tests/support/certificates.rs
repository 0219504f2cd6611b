//! A certificate authority, the certificates that it signs, and a TLS client.

use std::fs;
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair, SanType};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::server::WebPkiClientVerifier;
use rustls::{
    ClientConfig, ClientConnection, RootCertStore, ServerConfig, StreamOwned,
    SupportedProtocolVersion,
};

/// A certificate authority, and a folder with its certificate `ca.pem`.
pub struct Authority {
    pub folder: tempfile::TempDir,
    issuer: Issuer<'static, KeyPair>,
    root: CertificateDer<'static>,
}

impl Authority {
    pub fn new(name: &str) -> Self {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.distinguished_name.push(DnType::CommonName, name);
        let certificate = params.self_signed(&key).unwrap();
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("ca.pem"), certificate.pem()).unwrap();
        let root = certificate.der().clone();
        Self {
            folder,
            issuer: Issuer::new(params, key),
            root,
        }
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Writes a certificate for these host names or URIs to `NAME.pem`, and its key to `NAME.key`.
    pub fn issue(&self, name: &str, names: &[&str]) {
        let (certificate, key) = self.sign(names);
        fs::write(self.path(&format!("{name}.pem")), certificate).unwrap();
        fs::write(self.path(&format!("{name}.key")), key).unwrap();
    }

    /// Writes a certificate that is valid from the first of these years to the second, as [`issue`](Self::issue)
    /// does.
    pub fn issue_for(&self, name: &str, names: &[&str], [from, until]: [i32; 2]) {
        let (certificate, key) = self.sign_with(names, |params| {
            params.not_before = rcgen::date_time_ymd(from, 1, 1);
            params.not_after = rcgen::date_time_ymd(until, 1, 1);
        });
        fs::write(self.path(&format!("{name}.pem")), certificate).unwrap();
        fs::write(self.path(&format!("{name}.key")), key).unwrap();
    }

    /// Returns a new certificate and its key as PEM.
    pub fn sign(&self, names: &[&str]) -> (String, String) {
        self.sign_with(names, |_| ())
    }

    fn sign_with(
        &self,
        names: &[&str],
        adjust: impl FnOnce(&mut CertificateParams),
    ) -> (String, String) {
        let key = KeyPair::generate().unwrap();
        let (uris, hosts): (Vec<&str>, Vec<&str>) =
            names.iter().partition(|name| name.contains("://"));
        let hosts: Vec<String> = hosts.into_iter().map(str::to_owned).collect();
        let mut params = CertificateParams::new(hosts).unwrap();
        let uris = uris
            .into_iter()
            .map(|uri| SanType::URI(uri.try_into().unwrap()));
        params.subject_alt_names.extend(uris);
        adjust(&mut params);
        let certificate = params.signed_by(&key, &self.issuer).unwrap();
        (certificate.pem(), key.serialize_pem())
    }

    /// Returns a `[server.tls]` table with the certificate `server`.
    pub fn table(&self, more: &str) -> String {
        let [cert, key] = ["server.pem", "server.key"].map(|name| self.path(name));
        let cert = cert.display();
        let key = key.display();
        format!("[server.tls]\ncert = \"{cert}\"\nkey = \"{key}\"\n{more}\n")
    }

    /// Returns the TLS configuration of an HTTP/2 server that has this certificate, and requires
    /// clients to have one of this authority.
    pub fn server(&self, name: &str) -> ServerConfig {
        let mut roots = RootCertStore::empty();
        roots.add(self.root.clone()).unwrap();
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let verifier =
            WebPkiClientVerifier::builder_with_provider(Arc::new(roots), Arc::clone(&provider));
        let chain = CertificateDer::from_pem_file(self.path(&format!("{name}.pem"))).unwrap();
        let key = PrivateKeyDer::from_pem_file(self.path(&format!("{name}.key"))).unwrap();
        let mut config = ServerConfig::builder_with_provider(provider)
            .with_protocol_versions(&[&rustls::version::TLS13])
            .unwrap()
            .with_client_cert_verifier(verifier.build().unwrap())
            .with_single_cert(vec![chain], key)
            .unwrap();
        config.alpn_protocols = vec![b"h2".to_vec()];
        config
    }

    /// Returns the TLS configuration of a client that trusts this authority and has the certificate
    /// `own`, if there is one.
    pub fn client(
        &self,
        own: Option<&str>,
        versions: &[&'static SupportedProtocolVersion],
        alpn: &[&str],
    ) -> Arc<ClientConfig> {
        let mut roots = RootCertStore::empty();
        roots.add(self.root.clone()).unwrap();
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let builder = ClientConfig::builder_with_provider(provider);
        let builder = builder
            .with_protocol_versions(versions)
            .unwrap()
            .with_root_certificates(roots);
        let mut config = match own {
            None => builder.with_no_client_auth(),
            Some(name) => {
                let chain = CertificateDer::from_pem_file(self.path(&format!("{name}.pem")));
                let key = PrivateKeyDer::from_pem_file(self.path(&format!("{name}.key")));
                builder
                    .with_client_auth_cert(vec![chain.unwrap()], key.unwrap())
                    .unwrap()
            }
        };
        config.alpn_protocols = alpn.iter().map(|name| name.as_bytes().to_vec()).collect();
        Arc::new(config)
    }
}

/// A TLS connection, whose handshake happens when the first byte is sent or received.
pub type Tls = StreamOwned<ClientConnection, TcpStream>;

pub fn connect(config: &Arc<ClientConfig>, address: SocketAddr) -> Tls {
    let name = ServerName::try_from("localhost").unwrap();
    let connection = ClientConnection::new(Arc::clone(config), name).unwrap();
    StreamOwned::new(connection, super::connect(address))
}

/// Connects and completes the handshake, including the server's verdict on the client's
/// certificate.
///
/// # Errors
/// Returns the error of the connection or the handshake.
pub fn shake(config: &Arc<ClientConfig>, address: SocketAddr) -> std::io::Result<Tls> {
    let mut tls = connect(config, address);
    while tls.conn.is_handshaking() {
        tls.conn.complete_io(&mut tls.sock)?;
    }
    Ok(tls)
}

pub fn shown(path: &Path) -> String {
    path.display().to_string()
}
