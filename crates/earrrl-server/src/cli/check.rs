//! The command `earrrl check`: one request to a running server.

use std::io::{self, Write as _};
use std::process::ExitCode;

use axum::http::Method;
use earrrl::Cost;
use serde_json::{Value, json};

use super::CliFailure;
use super::http_client::{ServerOptions, detail};

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
    #[command(flatten)]
    server: ServerOptions,
    /// Print nothing.
    #[arg(long, short)]
    quiet: bool,
}

pub(super) fn run(args: CheckArgs) -> Result<ExitCode, CliFailure> {
    let body = body(&args);
    let client = args.server.client().map_err(CliFailure::new)?;
    let path = if args.peek { "/v1/peek" } else { "/v1/check" };
    let (status, body) = client
        .send(Method::POST, path, Some(body))
        .map_err(CliFailure::new)?;
    if !matches!(status, 200 | 429) {
        return Err(CliFailure::new(detail(status, &body)));
    }
    if !args.quiet {
        writeln!(io::stdout(), "{}", body.trim_end())?;
    }
    let allowed = serde_json::from_str::<Value>(&body)
        .ok()
        .and_then(|v| v.get("allowed")?.as_bool());
    Ok(if allowed == Some(true) {
        ExitCode::SUCCESS
    } else {
        ExitCode::from(1)
    })
}

/// Returns the body of the request.
fn body(args: &CheckArgs) -> String {
    let mut body = json!({ "rule": args.rule, "key": args.key }).to_string();
    if let Some(cost) = args.cost {
        body.pop();
        body.push_str(&format!(",\"cost\":{cost}}}"));
    }
    body
}
