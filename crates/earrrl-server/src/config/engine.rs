//! The `[engine]` table, which selects where the state of clients is stored: in memory or in Redis.

use std::ops::Range;
use std::path::PathBuf;

use toml::Spanned;

use super::file;
use super::problem::Problems;
use super::redis::{self, RedisConfig};
use super::rule::RuleConfig;
use super::value::{choice, number, text_of};

/// The error text of options that Redis does not support.
const NEEDS_MEMORY: &str = "only with the engine in memory";

/// The greatest bound on live reservations, of which each takes about 200 bytes.
const MAX_RESERVATIONS: u64 = 100_000_000;

/// The engine that stores the state of clients.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
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
    pub(super) fn validate(file: &file::EngineTable, problems: &mut Problems) -> Self {
        match urls(file, problems) {
            Some((span, urls)) => {
                Self::Redis(Box::new(redis::validate(file, &urls, span, problems)))
            }
            None => {
                only_with_redis(file, problems);
                state(file, problems).map_or(Self::Memory, Self::State)
            }
        }
    }

    /// Creates the configuration of an engine over the Redis at this URL, with default options.
    ///
    /// # Errors
    /// Returns the reason if the URL is not a Redis URL.
    pub fn redis_at(url: &str) -> Result<Self, String> {
        let options = earrrl_redis::Options::new(url);
        for url in &options.urls {
            earrrl_redis::check_url(url).map_err(|error| format!("redis: {error}"))?;
        }
        Ok(Self::Redis(Box::new(RedisConfig {
            options,
            own_clock: false,
        })))
    }

    /// Reports the rules whose limits the configured engine cannot count exactly.
    pub(super) fn check_rules(
        &self,
        rules: &[Spanned<file::RuleTable>],
        valid: &[RuleConfig],
        problems: &mut Problems,
    ) {
        if let Self::Redis(_) = self {
            redis::check_rules(rules, problems);
            redis::check_near(rules, valid, problems);
            for rule in rules.iter().map(Spanned::get_ref) {
                if let Some(field) = &rule.on_expiry {
                    problems.add(field.span(), format!("on_expiry: {NEEDS_MEMORY}"));
                }
            }
            return;
        }
        if let Self::State(StateConfig {
            accepts_other_rules: false,
            ..
        }) = self
        {
            check_states(rules, valid, problems);
        }
        for field in rules
            .iter()
            .filter_map(|rule| rule.get_ref().consistency.as_ref())
        {
            problems.add(field.span(), "consistency: only with redis in [engine]");
        }
    }

    /// Returns the number of clients for which a rule reserves memory by default.
    pub fn default_capacity(&self) -> usize {
        match self {
            Self::Memory | Self::State(_) => super::bounds::DEFAULT_CAPACITY,
            // The tables in memory decide only while Redis is unavailable.
            Self::Redis(config) => config.options.local_capacity,
        }
    }
}

/// Validates the most reservations that are live at a time.
pub(super) fn max_reservations(file: &file::EngineTable, problems: &mut Problems) -> usize {
    let field = file.max_reservations.as_ref();
    let usual = earrrl::DEFAULT_MAX_HOLDS as u64;
    number(
        "max_reservations",
        field,
        usual,
        1..=MAX_RESERVATIONS,
        problems,
    ) as usize
}

/// Returns the configured directory of state files.
fn state(file: &file::EngineTable, problems: &mut Problems) -> Option<StateConfig> {
    let choices = [("refuse", false), ("ok", true)];
    let accepts = choice("not_persisted", &file.not_persisted, &choices, problems);
    let Some(directory) = &file.state else {
        if let Some(field) = &file.not_persisted {
            problems.add(
                field.span(),
                "not_persisted: only with state = \"/a/directory\"",
            );
        }
        return None;
    };
    if directory.get_ref().is_empty() {
        problems.add(directory.span(), "state: expected the path of a directory");
    }
    Some(StateConfig {
        directory: directory.get_ref().into(),
        accepts_other_rules: accepts.unwrap_or(false),
    })
}

/// Reports rules whose states are too large for a file.
fn check_states(rules: &[Spanned<file::RuleTable>], valid: &[RuleConfig], problems: &mut Problems) {
    for rule in valid.iter().filter(|rule| !rule.rule.limit().fits_words()) {
        let is_named =
            |table: &&Spanned<file::RuleTable>| *table.get_ref().name.get_ref() == rule.name;
        if let Some(table) = rules.iter().find(is_named) {
            let kept = match rule.rule.limit().largest_in_words() {
                Some(largest) => format!("a quota of at most {largest}"),
                None => {
                    "recent-average, token-bucket, gcra, fixed-window or sliding-counter".into()
                }
            };
            let problem = format!(
                "limit: no state file can keep it; expected {kept}, or not_persisted = \"ok\" in \
                 [engine]"
            );
            problems.add(table.get_ref().limit.span(), problem);
        }
    }
}

/// Returns the configured URLs of Redis, and their place in the file.
fn urls(file: &file::EngineTable, problems: &mut Problems) -> Option<(Range<usize>, Vec<String>)> {
    match (&file.redis, &file.redis_file) {
        (None, None) => None,
        _ if file.state.is_some() => {
            let span = file.state.as_ref().map_or(0..0, Spanned::span);
            problems.add(span, "state: redis is set already; want one of them");
            None
        }
        (Some(inline), None) => Some((inline.span(), inline.get_ref().as_slice().to_vec())),
        (None, Some(path)) => match text_of(path.get_ref()) {
            Ok(text) => Some((path.span(), vec![text.trim().to_owned()])),
            Err(error) => {
                problems.add(path.span(), format!("redis_file: {error}"));
                None
            }
        },
        (Some(_), Some(path)) => {
            problems.add(
                path.span(),
                "redis_file: redis is set already; want one of them",
            );
            None
        }
    }
}

/// Reports options of Redis that are set although no URL of Redis is.
fn only_with_redis(file: &file::EngineTable, problems: &mut Problems) {
    if file.redis.is_some() || file.redis_file.is_some() {
        return;
    }
    let texts = [
        ("prefix", &file.prefix),
        ("policy", &file.policy),
        ("deadline", &file.deadline),
        ("sentinel", &file.sentinel),
        ("sentinel_user", &file.sentinel_user),
        ("sentinel_password", &file.sentinel_password),
        ("sentinel_password_file", &file.sentinel_password_file),
        ("node", &file.node),
        ("hmac_key", &file.hmac_key),
        ("hmac_key_file", &file.hmac_key_file),
        ("ca_file", &file.ca_file),
        ("cert_file", &file.cert_file),
        ("key_file", &file.key_file),
    ];
    let texts = texts
        .into_iter()
        .filter_map(|(name, field)| Some((name, field.as_ref()?.span())));
    let cluster = file.cluster.as_ref().map(|field| ("cluster", field.span()));
    for (name, span) in texts.chain(cluster) {
        problems.add(
            span,
            format!("{name}: only with redis = \"redis://host:port\""),
        );
    }
}
