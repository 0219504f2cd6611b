//! The limits of a configuration's descriptors, prepared in the engine.

use std::collections::HashMap;
use std::sync::Arc;

use earrrl::{Action, EngineError, Limit, Quota, Rule, RuleError, RuleId};
use earrrl_redis::Consistency;
use siphasher::sip128::{Hasher128 as _, SipHasher13};

use super::counts::{CountsOf, DescriptorCounts};
use super::request_limit::RequestCounters;
use crate::config::envoy::file::Amount;
use crate::config::envoy::tree::{PathPart, Tree, TreeLimit};
use crate::config::envoy::unit::Unit;
use crate::config::envoy::{EnvoyAlgorithm, EnvoyConfig};
use crate::config::{Config, RuleConfig};
use crate::engine::{Engine, PlannedLimit};
use crate::metrics::{Outcomes, RuleOutcomes};
use crate::protobuf::ratelimit::{Entry, RateLimit};
use crate::service::key::Key;
use crate::service::limit::PreparedLimit;
use crate::service::names::{Directory, ENVOY};

/// The smallest number of clients that a limit with wildcard values is sized for, if its table
/// grows as clients arrive.
const LEAST_CAPACITY: usize = 1000;
/// The smallest number of clients that a limit with wildcard values is sized for, if its table is
/// allocated at once: the capacity of the smallest table.
const LEAST_TABLE: usize = 24;

/// The descriptors of a configuration, with their limits prepared in the engine.
#[derive(Debug)]
pub struct Descriptors {
    /// The tree of limits that the descriptors of requests are matched against.
    pub tree: Arc<Tree>,
    /// The settings for responses to Envoy.
    pub config: EnvoyConfig,
    /// The records that stay across reloads.
    pub records: Arc<DescriptorRecords>,
    /// The outcomes of requests under all limits in Envoy's format.
    pub(super) outcomes: Arc<RuleOutcomes>,
    limits: Vec<DescriptorLimit>,
    /// The number of clients that each store for limits of requests is sized for.
    capacity: usize,
}

/// The records of descriptors that stay across reloads.
#[derive(Debug)]
pub struct DescriptorRecords {
    /// The metrics' counters of requests by descriptor.
    pub counts: CountsOf,
    /// The names of clients that are limited or close to it.
    pub directory: Directory,
    request_counters: RequestCounters,
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

/// A limit of the tree, prepared in the engine.
#[derive(Debug)]
pub struct DescriptorLimit {
    /// The way in which requests are decided under the limit. Descriptors with equal limits can have
    /// the engine's limit in common.
    pub kind: LimitKind<Arc<PreparedLimit>>,
    /// True if the limit shares its store with others.
    is_in_shared_store: bool,
    /// The limit in the form in which responses report it.
    pub(super) reported: RateLimit,
    /// The counters of the limit's results; `None` if metrics are off, or if the counters' names
    /// would contain values that requests choose.
    pub(super) counts: Option<Arc<DescriptorCounts>>,
}

/// The way in which requests are decided under a limit.
#[derive(Clone, Copy, Debug)]
pub enum LimitKind<L> {
    /// The limit allows every request, and nothing is counted.
    Unlimited,
    /// The limit allows no request. The response reports the end of the current window of this
    /// unit.
    Zero(Unit),
    /// The engine counts requests under this limit.
    Counted(L),
}

impl LimitKind<Arc<PreparedLimit>> {
    pub(super) fn as_deref(&self) -> LimitKind<&PreparedLimit> {
        match self {
            Self::Unlimited => LimitKind::Unlimited,
            Self::Zero(unit) => LimitKind::Zero(*unit),
            Self::Counted(limit) => LimitKind::Counted(limit),
        }
    }
}

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
    limits: Vec<LimitSpec>,
    /// The index of each limit of the tree among those to prepare; `None` if it counts nothing.
    counted: Vec<Option<usize>>,
    /// The number of clients that each store for limits of requests is sized for.
    capacity: usize,
}

/// A limit to prepare in the engine.
struct LimitSpec {
    name: String,
    rule: Arc<Rule>,
    capacity: usize,
    /// The name of the store, if it is shared.
    store: Option<&'static str>,
}

/// Collects the limits of a plan.
#[derive(Default)]
struct LimitSpecs {
    specs: Vec<LimitSpec>,
    /// The indices of the limits in shared stores, by their stores, actions and texts.
    shared: HashMap<String, usize>,
}

impl LimitSpecs {
    /// Adds a limit with a store of its own, which is named by its path.
    fn add_own(&mut self, limit: &TreeLimit, rule: Rule, capacity: usize) -> usize {
        self.specs.push(LimitSpec {
            name: engine_name(limit),
            rule: Arc::new(rule),
            capacity,
            store: None,
        });
        self.specs.len() - 1
    }

    /// Adds a limit to a shared store, unless another descriptor there has the same limit.
    fn add_shared(&mut self, rule: Rule, store: &'static str, capacity: usize) -> usize {
        let text = format!("{store} {:?} {rule}", rule.action());
        let specs = &mut self.specs;
        *self.shared.entry(text).or_insert_with_key(|text| {
            let hash = SipHasher13::new().hash(text.as_bytes()).as_u128();
            specs.push(LimitSpec {
                name: format!("envoy-limit-{hash:032x}"),
                rule: Arc::new(rule),
                capacity,
                store: Some(store),
            });
            specs.len() - 1
        })
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
        let mut limits = LimitSpecs::default();
        let counted = tree.limits().iter().map(|limit| {
            let Some(rule) = rule_of(limit, config.algorithm)? else {
                return Ok(None);
            };
            let known = shared.get(&engine_name(limit)).copied();
            let is_crowded = known.unwrap_or(is_crowded);
            let own = own(&rule);
            Ok(Some(match is_open(limit) {
                true if is_crowded => limits.add_shared(rule, OPEN, capacity),
                true => limits.add_own(limit, rule, own),
                false if shares => limits.add_shared(rule, CLOSED, closed),
                false => limits.add_own(limit, rule, 1),
            }))
        });
        let counted = counted.collect::<Result<_, RuleError>>()?;
        let config = config.clone();
        let limits = limits.specs;
        Ok(Self {
            tree,
            config,
            limits,
            counted,
            capacity,
        })
    }

    /// Returns the planned limits, each with its name in the engine and the number of clients to
    /// size its table for.
    pub(in crate::service) fn limits(&self) -> impl Iterator<Item = PlannedLimit<'_>> {
        self.limits.iter().map(
            |LimitSpec {
                 name,
                 rule,
                 capacity,
                 store,
             }| PlannedLimit {
                name,
                rule,
                capacity: *capacity,
                consistency: Consistency::Exact,
                store: *store,
            },
        )
    }

    /// Returns the descriptors with their prepared limits. `ids` holds the engine's ids for
    /// `DescriptorsPlan::limits`, in the same order. A limit at the same path in the tree as
    /// before keeps its clients' state.
    pub fn finish(
        self,
        ids: &mut impl Iterator<Item = RuleId>,
        outcomes: &Outcomes,
        records: &Arc<DescriptorRecords>,
    ) -> Descriptors {
        let directory = &records.directory;
        let prepare = |(spec, id): (&LimitSpec, RuleId)| {
            let named_below = directory.remaining_below(spec.rule.limit());
            let limit = PreparedLimit::new(id, &spec.rule, named_below);
            (Arc::new(limit), spec.store.is_some())
        };
        let prepared: Vec<_> = self.limits.iter().zip(ids).map(prepare).collect();
        let counts = self.config.metrics.then_some(&records.counts);
        let limits = self.tree.limits().iter().zip(self.counted);
        let limits = limits.map(|(limit, counted)| {
            let counted = counted.and_then(|place| prepared.get(place).cloned());
            DescriptorLimit::new(limit, counted, counts)
        });
        Descriptors {
            limits: limits.collect(),
            tree: Arc::clone(&self.tree),
            config: self.config,
            records: Arc::clone(records),
            outcomes: outcomes.of_rule(ENVOY),
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

impl Descriptors {
    /// Returns the limit at this index in the tree, as prepared and as configured.
    pub(super) fn limit(&self, index: usize) -> Option<(&DescriptorLimit, &TreeLimit)> {
        self.limits.get(index).zip(self.tree.limits().get(index))
    }

    /// Returns, by the name that each limit has in the engine with a store of its own, true if it
    /// shares a store.
    fn in_shared_stores(&self) -> HashMap<String, bool> {
        let each = self.tree.limits().iter().zip(&self.limits);
        each.map(|(of_tree, limit)| (engine_name(of_tree), limit.is_in_shared_store))
            .collect()
    }

    /// Returns how many clients the limits with wildcards and those of requests have, and how many clients they
    /// have displaced that were not idle; `None` if no such limit is in memory. The other limits have one client
    /// each, which is never displaced.
    pub fn usage(&self, engine: &Engine) -> Option<(usize, u64)> {
        let open = self.tree.limits().iter().zip(&self.limits);
        let open = open.filter(|(of_tree, _)| is_open(of_tree));
        let mut ids = self.records.request_counters.ids();
        let mut is_counted = false;
        for (_, limit) in open {
            // All limits in the shared store report the same clients.
            if let LimitKind::Counted(prepared) = &limit.kind
                && !(limit.is_in_shared_store && std::mem::replace(&mut is_counted, true))
            {
                ids.push(prepared.id);
            }
        }
        let usages = ids.into_iter().filter_map(|id| engine.usage(id));
        usages.reduce(|all, each| (all.0 + each.0, all.1 + each.1))
    }

    /// Returns the engine's limit that counts requests which bring a limit in this unit.
    ///
    /// # Errors
    /// Returns an [`EngineError`] if there is not enough memory.
    pub(super) fn request_counter(
        &self,
        unit: Unit,
        engine: &Engine,
    ) -> Result<&PreparedLimit, EngineError> {
        let counters = &self.records.request_counters;
        counters.get(self.config.algorithm, unit, self.capacity, engine)
    }
}

impl DescriptorLimit {
    fn new(
        limit: &TreeLimit,
        counted: Option<(Arc<PreparedLimit>, bool)>,
        counts: Option<&CountsOf>,
    ) -> Self {
        let config = &limit.config;
        let is_in_shared_store = counted.as_ref().is_some_and(|(_, is_shared)| *is_shared);
        let kind = match (counted, config.amount) {
            (Some((prepared, _)), _) => LimitKind::Counted(prepared),
            (None, Amount::PerUnit(_, unit)) => LimitKind::Zero(unit),
            (None, Amount::Unlimited | Amount::Own) => LimitKind::Unlimited,
        };
        let reported = match (config.amount, &kind) {
            (Amount::PerUnit(requests, unit), _) => RateLimit {
                name: config.name.clone(),
                requests_per_unit: requests,
                unit: unit.number(),
            },
            (Amount::Own, LimitKind::Counted(limit)) => reported(&limit.rule, &config.name),
            _ => RateLimit::default(),
        };
        Self {
            kind,
            is_in_shared_store,
            reported,
            counts: counts
                .filter(|_| !limit.is_named_by_requests())
                .map(|counts| counts.of(&limit.metric_key())),
        }
    }

    /// Returns the engine's limit if it counts the requests of each `unit`, so that another number can
    /// be compared with the count.
    pub(super) fn counter_in(&self, unit: Unit) -> Option<&PreparedLimit> {
        let LimitKind::Counted(prepared) = &self.kind else {
            return None;
        };
        let window = match prepared.rule.limit() {
            Limit::FixedWindow(window) => window.window(),
            Limit::SlidingWindow(window) => window.window(),
            _ => return None,
        };
        (window == unit.duration()).then_some(&**prepared)
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
fn is_open(limit: &TreeLimit) -> bool {
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
