//! Corrections of a client's record: a charge is taken back, or charges made elsewhere are added.

use std::slice::from_ref;
use std::sync::Arc;

use earrrl::Nanos;

use crate::algorithm::{Adjustment, Packed, micros};
use crate::calls::convert::{converting, done_or_foreign};
use crate::connection::fault::Fault;
use crate::connection::link::Link;
use crate::request::{KeyedCharge, Request};
use crate::shared::Shared;

/// Adjusts a client's record atomically, within the deadline.
pub(crate) async fn adjust(
    shared: &Arc<Shared>,
    charge: &KeyedCharge,
    adjustment: Adjustment,
    now: Option<Nanos>,
) -> Result<(), Fault> {
    let link = shared.connection.link(charge.group)?;
    let call = adjust_over(shared, link, charge, adjustment, now);
    shared.connection.within(shared.options.deadline, charge.group, call).await
}

async fn adjust_over(
    shared: &Arc<Shared>,
    link: Link,
    charge: &KeyedCharge,
    adjustment: Adjustment,
    now: Option<Nanos>,
) -> Result<(), Fault> {
    let argument = &argument(shared, charge, &adjustment, now);
    let (script, key) = (shared.connection.scripts.adjust(charge.rule.kind), from_ref(&charge.key));
    converting(shared, link, |mut link| async move {
        let answer = link.call(script, key, from_ref(argument)).await?;
        Ok(done_or_foreign(&answer, charge, shared.clocks.now(now)))
    })
    .await
}

/// Takes one charge of a request back.
pub(crate) async fn take_back(
    shared: Arc<Shared>,
    request: Arc<Request>,
    place: usize,
    at: Option<Nanos>,
) -> Result<(), Fault> {
    let charge = &request.charges[place];
    let back = Adjustment::take_back(at, charge.cost);
    let taken_back = adjust(&shared, charge, back, request.now).await;
    if let Err(fault) = &taken_back {
        tracing::warn!(why = fault.detail(), "a charge could not be taken back");
    }
    taken_back
}

/// Returns an adjustment as scripts read it.
pub(crate) fn argument(
    shared: &Shared,
    charge: &KeyedCharge,
    adjustment: &Adjustment,
    now: Option<Nanos>,
) -> Vec<u8> {
    let sign = if adjustment.back { -1.0 } else { 1.0 };
    let mut head = Packed(vec![u8::from(adjustment.back)]);
    let time = now.map_or(-1.0, micros);
    head.numbers(&[time, adjustment.when, adjustment.alone.0, adjustment.alone.1]);
    head.0.extend(charge.rule.parameters(adjustment.cost, shared.options.linger, sign));
    head.0
}
