//! Requests under near rules. They are decided on this node if possible, and otherwise after an
//! exchange with Redis.

use std::sync::{Arc, MutexGuard};

use earrrl::internal::{Judgement, combine, merge_charges, restore_places};
use earrrl::{Charge, Cost, Decision, Figures, Mode, Nanos, Wait};

use super::exchange;
use crate::clients::client::{Authority, Client, Lease, LocalTime};
use crate::clients::shard::{NearRule, Place, Shard};
use crate::connection::fault::Fault;
use crate::options::WhenGone;
use crate::outage::policy;
use crate::request::{KeyedCharge, Request};
use crate::rules::PreparedRule;
use crate::shared::Shared;
use crate::status::count;

/// Decides a request without a round trip. Returns `None` if Redis must be asked.
pub(crate) fn decide_here(
    shared: &Shared,
    charges: &[Charge<'_>],
    mode: Mode,
    given: Option<Nanos>,
) -> Option<Decision> {
    let [charge] = charges else {
        return several(shared, charges, mode, given);
    };
    let local = |_| given.unwrap_or_else(|| shared.clocks.local());
    let by_lease = |NearRule { rule, lag }: &NearRule, lease: &mut Lease, group: usize| {
        if mode != Mode::Check || given.is_some() {
            return None;
        }
        let cost = rule.accept(charge.cost).ok()?;
        let offset = shared.clocks.offsets[group].get();
        lease.allow(
            rule,
            cost,
            LocalTime {
                local: local(*lag),
                offset,
            },
        )
    };
    let by_client = |NearRule { rule, lag }: &NearRule, client: &mut Client| {
        let cost = rule.accept(charge.cost).ok()?;
        let local = local(*lag);
        if given.is_some() && client.is_due(local, shared.options.sync) {
            return None;
        }
        let time = shared.time_of(client, given, local);
        let decision = client.decide(rule, cost, mode, time, Authority::Share);
        count_claimed(shared, client);
        decision
    };
    shared
        .rules
        .tables
        .get(charge.rule)?
        .decide(charge.key, by_lease, by_client)
}

/// One of the charges of a request, and the place of its client.
struct NearPart<'a> {
    rule: &'a PreparedRule,
    charge: Charge<'a>,
    place: Place,
    /// The index of the lock of the client's shard.
    lock: usize,
}

impl<'a> NearPart<'a> {
    fn new(rule: &'a PreparedRule, charge: Charge<'a>) -> Option<Self> {
        let place = rule.near.as_ref()?.place(charge.key);
        Some(Self {
            rule,
            charge,
            place,
            lock: 0,
        })
    }
}

/// Decides a request with several charges, which are stored all or none. Every client stays locked
/// until all are judged.
fn several(
    shared: &Shared,
    charges: &[Charge<'_>],
    mode: Mode,
    given: Option<Nanos>,
) -> Option<Decision> {
    let rules: Vec<Arc<PreparedRule>> = charges
        .iter()
        .map(|charge| shared.rules.get(charge.rule))
        .collect::<Option<_>>()?;
    if given.is_some() || rules.iter().any(|rule| !rule.is_near) {
        return None;
    }
    let find = |id| rules.iter().find(|rule| rule.id == id);
    let merged = merge_charges(charges, |id| find(id).map(|rule| &rule.rule)).ok()?;
    let parts = merged
        .iter()
        .map(|(_, charge)| NearPart::new(find(charge.rule)?, *charge));
    let mut locked = LockedCharges::new(shared, parts.collect::<Option<_>>()?)?;
    let judged = locked.judge(mode)?;
    let settled = locked.settle(mode, &judged)?;
    let (at, _) = settled.first()?;
    let figures = settled.iter().map(|(_, figures)| figures);
    let each = locked.parts.iter().zip(&judged).zip(figures);
    let each = each.map(|((part, judgement), figures)| (&part.rule.rule, judgement, figures));
    let mut decision = combine(*at, each);
    restore_places(&mut decision, &merged);
    count(&shared.connection.counters.near);
    Some(decision)
}

/// The charges of a request, with the locks of their clients' shards.
struct LockedCharges<'a> {
    shared: &'a Shared,
    parts: Vec<NearPart<'a>>,
    locks: Vec<MutexGuard<'a, Shard>>,
    local: Nanos,
}

impl<'a> LockedCharges<'a> {
    fn new(shared: &'a Shared, mut parts: Vec<NearPart<'a>>) -> Option<Self> {
        let locks = lock(&mut parts)?;
        Some(Self {
            shared,
            parts,
            locks,
            local: shared.clocks.local(),
        })
    }

    fn judge(&mut self, mode: Mode) -> Option<Vec<Judgement>> {
        self.each(|_, part, client, time| {
            client.judge(&part.rule.rule, part.charge.cost, mode, time)
        })
    }

    fn settle(&mut self, mode: Mode, judged: &[Judgement]) -> Option<Vec<(Nanos, Figures)>> {
        let all_pass = judged.iter().all(Judgement::passes);
        self.each(|at, part, client, time| {
            let settled = judged[at].settle(mode, all_pass);
            Some(client.settle(&part.rule.rule, part.charge.cost, settled, time))
        })
    }

    /// Calls `change` with the index, the charge, the client and the time of each part. Returns
    /// `None` if a client was evicted, or if `change` returns `None` for one.
    fn each<R>(
        &mut self,
        change: impl Fn(usize, &NearPart<'_>, &mut Client, LocalTime) -> Option<R>,
    ) -> Option<Vec<R>> {
        let Self {
            shared,
            parts,
            locks,
            local,
        } = self;
        let each = parts.iter().enumerate().map(|(at, part)| {
            locks[part.lock].with(part.place, |client| {
                let time = shared.time_of(client, None, *local);
                change(at, part, client, time)
            })?
        });
        each.collect()
    }
}

/// Locks each part's shard once, in the same order for all requests, so that they cannot deadlock.
fn lock<'a>(parts: &mut [NearPart<'a>]) -> Option<Vec<MutexGuard<'a, Shard>>> {
    let shard = |part: &NearPart<'_>| (part.rule.id, part.place.shard);
    let mut order: Vec<_> = parts.iter().map(shard).collect();
    order.sort_unstable();
    order.dedup();
    for part in parts.iter_mut() {
        part.lock = order.binary_search(&shard(part)).ok()?;
    }
    let locked = order.iter().map(|wanted| {
        let part = parts.iter().find(|part| shard(part) == *wanted)?;
        Some(part.rule.near.as_ref()?.lock(wanted.1))
    });
    locked.collect()
}

/// The most exchanges for one request. Several may be needed, since other requests may use up the
/// share that it waits for.
const MAX_EXCHANGES: usize = 3;

/// Exchanges the client of a request with Redis and then decides. Returns `None` if Redis itself
/// must decide.
pub(crate) async fn ask(shared: &Arc<Shared>, request: &Request) -> Option<Decision> {
    let charge = match &request.charges[..] {
        [charge] if charge.rule.is_near => charge,
        _ => {
            exchange::send_first(shared, request).await;
            return None;
        }
    };
    let rule = charge.rule.near.as_ref()?;
    rule.with_new(&charge.client, |client| client.group = charge.group)?;
    let cost = if request.mode == Mode::Check {
        charge.cost
    } else {
        Cost::ZERO
    };
    for attempt in 1..=MAX_EXCHANGES {
        if let Err(fault) = exchange::ask(shared, charge, cost, request.now).await {
            count(&shared.connection.counters.alone);
            return gone(shared, request, charge, &fault);
        }
        if attempt == 1 {
            count(&shared.connection.counters.shared);
        }
        if let Some(decision) = decide(shared, request, charge, Authority::Share)? {
            return Some(decision);
        }
        if shared.with_near(charge, request.now, |client, _| {
            client.is_claimed_by_others()
        })? {
            break;
        }
    }
    let mut decision = decide(shared, request, charge, Authority::Refused)??;
    if !decision.allowed && decision.retry_after == Wait::NONE {
        decision.retry_after = Wait::For(shared.options.sync);
    }
    Some(decision)
}

/// Decides by the client's state. Returns `None` if this node no longer knows the client, and
/// `Some(None)` if Redis must be asked.
fn decide(
    shared: &Shared,
    request: &Request,
    charge: &KeyedCharge,
    authority: Authority,
) -> Option<Option<Decision>> {
    let rule = &charge.rule.rule;
    shared.with_near(charge, request.now, |client, time| {
        let decision = client.decide(rule, charge.cost, request.mode, time, authority);
        count_claimed(shared, client);
        decision
    })
}

/// Counts a request that was denied only because other nodes claim what the limit has left.
fn count_claimed(shared: &Shared, client: &mut Client) {
    if client.take_lacked_share() {
        count(&shared.connection.counters.claimed);
    }
}

/// Decides while Redis is not reachable, by the policy for outages, which may use the client's last
/// known state.
fn gone(
    shared: &Shared,
    request: &Request,
    charge: &KeyedCharge,
    fault: &Fault,
) -> Option<Decision> {
    if let Fault::Record(_) = fault {
        // The record cannot be used, so no charge that is sent to it can arrive.
        if shared.with_near(charge, request.now, |client, _| client.drop_in_flight()) == Some(true)
        {
            count(&shared.connection.counters.not_handed_over);
        }
    }
    let now = shared.clocks.now(request.now);
    match shared.options.when_gone {
        WhenGone::Local => decide(shared, request, charge, Authority::StateOnly)?,
        WhenGone::Allow => Some(policy::by_policy(shared, request, now, true)),
        WhenGone::Deny => Some(policy::by_policy(shared, request, now, false)),
    }
}

/// Invalidates this node's information about a request's clients, since Redis itself has decided
/// the request.
pub(crate) fn decided_elsewhere(shared: &Shared, request: &Request) {
    for charge in &request.charges {
        if let Some(table) = charge.rule.near.as_ref().filter(|_| charge.rule.is_near) {
            table.with_new(&charge.client, |client| {
                client.group = charge.group;
                client.invalidate(shared.clocks.now(request.now));
            });
        }
    }
}

/// Takes back a request that was not sent to Redis yet. Returns true if there was one.
pub(crate) fn take_back(
    shared: &Shared,
    charge: &KeyedCharge,
    charged_at: Option<Nanos>,
    now: Option<Nanos>,
) -> bool {
    let limit = charge.rule.rule.limit();
    let back = |client: &mut Client, time| client.take_back(limit, charge.cost, charged_at, time);
    shared.with_near(charge, now, back).unwrap_or_default()
}

/// Exchanges a client before or after its record is changed by other means.
pub(crate) async fn refresh(shared: &Arc<Shared>, charge: &KeyedCharge, now: Option<Nanos>) {
    let Some(table) = &charge.rule.near else {
        return;
    };
    if exchange::ask(shared, charge, Cost::ZERO, now)
        .await
        .is_err()
    {
        table.with(&charge.client, |client| {
            client.invalidate(shared.clocks.now(now))
        });
    }
}
