//! The headers that a response gets.

use earrrl::Quota;
use http::{HeaderMap, HeaderValue};

use crate::asked::Asked;
use crate::headers::{Available, current};
use crate::known::Known;
use crate::questions::Told;

/// `RateLimit` headers to be added, worked out before the request is passed on.
#[derive(Debug, Default)]
pub(crate) struct Marks {
    limits: Option<HeaderValue>,
    policies: Option<HeaderValue>,
}

impl Marks {
    pub(crate) fn new(told: &Told, known: &[Known], asked: &Asked) -> Self {
        let mut shown = shown(told, known, asked);
        if asked.only().is_some() {
            let Some((known, available)) = shown.next() else { return Self::default() };
            let limits = current::limit(&known.label, available);
            return Self { limits, policies: known.policy.clone() };
        }
        let limits = shown.clone().map(|(known, available)| (&*known.name, available));
        let policies = shown.map(|(known, _)| (&*known.name, known.quota));
        Self { limits: current::limits(limits), policies: current::policies(policies) }
    }

    /// Adds them. `RateLimit` is a list, and a layer within may have begun it.
    pub(crate) fn apply(self, headers: &mut HeaderMap) {
        if let Some(limits) = self.limits {
            headers.append(current::LIMIT, limits);
        }
        if let Some(policies) = self.policies {
            headers.append(current::POLICY, policies);
        }
    }
}

/// What the older headers tell: of the deciding rule.
pub(crate) fn first(told: &Told, known: &[Known], asked: &Asked) -> Option<(Quota, Available)> {
    shown(told, known, asked).next().map(|(known, available)| (known.quota, available))
}

fn shown<'a>(
    told: &'a Told,
    known: &'a [Known],
    asked: &'a Asked,
) -> impl Iterator<Item = (&'a Known, Available)> + Clone {
    told.available
        .iter()
        .filter_map(|item| Some((asked.get(item.place)?.known(known), item.available?)))
}
