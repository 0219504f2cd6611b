//! What becomes of a request, given what its engine said.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use bytes::Bytes;
use earrrl::{Decision, Engine, EngineError, Outcome, Quota};
use http::header::RETRY_AFTER;
use http::{Extensions, HeaderMap, Response, StatusCode};

use crate::asked::Asked;
use crate::event::Event;
use crate::headers::{self, Available};
use crate::known::Known;
use crate::marks::{Marks, first};
use crate::problem::Kind;
use crate::questions::{Questions, Told};
use crate::response::{Denial, Reason, grpc, is_grpc, problem_of};
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
    /// Headers of its response.
    marks: Marks,
    /// What few requests have.
    rare: Option<Box<Rare<E>>>,
}

struct Rare<E> {
    x_rate_limit: Option<(Quota, Available)>,
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

    /// Adds the headers to the response; what is charged by it.
    pub(crate) fn mark(&mut self, response: &mut HeaderMap) -> Option<After<E>> {
        std::mem::take(&mut self.marks).apply(response);
        let rare = self.rare.as_mut()?;
        if let Some((quota, available)) = rare.x_rate_limit {
            headers::x_rate_limit(quota, available, response);
        }
        rare.after.take()
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
        answer: Result<&Told, EngineError>,
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
                self.judged(asked, told, known, request)
            }
            // A cost above `max_cost` never passes; it must not be a way round either.
            Err(EngineError::Invalid(_)) => self.refuse(Reason::OverLimit, request),
            Err(error) => self.failed(asked, &error, request),
        }
    }

    /// A request whose answer tells no key, and must.
    pub(crate) fn no_key(&self, status: StatusCode, request: &HeaderMap) -> Response<Bytes> {
        self.answer(Reason::NoKey, status, Kind::Blank, request)
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
        let marks = Marks::new(told, known, asked);
        let x_rate_limit =
            if self.settings.x_rate_limit { first(told, known, asked) } else { None };
        if decision.outcome == Outcome::Deny {
            let mut response = self.over(asked, decision, known, request);
            marks.apply(response.headers_mut());
            if let Some((quota, available)) = x_rate_limit {
                headers::x_rate_limit(quota, available, response.headers_mut());
            }
            return Conclusion::Refuse(response);
        }
        let over = decision.outcome != Outcome::Allow || !decision.over.is_empty();
        let flagged = over || self.settings.always_verdict;
        let verdict = flagged.then(|| Verdict { rule: name.cloned(), decision: Some(*decision) });
        let pass = Pass { marks, rare: self.rare(asked, verdict, x_rate_limit) };
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

    fn rare(
        self: &Arc<Self>,
        asked: &Asked,
        verdict: Option<Verdict>,
        x_rate_limit: Option<(Quota, Available)>,
    ) -> Option<Box<Rare<E>>> {
        if !self.charges_later && verdict.is_none() && x_rate_limit.is_none() {
            return None;
        }
        let settled = asked.filtered(|of| of.rule(&self.rules).settled);
        let after = asked.filtered(|of| of.rule(&self.rules).cost_after.is_some());
        let settlement = settled.map(|asked| Settlement::new(Arc::clone(self), asked));
        let after = after.map(|asked| (Arc::clone(self), asked));
        Some(Box::new(Rare { x_rate_limit, after, verdict, settlement }))
    }

    /// The answer to a request that is over a limit.
    fn over(
        &self,
        asked: &Asked,
        decision: &Decision,
        known: &[Known],
        request: &HeaderMap,
    ) -> Response<Bytes> {
        let mut response = match asked.get(decision.rule) {
            _ if is_grpc(request) => grpc(Reason::OverLimit, Some(decision)),
            Some(of) if asked.only().is_some() && self.settings.respond.is_none() => {
                problem_of(self.settings.status, of.known(known).problem.clone())
            }
            _ => self.over_limit(asked, decision, known),
        };
        if let Some(wait) = headers::retry_after(decision) {
            response.headers_mut().insert(RETRY_AFTER, wait);
        }
        response
    }

    /// The answer where it is one of one's own, or several rules are to be told of.
    fn over_limit(&self, asked: &Asked, decision: &Decision, known: &[Known]) -> Response<Bytes> {
        let over = asked.each().filter(|(place, _)| decision.is_over(*place));
        let rules = over.map(|(_, of)| of.known(known)).filter(|known| known.is_shown());
        let deciding = asked.get(decision.rule).map(|of| of.known(known));
        let denial = Denial {
            reason: Reason::OverLimit,
            status: self.settings.status,
            verdict: &Verdict {
                rule: deciding.map(|known| known.name.clone()),
                decision: Some(*decision),
            },
            violated: rules.map(|known| &*known.name).collect(),
            kind: deciding.map_or(Kind::QuotaExceeded, |known| Kind::of(known.rule.limit())),
        };
        self.respond(&denial)
    }

    fn refuse(&self, reason: Reason, request: &HeaderMap) -> Conclusion<E> {
        let (status, kind) = match reason {
            Reason::EngineFailed => (StatusCode::SERVICE_UNAVAILABLE, Kind::Blank),
            _ => (self.settings.status, Kind::QuotaExceeded),
        };
        Conclusion::Refuse(self.answer(reason, status, kind, request))
    }

    /// An answer for which no decision was needed.
    fn answer(
        &self,
        reason: Reason,
        status: StatusCode,
        kind: Kind,
        request: &HeaderMap,
    ) -> Response<Bytes> {
        if is_grpc(request) {
            return grpc(reason, None);
        }
        let verdict = &Verdict::default();
        self.respond(&Denial { reason, status, verdict, violated: Vec::new(), kind })
    }

    fn respond(&self, denial: &Denial<'_>) -> Response<Bytes> {
        self.settings.respond.as_ref().map_or_else(|| denial.problem(), |respond| respond(denial))
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
                    Poll::Ready(Ok(told)) => self.judged(asked, told, &known, request),
                    _ => self.refuse(Reason::OverLimit, request),
                }
            }
            _ => Conclusion::Pass(Pass::plain()),
        }
    }
}
