//! Envoy's rate limit service: decides the descriptors of a request, and builds the response.
//!
//! Requests and responses are the plain protobuf types. The module `asked` finds the limits that a
//! request matches, and `answer` reports the decision.

mod answer;
mod asked;
pub mod counts;
pub mod plan;
pub mod prepared;
mod request_limit;
mod verdict;

use std::time::Instant;

use earrrl::{Clock, Decision, HoldId, HoldTerms, Mode};
use smallvec::SmallVec;
use tokio::time::error::Elapsed;

pub(super) use self::answer::undecided;
use self::asked::{Asked, AskedLimit, Hits};
use self::prepared::{Descriptors, LimitKind};
use self::request_limit::OwnCounts;
use self::verdict::{JudgedRequest, Verdicts};
use super::error::AskError;
use super::rules::ActiveRules;
use crate::engine::Engine;
use crate::protobuf::ratelimit::{RateLimitRequest, RateLimitResponse};

impl Descriptors {
    /// Decides a request and returns the response. An error for one descriptor fails the request
    /// only if no other descriptor denies it, and no rule denies it because it could not be
    /// judged.
    ///
    /// # Errors
    /// Returns an [`AskError`] if the request is invalid or the engine fails.
    pub async fn answer(
        &self,
        engine: &Engine,
        rules: &ActiveRules,
        clock: &dyn Clock,
        request: &RateLimitRequest,
        mode: Mode,
    ) -> Result<RateLimitResponse, AskError> {
        let Asked { limits, mut failed } = asked::asked(self, rules, request, engine)?;
        if mode != Mode::Peek {
            failed = failed.or(refund(engine, &limits).await);
        }
        let charges = asked::charges(&limits);
        let mode = match mode {
            Mode::Check => self.mode(&limits, request),
            mode => mode,
        };
        let judged = JudgedRequest::new(engine, &charges, mode).await;
        // Limits that the request brings come last, so that they count no request that others deny.
        let own_mode = if judged.ends(mode) { Mode::Peek } else { mode };
        let own = request_limit::count(engine, &limits, own_mode).await;
        let figures = figures(engine, &limits, &judged, &own).await;
        let verdicts = Verdicts::new(&limits, figures, &judged, clock.now());
        if verdicts.over() && mode == Mode::Check {
            give_back(engine, &limits, &verdicts, &judged).await;
            request_limit::give_back(engine, &limits, &own).await;
        }
        let errors = limits
            .iter()
            .filter_map(|asked| judged.error(asked.place?).cloned());
        let own_errors = own
            .iter()
            .flatten()
            .filter_map(|count| count.as_ref().err());
        let errors = errors.chain(own_errors.cloned());
        let failed = failed.or_else(|| errors.map(AskError::from).next());
        if let (Some(error), false) = (failed, verdicts.over()) {
            return Err(error);
        }
        answer::count(self, engine, request, &limits, &verdicts);
        Ok(answer::response(self, request, &limits, &verdicts))
    }

    /// Reserves the hits of a request under all limits that its descriptors match. Returns true if
    /// the request is allowed, and the id of the reservation; `None` if no limit counts the request
    /// or it is denied.
    ///
    /// # Errors
    /// Returns an [`AskError`] if the request or the terms are invalid, or the engine fails.
    pub async fn reserve(
        &self,
        engine: &Engine,
        rules: &ActiveRules,
        clock: &dyn Clock,
        request: &RateLimitRequest,
        terms: HoldTerms,
    ) -> Result<(bool, Option<HoldId>), AskError> {
        terms.check()?;
        if request.descriptors.iter().any(|one| one.limit.is_some()) {
            return Err(AskError::invalid(
                "descriptors: a reservation under a limit that it brings is not possible; expected none with `limit`",
            ));
        }
        let Asked { limits, failed } = asked::asked(self, rules, request, engine)?;
        if let Some(error) = failed {
            return Err(error);
        }
        let denied = limits.iter().any(|asked| {
            let is_zero = matches!(asked.kind, LimitKind::Zero(_));
            is_zero && !asked.shadow_mode && asked.hits != Hits::Charged(0)
        });
        let charges = asked::charges(&limits);
        let (judged, id) = if denied || charges.is_empty() {
            (JudgedRequest::default(), None)
        } else {
            let holding = engine.hold(&charges, terms).await?;
            (JudgedRequest::of(holding.decision), holding.id)
        };
        let allowed = !denied && judged.only().is_none_or(|decision| decision.allowed);
        let own = limits.iter().map(|_| None).collect();
        let figures = figures(engine, &limits, &judged, &own).await;
        let verdicts = Verdicts::new(&limits, figures, &judged, clock.now());
        answer::count(self, engine, request, &limits, &verdicts);
        Ok((allowed, id))
    }

    /// Returns true if a rule for a descriptor of the request denies what it cannot judge.
    pub fn denies_on_error(
        &self,
        engine: &Engine,
        rules: &ActiveRules,
        request: &RateLimitRequest,
    ) -> bool {
        let asked = asked::asked(self, rules, request, engine);
        asked.is_ok_and(|asked| asked.limits.iter().any(AskedLimit::denies_on_error))
    }

    /// Returns the mode in which the engine decides the request. Usually a denied request is not
    /// charged. All charges are stored whatever the verdict if a descriptor sets its own number of
    /// hits, since these report work that is already done, or if the configuration charges denied
    /// requests as envoyproxy/ratelimit does.
    fn mode(&self, limits: &[AskedLimit<'_>], request: &RateLimitRequest) -> Mode {
        let bills = |asked: &AskedLimit<'_>| {
            let own = &request.descriptors[asked.descriptor].hits_addend;
            own.is_some_and(|hits| hits > 0)
        };
        let denies = |asked: &AskedLimit<'_>| {
            matches!(asked.kind, LimitKind::Zero(_))
                && !asked.shadow_mode
                && !asked.quota_mode()
                && asked.hits != Hits::Charged(0)
        };
        if self.config.drain_denied || limits.iter().any(bills) {
            Mode::Charge
        } else if limits.iter().any(denies) {
            Mode::Peek
        } else {
            Mode::Check
        }
    }
}

/// Makes the refunds that descriptors ask for, and returns the first error. A failed refund does
/// not prevent the other descriptors from being judged.
async fn refund(engine: &Engine, limits: &[AskedLimit<'_>]) -> Option<AskError> {
    let mut failed = None;
    for asked in limits {
        let Hits::Refunded(hits) = asked.hits else {
            continue;
        };
        if let Some(charge) = asked.charge(hits) {
            let refunded = engine.refund(&charge, None).await;
            failed = failed.or(refunded.err());
        }
    }
    failed.map(AskError::from)
}

/// Refunds the charges that were stored for a request that is denied all the same, either because
/// all limits in quota mode are exceeded, or because a later batch of charges was denied.
async fn give_back(
    engine: &Engine,
    limits: &[AskedLimit<'_>],
    verdicts: &Verdicts,
    judged: &JudgedRequest,
) {
    for (asked, verdict) in limits.iter().zip(&verdicts.each) {
        let stored_at = asked.place.and_then(|place| judged.stored_at(place));
        let (Hits::Charged(hits), Some(at), false) = (asked.hits, stored_at, verdict.over) else {
            continue;
        };
        if let Some(charge) = asked.charge(hits) {
            // An error of the engine is ignored, since the request is denied in any case.
            let _ = engine.refund(&charge, Some(at)).await;
        }
    }
}

/// Returns the remaining quota and the waiting time under each limit. A decision has these figures
/// of one limit only, so the engine peeks at the other limits. The entry is `None` for a limit
/// that the engine does not count or cannot judge.
async fn figures(
    engine: &Engine,
    limits: &[AskedLimit<'_>],
    judged: &JudgedRequest,
    own: &OwnCounts,
) -> SmallVec<[Option<Decision>; 2]> {
    let counted = limits
        .iter()
        .filter(|asked| asked.counted().is_some())
        .count();
    if let (1, Some(decision)) = (counted, judged.only()) {
        let figures = |asked: &AskedLimit<'_>| asked.counted().map(|_| *decision);
        return limits.iter().map(figures).collect();
    }
    let peeked = limits.iter().zip(own).map(|(asked, own)| async move {
        if let Some(own) = own {
            return own.as_ref().ok().map(|count| count.decision);
        }
        let hits = if let Hits::Charged(hits) = asked.hits {
            hits
        } else {
            0
        };
        let charge = asked.charge(hits)?;
        engine.decide(&[charge], Mode::Peek).await.ok()
    });
    futures_util::future::join_all(peeked).await.into()
}

/// Waits for an answer until shortly before the deadline, after which Envoy would let the request
/// pass and count an error.
pub(super) async fn in_time<F: Future>(answer: F, deadline: Instant) -> Result<F::Output, Elapsed> {
    // A quarter of the remaining time is left for sending the response.
    let left = deadline.saturating_duration_since(Instant::now()) * 3 / 4;
    tokio::time::timeout(left, answer).await
}
