//! The headers that a response gets.

use earrrl::Quota;
use http::{HeaderMap, HeaderValue};

use crate::asked::Asked;
use crate::headers::{self, Available, current};
use crate::known::Known;
use crate::questions::Told;

/// Headers to be added, worked out before the request is passed on.
#[derive(Debug, Default)]
pub(crate) struct Marks {
    limits: Option<HeaderValue>,
    policies: Option<HeaderValue>,
    x_rate_limit: Option<(Quota, Available)>,
}

impl Marks {
    pub(crate) fn new(told: &Told, known: &[Known], asked: &Asked, x_rate_limit: bool) -> Self {
        let shown = told.available.iter().filter_map(|(place, available)| {
            asked.get(*place).map(|of| (of.known(known), *available))
        });
        let policies = match (&told.available[..], asked.get(0)) {
            ([_], Some(of)) if asked.each().len() == 1 => of.known(known).policy.clone(),
            _ => current::policies(shown.clone().map(|(known, _)| (&*known.name, known.quota))),
        };
        let first = shown.clone().next().filter(|_| x_rate_limit);
        Self {
            limits: current::limits(shown.map(|(known, available)| (&*known.name, available))),
            policies,
            x_rate_limit: first.map(|(known, available)| (known.quota, available)),
        }
    }

    /// Adds them. `RateLimit` is a list, and a layer within may have begun it.
    pub(crate) fn apply(self, headers: &mut HeaderMap) {
        if let Some(limits) = self.limits {
            headers.append(current::LIMIT, limits);
        }
        if let Some(policies) = self.policies {
            headers.append(current::POLICY, policies);
        }
        if let Some((quota, available)) = self.x_rate_limit {
            headers::x_rate_limit(quota, available, headers);
        }
    }
}
