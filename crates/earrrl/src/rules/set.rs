//! Several rules on one request, in process: all or nothing.

use core::fmt;
use core::hash::Hash;
use std::string::ToString;
use std::vec::Vec;

use super::atomic::{self, Part};
use crate::algorithm::Mode;
use crate::clock::{Clock, Nanos, SystemClock, Time};
use crate::cost::Cost;
use crate::decision::Decision;
use crate::engine::MAX_CHARGES;
use crate::error::RuleError;
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
    /// Adds a rule, with room for so many live clients.
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
            return Err(RuleError::new(problem).into());
        }
        let keep = |(rule, capacity): (Rule, usize)| {
            let clients = Clients::new(rule.limit(), capacity, None)?;
            Ok((rule, clients))
        };
        Ok(RuleSet {
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
    charges: Vec<(KeyHash, Cost)>,
    now: Option<Nanos>,
}

impl<C: Clock> RuleSet<C> {
    /// A request. It is charged to the rules in the order in which they were added.
    pub fn request(&self) -> Request<'_, C> {
        Request { set: self, charges: Vec::with_capacity(self.rules.len()), now: None }
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
    pub fn client<K: Hash + ?Sized>(self, key: &K) -> Self {
        self.client_cost(key, Cost::ONE)
    }

    /// The client under the next rule, and what the request costs it.
    pub fn client_cost<K: Hash + ?Sized>(mut self, key: &K, cost: Cost) -> Self {
        self.charges.push((self.set.hasher.hash(key), cost));
        self
    }

    /// At this instant, instead of the clock's; one before the latest that was used is taken as that.
    pub fn at(self, now: Nanos) -> Self {
        Self { now: Some(now), ..self }
    }

    /// Decides, and stores as each rule's policy says: all or nothing.
    ///
    /// # Errors
    /// When there is not one client for each rule, or one costs more than its rule's `max_cost`.
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
        let mut parts = self.parts()?;
        let clock = &self.set.clock;
        let now = self.now.map_or_else(|| clock.now(), |now| clock.at(now));
        Ok(atomic::decide(&mut parts, mode, now))
    }

    fn parts(&self) -> Result<Vec<Part<'_>>, RuleError> {
        let (charges, rules) = (self.charges.len(), self.set.rules.len());
        if charges != rules {
            return Err(RuleError::new(std::format!("{charges} clients for {rules} rules")));
        }
        let each = self.set.rules.iter().zip(&self.charges);
        each.map(|((rule, clients), (key, cost))| {
            Ok(Part { rule, clients, key: *key, cost: rule.accept(*cost)? })
        })
        .collect()
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
