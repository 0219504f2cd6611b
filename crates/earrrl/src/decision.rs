//! The answer to a request, the same for every algorithm, engine and protocol.

use core::time::Duration;

use crate::clock::Nanos;

/// The wait until a request is allowed: a duration, or never.
///
/// ```
/// use earrrl::Wait;
/// use std::time::Duration;
/// assert_eq!(Wait::For(Duration::from_secs(2)).duration(), Some(Duration::from_secs(2)));
/// assert_eq!(Wait::Never.duration(), None);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Wait {
    /// The duration of the wait; zero if the request is allowed at once.
    For(Duration),
    /// Never: the cost is more than the rule ever admits at once.
    Never,
}

impl Wait {
    /// A wait of zero.
    pub const NONE: Self = Self::For(Duration::ZERO);

    /// Returns the duration of the wait, or `None` for [`Wait::Never`].
    ///
    /// ```
    /// # use earrrl::Wait;
    /// assert_eq!(Wait::NONE.duration(), Some(std::time::Duration::ZERO));
    /// assert_eq!(Wait::Never.duration(), None);
    /// ```
    pub const fn duration(self) -> Option<Duration> {
        match self {
            Self::For(duration) => Some(duration),
            Self::Never => None,
        }
    }

    /// Returns a wait of `nanos` nanoseconds; zero if `nanos` is negative.
    pub(crate) fn from_nanos(nanos: i128) -> Self {
        Self::For(duration_from_nanos(nanos))
    }
}

/// Converts nanoseconds to a [`Duration`]: zero if they are negative, [`Duration::MAX`] if they are
/// out of range.
#[inline]
pub(crate) fn duration_from_nanos(nanos: i128) -> Duration {
    // Fast path for waits of up to five centuries, since a 128-bit division is slow.
    if let Ok(nanos) = u64::try_from(nanos) {
        return Duration::from_nanos(nanos);
    }
    let nanos = u128::try_from(nanos).unwrap_or(0);
    match u64::try_from(nanos / 1_000_000_000) {
        Ok(secs) => Duration::new(secs, (nanos % 1_000_000_000) as u32),
        Err(_) => Duration::MAX,
    }
}

/// The treatment of a request that a rule does not allow.
///
/// ```
/// use earrrl::{Action, Rule};
///
/// let rule = "fixed-window 10/1m".parse::<Rule>()?.with_action(Action::Observe)?;
/// assert_eq!(rule.action(), Action::Observe);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Action {
    /// The request is denied.
    #[default]
    Deny,
    /// The client gets the answer of an allowed request, and the decision is flagged so that the
    /// application silently drops the work.
    ShadowBan,
    /// The request is allowed and flagged.
    Quarantine,
    /// The request is held back until the rule allows it, and denied if that takes longer than
    /// `max`.
    Delay {
        /// The longest time for which a request is held back.
        max: Duration,
    },
    /// The request is allowed, counted and logged: a dry run of the rule.
    Observe,
}

impl Action {
    /// Returns true if a request over the limit is stopped or held back. [`Action::Quarantine`] and
    /// [`Action::Observe`] only flag it.
    ///
    /// ```
    /// # use earrrl::Action;
    /// assert!(Action::ShadowBan.enforces());
    /// assert!(!Action::Observe.enforces());
    /// ```
    pub const fn enforces(self) -> bool {
        matches!(self, Self::Deny | Self::ShadowBan | Self::Delay { .. })
    }
}

/// The outcome of a request under all of its rules.
///
/// ```
/// use earrrl::{Decision, Outcome};
///
/// fn serve(decision: &Decision) -> &'static str {
///     match decision.outcome {
///         Outcome::Deny => "429",
///         Outcome::ShadowBan => "200, and drop the work",
///         _ => "200",
///     }
/// }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Outcome {
    /// The request is within every rule's limit.
    Allow,
    /// The request is over the limit of a dry-run rule and allowed. A request that is charged to
    /// other rules too reports their outcome instead.
    Observe,
    /// The request is over the limit of a quarantining rule: allowed and flagged.
    Quarantine,
    /// The request is allowed after a wait of [`Decision::delay`].
    Delay,
    /// The client gets the answer of an allowed request; the application silently drops the work.
    ShadowBan,
    /// The request is denied.
    Deny,
}

impl Outcome {
    /// Returns the outcome's name in configuration files and on the wire.
    ///
    /// ```
    /// # use earrrl::Outcome;
    /// assert_eq!(Outcome::ShadowBan.name(), "shadow-ban");
    /// ```
    pub const fn name(self) -> &'static str {
        match self {
            Self::Allow => "allow",
            Self::Observe => "observe",
            Self::Quarantine => "quarantine",
            Self::Delay => "delay",
            Self::ShadowBan => "shadow-ban",
            Self::Deny => "deny",
        }
    }
}

/// The positions of charges in a request's list of charges: a small set in ascending order. A
/// request has at most [`MAX_CHARGES`](crate::MAX_CHARGES) charges.
///
/// ```
/// use earrrl::internal::Places;
/// let places: Places = [3, 0].into_iter().collect();
/// assert!(places.contains(3) && !places.contains(1));
/// assert_eq!(places.iter().collect::<Vec<_>>(), [0, 3]);
/// ```
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct Places(u64);

impl Places {
    /// The empty set.
    pub const NONE: Self = Self(0);

    /// Returns true if the set contains `place`.
    ///
    /// ```
    /// let places: earrrl::internal::Places = [3, 0].into_iter().collect();
    /// assert!(places.contains(0) && !places.contains(1));
    /// ```
    #[inline]
    pub const fn contains(self, place: usize) -> bool {
        place < 64 && self.0 >> place & 1 == 1
    }

    /// Adds `place`, which must be below 64; does nothing otherwise.
    ///
    /// ```
    /// let mut places = earrrl::internal::Places::NONE;
    /// places.insert(3);
    /// assert!(places.contains(3));
    /// ```
    #[inline]
    pub const fn insert(&mut self, place: usize) {
        if place < 64 {
            self.0 |= 1 << place;
        }
    }

    /// Returns the number of places in the set.
    pub const fn len(self) -> usize {
        self.0.count_ones() as usize
    }

    /// Returns true if the set is empty.
    pub const fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// Returns the places in the set, the lowest first.
    ///
    /// ```
    /// let places: earrrl::internal::Places = [3, 0].into_iter().collect();
    /// assert_eq!(places.iter().collect::<Vec<_>>(), [0, 3]);
    /// ```
    pub fn iter(self) -> impl Iterator<Item = usize> {
        (0..64).filter(move |place| self.contains(*place))
    }
}

impl FromIterator<usize> for Places {
    fn from_iter<I: IntoIterator<Item = usize>>(places: I) -> Self {
        let mut set = Self::NONE;
        places.into_iter().for_each(|place| set.insert(place));
        set
    }
}

impl core::fmt::Debug for Places {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_set().entries(self.iter()).finish()
    }
}

/// The answer to a request, as plain data.
///
/// Rates are in cost units per second, waits in whole nanoseconds.
///
/// ```
/// use earrrl::{Cost, Mode, Nanos, Rule, Wait};
/// use std::time::Duration;
///
/// let rule: Rule = "fixed-window 2/1m".parse()?;
/// let (now, twice) = (Nanos::from_secs(45), Cost::from_units(2));
/// let (state, first) = rule.limit().decide(None, now, twice, Mode::Check);
/// let (_, second) = rule.limit().decide(state, now, Cost::ONE, Mode::Check);
/// assert_eq!((first.allowed, first.remaining), (true, 0));
/// assert_eq!(second.retry_after, Wait::For(Duration::from_secs(15)));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub struct Decision {
    /// True if the request is answered as allowed, which is every [`outcome`](Self::outcome) except
    /// [`Outcome::Deny`].
    pub allowed: bool,
    /// The instant at which the request was judged and stored. A refund names this instant.
    pub at: Nanos,
    /// The outcome of the request. A dry-run rule beside a rule that enforces affects neither the
    /// outcome nor the figures below; only [`over`](Self::over) shows it.
    pub outcome: Outcome,
    /// The place of the charge whose rule determined the figures below; 0 if there is one charge.
    pub rule: usize,
    /// The client's measured rate, in cost units per second; `None` for token-bucket and gcra,
    /// which measure none.
    pub rate: Option<f64>,
    /// The rate that the rule allows, in cost units per second.
    pub limit: f64,
    /// The number of requests of cost 1 that would be allowed now in sequence.
    pub remaining: u64,
    /// The wait that the client is told: [`earliest`](Self::earliest), or the time until the place that the request
    /// got in the queue of a rule with [`Waits::Queue`](crate::algorithm::Waits::Queue). [`Wait::NONE`] if every
    /// enforcing rule allows the request. A shadow-banned request has a wait, although it is answered as allowed.
    pub retry_after: Wait,
    /// The nanoseconds by which the place in the queue is later than the shortest wait.
    pub(crate) queued: u64,
    /// The wait until the client's past requests no longer affect decisions, if nothing else is
    /// sent.
    pub reset_after: Duration,
    /// The time for which the caller must hold the request before serving it; zero unless the
    /// outcome is [`Outcome::Delay`].
    pub delay: Duration,
    /// The places of the charges that are over their own rule's limit.
    pub over: Places,
}

impl Decision {
    /// Returns the decision that lets the request pass, with the same figures.
    #[doc(hidden)]
    #[must_use]
    pub fn let_pass(self) -> Self {
        Self {
            allowed: true,
            outcome: Outcome::Allow,
            retry_after: Wait::NONE,
            queued: 0,
            delay: Duration::ZERO,
            over: Places::NONE,
            ..self
        }
    }

    /// Returns the shortest wait after which the same request is allowed if nothing else is sent.
    ///
    /// ```
    /// # use earrrl::{Cost, Mode, Nanos, Rule};
    /// let rule: Rule = "recent-average 1/s half-life=1s".parse()?;
    /// let mut state = None;
    /// let mut decide = || {
    ///     let before = state.take();
    ///     let (after, decision) = rule.limit().decide(before, Nanos::from_secs(1), Cost::ONE, Mode::Check);
    ///     state = after;
    ///     decision
    /// };
    /// let (first, second) = ([decide(), decide(), decide()][2], decide());
    /// assert_eq!(first.retry_after, first.earliest());
    /// assert!(second.retry_after > second.earliest());
    /// # Ok::<(), earrrl::RuleError>(())
    /// ```
    pub fn earliest(&self) -> Wait {
        match self.retry_after {
            Wait::For(told) => Wait::For(told.saturating_sub(Duration::from_nanos(self.queued))),
            Wait::Never => Wait::Never,
        }
    }

    /// Returns true if the charge at `place` is over its own rule's limit.
    ///
    /// ```
    /// # use earrrl::{Cost, Mode, Nanos, Rule};
    /// # let rule: Rule = "fixed-window 1/1m".parse()?;
    /// let (_, decision) = rule.limit().decide(None, Nanos::ZERO, Cost::from_units(2), Mode::Peek);
    /// assert!(decision.is_over(0));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[inline]
    pub fn is_over(&self, place: usize) -> bool {
        self.over.contains(place)
    }

    /// Returns the decision of a single rule that denies requests over its limit.
    pub(crate) fn single(allowed: bool, at: Nanos, figures: Figures) -> Self {
        let decision = Self {
            allowed,
            at,
            outcome: if allowed {
                Outcome::Allow
            } else {
                Outcome::Deny
            },
            rule: 0,
            rate: figures.rate,
            limit: figures.limit,
            remaining: figures.remaining,
            retry_after: Wait::NONE,
            queued: 0,
            reset_after: figures.reset_after,
            delay: Duration::ZERO,
            over: Places(u64::from(!allowed)),
        };
        if allowed {
            return decision;
        }
        decision.with_waits([figures.earliest, figures.retry_after])
    }

    /// Sets the shortest wait, and the one that the client is told.
    pub(crate) fn with_waits(self, [earliest, told]: [Wait; 2]) -> Self {
        let queued = match (earliest, told) {
            (Wait::For(earliest), Wait::For(told)) if told > earliest => {
                u64::try_from((told - earliest).as_nanos()).unwrap_or(u64::MAX)
            }
            _ => 0,
        };
        Self {
            retry_after: told,
            queued,
            ..self
        }
    }
}

/// The part of a decision under one rule that a client needs. Computing it takes several times less
/// work than the whole [`Decision`].
///
/// ```
/// use earrrl::{Cost, MemoryEngine, Outcome};
/// use earrrl::internal::Brief;
///
/// let engine = MemoryEngine::new(1000)?;
/// let rule = engine.prepare_with("login", &"fixed-window 5/1d".parse()?, 1000)?;
/// let brief: Brief = engine.check_hashed(rule, engine.hash(b"alice"), Cost::ONE)?;
/// assert_eq!((brief.outcome, brief.remaining), (Outcome::Allow, 4));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Brief {
    /// The outcome; see [`Decision::outcome`].
    pub outcome: Outcome,
    /// The remaining quota; see [`Decision::remaining`].
    pub remaining: u64,
    /// The wait before an allowed request is served ([`Decision::delay`]), or the wait of a denied
    /// request ([`Decision::retry_after`]).
    pub wait: Wait,
}

impl Brief {
    /// Returns true if the request is answered as allowed.
    #[inline]
    pub fn is_allowed(&self) -> bool {
        self.outcome != Outcome::Deny
    }
}

impl From<&Decision> for Brief {
    fn from(decision: &Decision) -> Self {
        Self {
            outcome: decision.outcome,
            remaining: decision.remaining,
            wait: match decision.allowed {
                true => Wait::For(decision.delay),
                false => decision.retry_after,
            },
        }
    }
}

/// The figures of one rule after a decision, before the rule's action is applied.
///
/// `retry_after` is computed even if this rule allowed the request, since another rule of the same
/// request may have denied it.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub struct Figures {
    /// The measured rate; see [`Decision::rate`].
    pub rate: Option<f64>,
    /// The allowed rate; see [`Decision::limit`].
    pub limit: f64,
    /// The remaining quota; see [`Decision::remaining`].
    pub remaining: u64,
    /// The shortest wait after which a request of the same cost is allowed.
    pub earliest: Wait,
    /// The wait that the client is told if this rule denies the request; see [`Decision::retry_after`].
    pub retry_after: Wait,
    /// The wait until the client is as good as new; see [`Decision::reset_after`].
    pub reset_after: Duration,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn never_is_longer_than_any_wait() {
        assert!(Wait::Never > Wait::For(Duration::MAX));
        assert_eq!(Wait::from_nanos(-5), Wait::NONE);
        assert_eq!(duration_from_nanos(i128::MAX), Duration::MAX);
    }
}
