//! The limits of a configuration's descriptors, before the engine prepares them: which stores they have,
//! and how many clients these are sized for.
//!
//! A limit without wildcards has one client, and all such limits share a store. A limit with wildcards has
//! a table of its own for a part of the capacity; where there are too many for that, they share another
//! store. Over Redis and in state files, each limit has a store of its own.

use std::collections::HashMap;
use std::sync::Arc;

use earrrl::{Action, Rule, RuleError, RuleId};
use earrrl_redis::Consistency;
use siphasher::sip128::SipHasher13;

use super::prepared::{DescriptorLimit, DescriptorRecords, Descriptors, engine_name, is_open};
use crate::config::envoy::tree::{Tree, TreeLimit};
use crate::config::envoy::{EnvoyAlgorithm, EnvoyConfig};
use crate::config::{Config, RuleConfig};
use crate::engine::PlannedLimit;
use crate::metrics::Outcomes;
use crate::service::limit::PreparedLimit;
use crate::service::names::ENVOY;

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
