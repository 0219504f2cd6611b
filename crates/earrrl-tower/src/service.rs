//! The service that limits the requests to an inner service.

use std::fmt;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use bytes::Bytes;
use earrrl::{Actual, Cost, Engine, HoldId, RuleId};
use http::{HeaderMap, Request, Response};
use http_body::Body;
use tower_service::Service;

use crate::charges::{LayerRule, RequestCharges, RuleCharge};
use crate::conclusion::{Judged, Passed};
use crate::future::{ResponseFuture, WaitingRequest};
use crate::lasting::{Lasting, PendingCharge};
use crate::pending::PendingDecision;
use crate::request_hold::{HoldGuard, ReservedRule};
use crate::response::ResponseBody;
use crate::shared::SharedLimits;
use crate::verdict::Event;

/// A service that limits the requests to an inner service.
///
/// A [`RateLimitLayer`](crate::RateLimitLayer) makes it.
///
/// ```
/// use earrrl::MemoryEngine;
/// use earrrl_tower::{ClientAddress, RateLimit, RateLimitLayer, RequestRule};
/// use tower::Layer;
///
/// let rule = RequestRule::new("api", "gcra 5/s burst=20".parse()?, ClientAddress::default());
/// let layer = RateLimitLayer::builder(MemoryEngine::new(1000)?).rule(rule).build()?;
/// let inner = tower::service_fn(async |_: http::Request<()>| {
///     Ok::<_, std::convert::Infallible>(http::Response::new(String::new()))
/// });
/// let limited: RateLimit<_, MemoryEngine> = layer.layer(inner);
/// # let _ = limited;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct RateLimit<S, E> {
    inner: S,
    shared: Arc<SharedLimits<E>>,
}

impl<S, E> RateLimit<S, E> {
    pub(crate) fn new(inner: S, shared: Arc<SharedLimits<E>>) -> Self {
        Self { inner, shared }
    }
}

impl<S: Clone, E> Clone for RateLimit<S, E> {
    fn clone(&self) -> Self {
        Self {
            inner: self.inner.clone(),
            shared: Arc::clone(&self.shared),
        }
    }
}

impl<S: fmt::Debug, E> fmt::Debug for RateLimit<S, E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RateLimit")
            .field("inner", &self.inner)
            .finish_non_exhaustive()
    }
}

impl<S, E, B, R> Service<Request<B>> for RateLimit<S, E>
where
    S: Service<Request<B>, Response = Response<R>> + Clone,
    R: Body<Data = Bytes>,
    E: Engine + Send + Sync + 'static,
    E::Decide: Unpin,
{
    type Response = Response<ResponseBody<R>>;
    type Error = S::Error;
    type Future = ResponseFuture<S, B, E, R>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(context)
    }

    #[inline]
    fn call(&mut self, request: Request<B>) -> Self::Future {
        let (mut parts, body) = request.into_parts();
        let mut charges = RequestCharges::default();
        if let Err(status) = self.shared.read(&mut charges, &parts) {
            return ResponseFuture::answered(self.shared.no_key(status, &parts.headers));
        }
        if charges.is_empty() || self.shared.admit_at_once(&charges) {
            let request = Request::from_parts(parts, body);
            return ResponseFuture::serving(self.inner.call(request), Passed::plain());
        }
        match self.shared.decide(&charges, &parts.headers) {
            Progress::Concluded(Judged::Pass(mut pass)) if pass.delay.is_zero() => {
                pass.enter(&mut parts.extensions);
                let request = Request::from_parts(parts, body);
                ResponseFuture::serving(self.inner.call(request), pass)
            }
            Progress::Concluded(Judged::Refuse(response)) => ResponseFuture::answered(response),
            Progress::Concluded(Judged::Pass(pass)) => {
                let service = self.take_ready();
                let request = Request::from_parts(parts, body);
                ResponseFuture::waiting(WaitingRequest::for_turn(service, request, pass))
            }
            Progress::Pending(decision) => {
                let service = self.take_ready();
                let request = Request::from_parts(parts, body);
                let shared = Arc::clone(&self.shared);
                let waiting =
                    WaitingRequest::for_decision(service, request, shared, charges, decision);
                ResponseFuture::waiting(waiting)
            }
        }
    }
}

/// The state of a decision: made or in flight.
pub(crate) enum Progress<E: Engine> {
    Concluded(Judged),
    Pending(PendingDecision<E::Decide>),
}

impl<E> SharedLimits<E>
where
    E: Engine + Send + Sync + 'static,
    E::Decide: Unpin,
{
    /// Starts a decision by one of the layer's engines, which reserves the costs of the request if a
    /// rule that applies to it does so.
    pub(crate) fn start<G: Engine>(
        self: &Arc<Self>,
        engine: &G,
        prepared: &[LayerRule],
        charges: &RequestCharges,
        is_local: bool,
    ) -> PendingDecision<G::Decide>
    where
        G::Decide: Unpin,
    {
        let Some(terms) = self.hold_terms(charges) else {
            return PendingDecision::new(engine, prepared, charges);
        };
        let holding = engine.place_hold(&charges.for_engine(prepared), terms, None);
        let mut rules = self.reserved_rules(prepared, charges);
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
            Some((local, _)) if is_local => local.commit_hold(id, actual, None),
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
    fn reserved_rules(
        &self,
        prepared: &[LayerRule],
        charges: &RequestCharges,
    ) -> Vec<(usize, ReservedRule)> {
        let reserved = charges
            .iter()
            .filter(|(_, charge)| charge.rule(&self.rules).reserved);
        let rule = |(place, charge): (usize, &RuleCharge)| {
            let prepared = charge.prepared(prepared);
            let rule = ReservedRule {
                name: Arc::clone(&prepared.name),
                id: prepared.id,
                max_cost: prepared.rule.max_cost(),
                granted: Cost::ZERO,
                actual: None,
            };
            (place, rule)
        };
        reserved.map(rule).collect()
    }

    /// Requests the engine's decision. An engine in memory decides at once, and the inner service
    /// can then be called as it is; it is cloned only for a request that must wait.
    #[inline]
    pub(crate) fn decide(
        self: &Arc<Self>,
        charges: &RequestCharges,
        request: &HeaderMap,
    ) -> Progress<E> {
        let prepared = self.prepared.load();
        let mut pending = self.start(&self.engine, &prepared, charges, false);
        let context = &mut Context::from_waker(Waker::noop());
        let on_allowed = self.settings.headers_on_allowed;
        match pending.poll(context, &self.engine, &prepared, charges, on_allowed) {
            Poll::Ready(answer) => {
                Progress::Concluded(self.conclude(charges, answer, &prepared, request))
            }
            Poll::Pending => Progress::Pending(pending),
        }
    }
}

impl<S, E> RateLimit<S, E> {
    /// Returns the inner service, which `poll_ready` found ready, and replaces it by a clone, which
    /// may not be ready.
    fn take_ready(&mut self) -> S
    where
        S: Clone,
    {
        let clone = self.inner.clone();
        std::mem::replace(&mut self.inner, clone)
    }
}
