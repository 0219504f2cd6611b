//! The consequence of an engine's answer: a request is passed on, held back or denied, and its response
//! gets headers.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use bytes::Bytes;
use earrrl::{Decision, Engine, EngineError, Outcome, Quota};
use http::header::RETRY_AFTER;
use http::{Extensions, HeaderMap, HeaderValue, Response, StatusCode, response};

use crate::charges::{PreparedCharges, RequestCharges};
use crate::headers::{self, Available, current};
use crate::held::Held;
use crate::lasting::PendingCharge;
use crate::pending::ItemizedDecision;
use crate::problem::Kind;
use crate::request_hold::HoldGuard;
use crate::response::{Denial, IsGrpc, Reason, grpc, problem_of};
use crate::settlement::{ChargeByResponse, CostAfter, Settlement};
use crate::shared::{OnFailure, SharedLimits};
use crate::verdict::{Event, Verdict};

/// The treatment of a request that [`RateLimitLayer::judge`](crate::RateLimitLayer::judge) returns.
#[derive(Debug)]
#[non_exhaustive]
pub enum Judged {
    /// The request is passed on, after its delay.
    Pass(Passed),
    /// The request is not passed on. This is its response.
    Refuse(Response<Bytes>),
}

/// A request that is passed on: first wait for [`delay`](Self::delay), then call
/// [`enter`](Self::enter), pass the request on, and call [`leave`](Self::leave) with its response.
pub struct Passed {
    pub(crate) delay: Duration,
    headers: RateLimitHeaders,
    /// Boxed, since few requests have any of these.
    extras: Option<Box<Extras>>,
}

struct Extras {
    /// The charge by the response, while the request may still be dropped without one.
    charge: Option<ChargeByResponse>,
    /// The same charge once the service is called. It is then made in any case.
    cost_after: Option<CostAfter>,
    verdict: Option<Verdict>,
    settlement: Option<Settlement>,
    hold: Option<HoldGuard>,
    held: Option<Held>,
}

impl Extras {
    /// Makes sure that the charge by the response is made, even if the request is dropped from now on.
    fn arm(&mut self) {
        if let Some(charge) = self.charge.take() {
            self.cost_after = Some(CostAfter(Some(charge)));
        }
    }
}

impl Passed {
    /// Returns an empty value, which adds nothing to the request or its response.
    pub(crate) fn plain() -> Self {
        Self {
            delay: Duration::ZERO,
            headers: RateLimitHeaders::default(),
            extras: None,
        }
    }

    /// Returns true if the request has no delay and adds nothing but headers: [`leave`](Self::leave) may be called at
    /// once, with any response.
    pub fn is_plain(&self) -> bool {
        self.delay.is_zero() && self.extras.is_none()
    }

    /// Returns the values of `RateLimit` and `RateLimit-Policy`, as far as the response gets them; `None` if it gets the
    /// older headers, too.
    pub fn rate_limit(&self) -> Option<[Option<&HeaderValue>; 2]> {
        let headers = &self.headers;
        let values = [headers.limits.as_ref(), headers.policies.as_ref()];
        headers.older.is_none().then_some(values)
    }

    /// Returns the time for which the request must be held back; zero for most requests.
    pub fn delay(&self) -> Duration {
        self.delay
    }

    /// Adds the [`Verdict`], the [`Settlement`] and the [`RequestHold`](crate::RequestHold), if there are any, to the
    /// request's extensions. To be called just before the request is passed on: from then on, a request without a
    /// response is charged, too.
    pub fn enter(&mut self, request: &mut Extensions) {
        let Some(extras) = &mut self.extras else {
            return;
        };
        if let Some(held) = extras.held.take() {
            held.pass_on();
        }
        extras.arm();
        if let Some(verdict) = extras.verdict.take() {
            request.insert(verdict);
        }
        if let Some(settlement) = extras.settlement.take() {
            request.insert(settlement);
        }
        if let Some(hold) = &mut extras.hold {
            request.insert(hold.enter());
        }
    }

    /// Adds the headers to the response, charges the costs that depend on it, and commits the
    /// reservation.
    pub fn leave(mut self, response: &mut response::Parts) {
        // An engine in memory has charged the cost, and committed, when these values are dropped.
        drop(self.finish(response));
    }

    /// Adds the headers to the response. Returns the charge that depends on the response, and the reservation, which is
    /// committed when the response's body ends.
    pub(crate) fn finish(
        &mut self,
        response: &mut response::Parts,
    ) -> (Option<PendingCharge>, Option<HoldGuard>) {
        std::mem::take(&mut self.headers).append_to(&mut response.headers);
        let Some(extras) = &mut self.extras else {
            return (None, None);
        };
        // A response is charged also if `enter` was not called.
        extras.arm();
        let cost_after = extras.cost_after.take();
        let charge = cost_after.and_then(|cost_after| cost_after.charge(response));
        (charge, extras.hold.take())
    }
}

impl fmt::Debug for Passed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Passed")
            .field("delay", &self.delay)
            .finish_non_exhaustive()
    }
}

impl<E> SharedLimits<E>
where
    E: Engine + Send + Sync + 'static,
    E::Decide: Unpin,
{
    /// Converts the engine's answer to the treatment of the request.
    pub(crate) fn conclude(
        self: &Arc<Self>,
        charges: PreparedCharges<'_>,
        answer: Result<&mut ItemizedDecision, EngineError>,
        is_grpc: IsGrpc<'_>,
    ) -> Judged {
        match answer {
            Ok(judgement) => {
                if self.failing.load(Ordering::Relaxed)
                    && self.failing.swap(false, Ordering::Relaxed)
                {
                    tracing::info!("the rate limiter's engine answers again");
                }
                self.judged(charges, judgement, is_grpc)
            }
            // A cost above `max_cost` is denied, and so is a request for which no reservation is
            // free. If these were treated as failures of the engine, the request could pass.
            Err(EngineError::Invalid(_) | EngineError::Reservations { .. }) => {
                self.refuse(Reason::OverLimit, self.settings.status, is_grpc)
            }
            Err(error) => self.failed(charges.charges, &error, is_grpc),
        }
    }

    fn judged(
        self: &Arc<Self>,
        charges: PreparedCharges<'_>,
        judgement: &mut ItemizedDecision,
        is_grpc: IsGrpc<'_>,
    ) -> Judged {
        let hold = judgement.reserved.take();
        let decision = &judgement.decision;
        let deciding = charges.rule_at(decision.rule);
        self.emit(&Event::Decided {
            rule: deciding.map_or("", |rule| &rule.name),
            decision,
        });
        let rate_limit = RateLimitHeaders::new(judgement, charges, self.settings.x_rate_limit);
        if decision.outcome == Outcome::Deny {
            let mut response = self.denied(charges, decision, is_grpc);
            rate_limit.append_to(response.headers_mut());
            return Judged::Refuse(response);
        }
        let over = decision.outcome != Outcome::Allow || !decision.over.is_empty();
        let flagged = over || self.settings.always_verdict;
        let verdict = deciding
            .filter(|_| flagged)
            .map(|rule| rule.verdict(decision));
        let mut held = None;
        if !decision.delay.is_zero() {
            // A reservation is released by its guard. The local engine is asked only during an outage.
            let is_refunded = hold.is_none() && !charges.is_local;
            held = Held::new(
                self,
                is_refunded.then(|| (charges.charges.clone(), decision.at)),
            );
            if held.is_none() {
                self.emit(&Event::TooManyHeld);
                return self.refuse(Reason::TooManyHeld, self.settings.status, is_grpc);
            }
        }
        let extras = Extras {
            charge: None,
            cost_after: None,
            verdict,
            settlement: None,
            hold,
            held,
        };
        Judged::Pass(Passed {
            delay: decision.delay,
            headers: rate_limit,
            extras: self.extras(charges.charges, extras),
        })
    }

    /// Adds the charges that are made later. Returns `None` if the request has no extras.
    fn extras(self: &Arc<Self>, charges: &RequestCharges, extras: Extras) -> Option<Box<Extras>> {
        if !self.charges_later && extras.verdict.is_none() && extras.held.is_none() {
            return None;
        }
        let settled = charges.filtered(|charge| charge.rule(&self.rules).settled);
        let after = charges.filtered(|charge| charge.rule(&self.rules).cost_after.is_some());
        Some(Box::new(Extras {
            settlement: settled.map(|charges| Settlement::new(Arc::clone(self), charges)),
            charge: after.map(|charges| Arc::clone(self).charge_by_response(charges)),
            ..extras
        }))
    }

    /// Returns the response to a request that is over a limit, without `RateLimit` headers.
    fn denied(
        &self,
        charges: PreparedCharges<'_>,
        decision: &Decision,
        is_grpc: IsGrpc<'_>,
    ) -> Response<Bytes> {
        let status = self.settings.status;
        let mut response = match charges.charges.only() {
            _ if is_grpc() => grpc(Reason::OverLimit, status, Some(decision)),
            Some(charge) if self.settings.respond.is_none() => {
                problem_of(status, charges.rule(charge).problem.clone())
            }
            _ => self.composed_denial(charges, decision),
        };
        if let Some(wait) = headers::retry_after(decision) {
            response.headers_mut().insert(RETRY_AFTER, wait);
        }
        response
    }

    /// Returns the response to a request that is over a limit if the prepared response does not
    /// apply, because there are several rules or the user's closure responds.
    fn composed_denial(
        &self,
        charges: PreparedCharges<'_>,
        decision: &Decision,
    ) -> Response<Bytes> {
        let over = charges.charges.iter();
        let over = over.filter(|(place, _)| decision.is_over(*place));
        let shown = over.filter_map(|(_, charge)| {
            let rule = charges.rule(charge);
            rule.is_shown().then_some(&*rule.name)
        });
        let deciding = charges.rule_at(decision.rule);
        self.respond(&Denial {
            reason: Reason::OverLimit,
            status: self.settings.status,
            verdict: &deciding
                .map(|rule| rule.verdict(decision))
                .unwrap_or_default(),
            violated: shown.collect(),
            kind: deciding.map_or(Kind::QuotaExceeded, |rule| Kind::of(rule.rule.limit())),
        })
    }

    /// Refuses a request without a decision.
    pub(crate) fn refuse(&self, reason: Reason, status: StatusCode, is_grpc: IsGrpc<'_>) -> Judged {
        if is_grpc() {
            return Judged::Refuse(grpc(reason, status, None));
        }
        Judged::Refuse(self.respond(&Denial {
            reason,
            status,
            verdict: &Verdict::default(),
            violated: Vec::new(),
            kind: match reason {
                Reason::OverLimit | Reason::TooManyHeld => Kind::QuotaExceeded,
                Reason::NoKey | Reason::EngineFailed => Kind::Blank,
            },
        }))
    }

    fn respond(&self, denial: &Denial<'_>) -> Response<Bytes> {
        self.settings
            .respond
            .as_ref()
            .map_or_else(|| denial.problem(), |respond| respond(denial))
    }

    /// Returns the treatment of a request that the engine has not decided.
    pub(crate) fn failed(
        self: &Arc<Self>,
        charges: &RequestCharges,
        error: &EngineError,
        is_grpc: IsGrpc<'_>,
    ) -> Judged {
        if !self.failing.swap(true, Ordering::Relaxed) {
            let on_failure = self.settings.on_failure;
            tracing::warn!(%error, ?on_failure, "the rate limiter's engine fails");
        }
        self.emit(&Event::EngineFailed(error));
        match (self.settings.on_failure, &self.local) {
            (OnFailure::Deny, _) => {
                let status = StatusCode::SERVICE_UNAVAILABLE;
                self.refuse(Reason::EngineFailed, status, is_grpc)
            }
            (_, Some(engine)) => {
                let prepared = self.prepared.load();
                let charges = PreparedCharges {
                    is_local: true,
                    ..charges.with(&prepared)
                };
                let on_allowed = self.settings.headers_on_allowed;
                let context = &mut Context::from_waker(Waker::noop());
                let mut pending = self.start(engine, charges);
                match pending.poll(context, engine, charges, on_allowed) {
                    Poll::Ready(Ok(judgement)) => self.judged(charges, judgement, is_grpc),
                    _ => self.refuse(Reason::OverLimit, self.settings.status, is_grpc),
                }
            }
            _ => Judged::Pass(Passed::plain()),
        }
    }
}

/// The headers of a response. They are written before the request is passed on, since the prepared
/// rules may have changed when its response arrives.
#[derive(Debug, Default)]
pub(crate) struct RateLimitHeaders {
    limits: Option<HeaderValue>,
    policies: Option<HeaderValue>,
    /// The figures of the older headers, which few layers have.
    older: Option<Box<(Quota, Available)>>,
}

impl RateLimitHeaders {
    /// Returns the headers of a decision; the older ones report only the deciding rule, which comes first.
    fn new(judgement: &ItemizedDecision, charges: PreparedCharges<'_>, has_older: bool) -> Self {
        let items = judgement.items.iter();
        let mut shown =
            items.filter_map(|item| Some((charges.rule_at(item.place)?, item.available?)));
        let first = has_older.then(|| shown.clone().next()).flatten();
        let older = first.map(|(rule, available)| Box::new((rule.quota, available)));
        if charges.charges.only().is_some() {
            let Some((rule, available)) = shown.next() else {
                return Self::default();
            };
            return Self {
                limits: current::limit(&rule.label, available),
                policies: rule.policy.clone(),
                older,
            };
        }
        let limits = shown
            .clone()
            .map(|(rule, available)| (&*rule.name, available));
        let policies = shown.map(|(rule, _)| (&*rule.name, rule.quota));
        Self {
            limits: current::limits(limits),
            policies: current::policies(policies),
            older,
        }
    }

    /// Appends the headers. They are lists, which an inner layer may have begun.
    pub(crate) fn append_to(self, headers: &mut HeaderMap) {
        if let Some(limits) = self.limits {
            headers.append(current::LIMIT, limits);
        }
        if let Some(policies) = self.policies {
            headers.append(current::POLICY, policies);
        }
        if let Some(older) = self.older {
            headers::x_rate_limit(older.0, older.1, headers);
        }
    }
}
