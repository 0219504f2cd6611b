//! The engine in this process's memory.

use core::future::{Ready, ready};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::vec::Vec;
use std::{format, string::String};

use arc_swap::ArcSwap;

use crate::algorithm::{Limit, Mode, State};
use crate::atomic::{self, Part};
use crate::clock::{Clock, Nanos, SystemClock, Time};
use crate::cost::Cost;
use crate::decision::Decision;
use crate::engine::{
    Charge, Engine, EngineError, RuleId, check_name, merge_charges, restore_places,
};
use crate::rule::Rule;
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
    rules: ArcSwap<Vec<Prepared>>,
    /// Held by whoever changes the rules.
    changes: Mutex<()>,
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

type Snapshot = arc_swap::Guard<Arc<Vec<Prepared>>>;

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
            changes: Mutex::new(()),
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
        check_name(name)?;
        let _changing = self.lock_changes();
        let rules = self.rules.load_full();
        let place = rules.iter().position(|known| known.name == name).unwrap_or(rules.len());
        let prepared = match rules.get(place) {
            Some(known) => self.convert(&rules, place, known, rule)?,
            None => Prepared {
                name: name.into(),
                rule: rule.clone(),
                clients: new_clients(rule, capacity)?,
                capacity,
                changing: false,
            },
        };
        self.publish(&rules, place, prepared);
        Ok(RuleId(place as u32))
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

    fn lock_changes(&self) -> MutexGuard<'_, ()> {
        self.changes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn publish(&self, rules: &[Prepared], place: usize, prepared: Prepared) {
        let mut rules = rules.to_vec();
        match rules.get_mut(place) {
            Some(known) => *known = prepared,
            None => rules.push(prepared),
        }
        self.rules.store(Arc::new(rules));
    }

    /// A known rule with new parameters, its clients' states converted. Requests that begin
    /// meanwhile wait for it.
    fn convert(
        &self,
        rules: &Arc<Vec<Prepared>>,
        place: usize,
        known: &Prepared,
        rule: &Rule,
    ) -> Result<Prepared, EngineError> {
        let mut changed = Prepared { rule: rule.clone(), ..known.clone() };
        if !known.clients.fits(rule.limit()) {
            changed.clients = new_clients(rule, known.capacity)?;
        } else if known.rule.limit() != rule.limit() {
            self.publish(rules, place, Prepared { changing: true, ..known.clone() });
            while Arc::strong_count(rules) > 1 {
                std::thread::yield_now();
            }
            changed.clients.convert(known.rule.limit(), rule.limit(), self.clock.now());
        }
        Ok(changed)
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
            drop(self.lock_changes());
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

    fn part<'a>(
        &self,
        rules: &'a [Prepared],
        charge: &Charge<'_>,
    ) -> Result<Part<'a>, EngineError> {
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
