//! The command `earrrl serve`.

use std::collections::HashSet;
use std::env;
use std::io::{self, IsTerminal as _};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use earrrl::internal::StateDirectory;
use earrrl::{Cost, Rule, SystemClock};
use earrrl_server::config::envoy::{ControlPlane, EnvoyAlgorithm, PlaneFiles};
use earrrl_server::config::listen::{ListenAddress, ListenAt, Protocol};
use earrrl_server::config::{
    Config, ConfigError, EngineConfig, RuleConfig, StateConfig, check_passes,
};
use earrrl_server::log::Log;
use earrrl_server::serve::handover::HandedOver;
use earrrl_server::serve::reload::ConfigSource;
use earrrl_server::serve::run::{Running, Signals, catch_hangup};
use earrrl_server::serve::{allocator, process};
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
#[derive(Clone, Debug, clap::Args)]
#[command(
    after_help = "Every option can also come from the environment: EARRRL_HTTP=8081.\n\n\
                        Example:\n  earrrl serve --config limits.toml\n  \
                        earrrl serve --rule 'login=recent-average 10/h half-life=1h strict'\n  \
                        redis-cli -p 6380 CL.THROTTLE user123 15 30 60"
)]
pub(super) struct ServeArgs {
    /// The configuration file; without it one default rule is served.
    #[arg(short, long, value_name = "FILE", env = "EARRRL_CONFIG")]
    config: Option<PathBuf>,
    /// A rule to serve instead of a configuration file, as `NAME=RULE`; may be repeated, or hold several
    /// rules with `;` between them.
    #[arg(long = "rule", value_name = "RULE", env = "EARRRL_RULE")]
    #[arg(conflicts_with = "config", value_parser = named_rules)]
    rules: Vec<NamedRules>,
    /// The address for HTTP, or `off` [default: 127.0.0.1:8080].
    #[arg(long, value_name = "ADDR", env = "EARRRL_HTTP")]
    http: Option<ListenAt>,
    /// The address for RESP (Redis clients), or `off` [default: 127.0.0.1:6380].
    #[arg(long, value_name = "ADDR", env = "EARRRL_RESP")]
    resp: Option<ListenAt>,
    /// A separate address for health and metrics.
    #[arg(long, value_name = "ADDR", env = "EARRRL_ADMIN")]
    admin: Option<ListenAt>,
    /// The URL of a Redis or Valkey that several servers share.
    #[arg(long, value_name = "URL", env = "EARRRL_REDIS", hide_env_values = true)]
    redis: Option<String>,
    /// The directory of state files, which survive the process and which several servers can share.
    #[arg(
        long,
        value_name = "DIR",
        env = "EARRRL_STATE",
        conflicts_with = "redis"
    )]
    state: Option<PathBuf>,
    /// The address for gRPC, Envoy's rate limit service [default with --envoy-config:
    /// 127.0.0.1:8081].
    #[arg(long, value_name = "ADDR", env = "EARRRL_GRPC")]
    grpc: Option<ListenAt>,
    /// envoyproxy/ratelimit's configuration: YAML files, or folders of them.
    #[arg(long, value_name = "FILE|DIR", num_args = 1.., env = "EARRRL_ENVOY_CONFIG")]
    envoy_config: Vec<PathBuf>,
    /// The address of a control plane that sends the descriptors instead (xDS, an ADS stream).
    #[arg(
        long,
        value_name = "[https://]HOST:PORT",
        env = "EARRRL_ENVOY_XDS",
        conflicts_with = "envoy_config"
    )]
    envoy_xds: Option<String>,
    /// With https://: CA certificates that verify the control plane [default: the system's].
    #[arg(
        long,
        value_name = "FILE",
        env = "EARRRL_ENVOY_XDS_CA",
        requires = "envoy_xds"
    )]
    envoy_xds_ca: Option<PathBuf>,
    /// With https://: this server's certificate for the control plane.
    #[arg(
        long,
        value_name = "FILE",
        env = "EARRRL_ENVOY_XDS_CERT",
        requires = "envoy_xds"
    )]
    envoy_xds_cert: Option<PathBuf>,
    /// With https://: the private key of that certificate.
    #[arg(
        long,
        value_name = "FILE",
        env = "EARRRL_ENVOY_XDS_KEY",
        requires = "envoy_xds"
    )]
    envoy_xds_key: Option<PathBuf>,
    /// This server's node id for the control plane [default: ratelimit].
    #[arg(long, value_name = "ID", env = "EARRRL_NODE", requires = "envoy_xds")]
    node: Option<String>,
    /// The algorithm of its limits: fixed-window, sliding-window, gcra or recent-average.
    #[arg(long, value_name = "NAME", env = "EARRRL_ENVOY_ALGORITHM", value_parser = algorithm)]
    envoy_algorithm: Option<EnvoyAlgorithm>,
    /// The number of clients for which each rule reserves memory.
    #[arg(long, value_name = "N", env = "EARRRL_CAPACITY")]
    #[arg(value_parser = clap::value_parser!(u64).range(1..=10_000_000_000))]
    capacity: Option<u64>,
    /// Serve other machines without tokens.
    #[arg(long, env = "EARRRL_ALLOW_REMOTE", value_parser = truth)]
    allow_remote: bool,
    /// Let checks contain the text of a rule instead of its name.
    #[arg(long, env = "EARRRL_ALLOW_INLINE_RULES", value_parser = truth)]
    allow_inline_rules: bool,
    /// Write the log as JSON.
    #[arg(long, env = "EARRRL_LOG_JSON", value_parser = truth)]
    log_json: bool,
}

impl ServeArgs {
    fn load(&self) -> Result<Config, ConfigError> {
        let mut config = match &self.config {
            Some(path) => Config::load(path)?,
            None if !self.rules.is_empty() => {
                let rules = self
                    .rules
                    .iter()
                    .flat_map(|rules| rules.0.clone())
                    .collect::<Vec<_>>();
                only_once(&rules)?;
                Config {
                    rules,
                    ..Config::default()
                }
            }
            None if !self.envoy_config.is_empty() || self.envoy_xds.is_some() => Config::default(),
            None => Config::parse(DEFAULT_RULE, "default")?,
        };
        let server = &mut config.server;
        put(&mut server.http, self.http.as_ref());
        put(&mut server.resp, self.resp.as_ref());
        put(&mut server.admin, self.admin.as_ref());
        put(&mut server.grpc, self.grpc.as_ref());
        server.allow_remote |= self.allow_remote;
        server.allow_inline_rules |= self.allow_inline_rules;
        if let Some(url) = &self.redis {
            config.engine = EngineConfig::redis_at(url)
                .map_err(|error| ConfigError::unreadable("--redis", error))?;
            config.capacity = config.engine.default_capacity();
        }
        if let Some(directory) = &self.state {
            let accepts_other_rules = match &config.engine {
                EngineConfig::State(state) => state.accepts_other_rules,
                _ => false,
            };
            let directory = directory.clone();
            config.engine = EngineConfig::State(StateConfig {
                directory,
                accepts_other_rules,
            });
        }
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
        let field = if self.envoy_config.is_empty() {
            "[envoy] files"
        } else {
            "--envoy-config"
        };
        for warning in envoy.load().map_err(|error| error.of(field))? {
            tracing::warn!("{warning}");
        }
        if let Some(address) = &self.envoy_xds {
            let plane = ControlPlane::new(address, self.node.as_deref().unwrap_or_default());
            let plane = plane.and_then(|plane| {
                plane.with_files(PlaneFiles {
                    ca: self.envoy_xds_ca.clone(),
                    cert: self.envoy_xds_cert.clone(),
                    key: self.envoy_xds_key.clone(),
                })
            });
            let failed = |why| ConfigError::unreadable("--envoy-xds", why);
            envoy.control_plane = Some(plane.map_err(failed)?);
        }
        let serves = envoy.has_descriptors();
        if self.envoy_algorithm.is_some() && !serves {
            let why = "only with descriptors, of --envoy-config, --envoy-xds or [envoy] files";
            return Err(ConfigError::unreadable("--envoy-algorithm", why.to_owned()));
        }
        if serves && config.server.grpc.is_none() && self.grpc.is_none() {
            config.server.grpc = Some(ListenAddress::Tcp(DEFAULT_GRPC));
        }
        Ok(())
    }
}

/// Replaces an address of the configuration by one from the command line, if that is given.
fn put(address: &mut Option<ListenAddress>, place: Option<&ListenAt>) {
    if let Some(ListenAt(given)) = place {
        address.clone_from(given);
    }
}

/// Returns an error if two rules have one name.
fn only_once(rules: &[RuleConfig]) -> Result<(), ConfigError> {
    let mut names = HashSet::new();
    match rules.iter().find(|rule| !names.insert(&rule.name)) {
        None => Ok(()),
        Some(rule) => {
            let why = format!(
                "two rules are named {}; each needs a name of its own",
                rule.name
            );
            Err(ConfigError::unreadable("--rule", why))
        }
    }
}

/// The rules of one option `--rule`.
#[derive(Clone, Debug)]
struct NamedRules(Vec<RuleConfig>);

/// Parses rules with `;` between them.
fn named_rules(text: &str) -> Result<NamedRules, String> {
    let rules = text.split(';').filter(|rule| !rule.trim().is_empty());
    let rules: Vec<_> = rules.map(named_rule).collect::<Result<_, _>>()?;
    if rules.is_empty() {
        return Err("expected NAME=RULE, as \"login=gcra 1/s burst=60\"".to_owned());
    }
    Ok(NamedRules(rules))
}

/// Parses a rule with a name, such as `login=gcra 1/s burst=60`. A rule without a name is called
/// `default`.
fn named_rule(text: &str) -> Result<RuleConfig, String> {
    let parse = |rule: &str| rule.trim().parse::<Rule>();
    // The first `=` may also be that of an option; no rule follows it then.
    let (name, rule) = match text.split_once('=') {
        Some((name, rule)) if !name.trim().contains(' ') || parse(rule).is_ok() => {
            (name.trim(), rule)
        }
        _ => ("default", text),
    };
    earrrl::internal::check_name(name).map_err(|error| error.to_string())?;
    let rule = parse(rule).map_err(|error| error.to_string())?;
    check_passes(rule.limit(), Cost::ONE)?;
    Ok(RuleConfig::new(name, rule))
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
    match process::raise() {
        Ok(limit) => {
            tracing::debug!(limit, "open files");
            let needed = config.server.limits.connections as u64 + process::BESIDE_CONNECTIONS;
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
    let running = Running::start_on(&config, Arc::new(clock(&config)?), handed)
        .map_err(|error| CliFailure::new(error.to_string()))?;
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

fn algorithm(name: &str) -> Result<EnvoyAlgorithm, String> {
    let names = EnvoyAlgorithm::ALL.map(EnvoyAlgorithm::name).join(", ");
    EnvoyAlgorithm::parse(name).ok_or_else(|| format!("expected one of {names}"))
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
