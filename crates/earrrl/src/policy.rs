//! Rules for storing requests: policies and modes.

/// The rule for denied requests: they are stored as well, or they are not.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Policy {
    /// Every request is stored: a client that keeps sending above the limit stays denied.
    Strict,
    /// Only allowed requests are stored.
    Leaky,
}

impl Policy {
    /// Returns the policy's word in a rule's text.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Strict => "strict",
            Self::Leaky => "leaky",
        }
    }
}

/// The kind of a decision.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Mode {
    /// Judges, then stores the request as the limit's [`Policy`] requires: always if strict, only
    /// if allowed if leaky.
    Check,
    /// Judges as a check does, then stores the request even if it is over the limit. Used for costs
    /// that are known only afterwards. A bucket goes into debt, and windows and logs count beyond
    /// their quota.
    Charge,
    /// Judges only; nothing is stored.
    Peek,
}

/// The way in which used quota comes back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Replenishment {
    /// Continuously, at the allowed rate.
    Steady,
    /// All at once, at the end of the window.
    AtWindowEnd,
}
