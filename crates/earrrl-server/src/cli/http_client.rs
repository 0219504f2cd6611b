//! Requests to a server, over TCP, TLS or a Unix socket; and the address of a server, in these three forms.

use std::error::Error;
use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use axum::body::{Body, to_bytes};
use axum::http::{Method, Request, header};
use earrrl_logs::line::Escaped;
use earrrl_server::config::envoy::PlaneTls;
use earrrl_server::serve::dial::Dial;
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use serde_json::Value;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpStream, UnixStream};
use tokio::runtime::Runtime;
use tokio::time::timeout;

/// The longest time that the server may take to respond.
const TIMEOUT: Duration = Duration::from_secs(10);
/// The size of the largest response that is read, in bytes.
const MAX_ANSWER_LEN: usize = 16 * 1024 * 1024;

/// The options that name a running server.
#[derive(Debug, clap::Args)]
pub(super) struct ServerOptions {
    /// The server's HTTP or admin address: `http://10.0.0.5:8080`, `https://host:443`, `unix:/run/earrrl.sock`, `8080`.
    #[arg(long, value_name = "ADDR", env = "EARRRL_SERVER")]
    #[arg(default_value = "127.0.0.1:8080")]
    server: ServerAddress,
    /// The certificate authority of an https server, a PEM file; otherwise the system's.
    #[arg(long, value_name = "FILE")]
    ca: Option<PathBuf>,
    /// A token with the scope `check` or `peek`, for `top` with `top` and `peek`; or the admin token.
    #[arg(long, env = "EARRRL_TOKEN", hide_env_values = true)]
    token: Option<String>,
}

impl ServerOptions {
    /// Prepares requests to the server.
    pub(super) fn client(self) -> Result<HttpClient, String> {
        HttpClient::new(self.server, self.token, self.ca)
    }
}

/// A connection that carries HTTP.
trait Duplex: AsyncRead + AsyncWrite + Unpin + Send {}

impl<S: AsyncRead + AsyncWrite + Unpin + Send> Duplex for S {}

/// A running server, which is asked with a connection for each request.
pub(super) struct HttpClient {
    runtime: Runtime,
    address: ServerAddress,
    /// The TLS settings, for an address over TLS only.
    tls: Option<Dial>,
    token: Option<String>,
}

impl HttpClient {
    /// Prepares requests to a server.
    pub(super) fn new(
        address: ServerAddress,
        token: Option<String>,
        ca: Option<PathBuf>,
    ) -> Result<Self, String> {
        if token
            .as_ref()
            .is_some_and(|token| !token.bytes().all(|byte| byte.is_ascii_graphic()))
        {
            return Err("token: expected visible ASCII characters".to_owned());
        }
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build();
        let runtime = runtime.map_err(|error| error.to_string())?;
        let tls = match &address {
            ServerAddress::Tls(host) => {
                let files = PlaneTls { ca, cert: None };
                Some(Dial::new(host, &files, b"http/1.1")?)
            }
            ServerAddress::Plain(_) | ServerAddress::Unix(_) => None,
        };
        Ok(Self {
            runtime,
            address,
            tls,
            token,
        })
    }

    /// Sends a request, with a body of JSON if one is given. Returns the status and the body of the response.
    ///
    /// # Errors
    /// Returns an error that names the server if it does not answer.
    pub(super) fn send(
        &self,
        method: Method,
        path: &str,
        json: Option<String>,
    ) -> Result<(u16, String), String> {
        let exchange = async { timeout(TIMEOUT, self.exchange(method, path, json)).await };
        let answer = match self.runtime.block_on(exchange) {
            Ok(answer) => answer.map_err(|error| reason(&*error)),
            Err(_) => Err("no answer within 10 s".to_owned()),
        };
        answer.map_err(|why| format!("{}: {why}", self.address))
    }

    async fn exchange(
        &self,
        method: Method,
        path: &str,
        json: Option<String>,
    ) -> Result<(u16, String), Box<dyn Error>> {
        let host = match &self.address {
            ServerAddress::Plain(host) | ServerAddress::Tls(host) => host,
            ServerAddress::Unix(_) => "localhost",
        };
        let mut request = Request::builder()
            .method(method)
            .uri(path)
            .header(header::HOST, host);
        if let Some(token) = &self.token {
            request = request.header(header::AUTHORIZATION, format!("Bearer {token}"));
        }
        if json.is_some() {
            request = request.header(header::CONTENT_TYPE, "application/json");
        }
        let request = request.body(json.map_or(Body::empty(), Body::from))?;
        let (mut sender, connection) =
            http1::handshake(TokioIo::new(self.connect().await?)).await?;
        let served = tokio::spawn(connection);
        let answer = sender.send_request(request).await?;
        let status = answer.status().as_u16();
        let body = to_bytes(Body::new(answer.into_body()), MAX_ANSWER_LEN).await?;
        served.abort();
        Ok((status, String::from_utf8(body.into())?))
    }

    async fn connect(&self) -> std::io::Result<Box<dyn Duplex>> {
        Ok(match (&self.address, &self.tls) {
            (ServerAddress::Unix(path), _) => Box::new(UnixStream::connect(path).await?),
            (ServerAddress::Tls(_), Some(tls)) => Box::new(tls.connect().await?),
            (ServerAddress::Plain(host) | ServerAddress::Tls(host), _) => {
                Box::new(TcpStream::connect(host).await?)
            }
        })
    }
}

/// Returns the reason why a server did not answer.
fn reason(error: &(dyn Error + 'static)) -> String {
    match error.downcast_ref::<hyper::Error>() {
        Some(error) if error.is_parse() => format!("no server of HTTP answers there: {error}"),
        _ => error.to_string(),
    }
}

/// Returns the reason that the response of a refused request states.
pub(super) fn detail(status: u16, body: &str) -> String {
    let detail = serde_json::from_str::<Value>(body).ok();
    let detail = detail.and_then(|problem| Some(problem.get("detail")?.as_str()?.to_owned()));
    let detail = detail.unwrap_or_else(|| format!("status {status}"));
    let hint = match status {
        401 => "; the server asks for a token: give it with --token or EARRRL_TOKEN",
        _ => "",
    };
    format!("{}{hint}", Escaped(detail.as_bytes()))
}

/// The address of a server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum ServerAddress {
    /// A host and port, over plain HTTP.
    Plain(String),
    /// A host and port, over TLS.
    Tls(String),
    /// The path of a Unix socket.
    Unix(PathBuf),
}

impl fmt::Display for ServerAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Plain(host) => f.write_str(host),
            Self::Tls(host) => write!(f, "https://{host}"),
            Self::Unix(path) => write!(f, "unix:{}", path.display()),
        }
    }
}

impl FromStr for ServerAddress {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let text = text.trim();
        if let Some(path) = text.strip_prefix("unix:") {
            return match path {
                "" => Err("expected unix:/path/of/the/socket".to_owned()),
                path => Ok(Self::Unix(path.into())),
            };
        }
        if let Some(host) = text.strip_prefix("https://") {
            return with_port(host, 443).map(Self::Tls);
        }
        if let Some(host) = text.strip_prefix("http://") {
            return with_port(host, 80).map(Self::Plain);
        }
        match text.strip_prefix(':').unwrap_or(text).parse::<u16>() {
            Ok(port) => Ok(Self::Plain(format!("127.0.0.1:{port}"))),
            Err(_) if text.contains(':') => with_port(text, 80).map(Self::Plain),
            Err(_) => Err("expected HOST:PORT, http://…, https://… or unix:PATH".to_owned()),
        }
    }
}

fn with_port(host: &str, usual: u16) -> Result<String, String> {
    let host = host.trim_end_matches('/');
    if host.is_empty() || host.contains('/') {
        return Err("expected a host without a path".to_owned());
    }
    let after_brackets = host.rsplit(']').next().unwrap_or(host);
    match after_brackets.rsplit_once(':') {
        Some((_, port)) if port.parse::<u16>().is_ok() => Ok(host.to_owned()),
        Some(_) => Err("expected a port from 0 to 65535".to_owned()),
        None => Ok(format!("{host}:{usual}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn servers_as_people_write_them() {
        let plain = |a: &str| Some(ServerAddress::Plain(a.into()));
        let tls = |a: &str| Some(ServerAddress::Tls(a.into()));
        for (text, expected) in [
            ("8080", plain("127.0.0.1:8080")),
            (":8080", plain("127.0.0.1:8080")),
            ("10.0.0.5:8080", plain("10.0.0.5:8080")),
            ("http://host/", plain("host:80")),
            ("https://host", tls("host:443")),
            ("https://[::1]:8443", tls("[::1]:8443")),
            ("http://[::1]", plain("[::1]:80")),
            (
                "unix:/run/a.sock",
                Some(ServerAddress::Unix("/run/a.sock".into())),
            ),
            ("unix:", None),
            ("http://", None),
            ("https://host/path", None),
            ("host", None),
            ("host:x", None),
        ] {
            assert_eq!(text.parse().ok(), expected, "{text}");
        }
    }
}
