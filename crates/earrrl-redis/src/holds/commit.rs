//! Commits: a call that reads the reservation, and one that corrects the records of each slot.

use std::sync::Arc;
use std::time::Duration;

use earrrl::{Actual, Committed, Cost, EngineError, HoldId, Mode, Nanos, RuleId};
use redis::Value;

use super::reserve::peek;
use crate::algorithm::{AlgorithmKind, Packed, micros};
use crate::calls::convert::{Called, converting};
use crate::connection::fault::Fault;
use crate::connection::link::Link;
use crate::hold_format::{self as format, StoredHold, StoredPart};
use crate::reply::split_time;
use crate::request::{KeyedCharge, Request, time_argument};
use crate::rules::PreparedRule;
use crate::shared::Shared;

/// The time for which a committed reservation is remembered.
const REMEMBERED: Duration = Duration::from_secs(60);

/// The result of the commit in one slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SlotCommit {
    Done,
    Repeated,
    Unknown,
}

/// A part of a reservation, with its rule's present parameters and the key of its record.
struct HeldCharge<'a> {
    part: &'a StoredPart,
    at: Nanos,
    charge: KeyedCharge,
}

/// The slots of a reservation, each with the place of its tag. The first one decides if the
/// reservation is live.
pub(crate) type StoredHolds = Vec<(usize, StoredHold)>;

/// Reads a reservation. Its expiry is judged by this node's idea of Redis's time, or the given time.
pub(crate) async fn read(
    shared: &Arc<Shared>,
    id: HoldId,
    given: Option<Nanos>,
) -> Result<StoredHolds, EngineError> {
    let first = format::first_place(shared, id);
    let unknown = || EngineError::UnknownReservation(id);
    let hold = read_slot(shared, id, first).await?.ok_or_else(unknown)?;
    let group = shared.connection.group(&shared.connection.keys.hold(id, first));
    let now = given.unwrap_or_else(|| shared.clocks.redis(group, shared.clocks.local()));
    if !hold.is_committed && hold.expires <= now {
        return Err(unknown());
    }
    let others = hold.others.clone();
    let mut holds = vec![(first, hold)];
    for place in others {
        // A part that is missing was evicted; its estimate stays.
        holds.extend(read_slot(shared, id, place).await?.map(|hold| (place, hold)));
    }
    Ok(holds)
}

async fn read_slot(
    shared: &Arc<Shared>,
    id: HoldId,
    place: usize,
) -> Result<Option<StoredHold>, Fault> {
    let key = shared.connection.keys.hold(id, place);
    let group = shared.connection.group(&key);
    let mut link = shared.connection.link(group)?;
    let mut get = redis::cmd("GET");
    get.arg(&key);
    let call = async { link.send(&get).await.map_err(Fault::from) };
    match shared.connection.within(shared.options.deadline, group, call).await? {
        Value::BulkString(bytes) => Ok(format::read(&bytes)),
        _ => Ok(None),
    }
}

/// Returns the rules of a reservation, in the order of the request.
pub(crate) fn rules(
    shared: &Shared,
    id: HoldId,
    holds: &StoredHolds,
) -> Result<Vec<RuleId>, EngineError> {
    let charges = held(shared, id, holds)?;
    Ok(in_order(&charges).iter().map(|held| held.charge.rule.id).collect())
}

fn in_order<'h, 'a>(charges: &'h [Vec<HeldCharge<'a>>]) -> Vec<&'h HeldCharge<'a>> {
    let mut all: Vec<_> = charges.iter().flatten().collect();
    all.sort_by_key(|held| held.part.place);
    all
}

/// Returns the charges of each slot of a reservation. A rule that this node does not have makes the
/// reservation unknown.
fn held<'a>(
    shared: &Shared,
    id: HoldId,
    holds: &'a StoredHolds,
) -> Result<Vec<Vec<HeldCharge<'a>>>, EngineError> {
    let known = shared.rules.all();
    let charge = |part: &'a StoredPart, at: Nanos| {
        let rule = known.iter().find(|rule| rule.name == part.rule)?.clone();
        let key = [&part.client[..], b":", rule.key.as_bytes()].concat();
        let slot = shared.connection.slot(&key);
        let (group, place) = (shared.connection.breakers.group(slot), part.place);
        let (client, cost) = (Vec::new(), part.cost);
        Some(HeldCharge {
            part,
            at,
            charge: KeyedCharge { rule, client, cost, place, key, slot, group },
        })
    };
    let slot = |(_, hold): &'a (usize, StoredHold)| -> Option<Vec<HeldCharge<'a>>> {
        hold.parts.iter().map(|part| charge(part, hold.at)).collect()
    };
    holds.iter().map(slot).collect::<Option<_>>().ok_or(EngineError::UnknownReservation(id))
}

/// Corrects the charges of a reservation to the actual cost. Every slot does so exactly once, so a
/// commit without an answer can be repeated.
pub(crate) async fn commit(
    shared: &Arc<Shared>,
    id: HoldId,
    actual: Actual<'_>,
    given: Option<Nanos>,
) -> Result<Committed, EngineError> {
    let holds = read(shared, id, given).await?;
    let charges = held(shared, id, &holds)?;
    let all = in_order(&charges);
    accepts(&all, &actual)?;
    let mut repeated = true;
    for (nth, ((place, _), charges)) in holds.iter().zip(&charges).enumerate() {
        let key = shared.connection.keys.hold(id, *place);
        match commit_slot(shared, key, charges, &actual, given).await? {
            SlotCommit::Unknown if nth == 0 => return Err(EngineError::UnknownReservation(id)),
            SlotCommit::Done => repeated = false,
            SlotCommit::Repeated | SlotCommit::Unknown => {}
        }
    }
    let one = |held: &&HeldCharge<'_>| KeyedCharge { cost: Cost::ONE, ..held.charge.clone() };
    let standing = all.iter().map(one).collect();
    let request = Request { charges: standing, now: given, mode: Mode::Peek, hold: None };
    let decision = peek(shared, request).await?;
    let rules = all.iter().map(|held| held.charge.rule.id);
    shared.holds.end(id);
    Ok(Committed::new(decision, rules, repeated))
}

/// Returns an error if a rule with an actual cost is not part of the reservation.
fn accepts(charges: &[&HeldCharge<'_>], actual: &Actual<'_>) -> Result<(), EngineError> {
    if let Actual::ByRule(costs) = actual {
        let is_part = |rule: RuleId| charges.iter().any(|held| held.charge.rule.id == rule);
        if let Some((rule, _)) = costs.iter().find(|(rule, _)| !is_part(*rule)) {
            return Err(EngineError::UnknownRule(*rule));
        }
    }
    Ok(())
}

/// Returns the actual cost under one rule, at most the rule's `max_cost`: the work is done, so the
/// cost cannot be refused.
fn cost(charge: &KeyedCharge, actual: &Actual<'_>) -> Cost {
    actual.under(charge.rule.id, charge.cost).min(charge.rule.rule.max_cost())
}

/// Commits the part of a reservation that is in one slot.
async fn commit_slot(
    shared: &Arc<Shared>,
    key: Vec<u8>,
    charges: &[HeldCharge<'_>],
    actual: &Actual<'_>,
    given: Option<Nanos>,
) -> Result<SlotCommit, Fault> {
    let group = shared.connection.group(&key);
    let link = shared.connection.link(group)?;
    let corrections: Vec<_> = charges
        .iter()
        .filter_map(|held| {
            Some((&held.charge, correction(shared, held, cost(&held.charge, actual))?))
        })
        .collect();
    let script = shared.connection.scripts.commit(corrections.iter().map(|(c, _)| c.rule.kind));
    let mut keys = vec![key];
    let mut args = vec![time_argument(given).to_vec()];
    args[0].extend((REMEMBERED.as_millis() as f64).to_le_bytes());
    for (charge, argument) in &corrections {
        keys.extend([charge.key.clone(), shared.connection.keys.given(&charge.key)]);
        args.push(argument.clone());
    }
    let (keys, args, corrections) = (&keys, &args, &corrections);
    let call = converting(shared, link, |mut link: Link| async move {
        let answer = link.call(script, keys, args).await?;
        let nonsense = || Fault::Record("the script's answer makes no sense".to_owned());
        let Value::BulkString(bytes) = answer else { return Err(nonsense()) };
        let (code, rest) = bytes.split_at_checked(2).ok_or_else(nonsense)?;
        let (time, _) = split_time(rest).ok_or_else(nonsense)?;
        Ok(match code[0] {
            b'0' => Called::Done(SlotCommit::Done),
            b'1' => Called::Done(SlotCommit::Repeated),
            b'2' => Called::Done(SlotCommit::Unknown),
            _ => {
                let (charge, _) = corrections.get(usize::from(code[1])).ok_or_else(nonsense)?;
                Called::Foreign(charge, given.or(time).ok_or_else(nonsense)?)
            }
        })
    });
    shared.connection.within(shared.options.deadline, group, call).await
}

/// Returns the argument of the script that corrects a charge; `None` if there is nothing to correct.
fn correction(shared: &Shared, held: &HeldCharge<'_>, actual: Cost) -> Option<Vec<u8>> {
    let HeldCharge { part, at, charge } = held;
    let PreparedRule { kind, tag, .. } = *charge.rule;
    let keeps_records = part.kind == kind as u8;
    if kind == AlgorithmKind::Concurrent {
        return freed(shared, held).filter(|_| keeps_records);
    }
    let back = actual < part.cost;
    if actual == part.cost || !part.is_stored || back && !keeps_records {
        return None;
    }
    let (sign, difference) = match back {
        true => (-1.0, part.cost.saturating_sub(actual)),
        false => (1.0, actual.saturating_sub(part.cost)),
    };
    // The estimate went with the records of another algorithm; only the excess is charged, now.
    let when = if keeps_records { micros(*at) } else { -1.0 };
    let bucket = part.bucket;
    // Under other parameters the bucket may have been full at any time since the reservation.
    let full_at = if part.tag == tag { bucket.full_at } else { (0.0, 0.0) };
    let mut packed = Packed(vec![kind as u8, u8::from(back)]);
    packed.numbers(&[when, full_at.0, full_at.1, bucket.given.0, bucket.given.1]);
    packed.0.extend(charge.rule.parameters(difference, shared.options.linger, sign));
    Some(packed.0)
}

/// Returns the argument of the script that frees the places of a reservation under concurrent, at the
/// time that the reservation then has for them.
fn freed(shared: &Shared, held: &HeldCharge<'_>) -> Option<Vec<u8>> {
    let taken_at = held.part.taken_at.filter(|_| held.part.is_stored)?;
    let mut packed = Packed(vec![AlgorithmKind::Concurrent as u8, 2]);
    packed.numbers(&[-1.0, 0.0, 0.0, taken_at as f64, 0.0]);
    packed.0.extend(held.charge.rule.parameters(held.part.cost, shared.options.linger, -1.0));
    Some(packed.0)
}

/// Returns the record whose places a renewal moves, and the argument of the script for it; `None`
/// but for a rule of concurrent.
fn renewed(shared: &Shared, held: &HeldCharge<'_>) -> Option<(Vec<u8>, Vec<u8>)> {
    let HeldCharge { part, charge, .. } = held;
    let is_concurrent = charge.rule.kind == AlgorithmKind::Concurrent;
    let taken_at = part.taken_at.filter(|_| part.is_stored && is_concurrent)?;
    let mut packed = Packed::default();
    packed.numbers(&[taken_at as f64]);
    packed.0.extend(charge.rule.parameters(part.cost, shared.options.linger, 1.0));
    Some((charge.key.clone(), packed.0))
}

/// Prolongs a live reservation in each of its slots, at most by the timeouts of its rules of
/// concurrent, and moves its places there.
pub(crate) async fn renew(
    shared: &Arc<Shared>,
    id: HoldId,
    ttl: Duration,
    given: Option<Nanos>,
) -> Result<(), EngineError> {
    let holds = read(shared, id, given).await?;
    let charges = held(shared, id, &holds)?;
    let timeouts = charges.iter().flatten();
    let timeouts = timeouts.filter_map(|held| held.charge.rule.rule.limit().hold_timeout());
    let ttl = timeouts.fold(ttl, Duration::min);
    let mut argument = Packed(time_argument(given).to_vec());
    argument.numbers(&format::lasts(shared, ttl));
    for ((place, hold), charges) in holds.iter().zip(&charges) {
        let key = shared.connection.keys.hold(id, *place);
        let moved = charges.iter().filter_map(|held| renewed(shared, held));
        let first = (key.clone(), argument.0.clone());
        let (keys, args): (Vec<_>, Vec<_>) = std::iter::once(first).chain(moved).unzip();
        let group = shared.connection.group(&key);
        let mut link = shared.connection.link(group)?;
        let call = link.call(&shared.connection.scripts.renew, &keys, &args);
        let call = async { call.await.map_err(Fault::from) };
        let renewed = shared.connection.within(shared.options.deadline, group, call).await?;
        if hold.is_committed || renewed != Value::Int(1) {
            return Err(EngineError::UnknownReservation(id));
        }
    }
    Ok(())
}
