//! One request under one or several rules whose clients many threads share.
//!
//! What [`decide_all`](crate::rules::decide_all) says, under concurrency: a request is allowed only
//! if every enforcing rule's own judgement, made in the same step that stores it, lets it pass; so
//! no rule is ever over-admitted. Words are charged by compare-and-swap, and what was charged to a
//! leaky rule is taken back when another rule then denies; larger states stay locked, in one order,
//! from the judgement to the end. A concurrent request may see a charge that is about to be taken
//! back: an error on the deny side.

use std::sync::MutexGuard;
use std::vec::Vec;

use crate::algorithm::{Policy, State, Store};
use crate::clock::Nanos;
use crate::cost::Cost;
use crate::decision::{Action, Decision, Report};
use crate::rule::Rule;
use crate::rules::{Judgement, combine};
use crate::store::table::KeyHash;
use crate::store::{Clients, Shard, States};

/// What a request is charged under one rule.
pub(crate) struct Part<'a> {
    pub(crate) rule: &'a Rule,
    pub(crate) clients: &'a Clients,
    pub(crate) key: KeyHash,
    pub(crate) cost: Cost,
}

/// What one rule said, and its figures afterwards.
type Judged = (Judgement, Report);

/// Decides a request; the same rule and key must not come twice. A peek stores nothing.
pub(crate) fn decide(parts: &[Part<'_>], now: Nanos, peek: bool) -> Decision {
    match parts {
        [part] => together(parts, &[part.decide_alone(now, peek)]),
        _ => together(parts, &Request { parts, now, shards: Shards::lock(parts) }.decide(peek)),
    }
}

fn together(parts: &[Part<'_>], judged: &[Judged]) -> Decision {
    let judged = parts.iter().zip(judged);
    combine(judged.map(|(part, (judgement, report))| (part.rule, judgement, report)))
}

impl Part<'_> {
    fn decide_alone(&self, now: Nanos, peek: bool) -> Judged {
        if peek {
            return self.judge(self.clients.peek(self.key, self.rule.limit()), now);
        }
        self.charge(now)
    }

    fn judge(&self, state: Option<State>, now: Nanos) -> Judged {
        let limit = self.rule.limit();
        let (_, allowed, report) = limit.step(state, now, self.cost, Store::Never);
        (Judgement::new(self.rule, allowed, || report.retry_after), report)
    }

    fn store(&self, state: Option<State>, now: Nanos, store: Store) -> (Option<State>, Report) {
        let (after, _, report) = self.rule.limit().step(state, now, self.cost, store);
        (after, report)
    }

    /// Judges and, if the rule then wants it stored, stores, in one step.
    fn charge(&self, now: Nanos) -> Judged {
        self.clients.update(self.key, self.rule.limit(), now, |state| {
            if let Action::Delay { .. } = self.rule.action() {
                // Whether it is stored depends on the wait before it is.
                let (judgement, _) = self.judge(state.clone(), now);
                let (after, report) = self.store(state, now, judgement.store(judgement.passes()));
                return (after, (judgement, report));
            }
            let limit = self.rule.limit();
            let (after, allowed, report) = limit.step(state, now, self.cost, Store::ByPolicy);
            (after, (Judgement::new(self.rule, allowed, || report.retry_after), report))
        })
    }

    fn is_word(&self) -> bool {
        matches!(self.clients, Clients::Words(_))
    }

    fn is_strict(&self) -> bool {
        self.rule.limit().policy() == Policy::Strict
    }

    /// Where the state is locked: an order that is the same for every request.
    fn shard(&self) -> Option<(usize, usize)> {
        let place = std::ptr::from_ref(self.clients).addr();
        matches!(self.clients, Clients::States(_)).then(|| (place, States::shard_of(self.key)))
    }
}

/// The locks of a request's larger states.
struct Shards<'a>(Vec<((usize, usize), MutexGuard<'a, Shard>)>);

impl<'a> Shards<'a> {
    fn lock(parts: &[Part<'a>]) -> Self {
        let mut places: Vec<_> = parts
            .iter()
            .filter_map(|part| match part.clients {
                Clients::States(states) => Some((part.shard()?, states)),
                Clients::Words(_) => None,
            })
            .collect();
        places.sort_by_key(|(place, _)| *place);
        places.dedup_by_key(|(place, _)| *place);
        Self(places.into_iter().map(|(place, states)| (place, states.lock(place.1))).collect())
    }

    fn of(&mut self, part: &Part<'_>) -> Option<&mut Shard> {
        let wanted = part.shard()?;
        let found = self.0.binary_search_by_key(&wanted, |(place, _)| *place).ok()?;
        self.0.get_mut(found).map(|(_, guard)| &mut **guard)
    }
}

struct Request<'r, 'a> {
    parts: &'r [Part<'a>],
    now: Nanos,
    shards: Shards<'a>,
}

impl Request<'_, '_> {
    fn decide(mut self, peek: bool) -> Vec<Judged> {
        let mut judged: Vec<Judged> = Vec::with_capacity(self.parts.len());
        for part in self.parts {
            judged.push(part.judge(self.peek(part), self.now));
        }
        if !peek {
            self.charge_strict_words(&mut judged);
            if all_pass(&judged) {
                self.charge_leaky_words(&mut judged);
            }
            self.store_states(&mut judged);
        }
        judged
    }

    fn peek(&mut self, part: &Part<'_>) -> Option<State> {
        match self.shards.of(part) {
            Some(shard) => shard.peek(part.key),
            None => part.clients.peek(part.key, part.rule.limit()),
        }
    }

    /// Strict rules store every attempt, so they need not wait for the others.
    fn charge_strict_words(&self, judged: &mut [Judged]) {
        for (part, judged) in self.parts.iter().zip(judged) {
            if part.is_word() && part.is_strict() {
                *judged = part.charge(self.now);
            }
        }
    }

    /// Leaky rules are charged until one, meanwhile, does not let the request pass.
    fn charge_leaky_words(&self, judged: &mut [Judged]) {
        for (nth, part) in self.parts.iter().enumerate() {
            if !part.is_word() || part.is_strict() {
                continue;
            }
            judged[nth] = part.charge(self.now);
            if !judged[nth].0.passes() {
                self.take_back(&mut judged[..nth]);
                return;
            }
        }
    }

    fn take_back(&self, judged: &mut [Judged]) {
        for (part, (judgement, report)) in self.parts.iter().zip(judged) {
            if part.is_word() && !part.is_strict() && judgement.store(true) == Store::Always {
                let limit = part.rule.limit();
                part.clients.refund(part.key, limit, self.now, self.now, part.cost);
                *report = part.judge(part.clients.peek(part.key, limit), self.now).1;
            }
        }
    }

    /// Larger states are still as they were judged.
    fn store_states(&mut self, judged: &mut [Judged]) {
        let pass = all_pass(judged);
        for (part, (judgement, report)) in self.parts.iter().zip(judged) {
            let (now, store) = (self.now, judgement.store(pass));
            if let Some(shard) = self.shards.of(part) {
                let limit = part.rule.limit();
                *report = shard.update(part.key, limit, now, |state| part.store(state, now, store));
            }
        }
    }
}

fn all_pass(judged: &[Judged]) -> bool {
    judged.iter().all(|(judgement, _)| judgement.passes())
}
