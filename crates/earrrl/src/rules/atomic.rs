//! Decisions on clients that several threads share, under one or several rules.
//!
//! The result is as if each request were decided alone, also with concurrent ones: it is allowed only if every
//! enforcing rule lets it pass, by a judgement that is made in the same atomic step that stores the request. So no rule
//! ever admits more than its limit.
//!
//! Word states are charged by compare-and-swap. If a rule then denies the request, its charges to
//! leaky rules are taken back. Larger states stay locked, in a fixed order, from the judgement
//! until the request is stored. A concurrent request may see a charge that is about to be taken
//! back, and be denied because of it.

use core::time::Duration;
use std::sync::{Arc, MutexGuard};
use std::vec::Vec;

use smallvec::SmallVec;

use crate::algorithm::{Mode, Policy};
use crate::clock::Nanos;
use crate::decision::{Decision, Figures, Wait};
use crate::rules::at_home::AtHome;
use crate::rules::part::Part;
use crate::rules::{Judged, Judgement, Report, combine};
use crate::store::table::Lookup;
use crate::store::{Shard, View};

/// A list with one item for each rule, which needs no allocation for up to eight rules.
pub(crate) type Each<T> = SmallVec<[T; 8]>;

/// Decides a request. No two parts may have the same rule and key.
pub(crate) fn decide(parts: &[Part<'_>], mode: Mode, now: &dyn Fn() -> Nanos) -> Decision {
    decide_with_resets(parts, mode, now, &mut [])
}

/// Decides a request, and sets `resets` to the times after which the clients of its rules are as good as new.
pub(crate) fn decide_with_resets(
    parts: &[Part<'_>],
    mode: Mode,
    now: &dyn Fn() -> Nanos,
    resets: &mut [Duration],
) -> Decision {
    if let [part] = parts {
        let at_home = part.decide_at_home(mode, now);
        let decision = at_home.unwrap_or_else(|| part.decide_alone(mode, now()));
        resets.fill(decision.reset_after);
        return decision;
    }
    if mode == Mode::Charge {
        // A charge is stored under every rule unconditionally, so the rules need not be
        // coordinated.
        let now = now();
        let charge = |part: &Part<'_>| part.charge(mode, now).into();
        let answers: Each<RuleVerdict<'_>> = parts.iter().map(charge).collect();
        return together(parts, now, &answers);
    }
    // All lines are prefetched before the clock is read and before the first line is waited for.
    let places: Each<_> = parts.iter().map(Part::place).collect();
    let shards = Shards::lock(parts);
    AtomicRequest {
        parts,
        places: &places,
        now: now(),
        shards,
    }
    .decide(mode, resets)
}

fn together(parts: &[Part<'_>], now: Nanos, answers: &[RuleVerdict<'_>]) -> Decision {
    let each = parts.iter().zip(answers);
    combine(
        now,
        each.map(|(part, answer)| (part.rule, answer.judgement(), answer)),
    )
}

impl<'a> Part<'a> {
    fn is_word(&self) -> bool {
        self.clients.view().is_none()
    }

    fn is_strict(&self) -> bool {
        self.rule.limit().policy() == Policy::Strict
    }

    /// Returns the key by which locks of clients' states are ordered. Every request locks in this
    /// order, so that none waits for another in a circle.
    fn shard(&self) -> Option<((usize, usize), &'a View)> {
        let view = self.clients.view()?;
        let shard = view.shard_of(self.key);
        Some(((Arc::as_ptr(&view.states).addr(), shard), view))
    }
}

/// The locked shards of a request's larger states.
struct Shards<'a>(Vec<((usize, usize), MutexGuard<'a, Shard>)>);

impl<'a> Shards<'a> {
    /// Locks the shards of all larger states.
    fn lock(parts: &[Part<'a>]) -> Self {
        let mut places: Vec<_> = parts.iter().filter_map(Part::shard).collect();
        places.sort_by_key(|(place, _)| *place);
        places.dedup_by_key(|(place, _)| *place);
        Self(
            places
                .into_iter()
                .map(|(place, view)| (place, view.lock(place.1)))
                .collect(),
        )
    }

    fn of(&mut self, part: &Part<'_>) -> Option<&mut Shard> {
        let (wanted, _) = part.shard()?;
        let found = self.0.binary_search_by_key(&wanted, |(place, _)| *place);
        self.0.get_mut(found.ok()?).map(|(_, guard)| &mut **guard)
    }
}

struct AtomicRequest<'r, 'a> {
    parts: &'r [Part<'a>],
    /// The home lines of the clients whose states are words.
    places: &'r [Option<Lookup<'a>>],
    now: Nanos,
    shards: Shards<'a>,
}

/// The judgement of one rule, with the means to compute its figures.
enum RuleVerdict<'a> {
    /// A client that was judged in one of its home lines.
    AtHome(AtHome<'a>),
    /// Any other client. Its figures are computed last and only once.
    Elsewhere(Judgement, Option<Figures>),
}

impl<'r> AtomicRequest<'r, '_> {
    fn decide(mut self, mode: Mode, resets: &mut [Duration]) -> Decision {
        let mut answers = self.judge_all();
        // A charge verifies the state that was read, but a denied request charges no leaky rule.
        if mode != Mode::Check || !all_pass(&answers) {
            self.verify(&mut answers);
        }
        if mode == Mode::Check {
            self.charge_strict_words(&mut answers);
            if all_pass(&answers) {
                self.charge_leaky_words(&mut answers);
            }
        }
        self.store_states(mode, &mut answers);
        for (reset, answer) in resets.iter_mut().zip(&answers) {
            *reset = answer.standing().2;
        }
        together(self.parts, self.now, &answers)
    }

    fn judge_all(&mut self) -> Each<RuleVerdict<'r>> {
        let mut answers = Each::new();
        let now = self.now;
        for (part, place) in self.parts.iter().zip(self.places) {
            let at_home = place.as_ref().and_then(|place| part.at_home(place, now));
            answers.push(match at_home {
                Some(client) => RuleVerdict::AtHome(client),
                None => RuleVerdict::Elsewhere(self.judge(part), None),
            });
        }
        answers
    }

    /// Judges clients in their home lines again if the state that was read was torn or changed.
    fn verify(&mut self, answers: &mut [RuleVerdict<'_>]) {
        for (part, answer) in self.parts.iter().zip(answers) {
            if let RuleVerdict::AtHome(client) = answer
                && client.settle(|_| Mode::Peek).is_none()
            {
                *answer = RuleVerdict::Elsewhere(self.judge(part), None);
            }
        }
    }

    fn judge(&mut self, part: &Part<'_>) -> Judgement {
        let now = self.now;
        let judge = |state| part.rule.judge(state, part.cost, now);
        part.visit(self.shards.of(part), Mode::Peek, now, judge)
    }

    /// Stores the request if `mode` requires that, and computes the rule's figures.
    fn store(&mut self, part: &Part<'_>, mode: Mode) -> Figures {
        let now = self.now;
        let store = |state| {
            let (after, _, figures) = part.rule.limit().step(state, now, part.cost, mode);
            (after, figures)
        };
        part.visit(self.shards.of(part), mode, now, store)
    }

    fn charge_word(&self, part: &Part<'_>, answer: &mut RuleVerdict<'_>) {
        if let RuleVerdict::AtHome(client) = answer
            && client
                .settle(|judgement| judgement.settle(Mode::Check, true))
                .is_some()
        {
            return;
        }
        *answer = part.charge(Mode::Check, self.now).into();
    }

    /// Charges the strict rules, which store every request and so need not wait for the other
    /// rules' judgements.
    fn charge_strict_words(&self, answers: &mut [RuleVerdict<'_>]) {
        for (part, answer) in self.parts.iter().zip(answers) {
            if part.is_word() && part.is_strict() {
                self.charge_word(part, answer);
            }
        }
    }

    /// Charges the leaky rules in turn. If one of them now denies the request, because of a
    /// concurrent one, takes the charges back.
    fn charge_leaky_words(&self, answers: &mut [RuleVerdict<'_>]) {
        for (nth, part) in self.parts.iter().enumerate() {
            if !part.is_word() || part.is_strict() {
                continue;
            }
            self.charge_word(part, &mut answers[nth]);
            if !answers[nth].judgement().passes() {
                self.take_back(&mut answers[..nth]);
                return;
            }
        }
    }

    fn take_back(&self, answers: &mut [RuleVerdict<'_>]) {
        for (part, answer) in self.parts.iter().zip(answers) {
            let judgement = *answer.judgement();
            let was_charged = judgement.settle(Mode::Check, true) == Mode::Charge;
            if part.is_word() && !part.is_strict() && was_charged {
                part.refund(self.now, Some(self.now));
                *answer = RuleVerdict::Elsewhere(judgement, None);
            }
        }
    }

    /// Stores the request in the larger states, which are locked and so are still in the state that
    /// was judged, and computes the figures that are missing.
    fn store_states(&mut self, mode: Mode, answers: &mut [RuleVerdict<'_>]) {
        let pass = all_pass(answers);
        for (part, answer) in self.parts.iter().zip(answers) {
            let mode = match part.is_word() {
                true => Mode::Peek,
                false => answer.judgement().settle(mode, pass),
            };
            if let RuleVerdict::Elsewhere(_, figures @ None) = answer {
                *figures = Some(self.store(part, mode));
            }
        }
    }
}

fn all_pass(answers: &[RuleVerdict<'_>]) -> bool {
    answers.iter().all(|answer| answer.judgement().passes())
}

impl RuleVerdict<'_> {
    #[inline]
    fn judgement(&self) -> &Judgement {
        match self {
            Self::AtHome(client) => client.judgement(),
            Self::Elsewhere(judgement, _) => judgement,
        }
    }
}

impl From<Judged> for RuleVerdict<'_> {
    fn from((judgement, figures): Judged) -> Self {
        Self::Elsewhere(judgement, Some(figures))
    }
}

/// Every figure was computed before a report is requested.
impl Report for RuleVerdict<'_> {
    fn remaining(&self) -> u64 {
        match self {
            Self::AtHome(client) => client.remaining(),
            Self::Elsewhere(_, figures) => figures.map_or(0, |figures| figures.remaining()),
        }
    }

    fn waits(&self) -> [Wait; 2] {
        match self {
            Self::AtHome(client) => client.waits(),
            Self::Elsewhere(_, figures) => {
                figures.map_or([Wait::NONE; 2], |figures| figures.waits())
            }
        }
    }

    fn standing(&self) -> (Option<f64>, f64, Duration) {
        match self {
            Self::AtHome(client) => client.standing(),
            Self::Elsewhere(_, figures) => {
                figures.map_or((None, 0.0, Duration::ZERO), |figures| figures.standing())
            }
        }
    }
}

#[cfg(test)]
#[path = "atomic_tests.rs"]
mod tests;
