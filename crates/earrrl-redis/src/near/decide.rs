//! Requests under rules that a node decides by itself.

use std::sync::{Arc, MutexGuard};

use earrrl::internal::{Judgement, combine, merge_charges, restore_places};
use earrrl::{Charge, Cost, Decision, Figures, Mode, Nanos, Wait};

use super::client::{Basis, Client, Loan, Time};
use super::exchange;
use super::shard::Shard;
use super::table::{NearRule, Place};
use crate::alone;
use crate::link::Fault;
use crate::options::WhenGone;
use crate::request::{AskedCharge, Request};
use crate::rules::PreparedRule;
use crate::shared::Shared;
use crate::status::count;

impl Shared {
    /// The time by which a client is judged.
    pub(crate) fn time_of(&self, client: &Client, given: Option<Nanos>, local: Nanos) -> Time {
        let offset = if given.is_some() { 0 } else { self.near.offsets[client.group].get() };
        Time { local, offset }
    }

    /// Does something with a client that this node decides by itself, at the present time.
    pub(crate) fn with_near<R>(
        &self,
        asked: &AskedCharge,
        given: Option<Nanos>,
        change: impl FnOnce(&mut Client, Time) -> R,
    ) -> Option<R> {
        let local = self.now(given);
        asked.rule.near.as_ref()?.with(&asked.client, |client| {
            let time = self.time_of(client, given, local);
            change(client, time)
        })
    }
}

/// Decides at once, where nobody need be asked.
pub(crate) fn at_once(
    shared: &Shared,
    charges: &[Charge<'_>],
    mode: Mode,
    given: Option<Nanos>,
) -> Option<Decision> {
    let [charge] = charges else { return several(shared, charges, mode, given) };
    let local = |_| given.unwrap_or_else(|| shared.clock.now());
    let lent = |NearRule { rule, lag }: &NearRule, loan: &mut Loan, group: usize| {
        if mode != Mode::Check || given.is_some() {
            return None;
        }
        let cost = rule.accept(charge.cost).ok()?;
        let offset = shared.near.offsets[group].get();
        loan.allow(rule, cost, Time { local: local(*lag), offset })
    };
    let itself = |NearRule { rule, lag }: &NearRule, client: &mut Client| {
        let (cost, local) = (rule.accept(charge.cost).ok()?, local(*lag));
        if given.is_some() && client.is_due(local, shared.options.sync) {
            return None;
        }
        let time = shared.time_of(client, given, local);
        client.decide(rule, cost, mode, time, Basis::Share)
    };
    shared.rules.tables.get(charge.rule)?.decide(charge.key, lent, itself)
}

/// A charge to a client of this node's own.
struct Part<'a> {
    rule: &'a PreparedRule,
    charge: Charge<'a>,
    place: Place,
    /// Which of the locks.
    lock: usize,
}

impl<'a> Part<'a> {
    fn new(rule: &'a PreparedRule, charge: Charge<'a>) -> Option<Self> {
        let place = rule.near.as_ref()?.place(charge.key);
        Some(Self { rule, charge, place, lock: 0 })
    }
}

/// All or nothing: every client stays locked until all are judged.
fn several(
    shared: &Shared,
    charges: &[Charge<'_>],
    mode: Mode,
    given: Option<Nanos>,
) -> Option<Decision> {
    let rules: Vec<Arc<PreparedRule>> =
        charges.iter().map(|charge| shared.rules.get(charge.rule)).collect::<Option<_>>()?;
    if given.is_some() || rules.iter().any(|rule| !rule.is_near) {
        return None;
    }
    let find = |id| rules.iter().find(|rule| rule.id == id);
    let merged = merge_charges(charges, |id| find(id).map(|rule| &rule.rule)).ok()?;
    let parts = merged.iter().map(|(_, charge)| Part::new(find(charge.rule)?, *charge));
    let mut locked = Locked::new(shared, parts.collect::<Option<_>>()?)?;
    let judged = locked.judge(mode)?;
    let settled = locked.settle(mode, &judged)?;
    let (at, _) = settled.first()?;
    let figures = settled.iter().map(|(_, figures)| figures);
    let each = locked.parts.iter().zip(&judged).zip(figures);
    let each = each.map(|((part, judgement), figures)| (&part.rule.rule, judgement, figures));
    let mut decision = combine(*at, each);
    restore_places(&mut decision, &merged);
    count(&shared.counters.near);
    Some(decision)
}

/// The clients of a request, with the locks of their shards.
struct Locked<'a> {
    shared: &'a Shared,
    parts: Vec<Part<'a>>,
    locks: Vec<MutexGuard<'a, Shard>>,
    local: Nanos,
}

impl<'a> Locked<'a> {
    fn new(shared: &'a Shared, mut parts: Vec<Part<'a>>) -> Option<Self> {
        let locks = lock(&mut parts)?;
        Some(Self { shared, parts, locks, local: shared.clock.now() })
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

    /// Does something with every client, in the order of the parts.
    fn each<R>(
        &mut self,
        change: impl Fn(usize, &Part<'_>, &mut Client, Time) -> Option<R>,
    ) -> Option<Vec<R>> {
        let Self { shared, parts, locks, local } = self;
        let each = parts.iter().enumerate().map(|(at, part)| {
            locks[part.lock].with(part.place, |client| {
                let time = shared.time_of(client, None, *local);
                change(at, part, client, time)
            })?
        });
        each.collect()
    }
}

/// Locks every part's shard once, in one order for all requests.
fn lock<'a>(parts: &mut [Part<'a>]) -> Option<Vec<MutexGuard<'a, Shard>>> {
    let shard = |part: &Part<'_>| (part.rule.id, part.place.shard);
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

/// How often Redis is asked, where other requests spend meanwhile what was told.
const ASKS: usize = 3;

/// Asks Redis what this node may do, and then decides; nothing where Redis itself is to decide.
pub(crate) async fn ask(shared: &Arc<Shared>, request: &Request) -> Option<Decision> {
    let asked = match &request.asked[..] {
        [asked] if asked.rule.is_near => asked,
        _ => {
            exchange::send_first(shared, request).await;
            return None;
        }
    };
    let rule = asked.rule.near.as_ref()?;
    rule.with_new(&asked.client, |client| client.group = asked.group)?;
    let cost = if request.mode == Mode::Check { asked.cost } else { Cost::ZERO };
    for asks in 1..=ASKS {
        if let Err(fault) = exchange::ask(shared, asked, cost, request.now).await {
            count(&shared.counters.alone);
            return gone(shared, request, asked, &fault);
        }
        if asks == 1 {
            count(&shared.counters.shared);
        }
        if let Some(decision) = decide(shared, request, asked, Basis::Share)? {
            return Some(decision);
        }
        if shared.with_near(asked, request.now, |client, _| client.lacks())? {
            break;
        }
    }
    let mut decision = decide(shared, request, asked, Basis::Claimed)??;
    if !decision.allowed && decision.retry_after == Wait::NONE {
        decision.retry_after = Wait::For(shared.options.sync);
    }
    Some(decision)
}

/// Nothing where the client is not known any more; nothing in it where Redis must be asked.
fn decide(
    shared: &Shared,
    request: &Request,
    asked: &AskedCharge,
    basis: Basis,
) -> Option<Option<Decision>> {
    let rule = &asked.rule.rule;
    shared.with_near(asked, request.now, |client, time| {
        client.decide(rule, asked.cost, request.mode, time, basis)
    })
}

/// By the policy, or by what was last known.
fn gone(
    shared: &Shared,
    request: &Request,
    asked: &AskedCharge,
    fault: &Fault,
) -> Option<Decision> {
    if let Fault::Record(_) = fault {
        // Its record can't be used: nothing that is sent can arrive.
        if shared.with_near(asked, request.now, |client, _| client.give_up()) == Some(true) {
            count(&shared.counters.not_handed_over);
        }
    }
    let now = shared.now(request.now);
    match shared.options.when_gone {
        WhenGone::Local => decide(shared, request, asked, Basis::State)?,
        WhenGone::Allow => Some(alone::by_fiat(request, now, true)),
        WhenGone::Deny => Some(alone::by_fiat(request, now, false)),
    }
}

/// Redis has decided itself about clients of this node's.
pub(crate) fn decided_elsewhere(shared: &Shared, request: &Request) {
    for asked in &request.asked {
        if let Some(table) = asked.rule.near.as_ref().filter(|_| asked.rule.is_near) {
            table.with_new(&asked.client, |client| {
                client.group = asked.group;
                client.is_stale(shared.now(request.now));
            });
        }
    }
}

/// Takes a request back that Redis was not sent; answers whether there was one.
pub(crate) fn take_back(
    shared: &Shared,
    asked: &AskedCharge,
    charged_at: Option<Nanos>,
    now: Option<Nanos>,
) -> bool {
    let limit = asked.rule.rule.limit();
    let back = |client: &mut Client, time| client.take_back(limit, asked.cost, charged_at, time);
    shared.with_near(asked, now, back).unwrap_or_default()
}

/// Sends what Redis lacks of a client, and hears what it has: before its record is changed otherwise, and
/// after.
pub(crate) async fn refresh(shared: &Arc<Shared>, asked: &AskedCharge, now: Option<Nanos>) {
    let Some(table) = &asked.rule.near else { return };
    if exchange::ask(shared, asked, Cost::ZERO, now).await.is_err() {
        table.with(&asked.client, |client| client.is_stale(shared.now(now)));
    }
}
