//! The fields of `[engine]` for Redis, and the check for rules that Redis cannot serve.

use std::collections::HashSet;
use std::ops::Range;
use std::time::Duration;

use earrrl::Rule;
use earrrl_redis::{
    Certificates, ClientKeys, Consistency, Options, WhenGone, uses_tls, without_credentials,
};
use toml::Spanned;

use super::file;
use super::problem::Problems;
use super::rule::RuleConfig;
use super::value::{choice, duration, secret, text_of};

/// The configuration of the engine over Redis.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct RedisConfig {
    /// The options of the `earrrl_redis` engine.
    pub options: earrrl_redis::Options,
    /// True if the server's own clock is used instead of the clock of Redis. Only tests set it,
    /// since servers that share a Redis must share a clock; no field of the file does.
    pub own_clock: bool,
}

/// The shortest and the longest configurable deadline of a decision.
const DEADLINES: [Duration; 2] = [Duration::from_millis(1), Duration::from_secs(10)];
/// The length of the shortest HMAC key, in bytes.
const MIN_HMAC_KEY_LEN: usize = 16;
const POLICIES: [WhenGone; 3] = [WhenGone::Local, WhenGone::Allow, WhenGone::Deny];

pub(super) fn validate(
    file: &file::EngineTable,
    urls: &[String],
    span: Range<usize>,
    problems: &mut Problems,
) -> RedisConfig {
    let mut options = Options::new(&urls.join(","));
    if let Some(error) = options
        .urls
        .iter()
        .find_map(|u| earrrl_redis::check_url(u).err())
    {
        problems.add(span.clone(), format!("redis: {error}"));
    }
    let mut known = HashSet::new();
    if !options.urls.iter().all(|url| known.insert(url)) {
        problems.add(
            span.clone(),
            "redis: the same address is there twice; once is enough",
        );
    }
    topology(file, &mut options, problems);
    sentinel_login(file, &mut options, problems);
    if let Some(prefix) = &file.prefix {
        options.prefix.clone_from(prefix.get_ref());
        if let Err(error) = earrrl_redis::check_prefix(prefix.get_ref()) {
            problems.add(prefix.span(), error);
        }
    }
    let policies = POLICIES.map(|policy| (policy.name(), policy));
    if let Some(policy) = choice("policy", &file.policy, &policies, problems) {
        options.when_gone = policy;
    }
    if let Some(field) = &file.deadline {
        options.deadline = deadline(field, problems).unwrap_or(options.deadline);
    }
    // The bounds of the capacity are checked together with those of the rules' capacities.
    if let Some(field) = &file.capacity {
        options.local_capacity = *field.get_ref() as usize;
    }
    options.node = node(file, problems);
    options.clients = client_keys(file, problems);
    options.certificates = certificates(file, &options.urls, problems);
    RedisConfig {
        options,
        own_clock: false,
    }
}

/// Returns the name of this server among the nodes.
fn node(file: &file::EngineTable, problems: &mut Problems) -> Option<String> {
    let field = file.node.as_ref()?;
    match earrrl_redis::check_node(field.get_ref()) {
        Ok(()) => return Some(field.get_ref().clone()),
        Err(error) => problems.add(field.span(), error),
    }
    None
}

/// Sets whether the URLs belong to Sentinels, to a Cluster or to a single server.
fn topology(file: &file::EngineTable, options: &mut Options, problems: &mut Problems) {
    match (&file.sentinel, &file.cluster) {
        (Some(sentinel), cluster) => {
            options.sentinel = Some(sentinel.get_ref().clone());
            if sentinel.get_ref().is_empty() {
                problems.expected(
                    "sentinel",
                    sentinel,
                    "the name of the master, as \"mymaster\"",
                );
            }
            options.cluster = false;
            if cluster.is_some() {
                problems.add(
                    sentinel.span(),
                    "sentinel: a Cluster has none; want one of them",
                );
            }
        }
        (None, Some(cluster)) => {
            if options.urls.len() > 1 && !cluster.get_ref() {
                problems.add(
                    cluster.span(),
                    "cluster: false, but several addresses are always those of a Cluster",
                );
            }
            options.cluster = *cluster.get_ref();
        }
        (None, None) => {}
    }
}

/// Sets the user and the password at the Sentinels.
fn sentinel_login(file: &file::EngineTable, options: &mut Options, problems: &mut Problems) {
    let inline = &file.sentinel_password;
    let from_file = &file.sentinel_password_file;
    if file.sentinel.is_none() {
        let fields = [
            ("sentinel_user", &file.sentinel_user),
            ("sentinel_password", inline),
            ("sentinel_password_file", from_file),
        ];
        for (name, field) in fields {
            if let Some(field) = field {
                problems.add(field.span(), format!("{name}: only with sentinel"));
            }
        }
        return;
    }
    let found = secret(
        "sentinel_password",
        inline.as_ref(),
        from_file.as_ref(),
        problems,
    );
    if let Some((span, _)) = found.as_ref().filter(|(_, password)| password.is_empty()) {
        problems.add(
            span.clone(),
            "sentinel_password: expected a password, not an empty text",
        );
    }
    options.sentinel_password = found.map(|(_, password)| password);
    options.sentinel_user = file
        .sentinel_user
        .as_ref()
        .map(|field| field.get_ref().clone());
    if let (Some(user), None, None) = (&file.sentinel_user, inline, from_file) {
        problems.add(user.span(), "sentinel_user: only with sentinel_password");
    }
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

fn client_keys(file: &file::EngineTable, problems: &mut Problems) -> ClientKeys {
    let found = secret(
        "hmac_key",
        file.hmac_key.as_ref(),
        file.hmac_key_file.as_ref(),
        problems,
    );
    let Some((span, key)) = found else {
        return ClientKeys::Escaped;
    };
    if key.len() < MIN_HMAC_KEY_LEN {
        let problem = format!(
            "hmac_key: {} bytes; expected {MIN_HMAC_KEY_LEN} or more",
            key.len()
        );
        problems.add(span, problem);
    }
    ClientKeys::Hashed(key.into_bytes())
}

fn certificates(
    file: &file::EngineTable,
    urls: &[String],
    problems: &mut Problems,
) -> Option<Certificates> {
    let mut read = |name: &str, field: &file::Placed<String>| {
        let field = field.as_ref()?;
        let text = text_of(field.get_ref()).map(String::into_bytes);
        text.map_err(|error| problems.add(field.span(), format!("{name}: {error}")))
            .ok()
    };
    let mut certificates = Certificates::default();
    certificates.authority = read("ca_file", &file.ca_file);
    let own = (
        read("cert_file", &file.cert_file),
        read("key_file", &file.key_file),
    );
    match (&file.cert_file, &file.key_file) {
        (Some(one), None) | (None, Some(one)) => {
            problems.add(one.span(), "cert_file, key_file: expected both or none");
        }
        _ => {}
    }
    if let (Some(certificate), Some(key)) = own {
        certificates.client = Some((certificate, key));
    }
    check_certificates(file, &certificates, urls, problems);
    (certificates != Certificates::default()).then_some(certificates)
}

/// Reports certificates with which no connection can be established.
fn check_certificates(
    file: &file::EngineTable,
    certificates: &Certificates,
    urls: &[String],
    problems: &mut Problems,
) {
    let found = [
        ("ca_file", &file.ca_file, certificates.check_authority()),
        (
            "cert_file, key_file",
            &file.cert_file,
            certificates.check_client(),
        ),
    ];
    let plain = urls
        .iter()
        .find(|url| earrrl_redis::check_url(url).is_ok() && !uses_tls(url));
    for (name, field, checked) in found {
        let Some(field) = field else { continue };
        let problem = match (plain, checked) {
            (Some(url), _) => {
                let shown = without_credentials(url);
                format!("only with rediss://, but redis is {shown}")
            }
            (None, Err(error)) => error.to_string(),
            (None, Ok(())) => continue,
        };
        let path = field.get_ref().escape_debug();
        problems.add(field.span(), format!("{name}: `{path}`: {problem}"));
    }
}

pub(super) fn check_rules(rules: &[Spanned<file::RuleTable>], problems: &mut Problems) {
    let limits = rules.iter().map(Spanned::get_ref).flat_map(|rule| {
        let overrides = rule.overrides.iter().map(|special| &special.limit);
        std::iter::once(&rule.limit).chain(overrides)
    });
    for limit in limits {
        // Limits that cannot be parsed are reported when the rules are validated.
        let rule = limit.get_ref().parse::<Rule>();
        if let Some(error) = rule
            .ok()
            .and_then(|rule| earrrl_redis::check_rule(&rule).err())
        {
            problems.add(limit.span(), format!("limit: {error}"));
        }
    }
}

/// Reports rules with `consistency = "near"` that cannot be near.
pub(super) fn check_near(
    rules: &[Spanned<file::RuleTable>],
    valid: &[RuleConfig],
    problems: &mut Problems,
) {
    let near = valid
        .iter()
        .filter(|rule| rule.consistency == Consistency::Near);
    for rule in near {
        let limits = rule.overrides.iter().map(|special| &special.rule);
        let mut limits = std::iter::once(&rule.rule).chain(limits);
        let error = limits.find_map(|rule| earrrl_redis::check_near(rule).err());
        let written = rules
            .iter()
            .find(|file| *file.get_ref().name.get_ref() == rule.name);
        let field = written.and_then(|file| file.get_ref().consistency.as_ref());
        if let (Some(error), Some(field)) = (error, field) {
            problems.add(field.span(), error);
        }
    }
}
