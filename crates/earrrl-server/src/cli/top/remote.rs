//! A running server as the source: its HTTP API over TCP, TLS or a Unix socket.

use std::path::Path;
use std::time::Duration;

use axum::body::{Body, to_bytes};
use axum::http::{Method, Request, header};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use earrrl_logs::line::Escaped;
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use percent_encoding::{NON_ALPHANUMERIC, percent_encode};
use serde_json::Value;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpStream, UnixStream};
use tokio::runtime::Runtime;
use tokio::time::timeout;

use super::address::ServerAddress;
use super::snapshot::{RuleCounts, TopRow, TopSnapshot};
use super::source::ClientSource;
use earrrl_server::config::envoy::PlaneTls;
use earrrl_server::serve::dial::Dial;

/// The longest time that the server may take to respond.
const TIMEOUT: Duration = Duration::from_secs(10);
/// The size of the largest response that is read, in bytes.
const MAX_ANSWER_LEN: usize = 16 * 1024 * 1024;

/// A connection that carries HTTP.
trait Duplex: AsyncRead + AsyncWrite + Unpin + Send {}

impl<S: AsyncRead + AsyncWrite + Unpin + Send> Duplex for S {}

/// A running server.
pub(super) struct Remote {
    runtime: Runtime,
    address: ServerAddress,
    /// The TLS settings, for an address over TLS only.
    tls: Option<Dial>,
    token: Option<String>,
}

impl Remote {
    /// Prepares requests to a server.
    pub(super) fn new(
        address: ServerAddress,
        token: Option<String>,
        ca: Option<&Path>,
    ) -> Result<Self, String> {
        if token.as_ref().is_some_and(|token| !token.bytes().all(|byte| byte.is_ascii_graphic())) {
            return Err("token: expected visible ASCII characters".to_owned());
        }
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let runtime = runtime.map_err(|error| error.to_string())?;
        let tls = match &address {
            ServerAddress::Tls(host) => {
                let files = PlaneTls { ca: ca.map(Path::to_owned), cert: None };
                Some(Dial::new(host, &files, b"http/1.1")?)
            }
            ServerAddress::Plain(_) | ServerAddress::Unix(_) => None,
        };
        Ok(Self { runtime, address, tls, token })
    }

    /// Sends a request, and returns the body of the response.
    fn ask(&self, method: Method, path: &str) -> Result<String, String> {
        let exchange = async { timeout(TIMEOUT, self.exchange(method, path)).await };
        let answer = self.runtime.block_on(exchange).map_err(|_| "no answer within 10 s")?;
        let (status, body) = answer.map_err(|error| error.to_string())?;
        if (200..300).contains(&status) {
            return Ok(body);
        }
        let detail = serde_json::from_str::<Value>(&body).ok();
        let detail = detail.and_then(|problem| Some(problem.get("detail")?.as_str()?.to_owned()));
        let detail = detail.unwrap_or_else(|| format!("status {status}"));
        let hint = match status {
            401 => "; the server asks for a token: give it with --token or EARRRL_TOKEN",
            _ => "",
        };
        Err(format!("{}{hint}", detail.escape_debug()))
    }

    fn json(&self, path: &str) -> Result<Value, String> {
        let body = self.ask(Method::GET, path)?;
        serde_json::from_str(&body).map_err(|error| format!("{path}: no JSON: {error}"))
    }

    async fn exchange(
        &self,
        method: Method,
        path: &str,
    ) -> Result<(u16, String), Box<dyn std::error::Error>> {
        let host = match &self.address {
            ServerAddress::Plain(host) | ServerAddress::Tls(host) => host,
            ServerAddress::Unix(_) => "localhost",
        };
        let mut request = Request::builder().method(method).uri(path).header(header::HOST, host);
        if let Some(token) = &self.token {
            request = request.header(header::AUTHORIZATION, format!("Bearer {token}"));
        }
        let request = request.body(Body::empty())?;
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

impl ClientSource for Remote {
    fn snapshot(&mut self, rule: Option<&str>, limit: usize) -> Result<TopSnapshot, String> {
        let rules = self.json("/v1/rules")?;
        let mut rules: Vec<_> =
            rules["rules"].as_array().into_iter().flatten().map(counts_of).collect();
        let first = || rules.first().map(|rule| rule.name.clone());
        let rule = rule.map(str::to_owned).or_else(first).ok_or("the server has no rules")?;
        let name = percent_encode(rule.as_bytes(), NON_ALPHANUMERIC);
        let top = self.json(&format!("/v1/top?rule={name}&limit={limit}"))?;
        let ready = self.ask(Method::GET, "/readyz").unwrap_or_default();
        let ready: Value = serde_json::from_str(&ready).unwrap_or_default();
        // With an admin listener, metrics are served only there.
        let metrics = self.ask(Method::GET, "/metrics").unwrap_or_default();
        count(&metrics, &mut rules);
        let clients = top["clients"].as_array().into_iter().flatten().map(client_of);
        Ok(TopSnapshot {
            rule,
            rules,
            clients: clients.collect(),
            names_are_keys: top["names_are_keys"] != false,
            status: status(&ready, &metrics),
        })
    }

    fn reset(&mut self, rule: &str, key: &[u8]) -> Result<(), String> {
        let key = percent_encode(key, NON_ALPHANUMERIC);
        self.ask(Method::DELETE, &format!("/v1/clients/{rule}/{key}")).map(drop)
    }
}

fn counts_of(rule: &Value) -> RuleCounts {
    let text = |field: &str| rule[field].as_str().unwrap_or_default();
    let limit = Escaped(text("limit").as_bytes()).to_string();
    RuleCounts { name: text("name").to_owned(), limit, ..RuleCounts::default() }
}

fn client_of(client: &Value) -> TopRow {
    let text = |field: &str| client[field].as_str();
    let number = |field: &str| client[field].as_f64();
    let count = |field: &str| client[field].as_u64().unwrap_or_default();
    let decoded = text("key_b64").and_then(|key| STANDARD.decode(key).ok());
    TopRow {
        key: text("key").map(|key| key.as_bytes().to_vec()).or(decoded),
        key_is_cut: client["key_is_cut"] == true,
        fingerprint: text("fingerprint").unwrap_or_default().to_owned(),
        rate: number("rate"),
        usage: number("usage").unwrap_or_default(),
        limit: number("limit").unwrap_or_default(),
        remaining: count("remaining"),
        retry_after: number("retry_after"),
        allowed: count("allowed"),
        denied: count("denied"),
        first_seen: number("first_seen"),
        first_denied: number("first_denied"),
        last_denied: number("last_denied"),
    }
}

/// Reads the counters of decisions from metrics in the Prometheus text format.
fn count(metrics: &str, rules: &mut [RuleCounts]) {
    for line in metrics.lines() {
        let Some(rest) = line.strip_prefix("earrrl_decisions_total{rule=\"") else { continue };
        let Some((name, rest)) = rest.split_once("\",outcome=\"") else { continue };
        let Some((outcome, value)) = rest.split_once("\"} ") else { continue };
        let Some(rule) = rules.iter_mut().find(|rule| rule.name == name) else { continue };
        let value = value.trim().parse().unwrap_or(0.0);
        *(if outcome == "allow" { &mut rule.allowed } else { &mut rule.denied }) += value;
    }
}

/// Returns the engine's mode, the server's memory, and the reason why a reload was refused.
fn status(ready: &Value, metrics: &str) -> String {
    let mode = ready["engine"]["mode"].as_str().unwrap_or("unknown");
    let resident = metrics.lines().find_map(|line| {
        line.strip_prefix("process_resident_memory_bytes ")?.trim().parse::<f64>().ok()
    });
    let mut status = format!("engine {}", mode.escape_debug());
    if let Some(bytes) = resident {
        status.push_str(&format!(", {:.0} MB", bytes / 1e6));
    }
    if let Some(error) = ready["reload_error"].as_str() {
        status.push_str(&format!(", reload failed: {}", error.escape_debug()));
    }
    status
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_are_read_from_metrics() {
        let mut rules = [RuleCounts { name: "api".to_owned(), ..RuleCounts::default() }];
        let metrics = "# TYPE earrrl_decisions_total counter\n\
                       earrrl_decisions_total{rule=\"api\",outcome=\"allow\"} 12\n\
                       earrrl_decisions_total{rule=\"api\",outcome=\"deny\"} 3\n\
                       earrrl_decisions_total{rule=\"api\",outcome=\"delay\"} 1\n\
                       earrrl_decisions_total{rule=\"other\",outcome=\"allow\"} 9\n\
                       earrrl_decisions_total{rule=\"api";
        count(metrics, &mut rules);
        assert_eq!((rules[0].allowed, rules[0].denied), (12.0, 4.0));
    }
}
