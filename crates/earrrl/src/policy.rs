//! Rules for storing requests: policies and modes.

/// The rule for denied requests: they are stored as well, or they are not.
///
/// ```
/// use earrrl::{Policy, Rule};
///
/// let strict: Rule = "recent-average 1/s half-life=10s strict".parse()?;
/// assert_eq!(strict.limit().policy(), Policy::Strict);
/// let leaky: Rule = "recent-average 1/s half-life=10s leaky".parse()?;
/// assert_eq!(leaky.limit().policy(), Policy::Leaky);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Policy {
    /// Every request is stored: a client that keeps sending above the limit stays denied.
    Strict,
    /// Only allowed requests are stored.
    Leaky,
}

impl Policy {
    /// Returns the policy's word in a rule's text.
    ///
    /// ```
    /// assert_eq!(earrrl::Policy::Strict.name(), "strict");
    /// ```
    pub const fn name(self) -> &'static str {
        match self {
            Self::Strict => "strict",
            Self::Leaky => "leaky",
        }
    }
}

/// The time that a denied request is told to wait.
///
/// ```
/// use earrrl::{Rule, algorithm::Waits};
///
/// let average: Rule = "recent-average 1/s half-life=10s strict".parse()?;
/// assert_eq!(average.limit().waits(), Waits::Queue);
/// let login: Rule = "recent-average 10/1h half-life=1h strict waits=first".parse()?;
/// assert_eq!(login.limit().waits(), Waits::First);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Waits {
    /// The time until one request would be allowed. Every denied request is told the same instant.
    First,
    /// The time until a place of its own in a queue, so that programs that share a key do not come back together and
    /// deny each other. The default of strict averages, and possible only for them.
    Queue,
}

impl Waits {
    /// Returns the waits under a policy: only strict limits have a queue.
    pub(crate) fn under(self, policy: Policy) -> Self {
        match policy {
            Policy::Strict => self,
            Policy::Leaky => Self::First,
        }
    }
}

/// The kind of a decision.
///
/// ```
/// use earrrl::{Cost, Mode, Nanos, Rule};
///
/// let rule: Rule = "fixed-window 1/1m".parse()?;
/// let twice = Cost::from_units(2);
/// let decide = |mode| rule.limit().decide(None, Nanos::ZERO, twice, mode).0;
/// assert_eq!((decide(Mode::Check), decide(Mode::Peek)), (None, None));
/// assert!(decide(Mode::Charge).is_some());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
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
///
/// ```
/// use earrrl::Rule;
/// use earrrl::algorithm::Replenishment;
///
/// let bucket: Rule = "gcra 1/s burst=60".parse()?;
/// assert_eq!(bucket.limit().replenishment(), Replenishment::Steady);
/// let window: Rule = "fixed-window 60/1m".parse()?;
/// assert_eq!(window.limit().replenishment(), Replenishment::AtWindowEnd);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Replenishment {
    /// Continuously, at the allowed rate.
    Steady,
    /// All at once, at the end of the window.
    AtWindowEnd,
}
