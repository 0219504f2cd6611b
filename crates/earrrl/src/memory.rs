//! The engine in this process's memory.

use core::future::{Ready, ready};
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::vec::Vec;
use std::{format, string::String};

use arc_swap::ArcSwap;

use crate::algorithm::{Limit, Mode, State};
use crate::clock::{Clock, Nanos, SystemClock, Time};
use crate::cost::Cost;
use crate::decision::Decision;
use crate::engine::{
    Charge, Engine, EngineError, RuleId, check_name, merge_charges, restore_places,
};
use crate::rule::Rule;
use crate::rules::atomic::{self, Part};
use crate::store::table::KeyHasher;
use crate::store::{BuildError, Clients};

/// Keeps the clients of any number of rules, each rule for a fixed number of clients.
///
/// Decisions are made at once, by the calling thread: the futures it returns are ready. They take
/// no lock where states are one time, and wait only while a rule's states are converted because
/// its half-life, refill, capacity or window was changed.
///
/// ```
/// use earrrl::{Charge, Cost, Engine, MemoryEngine, Mode, Rule};
///
/// let engine = MemoryEngine::new(10_000)?;
/// let login: Rule = "recent-average 0.2/s half-life=5m".parse()?;
/// let rule = engine.prepare("login", &login)?;
/// let charge = Charge { rule, key: b"alice", cost: Cost::ONE };
/// let decision = engine.decide(&[charge], Mode::Check, None).into_inner()?;
/// assert!(decision.allowed);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct MemoryEngine<C = SystemClock> {
    rules: ArcSwap<Rules>,
    /// The places of rules by their names; held by whoever changes the rules.
    places: Mutex<HashMap<String, usize>>,
    hasher: KeyHasher,
    clock: Time<C>,
    capacity: usize,
}

#[derive(Clone)]
struct Prepared {
    name: String,
    rule: Rule,
    clients: Arc<Clients>,
    capacity: usize,
    /// Whether its states are being converted.
    changing: bool,
}

type Snapshot = arc_swap::Guard<Arc<Rules>>;

/// Rules a block.
const BLOCK: usize = 64;

/// The rules by their places, in blocks: to publish one more costs a block, not all of them.
#[derive(Clone, Default)]
struct Rules(Vec<Arc<Vec<Prepared>>>);

impl Rules {
    #[inline]
    fn get(&self, place: usize) -> Option<&Prepared> {
        self.0.get(place / BLOCK)?.get(place % BLOCK)
    }

    fn iter(&self) -> impl Iterator<Item = &Prepared> {
        self.0.iter().flat_map(|block| block.iter())
    }

    /// Puts a rule at a place that is there already, or the next one.
    fn set(&mut self, place: usize, prepared: Prepared) {
        if self.0.len() <= place / BLOCK {
            self.0.push(Arc::default());
        }
        if let Some(block) = self.0.get_mut(place / BLOCK).map(Arc::make_mut) {
            match block.get_mut(place % BLOCK) {
                Some(known) => *known = prepared,
                None => block.push(prepared),
            }
        }
    }
}

impl MemoryEngine {
    /// An engine on the system's clock, without rules, with room for `capacity` clients of each.
    ///
    /// # Errors
    /// When the operating system has no randomness for the hash.
    pub fn new(capacity: usize) -> Result<Self, BuildError> {
        Self::with_clock(capacity, SystemClock::new())
    }
}

impl<C: Clock> MemoryEngine<C> {
    /// As [`MemoryEngine::new`], on another clock.
    ///
    /// # Errors
    /// When the operating system has no randomness for the hash.
    pub fn with_clock(capacity: usize, clock: C) -> Result<Self, BuildError> {
        Ok(Self {
            rules: ArcSwap::default(),
            places: Mutex::default(),
            hasher: KeyHasher::random()?,
            clock: Time::new(clock),
            capacity,
        })
    }

    /// As [`Engine::prepare`], with room for `capacity` clients of this rule. Of a rule that is
    /// known already, the capacity stays.
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

    /// As [`MemoryEngine::prepare_with`], for several rules at once: all of them, or on an error none.
    ///
    /// # Errors
    /// As there.
    pub fn prepare_all(&self, wanted: &[(&str, &Rule, usize)]) -> Result<Vec<RuleId>, EngineError> {
        let mut places = self.lock_places();
        let rules = self.rules.load_full();
        // What can fail comes before anything that a request sees.
        let mut next = Rules::clone(&rules);
        let mut added = HashMap::new();
        let mut ids = Vec::with_capacity(wanted.len());
        for (name, rule, capacity) in wanted {
            let known = places.get(*name).or_else(|| added.get(*name)).copied();
            let place = known.unwrap_or(places.len() + added.len());
            let prepared = match next.get(place) {
                Some(known) => known.changed(rule)?,
                None => Prepared::new(name, rule, *capacity)?,
            };
            next.set(place, prepared);
            if known.is_none() {
                added.insert(String::from(*name), place);
            }
            ids.push(RuleId(place as u32));
        }
        self.convert(&rules, &next);
        self.rules.store(Arc::new(next));
        places.extend(added);
        Ok(ids)
    }

    /// Every rule with its name, in the order of their ids.
    pub fn rules(&self) -> Vec<(String, Rule)> {
        let rules = self.rules.load();
        rules.iter().map(|known| (known.name.clone(), known.rule.clone())).collect()
    }

    /// How many clients of a rule are stored, and how many that were not idle had to go.
    pub fn usage(&self, rule: RuleId) -> Option<(usize, u64)> {
        let rules = self.rules.load();
        let clients = &rules.get(rule.0 as usize)?.clients;
        Some((clients.len(), clients.displaced()))
    }

    fn lock_places(&self) -> MutexGuard<'_, HashMap<String, usize>> {
        self.places.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Converts the states of rules with new parameters. Requests that begin meanwhile wait for it.
    fn convert(&self, rules: &Arc<Rules>, next: &Rules) {
        let mut changing = Rules::clone(rules);
        let mut changes = Vec::new();
        for (place, (known, next)) in rules.iter().zip(next.iter()).enumerate() {
            if known.needs_conversion(next) {
                changing.set(place, Prepared { changing: true, ..known.clone() });
                changes.push((known.rule.clone(), next.clone()));
            }
        }
        if changes.is_empty() {
            return;
        }
        self.rules.store(Arc::new(changing));
        while Arc::strong_count(rules) > 1 {
            std::thread::yield_now();
        }
        let now = self.clock.now();
        for (known, next) in changes {
            next.clients.convert(known.limit(), next.rule.limit(), now);
        }
    }

    /// Begins to fetch a client's state, for who will decide a little later: it takes longer than the
    /// decision.
    pub fn prefetch(&self, rule: RuleId, key: &[u8]) {
        if let Some(known) = self.rules.load().get(rule.0 as usize) {
            known.clients.prefetch(self.hasher.hash_bytes(key));
        }
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
        self.change(&charge, |part| {
            if part.rule.limit() == limit {
                part.clients.update(part.key, limit, now, |_| (state.clone(), ()));
            }
        })
    }

    /// The rules, once none of those that are charged is being converted.
    fn rules_for(&self, charges: &[Charge<'_>]) -> Snapshot {
        loop {
            let rules = self.rules.load();
            let changing = |charge: &Charge<'_>| {
                rules.get(charge.rule.0 as usize).is_some_and(|known| known.changing)
            };
            if !charges.iter().any(changing) {
                return rules;
            }
            drop(rules);
            drop(self.lock_places());
        }
    }

    fn run(
        &self,
        charges: &[Charge<'_>],
        mode: Mode,
        now: Option<Nanos>,
    ) -> Result<Decision, EngineError> {
        let rules = self.rules_for(charges);
        let now = self.at(now);
        if let [charge] = charges {
            return Ok(atomic::decide(&[self.part(&rules, charge)?], mode, now));
        }
        let known = |id: RuleId| rules.get(id.0 as usize).map(|known| &known.rule);
        let merged = merge_charges(charges, known)?;
        let parts: Result<Vec<_>, _> =
            merged.iter().map(|(_, charge)| self.part(&rules, charge)).collect();
        let mut decision = atomic::decide(&parts?, mode, now);
        restore_places(&mut decision, &merged);
        Ok(decision)
    }

    fn part<'a>(&self, rules: &'a Rules, charge: &Charge<'_>) -> Result<Part<'a>, EngineError> {
        let known = rules.get(charge.rule.0 as usize);
        let Prepared { rule, clients, .. } = known.ok_or(EngineError::UnknownRule(charge.rule))?;
        let cost = rule.accept(charge.cost)?;
        Ok(Part { rule, clients, key: self.hasher.hash_bytes(charge.key), cost })
    }

    fn at(&self, now: Option<Nanos>) -> Nanos {
        now.map_or_else(|| self.clock.now(), |now| self.clock.at(now))
    }

    fn change(
        &self,
        charge: &Charge<'_>,
        change: impl FnOnce(Part<'_>),
    ) -> Result<(), EngineError> {
        let rules = self.rules_for(std::slice::from_ref(charge));
        change(self.part(&rules, charge)?);
        Ok(())
    }
}

impl Prepared {
    fn new(name: &str, rule: &Rule, capacity: usize) -> Result<Self, EngineError> {
        check_name(name)?;
        let clients = new_clients(rule, capacity)?;
        Ok(Self { name: name.into(), rule: rule.clone(), clients, capacity, changing: false })
    }

    /// Another rule of the same name.
    fn changed(&self, rule: &Rule) -> Result<Self, EngineError> {
        let mut changed = Self { rule: rule.clone(), ..self.clone() };
        if !self.clients.fits(rule.limit()) {
            changed.clients = new_clients(rule, self.capacity)?;
        }
        Ok(changed)
    }

    /// Whether the clients' states have another meaning under the rule that comes next.
    fn needs_conversion(&self, next: &Self) -> bool {
        Arc::ptr_eq(&self.clients, &next.clients)
            && !next.rule.limit().keeps_states_of(self.rule.limit())
    }
}

fn new_clients(rule: &Rule, capacity: usize) -> Result<Arc<Clients>, EngineError> {
    match Clients::new(rule.limit(), capacity, None) {
        Ok(clients) => Ok(Arc::new(clients)),
        Err(error) => Err(EngineError::Unavailable(format!("{error}"))),
    }
}

impl<C: Clock> Engine for MemoryEngine<C> {
    type Decide = Ready<Result<Decision, EngineError>>;
    type Done = Ready<Result<(), EngineError>>;

    fn prepare(&self, name: &str, rule: &Rule) -> Result<RuleId, EngineError> {
        self.prepare_with(name, rule, self.capacity)
    }

    fn decide(&self, charges: &[Charge<'_>], mode: Mode, now: Option<Nanos>) -> Self::Decide {
        ready(self.run(charges, mode, now))
    }

    fn refund(
        &self,
        charge: &Charge<'_>,
        charged_at: Option<Nanos>,
        now: Option<Nanos>,
    ) -> Self::Done {
        let now = self.at(now);
        ready(self.change(charge, |part| {
            let limit = part.rule.limit();
            part.clients.refund(part.key, limit, now, charged_at, part.cost);
        }))
    }

    fn reset(&self, rule: RuleId, key: &[u8]) -> Self::Done {
        let charge = Charge { rule, key, cost: Cost::ZERO };
        ready(self.change(&charge, |part| part.clients.reset(part.key)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::ManualClock;

    fn engine() -> MemoryEngine<ManualClock> {
        MemoryEngine::with_clock(1, ManualClock::new(Nanos::from_secs(1_800_000_000))).unwrap()
    }

    /// Blocks are shared between one state of the rules and the next.
    #[test]
    fn a_rule_more_copies_one_block() {
        let (engine, rule) = (engine(), "exponential 10/1m".parse().unwrap());
        for nth in 0..3 * BLOCK {
            let id = engine.prepare(&format!("rule-{nth}"), &rule).unwrap();
            assert_eq!(id, RuleId(nth as u32));
        }
        let before = engine.rules.load_full();
        assert_eq!(engine.prepare("rule-70", &rule).unwrap(), RuleId(70));
        let after = engine.rules.load_full();
        let same: Vec<bool> =
            before.0.iter().zip(&after.0).map(|(a, b)| Arc::ptr_eq(a, b)).collect();
        assert_eq!(same, [true, false, true]);
        assert_eq!(engine.rules().len(), 3 * BLOCK);
    }

    /// A changed limit alone touches no state, and makes nobody wait.
    #[test]
    fn a_changed_limit_converts_nothing() {
        for (old, new, keeps) in [
            ("recent-average 1/s half-life=10s", "recent-average 2/s half-life=10s leaky", true),
            ("recent-average 1/s half-life=10s", "recent-average 1/s half-life=20s", false),
            ("exponential 10/1m", "exponential 20/1m", true),
            ("exponential 10/1m", "exponential 10/2m", false),
            ("gcra 1/s burst=5", "gcra 1/s burst=6", false),
            ("fixed-window 10/1m", "fixed-window 20/1m", true),
            ("fixed-window 10/1m", "fixed-window 10/2m", false),
            ("sliding-log 10/1m", "sliding-log 20/1m strict", true),
            ("sliding-window 10/1m", "sliding-window 20/1m lenient", true),
            ("sliding-window 10/1m", "sliding-window 10/1m sub-windows=7", false),
            ("sliding-counter 10/1m", "sliding-counter 20/1m", true),
            ("sliding-counter 10/1m", "fixed-window 10/1m", false),
        ] {
            let (old, new): (Rule, Rule) = (old.parse().unwrap(), new.parse().unwrap());
            assert_eq!(new.limit().keeps_states_of(old.limit()), keeps, "{old} to {new}");
        }
    }
}
