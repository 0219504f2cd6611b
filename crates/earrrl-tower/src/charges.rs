//! The rules of a layer as its engine has prepared them, and the charges of one request: for each rule
//! that applies, its key and its cost.

use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;
use earrrl::{Charge, Cost, Decision, Engine, EngineError, MemoryEngine, Quota, Rule, RuleId};
use http::request::Parts;
use http::{HeaderValue, StatusCode};
use smallvec::SmallVec;

use crate::headers::{self, Available};
use crate::key::{KeyBuffer, peer_address};
use crate::problem::{self, Kind};
use crate::request_rule::{Missing, RequestCost, RequestRule};
use crate::verdict::Verdict;

/// A prepared rule, with the parts of its responses that are the same for every request.
#[derive(Clone, Debug)]
pub(crate) struct LayerRule {
    /// The name that headers show, which several limits of one rule have.
    pub(crate) name: Arc<str>,
    pub(crate) role: Role,
    pub(crate) id: RuleId,
    /// The id in the engine that decides while the other one fails.
    local_id: Option<RuleId>,
    pub(crate) rule: Rule,
    pub(crate) quota: Quota,
    /// The rule's name as it begins an item of `RateLimit`.
    pub(crate) label: Box<[u8]>,
    /// The value of `RateLimit-Policy` for a request that is charged to this rule alone.
    pub(crate) policy: Option<HeaderValue>,
    /// The problem details of a request that this rule alone denied.
    pub(crate) problem: Bytes,
}

/// The relation of a limit to others of its layer.
#[derive(Clone, Debug)]
pub(crate) enum Role {
    /// A rule or plan whose clients have no other limit.
    Only,
    /// A rule whose clients may have other limits.
    Base,
    /// Another limit of the clients of a rule, with its name in the engine.
    Other(Arc<str>),
}

impl LayerRule {
    /// Prepares a rule in the engine, and in the one that decides while it fails. `status` is the status of denials.
    pub(crate) fn new(
        engine: &impl Engine,
        local: Option<&MemoryEngine>,
        name: &str,
        rule: Rule,
        role: Role,
        status: StatusCode,
    ) -> Result<Self, EngineError> {
        let id = prepare(engine, name, &rule, &role)?;
        let local_id = local.map(|local| prepare(local, name, &rule, &role));
        let local_id = local_id.transpose()?;
        let quota = Quota::of(rule.limit());
        let policy = headers::current::policies([(name, quota)].into_iter());
        let label = headers::current::label(name);
        let problem = problem::body(Kind::of(rule.limit()), status, [name]);
        Ok(Self {
            name: name.into(),
            role,
            id,
            local_id,
            rule,
            quota,
            label,
            policy,
            problem,
        })
    }

    /// Returns the verdict of a decision whose figures are those of this rule.
    pub(crate) fn verdict(&self, decision: &Decision) -> Verdict {
        let is_other = matches!(self.role, Role::Other(_));
        Verdict {
            rule: Some(Arc::clone(&self.name)),
            limit: is_other.then(|| Arc::new(self.rule.clone())),
            decision: Some(*decision),
        }
    }

    /// Returns the quota that is available after a decision under this rule alone.
    pub(crate) fn available(&self, decision: &Decision) -> Available {
        Available::of(&self.rule, self.quota, decision)
    }

    /// Returns true if headers report this rule.
    pub(crate) fn is_shown(&self) -> bool {
        headers::is_shown(self.rule.action())
    }
}

fn prepare(
    engine: &impl Engine,
    name: &str,
    rule: &Rule,
    role: &Role,
) -> Result<RuleId, EngineError> {
    match role {
        Role::Only => engine.prepare(name, rule),
        Role::Base => engine.prepare_in(name, name, rule),
        Role::Other(other) => engine.prepare_in(name, other, rule),
    }
}

/// The charges of one request. Their keys are stored consecutively in one buffer.
#[derive(Clone, Debug, Default)]
pub(crate) struct RequestCharges {
    charges: SmallVec<[RuleCharge; 2]>,
    keys: KeyBuffer,
}

/// A charge to one rule, or to the plan that takes the rule's place for this request.
#[derive(Clone, Debug)]
pub(crate) struct RuleCharge {
    pub(crate) cost: Cost,
    /// The index of the rule in [`Rules`].
    rule: u32,
    /// The index of the rule, plan or other limit in the prepared rules of the layer.
    prepared: u32,
    key: Range<u32>,
}

impl RuleCharge {
    /// Returns the rule that is charged, or whose plan is charged.
    pub(crate) fn rule<'a>(&self, rules: &'a Rules) -> &'a RequestRule {
        &rules[self.rule as usize].0
    }
}

/// The rules of a layer, each with the index of its [`LayerRule`]. The prepared plans of a rule
/// follow that index.
pub(crate) type Rules = Vec<(RequestRule, usize)>;

impl RequestCharges {
    /// Reads the charges of a request under all rules. `prepare` returns the index of a limit that a rule's function
    /// has returned, unless the rule's own applies.
    ///
    /// # Errors
    /// Returns the status of the denial if the request has no key under a rule with
    /// [`Missing::Deny`].
    #[inline]
    pub(crate) fn read(
        &mut self,
        rules: &Rules,
        request: &Parts,
        prepare: impl Fn(&RequestRule, Rule) -> Option<usize>,
    ) -> Result<(), StatusCode> {
        for (place, (rule, first)) in rules.iter().enumerate() {
            if rule.passes_over(request) {
                continue;
            }
            let start = self.keys.len();
            if rule.key.write(request, &mut self.keys) {
                self.keys.bound(start);
                rule.hints.proxy(&rule.name, &*rule.key, request);
            } else {
                self.keys.truncate(start);
                if rule.key.client_address().is_some() && peer_address(request).is_none() {
                    rule.hints.no_peer(&rule.name, rule.missing);
                }
                match rule.missing {
                    Missing::Shared => {}
                    Missing::Skip => continue,
                    Missing::Deny(status) => return Err(status),
                }
            }
            self.charges.push(RuleCharge {
                rule: place as u32,
                prepared: limit_of(rule, *first, request, &prepare) as u32,
                cost: match &rule.cost {
                    RequestCost::Fixed(cost) => *cost,
                    RequestCost::By(cost) => cost(request),
                },
                key: start as u32..self.keys.len() as u32,
            });
        }
        Ok(())
    }

    /// Returns the charges with the rules as an engine has prepared them.
    pub(crate) fn with<'a>(&'a self, rules: &'a [LayerRule]) -> PreparedCharges<'a> {
        PreparedCharges {
            charges: self,
            rules,
            is_local: false,
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.charges.is_empty()
    }

    /// Returns the charges with their places in the request, to which decisions refer.
    pub(crate) fn iter(&self) -> impl ExactSizeIterator<Item = (usize, &RuleCharge)> {
        self.charges.iter().enumerate()
    }

    pub(crate) fn get(&self, place: usize) -> Option<&RuleCharge> {
        self.charges.get(place)
    }

    /// Returns the charge in the form that an engine takes, if there is exactly one, under a rule or plan.
    /// `ids` are those of the rules and plans.
    #[inline]
    pub(crate) fn only_for_engine(&self, ids: &[RuleId]) -> Option<Charge<'_>> {
        let only = self.only()?;
        Some(Charge {
            rule: *ids.get(only.prepared as usize)?,
            key: self.key(only),
            cost: only.cost,
        })
    }

    /// Returns the charge, if there is exactly one.
    #[inline]
    pub(crate) fn only(&self) -> Option<&RuleCharge> {
        if let [only] = &self.charges[..] {
            Some(only)
        } else {
            None
        }
    }

    fn key(&self, charge: &RuleCharge) -> &[u8] {
        &self.keys.as_bytes()[charge.key.start as usize..charge.key.end as usize]
    }

    /// Returns the charges that match a condition; `None` if none does.
    pub(crate) fn filtered(&self, matches: impl Fn(&RuleCharge) -> bool) -> Option<Self> {
        let charges = self.charges.iter().filter(|charge| matches(charge));
        let charges: SmallVec<_> = charges.cloned().collect();
        (!charges.is_empty()).then(|| Self {
            charges,
            keys: self.keys.clone(),
        })
    }
}

/// The charges of a request, with the rules as the layer's engines have prepared them.
#[derive(Clone, Copy)]
pub(crate) struct PreparedCharges<'a> {
    pub(crate) charges: &'a RequestCharges,
    pub(crate) rules: &'a [LayerRule],
    /// True if the engine decides that stands in for the layer's own.
    pub(crate) is_local: bool,
}

impl<'a> PreparedCharges<'a> {
    /// Returns the rule or plan of a charge.
    pub(crate) fn rule(self, charge: &RuleCharge) -> &'a LayerRule {
        &self.rules[charge.prepared as usize]
    }

    /// Returns the id of a rule or plan in the engine that decides.
    pub(crate) fn id(self, rule: &LayerRule) -> RuleId {
        match rule.local_id {
            Some(id) if self.is_local => id,
            _ => rule.id,
        }
    }

    /// Returns the rule or plan at a place of the request, to which decisions refer.
    pub(crate) fn rule_at(self, place: usize) -> Option<&'a LayerRule> {
        self.charges.get(place).map(|charge| self.rule(charge))
    }

    /// Returns one of the charges in the form that an engine takes, with another cost.
    pub(crate) fn with_cost(self, charge: &RuleCharge, cost: Cost) -> Charge<'a> {
        Charge {
            rule: self.id(self.rule(charge)),
            key: self.charges.key(charge),
            cost,
        }
    }

    /// Returns the charges in the form that an engine takes, with these costs.
    pub(crate) fn with_costs(
        self,
        cost: impl Fn(&RuleCharge) -> Cost,
    ) -> SmallVec<[Charge<'a>; 2]> {
        let charges = self.charges.charges.iter();
        charges
            .map(|charge| self.with_cost(charge, cost(charge)))
            .collect()
    }

    /// Returns the charges in the form that an engine takes.
    pub(crate) fn for_engine(self) -> SmallVec<[Charge<'a>; 2]> {
        self.with_costs(|charge| charge.cost)
    }
}

/// Returns the index of the limit of a request: that of the first plan that applies, the one that the rule's function
/// returns, or that of the rule, `first`.
fn limit_of(
    rule: &RequestRule,
    first: usize,
    request: &Parts,
    prepare: impl Fn(&RequestRule, Rule) -> Option<usize>,
) -> usize {
    if let Some(plan) = rule.plans.iter().position(|plan| (plan.applies)(request)) {
        return first + plan + 1;
    }
    let limit = rule.limit_by.as_ref().and_then(|limit| limit(request));
    limit
        .and_then(|limit| prepare(rule, limit))
        .unwrap_or(first)
}
