//! The command `earrrl serve`.

use std::env;
use std::io::{self, IsTerminal as _};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::ops::Not;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use earrrl::internal::StateDirectory;
use earrrl::{Rule, SystemClock};
use earrrl_server::config::listen::{ListenAddress, Protocol};
use earrrl_server::config::{Config, ConfigError, EngineConfig};
use earrrl_server::log::Log;
use earrrl_server::serve::handover::HandedOver;
use earrrl_server::serve::reload::ConfigSource;
use earrrl_server::serve::run::{Running, Signals, catch_hangup};
use earrrl_server::serve::{allocator, handover};
use serde::{Serialize, Serializer};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tracing_subscriber::EnvFilter;

use super::environment::truth;
use super::{CliFailure, failure};

/// The default gRPC address, which applies if Envoy's rate limits are configured without an
/// address.
const DEFAULT_GRPC: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 8081);
/// The rule that is served if there is no configuration.
const DEFAULT_RULE: &str = "[[rule]]\nname = \"default\"\n\
                            limit = \"recent-average 1/s half-life=10s strict\"\n";

/// The longest time that the exit waits until the last lines of the log are written.
const LOG_PATIENCE: Duration = Duration::from_millis(500);

/// Serve rate limits over HTTP and RESP, from memory or shared over Redis.
#[derive(Clone, Debug, clap::Args, Serialize)]
#[command(
    after_help = "Every option can also come from the environment: EARRRL_HTTP=8081.\n\n\
                        Example:\n  earrrl serve --config limits.toml\n  \
                        earrrl serve --rule 'login=recent-average 10/h half-life=1h strict waits=first'\n  \
                        redis-cli -p 6380 CL.THROTTLE user123 15 30 60"
)]
pub(super) struct ServeArgs {
    /// The configuration file; without it one default rule is served.
    #[arg(short, long, value_name = "FILE", env = "EARRRL_CONFIG")]
    #[serde(skip)]
    config: Option<PathBuf>,
    /// A rule to serve instead of a configuration file, as `NAME=RULE`; may be repeated, or hold several
    /// rules with `;` between them.
    #[arg(long = "rule", value_name = "RULE", env = "EARRRL_RULE")]
    #[arg(conflicts_with = "config", value_parser = named_rules)]
    #[serde(rename = "rule", skip_serializing_if = "Vec::is_empty")]
    #[serde(serialize_with = "flat")]
    rules: Vec<NamedRules>,
    #[command(flatten)]
    server: ServerOptions,
    #[command(flatten)]
    engine: EngineOptions,
    #[command(flatten)]
    envoy: EnvoyOptions,
    /// Write the log as JSON.
    #[arg(long, env = "EARRRL_LOG_JSON", value_parser = truth)]
    #[serde(skip)]
    log_json: bool,
}

/// The options that set fields of `[server]`.
#[derive(Clone, Debug, clap::Args, Serialize)]
struct ServerOptions {
    /// The address for HTTP, or `off` [default: 127.0.0.1:8080].
    #[arg(long, value_name = "ADDR", env = "EARRRL_HTTP")]
    http: Option<String>,
    /// The address for RESP (Redis clients), or `off` [default: 127.0.0.1:6380].
    #[arg(long, value_name = "ADDR", env = "EARRRL_RESP")]
    resp: Option<String>,
    /// A separate address for health and metrics.
    #[arg(long, value_name = "ADDR", env = "EARRRL_ADMIN")]
    admin: Option<String>,
    /// The address for gRPC, Envoy's rate limit service [default with --envoy-config:
    /// 127.0.0.1:8081].
    #[arg(long, value_name = "ADDR", env = "EARRRL_GRPC")]
    grpc: Option<String>,
    /// Serve other machines without tokens.
    #[arg(long, env = "EARRRL_ALLOW_REMOTE", value_parser = truth)]
    #[serde(skip_serializing_if = "Not::not")]
    allow_remote: bool,
    /// Let checks contain the text of a rule instead of its name.
    #[arg(long, env = "EARRRL_ALLOW_INLINE_RULES", value_parser = truth)]
    #[serde(skip_serializing_if = "Not::not")]
    allow_inline_rules: bool,
}

/// The options that set fields of `[engine]`.
#[derive(Clone, Debug, clap::Args, Serialize)]
struct EngineOptions {
    /// The URL of a Redis or Valkey that several servers share.
    #[arg(long, value_name = "URL", env = "EARRRL_REDIS", hide_env_values = true)]
    redis: Option<String>,
    /// The directory of state files, which survive the process and which several servers can share.
    #[arg(long, value_name = "DIR", env = "EARRRL_STATE")]
    #[arg(conflicts_with = "redis")]
    state: Option<PathBuf>,
    /// The number of clients for which each rule reserves memory.
    #[arg(long, value_name = "N", env = "EARRRL_CAPACITY")]
    #[arg(value_parser = clap::value_parser!(u64).range(1..=10_000_000_000))]
    capacity: Option<u64>,
}

/// The options that set fields of `[envoy]`.
#[derive(Clone, Debug, clap::Args, Serialize)]
struct EnvoyOptions {
    /// envoyproxy/ratelimit's configuration: YAML files, or folders of them.
    #[arg(long = "envoy-config", value_name = "FILE|DIR", num_args = 1.., env = "EARRRL_ENVOY_CONFIG")]
    #[serde(skip_serializing_if = "Vec::is_empty")]
    files: Vec<PathBuf>,
    /// The address of a control plane that sends the descriptors instead (xDS, an ADS stream).
    #[arg(long = "envoy-xds", value_name = "[https://]HOST:PORT")]
    #[arg(env = "EARRRL_ENVOY_XDS", conflicts_with = "files")]
    xds: Option<String>,
    /// With https://: CA certificates that verify the control plane [default: the system's].
    #[arg(long = "envoy-xds-ca", value_name = "FILE")]
    #[arg(env = "EARRRL_ENVOY_XDS_CA", requires = "xds")]
    xds_ca: Option<PathBuf>,
    /// With https://: this server's certificate for the control plane.
    #[arg(long = "envoy-xds-cert", value_name = "FILE")]
    #[arg(env = "EARRRL_ENVOY_XDS_CERT", requires = "xds")]
    xds_cert: Option<PathBuf>,
    /// With https://: the private key of that certificate.
    #[arg(long = "envoy-xds-key", value_name = "FILE")]
    #[arg(env = "EARRRL_ENVOY_XDS_KEY", requires = "xds")]
    xds_key: Option<PathBuf>,
    /// This server's node id for the control plane [default: ratelimit].
    #[arg(long, value_name = "ID", env = "EARRRL_NODE", requires = "xds")]
    node: Option<String>,
    /// The algorithm of its limits: fixed-window, calendar, sliding-window, gcra or recent-average.
    #[arg(
        long = "envoy-algorithm",
        value_name = "NAME",
        env = "EARRRL_ENVOY_ALGORITHM"
    )]
    algorithm: Option<String>,
}

impl ServeArgs {
    /// Loads the configuration file, in which each option replaces the field of its name.
    fn load(&self) -> Result<Config, ConfigError> {
        let failed =
            |error: toml::ser::Error| ConfigError::unreadable("options", error.to_string());
        let options = toml::to_string(self).map_err(failed)?;
        let has_descriptors = !self.envoy.files.is_empty() || self.envoy.xds.is_some();
        let mut config = match &self.config {
            Some(path) => Config::load_with(path, &options)?,
            None if !self.rules.is_empty() || has_descriptors => {
                Config::parse_with("", "serve", &options)?
            }
            None => Config::parse_with(DEFAULT_RULE, "serve", &options)?,
        };
        let field = match self.envoy.files.is_empty() {
            true => "[envoy] files",
            false => "--envoy-config",
        };
        for warning in config.envoy.load().map_err(|error| error.of(field))? {
            tracing::warn!("{warning}");
        }
        let serves = config.envoy.has_descriptors();
        if self.envoy.algorithm.is_some() && !serves {
            let why = "only with descriptors, of --envoy-config, --envoy-xds or [envoy] files";
            return Err(ConfigError::unreadable("--envoy-algorithm", why.to_owned()));
        }
        if serves && config.server.grpc.is_none() && self.server.grpc.is_none() {
            config.server.grpc = Some(ListenAddress::Tcp(DEFAULT_GRPC));
        }
        Ok(config)
    }
}

/// A rule of an option `--rule`, as the configuration has it.
#[derive(Clone, Debug, Serialize)]
struct NamedRule {
    name: String,
    limit: String,
}

/// The rules of one option `--rule`.
#[derive(Clone, Debug)]
struct NamedRules(Vec<NamedRule>);

/// Writes the rules of all options as one list.
fn flat<S: Serializer>(rules: &[NamedRules], serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_seq(rules.iter().flat_map(|rules| &rules.0))
}

/// Splits rules with `;` between them.
fn named_rules(text: &str) -> Result<NamedRules, String> {
    let rules = text.split(';').filter(|rule| !rule.trim().is_empty());
    let rules: Vec<_> = rules.map(named_rule).collect::<Result<_, _>>()?;
    match rules.is_empty() {
        true => Err("expected NAME=RULE, as \"login=gcra 1/s burst=60\"".to_owned()),
        false => Ok(NamedRules(rules)),
    }
}

/// Splits a rule with a name, such as `login=gcra 1/s burst=60`. A rule without a name is called `default`.
fn named_rule(text: &str) -> Result<NamedRule, String> {
    let parse = |rule: &str| rule.trim().parse::<Rule>();
    // The first `=` may also be that of a rule's parameter; no rule follows it then.
    let (name, limit) = match text.split_once('=') {
        Some((name, rule)) if !name.trim().contains(' ') || parse(rule).is_ok() => (name, rule),
        _ => ("default", text),
    };
    parse(limit).map_err(|error| error.to_string())?;
    Ok(NamedRule {
        name: name.trim().to_owned(),
        limit: limit.trim().to_owned(),
    })
}

pub(super) fn run(args: ServeArgs, warnings: &[String]) -> Result<ExitCode, CliFailure> {
    allocator::give_back_large_blocks();
    let log = start_log(args.log_json)
        .map_err(|error| CliFailure::new(format!("no thread for the log: {error}")))?;
    for warning in warnings {
        tracing::warn!("{warning}");
    }
    let result = start(args);
    log.finish(LOG_PATIENCE);
    result
}

fn start(args: ServeArgs) -> Result<ExitCode, CliFailure> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build();
    let runtime = runtime.map_err(|error| CliFailure::new(format!("no event queue: {error}")))?;
    // SIGHUP is caught from here on; a reload that is requested before the server runs happens once
    // it does.
    let hangup = runtime
        .block_on(async { catch_hangup() })
        .map_err(no_signals)?;
    runtime
        .block_on(async { survive_signals() })
        .map_err(no_signals)?;
    let config = args
        .load()
        .map_err(|error| failure::lines(&error.to_string()))?;
    match handover::raise() {
        Ok(limit) => {
            tracing::debug!(limit, "open files");
            let needed = config.server.limits.connections as u64 + handover::BESIDE_CONNECTIONS;
            if let Some(limit) = limit.filter(|limit| *limit < needed) {
                tracing::warn!(
                    "max_connections = {} is more than the limit of {limit} open files allows: raise the limit to \
                     {needed} (LimitNOFILE= in systemd, ulimit -n), or lower max_connections",
                    config.server.limits.connections
                );
            }
        }
        Err(error) => tracing::warn!(%error, "the limit of open files stays low"),
    }
    let served = runtime.block_on(serve(args, config, hangup));
    // The runtime is not joined, since a reload may be blocked in reading a file that never ends.
    runtime.shutdown_background();
    served.map(|()| ExitCode::SUCCESS)
}

/// Ignores signals that would end the process by default. Log rotation sends USR1, and
/// administrators of other servers send USR2 and QUIT for an upgrade or a stop. The system sends
/// XFSZ when the log exceeds a limit on file sizes.
fn survive_signals() -> io::Result<()> {
    use rustix::process::Signal;
    for harmless in [
        Signal::XFSZ,
        Signal::USR1,
        Signal::USR2,
        Signal::QUIT,
        Signal::ALARM,
    ] {
        drop(signal(SignalKind::from_raw(harmless.as_raw()))?);
    }
    Ok(())
}

fn no_signals(error: io::Error) -> CliFailure {
    CliFailure::new(format!("can't receive signals: {error}"))
}

async fn serve(args: ServeArgs, config: Config, hangup: Signal) -> Result<(), CliFailure> {
    let signals = Signals::catch(hangup).map_err(no_signals)?;
    let handed = HandedOver::from_env().map_err(|error| CliFailure::new(error.to_string()))?;
    let running =
        Running::start_on(&config, Arc::new(clock(&config)?), handed).map_err(CliFailure::new)?;
    announce(&args, &running, &config);
    let paths: Vec<_> = args
        .config
        .iter()
        .chain(&config.envoy.files)
        .cloned()
        .collect();
    // A large configuration takes several times the memory that stays in use, so it is dropped, and
    // the free memory is returned to the system.
    drop(config);
    allocator::give_back_free_memory();
    let source = (!paths.is_empty()).then(|| {
        let load = Box::new(move || args.load());
        ConfigSource { paths, load }
    });
    running
        .until_signal(signals, source)
        .await
        .map_err(|error| CliFailure::new(error.to_string()))
}

/// Returns the system's clock, or that of the directory of state files.
fn clock(config: &Config) -> Result<SystemClock, CliFailure> {
    let EngineConfig::State(state) = &config.engine else {
        return Ok(SystemClock::new());
    };
    let directory = StateDirectory::open(&state.directory)
        .map_err(|error| CliFailure::new(error.to_string()))?;
    Ok(SystemClock::with_anchor(directory.anchor()))
}

fn announce(args: &ServeArgs, running: &Running, config: &Config) {
    let [http, resp, admin, grpc] = Protocol::ALL.map(|protocol| shown(running.address(protocol)));
    let descriptors = config
        .envoy
        .tree
        .as_ref()
        .map_or(0, |tree| tree.limits().len());
    let rules = config.rules.len();
    tracing::info!(%http, %resp, %grpc, %admin, rules, descriptors, "serving");
    if cfg!(debug_assertions) {
        tracing::info!(
            "this build is not optimised: do not measure it; `--release` makes a fast one"
        );
    }
    if config.limits_nothing() {
        tracing::warn!("{}", Config::LIMITS_NOTHING);
    }
    for caution in config.cautions() {
        tracing::warn!("{caution}");
    }
    if args.config.is_some() || config.rules.is_empty() {
        return;
    }
    for rule in &config.rules {
        tracing::info!(
            "no --config: serving the rule {} = \"{}\"",
            rule.name,
            rule.rule
        );
    }
    if let Some(ListenAddress::Tcp(http)) = running.address(Protocol::Http) {
        tracing::info!(
            "try: curl -H 'content-type: application/json' -d '{{\"rule\":\"{}\",\"key\":\"alice\"}}' \
             http://{http}/v1/check",
            config.rules.first().map_or("default", |rule| &rule.name)
        );
    }
    if let Some(ListenAddress::Tcp(resp)) = running.address(Protocol::Resp) {
        tracing::info!(
            "try: redis-cli -p {} CL.THROTTLE user123 15 30 60",
            resp.port()
        );
    }
}

fn shown(address: Option<&ListenAddress>) -> String {
    address.map_or("off".to_owned(), ListenAddress::to_string)
}

/// Starts the log on standard error; `RUST_LOG` sets its level, and `NO_COLOR` turns colors off.
fn start_log(json: bool) -> io::Result<Log> {
    let log = Log::start(io::stderr())?;
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new("info"));
    let lines = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(log.clone());
    let colored =
        io::stderr().is_terminal() && env::var_os("NO_COLOR").is_none_or(|v| v.is_empty());
    // This fails only if a log is set up already, which is then kept.
    let _ = if json {
        lines.json().try_init()
    } else {
        lines.with_ansi(colored).with_target(false).try_init()
    };
    Ok(log)
}
