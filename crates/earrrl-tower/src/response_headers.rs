//! The `RateLimit` headers of one response.

use earrrl::Quota;
use http::{HeaderMap, HeaderValue};

use crate::charges::RequestCharges;
use crate::headers::{Available, current};
use crate::pending::ItemizedDecision;
use crate::prepared::LayerRule;

/// The headers of a response. They are written before the request is passed on, since the prepared
/// rules may have changed when its response arrives.
#[derive(Debug, Default)]
pub(crate) struct RateLimitHeaders {
    limits: Option<HeaderValue>,
    policies: Option<HeaderValue>,
}

impl RateLimitHeaders {
    pub(crate) fn new(
        judgement: &ItemizedDecision,
        prepared: &[LayerRule],
        charges: &RequestCharges,
    ) -> Self {
        let mut shown = shown(judgement, prepared, charges);
        if charges.only().is_some() {
            let Some((rule, available)) = shown.next() else {
                return Self::default();
            };
            let limits = current::limit(&rule.label, available);
            return Self {
                limits,
                policies: rule.policy.clone(),
            };
        }
        let limits = shown
            .clone()
            .map(|(rule, available)| (&*rule.name, available));
        let policies = shown.map(|(rule, _)| (&*rule.name, rule.quota));
        Self {
            limits: current::limits(limits),
            policies: current::policies(policies),
        }
    }

    /// Appends the headers. They are lists, which an inner layer may have begun.
    pub(crate) fn append_to(self, headers: &mut HeaderMap) {
        if let Some(limits) = self.limits {
            headers.append(current::LIMIT, limits);
        }
        if let Some(policies) = self.policies {
            headers.append(current::POLICY, policies);
        }
    }
}

/// Returns the quota of the deciding rule for the older headers, which report only one rule.
pub(crate) fn first_quota(
    judgement: &ItemizedDecision,
    prepared: &[LayerRule],
    charges: &RequestCharges,
) -> Option<(Quota, Available)> {
    shown(judgement, prepared, charges)
        .next()
        .map(|(rule, available)| (rule.quota, available))
}

fn shown<'a>(
    judgement: &'a ItemizedDecision,
    prepared: &'a [LayerRule],
    charges: &'a RequestCharges,
) -> impl Iterator<Item = (&'a LayerRule, Available)> + Clone {
    judgement
        .items
        .iter()
        .filter_map(|item| Some((charges.get(item.place)?.prepared(prepared), item.available?)))
}
