//! Reservations in memory: an estimate is charged at once, and a commit corrects it to the actual
//! cost.

use core::time::Duration;
use std::vec::Vec;

use super::prepared::Rules;
use super::{MemoryEngine, rule_of, with_distinct};
use crate::algorithm::Mode;
use crate::clock::{Clock, Nanos};
use crate::cost::Cost;
use crate::decision::Decision;
use crate::engine::{Charge, EngineError, RuleId, restore_places};
use crate::held::OnExpiry;
use crate::hold::{Actual, Committed, HoldTerms, Holding};
use crate::hold_id::HoldId;
use crate::holds::{HeldPart, Hold, Reservations, share_of_client};
use crate::rule::Rule;
use crate::rules::atomic::{self, Each};
use crate::rules::grant::live_for;
use crate::rules::part::Part;
use crate::rules::reserve::{Reserved, Reserves, charge_estimates};
#[cfg(target_os = "linux")]
use crate::store::StateError;

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
        let mut usage = self.holds.usage();
        let rules = self.rules.load();
        let clients = rules.iter().map(|known| known.clients.live().bytes());
        usage.bytes += clients.sum::<usize>();
        usage
    }

    /// Returns the rules of a reservation that is live or was committed lately.
    ///
    /// # Errors
    /// Returns an error if the reservation is unknown or expired.
    #[doc(hidden)]
    pub fn reserved_rules(&self, id: HoldId) -> Result<Vec<RuleId>, EngineError> {
        let mut shard = self.holds.lock(id);
        let parts = shard.parts(id, self.clock.now());
        let rules = parts.map(|parts| parts.iter().map(|part| part.rule).collect());
        rules.ok_or(EngineError::UnknownReservation(id))
    }

    /// Returns true if this engine made a reservation of this id, also if that has expired, or was
    /// committed so long ago that it is forgotten.
    #[doc(hidden)]
    pub fn has_issued(&self, id: HoldId) -> bool {
        self.holds.has_issued(id)
    }

    /// Checks a request whose cost is only estimated, and reserves the estimate under all rules if
    /// it is allowed. The estimate is charged at once, so that every decision counts it. A
    /// [`commit`](Self::commit) with the returned id corrects the charge to the actual cost.
    ///
    /// If the terms name an id, a repeated request is answered again and charged once, also for a minute after
    /// the commit. So a request whose answer was lost can be sent again.
    ///
    /// One client may have a sixteenth of all reservations under each rule, at least 64, and is denied more.
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
    /// Returns an error if a charge or the terms are invalid, another request has the id, or as many reservations
    /// are live as the engine keeps.
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
        let hold = |charges: &[Charge<'_>]| self.hold_distinct(&rules, charges, terms, now);
        with_distinct(&rules, charges, hold, |holding: &mut Holding, merged| {
            restore_places(&mut holding.decision, merged);
            let mut granted = std::vec![Cost::ZERO; charges.len()];
            for ((place, _), cost) in merged.iter().zip(holding.granted()) {
                granted[*place] = *cost;
            }
            *holding = Holding::new(holding.decision, holding.id, granted);
        })
    }

    /// Reserves under charges of which no two have the same rule and key. A reservation that exists already is
    /// answered again.
    fn hold_distinct(
        &self,
        rules: &Rules,
        charges: &[Charge<'_>],
        terms: HoldTerms,
        now: Nanos,
    ) -> Result<Holding, EngineError> {
        let id = self.holds.id(terms.id);
        // Locked until the reservation is stored, so that a repeated request waits for the first one.
        let mut shard = self.holds.lock(id);
        if let Some(parts) = shard.parts(id, now) {
            return self.again(rules, charges, (id, parts), now);
        }
        let mut parts = Each::new();
        for charge in charges {
            parts.push(self.known_part(rules, charge)?.1);
        }
        self.holds.count_live()?;
        let most = share_of_client(self.holds.most());
        let mut reserves = Reserves::new();
        let decision = charge_estimates(&parts, terms.at_most, most, now, &mut reserves);
        if reserves.is_empty() {
            self.holds.discount_live(1);
            let nothing = charges.iter().map(|_| Cost::ZERO);
            return Ok(Holding::new(decision, None, nothing));
        }
        let granted = reserves.iter().map(|reserved| reserved.held.cost);
        let holding = Holding::new(decision, Some(id), granted);
        let has_file = self.holds.has_file();
        let hold = |(reserved, (part, charge)): (&mut Reserved, (&Part<'_>, &Charge<'_>))| {
            reserved.live.is_foreign = part.clients.file().is_some() && !has_file;
            let known = rules.get(charge.rule.0 as usize);
            HeldPart {
                rule: charge.rule,
                name: known.map_or(0, |known| known.name_hash),
                key: part.key,
                reserved: *reserved,
                record: None,
            }
        };
        let held = reserves.iter_mut().zip(parts.iter().zip(charges));
        let expires = now + live_for(parts.iter().map(|part| part.rule), terms.ttl);
        let hold = Hold::new(held.map(hold).collect(), expires);
        self.holds.insert(&mut shard, id, hold, now);
        Ok(holding)
    }

    /// Returns the answer to a request for a reservation that exists already; an error if that is of another
    /// request.
    fn again(
        &self,
        rules: &Rules,
        charges: &[Charge<'_>],
        (id, parts): (HoldId, &[HeldPart]),
        now: Nanos,
    ) -> Result<Holding, EngineError> {
        let same = |(charge, part): (&Charge<'_>, &HeldPart)| {
            charge.rule == part.rule
                && self.hash(charge.key) == part.key
                && part.reserved.held.cost <= charge.cost
        };
        if charges.len() != parts.len() || !charges.iter().zip(parts).all(same) {
            return Err(EngineError::OtherReservation(id));
        }
        let decision = standing(rules, parts, now)?.let_pass();
        let granted = parts.iter().map(|part| part.reserved.held.cost);
        Ok(Holding::new(decision, Some(id), granted))
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
        self.holds.commit(id, now, |parts, repeated, mark| {
            if !repeated {
                let is_part = |rule| parts.iter().any(|part| part.rule == rule);
                if let Some(rule) = actual.unknown(is_part) {
                    return Err(EngineError::UnknownRule(rule));
                }
                // A process that is killed meanwhile may charge twice, but gives nothing back twice.
                let is_above = |part: &&HeldPart| {
                    let estimate = part.reserved.held.cost;
                    actual.under(part.rule, estimate) > estimate
                };
                let correct = |part| self.correct(&rules, part, &actual, now);
                parts.iter().filter(is_above).for_each(correct);
                mark();
                parts
                    .iter()
                    .filter(|part| !is_above(part))
                    .for_each(correct);
            }
            let decision = standing(&rules, parts, now)?;
            let of = parts.iter().map(|part| part.rule);
            Ok(Committed::new(decision, of, repeated))
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
            let renew = |held: &mut HeldPart| {
                let part = held_part(&rules, held);
                part.is_none_or(|part| part.renew(&mut held.reserved, now))
            };
            let are_renewed = parts.iter_mut().all(renew);
            let renewed = parts.iter().filter_map(|part| rule_of(&rules, part.rule));
            are_renewed.then(|| live_for(renewed, ttl))
        })
    }

    /// Ends the reservations that have expired. Each [`hold`](Self::hold) does so too; call this
    /// regularly if holds are rare and rules release expired reservations.
    #[doc(hidden)]
    pub fn expire(&self) {
        self.expire_holds(self.clock.now());
    }

    /// Takes the file of the directory's reservations, if no other process has it by now.
    #[cfg(target_os = "linux")]
    pub(super) fn take_file(&self, now: Nanos) -> Result<(), StateError> {
        if let Some(directory) = &self.directory
            && self.holds.take_file(directory, now)?
        {
            for (place, known) in self.rules.load().iter().enumerate() {
                let id = RuleId(place as u32);
                self.holds.attach(known.name_hash, id, &known.clients);
            }
        }
        Ok(())
    }

    fn expire_holds(&self, now: Nanos) {
        // A file that cannot be taken now is asked for again later.
        #[cfg(target_os = "linux")]
        let _ = self.take_file(now);
        let expired = self.holds.expire(now);
        if expired.is_empty() {
            return;
        }
        let rules = self.rules.load();
        for part in expired.iter().flatten() {
            match rule_of(&rules, part.rule).map(Rule::on_expiry) {
                Some(OnExpiry::Release) => {
                    self.correct(&rules, part, &Actual::All(Cost::ZERO), now);
                }
                _ => {
                    if let Some(known) = held_part(&rules, part) {
                        known.forget(&part.reserved);
                    }
                }
            }
        }
    }

    /// Corrects one rule's charge.
    fn correct(&self, rules: &Rules, part: &HeldPart, actual: &Actual<'_>, now: Nanos) {
        let reserved = &part.reserved;
        let actual = actual.under(part.rule, reserved.held.cost);
        if let Some(known) = held_part(rules, part) {
            known.correct(reserved, actual, now);
        }
    }
}

/// Returns one rule's part of a reserved request.
fn held_part<'a>(rules: &'a Rules, held: &HeldPart) -> Option<Part<'a>> {
    let known = rules.get(held.rule.0 as usize)?;
    Some(Part {
        rule: &known.rule,
        clients: &known.clients,
        key: held.key,
        cost: held.reserved.held.cost,
    })
}

/// Returns the decision that a request of cost 1 would get under the rules of a reservation.
fn standing(rules: &Rules, parts: &[HeldPart], now: Nanos) -> Result<Decision, EngineError> {
    let mut standing = Each::new();
    // A rule of an earlier process may be gone.
    for part in parts.iter().filter_map(|held| held_part(rules, held)) {
        standing.push(Part {
            cost: Cost::ONE,
            ..part
        });
    }
    if standing.is_empty() {
        let rule = parts.first().map_or(RuleId(0), |part| part.rule);
        return Err(EngineError::UnknownRule(rule));
    }
    Ok(atomic::decide(&standing, Mode::Peek, &|| now))
}

#[cfg(test)]
#[path = "concurrent_tests.rs"]
mod concurrent_tests;
#[cfg(test)]
#[path = "hold_tests.rs"]
mod tests;
