//! This node's own table, for while Redis is gone: bounded, and an [`Engine`] like any other.

use std::collections::HashMap;
use std::future::{Ready, ready};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use earrrl::rules::decide_all;
use earrrl::{
    Charge, Clock, Cost, Decision, Engine, EngineError, Nanos, Rule, RuleId, State, merge_charges,
    restore_places,
};

/// One map under one lock: it is at work during outages only.
pub(crate) struct LocalEngine {
    clock: Arc<dyn Clock>,
    capacity: usize,
    inner: Mutex<Inner>,
}

#[derive(Default)]
struct Inner {
    rules: Vec<(String, Rule)>,
    states: HashMap<(RuleId, Vec<u8>), State>,
}

impl LocalEngine {
    pub(crate) fn new(clock: Arc<dyn Clock>, capacity: usize) -> Self {
        Self { clock, capacity, inner: Mutex::default() }
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn run(
        &self,
        charges: &[Charge<'_>],
        now: Option<Nanos>,
        peek: bool,
    ) -> Result<Decision, EngineError> {
        let now = now.unwrap_or_else(|| self.clock.now());
        let mut inner = self.lock();
        let merged = merge_charges(charges, |id| inner.rule(id))?;
        let keys: Vec<_> = merged.iter().map(|(_, c)| (c.rule, c.key.to_vec())).collect();
        let mut states: Vec<_> = keys.iter().map(|key| inner.states.remove(key)).collect();
        let rules: Vec<(&Rule, Cost)> =
            merged.iter().filter_map(|(_, c)| Some((inner.rule(c.rule)?, c.cost))).collect();
        let mut decision = decide_all(&rules, &mut states, now, peek);
        let kept = keys.into_iter().zip(states).filter_map(|(key, state)| Some((key, state?)));
        for (key, state) in kept {
            inner.make_room(self.capacity);
            inner.states.insert(key, state);
        }
        restore_places(&mut decision, &merged);
        Ok(decision)
    }
}

impl Inner {
    fn rule(&self, id: RuleId) -> Option<&Rule> {
        self.rules.get(id.0 as usize).map(|(_, rule)| rule)
    }

    /// Forgets somebody, where the table is full.
    fn make_room(&mut self, capacity: usize) {
        if self.states.len() >= capacity
            && let Some(victim) = self.states.keys().next().cloned()
        {
            self.states.remove(&victim);
        }
    }
}

impl Engine for LocalEngine {
    type Decide = Ready<Result<Decision, EngineError>>;
    type Done = Ready<Result<(), EngineError>>;

    fn prepare(&self, name: &str, rule: &Rule) -> Result<RuleId, EngineError> {
        let now = self.clock.now();
        let mut inner = self.lock();
        if let Some(place) = inner.rules.iter().position(|(known, _)| known == name) {
            let id = RuleId(place as u32);
            let old = std::mem::replace(&mut inner.rules[place].1, rule.clone());
            let states = std::mem::take(&mut inner.states).into_iter();
            inner.states = states
                .filter_map(|(key, state)| {
                    let other = key.0 != id;
                    let kept = if other {
                        Some(state)
                    } else {
                        rule.limit().convert(old.limit(), state, now)
                    };
                    Some((key, kept?))
                })
                .collect();
            return Ok(id);
        }
        inner.rules.push((name.to_owned(), rule.clone()));
        Ok(RuleId(inner.rules.len() as u32 - 1))
    }

    fn decide(&self, charges: &[Charge<'_>], now: Option<Nanos>) -> Self::Decide {
        ready(self.run(charges, now, false))
    }

    fn peek(&self, charges: &[Charge<'_>], now: Option<Nanos>) -> Self::Decide {
        ready(self.run(charges, now, true))
    }

    fn refund(
        &self,
        charge: &Charge<'_>,
        charged_at: Option<Nanos>,
        now: Option<Nanos>,
    ) -> Self::Done {
        let now = now.unwrap_or_else(|| self.clock.now());
        let mut inner = self.lock();
        let Some(limit) = inner.rule(charge.rule).map(|rule| *rule.limit()) else {
            return ready(Err(EngineError::UnknownRule(charge.rule)));
        };
        let key = (charge.rule, charge.key.to_vec());
        let state = inner.states.remove(&key);
        if let Some(state) = limit.refund(state, now, charged_at.unwrap_or(now), charge.cost) {
            inner.states.insert(key, state);
        }
        ready(Ok(()))
    }

    fn reset(&self, rule: RuleId, key: &[u8]) -> Self::Done {
        self.lock().states.remove(&(rule, key.to_vec()));
        ready(Ok(()))
    }
}
