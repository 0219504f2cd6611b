//! The engine's rules, which are prepared once and replaced when they change.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use arc_swap::ArcSwap;
use earrrl::internal::check_name;
use earrrl::internal::lock;
use earrrl::{Cost, EngineError, Mode, Nanos, Rule, RuleError, RuleId};

use crate::algorithm::{self, AlgorithmKind, Packed, Terms};
use crate::options::Consistency;
use crate::units::{NearTable, check_near};

#[derive(Clone, Debug)]
pub(crate) struct PreparedRule {
    /// The rule's id, also in this node's own engine.
    pub(crate) id: RuleId,
    pub(crate) name: String,
    /// The name of the rule's store and the tag of its records, which their keys end with. A rule whose records mean
    /// something else after a change, such as another half-life, has other records from then on.
    pub(crate) key: String,
    pub(crate) rule: Rule,
    pub(crate) kind: AlgorithmKind,
    /// The tag of the rule's charges, which differs from that of its records also after other changes of a bucket.
    pub(crate) charge_tag: u32,
    /// The clients of a near rule; `None` if every request is decided in Redis.
    pub(crate) near: Option<Arc<NearTable>>,
    /// The rule's verdict in an outage, in place of a policy that allows or denies all requests.
    pub(crate) without_redis: Option<bool>,
}

/// All rules, by their ids.
#[derive(Debug, Default)]
pub(crate) struct Rules {
    all: ArcSwap<Vec<Arc<PreparedRule>>>,
    /// Locked while rules are replaced.
    changing: Mutex<()>,
}

/// A rule to be prepared: its name, the rule, the capacity of its tables, and its consistency.
pub(crate) type RuleSpec<'a> = (&'a str, &'a Rule, usize, Consistency);

impl Rules {
    pub(crate) fn get(&self, id: RuleId) -> Option<Arc<PreparedRule>> {
        self.all.load().get(id.0 as usize).cloned()
    }

    pub(crate) fn all(&self) -> Arc<Vec<Arc<PreparedRule>>> {
        self.all.load_full()
    }

    /// Returns true if there is a near rule.
    pub(crate) fn some_near(&self) -> bool {
        self.all.load().iter().any(|rule| rule.near.is_some())
    }

    /// Prepares rules under their names, with records in the store of this name or else in stores of their own. On an
    /// error, none is prepared. `local` prepares the rules in this node's own engine, which numbers them; nothing can fail
    /// after that.
    pub(crate) fn prepare(
        &self,
        store: Option<&str>,
        wanted: &[RuleSpec<'_>],
        local: impl FnOnce() -> Result<Vec<RuleId>, EngineError>,
    ) -> Result<Vec<RuleId>, EngineError> {
        for &(name, rule, _, consistency) in wanted {
            check_name(name)?;
            algorithm::check(rule)?;
            if consistency == Consistency::Near {
                check_near(rule)?;
            }
        }
        let _changing = lock(&self.changing);
        let ids = local()?;
        let mut rules = Vec::clone(&self.all());
        for (wanted, &id) in wanted.iter().zip(&ids) {
            let place = id.0 as usize;
            let store = store.unwrap_or(wanted.0);
            let prepared = Arc::new(prepared(id, store, wanted, rules.get(place)));
            match rules.get_mut(place) {
                Some(known) => *known = prepared,
                None => rules.push(prepared),
            }
        }
        self.all.store(Arc::new(rules));
        Ok(ids)
    }

    /// Sets rules' verdicts in place of the policies that allow or deny all requests.
    pub(crate) fn set_without_redis(&self, verdicts: &[(RuleId, Option<bool>)]) {
        let _changing = lock(&self.changing);
        let mut rules = Vec::clone(&self.all());
        for (id, verdict) in verdicts {
            if let Some(rule) = rules.get_mut(id.0 as usize)
                && rule.without_redis != *verdict
            {
                *rule = Arc::new(PreparedRule {
                    without_redis: *verdict,
                    ..(**rule).clone()
                });
            }
        }
        self.all.store(Arc::new(rules));
    }
}

/// Returns a rule in place of the one of the same name, if there was one. A near rule that is the same keeps the
/// units that this node has; those of a changed rule were granted under another limit.
pub(crate) fn prepared(
    id: RuleId,
    store: &str,
    &(name, rule, capacity, consistency): &RuleSpec<'_>,
    old: Option<&Arc<PreparedRule>>,
) -> PreparedRule {
    let limit = rule.limit();
    let kind = AlgorithmKind::of(limit);
    let same = old.filter(|old| old.rule == *rule);
    let near = (consistency == Consistency::Near).then(|| {
        let kept = same.and_then(|old| old.near.clone());
        kept.unwrap_or_else(|| Arc::new(NearTable::new(rule, capacity)))
    });
    PreparedRule {
        id,
        name: name.to_owned(),
        key: format!("{store}:{}{:08x}", kind.letter(), algorithm::tag(limit)),
        rule: rule.clone(),
        kind,
        charge_tag: algorithm::charge_tag(limit),
        near,
        without_redis: old.and_then(|old| old.without_redis),
    }
}

impl PreparedRule {
    /// Returns the script's parameters for the rule and a cost at `now`: one packed string, which Lua unpacks in one
    /// call. `sign` is -1 to take the cost back.
    pub(crate) fn parameters(
        &self,
        cost: Cost,
        linger: Duration,
        sign: f64,
        now: Nanos,
    ) -> Vec<u8> {
        let mut packed = Packed(Vec::with_capacity(96));
        let terms = Terms {
            rule: &self.rule,
            cost,
            sign,
            linger,
            now,
        };
        algorithm::of(self.rule.limit()).parameters(&terms, &mut packed);
        packed.0
    }

    /// Returns an error that names the rule if its requests cannot be decided in this mode.
    pub(crate) fn accept_mode(&self, mode: Mode) -> Result<(), EngineError> {
        let named = |error: RuleError| error.of(&format!("rule {}", self.name));
        Ok(self.rule.accept_mode(mode).map_err(named)?)
    }
}
