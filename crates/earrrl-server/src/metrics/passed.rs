//! Requests that passed although no rule could be asked, by the reason.

use super::Counter;

/// The reason for which a proxied request passed without a verdict.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PassReason {
    /// A rule could not be judged, and its `on_error` or the engine's policy allows.
    RuleFailed,
    /// No decision was made before the caller's deadline, and the policy allows.
    Late,
    /// The question was answered with an error, which a proxy takes for a permission.
    Refused,
}

impl PassReason {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::RuleFailed, Self::Late, Self::Refused];

    /// Returns its name in metrics and in `/readyz`.
    pub fn name(self) -> &'static str {
        match self {
            Self::RuleFailed => "rule_failed",
            Self::Late => "late",
            Self::Refused => "refused",
        }
    }
}

/// The counts by reason.
#[derive(Debug, Default)]
pub struct PassedUnjudged([Counter; PassReason::ALL.len()]);

impl PassedUnjudged {
    /// Counts one request.
    pub fn count(&self, reason: PassReason) {
        self.0[reason as usize].increment();
    }

    /// Returns the number of requests that passed for this reason.
    pub fn get(&self, reason: PassReason) -> u64 {
        self.0[reason as usize].get()
    }
}
