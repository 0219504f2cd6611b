//! Rules for storing requests: policies and modes.

/// The rule for denied attempts: they count, or they do not.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Policy {
    /// Every attempt is stored: a client that keeps hammering stays out.
    Strict,
    /// Only what was allowed is stored.
    Leaky,
}

impl Policy {
    /// Its word in a rule's text.
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
    /// Judge, then store as the limit's [`Policy`] requires: strict always, leaky if allowed.
    Check,
    /// Judge as a check does, then store whatever the verdict: for costs known only afterwards.
    /// A bucket goes into debt, and windows and logs count beyond their quota.
    Charge,
    /// Judge only: nothing is stored.
    Peek,
}

/// The way in which used units come back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Replenishment {
    /// Bit by bit, at the rate allowed.
    Steady,
    /// All at once, at the end of the window.
    AtWindowEnd,
}
