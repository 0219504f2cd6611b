//! Any limit, any state: the only dispatch over the algorithms.

#[cfg(feature = "std")]
use super::OneTime;
use super::{
    Algorithm, Exponential, FixedWindow, Judged, Mode, Moment, Policy, RecentAverage,
    SlidingCounter, SlidingLog, SlidingWindow, Tally, TokenBucket, decide, exponential,
    fixed_window, judge, sliding_counter,
};
use crate::clock::Nanos;
use crate::cost::Cost;
use crate::decision::{Decision, Figures};

/// One of the algorithms with its parameters.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub enum Limit {
    /// Estimated average recent request rate.
    RecentAverage(RecentAverage),
    /// Exponential rate limiting.
    Exponential(Exponential),
    /// Token bucket, credit pool, gcra.
    TokenBucket(TokenBucket),
    /// Fixed window.
    FixedWindow(FixedWindow),
    /// Sliding window log.
    SlidingLog(SlidingLog),
    /// Hybrid sliding window.
    SlidingWindow(SlidingWindow),
    /// Two-window sliding counter.
    SlidingCounter(SlidingCounter),
}

/// The state of one client under one limit.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum State {
    /// The time at which the count will have decayed to 1.
    RecentAverage(Moment),
    /// The last request and the rate then.
    Exponential(exponential::Measured),
    /// The time at which the pool is full.
    TokenBucket(Moment),
    /// A window's count.
    FixedWindow(fixed_window::Count),
    /// The requests of the last window.
    SlidingLog(Tally),
    /// The counts of the last sub-windows.
    SlidingWindow(Tally),
    /// The counts of two windows.
    SlidingCounter(sliding_counter::Counts),
}

/// Conversions between a state and [`State`]; a state of another algorithm is no state.
macro_rules! states {
    ($($algorithm:ident),*) => {$(
        impl From<$algorithm> for Limit {
            fn from(limit: $algorithm) -> Self {
                Self::$algorithm(limit)
            }
        }
        impl Stored for $algorithm {
            fn wrap(state: Self::State) -> State {
                State::$algorithm(state)
            }
            fn open(state: State) -> Option<Self::State> {
                match state {
                    State::$algorithm(state) => Some(state),
                    _ => None,
                }
            }
        }
    )*};
}

states!(
    RecentAverage,
    Exponential,
    TokenBucket,
    FixedWindow,
    SlidingLog,
    SlidingWindow,
    SlidingCounter
);

/// An algorithm whose state has its place in [`State`].
trait Stored: Algorithm {
    fn wrap(state: Self::State) -> State;
    fn open(state: State) -> Option<Self::State>;
}

impl Limit {
    /// Judges a request, then does what `mode` says. The whole of a rate limiter, as a function.
    ///
    /// ```
    /// use earrrl::{Cost, Limit, Nanos, Rule, Mode};
    /// let rule: Rule = "fixed-window 1/1m".parse()?;
    /// let (state, first) = rule.limit().decide(None, Nanos::ZERO, Cost::ONE, Mode::Check);
    /// let (_, second) = rule.limit().decide(state, Nanos::ZERO, Cost::ONE, Mode::Check);
    /// assert!(first.allowed && !second.allowed);
    /// # Ok::<(), earrrl::RuleError>(())
    /// ```
    pub fn decide(
        &self,
        state: Option<State>,
        now: Nanos,
        cost: Cost,
        mode: Mode,
    ) -> (Option<State>, Decision) {
        let (state, allowed, figures) = self.step(state, now, cost, mode);
        (state, Decision::single(allowed, figures))
    }

    /// As [`Limit::decide`]: the state, the verdict, and the figures whatever the verdict.
    pub fn step(
        &self,
        state: Option<State>,
        now: Nanos,
        cost: Cost,
        mode: Mode,
    ) -> (Option<State>, bool, Figures) {
        match self {
            Self::RecentAverage(limit) => step(limit, state, now, cost, mode),
            Self::Exponential(limit) => step(limit, state, now, cost, mode),
            Self::TokenBucket(limit) => step(limit, state, now, cost, mode),
            Self::FixedWindow(limit) => step(limit, state, now, cost, mode),
            Self::SlidingLog(limit) => step(limit, state, now, cost, mode),
            Self::SlidingWindow(limit) => step(limit, state, now, cost, mode),
            Self::SlidingCounter(limit) => step(limit, state, now, cost, mode),
        }
    }

    /// As [`Limit::decide`] on a state in its place, the verdict only: for who asks nothing else,
    /// several times as fast.
    #[inline]
    pub fn admit(&self, state: &mut Option<State>, now: Nanos, cost: Cost, mode: Mode) -> bool {
        match self {
            Self::RecentAverage(limit) => judged(limit, state, now, cost, mode),
            Self::Exponential(limit) => judged(limit, state, now, cost, mode),
            Self::TokenBucket(limit) => judged(limit, state, now, cost, mode),
            Self::FixedWindow(limit) => judged(limit, state, now, cost, mode),
            Self::SlidingLog(limit) => judged(limit, state, now, cost, mode),
            Self::SlidingWindow(limit) => judged(limit, state, now, cost, mode),
            Self::SlidingCounter(limit) => judged(limit, state, now, cost, mode),
        }
    }

    /// Takes a request that was stored at `charged_at` out of the state again; never below empty.
    /// Exact, but for exponential, which can only approximate it, and for a log that has forgotten
    /// what the request outweighed.
    pub fn refund(
        &self,
        state: Option<State>,
        now: Nanos,
        charged_at: Nanos,
        cost: Cost,
    ) -> Option<State> {
        match self {
            Self::RecentAverage(limit) => refund(limit, state?, now, charged_at, cost),
            Self::Exponential(limit) => refund(limit, state?, now, charged_at, cost),
            Self::TokenBucket(limit) => refund(limit, state?, now, charged_at, cost),
            Self::FixedWindow(limit) => refund(limit, state?, now, charged_at, cost),
            Self::SlidingLog(limit) => refund(limit, state?, now, charged_at, cost),
            Self::SlidingWindow(limit) => refund(limit, state?, now, charged_at, cost),
            Self::SlidingCounter(limit) => refund(limit, state?, now, charged_at, cost),
        }
    }

    /// The state under this limit of a client that had `state` under `old`: its history, with the
    /// present rate or balance kept where half-life, period, refill or capacity change. None where
    /// the algorithm is another.
    pub fn convert(&self, old: &Self, state: State, now: Nanos) -> Option<State> {
        match (self, old, state) {
            (Self::RecentAverage(new), Self::RecentAverage(old), State::RecentAverage(state)) => {
                new.convert(old, state, now).map(State::RecentAverage)
            }
            (Self::Exponential(new), Self::Exponential(old), State::Exponential(state)) => {
                Some(State::Exponential(new.convert(old, state, now)))
            }
            (Self::TokenBucket(new), Self::TokenBucket(old), State::TokenBucket(state)) => {
                new.convert(old, state, now).map(State::TokenBucket)
            }
            (Self::FixedWindow(new), Self::FixedWindow(old), State::FixedWindow(state)) => {
                new.convert(old, state, now).map(State::FixedWindow)
            }
            (Self::SlidingLog(new), Self::SlidingLog(_), State::SlidingLog(state)) => {
                new.advance(Some(state), now).map(State::SlidingLog)
            }
            (Self::SlidingWindow(new), Self::SlidingWindow(old), State::SlidingWindow(state)) => {
                new.convert(old, state, now).map(State::SlidingWindow)
            }
            (
                Self::SlidingCounter(new),
                Self::SlidingCounter(old),
                State::SlidingCounter(state),
            ) => new.convert(old, state, now).map(State::SlidingCounter),
            _ => None,
        }
    }

    /// Whether denied attempts count.
    pub fn policy(&self) -> Policy {
        match self {
            Self::RecentAverage(limit) => limit.policy(),
            Self::Exponential(limit) => limit.policy(),
            Self::TokenBucket(limit) => limit.policy(),
            Self::FixedWindow(limit) => limit.policy(),
            Self::SlidingLog(limit) => limit.policy(),
            Self::SlidingWindow(limit) => limit.policy(),
            Self::SlidingCounter(limit) => limit.policy(),
        }
    }

    /// Whether a client's state is one time, and so fits the bounded table.
    pub fn is_one_time(&self) -> bool {
        matches!(self, Self::RecentAverage(_) | Self::TokenBucket(_))
    }

    /// The state that a word of the table stands for.
    #[cfg(feature = "std")]
    pub(crate) fn state_of(&self, word: i128) -> Option<State> {
        match self {
            Self::RecentAverage(_) => Some(State::RecentAverage(Moment(word))),
            Self::TokenBucket(_) => Some(State::TokenBucket(Moment(word))),
            _ => None,
        }
    }

    /// The word up to which a client is as good as new.
    #[cfg(feature = "std")]
    pub(crate) fn idle(&self, now: Nanos) -> i128 {
        match self {
            Self::RecentAverage(limit) => limit.idle(now).0,
            Self::TokenBucket(limit) => limit.idle(now).0,
            _ => i128::MIN,
        }
    }

    /// Whether a client may send one more request, and its rate, in units per second. The state is
    /// left without what no longer counts.
    #[cfg(feature = "std")]
    pub(crate) fn standing(&self, state: &mut Option<State>, now: Nanos) -> (bool, f64) {
        match self {
            Self::RecentAverage(limit) => standing(limit, state, now),
            Self::Exponential(limit) => standing(limit, state, now),
            Self::TokenBucket(limit) => standing(limit, state, now),
            Self::FixedWindow(limit) => standing(limit, state, now),
            Self::SlidingLog(limit) => standing(limit, state, now),
            Self::SlidingWindow(limit) => standing(limit, state, now),
            Self::SlidingCounter(limit) => standing(limit, state, now),
        }
    }

    /// The most bytes that a busy client's state takes, with what it has on the heap.
    pub fn state_bytes(&self) -> usize {
        let entries = match self {
            Self::SlidingLog(limit) => limit.most_entries(),
            Self::SlidingWindow(limit) => limit.sub_windows() as usize + 2,
            _ => 0,
        };
        size_of::<State>() + Tally::bytes_of(entries)
    }

    /// Whether a request can be held back until it is allowed: where the wait is known before it is
    /// stored, and storing it queues the next one behind it.
    pub fn can_delay(&self) -> bool {
        matches!(self, Self::RecentAverage(_) | Self::TokenBucket(_))
    }
}

fn step<A: Stored>(
    limit: &A,
    state: Option<State>,
    now: Nanos,
    cost: Cost,
    mode: Mode,
) -> (Option<State>, bool, Figures) {
    let (state, allowed, figures) = decide(limit, state.and_then(A::open), now, cost, mode);
    (state.map(A::wrap), allowed, figures)
}

fn judged<A: Stored>(
    limit: &A,
    state: &mut Option<State>,
    now: Nanos,
    cost: Cost,
    mode: Mode,
) -> bool {
    let before = state.take().and_then(A::open);
    let Judged { after, allowed, .. } = judge(limit, before, now, cost, mode, |_| ());
    *state = after.map(A::wrap);
    allowed
}

#[cfg(feature = "std")]
fn standing<A: Stored>(limit: &A, state: &mut Option<State>, now: Nanos) -> (bool, f64) {
    let before = limit.advance(state.take().and_then(A::open), now);
    let allowed = limit.allows(before.as_ref(), now, Cost::ONE);
    let rate = limit.estimate(before.as_ref(), now, Cost::ONE);
    let rate = rate.or_else(|| limit.counted(before.as_ref(), now));
    *state = before.map(A::wrap);
    (allowed, rate.unwrap_or_default())
}

fn refund<A: Stored>(
    limit: &A,
    state: State,
    now: Nanos,
    charged_at: Nanos,
    cost: Cost,
) -> Option<State> {
    limit.refund(A::open(state)?, now, charged_at, cost).map(A::wrap)
}

impl State {
    /// The state as a word of the table, where it is one time.
    #[cfg(feature = "std")]
    pub(crate) fn word(&self) -> Option<i128> {
        match self {
            Self::RecentAverage(moment) | Self::TokenBucket(moment) => Some(moment.0),
            _ => None,
        }
    }

    /// Bytes that the state takes, with what it has on the heap.
    pub fn bytes(&self) -> usize {
        let heap = match self {
            Self::SlidingLog(tally) | Self::SlidingWindow(tally) => tally.heap_bytes(),
            _ => 0,
        };
        size_of::<Self>() + heap
    }
}
