//! The `RateLimit` headers of a response.

use axum::http::{HeaderMap, header};
use earrrl::Action;
use earrrl_tower::headers::{current, retry_after, x_rate_limit};

use crate::service::answer::{Answer, Charged};
use crate::service::limit::PreparedLimit;

/// Writes the headers `RateLimit-Policy` and `RateLimit`, with an item for each charged rule for
/// which `shown` returns true. In `RateLimit`, the item of the deciding rule comes first. Rules in
/// a dry run are left out if a rule that is enforced was charged too. Also writes `Retry-After` if
/// the request was `refused`, and the `X-RateLimit` headers if `older` is true.
pub(super) fn write(
    answer: &Answer<'_>,
    refused: bool,
    older: bool,
    shown: impl Fn(&PreparedLimit) -> bool,
    headers: &mut HeaderMap,
) {
    let Some(decision) = &answer.decision else {
        return;
    };
    let acts = |limit: &PreparedLimit| limit.rule.action() != Action::Observe;
    let some_act = answer.charged.iter().any(|one| acts(one.limit));
    let shown = |one: &&Charged<'_>| shown(one.limit) && (acts(one.limit) || !some_act);
    let others = (0..answer.charged.len()).filter(|place| *place != decision.rule);
    let items = std::iter::once(decision.rule)
        .chain(others)
        .filter_map(|place| {
            let one = answer.charged.get(place).filter(shown)?;
            Some((&*one.rule.name, one.limit.quota, one.available?))
        });
    let charged = answer.charged.iter().filter(shown);
    let policies = charged.map(|one| (&*one.rule.name, one.limit.quota));
    if let Some(policies) = current::policies(policies) {
        headers.insert(current::POLICY, policies);
    }
    let limits = items.clone().map(|(name, _, available)| (name, available));
    if let Some(limits) = current::limits(limits) {
        headers.insert(current::LIMIT, limits);
    }
    if let (true, Some(wait)) = (refused, retry_after(decision)) {
        headers.insert(header::RETRY_AFTER, wait);
    }
    if let (true, Some((_, quota, available))) = (older, items.clone().next()) {
        x_rate_limit(quota, available, headers);
    }
}
