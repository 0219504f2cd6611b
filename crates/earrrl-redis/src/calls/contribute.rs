//! Calls of `near.lua`: changes a client's record by what a node has counted or takes back, once however often that is
//! sent, and claims a share of what the limit has left.

use std::sync::Arc;

use earrrl::{Cost, Nanos};
use redis::Value;

use crate::algorithm::{self, Adjustment, Packed, micros};
use crate::calls::convert::{Called, converting, done_or_foreign};
use crate::calls::reply::{self, Reply};
use crate::connection::fault::Fault;
use crate::connection::link::Link;
use crate::pending::Contribution;
use crate::request::KeyedCharge;
use crate::shared::Shared;

/// The name and the claim under which a node makes a call.
pub(crate) struct Claim {
    pub(crate) node: [u8; 8],
    /// The headroom that a request needs, what is claimed if there is that much, and what the node would like.
    pub(crate) need: f64,
    pub(crate) take: f64,
    pub(crate) wanted: f64,
    /// The least share that is worth a claim.
    pub(crate) least: f64,
    /// The number of nodes among which the headroom is divided.
    pub(crate) nodes: u32,
    /// The microseconds for which the claim holds; none is made if this is 0.
    pub(crate) lasts: f64,
    /// The cost of the request that is judged.
    pub(crate) cost: Cost,
}

impl Claim {
    /// Claims nothing.
    pub(crate) fn none(node: [u8; 8]) -> Self {
        let (need, take, wanted, least) = (0.0, 0.0, 0.0, f64::MAX);
        Self { node, need, take, wanted, least, nodes: 1, lasts: 0.0, cost: Cost::ONE }
    }
}

/// The keys and arguments of a call.
pub(crate) struct Arguments {
    pub(crate) keys: [Vec<u8>; 2],
    pub(crate) args: Vec<Vec<u8>>,
}

/// Returns the keys and arguments of a call that makes a claim and adds a contribution, if there is one, at `present`, by
/// Redis's clock.
pub(crate) fn arguments(
    shared: &Shared,
    charge: &KeyedCharge,
    claim: &Claim,
    contribution: Option<&Contribution>,
    now: Option<Nanos>,
    present: Nanos,
) -> Arguments {
    let Claim { need, take, wanted, least, nodes, lasts, .. } = *claim;
    let number = contribution.map_or(0, |contribution| contribution.number);
    let mut head = Packed(claim.node.to_vec());
    head.numbers(&[number as f64, need, take, wanted, least, f64::from(nodes), lasts]);
    head.numbers(&[now.map_or(-1.0, micros), micros(present), charge.rule.claim_tag.into()]);
    head.0.extend(charge.rule.parameters(claim.cost, shared.options.linger, 1.0));
    let limit = charge.rule.rule.limit();
    let adjustments = contribution.map_or_else(Vec::new, |all| all.adjustments(limit, present));
    let adjustments = adjustments.iter().map(|one| adjustment(shared, charge, one));
    let args = std::iter::once(head.0).chain(adjustments).collect();
    Arguments { keys: [charge.key.clone(), shared.connection.keys.claims(&charge.key)], args }
}

/// Returns an adjustment as the script reads it.
fn adjustment(shared: &Shared, charge: &KeyedCharge, adjustment: &Adjustment) -> Vec<u8> {
    let Adjustment { back, when, alone, cost } = *adjustment;
    let mut head = Packed(vec![u8::from(back)]);
    head.numbers(&[when, alone.0, alone.1]);
    let sign = if back { -1.0 } else { 1.0 };
    head.0.extend(charge.rule.parameters(cost, shared.options.linger, sign));
    head.0
}

/// Returns Redis's time if a call did nothing because its node took that to be another.
fn clock_set(answer: &Value) -> Option<Nanos> {
    let Value::BulkString(bytes) = answer else { return None };
    match reply::single(bytes) {
        Some(Reply::Expired { time }) => Some(time),
        _ => None,
    }
}

/// Makes changes without a claim: adds what was counted by this node's clock while Redis was gone, and takes charges
/// back. `given` is the time of a caller that gave one.
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
        let algorithm = algorithm::of(charge.rule.rule.limit());
        let mut moved = contribution.clone();
        if given.is_none() {
            moved.pending.map(|state| Some(algorithm.moved(state, local, now)));
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
