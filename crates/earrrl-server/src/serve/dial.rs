//! Outgoing connections: TLS, gRPC channels, and the stream of aggregated discovery (ADS) over which a control plane
//! sends descriptors.
//!
//! Refused configurations are reported to the control plane, and the last valid one stays in force.
//! If the stream ends, it is opened again after pauses that grow.

use std::error::Error;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use hyper_util::rt::TokioIo;
use prost::Message as _;
use rustls::crypto::ring;
use rustls::pki_types::ServerName;
use rustls::{ClientConfig, RootCertStore};
use tokio::net::TcpStream;
use tokio::sync::mpsc;
use tokio::task::spawn_blocking;
use tokio::time::sleep;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tokio_stream::wrappers::ReceiverStream;
use tonic::client::Grpc;
use tonic::codegen::http::uri::PathAndQuery;
use tonic::transport::{Channel, Endpoint, Uri};
use tonic::{Code, IntoStreamingRequest as _};
use tonic_prost::ProstCodec;
use tower::service_fn;

use crate::config::ConfigError;
use crate::config::envoy::load::{TYPE_URL, domain};
use crate::config::envoy::tree::Tree;
use crate::config::envoy::{ControlPlane, PlaneTls};
use crate::protobuf::discovery::{DiscoveryRequest, DiscoveryResponse, Node, RateLimitConfig};
use crate::protobuf::{Any, RpcStatus};
use crate::server::Server;
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

/// The first pause before the stream is opened again; each later pause is twice as long.
const FIRST_WAIT: Duration = Duration::from_millis(200);
/// The longest pause before the stream is opened again.
const LONGEST_WAIT: Duration = Duration::from_secs(30);
/// The size in bytes of the largest message that is accepted from a control plane.
const MAX_MESSAGE: usize = 16 * 1024 * 1024;

/// The path of the gRPC method that opens a stream of aggregated discovery.
const METHOD: PathAndQuery = PathAndQuery::from_static(
    "/envoy.service.discovery.v3.AggregatedDiscoveryService/StreamAggregatedResources",
);

/// Receives descriptors from a control plane until the server ends, and opens the stream again
/// whenever it ends.
pub(super) async fn follow(server: Arc<Server>, plane: ControlPlane) {
    let mut wait = FIRST_WAIT;
    let mut version = String::new();
    loop {
        let before = version.clone();
        match stream(&server, &plane, &mut version).await {
            Ok(()) => tracing::warn!("the control plane ended the stream"),
            Err(error) => {
                let error = why(&*error);
                tracing::warn!(error, "no stream from the control plane");
            }
        }
        wait = if version == before {
            (wait * 2).min(LONGEST_WAIT)
        } else {
            FIRST_WAIT
        };
        sleep(wait).await;
    }
}

/// Receives configurations over one stream until it ends, and acknowledges or refuses each.
/// `version` is the version of the last valid configuration.
async fn stream(
    server: &Arc<Server>,
    plane: &ControlPlane,
    version: &mut String,
) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
    let mut client = Grpc::new(channel(&plane.address, plane.tls.as_ref()).await?)
        .max_decoding_message_size(MAX_MESSAGE);
    client.ready().await?;
    let (requests, receiver) = mpsc::channel(4);
    requests.send(discovery_request(plane, version)).await?;
    let requests_sent = ReceiverStream::new(receiver).into_streaming_request();
    let codec = ProstCodec::<DiscoveryRequest, DiscoveryResponse>::default();
    let responses = client.streaming(requests_sent, METHOD, codec);
    let mut responses = responses.await?.into_inner();
    while let Some(response) = responses.message().await? {
        let response_nonce = response.nonce.clone();
        let received_version = response.version_info.clone();
        // Preparing the tables may take long, so it runs on another thread and does not delay new
        // connections.
        let server = Arc::clone(server);
        let taken = spawn_blocking(move || take(&server, &response)).await?;
        if taken.is_ok() {
            *version = received_version;
        }
        let refusal = |message| RpcStatus {
            code: Code::InvalidArgument.into(),
            message,
        };
        let error_detail = taken.err().map(refusal);
        let request = discovery_request(plane, version);
        requests
            .send(DiscoveryRequest {
                response_nonce,
                error_detail,
                ..request
            })
            .await?;
    }
    Ok(())
}

/// Returns a request for configurations, with the version of the last valid one.
fn discovery_request(plane: &ControlPlane, version: &str) -> DiscoveryRequest {
    DiscoveryRequest {
        version_info: version.to_owned(),
        node: Some(Node {
            id: plane.node.clone(),
        }),
        type_url: TYPE_URL.to_owned(),
        ..DiscoveryRequest::default()
    }
}

/// Puts the configuration of a response in force. If any part is invalid, nothing changes.
fn take(server: &Server, response: &DiscoveryResponse) -> Result<(), String> {
    let taken = server.reload_descriptors(tree(response));
    match &taken {
        Ok(()) => tracing::info!(version = response.version_info, "descriptors taken over"),
        Err(error) => tracing::error!(%error, "not taken over; the descriptors before stay"),
    }
    taken
}

fn tree(response: &DiscoveryResponse) -> Result<Tree, String> {
    let resource = |any: &Any| {
        if any.type_url != TYPE_URL {
            return Err(format!(
                "resources of type {}; expected {TYPE_URL}",
                any.type_url
            ));
        }
        let config = RateLimitConfig::decode(any.value.as_slice());
        let config = config.map_err(|error| error.to_string())?;
        domain(&config).map_err(|error| error.to_string())
    };
    let domains = response
        .resources
        .iter()
        .map(resource)
        .collect::<Result<Vec<_>, _>>()?;
    let failed = |error: ConfigError| error.to_string();
    Tree::new(&domains, false).map_err(failed)
}
