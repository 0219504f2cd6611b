//! The state that all clones of a layer share.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, RwLock};

use arc_swap::ArcSwap;
use bytes::Bytes;
use earrrl::{
    Charge, Cost, Engine, EngineError, HoldTerms, MemoryEngine, Mode, Nanos, Rule, RuleId,
};
use http::{Response, StatusCode};

use crate::charges::{LayerRule, RequestCharges, Role, RuleCharge, Rules};
use crate::lasting::PendingCharge;
use crate::request_rule::RequestRule;
use crate::response::Denial;
use crate::verdict::Event;

/// The engine, rules and settings of a layer.
pub(crate) struct SharedLimits<E> {
    pub(crate) engine: E,
    pub(crate) rules: Rules,
    /// The rules and plans, in the order of `ids`. The limits that functions have returned follow.
    pub(crate) prepared: ArcSwap<Vec<LayerRule>>,
    /// The ids of the rules and plans. They never change, so the fast path need not load `prepared`.
    ids: Vec<RuleId>,
    /// The indices in `prepared` of the limits that functions have returned, by the texts that tell them apart. The lock
    /// is held while one is added.
    pub(crate) places: RwLock<HashMap<String, usize>>,
    /// True if no header, handler or hook needs the figures of allowed requests. Then the engine is
    /// asked only for the verdict.
    verdict_only: bool,
    /// True if a rule has costs that are known only after the decision.
    pub(crate) charges_later: bool,
    /// True if a rule reserves the costs of requests.
    reserves: bool,
    pub(crate) settings: Settings,
    /// The engine that decides while the main engine fails.
    pub(crate) local: Option<MemoryEngine>,
    pub(crate) failing: AtomicBool,
    /// The number of requests that are held back.
    held: Arc<AtomicUsize>,
}

pub(crate) struct Settings {
    pub(crate) status: StatusCode,
    pub(crate) headers_on_allowed: bool,
    pub(crate) x_rate_limit: bool,
    pub(crate) always_verdict: bool,
    pub(crate) max_held: usize,
    pub(crate) on_failure: OnFailure,
    pub(crate) hold_terms: HoldTerms,
    pub(crate) respond: Option<Respond>,
    pub(crate) hook: Option<Hook>,
}

impl Settings {
    /// Returns true if headers, handlers or the hook report allowed requests.
    fn report_allowed(&self) -> bool {
        self.headers_on_allowed || self.always_verdict || self.hook.is_some()
    }
}

pub(crate) type Respond = Box<dyn Fn(&Denial<'_>) -> Response<Bytes> + Send + Sync>;
pub(crate) type Hook = Box<dyn Fn(&Event<'_>) + Send + Sync>;

/// The treatment of requests while the engine fails.
///
/// ```
/// use earrrl::MemoryEngine;
/// use earrrl_tower::{OnFailure, RateLimitLayer};
/// // Denies with status 503 instead of letting requests through.
/// let builder = RateLimitLayer::builder(MemoryEngine::new(10)?).on_failure(OnFailure::Deny);
/// # let _ = builder;
/// # Ok::<(), earrrl::BuildError>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum OnFailure {
    /// Lets the requests pass.
    #[default]
    Allow,
    /// Denies the requests with status 503 (gRPC: UNAVAILABLE).
    Deny,
    /// Decides the requests in this process only, in tables for this number of clients per rule.
    Local(usize),
}

impl<E: Engine> SharedLimits<E> {
    pub(crate) fn new(
        engine: E,
        local: Option<MemoryEngine>,
        rules: Rules,
        prepared: Vec<LayerRule>,
        settings: Settings,
    ) -> Self {
        let ids = prepared.iter().map(|rule| rule.id).collect();
        let reserves = rules.iter().any(|(rule, _)| rule.reserved);
        let later = |rule: &RequestRule| rule.settled || rule.cost_after.is_some();
        let charges_later = reserves || rules.iter().any(|(rule, _)| later(rule));
        let verdict_only = !settings.report_allowed() && !charges_later;
        let prepared = ArcSwap::from_pointee(prepared);
        let failing = AtomicBool::new(false);
        let held = Arc::default();
        Self {
            engine,
            rules,
            prepared,
            ids,
            places: RwLock::default(),
            verdict_only,
            charges_later,
            reserves,
            settings,
            local,
            failing,
            held,
        }
    }

    /// Charges a request synchronously. Returns true if the request is allowed and no other part of
    /// the decision is needed. Returns false, without a charge, if the engine must be asked for a
    /// decision.
    #[inline]
    pub(crate) fn admit_at_once(&self, charges: &RequestCharges) -> bool {
        self.verdict_only
            && !self.failing.load(Ordering::Relaxed)
            && charges
                .only_for_engine(&self.ids)
                .is_some_and(|charge| self.engine.admit_at_once(&charge))
    }

    /// Changes the parameters of the rule or plan with this index. Its clients keep their history unless the
    /// algorithm changes.
    pub(crate) fn change(&self, place: usize, rule: &Rule) -> Result<(), EngineError> {
        let LayerRule { name, role, .. } = self.prepared.load()[place].clone();
        let changed = self.prepare(&name, rule.clone(), role)?;
        self.prepared.rcu(|rules| {
            let mut rules = Vec::clone(rules);
            rules[place] = changed.clone();
            rules
        });
        Ok(())
    }

    /// Prepares a rule in the engines.
    pub(crate) fn prepare(
        &self,
        name: &str,
        rule: Rule,
        role: Role,
    ) -> Result<LayerRule, EngineError> {
        let local = self.local.as_ref();
        LayerRule::new(&self.engine, local, name, rule, role, self.settings.status)
    }

    /// Charges a cost after the decision, at most `max_cost` to each rule.
    pub(crate) fn charge(
        &self,
        charges: &RequestCharges,
        cost: impl Fn(&RuleCharge) -> Cost,
    ) -> E::Decide {
        let prepared = self.prepared.load();
        let charges = charges.with(&prepared);
        let at_most = |charge: &_| cost(charge).min(charges.rule(charge).rule.max_cost());
        let charges = charges.with_costs(at_most);
        self.engine.decide(&charges, Mode::Charge, None)
    }

    /// Returns the terms of the request's reservation; `None` if no rule that applies to the request
    /// reserves its cost.
    #[inline]
    pub(crate) fn hold_terms(&self, charges: &RequestCharges) -> Option<HoldTerms> {
        let reserves = self.reserves
            && charges
                .iter()
                .any(|(_, charge)| charge.rule(&self.rules).reserved);
        reserves.then_some(self.settings.hold_terms)
    }

    /// Calls the hook for events.
    pub(crate) fn emit(&self, event: &Event<'_>) {
        if let Some(hook) = &self.settings.hook {
            hook(event);
        }
    }

    /// Takes a place among the requests that are held back, of which this is the number; `None` if all are taken.
    pub(crate) fn take_place(&self) -> Option<Arc<AtomicUsize>> {
        let max = self.settings.max_held;
        let one_more = |held: usize| (held < max).then_some(held + 1);
        let taken = self
            .held
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, one_more);
        taken.ok().map(|_| Arc::clone(&self.held))
    }

    pub(crate) fn held(&self) -> usize {
        self.held.load(Ordering::Relaxed)
    }
}

impl<E: Engine + Send + Sync + 'static> SharedLimits<E> {
    /// Starts to take back the charges of a request, which were made at the instant `at`.
    pub(crate) fn refund(self: &Arc<Self>, charges: &RequestCharges, at: Nanos) -> PendingCharge {
        let prepared = self.prepared.load();
        let charges = charges.with(&prepared).for_engine();
        let refund = |charge: &Charge<'_>| self.engine.refund(charge, Some(at), None);
        let refunds: Vec<_> = charges.iter().map(refund).collect();
        let shared = Arc::clone(self);
        PendingCharge::new(async move {
            for refund in refunds {
                if let Err(error) = refund.await {
                    shared.emit(&Event::EngineFailed(&error));
                }
            }
        })
    }
}
