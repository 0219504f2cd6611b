//! Limits that requests bring themselves, a number of requests per unit of time in the place of the
//! configured number; and refunds. Each is decided apart from the other limits of its request.
//!
//! The number is no part of a counter's key. A request that brings a number is counted where the
//! same descriptor is counted without one, so a client whose number changes goes on with its count,
//! and nothing is stored for a number. A descriptor without a configured limit in the request's unit
//! is counted under a limit that all such descriptors share, one for each unit.
//!
//! The engine stores the request whatever its limit says, and reports the count. The number is
//! compared with that count, and a request that exceeds it is refunded. Another request may meanwhile
//! see a count that is too high, but never one that is too low.

use std::time::Duration;

use earrrl::{Cost, Decision, EngineError, Mode, Outcome, Wait};
use earrrl_tower::headers::Available;
use smallvec::SmallVec;

use super::asked::{AskedLimit, Source, whole_seconds};
use crate::protobuf::ratelimit::RateLimit;
use crate::protobuf::ratelimit::Unit;
use crate::service::Service;
use crate::service::answer::Charged;
use crate::service::error::AskError;

/// The decisions on single limits of a request, in the order of its limits; `None` for those that are decided
/// together.
pub(super) type Apart<'a> = SmallVec<[Option<DecidedApart<'a>>; 2]>;

/// The decision on one limit of a request.
#[derive(Clone, Copy, Debug)]
pub(super) struct DecidedApart<'a> {
    pub(super) charged: Charged<'a>,
    pub(super) decision: Decision,
}

impl Service {
    /// Makes the refunds of a request if `refunds` is true, and otherwise counts it under the limits that it
    /// brings, one after the other. Nothing is stored if `mode` is [`Mode::Peek`]. An error does not prevent the
    /// other limits from being judged: the first is returned.
    pub(super) async fn decide_apart<'a>(
        &self,
        limits: &[AskedLimit<'a>],
        refunds: bool,
        mode: Mode,
        apart: &mut Apart<'a>,
    ) -> Option<AskError> {
        let mut failed = None;
        for (asked, apart) in limits.iter().zip(apart) {
            let is_own = matches!(asked.source, Source::Request(_));
            if asked.is_refund != refunds || !(is_own || asked.is_refund) {
                continue;
            }
            match self.decide_one(asked, mode).await {
                Ok(decided) => *apart = decided,
                Err(error) => failed = failed.or(Some(error.into())),
            }
        }
        failed
    }

    async fn decide_one<'a>(
        &self,
        asked: &AskedLimit<'a>,
        mode: Mode,
    ) -> Result<Option<DecidedApart<'a>>, EngineError> {
        let Some((mut charged, mut charge)) = asked.ask.charge() else {
            return Ok(None);
        };
        let changes = mode != Mode::Peek && asked.hits > 0;
        let is_stored = changes && !asked.is_refund;
        if asked.is_refund {
            if changes {
                self.engine.refund(&charge, None).await?;
            }
            charge.cost = Cost::ZERO;
        }
        let mode = if is_stored { Mode::Charge } else { Mode::Peek };
        let mut decision = self.engine.decide(&[charge], None, mode).await?;
        if let Source::Request(limit) = &asked.source {
            let missing = if is_stored { Cost::ZERO } else { charge.cost };
            compare(limit, &mut decision, missing.as_f64());
        }
        // A refund is never over.
        let is_over = decision.is_over(0) && !asked.is_refund;
        charged.outcome = Some(if is_over {
            Outcome::Deny
        } else {
            Outcome::Allow
        });
        charged.stored_at = is_stored.then_some(decision.at);
        charged.reset_after = decision.reset_after;
        charged.available = Some(Available {
            units: decision.remaining,
            seconds: Some(whole_seconds(decision.reset_after)),
        });
        Ok(Some(DecidedApart { charged, decision }))
    }

    /// Refunds what was stored under single limits of a request that is denied all the same.
    pub(super) async fn take_back_apart(&self, limits: &[AskedLimit<'_>], apart: &Apart<'_>) {
        for (asked, decided) in limits.iter().zip(apart) {
            let stored_at = decided.and_then(|decided| decided.charged.stored_at);
            if let (Some(at), Some((_, charge))) = (stored_at, asked.ask.charge()) {
                // An error of the engine is ignored, since the request is denied in any case.
                let _ = self.engine.refund(&charge, Some(at)).await;
            }
        }
    }
}

/// Turns the decision of a counter into that under a number which the request brings. `missing` is the cost of the
/// request as far as the count does not include it.
fn compare(limit: &RateLimit, decision: &mut Decision, missing: f64) {
    let unit = Unit::from_number(limit.unit);
    let window = unit.map_or(Duration::from_secs(1), Unit::duration);
    let number = f64::from(limit.requests_per_unit);
    // Counts are whole numbers far below 2^53, so rounding the product makes it exact.
    let counted = (decision.rate.unwrap_or(0.0) * window.as_secs_f64()).round();
    let is_over = counted + missing > number;
    decision.allowed = !is_over;
    decision.over = is_over.then_some(0).into_iter().collect();
    decision.limit = number / window.as_secs_f64();
    decision.remaining = if is_over {
        0
    } else {
        (number - counted).max(0.0) as u64
    };
    decision.retry_after = if is_over {
        Wait::For(decision.reset_after)
    } else {
        Wait::NONE
    };
}
