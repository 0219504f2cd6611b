//! The format of reservations in Redis: the part that `hold.lua` writes and `held.lua` reads, then a
//! note for nodes that did not make the reservation.

use std::time::Duration;

use earrrl::{Cost, HoldId, Nanos};

use crate::algorithm::{Fields, Packed, fnv32, nanos};
use crate::batches::PackedHold;
use crate::key::place_of;
use crate::request::{HoldRequest, KeyedCharge, Request};
use crate::shared::Shared;

/// The places of tags in an id: its low bits are the place of the slot in which it is stored.
const PLACES: u128 = 1024;

/// A reservation in one slot.
#[derive(Debug)]
pub(crate) struct StoredHold {
    pub(crate) is_committed: bool,
    pub(crate) expires: Nanos,
    pub(crate) parts: Vec<StoredPart>,
    /// The places of the tags of the other slots that the reservation is in.
    pub(crate) others: Vec<usize>,
    /// The actual costs of a committed reservation in several slots, by the places of the charges.
    pub(crate) actual: ActualCosts,
}

/// The actual cost of each charge of a reservation, by the place of the charge in the request.
pub(crate) type ActualCosts = Vec<(usize, Cost)>;

/// Stands after the tags of the other slots, before the actual costs.
const ACTUAL: u64 = u16::MAX as u64;

/// The part of a reservation that concerns one rule.
#[derive(Debug)]
pub(crate) struct StoredPart {
    /// The place of the charge in the request.
    pub(crate) place: usize,
    pub(crate) rule: String,
    /// The tag of the rule's charges.
    pub(crate) tag: u32,
    pub(crate) cost: Cost,
    /// The key of the record up to the rule's name.
    pub(crate) client: Vec<u8>,
}

/// Returns the place of the tag in whose slot a reservation is stored.
pub(crate) fn first_place(shared: &Shared, id: HoldId) -> usize {
    (id.bits() % PLACES) as usize % shared.connection.keys.receipt_tags().len()
}

/// Returns the id with these random bits of a reservation in this slot. Its highest 32 bits are a hash of
/// the others, by which the id of a reservation that Redis has forgotten is recognized.
pub(crate) fn id_in(slot: u16, random: u128) -> HoldId {
    marked(random - random % PLACES + place_of(slot) as u128)
}

/// Returns true if `id` is that of a reservation in Redis, also if that was committed or has expired. An id
/// of another origin is taken for one once in four billion times.
pub(crate) fn is_of_redis(id: HoldId) -> bool {
    marked(id.bits()) == id
}

/// Returns the id with these bits whose highest 32 are replaced by the hash of the others.
fn marked(bits: u128) -> HoldId {
    let bits = bits & (u128::MAX >> 32);
    HoldId::from_bits(u128::from(fnv32(bits.to_le_bytes().into_iter())) << 96 | bits)
}

/// Returns a time to live as scripts read it: microseconds, and the milliseconds for which the key
/// is kept.
pub(crate) fn lasts(shared: &Shared, ttl: Duration) -> [f64; 2] {
    [
        ttl.as_micros() as f64,
        (ttl + shared.options.linger).as_millis() as f64 + 1.0,
    ]
}

/// Returns a reservation of the charges at these places, which are in one slot.
pub(crate) fn pack(
    shared: &Shared,
    request: &Request,
    hold: HoldRequest,
    places: &[usize],
) -> PackedHold {
    let keys = &shared.connection.keys;
    let own = place_of(request.charges[places[0]].slot);
    let mut packed = Packed::default();
    packed.numbers(&lasts(shared, hold.ttl));
    for place in places {
        pack_charge(*place, &request.charges[*place], &mut packed);
    }
    let others = request
        .by_slot()
        .into_iter()
        .map(|slot| place_of(request.charges[slot[0]].slot));
    for place in others.filter(|place| *place != own) {
        packed.whole(place as u64, 2);
    }
    let given = places
        .iter()
        .map(|place| keys.given(&request.charges[*place].key))
        .collect();
    PackedHold {
        key: keys.hold(hold.id, own),
        given,
        argument: packed.0,
    }
}

fn pack_charge(place: usize, charge: &KeyedCharge, packed: &mut Packed) {
    let rule = &charge.rule;
    let client = &charge.key[..charge.key.len() - rule.key.len() - 1];
    packed.whole(place as u64, 1);
    packed.whole(rule.charge_tag.into(), 4);
    packed.0.extend(charge.cost.billionths().to_le_bytes());
    for text in [rule.name.as_bytes(), client] {
        packed.whole(text.len() as u64, 4);
        packed.0.extend(text);
    }
}

/// Reads a reservation. Returns `None` if it is invalid.
pub(crate) fn read(bytes: &[u8]) -> Option<StoredHold> {
    let (status, rest) = bytes.split_first()?;
    let mut fields = Fields(rest);
    let expires = nanos(fields.number()?);
    let _made_at = fields.number()?;
    let count = fields.whole(1)?;
    for _ in 0..count {
        let _is_stored = fields.whole(1)?;
        let len = fields.whole(1)? as usize;
        fields.bytes(len)?;
    }
    let parts = (0..count)
        .map(|_| read_part(&mut fields))
        .collect::<Option<_>>()?;
    let others = std::iter::from_fn(|| fields.whole(2).filter(|place| *place != ACTUAL));
    let others = others.map(|place| place as usize).collect();
    let actual = std::iter::from_fn(|| Some((fields.whole(1)? as usize, cost(&mut fields)?)));
    let actual = actual.collect();
    Some(StoredHold {
        is_committed: *status == b'C',
        expires,
        parts,
        others,
        actual,
    })
}

/// Returns what a commit adds to a reservation: the actual costs.
pub(crate) fn pack_actual(costs: &ActualCosts, packed: &mut Packed) {
    packed.whole(ACTUAL, 2);
    for (place, cost) in costs {
        packed.whole(*place as u64, 1);
        packed.0.extend(cost.billionths().to_le_bytes());
    }
}

fn cost(fields: &mut Fields<'_>) -> Option<Cost> {
    let billionths = fields.bytes(16)?.try_into().ok()?;
    Some(Cost::from_billionths(u128::from_le_bytes(billionths)))
}

/// Reads the fields of a charge in the note.
fn read_part(fields: &mut Fields<'_>) -> Option<StoredPart> {
    let place = fields.whole(1)? as usize;
    let tag = fields.whole(4)? as u32;
    let cost = cost(fields)?;
    let mut text = || {
        let len = fields.whole(4)? as usize;
        Some(fields.bytes(len)?.to_vec())
    };
    let rule = String::from_utf8(text()?).ok()?;
    let client = text()?;
    Some(StoredPart {
        place,
        rule,
        tag,
        cost,
        client,
    })
}
