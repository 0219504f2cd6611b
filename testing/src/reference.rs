//! The reference engine, to which the suite compares every other engine. It applies the pure
//! functions to one map under one lock.

use std::collections::HashMap;
use std::future::{Ready, ready};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use earrrl::algorithm::State;
use earrrl::internal::{Judgement, check_name, combine, merge_charges, restore_places};
use earrrl::{Charge, Clock, Cost, Decision, Engine, EngineError, Mode, Nanos, Rule, RuleId};

/// An engine for tests, with which every other engine is compared. Its memory grows with the number
/// of clients.
pub struct ReferenceEngine {
    clock: Arc<dyn Clock>,
    inner: Mutex<Inner>,
}

#[derive(Default)]
struct Inner {
    rules: Vec<(String, Rule)>,
    states: HashMap<(RuleId, Vec<u8>), State>,
    latest: Nanos,
}

impl ReferenceEngine {
    /// Returns an engine without rules, on the given clock.
    pub fn new(clock: Arc<dyn Clock>) -> Self {
        Self {
            clock,
            inner: Mutex::default(),
        }
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn run(
        &self,
        charges: &[Charge<'_>],
        mode: Mode,
        now: Option<Nanos>,
    ) -> Result<Decision, EngineError> {
        let mut inner = self.lock();
        let now = inner.advance(now.unwrap_or_else(|| self.clock.now()));
        let merged = merge_charges(charges, |id| inner.rule(id))?;
        let keys: Vec<_> = merged
            .iter()
            .map(|(_, c)| (c.rule, c.key.to_vec()))
            .collect();
        let mut states: Vec<_> = keys.iter().map(|key| inner.states.remove(key)).collect();
        let rules: Vec<(&Rule, Cost)> = merged
            .iter()
            .filter_map(|(_, c)| Some((inner.rule(c.rule)?, c.cost)))
            .collect();
        let mut decision = decide_all(&rules, &mut states, mode, now);
        let kept = keys
            .into_iter()
            .zip(states)
            .filter_map(|(key, state)| Some((key, state?)));
        inner.states.extend(kept);
        restore_places(&mut decision, &merged);
        Ok(decision)
    }
}

impl Inner {
    fn advance(&mut self, now: Nanos) -> Nanos {
        self.latest = self.latest.max(now);
        self.latest
    }

    fn rule(&self, id: RuleId) -> Option<&Rule> {
        self.rules.get(id.0 as usize).map(|(_, rule)| rule)
    }

    /// Replaces a rule, and carries the states of its clients over.
    fn replace(&mut self, id: RuleId, rule: &Rule, now: Nanos) {
        let Some((_, slot)) = self.rules.get_mut(id.0 as usize) else {
            return;
        };
        let old = std::mem::replace(slot, rule.clone());
        if old.limit() == rule.limit() {
            return;
        }
        let states = std::mem::take(&mut self.states).into_iter();
        self.states = states
            .filter_map(|(key, state)| {
                let kept = key.0 != id;
                let state = if kept {
                    Some(state)
                } else {
                    rule.limit().carried(old.limit(), state, now)
                };
                Some((key, state?))
            })
            .collect();
    }
}

impl Engine for ReferenceEngine {
    type Decide = Ready<Result<Decision, EngineError>>;
    type Done = Ready<Result<(), EngineError>>;

    fn prepare(&self, name: &str, rule: &Rule) -> Result<RuleId, EngineError> {
        check_name(name)?;
        let mut inner = self.lock();
        if let Some(place) = inner.rules.iter().position(|(known, _)| known == name) {
            let id = RuleId(place as u32);
            let now = inner.advance(self.clock.now());
            inner.replace(id, rule, now);
            return Ok(id);
        }
        inner.rules.push((name.into(), rule.clone()));
        Ok(RuleId(inner.rules.len() as u32 - 1))
    }

    fn prepared(&self, name: &str) -> Option<Rule> {
        let inner = self.lock();
        inner
            .rules
            .iter()
            .find(|(known, _)| known == name)
            .map(|(_, rule)| rule.clone())
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
        let mut inner = self.lock();
        let now = inner.advance(now.unwrap_or_else(|| self.clock.now()));
        let Some(limit) = inner.rule(charge.rule).map(|rule| *rule.limit()) else {
            return ready(Err(EngineError::UnknownRule(charge.rule)));
        };
        let key = (charge.rule, charge.key.to_vec());
        let state = inner.states.remove(&key);
        let charged_at = charged_at
            .or_else(|| limit.last_charge(state.as_ref()))
            .unwrap_or(now);
        if let Some(state) = limit.refund(state, now, charged_at, charge.cost) {
            inner.states.insert(key, state);
        }
        ready(Ok(()))
    }

    fn reset(&self, rule: RuleId, key: &[u8]) -> Self::Done {
        let mut inner = self.lock();
        if inner.rule(rule).is_none() {
            return ready(Err(EngineError::UnknownRule(rule)));
        }
        inner.states.remove(&(rule, key.to_vec()));
        ready(Ok(()))
    }
}

/// Judges one request under all `charges` and stores it in their `states`, which are in the same order. No two charges
/// may have the same rule and key.
pub fn decide_all(
    charges: &[(&Rule, Cost)],
    states: &mut [Option<State>],
    mode: Mode,
    now: Nanos,
) -> Decision {
    let mut judgements = Vec::with_capacity(charges.len());
    for (&(rule, cost), state) in charges.iter().zip(&mut *states) {
        let limit = rule.limit();
        let allowed = limit.admit(state, now, cost, Mode::Peek);
        let wait = || limit.step(state.clone(), now, cost, Mode::Peek).2.earliest;
        judgements.push(Judgement::new(rule, allowed, wait));
    }
    let all_pass = judgements.iter().all(Judgement::passes);
    let mut judged = Vec::with_capacity(charges.len());
    for ((&(rule, cost), state), judgement) in charges.iter().zip(states).zip(judgements) {
        let mode = judgement.settle(mode, all_pass);
        let (after, _, figures) = rule.limit().step(state.take(), now, cost, mode);
        *state = after;
        judged.push((rule, judgement, figures));
    }
    combine(
        now,
        judged
            .iter()
            .map(|(rule, judgement, figures)| (*rule, judgement, figures)),
    )
}
