//! Waiting for one's turn: a reservation now, a sleep until it is due.
//!
//! A bucket may go below zero: a client that comes when it is empty is charged at once, and learns how long to
//! wait until the refill has paid for it. So everybody waits in the order of arrival, nobody polls,
//! and there is no queue in memory. A caller that gives up gets a refund.

use core::borrow::Borrow;
use core::future::Future;
use core::hash::Hash;
use core::time::Duration;
use std::fmt;

use super::Limiter;
use crate::algorithm::{Algorithm, Limit, Moment, TokenBucket};
use crate::clock::Time;
use crate::clock::{Clock, Nanos};
use crate::cost::Cost;
use crate::decision::Wait;
use crate::error::RuleError;
use crate::rules::part::Part;
use crate::store::Kept;
use crate::store::table::Change;

/// The bounds of a wait: by default at most a minute, without jitter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Patience {
    /// A caller that would have to wait longer is refused at once: this bounds the queue.
    pub max_wait: Duration,
    /// Up to so much is added at random, so that waiters of many clients don't wake together.
    pub jitter: Duration,
}

impl Default for Patience {
    fn default() -> Self {
        Self { max_wait: Duration::from_secs(60), jitter: Duration::ZERO }
    }
}

impl Patience {
    /// At most so long.
    #[must_use]
    pub fn max_wait(self, max_wait: Duration) -> Self {
        Self { max_wait, ..self }
    }

    /// With up to so much added at random.
    #[must_use]
    pub fn jitter(self, jitter: Duration) -> Self {
        Self { jitter, ..self }
    }
}

/// An error of a wait that could not begin.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum WaitError {
    /// It would take longer than [`Patience::max_wait`]: so long, or no wait helps.
    TooLong(Wait),
    /// The rule can't reserve (only token-bucket, credit-pool and gcra can), or refuses the cost.
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

/// A turn that was paid for. Dropped before [`keep`](Self::keep), it is refunded.
#[must_use]
pub struct Reservation<'a, C: Clock> {
    part: Part<'a>,
    clock: &'a Time<C>,
    charged_at: Nanos,
    wait: Duration,
    kept: bool,
}

impl<C: Clock> Reservation<'_, C> {
    /// Returns the time from the reservation to the turn.
    pub fn wait(&self) -> Duration {
        self.wait
    }

    /// Takes the turn: there is no refund any more.
    pub fn keep(mut self) {
        self.kept = true;
    }
}

impl<C: Clock> Drop for Reservation<'_, C> {
    fn drop(&mut self) {
        if !self.kept {
            self.part.refund(self.clock.now(), Some(self.charged_at));
        }
    }
}

impl<C: Clock> fmt::Debug for Reservation<'_, C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Reservation").field("wait", &self.wait).finish_non_exhaustive()
    }
}

impl<K: ?Sized, C: Clock> Limiter<K, C> {
    /// Reserves the next turn of a client: charges it now, and returns the wait for it.
    ///
    /// # Errors
    /// When the wait would be longer than `patience` has, or the rule can't reserve; then nothing
    /// is charged.
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
        let (Kept::Words(table), Limit::TokenBucket(limit)) =
            (&self.clients.kept, self.rule.limit())
        else {
            let problem = std::format!("`{}` can't reserve: token-bucket and gcra can", self.rule);
            return Err(WaitError::Rule(RuleError::new(problem)));
        };
        let (key, now) = (self.hasher.hash(key), self.clock.now());
        let reserved = table.update(
            key,
            || limit.idle(now).0,
            move |word| match turn(limit, word.map(Moment), now, cost, patience.max_wait) {
                Ok((after, wait)) => (Change::Store(after.0), Ok(wait)),
                Err(wait) => (Change::Keep, Err(WaitError::TooLong(wait))),
            },
        );
        let wait = reserved?.saturating_add(random_up_to(patience.jitter));
        let (part, clock) = (self.part(key, cost), &self.clock);
        Ok(Reservation { part, clock, charged_at: now, wait, kept: false })
    }

    /// Waits for a client's turn, in the order of arrival, on any async runtime: `sleep` is the
    /// runtime's (`tokio::time::sleep`, say). Dropped before the turn has come, it is refunded.
    ///
    /// # Errors
    /// As [`reserve`](Self::reserve), and before anything is waited for.
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

    /// Waits for a client's turn of cost 1, for at most a minute, on any async runtime, by timers of
    /// its own.
    ///
    /// # Errors
    /// As [`reserve`](Self::reserve), and before anything is waited for.
    #[cfg(feature = "timer")]
    pub async fn until_ready<Q: Hash + ?Sized>(&self, key: &Q) -> Result<(), WaitError>
    where
        K: Borrow<Q>,
    {
        let sleep = futures_timer::Delay::new;
        self.until_ready_with(key, Cost::ONE, Patience::default(), sleep).await
    }
}

/// Returns the state after taking the next turn, and the wait for it; or the wait that is too long.
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
