//! The limits of a configuration's descriptors: as planned, and as prepared in the engine.
//!
//! A limit without wildcards has one client, and all such limits share a store. A limit with wildcards has
//! a table of its own for a part of the capacity; where there are too many for that, they share another
//! store. Over Redis and in state files, each limit has a store of its own.

use std::collections::HashMap;
use std::sync::{Arc, OnceLock};

use earrrl::{Action, EngineError, Limit, Quota, Rule, RuleError, RuleId};
use earrrl_redis::Consistency;
use siphasher::sip128::{Hasher128 as _, SipHasher13};

use super::descriptor_counts::{CountsOf, DescriptorCounts};
use super::key::Key;
use super::limit::PreparedLimit;
use super::names::{Directory, ENVOY};
use super::rule::NamedRule;
use crate::config::envoy::file::Amount;
use crate::config::envoy::tree::{PathPart, Tree, TreeLimit};
use crate::config::envoy::{EnvoyAlgorithm, EnvoyConfig};
use crate::config::{Config, RuleConfig};
use crate::engine::{Engine, PlannedLimit};
use crate::metrics::Outcomes;
use crate::protobuf::ratelimit::Unit;
use crate::protobuf::ratelimit::{Entry, RateLimit};

/// The smallest number of clients that a limit with wildcard values is sized for, if its table
/// grows as clients arrive.
const LEAST_CAPACITY: usize = 1000;
/// The smallest number of clients that a limit with wildcard values is sized for, if its table is
/// allocated at once: the capacity of the smallest table.
const LEAST_TABLE: usize = 24;

/// The name of the store that the limits without wildcards share. No rule can have this name.
const CLOSED: &str = "envoy descriptors";
/// The name of the store that the limits with wildcards share if there are many of them. It is
/// another one, so that requests with ever new values cannot evict the clients of other limits.
const OPEN: &str = "envoy descriptors with wildcards";

/// The descriptors of a configuration, before their limits are prepared in the engine.
pub struct DescriptorsPlan {
    tree: Arc<Tree>,
    config: EnvoyConfig,
    /// The limits to prepare in the engine.
    pub(super) limits: Vec<PlannedLimit>,
    /// Each limit of the tree, with its index among those to prepare; `None` if it counts nothing.
    counted: Vec<(Arc<TreeLimit>, Option<usize>)>,
    /// The number of clients that each store for limits of requests is sized for.
    capacity: usize,
}

/// Collects the limits of a plan.
#[derive(Default)]
struct Limits {
    planned: Vec<PlannedLimit>,
    /// The indices of the limits in shared stores, by their stores, actions and texts.
    shared: HashMap<String, usize>,
}

impl Limits {
    /// Adds a limit with a store of its own, which is named by its path; or, if it shares a `store`, unless
    /// another descriptor there has the same limit.
    fn add(
        &mut self,
        limit: &TreeLimit,
        rule: Rule,
        store: Option<&str>,
        capacity: usize,
    ) -> usize {
        let next = self.planned.len();
        let name = match store {
            None => engine_name(limit),
            Some(store) => {
                let text = format!("{store} {:?} {rule}", rule.action());
                let hash = SipHasher13::new().hash(text.as_bytes()).as_u128();
                let place = *self.shared.entry(text).or_insert(next);
                if place != next {
                    return place;
                }
                format!("envoy-limit-{hash:032x}")
            }
        };
        self.planned.push(PlannedLimit {
            name: name.into(),
            rule: Arc::new(rule),
            capacity,
            consistency: Consistency::Exact,
            store: store.map(Arc::from),
        });
        next
    }
}

impl DescriptorsPlan {
    /// Plans the limits of a configuration's descriptors; returns `None` if it has no descriptors. `before` are
    /// the descriptors in force.
    ///
    /// # Errors
    /// Returns the errors of [`DescriptorsPlan::new`].
    pub fn of_config(
        config: &Config,
        before: Option<&Descriptors>,
    ) -> Result<Option<Self>, RuleError> {
        // Rules of the server's own configuration may apply to descriptors, even if there is no file in
        // Envoy's format, which would make a tree.
        let rules = || config.rules.iter().any(RuleConfig::serves_descriptors);
        let tree = match &config.envoy.tree {
            Some(tree) => Arc::clone(tree),
            None if rules() => Arc::default(),
            None => return Ok(None),
        };
        let shares = config.engine.shares_stores();
        Self::new(&config.envoy, tree, config.capacity, shares, before).map(Some)
    }

    /// Plans the limits of a tree of descriptors. If `shares` is true, limits may share stores: those
    /// without wildcards, which have one client each, and those with wildcards if they are too many
    /// for a part of the capacity each. A limit that is in force keeps its store, and so its clients.
    ///
    /// # Errors
    /// Returns a [`RuleError`] if the tree has an invalid limit.
    pub fn new(
        config: &EnvoyConfig,
        tree: Arc<Tree>,
        capacity: usize,
        shares: bool,
        before: Option<&Descriptors>,
    ) -> Result<Self, RuleError> {
        let open = tree.limits().iter().filter(|limit| is_open(limit)).count();
        let closed = tree.limits().len() - open;
        let part = capacity / open.max(1);
        let is_crowded = shares && part < LEAST_CAPACITY.min(capacity);
        let shared = before
            .map(Descriptors::in_shared_stores)
            .unwrap_or_default();
        let own = |rule: &Rule| {
            let least = if rule.limit().fits_words() {
                LEAST_TABLE
            } else {
                LEAST_CAPACITY
            };
            part.max(least.min(capacity))
        };
        let mut limits = Limits::default();
        let counted = tree.limits().iter().map(|limit| {
            let Some(rule) = rule_of(limit, config.algorithm)? else {
                return Ok((Arc::clone(limit), None));
            };
            let known = shared.get(&engine_name(limit)).copied();
            let is_crowded = known.unwrap_or(is_crowded);
            let (store, capacity) = match is_open(limit) {
                true if is_crowded => (Some(OPEN), capacity),
                true => (None, own(&rule)),
                false if shares => (Some(CLOSED), closed),
                false => (None, 1),
            };
            let place = limits.add(limit, rule, store, capacity);
            Ok((Arc::clone(limit), Some(place)))
        });
        let counted = counted.collect::<Result<_, RuleError>>()?;
        Ok(Self {
            tree,
            config: config.clone(),
            limits: limits.planned,
            counted,
            capacity,
        })
    }

    /// Returns the descriptors with their prepared limits. `ids` holds the engine's ids for
    /// the planned limits, in the same order. A limit at the same path in the tree as
    /// before keeps its clients' state.
    pub fn finish(
        self,
        ids: &mut impl Iterator<Item = RuleId>,
        outcomes: &Outcomes,
        records: &Arc<DescriptorRecords>,
    ) -> Descriptors {
        let directory = &records.directory;
        let prepare = |(spec, id): (&PlannedLimit, RuleId)| {
            let named_below = directory.remaining_below(spec.rule.limit());
            let limit = PreparedLimit::new(id, &spec.rule, named_below);
            (Arc::new(limit), spec.store.is_some())
        };
        let prepared: Vec<_> = self.limits.iter().zip(ids).map(prepare).collect();
        let counts = self.config.metrics.then_some(&records.counts);
        let limits = self.counted.into_iter().map(|(limit, place)| {
            let counted = place.and_then(|place| prepared.get(place).cloned());
            DescriptorLimit::new(limit, counted, counts)
        });
        Descriptors {
            limits: limits.collect(),
            tree: Arc::clone(&self.tree),
            config: self.config,
            records: Arc::clone(records),
            rule: NamedRule {
                name: ENVOY.to_owned(),
                group: None,
                on_error: None,
                unit: None,
                outcomes: outcomes.of_rule(ENVOY),
                directory: directory.clone(),
            },
            capacity: self.capacity,
        }
    }
}

/// Returns the rule that enforces a limit; `None` if the limit counts nothing.
fn rule_of(limit: &TreeLimit, algorithm: EnvoyAlgorithm) -> Result<Option<Rule>, RuleError> {
    let Some(rule) = limit.config.rule(algorithm)? else {
        return Ok(None);
    };
    // Shadow and quota mode depend on all descriptors of a request, so the engine must not deny by
    // itself.
    let counts_only = limit.config.shadow_mode || limit.config.quota_mode;
    if counts_only {
        rule.with_action(Action::Observe).map(Some)
    } else {
        Ok(Some(rule))
    }
}

/// The descriptors of a configuration, with their limits prepared in the engine.
#[derive(Debug)]
pub struct Descriptors {
    /// The tree of limits that the descriptors of requests are matched against.
    pub tree: Arc<Tree>,
    /// The settings for responses to Envoy.
    pub config: EnvoyConfig,
    /// The records that stay across reloads.
    pub records: Arc<DescriptorRecords>,
    /// The rule that all limits in Envoy's format belong to.
    pub(super) rule: NamedRule,
    pub(super) limits: Vec<DescriptorLimit>,
    /// The number of clients that each store for limits of requests is sized for.
    pub(super) capacity: usize,
}

/// The records of descriptors that stay across reloads.
#[derive(Debug)]
pub struct DescriptorRecords {
    /// The metrics' counters of requests by descriptor.
    pub counts: CountsOf,
    /// The names of clients that are limited or close to it.
    pub directory: Directory,
    pub(super) request_counters: RequestCounters,
}

impl DescriptorRecords {
    /// Returns empty records with a directory of names.
    pub fn new(directory: Directory) -> Self {
        Self {
            counts: CountsOf::default(),
            directory,
            request_counters: RequestCounters::default(),
        }
    }
}

/// The quota of the limits for descriptors without a configured one. It decides nothing: up to it,
/// the counts of each unit fit into the entries of a table.
const QUOTA: u32 = 1_000_000;
/// The number of units, and one more: their numbers in protobuf messages begin at 1.
const UNITS: usize = 8;

/// The limits for descriptors without a configured one, by their algorithms and units, as far as they were needed.
#[derive(Debug, Default)]
pub(super) struct RequestCounters([[OnceLock<PreparedLimit>; UNITS]; EnvoyAlgorithm::ALL.len()]);

impl RequestCounters {
    /// Returns the limit that counts in this unit, and prepares it for `capacity` clients on first
    /// use.
    ///
    /// # Errors
    /// Returns an [`EngineError`] if there is not enough memory.
    pub(super) fn get(
        &self,
        algorithm: EnvoyAlgorithm,
        unit: Unit,
        capacity: usize,
        engine: &Engine,
    ) -> Result<&PreparedLimit, EngineError> {
        let algorithm = algorithm.that_counts();
        let limits = &self.0[algorithm as usize];
        let limit = &limits[unit.number() as usize % UNITS];
        if let Some(known) = limit.get() {
            return Ok(known);
        }
        let rule = algorithm.rule(QUOTA, unit)?;
        let rule = rule.ok_or_else(|| EngineError::Unavailable("no quota".to_owned()))?;
        // Servers over one Redis have the same names, and so share the counts.
        let name = format!("envoy-request-{}-{}", algorithm.name(), unit.name());
        let id = engine.prepare(&name, &rule, capacity)?;
        Ok(limit.get_or_init(|| PreparedLimit::new(id, &rule, 0)))
    }

    /// Returns the ids of the limits.
    fn ids(&self) -> Vec<RuleId> {
        let all = self.0.iter().flatten();
        all.filter_map(|limit| Some(limit.get()?.id)).collect()
    }
}

/// A limit of the tree, prepared in the engine.
#[derive(Debug)]
pub struct DescriptorLimit {
    /// The limit as configured.
    pub(super) of_tree: Arc<TreeLimit>,
    /// The engine's limit, which descriptors with equal limits can have in common; `None` if the limit allows
    /// everything or nothing.
    pub(super) counted: Option<Arc<PreparedLimit>>,
    /// True if the limit shares its store with others.
    is_in_shared_store: bool,
    /// The limit in the form in which responses report it.
    pub(super) reported: RateLimit,
    /// The counters of the limit's results; `None` if metrics are off, or if the counters' names
    /// would contain values that requests choose.
    pub(super) counts: Option<Arc<DescriptorCounts>>,
}

impl Descriptors {
    /// Returns, by the name that each limit has in the engine with a store of its own, true if it
    /// shares a store.
    fn in_shared_stores(&self) -> HashMap<String, bool> {
        let each = self.limits.iter();
        each.map(|limit| (engine_name(&limit.of_tree), limit.is_in_shared_store))
            .collect()
    }

    /// Returns how many clients the limits with wildcards and those of requests have, and how many clients they
    /// have displaced that were not idle; `None` if no such limit is in memory. The other limits have one client
    /// each, which is never displaced.
    pub fn usage(&self, engine: &Engine) -> Option<(usize, u64)> {
        let mut ids = self.records.request_counters.ids();
        let mut is_counted = false;
        for limit in self.limits.iter().filter(|limit| is_open(&limit.of_tree)) {
            // All limits in the shared store report the same clients.
            if let Some(prepared) = &limit.counted
                && !(limit.is_in_shared_store && std::mem::replace(&mut is_counted, true))
            {
                ids.push(prepared.id);
            }
        }
        let memory = engine.memory()?;
        let usages = ids.into_iter().filter_map(|id| memory.usage(id));
        usages.reduce(|all, each| (all.0 + each.0, all.1 + each.1))
    }
}

impl DescriptorLimit {
    pub(super) fn new(
        of_tree: Arc<TreeLimit>,
        counted: Option<(Arc<PreparedLimit>, bool)>,
        counts: Option<&CountsOf>,
    ) -> Self {
        let config = &of_tree.config;
        let is_in_shared_store = counted.as_ref().is_some_and(|(_, is_shared)| *is_shared);
        let counted = counted.map(|(prepared, _)| prepared);
        let reported = match (config.amount, &counted) {
            (Amount::PerUnit(requests, unit), _) => RateLimit {
                name: config.name.clone(),
                requests_per_unit: requests,
                unit: unit.number(),
            },
            (Amount::Own, Some(limit)) => reported(&limit.rule, &config.name),
            _ => RateLimit::default(),
        };
        Self {
            counted,
            is_in_shared_store,
            reported,
            counts: counts
                .filter(|_| !of_tree.is_named_by_requests())
                .map(|counts| counts.of(&of_tree.metric_key())),
            of_tree,
        }
    }

    /// Returns the engine's limit if it counts the requests of each `unit` of one client, so that another number can
    /// be compared with the count.
    pub(super) fn counter_in(&self, unit: Unit) -> Option<&PreparedLimit> {
        if self.of_tree.path.iter().any(|part| part.share) {
            return None;
        }
        let prepared = self.counted.as_deref()?;
        let window = match prepared.rule.limit() {
            Limit::FixedWindow(window) => window.window(),
            Limit::SlidingWindow(window) => window.window(),
            _ => return None,
        };
        (Unit::from_secs(window.as_secs()) == Some(unit)).then_some(prepared)
    }
}

/// Returns a rule's limit as a number of requests per unit of time. If the window of the rule
/// is not one of Envoy's units, the smallest unit in which the rule allows at least one
/// request is reported.
pub(super) fn reported(rule: &Rule, name: &str) -> RateLimit {
    let quota = Quota::of(rule.limit());
    let window = quota.window.unwrap_or(1);
    let units = [
        Unit::Second,
        Unit::Minute,
        Unit::Hour,
        Unit::Day,
        Unit::Month,
        Unit::Year,
    ];
    let exact = Unit::from_secs(window).map(|unit| (quota.units, unit));
    let holds_one = units.into_iter().map(|unit| {
        let requests = u128::from(quota.units) * u128::from(unit.duration().as_secs());
        ((requests / u128::from(window)) as u64, unit)
    });
    let (requests, unit) = exact
        .or_else(|| holds_one.into_iter().find(|(requests, _)| *requests > 0))
        .unwrap_or((quota.units, Unit::Year));
    RateLimit {
        name: name.to_owned(),
        requests_per_unit: u32::try_from(requests).unwrap_or(u32::MAX),
        unit: unit.number(),
    }
}

/// Returns the key of a descriptor's client, which is also its name: the domain and each level, as in
/// `shop user=alice`. A backslash stands before characters that would make two descriptors one. Where
/// all values of a level share a counter, the level has the pattern of `path` instead of the value.
pub(super) fn key_of(domain: &str, entries: &[Entry], path: &[PathPart]) -> Key {
    let mut name = Key::new();
    let mut add = |prefix: Option<u8>, text: &[u8]| {
        name.extend(prefix);
        let is_escaped = |byte: &u8| matches!(byte, b' ' | b'=' | b'\\');
        let pieces = text.split_inclusive(is_escaped);
        for piece in pieces {
            match piece.split_last() {
                Some((last, before)) if is_escaped(last) => {
                    name.extend_from_slice(before);
                    name.extend_from_slice(&[b'\\', *last]);
                }
                _ => name.extend_from_slice(piece),
            }
        }
    };
    add(None, domain.as_bytes());
    for (place, entry) in entries.iter().enumerate() {
        let shared = path.get(place).filter(|part| part.share);
        add(Some(b' '), entry.key.as_bytes());
        add(
            Some(b'='),
            shared.map_or(&*entry.value, |part| part.value.as_bytes()),
        );
    }
    name
}

/// Returns true if the limit has wildcards, so that values in requests identify its clients.
pub(super) fn is_open(limit: &TreeLimit) -> bool {
    limit.path.iter().any(PathPart::is_open)
}

/// Returns the name in the engine of a limit with a store of its own: a hash of its path in the tree.
/// A limit whose settings change has the same path, and so keeps its clients. Servers that use one
/// Redis have the same names, and so share them.
fn engine_name(limit: &TreeLimit) -> String {
    let mut hasher = SipHasher13::new();
    let mut add = |text: &str| {
        std::hash::Hasher::write(&mut hasher, &(text.len() as u64).to_le_bytes());
        std::hash::Hasher::write(&mut hasher, text.as_bytes());
    };
    add(&limit.domain);
    for part in &limit.path {
        add(&part.key);
        add(&part.value);
    }
    format!("envoy-{:032x}", hasher.finish128().as_u128())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_names_that_are_not_confused() {
        let key = |entries: &[(&str, &str)]| {
            let entry = |(key, value): &(&str, &str)| Entry {
                key: (*key).to_owned(),
                value: value.as_bytes().into(),
            };
            let entries: Vec<_> = entries.iter().map(entry).collect();
            String::from_utf8(key_of("shop", &entries, &[]).to_vec()).unwrap()
        };
        assert_eq!(
            key(&[("user", "alice"), ("plan", "")]),
            "shop user=alice plan="
        );
        assert_eq!(key(&[("user", "a b=c\\")]), r"shop user=a\ b\=c\\");
        assert_ne!(key(&[("user", "a b=c")]), key(&[("user", "a"), ("b", "c")]));
        assert_ne!(key(&[("a=b", "c")]), key(&[("a", "b=c")]));
    }
}
