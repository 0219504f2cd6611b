//! The configuration: a TOML file, which is validated as a whole before it is used.
//!
//! The module `file` has the fields as they are written; the other modules validate the fields and
//! hold the validated values.

pub mod access;
pub mod attribute;
mod bounds;
mod byte_map;
mod caution;
pub mod condition_index;
pub mod engine;
pub mod envoy;
mod file;
pub mod listen;
pub mod names;
mod problem;
pub mod redis;
pub mod rule;
pub mod server;
pub mod suggest;
pub mod tls;
mod value;
mod yaml;

use std::ops::Range;
use std::path::{Path, PathBuf};

pub use bounds::{DEFAULT_CAPACITY, MAX_FILE_LEN, MAX_RULES};
pub use engine::{EngineConfig, StateConfig};
pub use envoy::EnvoyConfig;
pub use problem::{ConfigError, ConfigProblem};
pub use rule::RuleConfig;
pub use server::ServerConfig;
pub use tls::TlsConfig;
pub use value::{check_passes, read_bytes};

use earrrl_tower::ClientAddress;
use earrrl_tower::path::Paths;
use problem::Problems;

/// A validated configuration.
#[derive(Clone, Debug)]
pub struct Config {
    /// The `[server]` table.
    pub server: ServerConfig,
    /// The TLS files with the places where the text names them, which errors point to. A reload
    /// ignores changes of these places.
    pub tls_places: Vec<(PathBuf, Range<usize>)>,
    /// The engine that stores the state of clients, from the `[engine]` table.
    pub engine: EngineConfig,
    /// The most reservations that are live at a time.
    pub max_reservations: usize,
    /// The default capacity in clients, of each rule and of `CL.THROTTLE`.
    pub capacity: usize,
    /// The settings that determine a client's address behind proxies.
    pub client_address: ClientAddress,
    /// The settings for comparing the paths of requests.
    pub paths: Paths,
    /// The HTTP status of a response of `/v1/authz` that denies a request: 401, 403, 429 or 503.
    pub deny_status: u16,
    /// True if the file has settings for proxies that ask whether to pass their clients' requests.
    pub answers_proxies: bool,
    /// True if the file has `rules = "none"`, which states that rules are missing on purpose.
    pub no_rules: bool,
    /// The validated `[envoy]` table.
    pub envoy: EnvoyConfig,
    /// The validated rules, in the order of the file.
    pub rules: Vec<RuleConfig>,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            server: ServerConfig::default(),
            tls_places: Vec::new(),
            engine: EngineConfig::default(),
            capacity: DEFAULT_CAPACITY,
            max_reservations: earrrl::DEFAULT_MAX_HOLDS,
            client_address: ClientAddress::default(),
            paths: Paths::TOLERANT,
            deny_status: 429,
            answers_proxies: false,
            no_rules: false,
            envoy: EnvoyConfig::default(),
            rules: Vec::new(),
        }
    }
}

/// Returns the name of a file for errors, and its text.
fn read(path: &Path) -> Result<(String, String), ConfigError> {
    let name = path.display().to_string();
    match value::read(path) {
        Ok(text) => Ok((name, text)),
        Err(error) => Err(ConfigError::unreadable(&name, error.to_string())),
    }
}

impl Config {
    /// The problem of a configuration that [limits nothing](Self::limits_nothing).
    pub const LIMITS_NOTHING: &str =
        "0 rules: nothing is limited; add a [[rule]], or rules = \"none\" if that is intended";

    /// The problem of a server that no client can reach.
    pub const NO_LISTENER: &str = "http and resp are off, and nothing else is on";

    /// Returns true if the configuration has neither rules nor descriptors, and does not state that
    /// this is intended.
    pub fn limits_nothing(&self) -> bool {
        let has_descriptors = self
            .envoy
            .tree
            .as_ref()
            .is_some_and(|tree| tree.domains() > 0);
        let is_intended = self.no_rules || self.server.allow_inline_rules;
        let comes_later = self.envoy.control_plane.is_some();
        self.rules.is_empty() && !has_descriptors && !is_intended && !comes_later
    }

    /// Reads and validates a configuration file.
    ///
    /// # Errors
    /// Returns all mistakes in the file, each with its line and column.
    pub fn load(path: &Path) -> Result<Self, ConfigError> {
        let (name, text) = read(path)?;
        Self::parse(&text, &name)
    }

    /// Reads a configuration file and validates the rules and the settings that they depend on. The
    /// server's own settings, and the files of secrets and certificates, are ignored, since these
    /// files need not exist on this machine.
    ///
    /// # Errors
    /// Returns all mistakes in the validated parts, each with its line and column.
    pub fn load_rules(path: &Path) -> Result<Self, ConfigError> {
        let (name, text) = read(path)?;
        Self::parse_file(&text, &name, file::File::without_secrets)
    }

    /// Validates the text of a configuration; errors use `name` as the name of its file.
    ///
    /// # Errors
    /// Returns all mistakes in the text, each with its line and column.
    pub fn parse(text: &str, name: &str) -> Result<Self, ConfigError> {
        Self::parse_file(text, name, |file| file)
    }

    fn parse_file(
        text: &str,
        name: &str,
        prepare: impl FnOnce(file::File) -> file::File,
    ) -> Result<Self, ConfigError> {
        let file: file::File =
            toml::from_str(text).map_err(|error| ConfigError::syntax(name, text, &error))?;
        let file = prepare(file);
        let mut problems = Problems::default();
        let config = Self::validate(&file, &mut problems);
        if problems.is_empty() {
            Ok(config)
        } else {
            Err(problems.into_error(name, text))
        }
    }

    fn validate(file: &file::File, problems: &mut Problems) -> Self {
        if let Some(version) = &file.version
            && *version.get_ref() != 1
        {
            problems.add(
                version.span(),
                "this version reads configurations of version 1",
            );
        }
        let server = ServerConfig::validate(file, problems);
        let client_address = server::client_address(&file.client_address, problems);
        server::check_balancers(file, problems);
        let paths = attribute::paths(&file.attributes, problems);
        let no_rules = no_rules(file, problems);
        let deny_status = deny_status(&file.authz, problems);
        let engine = EngineConfig::validate(&file.engine, problems);
        let capacity = value::capacity(file.engine.capacity.as_ref(), problems);
        let capacity = capacity.unwrap_or_else(|| engine.default_capacity());
        let reading = rule::RequestReading {
            paths,
            prefixes: client_address.client_prefixes(),
        };
        let mut rules = rule::validate_all(&file.rule, &reading, problems);
        engine.check_rules(&file.rule, &rules, problems);
        let mut envoy = EnvoyConfig::validate(&file.envoy, problems);
        envoy.metrics = file.metrics.envoy;
        envoy.shadow_mode = file.shadow_mode;
        if file.shadow_mode {
            rules.iter_mut().for_each(RuleConfig::observe);
        }
        Self {
            server,
            tls_places: file
                .server
                .tls
                .as_ref()
                .map(tls::places)
                .unwrap_or_default(),
            engine,
            capacity,
            max_reservations: engine::max_reservations(&file.engine, problems),
            client_address,
            paths,
            deny_status,
            answers_proxies: answers_proxies(file),
            no_rules,
            envoy,
            rules,
        }
    }
}

fn answers_proxies(file: &file::File) -> bool {
    let address = &file.client_address;
    file.authz.deny_status.is_some()
        || !address.trusted_proxies.is_empty()
        || address.hops.is_some()
}

/// Validates `[authz] deny_status`, the HTTP status that proxies pass on to their clients.
fn deny_status(file: &file::AuthzTable, problems: &mut Problems) -> u16 {
    let Some(field) = &file.deny_status else {
        return 429;
    };
    match *field.get_ref() {
        status @ (401 | 403 | 429 | 503) => status as u16,
        other => {
            problems.add(
                field.span(),
                format!("deny_status: {other} is none of 401, 403, 429, 503"),
            );
            429
        }
    }
}

/// Validates `rules = "none"`, which states that rules are missing on purpose.
fn no_rules(file: &file::File, problems: &mut Problems) -> bool {
    let Some(field) = &file.rules else {
        return false;
    };
    if field.get_ref() != "none" {
        problems.expected("rules", field, "\"none\"; a rule is a table, [[rule]]");
    } else if !file.rule.is_empty() {
        problems.add(
            field.span(),
            "rules: \"none\" is for a file without any [[rule]]",
        );
    }
    true
}

#[cfg(test)]
mod reference;
#[cfg(test)]
mod tests;
