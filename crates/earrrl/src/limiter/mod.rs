//! The keyed limiter: one rule for many clients, shared by any number of threads.

mod batch;
mod builder;
mod hold;
mod queue;
mod stable;

/// Returns true if a request that was denied at the clock's last reading is denied at the present instant as well.
#[inline(always)]
fn stays_denied<A: Algorithm>(limit: &A, word: Option<Word>, lately: Nanos, cost: Cost) -> bool {
    let then = lately + SOON;
    let state = word.and_then(|word| limit.state_of(word));
    !limit.allows(limit.advance(state, then).as_ref(), then, cost)
}

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
use verdict::Details;
pub use verdict::{Denied, Verdict};

use crate::algorithm::exponential::Exponential;
use crate::algorithm::{Algorithm, Judged, Limit, Mode, State, in_words, judge};
use crate::clock::{Clock, Nanos, SystemClock, Time};
use crate::cost::Cost;
use crate::decision::{Action, Outcome, Wait};
use crate::error::RuleError;
use crate::rule::Rule;
use crate::rules::atomic;
use crate::rules::part::Part;
use crate::store::file::FileSpec;
use crate::store::table::{Change, KeyHash, KeyHasher, Lookup, ReadEntry, Swept, Word};
use crate::store::{Bounds, BuildError, ByRank, Clients};

/// An upper bound of the age of the clock's last reading. A request that the rule denies at the
/// last reading, and would still deny this much later, is denied without another reading.
const SOON: Duration = Duration::from_secs(1);

/// A client, and its home lines if its state is a word.
struct Fetched<'a> {
    key: KeyHash,
    place: Option<Lookup<'a>>,
}

/// Decides requests under one rule, for a fixed number of clients.
///
/// `K` is the type of the clients' keys. As in a map, a client is looked up by any type that `K`
/// borrows as: a `Limiter<String>` takes `&String` and `&str`, and a `Limiter<[u8]>` takes keys
/// that are bytes. Only the hash of a key is stored.
///
/// All methods that decide take `&self`. They take no lock under rules whose states fit words
/// ([`Limit::fits_words`]), and then never wait for another thread.
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
            let bounds = Bounds::new(new, self.capacity, most_bytes);
            self.clients.bound(&bounds, new, now);
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
    pub fn state<Q: Hash + ?Sized>(&self, key: &Q) -> Option<crate::algorithm::State>
    where
        K: Borrow<Q>,
    {
        let key = self.hasher.hash(key);
        let now = self.clock.latest();
        let keep = |state: Option<crate::algorithm::State>| (state.clone(), state);
        self.clients.inspect(key, self.rule.limit(), now, keep)
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
    /// states fit words; see [`Limit::fits_words`].
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

impl<K: ?Sized, C: Clock> Limiter<K, C> {
    /// Hashes a key and prefetches its client's state.
    #[inline(always)]
    fn fetch<Q: Hash + ?Sized>(&self, key: &Q) -> Fetched<'_> {
        let key = self.hasher.hash(key);
        Fetched {
            key,
            place: self.clients.place(key, self.rule.limit().policy()),
        }
    }

    /// Decides a request of any cost as of the given instant, or at the present one.
    #[inline(always)]
    fn decide_cost<Q: Hash + ?Sized>(
        &self,
        key: &Q,
        cost: Cost,
        given: Option<Nanos>,
        mode: Mode,
    ) -> Result<Verdict<'_>, RuleError> {
        let cost = self.rule.accept(cost)?;
        let given = given.map(|given| self.clock.at(given));
        Ok(self.decide(self.fetch(key), cost, given, mode))
    }

    /// Decides a request at the given instant, or at the present one.
    #[inline(always)]
    fn decide(
        &self,
        Fetched { key, place }: Fetched<'_>,
        cost: Cost,
        given: Option<Nanos>,
        mode: Mode,
    ) -> Verdict<'_> {
        let is_denying = || self.rule.action() == Action::Deny;
        in_words!(
            self.rule.limit(),
            limit => if let Some(place) = place
                && is_denying()
            {
                return self.step(limit, place, cost, given, mode);
            },
            else if let Limit::Exponential(limit) = self.rule.limit()
                && is_denying()
            {
                return self.decide_average(limit, key, cost, self.now(given), mode);
            }
        );
        self.decide_any(key, cost, self.now(given), mode)
    }

    /// Decides a request whose client has an average. It is copied like a word, so that the figures, some of which
    /// are the solutions of equations, are computed only on demand.
    #[inline(never)]
    fn decide_average<'a>(
        &'a self,
        limit: &'a Exponential,
        key: KeyHash,
        cost: Cost,
        now: Nanos,
        mode: Mode,
    ) -> Verdict<'a> {
        let decide = |state: Option<State>| {
            let before = match state {
                Some(State::Exponential(before)) => Some(before),
                _ => None,
            };
            let Judged { after, allowed, .. } = judge(limit, before, now, cost, mode);
            let verdict = Verdict {
                rule: &self.rule,
                now,
                cost,
                allowed,
                details: Details::Averages {
                    limit,
                    before,
                    after,
                    mode,
                },
            };
            (after.map(State::Exponential), verdict)
        };
        if mode == Mode::Peek {
            self.clients.inspect(key, self.rule.limit(), now, decide)
        } else {
            self.clients.update(key, self.rule.limit(), now, decide)
        }
    }

    #[inline(always)]
    fn now(&self, given: Option<Nanos>) -> Nanos {
        given.unwrap_or_else(|| self.clock.now())
    }

    /// Decides a request with one compare-and-swap and without figures. The clock is read while the
    /// state is fetched. The clock's last reading is used, unless it denies the request and the
    /// present instant may allow it.
    ///
    /// A verdict that this function returns is written where the caller wants it. One that two branches hand on
    /// would be copied, which takes a third of the instructions of a decision.
    #[inline(always)]
    fn step<A: Algorithm>(
        &self,
        limit: &A,
        place: Lookup<'_>,
        cost: Cost,
        given: Option<Nanos>,
        mode: Mode,
    ) -> Verdict<'_> {
        let lately = if given.is_some() {
            None
        } else {
            self.clock.lately(self.lag)
        };
        if let Some(lately) = lately {
            let Some(seen) = place.at_home() else {
                return self.step_anywhere(limit, place.key, cost, given, Some(lately), mode);
            };
            let is_over = |word| stays_denied(limit, Some(word), lately, cost);
            if let Some(verdict) = self.swap(seen, limit, lately, cost, mode, is_over) {
                return verdict;
            }
        }
        let now = self.now(given);
        if let Some(seen) = place.at_home()
            && let Some(verdict) = self.swap(seen, limit, now, cost, mode, |_| true)
        {
            return verdict;
        }
        self.step_anywhere(limit, place.key, cost, Some(now), None, mode)
    }

    /// Decides the request on the state that was read, and again if another thread changes it
    /// meanwhile. Returns `None`, with nothing stored, if the slot is no longer the client's, if a
    /// state fits no word, or if the request is denied and `is_over` does not confirm the denial.
    #[inline(always)]
    fn swap<A: Algorithm>(
        &self,
        mut seen: ReadEntry<'_>,
        limit: &A,
        now: Nanos,
        cost: Cost,
        mode: Mode,
        is_over: impl Fn(Word) -> bool,
    ) -> Option<Verdict<'_>> {
        loop {
            let word = seen.word()?;
            let (change, verdict) = self.judge(limit, Some(word), now, cost, mode)?;
            if !verdict.allowed && !is_over(word) {
                return None;
            }
            if seen.apply(change) {
                return Some(verdict);
            }
        }
    }

    /// Decides a request of a client that is new or outside of its home lines, at the clock's last reading if one is
    /// given and does not deny it.
    #[cold]
    #[inline(never)]
    fn step_anywhere<A: Algorithm>(
        &self,
        limit: &A,
        key: KeyHash,
        cost: Cost,
        given: Option<Nanos>,
        lately: Option<Nanos>,
        mode: Mode,
    ) -> Verdict<'_> {
        let decide = |now: Nanos, is_over: &dyn Fn(Option<Word>) -> bool| {
            self.clients.reached(now);
            let judge = |word: Option<Word>| match self.judge(limit, word, now, cost, mode) {
                Some((change, verdict)) if verdict.allowed || is_over(word) => {
                    (change, Some(verdict))
                }
                _ => (Change::Keep, None),
            };
            let table = self.clients.table()?;
            table.update_anywhere(key, ByRank(limit, now), judge)
        };
        let early = lately.and_then(|at| decide(at, &|word| stays_denied(limit, word, at, cost)));
        early.unwrap_or_else(|| {
            let now = self.now(given);
            decide(now, &|_| true).unwrap_or_else(|| self.decide_any(key, cost, now, mode))
        })
    }

    /// Returns the verdict on a request, and the change of the client's entry; `None` if the state
    /// before or after fits no word.
    #[inline(always)]
    fn judge<A: Algorithm>(
        &self,
        limit: &A,
        word: Option<Word>,
        now: Nanos,
        cost: Cost,
        mode: Mode,
    ) -> Option<(Change, Verdict<'_>)> {
        let before = match word {
            Some(word) => Some(limit.state_of(word)?),
            None => None,
        };
        let Judged {
            after,
            allowed,
            stores,
        } = judge(limit, limit.advance(before, now), now, cost, mode);
        let (change, after) = match after {
            Some(after) if stores => {
                let after = limit.word(&after);
                (Change::Store(after), Some(after))
            }
            _ => (Change::Keep, word),
        };
        let details = Details::Words {
            before: word,
            after,
            mode,
        };
        Some((
            change,
            Verdict {
                rule: &self.rule,
                now,
                cost,
                allowed,
                details,
            },
        ))
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

    #[inline(never)]
    fn decide_any(&self, key: KeyHash, cost: Cost, now: Nanos, mode: Mode) -> Verdict<'_> {
        // Only a hold may take a place of concurrent: nothing would give back that of a check.
        let is_refused = mode != Mode::Peek && self.rule.limit().is_concurrent();
        let mode = if is_refused { Mode::Peek } else { mode };
        let mut decision = atomic::decide(&[self.part(key, cost)], mode, &|| now);
        if is_refused {
            (decision.allowed, decision.outcome) = (false, Outcome::Deny);
            decision.retry_after = Wait::Never;
        }
        let allowed = decision.allowed;
        let details = Details::Whole(decision);
        Verdict {
            rule: &self.rule,
            now,
            cost,
            allowed,
            details,
        }
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
