//! The `[engine]` table, which selects where the state of clients is stored: in memory, in files or in Redis.

use std::collections::HashSet;
use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::time::Duration;

use earrrl::RuleError;
use earrrl_redis::{Certificates, ClientKeys, Options, WhenGone, uses_tls, without_credentials};

use super::problem::shown;
use super::server::hmac_key;
use super::table::{Field, Table};

/// The number of clients for which a rule reserves memory by default.
pub const DEFAULT_CAPACITY: usize = 1_000_000;

/// The engine that stores the state of clients.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum EngineConfig {
    /// The memory of this process stores the state.
    #[default]
    Memory,
    /// Files store the state. It survives the process, and several servers of a host share it.
    State(StateConfig),
    /// Redis or Valkey stores the state, which several servers share.
    Redis(Box<RedisConfig>),
}

impl EngineConfig {
    /// Returns true if limits can share a store; see
    /// [`PlannedLimit::store`](crate::engine::PlannedLimit::store).
    pub fn shares_stores(&self) -> bool {
        matches!(self, Self::Memory)
    }
}

/// The directory of state files.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StateConfig {
    /// The directory.
    pub directory: PathBuf,
    /// True if rules are accepted whose states are too large for a file, and start empty.
    pub accepts_other_rules: bool,
}

impl EngineConfig {
    /// Reads the table; `capacity` is its field of this name.
    pub(super) fn read(table: &Table<'_>, capacity: Option<usize>) -> Self {
        let redis = redis(table, capacity);
        let state = StateConfig::read(table);
        match redis {
            Some(redis) => Self::Redis(Box::new(redis)),
            None => state.map_or(Self::Memory, Self::State),
        }
    }

    /// Returns the number of clients for which a rule reserves memory by default.
    pub fn default_capacity(&self) -> usize {
        match self {
            Self::Memory | Self::State(_) => DEFAULT_CAPACITY,
            // The tables in memory decide only while Redis is unavailable.
            Self::Redis(config) => config.options.local_capacity,
        }
    }
}

impl StateConfig {
    /// Returns the configured directory of state files; `None` if there is none.
    fn read(table: &Table<'_>) -> Option<Self> {
        let field = table.field("state");
        let condition = "state = \"/a/directory\"";
        table.only_if(field.is_some(), condition, &["not_persisted"]);
        let accepts = table.choice("not_persisted", &[("refuse", false), ("ok", true)]);
        let field = field?;
        if table.has("redis") || table.has("redis_file") {
            field.mistake("redis is set already; want one of them");
        }
        let directory = |text: &str| Some(text.into()).filter(|_| !text.is_empty());
        Some(Self {
            directory: field.parsed("the path of a directory", directory)?,
            accepts_other_rules: accepts.unwrap_or(false),
        })
    }
}

/// The configuration of the engine over Redis.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RedisConfig {
    /// The options of the `earrrl_redis` engine.
    pub options: earrrl_redis::Options,
    /// True if the server's own clock is used instead of the clock of Redis. Only tests set it,
    /// since servers that share a Redis must share a clock; no field of the file does.
    pub own_clock: bool,
}

/// The bounds of the deadline of a decision.
const DEADLINES: RangeInclusive<Duration> = Duration::from_millis(1)..=Duration::from_secs(10);
/// The largest number of addresses of Redis.
const MAX_URLS: usize = 1000;
/// The fields of `[engine]` that only Redis has.
const FIELDS: [&str; 14] = [
    "prefix",
    "policy",
    "deadline",
    "sentinel",
    "sentinel_user",
    "sentinel_password",
    "sentinel_password_file",
    "node",
    "hmac_key",
    "hmac_key_file",
    "ca_file",
    "cert_file",
    "key_file",
    "cluster",
];
const POLICIES: [WhenGone; 3] = [WhenGone::Local, WhenGone::Allow, WhenGone::Deny];

/// Reads the fields for Redis; `None` if no address of Redis is set. The field `capacity` has been read already.
fn redis(table: &Table<'_>, capacity: Option<usize>) -> Option<RedisConfig> {
    let is_redis = table.has("redis") || table.has("redis_file");
    table.only_if(is_redis, "redis = \"redis://host:port\"", &FIELDS);
    let (place, urls) = urls(table)?;
    let mut options = Options::new(&urls.join(","));
    let checks = options.urls.iter().map(|url| earrrl_redis::check_url(url));
    if let Some(Err(error)) = checks.into_iter().find(Result::is_err) {
        place.mistake(error);
    }
    let mut known = HashSet::new();
    if !options.urls.iter().all(|url| known.insert(url)) {
        place.mistake("the same address is there twice; once is enough");
    }
    topology(table, &mut options);
    let prefix = table.field("prefix");
    if let Some(prefix) = prefix.and_then(|field| named(field, earrrl_redis::check_prefix)) {
        options.prefix = prefix;
    }
    let policies = POLICIES.map(|policy| (policy.name(), policy));
    options.when_gone = table
        .choice("policy", &policies)
        .unwrap_or(options.when_gone);
    let want = "a duration from 1ms to 10s, as \"5ms\"";
    let deadline = table.duration("deadline", want, |deadline| DEADLINES.contains(deadline));
    options.deadline = deadline.unwrap_or(options.deadline);
    options.local_capacity = capacity.unwrap_or(options.local_capacity);
    let node = table.field("node");
    options.node = node.and_then(|field| named(field, earrrl_redis::check_node));
    if let Some(key) = hmac_key(table) {
        options.clients = ClientKeys::Hashed(key.into_bytes());
    }
    options.certificates = certificates(table, &options.urls);
    Some(RedisConfig {
        options,
        own_clock: false,
    })
}

/// Returns the configured URLs of Redis, and their place in the file.
fn urls<'t>(table: &Table<'t>) -> Option<(Field<'t>, Vec<String>)> {
    match (table.field("redis"), table.field("redis_file")) {
        (None, None) => None,
        (Some(field), None) => {
            let urls = field.texts(MAX_URLS)?.into_iter();
            Some((field, urls.map(|(_, url)| url.to_owned()).collect()))
        }
        // Some rules are valid only with Redis, wherever it is.
        (None, Some(file)) if table.reading.of_rules_alone => {
            Some((file, vec!["redis://localhost".to_owned()]))
        }
        (None, Some(file)) => Some((file, vec![file.text_of_file()?.trim().to_owned()])),
        (Some(_), Some(file)) => file.refuse("redis is set already; want one of them"),
    }
}

/// Returns the name in a field. The error of `check` names the field.
fn named(field: Field<'_>, check: fn(&str) -> Result<(), RuleError>) -> Option<String> {
    let name = field.text()?;
    check(name).map_err(|error| field.note(error)).ok()?;
    Some(name.to_owned())
}

/// Sets whether the URLs belong to Sentinels, to a Cluster or to a single server.
fn topology(table: &Table<'_>, options: &mut Options) {
    let cluster = table.field("cluster");
    if let Some(field) = table.field("sentinel") {
        let master = |text: &str| Some(text.to_owned()).filter(|name| !name.is_empty());
        options.sentinel = field.parsed("the name of the master, as \"mymaster\"", master);
        options.cluster = false;
        if cluster.is_some() {
            field.mistake("a Cluster has none; want one of them");
        }
    } else if let Some(field) = cluster {
        let is_cluster = field.flag().unwrap_or(true);
        if options.urls.len() > 1 && !is_cluster {
            field.mistake("false, but several addresses are always those of a Cluster");
        }
        options.cluster = is_cluster;
    }
    let fields = [
        "sentinel_user",
        "sentinel_password",
        "sentinel_password_file",
    ];
    table.only_if(table.has("sentinel"), "sentinel", &fields);
    let password = table.secret("sentinel_password", "sentinel_password_file");
    options.sentinel_password = password.and_then(|(field, password)| match password.as_str() {
        "" => field.refuse("expected a password, not an empty text"),
        _ => Some(password),
    });
    let has_password = fields[1..].iter().any(|name| table.has(name));
    if table.has("sentinel") {
        table.only_if(has_password, "sentinel_password", &["sentinel_user"]);
    }
    options.sentinel_user = table.text("sentinel_user").map(str::to_owned);
}

/// Reads the certificates of connections to Redis.
fn certificates(table: &Table<'_>, urls: &[String]) -> Option<Certificates> {
    let fields = ["ca_file", "cert_file", "key_file"].map(|name| table.field(name));
    let [ca, cert, key] = fields;
    if let (Some(one), None) | (None, Some(one)) = (cert, key) {
        one.note("cert_file, key_file: expected both or none");
    }
    if table.reading.of_rules_alone {
        return None;
    }
    let plain = urls
        .iter()
        .find(|url| earrrl_redis::check_url(url).is_ok() && !uses_tls(url));
    let read = |field: Option<Field<'_>>| Some(field?.text_of_file()?.into_bytes());
    let mut certificates = Certificates::default();
    certificates.authority = read(ca);
    certificates.client = read(cert).zip(read(key));
    let checks = [
        ("ca_file", ca, certificates.check_authority()),
        ("cert_file, key_file", cert, certificates.check_client()),
    ];
    for (names, field, checked) in checks {
        let Some(field) = field else { continue };
        let why = match (plain, checked) {
            (Some(url), _) => format!(
                "only with rediss://, but redis is {}",
                without_credentials(url)
            ),
            (None, Err(error)) => error.to_string(),
            (None, Ok(())) => continue,
        };
        let path = shown(field.text().unwrap_or_default());
        field.note(format!("{names}: `{path}`: {why}"));
    }
    (certificates != Certificates::default()).then_some(certificates)
}
