//! Limits that are prepared in the engine, and their names there.

use std::collections::HashSet;

use earrrl::{Places, Quota, Rule, RuleId};
use siphasher::sip::SipHasher13;

/// A limit that is prepared in the engine.
#[derive(Debug)]
pub struct PreparedLimit {
    /// The id of the limit in the engine.
    pub id: RuleId,
    /// The limit and its action, as an engine's rule.
    pub rule: Rule,
    /// The quota that the `RateLimit-Policy` header reports for the limit.
    pub quota: Quota,
    /// The number of remaining requests below which a client is named.
    pub named_below: u64,
}

impl PreparedLimit {
    pub(super) fn new(id: RuleId, rule: &Rule, named_below: u64) -> Self {
        Self {
            id,
            quota: Quota::of(rule.limit()),
            rule: rule.clone(),
            named_below,
        }
    }
}

/// Returns a name in the engine for a limit that has no name in the configuration. The name
/// depends on `text` only, so that a reload finds the clients' state, and servers of different
/// versions that use one Redis share it.
pub(super) fn hidden_name(taken: &HashSet<&str>, text: &str) -> String {
    let mut name = format!("hidden-{:016x}", SipHasher13::new().hash(text.as_bytes()));
    while taken.contains(name.as_str()) {
        name.push('_');
    }
    name
}

/// Returns the places of a decision under one limit.
pub(super) fn places(is_over: bool) -> Places {
    is_over.then_some(0).into_iter().collect()
}
