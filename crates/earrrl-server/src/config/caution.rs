//! Warnings about valid configurations: limits that checks do not apply, bursts that are larger than
//! they look, keys that requests lack or that clients choose, values that requests hardly have, and limits that are
//! shared through Redis less well than they could be.

use std::collections::BTreeSet;
use std::time::Duration;

use earrrl::algorithm::Waits;
use earrrl::{Action, Limit, Policy, Quota};
use earrrl_redis::max_exact_units;

use super::attribute::{Condition, KeyPart};
use super::listen::Protocol;
use super::rule::{CostSource, OnMissing, Override, RuleConfig};
use super::{Config, EngineConfig};

/// The least number of requests at once that a warning is about.
const LARGE_BURST: u64 = 50;
/// The least time for earning a burst that a warning is about. A burst that is earned sooner is
/// large because the rate is high, which nobody overlooks.
const LONG_EARNING: Duration = Duration::from_secs(300);
/// The rate per second below which a limit is one for people, and not for programs.
const FOR_PEOPLE: f64 = 1.0 / 60.0;
/// The headers that name the address of a client. Without a proxy that sets them, the client does.
const ADDRESS_HEADERS: [&str; 9] = [
    "x-forwarded-for",
    "forwarded",
    "x-real-ip",
    "x-client-ip",
    "x-cluster-client-ip",
    "true-client-ip",
    "cf-connecting-ip",
    "fastly-client-ip",
    "x-original-forwarded-for",
];
/// The headers of browsers that nothing verifies.
const FREE_HEADERS: [&str; 7] = [
    "user-agent",
    "referer",
    "origin",
    "accept-language",
    "accept",
    "x-request-id",
    "x-forwarded-host",
];

impl Config {
    /// Returns warnings about rules that limit less than they seem to, or others than they seem to, and about a
    /// server without listeners.
    pub fn cautions(&self) -> Vec<String> {
        let of_rule = |config| {
            let found = [
                only_reserved(config),
                unsuitable_waits(config),
                self.large_burst(config),
                small_burst(config),
                self.lacked_key(config),
                self.lacked_cost(config),
                self.undelayed(config),
                mistyped_override(config),
                override_of_everybody(config),
                open_to_lockout(config),
                chosen_key(config),
            ];
            found
                .into_iter()
                .flatten()
                .chain(doubtful_values(config))
                .map(|caution| format!("{}: {caution}", config.name))
        };
        let mut cautions: Vec<String> = self.rules.iter().flat_map(of_rule).collect();
        let is_off = |protocol| self.server.address(protocol).is_none();
        if !self.envoy.has_descriptors() && Protocol::ALL.into_iter().all(is_off) {
            cautions.push(format!("[server] {}", Self::NO_LISTENER));
        }
        let EngineConfig::Redis(_) = &self.engine else {
            return cautions;
        };
        for config in &self.rules {
            let overrides = config.overrides.iter().map(|special| &special.rule);
            for rule in std::iter::once(&config.rule).chain(overrides) {
                let found = rounded(rule.limit());
                cautions.extend(found.map(|caution| format!("{}: {rule}: {caution}", config.name)));
            }
        }
        cautions
    }

    /// Returns a warning if a rule lets many requests through at once, although its text states no
    /// burst, and no other rule limits the burst of the same clients.
    fn large_burst(&self, config: &RuleConfig) -> Option<String> {
        let limit = config.rule.limit();
        let burst = limit.at_once();
        let earning = Duration::try_from_secs_f64(burst as f64 / limit.per_second()).ok()?;
        let is_large = matches!(limit, Limit::RecentAverage(_))
            && burst >= LARGE_BURST
            && earning >= LONG_EARNING;
        if !is_large || self.rules.iter().any(|other| limits_burst(other, config)) {
            return None;
        }
        Some(format!(
            "{} lets {} of a client through at once; want a shorter half-life, or a \
             second rule with this key and match, as \"gcra 1/m burst=5\"; see docs/choosing-a-limit.md",
            config.rule,
            config.at_once()
        ))
    }

    /// Returns a warning if a rule delays requests of proxies, which cannot wait.
    fn undelayed(&self, config: &RuleConfig) -> Option<String> {
        let delays = matches!(config.rule.action(), Action::Delay { .. });
        (delays && self.answers_proxies).then(|| {
            "action = \"delay\" lets the request pass at once behind a proxy that does not wait for the \
             seconds in X-RateLimit-Delay, as only the recipe for HAProxy does; see docs/proxies.md"
                .to_owned()
        })
    }

    /// Returns a warning if a rule takes its cost from an attribute that requests of proxies lack.
    fn lacked_cost(&self, config: &RuleConfig) -> Option<String> {
        let CostSource::Attribute(name) = &config.cost else {
            return None;
        };
        let mut conditions = config.conditions.iter();
        let lacks = self.answers_proxies
            && !of_proxies(name)
            && conditions.all(|condition| of_proxies(&condition.attribute));
        lacks.then(|| {
            format!(
                "cost: requests that a proxy describes have no `{name}`: each costs {}; want header:NAME",
                config.min_cost
            )
        })
    }

    /// Returns a warning if a rule is meant for requests of Envoy's rate limit service or of proxies that lack an
    /// attribute of its key.
    fn lacked_key(&self, config: &RuleConfig) -> Option<String> {
        let matched = |had: fn(&str) -> bool| {
            config
                .conditions
                .iter()
                .all(|condition| had(&condition.attribute))
        };
        let lacking = |had: fn(&str) -> bool| {
            let lacks = |part: &&KeyPart| !part.attributes().any(had) && has_no_literal(part);
            config.key.iter().find(lacks)
        };
        if config.serves_descriptors() {
            let name = lacking(of_descriptors).filter(|_| matched(of_descriptors))?;
            return Some(format!(
                "key: requests of Envoy's rate limit service have no `{name}`, only `domain` and \
                 `descriptor:NAME`: it tells no clients apart"
            ));
        }
        let shares = config.missing == OnMissing::Share && self.answers_proxies;
        let lacked = lacking(of_proxies).filter(|_| shares && matched(of_proxies))?;
        let shared = match config
            .key
            .iter()
            .flat_map(KeyPart::attributes)
            .any(of_proxies)
        {
            true => "they count by the rest of the key, so an office shares one quota",
            false => "they all count as one client",
        };
        Some(format!(
            "key: requests that a proxy describes have no `{lacked}`: {shared}; \
             want header:NAME, or missing = \"skip\" if only other callers should meet the rule"
        ))
    }
}

/// Returns warnings about the values in a rule's conditions that hardly any request has: for each field and
/// attribute the first, since a rule may have many overrides.
fn doubtful_values(config: &RuleConfig) -> Vec<String> {
    let overrides = config
        .overrides
        .iter()
        .flat_map(|special| &special.conditions);
    let fields: [(&str, Vec<&Condition>); 3] = [
        ("match", config.conditions.iter().collect()),
        ("exempt", config.exempt.iter().collect()),
        ("override", overrides.collect()),
    ];
    let mut cautions = Vec::new();
    for (field, conditions) in fields {
        let mut seen = BTreeSet::new();
        for condition in conditions {
            let doubts = condition.doubts();
            for (value, why) in doubts.filter(|_| seen.insert(&condition.attribute)) {
                let name = &condition.attribute;
                cautions.push(format!("{field}: {name} = {value:?}: {why}"));
            }
        }
    }
    cautions
}

/// Returns a warning if a part of a rule's key is a header that clients write as they like.
fn chosen_key(config: &RuleConfig) -> Option<String> {
    let names = config.key.iter().flat_map(KeyPart::attributes);
    let mut headers = names.filter_map(|name| name.strip_prefix("header:"));
    let is_chosen = |name: &&str| ADDRESS_HEADERS.contains(name) || FREE_HEADERS.contains(name);
    let header = headers.find(is_chosen)?;
    let instead = match ADDRESS_HEADERS.contains(&header) {
        true => "client, with trusted_proxies in [client_address]",
        false => "client",
    };
    Some(format!(
        "key: a client writes the header {header} itself, and each new value has a new quota; want {instead}"
    ))
}

/// Returns a warning if an override is for all clients, so that the rule's own limit is for none.
fn override_of_everybody(config: &RuleConfig) -> Option<String> {
    let is_for_all = |special: &Override| special.conditions.iter().all(Condition::is_everybody);
    let found = config
        .overrides
        .iter()
        .find(|special| is_for_all(special))?;
    let limit = &found.rule;
    Some(format!(
        "override: {limit} is for everybody; the rule's own limit, {}, is for none",
        config.rule
    ))
}

/// Returns a warning if a rule by path counts all requests about a user together, whoever sends them.
fn open_to_lockout(config: &RuleConfig) -> Option<String> {
    let names = |part: &KeyPart, name: &str| part.attributes().any(|own| own == name);
    let is_always = |part: &KeyPart| part.alternatives().len() == 1 && names(part, "client");
    let by_path = config
        .conditions
        .iter()
        .any(|condition| condition.attribute == "path");
    let has_user = config.key.iter().any(|part| names(part, "user"));
    let has_client = config.key.iter().any(is_always);
    (by_path && has_user && !has_client && config.rule.action() != Action::Observe).then(|| {
        "key: anybody can name a user, and so use up that user's quota, unless the caller has checked who it is; \
         want key = [\"client\", \"user\"]; see docs/choosing-a-limit.md"
            .to_owned()
    })
}

/// Returns true for a part of a key that a request may lack.
fn has_no_literal(part: &KeyPart) -> bool {
    let mut alternatives = part.alternatives().iter();
    alternatives.all(|one| one.attribute().is_some())
}

/// Returns true for attributes of requests of Envoy's rate limit service.
fn of_descriptors(name: &str) -> bool {
    name == "domain" || name.starts_with("descriptor:")
}

/// Returns true for attributes of requests that a proxy describes.
fn of_proxies(name: &str) -> bool {
    ["client", "method", "path", "host", "proto"].contains(&name) || name.starts_with("header:")
}

/// Returns true if a rule applies to all requests of another rule, has no finer key, and lets few
/// requests through at once.
fn limits_burst(config: &RuleConfig, other: &RuleConfig) -> bool {
    let applies = |condition: &Condition| other.conditions.iter().any(|own| condition.covers(own));
    let denies = |config: &RuleConfig| config.rule.action() != Action::Observe;
    config.rule.limit().at_once() < LARGE_BURST
        && config.conditions.iter().all(applies)
        && config.key.iter().all(|part| other.key.contains(part))
        && config
            .exempt
            .iter()
            .all(|condition| other.exempt.contains(condition))
        && (denies(config) || !denies(other))
}

/// Returns a warning if an override names an attribute that is almost one of the rule's key. Plans
/// are often in other attributes, so a name that is not in the key is usual.
fn mistyped_override(config: &RuleConfig) -> Option<String> {
    let key: BTreeSet<_> = config.key.iter().flat_map(KeyPart::attributes).collect();
    let conditions = config
        .overrides
        .iter()
        .flat_map(|special| &special.conditions);
    let names: BTreeSet<_> = conditions
        .map(|condition| condition.attribute.as_str())
        .collect();
    names.difference(&key).find_map(|name| {
        let meant = key.iter().find(|known| bare(known) == bare(name))?;
        Some(format!(
            "override: `{name}` is not in the key; did you mean the key's `{meant}`?"
        ))
    })
}

/// Returns a name in small letters, without hyphens and underscores: these are what is mistyped most.
fn bare(name: &str) -> String {
    name.chars()
        .filter(|c| !matches!(c, '-' | '_'))
        .flat_map(char::to_lowercase)
        .collect()
}

/// Returns a warning if the half-life is so short that one request reaches the limit of a whole period.
fn small_burst(config: &RuleConfig) -> Option<String> {
    let limit = config.rule.limit();
    let alone = matches!(limit, Limit::RecentAverage(_)) && limit.at_once() <= 1;
    (alone && limit.per_second() < 1.0).then(|| {
        format!(
            "{} lets {} of a client through at once, and denies the next; a longer half-life lets more \
             through at the same rate",
            config.rule,
            config.at_once()
        )
    })
}

/// Returns a warning if a rule makes those wait too long who obey it: people, whose denials are told times one after the
/// other, or programs that share a key.
fn unsuitable_waits(config: &RuleConfig) -> Option<String> {
    let (rule, limit) = (&config.rule, config.rule.limit());
    if limit.waits() == Waits::Queue && limit.per_second() < FOR_PEOPLE {
        return Some(format!(
            "{rule} tells each denial a later time than the one before, for programs that share a key; a person who \
             tries again would wait longer each time: want waits=first"
        ));
    }
    let is_strict_log = matches!(limit, Limit::SlidingLog(_)) && limit.policy() == Policy::Strict;
    is_strict_log.then(|| {
        format!(
            "{rule} counts denied requests too: if more than about {} programs share a key, they are denied for good, \
             even if they obey; want leaky, or recent-average",
            limit.at_once()
        )
    })
}

/// Returns the warning about a rule of concurrent.
fn only_reserved(config: &RuleConfig) -> Option<String> {
    config.rule.limit().is_concurrent().then(|| {
        format!(
            "{} applies to reservations alone (/v1/reserve, EARRRL.RESERVE); checks, proxies and Envoy's \
             descriptors pass it by",
            config.rule
        )
    })
}

/// Returns a warning if Redis stores a limit's larger counts rounded.
fn rounded(limit: &Limit) -> Option<String> {
    let exact = max_exact_units(limit)?;
    let units = Quota::of(limit).units;
    (units > exact)
        .then(|| format!("Redis stores counts above {exact} units rounded; this limit has {units}"))
}
