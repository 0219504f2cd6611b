//! What a hook is told.

use earrrl::{Decision, EngineError};

/// Something that the layer did, for metrics.
#[derive(Debug)]
#[non_exhaustive]
pub enum Event<'a> {
    /// A request was decided on.
    Decided {
        /// The rule that the decision's figures are of.
        rule: &'a str,
        /// The decision.
        decision: &'a Decision,
    },
    /// The engine failed.
    EngineFailed(&'a EngineError),
    /// A request was refused because too many were held back.
    TooManyHeld,
}
