//! Envoy's rate limit service: decides the descriptors of a request, and builds the response.
//!
//! Requests and responses are the plain protobuf types. The module `asked` finds the limits that a
//! request matches, and `answer` reports the decision.

mod answer;
mod asked;
pub mod counts;
mod headers;
mod judged;
pub mod limit;
mod metadata;
pub mod overrides;
pub mod prepared;
mod reserve;
mod verdict;

use std::time::Instant;

use earrrl::{Charge, Clock, Decision, Mode};
use smallvec::SmallVec;
use tokio::time::error::Elapsed;

pub(super) use self::answer::undecided;
use self::asked::{Asked, AskedLimit, Hits};
use self::judged::JudgedRequest;
use self::prepared::{Descriptors, LimitKind};
use self::verdict::Verdicts;
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
        let Asked { limits: mut shares, mut failed } = asked::asked(self, rules, request, engine)?;
        asked::place(&mut shares);
        if mode != Mode::Peek {
            failed = failed.or(refund(engine, &shares).await);
        }
        let charges = asked::charges(&shares);
        let mode = match mode {
            Mode::Check => self.mode(&shares, request),
            mode => mode,
        };
        let judged = JudgedRequest::new(engine, &charges, mode).await;
        let figures = figures(engine, &shares, &judged).await;
        let verdicts = Verdicts::new(&shares, figures, &judged, clock.now());
        if verdicts.over() && mode == Mode::Check {
            give_back(engine, &shares, &verdicts, &judged).await;
        }
        let errors = shares.iter().filter_map(|share| judged.error(share.place?).cloned());
        let failed = failed.or_else(|| errors.map(AskError::from).next());
        if let (Some(error), false) = (failed, verdicts.over()) {
            return Err(error);
        }
        Ok(answer::response(self, request, &shares, &verdicts))
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
    fn mode(&self, shares: &[AskedLimit<'_>], request: &RateLimitRequest) -> Mode {
        let bills = |share: &AskedLimit<'_>| {
            let own = &request.descriptors[share.descriptor].hits_addend;
            own.is_some_and(|hits| hits > 0)
        };
        let denies = |share: &AskedLimit<'_>| {
            matches!(share.limit.kind, LimitKind::Zero(_))
                && !share.limit.shadow_mode
                && !share.limit.quota_mode
                && share.hits != Hits::Charged(0)
        };
        if self.config.drain_denied || shares.iter().any(bills) {
            Mode::Charge
        } else if shares.iter().any(denies) {
            Mode::Peek
        } else {
            Mode::Check
        }
    }
}

/// Makes the refunds that descriptors ask for, and returns the first error. A failed refund does
/// not prevent the other descriptors from being judged.
async fn refund(engine: &Engine, shares: &[AskedLimit<'_>]) -> Option<AskError> {
    let mut failed = None;
    for share in shares {
        if let (Hits::Refunded(hits), Some(rule)) = (share.hits, share.counted()) {
            let charge = Charge { rule, key: &share.key, cost: share.cost(hits) };
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
    shares: &[AskedLimit<'_>],
    verdicts: &Verdicts,
    judged: &JudgedRequest,
) {
    for (share, verdict) in shares.iter().zip(&verdicts.each) {
        let stored = share.place.is_some_and(|place| judged.is_stored(place));
        if let (Hits::Charged(hits), Some(rule), true, false) =
            (share.hits, share.counted(), stored, verdict.over)
        {
            let charge = Charge { rule, key: &share.key, cost: share.cost(hits) };
            // An error of the engine is ignored, since the request is denied in any case.
            let _ = engine.refund(&charge, None).await;
        }
    }
}

/// Returns the remaining quota and the waiting time under each limit. A decision has these figures
/// of one limit only, so the engine peeks at the other limits. The entry is `None` for a limit
/// that the engine does not count or cannot judge.
async fn figures(
    engine: &Engine,
    shares: &[AskedLimit<'_>],
    judged: &JudgedRequest,
) -> SmallVec<[Option<Decision>; 2]> {
    let counted = shares.iter().filter(|share| share.counted().is_some()).count();
    if let (1, Some(decision)) = (counted, judged.only()) {
        let told = |share: &AskedLimit<'_>| share.counted().map(|_| *decision);
        return shares.iter().map(told).collect();
    }
    let peeked = shares.iter().map(|share| async move {
        let hits = if let Hits::Charged(hits) = share.hits { hits } else { 0 };
        let charge = Charge { rule: share.counted()?, key: &share.key, cost: share.cost(hits) };
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
