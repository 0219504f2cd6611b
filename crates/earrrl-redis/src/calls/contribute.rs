//! Calls of `add.lua`, which applies a node's changes (charges, and charges to take back) to a client's
//! record. Changes are applied once, even if they are sent several times.

use std::sync::Arc;

use earrrl::Nanos;
use redis::Value;

use crate::algorithm::{Adjustment, Packed, micros};
use crate::connection::fault::Fault;
use crate::connection::link::Link;
use crate::pending::Contribution;
use crate::reply::{self, Reply};
use crate::request::KeyedCharge;
use crate::shared::Shared;

/// The most calls of the script. A second one is needed if Redis's clock was set.
const MAX_CALLS: usize = 4;

/// Adds charges that were made by this node's clock without Redis, and takes charges back. `given` is the
/// time that the caller gave, if any.
pub(crate) async fn contribute(
    shared: &Arc<Shared>,
    mut link: Link,
    charge: &KeyedCharge,
    contribution: &Contribution,
    given: Option<Nanos>,
) -> Result<(), Fault> {
    let keys = [
        charge.key.clone(),
        shared.connection.keys.added(&charge.key),
    ];
    let script = shared.connection.scripts.add(charge.rule.kind);
    for _ in 0..MAX_CALLS {
        let local = shared.clocks.local();
        let now = given.unwrap_or_else(|| shared.clocks.redis(charge.group, local));
        let mut moved = contribution.clone();
        if given.is_none() {
            let limit = charge.rule.rule.limit();
            moved.pending.move_clock(limit, local, now);
        }
        let args = arguments(shared, charge, &moved, given, now);
        let answer = link.call(script, &keys, &args).await?;
        let Some(at) = clock_set(&answer) else {
            return Ok(());
        };
        shared.clocks.offsets[charge.group].learn(at, local, shared.clocks.local());
    }
    Err(Fault::Refused("its clock is set all the time".to_owned()))
}

/// Returns the arguments of a call. `present` is the present time by Redis's clock, as this node knows it.
fn arguments(
    shared: &Shared,
    charge: &KeyedCharge,
    contribution: &Contribution,
    now: Option<Nanos>,
    present: Nanos,
) -> Vec<Vec<u8>> {
    let mut head = Packed(shared.node.name().to_vec());
    let number = contribution.number as f64;
    head.numbers(&[number, now.map_or(-1.0, micros), micros(present)]);
    let adjustments = contribution.adjustments(charge.rule.rule.limit(), present);
    let adjustments = adjustments
        .iter()
        .map(|one| adjustment(shared, charge, one));
    std::iter::once(head.0).chain(adjustments).collect()
}

/// Returns an adjustment as an argument of the script.
fn adjustment(shared: &Shared, charge: &KeyedCharge, adjustment: &Adjustment) -> Vec<u8> {
    let kind = match adjustment {
        Adjustment { twice: true, .. } => 3,
        Adjustment {
            without_redis: true,
            ..
        } => 2,
        other => u8::from(other.back),
    };
    let Adjustment {
        back,
        when,
        alone,
        cost,
        new_at,
        ..
    } = *adjustment;
    let mut head = Packed(vec![kind]);
    head.numbers(&[when, alone.0, alone.1, new_at]);
    let sign = if back { -1.0 } else { 1.0 };
    let linger = shared.options.linger;
    head.0.extend(charge.rule.parameters(cost, linger, sign));
    head.0
}

/// Returns Redis's time if the call did nothing because the node had a wrong idea of that time.
fn clock_set(answer: &Value) -> Option<Nanos> {
    let Value::BulkString(bytes) = answer else {
        return None;
    };
    match reply::single(bytes) {
        Some(Reply::Expired { time }) => Some(time),
        _ => None,
    }
}
