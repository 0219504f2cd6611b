//! The commands `earrrl config check` and `earrrl config explain`, which prints the rules that apply to a request, or
//! the limit of a descriptor.

use std::fmt::Write as _;
use std::fs::FileType;
use std::io::{self, Write as _};
use std::ops::Range;
use std::os::unix::fs::FileTypeExt as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;

use clap::Subcommand;
use earrrl::internal::StateDirectory;
use earrrl::{ManualClock, Nanos, Rule, StateError};
use earrrl_logs::text::counted;
use earrrl_server::config::attribute::attribute_name;
use earrrl_server::config::envoy::explain::explain as explain_descriptor;
use earrrl_server::config::listen::{ListenAddress, Protocol};
use earrrl_server::config::rule::OnMissing;
use earrrl_server::config::{Config, ConfigError, EngineConfig, EnvoyConfig, RuleConfig};
use earrrl_server::service::Service;
use earrrl_server::service::attributes::Attributes;
use earrrl_server::service::memory_check::{self, OverMemory};
use earrrl_server::service::rule::ActiveRule;
use earrrl_server::tls::{Tls, outdated};

use super::{CliFailure, failure};

/// Examine a configuration without serving it.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  earrrl config check limits.toml\n  \
                        earrrl config check ratelimit/config\n  \
                        earrrl config explain limits.toml client=192.0.2.7 path=/login method=POST")]
pub(super) struct ConfigArgs {
    #[command(subcommand)]
    command: ConfigCommand,
}

#[derive(Debug, Subcommand)]
enum ConfigCommand {
    /// Print the mistakes in a file, each with its line and column, and how much each rule allows at once.
    #[command(after_help = "Example:\n  earrrl config check limits.toml")]
    Check {
        /// The configuration, or one of envoyproxy/ratelimit: a YAML file, or a folder of them.
        file: PathBuf,
    },
    /// Print which rules apply to a request, with its key, cost and limit, or which limit a descriptor meets.
    #[command(after_help = "Examples:\n  \
                            earrrl config explain limits.toml client=192.0.2.7 path=/login method=POST\n  \
                            earrrl config explain ratelimit/config shop path=/login")]
    Explain {
        /// The configuration, or one of envoyproxy/ratelimit: a YAML file, or a folder of them.
        file: PathBuf,
        /// The request's attributes; or, for Envoy, the domain and the descriptor's entries in order.
        #[arg(value_name = "[DOMAIN] NAME=VALUE", required = true)]
        words: Vec<String>,
    },
}

pub(super) fn run(args: ConfigArgs) -> Result<ExitCode, CliFailure> {
    match args.command {
        ConfigCommand::Check { file } => check(&file),
        ConfigCommand::Explain { file, words } => explain(&file, &load(&file)?, &words),
    }
}

/// Returns the first path of the configuration at which a server could not create or use its file on this
/// machine.
fn unusable_path(config: &Config) -> Option<String> {
    let state = match &config.engine {
        EngineConfig::State(state) => unusable("state", &state.directory, FileType::is_dir),
        _ => None,
    };
    let sockets = || {
        Protocol::ALL
            .into_iter()
            .find_map(|protocol| match config.server.address(protocol)? {
                ListenAddress::Unix(path) => unusable(protocol.name(), path, FileType::is_socket),
                ListenAddress::Tcp(_) => None,
            })
    };
    state.or_else(sockets)
}

/// Returns an error if there is something else at a path, or no folder for it.
fn unusable(field: &str, path: &Path, is_it: impl Fn(&FileType) -> bool) -> Option<String> {
    let shown = path.display();
    match path.metadata() {
        Ok(found) if is_it(&found.file_type()) => None,
        Ok(_) => Some(format!(
            "{field}: {shown} is something else already; want another path"
        )),
        Err(_) => {
            let folder = path
                .parent()
                .filter(|folder| !folder.as_os_str().is_empty())?;
            let error = folder.metadata().err()?;
            Some(format!("{field}: the folder of {shown}: {error}"))
        }
    }
}

/// Creates an error from a message and, if it is known, its place in the file.
fn mistake(file: &Path, place: Option<Range<usize>>, message: String) -> CliFailure {
    let name = file.display().to_string();
    CliFailure::new(match place {
        None => format!("{name}: {message}"),
        Some(place) => {
            let text = std::fs::read_to_string(file).unwrap_or_default();
            ConfigError::at(&name, &text, place, message).to_string()
        }
    })
}

fn check(file: &Path) -> Result<ExitCode, CliFailure> {
    let config = load(file)?;
    if let Some(why) = config.server.exposed() {
        return Err(mistake(file, None, why));
    }
    if let Some(why) = unusable_path(&config) {
        return Err(mistake(file, None, why));
    }
    if let Some(OverMemory { message, place }) = memory_check::over_memory(&config) {
        return Err(mistake(file, place, message));
    }
    if let Some(tls) = &config.server.tls {
        Tls::load(tls).map_err(|why| {
            // The message begins with the path of the invalid file.
            let is_named = |path: &Path| why.starts_with(&format!("{}: ", path.display()));
            let place = config.tls_places.iter().find(|(path, _)| is_named(path));
            mistake(
                file,
                place.map(|(_, place)| place.clone()),
                format!("[server.tls] {why}"),
            )
        })?;
        if let Some(caution) = outdated(&tls.cert) {
            writeln!(io::stderr(), "warning: [server.tls] {caution}")?;
        }
    }
    if config.limits_nothing() {
        return Err(mistake(file, None, Config::LIMITS_NOTHING.to_owned()));
    }
    for caution in config.cautions().into_iter().chain(state_cautions(&config)) {
        writeln!(io::stderr(), "warning: {caution}")?;
    }
    print_summary(file, &config)?;
    Ok(ExitCode::SUCCESS)
}

/// Returns warnings about what a server finds in its directory of state files: files that it refuses, and
/// rules that begin afresh. Files of other users are not examined, since the server's user may differ.
fn state_cautions(config: &Config) -> Vec<String> {
    let EngineConfig::State(state) = &config.engine else {
        return Vec::new();
    };
    let refused = |error: StateError| match error {
        StateError::Refused { field: "owner", .. } | StateError::Io { .. } => None,
        error => Some(format!("[engine] {error}")),
    };
    let files = match StateDirectory::list(&state.directory) {
        Ok(files) => files,
        Err(error) => return refused(error).into_iter().collect(),
    };
    let (files, errors): (Vec<_>, Vec<_>) = files.into_iter().partition(Result::is_ok);
    let files: Vec<_> = files.into_iter().flatten().collect();
    let changed = |rule: &RuleConfig| {
        let mut stored = files
            .iter()
            .filter(|file| file.name == rule.name)
            .filter_map(|file| {
                let stored = file.limit.parse::<Rule>().ok()?;
                Some((&file.limit, stored.limit().meaning()))
            });
        let (before, _) = stored.clone().next()?;
        let meaning = rule.rule.limit().meaning();
        let is_kept = stored.any(|(_, stored)| stored == meaning);
        let name = &rule.name;
        (!is_kept).then(|| format!("{name}: begins afresh, since `{before}` had other states"))
    };
    let errors = errors
        .into_iter()
        .filter_map(Result::err)
        .filter_map(refused);
    errors
        .chain(config.rules.iter().filter_map(changed))
        .collect()
}

/// Prints the number of rules, the number of requests, or of units of their costs, that each rule allows at once, and what each
/// token permits.
fn print_summary(file: &Path, config: &Config) -> io::Result<()> {
    let mut out = io::stdout();
    let mut found = counted(config.rules.len() as u64, "rule");
    if let Some(tree) = &config.envoy.tree {
        let domains = counted(tree.domains() as u64, "domain");
        let limits = counted(tree.limits().len() as u64, "limit");
        found.push_str(&format!(", {domains}, {limits}"));
    }
    writeln!(out, "{}: {found}, valid", file.display())?;
    for rule in &config.rules {
        let name = &rule.name;
        let limit = &rule.rule;
        let burst = rule.at_once();
        writeln!(out, "{name}: {limit}: {burst} at once from one client")?;
    }
    for grant in config.server.tokens.grants() {
        writeln!(out, "token {grant}")?;
    }
    Ok(())
}

/// Loads a configuration and the descriptors that it names, or the configuration files of
/// envoyproxy/ratelimit.
fn load(file: &Path) -> Result<Config, CliFailure> {
    let failed = |error: ConfigError| failure::lines(&error.to_string());
    let yaml = file
        .extension()
        .is_some_and(|end| end == "yaml" || end == "yml");
    let mut config = if yaml || file.is_dir() {
        let envoy = EnvoyConfig {
            files: vec![file.to_owned()],
            ..EnvoyConfig::default()
        };
        Config {
            envoy,
            ..Config::default()
        }
    } else {
        Config::load(file).map_err(failed)?
    };
    for warning in config.envoy.load().map_err(failed)? {
        writeln!(io::stderr(), "warning: {warning}")?;
    }
    Ok(config)
}

/// Prints the rules that apply to a request, or, if the first word is a domain, the limit of a descriptor.
fn explain(file: &Path, config: &Config, words: &[String]) -> Result<ExitCode, CliFailure> {
    let (domain, pairs) = match words.split_first() {
        Some((first, rest)) if !first.contains('=') => (Some(first), rest),
        _ => (None, words),
    };
    let pairs: Vec<_> = pairs
        .iter()
        .map(|word| pair(word))
        .collect::<Result<_, _>>()?;
    let text = match (domain, &config.envoy.tree) {
        (None, Some(_)) if config.rules.is_empty() => {
            let why = "there are no rules, and descriptors need their domain first";
            return Err(CliFailure::new(format!("{why}, as `DOMAIN NAME=VALUE`")));
        }
        (None, _) => explain_request(config, &pairs)?,
        (Some(domain), Some(tree)) => {
            explain_descriptor(tree, config.envoy.algorithm, domain, &pairs)
        }
        (Some(domain), None) => {
            return Err(CliFailure::new(format!(
                "`{domain}`: expected NAME=VALUE; a domain needs descriptors, and [envoy] in {} \
                 names no files",
                file.display()
            )));
        }
    };
    write!(io::stdout(), "{text}")?;
    Ok(ExitCode::SUCCESS)
}

fn pair(word: &str) -> Result<(&str, &str), CliFailure> {
    let pair = word.split_once('=').filter(|(name, _)| !name.is_empty());
    pair.ok_or_else(|| {
        CliFailure::new(format!(
            "`{word}`: expected NAME=VALUE, as client=192.0.2.7"
        ))
    })
}

/// Explains every rule for a request with the code that serves requests, in memory and with tables
/// for one client.
fn explain_request(config: &Config, pairs: &[(&str, &str)]) -> Result<String, CliFailure> {
    let mut config = config.clone();
    config.engine = EngineConfig::default();
    config.capacity = 1;
    config
        .rules
        .iter_mut()
        .for_each(|rule| rule.capacity = None);
    let service = Service::new(&config, Arc::new(ManualClock::new(Nanos::ZERO)))
        .map_err(|error| CliFailure::new(error.to_string()))?;
    let rules = service.rules();
    let name = |(name, _): &(&str, _)| attribute_name(name).unwrap_or_else(|_| (*name).to_owned());
    let names: Vec<String> = pairs.iter().map(name).collect();
    if let Some(at) = (1..names.len()).find(|&at| names[..at].contains(&names[at])) {
        return Err(CliFailure::new(format!(
            "`{}`: is given twice",
            pairs[at].0
        )));
    }
    let values = pairs.iter().map(|(_, value)| value.as_bytes().into());
    let named = names.iter().map(|name| name.as_str().into()).zip(values);
    let request = Attributes::new(named, &rules.reading);
    let mut text = String::new();
    for rule in rules.iter() {
        explain_rule(&mut text, rule, &request);
    }
    let is_read = |name: &String| {
        rules.headers.contains(name)
            || rules
                .iter()
                .flat_map(ActiveRule::attributes)
                .any(|read| read == name)
    };
    for ((given, _), _) in pairs.iter().zip(&names).filter(|(_, name)| !is_read(name)) {
        // Writing to a string cannot fail.
        let _ = writeln!(text, "no rule reads the attribute `{given}`");
    }
    Ok(text)
}

/// Writes whether a rule applies to a request, and if so, the key, cost and limit.
fn explain_rule(text: &mut String, rule: &ActiveRule, request: &Attributes<'_>) {
    let name = &rule.name;
    if let Some(condition) = rule.unmet(request) {
        let value = request
            .get(&condition.attribute)
            .map(String::from_utf8_lossy);
        let found = value.map_or("has none".to_owned(), |value| format!("has \"{value}\""));
        let _ = writeln!(
            text,
            "{name}: does not apply: needs {condition}, and the request {found}"
        );
        return;
    }
    let Some(limit) = rule.limit_for(request) else {
        let _ = writeln!(text, "{name}: exempts the request");
        return;
    };
    let key = rule.key(request);
    if let Some(attribute) = rule.lacks(request, &key)
        && rule.config.missing != OnMissing::Share
    {
        let verdict = match rule.config.missing {
            OnMissing::Deny => "denies the request",
            _ => "does not apply",
        };
        let _ = writeln!(text, "{name}: {verdict}: the request has no `{attribute}`");
        return;
    }
    let _ = writeln!(text, "{name}: applies, action {}", rule.action_name());
    let _ = writeln!(text, "  key: \"{}\"", key.escape_ascii());
    explain_missing_parts(text, rule, request);
    let _ = writeln!(text, "  cost: {}", rule.cost(request));
    let origin = match std::ptr::eq(limit, &rule.own) {
        true => String::new(),
        false => format!(", by an override of {}", rule.own.rule),
    };
    let _ = writeln!(text, "  limit: {}{origin}", limit.rule);
}

/// Writes a line for each attribute of the key that the request lacks.
fn explain_missing_parts(text: &mut String, rule: &ActiveRule, request: &Attributes<'_>) {
    for part in &rule.config.key {
        if rule.lacks_part(request, part) {
            let _ = writeln!(
                text,
                "    the request has no `{part}`: all requests without it share one key"
            );
        }
    }
}
