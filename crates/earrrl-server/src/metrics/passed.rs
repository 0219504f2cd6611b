//! Counters of the requests that passed without a rule's verdict, by the reason.

use super::Counter;

/// The reason why a proxied request passed without a verdict.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PassReason {
    /// A rule could not be judged, and its `on_error` or the engine's policy allows such requests.
    RuleFailed,
    /// No decision was made before the caller's deadline, and the policy allows such requests.
    Late,
    /// The server replied with an error, upon which a proxy lets the request pass.
    Refused,
}

impl PassReason {
    /// All reasons, in the order of their metrics.
    pub const ALL: [Self; 3] = [Self::RuleFailed, Self::Late, Self::Refused];

    /// Returns the name of the reason in metrics and in `/readyz`.
    pub fn name(self) -> &'static str {
        match self {
            Self::RuleFailed => "rule_failed",
            Self::Late => "late",
            Self::Refused => "refused",
        }
    }
}

/// The number of requests that passed without a verdict, by reason.
#[derive(Debug, Default)]
pub struct PassedUnjudged([Counter; PassReason::ALL.len()]);

impl PassedUnjudged {
    /// Counts one request that passed for this reason.
    pub fn count(&self, reason: PassReason) {
        self.0[reason as usize].increment();
    }

    /// Returns the number of requests that passed for this reason.
    pub fn get(&self, reason: PassReason) -> u64 {
        self.0[reason as usize].get()
    }
}
