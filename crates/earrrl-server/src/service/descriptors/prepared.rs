//! The limits of descriptors as the engine knows them.

use std::sync::Arc;

use earrrl::{Action, EngineError, FixedWindow, Quota, Rule, RuleError, RuleId};
use earrrl_redis::Consistency;
use siphasher::sip128::{Hasher128 as _, SipHasher13};

use super::counts::CountsOf;
pub use super::limit::{Current, DescriptorLimit, LimitKind};
use super::overrides::Overrides;
use crate::config::envoy::file::Amount;
use crate::config::envoy::tree::{PathPart, Tree, TreeLimit};
use crate::config::envoy::unit::Unit;
use crate::config::envoy::{EnvoyAlgorithm, EnvoyConfig};
use crate::config::{Config, RuleConfig};
use crate::engine::Engine;
use crate::service::known::PlannedLimit;

/// The least clients that a descriptor with open values has room for, if memory is allocated as they come.
const LEAST_CAPACITY: usize = 1000;
/// The same, if all memory is allocated at once: the clients of the smallest table.
const LEAST_TABLE: usize = 24;

/// A configuration's descriptors in force.
#[derive(Debug)]
pub struct Descriptors {
    /// The tree that descriptors are matched against.
    pub tree: Arc<Tree>,
    /// The settings for answers to requests.
    pub config: EnvoyConfig,
    /// The counters of metrics.
    pub counts: Arc<CountsOf>,
    limits: Vec<DescriptorLimit>,
    overrides: Arc<Overrides>,
}

/// A configuration's descriptors before the engine knows their limits.
pub struct DescriptorsPlan {
    tree: Arc<Tree>,
    config: EnvoyConfig,
    /// The engine's limit for each limit of the tree; `None` for limits that count nothing.
    wanted: Vec<Option<WantedLimit>>,
}

struct WantedLimit {
    name: String,
    rule: Arc<Rule>,
    capacity: usize,
}

impl DescriptorsPlan {
    /// Plans the limits of a configuration, if it has descriptors.
    ///
    /// # Errors
    /// Returns the errors of [`DescriptorsPlan::new`].
    pub fn of_config(config: &Config) -> Result<Option<Self>, RuleError> {
        // Rules of the server's own may serve descriptors alone.
        let rules = || config.rules.iter().any(RuleConfig::serves_descriptors);
        let tree = match &config.envoy.tree {
            Some(tree) => Arc::clone(tree),
            None if rules() => Arc::default(),
            None => return Ok(None),
        };
        Self::new(&config.envoy, tree, config.capacity).map(Some)
    }

    /// Plans the limits of a tree.
    ///
    /// # Errors
    /// Returns the error of a limit that is not possible.
    pub fn new(config: &EnvoyConfig, tree: Arc<Tree>, capacity: usize) -> Result<Self, RuleError> {
        let open = tree.limits().iter().filter(|limit| is_open(limit)).count().max(1);
        let share = |rule: &Rule| {
            let least = if rule.limit().is_one_time() { LEAST_TABLE } else { LEAST_CAPACITY };
            (capacity / open).max(least.min(capacity))
        };
        let wanted = tree.limits().iter().map(|limit| {
            let capacity = |rule: &Rule| if is_open(limit) { share(rule) } else { 1 };
            WantedLimit::new(limit, config.algorithm, capacity)
        });
        let wanted = wanted.collect::<Result<_, _>>()?;
        Ok(Self { tree, config: config.clone(), wanted })
    }

    /// Returns the limits, each with its name in the engine and the clients it is meant for.
    pub(in crate::service) fn limits(&self) -> impl Iterator<Item = PlannedLimit<'_>> {
        let limit = |wanted| {
            let WantedLimit { name, rule, capacity }: &WantedLimit = wanted;
            (&**name, rule, *capacity, Consistency::Exact)
        };
        self.wanted.iter().flatten().map(limit)
    }

    /// The descriptors, with the engine's ids of `limits`. Limits whose way through the tree is
    /// known keep their clients' history.
    pub fn finish(
        self,
        ids: &mut impl Iterator<Item = RuleId>,
        counts: &Arc<CountsOf>,
        overrides: &Arc<Overrides>,
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

impl WantedLimit {
    fn new(
        limit: &TreeLimit,
        algorithm: EnvoyAlgorithm,
        capacity: impl Fn(&Rule) -> usize,
    ) -> Result<Option<Self>, RuleError> {
        let Some(rule) = limit.config.rule(algorithm)? else { return Ok(None) };
        // Modes are judged over all descriptors of a request, so the engine only counts.
        let counts_only = limit.config.shadow_mode || limit.config.quota_mode;
        let rule = if counts_only { rule.with_action(Action::Observe)? } else { rule };
        let capacity = capacity(&rule);
        Ok(Some(Self { name: engine_name(limit), rule: Arc::new(rule), capacity }))
    }
}

impl Descriptors {
    /// The limit of this index in the tree.
    pub fn limit(&self, index: usize) -> Option<&DescriptorLimit> {
        self.limits.get(index)
    }

    /// Returns the limit that a request brings.
    ///
    /// # Errors
    /// Fails if the limit is invalid or the engine is unavailable.
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

    /// A limit that has no unit, in the smallest unit that holds one request.
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

/// Returns true if values of requests distinguish the limit's clients.
fn is_open(limit: &TreeLimit) -> bool {
    limit.path.iter().any(PathPart::is_open)
}

/// The limit's name in the engine. It depends on the way through the tree only: a changed limit
/// keeps its clients, and servers that use one Redis share them.
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
