//! Envoy's rate limit service: a request's descriptors, and the answer for each.
//!
//! Messages are the wire's own types, which are plain data; `asked` finds the limits that they
//! match, `answer` reports the decision.

mod answer;
mod asked;
pub mod counts;
mod headers;
mod judged;
pub mod limit;
mod metadata;
pub mod overrides;
pub mod prepared;
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
    /// Answers a request. The error of one descriptor counts only where no other one denies, and no rule
    /// that failed denies for that reason.
    ///
    /// # Errors
    /// Returns an [`AskError`].
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

    /// Requests are stored all or nothing. What a descriptor bills by hits of its own has happened
    /// already, so it is stored whatever the verdict; and so is everything where the peer's way was
    /// asked for.
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

/// Refunds the hits that descriptors ask to have refunded, and returns the first error. It keeps no other
/// descriptor from being judged.
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

/// Refunds what was charged of a request that is denied all the same: all quotas are over, or a limit that
/// was asked later.
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
            // The denial stands where the engine fails now.
            let _ = engine.refund(&charge, None).await;
        }
    }
}

/// Returns the figures of each share's limit by itself. A decision has those of one limit; the others
/// are peeked at. `None` for what the engine does not count, or cannot judge.
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

/// An answer in time: after the deadline Envoy lets a request pass, and counts an error.
pub(super) async fn in_time<F: Future>(answer: F, deadline: Instant) -> Result<F::Output, Elapsed> {
    // A quarter of the time is for the way back.
    let left = deadline.saturating_duration_since(Instant::now()) * 3 / 4;
    tokio::time::timeout(left, answer).await
}
