//! Waiting until a request is allowed: a reservation now, and a sleep until it is due.
//!
//! A bucket's balance may go below zero: a request that finds the bucket empty is charged at once,
//! and gets the wait until the refill has paid for it. So requests are served in the order of
//! arrival, without polling and without a queue in memory. A caller that gives up gets a refund, except
//! for what later callers wait for: they keep their turns, so that a refund would give the next
//! caller the turn of another.

use core::borrow::Borrow;
use core::future::Future;
use core::hash::Hash;
use core::time::Duration;
use std::fmt;

use super::Limiter;
use crate::algorithm::{Algorithm, Limit, Moment, State, TokenBucket};
use crate::clock::Time;
use crate::clock::{Clock, Nanos};
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

/// The reason why a wait could not begin.
///
/// ```
/// use earrrl::{Cost, Limiter, Patience, Rule, WaitError};
///
/// let rule: Rule = "gcra 1/h burst=1".parse()?;
/// let limiter: Limiter<str> = Limiter::builder(rule).build()?;
/// limiter.check("alice").ok()?;
/// let refused = limiter.reserve("alice", Cost::ONE, Patience::default());
/// assert!(matches!(refused, Err(WaitError::TooLong(_)))); // an hour
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum WaitError {
    /// The wait would be longer than [`Patience::max_wait`]; contains the wait.
    TooLong(Wait),
    /// The rule cannot reserve (only token-bucket, credit-pool and gcra can), or does not accept
    /// the cost.
    Rule(RuleError),
}

impl fmt::Display for WaitError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::TooLong(Wait::For(wait)) => write!(f, "the wait would be {wait:?}"),
            Self::TooLong(Wait::Never) => f.write_str("the cost is more than the rule ever admits"),
            Self::Rule(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for WaitError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Rule(error) => Some(error),
            Self::TooLong(_) => None,
        }
    }
}

/// A request that was charged before it is due. It is refunded if it is dropped before
/// [`keep`](Self::keep) is called, except for what later requests of the client wait for.
///
/// ```
/// use earrrl::{Cost, Limiter, Patience, Rule};
///
/// let rule: Rule = "gcra 10/s burst=1".parse()?;
/// let limiter: Limiter<str> = Limiter::builder(rule).build()?;
/// limiter.check("alice").ok()?;
/// let turn = limiter.reserve("alice", Cost::ONE, Patience::default())?;
/// assert!(turn.wait().as_millis() <= 100);
/// turn.keep(); // otherwise the drop refunds it
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[must_use]
pub struct Reservation<'a, C: Clock> {
    part: Part<'a>,
    clock: &'a Time<C>,
    /// The bucket's state after this request was charged.
    charged: Moment,
    wait: Duration,
    kept: bool,
}

impl<C: Clock> Reservation<'_, C> {
    /// Returns the wait from the reservation until the request is due.
    pub fn wait(&self) -> Duration {
        self.wait
    }

    /// Uses the reservation, so that it is not refunded any more.
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
        part.clients.update(part.key, limit, now, give_up);
    }
}

impl<C: Clock> Drop for Reservation<'_, C> {
    fn drop(&mut self) {
        if !self.kept {
            self.give_up(self.clock.now());
        }
    }
}

impl<C: Clock> fmt::Debug for Reservation<'_, C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Reservation")
            .field("wait", &self.wait)
            .finish_non_exhaustive()
    }
}

impl<K: ?Sized, C: Clock> Limiter<K, C> {
    /// Reserves the next request of a client: charges it now, and returns a reservation with the
    /// wait until it is due.
    ///
    /// # Errors
    /// Returns an error, with nothing charged, if the wait would be longer than `patience` permits
    /// or the rule cannot reserve.
    pub fn reserve<Q: Hash + ?Sized>(
        &self,
        key: &Q,
        cost: Cost,
        patience: Patience,
    ) -> Result<Reservation<'_, C>, WaitError>
    where
        K: Borrow<Q>,
    {
        let cost = self.rule.accept(cost).map_err(WaitError::Rule)?;
        let part = self.part(self.hasher.hash(key), cost);
        let now = self.clock.now();
        let Limit::TokenBucket(limit) = self.rule.limit() else {
            let problem = std::format!("`{}` can't reserve: token-bucket and gcra can", self.rule);
            return Err(WaitError::Rule(RuleError::new(problem)));
        };
        let take_turn = |state: Option<State>| {
            let before = match state {
                Some(State::TokenBucket(before)) => Some(before),
                _ => None,
            };
            match turn(limit, before, now, cost, patience.max_wait) {
                Ok((after, wait)) => (Some(State::TokenBucket(after)), Ok((after, wait))),
                Err(wait) => (state, Err(WaitError::TooLong(wait))),
            }
        };
        let reserved = self
            .clients
            .update(part.key, self.rule.limit(), now, take_turn);
        let (charged, wait) = reserved?;
        let wait = wait.saturating_add(random_up_to(patience.jitter));
        Ok(Reservation {
            part,
            clock: &self.clock,
            charged,
            wait,
            kept: false,
        })
    }

    /// Waits until a request of the client is due, in the order of arrival, on any async runtime.
    /// `sleep` is the runtime's sleep function, such as `tokio::time::sleep`. The request is
    /// refunded if the future is dropped before.
    ///
    /// ```
    /// use earrrl::{Cost, Limiter, Patience, Rule};
    ///
    /// # let mut context = std::task::Context::from_waker(std::task::Waker::noop());
    /// # let future = async {
    /// let rule: Rule = "gcra 1/s burst=5".parse()?;
    /// let limiter: Limiter<str> = Limiter::builder(rule).build()?;
    /// // With tokio, the last argument is `tokio::time::sleep`.
    /// limiter.until_ready_with("alice", Cost::ONE, Patience::default(), async |_| {}).await?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// # };
    /// # assert!(std::pin::pin!(future).poll(&mut context).is_ready());
    /// ```
    ///
    /// # Errors
    /// Returns the errors of [`reserve`](Self::reserve), before any wait.
    pub async fn until_ready_with<Q: Hash + ?Sized, F: Future>(
        &self,
        key: &Q,
        cost: Cost,
        patience: Patience,
        sleep: impl FnOnce(Duration) -> F,
    ) -> Result<(), WaitError>
    where
        K: Borrow<Q>,
    {
        let reservation = self.reserve(key, cost, patience)?;
        if !reservation.wait.is_zero() {
            sleep(reservation.wait).await;
        }
        reservation.keep();
        Ok(())
    }

    /// Waits for at most a minute until a request of cost 1 is due, on any async runtime, with a
    /// timer that the runtime need not provide.
    ///
    /// # Errors
    /// Returns the errors of [`reserve`](Self::reserve), before any wait.
    #[cfg(feature = "timer")]
    pub async fn until_ready<Q: Hash + ?Sized>(&self, key: &Q) -> Result<(), WaitError>
    where
        K: Borrow<Q>,
    {
        let sleep = futures_timer::Delay::new;
        self.until_ready_with(key, Cost::ONE, Patience::default(), sleep)
            .await
    }
}

/// Returns the state with the request charged, and the wait until it is due; or the wait as an
/// error if it is too long.
fn turn(
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
