//! The `[engine]` table: what keeps the clients' states.

use std::ops::Range;

use toml::Spanned;

use super::file;
use super::problem::Problems;
use super::rule::RuleConfig;
use super::value::text_of;

/// What keeps the clients' states.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum EngineConfig {
    /// This process's own memory.
    #[default]
    Memory,
    /// Redis or Valkey, for every server that uses it alike.
    Redis(Box<RedisConfig>),
}

/// How Redis is used.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct RedisConfig {
    /// Where it is, and everything else.
    pub options: earrrl_redis::Options,
    /// Whether the server's own clock is told to Redis, instead of Redis's being asked: for tests,
    /// never with a Redis that others use. No configuration file says it.
    pub own_clock: bool,
}

impl EngineConfig {
    pub(super) fn validate(file: &file::Engine, problems: &mut Problems) -> Self {
        match urls(file, problems) {
            Some((span, urls)) => Self::redis(file, &urls, span, problems),
            None => {
                only_with_redis(file, problems);
                Self::Memory
            }
        }
    }

    /// Redis at this address, everything else as it is usual.
    ///
    /// # Errors
    /// When the address is none of Redis.
    pub fn redis_at(url: &str) -> Result<Self, String> {
        let options = earrrl_redis::Options::new(url);
        for url in &options.urls {
            earrrl_redis::check_url(url).map_err(|error| format!("redis: {error}"))?;
        }
        Ok(Self::Redis(Box::new(RedisConfig { options, own_clock: false })))
    }

    /// Refuses limits that the engine can't keep exactly.
    pub(super) fn check_rules(
        &self,
        rules: &[Spanned<file::Rule>],
        valid: &[RuleConfig],
        problems: &mut Problems,
    ) {
        if let Self::Redis(_) = self {
            redis::check_rules(rules, problems);
            redis::check_near(rules, valid, problems);
            return;
        }
        for field in rules.iter().filter_map(|rule| rule.get_ref().consistency.as_ref()) {
            problems.add(field.span(), "consistency: only with redis in [engine]");
        }
    }

    /// Clients of a rule that this process's own tables are meant for, unless it is said.
    pub fn default_capacity(&self) -> usize {
        match self {
            Self::Memory => super::bounds::DEFAULT_CAPACITY,
            // They decide only while Redis is gone.
            Self::Redis(config) => config.options.local_capacity,
        }
    }
}

/// The addresses as they are written, and where.
fn urls(file: &file::Engine, problems: &mut Problems) -> Option<(Range<usize>, Vec<String>)> {
    match (&file.redis, &file.redis_file) {
        (None, None) => None,
        (Some(inline), None) => Some((inline.span(), inline.get_ref().as_slice().to_vec())),
        (None, Some(path)) => match text_of(path.get_ref()) {
            Ok(text) => Some((path.span(), vec![text.trim().to_owned()])),
            Err(error) => {
                problems.add(path.span(), format!("redis_file: {error}"));
                None
            }
        },
        (Some(_), Some(path)) => {
            problems.add(path.span(), "redis_file: redis is set already; want one of them");
            None
        }
    }
}

/// What says how Redis is used says nothing without it.
fn only_with_redis(file: &file::Engine, problems: &mut Problems) {
    if file.redis.is_some() || file.redis_file.is_some() {
        return;
    }
    let texts = [
        ("prefix", &file.prefix),
        ("policy", &file.policy),
        ("deadline", &file.deadline),
        ("sentinel", &file.sentinel),
        ("sync", &file.sync),
        ("hmac_key", &file.hmac_key),
        ("hmac_key_file", &file.hmac_key_file),
        ("ca_file", &file.ca_file),
        ("cert_file", &file.cert_file),
        ("key_file", &file.key_file),
    ];
    let texts = texts.into_iter().filter_map(|(name, field)| Some((name, field.as_ref()?.span())));
    let cluster = file.cluster.as_ref().map(|field| ("cluster", field.span()));
    let nodes = file.nodes.as_ref().map(|field| ("nodes", field.span()));
    for (name, span) in texts.chain(cluster).chain(nodes) {
        problems.add(span, format!("{name}: only with redis = \"redis://host:port\""));
    }
}

mod redis {
    use std::ops::Range;
    use std::time::Duration;

    use earrrl::Rule;
    use earrrl_redis::{Certificates, ClientKeys, Consistency, Options, WhenGone};
    use toml::Spanned;

    use super::super::suggest::nearest;
    use super::super::value::{duration, secret, text_of};
    use super::super::{file, problem::Problems};
    use super::{EngineConfig, RedisConfig, RuleConfig};

    /// The least and the longest time that a decision may wait for Redis.
    const DEADLINES: [Duration; 2] = [Duration::from_millis(1), Duration::from_secs(10)];
    /// Shortest key of a hash, in bytes.
    const MIN_HMAC_KEY_LEN: usize = 16;
    const POLICIES: [WhenGone; 3] = [WhenGone::Local, WhenGone::Allow, WhenGone::Deny];

    impl EngineConfig {
        pub(super) fn redis(
            file: &file::Engine,
            urls: &[String],
            span: Range<usize>,
            problems: &mut Problems,
        ) -> Self {
            let mut options = Options::new(&urls.join(","));
            if let Some(error) = options.urls.iter().find_map(|u| earrrl_redis::check_url(u).err())
            {
                problems.add(span, format!("redis: {error}"));
            }
            if let Some(sentinel) = &file.sentinel {
                options.sentinel = Some(sentinel.get_ref().clone());
                options.cluster = false;
                if file.cluster.is_some() {
                    problems.add(sentinel.span(), "sentinel: a Cluster has none; want one of them");
                }
            } else if let Some(cluster) = &file.cluster {
                if options.urls.len() > 1 && !cluster.get_ref() {
                    problems.add(cluster.span(), "cluster: several addresses are a Cluster's");
                }
                options.cluster = *cluster.get_ref();
            }
            if let Some(prefix) = &file.prefix {
                options.prefix.clone_from(prefix.get_ref());
                if let Err(error) = earrrl_redis::check_prefix(prefix.get_ref()) {
                    problems.add(prefix.span(), error);
                }
            }
            if let Some(field) = &file.policy {
                options.when_gone = policy(field, problems);
            }
            if let Some(field) = &file.deadline {
                options.deadline = deadline(field, problems).unwrap_or(options.deadline);
            }
            if let Some(field) = &file.sync {
                let sync = duration("sync", field, problems).unwrap_or(options.sync);
                match earrrl_redis::check_sync(sync) {
                    Ok(()) => options.sync = sync,
                    Err(error) => problems.add(field.span(), error),
                }
            }
            if let Some(field) = &file.nodes {
                options.nodes = u32::try_from(*field.get_ref()).ok().filter(|nodes| *nodes > 0);
                if options.nodes.is_none() {
                    problems.add(field.span(), "nodes: expected 1 or more");
                }
            }
            // Its bounds are checked where the tables' are.
            if let Some(field) = &file.capacity {
                options.local_capacity = *field.get_ref() as usize;
            }
            options.clients = client_keys(file, problems);
            options.certificates = certificates(file, problems);
            Self::Redis(Box::new(RedisConfig { options, own_clock: false }))
        }
    }

    fn policy(field: &Spanned<String>, problems: &mut Problems) -> WhenGone {
        let name = field.get_ref();
        if let Some(policy) = POLICIES.into_iter().find(|policy| policy.name() == name) {
            return policy;
        }
        let names = POLICIES.map(WhenGone::name);
        let suggestion = nearest(name, names).map(|name| format!("; did you mean `{name}`?"));
        let (shown, suggestion) = (name.escape_debug(), suggestion.unwrap_or_default());
        let problem = format!("policy: `{shown}` is none of {}{suggestion}", names.join(", "));
        problems.add(field.span(), problem);
        WhenGone::default()
    }

    fn deadline(field: &Spanned<String>, problems: &mut Problems) -> Option<Duration> {
        let deadline = duration("deadline", field, problems)?;
        let [least, most] = DEADLINES;
        if (least..=most).contains(&deadline) {
            return Some(deadline);
        }
        problems.add(field.span(), "deadline: expected 1ms to 10s, as \"5ms\"");
        None
    }

    fn client_keys(file: &file::Engine, problems: &mut Problems) -> ClientKeys {
        let found =
            secret("hmac_key", file.hmac_key.as_ref(), file.hmac_key_file.as_ref(), problems);
        let Some((span, key)) = found else { return ClientKeys::Escaped };
        if key.len() < MIN_HMAC_KEY_LEN {
            let problem =
                format!("hmac_key: {} bytes; expected {MIN_HMAC_KEY_LEN} or more", key.len());
            problems.add(span, problem);
        }
        ClientKeys::Hashed(key.into_bytes())
    }

    fn certificates(file: &file::Engine, problems: &mut Problems) -> Option<Certificates> {
        let mut read = |name: &str, field: &file::Field<String>| {
            let field = field.as_ref()?;
            let text = text_of(field.get_ref()).map(String::into_bytes);
            text.map_err(|error| problems.add(field.span(), format!("{name}: {error}"))).ok()
        };
        let mut certificates = Certificates::default();
        certificates.authority = read("ca_file", &file.ca_file);
        let own = (read("cert_file", &file.cert_file), read("key_file", &file.key_file));
        match (&file.cert_file, &file.key_file) {
            (Some(one), None) | (None, Some(one)) => {
                problems.add(one.span(), "cert_file, key_file: expected both or none");
            }
            _ => {}
        }
        if let (Some(certificate), Some(key)) = own {
            certificates.client = Some((certificate, key));
        }
        (certificates != Certificates::default()).then_some(certificates)
    }

    pub(super) fn check_rules(rules: &[Spanned<file::Rule>], problems: &mut Problems) {
        let limits = rules.iter().map(Spanned::get_ref).flat_map(|rule| {
            let overrides = rule.overrides.iter().map(|special| &special.limit);
            std::iter::once(&rule.limit).chain(overrides)
        });
        for limit in limits {
            // What is no rule at all has been told already.
            let rule = limit.get_ref().parse::<Rule>();
            if let Some(error) = rule.ok().and_then(|rule| earrrl_redis::check_rule(&rule).err()) {
                problems.add(limit.span(), format!("limit: {error}"));
            }
        }
    }

    /// Refuses near rules that no node can decide by itself.
    pub(super) fn check_near(
        rules: &[Spanned<file::Rule>],
        valid: &[RuleConfig],
        problems: &mut Problems,
    ) {
        let near = valid.iter().filter(|rule| rule.consistency == Consistency::Near);
        for rule in near {
            let limits = rule.overrides.iter().map(|special| &special.rule);
            let mut limits = std::iter::once(&rule.rule).chain(limits);
            let error = limits.find_map(|rule| earrrl_redis::check_near(rule).err());
            let written = rules.iter().find(|file| *file.get_ref().name.get_ref() == rule.name);
            let field = written.and_then(|file| file.get_ref().consistency.as_ref());
            if let (Some(error), Some(field)) = (error, field) {
                problems.add(field.span(), error);
            }
        }
    }
}
