//! Several rules on one request, in process: all or nothing.

use core::fmt;
use core::hash::Hash;
use core::time::Duration;
use std::string::ToString;
use std::vec::Vec;

use smallvec::SmallVec;

use super::atomic::{self, Each};
use super::part::Part;
use crate::algorithm::Mode;
use crate::clock::{Clock, Nanos, SystemClock, Time};
use crate::cost::Cost;
use crate::decision::Decision;
use crate::engine::MAX_CHARGES;
use crate::error::{RuleError, RuleErrorKind};
use crate::rule::Rule;
use crate::store::table::{KeyHash, KeyHasher};
use crate::store::{BuildError, Clients};

/// Rules that are decided together: a request that one of them denies is charged to no leaky one.
///
/// ```
/// use earrrl::{Rule, RuleSet};
///
/// let address: Rule = "gcra 10/s burst=100".parse()?;
/// let user: Rule = "fixed-window 2/1d".parse()?;
/// let rules = RuleSet::builder().rule(address, 10_000).rule(user, 10_000).build()?;
///
/// let ask = || rules.request().client("192.0.2.7").client("alice").check();
/// assert!(ask()?.allowed);
/// assert!(ask()?.allowed);
/// let denied = ask()?;
/// assert_eq!((denied.allowed, denied.rule), (false, 1));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct RuleSet<C = SystemClock> {
    rules: Vec<(Rule, Clients)>,
    hasher: KeyHasher,
    clock: Time<C>,
    /// How far the instant that a request is stored at may lag behind the present one.
    lag: Duration,
}

/// What a rule set is to be; see [`RuleSet::builder`].
#[derive(Clone, Debug, Default)]
pub struct RuleSetBuilder {
    rules: Vec<(Rule, usize)>,
}

impl RuleSet {
    /// Begins a set of rules.
    pub fn builder() -> RuleSetBuilder {
        RuleSetBuilder::default()
    }
}

impl RuleSetBuilder {
    /// Adds a rule, with room for `capacity` live clients.
    #[must_use]
    pub fn rule(mut self, rule: Rule, capacity: usize) -> Self {
        self.rules.push((rule, capacity));
        self
    }

    /// The set, on the system's clock.
    ///
    /// # Errors
    /// When there are none or over 64 rules, or one can't be as [`Builder::build`] says.
    ///
    /// [`Builder::build`]: crate::Builder::build
    pub fn build(self) -> Result<RuleSet, BuildError> {
        self.build_with_clock(SystemClock::new())
    }

    /// The set, on another clock.
    ///
    /// # Errors
    /// As [`build`](Self::build).
    pub fn build_with_clock<C: Clock>(self, clock: C) -> Result<RuleSet<C>, BuildError> {
        if self.rules.is_empty() || self.rules.len() > MAX_CHARGES {
            let count = self.rules.len();
            let problem = std::format!("{count} rules; expected 1 to {MAX_CHARGES}");
            return Err(RuleError::of_kind(RuleErrorKind::Clients, problem).into());
        }
        let keep = |(rule, capacity): (Rule, usize)| {
            let clients = Clients::new(rule.limit(), capacity, rule.max_bytes())?;
            Ok((rule, clients))
        };
        let lag = self.rules.iter().map(|(rule, _)| rule.limit().lag()).min().unwrap_or_default();
        Ok(RuleSet {
            lag,
            rules: self.rules.into_iter().map(keep).collect::<Result<_, BuildError>>()?,
            hasher: KeyHasher::random()?,
            clock: Time::new(clock),
        })
    }
}

/// A request being put together: one client for each rule, in their order.
#[must_use]
pub struct Request<'a, C> {
    set: &'a RuleSet<C>,
    /// None where a rule is skipped. Up to four take no allocation; more would be moved about with each client.
    charges: SmallVec<[Option<(KeyHash, Cost)>; 4]>,
    now: Option<Nanos>,
}

impl<C: Clock> RuleSet<C> {
    /// A request. It is charged to the rules in the order in which they were added.
    pub fn request(&self) -> Request<'_, C> {
        Request { set: self, charges: SmallVec::with_capacity(self.rules.len()), now: None }
    }

    /// The rules, in order.
    pub fn rules(&self) -> impl ExactSizeIterator<Item = &Rule> {
        self.rules.iter().map(|(rule, _)| rule)
    }

    /// Takes back what was charged to the rule at a place, at that instant or now.
    pub fn refund<K: Hash + ?Sized>(
        &self,
        place: usize,
        key: &K,
        cost: Cost,
        charged_at: Option<Nanos>,
    ) {
        if let Some((rule, clients)) = self.rules.get(place) {
            let part = Part { rule, clients, key: self.hasher.hash(key), cost };
            part.refund(self.clock.now(), charged_at);
        }
    }

    /// Forgets a client of the rule at a place.
    pub fn reset<K: Hash + ?Sized>(&self, place: usize, key: &K) {
        if let Some((rule, clients)) = self.rules.get(place) {
            let part = Part { rule, clients, key: self.hasher.hash(key), cost: Cost::ZERO };
            part.reset(self.clock.now());
        }
    }
}

impl<C: Clock> Request<'_, C> {
    /// The client under the next rule, at a cost of 1.
    #[inline]
    pub fn client<K: Hash + ?Sized>(self, key: &K) -> Self {
        self.client_cost(key, Cost::ONE)
    }

    /// The client under the next rule, and what the request costs it.
    #[inline]
    pub fn client_cost<K: Hash + ?Sized>(mut self, key: &K, cost: Cost) -> Self {
        self.charges.push(Some((self.set.hasher.hash(key), cost)));
        self
    }

    /// The request is not charged to the next rule, which says nothing of it: for requests without
    /// such a client, for example without a logged-in user.
    ///
    /// ```
    /// # use earrrl::{Rule, RuleSet};
    /// # let (address, user): (Rule, Rule) = ("gcra 10/s burst=9".parse()?, "gcra 1/s burst=1".parse()?);
    /// let rules = RuleSet::builder().rule(address, 10_000).rule(user, 10_000).build()?;
    /// let anonymous = rules.request().client("192.0.2.7").skip().check()?;
    /// assert_eq!((anonymous.rule, anonymous.remaining), (0, 8));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn skip(mut self) -> Self {
        self.charges.push(None);
        self
    }

    /// At this instant, instead of the clock's; one before the latest that was used is taken as that.
    pub fn at(self, now: Nanos) -> Self {
        Self { now: Some(now), ..self }
    }

    /// Decides, and stores as each rule's policy says: all or nothing.
    ///
    /// # Errors
    /// When there is not one client (or [`skip`](Self::skip)) for each rule, or all are skipped, or one
    /// costs more than its rule's `max_cost`.
    pub fn check(self) -> Result<Decision, RuleError> {
        self.decide(Mode::Check)
    }

    /// Answers as [`check`](Self::check) does, and stores under every rule whatever the verdict.
    ///
    /// # Errors
    /// As [`check`](Self::check).
    pub fn charge(self) -> Result<Decision, RuleError> {
        self.decide(Mode::Charge)
    }

    /// What [`check`](Self::check) would answer; nothing is stored.
    ///
    /// # Errors
    /// As [`check`](Self::check).
    pub fn peek(self) -> Result<Decision, RuleError> {
        self.decide(Mode::Peek)
    }

    fn decide(self, mode: Mode) -> Result<Decision, RuleError> {
        let (mut places, mut parts) = (Each::new(), Each::new());
        self.put(&mut places, &mut parts)?;
        let clock = &self.set.clock;
        let lately = clock.lately_unless(self.now, self.set.lag);
        let now = || clock.at_or_now(self.now);
        let mut decision = atomic::decide(&mut parts, mode, lately, &now);
        let place = |nth: usize| places.get(nth).copied().unwrap_or(nth);
        decision.over = decision.over.iter().map(place).collect();
        decision.rule = place(decision.rule);
        Ok(decision)
    }

    /// Puts down what is charged, and the places of the rules.
    fn put<'a>(
        &'a self,
        places: &mut Each<usize>,
        parts: &mut Each<Part<'a>>,
    ) -> Result<(), RuleError> {
        let (charges, rules) = (self.charges.len(), self.set.rules.len());
        if charges != rules {
            let problem = std::format!("{charges} clients for {rules} rules");
            return Err(RuleError::of_kind(RuleErrorKind::Clients, problem));
        }
        if self.charges.iter().all(Option::is_none) {
            let problem = "every rule is skipped".to_string();
            return Err(RuleError::of_kind(RuleErrorKind::Clients, problem));
        }
        for (place, ((rule, clients), charge)) in
            self.set.rules.iter().zip(&self.charges).enumerate()
        {
            if let Some((key, cost)) = *charge {
                places.push(place);
                parts.push(Part { rule, clients, key, cost: rule.accept(cost)? });
            }
        }
        Ok(())
    }
}

impl<C> fmt::Debug for RuleSet<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.rules.iter().map(|(rule, _)| rule.to_string())).finish()
    }
}

impl<C> fmt::Debug for Request<'_, C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Request").field("charges", &self.charges.len()).finish_non_exhaustive()
    }
}
