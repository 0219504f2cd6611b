//! The clients of near rules: the information by which this node decides without asking Redis.

pub(crate) mod client;
mod lines;
pub(crate) mod shard;
pub(crate) mod table;
pub(crate) mod tables;

use std::time::Duration;

use earrrl::{Action, Limit, Quota, Rule, RuleError};

use crate::algorithm;

/// Returns the time for which a snapshot from Redis may be used to deny requests.
pub(crate) fn snapshot_ttl(sync: Duration) -> Duration {
    2 * sync + Duration::from_secs(1)
}

/// Returns the time for which a claim holds. It is long enough for clients that come rarely, but at
/// most twice the time in which the limit refills, since other nodes cannot use what an idle node
/// claims.
pub(crate) fn claim_ttl(limit: &Limit, sync: Duration) -> Duration {
    let window = Quota::of(limit).window.unwrap_or(1);
    let ttl = Duration::from_secs(window.saturating_mul(2).clamp(10, 60));
    ttl.max(snapshot_ttl(sync))
}

/// Checks that a rule's clients can be decided without a round trip to Redis.
///
/// ```
/// use earrrl_redis::check_near;
///
/// assert!(check_near(&"token-bucket 100 refill=10/s".parse()?).is_ok());
/// assert!(check_near(&"exponential 500/1d".parse()?).is_err());
/// # Ok::<(), earrrl::RuleError>(())
/// ```
///
/// # Errors
/// Returns an error if the counts of several nodes cannot be added up, or if the action is to
/// delay.
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
