//! The trait that every algorithm implements, and the steps of every decision: first judge the
//! request, then store it.

use alloc::string::String;
use core::cmp::Ordering;
use core::time::Duration;

use crate::clock::Nanos;
use crate::cost::Cost;
use crate::decision::{Figures, Wait};
use crate::error::RuleError;
use crate::grammar::RuleWords;
use crate::held::Held;
use crate::policy::{Mode, Policy, Replenishment, Waits};

/// A state that consists of a single instant, in ticks since the Unix epoch.
///
/// A tick is 2^-21 ns under recent-average, and 1/720,720 ns under token-bucket. Every instant of the next 2000 years fits into 88 bits. Under one limit, the
/// client with the greater instant has recently sent more.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Moment(pub i128);

/// A client's state in 88 bits, as an entry of the bounded [`table`](crate::internal::table) holds it.
///
/// A smaller word usually means a lower current rate; see [`Algorithm::rank`].
pub type Word = i128;

/// The state of one client under an algorithm. A client without a state is `None`, never a stored
/// zero.
pub trait ClientState: Sized {
    /// Returns the number of bytes that the state occupies on the heap.
    fn heap_bytes(&self) -> usize {
        0
    }
}

impl ClientState for Moment {}

/// Defines the methods of [`Algorithm`] that concern words, for a state that is a [`Moment`].
macro_rules! moments_are_words {
    () => {
        fn lag(&self) -> Duration {
            let (_, forgets_in) = self.allowance();
            Duration::try_from_secs_f64(forgets_in / 128.0).unwrap_or(Duration::MAX)
        }

        fn largest_in_words(&self) -> Option<u64> {
            Some(u64::MAX)
        }

        #[inline]
        fn word(&self, state: &Moment) -> Word {
            state.0
        }

        #[inline]
        fn state_of(&self, word: Word) -> Option<Moment> {
            Some(Moment(word))
        }

        /// A bucket may owe a thousand times its capacity, and a recent average decays in this time
        /// from more than any number of requests.
        fn greatest(&self, now: Nanos) -> Word {
            let forgets_in = self.lag().saturating_mul(128);
            self.idle(now + forgets_in.saturating_mul(1000))
        }
    };
}

pub(super) use moments_are_words;

/// One rate-limiting algorithm with its parameters.
///
/// Every function is pure. `before` and `after` are the client's states before and after the
/// request was stored.
pub trait Algorithm: Sized {
    /// The state of one client.
    type State: ClientState;

    /// The names that a rule's text may begin with, the usual name first.
    const NAMES: &'static [&'static str];

    /// Returns true if a request can be held back until it is allowed. That needs a wait that is
    /// known before the request is stored, and that later requests wait for in turn.
    fn can_delay(&self) -> bool {
        false
    }

    /// Parses what follows the algorithm's name in a rule's text.
    #[doc(hidden)]
    fn read(name: &str, words: &mut RuleWords<'_>) -> Result<Self, RuleError>;

    /// Returns the rule's text with every option spelled out.
    fn write(&self) -> String;

    /// Returns the policy, which decides if denied requests are stored.
    fn policy(&self) -> Policy;

    /// Returns the allowed rate, in cost units per second.
    fn limit(&self) -> f64;

    /// Returns the quota in cost units, and the seconds in which that many units are allowed. The
    /// `RateLimit` headers report both; see [`Quota`](crate::Quota).
    fn allowance(&self) -> (f64, f64);

    /// Returns how used quota comes back. The window in a `RateLimit` header follows from it.
    fn replenishment(&self) -> Replenishment {
        Replenishment::Steady
    }

    /// Returns the most heap bytes that a busy client's state occupies.
    fn most_heap_bytes(&self) -> usize {
        0
    }

    /// Returns how far the instant of a stored request may lag behind the present time: a 128th of
    /// the time in which the limit forgets a request (the time that refills a bucket, or the
    /// averaging period), and zero if the state is more than one instant.
    fn lag(&self) -> Duration {
        Duration::ZERO
    }

    /// Returns the parameters that give states their meaning, usually a time such as the half-life or the
    /// window. Limits of one algorithm with the same parameters of this kind can use each other's states.
    fn meaning(&self) -> [u64; 2];

    /// Drops the parts of the state that no longer count at `now`. The other functions expect a
    /// state that was advanced to `now`.
    #[inline]
    fn advance(&self, state: Option<Self::State>, _now: Nanos) -> Option<Self::State> {
        state
    }

    /// Returns true if the request is allowed.
    fn allows(&self, before: Option<&Self::State>, now: Nanos, cost: Cost) -> bool;

    /// Returns the state with the request stored in it. The cost must be above zero.
    fn charge(&self, before: Option<Self::State>, now: Nanos, cost: Cost) -> Self::State;

    /// Returns the state with a denied request stored in it, as [`charge`](Self::charge) does, and with a place in
    /// the queue for it if the limit has one.
    fn deny(&self, before: Option<Self::State>, now: Nanos, cost: Cost) -> Self::State {
        self.charge(before, now, cost)
    }

    /// Returns the state without a request that was stored at `charged_at`; `None` if the state
    /// becomes empty.
    fn refund(
        &self,
        state: Self::State,
        now: Nanos,
        charged_at: Nanos,
        cost: Cost,
    ) -> Option<Self::State>;

    /// Returns the state with `cost` added to the requests that were stored at the past instant
    /// `charged_at`. Returns the state unchanged if that instant no longer counts at `now`.
    fn charge_past(
        &self,
        before: Option<Self::State>,
        now: Nanos,
        charged_at: Nanos,
        cost: Cost,
    ) -> Option<Self::State> {
        Some(self.charge(before, charged_at.min(now), cost))
    }

    /// Returns the state with the estimate of a reservation corrected to the `actual` cost. The aim
    /// is the state that a charge of `actual` at the time of the reservation would have left; where
    /// a state cannot contain that, the correction leaves the client with less quota, never with
    /// more.
    fn commit(
        &self,
        before: Option<Self::State>,
        now: Nanos,
        held: &Held,
        actual: Cost,
    ) -> Option<Self::State> {
        match actual.cmp(&held.cost) {
            Ordering::Equal => before,
            Ordering::Less => {
                let unused = held.cost.saturating_sub(actual);
                self.refund(self.advance(before, now)?, now, held.at, unused)
            }
            Ordering::Greater => {
                let more = actual.saturating_sub(held.cost);
                self.charge_past(self.advance(before, now), now, held.at, more)
            }
        }
    }

    /// Returns the estimated rate that is compared with the limit; `None` if the algorithm
    /// estimates none.
    fn estimate(&self, _before: Option<&Self::State>, _now: Nanos, _cost: Cost) -> Option<f64> {
        None
    }

    /// Returns the cost counted after the decision, in units per second; `None` if the algorithm
    /// counts none.
    fn counted(&self, _after: Option<&Self::State>, _now: Nanos) -> Option<f64> {
        None
    }

    /// Returns the number of requests of cost 1 that would be allowed now in sequence.
    fn remaining(&self, after: Option<&Self::State>, now: Nanos) -> u64;

    /// Returns the shortest wait after which a request of `cost` is allowed if the client sends
    /// nothing else.
    fn retry_after(&self, after: Option<&Self::State>, now: Nanos, cost: Cost) -> Wait;

    /// Returns the wait that a denied request is told, given the state after [`deny`](Self::deny) and the
    /// `shortest` wait, which [`retry_after`](Self::retry_after) returns for it.
    fn told(&self, _after: Option<&Self::State>, _now: Nanos, _cost: Cost, shortest: Wait) -> Wait {
        shortest
    }

    /// Returns the waits that denied requests are told.
    fn waits(&self) -> Waits {
        Waits::First
    }

    /// Returns the wait until the client's past requests no longer affect decisions.
    fn reset_after(&self, after: Option<&Self::State>, now: Nanos) -> Duration;

    /// Returns true if the table holds the clients of this limit.
    fn fits_words(&self) -> bool {
        let fits = |largest| self.allowance().0 <= largest as f64;
        self.largest_in_words().is_some_and(fits)
    }

    /// Returns the largest quota, in units, with which the table holds the clients of a limit that is
    /// otherwise like this one; `None` for algorithms whose states are no words.
    fn largest_in_words(&self) -> Option<u64> {
        None
    }

    /// Returns the state as a word, of 88 bits if [`fits_words`](Self::fits_words). If no word is exactly this
    /// state, the word's state allows less, never more.
    fn word(&self, _state: &Self::State) -> Word {
        Word::MAX
    }

    /// Returns the state that `word` encodes; `None` if the algorithm's states are no words.
    fn state_of(&self, _word: Word) -> Option<Self::State> {
        None
    }

    /// Returns the rank of a word at `now`. A full table evicts the client with the lowest rank.
    fn rank(&self, word: Word, _now: Nanos) -> Word {
        word
    }

    /// Returns the greatest rank of a client whose past requests no longer affect decisions at `now`.
    fn idle(&self, _now: Nanos) -> Word {
        Word::MIN
    }

    /// Returns the greatest word that requests up to `now` can leave. A sweep removes greater ones.
    fn greatest(&self, _now: Nanos) -> Word {
        Word::MAX
    }
}

/// Judges a request on a state that was advanced to `now`, then stores it if `mode` and the policy
/// require that.
#[inline(always)]
pub(crate) fn judge<A: Algorithm>(
    algorithm: &A,
    before: Option<A::State>,
    now: Nanos,
    cost: Cost,
    mode: Mode,
) -> Judged<A::State> {
    let allowed = algorithm.allows(before.as_ref(), now, cost);
    let stores = match mode {
        Mode::Check => allowed || algorithm.policy() == Policy::Strict,
        Mode::Charge => true,
        Mode::Peek => false,
    };
    let stores = stores && !cost.is_zero();
    let after = if stores && !allowed && mode == Mode::Check {
        Some(algorithm.deny(before, now, cost))
    } else if stores {
        Some(algorithm.charge(before, now, cost))
    } else {
        before
    };
    Judged {
        after,
        allowed,
        stores,
    }
}

/// The result of [`judge`].
pub(crate) struct Judged<S> {
    /// The state after the decision.
    pub(crate) after: Option<S>,
    pub(crate) allowed: bool,
    /// True if the request was stored in the state.
    pub(crate) stores: bool,
}

/// Computes the figures of a decision from the estimate before it and the state after it. `is_told` is true if that
/// state has stored the request as a denied one.
pub(crate) fn figures<A: Algorithm>(
    algorithm: &A,
    estimate: Option<f64>,
    after: Option<&A::State>,
    is_told: bool,
    now: Nanos,
    cost: Cost,
) -> Figures {
    let earliest = algorithm.retry_after(after, now, cost);
    Figures {
        rate: estimate.or_else(|| algorithm.counted(after, now)),
        limit: algorithm.limit(),
        remaining: algorithm.remaining(after, now),
        earliest,
        retry_after: if is_told {
            algorithm.told(after, now, cost, earliest)
        } else {
            earliest
        },
        reset_after: algorithm.reset_after(after, now),
    }
}
