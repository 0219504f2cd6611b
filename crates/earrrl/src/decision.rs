//! The answer to a request, the same for every algorithm, engine and protocol.

use core::time::Duration;

use crate::clock::Nanos;

/// A wait: a duration, or one that no time ends.
///
/// ```
/// use earrrl::Wait;
/// use std::time::Duration;
/// assert_eq!(Wait::For(Duration::from_secs(2)).duration(), Some(Duration::from_secs(2)));
/// assert_eq!(Wait::Never.duration(), None);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Wait {
    /// This long from now on; zero for "at once".
    For(Duration),
    /// No wait helps: the cost is more than the rule ever admits.
    Never,
}

impl Wait {
    /// No wait at all.
    pub const NONE: Self = Self::For(Duration::ZERO);

    /// Returns the wait, or `None` for never.
    pub const fn duration(self) -> Option<Duration> {
        match self {
            Self::For(duration) => Some(duration),
            Self::Never => None,
        }
    }

    /// Returns a wait of so many nanoseconds; zero for negative ones.
    pub(crate) fn from_nanos(nanos: i128) -> Self {
        Self::For(duration_from_nanos(nanos))
    }
}

/// Nanoseconds to a `Duration`: below zero is zero, above its range its greatest.
#[inline]
pub(crate) fn duration_from_nanos(nanos: i128) -> Duration {
    // Five centuries, without a division of 128 bits.
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
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Action {
    /// It is refused.
    #[default]
    Deny,
    /// It is answered as if allowed, and flagged: the application drops the work silently.
    ShadowBan,
    /// It is allowed, and flagged.
    Quarantine,
    /// It is held back for as long as the rule asks, and refused where that is longer than `max`.
    Delay {
        /// The longest hold.
        max: Duration,
    },
    /// It is allowed, counted and logged: a dry run.
    Observe,
}

impl Action {
    /// Returns true if a request over the limit is stopped. `Quarantine` and `Observe` only flag it.
    pub const fn enforces(self) -> bool {
        matches!(self, Self::Deny | Self::ShadowBan | Self::Delay { .. })
    }
}

/// The outcome of a request: the `action` of an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Outcome {
    /// Within every rule.
    Allow,
    /// Over a dry-run rule's limit, and allowed; answered only where no other rule was charged.
    Observe,
    /// Over a quarantining rule's limit: allowed and flagged.
    Quarantine,
    /// Allowed after the hold in [`Decision::delay`].
    Delay,
    /// Answered as allowed; to be dropped silently.
    ShadowBan,
    /// Refused.
    Deny,
}

impl Outcome {
    /// Its name in configuration and on the wire.
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

/// Places of a request's charges, of which there are at most
/// [`MAX_CHARGES`](crate::MAX_CHARGES): a small set, in ascending order.
///
/// ```
/// use earrrl::Places;
/// let places: Places = [3, 0].into_iter().collect();
/// assert!(places.contains(3) && !places.contains(1));
/// assert_eq!(places.iter().collect::<Vec<_>>(), [0, 3]);
/// ```
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct Places(u64);

impl Places {
    /// No place.
    pub const NONE: Self = Self(0);

    /// Returns true if the place is in the set.
    #[inline]
    pub const fn contains(self, place: usize) -> bool {
        place < 64 && self.0 >> place & 1 == 1
    }

    /// Adds a place, which is below 64.
    #[inline]
    pub const fn insert(&mut self, place: usize) {
        if place < 64 {
            self.0 |= 1 << place;
        }
    }

    /// Returns the number of places.
    pub const fn len(self) -> usize {
        self.0.count_ones() as usize
    }

    /// Returns true if there is no place.
    pub const fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// Returns the places, the lowest first.
    pub fn iter(self) -> impl Iterator<Item = usize> {
        let rest = |left: &u64| Some(left & (left - 1)).filter(|left| *left != 0);
        let first = Some(self.0).filter(|places| *places != 0);
        core::iter::successors(first, rest).map(|left| left.trailing_zeros() as usize)
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

/// The answer to a request: flat, plain data.
///
/// Rates are in cost units per second, waits in whole nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub struct Decision {
    /// True if the request is answered as allowed: whatever its outcome, but for [`Outcome::Deny`].
    pub allowed: bool,
    /// The time by which it was judged and stored, since the Unix epoch: what a refund names.
    pub at: Nanos,
    /// The outcome. A dry run beside a rule that acts shows in [`over`](Self::over) alone, neither here nor in
    /// the figures.
    pub outcome: Outcome,
    /// The place of the charge that the figures below are of; 0 if there is one charge.
    pub rule: usize,
    /// The measured rate; `None` for token-bucket and gcra, which measure none.
    pub rate: Option<f64>,
    /// The rate that the rule allows.
    pub limit: f64,
    /// The number of requests of cost 1 that would be allowed now, one after the other.
    pub remaining: u64,
    /// The least wait from which on the same request is allowed if nothing else is sent.
    /// [`Wait::NONE`] when every enforcing rule allows it (a shadow ban has a wait, though it is
    /// answered as allowed).
    pub retry_after: Wait,
    /// The wait until the client is as good as new, if nothing else is sent.
    pub reset_after: Duration,
    /// The time to hold the request before serving it; zero unless the outcome is [`Outcome::Delay`].
    pub delay: Duration,
    /// The charges that their own rule did not allow.
    pub over: Places,
}

impl Decision {
    /// Returns true if the charge at this place was over its own rule's limit.
    #[inline]
    pub fn is_over(&self, place: usize) -> bool {
        self.over.contains(place)
    }

    /// Returns the answer of a single rule that denies what it does not allow.
    pub(crate) fn single(allowed: bool, at: Nanos, figures: Figures) -> Self {
        Self {
            allowed,
            at,
            outcome: if allowed { Outcome::Allow } else { Outcome::Deny },
            rule: 0,
            rate: figures.rate,
            limit: figures.limit,
            remaining: figures.remaining,
            retry_after: if allowed { Wait::NONE } else { figures.retry_after },
            reset_after: figures.reset_after,
            delay: Duration::ZERO,
            over: Places(u64::from(!allowed)),
        }
    }
}

/// The part of a decision under one rule that a client needs. It takes several times less work than all of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Brief {
    /// As [`Decision::outcome`].
    pub outcome: Outcome,
    /// As [`Decision::remaining`].
    pub remaining: u64,
    /// The wait: of an allowed request the time before it is served, as [`Decision::delay`]; of a denied one
    /// [`Decision::retry_after`].
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
        let Decision { outcome, remaining, delay, retry_after, .. } = *decision;
        let wait = if decision.allowed { Wait::For(delay) } else { retry_after };
        Self { outcome, remaining, wait }
    }
}

/// The figures of one rule after a decision, before any action on them.
///
/// `retry_after` is the wait for the same cost whether or not it was allowed: several rules on one
/// request need it of a rule that allowed while another denied.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub struct Figures {
    /// As [`Decision::rate`].
    pub rate: Option<f64>,
    /// As [`Decision::limit`].
    pub limit: f64,
    /// As [`Decision::remaining`].
    pub remaining: u64,
    /// The least wait from which on the same cost is allowed.
    pub retry_after: Wait,
    /// As [`Decision::reset_after`].
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
