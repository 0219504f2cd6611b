//! The keyed limiter: one rule for many clients, shared by any number of threads.

mod batch;
mod builder;
mod decide;
mod hold;
mod queue;
mod stable;
#[cfg(test)]
mod tests;
mod verdict;

use core::borrow::Borrow;
use core::fmt;
use core::hash::Hash;
use core::marker::PhantomData;
use core::time::Duration;

pub use builder::Builder;
pub use hold::{Hold, HoldError};
pub use queue::{Patience, Queue, Turn, TurnError};
pub use stable::StableKey;
pub use verdict::{Denied, Verdict};

use crate::algorithm::{Mode, State};
use crate::clock::{Clock, Nanos, SystemClock, Time};
use crate::cost::Cost;
use crate::error::RuleError;
use crate::rule::Rule;
use crate::rules::part::Part;
use crate::store::file::FileSpec;
use crate::store::table::{KeyHash, KeyHasher, Swept};
use crate::store::{Bounds, BuildError, Clients};

/// Decides requests under one rule, for a fixed number of clients.
///
/// `K` is the type of the clients' keys. As in a map, a client is looked up by any type that `K`
/// borrows as: a `Limiter<String>` takes `&String` and `&str`, and a `Limiter<[u8]>` takes keys
/// that are bytes. Only the hash of a key is stored.
///
/// All methods that decide take `&self`. They take no lock under rules whose states fit words
/// ([`Limit::fits_words`](crate::Limit::fits_words)), and then never wait for another thread.
///
/// ```
/// use earrrl::{Cost, Limiter, Rate};
/// use earrrl::algorithm::TokenBucket;
///
/// let bucket = TokenBucket::new(Cost::from_units(2), Rate::per_second(1)?)?;
/// let limiter: Limiter<str> = Limiter::builder(bucket).capacity(10_000).build()?;
/// assert!(limiter.check("alice").is_allowed());
/// assert!(limiter.check("alice").is_allowed());
/// let denied = limiter.check("alice");
/// assert!(!denied.is_allowed());
/// assert!(denied.retry_after().duration().is_some_and(|wait| wait.as_millis() <= 1000));
/// limiter.check("bob").ok()?; // an error where it is denied
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Limiter<K: ?Sized, C = SystemClock> {
    rule: Rule,
    clients: Clients,
    hasher: KeyHasher,
    clock: Time<C>,
    /// The greatest time by which the instant of a stored request may lag behind the present.
    lag: Duration,
    capacity: usize,
    most_bytes: Option<usize>,
    keys: PhantomData<fn(&K)>,
}

/// # Deciding
impl<K: ?Sized, C: Clock> Limiter<K, C> {
    /// Decides a request of cost 1.
    ///
    /// ```
    /// # let rule: earrrl::Rule = "fixed-window 1/1d".parse()?;
    /// # let limiter: earrrl::Limiter<str> = earrrl::Limiter::builder(rule).build()?;
    /// if limiter.check("alice").is_allowed() {
    ///     println!("hello, alice");
    /// }
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[inline(always)]
    pub fn check<Q: Hash + ?Sized>(&self, key: &Q) -> Verdict<'_>
    where
        K: Borrow<Q>,
    {
        self.decide(self.fetch(key), Cost::ONE, None, Mode::Check)
    }

    /// Decides a request of the given cost.
    ///
    /// ```
    /// # use earrrl::{Cost, Limiter, Rule};
    /// # let rule: Rule = "fixed-window 10/1d".parse()?;
    /// # let limiter: Limiter<str> = Limiter::builder(rule).build()?;
    /// assert_eq!(limiter.check_cost("alice", "2.5".parse()?)?.remaining(), 7);
    /// assert!(!limiter.check_cost("alice", Cost::from_units(8))?.is_allowed());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// Returns an error if the cost is above the rule's `max_cost`.
    #[inline]
    pub fn check_cost<Q: Hash + ?Sized>(
        &self,
        key: &Q,
        cost: Cost,
    ) -> Result<Verdict<'_>, RuleError>
    where
        K: Borrow<Q>,
    {
        self.decide_cost(key, cost, None, Mode::Check)
    }

    /// Returns the verdict that [`check_cost`](Self::check_cost) would return, and stores nothing.
    ///
    /// ```
    /// # use earrrl::{Cost, Limiter, Rule};
    /// # let rule: Rule = "fixed-window 1/1d".parse()?;
    /// # let limiter: Limiter<str> = Limiter::builder(rule).build()?;
    /// assert!(limiter.peek("alice", Cost::ONE)?.is_allowed());
    /// assert!(limiter.check("alice").is_allowed());
    /// assert!(!limiter.peek("alice", Cost::ONE)?.is_allowed());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// Returns an error if the cost is above the rule's `max_cost`.
    pub fn peek<Q: Hash + ?Sized>(&self, key: &Q, cost: Cost) -> Result<Verdict<'_>, RuleError>
    where
        K: Borrow<Q>,
    {
        self.decide_cost(key, cost, None, Mode::Peek)
    }

    /// Decides a request as [`check_cost`](Self::check_cost) does, but stores it even if it is over
    /// the limit. Used for costs that are known only afterwards. A bucket goes into debt.
    ///
    /// ```
    /// use earrrl::{Cost, Limiter, ManualClock, Nanos, Rule};
    /// use std::time::Duration;
    ///
    /// let rule: Rule = "gcra 100/s burst=1000".parse()?;
    /// let clock = ManualClock::new(Nanos::from_secs(1));
    /// let tokens = Limiter::<str>::builder(rule).clock(clock).build()?;
    /// // The model answered with 4000 tokens: 30 seconds of the allowance are owed.
    /// let answer = tokens.charge("alice", Cost::from_units(4000))?;
    /// assert!(!answer.is_allowed());
    /// let wait = tokens.check("alice").retry_after();
    /// assert_eq!(wait.duration(), Some(Duration::from_millis(30_010)));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// Returns an error if the cost is above the rule's `max_cost`.
    pub fn charge<Q: Hash + ?Sized>(&self, key: &Q, cost: Cost) -> Result<Verdict<'_>, RuleError>
    where
        K: Borrow<Q>,
    {
        self.decide_cost(key, cost, None, Mode::Charge)
    }

    /// Takes back a request that was charged at `charged_at` (see [`Verdict::decided_at`]); `None`
    /// stands for the latest charge. A rule of [`Concurrent`](crate::algorithm::Concurrent) has no charges, only
    /// the places of live holds, which this function leaves there.
    ///
    /// ```
    /// # use earrrl::{Cost, Limiter, Rule};
    /// # let rule: Rule = "fixed-window 1/1d".parse()?;
    /// # let limiter: Limiter<str> = Limiter::builder(rule).build()?;
    /// let charged_at = limiter.check("alice").decided_at();
    /// // The work failed, so that the request is not counted.
    /// limiter.refund("alice", Cost::ONE, Some(charged_at));
    /// assert!(limiter.check("alice").is_allowed());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn refund<Q: Hash + ?Sized>(&self, key: &Q, cost: Cost, charged_at: Option<Nanos>)
    where
        K: Borrow<Q>,
    {
        self.take_back(self.hasher.hash(key), cost, charged_at, self.clock.now());
    }

    fn take_back(&self, key: KeyHash, cost: Cost, charged_at: Option<Nanos>, now: Nanos) {
        if !self.rule.limit().is_concurrent() {
            self.part(key, cost).refund(now, charged_at);
        }
    }

    fn part(&self, key: KeyHash, cost: Cost) -> Part<'_> {
        Part {
            rule: &self.rule,
            clients: &self.clients,
            key,
            cost,
        }
    }
}

/// # Deciding as of an instant, for replays and simulations
impl<K: ?Sized, C: Clock> Limiter<K, C> {
    /// Decides a request as of the instant `now`, or as of the latest instant that was used if that
    /// is later. An instant in the future therefore stops this limiter's time until its clock
    /// catches up, so clients must not be able to choose it.
    ///
    /// ```
    /// # use earrrl::{Cost, Limiter, ManualClock, Nanos, Rule};
    /// # let rule: Rule = "fixed-window 1/1m".parse()?;
    /// let clock = ManualClock::new(Nanos::ZERO); // a replay gets every instant from its log
    /// let limiter = Limiter::<str>::builder(rule).clock(clock).build()?;
    /// assert!(limiter.check_at("alice", Cost::ONE, Nanos::from_secs(0))?.is_allowed());
    /// assert!(!limiter.check_at("alice", Cost::ONE, Nanos::from_secs(59))?.is_allowed());
    /// assert!(limiter.check_at("alice", Cost::ONE, Nanos::from_secs(60))?.is_allowed());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// Returns an error if the cost is above the rule's `max_cost`.
    #[inline]
    pub fn check_at<Q: Hash + ?Sized>(
        &self,
        key: &Q,
        cost: Cost,
        now: Nanos,
    ) -> Result<Verdict<'_>, RuleError>
    where
        K: Borrow<Q>,
    {
        self.decide_cost(key, cost, Some(now), Mode::Check)
    }

    /// Returns the verdict that [`check_at`](Self::check_at) would return, and stores nothing.
    ///
    /// # Errors
    /// Returns an error if the cost is above the rule's `max_cost`.
    pub fn peek_at<Q: Hash + ?Sized>(
        &self,
        key: &Q,
        cost: Cost,
        now: Nanos,
    ) -> Result<Verdict<'_>, RuleError>
    where
        K: Borrow<Q>,
    {
        self.decide_cost(key, cost, Some(now), Mode::Peek)
    }

    /// Charges a request as [`charge`](Self::charge) does, as of an instant that counts as in
    /// [`check_at`](Self::check_at).
    ///
    /// # Errors
    /// Returns an error if the cost is above the rule's `max_cost`.
    pub fn charge_at<Q: Hash + ?Sized>(
        &self,
        key: &Q,
        cost: Cost,
        now: Nanos,
    ) -> Result<Verdict<'_>, RuleError>
    where
        K: Borrow<Q>,
    {
        self.decide_cost(key, cost, Some(now), Mode::Charge)
    }

    /// Takes back a request as [`refund`](Self::refund) does, as of an instant that counts as in
    /// [`check_at`](Self::check_at).
    pub fn refund_at<Q: Hash + ?Sized>(
        &self,
        key: &Q,
        cost: Cost,
        charged_at: Option<Nanos>,
        now: Nanos,
    ) where
        K: Borrow<Q>,
    {
        self.take_back(self.hasher.hash(key), cost, charged_at, self.clock.at(now));
    }
}

/// # The rule
impl<K: ?Sized, C: Clock> Limiter<K, C> {
    /// Returns the limiter's rule.
    ///
    /// ```
    /// # use earrrl::{Limiter, Rule};
    /// let rule: Rule = "fixed-window 1/1d".parse()?;
    /// let limiter: Limiter<str> = Limiter::builder(rule.clone()).build()?;
    /// assert_eq!(limiter.rule(), &rule);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn rule(&self) -> &Rule {
        &self.rule
    }

    /// Replaces the rule. A changed rate, burst, quota, policy or action applies to the stored states. If the
    /// algorithm, the half-life, the period, the window or the sub-windows change, the states mean nothing any
    /// more and the clients begin afresh.
    ///
    /// A bucket keeps the time at which it is full. If it fills faster now, that is at most the time that fills
    /// an empty one.
    ///
    /// Threads that share a limiter cannot change it: [`MemoryEngine::prepare`](crate::Engine::prepare)
    /// changes rules while requests go on.
    ///
    /// In a state file, other processes use the states too, each under its own rule. Clients that begin afresh
    /// do so in another file.
    ///
    /// ```
    /// # use earrrl::{Limiter, Rule};
    /// # let rule: Rule = "fixed-window 1/1d".parse()?;
    /// # let mut limiter: Limiter<str> = Limiter::builder(rule).build()?;
    /// assert_eq!(limiter.check("alice").remaining(), 0);
    /// limiter.change("fixed-window 3/1d".parse()?)?;
    /// assert_eq!(limiter.check("alice").remaining(), 1);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// Returns the errors of [`Builder::build`]; the old rule then stays.
    pub fn change(&mut self, rule: Rule) -> Result<(), BuildError> {
        rule.accept(Cost::ONE)?;
        let most_bytes = rule.max_bytes().or(self.most_bytes);
        let old = self.rule.limit();
        let new = rule.limit();
        let now = self.clock.now();
        if self.clients.keeps(old, new) {
            self.clients.carry(old, new, now);
            if let Some(changed) = self.clients.under(new) {
                self.clients = changed;
            }
            let bounds = Bounds::new(new, self.capacity, most_bytes);
            self.clients.bound(&bounds, now);
        } else if let Some(file) = self.clients.file() {
            let open = |wanted: &FileSpec<'_>| Clients::open(wanted, |_| now);
            self.clients = file.continued(new, self.capacity, open)?.0;
        } else {
            self.clients = Clients::new(new, self.capacity, most_bytes)?;
        }
        self.lag = new.lag();
        self.rule = rule;
        Ok(())
    }
}

/// # The clients
impl<K: ?Sized, C: Clock> Limiter<K, C> {
    /// Returns a client's state as it was stored by its last request, for callers that need more
    /// than the figures of a decision; `None` for a client that is not stored.
    ///
    /// ```
    /// use earrrl::{Limiter, Rule};
    /// use earrrl::algorithm::State;
    ///
    /// let rule: Rule = "sliding-counter 5/1d".parse()?;
    /// let limiter: Limiter<str> = Limiter::builder(rule).build()?;
    /// limiter.check("alice").ok()?;
    /// let Some(State::SlidingCounter(counts)) = limiter.state("alice") else { panic!("no state") };
    /// assert_eq!((counts.current, counts.previous), (1_000_000_000, 0)); // in billionths
    /// assert!(limiter.state("alice").is_some() && limiter.state("bob").is_none());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn state<Q: Hash + ?Sized>(&self, key: &Q) -> Option<State>
    where
        K: Borrow<Q>,
    {
        let key = self.hasher.hash(key);
        let now = self.clock.latest();
        let keep = |state: Option<State>| (state.clone(), state);
        self.clients
            .visit(key, self.rule.limit(), now, Mode::Peek, keep)
    }

    /// Removes a client's state.
    ///
    /// ```
    /// # use earrrl::{Limiter, Rule};
    /// # let rule: Rule = "fixed-window 1/1d".parse()?;
    /// # let limiter: Limiter<str> = Limiter::builder(rule).build()?;
    /// assert!(limiter.check("alice").is_allowed());
    /// limiter.reset("alice");
    /// assert!(limiter.check("alice").is_allowed());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn reset<Q: Hash + ?Sized>(&self, key: &Q)
    where
        K: Borrow<Q>,
    {
        self.part(self.hasher.hash(key), Cost::ZERO)
            .reset(self.clock.latest());
    }

    /// Removes the states of all clients, and returns their number. With a state file, these are the clients of all
    /// processes that use it. Others may decide requests meanwhile, each of which comes before or after the
    /// removal of its client.
    ///
    /// ```
    /// # use earrrl::{Limiter, Rule};
    /// # let rule: Rule = "fixed-window 1/1d".parse()?;
    /// # let limiter: Limiter<str> = Limiter::builder(rule).build()?;
    /// assert!(limiter.check("alice").is_allowed());
    /// assert_eq!(limiter.clear(), 1);
    /// assert!(limiter.check("alice").is_allowed());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn clear(&self) -> usize {
        self.clients.clear()
    }

    /// Returns the number of stored clients, including idle ones. With a capacity above 12,000, the number is an
    /// estimate from a sample of the table, which may miss few clients.
    ///
    /// ```
    /// # use earrrl::{Limiter, Rule};
    /// # let rule: Rule = "gcra 1/s burst=9".parse()?;
    /// let limiter: Limiter<str> = Limiter::builder(rule).capacity(10).build()?;
    /// assert_eq!(limiter.len(), 0);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn len(&self) -> usize {
        self.clients.len()
    }

    /// Returns true if no client is stored, with the precision of [`len`](Self::len).
    ///
    /// ```
    /// # use earrrl::{Limiter, Rule};
    /// # let rule: Rule = "gcra 1/s burst=9".parse()?;
    /// let limiter: Limiter<str> = Limiter::builder(rule).build()?;
    /// assert!(limiter.is_empty());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the bytes that the clients' states occupy. The number is fixed under rules whose
    /// states fit words; see [`Limit::fits_words`](crate::Limit::fits_words).
    ///
    /// ```
    /// # use earrrl::{Limiter, Rule};
    /// # let rule: Rule = "gcra 1/s burst=9".parse()?;
    /// let limiter: Limiter<str> = Limiter::builder(rule).capacity(100_000).build()?;
    /// assert!(limiter.bytes() < 100_000 * 25);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn bytes(&self) -> usize {
        self.clients.bytes()
    }

    /// Returns the number of clients that were evicted although they were not idle. If it grows steadily, the
    /// capacity is too small.
    ///
    /// ```
    /// # use earrrl::{Limiter, Rule};
    /// # let rule: Rule = "gcra 1/s burst=9".parse()?;
    /// let limiter: Limiter<str> = Limiter::builder(rule).build()?;
    /// limiter.check("alice").ok()?;
    /// assert_eq!(limiter.displaced(), 0);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn displaced(&self) -> u64 {
        self.clients.displaced()
    }

    /// Returns the numbers of entries that were removed from the state file when it was opened, or
    /// `None` if there is no state file. All are 0 unless a process died in the middle of an
    /// insertion, the machine lost its power, or the file was damaged.
    #[doc(hidden)]
    pub fn swept(&self) -> Option<Swept> {
        self.clients.file().map(|file| file.swept)
    }

    /// Returns the hash of a client's key.
    #[doc(hidden)]
    pub fn hash<Q: Hash + ?Sized>(&self, key: &Q) -> KeyHash
    where
        K: Borrow<Q>,
    {
        self.hasher.hash(key)
    }
}

/// # One limit for everybody
impl<C: Clock> Limiter<(), C> {
    /// Decides a request of cost 1 of a limiter that has no keys, and so only one client.
    ///
    /// ```
    /// use earrrl::{Limiter, Rule};
    ///
    /// let rule: Rule = "gcra 1/s burst=2".parse()?;
    /// let limiter: Limiter<()> = Limiter::builder(rule).capacity(1).build()?;
    /// assert!(limiter.check_any().is_allowed() && limiter.check_any().is_allowed());
    /// assert!(!limiter.check_any().is_allowed());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[inline]
    pub fn check_any(&self) -> Verdict<'_> {
        self.check(&())
    }
}

impl<K: ?Sized, C> fmt::Debug for Limiter<K, C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Limiter")
            .field("rule", &self.rule.to_string())
            .field("capacity", &self.capacity)
            .finish_non_exhaustive()
    }
}
