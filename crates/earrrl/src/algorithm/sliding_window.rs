//! Hybrid sliding window: adds up the counts of `k` sub-windows. It approximates the sliding log
//! with a bounded state.
//!
//! *Lenient* adds up the present sub-window and the `k-1` before it, and may admit a little over
//! the quota. *Harsh*, the default, adds one more sub-window, and never admits more than the quota
//! in any window.
//!
//! Source: "Rate limiting" notes after Figma's "An alternative approach to rate limiting".

use alloc::format;
use alloc::string::String;
use core::time::Duration;

use super::windowed::{Windowed, tallied, windowed, windowed_terms};
use super::{Algorithm, Policy, Tally};
use crate::clock::Nanos;
use crate::cost::Cost;
use crate::decision::{Wait, duration_from_nanos};
use crate::error::RuleError;
use crate::grammar::RuleWords;

/// The most sub-windows per window.
const MOST: u64 = 10_000;
/// The most sub-windows that [`SlidingWindow::new`] chooses.
const DEFAULT_MOST: u64 = 60;

/// The sub-windows that count towards the quota.
///
/// ```
/// use earrrl::Cost;
/// use earrrl::algorithm::{SlidingWindow, sliding_window::Edge};
/// use std::time::Duration;
///
/// let limit = SlidingWindow::new(Cost::from_units(600), Duration::from_secs(3600))?;
/// assert_eq!(limit.edge(), Edge::Harsh);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Edge {
    /// The present sub-window and the `k` before it: never over the quota in any window.
    Harsh,
    /// The present sub-window and the `k-1` before it: up to one sub-window's cost over the quota.
    Lenient,
}

/// A limit of `quota` cost units in any `window`, counted in sub-windows. Leaky and harsh by
/// default.
///
/// ```
/// use earrrl::{Cost, Limit, Mode, Nanos};
/// use earrrl::algorithm::SlidingWindow;
/// use std::time::Duration;
/// let limit = SlidingWindow::new(Cost::from_units(600), Duration::from_secs(3600))?;
/// assert_eq!(limit.sub_windows(), 60);
/// let (_, decision) = Limit::from(limit).decide(None, Nanos::ZERO, Cost::ONE, Mode::Check);
/// assert_eq!(decision.remaining, 599);
/// # Ok::<(), earrrl::RuleError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SlidingWindow {
    terms: Windowed,
    sub_windows: u64,
    edge: Edge,
}

windowed!(SlidingWindow);

impl SlidingWindow {
    /// Returns a limit of `quota` in any `window` of 1 ms to ten years. It has the greatest number
    /// of sub-windows up to 60 that divides the window into whole nanoseconds.
    ///
    /// ```
    /// # use earrrl::Cost;
    /// # use earrrl::algorithm::SlidingWindow;
    /// # use std::time::Duration;
    /// let limit = SlidingWindow::new(Cost::from_units(600), Duration::from_secs(3600))?;
    /// assert_eq!((limit.window().as_secs(), limit.sub_windows()), (3600, 60));
    /// # Ok::<(), earrrl::RuleError>(())
    /// ```
    ///
    /// # Errors
    /// Returns an error if the quota is 0 or the window is out of these bounds.
    pub fn new(quota: Cost, window: Duration) -> Result<Self, RuleError> {
        Ok(Self::of(Windowed::new(quota, window)?))
    }

    fn of(terms: Windowed) -> Self {
        let whole = (1..=DEFAULT_MOST)
            .rev()
            .find(|k| terms.window.is_multiple_of(*k));
        Self {
            terms,
            sub_windows: whole.unwrap_or(1),
            edge: Edge::Harsh,
        }
    }

    /// Sets the number of sub-windows per window, 1 to 10 000.
    ///
    /// ```
    /// # use earrrl::Cost;
    /// # use earrrl::algorithm::SlidingWindow;
    /// # use std::time::Duration;
    /// let limit = SlidingWindow::new(Cost::from_units(600), Duration::from_secs(3600))?;
    /// assert_eq!(limit.with_sub_windows(60)?.sub_windows(), 60);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// Returns an error if the number is out of these bounds.
    pub fn with_sub_windows(self, sub_windows: u64) -> Result<Self, RuleError> {
        if !(1..=MOST).contains(&sub_windows) {
            let problem = format!("{sub_windows} is not from 1 to {MOST}");
            return Err(RuleError::out_of_range(problem).of("sub-windows"));
        }
        Ok(Self {
            sub_windows,
            ..self
        })
    }

    /// Sets the sub-windows that count; [`Edge::Harsh`] by default.
    ///
    /// ```
    /// # use earrrl::Cost;
    /// # use earrrl::algorithm::{SlidingWindow, sliding_window::Edge};
    /// # use std::time::Duration;
    /// let limit = SlidingWindow::new(Cost::from_units(600), Duration::from_secs(3600))?;
    /// assert_eq!(limit.with_edge(Edge::Lenient).edge(), Edge::Lenient);
    /// # Ok::<(), earrrl::RuleError>(())
    /// ```
    pub fn with_edge(self, edge: Edge) -> Self {
        Self { edge, ..self }
    }

    /// Returns the number of sub-windows per window.
    pub fn sub_windows(&self) -> u64 {
        self.sub_windows
    }

    /// Returns the sub-windows that count.
    pub fn edge(&self) -> Edge {
        self.edge
    }

    /// Returns the index of the sub-window that contains `now`: `⌊now·k/w⌋`.
    fn slot(&self, now: Nanos) -> u64 {
        (u128::from(now.get()) * u128::from(self.sub_windows) / u128::from(self.terms.window))
            as u64
    }

    /// Returns the number of sub-windows for which a count is part of the sum.
    fn lifetime(&self) -> u64 {
        self.sub_windows + u64::from(self.edge == Edge::Harsh)
    }

    /// Returns the nanoseconds until a sub-window no longer counts.
    fn until_left(&self, slot: u64, now: Nanos) -> i128 {
        self.start(u128::from(slot) + u128::from(self.lifetime())) as i128 - i128::from(now.get())
    }

    /// Returns the first nanosecond of a sub-window: the least that [`Self::slot`] maps to it.
    fn start(&self, slot: u128) -> u128 {
        (slot * u128::from(self.terms.window)).div_ceil(u128::from(self.sub_windows))
    }
}

impl Algorithm for SlidingWindow {
    type State = Tally;

    const NAMES: &'static [&'static str] = &["sliding-window"];

    fn read(_name: &str, words: &mut RuleWords<'_>) -> Result<Self, RuleError> {
        let mut limit = Self::of(Windowed::read(words)?);
        if let Some(word) = words.option("sub-windows")? {
            let digits = word.text.bytes().all(|byte| byte.is_ascii_digit());
            let count = word.text.parse().ok().filter(|_| digits);
            let count = count.ok_or_else(|| word.expected("a whole number from 1 to 10000"))?;
            limit = limit
                .with_sub_windows(count)
                .map_err(|error| error.at(word.column))?;
        }
        let edge = words.flag(&["harsh", "lenient"])?;
        let lenient = edge.is_some_and(|word| word.text == "lenient");
        Ok(limit.with_edge(if lenient { Edge::Lenient } else { Edge::Harsh }))
    }

    fn write(&self) -> String {
        let edge = match self.edge {
            Edge::Harsh => "harsh",
            Edge::Lenient => "lenient",
        };
        let options = format!(" sub-windows={} {edge}", self.sub_windows);
        self.terms.write(Self::NAMES[0], &options)
    }

    tallied!(cost => cost);

    fn most_heap_bytes(&self) -> usize {
        Tally::bytes_of(self.sub_windows as usize + 2)
    }

    fn meaning(&self) -> [u64; 2] {
        [self.terms.window, self.sub_windows]
    }

    fn advance(&self, state: Option<Tally>, now: Nanos) -> Option<Tally> {
        state?.since((self.slot(now) + 1).saturating_sub(self.lifetime()))
    }

    fn charge(&self, before: Option<Tally>, now: Nanos, cost: Cost) -> Tally {
        let mut tally = before.unwrap_or_default();
        tally.add(self.slot(now), cost.billionths());
        tally
    }

    fn refund(&self, mut tally: Tally, now: Nanos, charged_at: Nanos, cost: Cost) -> Option<Tally> {
        tally.subtract(self.slot(charged_at), cost.billionths());
        self.advance(Some(tally), now)
    }

    fn charge_past(
        &self,
        before: Option<Tally>,
        now: Nanos,
        charged_at: Nanos,
        cost: Cost,
    ) -> Option<Tally> {
        let slot = self.slot(charged_at);
        if slot + self.lifetime() <= self.slot(now) {
            return before;
        }
        let mut tally = before.unwrap_or_default();
        tally.insert(slot, cost.billionths(), 1);
        Some(tally)
    }
}
