//! The charges of a reservation: from the request of this node that made it, or as Redis has stored it.

use std::sync::Arc;

use earrrl::{EngineError, HoldId, Nanos, RuleId};
use redis::Value;

use crate::connection::fault::Fault;
use crate::hold_format::{self as format, StoredHold, StoredPart};
use crate::key::place_of;
use crate::request::{KeyedCharge, Request};
use crate::shared::Shared;

/// A charge of a reservation. Its rule and its key are the present ones, and its cost is the estimate.
pub(crate) struct HeldCharge {
    pub(crate) charge: KeyedCharge,
    /// The tag of the rule's charges when the reservation was made.
    pub(crate) tag: u32,
}

/// The part of a reservation in one slot. The first part decides if the reservation is live.
pub(crate) struct HeldSlot {
    /// The place of the slot's tag.
    pub(crate) place: usize,
    pub(crate) charges: Vec<HeldCharge>,
}

/// Returns the parts of a reservation. The expiry of one that another node made is judged by this node's
/// idea of Redis's time, or the given time.
pub(crate) async fn find(
    shared: &Arc<Shared>,
    id: HoldId,
    given: Option<Nanos>,
) -> Result<Vec<HeldSlot>, EngineError> {
    let slots = match shared.holds.request(id) {
        Some(request) => own(shared, &request),
        None => read(shared, id, given).await?,
    };
    slots.ok_or(EngineError::UnknownReservation(id))
}

/// Returns the rules of a reservation, in the order of the request.
pub(crate) async fn rules(
    shared: &Arc<Shared>,
    id: HoldId,
    given: Option<Nanos>,
) -> Result<Vec<RuleId>, EngineError> {
    let slots = find(shared, id, given).await?;
    let mut charges: Vec<_> = slots.iter().flat_map(|slot| &slot.charges).collect();
    charges.sort_by_key(|held| held.charge.place);
    Ok(charges.iter().map(|held| held.charge.rule.id).collect())
}

/// Returns the parts of a reservation that this node made.
fn own(shared: &Shared, request: &Request) -> Option<Vec<HeldSlot>> {
    let held = |place: &usize| {
        let charge = &request.charges[*place];
        let rule = shared.rules.get(charge.rule.id)?;
        let tag = charge.rule.charge_tag;
        let charge = match rule.tag == charge.rule.tag {
            true => KeyedCharge {
                rule,
                place: *place,
                ..charge.clone()
            },
            false => shared.keyed(rule, &charge.as_charge(charge.rule.id), *place),
        };
        Some(HeldCharge { charge, tag })
    };
    let slot = |places: Vec<usize>| {
        let place = place_of(request.charges[places[0]].slot);
        let charges = places.iter().map(held).collect::<Option<_>>()?;
        Some(HeldSlot { place, charges })
    };
    request.by_slot().into_iter().map(slot).collect()
}

/// Reads a reservation from Redis.
async fn read(
    shared: &Arc<Shared>,
    id: HoldId,
    given: Option<Nanos>,
) -> Result<Option<Vec<HeldSlot>>, EngineError> {
    let first = format::first_place(shared, id);
    let Some(hold) = read_slot(shared, id, first).await? else {
        return Ok(None);
    };
    let group = shared
        .connection
        .group(&shared.connection.keys.hold(id, first));
    let now = given.unwrap_or_else(|| shared.clocks.redis(group, shared.clocks.local()));
    if !hold.is_committed && hold.expires <= now {
        return Ok(None);
    }
    let others = hold.others.clone();
    let mut slots = vec![stored(shared, first, hold)];
    for place in others {
        // A part that is missing was evicted; its estimate stays.
        slots.extend(
            read_slot(shared, id, place)
                .await?
                .map(|hold| stored(shared, place, hold)),
        );
    }
    Ok(slots.into_iter().collect())
}

/// Reads the part of a reservation that is in one slot.
pub(super) async fn read_slot(
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
    match shared
        .connection
        .within(shared.options.deadline, group, call)
        .await?
    {
        Value::BulkString(bytes) => Ok(format::read(&bytes)),
        _ => Ok(None),
    }
}

/// Returns a part of a reservation that Redis has stored; `None` if this node does not have one of its
/// rules.
fn stored(shared: &Shared, place: usize, hold: StoredHold) -> Option<HeldSlot> {
    let known = shared.rules.all();
    let charge = |part: StoredPart| {
        let StoredPart {
            place, tag, cost, ..
        } = part;
        let rule = known.iter().find(|rule| rule.name == part.rule)?.clone();
        let key = [&part.client[..], b":", rule.key.as_bytes()].concat();
        let slot = shared.connection.slot(&key);
        let group = shared.connection.breakers.group(slot);
        let charge = KeyedCharge {
            rule,
            client: Vec::new(),
            cost,
            place,
            key,
            slot,
            group,
        };
        Some(HeldCharge { charge, tag })
    };
    let charges = hold.parts.into_iter().map(charge).collect::<Option<_>>()?;
    Some(HeldSlot { place, charges })
}
