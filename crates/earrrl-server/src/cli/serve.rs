//! `earrrl serve`.

use std::io::{self, IsTerminal as _};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;

use earrrl::SystemClock;
use earrrl_server::config::envoy::{Algorithm, ControlPlane};
use earrrl_server::config::{Config, ConfigError};
use earrrl_server::serve::descriptors;
use earrrl_server::serve::run::{ConfigSource, Running, Signals};
use tracing_subscriber::EnvFilter;

use super::{Failure, failure};

/// Where gRPC is served when there is something to serve and nothing says where.
const DEFAULT_GRPC: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 8081);
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
    /// Where gRPC is served: Envoy's rate limit service [default with --envoy-config:
    /// 127.0.0.1:8081].
    #[arg(long, value_name = "ADDR")]
    grpc: Option<SocketAddr>,
    /// envoyproxy/ratelimit's configuration: YAML files, or folders of them.
    #[arg(long, value_name = "FILE|DIR", num_args = 1..)]
    envoy_config: Vec<PathBuf>,
    /// Where a control plane is that sends the descriptors instead (xDS, an ADS stream).
    #[arg(long, value_name = "HOST:PORT", conflicts_with = "envoy_config")]
    envoy_xds: Option<String>,
    /// The node id that the control plane is told [default: ratelimit].
    #[arg(long, value_name = "ID", requires = "envoy_xds")]
    node: Option<String>,
    /// What its rate_limits mean: fixed-window, sliding-window, gcra or recent-average.
    #[arg(long, value_name = "NAME", value_parser = algorithm)]
    envoy_algorithm: Option<Algorithm>,
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
            None if !self.envoy_config.is_empty() || self.envoy_xds.is_some() => Config::default(),
            None => Config::parse(DEFAULT_RULE, "default")?,
        };
        let server = &mut config.server;
        server.http = self.http.or(server.http);
        server.resp = self.resp.or(server.resp);
        server.grpc = self.grpc.or(server.grpc);
        server.allow_remote |= self.allow_remote;
        server.allow_inline_rules |= self.allow_inline_rules;
        if let Some(capacity) = self.capacity {
            config.capacity = capacity as usize;
        }
        self.load_envoy(&mut config)?;
        Ok(config)
    }

    fn load_envoy(&self, config: &mut Config) -> Result<(), ConfigError> {
        let envoy = &mut config.envoy;
        if !self.envoy_config.is_empty() {
            envoy.files.clone_from(&self.envoy_config);
        }
        envoy.algorithm = self.envoy_algorithm.unwrap_or(envoy.algorithm);
        for warning in envoy.load()? {
            tracing::warn!("{warning}");
        }
        if let Some(address) = &self.envoy_xds {
            let plane = ControlPlane::new(address, self.node.as_deref().unwrap_or_default());
            let failed = |why| ConfigError::unreadable("--envoy-xds", why);
            envoy.control_plane = Some(plane.map_err(failed)?);
        }
        let serves = !envoy.files.is_empty() || envoy.control_plane.is_some();
        if serves && config.server.grpc.is_none() {
            config.server.grpc = Some(DEFAULT_GRPC);
        }
        Ok(())
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
    let paths: Vec<_> = args.config.iter().chain(&config.envoy.files).cloned().collect();
    let source = (!paths.is_empty()).then(|| {
        let load = Box::new(move || args.load());
        ConfigSource { paths, load }
    });
    running.until_signal(signals, source).await;
    Ok(())
}

fn announce(args: &Args, running: &Running, config: &Config) {
    let (http, resp, grpc) = (shown(running.http), shown(running.resp), shown(running.grpc));
    let descriptors = config.envoy.tree.as_ref().map_or(0, |tree| tree.limits().len());
    tracing::info!(%http, %resp, %grpc, rules = config.rules.len(), descriptors, "serving");
    if args.config.is_some() || config.rules.is_empty() {
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

fn algorithm(name: &str) -> Result<Algorithm, String> {
    let names = Algorithm::ALL.map(Algorithm::name).join(", ");
    Algorithm::parse(name).ok_or_else(|| format!("expected one of {names}"))
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
