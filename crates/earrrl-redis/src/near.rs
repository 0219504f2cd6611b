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

use earrrl::algorithm::State;
use earrrl::internal::{Figures, Judgement, combine, restore_places};
use earrrl::{Charge, Cost, Decision, Mode, Nanos, Policy, Rule, Wait};
use tokio::sync::oneshot;
use tokio::time::timeout;

use crate::algorithm;
use crate::calls::decide::{Failure, ask as ask_redis};
use crate::calls::figures;
use crate::connection::fault::Fault;
use crate::outage::policy;
use crate::reply::{Observation, ScriptVerdict};
use crate::request::{KeyedCharge, Request};
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
    let (decision, at) = table.with(charge.key, |line| {
        let now = given.unwrap_or_else(|| shared.clocks.redis(line.group, local));
        let at = Moments { local, now };
        if mode == Mode::Check {
            line.note(table.lease, local);
        }
        let spent = spend(&rule.rule, table, line, (cost, mode), at);
        let decided = spent.or_else(|| {
            // In simulated time nobody delivers attempts, so a strict rule's are asked for.
            let is_kept = local < line.denied_until && !(strict && given.is_some());
            is_kept.then(|| deny(&rule.rule, line, (cost, mode), now))?
        })?;
        Some((decided, at))
    })??;
    table.count();
    if strict && decision.is_over(0) && mode == Mode::Check {
        let keyed = shared.keyed(rule, charge, 0);
        // Delivered with all other changes, within a second.
        shared.backlog.ledger.add(&keyed, at.local, Nanos::ZERO);
    }
    Some(decision)
}

/// The time of a request, by this node's clock and by Redis's.
#[derive(Clone, Copy)]
struct Moments {
    local: Nanos,
    now: Nanos,
}

/// Allows a request of whole units from those that this node has.
fn spend(
    rule: &Rule,
    table: &NearTable,
    line: &mut Line,
    (cost, mode): (Cost, Mode),
    at: Moments,
) -> Option<Decision> {
    let live = line.live(table.units, at.local);
    let count = u32::try_from(cost.billionths() / UNIT as u128).ok()?;
    let is_whole = cost.billionths().is_multiple_of(UNIT as u128);
    if mode == Mode::Charge || !is_whole || live == 0 || count > live {
        return None;
    }
    let stored = if mode == Mode::Check {
        Mode::Charge
    } else {
        mode
    };
    let (state, _, mut figures) = rule.limit().step(line.state.clone(), at.now, cost, stored);
    let mut left = live;
    if mode == Mode::Check {
        line.units = live;
        line.spend(table.units, count, at.local);
        line.state = state;
        left -= count;
    }
    figures.retry_after = Wait::NONE;
    figures.remaining = figures.remaining.max(left.into());
    Some(answer(rule, true, at.now, &figures))
}

/// Denies a request by the state that Redis has reported, if that still denies it.
fn deny(rule: &Rule, line: &mut Line, (cost, mode): (Cost, Mode), now: Nanos) -> Option<Decision> {
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
    let judgement = Judgement::new(rule, allowed, || figures.retry_after);
    combine(now, [(rule, &judgement, figures)].into_iter())
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
            let mut line = Line::new(charge.group, local);
            line.note(table.lease, local);
            line
        });
        if line.asking {
            return None;
        }
        line.begin(table.units, local)
    };
    let request = Arc::new(Request {
        units: Some(units),
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
    // A Redis that is too far away is not waited for.
    let waits = !shared.connection.breakers.is_open(group);
    let answered = if waits {
        timeout(shared.options.deadline, answered).await.ok()
    } else {
        None
    };
    match answered {
        Some(Ok(Ok(decision))) => {
            count(&shared.connection.counters.shared);
            Some(decision)
        }
        Some(Ok(Err(failure))) => without_redis(shared, &request, failure).await,
        Some(Err(_)) | None => {
            if waits {
                shared.connection.failed(group, &Fault::Late);
            }
            without_redis(shared, &request, Failure::all(Fault::Late)).await
        }
    }
}

/// Decides a request that Redis did not answer in time. The units that its call may still bring are for later requests.
async fn without_redis(
    shared: &Arc<Shared>,
    request: &Arc<Request>,
    failure: Failure,
) -> Option<Decision> {
    count(&shared.connection.counters.alone);
    let mut decision = policy::decide(shared, request, failure).await.ok()?;
    restore_places(&mut decision, &request.places());
    Some(decision)
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
                    line.end_grant();
                });
                answer.send(Err(failure)).ok();
                return;
            }
        };
        let rules = self.request.rules();
        let observed = std::slice::from_ref(&one);
        let (mut decision, states) = figures::decide(&rules, observed, Mode::Check);
        restore_places(&mut decision, &self.request.places());
        self.adopt(&one, &states);
        let state = states.into_iter().next().flatten();
        let wait = decision.retry_after;
        // Sent while the client is locked, so that its next request finds the units.
        let mut answer = Some((answer, decision));
        let mut send = || {
            answer
                .take()
                .is_some_and(|(to, decision)| to.send(Ok(decision)).is_ok())
        };
        let noted = self.table.with(key, |line| {
            let is_used = send();
            self.note(line, &one, state, (is_used, wait));
        });
        if noted.is_none() {
            send();
        }
    }

    /// Notes an answer. `is_used` is true if the request that was sent uses a unit.
    fn note(
        &self,
        line: &mut Line,
        one: &Observation,
        state: Option<State>,
        (is_used, wait): (bool, Wait),
    ) {
        let charge = &self.request.charges[0];
        let limit = charge.rule.rule.limit();
        line.asking = false;
        line.state = state;
        if one.verdict == ScriptVerdict::Over {
            let until = wait.duration().unwrap_or(DENIED_FOR).min(DENIED_FOR);
            line.denied_until = self.shared.clocks.now(self.request.now) + until;
            // A leaky rule has stored nothing, so the next call gives the units back. A window's are given
            // back only to a request that passes.
            if limit.policy() == Policy::Strict {
                line.end_grant();
            }
            return;
        }
        line.end_grant();
        let granted = u32::from(one.granted);
        line.units = granted - u32::from(is_used);
        line.sent = self.local;
        line.granted_at = one.at;
        line.born = algorithm::born(limit, &one.state, one.at);
        line.denied_until = Nanos::ZERO;
        line.ends = self.local + self.good_for(line, one);
        if let Units::Average { value, .. } = self.table.units {
            line.charged = f64::from(granted - 1) * value;
        }
    }

    /// Returns the time for which units may be spent after they were granted.
    fn good_for(&self, line: &Line, one: &Observation) -> Duration {
        let limit = self.request.charges[0].rule.rule.limit();
        match self.table.units {
            Units::Bucket { .. } => {
                let more = Cost::from_units(u64::from(one.granted).saturating_sub(1));
                let mut state = line.state.clone();
                limit.admit(&mut state, one.at, more, Mode::Charge);
                limit
                    .step(state, one.at, Cost::ZERO, Mode::Peek)
                    .2
                    .reset_after
            }
            Units::Window { window, parts } => {
                let (window, parts) = (u128::from(window), u128::from(parts));
                let at = u128::from(one.at.get());
                let ends = (at * parts / window + 1) * window / parts;
                let rest = u64::try_from(ends - at).unwrap_or(0);
                self.table.lease.min(Duration::from_nanos(rest))
            }
            Units::Average { .. } | Units::None => self.table.lease,
        }
    }

    /// Copies the client's state, with all granted units, to the table that decides without Redis.
    fn adopt(&self, one: &Observation, states: &[Option<State>]) {
        let charge = &self.request.charges[0];
        let mut states = states.to_vec();
        if let Some(state) = states.first_mut().filter(|_| one.granted > 1) {
            let more = Cost::from_units(u64::from(one.granted) - 1);
            charge
                .rule
                .rule
                .limit()
                .admit(state, one.at, more, Mode::Charge);
        }
        policy::adopt(
            &self.shared,
            &self.request,
            std::slice::from_ref(one),
            states,
        );
    }
}

/// Ends a denial that is kept, since the client got something back.
pub(crate) fn end_denial(charge: &KeyedCharge) {
    if let Some(table) = &charge.rule.near {
        table.with(&charge.client, |line| line.denied_until = Nanos::ZERO);
    }
}
