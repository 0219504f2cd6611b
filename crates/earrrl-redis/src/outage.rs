//! Decisions while Redis is not reachable, by the configured policy; and by Redis, whose states are kept for an outage.

use std::sync::Arc;
use std::time::Duration;

use earrrl::algorithm::State;
use earrrl::internal::{Judgement, restore_places};
use earrrl::{Action, Charge, Cost, Decision, Engine, EngineError, Mode, Nanos, Outcome, Wait};

use crate::algorithm;
use crate::connection::fault::Fault;
use crate::decide::{Failure, ask};
use crate::figures::{self, combined};
use crate::options::WhenGone;
use crate::reply::Observation;
use crate::request::{KeyedCharge, Request};
use crate::shared::Shared;
use crate::status::count;

/// The wait that a denial reports if the policy is to deny every request.
const RETRY: Duration = Duration::from_secs(1);

/// Decides a request that Redis did not answer.
pub(crate) async fn decide(
    shared: &Arc<Shared>,
    request: &Arc<Request>,
    failure: Failure,
) -> Result<Decision, EngineError> {
    count(&shared.connection.counters.alone);
    let now = shared.clocks.now(request.now);
    let (mut decision, noted) = match shared.options.when_gone {
        WhenGone::Local => locally(shared, request, &failure, now).await?,
        policy => {
            let allows = policy == WhenGone::Allow;
            (by_policy(shared, request, now, allows), 0)
        }
    };
    let denied = !passed(&decision);
    shared
        .unsettled
        .add(request, failure.unanswered, noted, denied);
    restore_places(&mut decision, &request.places());
    Ok(decision)
}

fn passed(decision: &Decision) -> bool {
    !matches!(decision.outcome, Outcome::Deny | Outcome::ShadowBan)
}

/// Decides by this node's own table. Returns the charges that were noted for Redis, one bit each.
async fn locally(
    shared: &Shared,
    request: &Request,
    failure: &Failure,
    now: Nanos,
) -> Result<(Decision, u64), EngineError> {
    let charges: Vec<Charge<'_>> = request.charges.iter().map(KeyedCharge::as_charge).collect();
    let decision = shared
        .local
        .decide(&charges, request.mode, Some(now))
        .await?;
    // The table may have judged a moment later, so that its time does not go back. A refund names the
    // time of the decision, which must be that of the charge in Redis.
    let now = decision.at;
    if request.mode == Mode::Peek {
        return Ok((decision, 0));
    }
    let mut noted = 0;
    for (place, charge) in request.charges.iter().enumerate() {
        let over = decision.is_over(place);
        // If an enforcing rule was over its limit and the request passed anyway, the request is
        // held back.
        let held = over && matches!(charge.rule.rule.action(), Action::Delay { .. });
        let leaky = passed(&decision) && (!over || held);
        let stores = !charge.cost.is_zero() && (request.is_strict(place) || leaky);
        if !stores || failure.kept >> place & 1 == 1 {
            continue;
        }
        let known = shared
            .local
            .decide(&[charge.as_charge()], Mode::Peek, Some(now))
            .await?;
        if shared.ledger.add(charge, now, known.at + known.reset_after) {
            noted |= 1 << place;
            // A single failure opens no breaker, so the supervisor must be woken to deliver this
            // charge.
            shared.connection.attention[charge.group].notify_one();
        } else {
            count(&shared.connection.counters.not_handed_over);
        }
    }
    Ok((decision, noted))
}

/// Decides a request regardless of its rules' limits: each rule by its own verdict for outages, or
/// by the policy's verdict `allows` if it has none.
fn by_policy(shared: &Shared, request: &Request, now: Nanos, allows: bool) -> Decision {
    let judged = request.charges.iter().map(|charge| {
        let allowed = charge.rule.without_redis.unwrap_or(allows);
        let rule = &charge.rule.rule;
        let (_, _, mut report) = rule.limit().step(None, now, Cost::ZERO, Mode::Peek);
        report.retry_after = if allowed {
            Wait::NONE
        } else {
            Wait::For(RETRY)
        };
        (rule, Judgement::new(rule, allowed, || Wait::Never), report)
    });
    let decision = combined(now, &judged.collect::<Vec<_>>());
    if decision.allowed && request.mode != Mode::Peek {
        count(&shared.connection.counters.unjudged);
    }
    decision
}

/// Decides a request in Redis within the deadline.
pub(crate) async fn by_redis(
    shared: &Arc<Shared>,
    request: &Arc<Request>,
) -> Result<Decision, Failure> {
    let observed = ask(shared, request).await?;
    count(&shared.connection.counters.shared);
    let (decision, states) = figures::decide(request, &observed);
    adopt(shared, request, &observed, states);
    Ok(decision)
}

/// Copies the states that Redis reported to this node's own table, so that an outage does not reset
/// any client. A client with charges that Redis lacks keeps its own state until they are delivered.
pub(crate) fn adopt(
    shared: &Shared,
    request: &Request,
    observed: &[Observation],
    states: Vec<Option<State>>,
) {
    if shared.options.when_gone != WhenGone::Local {
        return;
    }
    let now = shared.clocks.now(request.now);
    for ((charge, observed), state) in request.charges.iter().zip(observed).zip(states) {
        if shared.ledger.has(charge) {
            continue;
        }
        let limit = charge.rule.rule.limit();
        let state = state.map(|state| algorithm::moved(limit, state, observed.at, now));
        // Cannot fail, since the local engine knows every rule of a request that came this far.
        shared
            .local
            .adopt(charge.rule.id, &charge.client, limit, state)
            .ok();
    }
}

/// Takes a request back from this node's own table, and from the ledger if Redis did not take it back. Returns the
/// fault if neither did.
pub(crate) fn refund(
    shared: &Shared,
    charge: &KeyedCharge,
    charged_at: Option<Nanos>,
    now: Option<Nanos>,
    by_redis: Result<(), Fault>,
) -> Result<(), EngineError> {
    let now = shared.clocks.now(now);
    if let Err(fault) = by_redis
        && !shared.ledger.take_back(charge, charged_at, now)
    {
        return Err(fault.into());
    }
    // The local engine's future is ready at once.
    shared
        .local
        .refund(&charge.as_charge(), charged_at, Some(now))
        .into_inner()
}
