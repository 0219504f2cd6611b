//! Judging a request: its charges are read, the engine decides, and the decision is converted to the treatment of the
//! request. The service of the layer waits for an engine that does not answer at once; middleware of other frameworks
//! and languages calls [`judge`](crate::RateLimitLayer::judge), which does not wait.

use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker, ready};

use earrrl::{Actual, Cost, Engine, HoldId, RuleId};
use http::request::Parts;

use crate::charges::{PreparedCharges, RequestCharges, RuleCharge};
use crate::conclusion::{Judged, Passed};
use crate::lasting::{Lasting, PendingCharge};
use crate::pending::PendingDecision;
use crate::request_hold::{HoldGuard, ReservedRule};
use crate::response::{Reason, is_grpc};
use crate::shared::SharedLimits;
use crate::verdict::Event;

/// The state of a decision: made or in flight.
pub(crate) enum Progress<E: Engine> {
    Concluded(Judged),
    Pending(PendingDecision<E::Decide>),
}

/// The future of a request's treatment, for which the request waits.
pub(crate) type Judging = Pin<Box<dyn Future<Output = Judged> + Send>>;

impl<E> SharedLimits<E>
where
    E: Engine + Send + Sync + 'static,
    E::Decide: Unpin,
{
    /// Reads the charges of a request, and requests the engine's decision if there are any.
    #[inline]
    pub(crate) fn judge(
        self: &Arc<Self>,
        charges: &mut RequestCharges,
        request: &Parts,
    ) -> Progress<E> {
        let is_grpc = || is_grpc(&request.headers);
        if let Err(status) = self.read(charges, request) {
            return Progress::Concluded(self.refuse(Reason::NoKey, status, &is_grpc));
        }
        if charges.is_empty() || self.admit_at_once(charges) {
            return Progress::Concluded(Judged::Pass(Passed::plain()));
        }
        let prepared = self.prepared.load();
        let charges = charges.with(&prepared);
        let mut pending = self.start(&self.engine, charges);
        let context = &mut Context::from_waker(Waker::noop());
        let on_allowed = self.settings.headers_on_allowed;
        match pending.poll(context, &self.engine, charges, on_allowed) {
            Poll::Ready(answer) => Progress::Concluded(self.conclude(charges, answer, &is_grpc)),
            Poll::Pending => Progress::Pending(pending),
        }
    }

    /// Returns the future of the treatment of a request whose decision is in flight.
    pub(crate) fn later(
        self: &Arc<Self>,
        charges: RequestCharges,
        mut pending: PendingDecision<E::Decide>,
        is_grpc: bool,
    ) -> Judging {
        let shared = Arc::clone(self);
        Box::pin(poll_fn(move |context| {
            let prepared = shared.prepared.load();
            let on_allowed = shared.settings.headers_on_allowed;
            let charges = charges.with(&prepared);
            let answer = ready!(pending.poll(context, &shared.engine, charges, on_allowed));
            Poll::Ready(shared.conclude(charges, answer, &|| is_grpc))
        }))
    }

    /// Starts a decision by one of the layer's engines, which reserves the costs of the request if a
    /// rule that applies to it does so.
    pub(crate) fn start<G: Engine>(
        self: &Arc<Self>,
        engine: &G,
        charges: PreparedCharges<'_>,
    ) -> PendingDecision<G::Decide>
    where
        G::Decide: Unpin,
    {
        let Some(terms) = self.hold_terms(charges.charges) else {
            return PendingDecision::new(engine, charges);
        };
        let holding = engine.place_hold(&charges.for_engine(), terms, None);
        let mut rules = self.reserved_rules(charges);
        let is_local = charges.is_local;
        let shared = Arc::clone(self);
        PendingDecision::Placing(Lasting::new(async move {
            let holding = holding.await?;
            for (place, rule) in &mut rules {
                rule.granted = holding.granted().get(*place).copied().unwrap_or_default();
            }
            let guard = holding.id.map(|id| {
                let rules = rules.into_iter().map(|(_, rule)| rule).collect();
                let commit = move |costs: &[(RuleId, Cost)]| shared.commit(id, costs, is_local);
                HoldGuard::new(rules, Box::new(commit))
            });
            Ok((holding.decision, guard))
        }))
    }

    /// Starts to correct a reservation to the actual costs, in the engine in which it is.
    fn commit(
        self: &Arc<Self>,
        id: HoldId,
        costs: &[(RuleId, Cost)],
        is_local: bool,
    ) -> PendingCharge {
        let actual = Actual::ByRule(costs);
        let committed = match &self.local {
            Some(local) if is_local => local.commit_hold(id, actual, None),
            _ => self.engine.commit_hold(id, actual, None),
        };
        let shared = Arc::clone(self);
        PendingCharge::new(async move {
            if let Err(error) = committed.await {
                shared.emit(&Event::CommitFailed(&error));
            }
        })
    }

    /// Returns the rules whose costs are reserved, each with its place among the charges.
    fn reserved_rules(&self, charges: PreparedCharges<'_>) -> Vec<(usize, ReservedRule)> {
        let reserved = charges
            .charges
            .iter()
            .filter(|(_, charge)| charge.rule(&self.rules).reserved);
        let rule = |(place, charge): (usize, &RuleCharge)| {
            let prepared = charges.rule(charge);
            let rule = ReservedRule {
                name: Arc::clone(&prepared.name),
                id: charges.id(prepared),
                max_cost: prepared.rule.max_cost(),
                granted: Cost::ZERO,
                actual: Some(Cost::ZERO),
            };
            (place, rule)
        };
        reserved.map(rule).collect()
    }
}
