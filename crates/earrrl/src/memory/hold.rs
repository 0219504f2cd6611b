//! Reservations in memory: an estimate is charged at once, and a commit corrects it to the actual
//! cost.

use core::time::Duration;
use std::vec::Vec;

use super::MemoryEngine;
use super::prepared::{Prepared, RuleBlocks};
use crate::algorithm::Mode;
use crate::clock::{Clock, Nanos};
use crate::cost::Cost;
use crate::engine::{Charge, EngineError, RuleId, merge_charges, restore_places};
use crate::held::{Held, OnExpiry};
use crate::hold::{Actual, Committed, HoldTerms, Holding};
use crate::hold_id::HoldId;
use crate::holds::{HeldPart, HeldParts, Reservations};
use crate::rules::atomic::{self, Each};
use crate::rules::part::Part;

impl<C: Clock> MemoryEngine<C> {
    /// Sets the most reservations that may be live at a time; 100 000 by default. A lower bound
    /// leaves the present ones live.
    pub fn set_max_reservations(&self, most: usize) {
        self.holds.set_most(most);
    }

    /// Returns the numbers of reservations.
    ///
    /// ```
    /// # use earrrl::{Charge, Cost, HoldTerms, MemoryEngine};
    /// # let engine = MemoryEngine::new(1000)?;
    /// # let rule = engine.prepare_with("tokens", &"fixed-window 1000/1d".parse()?, 1000)?;
    /// # let charge = Charge { rule, key: b"alice", cost: Cost::from_units(100) };
    /// engine.hold(&[charge], HoldTerms::default(), None)?;
    /// assert_eq!(engine.reservations().live, 1);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn reservations(&self) -> Reservations {
        self.holds.usage()
    }

    /// Returns the rules of a reservation that is live or was committed lately.
    ///
    /// # Errors
    /// Returns an error if the reservation is unknown or expired.
    pub fn reserved_rules(&self, id: HoldId) -> Result<Vec<RuleId>, EngineError> {
        self.holds.rules(id, self.clock.now())
    }

    /// Returns true if this engine made a reservation of this id, also if that has expired, or was
    /// committed so long ago that it is forgotten. The latest 4 billion reservations are known.
    pub fn has_issued(&self, id: HoldId) -> bool {
        self.holds.has_issued(id)
    }

    /// Checks a request whose cost is only estimated, and reserves the estimate under all rules if
    /// it is allowed. The estimate is charged at once, so that every decision counts it. A
    /// [`commit`](Self::commit) with the returned id corrects the charge to the actual cost.
    ///
    /// A reservation that is not committed within its time to live expires. Its rules then keep the
    /// estimate or release it, as [`Rule::on_expiry`](crate::Rule::on_expiry) says.
    ///
    /// ```
    /// use earrrl::{Actual, Charge, Cost, HoldTerms, MemoryEngine};
    ///
    /// let engine = MemoryEngine::new(10_000)?;
    /// let rule = engine.prepare_with("tokens", &"fixed-window 10000/1d".parse()?, 1000)?;
    /// let charge = Charge { rule, key: b"alice", cost: Cost::from_units(4096) };
    /// let holding = engine.hold(&[charge], HoldTerms::default(), None)?;
    /// assert_eq!(holding.decision.remaining, 5904);
    /// let id = holding.id.ok_or("denied")?;
    ///
    /// // The model has answered with 731 tokens.
    /// let committed = engine.commit(id, Actual::All(Cost::from_units(731)), None)?;
    /// assert_eq!(committed.decision.remaining, 9269);
    /// // A retry changes nothing.
    /// assert!(engine.commit(id, Actual::All(Cost::from_units(731)), None)?.repeated);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// Returns an error if a charge or the terms are invalid, or if as many reservations are live
    /// as the engine keeps.
    pub fn hold(
        &self,
        charges: &[Charge<'_>],
        terms: HoldTerms,
        now: Option<Nanos>,
    ) -> Result<Holding, EngineError> {
        terms.check()?;
        let now = self.clock.at_or_now(now);
        self.expire_holds(now);
        let rules = self.rules.load();
        let known = |id: RuleId| rules.get(id.0 as usize).map(|known| &known.rule);
        let merged = merge_charges(charges, known)?;
        let permit = self.holds.permit()?;
        let mut each: Each<(&Prepared, Part<'_>)> = Each::new();
        for (_, charge) in &merged {
            let (known, mut part) = self.known_part(&rules, charge)?;
            known.settle(part.key, now);
            if terms.at_most {
                part.cost = atomic::grant(part, now);
            }
            each.push((known, part));
        }
        let mut held = self.held_parts(&merged, &each, now);
        let mut parts: Each<Part<'_>> = each.iter().map(|(_, part)| *part).collect();
        let (mut decision, resets) = atomic::check_with_resets(&mut parts, now);
        let mut granted = std::vec![Cost::ZERO; charges.len()];
        for (nth, part) in held.iter_mut().enumerate() {
            part.held = Held::new(now, each[nth].1.cost, resets[nth]);
            part.is_stored = each[nth].1.has_stored(&decision, nth);
            if decision.allowed {
                granted[merged[nth].0] = part.held.cost;
            }
        }
        restore_places(&mut decision, &merged);
        let id = if decision.allowed {
            let ttl = live_for(&rules, &held, terms.ttl);
            Some(self.holds.insert(permit, held, now, ttl))
        } else {
            held.iter().for_each(|part| self.finish(part, Duration::ZERO));
            None
        };
        Ok(Holding { decision, id, granted })
    }

    /// Corrects the charges of a reservation to the actual cost, exactly once: a repeated commit
    /// changes nothing, whatever its cost. A cost above the estimate is always charged, at most as
    /// the rule's `max_cost`. A commit of 0 releases the reservation. The corrections are those of
    /// [`Limit::commit`](crate::Limit::commit).
    ///
    /// # Errors
    /// Returns an error if the reservation is unknown or expired, or a cost is for a rule that is
    /// not part of the reservation.
    pub fn commit(
        &self,
        id: HoldId,
        actual: Actual<'_>,
        now: Option<Nanos>,
    ) -> Result<Committed, EngineError> {
        let now = self.clock.at_or_now(now);
        let rules = self.rules.load();
        let accepts = |parts: &[HeldPart]| accepts(&rules, parts, &actual);
        let (parts, repeated) = self.holds.commit(id, now, accepts)?;
        if !repeated {
            parts
                .iter()
                .for_each(|part| self.correct(&rules, part, cost(&rules, part, &actual), now));
        }
        let mut standing: Each<Part<'_>> = Each::new();
        for HeldPart { rule, key, .. } in &parts {
            let known = rules.get(rule.0 as usize).ok_or(EngineError::UnknownRule(*rule))?;
            known.settle(*key, now);
            let (rule, clients) = (&known.rule, &*known.clients);
            standing.push(Part { rule, clients, key: *key, cost: Cost::ONE });
        }
        let decision = atomic::decide(&mut standing, Mode::Peek, &|| now);
        Ok(Committed { decision, rules: parts.iter().map(|part| part.rule).collect(), repeated })
    }

    /// Prolongs a live reservation: it then expires after `ttl` from now, or sooner if the timeout of
    /// one of its rules of concurrent is shorter.
    ///
    /// ```
    /// # use earrrl::{Charge, Cost, HoldTerms, MemoryEngine};
    /// # use std::time::Duration;
    /// # let engine = MemoryEngine::new(1000)?;
    /// # let rule = engine.prepare_with("tokens", &"fixed-window 1000/1d".parse()?, 1000)?;
    /// let charge = Charge { rule, key: b"alice", cost: Cost::from_units(100) };
    /// let id = engine.hold(&[charge], HoldTerms::default(), None)?.id.ok_or("denied")?;
    /// engine.renew(id, Duration::from_secs(600), None)?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// Returns an error if the reservation is unknown, expired or committed, or `ttl` is out of its
    /// bounds.
    pub fn renew(&self, id: HoldId, ttl: Duration, now: Option<Nanos>) -> Result<(), EngineError> {
        HoldTerms::default().ttl(ttl).check()?;
        let now = self.clock.at_or_now(now);
        let rules = self.rules.load();
        self.holds.renew(id, now, |parts| {
            let are_renewed = parts.iter_mut().all(|part| renew_places(&rules, part, now));
            are_renewed.then(|| live_for(&rules, parts, ttl))
        })
    }

    /// Ends the reservations that have expired. Each [`hold`](Self::hold) does so too; call this
    /// regularly if holds are rare and rules release expired reservations.
    pub fn expire(&self) {
        self.expire_holds(self.clock.now());
    }

    fn expire_holds(&self, now: Nanos) {
        let expired = self.holds.expire(now);
        if expired.is_empty() {
            return;
        }
        let rules = self.rules.load();
        for part in expired.iter().flatten() {
            let rule = rules.get(part.rule.0 as usize).map(|known| &known.rule);
            match rule.map(|rule| rule.on_expiry()) {
                Some(OnExpiry::Release) => self.correct(&rules, part, Cost::ZERO, now),
                _ => self.finish(part, Duration::ZERO),
            }
        }
    }

    /// Returns the parts of a reservation that is about to be decided. Buckets count it before the
    /// decision, so that no concurrent commit is missed.
    fn held_parts(
        &self,
        merged: &[(usize, Charge<'_>)],
        each: &[(&Prepared, Part<'_>)],
        now: Nanos,
    ) -> HeldParts {
        let charges = merged.iter().zip(each);
        charges
            .map(|((_, Charge { rule, .. }), (known, part))| {
                let is_bucket = part.rule.limit().is_bucket();
                let in_bucket = is_bucket.then(|| self.holds.buckets.reserve(*rule, part.key));
                let held = Held { at: now, cost: part.cost, full_at: now };
                let (version, key) = (known.version, part.key);
                HeldPart { rule: *rule, version, key, held, in_bucket, is_stored: false }
            })
            .collect()
    }

    /// Corrects one rule's charge.
    fn correct(&self, rules: &RuleBlocks, part: &HeldPart, actual: Cost, now: Nanos) {
        let known = rules.get(part.rule.0 as usize).filter(|_| part.is_stored);
        let Some((known, held)) = known.and_then(|known| self.held(known, part, actual, now))
        else {
            return self.finish(part, Duration::ZERO);
        };
        known.settle(part.key, now);
        let given_back = known.rule.limit().given_back(now, &held, actual);
        // Before the commit: a newer reservation that is committed meanwhile must know of it.
        self.finish(part, given_back);
        let (rule, clients, key) = (&known.rule, &*known.clients, part.key);
        Part { rule, clients, key, cost: actual }.commit(now, &held, actual);
    }

    /// Returns the charge to be corrected under the present version of the rule; `None` if nothing
    /// of it is left.
    fn held<'r>(
        &self,
        known: &'r Prepared,
        part: &HeldPart,
        actual: Cost,
        now: Nanos,
    ) -> Option<(&'r Prepared, Held)> {
        let Held { at, cost, .. } = part.held;
        let held = if part.version < known.algorithm_since {
            // The estimate went with the states of the old algorithm; only the excess is charged.
            let is_more = actual > cost && !known.rule.limit().is_concurrent();
            Held { at: now, cost: is_more.then_some(cost)?, full_at: now }
        } else if part.version < known.version {
            Held { at, cost, full_at: at }
        } else {
            let before = |hold| self.holds.buckets.given_back_before(part.rule, part.key, hold);
            part.held.lowered(part.in_bucket.map_or(Duration::ZERO, before))
        };
        Some((known, held))
    }

    fn finish(&self, part: &HeldPart, given_back: Duration) {
        if let Some(hold) = part.in_bucket {
            self.holds.buckets.finish(part.rule, part.key, hold, given_back);
        }
    }
}

/// Returns the time for which a reservation is live: at most the timeouts of its rules of concurrent.
fn live_for(rules: &RuleBlocks, parts: &[HeldPart], ttl: Duration) -> Duration {
    let known = |part: &HeldPart| rules.get(part.rule.0 as usize)?.rule.limit().hold_timeout();
    parts.iter().filter_map(known).fold(ttl, Duration::min)
}

/// Moves the places that a live reservation has under one rule of concurrent to `now`. Returns false
/// if they are gone, because the client was reset or the rule was changed.
fn renew_places(rules: &RuleBlocks, part: &mut HeldPart, now: Nanos) -> bool {
    let known = rules.get(part.rule.0 as usize).filter(|_| part.is_stored);
    let Some(known) = known.filter(|known| known.rule.limit().is_concurrent()) else { return true };
    known.settle(part.key, now);
    let (rule, clients, key) = (&known.rule, &*known.clients, part.key);
    let is_renewed = part.version >= known.algorithm_since
        && Part { rule, clients, key, cost: part.held.cost }.renew(now, &part.held);
    if is_renewed {
        part.held.at = now;
    }
    is_renewed
}

/// Returns the actual cost of one part, at most the rule's `max_cost`: the work is done, so the cost
/// cannot be refused.
fn cost(rules: &RuleBlocks, part: &HeldPart, actual: &Actual<'_>) -> Cost {
    let known = rules.get(part.rule.0 as usize);
    let most = known.map_or(Cost::MAX, |known| known.rule.max_cost());
    most.min(actual.under(part.rule, part.held.cost))
}

/// Returns an error if a rule with an actual cost is not part of the reservation, or is unknown.
fn accepts(rules: &RuleBlocks, parts: &[HeldPart], actual: &Actual<'_>) -> Result<(), EngineError> {
    if let Actual::ByRule(costs) = actual {
        let missing = costs.iter().find(|(rule, _)| parts.iter().all(|part| part.rule != *rule));
        if let Some((rule, _)) = missing {
            return Err(EngineError::UnknownRule(*rule));
        }
    }
    let unknown = parts.iter().find(|part| rules.get(part.rule.0 as usize).is_none());
    unknown.map_or(Ok(()), |part| Err(EngineError::UnknownRule(part.rule)))
}

#[cfg(test)]
#[path = "concurrent_tests.rs"]
mod concurrent_tests;
#[cfg(test)]
#[path = "hold_tests.rs"]
mod tests;
