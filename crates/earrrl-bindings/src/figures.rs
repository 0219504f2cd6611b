//! The headers that report a decision.

use std::iter::once;

use earrrl::{Quota, Rule};
use earrrl_tower::headers::{Available, current};
use http::HeaderValue;

/// Returns the header `RateLimit-Policy` of a rule.
pub fn policy_header(name: &str, rule: &Rule) -> Option<String> {
    text(current::policies(once((name, Quota::of(rule.limit())))))
}

/// Returns the header `RateLimit` of a rule, for the quota that is available.
pub fn limit_header(name: &str, available: Available) -> Option<String> {
    text(current::limits(once((name, available))))
}

fn text(header: Option<HeaderValue>) -> Option<String> {
    header?.to_str().ok().map(str::to_owned)
}
