//! The decision on a request, for the request's handler; the events of a layer, for metrics.

use std::sync::Arc;

use earrrl::{Decision, EngineError, Outcome, Rule};

/// The decision on a request, which its handler finds in the request's extensions.
///
/// A request has a verdict if it is passed on although it is over a limit (with the action
/// `quarantine`, `shadow-ban`, `observe`, or after a `delay`), or in any case if
/// [`always_verdict`](crate::Builder::always_verdict) is set. With the feature `axum` it is an
/// extractor, which returns [`Verdict::default`] if the request has none.
///
/// ```
/// use earrrl_tower::Verdict;
///
/// async fn post_comment(request: http::Request<String>) -> &'static str {
///     let verdict = request.extensions().get::<Verdict>().cloned().unwrap_or_default();
///     if verdict.is_shadow_banned() {
///         return "thank you"; // and the comment is dropped
///     }
///     "thank you"
/// }
/// # let _ = post_comment;
/// assert!(!Verdict::default().is_quarantined());
/// ```
#[derive(Clone, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct Verdict {
    /// The name of the rule whose figures the decision reports.
    pub rule: Option<Arc<str>>,
    /// The rule's limit for this request, if [`limit_by`](crate::RequestRule::limit_by) has returned it.
    pub limit: Option<Arc<Rule>>,
    /// The decision; `None` if no rule applied or the request has no verdict.
    pub decision: Option<Decision>,
}

impl Verdict {
    /// Returns the outcome of the decision, or [`Outcome::Allow`] if there is none.
    ///
    /// ```
    /// use earrrl::Outcome;
    /// use earrrl_tower::Verdict;
    /// assert_eq!(Verdict::default().outcome(), Outcome::Allow);
    /// ```
    pub fn outcome(&self) -> Outcome {
        self.decision
            .as_ref()
            .map_or(Outcome::Allow, |decision| decision.outcome)
    }

    /// Returns true if the handler should pretend to serve the request.
    pub fn is_shadow_banned(&self) -> bool {
        self.outcome() == Outcome::ShadowBan
    }

    /// Returns true if the handler should treat the request as suspect.
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

/// An event, which is passed to the closure of [`on_event`](crate::Builder::on_event).
///
/// ```
/// use std::sync::atomic::{AtomicU64, Ordering};
/// use earrrl::MemoryEngine;
/// use earrrl_tower::{Event, RateLimitLayer};
///
/// static DENIED: AtomicU64 = AtomicU64::new(0);
/// let builder = RateLimitLayer::builder(MemoryEngine::new(10)?).on_event(|event| match event {
///     Event::Decided { decision, .. } if !decision.allowed => {
///         DENIED.fetch_add(1, Ordering::Relaxed);
///     }
///     Event::EngineFailed(error) => eprintln!("{error}"),
///     _ => {}
/// });
/// # let _ = builder;
/// # Ok::<(), earrrl::BuildError>(())
/// ```
#[derive(Debug)]
#[non_exhaustive]
pub enum Event<'a> {
    /// The engine made a decision.
    Decided {
        /// The name of the rule whose figures the decision reports.
        rule: &'a str,
        /// The decision.
        decision: &'a Decision,
    },
    /// The engine failed with this error.
    EngineFailed(&'a EngineError),
    /// A reservation could not be corrected to the actual cost, perhaps because it has expired.
    CommitFailed(&'a EngineError),
    /// A request was denied because too many requests were held back.
    TooManyHeld,
}
