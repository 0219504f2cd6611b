//! Calls of the scripts that decide requests, alone or together.

use std::future::poll_fn;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use earrrl::Nanos;
use redis::{RedisResult, Value};
use tokio::time::{Instant, timeout};

use crate::algorithm::{Packed, micros};
use crate::batches::{BatchCall, PackedCharge, ReceiptPlace};
use crate::connection::link::Link;
use crate::connection::receipt::Receipt;
use crate::connection::redirect::is_moving;
use crate::connection::script::Frame;
use crate::reply::{self, Reply};
use crate::request::time_argument;
use crate::shared::Shared;
use crate::status::count;

/// The time after its deadline during which Redis may still execute a call. A call that arrives
/// later, because the server or the network was stopped, does nothing.
pub(crate) const GRACE: Duration = Duration::from_secs(1);

/// Calls a script together with other calls, if there are any.
pub(crate) fn call(shared: &Arc<Shared>, group: usize, call: BatchCall) {
    if shared.batches.add(group, call) {
        start(shared, group);
    }
}

/// Starts to send the batches of a group.
fn start(shared: &Arc<Shared>, group: usize) {
    shared
        .batches
        .runtime
        .spawn(send_batches(shared.clone(), group));
}

/// Sends batches as long as there is one that need not wait.
async fn send_batches(shared: Arc<Shared>, group: usize) {
    while let Some(calls) = shared.batches.next(group) {
        let mut sent = Box::pin(send_batch(shared.clone(), group, calls));
        // Calls are written in the order of their first polls, so this one is here.
        if poll_fn(|context| Poll::Ready(sent.as_mut().poll(context)))
            .await
            .is_pending()
        {
            shared.batches.runtime.spawn(sent);
        }
    }
}

async fn send_batch(shared: Arc<Shared>, group: usize, calls: Vec<Vec<BatchCall>>) {
    let begun = Instant::now();
    if let Ok(link) = shared.connection.any_link() {
        send(&shared, group, &link, calls).await;
    }
    if shared.batches.answered(group, begun.elapsed()) {
        start(&shared, group);
    }
}

/// Sends calls in groups of charges that are alike, and passes on their answers. Calls of a batch that
/// Redis could not execute together are sent one by one.
pub(crate) async fn send(
    shared: &Arc<Shared>,
    group: usize,
    link: &Link,
    calls: Vec<Vec<BatchCall>>,
) {
    let Some(first) = calls.iter().flatten().next() else {
        return;
    };
    let slot = first.slot;
    let patience = first.patience;
    let (receipt, calls) = with_receipt(shared, slot, calls);
    if calls.is_empty() {
        return;
    }
    let sent = shared.clocks.local();
    let latest = shared.clocks.redis(group, sent) + patience + GRACE;
    let (frame, keys, args) = script_call(&calls, receipt.as_deref(), latest);
    let charges = calls.iter().flatten().flat_map(|call| &call.charges);
    let kinds = charges.map(|charge| charge.kind);
    let script = shared.connection.scripts.get(frame, kinds);
    let mut own = link.clone();
    let answer = own.call(script, &keys, &args);
    let Ok(answer) = timeout(patience, answer).await else {
        return;
    };
    let calls: Vec<_> = calls.into_iter().flatten().collect();
    let replies = match answer {
        Err(error) if is_moving(&error) && (receipt.is_some() || calls.len() > 1) => {
            shared.connection.receipts.moves(slot);
            vec![None; calls.len()]
        }
        answer => read(frame, answer, &calls),
    };
    if let Some(at) = replies.iter().flatten().find_map(time) {
        shared.clocks.offsets[group].learn(at, sent, shared.clocks.local());
    }
    for (call, reply) in calls.into_iter().zip(replies) {
        match reply {
            // The requester may have stopped waiting.
            Some(reply) => drop(call.answer.send(reply)),
            None => send_alone(shared, group, link, call),
        }
    }
}

/// Sends a call by itself. Calls that come after it do not wait for its answer.
fn send_alone(shared: &Arc<Shared>, group: usize, link: &Link, call: BatchCall) {
    let own = shared.clone();
    let link = link.clone();
    shared
        .batches
        .runtime
        .spawn(async move { send(&own, group, &link, vec![vec![call]]).await });
}

/// Reserves one receipt for all calls, and marks the calls as sent. Drops those whose requests no longer
/// wait.
fn with_receipt(
    shared: &Shared,
    slot: u16,
    mut calls: Vec<Vec<BatchCall>>,
) -> (Option<Arc<Receipt>>, Vec<Vec<BatchCall>>) {
    let stores = |call: &BatchCall| call.charges.iter().any(|charge| charge.flags % 2 == 1);
    let storing = calls.iter().flatten().filter(|call| stores(call)).count();
    let receipt = (storing > 0)
        .then(|| shared.connection.receipts.take(slot))
        .flatten();
    if receipt.is_none() {
        (0..storing).for_each(|_| count(&shared.connection.counters.without_receipt));
    }
    let receipt = receipt.map(Arc::new);
    let mut bit = 0;
    for group in &mut calls {
        group.retain(|call| {
            let place = receipt.clone().map(|receipt| ReceiptPlace { receipt, bit });
            let is_sent = !call.answer.is_closed() && call.ticket.send(place);
            bit += usize::from(is_sent);
            is_sent
        });
    }
    calls.retain(|group| !group.is_empty());
    (receipt, calls)
}

/// Returns the frame of the script for these calls, its keys and its arguments.
fn script_call(
    calls: &[Vec<BatchCall>],
    receipt: Option<&Receipt>,
    latest: Nanos,
) -> (Frame, Vec<Vec<u8>>, Vec<Vec<u8>>) {
    let all = || calls.iter().flatten();
    let charges: Vec<_> = all().flat_map(|call| &call.charges).collect();
    let hold = all().find_map(|call| call.hold.as_ref());
    let mut keys: Vec<_> = charges.iter().map(|charge| charge.key.clone()).collect();
    if let Some(hold) = hold {
        keys.push(hold.key.clone());
        keys.extend(hold.given.iter().cloned());
    }
    // The receipt's key is declared, although only a Cluster that moves slots and some
    // Redis-compatible servers require it.
    keys.extend(receipt.map(|receipt| receipt.key.as_bytes().to_vec()));
    let (frame, flags) = match (hold, all().count(), &charges[..]) {
        (None, 1, [charge]) if charge.units.is_none() => (Frame::Single, charge.flags),
        (Some(_), _, [_]) => (Frame::HoldOne, 0),
        (_, 1, [_, _, ..]) => (Frame::Several, 0),
        _ => (Frame::Batch, 0),
    };
    let now = all().next().and_then(|call| call.now);
    let mut head = head(now, flags, micros(latest), receipt);
    let packed = |charge: &&PackedCharge| {
        let head = [charge.kind as u8, charge.flags];
        [&head[..], &charge.parameters].concat()
    };
    let each: Vec<_> = match frame {
        Frame::Single => {
            head.0.extend(&charges[0].parameters);
            Vec::new()
        }
        Frame::Batch => calls.iter().map(|group| group_argument(group)).collect(),
        _ => charges.iter().map(packed).collect(),
    };
    if let Some(hold) = hold {
        head.0.extend(&hold.argument);
    }
    (frame, keys, [vec![head.0], each].concat())
}

/// Returns the beginning of a script's first argument: the caller's time, flags, the latest microsecond at which the
/// call is executed, and the receipt.
pub(crate) fn head(
    now: Option<Nanos>,
    flags: u8,
    latest: f64,
    receipt: Option<&Receipt>,
) -> Packed {
    let mut head = time_argument(now);
    head.whole((flags | Receipt::flags(receipt)).into(), 1);
    head.numbers(&[latest]);
    head.0.extend(Receipt::argument(receipt));
    head
}

/// Returns the argument of a group of requests whose charges are alike.
fn group_argument(group: &[BatchCall]) -> Vec<u8> {
    let charges: Vec<&PackedCharge> = group.iter().flat_map(|call| &call.charges).collect();
    let Some(first) = charges.first() else {
        return Vec::new();
    };
    let repeats = |place: &usize| {
        charges[..*place]
            .iter()
            .any(|other| other.key == charges[*place].key)
    };
    let repeated = (0..charges.len())
        .filter(repeats)
        .fold(0u16, |bits, place| bits | 1 << place);
    let mut packed = Packed(vec![first.kind as u8, first.flags, charges.len() as u8]);
    packed.whole(repeated.into(), 2);
    for units in charges.iter().filter_map(|charge| charge.units) {
        packed.whole(units.want.into(), 2);
        let unspent = units.unspent;
        packed.numbers(&[unspent.cost.billionths() as f64, unspent.when]);
        packed.whole(unspent.born.into(), 4);
    }
    packed.0.extend(&first.parameters);
    packed.0
}

/// Reads the answer to these calls. `None` stands for a call that must be sent again by itself.
fn read(
    frame: Frame,
    answer: RedisResult<Value>,
    calls: &[BatchCall],
) -> Vec<Option<RedisResult<Option<Reply>>>> {
    let same = |reply| vec![Some(reply); calls.len()];
    let bytes = match answer {
        Ok(Value::BulkString(bytes)) => bytes,
        Ok(_) => return same(Ok(None)),
        Err(error) => return same(Err(error)),
    };
    let replies = match frame {
        Frame::Single => return same(Ok(reply::single(&bytes))),
        Frame::Batch => reply::batch(&bytes, calls.len()),
        _ => return same(Ok(reply::several(&bytes))),
    };
    let Some(replies) = replies else {
        return same(Ok(None));
    };
    let each = replies.into_iter().zip(calls);
    each.map(|(reply, call)| match reply {
        Some(reply) if call.asks_for_units() => Some(Ok(reply.with_units())),
        Some(reply) => Some(Ok(Some(reply))),
        // A call for units has no other script that could report the error.
        None => (calls.len() == 1).then_some(Ok(None)),
    })
    .collect()
}

/// Returns the time by Redis's clock that an answer contains.
fn time(reply: &RedisResult<Option<Reply>>) -> Option<Nanos> {
    match reply {
        Ok(Some(Reply::Decided { time, .. })) => *time,
        Ok(Some(Reply::Expired { time })) => Some(*time),
        _ => None,
    }
}
