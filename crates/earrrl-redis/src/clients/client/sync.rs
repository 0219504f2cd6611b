//! Exchanges of a client with Redis: the call that a node sends, and the effect of the answer.

use std::time::Duration;

use earrrl::{Cost, Limit, Mode, Nanos, State, Wait};

use super::{Client, LocalTime, MANY_DENIALS, Urgency, turn};
use crate::algorithm;
use crate::pending::Contribution;

/// The longest time for which a snapshot may be used to deny a client that is over its limit.
const LONGEST_FRESH: Duration = Duration::from_secs(5);

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
    /// The headroom that the node expects to use during a claim.
    pub(crate) expected: f64,
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
    /// This node's part of the expected use of all nodes.
    pub(crate) part: f64,
}

impl SyncCall {
    /// Returns the number of the call's contribution, or 0, which is below every number, if it has
    /// none.
    fn number(&self) -> u64 {
        self.contribution.as_ref().map_or(0, |sent| sent.number)
    }
}

impl Client {
    /// Returns the call to make now, with the headroom that one more request of this cost would
    /// use. `claim_ttl` is the duration of a claim.
    pub(crate) fn call(
        &mut self,
        limit: &Limit,
        cost: Cost,
        time: LocalTime,
        claim_ttl: Duration,
        mut number: impl FnMut() -> u64,
    ) -> SyncCall {
        // Done before the call is composed: otherwise it would contain times of the clock before it
        // was set.
        self.at(limit, time);
        self.called = time.local;
        (self.urgency, self.queued) = (Urgency::None, Urgency::None);
        if self.in_flight.is_none() {
            self.measure_pace(limit, time.local, claim_ttl / 2);
            self.send_pending(&mut number);
        }
        let algorithm = algorithm::of(limit);
        let spent = self.spent(limit);
        let left = (self.share - spent).max(0.0) / 2.0;
        // This node spends no more than it has requested until the answer arrives.
        self.share = spent + left;
        let unsent = algorithm.takes(self.unsent.sum);
        self.wanted = unsent + left + self.waiting;
        self.last_call = number();
        // A client far over its limit is exchanged rarely, so each exchange claims several requests.
        let many = if self.denials >= MANY_DENIALS {
            2.0 * turn(limit)
        } else {
            0.0
        };
        SyncCall {
            sequence: self.last_call,
            contribution: self.in_flight.as_deref().cloned(),
            need: unsent
                + if cost.is_zero() {
                    0.0
                } else {
                    algorithm.needs(cost)
                },
            take: unsent + algorithm.takes(cost),
            wanted: self.wanted.max(many * algorithm.takes(Cost::ONE)),
            // A claim is renewed when half of its time has passed, so a quarter is added as a reserve.
            expected: self.pace * claim_ttl.as_secs_f64() * 1.25,
        }
    }

    /// Moves the charges that Redis lacks into a contribution, if there are any.
    fn send_pending(&mut self, number: impl FnOnce() -> u64) {
        if !self.unsent.is_empty() {
            let number = number();
            let pending = std::mem::take(&mut self.unsent);
            let take_backs = Vec::new();
            self.in_flight = Some(Box::new(Contribution {
                number,
                pending,
                take_backs,
            }));
        }
    }

    /// Averages the headroom per second for which the client has asked, with the weight of a request
    /// decaying in the time `memory`.
    fn measure_pace(&mut self, limit: &Limit, local: Nanos, memory: Duration) {
        let asked =
            algorithm::of(limit).takes(self.unsent.sum) + std::mem::take(&mut self.turned_away);
        let past = local.since(self.paced).as_secs_f64().max(1e-6);
        let kept = (-past / memory.as_secs_f64()).exp();
        self.pace = self.pace * kept + asked * (1.0 - kept) / past;
        self.paced = local;
    }

    /// Notes that a request begins or ends to wait for an answer.
    pub(crate) fn set_waiting(&mut self, limit: &Limit, cost: Cost, waits: bool) {
        let takes = algorithm::of(limit).takes(cost);
        self.waiting = if waits {
            self.waiting + takes
        } else {
            (self.waiting - takes).max(0.0)
        };
        if !waits && self.urgency == Urgency::None && self.has_pending() {
            // The call that sent the charges has failed.
            self.request_exchange(Urgency::Urgent, Nanos::ZERO);
        }
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
            self.request_exchange(Urgency::Normal, snapshot.renew);
        }
        if call.sequence < self.applied {
            return false;
        }
        self.applied = call.sequence;
        let is_outdated = call.sequence < self.last_call;
        self.share = if is_outdated {
            snapshot.share.min(self.wanted)
        } else {
            snapshot.share
        };
        (self.until, self.renew, self.fresh) = (snapshot.until, snapshot.renew, snapshot.fresh);
        (self.others, self.updated, self.part) = (snapshot.others, true, snapshot.part);
        let requests = snapshot.missing / algorithm::of(limit).takes(Cost::ONE);
        let refill_wait = Duration::try_from_secs_f64(requests / limit.per_second());
        self.refill_wait = refill_wait.unwrap_or_default();
        let mut state = snapshot.state;
        if let Some(sent) = &self.in_flight {
            state = sent.pending.added_to(limit, state);
        }
        self.state = self.unsent.added_to(limit, state);
        let (allowed, figures) = self.step(limit, now, Cost::ONE, Mode::Peek);
        let is_over = !allowed;
        if let (true, Wait::For(wait)) = (is_over, figures.retry_after) {
            // While the client stays over its limit by far, no other node's snapshot can change that.
            self.fresh = self.fresh.max(time.local + (wait / 2).min(LONGEST_FRESH));
        }
        let was_over = std::mem::replace(&mut self.over, is_over);
        is_over && !was_over && call.contribution.is_some()
    }

    /// Drops sent charges that can never arrive. Returns true if there were any.
    pub(crate) fn drop_in_flight(&mut self) -> bool {
        self.in_flight.take().is_some()
    }
}
