//! Two-window sliding counter: the previous window's count fades out as the present window fills.
//!
//! Cloudflare, Kong and Upstash use this algorithm. After `e` of the present window, the previous
//! window counts by the share of it that a sliding window still covers: a request is allowed if
//! `prev·(w-e) + (cur+c)·w ≤ q·w`, computed in integers. At worst it admits almost twice the quota
//! in one window's time, since it assumes that the previous window's requests were spread evenly.
//!
//! Source: Cloudflare, "How we built rate limiting capable of scaling to millions of domains".

use alloc::string::String;
use core::time::Duration;

use super::two_counts::TwoCounts;
use super::windowed::{Windowed, windowed, windowed_terms};
use super::{Algorithm, ClientState, Policy, Word};
use crate::arithmetic::{mul_div_floor, product_at_most};
use crate::clock::Nanos;
use crate::cost::Cost;
use crate::decision::{Wait, duration_from_nanos};
use crate::error::RuleError;
use crate::grammar::RuleWords;

/// A limit of about `quota` cost units in any `window`. Leaky by default.
///
/// ```
/// use earrrl::{Cost, Limit, Mode, Nanos};
/// use earrrl::algorithm::SlidingCounter;
/// use std::time::Duration;
/// let limit = Limit::from(SlidingCounter::new(Cost::from_units(5), Duration::from_secs(1))?);
/// let three = Cost::from_units(3);
/// let (state, _) = limit.decide(None, Nanos::new(0), three, Mode::Check);
/// let edge = limit.decide(state, Nanos::from_secs(1), Cost::ZERO, Mode::Peek).1;
/// assert_eq!(edge.remaining, 2); // all three still count at the edge
/// # Ok::<(), earrrl::RuleError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SlidingCounter {
    terms: Windowed,
}

windowed!(SlidingCounter);

/// The cost that a client spent in one window and in the window before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WindowCounts {
    /// The window's index, in windows since the Unix epoch.
    pub window: u64,
    /// The cost in this window, in billionths of a unit.
    pub current: u128,
    /// The cost in the window before, in billionths of a unit.
    pub previous: u128,
}

impl ClientState for WindowCounts {}

impl SlidingCounter {
    /// Returns a limit of about `quota` in any `window` of 1 ms to ten years.
    ///
    /// ```
    /// # use earrrl::Cost;
    /// # use earrrl::algorithm::SlidingCounter;
    /// # use std::time::Duration;
    /// let limit = SlidingCounter::new(Cost::from_units(60), Duration::from_secs(60))?;
    /// assert_eq!(limit.window(), Duration::from_secs(60));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// Returns an error if the quota is 0 or the window is out of these bounds.
    pub fn new(quota: Cost, window: Duration) -> Result<Self, RuleError> {
        Ok(Self {
            terms: Windowed::new(quota, window)?,
        })
    }

    /// Returns the nanoseconds left of the window that a request is judged in, `w - e`.
    ///
    /// A request whose clock was read before a window's edge may be decided after a request whose
    /// clock was read behind it. The late request is then judged as if it came at the edge, where
    /// the previous window has its full weight.
    fn left(&self, counts: Option<&WindowCounts>, now: Nanos) -> u64 {
        match counts {
            Some(counts) if counts.window > self.terms.index(now) => self.terms.window,
            _ => self.terms.left(now),
        }
    }

    /// Returns the state, or that of a client that has spent nothing.
    #[inline]
    fn begun(&self, before: Option<WindowCounts>, now: Nanos) -> WindowCounts {
        before.unwrap_or_else(|| WindowCounts {
            window: self.terms.index(now),
            current: 0,
            previous: 0,
        })
    }

    /// Returns the form of the two counts in a word.
    #[inline]
    fn digits(&self) -> TwoCounts {
        TwoCounts::within(self.terms.words())
    }

    /// Returns `prev·(w-e)/w + cur`, with the first term rounded up.
    fn sum(&self, counts: &WindowCounts, now: Nanos) -> u128 {
        let left = u128::from(self.left(Some(counts), now));
        let window = u128::from(self.terms.window);
        let faded = crate::arithmetic::mul_div_ceil(counts.previous, left, window);
        faded.unwrap_or(u128::MAX).saturating_add(counts.current)
    }

    /// Returns the most nanoseconds of a window that may be left so that `faded·left ≤
    /// room·window`.
    fn left_for(&self, faded: u128, room: u128) -> i128 {
        let left = mul_div_floor(room, u128::from(self.terms.window), faded);
        left.and_then(|left| i128::try_from(left).ok())
            .unwrap_or(i128::MAX)
            .min(self.terms.window.into())
    }
}

impl Algorithm for SlidingCounter {
    type State = WindowCounts;

    const NAMES: &'static [&'static str] = &["sliding-counter"];

    fn read(_name: &str, words: &mut RuleWords<'_>) -> Result<Self, RuleError> {
        Ok(Self {
            terms: Windowed::read(words)?,
        })
    }

    fn write(&self) -> String {
        self.terms.write(Self::NAMES[0], "")
    }

    windowed_terms!();

    fn meaning(&self) -> [u64; 2] {
        [self.terms.window, 0]
    }

    fn advance(&self, state: Option<WindowCounts>, now: Nanos) -> Option<WindowCounts> {
        let state = state?;
        let window = self.terms.index(now);
        match window.saturating_sub(state.window) {
            0 => Some(state),
            1 if state.current > 0 => Some(WindowCounts {
                window,
                current: 0,
                previous: state.current,
            }),
            _ => None,
        }
    }

    fn allows(&self, before: Option<&WindowCounts>, now: Nanos, cost: Cost) -> bool {
        let (current, previous) = before.map_or((0, 0), |counts| (counts.current, counts.previous));
        let asked = current.saturating_add(cost.billionths());
        self.terms
            .quota
            .billionths()
            .checked_sub(asked)
            .is_some_and(|room| {
                let faded = (previous, self.left(before, now).into());
                product_at_most(faded, (room, self.terms.window.into()))
            })
    }

    fn charge(&self, before: Option<WindowCounts>, now: Nanos, cost: Cost) -> WindowCounts {
        let counts = self.begun(before, now);
        WindowCounts {
            current: counts.current.saturating_add(cost.billionths()),
            ..counts
        }
    }

    fn refund(
        &self,
        counts: WindowCounts,
        now: Nanos,
        charged_at: Nanos,
        cost: Cost,
    ) -> Option<WindowCounts> {
        let mut counts = counts;
        let cost = cost.billionths();
        match counts.window.checked_sub(self.terms.index(charged_at)) {
            Some(0) => counts.current = counts.current.saturating_sub(cost),
            Some(1) => counts.previous = counts.previous.saturating_sub(cost),
            _ => {}
        }
        let empty = counts.current == 0 && counts.previous == 0;
        if empty {
            None
        } else {
            self.advance(Some(counts), now)
        }
    }

    fn charge_past(
        &self,
        before: Option<WindowCounts>,
        now: Nanos,
        charged_at: Nanos,
        cost: Cost,
    ) -> Option<WindowCounts> {
        let mut counts = self.begun(before, now);
        let cost = cost.billionths();
        match counts.window.saturating_sub(self.terms.index(charged_at)) {
            0 => counts.current = counts.current.saturating_add(cost),
            1 => counts.previous = counts.previous.saturating_add(cost),
            _ => return before,
        }
        Some(counts)
    }

    fn counted(&self, after: Option<&WindowCounts>, now: Nanos) -> Option<f64> {
        let w = self.terms.window as f64;
        let left = self.left(after, now) as f64;
        Some(after.map_or(0.0, |c| {
            (c.previous as f64 * (left / w) + c.current as f64) / w
        }))
    }

    fn remaining(&self, after: Option<&WindowCounts>, now: Nanos) -> u64 {
        let sum = after.map_or(0, |counts| self.sum(counts, now));
        self.terms.remaining(sum)
    }

    fn retry_after(&self, after: Option<&WindowCounts>, now: Nanos, cost: Cost) -> Wait {
        let Some(room) = self.terms.room_for(cost) else {
            return Wait::Never;
        };
        let Some(counts) = after.filter(|_| !self.allows(after, now, cost)) else {
            return Wait::NONE;
        };
        let left = self.terms.until_end(counts.window, now);
        Wait::from_nanos(match room.checked_sub(counts.current) {
            Some(room) => left - self.left_for(counts.previous, room),
            None => left + i128::from(self.terms.window) - self.left_for(counts.current, room),
        })
    }

    fn reset_after(&self, after: Option<&WindowCounts>, now: Nanos) -> Duration {
        duration_from_nanos(after.map_or(0, |counts| {
            let next = if counts.current > 0 {
                self.terms.window
            } else {
                0
            };
            self.terms.until_end(counts.window, now) + i128::from(next)
        }))
    }

    /// Returns the largest of two counts of whole units that fit a word.
    fn largest_in_words(&self) -> Option<u64> {
        Some(self.digits().most())
    }

    #[inline]
    fn word(&self, counts: &WindowCounts) -> Word {
        let place = self.digits().place_of(counts.current, counts.previous);
        self.terms.word(counts.window, place)
    }

    #[inline]
    fn state_of(&self, word: Word) -> Option<WindowCounts> {
        let (window, place) = self.terms.window_and_place(word);
        let (current, previous) = self.digits().counts(place);
        Some(WindowCounts {
            window,
            current,
            previous,
        })
    }

    /// Returns the cost that counts at `now`. A word alone does not tell: after the end of a window,
    /// clients that spent their quota in it must outrank those that are new.
    fn rank(&self, word: Word, now: Nanos) -> Word {
        let counts = self.advance(self.state_of(word), now);
        let sum = counts.map_or(0, |counts| self.sum(&counts, now));
        Word::try_from(sum).unwrap_or(Word::MAX)
    }

    fn idle(&self, _now: Nanos) -> Word {
        0
    }

    /// Returns the last word of the next window: a request with a later clock may have begun it.
    fn greatest(&self, now: Nanos) -> Word {
        self.terms.word(self.terms.index(now).saturating_add(2), 0) - 1
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Limit, Mode};

    /// A request whose clock was read before the edge is decided after one whose clock was read
    /// behind it.
    #[test]
    fn a_request_of_before_the_edge_is_judged_as_at_the_edge() {
        let limit = SlidingCounter::new(Cost::from_units(10), Duration::from_secs(1)).unwrap();
        let limit = Limit::from(limit);
        let nine = Cost::from_units(9);
        let (state, _) = limit.decide(None, Nanos::new(500_000_000), nine, Mode::Check);
        let edge = Nanos::from_secs(1);
        let (state, first) = limit.decide(state, edge, Cost::ONE, Mode::Check);
        assert!(first.allowed);
        for early in [1, 1_000, 999_999_999] {
            let before = Nanos::new(edge.get() - early);
            let late = limit.decide(state.clone(), before, Cost::ONE, Mode::Peek).1;
            assert!(!late.allowed, "{early} ns before the edge");
            let wait = late.retry_after.duration().unwrap();
            assert!(
                !limit
                    .decide(
                        state.clone(),
                        before + (wait - Duration::from_nanos(1)),
                        Cost::ONE,
                        Mode::Peek
                    )
                    .1
                    .allowed
            );
            assert!(
                limit
                    .decide(state.clone(), before + wait, Cost::ONE, Mode::Peek)
                    .1
                    .allowed
            );
            assert_eq!(before + late.reset_after, Nanos::from_secs(3));
        }
    }
}
