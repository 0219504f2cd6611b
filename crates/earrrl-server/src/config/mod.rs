//! The configuration: a TOML file, which is validated as a whole before it is used.
//!
//! The module `table` takes fields out of the file; the other modules have the validated values, and the form that each
//! field must have.

pub mod access;
pub mod attribute;
mod caution;
pub mod condition_index;
pub mod engine;
pub mod envoy;
mod files;
mod levels;
pub mod listen;
mod problem;
pub mod rule;
pub mod server;
mod table;
mod yaml;

use std::collections::BTreeSet;
use std::ops::Range;
use std::path::{Path, PathBuf};

pub use engine::{DEFAULT_CAPACITY, EngineConfig, StateConfig};
pub use envoy::EnvoyConfig;
pub use files::{MAX_FILE_LEN, read_bytes};
pub use problem::{ConfigError, ConfigProblem};
pub use rule::{MAX_RULES, RuleConfig};
pub use server::{ServerConfig, TlsConfig};

use earrrl::internal::DEFAULT_MAX_HOLDS;
use earrrl_tower::ClientAddress;
use earrrl_tower::path::Paths;
use table::{Reading, Table, defaults};
use toml::de::DeTable;

/// The greatest bound on live reservations, of which each takes about 200 bytes.
const MAX_RESERVATIONS: u64 = 100_000_000;

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
        defaults(Self::read)
    }
}

/// Returns the name of a file for errors, and its text.
fn read(path: &Path) -> Result<(String, String), ConfigError> {
    let name = path.display().to_string();
    match files::read(path) {
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
        Self::load_with(path, "")
    }

    /// Reads and validates a configuration file whose fields are replaced by those of `options`.
    ///
    /// # Errors
    /// Returns all mistakes in the file, each with its line and column, and those in the options.
    pub fn load_with(path: &Path, options: &str) -> Result<Self, ConfigError> {
        let (name, text) = read(path)?;
        Self::parse_with(&text, &name, options)
    }

    /// Reads a configuration file and validates the rules and the settings that they depend on. The
    /// server's own settings, and the files of secrets and certificates, are ignored, since these
    /// files need not exist on this machine.
    ///
    /// # Errors
    /// Returns all mistakes in the validated parts, each with its line and column.
    pub fn load_rules(path: &Path) -> Result<Self, ConfigError> {
        let (name, text) = read(path)?;
        Self::parse_parts(&text, &name, "", Reading::new(true))
    }

    /// Validates the text of a configuration; errors use `name` as the name of its file.
    ///
    /// # Errors
    /// Returns all mistakes in the text, each with its line and column.
    pub fn parse(text: &str, name: &str) -> Result<Self, ConfigError> {
        Self::parse_with(text, name, "")
    }

    /// Validates the text of a configuration whose fields are replaced by those of `options`, the text of another.
    ///
    /// # Errors
    /// Returns all mistakes in the texts. Those in the options have no line.
    pub fn parse_with(text: &str, name: &str, options: &str) -> Result<Self, ConfigError> {
        Self::parse_parts(text, name, options, Reading::default())
    }

    fn parse_parts(
        text: &str,
        name: &str,
        options: &str,
        reading: Reading,
    ) -> Result<Self, ConfigError> {
        // The places in the options lie behind the file, so that the errors tell the two apart.
        let options = " ".repeat(text.len() + 1) + options;
        let parse =
            |text| DeTable::parse(text).map_err(|error| ConfigError::syntax(name, text, &error));
        let mut fields = parse(text)?;
        let mut groups = levels::expand(fields.get_mut(), &reading);
        let options = parse(&options)?;
        let whole = Table::whole(fields.get_ref(), options.get_ref(), &reading);
        let mut config = Self::read(&whole);
        drop(whole);
        for rule in &mut config.rules {
            rule.group = groups.remove(&rule.name);
        }
        reading.finish(config, name, text)
    }

    fn read(file: &Table<'_>) -> Self {
        if let Some(field) = file.field("version")
            && file.number("version", 0..=u64::MAX) != Some(1)
        {
            field.note("this version reads configurations of version 1");
        }
        let proxies = file.table("client_address");
        let client_address = server::client_address(&proxies);
        let paths = attribute::paths(&file.table("attributes"));
        let engine_table = file.table("engine");
        let capacity = engine_table.number("capacity", rule::CAPACITIES);
        let capacity = capacity.map(|capacity| capacity as usize);
        let engine = EngineConfig::read(&engine_table, capacity);
        let max_reservations = engine_table.number("max_reservations", 1..=MAX_RESERVATIONS);
        let around = rule::Surroundings {
            paths,
            prefixes: client_address.client_prefixes(),
            engine: &engine,
        };
        let (mut rules, names) = rule::read_all(file, &around);
        let deny_status = deny_status(&file.table("authz"));
        let mut envoy = EnvoyConfig::read(&file.table("envoy"));
        envoy.metrics = file.table("metrics").is_on("envoy");
        envoy.shadow_mode = file.is_on("shadow_mode");
        if envoy.shadow_mode {
            rules.iter_mut().for_each(RuleConfig::observe);
        }
        let mut config = Self {
            server: ServerConfig::default(),
            tls_places: Vec::new(),
            capacity: capacity.unwrap_or_else(|| engine.default_capacity()),
            max_reservations: max_reservations.map_or(DEFAULT_MAX_HOLDS, |most| most as usize),
            answers_proxies: deny_status.is_some() || client_address.believes_proxies(),
            engine,
            client_address,
            paths,
            deny_status: deny_status.unwrap_or(429),
            no_rules: no_rules(file),
            envoy,
            rules,
        };
        if !(file.has("server") && file.reading.of_rules_alone) {
            config.read_server(&file.table("server"), &proxies, &names);
        }
        config
    }

    fn read_server(&mut self, table: &Table<'_>, proxies: &Table<'_>, rules: &BTreeSet<String>) {
        self.server = ServerConfig::read(table, rules);
        if table.has("tls") {
            let tls = table.table("tls");
            self.tls_places = server::tls_places(&tls);
            self.server.tls = Some(TlsConfig::read(&tls));
        }
        if let Some(field) = table.field("proxy_protocol")
            && !proxies.has("trusted_proxies")
        {
            field.mistake("needs [client_address] trusted_proxies, the load balancers' addresses");
        }
    }
}

/// Reads `[authz] deny_status`, the HTTP status that proxies pass on to their clients.
fn deny_status(table: &Table<'_>) -> Option<u16> {
    let field = table.field("deny_status")?;
    match table.number("deny_status", 0..=u64::MAX)? {
        status @ (401 | 403 | 429 | 503) => Some(status as u16),
        other => field.refuse(format!("{other} is none of 401, 403, 429, 503")),
    }
}

/// Reads `rules = "none"`, which states that rules are missing on purpose.
fn no_rules(file: &Table<'_>) -> bool {
    let Some(field) = file.field("rules") else {
        return false;
    };
    let none = |text| Some(text).filter(|text| *text == "none");
    let want = "[[rule]], without s, for each rule, or \"none\"";
    if field.parsed(want, none).is_some() && file.has("rule") {
        field.mistake("\"none\" is for a file without any [[rule]]");
    }
    true
}

#[cfg(test)]
mod reference;
#[cfg(test)]
mod tests;
