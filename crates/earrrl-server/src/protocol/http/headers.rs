//! The `RateLimit` headers. Their syntax still moves between drafts, so each draft is a module here
//! and nothing else writes them.

use std::time::Duration;

use axum::http::{HeaderMap, HeaderName, HeaderValue, header};
use earrrl::{Outcome, Wait};
use smallvec::SmallVec;

use crate::service::Answer;

pub(super) use draft_11 as current;

/// draft-ietf-httpapi-ratelimit-headers-11.
pub(super) mod draft_11 {
    use super::*;

    const LIMIT: HeaderName = HeaderName::from_static("ratelimit");
    const POLICY: HeaderName = HeaderName::from_static("ratelimit-policy");

    /// `RateLimit-Policy: "login";q=60;w=60` and `RateLimit: "login";r=50;t=30`.
    pub(in super::super) fn write(answer: &Answer<'_>, headers: &mut HeaderMap) {
        let (Some(decision), Some((rule, limit))) = (&answer.decision, answer.rule()) else {
            return;
        };
        let mut text = Text::new();
        for (rule, limit) in &answer.charged {
            separate(&mut text);
            name(&mut text, &rule.name);
            number(&mut text, b";q=", limit.quota.units);
            if let Some(window) = limit.quota.window {
                number(&mut text, b";w=", window);
            }
        }
        insert(headers, POLICY, &text);
        text.clear();
        name(&mut text, &rule.name);
        number(&mut text, b";r=", decision.remaining.min(limit.quota.units));
        number(&mut text, b";t=", whole_seconds(decision.reset_after));
        insert(headers, LIMIT, &text);
    }

    fn separate(text: &mut Text) {
        if !text.is_empty() {
            text.extend_from_slice(b", ");
        }
    }

    /// A quoted string. Names of rules and their texts hold no character that needs an escape.
    fn name(text: &mut Text, name: &str) {
        text.push(b'"');
        text.extend_from_slice(name.as_bytes());
        text.push(b'"');
    }
}

/// A header's value in the making, mostly without an allocation.
type Text = SmallVec<[u8; 128]>;

/// `Retry-After` for what was denied; none for what will never pass.
pub(super) fn retry_after(answer: &Answer<'_>, headers: &mut HeaderMap) {
    let Some(decision) = &answer.decision else { return };
    if let (Outcome::Deny, Wait::For(wait)) = (decision.outcome, decision.retry_after) {
        let mut text = Text::new();
        number(&mut text, b"", whole_seconds(wait));
        insert(headers, header::RETRY_AFTER, &text);
    }
}

/// The older `X-RateLimit-*`: quota, remaining, and seconds until the client is as good as new.
pub(super) fn x_rate_limit(answer: &Answer<'_>, headers: &mut HeaderMap) {
    let (Some(decision), Some((_, limit))) = (&answer.decision, answer.rule()) else { return };
    for (name, value) in [
        ("x-ratelimit-limit", limit.quota.units),
        ("x-ratelimit-remaining", decision.remaining.min(limit.quota.units)),
        ("x-ratelimit-reset", whole_seconds(decision.reset_after)),
    ] {
        headers.insert(HeaderName::from_static(name), HeaderValue::from(value));
    }
}

/// Rounded up.
fn whole_seconds(duration: Duration) -> u64 {
    duration.as_secs().saturating_add(u64::from(duration.subsec_nanos() > 0))
}

fn number(text: &mut Text, before: &[u8], value: u64) {
    text.extend_from_slice(before);
    text.extend_from_slice(itoa::Buffer::new().format(value).as_bytes());
}

/// A value that no header may have is left out; rules' names and numbers have none such.
fn insert(headers: &mut HeaderMap, name: HeaderName, text: &[u8]) {
    if let Ok(value) = HeaderValue::from_bytes(text) {
        headers.insert(name, value);
    }
}
