//! The limits that a request's descriptors meet, and the charges under them.
//!
//! A descriptor meets at most one limit of the files in Envoy's format, or the one that it brings
//! itself, and any number of the server's own rules. All of them are ordinary limits of the engine,
//! under ordinary keys. Limits in Envoy's format belong to one rule, [`ENVOY`](crate::service::names::ENVOY).

use std::borrow::Cow;
use std::collections::HashSet;
use std::time::Duration;

use earrrl::{Cost, Mode};
use earrrl_tower::headers::is_shown;
use smallvec::SmallVec;

use crate::config::envoy::file::{Amount, LimitConfig};
use crate::config::envoy::tree::PathPart;
use crate::protobuf::ratelimit::Unit;
use crate::protobuf::ratelimit::{
    RateLimit, RateLimitDescriptor, RateLimitOverride, RateLimitRequest,
};
use crate::service::Service;
use crate::service::ask::Ask;
use crate::service::attributes::Attributes;
use crate::service::descriptor_limits::{DescriptorLimit, Descriptors, key_of, reported};
use crate::service::error::AskError;
use crate::service::key::{Key, bounded_owned};
use crate::service::limit::PreparedLimit;
use crate::service::matching::Application;
use crate::service::rule::ActiveRule;
use crate::service::rules::ActiveRules;

/// The greatest number of descriptors in one request.
const MAX_DESCRIPTORS: usize = 64;

/// The limits that the descriptors of a request meet.
#[derive(Debug, Default)]
pub(super) struct Asked<'a> {
    pub(super) limits: SmallVec<[AskedLimit<'a>; 2]>,
    /// The first error that a descriptor caused. The other descriptors are judged all the same.
    pub(super) failed: Option<AskError>,
}

/// One limit that a descriptor of a request meets, and the hits on that limit.
#[derive(Debug)]
pub(super) struct AskedLimit<'a> {
    /// The index of the descriptor in the request.
    pub(super) descriptor: usize,
    pub(super) source: Source<'a>,
    /// The client's key, the hits as the cost, and the limit by which the engine counts. More hits than the limit's
    /// `max_cost` are no error: the number may come from a header that the client chooses, and Envoy lets a request
    /// pass on an error.
    pub(super) ask: Ask<'a>,
    /// The number of hits; zero only queries the limit.
    pub(super) hits: u64,
    /// True if the hits are refunded, not charged.
    pub(super) is_refund: bool,
}

/// The place where a limit comes from.
#[derive(Debug)]
pub(super) enum Source<'a> {
    /// The configured tree of descriptors.
    Tree(&'a DescriptorLimit),
    /// The request itself; see [`super`].
    Request(RateLimit),
    /// A rule of the server's own configuration. If it counts nothing, it denies the request, which lacks an
    /// attribute of the rule's key.
    Rule(&'a ActiveRule),
}

impl<'a> AskedLimit<'a> {
    /// Returns true if the engine's decision on the whole request includes this limit. A limit that the request
    /// brings is compared with the engine's count instead, and a refund is no request.
    pub(super) fn is_decided_together(&self) -> bool {
        !self.is_refund && !matches!(self.source, Source::Request(_))
    }

    /// Returns the configuration of a limit in Envoy's format.
    pub(super) fn config(&self) -> Option<&'a LimitConfig> {
        match self.source {
            Source::Tree(limit) => Some(&limit.of_tree.config),
            Source::Request(_) | Source::Rule(_) => None,
        }
    }

    /// Returns true if a request is denied only when all of its limits like this one are exceeded.
    pub(super) fn quota_mode(&self) -> bool {
        self.config().is_some_and(|config| config.quota_mode)
    }

    /// Returns true if requests over the limit are counted but never denied.
    pub(super) fn shadow_mode(&self) -> bool {
        self.config().is_some_and(|config| config.shadow_mode)
    }

    /// Returns the unit of a limit that allows nothing, at the end of which its clients may ask again.
    pub(super) fn zero(&self) -> Option<Unit> {
        match (self.ask.limit, self.config().map(|config| config.amount)) {
            (None, Some(Amount::PerUnit(_, unit))) => Some(unit),
            (None, None) => Some(Unit::Second),
            _ => None,
        }
    }

    /// Returns true unless the limit allows everything.
    pub(super) fn is_limited(&self) -> bool {
        self.ask.limit.is_some() || self.zero().is_some()
    }

    /// Returns true if the limit allows nothing, and denies this request whatever else it meets.
    pub(super) fn is_forbidden(&self) -> bool {
        let counts = self.is_refund || self.hits > 0;
        self.zero().is_some() && counts && !self.shadow_mode() && !self.quota_mode()
    }

    /// Returns true if clients may learn of the limit: it can deny their requests. A dry run must not
    /// change responses, and a client must not learn that it is shadow-banned.
    pub(super) fn is_shown(&self) -> bool {
        let denies = match (&self.source, self.ask.limit) {
            (Source::Request(_), _) | (_, None) => true,
            (_, Some(limit)) => self.quota_mode() || is_shown(limit.rule.action()),
        };
        denies && !self.shadow_mode()
    }

    /// Returns the limit in the form in which responses report it.
    pub(super) fn reported(&self) -> Cow<'_, RateLimit> {
        match &self.source {
            Source::Tree(limit) => Cow::Borrowed(&limit.reported),
            Source::Request(limit) => Cow::Borrowed(limit),
            Source::Rule(rule) => {
                let limit = self.ask.limit.unwrap_or(&rule.own);
                Cow::Owned(reported(&limit.rule, &rule.name))
            }
        }
    }
}

/// # Finding the limits
impl Service {
    /// Finds the limits that a request's descriptors meet.
    ///
    /// # Errors
    /// Returns an [`AskError`] if the request has no domain, or no or too many descriptors.
    pub(super) fn asked<'a>(
        &self,
        descriptors: &'a Descriptors,
        rules: &'a ActiveRules,
        request: &RateLimitRequest,
        mode: Mode,
    ) -> Result<Asked<'a>, AskError> {
        if request.domain.is_empty() {
            return Err(AskError::invalid("rate limit domain must not be empty"));
        }
        let why = match request.descriptors.len() {
            0 => "rate limit descriptor list must not be empty".to_owned(),
            1..=MAX_DESCRIPTORS => String::new(),
            count => format!("{count} descriptors; at most {MAX_DESCRIPTORS}"),
        };
        if !why.is_empty() {
            return Err(AskError::Invalid(why));
        }
        let mut asked = Asked::default();
        for (place, descriptor) in request.descriptors.iter().enumerate() {
            let hits = descriptor.hits_addend;
            let hits = hits.unwrap_or_else(|| u64::from(request.hits_addend.max(1)));
            let found = |(source, mut ask): (Source<'a>, Ask<'a>)| {
                let most = ask.limit.map(|limit| limit.rule.max_cost());
                ask.cost = Cost::from_units(hits).min(most.unwrap_or_default());
                AskedLimit {
                    descriptor: place,
                    source,
                    ask,
                    hits,
                    is_refund: descriptor.is_negative_hits,
                }
            };
            match self.limit_of(descriptors, &request.domain, descriptor) {
                Ok(limit) => asked.limits.extend(limit.map(found)),
                Err(error) => asked.failed = asked.failed.or(Some(error)),
            }
            if !rules.serve_descriptors() {
                continue;
            }
            let attributes = attributes(rules, &request.domain, descriptor);
            let serve = |rule: &&ActiveRule| rule.config.serves_descriptors() && rule.is_checked();
            for rule in rules.iter().filter(serve) {
                if !rule.matches(&attributes) {
                    continue;
                }
                let ask = match self.application(rule, &attributes, mode) {
                    Application::Charge(ask) => ask,
                    Application::Denial(_) => Ask::under(rule, None, Key::new(), Cost::ZERO),
                    Application::None => continue,
                };
                asked.limits.push(found((Source::Rule(rule), ask)));
            }
        }
        drop_replaced(&mut asked.limits);
        Ok(asked)
    }

    /// Returns the limit in Envoy's format that applies to a descriptor, and its client's key. If the
    /// descriptor brings a limit that cannot be counted, the configured one applies.
    fn limit_of<'a>(
        &self,
        descriptors: &'a Descriptors,
        domain: &str,
        descriptor: &RateLimitDescriptor,
    ) -> Result<Option<(Source<'a>, Ask<'a>)>, AskError> {
        let entries = &descriptor.entries;
        let pairs = entries
            .iter()
            .map(|entry| (entry.key.as_str(), entry.text()));
        let walk = descriptors.tree.walk(domain, pairs);
        let configured = walk.limit.and_then(|index| descriptors.limits.get(index));
        let ask = |limit: Option<&'a PreparedLimit>, path: &[PathPart]| {
            let key = bounded_owned(key_of(domain, entries, path));
            Ask::under(&descriptors.rule, limit, key, Cost::ONE)
        };
        if let Some(own) = descriptor.limit.as_ref().filter(|_| walk.domain) {
            match self.requested(descriptors, own, configured) {
                Ok((limit, counter)) => {
                    return Ok(Some((Source::Request(limit), ask(Some(counter), &[]))));
                }
                Err(error) if configured.is_none() => return Err(error),
                Err(error) => descriptors.records.counts.refused_limit(&error),
            }
        }
        Ok(configured.map(|limit| {
            let ask = ask(limit.counted.as_deref(), &limit.of_tree.path);
            (Source::Tree(limit), ask)
        }))
    }

    /// Returns the limit that a descriptor brings itself, and the engine's limit that counts it.
    /// `configured` is the limit that applies without it: if that counts in the same unit, both have one
    /// counter.
    fn requested<'a>(
        &self,
        descriptors: &'a Descriptors,
        own: &RateLimitOverride,
        configured: Option<&'a DescriptorLimit>,
    ) -> Result<(RateLimit, &'a PreparedLimit), AskError> {
        let unit = Unit::from_number(own.unit).filter(|unit| *unit != Unit::Week);
        let unit = unit.ok_or_else(|| {
            AskError::invalid(format!(
                "limit.unit: {} is not from 1 (SECOND) to 6 (YEAR)",
                own.unit
            ))
        })?;
        let counter = match configured.and_then(|limit| limit.counter_in(unit)) {
            Some(counter) => counter,
            None => {
                let counters = &descriptors.records.request_counters;
                let algorithm = descriptors.config.algorithm;
                counters.get(algorithm, unit, descriptors.capacity, &self.engine)?
            }
        };
        let limit = RateLimit {
            name: String::new(),
            requests_per_unit: own.requests_per_unit,
            unit: unit.number(),
        };
        Ok((limit, counter))
    }
}

/// Returns the attributes that rules of the server find in a descriptor.
fn attributes<'r>(
    rules: &'r ActiveRules,
    domain: &'r str,
    descriptor: &'r RateLimitDescriptor,
) -> Attributes<'r> {
    let domain = ("domain".into(), domain.as_bytes().into());
    let entries = descriptor.entries.iter().map(|entry| {
        (
            format!("descriptor:{}", entry.key).into(),
            (&*entry.value).into(),
        )
    });
    Attributes::new(std::iter::once(domain).chain(entries), &rules.reading)
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
        let is_kept = |config: &LimitConfig| {
            config.amount == Amount::Unlimited || !replaced.contains(config.name.as_str())
        };
        asked.config().is_none_or(is_kept)
    });
}

/// Returns a duration in whole seconds, rounded up.
pub(super) fn whole_seconds(duration: Duration) -> u64 {
    duration
        .as_secs()
        .saturating_add(u64::from(duration.subsec_nanos() > 0))
}
