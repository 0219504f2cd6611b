//! Waiting until a request is allowed: its turn is taken now, and a sleep lasts until it comes.
//!
//! A bucket's balance may go below zero: a request that finds the bucket empty is charged at once,
//! and gets the wait until the refill has paid for it. So requests are served in the order of
//! arrival, without polling and without a queue in memory. A caller that gives up gets a refund, except
//! for what later callers wait for: they keep their turns, so that a refund would give the next
//! caller the turn of another.

use core::borrow::Borrow;
use core::future::Future;
use core::hash::Hash;
use core::ops::Deref;
use core::time::Duration;
use std::fmt;

use super::Limiter;
use crate::algorithm::{Algorithm, Limit, Moment, State, TokenBucket};
use crate::clock::{Clock, Nanos, SystemClock, Time};
use crate::cost::Cost;
use crate::decision::Wait;
use crate::error::RuleError;
use crate::rules::part::Part;

/// The bounds of a wait. By default the wait is at most a minute, without jitter.
///
/// ```
/// use earrrl::Patience;
/// use std::time::Duration;
///
/// let patience = Patience::default()
///     .max_wait(Duration::from_secs(5))
///     .jitter(Duration::from_millis(100));
/// assert_eq!(patience.max_wait, Duration::from_secs(5));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Patience {
    /// The longest accepted wait. A caller that would have to wait longer gets an error at once,
    /// which bounds the queue.
    pub max_wait: Duration,
    /// The greatest random time that is added to a wait, so that the waiters of many clients do not
    /// wake at the same time.
    pub jitter: Duration,
}

impl Default for Patience {
    fn default() -> Self {
        Self {
            max_wait: Duration::from_secs(60),
            jitter: Duration::ZERO,
        }
    }
}

impl Patience {
    /// Sets the longest accepted wait.
    #[must_use]
    pub fn max_wait(self, max_wait: Duration) -> Self {
        Self { max_wait, ..self }
    }

    /// Sets the greatest random time that is added to a wait.
    #[must_use]
    pub fn jitter(self, jitter: Duration) -> Self {
        Self { jitter, ..self }
    }
}

/// The reason why a request gets no turn.
///
/// ```
/// use earrrl::{Cost, Limiter, Patience, Queue, Rule, TurnError};
///
/// let rule: Rule = "gcra 1/h burst=1".parse()?;
/// let queue: Queue<str> = Limiter::builder(rule).build_queue()?;
/// queue.check("alice").ok()?;
/// let refused = queue.turn("alice", Cost::ONE, Patience::default());
/// assert!(matches!(refused, Err(TurnError::TooLong(_)))); // an hour
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum TurnError {
    /// The wait would be longer than [`Patience::max_wait`]; contains the wait.
    TooLong(Wait),
    /// The rule does not accept the cost.
    Rule(RuleError),
}

impl fmt::Display for TurnError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::TooLong(Wait::For(wait)) => write!(f, "the wait would be {wait:?}"),
            Self::TooLong(Wait::Never) => f.write_str("the cost is more than the rule ever admits"),
            Self::Rule(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for TurnError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Rule(error) => Some(error),
            Self::TooLong(_) => None,
        }
    }
}

/// The turn of a request, which was charged before it is due. It is refunded if it is dropped before
/// [`keep`](Self::keep) is called, except for what later requests of the client wait for.
///
/// ```
/// use earrrl::{Cost, Limiter, Patience, Queue, Rule};
///
/// let rule: Rule = "gcra 10/s burst=1".parse()?;
/// let queue: Queue<str> = Limiter::builder(rule).build_queue()?;
/// queue.check("alice").ok()?;
/// let turn = queue.turn("alice", Cost::ONE, Patience::default())?;
/// assert!(turn.wait().as_millis() <= 100);
/// turn.keep(); // otherwise the drop refunds it
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[must_use]
pub struct Turn<'a, C: Clock> {
    part: Part<'a>,
    clock: &'a Time<C>,
    /// The bucket's state after this request was charged.
    charged: Moment,
    wait: Duration,
    kept: bool,
}

impl<C: Clock> Turn<'_, C> {
    /// Returns the wait, from when the turn was taken until the request is due.
    pub fn wait(&self) -> Duration {
        self.wait
    }

    /// Uses the turn, so that it is not refunded any more.
    pub fn keep(mut self) {
        self.kept = true;
    }

    /// Takes the charge back, except for what later requests wait for.
    fn give_up(&self, now: Nanos) {
        let part = &self.part;
        let limit = part.rule.limit();
        let give_up = |state| match (limit, state) {
            (Limit::TokenBucket(limit), Some(State::TokenBucket(state))) => {
                let state = limit.give_up(state, now, self.charged, part.cost);
                (state.map(State::TokenBucket), ())
            }
            (_, state) => (state, ()),
        };
        part.refunded(part.cost);
        part.update(now, give_up);
    }
}

impl<C: Clock> Drop for Turn<'_, C> {
    fn drop(&mut self) {
        if !self.kept {
            self.give_up(self.clock.now());
        }
    }
}

impl<C: Clock> fmt::Debug for Turn<'_, C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Turn")
            .field("wait", &self.wait)
            .finish_non_exhaustive()
    }
}

/// A limiter whose clients wait for their turns, in the order of their arrival. It is a [`Limiter`]
/// too. Its rule is a bucket: no other rule can charge a request before it is due.
///
/// ```
/// use earrrl::{Limiter, Queue, Rule};
///
/// let rule: Rule = "gcra 10/s burst=1".parse()?;
/// let queue: Queue<str> = Limiter::builder(rule).build_queue()?;
/// assert!(queue.check("alice").is_allowed());
/// let window: Rule = "fixed-window 10/1s".parse()?;
/// assert!(Limiter::<str>::builder(window).build_queue().is_err());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct Queue<K: ?Sized, C = SystemClock> {
    limiter: Limiter<K, C>,
    bucket: TokenBucket,
}

impl<K: ?Sized, C: Clock> Queue<K, C> {
    pub(super) fn new(limiter: Limiter<K, C>) -> Result<Self, RuleError> {
        let Limit::TokenBucket(bucket) = *limiter.rule.limit() else {
            let problem = "has no turns: token-bucket, credit-pool and gcra have";
            return Err(RuleError::new(std::format!("`{}` {problem}", limiter.rule)));
        };
        Ok(Self { limiter, bucket })
    }

    /// Takes the next turn of a client: charges the request now, and returns its turn with the wait
    /// until it is due.
    ///
    /// # Errors
    /// Returns an error, with nothing charged, if the wait would be longer than `patience` permits,
    /// or the cost is above the rule's `max_cost`.
    pub fn turn<Q: Hash + ?Sized>(
        &self,
        key: &Q,
        cost: Cost,
        patience: Patience,
    ) -> Result<Turn<'_, C>, TurnError>
    where
        K: Borrow<Q>,
    {
        let limiter = &self.limiter;
        let cost = limiter.rule.accept(cost).map_err(TurnError::Rule)?;
        let part = limiter.part(limiter.hasher.hash(key), cost);
        let now = limiter.clock.now();
        let take = |state: Option<State>| {
            let before = match state {
                Some(State::TokenBucket(before)) => Some(before),
                _ => None,
            };
            match next_turn(&self.bucket, before, now, cost, patience.max_wait) {
                Ok((after, wait)) => (Some(State::TokenBucket(after)), Ok((after, wait))),
                Err(wait) => (state, Err(TurnError::TooLong(wait))),
            }
        };
        let taken = part.update(now, take);
        let (charged, wait) = taken?;
        let wait = wait.saturating_add(random_up_to(patience.jitter));
        Ok(Turn {
            part,
            clock: &limiter.clock,
            charged,
            wait,
            kept: false,
        })
    }

    /// Waits until a request of the client is due, on any async runtime. `sleep` is the runtime's
    /// sleep function, such as `tokio::time::sleep`. The request is refunded if the future is
    /// dropped before.
    ///
    /// ```
    /// use earrrl::{Cost, Limiter, Patience, Queue, Rule};
    ///
    /// # let mut context = std::task::Context::from_waker(std::task::Waker::noop());
    /// # let future = async {
    /// let rule: Rule = "gcra 1/s burst=5".parse()?;
    /// let queue: Queue<str> = Limiter::builder(rule).build_queue()?;
    /// // With tokio, the last argument is `tokio::time::sleep`.
    /// queue.until_ready_with("alice", Cost::ONE, Patience::default(), async |_| {}).await?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// # };
    /// # assert!(std::pin::pin!(future).poll(&mut context).is_ready());
    /// ```
    ///
    /// # Errors
    /// Returns the errors of [`turn`](Self::turn), before any wait.
    pub async fn until_ready_with<Q: Hash + ?Sized, F: Future>(
        &self,
        key: &Q,
        cost: Cost,
        patience: Patience,
        sleep: impl FnOnce(Duration) -> F,
    ) -> Result<(), TurnError>
    where
        K: Borrow<Q>,
    {
        let turn = self.turn(key, cost, patience)?;
        if !turn.wait.is_zero() {
            sleep(turn.wait).await;
        }
        turn.keep();
        Ok(())
    }

    /// Waits for at most a minute until a request of cost 1 is due, on any async runtime, with a
    /// timer that the runtime need not provide.
    ///
    /// # Errors
    /// Returns the errors of [`turn`](Self::turn), before any wait.
    #[cfg(feature = "timer")]
    pub async fn until_ready<Q: Hash + ?Sized>(&self, key: &Q) -> Result<(), TurnError>
    where
        K: Borrow<Q>,
    {
        let sleep = futures_timer::Delay::new;
        self.until_ready_with(key, Cost::ONE, Patience::default(), sleep)
            .await
    }
}

impl<K: ?Sized, C> Deref for Queue<K, C> {
    type Target = Limiter<K, C>;

    fn deref(&self) -> &Limiter<K, C> {
        &self.limiter
    }
}

/// Returns the state with the request charged, and the wait until it is due; or the wait as an
/// error if it is too long.
fn next_turn(
    limit: &TokenBucket,
    before: Option<Moment>,
    now: Nanos,
    cost: Cost,
    max_wait: Duration,
) -> Result<(Moment, Duration), Wait> {
    let wait = limit.retry_after(before.as_ref(), now, cost);
    match wait {
        Wait::For(time) if time <= max_wait => Ok((limit.charge(before, now, cost), time)),
        _ => Err(wait),
    }
}

fn random_up_to(most: Duration) -> Duration {
    let mut bytes = [0; 8];
    if most.is_zero() || getrandom::fill(&mut bytes).is_err() {
        return Duration::ZERO;
    }
    let share = u64::from_ne_bytes(bytes) as f64 / u64::MAX as f64;
    most.mul_f64(share)
}
