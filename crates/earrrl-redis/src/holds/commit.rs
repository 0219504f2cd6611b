//! Commits: a call that corrects the records of each slot, and returns their states after it.

use std::sync::Arc;
use std::time::Duration;

use earrrl::{Actual, Committed, Cost, EngineError, HoldId, Nanos, RuleId};
use redis::Value;

use super::find::{HeldCharge, HeldSlot, find, read_slot};
use crate::algorithm::{AlgorithmKind, Packed};
use crate::connection::fault::Fault;
use crate::connection::script::Frame;
use crate::figures;
use crate::hold_format::{self as format, ActualCosts};
use crate::reply::{self, CommitReply, CommitStatus};
use crate::request::time_argument;
use crate::shared::Shared;

/// The time for which a committed reservation is remembered.
const REMEMBERED: Duration = Duration::from_secs(60);

/// The flags of a correction in `commit.lua`.
const GIVES_BACK: u8 = 1;
const CORRECTS: u8 = 2;
const AT_PRESENT: u8 = 4;
const SAME_PARAMETERS: u8 = 8;

/// Corrects the charges of a reservation to the actual cost. Every slot does so exactly once, so a
/// commit without an answer can be repeated. If several commits meet, the one that is first in the
/// reservation's first slot wins, and the other slots are corrected to its costs.
pub(crate) async fn commit(
    shared: &Arc<Shared>,
    id: HoldId,
    actual: Actual<'_>,
    given: Option<Nanos>,
) -> Result<Committed, EngineError> {
    let slots = find(shared, id, given).await?;
    accepts(&slots, &actual)?;
    let mut repeated = false;
    let mut standing = Vec::new();
    let mut costs = costs_of(&slots, &actual);
    for (nth, slot) in slots.iter().enumerate() {
        let reply = commit_slot(shared, id, slot, (&costs, slots.len() > 1), given).await?;
        match reply.status {
            CommitStatus::Unknown if nth == 0 => {
                shared.holds.end(id);
                return Err(EngineError::UnknownReservation(id));
            }
            CommitStatus::Repeated if nth == 0 => {
                repeated = true;
                if slots.len() > 1 {
                    let first = read_slot(shared, id, slot.place).await?;
                    // A server of an earlier version stores no costs.
                    let stored = first
                        .map(|hold| hold.actual)
                        .filter(|costs| !costs.is_empty());
                    costs = stored.unwrap_or(costs);
                }
            }
            CommitStatus::Done | CommitStatus::Repeated | CommitStatus::Unknown => {}
        }
        let at = reply.time.or(given).unwrap_or(Nanos::ZERO);
        let states = reply.states.into_iter().map(|state| (state, at));
        standing.extend(slot.charges.iter().map(|held| &held.charge).zip(states));
    }
    standing.sort_by_key(|(charge, _)| charge.place);
    let rules = standing.iter().map(|(charge, _)| charge.rule.id);
    let states = standing
        .iter()
        .map(|(charge, state)| (&charge.rule.rule, state));
    let committed = Committed::new(figures::standing(states), rules, repeated);
    shared.holds.end(id);
    Ok(committed)
}

/// Returns an error if a rule with an actual cost is not part of the reservation.
fn accepts(slots: &[HeldSlot], actual: &Actual<'_>) -> Result<(), EngineError> {
    if let Actual::ByRule(costs) = actual {
        let charges = || slots.iter().flat_map(|slot| &slot.charges);
        let is_part = |rule: RuleId| charges().any(|held| held.charge.rule.id == rule);
        if let Some((rule, _)) = costs.iter().find(|(rule, _)| !is_part(*rule)) {
            return Err(EngineError::UnknownRule(*rule));
        }
    }
    Ok(())
}

/// Returns the actual cost of each charge.
fn costs_of(slots: &[HeldSlot], actual: &Actual<'_>) -> ActualCosts {
    let cost = |HeldCharge { charge, .. }: &HeldCharge| {
        (charge.place, actual.under(charge.rule.id, charge.cost))
    };
    slots
        .iter()
        .flat_map(|slot| &slot.charges)
        .map(cost)
        .collect()
}

/// Commits the part of a reservation that is in one slot. The costs are stored there if `stores` is true.
async fn commit_slot(
    shared: &Arc<Shared>,
    id: HoldId,
    slot: &HeldSlot,
    (costs, stores): (&ActualCosts, bool),
    given: Option<Nanos>,
) -> Result<CommitReply, Fault> {
    let mut keys = vec![shared.connection.keys.hold(id, slot.place)];
    let group = shared.connection.group(&keys[0]);
    let mut link = shared.connection.link(group)?;
    let kinds: Vec<_> = slot
        .charges
        .iter()
        .map(|held| held.charge.rule.kind)
        .collect();
    let frame = match kinds.len() {
        1 => Frame::CommitOne,
        _ => Frame::Commit,
    };
    let script = shared.connection.scripts.get(frame, kinds);
    let mut head = Packed(time_argument(given).to_vec());
    head.numbers(&[REMEMBERED.as_millis() as f64]);
    if stores {
        format::pack_actual(costs, &mut head);
    }
    let mut args = vec![head.0];
    for held in &slot.charges {
        let key = &held.charge.key;
        keys.extend([key.clone(), shared.connection.keys.given(key)]);
        args.push(correction(shared, held, costs));
    }
    let call = async {
        let answer = link.call(script, &keys, &args).await?;
        reply::commit(&answer, slot.charges.len()).ok_or_else(Fault::nonsense)
    };
    shared
        .connection
        .within(shared.options.deadline, group, call)
        .await
}

/// Returns the argument of the script that corrects a charge. An actual cost is at most the rule's `max_cost`:
/// the work is done, so the cost cannot be refused. If the rule was changed so that the charge means something else
/// now, nothing is given back, and the excess is charged at present.
fn correction(shared: &Shared, held: &HeldCharge, costs: &ActualCosts) -> Vec<u8> {
    let charge = &held.charge;
    let rule = &charge.rule;
    let estimate = charge.cost;
    let cost = costs.iter().find(|(place, _)| *place == charge.place);
    let actual = cost
        .map_or(estimate, |(_, cost)| *cost)
        .min(rule.rule.max_cost());
    let means_the_same = held.tag == rule.charge_tag;
    let (flags, difference) = if rule.kind == AlgorithmKind::Concurrent {
        (
            GIVES_BACK | if means_the_same { CORRECTS } else { 0 },
            estimate,
        )
    } else {
        match (actual < estimate, means_the_same) {
            (true, true) => (GIVES_BACK | CORRECTS, estimate.saturating_sub(actual)),
            (true, false) => (0, Cost::ZERO),
            (false, true) => (CORRECTS, actual.saturating_sub(estimate)),
            (false, false) => (CORRECTS | AT_PRESENT, actual.saturating_sub(estimate)),
        }
    };
    let flags = if difference.is_zero() { 0 } else { flags };
    let same = if means_the_same { SAME_PARAMETERS } else { 0 };
    let sign = if flags & GIVES_BACK == 0 { 1.0 } else { -1.0 };
    let mut packed = vec![rule.kind as u8, flags | same];
    packed.extend(rule.parameters(difference, shared.options.linger, sign));
    packed
}

/// Returns the argument of the script that moves the places of a reservation under concurrent to the
/// present; empty under other algorithms.
fn renewal(shared: &Shared, held: &HeldCharge) -> Vec<u8> {
    let rule = &held.charge.rule;
    if rule.kind != AlgorithmKind::Concurrent || held.tag != rule.charge_tag {
        return Vec::new();
    }
    held.charge.parameters(shared.options.linger)
}

/// Prolongs a live reservation in each of its slots, at most by the timeouts of its rules of
/// concurrent, and moves its places there.
pub(crate) async fn renew(
    shared: &Arc<Shared>,
    id: HoldId,
    ttl: Duration,
    given: Option<Nanos>,
) -> Result<(), EngineError> {
    let slots = find(shared, id, given).await?;
    let timeouts = slots.iter().flat_map(|slot| &slot.charges);
    let timeouts = timeouts.filter_map(|held| held.charge.rule.rule.limit().hold_timeout());
    let ttl = timeouts.fold(ttl, Duration::min);
    let mut argument = Packed(time_argument(given).to_vec());
    argument.numbers(&format::lasts(shared, ttl));
    for slot in &slots {
        let key = shared.connection.keys.hold(id, slot.place);
        let group = shared.connection.group(&key);
        let moved = slot
            .charges
            .iter()
            .map(|held| (held.charge.key.clone(), renewal(shared, held)));
        let first = (key, argument.0.clone());
        let (keys, args): (Vec<_>, Vec<_>) = std::iter::once(first).chain(moved).unzip();
        let mut link = shared.connection.link(group)?;
        let call = link.call(
            shared.connection.scripts.get(Frame::Renew, []),
            &keys,
            &args,
        );
        let call = async { call.await.map_err(Fault::from) };
        let renewed = shared
            .connection
            .within(shared.options.deadline, group, call)
            .await?;
        if renewed != Value::Int(1) {
            return Err(EngineError::UnknownReservation(id));
        }
    }
    Ok(())
}
