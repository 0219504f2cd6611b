//! Fixed window: a count that restarts at every multiple of the window since the Unix epoch.
//!
//! A known weakness of this algorithm: a client can send up to twice the quota within one window's
//! time, half on each side of a boundary.
//!
//! Source: "Rate limiting" notes after Figma's "An alternative approach to rate limiting".

use alloc::string::String;
use core::time::Duration;

use super::windowed::{UNIT, Windowed, windowed, windowed_terms};
use super::{Algorithm, ClientState, Policy, Replenishment, Word};
use crate::clock::Nanos;
use crate::cost::Cost;
use crate::decision::{Wait, duration_from_nanos};
use crate::error::RuleError;
use crate::grammar::RuleWords;

/// A limit of `quota` cost units in each window. Leaky by default.
///
/// ```
/// use earrrl::{Cost, Limit, Mode, Nanos};
/// use earrrl::algorithm::FixedWindow;
/// use std::time::Duration;
/// let limit = Limit::from(FixedWindow::new(Cost::from_units(2), Duration::from_secs(60))?);
/// let (_, decision) = limit.decide(None, Nanos::from_secs(59), Cost::ONE, Mode::Check);
/// assert_eq!((decision.remaining, decision.reset_after), (1, Duration::from_secs(1)));
/// # Ok::<(), earrrl::RuleError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct FixedWindow {
    terms: Windowed,
}

windowed!(FixedWindow);

/// The cost that a client spent in one window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Count {
    /// The window's index, in windows since the Unix epoch.
    pub window: u64,
    /// The cost spent in that window, in billionths of a unit.
    pub count: u128,
}

impl ClientState for Count {}

impl FixedWindow {
    /// Returns a limit of `quota` in every `window` of 1 ms to ten years.
    ///
    /// ```
    /// # use earrrl::Cost;
    /// # use earrrl::algorithm::FixedWindow;
    /// # use std::time::Duration;
    /// let limit = FixedWindow::new(Cost::from_units(10_000), Duration::from_secs(30 * 86_400))?;
    /// assert_eq!(limit.quota(), Cost::from_units(10_000));
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
}

impl FixedWindow {
    /// Returns the place, among the words of a window, of every count that is too great for a word. Its
    /// state denies until the end of the window, whatever is refunded.
    fn endless(&self) -> u128 {
        self.terms.words() - 2
    }
}

fn counted(state: Option<&Count>) -> u128 {
    state.map_or(0, |state| state.count)
}

impl Algorithm for FixedWindow {
    type State = Count;

    const NAMES: &'static [&'static str] = &["fixed-window"];

    const EXAMPLES: &'static [&'static str] =
        &["fixed-window 5/1s leaky", "fixed-window 20/1m strict"];

    fn read(_name: &str, words: &mut RuleWords<'_>) -> Result<Self, RuleError> {
        Ok(Self {
            terms: Windowed::read(words)?,
        })
    }

    fn write(&self) -> String {
        self.terms.write(Self::NAMES[0], "")
    }

    windowed_terms!();

    fn last_charge(&self, _state: &Count) -> Option<Nanos> {
        None
    }

    fn replenishment(&self) -> Replenishment {
        Replenishment::AtWindowEnd
    }

    fn meaning(&self) -> [u64; 2] {
        [self.terms.window, 0]
    }

    fn advance(&self, state: Option<Count>, now: Nanos) -> Option<Count> {
        state.filter(|state| state.window >= self.terms.index(now))
    }

    fn allows(&self, before: Option<&Count>, _now: Nanos, cost: Cost) -> bool {
        self.terms.fits(counted(before), cost)
    }

    fn charge(&self, before: Option<Count>, now: Nanos, cost: Cost) -> Count {
        let window = before.map_or(self.terms.index(now), |state| state.window);
        Count {
            window,
            count: counted(before.as_ref()).saturating_add(cost.billionths()),
        }
    }

    fn refund(&self, state: Count, _now: Nanos, charged_at: Nanos, cost: Cost) -> Option<Count> {
        if state.window != self.terms.index(charged_at) {
            return Some(state);
        }
        let count = state.count.saturating_sub(cost.billionths());
        (count > 0).then_some(Count { count, ..state })
    }

    fn charge_past(
        &self,
        before: Option<Count>,
        now: Nanos,
        charged_at: Nanos,
        cost: Cost,
    ) -> Option<Count> {
        let window = before.map_or(self.terms.index(now), |state| state.window);
        let is_gone = self.terms.index(charged_at) < window;
        if is_gone {
            before
        } else {
            Some(self.charge(before, now, cost))
        }
    }

    fn counted(&self, after: Option<&Count>, _now: Nanos) -> Option<f64> {
        Some(self.terms.per_second(counted(after)))
    }

    fn remaining(&self, after: Option<&Count>, _now: Nanos) -> u64 {
        self.terms.remaining(counted(after))
    }

    fn retry_after(&self, after: Option<&Count>, now: Nanos, cost: Cost) -> Wait {
        match after {
            _ if cost > self.terms.quota => Wait::Never,
            Some(count) if !self.allows(after, now, cost) => {
                Wait::from_nanos(self.terms.until_end(count.window, now))
            }
            _ => Wait::NONE,
        }
    }

    fn reset_after(&self, after: Option<&Count>, now: Nanos) -> Duration {
        duration_from_nanos(after.map_or(0, |count| self.terms.until_end(count.window, now)))
    }

    /// Returns 2^23 units per second of the window.
    fn largest_in_words(&self) -> Option<u64> {
        u64::try_from((self.endless() - 1) / UNIT).ok()
    }

    #[inline]
    fn word(&self, state: &Count) -> Word {
        let place = state.count.min(self.endless());
        self.terms.word(state.window, place)
    }

    #[inline]
    fn state_of(&self, word: Word) -> Option<Count> {
        let (window, place) = self.terms.window_and_place(word);
        let is_endless = place >= self.endless();
        let count = if is_endless { u128::MAX } else { place };
        Some(Count { window, count })
    }

    /// Returns the word just before those of the present window.
    fn idle(&self, now: Nanos) -> Word {
        self.terms.word(self.terms.index(now), 0) - 1
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

    #[test]
    fn a_request_of_before_the_edge_waits_for_the_end_of_the_window_that_has_begun() {
        let limit = FixedWindow::new(Cost::ONE, Duration::from_secs(1)).unwrap();
        let limit = Limit::from(limit);
        let (state, _) = limit.decide(None, Nanos::from_secs(1), Cost::ONE, Mode::Check);
        let before = Nanos::new(999_999_999);
        let late = limit.decide(state, before, Cost::ONE, Mode::Peek).1;
        assert!(!late.allowed);
        assert_eq!(before + late.reset_after, Nanos::from_secs(2));
        assert_eq!(late.retry_after.duration(), Some(late.reset_after));
    }
}
