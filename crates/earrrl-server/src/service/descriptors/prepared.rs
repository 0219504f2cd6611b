//! The limits of a configuration's descriptors, prepared in the engine.

use std::collections::HashMap;
use std::sync::Arc;

use earrrl::{Action, EngineError, FixedWindow, Quota, Rule, RuleError, RuleId};
use earrrl_redis::Consistency;
use siphasher::sip128::{Hasher128 as _, SipHasher13};

use super::counts::CountsOf;
use super::limit::PathHash;
pub use super::limit::{Current, DescriptorLimit, LimitKind};
use super::request_limit::RequestCounters;
use crate::config::envoy::file::Amount;
use crate::config::envoy::tree::{PathPart, Tree, TreeLimit};
use crate::config::envoy::unit::Unit;
use crate::config::envoy::{EnvoyAlgorithm, EnvoyConfig};
use crate::config::{Config, RuleConfig};
use crate::engine::{Engine, PlannedLimit};
use crate::service::names::Directory;

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
    /// The metrics' counters of requests by descriptor.
    pub counts: Arc<CountsOf>,
    /// The names of clients that are limited or close to it.
    pub directory: Arc<Directory>,
    limits: Vec<DescriptorLimit>,
    request_counters: Arc<RequestCounters>,
    /// The number of clients that each store for limits of requests is sized for.
    capacity: usize,
}

/// The parts of descriptors that stay across reloads.
#[derive(Clone, Copy)]
pub struct LastingParts<'a> {
    /// The metrics' counters of requests by descriptor.
    pub counts: &'a Arc<CountsOf>,
    /// The counters of limits that requests bring.
    pub request_counters: &'a Arc<RequestCounters>,
    /// The names of clients.
    pub directory: &'a Arc<Directory>,
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
    /// The way in which each limit of the tree is counted; `None` for a limit that counts nothing.
    counted: Vec<Option<Counting>>,
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

/// The way in which a limit of the tree is counted.
struct Counting {
    /// The index of the limit among those to prepare.
    limit: usize,
    /// The start of the keys of the limit's clients, if the store is shared.
    path: Option<PathHash>,
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
    fn add_own(&mut self, path: PathHash, rule: Rule, capacity: usize) -> Counting {
        let name = engine_name(path);
        let rule = Arc::new(rule);
        self.specs.push(LimitSpec {
            name,
            rule,
            capacity,
            store: None,
        });
        Counting {
            limit: self.specs.len() - 1,
            path: None,
        }
    }

    /// Adds a limit to a shared store, unless another descriptor there has the same limit.
    fn add_shared(
        &mut self,
        path: PathHash,
        rule: Rule,
        (store, capacity): (&'static str, usize),
    ) -> Counting {
        let text = format!("{store} {:?} {rule}", rule.action());
        let specs = &mut self.specs;
        let limit = *self.shared.entry(text).or_insert_with_key(|text| {
            let hash = SipHasher13::new().hash(text.as_bytes()).as_u128();
            let name = format!("envoy-limit-{hash:032x}");
            let rule = Arc::new(rule);
            specs.push(LimitSpec {
                name,
                rule,
                capacity,
                store: Some(store),
            });
            specs.len() - 1
        });
        Counting {
            limit,
            path: Some(path),
        }
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
            let path = path_hash(limit);
            let own = own(&rule);
            let is_crowded = shared.get(&path).copied().unwrap_or(is_crowded);
            Ok(Some(match is_open(limit) {
                true if is_crowded => limits.add_shared(path, rule, (OPEN, capacity)),
                true => limits.add_own(path, rule, own),
                false if shares => limits.add_shared(path, rule, (CLOSED, closed)),
                false => limits.add_own(path, rule, 1),
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
        LastingParts {
            counts,
            request_counters,
            directory,
        }: LastingParts<'_>,
    ) -> Descriptors {
        let Self {
            tree,
            config,
            limits,
            counted,
            capacity,
        } = self;
        let metrics = config.metrics.then_some(&**counts);
        let prepared: Vec<_> = limits
            .into_iter()
            .map(|limit| limit.rule)
            .zip(ids)
            .collect();
        let limits = tree.limits().iter().zip(counted).map(|(limit, counted)| {
            let counted = counted.and_then(|counted| {
                let (rule, id) = prepared.get(counted.limit)?;
                Some((*id, Arc::clone(rule), counted.path))
            });
            DescriptorLimit::new(limit, counted, metrics, directory)
        });
        let limits = limits.collect();
        Descriptors {
            tree,
            config,
            counts: Arc::clone(counts),
            directory: Arc::clone(directory),
            limits,
            request_counters: Arc::clone(request_counters),
            capacity,
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
    /// Returns the limits that the engine counts: as configured, as prepared, and the id in the engine.
    fn counted(&self) -> impl Iterator<Item = (&TreeLimit, &DescriptorLimit, RuleId)> {
        self.tree
            .limits()
            .iter()
            .zip(&self.limits)
            .filter_map(|(found, limit)| match limit.kind {
                LimitKind::Counted(id, _) => Some((found, limit, id)),
                LimitKind::Zero(_) | LimitKind::Unlimited => None,
            })
    }

    /// Returns, for each limit that is counted, the hash of its path, and true if it shares a store.
    fn in_shared_stores(&self) -> HashMap<PathHash, bool> {
        self.counted()
            .map(|(found, limit, _)| (path_hash(found), limit.path.is_some()))
            .collect()
    }

    /// Returns how many clients the limits with wildcards and those of requests have, and how many clients they have displaced that
    /// were not idle; `None` if no such limit is in memory. The other limits have one client each, which is
    /// never displaced.
    pub fn usage(&self, engine: &Engine) -> Option<(usize, u64)> {
        let open = || self.counted().filter(|(found, ..)| is_open(found));
        let own = open().filter(|(_, limit, _)| limit.path.is_none());
        // All limits in the shared store report the same clients.
        let shared = open().find(|(_, limit, _)| limit.path.is_some());
        let ids = own.chain(shared).map(|(.., id)| id);
        let ids = ids.chain(self.request_counters.ids());
        let usages = ids.filter_map(|id| engine.usage(id));
        usages.reduce(|all, each| (all.0 + each.0, all.1 + each.1))
    }

    /// Returns the limit at this index in the tree.
    pub fn limit(&self, index: usize) -> Option<&DescriptorLimit> {
        self.limits.get(index)
    }

    /// Returns the engine's rule that counts requests which bring a limit in this unit.
    ///
    /// # Errors
    /// Returns an [`EngineError`] if there is not enough memory.
    pub fn request_counter(
        &self,
        unit: Unit,
        engine: &Engine,
    ) -> Result<(RuleId, Arc<Rule>), EngineError> {
        self.request_counters
            .get(self.config.algorithm, unit, self.capacity, engine)
    }
}

impl DescriptorLimit {
    fn new(
        limit: &TreeLimit,
        counted: Option<(RuleId, Arc<Rule>, Option<PathHash>)>,
        counts: Option<&CountsOf>,
        directory: &Directory,
    ) -> Self {
        let config = &limit.config;
        let path = counted.as_ref().and_then(|(_, _, path)| *path);
        let kind = match (counted, config.amount) {
            (Some((id, rule, _)), _) => LimitKind::Counted(id, rule),
            (None, Amount::PerUnit(_, unit)) => LimitKind::Zero(unit),
            (None, Amount::Unlimited | Amount::Own) => LimitKind::Unlimited,
        };
        let named_below = match &kind {
            LimitKind::Counted(_, rule) => directory.remaining_below(rule.limit()),
            LimitKind::Zero(_) | LimitKind::Unlimited => 0,
        };
        Self {
            current: Current::new(limit, &kind),
            kind,
            named_below,
            path,
            shadow_mode: config.shadow_mode,
            quota_mode: config.quota_mode,
            counts: counts
                .filter(|_| !limit.is_named_by_requests())
                .map(|counts| counts.of(&limit.metric_key())),
        }
    }
}

impl Current {
    fn new(limit: &TreeLimit, kind: &LimitKind) -> Self {
        let name = limit.config.name.clone();
        match (limit.config.amount, kind) {
            (Amount::PerUnit(requests, unit), _) => Self {
                name,
                requests,
                unit: unit.number(),
            },
            (Amount::Own, LimitKind::Counted(_, rule)) => Self {
                name,
                ..Self::of(rule)
            },
            _ => Self {
                name,
                ..Self::default()
            },
        }
    }

    /// Returns a rule's limit as a number of requests per unit of time. If the window of the rule
    /// is not one of Envoy's units, the smallest unit in which the rule allows at least one
    /// request is reported.
    pub fn of(rule: &Rule) -> Self {
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
        let requests = u32::try_from(requests).unwrap_or(u32::MAX);
        Self {
            name: String::new(),
            requests,
            unit: unit.number(),
        }
    }
}

/// Returns true if the limit has wildcards, so that values in requests identify its clients.
fn is_open(limit: &TreeLimit) -> bool {
    limit.path.iter().any(PathPart::is_open)
}

/// Returns the hash of a limit's path in the tree. A limit whose settings change has the same path,
/// and so keeps its clients.
fn path_hash(limit: &TreeLimit) -> PathHash {
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
    hasher.finish128().as_u128().to_be_bytes()
}

/// Returns the name in the engine of the limit at a path. Servers that use one Redis have the same
/// names, and so share its clients.
fn engine_name(path: PathHash) -> String {
    format!("envoy-{:032x}", u128::from_be_bytes(path))
}

/// Returns the window of a rule whose windows end at fixed times, or `None` for other rules.
pub fn fixed_window(rule: &Rule) -> Option<&FixedWindow> {
    match rule.limit() {
        earrrl::Limit::FixedWindow(window) => Some(window),
        _ => None,
    }
}
