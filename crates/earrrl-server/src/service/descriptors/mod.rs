//! Envoy's rate limit service: a request's descriptors, and the answer for each.
//!
//! Messages are the wire's own types, which are plain data; `asked` finds the limits that they
//! match, `answer` reports the decision.

mod answer;
mod asked;
pub mod counts;
mod headers;
mod metadata;
pub mod overrides;
pub mod prepared;
mod verdict;

use std::time::Instant;

use earrrl::{Clock, Decision, EngineError, Mode};
use smallvec::SmallVec;
use tokio::time::error::Elapsed;

pub(super) use self::answer::undecided;
use self::asked::{Asked, AskedLimit, Hits};
use self::prepared::{Descriptors, LimitKind};
use self::verdict::Verdicts;
use super::error::AskError;
use super::rules::ActiveRules;
use crate::engine::Engine;
use crate::protobuf::ratelimit::{RateLimitRequest, RateLimitResponse};

impl Descriptors {
    /// Answers a request. The error of one descriptor counts only where no other one denies.
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
        let Asked { limits: mut shares, failed } = asked::asked(self, rules, request, engine)?;
        asked::place(&mut shares)?;
        if mode != Mode::Peek {
            refund(engine, &shares).await?;
        }
        let charges = asked::charges(&shares);
        let mode = match mode {
            Mode::Check => self.mode(&shares, request),
            mode => mode,
        };
        let decision = match &*charges {
            [] => None,
            charges => Some(engine.decide(charges, mode).await?),
        };
        let figures = figures(engine, &shares, decision.as_ref()).await?;
        let verdicts = Verdicts::new(&shares, figures, decision.as_ref(), clock.now());
        if verdicts.over()
            && decision.is_some_and(|decision| decision.allowed)
            && mode == Mode::Check
        {
            give_back(engine, &shares, &verdicts).await?;
        }
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

/// Refunds the hits that descriptors ask to have refunded.
async fn refund(engine: &Engine, shares: &[AskedLimit<'_>]) -> Result<(), AskError> {
    for share in shares {
        if let (Hits::Refunded(hits), Some(rule)) = (share.hits, share.counted()) {
            let charge = earrrl::Charge { rule, key: &share.key, cost: share.cost(hits) };
            engine.refund(&charge, None).await?;
        }
    }
    Ok(())
}

/// Refunds the charges of a request that is denied because all quotas are over.
async fn give_back(
    engine: &Engine,
    shares: &[AskedLimit<'_>],
    verdicts: &Verdicts,
) -> Result<(), AskError> {
    for (share, verdict) in shares.iter().zip(&verdicts.each) {
        if let (Hits::Charged(hits), Some(rule), false) =
            (share.hits, share.counted(), verdict.over)
        {
            let charge = earrrl::Charge { rule, key: &share.key, cost: share.cost(hits) };
            engine.refund(&charge, None).await?;
        }
    }
    Ok(())
}

/// Returns the figures of each share's limit by itself. A decision has those of one limit; the others
/// are peeked at.
async fn figures(
    engine: &Engine,
    shares: &[AskedLimit<'_>],
    decision: Option<&Decision>,
) -> Result<SmallVec<[Option<Decision>; 2]>, AskError> {
    let counted = shares.iter().filter(|share| share.counted().is_some()).count();
    let ask = |share: &AskedLimit<'_>| {
        let hits = if let Hits::Charged(hits) = share.hits { hits } else { 0 };
        (share.counted(), share.key.clone(), share.cost(hits))
    };
    if let (1, Some(decision)) = (counted, decision) {
        let told = |share: &AskedLimit<'_>| share.counted().map(|_| *decision);
        return Ok(shares.iter().map(told).collect());
    }
    let asked = shares.iter().map(ask).map(|(rule, key, cost)| async move {
        let Some(rule) = rule else { return Ok::<_, EngineError>(None) };
        let charge = earrrl::Charge { rule, key: &key, cost };
        engine.decide(&[charge], Mode::Peek).await.map(Some)
    });
    let figures = futures_util::future::join_all(asked).await;
    Ok(figures.into_iter().collect::<Result<_, _>>()?)
}

/// An answer in time: after the deadline Envoy lets a request pass, and counts an error.
pub(super) async fn in_time<F: Future>(answer: F, deadline: Instant) -> Result<F::Output, Elapsed> {
    // A quarter of the time is for the way back.
    let left = deadline.saturating_duration_since(Instant::now()) * 3 / 4;
    tokio::time::timeout(left, answer).await
}
