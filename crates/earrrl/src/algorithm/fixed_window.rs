//! Fixed window: a count that restarts at every multiple of the window since the Unix epoch, with every period of a
//! calendar, or with a client's first request after its last window.
//!
//! A known weakness of this algorithm: a client can send up to twice the quota within one window's
//! time, half on each side of a boundary.
//!
//! Source: "Rate limiting" notes after Figma's "An alternative approach to rate limiting".

use alloc::format;
use alloc::string::String;
use core::time::Duration;

use super::calendar::Calendar;
use super::window_words::FirstWindow;
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
/// tz=Europe/Berlin`. Its length is then the mean length of such a period. With `start=first`, a client's window
/// begins with its first request.
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
    irregular: Option<Irregular>,
}

/// The windows that do not begin at multiples of their length since the Unix epoch. Their functions are out of line: the
/// checks of all algorithms are one function, which more code for rare windows makes slower.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Irregular {
    /// The periods of a calendar.
    Periods(Calendar),
    /// Windows from the millisecond of a client's first request after its last window.
    First,
}

impl Irregular {
    #[cold]
    #[inline(never)]
    fn number(&self, now: Nanos) -> u64 {
        match self {
            Self::Periods(calendar) => calendar.number(now),
            Self::First => now.get() / FirstWindow::NANOS,
        }
    }

    /// Returns the number of words of one window; with `start=first`, more than counts can need.
    #[cold]
    #[inline(never)]
    fn words(&self) -> u128 {
        match self {
            Self::Periods(_) => Calendar::WORDS,
            Self::First => u128::MAX,
        }
    }

    #[cold]
    #[inline(never)]
    fn word(&self, window: u64, place: u128) -> Word {
        match self {
            Self::Periods(_) => Calendar::word(window, place),
            Self::First => FirstWindow::word(window, place),
        }
    }

    #[cold]
    #[inline(never)]
    fn window_and_place(&self, word: Word) -> (u64, u128) {
        match self {
            Self::Periods(_) => Calendar::period_and_place(word),
            Self::First => FirstWindow::start_and_count(word),
        }
    }
}

windowed!(FixedWindow);

/// The cost that a client spent in one window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Count {
    /// The window's index, in windows since the Unix epoch; the number of a calendar's period; or the millisecond with
    /// which a window began that begins with a request.
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
            irregular: None,
        })
    }

    /// Makes each client's window begin with its first request, to the millisecond, as `start=first` does.
    ///
    /// ```
    /// # use earrrl::{Cost, Limit, Mode, Nanos, algorithm::FixedWindow};
    /// # use std::time::Duration;
    /// let limit = FixedWindow::new(Cost::from_units(2), Duration::from_secs(60))?.starting_with_first();
    /// let (_, decision) = Limit::from(limit).decide(None, Nanos::from_secs(59), Cost::ONE, Mode::Check);
    /// assert_eq!(decision.reset_after, Duration::from_secs(60));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn starting_with_first(self) -> Self {
        let irregular = Some(Irregular::First);
        Self { irregular, ..self }
    }

    /// Returns the number of the window that contains `now`, or that begins with a request at `now`; see [`Count`].
    #[doc(hidden)]
    #[inline]
    pub fn number(&self, now: Nanos) -> u64 {
        match &self.irregular {
            None => self.terms.index(now),
            Some(irregular) => irregular.number(now),
        }
    }

    /// Returns the nanosecond since the Unix epoch at which a window begins.
    #[doc(hidden)]
    pub fn begins(&self, window: u64) -> i128 {
        match &self.irregular {
            None => i128::from(window) * i128::from(self.terms.window),
            Some(Irregular::Periods(calendar)) => calendar.begins(window),
            Some(Irregular::First) => i128::from(window) * i128::from(FirstWindow::NANOS),
        }
    }

    /// Returns true if windows are periods of a calendar.
    #[doc(hidden)]
    pub fn is_calendar(&self) -> bool {
        matches!(self.irregular, Some(Irregular::Periods(_)))
    }

    /// Returns true if a client's window begins with its first request.
    #[doc(hidden)]
    pub fn starts_with_first(&self) -> bool {
        self.irregular == Some(Irregular::First)
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

    /// Returns the first nanosecond since the Unix epoch that belongs to a window no longer.
    #[inline]
    fn ends(&self, window: u64) -> i128 {
        match self.irregular {
            Some(Irregular::Periods(_)) => self.begins(window + 1),
            _ => self.begins(window) + i128::from(self.terms.window),
        }
    }

    /// Returns the nanoseconds from `now` to the end of a window: the present one, or a later one that a
    /// request with a later clock has begun. They are not above zero if the window has ended.
    #[inline]
    fn until_end(&self, window: u64, now: Nanos) -> i128 {
        self.ends(window) - i128::from(now.get())
    }

    #[inline]
    fn words(&self) -> u128 {
        match &self.irregular {
            None => self.terms.words(),
            Some(irregular) => irregular.words(),
        }
    }

    #[inline]
    fn word_at(&self, window: u64, place: u128) -> Word {
        match &self.irregular {
            None => self.terms.word(window, place),
            Some(irregular) => irregular.word(window, place),
        }
    }

    /// Returns the place, among the words of a window, of every count that is too great for a word. Its
    /// state denies until the end of the window, whatever is refunded.
    #[inline]
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

    fn read(_name: &str, words: &mut RuleWords<'_>) -> Result<Self, RuleError> {
        let (word, quota, period) = words.quota_per()?;
        let policy = words.policy(Policy::Leaky)?;
        let (irregular, window) = match (Calendar::read(period, words)?, words.option("start")?) {
            (None, None) => (None, period.time()?),
            (None, Some(start)) if start.text == "first" => {
                (Some(Irregular::First), period.time()?)
            }
            (Some(calendar), None) => {
                let mean = Duration::from_nanos(calendar.mean_nanos());
                (Some(Irregular::Periods(calendar)), mean)
            }
            (None, Some(start)) => {
                return Err(start.expected(
                    "first, for windows that begin with a client's first request; leave `start` out for \
                     windows that begin at multiples of their length since 1970",
                ));
            }
            (Some(_), Some(start)) => {
                return Err(start.error(format!(
                    "`start` needs a duration, not the calendar's {}, as in `fixed-window 1000/30d start=first`",
                    period.quoted()
                )));
            }
        };
        let limit = Self::new(quota, window).map_err(|error| error.at(word.column))?;
        Ok(Self { irregular, ..limit }.with_policy(policy))
    }

    fn write(&self) -> String {
        match self.irregular {
            None => self.terms.write(Self::NAMES[0], ""),
            Some(Irregular::Periods(calendar)) => {
                self.terms.write_per(Self::NAMES[0], &calendar.text())
            }
            Some(Irregular::First) => self.terms.write(Self::NAMES[0], " start=first"),
        }
    }

    windowed_terms!();

    fn replenishment(&self) -> Replenishment {
        Replenishment::AtWindowEnd
    }

    fn meaning(&self) -> [u64; 2] {
        // A calendar's number is odd.
        let starts = match self.irregular {
            None => 0,
            Some(Irregular::Periods(calendar)) => calendar.meaning(),
            Some(Irregular::First) => 2,
        };
        [self.terms.window, starts]
    }

    #[inline]
    fn advance(&self, state: Option<Count>, now: Nanos) -> Option<Count> {
        state.filter(|state| match self.irregular {
            None => state.window >= self.terms.index(now),
            Some(_) => self.until_end(state.window, now) > 0,
        })
    }

    #[inline]
    fn allows(&self, before: Option<&Count>, _now: Nanos, cost: Cost) -> bool {
        self.terms.fits(counted(before), cost)
    }

    #[inline]
    fn charge(&self, before: Option<Count>, now: Nanos, cost: Cost) -> Count {
        let window = before.map_or_else(|| self.number(now), |state| state.window);
        Count {
            window,
            count: counted(before.as_ref()).saturating_add(cost.billionths()),
        }
    }

    fn refund(&self, state: Count, _now: Nanos, charged_at: Nanos, cost: Cost) -> Option<Count> {
        let at = i128::from(charged_at.get());
        if at < self.begins(state.window) || at >= self.ends(state.window) {
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
        let state = before.unwrap_or_else(|| Count {
            window: self.number(charged_at),
            count: 0,
        });
        let is_of_earlier = i128::from(charged_at.get()) < self.begins(state.window);
        if is_of_earlier || self.until_end(state.window, now) <= 0 {
            return before;
        }
        Some(self.charge(Some(state), now, cost))
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

    /// Returns 2^23 units per second of the window, 10^12 units in a calendar's period, and 2^39 units with
    /// `start=first`.
    fn largest_in_words(&self) -> Option<u64> {
        match self.irregular {
            Some(Irregular::First) => Some(FirstWindow::COUNT.most()),
            _ => u64::try_from((self.endless() - 1) / UNIT).ok(),
        }
    }

    #[inline]
    fn word(&self, state: &Count) -> Word {
        let place = state.count.min(self.endless());
        self.word_at(state.window, place)
    }

    #[inline]
    fn state_of(&self, word: Word) -> Option<Count> {
        let (window, place) = match &self.irregular {
            None => self.terms.window_and_place(word),
            Some(irregular) => irregular.window_and_place(word),
        };
        let is_endless = place >= self.endless();
        let count = if is_endless { u128::MAX } else { place };
        Some(Count { window, count })
    }

    /// Returns with `start=first` the cost that counts at `now`: a client that has spent much must outrank those whose
    /// windows began later.
    #[inline]
    fn rank(&self, word: Word, now: Nanos) -> Word {
        if !self.starts_with_first() {
            return word;
        }
        let state = self.advance(self.state_of(word), now);
        Word::try_from(counted(state.as_ref())).unwrap_or(Word::MAX)
    }

    /// Returns the word just before those of the present window; the rank 0 with `start=first`.
    fn idle(&self, now: Nanos) -> Word {
        match self.irregular {
            Some(Irregular::First) => 0,
            _ => self.word_at(self.number(now), 0) - 1,
        }
    }

    /// Returns the last word of the next window: a request with a later clock may have begun it. With `start=first`
    /// such a clock may be a window ahead.
    fn greatest(&self, now: Nanos) -> Word {
        let latest = match self.irregular {
            Some(Irregular::First) => now + self.window(),
            _ => now,
        };
        self.word_at(self.number(latest).saturating_add(2), 0) - 1
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
