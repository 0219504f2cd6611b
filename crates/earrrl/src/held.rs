//! Reservations: an estimated cost is charged at once, and corrected when the actual cost is known.

use core::time::Duration;

use crate::clock::Nanos;
use crate::cost::Cost;

/// The treatment of a reservation that is not committed before it expires.
///
/// ```
/// use earrrl::{Cost, Limiter, OnExpiry, Rule};
///
/// let rule = "fixed-window 10/1d".parse::<Rule>()?.with_on_expiry(OnExpiry::Release);
/// let limiter: Limiter<str> = Limiter::builder(rule).build()?;
/// drop(limiter.hold("alice", Cost::from_units(10))?);
/// assert!(limiter.check("alice").is_allowed());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum OnExpiry {
    /// The estimate stays charged.
    #[default]
    Keep,
    /// The estimate is given back, as by a commit of 0.
    Release,
}

/// The charge of an estimate under one rule, with the figures that a commit needs; see
/// [`Limit::commit`](crate::Limit::commit).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Held {
    /// The instant of the reservation.
    pub at: Nanos,
    /// The estimate, which was charged.
    pub cost: Cost,
    /// The earliest instant at which a bucket can be full again, if only charges followed the
    /// reservation. Other algorithms ignore it.
    pub full_at: Nanos,
}

impl Held {
    /// Returns the reservation of an estimate that was charged at `at`. `reset_after` is the figure
    /// of the decision; its last nanosecond is left out, since the figure is rounded up.
    #[must_use]
    pub fn new(at: Nanos, cost: Cost, reset_after: Duration) -> Self {
        let full_at = at + reset_after.saturating_sub(Duration::from_nanos(1));
        Self { at, cost, full_at }
    }

    /// Returns the reservation with `full_at` moved back by a time, though never before the
    /// reservation: others can have given this time's refill back.
    #[must_use]
    #[cfg(feature = "std")]
    pub(crate) fn lowered(self, by: Duration) -> Self {
        let by = u64::try_from(by.as_nanos()).unwrap_or(u64::MAX);
        let full_at = Nanos::new(self.full_at.get().saturating_sub(by).max(self.at.get()));
        Self { full_at, ..self }
    }
}
