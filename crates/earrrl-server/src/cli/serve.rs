//! `earrrl serve`.

use std::io::{self, IsTerminal as _};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;

use earrrl::SystemClock;
use earrrl_server::config::{Config, ConfigError};
use earrrl_server::serve::descriptors;
use earrrl_server::serve::run::{ConfigSource, Running, Signals};
use tracing_subscriber::EnvFilter;

use super::{Failure, failure};

/// The rule that is served when no configuration says another.
const DEFAULT_RULE: &str = "[[rule]]\nname = \"default\"\n\
                            limit = \"recent-average 1/s half-life=10s strict\"\n";

/// Serve rate limits over HTTP and RESP, from memory or shared over Redis.
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = "Example:\n  earrrl serve --config limits.toml\n  \
                        redis-cli -p 6380 CL.THROTTLE user123 15 30 60")]
pub(super) struct Args {
    /// The configuration; without it one default rule is served.
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Where HTTP is served [default: 127.0.0.1:8080].
    #[arg(long, value_name = "ADDR")]
    http: Option<SocketAddr>,
    /// Where RESP is served [default: 127.0.0.1:6380].
    #[arg(long, value_name = "ADDR")]
    resp: Option<SocketAddr>,
    /// Live clients that each rule's table is meant for.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=10_000_000_000))]
    capacity: Option<u64>,
    /// Serve other machines without a token.
    #[arg(long)]
    allow_remote: bool,
    /// Let checks bring the text of a rule instead of a name.
    #[arg(long)]
    allow_inline_rules: bool,
    /// Write the log as JSON.
    #[arg(long)]
    log_json: bool,
}

impl Args {
    fn load(&self) -> Result<Config, ConfigError> {
        let mut config = match &self.config {
            Some(path) => Config::load(path)?,
            None => Config::parse(DEFAULT_RULE, "default")?,
        };
        let server = &mut config.server;
        server.http = self.http.or(server.http);
        server.resp = self.resp.or(server.resp);
        server.allow_remote |= self.allow_remote;
        server.allow_inline_rules |= self.allow_inline_rules;
        if let Some(capacity) = self.capacity {
            config.capacity = capacity as usize;
        }
        Ok(config)
    }
}

pub(super) fn run(args: Args) -> Result<ExitCode, Failure> {
    start_log(args.log_json);
    let config = args.load().map_err(|error| failure::lines(&error.to_string()))?;
    match descriptors::raise() {
        Ok(limit) => tracing::debug!(limit, "open files"),
        Err(error) => tracing::warn!(%error, "the limit of open files stays low"),
    }
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|error| Failure::new(format!("no event queue: {error}")))?;
    runtime.block_on(serve(args, &config))?;
    Ok(ExitCode::SUCCESS)
}

async fn serve(args: Args, config: &Config) -> Result<(), Failure> {
    let signals = Signals::catch()
        .map_err(|error| Failure::new(format!("can't receive signals: {error}")))?;
    let running = Running::start(config, Arc::new(SystemClock::new()))
        .map_err(|error| Failure::new(error.to_string()))?;
    announce(&args, &running, config);
    let source = args.config.clone().map(|path| {
        let load = Box::new(move || args.load());
        ConfigSource { path, load }
    });
    running.until_signal(signals, source).await;
    Ok(())
}

fn announce(args: &Args, running: &Running, config: &Config) {
    let (http, resp) = (shown(running.http), shown(running.resp));
    tracing::info!(%http, %resp, rules = config.rules.len(), "serving");
    if args.config.is_some() {
        return;
    }
    for rule in &config.rules {
        tracing::info!("no --config: serving one rule, {} = \"{}\"", rule.name, rule.rule);
    }
    if let Some(http) = running.http {
        tracing::info!(
            "try: curl -H 'content-type: application/json' -d '{{\"rule\":\"default\",\"key\":\"alice\"}}' \
             http://{http}/v1/check"
        );
    }
    if let Some(resp) = running.resp {
        tracing::info!("try: redis-cli -p {} CL.THROTTLE user123 15 30 60", resp.port());
    }
}

fn shown(address: Option<SocketAddr>) -> String {
    address.map_or("off".to_owned(), |address| address.to_string())
}

/// The log goes to standard error; `RUST_LOG` says how much of it.
fn start_log(json: bool) {
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new("info"));
    let log = tracing_subscriber::fmt().with_env_filter(filter).with_writer(io::stderr);
    // It fails only where a log is there already.
    let _ = if json {
        log.json().try_init()
    } else {
        log.with_ansi(io::stderr().is_terminal()).with_target(false).try_init()
    };
}
