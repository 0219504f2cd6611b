//! Limits that requests bring themselves: a number of requests per unit of time, in the place of the
//! configured number.
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

use earrrl::{Decision, EngineError, Mode, Wait};
use smallvec::SmallVec;

use super::asked::{AskedLimit, Hits, Source};
use crate::config::envoy::unit::Unit;
use crate::engine::Engine;
use crate::protobuf::ratelimit::RateLimit;
use crate::service::limit::places;

/// The counts of a request under the limits that it brings, in the order of all its limits; `None`
/// for other limits.
pub(super) type OwnCounts = SmallVec<[Option<Result<OwnCount, EngineError>>; 2]>;

/// The count of a request under a limit that it brings.
#[derive(Debug)]
pub(super) struct OwnCount {
    /// The decision by the request's number.
    pub(super) decision: Decision,
    /// True if the request was stored.
    is_stored: bool,
}

/// Counts a request under the limits that it brings, one after the other. The request is stored under
/// them unless `mode` is [`Mode::Peek`].
pub(super) async fn count(engine: &Engine, limits: &[AskedLimit<'_>], mode: Mode) -> OwnCounts {
    let mut counts = OwnCounts::new();
    for asked in limits {
        counts.push(match &asked.source {
            Source::Request(limit) => count_one(engine, asked, limit, mode).await,
            Source::Tree(..) | Source::Rule(_) => None,
        });
    }
    counts
}

async fn count_one(
    engine: &Engine,
    asked: &AskedLimit<'_>,
    limit: &RateLimit,
    mode: Mode,
) -> Option<Result<OwnCount, EngineError>> {
    let hits = match asked.hits {
        Hits::Charged(hits) => hits,
        Hits::Refunded(_) => 0,
    };
    let charge = asked.charge(hits)?;
    let is_stored = mode != Mode::Peek && hits > 0;
    let mode = if is_stored { Mode::Charge } else { Mode::Peek };
    let decision = match engine.decide(&[charge], mode).await {
        Ok(decision) => decision,
        Err(error) => return Some(Err(error)),
    };
    let not_stored = if is_stored { 0.0 } else { charge.cost.as_f64() };
    Some(Ok(OwnCount {
        decision: compare(limit, decision, not_stored, asked.hits),
        is_stored,
    }))
}

/// Compares a count with the number of a request. `not_stored` is the cost of the request as far as
/// the count does not include it.
fn compare(limit: &RateLimit, mut decision: Decision, not_stored: f64, hits: Hits) -> Decision {
    let unit = Unit::from_number(limit.unit);
    let window = unit.map_or(Duration::from_secs(1), Unit::duration);
    let number = f64::from(limit.requests_per_unit);
    // Counts are whole numbers far below 2^53, so rounding the product makes it exact.
    let counted = (decision.rate.unwrap_or(0.0) * window.as_secs_f64()).round();
    // A refund is never over.
    let is_over = counted + not_stored > number && matches!(hits, Hits::Charged(_));
    decision.allowed = !is_over;
    decision.over = places(is_over);
    decision.limit = number / window.as_secs_f64();
    if is_over {
        decision.remaining = 0;
        decision.retry_after = Wait::For(decision.reset_after);
    } else {
        decision.remaining = (number - counted).max(0.0) as u64;
        decision.retry_after = Wait::NONE;
    }
    decision
}

/// Refunds what was stored under limits that a request brings, after it was denied.
pub(super) async fn give_back(engine: &Engine, limits: &[AskedLimit<'_>], counts: &OwnCounts) {
    for (asked, count) in limits.iter().zip(counts) {
        let (Some(Ok(count)), Hits::Charged(hits)) = (count, asked.hits) else {
            continue;
        };
        if let Some(charge) = asked.charge(hits).filter(|_| count.is_stored) {
            // An error of the engine is ignored, since the request is denied in any case.
            let _ = engine.refund(&charge, Some(count.decision.at)).await;
        }
    }
}
