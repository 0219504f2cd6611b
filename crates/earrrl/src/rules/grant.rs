//! The cost that a reservation is granted if its terms permit less than the estimate, and the time for which it is
//! live.

use core::time::Duration;

use crate::algorithm::Policy;
use crate::cost::Cost;
use crate::decision::{Action, Decision};
use crate::rule::Rule;

/// The number of times that a reservation is tried with what then remains, if other requests of the
/// client have used what remained before.
pub const GRANTS: u32 = 8;

/// Returns the cost that a reservation is granted: the estimate, or the remaining quota in whole units if
/// that is less. A rule that stops nobody grants the estimate.
///
/// If nothing remains, the returned cost is that of the request that is then denied: the estimate if it
/// counts, as under a strict rule, and otherwise one unit, so that the wait is that for a grant of one.
pub fn granted(rule: &Rule, estimate: Cost, remaining: impl FnOnce() -> u64) -> Cost {
    if !rule.action().enforces() {
        return estimate;
    }
    let is_stored = rule.limit().policy() == Policy::Strict || rule.action() != Action::Deny;
    match remaining() {
        0 if is_stored => estimate,
        remaining => estimate.min(Cost::from_units(remaining.max(1))),
    }
}

/// Returns true if a denied reservation is worth another try with a smaller cost. Something must remain of
/// the quota, and the denial must not have been counted, as a strict rule counts it.
pub fn is_tried_again<'r>(decision: &Decision, mut rules: impl Iterator<Item = &'r Rule>) -> bool {
    !decision.allowed
        && decision.remaining > 0
        && rules.all(|rule| rule.limit().policy() == Policy::Leaky)
}

/// Returns the time for which a reservation is live: at most the timeouts of its rules of concurrent.
pub fn live_for<'r>(rules: impl Iterator<Item = &'r Rule>, ttl: Duration) -> Duration {
    rules
        .filter_map(|rule| rule.limit().hold_timeout())
        .fold(ttl, Duration::min)
}
