//! Reservations of a single limiter: an estimate is charged at once, and a commit corrects it.

use core::borrow::Borrow;
use core::fmt;
use core::hash::Hash;
use core::ops::Deref;
use std::sync::Arc;

use super::Limiter;
use crate::clock::{Clock, Nanos};
use crate::cost::Cost;
use crate::error::RuleError;
use crate::held::OnExpiry;
use crate::limiter::verdict::Denied;
use crate::rules::reserve::{Reserved, Reserves, charge_estimates};
use crate::store::table::KeyHash;

/// The reason why nothing was reserved.
///
/// ```
/// use earrrl::{Cost, HoldError, Limiter, Rule};
///
/// let rule: Rule = "fixed-window 100/1d".parse()?;
/// let tokens: Limiter<str> = Limiter::builder(rule).build()?;
/// match tokens.hold("alice", Cost::from_units(4096)) {
///     Ok(hold) => hold.commit(Cost::from_units(731)),
///     Err(HoldError::Denied(denied)) => assert_eq!(denied.decision().remaining, 100),
///     Err(error) => return Err(error.into()),
/// }
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum HoldError {
    /// The request is denied.
    Denied(Denied),
    /// The rule does not accept the cost.
    Rule(RuleError),
}

impl fmt::Display for HoldError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Denied(denied) => denied.fmt(f),
            Self::Rule(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for HoldError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Denied(denied) => Some(denied),
            Self::Rule(error) => Some(error),
        }
    }
}

/// A request whose estimate was charged before its actual cost is known.
///
/// A hold that is dropped without a commit behaves as an expired reservation: the rule keeps the
/// estimate or releases it, as [`Rule::on_expiry`](crate::Rule::on_expiry) says.
///
/// ```
/// use earrrl::{Cost, Limiter, Rule};
///
/// let rule: Rule = "fixed-window 1000/1d".parse()?;
/// let tokens: Limiter<str> = Limiter::builder(rule).build()?;
/// let hold = tokens.hold("alice", Cost::from_units(400))?; // the estimate
/// hold.commit(Cost::from_units(120)); // the actual cost
/// assert_eq!(tokens.peek("alice", Cost::ZERO)?.remaining(), 880);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[must_use = "a hold that is dropped keeps or releases its estimate at once"]
pub struct Hold<'a, K: ?Sized, C: Clock> {
    limiter: HeldLimiter<'a, K, C>,
    key: KeyHash,
    reserved: Reserved,
    is_open: bool,
}

/// The limiter of a hold.
enum HeldLimiter<'a, K: ?Sized, C> {
    Borrowed(&'a Limiter<K, C>),
    Shared(Arc<Limiter<K, C>>),
}

impl<K: ?Sized, C> Deref for HeldLimiter<'_, K, C> {
    type Target = Limiter<K, C>;

    fn deref(&self) -> &Limiter<K, C> {
        match self {
            Self::Borrowed(limiter) => limiter,
            Self::Shared(limiter) => limiter,
        }
    }
}

impl<'a, K: ?Sized, C: Clock> Hold<'a, K, C> {
    fn new(
        limiter: HeldLimiter<'a, K, C>,
        key: KeyHash,
        estimate: Cost,
        at_most: bool,
    ) -> Result<Self, HoldError> {
        let estimate = limiter.rule.accept(estimate).map_err(HoldError::Rule)?;
        let part = limiter.part(key, estimate);
        // The caller owns its holds, and bounds their number.
        let now = limiter.clock.now();
        let mut reserves = Reserves::new();
        let decision = charge_estimates(&[part], at_most, usize::MAX, now, &mut reserves);
        let reserved = reserves.pop();
        Ok(Self {
            reserved: reserved.ok_or(HoldError::Denied(Denied(decision)))?,
            limiter,
            key,
            is_open: true,
        })
    }

    /// Returns the granted cost: the estimate, or what [`Limiter::hold_at_most`] granted of it.
    ///
    /// ```
    /// # use earrrl::{Cost, Limiter, Rule};
    /// # let rule: Rule = "fixed-window 10/1d".parse()?;
    /// # let tokens: Limiter<str> = Limiter::builder(rule).build()?;
    /// let hold = tokens.hold("alice", Cost::from_units(4))?;
    /// assert_eq!(hold.granted(), Cost::from_units(4));
    /// # hold.release();
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn granted(&self) -> Cost {
        self.reserved.held.cost
    }

    /// Returns the instant of the reservation.
    pub fn held_at(&self) -> Nanos {
        self.reserved.held.at
    }

    /// Keeps the places of a rule of [`Concurrent`](crate::algorithm::Concurrent) for its timeout from now on.
    /// Returns false if they are gone, because they have timed out or the client was reset. Under other
    /// rules a hold lives until it is dropped, and nothing changes.
    ///
    /// ```
    /// # use earrrl::{Cost, Limiter, Rule};
    /// let rule: Rule = "concurrent 2 timeout=60s".parse()?;
    /// let streams: Limiter<str> = Limiter::builder(rule).build()?;
    /// let mut hold = streams.hold("alice", Cost::ONE)?;
    /// // … a long stream, at least once a minute …
    /// assert!(hold.renew());
    /// hold.release();
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn renew(&mut self) -> bool {
        let now = self.limiter.clock.now();
        let part = self.limiter.part(self.key, self.reserved.held.cost);
        part.renew(&mut self.reserved, now)
    }

    /// Corrects the charge to the actual cost; see [`Limit::commit`](crate::Limit::commit). A cost above the estimate is
    /// always charged, at most as the rule's `max_cost`.
    pub fn commit(mut self, actual: Cost) {
        self.finish(Some(actual));
    }

    /// Gives the estimate back, as a commit of 0.
    ///
    /// ```
    /// # use earrrl::{Cost, Limiter, Rule};
    /// # let rule: Rule = "fixed-window 10/1d".parse()?;
    /// # let tokens: Limiter<str> = Limiter::builder(rule).build()?;
    /// tokens.hold("alice", Cost::from_units(4))?.release();
    /// assert_eq!(tokens.peek("alice", Cost::ONE)?.remaining(), 10);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn release(mut self) {
        self.finish(Some(Cost::ZERO));
    }

    fn finish(&mut self, actual: Option<Cost>) {
        self.is_open = false;
        let part = self.limiter.part(self.key, self.reserved.held.cost);
        match actual {
            // Other processes may have reservations of the same bucket.
            Some(actual) => {
                part.refunded(Cost::ZERO);
                part.correct(&self.reserved, actual, self.limiter.clock.now());
            }
            None => part.forget(&self.reserved),
        }
    }
}

impl<K: ?Sized, C: Clock> Drop for Hold<'_, K, C> {
    fn drop(&mut self) {
        if self.is_open {
            let releases = self.limiter.rule.on_expiry() == OnExpiry::Release;
            self.finish(releases.then_some(Cost::ZERO));
        }
    }
}

impl<K: ?Sized, C: Clock> fmt::Debug for Hold<'_, K, C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Hold")
            .field("held", &self.reserved.held)
            .finish_non_exhaustive()
    }
}

/// # Reserving
impl<K: ?Sized, C: Clock> Limiter<K, C> {
    /// Checks a request whose cost is only estimated. If it is allowed, charges the estimate, and
    /// returns a [`Hold`], whose commit corrects the charge to the actual cost.
    ///
    /// ```
    /// use earrrl::{Cost, Limiter, Rule};
    ///
    /// let rule: Rule = "fixed-window 10000/1d".parse()?;
    /// let tokens: Limiter<str> = Limiter::builder(rule).build()?;
    /// let hold = tokens.hold("alice", Cost::from_units(4096))?;
    /// assert_eq!(tokens.peek("alice", Cost::ONE)?.remaining(), 5904);
    /// hold.commit(Cost::from_units(731));
    /// assert_eq!(tokens.peek("alice", Cost::ONE)?.remaining(), 9269);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// Returns an error if the request is denied, or the cost is above the rule's `max_cost`.
    pub fn hold<Q: Hash + ?Sized>(
        &self,
        key: &Q,
        estimate: Cost,
    ) -> Result<Hold<'_, K, C>, HoldError>
    where
        K: Borrow<Q>,
    {
        let key = self.hasher.hash(key);
        Hold::new(HeldLimiter::Borrowed(self), key, estimate, false)
    }

    /// Reserves as [`hold`](Self::hold) does, but grants at most the whole units that are left. If the
    /// estimate is more, they are what is reserved. [`Hold::granted`] is the cost that was granted.
    ///
    /// ```
    /// use earrrl::{Cost, Limiter, Rule};
    ///
    /// let rule: Rule = "fixed-window 10000/1d".parse()?;
    /// let tokens: Limiter<str> = Limiter::builder(rule).build()?;
    /// tokens.charge("alice", Cost::from_units(7000))?;
    /// let hold = tokens.hold_at_most("alice", Cost::from_units(4096))?;
    /// // The model is asked for at most this many tokens.
    /// assert_eq!(hold.granted(), Cost::from_units(3000));
    /// hold.commit(Cost::from_units(731));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// Returns an error if no unit is left, or the estimate is above the rule's `max_cost`.
    pub fn hold_at_most<Q: Hash + ?Sized>(
        &self,
        key: &Q,
        estimate: Cost,
    ) -> Result<Hold<'_, K, C>, HoldError>
    where
        K: Borrow<Q>,
    {
        let key = self.hasher.hash(key);
        Hold::new(HeldLimiter::Borrowed(self), key, estimate, true)
    }

    /// Reserves as [`hold`](Self::hold) does. The hold keeps the limiter alive, so that it can be moved
    /// to another task or thread.
    ///
    /// ```
    /// use earrrl::{Cost, Limiter, Rule};
    /// use std::sync::Arc;
    ///
    /// let rule: Rule = "fixed-window 10000/1d".parse()?;
    /// let tokens: Arc<Limiter<str>> = Arc::new(Limiter::builder(rule).build()?);
    /// let hold = Arc::clone(&tokens).hold_owned("alice", Cost::from_units(4096))?;
    /// // A task of an asynchronous runtime, such as `tokio::spawn` starts, can own it as well.
    /// let stream = std::thread::spawn(move || hold.commit(Cost::from_units(731)));
    /// stream.join().map_err(|_| "the thread panicked")?;
    /// assert_eq!(tokens.peek("alice", Cost::ONE)?.remaining(), 9269);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// Returns the errors of [`hold`](Self::hold).
    pub fn hold_owned<Q: Hash + ?Sized>(
        self: Arc<Self>,
        key: &Q,
        estimate: Cost,
    ) -> Result<Hold<'static, K, C>, HoldError>
    where
        K: Borrow<Q>,
    {
        let key = self.hasher.hash(key);
        Hold::new(HeldLimiter::Shared(self), key, estimate, false)
    }
}
