//! This node's information about one client, and the decisions that it permits, as pure functions.

use std::time::Duration;

use earrrl::internal::{Judgement, combine};
use earrrl::{Cost, Decision, Figures, Limit, Mode, Nanos, Policy, Quota, Rule, State, Wait};

mod lease;
mod sync;

use crate::algorithm;
use crate::clocks::later;
use crate::pending::{Contribution, Pending};

pub(crate) use lease::Lease;
pub(crate) use sync::{Snapshot, SyncCall};

/// The tolerance for the rounding of sums of many small amounts.
const ROUNDING: f64 = 1.0 + 1e-9;
/// If the offset of Redis's clock changes by more nanoseconds than this, a clock was set; if by
/// fewer, the offset was measured more precisely.
const CLOCK_SET: u64 = 1_000_000_000;
/// The number of recent denials from which on a client counts as far over its limit.
const MANY_DENIALS: u32 = 16;
/// The number of recent denials from which on denials for want of a share count under a strict rule.
const SOME_DENIALS: u32 = 4;
/// The longest time after which denied attempts under a strict rule are sent, once Redis knows that
/// the client is over its limit.
const LONGEST_DENIED: Duration = Duration::from_secs(3);

/// An instant by this node's clock, and the nanoseconds by which Redis's clock is ahead of it.
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
    /// The client is exchanged in its turn, while its claim holds.
    Normal,
    /// The client is exchanged in the next round.
    Urgent,
}

/// The information on which a decision may be based.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Authority {
    /// The client's state and this node's share.
    Share,
    /// Only the client's state, since Redis cannot be asked.
    StateOnly,
    /// Redis was asked and gave no share, since other nodes claim what is left.
    Refused,
}

/// A client as this node knows it. The fields that every decision reads come first, so that they
/// are in the same cache line.
#[derive(Debug, Default)]
#[repr(C)]
pub(crate) struct Client {
    /// This node's share, which includes its charges that Redis lacks. The field below is the end
    /// of the share.
    share: f64,
    until: Nanos,
    /// The time from which on the share must be claimed again.
    renew: Nanos,
    /// The time until which the state may be used to deny requests.
    fresh: Nanos,
    /// The nanoseconds by which Redis's clock is ahead of this node's.
    offset: i64,
    /// The latest time of a request. Time does not go back between two requests.
    latest: Nanos,
    /// The charges that were sent and may not have arrived.
    in_flight: Option<Box<Contribution>>,
    /// The number of recent denials.
    denials: u32,
    /// The urgency of the next exchange. The field below is the queue in which the client is.
    pub(crate) urgency: Urgency,
    pub(crate) queued: Urgency,
    /// True from a snapshot until the first decision after it.
    updated: bool,
    /// True if the client was over its limit at the last snapshot.
    over: bool,
    /// True if the last decision denied a request that the client's state would have allowed.
    lacked_share: bool,
    /// The group of Cluster slots, with a circuit breaker of its own, to which the client belongs.
    pub(crate) group: usize,
    unsent: Pending,
    /// The state of the last snapshot with this node's later charges, in Redis's time.
    state: Option<State>,
    /// The time by which the client is due for its next exchange.
    pub(crate) due: Nanos,
    /// The time until which the client is denied without asking Redis.
    backoff_until: Nanos,
    /// The number of other nodes that know the client, and this node's part of their expected use.
    others: u32,
    part: f64,
    /// The headroom per second for which the client has asked recently, and the time up to which it
    /// is measured.
    pace: f64,
    paced: Nanos,
    /// The headroom of the requests since then that were denied and not counted.
    turned_away: f64,
    /// The time after which the headroom that other nodes claim now will be available again.
    refill_wait: Duration,
    /// The cost of the requests that wait for Redis.
    waiting: f64,
    /// The number of the last call. The fields below are the headroom that it wanted, and the
    /// number of the last call whose answer was applied.
    last_call: u64,
    wanted: f64,
    applied: u64,
    /// The time of the last call by this node's clock.
    called: Nanos,
    /// The headroom that the client's present lease was given, in billionths of a unit.
    leased: u64,
}

impl LocalTime {
    /// Returns Redis's time.
    pub(crate) fn redis(self) -> Nanos {
        later(self.local, self.offset)
    }
}

/// Returns the number of requests that the limit refills between the exchanges of two nodes that
/// both deny a client over and over. Headroom that waits for its turn is not used, so it is a small
/// part of the quota.
fn turn(limit: &Limit) -> f64 {
    (Quota::of(limit).units as f64 / 16.0).clamp(1.0, 4.0)
}

/// Returns the decision on a request under one rule.
fn decision(rule: &Rule, at: Nanos, allowed: bool, figures: &Figures) -> Decision {
    let judgement = Judgement::new(rule, allowed, || figures.retry_after);
    combine(at, std::iter::once((rule, &judgement, figures)))
}

impl Client {
    /// Judges a request and stores it as its mode requires. Returns `None` if Redis must be asked.
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
                if authority == Authority::StateOnly {
                    self.unsent
                        .note_without_redis(now, now + figures.reset_after);
                }
            }
            self.queue(limit, mode, (strict && !allowed).then_some(&figures), time);
            self.note(limit, allowed, &figures, cost, time);
            return Some(decision(rule, now, allowed, &figures));
        }
        self.decide_without_share(rule, cost, mode, time, authority)
    }

    /// Denies a request that this node's share does not cover. Returns `None` if Redis must be
    /// asked.
    fn decide_without_share(
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
        let (allowed, mut figures) = self.step(limit, now, cost, Mode::Peek);
        let backs_off = (allowed || !strict) && time.local < self.backoff_until;
        let fresh = time.local <= self.fresh;
        if authority != Authority::Refused && !(backs_off || !allowed && fresh) {
            return None;
        }
        // An attempt that is denied only because other nodes claim what is left does not count, or
        // the skew of its requests would ban a client that is within its limit. A client that is
        // denied over and over is banned, as it would be in one place.
        let counts = strict && (mode == Mode::Charge || !allowed || self.denials >= SOME_DENIALS);
        if counts {
            figures = self.store(limit, cost, mode, now);
        }
        self.lacked_share = allowed;
        if !counts && mode != Mode::Peek {
            self.turned_away += algorithm::of(limit).takes(cost);
        }
        self.queue(limit, mode, counts.then_some(&figures), time);
        self.note(limit, false, &figures, cost, time);
        if (allowed || !strict) && time.local < self.backoff_until {
            let backoff = self.backoff_until.since(time.local);
            figures.retry_after = figures.retry_after.max(Wait::For(backoff));
        }
        Some(decision(rule, now, false, &figures))
    }

    /// Judges a request by the state, and stores it as `mode` requires.
    fn step(&mut self, limit: &Limit, now: Nanos, cost: Cost, mode: Mode) -> (bool, Figures) {
        let (state, allowed, figures) = limit.step(self.state.take(), now, cost, mode);
        self.state = state;
        (allowed, figures)
    }

    /// Queues the client for an exchange after a decision. `denied` has the figures of a denied
    /// attempt that counts, of which other nodes must learn.
    ///
    /// The exchange is urgent if this node's share is half spent or about to expire, or if Redis
    /// does not know yet that the client is over its limit. Otherwise it waits until the share must
    /// be claimed again, since other nodes see the charges as part of the share. Denied attempts
    /// wait for a quarter of the time for which the client stays out.
    fn queue(&mut self, limit: &Limit, mode: Mode, denied: Option<&Figures>, time: LocalTime) {
        if mode == Mode::Peek {
            return;
        }
        let is_half_spent = self.denials < MANY_DENIALS && 2.0 * self.spent(limit) > self.share;
        let crosses = denied.is_some() && !self.over;
        if time.local > self.renew || is_half_spent || crosses {
            return self.request_exchange(Urgency::Urgent, time.local);
        }
        let out = denied.map(|figures| match figures.retry_after {
            Wait::For(wait) => (wait / 4).min(LONGEST_DENIED),
            Wait::Never => LONGEST_DENIED,
        });
        let due = out.map_or(self.renew, |out| self.renew.min(time.local + out));
        self.request_exchange(Urgency::Normal, due);
    }

    /// Queues the client for an exchange that is at least as urgent as `urgency`, and due at `due`
    /// or earlier.
    pub(crate) fn request_exchange(&mut self, urgency: Urgency, due: Nanos) {
        self.due = if self.urgency == Urgency::None {
            due
        } else {
            self.due.min(due)
        };
        self.urgency = self.urgency.max(urgency);
    }

    /// Notes a verdict, and computes until when a denied client need not be looked up in Redis:
    /// until the limit has refilled, or until it has refilled what other nodes claim. If several
    /// nodes often deny the client, only one of them at a time asks Redis: every node waits for its
    /// turn, but at most for the time in which the limit refills completely.
    fn note(
        &mut self,
        limit: &Limit,
        allowed: bool,
        figures: &Figures,
        cost: Cost,
        time: LocalTime,
    ) {
        // A client that is often allowed may be far over its limit all the same, so two allowed
        // requests offset one denial.
        self.denials = match allowed {
            true => self.denials.saturating_sub(1),
            false => (self.denials + 2).min(4 * MANY_DENIALS),
        };
        let Wait::For(wait) = figures.retry_after else {
            return;
        };
        if !std::mem::take(&mut self.updated) {
            return;
        }
        // Claims of other nodes end with their lease, whatever their size.
        let claims_end = self.until.since(time.local);
        let refill_wait = std::mem::take(&mut self.refill_wait).min(claims_end);
        if self.others == 0 {
            return;
        }
        let wait = wait.max(refill_wait);
        if self.denials >= MANY_DENIALS {
            let turns = turn(limit) / self.part.max(1e-3) * cost.as_f64() / figures.limit;
            let turns = Duration::try_from_secs_f64(turns).unwrap_or(Duration::MAX);
            let backoff = wait
                .saturating_add(turns)
                .min(figures.reset_after.max(wait));
            self.backoff_until = time.local + backoff;
        } else if !allowed {
            self.backoff_until = time.local + refill_wait;
        }
    }

    /// Returns true if the last decision denied a request only because other nodes claim what the
    /// limit has left. Each such denial is reported once.
    pub(crate) fn take_lacked_share(&mut self) -> bool {
        std::mem::take(&mut self.lacked_share)
    }

    /// Returns true if other nodes claim the headroom that a request would need, according to the
    /// last snapshot.
    pub(crate) fn is_claimed_by_others(&self) -> bool {
        !self.refill_wait.is_zero()
    }

    /// Returns true if the client is due for an exchange, and the last one was at least `sync` ago.
    pub(crate) fn is_due(&self, local: Nanos, sync: Duration) -> bool {
        self.urgency != Urgency::None && self.due <= local && local >= self.called + sync
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
        let counts = !allowed && limit.policy() == Policy::Strict;
        self.queue(limit, mode, counts.then_some(&figures), time);
        Some(Judgement::new(rule, allowed, || figures.retry_after))
    }

    /// Charges a judged request if `settled` requires it. Returns the time and the figures after
    /// it.
    pub(crate) fn settle(
        &mut self,
        rule: &Rule,
        cost: Cost,
        settled: Mode,
        time: LocalTime,
    ) -> (Nanos, Figures) {
        let now = self.at(rule.limit(), time);
        let figures = self.store(rule.limit(), cost, settled, now);
        self.queue(rule.limit(), settled, None, time);
        (now, figures)
    }

    /// Charges a request in any case, unless it is a peek. Returns the figures.
    fn store(&mut self, limit: &Limit, cost: Cost, mode: Mode, now: Nanos) -> Figures {
        let mode = if mode == Mode::Peek {
            mode
        } else {
            Mode::Charge
        };
        let (_, figures) = self.step(limit, now, cost, mode);
        if mode == Mode::Charge && !cost.is_zero() {
            self.unsent.add(limit, now, cost);
        }
        figures
    }

    /// Returns true if the request can be allowed without asking Redis, should the limit allow it.
    fn covers(
        &self,
        limit: &Limit,
        cost: Cost,
        mode: Mode,
        time: LocalTime,
        authority: Authority,
    ) -> bool {
        let until = if mode == Mode::Peek {
            self.fresh
        } else {
            self.until
        };
        let takes = algorithm::of(limit).takes(cost);
        let within = || self.spent(limit) + takes <= self.share * ROUNDING;
        let stores = mode == Mode::Check && takes > 0.0;
        authority == Authority::StateOnly || time.local <= until && (!stores || within())
    }

    /// Returns the cost of the charges that Redis lacks, as far as known, in the unit of headroom.
    fn spent(&self, limit: &Limit) -> f64 {
        let algorithm = algorithm::of(limit);
        let in_flight = self.in_flight.as_ref();
        algorithm.takes(self.unsent.sum)
            + in_flight.map_or(0.0, |sent| algorithm.takes(sent.pending.sum))
    }

    /// Returns Redis's present time. If Redis's clock was set, converts the states to the new time.
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

    /// Takes back a request that was not sent to Redis yet. Returns true if there was one.
    pub(crate) fn take_back(
        &mut self,
        limit: &Limit,
        cost: Cost,
        charged_at: Option<Nanos>,
        time: LocalTime,
    ) -> bool {
        let now = self.at(limit, time);
        let Some(at) = self.unsent.take_back(limit, cost, charged_at, now) else {
            return false;
        };
        self.state = limit.refund(self.state.take(), now, at, cost);
        true
    }

    /// Converts the client's history to other parameters of its rule. The share ends.
    pub(crate) fn convert(&mut self, from: &Limit, to: &Limit, time: LocalTime) {
        let now = self.at(from, time);
        self.map_states(|state| to.convert(from, state, now));
        (self.share, self.until, self.fresh) = (0.0, Nanos::ZERO, Nanos::ZERO);
    }

    /// Drops the client's state and charges, including those not sent yet.
    pub(crate) fn forget(&mut self) {
        let Self {
            last_call,
            waiting,
            urgency,
            due,
            queued,
            group,
            ..
        } = *self;
        let applied = last_call;
        let kept = Self {
            last_call,
            applied,
            waiting,
            urgency,
            due,
            queued,
            group,
            ..Self::default()
        };
        *self = kept;
    }

    /// Makes the next decision ask Redis, since the record was changed by other means.
    pub(crate) fn invalidate(&mut self, local: Nanos) {
        self.expire();
        self.request_exchange(Urgency::Urgent, local);
    }

    /// Ends the share and the validity of the snapshot.
    pub(crate) fn expire(&mut self) {
        (self.until, self.fresh) = (Nanos::ZERO, Nanos::ZERO);
    }

    /// Returns true if Redis lacks charges of the client.
    pub(crate) fn has_pending(&self) -> bool {
        !self.unsent.is_empty() || self.in_flight.is_some()
    }

    /// Returns true if the client may be evicted. Its next request then needs a round trip to
    /// Redis.
    pub(crate) fn is_evictable(&self) -> bool {
        !self.has_pending() && self.queued == Urgency::None && self.waiting == 0.0
    }
}
