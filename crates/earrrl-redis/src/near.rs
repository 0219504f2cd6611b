//! Decisions under near rules: Redis is asked for several units at once, and this node spends them without a round
//! trip.
//!
//! ```text
//! request ── a unit left? ── yes ─→ allowed here
//!               │ no
//!               ├─ denied less than a second ago? ── yes ─→ denied here
//!               │ no
//!               └─→ one exact call, for as many units as this node's pace uses in a lease
//! ```
//!
//! `units.rs` has the conditions under which a unit may be spent, and `docs/near.md` the figures.

use std::sync::Arc;
use std::time::Duration;

use earrrl::internal::{Figures, Judgement};
use earrrl::{Charge, Cost, Decision, Mode, Nanos, Policy, Rule, Wait};
use tokio::sync::oneshot;
use tokio::time::timeout;

use crate::algorithm;
use crate::connection::fault::Fault;
use crate::decide::{Failure, ask as ask_redis};
use crate::figures::{self, combined};
use crate::outage;
use crate::reply::{Observation, ScriptVerdict};
use crate::request::{KeyedCharge, Request, UNITS_PATIENCE};
use crate::rules::PreparedRule;
use crate::shared::Shared;
use crate::status::count;
use crate::units::{Line, NearTable, UNIT, Units};

/// The longest time for which a denial is kept, so that a reset, an override or a refund at another server is seen.
const DENIED_FOR: Duration = Duration::from_secs(1);

/// Decides a request without a round trip. Returns `None` if Redis must be asked.
pub(crate) fn decide_here(
    shared: &Shared,
    charges: &[Charge<'_>],
    mode: Mode,
    given: Option<Nanos>,
) -> Option<Decision> {
    let [charge] = charges else { return None };
    let rule = shared.rules.get(charge.rule)?;
    let table = rule.near.as_ref()?;
    let cost = rule.rule.accept(charge.cost).ok()?;
    let local = shared.clocks.now(given);
    let strict = rule.rule.limit().policy() == Policy::Strict;
    let decision = table.with(charge.key, |line| {
        let now = given.unwrap_or_else(|| shared.clocks.redis(line.group, local));
        if mode == Mode::Check {
            line.note(table.lease, local);
        }
        // In simulated time nobody delivers attempts, so a strict rule's are asked for.
        let is_kept = local < line.denied_until && !(strict && given.is_some());
        let rule = &rule.rule;
        match spend(rule, table, line, cost, mode, local, now) {
            None if is_kept => deny(rule, line, cost, mode, now),
            spent => spent,
        }
    })??;
    count(&shared.connection.counters.near);
    if strict && decision.is_over(0) && mode == Mode::Check {
        let keyed = shared.keyed(rule, charge.key, cost, 0);
        // Delivered with all other changes, within a second.
        shared.ledger.add(&keyed, local, Nanos::ZERO);
    }
    Some(decision)
}

/// Allows a request of whole units from those that this node has. The time is `local` by this node's clock, and `now`
/// by Redis's.
fn spend(
    rule: &Rule,
    table: &NearTable,
    line: &mut Line,
    cost: Cost,
    mode: Mode,
    local: Nanos,
    now: Nanos,
) -> Option<Decision> {
    let live = line.live(table.units, local);
    let count = u32::try_from(cost.billionths() / UNIT as u128).ok()?;
    let is_whole = cost.billionths().is_multiple_of(UNIT as u128);
    if mode == Mode::Charge || !is_whole || live == 0 || count > live {
        return None;
    }
    let (stored, left) = match mode {
        Mode::Check => (Mode::Charge, live - count),
        _ => (mode, live),
    };
    let (state, _, mut figures) = rule.limit().step(line.state.clone(), now, cost, stored);
    if mode == Mode::Check {
        line.spend(table.units, live, count, local);
        line.state = state;
    }
    figures.retry_after = Wait::NONE;
    figures.remaining = figures.remaining.max(left.into());
    Some(answer(rule, true, now, &figures))
}

/// Denies a request by the state that Redis has reported, if that still denies it.
fn deny(rule: &Rule, line: &mut Line, cost: Cost, mode: Mode, now: Nanos) -> Option<Decision> {
    let (state, allowed, figures) = rule.limit().step(line.state.clone(), now, cost, mode);
    if allowed {
        return None;
    }
    if mode != Mode::Peek {
        line.state = state;
    }
    Some(answer(rule, false, now, &figures))
}

fn answer(rule: &Rule, allowed: bool, now: Nanos, figures: &Figures) -> Decision {
    let judgement = Judgement::new(rule, allowed, || figures.earliest);
    combined(now, &[(rule, judgement, *figures)])
}

/// Asks Redis for the units of a request under a near rule. Returns `None` if the request is one for the exact
/// path: not a check of one unit under one rule, or while another call about its client is under way.
pub(crate) async fn ask(shared: &Arc<Shared>, request: &Arc<Request>) -> Option<Decision> {
    let [charge] = &request.charges[..] else {
        return None;
    };
    let table = charge.rule.near.clone()?;
    if request.mode != Mode::Check || charge.cost != Cost::ONE {
        return None;
    }
    let group = charge.group;
    shared.connection.distant_link(group).ok()?;
    let local = shared.clocks.now(request.now);
    let units = {
        let mut shard = table.shard(&charge.client);
        let line = shard.get_or_insert_mut(charge.client.clone().into_boxed_slice(), || {
            let mut line = Line::new(group);
            line.note(table.lease, local);
            line
        });
        (!line.asking).then(|| line.begin(table.units, local))
    };
    // A Redis that is too far away is not waited for.
    let waits = !shared.connection.breakers.is_open(group);
    let Some(units) = units else {
        return if waits {
            None
        } else {
            meanwhile(shared, request).await
        };
    };
    let request = Arc::new(Request {
        units: Some(units),
        patience: UNITS_PATIENCE.max(shared.options.deadline),
        ..(**request).clone()
    });
    let call = Call {
        shared: shared.clone(),
        request: request.clone(),
        table,
        local,
    };
    let (answer, answered) = oneshot::channel();
    shared.batches.runtime.spawn(call.run(answer));
    if !waits {
        drop(answered);
        return meanwhile(shared, &request).await;
    }
    match timeout(shared.options.deadline, answered).await {
        Ok(Ok(Ok(decision))) => {
            count(&shared.connection.counters.shared);
            Some(decision)
        }
        Ok(Ok(Err(failure))) => outage::decide(shared, &request, failure).await.ok(),
        _ => {
            shared.connection.failed(group, &Fault::Late);
            meanwhile(shared, &request).await
        }
    }
}

/// Decides a request that does not wait for the call for units that is under way. The units are for later requests. A
/// client that Redis has denied within the last second is denied: by its own table, each server would admit what the
/// limit gives to all of them together.
async fn meanwhile(shared: &Arc<Shared>, request: &Arc<Request>) -> Option<Decision> {
    let charge = &request.charges[0];
    let local = shared.clocks.now(request.now);
    let is_wary = |line: &mut Line| (local < line.wary_until).then(|| line.state.clone());
    let table = charge.rule.near.as_ref()?;
    let Some(state) = table.with(&charge.client, is_wary).flatten() else {
        let failure = Failure::all(Fault::Late);
        return outage::decide(shared, request, failure).await.ok();
    };
    count(&shared.connection.counters.near);
    let rule = &charge.rule.rule;
    if rule.limit().policy() == Policy::Strict {
        shared.ledger.add(charge, local, Nanos::ZERO);
    }
    let now = shared.clocks.present(charge.group, request.now);
    let (_, allowed, mut figures) = rule.limit().step(state, now, charge.cost, Mode::Peek);
    if allowed {
        figures.remaining = 0;
        figures.retry_after = Wait::For(shared.options.deadline);
    }
    Some(answer(rule, false, now, &figures))
}

/// A call for units, which goes on after its request has been decided.
struct Call {
    shared: Arc<Shared>,
    request: Arc<Request>,
    table: Arc<NearTable>,
    /// The time at which the call was begun, by this node's clock.
    local: Nanos,
}

impl Call {
    async fn run(self, answer: oneshot::Sender<Result<Decision, Failure>>) {
        let observed = ask_redis(&self.shared, &self.request).await;
        let key = &self.request.charges[0].client;
        let one = match observed.map(|mut observed| observed.pop()) {
            Ok(Some(one)) => one,
            Ok(None) => return,
            Err(failure) => {
                self.table.with(key, |line| {
                    line.asking = false;
                    // The receipt tells if Redis has taken the unspent units back. If Redis was not asked at all,
                    // the next call gives them back.
                    if failure.fault != Fault::Skipped {
                        line.end_grant();
                    }
                });
                if let Err(Err(failure)) = answer.send(Err(failure)) {
                    // Its request was decided without it, so Redis must not count that.
                    let unsettled = &self.shared.unsettled;
                    unsettled.add(&self.request, failure.unanswered, 0, true);
                }
                return;
            }
        };
        let observed = std::slice::from_ref(&one);
        let (decision, states) = figures::decide(&self.request, observed);
        let state = states.into_iter().next().flatten();
        let limit = self.request.charges[0].rule.rule.limit();
        // The client's state with all granted units.
        let mut charged = state.clone();
        if one.granted > 1 {
            let more = Cost::from_units(u64::from(one.granted) - 1);
            limit.admit(&mut charged, one.at, more, Mode::Charge);
        }
        let good_for = self.table.good_for(limit, charged.clone(), one.at);
        outage::adopt(&self.shared, &self.request, observed, vec![charged]);
        let wait = decision.earliest();
        // Sent while the client is locked, so that its next request finds the units.
        let mut shard = self.table.shard(key);
        let is_used = answer.send(Ok(decision)).is_ok();
        if let Some(line) = shard.get_mut(&key[..]) {
            line.asking = false;
            line.state = state;
            match one.verdict {
                ScriptVerdict::Over => self.deny(line, wait),
                _ => self.grant(line, &one, is_used, good_for),
            }
        }
    }

    /// Notes that Redis has denied the request.
    fn deny(&self, line: &mut Line, wait: Wait) {
        let now = self.shared.clocks.now(self.request.now);
        line.denied_until = now + wait.duration().unwrap_or(DENIED_FOR).min(DENIED_FOR);
        line.wary_until = now + DENIED_FOR;
        // A leaky rule has stored nothing, so the next call gives the units back. A window's are given
        // back only to a request that passes.
        if self.request.is_strict(0) {
            line.end_grant();
        }
    }

    /// Notes units that may be spent for this time. `is_used` is true if the request that was sent uses one.
    fn grant(&self, line: &mut Line, one: &Observation, is_used: bool, good_for: Duration) {
        line.end_grant();
        // The first unit was charged as one that is used at once. If it was not, that is the same for a bucket and a
        // window, an average gets it back, and a log's is lost.
        let more = u32::from(one.granted) - 1;
        let first = u32::from(!is_used);
        line.units = match self.table.units {
            Units::Bucket { .. } | Units::Window { .. } => more + first,
            Units::Average { value, .. } => {
                line.charged = f64::from(more) * value + f64::from(first);
                more
            }
            Units::None => more,
        };
        let limit = self.request.charges[0].rule.rule.limit();
        line.sent = self.local;
        line.granted_at = one.at;
        line.born = algorithm::born(limit, &one.state, one.at);
        line.denied_until = Nanos::ZERO;
        line.ends = self.local + good_for;
    }
}

/// Notes that Redis must take back the units of a rule that this node has not spent.
pub(crate) fn give_back(shared: &Shared, rule: &Arc<PreparedRule>) {
    let unspent = rule.near.iter().flat_map(|table| table.end_all());
    for (key, back) in unspent {
        let charge = shared.keyed(rule.clone(), &key, Cost::ZERO, 0);
        shared.ledger.take_back_there(&charge, back, None);
    }
}

/// Ends a denial that is kept, since the client got something back.
pub(crate) fn end_denial(charge: &KeyedCharge) {
    if let Some(table) = &charge.rule.near {
        table.with(&charge.client, |line| {
            line.denied_until = Nanos::ZERO;
            line.wary_until = Nanos::ZERO;
        });
    }
}
