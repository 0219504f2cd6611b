//! The `RateLimit` headers of an answer.

use axum::http::{HeaderMap, header};
use earrrl_tower::headers::{Available, current, retry_after, x_rate_limit};

use crate::service::Answer;

/// `RateLimit-Policy` and `RateLimit`, an item for each rule that was charged, in the latter the
/// deciding one first; `Retry-After` when it was refused; the older headers where they are wanted.
pub(super) fn write(answer: &Answer<'_>, refused: bool, older: bool, headers: &mut HeaderMap) {
    let Some(decision) = &answer.decision else { return };
    let policies = answer.charged.iter().map(|(rule, limit)| (&*rule.name, limit.quota));
    if let Some(policies) = current::policies(policies) {
        headers.insert(current::POLICY, policies);
    }
    if let Some(limits) = current::limits(items(answer, decision.rule)) {
        headers.insert(current::LIMIT, limits);
    }
    if let (true, Some(wait)) = (refused, retry_after(decision)) {
        headers.insert(header::RETRY_AFTER, wait);
    }
    if let (true, Some((_, limit)), Some(available)) =
        (older, answer.rule(), answer.available.get(decision.rule))
    {
        x_rate_limit(limit.quota, *available, headers);
    }
}

fn items<'a>(answer: &'a Answer<'_>, first: usize) -> impl Iterator<Item = (&'a str, Available)> {
    let item = |place: usize| {
        let (rule, _) = answer.charged.get(place)?;
        Some((&*rule.name, *answer.available.get(place)?))
    };
    let others = (0..answer.charged.len()).filter(move |place| *place != first);
    std::iter::once(first).chain(others).filter_map(item)
}
