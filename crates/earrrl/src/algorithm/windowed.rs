//! The quota, window and policy that the four window algorithms share.

use alloc::format;
use alloc::string::String;
use core::time::Duration;

use super::Policy;
use crate::clock::Nanos;
use crate::cost::Cost;
use crate::duration;
use crate::error::RuleError;
use crate::grammar::RuleWords;
use crate::parameter;

/// The billionths of a unit.
pub(super) const UNIT: u128 = 1_000_000_000;

/// A limit of `quota` cost units in `window` nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Windowed {
    pub(super) quota: Cost,
    pub(super) window: u64,
    pub(super) policy: Policy,
}

impl Windowed {
    pub(super) fn new(quota: Cost, window: Duration) -> Result<Self, RuleError> {
        let quota = parameter::quota("quota", quota)?;
        Ok(Self {
            quota,
            window: parameter::span("window", window)?,
            policy: Policy::Leaky,
        })
    }

    /// Parses `60/1m [strict|leaky]`.
    pub(super) fn read(words: &mut RuleWords<'_>) -> Result<Self, RuleError> {
        let (word, quota, window) = words.quota()?;
        let terms = Self::new(quota, window).map_err(|error| error.at(word.column))?;
        Ok(Self {
            policy: words.policy(Policy::Leaky)?,
            ..terms
        })
    }

    /// Returns the rule's text, with `options` before the policy.
    pub(super) fn write(&self, name: &str, options: &str) -> String {
        self.write_per(name, &format!("{}{options}", duration::Text(self.window)))
    }

    /// Returns the rule's text, with `window` between the quota and the policy.
    pub(super) fn write_per(&self, name: &str, window: &str) -> String {
        format!("{name} {}/{window} {}", self.quota, self.policy.name())
    }

    pub(super) fn allowance(&self) -> (f64, f64) {
        (self.quota.as_f64(), self.window as f64 / 1e9)
    }

    /// Returns true if the sum of `counted` billionths and `cost` is within the quota.
    pub(super) fn fits(&self, counted: u128, cost: Cost) -> bool {
        counted.saturating_add(cost.billionths()) <= self.quota.billionths()
    }

    /// Returns the greatest count, in billionths, beside which `cost` fits; `None` if it never
    /// fits.
    pub(super) fn room_for(&self, cost: Cost) -> Option<u128> {
        self.quota.billionths().checked_sub(cost.billionths())
    }

    /// Returns the number of requests of cost 1 that fit into the quota beside `counted`
    /// billionths.
    pub(super) fn remaining(&self, counted: u128) -> u64 {
        parameter::whole_units(self.quota.billionths().saturating_sub(counted))
    }

    /// Converts a count of billionths in one window to units per second.
    pub(super) fn per_second(&self, counted: u128) -> f64 {
        parameter::per_second(counted, self.window)
    }

    /// Returns the index of the window that contains `now`, in windows since the Unix epoch.
    pub(super) fn index(&self, now: Nanos) -> u64 {
        now.get() / self.window
    }

    /// Returns the nanoseconds from `now` to the end of a window: the present one, or a later one
    /// that a request with a later clock has begun.
    pub(super) fn until_end(&self, window: u64, now: Nanos) -> i128 {
        let ahead = window.saturating_sub(self.index(now));
        i128::from(self.left(now)) + i128::from(ahead) * i128::from(self.window)
    }

    /// Returns the first instant that a window contains whose last instant is `now`.
    pub(super) fn start(&self, now: Nanos) -> u64 {
        now.get().saturating_add(1).saturating_sub(self.window)
    }

    /// Returns the nanoseconds from `now` until that window contains `instant` no longer.
    pub(super) fn until_left(&self, instant: u64, now: Nanos) -> i128 {
        i128::from(instant) + i128::from(self.window) - i128::from(now.get())
    }

    /// Returns the nanoseconds left of the present window.
    pub(super) fn left(&self, now: Nanos) -> u64 {
        self.window - now.get() % self.window
    }
}

/// Defines the public methods that the four algorithms share; each keeps its [`Windowed`] in the
/// field `terms`.
macro_rules! windowed {
    ($Algorithm:ident) => {
        impl $Algorithm {
            /// Sets the policy for denied requests; [`Policy::Leaky`] by default.
            ///
            /// ```
            /// # use earrrl::{Cost, Policy, algorithm::FixedWindow};
            /// # use std::time::Duration;
            /// // The other limits with a window have the same functions.
            /// let limit = FixedWindow::new(Cost::from_units(60), Duration::from_secs(60))?;
            /// let strict = limit.with_policy(Policy::Strict);
            /// assert_eq!((strict.quota(), strict.window()), (limit.quota(), limit.window()));
            /// # Ok::<(), earrrl::RuleError>(())
            /// ```
            pub fn with_policy(mut self, policy: Policy) -> Self {
                self.terms.policy = policy;
                self
            }

            /// Returns the cost that is allowed per window.
            pub fn quota(&self) -> Cost {
                self.terms.quota
            }

            /// Returns the length of the window.
            pub fn window(&self) -> Duration {
                Duration::from_nanos(self.terms.window)
            }

            /// Returns the length of the window in nanoseconds.
            #[doc(hidden)]
            pub fn window_nanos(&self) -> u64 {
                self.terms.window
            }
        }
    };
}

/// Defines the methods of [`Algorithm`](super::Algorithm) that the four algorithms share.
macro_rules! windowed_terms {
    () => {
        fn policy(&self) -> Policy {
            self.terms.policy
        }

        fn limit(&self) -> f64 {
            self.terms.per_second(self.terms.quota.billionths())
        }

        fn allowance(&self) -> (f64, f64) {
            self.terms.allowance()
        }
    };
}

/// Defines the methods of [`Algorithm`](super::Algorithm) that are the same in all algorithms that keep a
/// [`Tally`](super::Tally). `$counted` is the cost that a request of cost `$cost` takes from the quota.
macro_rules! tallied {
    ($cost:ident => $counted:expr) => {
        windowed_terms!();

        fn allows(&self, before: Option<&Tally>, _now: Nanos, $cost: Cost) -> bool {
            self.terms.fits(Tally::sum_of(before), $counted)
        }

        fn counted(&self, after: Option<&Tally>, _now: Nanos) -> Option<f64> {
            Some(self.terms.per_second(Tally::sum_of(after)))
        }

        fn remaining(&self, after: Option<&Tally>, _now: Nanos) -> u64 {
            self.terms.remaining(Tally::sum_of(after))
        }

        fn retry_after(&self, after: Option<&Tally>, now: Nanos, $cost: Cost) -> Wait {
            let Some(room) = self.terms.room_for($counted) else {
                return Wait::Never;
            };
            let slot = after.and_then(|tally| tally.slot_to_leave(room));
            Wait::from_nanos(slot.map_or(0, |slot| self.until_left(slot, now)))
        }

        fn reset_after(&self, after: Option<&Tally>, now: Nanos) -> Duration {
            let newest = after.and_then(Tally::newest);
            duration_from_nanos(newest.map_or(0, |slot| self.until_left(slot, now)))
        }
    };
}

pub(super) use {tallied, windowed, windowed_terms};
