//! `earrrl check`: one question to a running server.

use std::io::{self, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::process::ExitCode;
use std::time::Duration;

use earrrl::Cost;
use serde_json::{Value, json};

use super::Failure;

/// How long the server may take.
const PATIENCE: Duration = Duration::from_secs(5);
/// Longest answer that is read, in bytes.
const MAX_ANSWER_LEN: u64 = 1024 * 1024;

/// Ask a running server. Exit status 0: allowed, 1: denied, 2: error.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:\n  earrrl check login alice && ./serve-alice.sh")]
pub(super) struct Args {
    /// The rule's name.
    rule: String,
    /// The client.
    key: String,
    /// What it costs; what the rule says, unless given.
    #[arg(long)]
    cost: Option<Cost>,
    /// Ask without counting.
    #[arg(long)]
    peek: bool,
    /// The server's HTTP address.
    #[arg(long, value_name = "ADDR", default_value = "127.0.0.1:8080")]
    server: SocketAddr,
    /// The token.
    #[arg(long, env = "EARRRL_TOKEN", hide_env_values = true)]
    token: Option<String>,
    /// Print nothing.
    #[arg(long, short)]
    quiet: bool,
}

pub(super) fn run(args: Args) -> Result<ExitCode, Failure> {
    let failed = |error: io::Error| Failure::new(format!("{}: {error}", args.server));
    let answer = exchange(&args).map_err(failed)?;
    let (status, body) = parse(&answer)
        .ok_or_else(|| Failure::new(format!("{}: the answer is not HTTP", args.server)))?;
    if !matches!(status, 200 | 429) {
        let detail = serde_json::from_str::<Value>(body).ok();
        let detail = detail.and_then(|problem| Some(problem.get("detail")?.as_str()?.to_owned()));
        let detail = detail.unwrap_or_else(|| format!("status {status}"));
        return Err(Failure::new(detail.escape_debug().to_string()));
    }
    if !args.quiet {
        writeln!(io::stdout(), "{}", body.trim_end())?;
    }
    let allowed =
        serde_json::from_str::<Value>(body).ok().and_then(|v| v.get("allowed")?.as_bool());
    Ok(if allowed == Some(true) { ExitCode::SUCCESS } else { ExitCode::from(1) })
}

/// One request on a connection of its own.
fn exchange(args: &Args) -> io::Result<String> {
    let mut body = json!({ "rule": args.rule, "key": args.key }).to_string();
    if let Some(cost) = args.cost {
        body.pop();
        body.push_str(&format!(",\"cost\":{cost}}}"));
    }
    let path = if args.peek { "/v1/peek" } else { "/v1/check" };
    let mut head = format!(
        "POST {path} HTTP/1.1\r\nHost: {}\r\nConnection: close\r\n\
         Content-Type: application/json\r\nContent-Length: {}\r\n",
        args.server,
        body.len()
    );
    if let Some(token) = &args.token {
        if !token.bytes().all(|byte| byte.is_ascii_graphic()) {
            let why = "token: expected visible ASCII characters";
            return Err(io::Error::new(io::ErrorKind::InvalidInput, why));
        }
        head.push_str(&format!("Authorization: Bearer {token}\r\n"));
    }
    let mut stream = TcpStream::connect_timeout(&args.server, PATIENCE)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.write_all(format!("{head}\r\n{body}").as_bytes())?;
    let mut answer = String::new();
    stream.take(MAX_ANSWER_LEN).read_to_string(&mut answer)?;
    Ok(answer)
}

/// Status and body.
fn parse(answer: &str) -> Option<(u16, &str)> {
    let (head, body) = answer.split_once("\r\n\r\n")?;
    let status = head.strip_prefix("HTTP/1.1 ")?.get(..3)?.parse().ok()?;
    Some((status, body))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_are_taken_apart() {
        let answer = "HTTP/1.1 429 Too Many Requests\r\nretry-after: 2\r\n\r\n{\"allowed\":false}";
        assert_eq!(parse(answer), Some((429, "{\"allowed\":false}")));
        for answer in ["", "HTTP/1.1 200 OK\r\n", "-ERR\r\n\r\n", "HTTP/1.1 x\r\n\r\n"] {
            assert_eq!(parse(answer), None, "{answer}");
        }
    }
}
