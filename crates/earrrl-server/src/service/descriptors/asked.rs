//! Finds the limits that a request's descriptors match, and the hits on each of them.

use std::collections::HashSet;
use std::ops::Deref;
use std::sync::Arc;

use earrrl::{Action, Charge, Cost, RuleId};
use smallvec::SmallVec;

use super::counts::DescriptorCounts;
use super::prepared::{Current, DescriptorLimit, Descriptors, LimitKind};
use crate::config::envoy::file::level_name;
use crate::config::envoy::tree::TreeLimit;
use crate::config::envoy::unit::Unit;
use crate::config::rule::OnMissing;
use crate::engine::Engine;
use crate::protobuf::ratelimit::{Entry, RateLimitDescriptor, RateLimitOverride, RateLimitRequest};
use crate::service::attributes::Attributes;
use crate::service::error::AskError;
use crate::service::key::{Key, bounded_owned, join};
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
    pub(super) limit: LimitRef<'a>,
    pub(super) key: Key,
    pub(super) hits: Hits,
    /// The index of the limit's charge among the charges of the request; `None` if the limit is
    /// not charged.
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

#[derive(Debug)]
pub(super) enum LimitRef<'a> {
    /// A limit of the configured tree of descriptors, in prepared and in configured form.
    Tree(&'a DescriptorLimit, &'a TreeLimit),
    /// A limit that the request itself brings; see [`request_limit`](super::request_limit).
    Own(Box<DescriptorLimit>),
    /// The limit of a rule in the server's own configuration.
    Rule(Box<RuleLimit<'a>>),
}

/// A rule of the server's configuration that applies to a descriptor, and the limit of that rule.
#[derive(Debug)]
pub(super) struct RuleLimit<'a> {
    pub(super) rule: &'a ActiveRule,
    /// The limit that applies to the request: the rule's own or that of an override.
    pub(super) prepared: &'a PreparedLimit,
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
    /// Returns a number of hits as a cost, at most the limit's `max_cost`. A larger number is no
    /// error: it may come from a header that the client chooses, and Envoy lets a request pass on
    /// an error.
    pub(super) fn cost(&self, hits: u64) -> Cost {
        self.bounded(Cost::from_units(hits))
    }

    fn bounded(&self, cost: Cost) -> Cost {
        match &self.limit.kind {
            LimitKind::Counted(_, rule) => cost.min(rule.max_cost()),
            LimitKind::Unlimited | LimitKind::Zero(_) => cost,
        }
    }

    /// Returns the engine's id of the limit; `None` if the engine does not count under it.
    pub(super) fn counted(&self) -> Option<RuleId> {
        match &self.limit.kind {
            LimitKind::Counted(id, _) => Some(*id),
            LimitKind::Unlimited | LimitKind::Zero(_) => None,
        }
    }

    /// Returns true if the engine decides by the limit. A limit that the request brings is compared
    /// with the engine's count instead, and a refund is no request.
    fn is_judged_by_engine(&self) -> bool {
        self.counted().is_some()
            && matches!(self.hits, Hits::Charged(_))
            && !matches!(self.limit, LimitRef::Own(_))
    }

    /// Returns true if a request is denied when this limit cannot be judged. Otherwise Envoy gets
    /// an error, and Envoy's own setting decides the request.
    pub(super) fn denies_on_error(&self) -> bool {
        matches!(&self.limit, LimitRef::Rule(rule) if rule.rule.denies_on_error())
    }

    /// Returns the name of the client under a limit in Envoy's format: the domain and each level of the descriptor.
    pub(super) fn client_name(&self, request: &RateLimitRequest) -> Vec<u8> {
        let mut name = request.domain.clone().into_bytes();
        for (nth, entry) in request.descriptors[self.descriptor]
            .entries
            .iter()
            .enumerate()
        {
            let shared = match &self.limit {
                LimitRef::Tree(_, limit) => limit.path.get(nth).filter(|part| !part.is_open()),
                LimitRef::Own(_) | LimitRef::Rule(_) => None,
            };
            let value = shared.map_or(&*entry.value, |part| part.value.as_bytes());
            name.extend([b" ", entry.key.as_bytes(), b"=", value].concat());
        }
        name
    }

    /// Returns the counters of the limit for the metrics.
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
                std::iter::once(request.domain.clone())
                    .chain(entries.iter().map(level))
                    .collect()
            }
            LimitRef::Rule(_) => return None,
        };
        Some(descriptors.counts.of(&key))
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
    let mut limits = SmallVec::new();
    let mut failed = None;
    for (place, descriptor) in request.descriptors.iter().enumerate() {
        let hits = hits(descriptor, request.hits_addend);
        let mut add = |limit, key: Key| {
            let key = bounded_owned(key);
            limits.push(AskedLimit {
                descriptor: place,
                limit,
                key,
                hits,
                place: None,
            });
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
    drop_replaced(&mut limits);
    Ok(Asked { limits, failed })
}

/// Returns the hits of a descriptor: its own number if it has one, otherwise the request's number,
/// which is at least 1.
fn hits(descriptor: &RateLimitDescriptor, of_request: u32) -> Hits {
    let own = descriptor.hits_addend;
    let hits = own.unwrap_or_else(|| u64::from(of_request.max(1)));
    if descriptor.is_negative_hits {
        Hits::Refunded(hits)
    } else {
        Hits::Charged(hits)
    }
}

/// Returns the limit that a descriptor brings itself, and the key of its client. `configured` is the
/// limit that applies without it: if that counts in the same unit, both have one counter.
fn own_limit_of<'a>(
    descriptors: &'a Descriptors,
    domain: &str,
    (entries, own): (&[Entry], &RateLimitOverride),
    configured: Option<&ConfiguredLimit<'_>>,
    engine: &Engine,
) -> Result<(LimitRef<'a>, Key), AskError> {
    let unit = Unit::from_number(own.unit).filter(|unit| *unit != Unit::Week);
    let Some(unit) = unit else {
        let text = format!(
            "limit.unit: {} is not from 1 (SECOND) to 6 (YEAR)",
            own.unit
        );
        return Err(AskError::invalid(text));
    };
    let shared = configured.and_then(|configured| {
        let (id, rule) = configured.limit.counter_in(unit)?;
        let is_of_one = configured.of_tree.path.iter().all(|part| !part.share);
        is_of_one.then(|| (id, rule, configured.key.clone()))
    });
    let (id, rule, key) = if let Some(shared) = shared {
        shared
    } else {
        let (id, rule) = descriptors.request_counter(unit, engine)?;
        let entries = entries
            .iter()
            .flat_map(|entry| [entry.key.as_bytes(), &entry.value]);
        let parts: SmallVec<[&[u8]; 8]> =
            std::iter::once(domain.as_bytes()).chain(entries).collect();
        (id, rule, join(parts.into_iter()))
    };
    let limit = DescriptorLimit {
        kind: LimitKind::Counted(id, rule),
        named_below: 0,
        path: None,
        current: Current {
            name: String::new(),
            requests: own.requests_per_unit,
            unit: unit.number(),
        },
        shadow_mode: false,
        quota_mode: false,
        counts: None,
    };
    Ok((LimitRef::Own(Box::new(limit)), key))
}

/// The configured limit of a descriptor, and the key of its client.
struct ConfiguredLimit<'a> {
    limit: &'a DescriptorLimit,
    of_tree: &'a TreeLimit,
    key: Key,
}

impl<'a> ConfiguredLimit<'a> {
    /// Finds the limit in the configured tree of descriptors.
    fn find(descriptors: &'a Descriptors, domain: &str, entries: &[Entry]) -> Option<Self> {
        let pairs = entries
            .iter()
            .map(|entry| (entry.key.as_str(), entry.text()));
        let index = descriptors.tree.walk(domain, pairs).limit?;
        let limit = descriptors.limit(index)?;
        let of_tree = descriptors.tree.limits().get(index)?;
        let open = of_tree
            .path
            .iter()
            .zip(entries)
            .filter(|(part, _)| part.is_open());
        let values: SmallVec<[&[u8]; 4]> = open.map(|(_, entry)| &*entry.value).collect();
        let client = join(values.into_iter());
        let key = match limit.path {
            Some(path) => path.iter().chain(&client).copied().collect(),
            None => client,
        };
        Some(Self {
            limit,
            of_tree,
            key,
        })
    }
}

/// Returns the limit that applies to a descriptor, and the key of its client. If the descriptor brings
/// a limit that cannot be counted, the configured one applies.
fn limit_of<'a>(
    descriptors: &'a Descriptors,
    domain: &str,
    descriptor: &RateLimitDescriptor,
    engine: &Engine,
) -> Result<Option<(LimitRef<'a>, Key)>, AskError> {
    let entries = &descriptor.entries;
    let configured = ConfiguredLimit::find(descriptors, domain, entries);
    let own = descriptor
        .limit
        .as_ref()
        .filter(|_| descriptors.tree.has_domain(domain));
    if let Some(own) = own {
        let found = own_limit_of(
            descriptors,
            domain,
            (entries, own),
            configured.as_ref(),
            engine,
        );
        match found {
            Ok(found) => return Ok(Some(found)),
            Err(error) if configured.is_none() => return Err(error),
            Err(error) => descriptors.counts.refused_limit(&error),
        }
    } else if descriptor.limit.is_some() {
        return Ok(None);
    }
    Ok(configured.map(|found| (LimitRef::Tree(found.limit, found.of_tree), found.key)))
}

/// Returns the limits of the server's own rules that apply to a descriptor, with the client's key
/// under each.
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
    let entries = entries.map(|entry| {
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
        let prepared = applied.limit;
        let current = Current {
            name: rule.name.clone(),
            ..Current::of(&prepared.rule)
        };
        let key = rule.key(&request);
        let lacks = rule.lacks(&request, &key).is_some();
        if lacks {
            rule.outcomes.missing.increment();
        }
        let kind = match rule.missing {
            OnMissing::Skip if lacks => continue,
            OnMissing::Deny if lacks => LimitKind::Zero(Unit::Second),
            _ => LimitKind::Counted(prepared.id, Arc::new(prepared.rule.clone())),
        };
        let shadow_mode = lacks && prepared.rule.action() == Action::Observe;
        let named_below = prepared.named_below;
        let quota_mode = false;
        let path = None;
        let counts = None;
        let limit = DescriptorLimit {
            kind,
            named_below,
            path,
            current,
            shadow_mode,
            quota_mode,
            counts,
        };
        let limit = LimitRef::Rule(Box::new(RuleLimit {
            rule,
            prepared,
            limit,
        }));
        limits.push((limit, applied.stored_key(key)));
    }
    limits
}

/// Drops the limits that are replaced by the limit of another descriptor in the same request.
fn drop_replaced(limits: &mut SmallVec<[AskedLimit<'_>; 2]>) {
    let mut replaced: HashSet<&str> = HashSet::new();
    for asked in &*limits {
        if let LimitRef::Tree(_, limit) = &asked.limit {
            replaced.extend(limit.config.replaces.iter().map(String::as_str));
        }
    }
    if replaced.is_empty() {
        return;
    }
    let dropped: SmallVec<[bool; 4]> = limits
        .iter()
        .map(|asked| match &asked.limit {
            LimitRef::Tree(_, limit) => {
                !matches!(asked.limit.kind, LimitKind::Unlimited)
                    && replaced.contains(limit.config.name.as_str())
            }
            _ => false,
        })
        .collect();
    let mut dropped = dropped.into_iter();
    limits.retain(|_| !dropped.next().unwrap_or(false));
}

/// Assigns each limit that the engine decides by the index of its charge. Descriptors with the same
/// limit and the same client share one charge.
pub(super) fn place(limits: &mut [AskedLimit<'_>]) {
    let mut count = 0;
    for index in 0..limits.len() {
        let (before, rest) = limits.split_at_mut(index);
        let Some(asked) = rest.first_mut() else { break };
        if !asked.is_judged_by_engine() {
            continue;
        }
        let same = |other: &&AskedLimit<'_>| {
            other.place.is_some() && other.counted() == asked.counted() && other.key == asked.key
        };
        asked.place = before
            .iter()
            .find(same)
            .map_or(Some(count), |other| other.place);
        count += usize::from(asked.place == Some(count));
    }
}

/// Returns the charges of a request, in the order of their indexes.
pub(super) fn charges<'s>(limits: &'s [AskedLimit<'_>]) -> SmallVec<[Charge<'s>; 2]> {
    let mut charges: SmallVec<[Charge<'s>; 2]> = SmallVec::new();
    for asked in limits {
        let (Some(rule), Hits::Charged(hits), Some(place)) =
            (asked.counted(), asked.hits, asked.place)
        else {
            continue;
        };
        let cost = asked.cost(hits);
        match charges.get_mut(place) {
            Some(charge) => charge.cost = asked.bounded(charge.cost + cost),
            None => charges.push(Charge {
                rule,
                key: &asked.key,
                cost,
            }),
        }
    }
    charges
}
