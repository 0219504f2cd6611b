//! The calls that wait to be sent to Redis, in one queue for each breaker's group.
//!
//! A call is sent at once if no other call is in flight. Calls that arrive meanwhile wait for its
//! answer, and are then sent together, in one call of a script; a full batch does not wait. Calls do
//! not wait for a Redis that is far away, nor on a Cluster, where a script's keys must be in one slot.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use earrrl::Nanos;
use earrrl::internal::lock;
use redis::RedisResult;
use tokio::runtime::Handle;
use tokio::sync::oneshot;

use crate::algorithm::{Adjustment, AlgorithmKind};
use crate::connection::receipt::Receipt;
use crate::reply::Reply;

/// The most calls that are sent together. A receipt has a bit for each of them.
pub(crate) const MAX_BATCH: usize = 16;
/// The most waiting calls among which those of one slot are searched.
const MAX_SEARCHED: usize = 64;
/// The longest round trip, and the part of the deadline, during which other calls wait.
const MAX_WAIT: Duration = Duration::from_millis(2);
const WAIT_PER_DEADLINE: u32 = 4;

/// A charge, as scripts read it.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct PackedCharge {
    pub(crate) kind: AlgorithmKind,
    pub(crate) flags: u8,
    pub(crate) key: Vec<u8>,
    pub(crate) parameters: Vec<u8>,
    /// The units that the server asks for, if the rule is near.
    pub(crate) units: Option<UnitsWanted>,
}

/// The units that a server asks for beside a request under a near rule, and those that it gives back.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct UnitsWanted {
    pub(crate) want: u16,
    /// Takes back what was charged for units that were not spent; of cost 0 if there are none.
    pub(crate) unspent: Adjustment,
}

/// A call of a script that decides charges of one slot, which are stored all or none.
pub(crate) struct BatchCall {
    pub(crate) ticket: Arc<Ticket>,
    /// Takes the answer.
    pub(crate) answer: oneshot::Sender<RedisResult<Option<Reply>>>,
    /// The time that the caller gave, if any.
    pub(crate) now: Option<Nanos>,
    /// The time for which the answer matters.
    pub(crate) patience: Duration,
    pub(crate) slot: u16,
    pub(crate) charges: Vec<PackedCharge>,
    /// The reservation that is stored if the request is allowed.
    pub(crate) hold: Option<PackedHold>,
}

/// A reservation in one slot, as the script stores it.
#[derive(Clone, Debug)]
pub(crate) struct PackedHold {
    pub(crate) key: Vec<u8>,
    /// For each charge the key of what commits give back.
    pub(crate) given: Vec<Vec<u8>>,
    pub(crate) argument: Vec<u8>,
}

impl BatchCall {
    /// Returns true if the call is one about a near rule.
    pub(crate) fn asks_for_units(&self) -> bool {
        self.charges.iter().any(|charge| charge.units.is_some())
    }

    /// Returns true if both calls have charges under the same rule, at the same cost.
    fn is_alike(&self, other: &Self) -> bool {
        let mut charges = self.charges.iter().zip(&other.charges);
        charges.all(|(one, other)| {
            (one.kind, one.flags, &one.parameters) == (other.kind, other.flags, &other.parameters)
        })
    }

    /// Returns true if both calls are about the same record.
    fn has_key_of(&self, other: &Self) -> bool {
        let mut charges = self.charges.iter().zip(&other.charges);
        charges.any(|(one, other)| one.key == other.key)
    }

    /// Returns true if both calls can be decided by one script.
    fn joins(&self, other: &Self) -> bool {
        let is_single = |call: &Self| call.charges.len() == 1 && call.hold.is_none();
        is_single(self)
            && is_single(other)
            && (self.now, self.patience) == (other.now, other.patience)
    }
}

/// The receipt of a call, and the bit of the request's first charge.
#[derive(Clone, Debug)]
pub(crate) struct ReceiptPlace {
    pub(crate) receipt: Arc<Receipt>,
    pub(crate) bit: usize,
}

/// Shows if a request's last call was sent.
#[derive(Debug, Default)]
pub(crate) struct Ticket(Mutex<BatchProgress>);

#[derive(Debug, Default)]
struct BatchProgress {
    is_given_up: bool,
    /// The receipt of the last call, if it was sent with one.
    receipt: Option<ReceiptPlace>,
}

impl Ticket {
    /// Notes that the call is sent now. Returns false if the request no longer waits for it; the call
    /// must then not be sent.
    pub(crate) fn send(&self, place: Option<ReceiptPlace>) -> bool {
        let mut progress = lock(&self.0);
        if !progress.is_given_up {
            progress.receipt = place;
        }
        !progress.is_given_up
    }

    /// Returns the receipt of the last call, if it was sent with one.
    pub(crate) fn receipt(&self) -> Option<ReceiptPlace> {
        lock(&self.0).receipt.clone()
    }

    /// Prevents a waiting call from being sent. Returns the receipt of a call that was.
    pub(crate) fn give_up(&self) -> Option<ReceiptPlace> {
        let mut progress = lock(&self.0);
        progress.is_given_up = true;
        progress.receipt.take()
    }
}

#[derive(Default)]
struct Queue {
    waiting: VecDeque<BatchCall>,
    in_flight: usize,
    /// True while a task sends what may be sent.
    is_sending: bool,
    /// True if the last answer took so long that calls do not wait for each other.
    is_far: bool,
}

/// The queues of all groups.
pub(crate) struct Batches {
    queues: Vec<Mutex<Queue>>,
    /// True if calls may wait for another call's answer.
    may_wait: bool,
    longest_wait: Duration,
    /// The runtime of the connection's tasks.
    pub(crate) runtime: Handle,
}

impl Batches {
    pub(crate) fn new(groups: usize, cluster: bool, deadline: Duration) -> Self {
        Self {
            queues: (0..groups).map(|_| Mutex::default()).collect(),
            may_wait: !cluster,
            longest_wait: (deadline / WAIT_PER_DEADLINE).min(MAX_WAIT),
            runtime: Handle::current(),
        }
    }

    fn lock(&self, group: usize) -> MutexGuard<'_, Queue> {
        lock(&self.queues[group])
    }

    /// Adds a call. Returns true if the caller must start a task that sends batches.
    pub(crate) fn add(&self, group: usize, call: BatchCall) -> bool {
        let mut queue = self.lock(group);
        queue.waiting.push_back(call);
        self.begins(&mut queue)
    }

    /// Notes that a batch was answered. Returns true if the caller must start a task that sends
    /// batches.
    pub(crate) fn answered(&self, group: usize, took: Duration) -> bool {
        let mut queue = self.lock(group);
        queue.in_flight -= 1;
        queue.is_far = took > self.longest_wait;
        self.begins(&mut queue)
    }

    fn begins(&self, queue: &mut Queue) -> bool {
        let begins = !queue.is_sending && self.may_send(queue);
        queue.is_sending |= begins;
        begins
    }

    fn may_send(&self, queue: &Queue) -> bool {
        let waits = self.may_wait && queue.in_flight > 0 && !queue.is_far;
        let is_full = queue.waiting.len() >= MAX_BATCH;
        // A call that cannot be joined with others has nothing to wait for.
        let is_joined = |call: &BatchCall| call.charges.len() == 1;
        !queue.waiting.is_empty() && (!waits || is_full || !queue.waiting.iter().all(is_joined))
    }

    /// Returns the calls to send now, in groups of charges that are alike. If it returns none, the
    /// task that sends batches must end.
    pub(crate) fn next(&self, group: usize) -> Option<Vec<Vec<BatchCall>>> {
        let mut queue = self.lock(group);
        if !self.may_send(&queue) {
            queue.is_sending = false;
            return None;
        }
        queue.in_flight += 1;
        Some(grouped(take(&mut queue.waiting)))
    }
}

/// Removes and returns the first call and the calls of its slot that it can be joined with.
fn take(waiting: &mut VecDeque<BatchCall>) -> Vec<BatchCall> {
    let mut batch: Vec<_> = waiting.pop_front().into_iter().collect();
    let mut place = 0;
    while let (Some(first), Some(next)) = (batch.first(), waiting.get(place)) {
        let is_same_slot = first.slot == next.slot;
        if batch.len() == MAX_BATCH || place == MAX_SEARCHED || is_same_slot && !first.joins(next) {
            break;
        }
        match is_same_slot {
            true => batch.extend(waiting.remove(place)),
            false => place += 1,
        }
    }
    batch
}

/// Groups calls whose charges are alike. The calls on one record stay in their order.
fn grouped(calls: Vec<BatchCall>) -> Vec<Vec<BatchCall>> {
    let mut groups: Vec<Vec<BatchCall>> = Vec::new();
    for call in calls {
        let is_alike = |group: &Vec<BatchCall>| group[0].is_alike(&call);
        let has_key = |group: &Vec<BatchCall>| {
            let mut others = group.iter();
            others.any(|other| other.has_key_of(&call))
        };
        let place = groups
            .iter()
            .rposition(|group| is_alike(group) || has_key(group));
        match place.filter(|place| is_alike(&groups[*place])) {
            Some(place) => groups[place].push(call),
            None => groups.push(vec![call]),
        }
    }
    groups
}

#[cfg(test)]
mod tests {
    use super::*;

    fn call(rule: u8, key: u8, slot: u16, charges: usize) -> BatchCall {
        let charge = PackedCharge {
            kind: AlgorithmKind::TokenBucket,
            flags: 0,
            key: vec![key],
            parameters: vec![rule],
            units: None,
        };
        BatchCall {
            ticket: Arc::default(),
            answer: oneshot::channel().0,
            now: None,
            patience: Duration::ZERO,
            slot,
            charges: vec![charge; charges],
            hold: None,
        }
    }

    #[test]
    fn calls_of_a_slot_are_taken_in_order() {
        let slots = [1, 2, 1, 1, 2, 1];
        let mut waiting: VecDeque<_> = (0..)
            .zip(slots)
            .map(|(key, slot)| call(0, key, slot, if key == 3 { 2 } else { 1 }))
            .collect();
        let mut batches = Vec::new();
        while !waiting.is_empty() {
            let batch = take(&mut waiting);
            batches.push(
                batch
                    .iter()
                    .map(|call| call.charges[0].key[0])
                    .collect::<Vec<_>>(),
            );
        }
        assert_eq!(batches, [vec![0, 2], vec![1, 4], vec![3], vec![5]]);
        let mut many: VecDeque<_> = (0..40).map(|key| call(0, key, 0, 1)).collect();
        assert_eq!(take(&mut many).len(), MAX_BATCH);
        let mut other = call(0, 9, 0, 1);
        other.now = Some(Nanos::ZERO);
        let mut times = VecDeque::from([call(0, 8, 0, 1), other]);
        assert_eq!(take(&mut times).len(), 1);
    }

    #[test]
    fn groups_keep_the_order_of_a_client_s_calls() {
        let calls = [(1, 1), (2, 2), (1, 3), (2, 1), (1, 1), (1, 4), (2, 5)];
        let calls = calls.map(|(rule, key)| call(rule, key, 0, 1));
        let groups = grouped(calls.into());
        let groups: Vec<Vec<_>> = groups
            .iter()
            .map(|group| {
                group
                    .iter()
                    .map(|call| &call.charges[0])
                    .map(|charge| (charge.parameters[0], charge.key[0]))
            })
            .map(Iterator::collect)
            .collect();
        let expected = [
            vec![(1, 1), (1, 3)],
            vec![(2, 2), (2, 1), (2, 5)],
            vec![(1, 1), (1, 4)],
        ];
        assert_eq!(groups, expected);
    }

    #[test]
    fn a_call_that_was_given_up_is_not_sent() {
        let ticket = Ticket::default();
        assert!(
            ticket.send(None) && ticket.send(None),
            "a second time after a conversion"
        );
        assert!(ticket.give_up().is_none());
        assert!(!ticket.send(None));
    }
}
