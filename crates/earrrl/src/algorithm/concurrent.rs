//! Concurrency limit: at most so many reservations of a client at a time.
//!
//! A reservation takes as many places as its cost, rounded up to whole units, until it is
//! committed, released or expired; a holder that disappears gives its places back after the
//! timeout. The state is the list of the taken places, each with the time at which it was taken or
//! renewed. Only allowed requests are stored, and no two entries are merged, so that a commit
//! finds exactly the places that its reservation took.
//!
//! Source: counting semaphores (Dijkstra), with the leases of Gray and Cheriton (1989) for holders
//! that disappear.

use alloc::format;
use alloc::string::String;
use core::time::Duration;

use super::windowed::{UNIT, Windowed, tallied, windowed_terms};
use super::{Algorithm, Policy, Tally};
use crate::clock::Nanos;
use crate::cost::Cost;
use crate::decision::{Wait, duration_from_nanos};
use crate::duration;
use crate::error::RuleError;
use crate::grammar::RuleWords;
use crate::held::Held;

/// The most places of a client. A change of a list of this many takes tens of microseconds.
const MOST_PLACES: u64 = 100_000;
/// The longest timeout, which is also the longest time for which a reservation can be live.
const LONGEST: Duration = Duration::from_secs(24 * 3600);

/// A limit of `places` reservations at a time, each for at most the timeout unless it is renewed.
///
/// ```
/// use earrrl::{Actual, Charge, Cost, HoldTerms, MemoryEngine};
/// use earrrl::algorithm::Concurrent;
/// use std::time::Duration;
///
/// let engine = MemoryEngine::new(1000)?;
/// let streams = Concurrent::new(2, Duration::from_secs(60))?;
/// let rule = engine.prepare_with("streams", &streams.into(), 1000)?;
/// let charge = Charge { rule, key: b"alice", cost: Cost::ONE };
/// let first = engine.hold(&[charge], HoldTerms::default(), None)?;
/// let second = engine.hold(&[charge], HoldTerms::default(), None)?;
/// assert_eq!((first.decision.remaining, second.decision.remaining), (1, 0));
/// assert!(!engine.hold(&[charge], HoldTerms::default(), None)?.decision.allowed);
///
/// // The first stream has ended.
/// engine.commit(first.id.ok_or("denied")?, Actual::All(Cost::ONE), None)?;
/// assert!(engine.hold(&[charge], HoldTerms::default(), None)?.decision.allowed);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Concurrent {
    /// The places and the timeout, as a quota and its window.
    terms: Windowed,
}

impl Concurrent {
    /// Returns a limit of 1 to 100,000 places, which a holder has for a `timeout` of 1 ms to 24 h.
    ///
    /// ```
    /// # use earrrl::algorithm::Concurrent;
    /// # use std::time::Duration;
    /// let limit = Concurrent::new(10, Duration::from_secs(60))?;
    /// assert_eq!((limit.places(), limit.timeout()), (10, Duration::from_secs(60)));
    /// assert!(Concurrent::new(0, Duration::from_secs(60)).is_err());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// Returns an error if a parameter is out of its bounds.
    pub fn new(places: u64, timeout: Duration) -> Result<Self, RuleError> {
        if !(1..=MOST_PLACES).contains(&places) {
            let problem = format!("{places} is not from 1 to {MOST_PLACES}");
            return Err(RuleError::out_of_range(problem).of("places"));
        }
        if !(Duration::from_millis(1)..=LONGEST).contains(&timeout) {
            let problem = format!("{timeout:?} is not from 1ms to 24h");
            return Err(RuleError::out_of_range(problem).of("timeout"));
        }
        let terms = Windowed::new(Cost::from_units(places), timeout)?;
        Ok(Self { terms })
    }

    /// Returns the number of places.
    pub fn places(&self) -> u64 {
        self.terms.remaining(0)
    }

    /// Returns the time after which a place is free again if it is neither given back nor renewed.
    pub fn timeout(&self) -> Duration {
        Duration::from_nanos(self.timeout_nanos())
    }

    /// Returns the timeout in nanoseconds.
    #[doc(hidden)]
    pub fn timeout_nanos(&self) -> u64 {
        self.terms.window
    }

    fn until_left(&self, slot: u64, now: Nanos) -> i128 {
        self.terms.until_left(slot, now)
    }

    /// Returns the state in which the places of a live reservation were taken at `now`; `None` if
    /// the state, which is returned too, lacks them.
    pub(super) fn renew(
        &self,
        state: Option<Tally>,
        now: Nanos,
        held: &Held,
    ) -> (Option<Tally>, bool) {
        let taken = taken(held.cost).billionths();
        let Some(mut tally) = self.advance(state, now) else {
            return (None, taken == 0);
        };
        let there = tally.at(held.at.get()) >= taken;
        if there && taken > 0 {
            tally.subtract(held.at.get(), taken);
            tally.insert(now.get(), taken, 1);
        }
        (Some(tally), there)
    }
}

/// Returns the places that a cost takes.
fn taken(cost: Cost) -> Cost {
    Cost::from_billionths(cost.billionths().div_ceil(UNIT) * UNIT)
}

impl Algorithm for Concurrent {
    type State = Tally;

    const NAMES: &'static [&'static str] = &["concurrent"];

    fn read(_name: &str, words: &mut RuleWords<'_>) -> Result<Self, RuleError> {
        let word = words.next("expected a number of places such as 10")?;
        let places = word
            .text
            .parse()
            .map_err(|_| word.expected("a number of places such as 10"))?;
        let Some(timeout) = words.option("timeout")? else {
            return Err(words.missing("timeout=60s", "concurrent 10 timeout=60s"));
        };
        Self::new(places, timeout.duration()?).map_err(|error| {
            let column = if (1..=MOST_PLACES).contains(&places) {
                timeout.column
            } else {
                word.column
            };
            error.at(column)
        })
    }

    fn write(&self) -> String {
        let timeout = duration::Text(self.timeout_nanos());
        format!("{} {} timeout={timeout}", Self::NAMES[0], self.places())
    }

    tallied!(cost => taken(cost));

    fn most_heap_bytes(&self) -> usize {
        Tally::bytes_of(usize::try_from(self.places()).unwrap_or(usize::MAX))
    }

    /// Returns nothing: a place is a time and a number under every limit.
    fn meaning(&self) -> [u64; 2] {
        [0; 2]
    }

    fn advance(&self, state: Option<Tally>, now: Nanos) -> Option<Tally> {
        state?.since(self.terms.start(now))
    }

    fn charge(&self, before: Option<Tally>, now: Nanos, cost: Cost) -> Tally {
        let mut tally = before.unwrap_or_default();
        tally.insert(now.get(), taken(cost).billionths(), 1);
        tally
    }

    fn refund(&self, mut tally: Tally, now: Nanos, charged_at: Nanos, cost: Cost) -> Option<Tally> {
        tally.subtract(charged_at.get(), taken(cost).billionths());
        self.advance(Some(tally), now)
    }

    /// Gives the places back, whatever the actual cost: the request has ended.
    fn commit(
        &self,
        before: Option<Tally>,
        now: Nanos,
        held: &Held,
        _actual: Cost,
    ) -> Option<Tally> {
        self.refund(before?, now, held.at, held.cost)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Limit, Rule};

    #[test]
    fn a_renewal_takes_no_more_places_than_are_there() {
        let rule: Rule = "concurrent 3 timeout=1m".parse().unwrap();
        let Limit::Concurrent(limit) = rule.limit() else {
            panic!("{rule}")
        };
        let [at, later] = [Nanos::from_secs(1), Nanos::from_secs(2)];
        let one = limit.charge(None, at, Cost::ONE);
        for (places, renewed) in [(1, true), (2, false)] {
            let held = Held::new(at, Cost::from_units(places), Duration::ZERO);
            let (after, is_renewed) = limit.renew(Some(one.clone()), later, &held);
            let expected = if renewed {
                limit.charge(None, later, Cost::ONE)
            } else {
                one.clone()
            };
            assert_eq!((after, is_renewed), (Some(expected), renewed), "{places}");
        }
    }
}
