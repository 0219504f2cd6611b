//! What nodes that decide by themselves tell Redis, and are told.

use std::sync::Arc;

use earrrl::{Cost, Nanos, State};
use redis::{ErrorKind, RedisResult, ServerErrorKind, Value};
use tokio::task::JoinSet;

use super::client::{Call, Told};
use super::table::Table;
use super::{fresh, offset};
use crate::algorithm::{self, Adjustment, Answers, Packed, micros};
use crate::convert::{Called, converting, done_or_foreign};
use crate::link::{Fault, Link};
use crate::reply::{self, Reply};
use crate::request::{AskedCharge, Request};
use crate::rules::PreparedRule;
use crate::shared::Shared;
use crate::status::count;

/// Adjustments of one client in one call; of a log that has more, neighbours are merged.
const ADJUSTMENTS: usize = 256;

/// What is unsent of a request's clients goes before it.
pub(crate) async fn send_first(shared: &Arc<Shared>, request: &Request) {
    let mut tasks = JoinSet::new();
    for asked in &request.asked {
        if shared.with_near(asked, request.now, |client, _| client.owes()) == Some(true) {
            let (shared, asked, now) = (shared.clone(), asked.clone(), request.now);
            tasks.spawn(async move { ask(&shared, &asked, Cost::ZERO, now).await });
        }
    }
    while tasks.join_next().await.is_some() {}
}

/// Exchanges one client now, within the deadline, and claims what a request takes.
pub(crate) async fn ask(
    shared: &Arc<Shared>,
    asked: &AskedCharge,
    cost: Cost,
    now: Option<Nanos>,
) -> Result<(), Fault> {
    let link = shared.link(asked.group)?;
    let _waits = asked.rule.near.as_deref().map(|table| Waits::new(table, asked, cost));
    let call = exchange_one(shared, link, asked, cost, now);
    shared.within(shared.options.deadline, asked.group, call).await
}

/// Exchanges one client.
pub(super) async fn exchange_one(
    shared: &Arc<Shared>,
    link: Link,
    asked: &AskedCharge,
    cost: Cost,
    now: Option<Nanos>,
) -> Result<(), Fault> {
    let script = shared.scripts.near(asked.rule.kind);
    converting(shared, link, |mut link| async move {
        let Some((call, keys, args)) = begin(shared, asked, cost, now) else {
            return Ok(Called::Done(()));
        };
        let sent = shared.now(now);
        let answer = link.call(script, &keys, &args).await;
        match finish(shared, asked, &call, answer, sent, now) {
            Ok(()) => Ok(Called::Done(())),
            Err(Unfinished::Foreign(at)) => Ok(Called::Foreign(asked, at)),
            Err(Unfinished::Unknown) => Err(Fault::Refused("no such script".to_owned())),
            Err(Unfinished::Failed(fault)) => Err(fault),
        }
    })
    .await
}

/// A request waits for an answer about its client until this is dropped.
struct Waits<'a> {
    table: &'a Table,
    asked: &'a AskedCharge,
    cost: Cost,
}

impl<'a> Waits<'a> {
    fn new(table: &'a Table, asked: &'a AskedCharge, cost: Cost) -> Self {
        let limit = asked.rule.rule.limit();
        table.with(&asked.client, |client| client.awaits(limit, cost, true));
        Self { table, asked, cost }
    }
}

impl Drop for Waits<'_> {
    fn drop(&mut self) {
        let (limit, cost) = (self.asked.rule.rule.limit(), self.cost);
        self.table.with(&self.asked.client, |client| client.awaits(limit, cost, false));
    }
}

pub(super) type Begun = (Call, [Vec<u8>; 2], Vec<Vec<u8>>);

/// A call about a client, its keys and arguments.
pub(super) fn begin(
    shared: &Shared,
    asked: &AskedCharge,
    cost: Cost,
    now: Option<Nanos>,
) -> Option<Begun> {
    let limit = asked.rule.rule.limit();
    let (call, present) = shared.with_near(asked, now, |client, time| {
        (client.call(limit, cost, time, || shared.near.number()), time.redis())
    })?;
    let counted = call.counted.as_ref();
    let counted = counted.and_then(|counted| Some((counted.state.as_ref()?, counted.sum)));
    let all = counted.map_or_else(Vec::new, |(state, sum)| adjustments(asked, state, sum, present));
    let judged = if cost.is_zero() { Cost::ONE } else { cost };
    let claim = Some((&call, judged));
    let (keys, args) = arguments(shared, asked, claim, call.number, &all, now);
    Some((call, keys, args))
}

/// The keys and arguments of near.lua: what is asked for, or nothing; and what was counted, with its number.
fn arguments(
    shared: &Shared,
    asked: &AskedCharge,
    claim: Option<(&Call, Cost)>,
    number: u64,
    counted: &[Adjustment],
    now: Option<Nanos>,
) -> ([Vec<u8>; 2], Vec<Vec<u8>>) {
    let near = &shared.near;
    let claims = claim.map(|(call, _)| {
        let least = algorithm::of(asked.rule.rule.limit()).takes(Cost::ONE);
        let lease = asked.rule.lease.as_micros() as f64;
        (near.node, [call.need, call.take, call.like, least, f64::from(near.nodes()), lease])
    });
    let (node, claims) = claims.unwrap_or((near.ledger(), [0.0, 0.0, 0.0, f64::MAX, 1.0, 0.0]));
    let mut head = Packed(node.to_vec());
    head.numbers(&[number as f64]);
    head.numbers(&claims);
    head.numbers(&[now.map_or(-1.0, micros)]);
    let cost = claim.map_or(Cost::ONE, |(_, cost)| cost);
    head.0.extend(asked.rule.parameters(cost, shared.options.linger, 1.0));
    let counted = counted.iter().map(|adjustment| shared.adjustment(asked, adjustment, now));
    let args = std::iter::once(head.0).chain(counted).collect();
    ([asked.key.clone(), shared.keys.claims(&asked.key)], args)
}

/// Adds what was counted alone under a number, once, however often it is sent; claims nothing.
pub(crate) async fn add(
    shared: &Arc<Shared>,
    link: Link,
    asked: &AskedCharge,
    number: u64,
    state: &State,
    sum: Cost,
) -> Result<(), Fault> {
    let script = shared.scripts.near(asked.rule.kind);
    converting(shared, link, |mut link| async move {
        let (local, offset) = (shared.clock.now(), shared.near.offsets[asked.group].get());
        let now = offset::later(local, offset);
        let state = algorithm::of(asked.rule.rule.limit()).moved(state.clone(), local, now);
        let all = adjustments(asked, &state, sum, now);
        let (keys, args) = arguments(shared, asked, None, number, &all, None);
        let answer = link.call(script, &keys, &args).await?;
        Ok(done_or_foreign(&answer, asked, now))
    })
    .await
}

/// What was counted until now, by Redis's clock.
fn adjustments(asked: &AskedCharge, state: &State, sum: Cost, now: Nanos) -> Vec<Adjustment> {
    let now = Nanos::new(now.get() / 1000 * 1000);
    let all = algorithm::of(asked.rule.rule.limit()).adjustments(state, sum, now);
    let mut all: Vec<_> = all.into_iter().filter(|one| !one.cost.is_zero()).collect();
    for adjustment in &mut all {
        if adjustment.when < 0.0 {
            adjustment.when = micros(now);
        }
    }
    let together = all.len().div_ceil(ADJUSTMENTS).max(1);
    let merge = |some: &[Adjustment]| {
        let (last, before) = some.split_last()?;
        let cost = before.iter().fold(last.cost, |sum, one| sum + one.cost);
        Some(Adjustment { cost, ..*last })
    };
    all.chunks(together).filter_map(merge).collect()
}

/// Why an exchange is not done.
pub(super) enum Unfinished {
    /// The record is of other parameters.
    Foreign(Nanos),
    /// Redis does not have the script.
    Unknown,
    Failed(Fault),
}

fn nonsense() -> Unfinished {
    Unfinished::Failed(Fault::Record("the script's answer makes no sense".to_owned()))
}

/// Takes an answer over.
pub(super) fn finish(
    shared: &Shared,
    asked: &AskedCharge,
    call: &Call,
    answer: RedisResult<Value>,
    sent: Nanos,
    now: Option<Nanos>,
) -> Result<(), Unfinished> {
    let received = shared.now(now);
    let (at, answer) = answered(answer, now)?;
    if now.is_none() {
        shared.near.offsets[asked.group].learn(at, sent, received);
    }
    let fresh = sent + fresh(shared.options.sync);
    let told = Told { fresh, ..told(&asked.rule, &answer, at, sent).ok_or_else(nonsense)? };
    let limit = asked.rule.rule.limit();
    let crossed =
        shared.with_near(asked, now, |client, time| client.adopt(limit, call, told, time));
    if crossed == Some(true) {
        count(&shared.counters.crossings);
    }
    Ok(())
}

/// The time of an answer, and what it tells.
fn answered(
    answer: RedisResult<Value>,
    now: Option<Nanos>,
) -> Result<(Nanos, Vec<u8>), Unfinished> {
    let bytes = match answer {
        Ok(Value::BulkString(bytes)) => bytes,
        Ok(_) => return Err(nonsense()),
        Err(error) if error.kind() == ErrorKind::Server(ServerErrorKind::NoScript) => {
            return Err(Unfinished::Unknown);
        }
        Err(error) => return Err(Unfinished::Failed(error.into())),
    };
    match reply::single(&bytes).ok_or_else(nonsense)? {
        Reply::Decided { time, seen } => {
            let seen = seen.into_iter().next().ok_or_else(nonsense)?;
            Ok((now.or(time).ok_or_else(nonsense)?, seen.state))
        }
        Reply::Foreign { time, .. } => Err(Unfinished::Foreign(now.or(time).ok_or_else(nonsense)?)),
        Reply::Past { .. } => Err(nonsense()),
    }
}

/// Three numbers, and the client's record or a summary of it.
fn told(rule: &PreparedRule, answer: &[u8], at: Nanos, sent: Nanos) -> Option<Told> {
    let (share, rest) = answer.split_first_chunk()?;
    let (others, rest) = rest.split_first_chunk()?;
    let (lacks, record) = rest.split_first_chunk()?;
    let limit = rule.rule.limit();
    let state = match algorithm::of(limit).answers() {
        Answers::After => algorithm::decode_summary(limit, record),
        Answers::Before => algorithm::decode(limit, record, at),
    };
    let share = f64::from_le_bytes(*share);
    let share = if share.is_finite() { share } else { 0.0 };
    let (others, lacks) = (f64::from_le_bytes(*others) as u32, f64::from_le_bytes(*lacks));
    let (until, renew) = (sent + rule.lease, sent + rule.lease / 2);
    Some(Told { state, share, until, renew, fresh: sent, others, lacks })
}
