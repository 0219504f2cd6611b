//! The limits that a request's descriptors match, and the charges under them.
//!
//! A descriptor meets at most one limit of the files in Envoy's format, or the one that it brings
//! itself, and any number of the server's own rules. All of them are ordinary limits of the engine,
//! under ordinary keys. Limits in Envoy's format are counted as one rule, [`ENVOY`](super::ENVOY).

use std::borrow::Cow;
use std::collections::HashSet;
use std::sync::Arc;

use earrrl::{Action, Charge, Cost};
use smallvec::SmallVec;

use super::counts::DescriptorCounts;
use super::prepared::{DescriptorLimit, Descriptors, LimitKind, key_of, reported};
use crate::config::envoy::file::{LimitConfig, level_name};
use crate::config::envoy::tree::TreeLimit;
use crate::config::envoy::unit::Unit;
use crate::config::rule::OnMissing;
use crate::engine::Engine;
use crate::protobuf::ratelimit::{
    Entry, RateLimit, RateLimitDescriptor, RateLimitOverride, RateLimitRequest,
};
use crate::service::attributes::Attributes;
use crate::service::error::AskError;
use crate::service::key::{Key, bounded_owned};
use crate::service::limit::PreparedLimit;
use crate::service::rule::ActiveRule;
use crate::service::rules::ActiveRules;

/// The greatest number of descriptors in one request.
const MAX_DESCRIPTORS: usize = 64;

/// One limit that a descriptor of a request matches, and the hits on that limit.
#[derive(Debug)]
pub(super) struct AskedLimit<'a> {
    /// The index of the descriptor in the request.
    pub(super) descriptor: usize,
    pub(super) source: Source<'a>,
    pub(super) kind: LimitKind<&'a PreparedLimit>,
    /// True if requests over the limit are counted but never denied.
    pub(super) shadow_mode: bool,
    pub(super) key: Key,
    pub(super) hits: Hits,
    /// The index of the limit's charge among the charges of the request; `None` if the engine does
    /// not decide by the limit.
    pub(super) place: Option<usize>,
}

/// The hits of a descriptor, which are charged or refunded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Hits {
    /// The number of hits to charge; zero only queries the limit.
    Charged(u64),
    /// The number of hits to refund.
    Refunded(u64),
}

/// The place where a limit comes from.
#[derive(Debug)]
pub(super) enum Source<'a> {
    /// The configured tree of descriptors.
    Tree(&'a DescriptorLimit, &'a TreeLimit),
    /// The request itself; see [`request_limit`](super::request_limit).
    Request(RateLimit),
    /// A rule of the server's own configuration.
    Rule(&'a ActiveRule),
}

impl<'a> AskedLimit<'a> {
    /// Returns the limit if the engine counts under it.
    pub(super) fn counted(&self) -> Option<&'a PreparedLimit> {
        match self.kind {
            LimitKind::Counted(limit) => Some(limit),
            LimitKind::Unlimited | LimitKind::Zero(_) => None,
        }
    }

    /// Returns the charge of a number of hits; `None` if the engine does not count under the limit.
    /// More hits than the limit's `max_cost` are no error: the number may come from a header that the
    /// client chooses, and Envoy lets a request pass on an error.
    pub(super) fn charge(&self, hits: u64) -> Option<Charge<'_>> {
        let limit = self.counted()?;
        Some(Charge {
            rule: limit.id,
            key: &self.key,
            cost: Cost::from_units(hits).min(limit.rule.max_cost()),
        })
    }

    /// Returns the charge by which the engine decides the request; `None` if it does not decide by the
    /// limit. A limit that the request brings is compared with the engine's count instead, and a
    /// refund is no request.
    fn deciding_charge(&self) -> Option<Charge<'_>> {
        match (&self.source, self.hits) {
            (Source::Request(_), _) | (_, Hits::Refunded(_)) => None,
            (_, Hits::Charged(hits)) => self.charge(hits),
        }
    }

    /// Returns the configuration of a limit in Envoy's format.
    fn config(&self) -> Option<&'a LimitConfig> {
        match self.source {
            Source::Tree(_, limit) => Some(&limit.config),
            Source::Request(_) | Source::Rule(_) => None,
        }
    }

    /// Returns true if a request is denied only when all of its limits like this one are exceeded.
    pub(super) fn quota_mode(&self) -> bool {
        self.config().is_some_and(|config| config.quota_mode)
    }

    /// Returns true if a request is denied when this limit cannot be judged. Otherwise Envoy gets
    /// an error, and Envoy's own setting decides the request.
    pub(super) fn denies_on_error(&self) -> bool {
        matches!(self.source, Source::Rule(rule) if rule.denies_on_error())
    }

    /// Returns the limit in the form in which responses report it.
    pub(super) fn reported(&self) -> Cow<'_, RateLimit> {
        match (&self.source, self.counted()) {
            (Source::Tree(limit, _), _) => Cow::Borrowed(&limit.reported),
            (Source::Request(limit), _) => Cow::Borrowed(limit),
            (Source::Rule(rule), limit) => {
                let limit = limit.unwrap_or(&rule.own);
                Cow::Owned(reported(&limit.rule, &rule.name))
            }
        }
    }

    /// Returns the counters of the limit for the metrics with the names of envoyproxy/ratelimit.
    pub(super) fn counts(
        &self,
        descriptors: &Descriptors,
        request: &RateLimitRequest,
    ) -> Option<Arc<DescriptorCounts>> {
        let entries = &request.descriptors[self.descriptor].entries;
        let key = match &self.source {
            Source::Tree(limit, of_tree) => {
                if let Some(counts) = &limit.counts {
                    return Some(Arc::clone(counts));
                }
                of_tree.metric_key_of(entries.iter().map(Entry::text))
            }
            Source::Request(_) => {
                let level = |entry: &Entry| level_name(&entry.key, &entry.text());
                std::iter::once(request.domain.clone())
                    .chain(entries.iter().map(level))
                    .collect()
            }
            Source::Rule(_) => return None,
        };
        Some(descriptors.records.counts.of(&key))
    }
}

/// The limits that the descriptors of a request match.
#[derive(Debug)]
pub(super) struct Asked<'a> {
    pub(super) limits: SmallVec<[AskedLimit<'a>; 2]>,
    /// The first error that a descriptor caused. The other descriptors are judged all the same.
    pub(super) failed: Option<AskError>,
}

/// Finds the limits that a request's descriptors match.
pub(super) fn asked<'a>(
    descriptors: &'a Descriptors,
    rules: &'a ActiveRules,
    request: &RateLimitRequest,
    engine: &Engine,
) -> Result<Asked<'a>, AskError> {
    if request.domain.is_empty() {
        return Err(AskError::invalid("rate limit domain must not be empty"));
    }
    if request.descriptors.is_empty() {
        return Err(AskError::invalid(
            "rate limit descriptor list must not be empty",
        ));
    }
    if request.descriptors.len() > MAX_DESCRIPTORS {
        let count = request.descriptors.len();
        return Err(AskError::invalid(format!(
            "{count} descriptors; at most {MAX_DESCRIPTORS}"
        )));
    }
    let mut asked = Asked {
        limits: SmallVec::new(),
        failed: None,
    };
    for (place, descriptor) in request.descriptors.iter().enumerate() {
        let own = descriptor.hits_addend;
        let hits = own.unwrap_or_else(|| u64::from(request.hits_addend.max(1)));
        let found = Found {
            descriptor: place,
            hits: if descriptor.is_negative_hits {
                Hits::Refunded(hits)
            } else {
                Hits::Charged(hits)
            },
        };
        match limit_of(descriptors, &request.domain, descriptor, found, engine) {
            Ok(limit) => asked.limits.extend(limit),
            Err(error) => asked.failed = asked.failed.or(Some(error)),
        }
        if rules.serve_descriptors() {
            add_rules(rules, &request.domain, descriptor, found, &mut asked.limits);
        }
    }
    drop_replaced(&mut asked.limits);
    place_charges(&mut asked.limits);
    Ok(asked)
}

/// A descriptor for which limits are found.
#[derive(Clone, Copy)]
struct Found {
    descriptor: usize,
    hits: Hits,
}

impl Found {
    fn limit<'a>(
        self,
        source: Source<'a>,
        kind: LimitKind<&'a PreparedLimit>,
        key: Key,
    ) -> AskedLimit<'a> {
        AskedLimit {
            descriptor: self.descriptor,
            shadow_mode: matches!(&source, Source::Tree(_, limit) if limit.config.shadow_mode),
            source,
            kind,
            key: bounded_owned(key),
            hits: self.hits,
            place: None,
        }
    }
}

/// Returns the limit that applies to a descriptor. If the descriptor brings a limit that cannot be
/// counted, the configured one applies.
fn limit_of<'a>(
    descriptors: &'a Descriptors,
    domain: &str,
    descriptor: &RateLimitDescriptor,
    found: Found,
    engine: &Engine,
) -> Result<Option<AskedLimit<'a>>, AskError> {
    let entries = &descriptor.entries;
    let pairs = entries
        .iter()
        .map(|entry| (entry.key.as_str(), entry.text()));
    let walk = descriptors.tree.walk(domain, pairs);
    let configured = walk.limit.and_then(|index| descriptors.limit(index));
    match &descriptor.limit {
        Some(_) if !walk.domain => return Ok(None),
        Some(own) => {
            let key = key_of(domain, entries, &[]);
            match requested(descriptors, own, configured, engine) {
                Ok((limit, kind)) => {
                    return Ok(Some(found.limit(Source::Request(limit), kind, key)));
                }
                Err(error) if configured.is_none() => return Err(error),
                Err(error) => descriptors.records.counts.refused_limit(&error),
            }
        }
        None => {}
    }
    Ok(configured.map(|(limit, of_tree)| {
        let key = key_of(domain, entries, &of_tree.path);
        let kind = limit.kind.as_deref();
        found.limit(Source::Tree(limit, of_tree), kind, key)
    }))
}

/// Returns the limit that a descriptor brings itself, and the engine's limit that counts it.
/// `configured` is the limit that applies without it: if that counts in the same unit, both have one
/// counter.
fn requested<'a>(
    descriptors: &'a Descriptors,
    own: &RateLimitOverride,
    configured: Option<(&'a DescriptorLimit, &'a TreeLimit)>,
    engine: &Engine,
) -> Result<(RateLimit, LimitKind<&'a PreparedLimit>), AskError> {
    let unit = Unit::from_number(own.unit).filter(|unit| *unit != Unit::Week);
    let unit = unit.ok_or_else(|| {
        AskError::invalid(format!(
            "limit.unit: {} is not from 1 (SECOND) to 6 (YEAR)",
            own.unit
        ))
    })?;
    let counts = |(limit, of_tree): (&'a DescriptorLimit, &TreeLimit)| {
        let is_of_one = of_tree.path.iter().all(|part| !part.share);
        limit.counter_in(unit).filter(|_| is_of_one)
    };
    let counter = match configured.and_then(counts) {
        Some(counter) => counter,
        None => descriptors.request_counter(unit, engine)?,
    };
    let limit = RateLimit {
        name: String::new(),
        requests_per_unit: own.requests_per_unit,
        unit: unit.number(),
    };
    Ok((limit, LimitKind::Counted(counter)))
}

/// Adds the limits of the server's own rules that apply to a descriptor.
fn add_rules<'a>(
    rules: &'a ActiveRules,
    domain: &str,
    descriptor: &RateLimitDescriptor,
    found: Found,
    limits: &mut SmallVec<[AskedLimit<'a>; 2]>,
) {
    let domain = ("domain".into(), domain.as_bytes().into());
    let entries = descriptor.entries.iter().map(|entry| {
        (
            format!("descriptor:{}", entry.key).into(),
            (&*entry.value).into(),
        )
    });
    let pairs = std::iter::once(domain).chain(entries);
    let request = Attributes::new(pairs, &rules.reading);
    let serves = |rule: &&ActiveRule| rule.serves_descriptors() && rule.is_checked();
    for rule in rules
        .iter()
        .filter(serves)
        .filter(|rule| rule.matches(&request))
    {
        let Some(applied) = rule.applied_to(&request) else {
            continue;
        };
        let key = rule.key(&request);
        let lacks = rule.lacks(&request, &key).is_some();
        if lacks {
            rule.outcomes.missing.increment();
        }
        let kind = match rule.missing {
            OnMissing::Skip if lacks => continue,
            OnMissing::Deny if lacks => LimitKind::Zero(Unit::Second),
            _ => LimitKind::Counted(applied.limit),
        };
        let mut limit = found.limit(Source::Rule(rule), kind, applied.stored_key(key));
        limit.shadow_mode = lacks && applied.limit.rule.action() == Action::Observe;
        limits.push(limit);
    }
}

/// Drops the limits that are replaced by the limit of another descriptor in the same request.
fn drop_replaced(limits: &mut SmallVec<[AskedLimit<'_>; 2]>) {
    let configs = limits.iter().filter_map(AskedLimit::config);
    let replaced: HashSet<&str> = configs
        .flat_map(|config| config.replaces.iter().map(String::as_str))
        .collect();
    if replaced.is_empty() {
        return;
    }
    limits.retain(|asked| {
        matches!(asked.kind, LimitKind::Unlimited)
            || asked
                .config()
                .is_none_or(|config| !replaced.contains(config.name.as_str()))
    });
}

/// Assigns each limit that the engine decides by the index of its charge. Descriptors with the same
/// limit and the same client share one charge.
fn place_charges(limits: &mut [AskedLimit<'_>]) {
    let mut count = 0;
    for index in 0..limits.len() {
        let (before, rest) = limits.split_at_mut(index);
        let Some(asked) = rest.first_mut() else { break };
        let Some(charge) = asked.deciding_charge() else {
            continue;
        };
        let same = before.iter().find(|other| {
            let other = other.deciding_charge();
            other.is_some_and(|other| other.rule == charge.rule && other.key == charge.key)
        });
        let place = same.map_or(Some(count), |other| other.place);
        asked.place = place;
        count += usize::from(place == Some(count));
    }
}

/// Returns the charges of a request, in the order of their indexes.
pub(super) fn charges<'s>(limits: &'s [AskedLimit<'_>]) -> SmallVec<[Charge<'s>; 2]> {
    let mut charges: SmallVec<[Charge<'s>; 2]> = SmallVec::new();
    for asked in limits {
        let (Some(charge), Some(place), Some(limit)) =
            (asked.deciding_charge(), asked.place, asked.counted())
        else {
            continue;
        };
        match charges.get_mut(place) {
            Some(known) => known.cost = (known.cost + charge.cost).min(limit.rule.max_cost()),
            None => charges.push(charge),
        }
    }
    charges
}
