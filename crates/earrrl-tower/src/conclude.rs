//! What becomes of a request, given what its engine said.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use bytes::Bytes;
use earrrl::{Engine, EngineError, Outcome};
use http::header::RETRY_AFTER;
use http::{Extensions, HeaderMap, Response, StatusCode};

use crate::asked::Asked;
use crate::event::Event;
use crate::headers;
use crate::known::Known;
use crate::marks::Marks;
use crate::problem::Kind;
use crate::questions::{Questions, Told};
use crate::response::{Denial, Reason, is_grpc};
use crate::settlement::Settlement;
use crate::shared::{Held, OnFailure, Shared};
use crate::verdict::Verdict;

/// What becomes of a request.
pub(crate) enum Conclusion<E> {
    /// It is passed on.
    Pass(Pass<E>),
    /// It is passed on after a while.
    Hold(Pass<E>, Duration, Held<E>),
    /// It is answered.
    Refuse(Response<Bytes>),
}

/// What a request that is passed on takes along.
pub(crate) struct Pass<E> {
    /// The headers of its response.
    pub(crate) marks: Marks,
    /// What few requests have.
    rare: Option<Box<Rare<E>>>,
}

struct Rare<E> {
    after: Option<After<E>>,
    verdict: Option<Verdict>,
    settlement: Option<Settlement>,
}

/// What is charged by a response.
pub(crate) type After<E> = (Arc<Shared<E>>, Asked);

impl<E> Pass<E> {
    /// With nothing to take along.
    pub(crate) fn plain() -> Self {
        Self { marks: Marks::default(), rare: None }
    }

    /// Puts into the request what a handler may look for.
    pub(crate) fn equip(&mut self, extensions: &mut Extensions) {
        let Some(rare) = &mut self.rare else { return };
        if let Some(verdict) = rare.verdict.take() {
            extensions.insert(verdict);
        }
        if let Some(settlement) = rare.settlement.take() {
            extensions.insert(settlement);
        }
    }

    /// What is charged by the response.
    pub(crate) fn after(self) -> Option<After<E>> {
        self.rare?.after
    }
}

impl<E> Shared<E>
where
    E: Engine + Send + Sync + 'static,
    E::Decide: Unpin,
{
    /// Concludes from the engine's answer. `request` is the request's headers.
    pub(crate) fn conclude(
        self: &Arc<Self>,
        asked: &Asked,
        answer: Result<Told, EngineError>,
        known: &[Known],
        request: &HeaderMap,
    ) -> Conclusion<E> {
        match answer {
            Ok(told) => {
                if self.failing.load(Ordering::Relaxed)
                    && self.failing.swap(false, Ordering::Relaxed)
                {
                    tracing::info!("the rate limiter's engine answers again");
                }
                self.judged(asked, &told, known, request)
            }
            // A cost above `max_cost` never passes; it must not be a way round either.
            Err(EngineError::Invalid(_)) => self.refuse(Reason::OverLimit, request),
            Err(error) => self.failed(asked, &error, request),
        }
    }

    /// A request whose answer tells no key, and must.
    pub(crate) fn no_key(&self, status: StatusCode, request: &HeaderMap) -> Response<Bytes> {
        let kind = Kind::Blank;
        let verdict = Verdict::default();
        let reason = Reason::NoKey;
        self.answer(&Denial { reason, status, verdict: &verdict, violated: vec![], kind }, request)
    }

    fn judged(
        self: &Arc<Self>,
        asked: &Asked,
        told: &Told,
        known: &[Known],
        request: &HeaderMap,
    ) -> Conclusion<E> {
        let decision = &told.decision;
        let name = asked.get(decision.rule).map(|of| &of.known(known).name);
        self.tell(&Event::Decided { rule: name.map_or("", |name| name), decision });
        let marks = Marks::new(told, known, asked, self.settings.x_rate_limit);
        let verdict = || Verdict { rule: name.cloned(), decision: Some(*decision) };
        if decision.outcome == Outcome::Deny {
            return Conclusion::Refuse(self.over(asked, &verdict(), known, marks, request));
        }
        let over = decision.outcome != Outcome::Allow || !decision.over.is_empty();
        let flagged = over || self.settings.always_verdict;
        let pass = self.pass(asked, marks, flagged.then(verdict));
        if decision.delay.is_zero() {
            return Conclusion::Pass(pass);
        }
        match self.hold() {
            Some(held) => Conclusion::Hold(pass, decision.delay, held),
            None => {
                self.tell(&Event::TooManyHeld);
                self.refuse(Reason::TooManyHeld, request)
            }
        }
    }

    fn pass(self: &Arc<Self>, asked: &Asked, marks: Marks, verdict: Option<Verdict>) -> Pass<E> {
        let settled = asked.only(|of| of.rule(&self.rules).settled);
        let after = asked.only(|of| of.rule(&self.rules).cost_after.is_some());
        if settled.is_none() && after.is_none() && verdict.is_none() {
            return Pass { marks, rare: None };
        }
        let settlement = settled.map(|asked| Settlement::new(Arc::clone(self), asked));
        let after = after.map(|asked| (Arc::clone(self), asked));
        Pass { marks, rare: Some(Box::new(Rare { after, verdict, settlement })) }
    }

    /// The answer to a request that is over a limit.
    fn over(
        &self,
        asked: &Asked,
        verdict: &Verdict,
        known: &[Known],
        marks: Marks,
        request: &HeaderMap,
    ) -> Response<Bytes> {
        let decision = verdict.decision.as_ref();
        let over = |place| decision.is_some_and(|decision| decision.is_over(place));
        let over = asked.each().filter(|(place, _)| over(*place));
        let rules = over.map(|(_, of)| of.known(known)).filter(|known| known.is_shown());
        let violated: Vec<&str> = rules.map(|known| &*known.name).collect();
        let deciding = decision.and_then(|decision| asked.get(decision.rule));
        let kind =
            deciding.map_or(Kind::QuotaExceeded, |of| Kind::of(of.known(known).rule.limit()));
        let (reason, status) = (Reason::OverLimit, self.settings.status);
        let denial = Denial { reason, status, verdict, violated, kind };
        let mut response = self.answer(&denial, request);
        marks.apply(response.headers_mut());
        if let Some(wait) = decision.and_then(headers::retry_after) {
            response.headers_mut().insert(RETRY_AFTER, wait);
        }
        response
    }

    fn refuse(&self, reason: Reason, request: &HeaderMap) -> Conclusion<E> {
        let (status, kind) = match reason {
            Reason::EngineFailed => (StatusCode::SERVICE_UNAVAILABLE, Kind::Blank),
            _ => (self.settings.status, Kind::QuotaExceeded),
        };
        let verdict = Verdict::default();
        let denial = Denial { reason, status, verdict: &verdict, violated: vec![], kind };
        Conclusion::Refuse(self.answer(&denial, request))
    }

    fn answer(&self, denial: &Denial<'_>, request: &HeaderMap) -> Response<Bytes> {
        match &self.settings.respond {
            _ if is_grpc(request) => denial.grpc(),
            Some(respond) => respond(denial),
            None => denial.problem(),
        }
    }

    fn failed(
        self: &Arc<Self>,
        asked: &Asked,
        error: &EngineError,
        request: &HeaderMap,
    ) -> Conclusion<E> {
        if !self.failing.swap(true, Ordering::Relaxed) {
            let on_failure = self.settings.on_failure;
            tracing::warn!(%error, ?on_failure, "the rate limiter's engine fails");
        }
        self.tell(&Event::EngineFailed(error));
        match (self.settings.on_failure, &self.local) {
            (OnFailure::Deny, _) => self.refuse(Reason::EngineFailed, request),
            (OnFailure::Local(_), Some((engine, known))) => {
                let known = known.load();
                let on_allowed = self.settings.headers_on_allowed;
                let context = &mut Context::from_waker(Waker::noop());
                let mut questions = Questions::new(engine, &known, asked);
                match questions.poll(context, engine, &known, asked, on_allowed) {
                    Poll::Ready(Ok(told)) => self.judged(asked, &told, &known, request),
                    _ => self.refuse(Reason::OverLimit, request),
                }
            }
            _ => Conclusion::Pass(Pass::plain()),
        }
    }
}
