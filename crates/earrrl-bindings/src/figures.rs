//! The headers that report a decision.

use std::iter::once;

use earrrl::{Decision, Quota, Rule};
use earrrl_tower::headers::{Available, current, retry_after};
use http::HeaderValue;

/// Returns the header `RateLimit-Policy` of a rule.
pub fn policy_header(name: &str, rule: &Rule) -> Option<String> {
    text(current::policies(once((name, Quota::of(rule.limit())))))
}

/// Returns the header `RateLimit` of a rule, for the quota that is available.
pub fn limit_header(name: &str, available: Available) -> Option<String> {
    text(current::limits(once((name, available))))
}

/// Returns the seconds of the header `Retry-After`; `None` if the request was not denied, or never is allowed.
pub fn retry_after_seconds(decision: &Decision) -> Option<u64> {
    text(retry_after(decision))?.parse().ok()
}

fn text(header: Option<HeaderValue>) -> Option<String> {
    header?.to_str().ok().map(str::to_owned)
}
