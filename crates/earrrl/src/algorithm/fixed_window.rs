//! Fixed window: a count that restarts at every multiple of the window since the Unix epoch, or with every
//! period of a calendar.
//!
//! A known weakness of this algorithm: a client can send up to twice the quota within one window's
//! time, half on each side of a boundary.
//!
//! Source: "Rate limiting" notes after Figma's "An alternative approach to rate limiting".

use alloc::string::String;
use core::time::Duration;

use super::calendar::Calendar;
use super::windowed::{UNIT, Windowed, windowed, windowed_terms};
use super::{Algorithm, ClientState, Policy, Replenishment, Word};
use crate::clock::Nanos;
use crate::cost::Cost;
use crate::decision::{Wait, duration_from_nanos};
use crate::error::RuleError;
use crate::grammar::RuleWords;

/// A limit of `quota` cost units in each window. Leaky by default.
///
/// The window is a duration, or as text a calendar's day, week, month or year: `fixed-window 10000/month from=15
/// tz=Europe/Berlin`. Its length is then the mean length of such a period.
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
    calendar: Option<Calendar>,
}

windowed!(FixedWindow);

/// The cost that a client spent in one window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Count {
    /// The window's index, in windows since the Unix epoch, or the number of a calendar's period.
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
            calendar: None,
        })
    }

    /// Returns the number of the window that contains `now`: windows since the Unix epoch, or periods of the
    /// calendar.
    #[doc(hidden)]
    #[inline]
    pub fn number(&self, now: Nanos) -> u64 {
        match self.calendar {
            None => self.terms.index(now),
            Some(calendar) => calendar.number(now),
        }
    }

    /// Returns the nanosecond since the Unix epoch at which a window begins.
    #[doc(hidden)]
    pub fn begins(&self, window: u64) -> i128 {
        match self.calendar {
            None => i128::from(window) * i128::from(self.terms.window),
            Some(calendar) => calendar.begins(window),
        }
    }

    /// Returns true if windows are periods of a calendar.
    #[doc(hidden)]
    pub fn is_calendar(&self) -> bool {
        self.calendar.is_some()
    }

    /// Returns the wait until the window that contains `now` ends.
    ///
    /// ```
    /// use earrrl::{Limit, Nanos, Rule};
    /// use std::time::Duration;
    /// let rule: Rule = "fixed-window 1000/month".parse()?;
    /// let Limit::FixedWindow(limit) = rule.limit() else { unreachable!() };
    /// let february = Nanos::from_secs(31 * 86_400);
    /// assert_eq!(limit.until_window_ends(february), Duration::from_secs(28 * 86_400));
    /// # Ok::<(), earrrl::RuleError>(())
    /// ```
    pub fn until_window_ends(&self, now: Nanos) -> Duration {
        duration_from_nanos(self.until_end(self.number(now), now))
    }

    /// Returns the nanoseconds from `now` to the end of a window: the present one, or a later one that a
    /// request with a later clock has begun.
    fn until_end(&self, window: u64, now: Nanos) -> i128 {
        match self.calendar {
            None => self.terms.until_end(window, now),
            Some(calendar) => calendar.begins(window + 1) - i128::from(now.get()),
        }
    }

    fn words(&self) -> u128 {
        self.calendar
            .map_or_else(|| self.terms.words(), |_| Calendar::WORDS)
    }

    #[inline]
    fn word_at(&self, window: u64, place: u128) -> Word {
        match self.calendar {
            None => self.terms.word(window, place),
            Some(_) => Calendar::word(window, place),
        }
    }

    /// Returns the place, among the words of a window, of every count that is too great for a word. Its
    /// state denies until the end of the window, whatever is refunded.
    fn endless(&self) -> u128 {
        self.words() - 2
    }
}

fn counted(state: Option<&Count>) -> u128 {
    state.map_or(0, |state| state.count)
}

impl Algorithm for FixedWindow {
    type State = Count;

    const NAMES: &'static [&'static str] = &["fixed-window"];

    const EXAMPLES: &'static [&'static str] = &[
        "fixed-window 5/1s leaky",
        "fixed-window 20/1m strict",
        "fixed-window 50/week leaky",
        "fixed-window 500/month from=31 leaky",
        "fixed-window 2000/year from=04-06 leaky",
        #[cfg(feature = "time-zones")]
        "fixed-window 20/day tz=Europe/Berlin leaky",
        #[cfg(feature = "time-zones")]
        "fixed-window 500/month tz=America/New_York leaky",
    ];

    fn read(_name: &str, words: &mut RuleWords<'_>) -> Result<Self, RuleError> {
        let (word, quota, period) = words.quota_per()?;
        let policy = words.policy(Policy::Leaky)?;
        let calendar = Calendar::read(period, words)?;
        let window = match calendar {
            Some(calendar) => Duration::from_nanos(calendar.mean_nanos()),
            None => period.time()?,
        };
        let limit = Self::new(quota, window).map_err(|error| error.at(word.column))?;
        Ok(Self { calendar, ..limit }.with_policy(policy))
    }

    fn write(&self) -> String {
        match self.calendar {
            None => self.terms.write(Self::NAMES[0], ""),
            Some(calendar) => self.terms.write_per(Self::NAMES[0], &calendar.text()),
        }
    }

    windowed_terms!();

    fn last_charge(&self, _state: &Count) -> Option<Nanos> {
        None
    }

    fn replenishment(&self) -> Replenishment {
        Replenishment::AtWindowEnd
    }

    fn meaning(&self) -> [u64; 2] {
        let calendar = self.calendar.map_or(0, |calendar| calendar.meaning());
        [self.terms.window, calendar]
    }

    fn advance(&self, state: Option<Count>, now: Nanos) -> Option<Count> {
        state.filter(|state| state.window >= self.number(now))
    }

    fn allows(&self, before: Option<&Count>, _now: Nanos, cost: Cost) -> bool {
        self.terms.fits(counted(before), cost)
    }

    fn charge(&self, before: Option<Count>, now: Nanos, cost: Cost) -> Count {
        let window = before.map_or_else(|| self.number(now), |state| state.window);
        Count {
            window,
            count: counted(before.as_ref()).saturating_add(cost.billionths()),
        }
    }

    fn refund(&self, state: Count, _now: Nanos, charged_at: Nanos, cost: Cost) -> Option<Count> {
        if state.window != self.number(charged_at) {
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
        let window = before.map_or_else(|| self.number(now), |state| state.window);
        let is_gone = self.number(charged_at) < window;
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
                Wait::from_nanos(self.until_end(count.window, now))
            }
            _ => Wait::NONE,
        }
    }

    fn reset_after(&self, after: Option<&Count>, now: Nanos) -> Duration {
        duration_from_nanos(after.map_or(0, |count| self.until_end(count.window, now)))
    }

    /// Returns 2^23 units per second of the window, and 10^12 units in a calendar's period.
    fn largest_in_words(&self) -> Option<u64> {
        u64::try_from((self.endless() - 1) / UNIT).ok()
    }

    #[inline]
    fn word(&self, state: &Count) -> Word {
        let place = state.count.min(self.endless());
        self.word_at(state.window, place)
    }

    #[inline]
    fn state_of(&self, word: Word) -> Option<Count> {
        let (window, place) = match self.calendar {
            None => self.terms.window_and_place(word),
            Some(_) => Calendar::period_and_place(word),
        };
        let is_endless = place >= self.endless();
        let count = if is_endless { u128::MAX } else { place };
        Some(Count { window, count })
    }

    /// Returns the word just before those of the present window.
    fn idle(&self, now: Nanos) -> Word {
        self.word_at(self.number(now), 0) - 1
    }

    /// Returns the last word of the next window: a request with a later clock may have begun it.
    fn greatest(&self, now: Nanos) -> Word {
        self.word_at(self.number(now).saturating_add(2), 0) - 1
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
