//! The limits of a configuration's descriptors, prepared in the engine.

use std::sync::Arc;

use earrrl::{Action, EngineError, FixedWindow, Quota, Rule, RuleError, RuleId};
use earrrl_redis::Consistency;
use siphasher::sip128::{Hasher128 as _, SipHasher13};

use super::counts::CountsOf;
pub use super::limit::{Current, DescriptorLimit, LimitKind};
use super::overrides::RequestOverrides;
use crate::config::envoy::file::Amount;
use crate::config::envoy::tree::{PathPart, Tree, TreeLimit};
use crate::config::envoy::unit::Unit;
use crate::config::envoy::{EnvoyAlgorithm, EnvoyConfig};
use crate::config::{Config, RuleConfig};
use crate::engine::{Engine, PlannedLimit};

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
    limits: Vec<DescriptorLimit>,
    overrides: Arc<RequestOverrides>,
}

/// The descriptors of a configuration, before their limits are prepared in the engine.
pub struct DescriptorsPlan {
    tree: Arc<Tree>,
    config: EnvoyConfig,
    /// The limits to prepare in the engine, one for each limit of the tree; `None` for a limit
    /// that counts nothing.
    wanted: Vec<Option<LimitSpec>>,
}

struct LimitSpec {
    name: String,
    rule: Arc<Rule>,
    capacity: usize,
}

impl DescriptorsPlan {
    /// Plans the limits of a configuration's descriptors; returns `None` if it has no descriptors.
    ///
    /// # Errors
    /// Returns the errors of [`DescriptorsPlan::new`].
    pub fn of_config(config: &Config) -> Result<Option<Self>, RuleError> {
        // Rules of the server's own configuration may apply to descriptors without any tree.
        let rules = || config.rules.iter().any(RuleConfig::serves_descriptors);
        let tree = match &config.envoy.tree {
            Some(tree) => Arc::clone(tree),
            None if rules() => Arc::default(),
            None => return Ok(None),
        };
        Self::new(&config.envoy, tree, config.capacity).map(Some)
    }

    /// Plans the limits of a tree of descriptors.
    ///
    /// # Errors
    /// Returns a [`RuleError`] if the tree has an invalid limit.
    pub fn new(config: &EnvoyConfig, tree: Arc<Tree>, capacity: usize) -> Result<Self, RuleError> {
        let open = tree.limits().iter().filter(|limit| is_open(limit)).count().max(1);
        let share = |rule: &Rule| {
            let least = if rule.limit().is_one_time() { LEAST_TABLE } else { LEAST_CAPACITY };
            (capacity / open).max(least.min(capacity))
        };
        let wanted = tree.limits().iter().map(|limit| {
            let capacity = |rule: &Rule| if is_open(limit) { share(rule) } else { 1 };
            LimitSpec::new(limit, config.algorithm, capacity)
        });
        let wanted = wanted.collect::<Result<_, _>>()?;
        Ok(Self { tree, config: config.clone(), wanted })
    }

    /// Returns the planned limits, each with its name in the engine and the number of clients to
    /// size its table for.
    pub(in crate::service) fn limits(&self) -> impl Iterator<Item = PlannedLimit<'_>> {
        let limit = |wanted| {
            let LimitSpec { name, rule, capacity }: &LimitSpec = wanted;
            let (capacity, consistency) = (*capacity, Consistency::Exact);
            PlannedLimit { name, rule, capacity, consistency, store: None }
        };
        self.wanted.iter().flatten().map(limit)
    }

    /// Returns the descriptors with their prepared limits. `ids` holds the engine's ids for
    /// `DescriptorsPlan::limits`, in the same order. A limit at the same path in the tree as
    /// before keeps its clients' state.
    pub fn finish(
        self,
        ids: &mut impl Iterator<Item = RuleId>,
        counts: &Arc<CountsOf>,
        overrides: &Arc<RequestOverrides>,
    ) -> Descriptors {
        let Self { tree, config, wanted } = self;
        let metrics = config.metrics.then_some(&**counts);
        let limits = tree.limits().iter().zip(wanted).map(|(limit, wanted)| {
            let counted = wanted.and_then(|wanted| Some((ids.next()?, wanted.rule)));
            DescriptorLimit::new(limit, counted, metrics)
        });
        let limits = limits.collect();
        Descriptors {
            tree,
            config,
            counts: Arc::clone(counts),
            limits,
            overrides: Arc::clone(overrides),
        }
    }
}

impl LimitSpec {
    fn new(
        limit: &TreeLimit,
        algorithm: EnvoyAlgorithm,
        capacity: impl Fn(&Rule) -> usize,
    ) -> Result<Option<Self>, RuleError> {
        let Some(rule) = limit.config.rule(algorithm)? else { return Ok(None) };
        // Shadow and quota mode depend on all descriptors of a request, so the engine must not
        // deny by itself.
        let counts_only = limit.config.shadow_mode || limit.config.quota_mode;
        let rule = if counts_only { rule.with_action(Action::Observe)? } else { rule };
        let capacity = capacity(&rule);
        Ok(Some(Self { name: engine_name(limit), rule: Arc::new(rule), capacity }))
    }
}

impl Descriptors {
    /// Returns the limit at this index in the tree.
    pub fn limit(&self, index: usize) -> Option<&DescriptorLimit> {
        self.limits.get(index)
    }

    /// Returns the prepared form of a limit that a request brings.
    ///
    /// # Errors
    /// Returns an [`EngineError`] if the limit is invalid or the engine is unavailable.
    pub fn overriding(
        &self,
        requests: u32,
        unit: Unit,
        engine: &Engine,
    ) -> Result<Arc<DescriptorLimit>, EngineError> {
        self.overrides.get((self.config.algorithm, requests, unit), engine)
    }
}

impl DescriptorLimit {
    fn new(
        limit: &TreeLimit,
        counted: Option<(RuleId, Arc<Rule>)>,
        counts: Option<&CountsOf>,
    ) -> Self {
        let config = &limit.config;
        let kind = match (counted, config.amount) {
            (Some((id, rule)), _) => LimitKind::Counted(id, rule),
            (None, Amount::PerUnit(_, unit)) => LimitKind::Zero(unit),
            (None, Amount::Unlimited | Amount::Own) => LimitKind::Unlimited,
        };
        Self {
            current: Current::new(limit, &kind),
            kind,
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
            (Amount::PerUnit(requests, unit), _) => Self { name, requests, unit: unit.number() },
            (Amount::Own, LimitKind::Counted(_, rule)) => Self { name, ..Self::of(rule) },
            _ => Self { name, ..Self::default() },
        }
    }

    /// Returns a rule's limit as a number of requests per unit of time. If the window of the rule
    /// is not one of Envoy's units, the smallest unit in which the rule allows at least one
    /// request is reported.
    pub fn of(rule: &Rule) -> Self {
        let quota = Quota::of(rule.limit());
        let window = quota.window.unwrap_or(1);
        let units = [Unit::Second, Unit::Minute, Unit::Hour, Unit::Day, Unit::Month, Unit::Year];
        let exact = Unit::from_secs(window).map(|unit| (quota.units, unit));
        let holds_one = units.into_iter().map(|unit| {
            let requests = u128::from(quota.units) * u128::from(unit.duration().as_secs());
            ((requests / u128::from(window)) as u64, unit)
        });
        let (requests, unit) = exact
            .or_else(|| holds_one.into_iter().find(|(requests, _)| *requests > 0))
            .unwrap_or((quota.units, Unit::Year));
        let requests = u32::try_from(requests).unwrap_or(u32::MAX);
        Self { name: String::new(), requests, unit: unit.number() }
    }
}

/// Returns true if the limit has wildcards, so that values in requests identify its clients.
fn is_open(limit: &TreeLimit) -> bool {
    limit.path.iter().any(PathPart::is_open)
}

/// Returns the name of a limit in the engine. It depends on the limit's path in the tree only: a
/// limit whose settings change keeps its clients, and servers that use one Redis share them.
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

/// Returns the window of a rule whose windows end at fixed times, or `None` for other rules.
pub fn fixed_window(rule: &Rule) -> Option<&FixedWindow> {
    match rule.limit() {
        earrrl::Limit::FixedWindow(window) => Some(window),
        _ => None,
    }
}
