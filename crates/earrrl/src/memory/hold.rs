//! Reservations in memory: an estimate is charged at once, and a commit corrects it to the actual
//! cost.

use core::time::Duration;
use std::vec::Vec;

use super::MemoryEngine;
use super::known_part;
use super::prepared::{Prepared, RuleBlocks};
use crate::algorithm::Mode;
use crate::clock::{Clock, Nanos};
use crate::cost::Cost;
use crate::decision::Decision;
use crate::engine::{Charge, EngineError, RuleId, are_distinct, merge_charges, restore_places};
use crate::held::{Held, OnExpiry};
use crate::hold::{Actual, Committed, HoldTerms, Holding};
use crate::hold_id::HoldId;
use crate::holds::{HeldPart, HeldParts, Reservations};
use crate::rule::Rule;
use crate::rules::atomic::{self, Each};
use crate::rules::grant::{GRANTS, is_tried_again};
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
    #[doc(hidden)]
    pub fn reservations(&self) -> Reservations {
        self.holds.usage()
    }

    /// Returns the rules of a reservation that is live or was committed lately.
    ///
    /// # Errors
    /// Returns an error if the reservation is unknown or expired.
    #[doc(hidden)]
    pub fn reserved_rules(&self, id: HoldId) -> Result<Vec<RuleId>, EngineError> {
        self.holds.rules(id, self.clock.now())
    }

    /// Returns true if this engine made a reservation of this id, also if that has expired, or was
    /// committed so long ago that it is forgotten. The latest 4 billion reservations are known.
    #[doc(hidden)]
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
        if are_distinct(charges) {
            return self.hold_distinct(&rules, charges, terms, now);
        }
        let known = |id: RuleId| rules.get(id.0 as usize).map(|known| &known.rule);
        let merged = merge_charges(charges, known)?;
        let distinct: Vec<_> = merged.iter().map(|(_, charge)| *charge).collect();
        let mut holding = self.hold_distinct(&rules, &distinct, terms, now)?;
        restore_places(&mut holding.decision, &merged);
        let mut granted = std::vec![Cost::ZERO; charges.len()];
        for ((place, _), cost) in merged.iter().zip(holding.granted()) {
            granted[*place] = *cost;
        }
        Ok(Holding::new(holding.decision, holding.id, granted))
    }

    /// Reserves under charges of which no two have the same rule and key. If the terms permit less than
    /// the estimate and another request has used what remained, reserves what remains then.
    fn hold_distinct(
        &self,
        rules: &RuleBlocks,
        charges: &[Charge<'_>],
        terms: HoldTerms,
        now: Nanos,
    ) -> Result<Holding, EngineError> {
        let rule = |charge: &Charge<'_>| Some(&rules.get(charge.rule.0 as usize)?.rule);
        let tries = if terms.at_most { GRANTS } else { 1 };
        for _ in 1..tries {
            let holding = self.hold_once(rules, charges, terms, now)?;
            if !is_tried_again(&holding.decision, charges.iter().filter_map(rule)) {
                return Ok(holding);
            }
        }
        self.hold_once(rules, charges, terms, now)
    }

    #[inline]
    fn hold_once(
        &self,
        rules: &RuleBlocks,
        charges: &[Charge<'_>],
        terms: HoldTerms,
        now: Nanos,
    ) -> Result<Holding, EngineError> {
        let permit = self.holds.permit()?;
        let mut parts = Each::new();
        let mut versions = Each::new();
        for charge in charges {
            let (known, mut part) = self.known_part(rules, charge)?;
            if terms.at_most {
                part.cost = atomic::grant(part, now);
            }
            parts.push(part);
            versions.push(known.version);
        }
        let mut held = HeldParts::new();
        for (nth, charge) in charges.iter().enumerate() {
            held.push(self.held_part(charge.rule, versions[nth], &parts[nth], now));
        }
        let decision = atomic::check_with_resets(&parts, now, |nth, reset_after| {
            held[nth].held = Held::new(now, held[nth].held.cost, reset_after);
        });
        if !decision.allowed {
            held.iter().for_each(|part| self.keep(part));
            return Ok(Holding::new(
                decision,
                None,
                held.iter().map(|_| Cost::ZERO),
            ));
        }
        for (nth, part) in held.iter_mut().enumerate() {
            part.is_stored = parts[nth].has_stored(&decision, nth);
        }
        let ttl = live_for(parts.iter().map(|part| part.rule), terms.ttl);
        let id = self.holds.insert(permit, held, now, ttl);
        Ok(Holding::new(
            decision,
            Some(id),
            parts.iter().map(|part| part.cost),
        ))
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
        self.holds.commit(id, now, |parts, repeated| {
            if !repeated {
                accept(parts, &actual)?;
                parts
                    .iter()
                    .for_each(|part| self.correct(&rules, part, &actual, now));
            }
            let decision = standing(&rules, parts, now)?;
            Ok(Committed::new(
                decision,
                parts.iter().map(|part| part.rule),
                repeated,
            ))
        })
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
            let rule = |part: &HeldPart| Some(&rules.get(part.rule.0 as usize)?.rule);
            are_renewed.then(|| live_for(parts.iter().filter_map(rule), ttl))
        })
    }

    /// Ends the reservations that have expired. Each [`hold`](Self::hold) does so too; call this
    /// regularly if holds are rare and rules release expired reservations.
    #[doc(hidden)]
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
                Some(OnExpiry::Release) => {
                    self.correct(&rules, part, &Actual::All(Cost::ZERO), now);
                }
                _ => self.keep(part),
            }
        }
    }

    /// Returns one rule's part of a reservation that is about to be decided. Buckets count it before
    /// the decision, so that no concurrent commit is missed.
    fn held_part(&self, rule: RuleId, version: u32, part: &Part<'_>, now: Nanos) -> HeldPart {
        let key = part.key;
        let is_bucket = part.rule.limit().is_bucket();
        let in_bucket = is_bucket.then(|| self.holds.buckets.reserve(rule, key));
        let held = Held {
            at: now,
            cost: part.cost,
            full_at: now,
        };
        HeldPart {
            rule,
            version,
            key,
            held,
            in_bucket,
            is_stored: false,
        }
    }

    /// Corrects one rule's charge. The actual cost is at most the rule's `max_cost`: the work is
    /// done, so the cost cannot be refused.
    fn correct(&self, rules: &RuleBlocks, part: &HeldPart, actual: &Actual<'_>, now: Nanos) {
        let known = rules.get(part.rule.0 as usize).filter(|_| part.is_stored);
        let corrected = known.and_then(|known| {
            let actual = actual
                .under(part.rule, part.held.cost)
                .min(known.rule.max_cost());
            let (held, actual) = present(known, part, actual, now)?;
            Some((known, held, actual))
        });
        let Some((known, held, actual)) = corrected else {
            return self.keep(part);
        };
        let HeldPart {
            rule,
            key,
            in_bucket,
            ..
        } = *part;
        let given_back = |held: &Held| known.rule.limit().given_back(now, held, actual);
        // Before the commit: a newer reservation that is committed meanwhile must know of it.
        let held = self
            .holds
            .buckets
            .correct((rule, key), in_bucket, held, given_back);
        let rule = &known.rule;
        let clients = &*known.clients;
        Part {
            rule,
            clients,
            key,
            cost: actual,
        }
        .commit(now, &held, actual);
    }

    fn keep(&self, part: &HeldPart) {
        self.holds.buckets.keep(part.rule, part.key, part.in_bucket);
    }
}

/// Returns the charge to be corrected and its actual cost under the present version of the rule; `None` if
/// nothing of the charge is left.
fn present(known: &Prepared, part: &HeldPart, actual: Cost, now: Nanos) -> Option<(Held, Cost)> {
    if part.version == known.version {
        return Some((part.held, actual));
    }
    // The estimate went with the states before; only the excess is charged.
    let is_more = actual > part.held.cost && !known.rule.limit().is_concurrent();
    is_more.then_some((
        Held {
            at: now,
            full_at: now,
            ..part.held
        },
        actual,
    ))
}

/// Returns the time for which a reservation is live: at most the timeouts of its rules of concurrent.
fn live_for<'r>(rules: impl Iterator<Item = &'r Rule>, ttl: Duration) -> Duration {
    rules
        .filter_map(|rule| rule.limit().hold_timeout())
        .fold(ttl, Duration::min)
}

/// Moves the places that a live reservation has under one rule of concurrent to `now`. Returns false
/// if they are gone, because the client was reset or the rule was changed.
fn renew_places(rules: &RuleBlocks, part: &mut HeldPart, now: Nanos) -> bool {
    let known = rules.get(part.rule.0 as usize).filter(|_| part.is_stored);
    let Some(known) = known.filter(|known| known.rule.limit().is_concurrent()) else {
        return true;
    };
    let rule = &known.rule;
    let clients = &*known.clients;
    let key = part.key;
    let is_renewed = part.version == known.version
        && Part {
            rule,
            clients,
            key,
            cost: part.held.cost,
        }
        .renew(now, &part.held);
    if is_renewed {
        part.held.at = now;
    }
    is_renewed
}

/// Returns the decision that a request of cost 1 would get under the rules of a reservation.
fn standing(rules: &RuleBlocks, parts: &[HeldPart], now: Nanos) -> Result<Decision, EngineError> {
    let mut standing = Each::new();
    for HeldPart { rule, key, .. } in parts {
        let (_, part) = known_part(rules, *rule, *key, Cost::ZERO)?;
        standing.push(Part {
            cost: Cost::ONE,
            ..part
        });
    }
    Ok(atomic::decide(&standing, Mode::Peek, &|| now))
}

/// Returns an error if a rule with an actual cost is not part of the reservation.
fn accept(parts: &[HeldPart], actual: &Actual<'_>) -> Result<(), EngineError> {
    let Actual::ByRule(costs) = actual else {
        return Ok(());
    };
    let missing = costs
        .iter()
        .find(|(rule, _)| parts.iter().all(|part| part.rule != *rule));
    missing.map_or(Ok(()), |(rule, _)| Err(EngineError::UnknownRule(*rule)))
}

#[cfg(test)]
#[path = "concurrent_tests.rs"]
mod concurrent_tests;
#[cfg(test)]
#[path = "hold_tests.rs"]
mod tests;
