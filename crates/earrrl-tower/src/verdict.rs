//! What the layer found, for handlers and hooks.

use std::sync::Arc;

use earrrl::{Decision, Outcome};

/// What was decided on a request.
///
/// A request that is passed on although it is over a limit (`quarantine`, `shadow-ban`, `observe`,
/// or after a `delay`) carries this in its extensions; others do where
/// [`always_verdict`](crate::Builder::always_verdict) is asked for. With the feature `axum` it is an
/// extractor: without a verdict in the extensions, that is [`Verdict::default`].
#[derive(Clone, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct Verdict {
    /// The rule that the decision's figures are of.
    pub rule: Option<Arc<str>>,
    /// The decision; `None` where no rule applied or nothing was said.
    pub decision: Option<Decision>,
}

impl Verdict {
    /// What became of the request.
    pub fn outcome(&self) -> Outcome {
        self.decision.as_ref().map_or(Outcome::Allow, |decision| decision.outcome)
    }

    /// Whether the work is to be dropped silently.
    pub fn is_shadow_banned(&self) -> bool {
        self.outcome() == Outcome::ShadowBan
    }

    /// Whether the request is flagged.
    pub fn is_quarantined(&self) -> bool {
        self.outcome() == Outcome::Quarantine
    }
}

#[cfg(feature = "axum")]
impl<S: Sync> axum::extract::FromRequestParts<S> for Verdict {
    type Rejection = std::convert::Infallible;

    async fn from_request_parts(
        request: &mut http::request::Parts,
        _: &S,
    ) -> Result<Self, Self::Rejection> {
        Ok(request.extensions.get().cloned().unwrap_or_default())
    }
}
