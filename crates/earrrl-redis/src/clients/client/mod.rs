//! The knowledge of a node about one client, and what it may decide by it: pure functions.

use std::time::Duration;

use earrrl::internal::{Judgement, combine};
use earrrl::{Cost, Decision, Figures, Limit, Mode, Nanos, Policy, Rule, State, Wait};

mod lease;
mod sync;

use crate::algorithm;
use crate::clocks::later;
use crate::pending::{Contribution, Pending};

pub(crate) use lease::Lease;
pub(crate) use sync::{Snapshot, SyncCall};

/// The rounding of sums of many small amounts.
const ROUNDING: f64 = 1.0 + 1e-9;
/// A change of Redis's offset by more nanoseconds means that a clock was set; by fewer, that it is known better.
const CLOCK_SET: u64 = 1_000_000_000;
/// Recent denials that make a client one that is far over its limit.
const MANY_DENIALS: u32 = 16;

/// An instant by this node's clock, and how far Redis's is ahead of it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LocalTime {
    pub(crate) local: Nanos,
    pub(crate) offset: i64,
}

/// The urgency of a client's exchange with Redis.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub(crate) enum Urgency {
    #[default]
    None,
    /// In its turn, while its claim holds.
    Normal,
    /// In the next round.
    Urgent,
}

/// The grounds that a decision may rest on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Authority {
    /// The state, and this node's share.
    Share,
    /// The state alone: Redis cannot be asked.
    StateOnly,
    /// Redis was asked and gave no share, since other nodes claim what is left.
    Refused,
}

/// A client of this node. The fields that every decision reads come first: most of its time goes into fetching them.
#[derive(Debug, Default)]
#[repr(C)]
pub(crate) struct Client {
    /// This node's share, including what it has not reported to Redis yet, and the end of it.
    share: f64,
    until: Nanos,
    /// The time from which on the share is to be claimed anew.
    renew: Nanos,
    /// The end of the time in which the state may be used to deny.
    fresh: Nanos,
    /// The nanoseconds by which Redis's clock is ahead of this node's.
    offset: i64,
    /// The latest time of a request: time does not go back between two of them.
    latest: Nanos,
    /// Charges that were sent, and may not have arrived.
    in_flight: Option<Box<Contribution>>,
    /// The number of recent denials.
    denials: u32,
    /// The urgency of its exchange, and the queue that it is in.
    pub(crate) urgency: Urgency,
    pub(crate) queued: Urgency,
    /// True until the first decision after a snapshot.
    updated: bool,
    /// True if it was over its limit at the last snapshot.
    over: bool,
    /// The breaker's group.
    pub(crate) group: usize,
    unsent: Pending,
    /// The last snapshot's state plus everything charged here that it lacks; in Redis's time.
    state: Option<State>,
    /// The time since which it is to be exchanged.
    pub(crate) queued_since: Nanos,
    /// The end of the time in which it is denied without asking Redis.
    backoff_until: Nanos,
    /// The number of other nodes that know it.
    others: u32,
    /// The time in which the limit refills what other nodes claim.
    refill_wait: Duration,
    /// The cost of requests that wait for Redis.
    waiting: f64,
    /// The last call, what it would have liked, and the last call whose answer was applied.
    last_call: u64,
    wanted: f64,
    applied: u64,
    /// The time of the last call, by this node's clock.
    called: Nanos,
    /// The headroom of the lease that is out, in billionths of a unit.
    leased: u64,
}

impl LocalTime {
    /// Returns Redis's time.
    pub(crate) fn redis(self) -> Nanos {
        later(self.local, self.offset)
    }
}

/// Returns the decision of a request under one rule.
fn decision(rule: &Rule, at: Nanos, allowed: bool, figures: &Figures) -> Decision {
    let judgement = Judgement::new(rule, allowed, || figures.retry_after);
    combine(at, std::iter::once((rule, &judgement, figures)))
}

impl Client {
    /// Judges a request and charges it as its mode says. Returns `None` if Redis must be asked.
    pub(crate) fn decide(
        &mut self,
        rule: &Rule,
        cost: Cost,
        mode: Mode,
        time: LocalTime,
        authority: Authority,
    ) -> Option<Decision> {
        let limit = rule.limit();
        let now = self.at(limit, time);
        let strict = mode == Mode::Charge || limit.policy() == Policy::Strict;
        if authority != Authority::Refused && self.covers(limit, cost, mode, time, authority) {
            let (allowed, figures) = self.step(limit, now, cost, mode);
            if mode != Mode::Peek && !cost.is_zero() && (allowed || strict) {
                self.unsent.add(limit, now, cost);
            }
            self.queue(limit, mode, strict && !allowed, time);
            self.note(allowed, &figures, cost, time);
            return Some(decision(rule, now, allowed, &figures));
        }
        let (allowed, mut figures) = self.step(limit, now, cost, Mode::Peek);
        let backs_off = !strict && time.local < self.backoff_until;
        let fresh = time.local <= self.fresh;
        if authority != Authority::Refused && !(backs_off || !allowed && fresh) {
            return None;
        }
        if strict {
            figures = self.store(limit, cost, mode, now);
        }
        self.queue(limit, mode, strict, time);
        self.note(false, &figures, cost, time);
        if !strict && time.local < self.backoff_until {
            let backoff = self.backoff_until.since(time.local);
            figures.retry_after = figures.retry_after.max(Wait::For(backoff));
        }
        Some(decision(rule, now, false, &figures))
    }

    /// Judges by the state, and stores the request as `mode` says.
    fn step(&mut self, limit: &Limit, now: Nanos, cost: Cost, mode: Mode) -> (bool, Figures) {
        let (state, allowed, figures) = limit.step(self.state.take(), now, cost, mode);
        self.state = state;
        (allowed, figures)
    }

    /// Has the client exchanged after a decision: urgently if other nodes must learn of it, or if little is left of its
    /// share or of the time for which that holds.
    fn queue(&mut self, limit: &Limit, mode: Mode, others_must_learn: bool, time: LocalTime) {
        if mode == Mode::Peek {
            return;
        }
        let ends = time.local > self.renew || 2.0 * self.spent(limit) > self.share;
        let urgent = others_must_learn || ends;
        self.request_exchange(if urgent { Urgency::Urgent } else { Urgency::Normal }, time.local);
    }

    /// Has the client exchanged, at least as soon as `urgency` says.
    pub(crate) fn request_exchange(&mut self, urgency: Urgency, local: Nanos) {
        if self.urgency == Urgency::None {
            self.queued_since = local;
        }
        self.urgency = self.urgency.max(urgency);
    }

    /// Notes a verdict, and until when Redis need not be asked about a denied client: until the limit has refilled, or
    /// until what other nodes claim has. A client that is denied many times on several nodes is asked about by one of
    /// them at a time: every node waits for its own turn, but for no longer than the limit takes to refill completely.
    fn note(&mut self, allowed: bool, figures: &Figures, cost: Cost, time: LocalTime) {
        // A client that is allowed now and then is as far over its limit, so the count only halves.
        self.denials =
            if allowed { self.denials / 2 } else { (self.denials + 1).min(4 * MANY_DENIALS) };
        let Wait::For(wait) = figures.retry_after else { return };
        if !std::mem::take(&mut self.updated) {
            return;
        }
        // Claims end with their lease, whatever is claimed.
        let claims_end = self.until.since(time.local);
        let refill_wait = std::mem::take(&mut self.refill_wait).min(claims_end);
        if self.others == 0 {
            return;
        }
        let wait = wait.max(refill_wait);
        if self.denials >= MANY_DENIALS {
            let turns = f64::from(self.others) * cost.as_f64() / figures.limit;
            let turns = Duration::try_from_secs_f64(turns).unwrap_or(Duration::MAX);
            let backoff = wait.saturating_add(turns).min(figures.reset_after.max(wait));
            self.backoff_until = time.local + backoff;
        } else if !allowed {
            self.backoff_until = time.local + refill_wait;
        }
    }

    /// Returns true if other nodes claim what a request would need, by the last snapshot.
    pub(crate) fn is_claimed_by_others(&self) -> bool {
        !self.refill_wait.is_zero()
    }

    /// Returns true if a whole `sync` has passed since the last call.
    pub(crate) fn sync_elapsed(&self, local: Nanos, sync: Duration) -> bool {
        local >= self.called + sync
    }

    /// Judges a request that is charged to several clients. Returns `None` if Redis must be asked.
    pub(crate) fn judge(
        &mut self,
        rule: &Rule,
        cost: Cost,
        mode: Mode,
        time: LocalTime,
    ) -> Option<Judgement> {
        let limit = rule.limit();
        let now = self.at(limit, time);
        let (allowed, figures) = self.step(limit, now, cost, Mode::Peek);
        if allowed && !self.covers(limit, cost, mode, time, Authority::Share) {
            return None;
        }
        self.queue(limit, mode, !allowed && limit.policy() == Policy::Strict, time);
        Some(Judgement::new(rule, allowed, || figures.retry_after))
    }

    /// Charges a request that was judged if `settled` says so, and returns the time and the figures after it.
    pub(crate) fn settle(
        &mut self,
        rule: &Rule,
        cost: Cost,
        settled: Mode,
        time: LocalTime,
    ) -> (Nanos, Figures) {
        let now = self.at(rule.limit(), time);
        let figures = self.store(rule.limit(), cost, settled, now);
        self.queue(rule.limit(), settled, false, time);
        (now, figures)
    }

    /// Charges a request whatever the verdict, unless it is a peek, and returns the figures.
    fn store(&mut self, limit: &Limit, cost: Cost, mode: Mode, now: Nanos) -> Figures {
        let mode = if mode == Mode::Peek { mode } else { Mode::Charge };
        let (_, figures) = self.step(limit, now, cost, mode);
        if mode == Mode::Charge && !cost.is_zero() {
            self.unsent.add(limit, now, cost);
        }
        figures
    }

    /// Returns true if Redis need not be asked should the limit allow the request.
    fn covers(
        &self,
        limit: &Limit,
        cost: Cost,
        mode: Mode,
        time: LocalTime,
        authority: Authority,
    ) -> bool {
        let until = if mode == Mode::Peek { self.fresh } else { self.until };
        let takes = algorithm::of(limit).takes(cost);
        let within = || self.spent(limit) + takes <= self.share * ROUNDING;
        let stores = mode == Mode::Check && takes > 0.0;
        authority == Authority::StateOnly || time.local <= until && (!stores || within())
    }

    /// Returns what Redis lacks, as far as is known, in the unit of headroom.
    fn spent(&self, limit: &Limit) -> f64 {
        let algorithm = algorithm::of(limit);
        let in_flight = self.in_flight.as_ref();
        algorithm.takes(self.unsent.sum)
            + in_flight.map_or(0.0, |sent| algorithm.takes(sent.pending.sum))
    }

    /// Returns Redis's present time. States move along with its clock if that was set.
    fn at(&mut self, limit: &Limit, time: LocalTime) -> Nanos {
        let now = time.redis();
        if self.offset.abs_diff(time.offset) > CLOCK_SET {
            let from = later(time.local, self.offset);
            self.map_states(|state| Some(algorithm::of(limit).moved(state, from, now)));
            self.latest = Nanos::ZERO;
        }
        self.offset = time.offset;
        self.latest = self.latest.max(now);
        self.latest
    }

    fn map_states(&mut self, change: impl Fn(State) -> Option<State>) {
        self.state = self.state.take().and_then(&change);
        self.unsent.map(&change);
        if let Some(sent) = &mut self.in_flight {
            sent.pending.map(&change);
        }
    }

    /// Takes a request back that Redis was not sent yet, and returns true if there was one.
    pub(crate) fn take_back(
        &mut self,
        limit: &Limit,
        cost: Cost,
        charged_at: Option<Nanos>,
        time: LocalTime,
    ) -> bool {
        let now = self.at(limit, time);
        let Some(at) = self.unsent.take_back(limit, cost, charged_at, now) else { return false };
        self.state = limit.refund(self.state.take(), now, at, cost);
        true
    }

    /// Converts the history to other parameters of its rule. The share ends.
    pub(crate) fn convert(&mut self, from: &Limit, to: &Limit, time: LocalTime) {
        let now = self.at(from, time);
        self.map_states(|state| to.convert(from, state, now));
        (self.share, self.until, self.fresh) = (0.0, Nanos::ZERO, Nanos::ZERO);
    }

    /// Forgets everything, including charges that were not sent yet.
    pub(crate) fn forget(&mut self) {
        let Self { last_call, waiting, urgency, queued_since, queued, group, .. } = *self;
        let applied = last_call;
        let kept = Self {
            last_call,
            applied,
            waiting,
            urgency,
            queued_since,
            queued,
            group,
            ..Self::default()
        };
        *self = kept;
    }

    /// Has Redis asked before the next decision: the record was changed otherwise.
    pub(crate) fn invalidate(&mut self, local: Nanos) {
        self.expire();
        self.request_exchange(Urgency::Urgent, local);
    }

    /// Ends the share and the snapshot.
    pub(crate) fn expire(&mut self) {
        (self.until, self.fresh) = (Nanos::ZERO, Nanos::ZERO);
    }

    /// Returns true if Redis lacks charges of it.
    pub(crate) fn has_pending(&self) -> bool {
        !self.unsent.is_empty() || self.in_flight.is_some()
    }

    /// Returns true if it may be evicted, which costs a round trip when it comes again.
    pub(crate) fn is_evictable(&self) -> bool {
        !self.has_pending() && self.queued == Urgency::None && self.waiting == 0.0
    }
}
