//! The clients of near rules: what this node knows of each, and may decide by that.

pub(crate) mod client;
mod lines;
pub(crate) mod shard;
pub(crate) mod table;
pub(crate) mod tables;

use std::time::Duration;

use earrrl::{Action, Limit, Quota, Rule, RuleError};

use crate::algorithm;

/// Returns how long a snapshot from Redis may be used to deny.
pub(crate) fn snapshot_ttl(sync: Duration) -> Duration {
    2 * sync + Duration::from_secs(1)
}

/// Returns how long a claim holds: long enough for clients that come rarely, but at most twice the time in which the limit
/// refills, since what an idle node claims is missing elsewhere until then.
pub(crate) fn claim_ttl(limit: &Limit, sync: Duration) -> Duration {
    let window = Quota::of(limit).window.unwrap_or(1);
    let ttl = Duration::from_secs(window.saturating_mul(2).clamp(10, 60));
    ttl.max(snapshot_ttl(sync))
}

/// Checks that a rule's clients can be decided without a round trip.
///
/// # Errors
/// Returns an error if the counts of several nodes do not add up, or if a request may be held back.
pub fn check_near(rule: &Rule) -> Result<(), RuleError> {
    let wrong = |problem: &str| Err(RuleError::new(problem.to_owned()).of("consistency"));
    if !algorithm::of(rule.limit()).adds() {
        return wrong("near is not for exponential: what several nodes counted can't be added up");
    }
    if let Action::Delay { .. } = rule.action() {
        return wrong("near is not for the action delay: requests of all nodes are in one queue");
    }
    Ok(())
}
