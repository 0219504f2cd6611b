//! Reservations: an estimate is charged at once, and a commit corrects it to the actual cost.
//!
//! A reservation is a key beside the records of its client, in the same slot, so that one script
//! charges the estimate and stores the reservation, and one corrects the records and marks the
//! reservation as committed. The node that made a reservation knows its request. Another one reads it
//! first. If a reservation's records are in several slots of a Cluster, each slot
//! has a part of it, which is committed exactly once. The id contains the slot of the first one.
//!
//! A request under an id that the caller chose can be repeated: if the reservation is there, it is answered again.
//! The script looks once more, so that of two calls at a time only one charges.

use std::sync::Arc;
use std::time::Duration;

use earrrl::internal::grant::{GRANTS, granted, is_tried_again, live_for};
use earrrl::internal::{crowded, lock};
use earrrl::{
    Actual, Committed, Cost, Decision, EngineError, HoldId, HoldTerms, Holding, Mode, Nanos,
    RuleError, RuleId,
};
use redis::Value;

use crate::algorithm::AlgorithmKind;
use crate::connection::fault::Fault;
use crate::connection::script::Frame;
use crate::decide::{Failure, ask};
use crate::hold_format::{self as format, ActualCosts, StoredHold, StoredPart};
use crate::key::place_of;
use crate::reply::{self, CommitReply, CommitStatus};
use crate::request::{HoldRequest, KeyedCharge, Request, time_argument};
use crate::shared::Shared;
use crate::{figures, outage};

/// Reserves a request of this many charges. The reservation is made even if the caller stops waiting. If
/// the terms permit less than the estimate and another request has used what remained, reserves what
/// remains then.
pub(crate) async fn hold(
    shared: Arc<Shared>,
    request: Request,
    terms: HoldTerms,
    count: usize,
) -> Result<Holding, EngineError> {
    terms.check()?;
    let mut tries = if terms.at_most { GRANTS } else { 1 };
    loop {
        tries -= 1;
        let holding = hold_once(shared.clone(), request.clone(), terms, count).await?;
        let rules = request.charges.iter().map(|charge| &charge.rule.rule);
        if tries == 0 || !is_tried_again(&holding.decision, rules) {
            return Ok(holding);
        }
    }
}

async fn hold_once(
    shared: Arc<Shared>,
    mut request: Request,
    terms: HoldTerms,
    count: usize,
) -> Result<Holding, EngineError> {
    if let Some(charge) = request
        .charges
        .iter()
        .find(|charge| charge.rule.near.is_some())
    {
        let problem = format!("{}: a near rule has no reservations", charge.rule.name);
        return Err(RuleError::new(problem).of("consistency").into());
    }
    let id = new_id(&request, terms.id)?;
    if terms.id.is_some()
        && let Some(holding) = again(&shared, &request, id, count).await?
    {
        return Ok(holding);
    }
    if terms.at_most {
        for place in 0..request.charges.len() {
            let charge = &request.charges[place];
            request.charges[place].cost = grant(&shared, charge, &request).await?;
        }
    }
    let rules = request.charges.iter().map(|charge| &charge.rule.rule);
    let ttl = live_for(rules, terms.ttl);
    let is_chosen = terms.id.is_some();
    let hold = HoldRequest { id, ttl, is_chosen };
    let mut granted = vec![Cost::ZERO; count];
    for charge in &request.charges {
        granted[charge.place] = charge.cost;
    }
    let request = Arc::new(Request {
        hold: Some(hold),
        ..request
    });
    let since = shared.clocks.now(request.now);
    let taken = lock(&shared.holds).take(id, request.clone(), since, since + ttl)?;
    if let Some(place) = taken {
        let peeked = peek(&shared, Request::clone(&request)).await?;
        granted.fill(Cost::ZERO);
        return Ok(Holding::new(crowded(peeked, place), None, granted));
    }
    // In a task, which runs to its end even if the caller stops waiting.
    let decision = tokio::spawn(async move {
        let decision = outage::by_redis(&shared, &request).await;
        let decision = decision.map_err(|failure| give_up(&shared, &request, failure));
        if !decision.as_ref().is_ok_and(|decision| decision.allowed) {
            lock(&shared.holds).remove(id);
        }
        decision
    });
    let stopped = |_| Err(EngineError::Unavailable("a task was stopped".to_owned()));
    let decision = decision.await.unwrap_or_else(stopped)?;
    if !decision.allowed {
        granted.fill(Cost::ZERO);
    }
    let id = decision.allowed.then_some(id);
    Ok(Holding::new(decision, id, granted))
}

/// Returns the id of a new reservation, in the slot of the request's first charge: that of the bits which the
/// caller chose, or one that nobody can guess.
fn new_id(request: &Request, chosen: Option<HoldId>) -> Result<HoldId, EngineError> {
    let slot = request.charges.first().map_or(0, |charge| charge.slot);
    if let Some(chosen) = chosen {
        // Without an answer, it could not be known in which of several slots the reservation was made.
        if request.charges.iter().any(|charge| charge.slot != slot) {
            let problem = "a chosen id needs clients in one slot of the Cluster, as one key is";
            return Err(RuleError::new(problem.to_owned()).of("reservation").into());
        }
        // The lowest bits are the place of the slot.
        return Ok(format::id_in(slot, chosen.bits() << 10));
    }
    let mut random = [0; 16];
    getrandom::fill(&mut random).map_err(|error| EngineError::Unavailable(error.to_string()))?;
    Ok(format::id_in(slot, u128::from_le_bytes(random)))
}

/// Returns the answer to a request for a reservation that exists already; `None` if there is none, and an error if
/// it is of another request.
async fn again(
    shared: &Arc<Shared>,
    request: &Request,
    id: HoldId,
    count: usize,
) -> Result<Option<Holding>, EngineError> {
    let Some(held) = read(shared, id, request.now).await? else {
        return Ok(None);
    };
    let mut granted = vec![Cost::ZERO; count];
    for charge in &request.charges {
        let same = held.iter().find(|held| held.charge.key == charge.key);
        let cost = same.map(|same| same.charge.cost);
        let Some(cost) = cost.filter(|cost| *cost <= charge.cost) else {
            return Err(EngineError::OtherReservation(id));
        };
        granted[charge.place] = cost;
    }
    if held.len() != request.charges.len() {
        return Err(EngineError::OtherReservation(id));
    }
    let decision = peek(shared, request.clone()).await?.let_pass();
    Ok(Some(Holding::new(decision, Some(id), granted)))
}

/// Notes that nothing is reserved without an answer: charges that Redis may have stored are taken back, unless the
/// caller can repeat the request.
fn give_up(shared: &Shared, request: &Arc<Request>, failure: Failure) -> EngineError {
    if !request.hold.is_some_and(|hold| hold.is_chosen) {
        shared.unsettled.add(request, failure.unanswered, 0, true);
    }
    failure.fault.into()
}

/// Returns the cost that a charge is granted: the estimate, or the remaining quota if that is less.
async fn grant(
    shared: &Arc<Shared>,
    charge: &KeyedCharge,
    request: &Request,
) -> Result<Cost, EngineError> {
    let one = KeyedCharge {
        cost: Cost::ONE,
        ..charge.clone()
    };
    let peeked = peek(
        shared,
        Request {
            charges: vec![one],
            ..*request
        },
    )
    .await?;
    Ok(granted(&charge.rule.rule, charge.cost, || peeked.remaining))
}

/// Returns the decision that a request would get from Redis.
async fn peek(shared: &Arc<Shared>, request: Request) -> Result<Decision, EngineError> {
    let request = Arc::new(Request {
        hold: None,
        mode: Mode::Peek,
        ..request
    });
    let observed = ask(shared, &request)
        .await
        .map_err(|failure| failure.fault)?;
    Ok(figures::decide(&request, &observed).0)
}

/// A charge of a reservation. Its rule and its key are the present ones, and its cost is the estimate.
struct HeldCharge {
    charge: KeyedCharge,
    /// The tag of the rule's charges when the reservation was made.
    tag: u32,
}

/// Returns the parts of a reservation in each slot. The first part decides if the reservation is live.
fn by_slot(held: &[HeldCharge]) -> impl Iterator<Item = &[HeldCharge]> {
    held.chunk_by(|one, other| one.charge.slot == other.charge.slot)
}

/// Returns the charges of a reservation, slot by slot. The expiry of one that another node made is judged by this
/// node's idea of Redis's time, or the given time.
async fn find(
    shared: &Arc<Shared>,
    id: HoldId,
    given: Option<Nanos>,
) -> Result<Vec<HeldCharge>, EngineError> {
    let made_here = lock(&shared.holds).request(id);
    let held = match made_here {
        Some(request) => own(shared, &request),
        None => read(shared, id, given).await?,
    };
    held.ok_or(EngineError::UnknownReservation(id))
}

/// Returns the rules of a reservation, in the order of the request.
pub(crate) async fn rules(
    shared: &Arc<Shared>,
    id: HoldId,
    given: Option<Nanos>,
) -> Result<Vec<RuleId>, EngineError> {
    let mut held = find(shared, id, given).await?;
    held.sort_by_key(|held| held.charge.place);
    Ok(held.iter().map(|held| held.charge.rule.id).collect())
}

/// Returns the charges of a reservation that this node made.
fn own(shared: &Shared, request: &Request) -> Option<Vec<HeldCharge>> {
    let held = |place: usize| {
        let charge = &request.charges[place];
        let rule = shared.rules.get(charge.rule.id)?;
        Some(HeldCharge {
            charge: shared.keyed(rule, &charge.client, charge.cost, place),
            tag: charge.rule.charge_tag,
        })
    };
    request.by_slot().into_iter().flatten().map(held).collect()
}

/// Reads a reservation from Redis. Returns `None` if there is none, or this node does not have one of its rules.
async fn read(
    shared: &Arc<Shared>,
    id: HoldId,
    given: Option<Nanos>,
) -> Result<Option<Vec<HeldCharge>>, EngineError> {
    let first = format::first_place(shared, id);
    let Some(hold) = read_slot(shared, id, first).await? else {
        return Ok(None);
    };
    let group = shared
        .connection
        .group(&shared.connection.keys.hold(id, first));
    let now = shared.clocks.present(group, given);
    if !hold.is_committed && hold.expires <= now {
        return Ok(None);
    }
    let mut parts = hold.parts;
    for place in hold.others {
        // A part that is missing was evicted; its estimate stays.
        let other = read_slot(shared, id, place).await?;
        parts.extend(other.into_iter().flat_map(|other| other.parts));
    }
    let rules = shared.rules.all();
    let held = |part: StoredPart| {
        let rule = rules.iter().find(|rule| rule.name == part.rule)?.clone();
        let key = [&part.client[..], b":", rule.key.as_bytes()].concat();
        let charge = KeyedCharge {
            place: part.place,
            ..shared.of_record(rule, key, part.cost)
        };
        let tag = part.tag;
        Some(HeldCharge { charge, tag })
    };
    Ok(parts.into_iter().map(held).collect())
}

/// Reads the part of a reservation that is in one slot.
async fn read_slot(
    shared: &Arc<Shared>,
    id: HoldId,
    place: usize,
) -> Result<Option<StoredHold>, Fault> {
    let key = shared.connection.keys.hold(id, place);
    let group = shared.connection.group(&key);
    let mut get = redis::cmd("GET");
    get.arg(&key);
    match shared.connection.send(group, &get).await? {
        Value::BulkString(bytes) => Ok(format::read(&bytes)),
        _ => Ok(None),
    }
}

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
    let held = find(shared, id, given).await?;
    let is_part = |rule| held.iter().any(|held| held.charge.rule.id == rule);
    if let Some(rule) = actual.unknown(is_part) {
        return Err(EngineError::UnknownRule(rule));
    }
    let mut repeated = false;
    let mut standing = Vec::new();
    let cost = |HeldCharge { charge, .. }: &HeldCharge| {
        (charge.place, actual.under(charge.rule.id, charge.cost))
    };
    let mut costs: ActualCosts = held.iter().map(cost).collect();
    let has_several = by_slot(&held).count() > 1;
    for (nth, slot) in by_slot(&held).enumerate() {
        let reply = commit_slot(shared, id, slot, &costs, has_several, given).await?;
        match reply.status {
            CommitStatus::Unknown if nth == 0 => {
                lock(&shared.holds).remove(id);
                return Err(EngineError::UnknownReservation(id));
            }
            CommitStatus::Repeated if nth == 0 => {
                repeated = true;
                if has_several {
                    let first = read_slot(shared, id, format::first_place(shared, id)).await?;
                    costs = first.map_or(costs, |hold| hold.actual);
                }
            }
            _ => {}
        }
        let at = reply.time.or(given).unwrap_or(Nanos::ZERO);
        for (held, state) in slot.iter().zip(reply.states) {
            standing.push((&held.charge, state, at));
        }
    }
    standing.sort_by_key(|(charge, ..)| charge.place);
    let rules: Vec<_> = standing.iter().map(|(charge, ..)| charge.rule.id).collect();
    let states = standing
        .into_iter()
        .map(|(charge, state, at)| (&charge.rule.rule, state, at));
    let committed = Committed::new(figures::standing(states), rules, repeated);
    lock(&shared.holds).remove(id);
    Ok(committed)
}

/// Commits the part of a reservation that is in one slot. The costs are stored there if `stores` is true.
async fn commit_slot(
    shared: &Arc<Shared>,
    id: HoldId,
    slot: &[HeldCharge],
    costs: &ActualCosts,
    stores: bool,
    given: Option<Nanos>,
) -> Result<CommitReply, Fault> {
    let first = &slot[0].charge;
    let mut keys = vec![shared.connection.keys.hold(id, place_of(first.slot))];
    let frame = match slot.len() {
        1 => Frame::CommitOne,
        _ => Frame::Commit,
    };
    let kinds = slot.iter().map(|held| held.charge.rule.kind);
    let script = shared.connection.scripts.get(frame, kinds);
    let mut head = time_argument(given);
    head.numbers(&[REMEMBERED.as_millis() as f64]);
    if stores {
        format::pack_actual(costs, &mut head);
    }
    let now = shared.clocks.present(first.group, given);
    let mut args = vec![head.0];
    for held in slot {
        let key = &held.charge.key;
        keys.extend([key.clone(), shared.connection.keys.given(key)]);
        args.push(correction(shared, held, costs, now));
    }
    let answer = shared
        .connection
        .call(first.group, script, &keys, &args)
        .await?;
    reply::commit(&answer, slot.len()).ok_or_else(Fault::nonsense)
}

/// Returns the argument of the script that corrects a charge. An actual cost is at most the rule's `max_cost`:
/// the work is done, so the cost cannot be refused. If the rule was changed so that the charge means something else
/// now, nothing is given back, and the excess is charged at present.
fn correction(shared: &Shared, held: &HeldCharge, costs: &ActualCosts, now: Nanos) -> Vec<u8> {
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
    packed.extend(rule.parameters(difference, shared.options.linger, sign, now));
    packed
}

/// Returns the argument of the script that moves the places of a reservation under concurrent to the
/// present; empty under other algorithms.
fn renewal(shared: &Shared, held: &HeldCharge, now: Nanos) -> Vec<u8> {
    let rule = &held.charge.rule;
    if rule.kind != AlgorithmKind::Concurrent || held.tag != rule.charge_tag {
        return Vec::new();
    }
    rule.parameters(held.charge.cost, shared.options.linger, 1.0, now)
}

/// Prolongs a live reservation in each of its slots, at most by the timeouts of its rules of
/// concurrent, and moves its places there.
pub(crate) async fn renew(
    shared: &Arc<Shared>,
    id: HoldId,
    ttl: Duration,
    given: Option<Nanos>,
) -> Result<(), EngineError> {
    let held = find(shared, id, given).await?;
    let ttl = live_for(held.iter().map(|held| &held.charge.rule.rule), ttl);
    let mut argument = time_argument(given);
    argument.numbers(&format::lasts(shared, ttl));
    for slot in by_slot(&held) {
        let first = &slot[0].charge;
        let now = shared.clocks.present(first.group, given);
        let mut keys = vec![shared.connection.keys.hold(id, place_of(first.slot))];
        let mut args = vec![argument.0.clone()];
        for held in slot {
            keys.push(held.charge.key.clone());
            args.push(renewal(shared, held, now));
        }
        let scripts = &shared.connection.scripts;
        let renew = scripts.get(Frame::Renew, [AlgorithmKind::Concurrent]);
        let renewed = shared
            .connection
            .call(first.group, renew, &keys, &args)
            .await?;
        if renewed != Value::Int(1) {
            return Err(EngineError::UnknownReservation(id));
        }
    }
    Ok(())
}
