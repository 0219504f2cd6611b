//! Exchanges of near clients with Redis: sends the charges that Redis lacks, and applies Redis's
//! snapshot.

use std::sync::Arc;
use std::time::Duration;

use earrrl::{Cost, Nanos};
use redis::{ErrorKind, RedisResult, ServerErrorKind, Value};
use tokio::task::JoinSet;

use super::heartbeat;
use crate::algorithm::{self, Answers};
use crate::calls::contribute::{Arguments, Claim, arguments};
use crate::calls::convert::{Called, converting};
use crate::clients::client::{Snapshot, SyncCall};
use crate::clients::snapshot_ttl;
use crate::clients::table::ClientTable;
use crate::connection::fault::Fault;
use crate::connection::link::Link;
use crate::reply::{self, Reply};
use crate::request::{KeyedCharge, Request};
use crate::rules::PreparedRule;
use crate::shared::Shared;
use crate::status::count;

/// The duration of the claims that are made before all nodes are known.
const SETTLING_TTL: Duration = Duration::from_secs(2);

/// Sends the pending charges of a request's clients, so that Redis takes them into account when it
/// decides the request.
pub(crate) async fn send_first(shared: &Arc<Shared>, request: &Request) {
    let mut tasks = JoinSet::new();
    for charge in &request.charges {
        if shared.with_near(charge, request.now, |client, _| client.has_pending()) == Some(true) {
            let shared = shared.clone();
            let charge = charge.clone();
            let now = request.now;
            tasks.spawn(async move { ask(&shared, &charge, Cost::ZERO, now).await });
        }
    }
    while tasks.join_next().await.is_some() {}
}

/// Exchanges one client now, within the deadline, and claims the headroom that a request needs.
pub(crate) async fn ask(
    shared: &Arc<Shared>,
    charge: &KeyedCharge,
    cost: Cost,
    now: Option<Nanos>,
) -> Result<(), Fault> {
    let link = shared.connection.link(charge.group)?;
    heartbeat::announced(shared).await;
    let _waiting = charge
        .rule
        .near
        .as_deref()
        .map(|table| Waiting::new(table, charge, cost));
    let call = exchange(shared, link, charge, cost, now);
    count(&shared.connection.counters.awaited);
    shared
        .connection
        .within(shared.options.deadline, charge.group, call)
        .await
}

/// Exchanges one client.
pub(super) async fn exchange(
    shared: &Arc<Shared>,
    link: Link,
    charge: &KeyedCharge,
    cost: Cost,
    now: Option<Nanos>,
) -> Result<(), Fault> {
    let script = shared.connection.scripts.near(charge.rule.kind);
    converting(shared, link, |mut link| async move {
        let Some((call, Arguments { keys, args })) = begin(shared, charge, cost, now) else {
            return Ok(Called::Done(()));
        };
        let sent = shared.clocks.now(now);
        let answer = link.call(script, &keys, &args).await;
        match finish(shared, charge, &call, answer, sent, now) {
            Ok(()) => Ok(Called::Done(())),
            Err(Unfinished::Foreign(at)) => Ok(Called::Foreign(charge, at)),
            Err(Unfinished::ClockSet) => Ok(Called::Again),
            Err(Unfinished::NoScript) => Err(Fault::Refused("no such script".to_owned())),
            Err(Unfinished::Failed(fault)) => Err(fault),
        }
    })
    .await
}

/// Counts a request among those that wait for an answer about its client, until this guard is
/// dropped.
struct Waiting<'a> {
    table: &'a ClientTable,
    charge: &'a KeyedCharge,
    cost: Cost,
}

impl<'a> Waiting<'a> {
    fn new(table: &'a ClientTable, charge: &'a KeyedCharge, cost: Cost) -> Self {
        let limit = charge.rule.rule.limit();
        table.with(&charge.client, |client| {
            client.set_waiting(limit, cost, true)
        });
        Self {
            table,
            charge,
            cost,
        }
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        let limit = self.charge.rule.rule.limit();
        let cost = self.cost;
        self.table.with(&self.charge.client, |client| {
            client.set_waiting(limit, cost, false)
        });
    }
}

/// Begins a call about a client. Returns `None` if this node does not know the client.
pub(super) fn begin(
    shared: &Shared,
    charge: &KeyedCharge,
    cost: Cost,
    now: Option<Nanos>,
) -> Option<(SyncCall, Arguments)> {
    let limit = charge.rule.rule.limit();
    let (call, present) = shared.with_near(charge, now, |client, time| {
        let ttl = charge.rule.claim_ttl;
        (
            client.call(limit, cost, time, ttl, || shared.node.number()),
            time.redis(),
        )
    })?;
    let lasts = if shared.node.is_leaving() {
        Duration::ZERO
    } else {
        charge.rule.claim_ttl
    };
    let claim = Claim {
        node: shared.node.name,
        need: call.need,
        take: call.take,
        wanted: call.wanted,
        expected: call.expected,
        least: algorithm::of(limit).takes(Cost::ONE),
        nodes: shared.node.sharers(),
        lasts: lasts.as_micros() as f64,
        cost: if cost.is_zero() { Cost::ONE } else { cost },
    };
    let arguments = arguments(
        shared,
        charge,
        &claim,
        call.contribution.as_ref(),
        now,
        present,
    );
    Some((call, arguments))
}

/// The reason why an exchange did not succeed.
pub(super) enum Unfinished {
    /// The record has other parameters; contains the time.
    Foreign(Nanos),
    /// Redis's clock was set since this node last saw its time.
    ClockSet,
    /// Redis does not have the script.
    NoScript,
    Failed(Fault),
}

fn invalid_answer() -> Unfinished {
    Unfinished::Failed(Fault::Record(
        "the script's answer makes no sense".to_owned(),
    ))
}

/// Applies Redis's answer to the client.
pub(super) fn finish(
    shared: &Shared,
    charge: &KeyedCharge,
    call: &SyncCall,
    answer: RedisResult<Value>,
    sent: Nanos,
    now: Option<Nanos>,
) -> Result<(), Unfinished> {
    let received = shared.clocks.now(now);
    let TimedReply { at, body } = read(answer, now)?;
    if now.is_none() {
        shared.clocks.offsets[charge.group].learn(at, sent, received);
    }
    let answer = body.ok_or(Unfinished::ClockSet)?;
    let fresh = sent + snapshot_ttl(shared.options.sync);
    // A claim that is made before all nodes are known must be made again soon.
    let most = if shared.node.is_settling() {
        SETTLING_TTL
    } else {
        charge.rule.claim_ttl
    };
    let ttl = charge.rule.claim_ttl.min(most);
    let snapshot = snapshot(&charge.rule, &answer, at, sent).ok_or_else(invalid_answer)?;
    let snapshot = Snapshot {
        fresh,
        until: sent + ttl,
        renew: sent + ttl * 5 / 8,
        ..snapshot
    };
    let limit = charge.rule.rule.limit();
    let crossed = shared.with_near(charge, now, |client, time| {
        client.apply(limit, call, snapshot, time)
    });
    if crossed == Some(true) {
        count(&shared.connection.counters.crossings);
    }
    Ok(())
}

/// The time and the body of an answer. A call without a body did nothing, since its time was too
/// far from Redis's.
struct TimedReply {
    at: Nanos,
    body: Option<Vec<u8>>,
}

fn read(answer: RedisResult<Value>, now: Option<Nanos>) -> Result<TimedReply, Unfinished> {
    let bytes = match answer {
        Ok(Value::BulkString(bytes)) => bytes,
        Ok(_) => return Err(invalid_answer()),
        Err(error) if error.kind() == ErrorKind::Server(ServerErrorKind::NoScript) => {
            return Err(Unfinished::NoScript);
        }
        Err(error) => return Err(Unfinished::Failed(error.into())),
    };
    let time_of = |time: Option<Nanos>| now.or(time).ok_or_else(invalid_answer);
    match reply::single(&bytes).ok_or_else(invalid_answer)? {
        Reply::Decided { time, observed } => {
            let observed = observed.into_iter().next().ok_or_else(invalid_answer)?;
            Ok(TimedReply {
                at: time_of(time)?,
                body: Some(observed.state),
            })
        }
        Reply::Foreign { time, .. } => Err(Unfinished::Foreign(time_of(time)?)),
        Reply::Expired { time } => Ok(TimedReply {
            at: time,
            body: None,
        }),
    }
}

/// Reads four numbers, and the client's record or its summary. The caller sets the times of the
/// snapshot.
fn snapshot(rule: &PreparedRule, answer: &[u8], at: Nanos, sent: Nanos) -> Option<Snapshot> {
    let (share, rest) = answer.split_first_chunk()?;
    let (others, rest) = rest.split_first_chunk()?;
    let (missing, rest) = rest.split_first_chunk()?;
    let (part, record) = rest.split_first_chunk()?;
    let limit = rule.rule.limit();
    let state = match algorithm::of(limit).answers() {
        Answers::After => algorithm::decode_summary(limit, record),
        Answers::Before => algorithm::decode(limit, record, at),
    };
    let share = f64::from_le_bytes(*share);
    let share = if share.is_finite() { share } else { 0.0 };
    let others = f64::from_le_bytes(*others) as u32;
    let missing = f64::from_le_bytes(*missing);
    let part = f64::from_le_bytes(*part);
    Some(Snapshot {
        state,
        share,
        until: sent,
        renew: sent,
        fresh: sent,
        others,
        missing,
        part,
    })
}
