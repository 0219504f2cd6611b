//! Events of a layer, for metrics.

use earrrl::{Decision, EngineError};

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
