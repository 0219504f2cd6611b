//! Decisions without Redis, and the counts to hand over afterwards.

use std::sync::Arc;
use std::time::Duration;

use earrrl::internal::{Judgement, combine};
use earrrl::{
    Action, Charge, Cost, Decision, Engine, EngineError, Figures, Mode, Nanos, Outcome, State, Wait,
};

use crate::algorithm;
use crate::exchange::Missed;
use crate::link::Fault;
use crate::options::WhenGone;
use crate::reply::Seen;
use crate::request::{AskedCharge, Request};
use crate::shared::Shared;
use crate::status::count;
use crate::unsettled::{Noted, Unsettled};

/// The wait that a denial tells while Redis is gone and the policy is to deny.
const RETRY: Duration = Duration::from_secs(1);

/// Decides by the policy for a Redis that is gone.
pub(crate) async fn decide(
    shared: &Arc<Shared>,
    request: &Arc<Request>,
    missed: Missed,
) -> Result<Decision, EngineError> {
    let now = shared.now(request.now);
    let (decision, noted) = match shared.options.when_gone {
        WhenGone::Local => locally(shared, request, &missed, now).await?,
        WhenGone::Allow => (by_fiat(request, now, true), Noted::new()),
        WhenGone::Deny => (by_fiat(request, now, false), Noted::new()),
    };
    let denied = !passed(&decision);
    for call in missed.unanswered {
        let (request, noted) = (request.clone(), noted.clone());
        shared.unsettled.add(Unsettled { call, request, noted, denied, done: 0 });
    }
    Ok(decision)
}

fn passed(decision: &Decision) -> bool {
    !matches!(decision.outcome, Outcome::Deny | Outcome::ShadowBan)
}

/// By this node's own table; answers also which charges were noted for Redis.
async fn locally(
    shared: &Shared,
    request: &Request,
    missed: &Missed,
    now: Nanos,
) -> Result<(Decision, Noted), EngineError> {
    let charges: Vec<Charge<'_>> =
        request.asked.iter().map(|asked| asked.charge(asked.rule.local)).collect();
    let decision = shared.local.decide(&charges, request.mode, Some(now)).await?;
    if request.mode == Mode::Peek {
        return Ok((decision, Noted::new()));
    }
    let mut noted = Noted::new();
    for (place, asked) in request.asked.iter().enumerate() {
        let over = decision.is_over(place);
        // An enforcing rule that was over while all passed has held the request.
        let held = over && matches!(asked.rule.rule.action(), Action::Delay { .. });
        let leaky = passed(&decision) && (!over || held);
        let stores = !asked.cost.is_zero() && (request.is_strict(place) || leaky);
        if !stores || missed.kept >> place & 1 == 1 {
            continue;
        }
        if let Some(at) = shared.ledger.add(asked, now) {
            noted.push((place, at));
            // One failure is no outage, and nobody else would have it handed over.
            shared.trouble[asked.group].notify_one();
        } else {
            count(&shared.counters.not_handed_over);
        }
    }
    Ok((decision, noted))
}

/// Whatever was asked.
pub(crate) fn by_fiat(request: &Request, now: Nanos, allowed: bool) -> Decision {
    let judged: Vec<(Judgement, Figures)> = request
        .asked
        .iter()
        .map(|asked| {
            let limit = asked.rule.rule.limit();
            let (_, _, mut report) = limit.step(None, now, Cost::ZERO, Mode::Peek);
            report.retry_after = if allowed { Wait::NONE } else { Wait::For(RETRY) };
            (Judgement::new(&asked.rule.rule, allowed, || Wait::Never), report)
        })
        .collect();
    let each = request.asked.iter().zip(&judged);
    combine(now, each.map(|(asked, (judgement, report))| (&asked.rule.rule, judgement, report)))
}

/// Keeps what Redis had of the clients, so that an outage is no amnesty: this node goes on from there.
/// Counts that Redis lacks yet are in this node's own state only, which stays until they are handed over.
pub(crate) fn adopt(shared: &Shared, request: &Request, seen: &[Seen], states: Vec<Option<State>>) {
    if shared.options.when_gone != WhenGone::Local {
        return;
    }
    let now = shared.now(request.now);
    for ((asked, seen), state) in request.asked.iter().zip(seen).zip(states) {
        if shared.ledger.owes(asked) {
            continue;
        }
        let limit = asked.rule.rule.limit();
        let state = state.map(|state| algorithm::of(limit).moved(state, seen.at, now));
        // A rule that this node's own table doesn't know is none of a request that came this far.
        shared.local.adopt(asked.rule.local, &asked.client, limit, state).ok();
    }
}

/// Takes a request back that was decided without Redis; an error where it was decided by Redis.
pub(crate) fn refund(
    shared: &Shared,
    asked: &AskedCharge,
    charged_at: Option<Nanos>,
    now: Option<Nanos>,
    fault: Fault,
) -> Result<(), EngineError> {
    let now = shared.now(now);
    if !shared.ledger.take_back(asked, charged_at, now) {
        return Err(fault.into());
    }
    refunded(shared, asked, charged_at, Some(now))
}

/// Takes a request back from this node's own state, too.
pub(crate) fn refunded(
    shared: &Shared,
    asked: &AskedCharge,
    charged_at: Option<Nanos>,
    now: Option<Nanos>,
) -> Result<(), EngineError> {
    let now = shared.now(now);
    // The local engine answers at once.
    shared.local.refund(&asked.charge(asked.rule.local), charged_at, Some(now)).into_inner()
}
