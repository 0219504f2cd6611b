//! The limits that a request's descriptors match, and the hits on each of them.

use std::collections::HashSet;
use std::ops::Deref;
use std::sync::Arc;

use earrrl::{Charge, Cost, RuleId};
use smallvec::{SmallVec, smallvec};

use super::counts::DescriptorCounts;
use super::prepared::{Current, DescriptorLimit, Descriptors, LimitKind};
use crate::config::envoy::file::level_name;
use crate::config::envoy::tree::TreeLimit;
use crate::config::envoy::unit::Unit;
use crate::engine::Engine;
use crate::protobuf::ratelimit::{Entry, RateLimitDescriptor, RateLimitRequest};
use crate::service::attributes::Attributes;
use crate::service::error::AskError;
use crate::service::key::{Key, bounded_owned, join};
use crate::service::rules::{ActiveRule, ActiveRules};

/// Most descriptors of a request.
const MAX_DESCRIPTORS: usize = 64;

/// The hits of one descriptor of a request on one limit.
#[derive(Debug)]
pub(super) struct AskedLimit<'a> {
    /// The index of the descriptor in the request.
    pub(super) descriptor: usize,
    pub(super) limit: LimitRef<'a>,
    pub(super) key: Key,
    pub(super) hits: Hits,
    /// Its charge's place among those of the request.
    pub(super) place: Option<usize>,
}

/// The cost of a descriptor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Hits {
    /// This many hits are charged; zero is a query only.
    Charged(u64),
    /// This many hits are refunded.
    Refunded(u64),
}

#[derive(Debug)]
pub(super) enum LimitRef<'a> {
    /// One of the tree's.
    Tree(&'a DescriptorLimit, &'a TreeLimit),
    /// The request's own.
    Own(Arc<DescriptorLimit>),
    /// A rule's of the server's configuration.
    Rule(Box<RuleLimit<'a>>),
}

/// A rule of the server's configuration that serves a descriptor.
#[derive(Debug)]
pub(super) struct RuleLimit<'a> {
    pub(super) rule: &'a ActiveRule,
    limit: DescriptorLimit,
}

impl Deref for LimitRef<'_> {
    type Target = DescriptorLimit;

    fn deref(&self) -> &DescriptorLimit {
        match self {
            Self::Tree(limit, _) => limit,
            Self::Own(limit) => limit,
            Self::Rule(rule) => &rule.limit,
        }
    }
}

impl AskedLimit<'_> {
    /// Returns this many hits as a cost, at most the limit's `max_cost`: a route may take the number
    /// from a client's header, and an error would let the client pass.
    pub(super) fn cost(&self, hits: u64) -> Cost {
        self.bounded(Cost::from_units(hits))
    }

    fn bounded(&self, cost: Cost) -> Cost {
        match &self.limit.kind {
            LimitKind::Counted(_, rule) => cost.min(rule.max_cost()),
            LimitKind::Unlimited | LimitKind::Zero(_) => cost,
        }
    }

    /// Returns the engine's rule, if the engine counts.
    pub(super) fn counted(&self) -> Option<RuleId> {
        match &self.limit.kind {
            LimitKind::Counted(id, _) => Some(*id),
            LimitKind::Unlimited | LimitKind::Zero(_) => None,
        }
    }

    /// Returns true if a request that this limit cannot judge is denied. Otherwise it gets an error, and the
    /// proxy's own setting decides.
    pub(super) fn denies_on_error(&self) -> bool {
        matches!(&self.limit, LimitRef::Rule(rule) if rule.rule.denies_on_error())
    }

    /// Returns the counters for metrics.
    pub(super) fn counts(
        &self,
        descriptors: &Descriptors,
        request: &RateLimitRequest,
    ) -> Option<Arc<DescriptorCounts>> {
        if let Some(counts) = &self.limit.counts {
            return Some(Arc::clone(counts));
        }
        let entries = &request.descriptors[self.descriptor].entries;
        let key = match &self.limit {
            LimitRef::Tree(_, limit) => limit.metric_key_of(entries.iter().map(Entry::text)),
            LimitRef::Own(_) => {
                let level = |entry: &Entry| level_name(&entry.key, &entry.text());
                std::iter::once(request.domain.clone()).chain(entries.iter().map(level)).collect()
            }
            LimitRef::Rule(_) => return None,
        };
        Some(descriptors.counts.of(&key))
    }
}

/// The limits that a request's descriptors meet.
#[derive(Debug)]
pub(super) struct Asked<'a> {
    pub(super) limits: SmallVec<[AskedLimit<'a>; 2]>,
    /// The first error of a descriptor. It keeps no other descriptor from being judged.
    pub(super) failed: Option<AskError>,
}

/// Finds the limits that a request's descriptors meet.
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
        return Err(AskError::invalid("rate limit descriptor list must not be empty"));
    }
    if request.descriptors.len() > MAX_DESCRIPTORS {
        let count = request.descriptors.len();
        return Err(AskError::invalid(format!("{count} descriptors; at most {MAX_DESCRIPTORS}")));
    }
    let (mut shares, mut failed) = (SmallVec::new(), None);
    for (place, descriptor) in request.descriptors.iter().enumerate() {
        let hits = hits(descriptor, request.hits_addend);
        let mut add = |limit, key: Key| {
            let key = bounded_owned(key);
            shares.push(AskedLimit { descriptor: place, limit, key, hits, place: None });
        };
        match limit_of(descriptors, &request.domain, descriptor, engine) {
            Ok(Some((limit, key))) => add(limit, key),
            Ok(None) => {}
            Err(error) => failed = failed.or(Some(error)),
        }
        for (limit, key) in rules_of(rules, &request.domain, descriptor) {
            add(limit, key);
        }
    }
    drop_replaced(&mut shares);
    Ok(Asked { limits: shares, failed })
}

/// A descriptor's own hits count before the request's, which are 1 at least.
fn hits(descriptor: &RateLimitDescriptor, of_request: u32) -> Hits {
    let own = descriptor.hits_addend;
    let hits = own.unwrap_or_else(|| u64::from(of_request.max(1)));
    if descriptor.is_negative_hits { Hits::Refunded(hits) } else { Hits::Charged(hits) }
}

fn limit_of<'a>(
    descriptors: &'a Descriptors,
    domain: &str,
    descriptor: &RateLimitDescriptor,
    engine: &Engine,
) -> Result<Option<(LimitRef<'a>, Key)>, AskError> {
    let entries = &descriptor.entries;
    if let Some(own) = &descriptor.limit {
        if !descriptors.tree.has_domain(domain) {
            return Ok(None);
        }
        let unit = Unit::from_number(own.unit).filter(|unit| *unit != Unit::Week);
        let Some(unit) = unit else {
            let text = format!("limit.unit: {} is not from 1 (SECOND) to 6 (YEAR)", own.unit);
            return Err(AskError::invalid(text));
        };
        let limit = descriptors.overriding(own.requests_per_unit, unit, engine)?;
        // In memory, another limit may have had this one's table before.
        let own = format!("{} {}", own.requests_per_unit, unit.name());
        let mut parts: SmallVec<[&[u8]; 8]> = smallvec![domain.as_bytes()];
        parts.extend(entries.iter().flat_map(|entry| [entry.key.as_bytes(), &entry.value]));
        if !engine.waits() {
            parts.push(own.as_bytes());
        }
        return Ok(Some((LimitRef::Own(limit), join(parts.into_iter()))));
    }
    let pairs = entries.iter().map(|entry| (entry.key.as_str(), entry.text()));
    let Some(index) = descriptors.tree.walk(domain, pairs).limit else { return Ok(None) };
    let known = descriptors.limit(index).zip(descriptors.tree.limits().get(index));
    Ok(known.map(|(limit, of_tree)| {
        let open = of_tree.path.iter().zip(entries).filter(|(part, _)| part.is_open());
        let values: SmallVec<[&[u8]; 4]> = open.map(|(_, entry)| &*entry.value).collect();
        (LimitRef::Tree(limit, of_tree), join(values.into_iter()))
    }))
}

/// Returns the server's own rules that declare which descriptors they are for.
fn rules_of<'a>(
    rules: &'a ActiveRules,
    domain: &str,
    descriptor: &RateLimitDescriptor,
) -> SmallVec<[(LimitRef<'a>, Key); 1]> {
    let mut limits = SmallVec::new();
    if !rules.serve_descriptors() {
        return limits;
    }
    let domain = ("domain".into(), domain.as_bytes().into());
    let entries = descriptor.entries.iter();
    let entries =
        entries.map(|entry| (format!("descriptor:{}", entry.key).into(), (&*entry.value).into()));
    let pairs = std::iter::once(domain).chain(entries);
    let request = Attributes::new(pairs, &rules.reading);
    for rule in rules.iter().filter(|rule| rule.serves_descriptors() && rule.matches(&request)) {
        let Some(prepared) = rule.limit_for(&request) else { continue };
        let current = Current { name: rule.name.clone(), ..Current::of(&prepared.rule) };
        let kind = LimitKind::Counted(prepared.id, Arc::new(prepared.rule.clone()));
        let (shadow_mode, quota_mode) = (false, false);
        let limit = DescriptorLimit { kind, current, shadow_mode, quota_mode, counts: None };
        let limit = LimitRef::Rule(Box::new(RuleLimit { rule, limit }));
        limits.push((limit, rule.key(&request)));
    }
    limits
}

/// Limits that another descriptor of the same request names are left out.
fn drop_replaced(shares: &mut SmallVec<[AskedLimit<'_>; 2]>) {
    let mut replaced: HashSet<&str> = HashSet::new();
    for share in &*shares {
        if let LimitRef::Tree(_, limit) = &share.limit {
            replaced.extend(limit.config.replaces.iter().map(String::as_str));
        }
    }
    if replaced.is_empty() {
        return;
    }
    let dropped: SmallVec<[bool; 4]> = shares
        .iter()
        .map(|share| match &share.limit {
            LimitRef::Tree(_, limit) => {
                !matches!(share.limit.kind, LimitKind::Unlimited)
                    && replaced.contains(limit.config.name.as_str())
            }
            _ => false,
        })
        .collect();
    let mut dropped = dropped.into_iter();
    shares.retain(|_| !dropped.next().unwrap_or(false));
}

/// Gives every share that the engine counts its place among the charges: those of one limit and
/// client are one charge.
pub(super) fn place(shares: &mut [AskedLimit<'_>]) {
    let mut count = 0;
    for index in 0..shares.len() {
        let (before, rest) = shares.split_at_mut(index);
        let Some(share) = rest.first_mut() else { break };
        if share.counted().is_none() || matches!(share.hits, Hits::Refunded(_)) {
            continue;
        }
        let same = |other: &&AskedLimit<'_>| {
            other.place.is_some() && other.counted() == share.counted() && other.key == share.key
        };
        share.place = before.iter().find(same).map_or(Some(count), |other| other.place);
        count += usize::from(share.place == Some(count));
    }
}

/// Returns the charges of a request, in the order of their places.
pub(super) fn charges<'s>(shares: &'s [AskedLimit<'_>]) -> SmallVec<[Charge<'s>; 2]> {
    let mut charges: SmallVec<[Charge<'s>; 2]> = SmallVec::new();
    for share in shares {
        let (Some(rule), Hits::Charged(hits), Some(place)) =
            (share.counted(), share.hits, share.place)
        else {
            continue;
        };
        let cost = share.cost(hits);
        match charges.get_mut(place) {
            Some(charge) => charge.cost = share.bounded(charge.cost + cost),
            None => charges.push(Charge { rule, key: &share.key, cost }),
        }
    }
    charges
}
