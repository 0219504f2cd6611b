//! Calls of `near.lua`, which applies a node's changes (charges, and charges to take back) to a
//! client's record, and claims a share of what is left of the limit. Changes are applied once, even
//! if they are sent several times.

use std::sync::Arc;

use earrrl::{Cost, Nanos};
use redis::Value;

use crate::algorithm::{Adjustment, Packed, micros};
use crate::calls::convert::{Called, converting, done_or_foreign};
use crate::connection::fault::Fault;
use crate::connection::link::Link;
use crate::pending::Contribution;
use crate::reply::{self, Reply};
use crate::request::KeyedCharge;
use crate::shared::Shared;

/// A node's claim of headroom, and the node's name.
pub(crate) struct Claim {
    pub(crate) node: [u8; 8],
    /// The headroom that a request needs, the headroom that is claimed if it is available, and the
    /// headroom that the node would use at most.
    pub(crate) need: f64,
    pub(crate) take: f64,
    pub(crate) wanted: f64,
    /// The headroom that the node expects to use.
    pub(crate) expected: f64,
    /// The smallest share for which a claim is made.
    pub(crate) least: f64,
    /// The number of nodes among which the headroom is divided.
    pub(crate) nodes: u32,
    /// The microseconds for which the claim holds; 0 if none is made.
    pub(crate) lasts: f64,
    /// The cost of the request that is judged.
    pub(crate) cost: Cost,
}

impl Claim {
    /// Returns a claim of nothing.
    pub(crate) fn none(node: [u8; 8]) -> Self {
        let need = 0.0;
        let take = 0.0;
        let wanted = 0.0;
        let expected = 0.0;
        let least = f64::MAX;
        Self {
            node,
            need,
            take,
            wanted,
            expected,
            least,
            nodes: 1,
            lasts: 0.0,
            cost: Cost::ONE,
        }
    }
}

/// The keys and arguments of a call.
pub(crate) struct Arguments {
    pub(crate) keys: [Vec<u8>; 2],
    pub(crate) args: Vec<Vec<u8>>,
}

/// Returns the keys and arguments of a call that makes a claim and adds a contribution, if there is
/// one. `present` is the present time by Redis's clock.
pub(crate) fn arguments(
    shared: &Shared,
    charge: &KeyedCharge,
    claim: &Claim,
    contribution: Option<&Contribution>,
    now: Option<Nanos>,
    present: Nanos,
) -> Arguments {
    let Claim {
        need,
        take,
        wanted,
        expected,
        least,
        nodes,
        lasts,
        ..
    } = *claim;
    let number = contribution.map_or(0, |contribution| contribution.number);
    let mut head = Packed(claim.node.to_vec());
    head.numbers(&[
        number as f64,
        need,
        take,
        wanted,
        expected,
        least,
        f64::from(nodes),
        lasts,
    ]);
    head.numbers(&[
        now.map_or(-1.0, micros),
        micros(present),
        charge.rule.claim_tag.into(),
    ]);
    head.0.extend(
        charge
            .rule
            .parameters(claim.cost, shared.linger(&charge.rule), 1.0),
    );
    let limit = charge.rule.rule.limit();
    let adjustments = contribution.map_or_else(Vec::new, |all| all.adjustments(limit, present));
    let adjustments = adjustments
        .iter()
        .map(|one| adjustment(shared, charge, one));
    let args = std::iter::once(head.0).chain(adjustments).collect();
    Arguments {
        keys: [
            charge.key.clone(),
            shared.connection.keys.claims(&charge.key),
        ],
        args,
    }
}

/// Returns an adjustment as an argument of the script.
fn adjustment(shared: &Shared, charge: &KeyedCharge, adjustment: &Adjustment) -> Vec<u8> {
    let Adjustment {
        back,
        when,
        alone,
        cost,
        without_redis,
        new_at,
    } = *adjustment;
    let mut head = Packed(vec![if without_redis { 2 } else { u8::from(back) }]);
    head.numbers(&[when, alone.0, alone.1, new_at]);
    let sign = if back { -1.0 } else { 1.0 };
    head.0.extend(
        charge
            .rule
            .parameters(cost, shared.linger(&charge.rule), sign),
    );
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

/// Applies changes without a claim: adds charges that were made by this node's clock while Redis
/// was not reachable, and takes charges back. `given` is the time that the caller gave, if any.
pub(crate) async fn contribute(
    shared: &Arc<Shared>,
    link: Link,
    charge: &KeyedCharge,
    contribution: &Contribution,
    given: Option<Nanos>,
) -> Result<(), Fault> {
    let script = shared.connection.scripts.near(charge.rule.kind);
    converting(shared, link, |mut link| async move {
        let local = shared.clocks.local();
        let now = given.unwrap_or_else(|| shared.clocks.redis(charge.group, local));
        let mut moved = contribution.clone();
        if given.is_none() {
            moved
                .pending
                .move_clock(charge.rule.rule.limit(), local, now);
        }
        let claim = Claim::none(shared.node.ledger_name());
        let Arguments { keys, args } = arguments(shared, charge, &claim, Some(&moved), given, now);
        let answer = link.call(script, &keys, &args).await?;
        if let Some(at) = clock_set(&answer) {
            shared.clocks.offsets[charge.group].learn(at, local, shared.clocks.local());
            return Ok(Called::Again);
        }
        Ok(done_or_foreign(&answer, charge, now))
    })
    .await
}
