//! Deliveries of the ledger's entries to Redis by `add.lua`: after an outage, at least every second, and at once for
//! a refund that somebody waits for. Each entry is applied once, even if it is sent several times.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use earrrl::Nanos;
use futures_util::future::join_all;
use redis::Value;
use tokio::task::JoinError;
use tokio::time::timeout;

use crate::algorithm::{Adjustment, Packed, micros};
use crate::connection::fault::Fault;
use crate::connection::link::Link;
use crate::connection::script::Frame;
use crate::ledger::{Entry, Record};
use crate::reply::{self, Reply};
use crate::request::KeyedCharge;
use crate::shared::Shared;
use crate::status::count;
use crate::unsettled::settle;

/// The timeout of a delivery. An entry that was not delivered is kept for the next attempt.
const TIMEOUT: Duration = Duration::from_secs(2);
/// The most deliveries at the same time.
const MAX_UNDER_WAY: usize = 64;
/// The most calls of the script. A second one is needed if Redis's clock was set.
const MAX_CALLS: usize = 4;

/// Takes back a charge that Redis has stored, exactly once. Waits for that within the deadline;
/// afterwards, the change is delivered in the background. Returns [`Fault::Refused`] if the ledger is too full
/// to note the change, and [`Fault::Record`] if Redis cannot apply it.
pub(crate) async fn take_back(
    shared: &Arc<Shared>,
    charge: &KeyedCharge,
    charged_at: Option<Nanos>,
    given: Option<Nanos>,
) -> Result<(), Fault> {
    let back = Adjustment::take_back(charged_at, charge.cost, false);
    let Some(number) = shared.ledger.take_back_there(charge, back, given) else {
        count(&shared.connection.counters.not_handed_over);
        let full = "too many counts wait to be handed over";
        return Err(Fault::Refused(full.to_owned()));
    };
    let Ok(link) = shared.connection.link(charge.group) else {
        return Ok(());
    };
    let delivery = deliver_until(shared, &link, Record::of(charge), number);
    match shared.connection.within(charge.group, delivery).await {
        Err(fault @ Fault::Record(_)) => Err(fault),
        _ => Ok(()),
    }
}

/// Delivers a record's entries until Redis has the one with this number. Entries that cannot be
/// delivered now are delivered later.
async fn deliver_until(
    shared: &Arc<Shared>,
    link: &Link,
    record: Record,
    number: u64,
) -> Result<(), Fault> {
    let ledger = &shared.ledger;
    while ledger.lacks(&record, number) {
        let mut returned = pin!(ledger.returned());
        returned.as_mut().enable();
        match ledger.drain_record(&record, number) {
            // Delivered in a task of its own, which completes even if the caller is cancelled: only
            // this task knows the entry under way.
            Some(entry) => {
                let one = deliver(shared.clone(), link.clone(), record.clone(), entry);
                tokio::spawn(one).await.unwrap_or_else(stopped)?;
            }
            None if ledger.lacks(&record, number) => returned.await,
            None => {}
        }
    }
    Ok(())
}

fn stopped<T>(_: JoinError) -> Result<T, Fault> {
    Err(Fault::Lost("a task was stopped".to_owned()))
}

/// Settles a group's calls and delivers its entries until Redis fails; the rest is kept for
/// the next attempt. It runs in a task of its own, which completes even if the caller is cancelled:
/// only this task knows the entries under way.
pub(crate) async fn hand_over(
    shared: &Arc<Shared>,
    link: &Link,
    group: usize,
) -> Result<(), Fault> {
    if shared.ledger.len() == 0 && shared.unsettled.is_empty(group) {
        return Ok(());
    }
    let shared = shared.clone();
    let link = link.clone();
    tokio::spawn(async move { hand_over_all(&shared, &link, group).await })
        .await
        .unwrap_or_else(stopped)
}

async fn hand_over_all(shared: &Arc<Shared>, link: &Link, group: usize) -> Result<(), Fault> {
    settle(&shared.unsettled, &shared.ledger, link, group).await?;
    // Entries that are made meanwhile are for the next attempt.
    let last = shared.ledger.last_number();
    let mut count = 0;
    let mut failed = None;
    let mut unusable = None;
    while failed.is_none() {
        let entries = shared.ledger.drain(group, last, MAX_UNDER_WAY);
        if entries.is_empty() {
            break;
        }
        count += entries.len();
        let deliveries = entries
            .into_iter()
            .map(|(record, entry)| deliver(shared.clone(), link.clone(), record, entry));
        for outcome in join_all(deliveries).await {
            match outcome {
                Ok(()) => {}
                // A fault of a single record.
                Err(fault @ Fault::Record(_)) => unusable = Some(fault),
                Err(fault) => failed = Some(fault),
            }
        }
    }
    match failed.as_ref().or(unusable.as_ref()) {
        None if count == 0 => {}
        None => tracing::debug!(
            clients = count,
            group,
            "what was counted here is handed over"
        ),
        Some(fault) => {
            let why = fault.detail();
            tracing::warn!(
                clients = count,
                group,
                why,
                "not everything could be handed over"
            );
        }
    }
    failed.map_or(Ok(()), Err)
}

/// Delivers an entry, under the parameters under which its charges were counted. If it may have
/// arrived, it is sent again later under the same number, and so is applied only once.
async fn deliver(
    shared: Arc<Shared>,
    link: Link,
    record: Record,
    entry: Entry,
) -> Result<(), Fault> {
    let counters = &shared.connection.counters;
    let outcome = timeout(TIMEOUT, add(&shared, link, &record, &entry)).await;
    let outcome = outcome.unwrap_or(Err(Fault::Late));
    if outcome.is_err() && !entry.take_backs.is_empty() {
        count(&counters.take_backs_failed);
    }
    let retry = match &outcome {
        Ok(()) => {
            count(&counters.handed_over);
            None
        }
        Err(Fault::Record(_)) => {
            count(&counters.not_handed_over);
            None
        }
        Err(_) => Some(entry),
    };
    shared.ledger.put_back(&record, retry);
    outcome
}

/// Calls `add.lua`. The charges of this node have times of its clock, unless the caller gave the time.
async fn add(
    shared: &Arc<Shared>,
    mut link: Link,
    record: &Record,
    entry: &Entry,
) -> Result<(), Fault> {
    let rule = &entry.rule;
    let limit = rule.rule.limit();
    let Record { key, group } = record;
    let names = &shared.connection.keys;
    let keys = [key.clone(), names.added(key), names.given(key)];
    let script = shared.connection.scripts.get(Frame::Add, [rule.kind]);
    for _ in 0..MAX_CALLS {
        let local = shared.clocks.local();
        let mut pending = entry.pending.clone();
        let now = entry.given.unwrap_or_else(|| {
            let now = shared.clocks.redis(*group, local);
            pending.move_clock(limit, local, now);
            now
        });
        let mut head = Packed(shared.ledger.node.to_vec());
        let given = entry.given.map_or(-1.0, micros);
        head.numbers(&[entry.number as f64, given, micros(now)]);
        let mut args = vec![head.0];
        let adjustments = pending.adjustments(limit, now);
        let all = adjustments.iter().chain(&entry.take_backs);
        args.extend(all.map(|one| packed(shared, entry, one, now)));
        let Some(at) = clock_set(&link.call(script, &keys, &args).await?) else {
            return Ok(());
        };
        shared.clocks.offsets[*group].learn(at, local, shared.clocks.local());
    }
    Err(Fault::clock())
}

/// Returns an adjustment as an argument of the script.
fn packed(shared: &Shared, entry: &Entry, one: &Adjustment, now: Nanos) -> Vec<u8> {
    let mut packed = Packed(vec![one.kind as u8]);
    packed.numbers(&[
        one.when,
        one.alone.0,
        one.alone.1,
        one.new_at,
        one.born.into(),
    ]);
    let linger = shared.options.linger;
    let parameters = entry.rule.parameters(one.cost, linger, one.sign(), now);
    packed.0.extend(parameters);
    packed.0
}

/// Returns Redis's time if the call did nothing because the node had a wrong idea of that time.
fn clock_set(answer: &Value) -> Option<Nanos> {
    let Value::BulkString(bytes) = answer else {
        return None;
    };
    match reply::single(bytes) {
        Some(Reply::Expired { time }) => Some(time),
        _ => None,
    }
}
