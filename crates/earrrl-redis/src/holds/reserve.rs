//! The reservation of an estimate: a decision that also stores the reservation.

use std::sync::Arc;

use earrrl::internal::grant::granted;
use earrrl::internal::restore_places;
use earrrl::{Cost, Decision, EngineError, Mode};

use crate::decide::{Failure, ask};
use crate::request::{KeyedCharge, Request};
use crate::shared::Shared;
use crate::status::count;
use crate::{figures, outage};

/// Decides a request, and stores its reservation if it is allowed. Without an answer, nothing is
/// reserved: charges that Redis may have stored are taken back.
pub(crate) async fn reserve(
    shared: &Arc<Shared>,
    request: &Arc<Request>,
) -> Result<Decision, EngineError> {
    let observed = match ask(shared, request).await {
        Ok(observed) => observed,
        Err(failure) => return Err(give_up(shared, request, failure)),
    };
    count(&shared.connection.counters.shared);
    let (mut decision, states) = figures::decide(&request.rules(), &observed, request.mode);
    outage::adopt(shared, request, &observed, states);
    restore_places(&mut decision, &request.places());
    if !decision.allowed {
        forget(shared, request).await;
    }
    Ok(decision)
}

/// Notes that the calls without an answer are to be taken back.
fn give_up(shared: &Shared, request: &Arc<Request>, failure: Failure) -> EngineError {
    let noted = Vec::new();
    shared
        .unsettled
        .add(request, failure.unanswered, &noted, true);
    failure.fault.into()
}

/// Removes the parts of a denied reservation that some slots of a Cluster have stored. Nobody knows
/// its id, so they would only occupy memory until they expire.
async fn forget(shared: &Shared, request: &Request) {
    let slots = request.by_slot();
    let (Some(hold), 2..) = (request.hold, slots.len()) else {
        return;
    };
    let Some(mut link) = shared.connection.any_link() else {
        return;
    };
    for slot in &slots {
        let place = crate::key::place_of(request.charges[slot[0]].slot);
        let mut delete = redis::cmd("DEL");
        delete.arg(shared.connection.keys.hold(hold.id, place));
        tokio::time::timeout(shared.options.deadline, link.send(&delete))
            .await
            .ok();
    }
}

/// Returns the cost that a charge is granted: the estimate, or the remaining quota if that is less.
pub(crate) async fn grant(
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
            mode: Mode::Peek,
            ..*request
        },
    )
    .await?;
    Ok(granted(&charge.rule.rule, charge.cost, || peeked.remaining))
}

/// Returns the decision that a request would get from Redis.
pub(crate) async fn peek(shared: &Arc<Shared>, request: Request) -> Result<Decision, EngineError> {
    let request = Arc::new(Request {
        hold: None,
        ..request
    });
    let observed = ask(shared, &request)
        .await
        .map_err(|failure| failure.fault)?;
    Ok(figures::decide(&request.rules(), &observed, Mode::Peek).0)
}
