//! The engine that keeps clients' states in this process's memory.

mod hold;
mod notice;
mod prepare;
mod prepared;
#[cfg(test)]
mod shared_tests;
#[cfg(test)]
mod tests;

use core::future::{Ready, ready};
use std::boxed::Box;
use std::collections::BTreeMap;
use std::format;
use std::path::Path;
use std::string::String;
use std::sync::{Arc, Mutex};
use std::vec::Vec;

use arc_swap::ArcSwap;

use crate::algorithm::{Limit, Mode, State};
use crate::clock::{Clock, Nanos, SystemClock, Time};
use crate::cost::Cost;
use crate::decision::{Brief, Decision};
use crate::engine::{
    Charge, Engine, EngineError, Reserving, RuleId, are_distinct, merge_charges, restore_places,
};
use crate::error::RuleError;
use crate::hold::{Actual, Committed, HoldTerms, Holding};
use crate::hold_id::HoldId;
use crate::holds::Holds;
use crate::lock::lock;
use crate::rule::Rule;
use crate::rules::atomic::{self, Each};
use crate::rules::part::Part;
use crate::store::table::{KeyHash, KeyHasher, Swept};
use crate::store::{BuildError, StateDirectory};
use crate::survey::Survey;
pub use notice::Notice;
pub use prepared::Preparation;
use prepared::{Prepared, Registry, Rules};

/// An engine that keeps the clients of any number of rules in memory, a fixed number for each rule.
///
/// The calling thread makes the decisions synchronously: the returned futures are ready. Under
/// recent-average, token-bucket, gcra, fixed-window and sliding-counter a decision takes no lock,
/// except for counts that fit no word (see [`Limit::fits_words`](crate::Limit::fits_words)).
///
/// ```
/// use earrrl::{Charge, Cost, Engine, MemoryEngine, Mode, Rule};
///
/// let engine = MemoryEngine::new(10_000)?;
/// let login: Rule = "recent-average 10/h half-life=1h strict".parse()?;
/// let rule = engine.prepare("login", &login)?;
/// let charge = Charge { rule, key: b"alice", cost: Cost::ONE };
/// let decision = engine.decide(&[charge], Mode::Check, None).into_inner()?;
/// assert!(decision.allowed);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct MemoryEngine<C = SystemClock> {
    rules: ArcSwap<Vec<Arc<Prepared>>>,
    /// The lock is held while rules are changed.
    names: Mutex<Registry>,
    /// The latest notice of each rule; see [`notices`](Self::notices).
    notices: Mutex<BTreeMap<String, Notice>>,
    hasher: KeyHasher,
    /// Boxed, since it is large and rarely used.
    holds: Box<Holds>,
    clock: Time<C>,
    capacity: usize,
    /// The directory of the rules' files, if clients are kept in files.
    directory: Option<Box<StateDirectory>>,
}

impl MemoryEngine {
    /// Returns an engine with the system's clock and without rules. Each rule gets memory for
    /// `capacity` clients unless its own capacity is given.
    ///
    /// ```
    /// # use earrrl::{Engine, MemoryEngine};
    /// let engine = MemoryEngine::new(10_000)?;
    /// let rule = engine.prepare("login", &"gcra 1/s burst=5".parse()?)?;
    /// assert_eq!(engine.usage(rule), Some((0, 0)));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// Returns an error if the operating system returns no random bytes for the hash.
    pub fn new(capacity: usize) -> Result<Self, BuildError> {
        Self::with_clock(capacity, SystemClock::new())
    }

    /// Returns an engine that keeps the clients of its rules in the files of a directory, as
    /// [`Builder::state_file`](crate::Builder::state_file) does. Any number of processes can share
    /// them, and rules that are prepared again after a restart find their clients. Each rule gets
    /// space for a million clients unless its own capacity is given; see
    /// [`with_state_for`](Self::with_state_for).
    ///
    /// ```
    /// use earrrl::{Charge, Cost, Engine, MemoryEngine, Mode};
    ///
    /// # let directory = std::env::temp_dir().join(format!("earrrl-docs-{}", std::process::id()));
    /// let check = || {
    ///     let engine = MemoryEngine::with_state(&directory)?;
    ///     let rule = engine.prepare("login", &"gcra 1/h burst=1".parse()?)?;
    ///     let charge = Charge { rule, key: b"alice", cost: Cost::ONE };
    ///     let decision = engine.decide(&[charge], Mode::Check, None).into_inner()?;
    ///     Ok::<_, Box<dyn std::error::Error>>(decision.allowed)
    /// };
    /// assert!(check()?);
    /// assert!(!check()?); // another engine, in this process or in another one
    /// # std::fs::remove_dir_all(directory)?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// Returns an error if the directory cannot be used.
    pub fn with_state(directory: impl AsRef<Path>) -> Result<Self, BuildError> {
        Self::with_state_for(1_000_000, directory)
    }

    /// Returns an engine like [`with_state`](Self::with_state), whose rules each get space for
    /// `capacity` clients.
    ///
    /// ```
    /// # use earrrl::MemoryEngine;
    /// # let directory = std::env::temp_dir().join(format!("earrrl-docs-for-{}", std::process::id()));
    /// let engine = MemoryEngine::with_state_for(10_000, &directory)?;
    /// # drop(engine);
    /// # std::fs::remove_dir_all(directory)?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// Returns an error if the directory cannot be used.
    pub fn with_state_for(
        capacity: usize,
        directory: impl AsRef<Path>,
    ) -> Result<Self, BuildError> {
        let directory = StateDirectory::open(directory.as_ref())?;
        let clock = SystemClock::with_anchor(directory.anchor());
        Self::in_directory(capacity, directory, clock)
    }
}

impl<C: Clock> MemoryEngine<C> {
    /// Returns an engine with the given clock and without rules. Each rule gets memory for
    /// `capacity` clients unless its own capacity is given.
    ///
    /// ```
    /// # use earrrl::{ManualClock, MemoryEngine, Nanos};
    /// # use std::sync::Arc;
    /// let clock = Arc::new(ManualClock::new(Nanos::from_secs(1_800_000_000)));
    /// let engine = MemoryEngine::with_clock(10_000, clock.clone())?;
    /// # assert!(engine.rules().is_empty());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// Returns an error if the operating system returns no random bytes for the hash.
    pub fn with_clock(capacity: usize, clock: C) -> Result<Self, BuildError> {
        Ok(Self::of(capacity, KeyHasher::random()?, clock, None))
    }

    /// Returns an engine with the given clock that keeps clients in a directory; see
    /// [`with_state`](MemoryEngine::with_state). The clock must agree with the directory's
    /// [`anchor`](StateDirectory::anchor).
    ///
    /// # Errors
    /// Returns an error if the operating system returns no random bytes.
    #[doc(hidden)]
    pub fn in_directory(
        capacity: usize,
        directory: StateDirectory,
        clock: C,
    ) -> Result<Self, BuildError> {
        let hasher = directory.hasher();
        let engine = Self::of(capacity, hasher, clock, Some(Box::new(directory)));
        #[cfg(target_os = "linux")]
        engine.take_file(engine.clock.now())?;
        Ok(engine)
    }

    fn of(
        capacity: usize,
        hasher: KeyHasher,
        clock: C,
        directory: Option<Box<StateDirectory>>,
    ) -> Self {
        Self {
            rules: ArcSwap::default(),
            names: Mutex::default(),
            notices: Mutex::default(),
            hasher,
            holds: Box::new(Holds::new(&hasher)),
            clock: Time::new(clock),
            capacity,
            directory,
        }
    }

    /// Returns the rules from whose files entries were removed when they were opened, with the
    /// numbers of these entries; see [`Limiter::swept`](crate::Limiter::swept).
    #[doc(hidden)]
    pub fn swept(&self) -> Vec<(String, Swept)> {
        let rules = self.rules.load();
        let swept = |known: &Arc<Prepared>| {
            let swept = known.clients.file()?.swept;
            (swept != Swept::default()).then(|| (String::from(&*known.name), swept))
        };
        rules.iter().filter_map(swept).collect()
    }

    /// Returns all rules with their names, in the order of their ids.
    ///
    /// ```
    /// # use earrrl::{Engine, MemoryEngine};
    /// # let engine = MemoryEngine::new(1000)?;
    /// engine.prepare("login", &"gcra 1/s burst=5".parse()?)?;
    /// assert_eq!(engine.rules()[0].0, "login");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn rules(&self) -> Vec<(String, Rule)> {
        let rules = self.rules.load();
        rules
            .iter()
            .map(|known| (String::from(&*known.name), known.rule.clone()))
            .collect()
    }

    /// Returns the number of a rule's stored clients, and the number of its clients that were
    /// evicted although they were not idle.
    #[doc(hidden)]
    pub fn usage(&self, rule: RuleId) -> Option<(usize, u64)> {
        let rules = self.rules.load();
        let known = rules.get(rule.0 as usize)?;
        Some((known.clients.len(), known.clients.displaced()))
    }

    /// Walks over the clients of a rule, and returns the `count` clients with the highest rates and
    /// the distribution of all rates.
    ///
    /// The result is exact for recent-average, token-bucket and gcra. Under the other algorithms
    /// clients are ordered by their usage of the limit. The walk takes about a second for ten
    /// million clients, so call this from a thread that serves no requests. Decisions go on
    /// meanwhile. Of rules that [share a store](crate::internal::Preparation::store), each reports the clients of all
    /// of them, with the figures of their own limits.
    ///
    /// ```
    /// # use earrrl::{Charge, Cost, Engine, MemoryEngine, Mode};
    /// # let engine = MemoryEngine::new(1000)?;
    /// # let rule = engine.prepare("login", &"recent-average 1/s half-life=1m".parse()?)?;
    /// for key in [&b"alice"[..], b"bob"] {
    ///     let charge = Charge { rule, key, cost: Cost::ONE };
    ///     engine.decide(&[charge], Mode::Check, None).into_inner()?;
    /// }
    /// assert_eq!(engine.survey(rule, 1)?.rates.clients(), 2);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// Returns an error if the rule is unknown.
    #[doc(hidden)]
    pub fn survey(&self, rule: RuleId, count: usize) -> Result<Survey, EngineError> {
        let known = self.rules.load().get(rule.0 as usize).cloned();
        let known = known.ok_or(EngineError::UnknownRule(rule))?;
        let now = self.clock.latest();
        Ok(Survey::of(&known.clients, &known.rule, now, count))
    }

    /// Returns the hash of a key, for [`prefetch`](Self::prefetch) and [`decide_hashed`](Self::decide_hashed).
    #[doc(hidden)]
    #[inline]
    pub fn hash(&self, key: &[u8]) -> KeyHash {
        self.hasher.hash_bytes(key)
    }

    /// Prefetches a client's state, which takes longer than the decision itself. Useful for callers
    /// that have other work to do before the decision.
    #[doc(hidden)]
    #[inline]
    pub fn prefetch(&self, rule: RuleId, key: KeyHash) {
        if let Some(known) = self.rules.load().get(rule.0 as usize) {
            let _ = known.clients.place(key, known.rule.limit().policy());
        }
    }

    /// Decides a single charge as [`Engine::decide`] does, given the hash of its key.
    ///
    /// ```
    /// use earrrl::{Cost, MemoryEngine, Mode};
    ///
    /// let engine = MemoryEngine::new(10_000)?;
    /// let rule = engine.prepare_with("login", &"gcra 1/s burst=5".parse()?, 1000)?;
    /// let alice = engine.hash(b"alice");
    /// engine.prefetch(rule, alice);
    /// // Meanwhile, the next requests are read.
    /// let decision = engine.decide_hashed(rule, alice, Cost::ONE, Mode::Check, None)?;
    /// assert_eq!(decision.remaining, 4);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// Returns an error if the rule is unknown or the cost is above its `max_cost`.
    #[doc(hidden)]
    #[inline]
    pub fn decide_hashed(
        &self,
        rule: RuleId,
        key: KeyHash,
        cost: Cost,
        mode: Mode,
        now: Option<Nanos>,
    ) -> Result<Decision, EngineError> {
        let rules = self.rules.load();
        let (known, part) = known_part(&rules, rule, key, cost)?;
        let now = || self.clock.at_or_now(now);
        let decision = part.decide_at_home(mode, now);
        decision.map_or_else(|| decide_anywhere(known, part, mode, &now), Ok)
    }

    /// Checks a request at the present instant as [`decide_hashed`](Self::decide_hashed) does, and
    /// returns only the part of the decision that a client needs.
    ///
    /// # Errors
    /// Returns an error if the rule is unknown or the cost is above its `max_cost`.
    #[doc(hidden)]
    #[inline]
    pub fn check_hashed(
        &self,
        rule: RuleId,
        key: KeyHash,
        cost: Cost,
    ) -> Result<Brief, EngineError> {
        let rules = self.rules.load();
        let (known, part) = known_part(&rules, rule, key, cost)?;
        let now = || self.clock.now();
        let brief = part.check_at_home(now);
        let anywhere = || {
            Ok(Brief::from(&decide_anywhere(
                known,
                part,
                Mode::Check,
                &now,
            )?))
        };
        brief.map_or_else(anywhere, Ok)
    }

    /// Replaces a client's state by one that another store kept under `limit`. Does nothing if the
    /// rule has another limit by now.
    ///
    /// # Errors
    /// Returns an error if the rule is unknown.
    #[doc(hidden)]
    pub fn adopt(
        &self,
        rule: RuleId,
        key: &[u8],
        limit: &Limit,
        state: Option<State>,
    ) -> Result<(), EngineError> {
        let charge = Charge {
            rule,
            key,
            cost: Cost::ZERO,
        };
        let now = self.clock.now();
        self.change(&charge, |part| part.adopt(limit, state, now))
    }

    fn run(
        &self,
        charges: &[Charge<'_>],
        mode: Mode,
        now: Option<Nanos>,
    ) -> Result<Decision, EngineError> {
        if let [Charge { rule, key, cost }] = *charges {
            return self.decide_hashed(rule, self.hash(key), cost, mode, now);
        }
        let rules = self.rules.load();
        let decide = |charges: &[Charge<'_>]| self.run_distinct(&rules, charges, mode, now);
        with_distinct(&rules, charges, decide, restore_places)
    }

    fn run_distinct(
        &self,
        rules: &Rules,
        charges: &[Charge<'_>],
        mode: Mode,
        now: Option<Nanos>,
    ) -> Result<Decision, EngineError> {
        let mut parts = Each::new();
        let mut last: Option<(&[u8], KeyHash)> = None;
        for charge in charges {
            // The charges of a request often share one key, which is then hashed once.
            let same = last.filter(|(key, _)| core::ptr::eq(*key, charge.key));
            let hash = same.map_or_else(|| self.hash(charge.key), |(_, hash)| hash);
            last = Some((charge.key, hash));
            let (known, part) = known_part(rules, charge.rule, hash, charge.cost)?;
            accept_mode(known, mode)?;
            parts.push(part);
        }
        Ok(atomic::decide(&parts, mode, &|| self.clock.at_or_now(now)))
    }

    #[inline]
    fn known_part<'a>(
        &self,
        rules: &'a Rules,
        charge: &Charge<'_>,
    ) -> Result<(&'a Prepared, Part<'a>), EngineError> {
        known_part(rules, charge.rule, self.hash(charge.key), charge.cost)
    }

    fn change(
        &self,
        charge: &Charge<'_>,
        change: impl FnOnce(Part<'_>),
    ) -> Result<(), EngineError> {
        let rules = self.rules.load();
        change(self.known_part(&rules, charge)?.1);
        Ok(())
    }
}

/// Calls `decide` with charges of which no two have the same rule and key. If some have, they are one in this call,
/// and `restore` gives the answer the places of the given charges.
fn with_distinct<T>(
    rules: &Rules,
    charges: &[Charge<'_>],
    decide: impl FnOnce(&[Charge<'_>]) -> Result<T, EngineError>,
    restore: impl FnOnce(&mut T, &[(usize, Charge<'_>)]),
) -> Result<T, EngineError> {
    if are_distinct(charges) {
        return decide(charges);
    }
    let merged = merge_charges(charges, |id| rule_of(rules, id))?;
    let distinct: Vec<_> = merged.iter().map(|(_, charge)| *charge).collect();
    let mut answer = decide(&distinct)?;
    restore(&mut answer, &merged);
    Ok(answer)
}

fn rule_of(rules: &Rules, id: RuleId) -> Option<&Rule> {
    Some(&rules.get(id.0 as usize)?.rule)
}

/// Returns the rule and the part of the request under it.
#[inline]
fn known_part(
    rules: &Rules,
    rule: RuleId,
    key: KeyHash,
    cost: Cost,
) -> Result<(&Prepared, Part<'_>), EngineError> {
    let known = rules
        .get(rule.0 as usize)
        .ok_or(EngineError::UnknownRule(rule))?;
    let cost = known.rule.accept(cost)?;
    Ok((
        known,
        Part {
            rule: &known.rule,
            clients: &known.clients,
            key,
            cost,
        },
    ))
}

/// Decides a request of a client that is not in its home lines, as a new one.
#[inline(never)]
fn decide_anywhere(
    known: &Prepared,
    part: Part<'_>,
    mode: Mode,
    now: &impl Fn() -> Nanos,
) -> Result<Decision, EngineError> {
    accept_mode(known, mode)?;
    Ok(atomic::decide(&[part], mode, now))
}

/// Returns an error that names the rule if its requests cannot be decided in this mode.
#[inline]
fn accept_mode(known: &Prepared, mode: Mode) -> Result<(), EngineError> {
    known
        .rule
        .accept_mode(mode)
        .map_err(|error| unaccepted(known, error))
}

#[cold]
fn unaccepted(known: &Prepared, error: RuleError) -> EngineError {
    error.of(&format!("rule {}", known.name)).into()
}

impl<C: Clock> Engine for MemoryEngine<C> {
    type Decide = Ready<Result<Decision, EngineError>>;
    type Done = Ready<Result<(), EngineError>>;

    fn prepare(&self, name: &str, rule: &Rule) -> Result<RuleId, EngineError> {
        let place = lock(&self.names).places.get(name).copied();
        // The guard of the rules must be dropped first, since a change waits for it.
        let known = place.and_then(|place| Some(self.rules.load().get(place)?.capacity));
        self.prepare_with(name, rule, known.unwrap_or(self.capacity))
    }

    fn prepare_in(&self, store: &str, name: &str, rule: &Rule) -> Result<RuleId, EngineError> {
        let wanted = Preparation {
            name,
            rule,
            capacity: self.capacity,
            store: Some(store),
        };
        self.prepare_all(&[wanted]).map(|ids| ids[0])
    }

    fn prepared(&self, name: &str) -> Option<Rule> {
        let place = lock(&self.names).places.get(name).copied()?;
        self.rules.load().get(place).map(|known| known.rule.clone())
    }

    fn decide(&self, charges: &[Charge<'_>], mode: Mode, now: Option<Nanos>) -> Self::Decide {
        ready(self.run(charges, mode, now))
    }

    fn admit_at_once(&self, charge: &Charge<'_>) -> bool {
        let rules = self.rules.load();
        self.known_part(&rules, charge).is_ok_and(|(known, part)| {
            let admitted = part.admit_at_home(|| self.clock.now());
            admitted.unwrap_or_else(|| {
                if known.rule.limit().is_concurrent() {
                    return false;
                }
                let now = self.clock.now();
                part.admit(now)
            })
        })
    }

    fn refund(
        &self,
        charge: &Charge<'_>,
        charged_at: Option<Nanos>,
        now: Option<Nanos>,
    ) -> Self::Done {
        let now = self.clock.at_or_now(now);
        let rules = self.rules.load();
        let known = rules.get(charge.rule.0 as usize);
        if let Some(Err(error)) = known.map(|known| accept_mode(known, Mode::Charge)) {
            return ready(Err(error));
        }
        ready(self.change(charge, |part| part.refund(now, charged_at)))
    }

    fn reset(&self, rule: RuleId, key: &[u8]) -> Self::Done {
        let charge = Charge {
            rule,
            key,
            cost: Cost::ZERO,
        };
        let now = self.clock.latest();
        ready(self.change(&charge, |part| part.reset(now)))
    }

    fn place_hold(
        &self,
        charges: &[Charge<'_>],
        terms: HoldTerms,
        now: Option<Nanos>,
    ) -> Reserving<Holding> {
        Box::pin(ready(self.hold(charges, terms, now)))
    }

    fn commit_hold(
        &self,
        id: HoldId,
        actual: Actual<'_>,
        now: Option<Nanos>,
    ) -> Reserving<Committed> {
        Box::pin(ready(self.commit(id, actual, now)))
    }
}
