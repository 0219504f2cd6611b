//! Reservations: an estimate is charged at once, and a commit corrects it to the actual cost.
//!
//! A reservation is a key beside the records of its client, in the same slot, so that one script
//! charges the estimate and stores the reservation, and one corrects the records and marks the
//! reservation as committed. The node that made a reservation knows its request. Another one reads it
//! first. If a reservation's records are in several slots of a Cluster, each slot
//! has a part of it, which is committed exactly once. The id contains the slot of the first one.

mod commit;
mod find;
mod reserve;

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use earrrl::internal::grant::{GRANTS, is_tried_again};
use earrrl::{Cost, EngineError, HoldId, HoldTerms, Holding, RuleError};

pub(crate) use commit::{commit, renew};
pub(crate) use find::rules;

use crate::hold_format as format;
use crate::request::{HoldRequest, Request};
use crate::shared::Shared;

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
    let tries = if terms.at_most { GRANTS } else { 1 };
    for _ in 1..tries {
        let holding = hold_once(shared.clone(), request.clone(), terms, count).await?;
        let rules = request.charges.iter().map(|charge| &charge.rule.rule);
        if !is_tried_again(&holding.decision, rules) {
            return Ok(holding);
        }
    }
    hold_once(shared, request, terms, count).await
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
    if terms.at_most {
        for place in 0..request.charges.len() {
            let charge = &request.charges[place];
            request.charges[place].cost = reserve::grant(&shared, charge, &request).await?;
        }
    }
    let timeouts = request.charges.iter();
    let timeouts = timeouts.filter_map(|charge| charge.rule.rule.limit().hold_timeout());
    let ttl = timeouts.fold(terms.ttl, Duration::min);
    let hold = HoldRequest {
        id: new_id(&request)?,
        ttl,
    };
    let mut granted = vec![Cost::ZERO; count];
    for charge in &request.charges {
        granted[charge.place] = charge.cost;
    }
    let request = Arc::new(Request {
        hold: Some(hold),
        ..request
    });
    let since = shared.clocks.now(request.now);
    shared
        .holds
        .take(hold.id, request.clone(), since, since + ttl)?;
    let decision = in_task(async move {
        let decision = reserve::reserve(&shared, &request).await;
        if !decision.as_ref().is_ok_and(|decision| decision.allowed) {
            shared.holds.end(hold.id);
        }
        decision
    })
    .await?;
    if !decision.allowed {
        granted.fill(Cost::ZERO);
    }
    let id = decision.allowed.then_some(hold.id);
    Ok(Holding::new(decision, id, granted))
}

/// Returns an id that nobody can guess, in the slot of the request's first charge.
fn new_id(request: &Request) -> Result<HoldId, EngineError> {
    let mut random = [0; 16];
    getrandom::fill(&mut random).map_err(|error| EngineError::Unavailable(error.to_string()))?;
    let slot = request.charges.first().map_or(0, |charge| charge.slot);
    Ok(format::id_in(slot, u128::from_le_bytes(random)))
}

/// Runs a reservation to its end, even if the caller stops waiting for it.
async fn in_task<T: Send + 'static>(
    work: impl Future<Output = Result<T, EngineError>> + Send + 'static,
) -> Result<T, EngineError> {
    let stopped = |_| Err(EngineError::Unavailable("a task was stopped".to_owned()));
    tokio::spawn(work).await.unwrap_or_else(stopped)
}
