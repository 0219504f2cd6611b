//! The engine's rules, which are prepared once and replaced when they change.

use std::collections::HashMap;
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
    pub(crate) id: RuleId,
    pub(crate) name: String,
    /// The name of the rule's store and the tag of its records, which their keys end with. A rule whose records mean
    /// something else after a change, such as another half-life, has other records from then on.
    pub(crate) key: String,
    pub(crate) rule: Rule,
    pub(crate) kind: AlgorithmKind,
    /// The tag of the rule's records, and that of its charges, which differs also after other changes of a bucket.
    pub(crate) tag: u32,
    pub(crate) charge_tag: u32,
    /// The rule's id in this node's own engine.
    pub(crate) local: RuleId,
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
    /// error, none is prepared. `local` prepares the rules in this node's own engine; nothing can fail after that.
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
        let locals = local()?;
        let before = self.all();
        let each = before.iter().enumerate();
        let mut places: HashMap<&str, usize> = each
            .map(|(place, known)| (known.name.as_str(), place))
            .collect();
        let mut rules = Vec::clone(&before);
        let mut ids = Vec::with_capacity(wanted.len());
        for (wanted, local) in wanted.iter().zip(locals) {
            let place = *places.entry(wanted.0).or_insert(rules.len());
            let id = RuleId(place as u32);
            let store = store.unwrap_or(wanted.0);
            let prepared = Arc::new(prepared(id, store, wanted, rules.get(place), local));
            match rules.get_mut(place) {
                Some(known) => *known = prepared,
                None => rules.push(prepared),
            }
            ids.push(id);
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
    local: RuleId,
) -> PreparedRule {
    let limit = rule.limit();
    let kind = AlgorithmKind::of(limit);
    let tag = algorithm::tag(limit);
    let same = old.filter(|old| old.rule == *rule);
    let near = (consistency == Consistency::Near).then(|| {
        let kept = same.and_then(|old| old.near.clone());
        kept.unwrap_or_else(|| Arc::new(NearTable::new(rule, capacity)))
    });
    PreparedRule {
        id,
        name: name.to_owned(),
        key: format!("{store}:{}{tag:08x}", kind.letter()),
        rule: rule.clone(),
        kind,
        tag,
        charge_tag: algorithm::charge_tag(limit),
        local,
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
