//! The contract of an algorithm, and the frame of every decision: judge first, then store.

use alloc::string::String;
use core::time::Duration;

use crate::clock::Nanos;
use crate::cost::Cost;
use crate::decision::{Figures, Wait};
use crate::error::RuleError;
use crate::grammar::Words;
use crate::policy::{Mode, Policy, Replenishment};

/// A state that is one time, in ticks since the Unix epoch.
///
/// How long a tick is depends on the limit: 2^-20 ns for recent-average, about as little for
/// token-bucket. All of them fit 88 bits for 4000 years. Under one limit the order of clients by
/// this number is their order by how much they recently sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Moment(pub i128);

/// The state of one client under an algorithm. "No state" is `None`, never a stored zero.
pub trait ClientState: Sized {
    /// Returns the state as a word of the bounded [`table`](crate::table), where it is one time.
    fn word(&self) -> Option<i128> {
        None
    }

    /// Returns the state that such a word stands for; `None` where states are more than one time.
    fn from_word(_word: i128) -> Option<Self> {
        None
    }

    /// Bytes on the heap.
    fn heap_bytes(&self) -> usize {
        0
    }
}

impl ClientState for Moment {
    #[inline]
    fn word(&self) -> Option<i128> {
        Some(self.0)
    }

    #[inline]
    fn from_word(word: i128) -> Option<Self> {
        Some(Self(word))
    }
}

/// One algorithm with its parameters: its text, its figures, its steps. Every function is pure; `before` and
/// `after` are the states before and after the request was stored.
pub trait Algorithm: Sized {
    /// The state of one client.
    type State: ClientState;

    /// The names that a rule's text may begin with, the usual one first.
    const NAMES: &'static [&'static str];

    /// Rules with every option, small and large, fast and slow: engines are compared on them.
    const EXAMPLES: &'static [&'static str];

    /// True if a request can be held back until it is allowed: the wait is known before the request is stored,
    /// and storing it makes the next one wait behind it.
    const CAN_DELAY: bool = false;

    /// Reads what follows the name in a rule's text.
    #[doc(hidden)]
    fn read(name: &str, words: &mut Words<'_>) -> Result<Self, RuleError>;

    /// Returns the rule's text, every option spelled out.
    fn write(&self) -> String;

    /// Returns the policy: whether denied attempts count.
    fn policy(&self) -> Policy;

    /// Returns the rate allowed, in cost units per second.
    fn limit(&self) -> f64;

    /// Returns units, and the seconds in which they are allowed, as headers report them; see
    /// [`Quota`](crate::Quota).
    fn allowance(&self) -> (f64, f64);

    /// Returns how used units come back, from which the window of a `RateLimit` header follows.
    fn replenishment(&self) -> Replenishment;

    /// Returns the most bytes that a busy client's state has on the heap.
    fn most_heap_bytes(&self) -> usize {
        0
    }

    /// Returns the state under this limit of a client that had `state` under `old`: its history, with the
    /// present rate or balance kept. None where nothing is left of it.
    fn convert(&self, old: &Self, state: Self::State, now: Nanos) -> Option<Self::State>;

    /// Returns true if states under `old` mean the same under this limit, so that none needs conversion.
    fn keeps_states_of(&self, _old: &Self) -> bool {
        false
    }

    /// Drops what `now` has put out of reach, so that the other functions see only what counts.
    fn advance(&self, state: Option<Self::State>, now: Nanos) -> Option<Self::State>;

    /// Returns true if the request is allowed.
    fn allows(&self, before: Option<&Self::State>, now: Nanos, cost: Cost) -> bool;

    /// Returns the state with the request stored in it. The cost is above zero.
    fn charge(&self, before: Option<Self::State>, now: Nanos, cost: Cost) -> Self::State;

    /// Returns the state with a request of `charged_at` taken out of it again; never below empty.
    fn refund(
        &self,
        state: Self::State,
        now: Nanos,
        charged_at: Nanos,
        cost: Cost,
    ) -> Option<Self::State>;

    /// Returns the estimate that is compared with the limit, where the algorithm measures one.
    fn estimate(&self, _before: Option<&Self::State>, _now: Nanos, _cost: Cost) -> Option<f64> {
        None
    }

    /// Returns the cost counted after the decision, per second, where the algorithm counts one.
    fn counted(&self, _after: Option<&Self::State>, _now: Nanos) -> Option<f64> {
        None
    }

    /// Returns the number of requests of cost 1 that would be allowed now, one after the other.
    fn remaining(&self, after: Option<&Self::State>, now: Nanos) -> u64;

    /// Returns the least wait from which on `cost` is allowed, if nothing else is sent.
    fn retry_after(&self, after: Option<&Self::State>, now: Nanos, cost: Cost) -> Wait;

    /// Returns the wait until the client is as good as new.
    fn reset_after(&self, after: Option<&Self::State>, now: Nanos) -> Duration;

    /// Returns the latest state of a client that is as good as new at `now`. Only limits whose state is one
    /// time override it.
    fn idle(&self, _now: Nanos) -> Moment {
        Moment(i128::MIN)
    }
}

/// Judges, then stores: the frame of every decision. `seen` is shown the state in between.
#[inline]
pub(crate) fn judge<A: Algorithm>(
    algorithm: &A,
    state: Option<A::State>,
    now: Nanos,
    cost: Cost,
    mode: Mode,
    seen: impl FnOnce(Option<&A::State>),
) -> Judged<A::State> {
    let before = algorithm.advance(state, now);
    let allowed = algorithm.allows(before.as_ref(), now, cost);
    seen(before.as_ref());
    let stores = match mode {
        Mode::Check => allowed || algorithm.policy() == Policy::Strict,
        Mode::Charge => true,
        Mode::Peek => false,
    };
    let stores = stores && !cost.is_zero();
    let after = if stores { Some(algorithm.charge(before, now, cost)) } else { before };
    Judged { after, allowed, stores }
}

/// The result of [`judge`].
pub(crate) struct Judged<S> {
    /// The state afterwards.
    pub(crate) after: Option<S>,
    pub(crate) allowed: bool,
    /// True if the request was stored in the state.
    #[cfg_attr(not(feature = "std"), expect(dead_code, reason = "only what keeps states asks"))]
    pub(crate) stores: bool,
}

/// Judges and stores as [`judge`] does, and computes the figures.
pub(super) fn decide<A: Algorithm>(
    algorithm: &A,
    state: Option<A::State>,
    now: Nanos,
    cost: Cost,
    mode: Mode,
) -> (Option<A::State>, bool, Figures) {
    let mut estimate = None;
    let Judged { after, allowed, .. } = judge(algorithm, state, now, cost, mode, |before| {
        estimate = algorithm.estimate(before, now, cost);
    });
    let figures = figures(algorithm, estimate, after.as_ref(), now, cost);
    (after, allowed, figures)
}

/// Computes the figures of a decision from the estimate before it and the state after it.
pub(crate) fn figures<A: Algorithm>(
    algorithm: &A,
    estimate: Option<f64>,
    after: Option<&A::State>,
    now: Nanos,
    cost: Cost,
) -> Figures {
    Figures {
        rate: estimate.or_else(|| algorithm.counted(after, now)),
        limit: algorithm.limit(),
        remaining: algorithm.remaining(after, now),
        retry_after: algorithm.retry_after(after, now, cost),
        reset_after: algorithm.reset_after(after, now),
    }
}
