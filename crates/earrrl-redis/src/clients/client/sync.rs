//! Exchanges of a client with Redis: the call that a node sends, and the effect of the answer.

use std::time::Duration;

use earrrl::{Cost, Limit, Mode, Nanos, State};

use super::{Client, LocalTime, Urgency};
use crate::algorithm;
use crate::pending::Contribution;

/// A call about a client. It sends charges that Redis lacks, and requests a share.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct SyncCall {
    /// The number of the call. Later calls of the client have higher numbers.
    pub(crate) sequence: u64,
    pub(crate) contribution: Option<Contribution>,
    /// The headroom that a request needs, the headroom that is claimed if it is available, and the
    /// headroom that the node would use at most.
    pub(crate) need: f64,
    pub(crate) take: f64,
    pub(crate) wanted: f64,
}

/// Redis's answer to a call.
#[derive(Clone, Debug)]
pub(crate) struct Snapshot {
    /// The client's state, including the charges that the call sent.
    pub(crate) state: Option<State>,
    /// This node's share. The field below is the end of the share by this node's clock.
    pub(crate) share: f64,
    pub(crate) until: Nanos,
    /// The time from which on the share must be claimed again.
    pub(crate) renew: Nanos,
    /// The time until which the state may be used to deny requests.
    pub(crate) fresh: Nanos,
    /// The number of other nodes that know the client.
    pub(crate) others: u32,
    /// The headroom that was needed and not available.
    pub(crate) missing: f64,
}

impl SyncCall {
    /// Returns the number of the call's contribution, or 0, which is below every number, if it has
    /// none.
    fn number(&self) -> u64 {
        self.contribution.as_ref().map_or(0, |sent| sent.number)
    }
}

impl Client {
    /// Returns the call to make now, and the headroom that one more request of this cost would use.
    pub(crate) fn call(
        &mut self,
        limit: &Limit,
        cost: Cost,
        time: LocalTime,
        mut number: impl FnMut() -> u64,
    ) -> SyncCall {
        // Done before the call is composed: otherwise it would contain times of the clock before it
        // was set.
        self.at(limit, time);
        self.called = time.local;
        let algorithm = algorithm::of(limit);
        if self.in_flight.is_none() && !self.unsent.is_empty() {
            let (number, pending) = (number(), std::mem::take(&mut self.unsent));
            let take_backs = Vec::new();
            self.in_flight = Some(Box::new(Contribution { number, pending, take_backs }));
        }
        let spent = self.spent(limit);
        let left = (self.share - spent).max(0.0) / 2.0;
        // This node spends no more than it has requested until the answer arrives.
        self.share = spent + left;
        let unsent = algorithm.takes(self.unsent.sum);
        self.wanted = unsent + left + self.waiting;
        self.last_call = number();
        SyncCall {
            sequence: self.last_call,
            contribution: self.in_flight.as_deref().cloned(),
            need: unsent + if cost.is_zero() { 0.0 } else { algorithm.needs(cost) },
            take: unsent + algorithm.takes(cost),
            wanted: self.wanted,
        }
    }

    /// Notes that a request begins or ends to wait for an answer.
    pub(crate) fn set_waiting(&mut self, limit: &Limit, cost: Cost, waits: bool) {
        let takes = algorithm::of(limit).takes(cost);
        self.waiting = if waits { self.waiting + takes } else { (self.waiting - takes).max(0.0) };
    }

    /// Applies an answer. Returns true if the client turns out to be over its limit, although it
    /// was within the limit according to this node's information.
    pub(crate) fn apply(
        &mut self,
        limit: &Limit,
        call: &SyncCall,
        snapshot: Snapshot,
        time: LocalTime,
    ) -> bool {
        let now = self.at(limit, time);
        self.in_flight.take_if(|sent| sent.number <= call.number());
        if self.has_pending() {
            // Charges that were made after the call was sent need another exchange.
            self.request_exchange(Urgency::Normal, time.local);
        }
        if call.sequence < self.applied {
            return false;
        }
        self.applied = call.sequence;
        let is_outdated = call.sequence < self.last_call;
        self.share = if is_outdated { snapshot.share.min(self.wanted) } else { snapshot.share };
        (self.until, self.renew, self.fresh) = (snapshot.until, snapshot.renew, snapshot.fresh);
        (self.others, self.updated) = (snapshot.others, true);
        let requests = snapshot.missing / algorithm::of(limit).takes(Cost::ONE);
        let refill_wait = Duration::try_from_secs_f64(requests / limit.per_second());
        self.refill_wait = refill_wait.unwrap_or_default();
        let mut state = snapshot.state;
        if let Some(sent) = &self.in_flight {
            state = sent.pending.added_to(limit, state);
        }
        self.state = self.unsent.added_to(limit, state);
        let is_over = !limit.admit(&mut self.state, now, Cost::ONE, Mode::Peek);
        let was_over = std::mem::replace(&mut self.over, is_over);
        is_over && !was_over && call.contribution.is_some()
    }

    /// Drops sent charges that can never arrive. Returns true if there were any.
    pub(crate) fn drop_in_flight(&mut self) -> bool {
        self.in_flight.take().is_some()
    }
}
