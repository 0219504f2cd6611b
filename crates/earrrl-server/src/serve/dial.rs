//! Outgoing connections, such as to a control plane: gRPC channels, and TLS.

use std::error::Error;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use hyper_util::rt::TokioIo;
use rustls::crypto::ring;
use rustls::pki_types::ServerName;
use rustls::{ClientConfig, RootCertStore};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tonic::transport::{Channel, Endpoint, Uri};
use tower::service_fn;

use crate::config::envoy::PlaneTls;
use crate::tls::{certificates, private_key, roots};

/// The address of a peer, and the TLS settings of connections to it.
pub struct Dial {
    address: String,
    name: ServerName<'static>,
    connector: TlsConnector,
}

impl Dial {
    /// Prepares connections to `host:port` that speak the protocol `alpn`. The peer's certificate
    /// must be valid for that host.
    ///
    /// # Errors
    /// Returns an error if the host name is invalid or a TLS file cannot be used.
    pub fn new(address: &str, tls: &PlaneTls, alpn: &[u8]) -> Result<Self, String> {
        let host = address.rsplit_once(':').map_or(address, |(host, _)| host);
        let host = host.trim_start_matches('[').trim_end_matches(']');
        let name =
            ServerName::try_from(host.to_owned()).map_err(|error| format!("{host}: {error}"))?;
        let connector = TlsConnector::from(Arc::new(config(tls, alpn)?));
        Ok(Self {
            address: address.to_owned(),
            name,
            connector,
        })
    }

    /// Opens a connection.
    ///
    /// # Errors
    /// Returns an error if the peer cannot be reached or its certificate is not valid.
    pub async fn connect(&self) -> io::Result<TlsStream<TcpStream>> {
        let stream = TcpStream::connect(&self.address).await?;
        stream.set_nodelay(true)?;
        self.connector.connect(self.name.clone(), stream).await
    }
}

/// Connects to a peer that speaks gRPC at `host:port`, over TLS if there are settings for it.
///
/// # Errors
/// Returns an error if the peer cannot be reached or its certificate is not valid.
pub async fn channel(
    address: &str,
    tls: Option<&PlaneTls>,
) -> Result<Channel, Box<dyn Error + Send + Sync>> {
    let scheme = if tls.is_some() { "https" } else { "http" };
    // The connector adds the encryption itself, so the library is given an `http` URL.
    let endpoint = Endpoint::from_shared(format!("http://{address}"))?
        .origin(format!("{scheme}://{address}").parse()?)
        .connect_timeout(Duration::from_secs(5))
        .http2_keep_alive_interval(Duration::from_secs(30))
        .keep_alive_while_idle(true);
    let Some(tls) = tls else {
        return Ok(endpoint.connect().await?);
    };
    let dial = Arc::new(Dial::new(address, tls, b"h2")?);
    let connector = service_fn(move |_: Uri| {
        let dial = Arc::clone(&dial);
        async move { Ok::<_, io::Error>(TokioIo::new(dial.connect().await?)) }
    });
    Ok(endpoint.connect_with_connector(connector).await?)
}

/// Returns the texts of an error and of its causes in one line.
pub fn why(error: &(dyn Error + 'static)) -> String {
    let causes = std::iter::successors(Some(error), |error| (*error).source());
    causes
        .map(ToString::to_string)
        .collect::<Vec<_>>()
        .join(": ")
}

fn config(tls: &PlaneTls, alpn: &[u8]) -> Result<ClientConfig, String> {
    let roots = match &tls.ca {
        Some(file) => roots(file)?,
        None => {
            let mut system = RootCertStore::empty();
            system.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
            system
        }
    };
    let builder = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_protocol_versions(&[&rustls::version::TLS13, &rustls::version::TLS12])
        .map_err(|error| error.to_string())?
        .with_root_certificates(roots);
    let mut config = match &tls.cert {
        None => builder.with_no_client_auth(),
        Some((cert, key)) => builder
            .with_client_auth_cert(certificates(cert)?, private_key(key)?)
            .map_err(|error| format!("{} and {}: {error}", cert.display(), key.display()))?,
    };
    config.alpn_protocols = vec![alpn.to_vec()];
    Ok(config)
}
