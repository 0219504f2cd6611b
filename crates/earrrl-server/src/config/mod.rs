//! The configuration: one TOML file, validated whole before any of it is used.
//!
//! `file` has the shapes as they are written, `server`, `engine`, `redis`, `rule` and `attribute` what
//! they mean.

pub mod access;
pub mod attribute;
mod bounds;
pub mod condition_index;
pub mod engine;
pub mod envoy;
mod file;
pub mod listen;
mod problem;
pub mod redis;
pub mod rule;
pub mod server;
pub mod suggest;
pub mod tls;
mod value;

use std::io;
use std::ops::Range;
use std::path::{Path, PathBuf};

pub use bounds::{DEFAULT_CAPACITY, MAX_FILE_LEN, MAX_RULES};
pub use engine::EngineConfig;
pub use envoy::EnvoyConfig;
pub use problem::{ConfigError, Problem};
pub use rule::RuleConfig;
pub use server::ServerConfig;
pub use tls::TlsConfig;

use crate::path::Paths;
use earrrl_tower::ClientAddress;
use problem::Problems;

/// A valid configuration.
#[derive(Clone, Debug)]
pub struct Config {
    /// Addresses, limits, tokens.
    pub server: ServerConfig,
    /// Where the file names those of `[server.tls]`: no part of what is served, so that a reload may move it.
    pub tls_places: Vec<(PathBuf, Range<usize>)>,
    /// What keeps the clients' states.
    pub engine: EngineConfig,
    /// Clients that a rule without a capacity of its own is meant for, and `CL.THROTTLE`.
    pub capacity: usize,
    /// How a client's address is told.
    pub client_address: ClientAddress,
    /// How paths are compared.
    pub paths: Paths,
    /// The status by which `/v1/authz` denies: 401, 403, 429 or 503.
    pub deny_status: u16,
    /// Whether it is meant that there are no rules.
    pub no_rules: bool,
    /// Envoy's rate limit service.
    pub envoy: EnvoyConfig,
    /// In the order of the file.
    pub rules: Vec<RuleConfig>,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            server: ServerConfig::default(),
            tls_places: Vec::new(),
            engine: EngineConfig::default(),
            capacity: DEFAULT_CAPACITY,
            client_address: ClientAddress::default(),
            paths: Paths::TOLERANT,
            deny_status: 429,
            no_rules: false,
            envoy: EnvoyConfig::default(),
            rules: Vec::new(),
        }
    }
}

impl Config {
    /// Reads and validates a file.
    ///
    /// # Errors
    /// Everything that is wrong with it, each with its line and column.
    pub fn load(path: &Path) -> Result<Self, ConfigError> {
        let name = path.display().to_string();
        let unreadable = |error: io::Error| ConfigError::unreadable(&name, error.to_string());
        let text = value::read(path).map_err(unreadable)?;
        Self::parse(&text, &name)
    }

    /// Validates a configuration's text; errors call it `name`.
    ///
    /// # Errors
    /// As [`Config::load`].
    pub fn parse(text: &str, name: &str) -> Result<Self, ConfigError> {
        let file: file::File =
            toml::from_str(text).map_err(|error| ConfigError::syntax(name, text, &error))?;
        let mut problems = Problems::default();
        let config = Self::validate(&file, &mut problems);
        if problems.is_empty() { Ok(config) } else { Err(problems.into_error(name, text)) }
    }

    fn validate(file: &file::File, problems: &mut Problems) -> Self {
        if let Some(version) = &file.version
            && *version.get_ref() != 1
        {
            problems.add(version.span(), "this version reads configurations of version 1");
        }
        let server = ServerConfig::validate(&file.server, problems);
        let client_address = server::client_address(&file.client_address, problems);
        let paths = attribute::paths(&file.attributes, problems);
        let no_rules = no_rules(file, problems);
        let deny_status = deny_status(&file.authz, problems);
        let engine = EngineConfig::validate(&file.engine, problems);
        let capacity = value::capacity(file.engine.capacity.as_ref(), problems);
        let capacity = capacity.unwrap_or_else(|| engine.default_capacity());
        let reading = rule::RequestReading { paths, prefixes: client_address.client_prefixes() };
        let rules = rule::validate_all(&file.rule, &reading, problems);
        engine.check_rules(&file.rule, &rules, problems);
        let mut envoy = EnvoyConfig::validate(&file.envoy, problems);
        envoy.metrics = file.metrics.envoy;
        Self {
            server,
            tls_places: file.server.tls.as_ref().map(tls::places).unwrap_or_default(),
            engine,
            capacity,
            client_address,
            paths,
            deny_status,
            no_rules,
            envoy,
            rules,
        }
    }
}

/// `[authz] deny_status`: what proxies pass on to their clients.
fn deny_status(file: &file::AuthzTable, problems: &mut Problems) -> u16 {
    let Some(field) = &file.deny_status else { return 429 };
    match *field.get_ref() {
        status @ (401 | 403 | 429 | 503) => status as u16,
        other => {
            problems
                .add(field.span(), format!("deny_status: {other} is none of 401, 403, 429, 503"));
            429
        }
    }
}

/// `rules = "none"`: that a file has no rules is no mistake then.
fn no_rules(file: &file::File, problems: &mut Problems) -> bool {
    let Some(field) = &file.rules else { return false };
    if field.get_ref() != "none" {
        problems.add(field.span(), "rules: expected \"none\"; a rule is a table, [[rule]]");
    } else if !file.rule.is_empty() {
        problems.add(field.span(), "rules: \"none\" is for a file without any [[rule]]");
    }
    true
}

#[cfg(test)]
mod tests;
