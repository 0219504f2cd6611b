//! Limits that requests bring themselves: a number of requests per unit of time, in the place of the
//! configured number.
//!
//! The number is no part of a counter's key. A request that brings a number is counted where the
//! same descriptor is counted without one, so a client whose number changes goes on with its count,
//! and nothing is stored for a number. A descriptor without a configured limit in the request's unit
//! is counted under a rule that all such descriptors share, one for each unit.
//!
//! The engine stores the request whatever its rule says, and reports the count. The number is
//! compared with that count, and a request that exceeds it is refunded. Another request may meanwhile
//! see a count that is too high, but never one that is too low.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use earrrl::{Charge, Decision, EngineError, Mode, Rule, RuleId, Wait};
use smallvec::SmallVec;

use super::asked::{AskedLimit, Hits, LimitRef};
use super::prepared::LimitKind;
use crate::config::envoy::EnvoyAlgorithm;
use crate::config::envoy::unit::Unit;
use crate::engine::Engine;

/// The quota of the rules for descriptors without a configured limit. It decides nothing: up to it,
/// the counts of each unit fit into the entries of a table.
const QUOTA: u32 = 1_000_000;

/// A rule of the engine, with its id.
type PreparedRule = (RuleId, Arc<Rule>);

/// The rules for descriptors without a configured limit, as far as they were needed. There are at
/// most two for each unit.
#[derive(Debug, Default)]
pub struct RequestCounters(Mutex<HashMap<(EnvoyAlgorithm, Unit), PreparedRule>>);

impl RequestCounters {
    /// Returns the rule that counts in this unit, and prepares it for `capacity` clients on first
    /// use.
    ///
    /// # Errors
    /// Returns an [`EngineError`] if there is not enough memory.
    pub(super) fn get(
        &self,
        algorithm: EnvoyAlgorithm,
        unit: Unit,
        capacity: usize,
        engine: &Engine,
    ) -> Result<PreparedRule, EngineError> {
        let algorithm = algorithm.that_counts();
        let mut rules = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = rules.get(&(algorithm, unit)) {
            return Ok(known.clone());
        }
        let rule = algorithm.rule(QUOTA, unit)?;
        let rule = Arc::new(rule.ok_or_else(|| EngineError::Unavailable("no quota".to_owned()))?);
        // Servers over one Redis have the same names, and so share the counts.
        let name = format!("envoy-request-{}-{}", algorithm.name(), unit.name());
        let id = engine.prepare(&name, &rule, capacity)?;
        rules.insert((algorithm, unit), (id, Arc::clone(&rule)));
        Ok((id, rule))
    }

    /// Returns the ids of the rules.
    pub(super) fn ids(&self) -> Vec<RuleId> {
        let rules = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        rules.values().map(|(id, _)| *id).collect()
    }
}

/// The counts of a request under the limits that it brings, in the order of all its limits; `None`
/// for other limits.
pub(super) type OwnCounts = SmallVec<[Option<Result<OwnCount, EngineError>>; 2]>;

/// The count of a request under a limit that it brings.
#[derive(Debug)]
pub(super) struct OwnCount {
    /// The decision by the request's number.
    pub(super) decision: Decision,
    /// True if the request was stored.
    pub(super) stored: bool,
}

/// Counts a request under the limits that it brings, one after the other. The request is stored under
/// them unless `mode` is [`Mode::Peek`].
pub(super) async fn count(engine: &Engine, limits: &[AskedLimit<'_>], mode: Mode) -> OwnCounts {
    let mut counts = OwnCounts::new();
    for asked in limits {
        counts.push(match (&asked.limit, asked.counted()) {
            (LimitRef::Own(_), Some(rule)) => Some(count_one(engine, asked, rule, mode).await),
            _ => None,
        });
    }
    counts
}

async fn count_one(
    engine: &Engine,
    asked: &AskedLimit<'_>,
    rule: RuleId,
    mode: Mode,
) -> Result<OwnCount, EngineError> {
    let Hits::Charged(hits) = asked.hits else {
        return own_count(engine, asked, rule, 0, Mode::Peek).await;
    };
    let mode = if mode == Mode::Peek {
        Mode::Peek
    } else {
        Mode::Charge
    };
    own_count(engine, asked, rule, hits, mode).await
}

async fn own_count(
    engine: &Engine,
    asked: &AskedLimit<'_>,
    rule: RuleId,
    hits: u64,
    mode: Mode,
) -> Result<OwnCount, EngineError> {
    let charge = Charge {
        rule,
        key: &asked.key,
        cost: asked.cost(hits),
    };
    let mut decision = engine.decide(&[charge], mode).await?;
    let stored = mode == Mode::Charge && hits > 0;
    let number = u64::from(asked.limit.current.requests);
    let window = asked.limit.window();
    // Counts are whole numbers far below 2^53, so rounding the product makes it exact.
    let counted = (decision.rate.unwrap_or(0.0) * window.as_secs_f64()).round() as u64;
    let with_hits = if stored {
        counted
    } else {
        counted.saturating_add(charge.cost.as_f64() as u64)
    };
    // A refund is never over.
    let is_over = with_hits > number && matches!(asked.hits, Hits::Charged(_));
    decision.allowed = !is_over;
    decision.over = crate::service::limit::places(is_over);
    decision.limit = number as f64 / window.as_secs_f64();
    decision.remaining = if is_over {
        0
    } else {
        number.saturating_sub(counted)
    };
    decision.retry_after = if is_over {
        Wait::For(decision.reset_after)
    } else {
        Wait::NONE
    };
    Ok(OwnCount { decision, stored })
}

/// Refunds what was stored under limits that a request brings, after it was denied.
pub(super) async fn give_back(engine: &Engine, limits: &[AskedLimit<'_>], counts: &OwnCounts) {
    for (asked, count) in limits.iter().zip(counts) {
        let (Some(Ok(count)), Hits::Charged(hits), Some(rule)) =
            (count, asked.hits, asked.counted())
        else {
            continue;
        };
        if count.stored {
            let charge = Charge {
                rule,
                key: &asked.key,
                cost: asked.cost(hits),
            };
            // An error of the engine is ignored, since the request is denied in any case.
            let _ = engine.refund(&charge, Some(count.decision.at)).await;
        }
    }
}

impl super::prepared::DescriptorLimit {
    /// Returns the unit of time in which the limit is reported.
    fn window(&self) -> Duration {
        Unit::from_number(self.current.unit).map_or(Duration::from_secs(1), Unit::duration)
    }

    /// Returns the engine's rule if it counts the requests of each `unit`, so that another number can
    /// be compared with the count.
    pub(super) fn counter_in(&self, unit: Unit) -> Option<PreparedRule> {
        let LimitKind::Counted(id, rule) = &self.kind else {
            return None;
        };
        let window = match rule.limit() {
            earrrl::Limit::FixedWindow(window) => window.window(),
            earrrl::Limit::SlidingWindow(window) => window.window(),
            _ => return None,
        };
        (window == unit.duration()).then(|| (*id, Arc::clone(rule)))
    }
}
