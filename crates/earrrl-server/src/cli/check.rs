//! The command `earrrl check`: one request to a running server.

use std::io::{self, Write as _};
use std::process::ExitCode;
use std::time::Duration;

use axum::body::{Body, to_bytes};
use axum::http::{Request, header};
use earrrl::Cost;
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use serde_json::{Value, json};
use tokio::net::TcpStream;
use tokio::time::timeout;

use super::CliFailure;

/// The longest time that the server may take to respond.
const PATIENCE: Duration = Duration::from_secs(5);
/// The size of the largest response that is read, in bytes.
const MAX_ANSWER_LEN: usize = 1024 * 1024;

/// Ask a running server. Exit status 0: allowed, 1: denied, 2: error.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:\n  earrrl check login alice && ./serve-alice.sh")]
pub(super) struct CheckArgs {
    /// The rule's name.
    rule: String,
    /// The client.
    key: String,
    /// The cost of the request [default: the rule's own].
    #[arg(long)]
    cost: Option<Cost>,
    /// Do not count the request.
    #[arg(long)]
    peek: bool,
    /// The server's HTTP address: `earrrl.internal:8080`, `http://10.0.0.5:8080`, `8080`.
    #[arg(long, value_name = "ADDR", env = "EARRRL_SERVER", default_value = "127.0.0.1:8080")]
    #[arg(value_parser = authority)]
    server: String,
    /// The token.
    #[arg(long, env = "EARRRL_TOKEN", hide_env_values = true)]
    token: Option<String>,
    /// Print nothing.
    #[arg(long, short)]
    quiet: bool,
}

/// Parses the host and port of a server, with or without `http://`.
fn authority(text: &str) -> Result<String, String> {
    let text = text.trim();
    if text.starts_with("https://") {
        return Err("https is not spoken; expected http://HOST:PORT".to_owned());
    }
    let host = text.strip_prefix("http://").unwrap_or(text).trim_end_matches('/');
    let port = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    match host.rsplit_once(':') {
        None if port(host) => Ok(format!("127.0.0.1:{host}")),
        Some(("", number)) if port(number) => Ok(format!("127.0.0.1:{number}")),
        Some((_, number)) if port(number) => Ok(host.to_owned()),
        None if text.starts_with("http://") && !host.is_empty() => Ok(format!("{host}:80")),
        _ => Err("expected HOST:PORT or http://HOST:PORT".to_owned()),
    }
}

pub(super) fn run(args: CheckArgs) -> Result<ExitCode, CliFailure> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let answer = runtime.block_on(async { timeout(PATIENCE, exchange(&args)).await });
    let failed = |why: String| CliFailure::new(format!("{}: {why}", args.server));
    let answer = answer.map_err(|_| failed("no answer within 5 s".to_owned()))?;
    let (status, body) = answer.map_err(|error| failed(error.to_string()))?;
    if !matches!(status, 200 | 429) {
        let detail = serde_json::from_str::<Value>(&body).ok();
        let detail = detail.and_then(|problem| Some(problem.get("detail")?.as_str()?.to_owned()));
        let detail = detail.unwrap_or_else(|| format!("status {status}"));
        return Err(CliFailure::new(detail.escape_debug().to_string()));
    }
    if !args.quiet {
        writeln!(io::stdout(), "{}", body.trim_end())?;
    }
    let allowed =
        serde_json::from_str::<Value>(&body).ok().and_then(|v| v.get("allowed")?.as_bool());
    Ok(if allowed == Some(true) { ExitCode::SUCCESS } else { ExitCode::from(1) })
}

/// Sends one request on a connection of its own, and returns the HTTP status and the body of the
/// response.
async fn exchange(args: &CheckArgs) -> Result<(u16, String), Box<dyn std::error::Error>> {
    let request = request(args)?;
    let stream = TcpStream::connect(&args.server).await?;
    let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await?;
    tokio::spawn(connection);
    let answer = sender.send_request(request).await?;
    let status = answer.status().as_u16();
    let body = to_bytes(Body::new(answer.into_body()), MAX_ANSWER_LEN).await?;
    Ok((status, String::from_utf8(body.into())?))
}

fn request(args: &CheckArgs) -> Result<Request<Body>, Box<dyn std::error::Error>> {
    let mut body = json!({ "rule": args.rule, "key": args.key }).to_string();
    if let Some(cost) = args.cost {
        body.pop();
        body.push_str(&format!(",\"cost\":{cost}}}"));
    }
    let mut request = Request::post(if args.peek { "/v1/peek" } else { "/v1/check" })
        .header(header::HOST, &args.server)
        .header(header::CONTENT_TYPE, "application/json");
    if let Some(token) = &args.token {
        if !token.bytes().all(|byte| byte.is_ascii_graphic()) {
            return Err("token: expected visible ASCII characters".into());
        }
        request = request.header(header::AUTHORIZATION, format!("Bearer {token}"));
    }
    Ok(request.body(Body::from(body))?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn servers_as_people_write_them() {
        for (text, expected) in [
            ("127.0.0.1:8080", Some("127.0.0.1:8080")),
            ("http://localhost:8080", Some("localhost:8080")),
            ("http://earrrl.internal/", Some("earrrl.internal:80")),
            ("earrrl.internal:8080", Some("earrrl.internal:8080")),
            ("[::1]:8080", Some("[::1]:8080")),
            ("8080", Some("127.0.0.1:8080")),
            (":8080", Some("127.0.0.1:8080")),
            ("https://earrrl.internal", None),
            ("earrrl.internal", None),
            ("", None),
            ("http://", None),
        ] {
            assert_eq!(authority(text).ok().as_deref(), expected, "{text}");
        }
    }
}
