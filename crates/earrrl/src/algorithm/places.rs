//! The queue of clients that share a key, and the times that denied requests are told.
//!
//! Under a strict average each denial moves the first instant at which a request would be allowed. If every denial were
//! told that instant, the clients that share a key would all come too early, be denied again and push the instant
//! further away: programs that do what they are told would be starved for good. So each denial is told a place of its
//! own. Places are the whole multiples of a *spacing*, in which the limit earns three units: one for the request that
//! comes at its place, one for the next request of that client, and one for the denial that gets the next place. With
//! less spacing the average never comes down.
//!
//! The state keeps the number of the last place that was given. The first denial is told the first possible instant
//! itself, and takes the first place that is not before it. Each further one takes the next place. At most
//! [`MOST`] places are ahead; a denial that finds none free is told the first possible instant. So a client
//! that hammers fills the queue by itself, and is told afterwards what it would be told without a queue.

use crate::clock::Nanos;
use crate::cost::Cost;
use crate::decision::Wait;
use crate::policy::{Policy, Waits};

/// The number of places that can be ahead. The next number says that a denial found none free.
const MOST: u64 = 127;
/// The units that the limit earns between two places.
const UNITS: f64 = 3.0;
/// The unit of the spacing in nanoseconds. Redis counts in microseconds too.
const MICRO: u64 = 1000;

/// The places of a limit.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Places {
    /// Nanoseconds, a whole number of microseconds.
    spacing: u64,
}

impl Places {
    /// Returns the places of a limit that earns so many units in a second.
    pub(super) fn new(per_second: f64) -> Self {
        let micros = (UNITS * 1e6 / per_second + 0.5) as u64;
        Self {
            spacing: micros.max(1).saturating_mul(MICRO),
        }
    }

    /// Returns the number of the first place that is not before an instant.
    fn first(self, earliest: Nanos) -> u64 {
        earliest.get().div_ceil(self.spacing)
    }

    /// Returns the number of the last place, given its lowest bits, unless more than [`MOST`] others are ahead of it.
    pub(super) fn last(self, bits: u64, earliest: Nanos) -> u64 {
        let first = self.first(earliest);
        first.saturating_add(bits.wrapping_sub(first) & MOST)
    }

    /// Returns the last place if it is not over at the first possible instant.
    pub(super) fn ahead(self, last: u64, earliest: Nanos) -> Option<u64> {
        let first = self.first(earliest);
        (last >= first).then_some(last.min(first.saturating_add(MOST)))
    }

    /// Returns the place of a denied request, given the first possible instant after it and the last place of an
    /// earlier one. An expensive request takes as many places as it has units.
    pub(super) fn next(self, last: Option<u64>, earliest: Nanos, cost: Cost) -> u64 {
        let first = self.first(earliest);
        let steps = (cost.as_f64() as u64).clamp(1, MOST);
        match last {
            Some(last) if last >= first => {
                last.saturating_add(steps).min(first.saturating_add(MOST))
            }
            _ => first,
        }
    }

    /// Returns the wait that the request is told which got the last place.
    pub(super) fn told(self, last: u64, earliest: Nanos, now: Nanos, shortest: Wait) -> Wait {
        let first = self.first(earliest);
        let at = Nanos::new(last.saturating_mul(self.spacing));
        match last.saturating_sub(first) {
            1..MOST => shortest.max(Wait::For(at.since(now))),
            _ => shortest,
        }
    }
}

/// Returns the words about waits at the end of a rule's text, none if they are the usual ones.
pub(super) fn waits_text(policy: Policy, waits: Waits) -> &'static str {
    match (policy, waits) {
        (Policy::Strict, Waits::First) => " waits=first",
        _ => "",
    }
}
