//! The engine in this process's memory.

mod prepared;
#[cfg(test)]
mod tests;

use core::future::{Ready, ready};
use core::time::Duration;
use std::collections::HashMap;
use std::string::String;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::vec::Vec;

use arc_swap::ArcSwap;

use crate::algorithm::{Limit, Mode, State};
use crate::clock::{Clock, Nanos, SystemClock, Time};
use crate::cost::Cost;
use crate::decision::{Brief, Decision};
use crate::engine::{
    Charge, Engine, EngineError, RuleId, are_distinct, merge_charges, restore_places,
};
use crate::rule::Rule;
use crate::rules::atomic::{self, Each};
use crate::rules::part::Part;
use crate::store::table::{KeyHash, KeyHasher};
use crate::store::{BuildError, Clients};
use prepared::{Prepared, Rules};

/// Keeps the clients of any number of rules, each rule for a fixed number of clients.
///
/// Decisions are made at once, by the calling thread: the futures it returns are ready. They take
/// no lock where states are one time, but once for each client after its rule's half-life, refill or
/// capacity was changed.
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
    rules: ArcSwap<Rules>,
    /// The places of rules by their names; locked by a thread that changes the rules.
    places: Mutex<HashMap<Arc<str>, usize>>,
    /// Locked by a thread that sweeps.
    sweeping: Mutex<()>,
    /// Stores without clients that a request may still know.
    given_up: Mutex<Vec<Arc<Clients>>>,
    hasher: KeyHasher,
    clock: Time<C>,
    capacity: usize,
}

/// Milliseconds that a change waits for requests that know a store which was given up.
const PATIENCE: usize = 2000;

impl MemoryEngine {
    /// Returns an engine on the system's clock, without rules, with room for `capacity` clients of each.
    ///
    /// # Errors
    /// When the operating system has no randomness for the hash.
    pub fn new(capacity: usize) -> Result<Self, BuildError> {
        Self::with_clock(capacity, SystemClock::new())
    }
}

impl<C: Clock> MemoryEngine<C> {
    /// Returns an engine on another clock, without rules, with room for `capacity` clients of each.
    ///
    /// # Errors
    /// When the operating system has no randomness for the hash.
    pub fn with_clock(capacity: usize, clock: C) -> Result<Self, BuildError> {
        Ok(Self {
            rules: ArcSwap::default(),
            places: Mutex::default(),
            sweeping: Mutex::default(),
            given_up: Mutex::default(),
            hasher: KeyHasher::random()?,
            clock: Time::new(clock),
            capacity,
        })
    }

    /// Prepares a rule as [`Engine::prepare`] does, with room for `capacity` clients of this rule.
    ///
    /// # Errors
    /// When the name or the rule can't be, or there is not enough memory.
    pub fn prepare_with(
        &self,
        name: &str,
        rule: &Rule,
        capacity: usize,
    ) -> Result<RuleId, EngineError> {
        self.prepare_all(&[(name, rule, capacity)]).map(|ids| ids[0])
    }

    /// Prepares several rules at once, each with its capacity: all of them, or on an error none.
    ///
    /// Requests go on meanwhile. A changed limit alone touches no client. Where a half-life, a refill, a
    /// window or the capacity changes, each client goes over to a new store when it is next met, or in
    /// a sweep before this returns, which takes about a second for five million clients: call it where
    /// nobody waits. Both stores take memory until then.
    ///
    /// # Errors
    /// Returns an error if a name or a rule is invalid, or there is not enough memory.
    pub fn prepare_all(&self, wanted: &[(&str, &Rule, usize)]) -> Result<Vec<RuleId>, EngineError> {
        let wanted = wanted.iter().map(|(name, rule, capacity)| (*name, *rule, Some(*capacity)));
        self.publish(wanted)
    }

    fn publish<'w>(
        &self,
        wanted: impl Iterator<Item = (&'w str, &'w Rule, Option<usize>)>,
    ) -> Result<Vec<RuleId>, EngineError> {
        let mut places = lock(&self.places);
        // What can fail comes before anything that a request sees.
        let mut next = Rules::clone(&self.rules.load_full());
        let (mut added, mut ids, mut changes) = (HashMap::new(), Vec::new(), Vec::new());
        for (name, rule, capacity) in wanted {
            let known = places.get(name).or_else(|| added.get(name)).copied();
            let place = known.unwrap_or(places.len() + added.len());
            let prepared = match next.get(place) {
                Some(known) => {
                    let changed = known.changed(rule, capacity.unwrap_or(known.capacity))?;
                    if !known.has_the_store_of(&changed) {
                        changes.push((known.clone(), changed.clone()));
                    }
                    changed
                }
                None => Prepared::new(name, rule, capacity.unwrap_or(self.capacity))?,
            };
            if known.is_none() {
                added.insert(Arc::clone(&prepared.name), place);
            }
            next.set(place, prepared);
            ids.push(RuleId(place as u32));
        }
        changes.iter().for_each(|(before, after)| before.give_way_to(after));
        self.rules.store(Arc::new(next));
        places.extend(added);
        drop(places);
        if !changes.is_empty() {
            let forgotten = changes.into_iter().filter(|(_, after)| after.older.is_none());
            lock(&self.given_up).extend(forgotten.map(|(before, _)| before.clients));
            self.tidy();
        }
        Ok(ids)
    }

    /// Brings over the clients that a change left behind; see [`prepare_all`](Self::prepare_all). True
    /// when all is done. Only a table that has changed its size keeps some: those that are not as good as
    /// new stay until they are met, since their keys are not known. The next change looks after them
    /// again, and so does whoever calls this now and then: the memory of such a table is given back after
    /// the last of them.
    pub fn tidy(&self) -> bool {
        let _sweeping = lock(&self.sweeping);
        let mut empty = Vec::new();
        for place in 0..self.rules.load().len() {
            // No guard is held: a reload meanwhile would have to keep what the guard protects.
            let known = self.rules.load().get(place).filter(|known| known.older.is_some()).cloned();
            let Some(known) = known else { continue };
            if let Some(swept) = known.sweep(self.clock.now(), &mut empty) {
                self.replace(place, &known, swept);
            }
        }
        lock(&self.given_up).append(&mut empty);
        self.give_back();
        self.rules.load().iter().all(|known| known.older.is_none())
    }

    /// Gives back the memory of stores that were given up, once no request knows them any more: microseconds
    /// later, but for a thread that was stopped in the middle of a request. A store is large, and giving
    /// it back takes time, which is not to be that of the last request to use it.
    fn give_back(&self) {
        let mut left = std::mem::take(&mut *lock(&self.given_up));
        for _ in 0..PATIENCE {
            left.retain(|clients| Arc::strong_count(clients) > 1);
            if left.is_empty() {
                return;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        lock(&self.given_up).append(&mut left);
    }

    /// Publishes a rule whose clients were swept, unless it was changed meanwhile.
    fn replace(&self, place: usize, known: &Prepared, swept: Prepared) {
        let _places = lock(&self.places);
        let mut next = Rules::clone(&self.rules.load_full());
        if let Some(now) = next.get(place).filter(|now| now.has_the_store_of(known)) {
            let swept = Prepared { older: swept.older, ..now.clone() };
            next.set(place, swept);
            self.rules.store(Arc::new(next));
        }
    }

    /// Every rule with its name, in the order of their ids.
    pub fn rules(&self) -> Vec<(String, Rule)> {
        let rules = self.rules.load();
        rules.iter().map(|known| (String::from(&*known.name), known.rule.clone())).collect()
    }

    /// Returns the number of clients of a rule that are stored, and the number of those evicted although they
    /// were not idle.
    pub fn usage(&self, rule: RuleId) -> Option<(usize, u64)> {
        let rules = self.rules.load();
        let known = rules.get(rule.0 as usize)?;
        Some((known.len(), known.displaced()))
    }

    /// Returns the hash of a key, for [`prefetch`](Self::prefetch) and [`decide_hashed`](Self::decide_hashed).
    #[inline]
    pub fn hash(&self, key: &[u8]) -> KeyHash {
        self.hasher.hash_bytes(key)
    }

    /// Begins to fetch a client's state, which takes longer than the decision: for callers that have
    /// something else to do first.
    #[inline]
    pub fn prefetch(&self, rule: RuleId, key: KeyHash) {
        if let Some(known) = self.rules.load().get(rule.0 as usize) {
            known.clients.prefetch(key, known.rule.limit().policy());
        }
    }

    /// Decides as [`Engine::decide`] does on one charge, by the hash of its key.
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
    /// When the rule is unknown, or the cost above its `max_cost`.
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
        Ok(decision.unwrap_or_else(|| decide_anywhere(known, part, mode, &now)))
    }

    /// Decides as [`decide_hashed`](Self::decide_hashed) does in [`Mode::Check`] at the present instant, and
    /// returns only what a client needs.
    ///
    /// # Errors
    /// Returns an error if the rule is unknown, or the cost above its `max_cost`.
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
        Ok(brief.unwrap_or_else(|| Brief::from(&decide_anywhere(known, part, Mode::Check, &now))))
    }

    /// Replaces what is known of a client by a state that was kept elsewhere, under `limit`; does
    /// nothing where the rule's limit is another by now.
    ///
    /// # Errors
    /// When the rule is unknown.
    pub fn adopt(
        &self,
        rule: RuleId,
        key: &[u8],
        limit: &Limit,
        state: Option<State>,
    ) -> Result<(), EngineError> {
        let charge = Charge { rule, key, cost: Cost::ZERO };
        let now = self.clock.now();
        self.change(&charge, now, |part| part.adopt(limit, state, now))
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
        if are_distinct(charges) {
            return self.run_distinct(&rules, charges, mode, now);
        }
        let known = |id: RuleId| rules.get(id.0 as usize).map(|known| &known.rule);
        let merged = merge_charges(charges, known)?;
        let distinct: Vec<_> = merged.iter().map(|(_, charge)| *charge).collect();
        let mut decision = self.run_distinct(&rules, &distinct, mode, now)?;
        restore_places(&mut decision, &merged);
        Ok(decision)
    }

    fn run_distinct(
        &self,
        rules: &Rules,
        charges: &[Charge<'_>],
        mode: Mode,
        now: Option<Nanos>,
    ) -> Result<Decision, EngineError> {
        let mut parts = Each::new();
        for charge in charges {
            let (known, part) = self.known_part(rules, charge)?;
            if known.older.is_some() {
                known.settle(part.key, self.clock.at_or_now(now));
            }
            parts.push(part);
        }
        Ok(atomic::decide(&mut parts, mode, &|| self.clock.at_or_now(now)))
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
        now: Nanos,
        change: impl FnOnce(Part<'_>),
    ) -> Result<(), EngineError> {
        let rules = self.rules.load();
        let (known, part) = self.known_part(&rules, charge)?;
        known.settle(part.key, now);
        change(part);
        Ok(())
    }
}

/// Returns the rule and the part of a request under it. The client may still have to be moved; see [`Prepared::settle`].
#[inline]
fn known_part(
    rules: &Rules,
    rule: RuleId,
    key: KeyHash,
    cost: Cost,
) -> Result<(&Prepared, Part<'_>), EngineError> {
    let known = rules.get(rule.0 as usize).ok_or(EngineError::UnknownRule(rule))?;
    let cost = known.rule.accept(cost)?;
    Ok((known, Part { rule: &known.rule, clients: &known.clients, key, cost }))
}

/// Decides on a client that is not at home: one that is new, or has yet to be moved from an older store.
#[inline(never)]
fn decide_anywhere(
    known: &Prepared,
    part: Part<'_>,
    mode: Mode,
    now: &impl Fn() -> Nanos,
) -> Decision {
    known.settle(part.key, now());
    atomic::decide(&mut [part], mode, now)
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl<C: Clock> Engine for MemoryEngine<C> {
    type Decide = Ready<Result<Decision, EngineError>>;
    type Done = Ready<Result<(), EngineError>>;

    fn prepare(&self, name: &str, rule: &Rule) -> Result<RuleId, EngineError> {
        self.publish([(name, rule, None)].into_iter()).map(|ids| ids[0])
    }

    fn prepared(&self, name: &str) -> Option<Rule> {
        let place = lock(&self.places).get(name).copied()?;
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
                let now = self.clock.now();
                known.settle(part.key, now);
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
        ready(self.change(charge, now, |part| part.refund(now, charged_at)))
    }

    fn reset(&self, rule: RuleId, key: &[u8]) -> Self::Done {
        let charge = Charge { rule, key, cost: Cost::ZERO };
        let now = self.clock.now();
        ready(self.change(&charge, now, |part| part.reset(now)))
    }
}
