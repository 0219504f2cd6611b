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
//! itself, and takes the first place that is not before it. Each further one takes the next place, of which [`MOST`]
//! can be ahead.
//!
//! Two kinds of requests show that the queue holds places of nobody. An obedient client does not send long before the
//! first possible instant, unless it is new; and of clients that have all just come, as many attempts still count as
//! places were given. So a request far too early that finds more places than that is one of a client that *goes on*: it
//! gets no place, is told the first possible instant, and so are all others until one waits that long. And the queue
//! ends if nobody comes at a place of it. So a client that hammered and then obeys is told what it would be told without
//! a queue.

use core::time::Duration;

use crate::arithmetic::exp_m1;
use crate::clock::Nanos;
use crate::cost::Cost;
use crate::decision::Wait;
use crate::policy::{Policy, Waits};

/// The number of places that can be ahead.
const MOST: u64 = 125;
/// The number of places ahead that says that a client went on. A few less say so too, since the first possible instant
/// moves.
const WENT_ON: u64 = 127;
/// The units that the limit earns between two places.
const UNITS: f64 = 3.0;
/// The unit of the spacing in nanoseconds. Redis counts in microseconds too.
const MICRO: u64 = 1000;
/// A request is far too early if three times the limit still counts, which decays to the limit in this many periods:
/// ln 3.
const EARLY: f64 = 1.098_612_288_668_109_8;
/// The places that may be ahead of a request that is far too early, for each unit over the limit that still counts.
const PLACES_EACH: f64 = 1.1;
/// The places that may be ahead beyond that.
const SLACK: f64 = 2.0;
/// The time that a client may be late for its place: it sleeps whole seconds.
const LATE: Duration = Duration::from_secs(1);

/// The places of a limit.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Places {
    /// Nanoseconds, a whole number of microseconds.
    pub(super) spacing: u64,
    /// The count that the limit allows, in units, and the nanoseconds in which a count decays to 1/e.
    pub(super) most: f64,
    pub(super) period: f64,
}

impl Places {
    /// Returns the places of a limit that earns so many units in a second.
    pub(super) fn new(per_second: f64, most: f64, period: f64) -> Self {
        let micros = (UNITS * 1e6 / per_second + 0.5) as u64;
        Self {
            spacing: micros.max(1).saturating_mul(MICRO),
            most,
            period,
        }
    }

    /// Returns the number of the first place that is not before an instant.
    #[inline]
    pub(super) fn first(self, earliest: Nanos) -> u64 {
        earliest.get().div_ceil(self.spacing)
    }

    /// Returns the number of the last place, given its lowest bits: at most [`WENT_ON`] others are ahead of it.
    pub(super) fn last(self, bits: u64, earliest: Nanos) -> u64 {
        let first = self.first(earliest);
        first.saturating_add(bits.wrapping_sub(first) & WENT_ON)
    }

    /// Returns the last place if it is not over at the first possible instant.
    pub(super) fn ahead(self, last: u64, earliest: Nanos) -> Option<u64> {
        let first = self.first(earliest);
        (last >= first).then_some(last.min(first.saturating_add(WENT_ON)))
    }

    /// Returns the place as another clock tells it, which is ahead by so many nanoseconds.
    pub(super) fn moved(self, last: u64, nanos: i128) -> u64 {
        let spacing = i128::from(self.spacing);
        let moved = i128::from(last) + (nanos + spacing / 2).div_euclid(spacing);
        u64::try_from(moved).unwrap_or(0)
    }

    /// Returns the last place after a request that gets none. If the request was allowed, the queue is over if nobody
    /// came at a place of it, and if a client went on. `before` and `after` are the first possible instants before and
    /// after the request.
    pub(super) fn kept(self, last: u64, now: Nanos, before: Nanos, after: Nanos) -> Option<u64> {
        let last = self.ahead(last, after)?;
        let is_full = last - self.first(after) >= MOST;
        let is_allowed = now >= before;
        let is_missed = || now.since(before) > Duration::from_nanos(self.spacing) + LATE;
        (!is_allowed || !is_full && !is_missed()).then_some(last)
    }

    /// Returns the place of a denied request, given the last place of an earlier one, or 0. An expensive request takes as
    /// many places as it has units. `before` and `after` are as for [`kept`](Self::kept).
    pub(super) fn next(
        self,
        last: u64,
        now: Nanos,
        before: Nanos,
        after: Nanos,
        cost: Cost,
    ) -> u64 {
        let first = self.first(after);
        if last < first {
            return first;
        }
        let steps = (cost.as_f64() as u64).clamp(1, MOST);
        let ahead = last - first;
        let is_full = ahead >= MOST;
        if before.since(now).as_nanos() as f64 > self.period * EARLY {
            let wait = after.since(now).as_nanos() as f64 / self.period;
            let over = self.most * exp_m1(wait);
            if is_full || (ahead + steps) as f64 > PLACES_EACH * over + SLACK {
                return first.saturating_add(WENT_ON);
            }
        }
        match is_full {
            true => first,
            false => first.saturating_add((ahead + steps).min(MOST)),
        }
    }

    /// Returns the wait that the request is told which got the last place. `earliest` is the first possible instant.
    pub(super) fn told(self, last: u64, earliest: Nanos, now: Nanos, shortest: Wait) -> Wait {
        let at = Nanos::new(last.saturating_mul(self.spacing));
        match last.saturating_sub(self.first(earliest)) {
            1..=MOST => shortest.max(Wait::For(at.since(now))),
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
