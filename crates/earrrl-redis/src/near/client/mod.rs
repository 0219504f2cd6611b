//! What a node knows of one client, and what it may decide by that: pure functions.

use std::time::Duration;

use earrrl::internal::{Judgement, combine};
use earrrl::{Cost, Decision, Figures, Limit, Mode, Nanos, Policy, Rule, State, Wait};

mod exchanged;
mod loan;

use super::offset::later;
use crate::algorithm;

pub(crate) use exchanged::{Call, Told};
pub(crate) use loan::Loan;

/// Sums of many small amounts.
const ROUNDING: f64 = 1.0 + 1e-9;
/// Redis's clock was set where it is off by more, in nanoseconds; by less, it is only known better.
const SET: u64 = 1_000_000_000;

/// Requests that are denied of late to a client far over its limit.
const OVER_AND_OVER: u32 = 16;

/// An instant by this node's clock, and how far Redis's is ahead of it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Time {
    pub(crate) local: Nanos,
    pub(crate) offset: i64,
}

/// What was charged here.
#[derive(Clone, Debug, Default, PartialEq)]
#[repr(C)]
pub(crate) struct Counted {
    /// The sum in the unit of what is spare.
    spent: f64,
    /// When the first of it was charged.
    since: Nanos,
    pub(crate) sum: Cost,
    /// Of a client that was charged nothing else.
    pub(crate) state: Option<State>,
}

/// How soon a client is to be exchanged.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub(crate) enum Due {
    #[default]
    Never,
    /// While its claim holds.
    Sometime,
    Soon,
}

/// By what a request is judged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Basis {
    /// What is known, and what may be spent.
    Share,
    /// What is known: there is nobody to ask.
    State,
    /// Redis was asked, and other nodes may spend what is left.
    Claimed,
}

/// What was lent: how many billionths of a unit, and what one takes of what is spare.
#[derive(Clone, Copy, Debug, Default)]
struct Lent {
    room: u64,
    takes: f64,
}

/// A client of this node's. What every decision reads comes first: most of its time goes on fetching that.
#[derive(Debug, Default)]
#[repr(C)]
pub(crate) struct Client {
    /// What may be spent, with what Redis does not have yet, until when, and from when on it is to be claimed anew.
    share: f64,
    until: Nanos,
    renew: Nanos,
    /// Until when the state will do to deny by.
    fresh: Nanos,
    /// How far Redis's clock is ahead of this node's. Time does not go back between two requests.
    offset: i64,
    latest: Nanos,
    /// Sent, and not known to have arrived; with its number.
    under_way: Option<Box<(u64, Counted)>>,
    /// How many requests were denied of late.
    denied: u32,
    /// How soon it is to be exchanged, and by which list.
    pub(crate) due: Due,
    pub(crate) listed: Due,
    /// Whether Redis only just told of it, and whether it was over the limit then.
    news: bool,
    over: bool,
    /// The breaker's group.
    pub(crate) group: usize,
    unsent: Counted,
    /// What Redis last told, with everything charged here that was not in it; in Redis's time.
    state: Option<State>,
    /// Since when it is to be exchanged.
    pub(crate) since: Nanos,
    /// Until when nobody is asked, as it is denied.
    rests: Nanos,
    /// How many other nodes know it, and how long it takes until what they claim is there again.
    others: u32,
    lacks: Duration,
    /// What requests that wait for Redis would take.
    awaited: f64,
    /// The last call, what it would have liked, and the last whose answer is in the state.
    sent: u64,
    liked: f64,
    told: u64,
    /// When the last call was made, by this node's clock.
    called: Nanos,
    lent: Lent,
}

impl Counted {
    fn add(&mut self, limit: &Limit, now: Nanos, cost: Cost, takes: f64) {
        if self.state.is_none() {
            self.since = now;
        }
        limit.admit(&mut self.state, now, cost, Mode::Charge);
        self.sum = self.sum + cost;
        self.spent += takes;
    }
}

impl Time {
    /// Redis's time.
    pub(crate) fn redis(self) -> Nanos {
        later(self.local, self.offset)
    }
}

/// The answer under one rule.
fn decision(rule: &Rule, at: Nanos, allowed: bool, figures: &Figures) -> Decision {
    let judgement = Judgement::new(rule, allowed, || figures.retry_after);
    combine(at, std::iter::once((rule, &judgement, figures)))
}

impl Client {
    /// Judges a request and does what its mode says, where that needs no trip.
    pub(crate) fn decide(
        &mut self,
        rule: &Rule,
        cost: Cost,
        mode: Mode,
        time: Time,
        basis: Basis,
    ) -> Option<Decision> {
        let limit = rule.limit();
        let (now, takes) = (self.at(limit, time), algorithm::of(limit).takes(cost));
        let strict = mode == Mode::Charge || limit.policy() == Policy::Strict;
        if basis != Basis::Claimed && self.covers(takes, mode, time, basis) {
            let (allowed, figures) = self.step(limit, now, cost, mode);
            if mode != Mode::Peek && !cost.is_zero() && (allowed || strict) {
                self.unsent.add(limit, now, cost, takes);
            }
            self.touch(mode, strict && !allowed, time);
            self.note(allowed, &figures, cost, time);
            return Some(decision(rule, now, allowed, &figures));
        }
        let (allowed, mut figures) = self.step(limit, now, cost, Mode::Peek);
        let rests = !strict && time.local < self.rests;
        let fresh = time.local <= self.fresh;
        if basis != Basis::Claimed && !(rests || !allowed && fresh) {
            return None;
        }
        if strict {
            figures = self.store(limit, cost, mode, now);
        }
        self.touch(mode, strict, time);
        self.note(false, &figures, cost, time);
        if !strict && time.local < self.rests {
            figures.retry_after = figures.retry_after.max(Wait::For(self.rests.since(time.local)));
        }
        Some(decision(rule, now, false, &figures))
    }

    /// Judges by the state, and puts it back as it is then.
    fn step(&mut self, limit: &Limit, now: Nanos, cost: Cost, mode: Mode) -> (bool, Figures) {
        let (state, allowed, figures) = limit.step(self.state.take(), now, cost, mode);
        self.state = state;
        (allowed, figures)
    }

    /// Has it exchanged after a decision: soon, where others must hear of that, or little is left of its share or of
    /// the time for which that holds.
    fn touch(&mut self, mode: Mode, others_must_hear: bool, time: Time) {
        if mode == Mode::Peek {
            return;
        }
        let ends = time.local > self.renew || 2.0 * self.spent() > self.share;
        self.list(if others_must_hear || ends { Due::Soon } else { Due::Sometime }, time.local);
    }

    pub(crate) fn list(&mut self, due: Due, local: Nanos) {
        if self.due == Due::Never {
            self.since = local;
        }
        self.due = self.due.max(due);
    }

    /// Who is denied is asked about again when there can be something: by the limit, or where other nodes claim
    /// what it has left, when that much is there again. Who is denied over and over on several nodes is asked
    /// about by one of them at a time: every node rests for its own turn, but for no longer than it takes until
    /// the limit has all to give.
    fn note(&mut self, allowed: bool, figures: &Figures, cost: Cost, time: Time) {
        // One that is allowed now and then is as far over.
        self.denied =
            if allowed { self.denied / 2 } else { (self.denied + 1).min(4 * OVER_AND_OVER) };
        let Wait::For(wait) = figures.retry_after else { return };
        if !std::mem::take(&mut self.news) {
            return;
        }
        let lacks = std::mem::take(&mut self.lacks);
        if self.others == 0 {
            return;
        }
        let wait = wait.max(lacks);
        if self.denied >= OVER_AND_OVER {
            let turns = f64::from(self.others) * cost.as_f64() / figures.limit;
            let turns = Duration::try_from_secs_f64(turns).unwrap_or(Duration::MAX);
            self.rests = time.local + wait.saturating_add(turns).min(figures.reset_after.max(wait));
        } else if !allowed {
            self.rests = (time.local + lacks).min(self.until);
        }
    }

    /// Whether other nodes claim what a request would need, by the last answer.
    pub(crate) fn lacks(&self) -> bool {
        !self.lacks.is_zero()
    }

    /// Whether it is to be exchanged, where nothing is in the background.
    pub(crate) fn is_due(&self, local: Nanos, sync: Duration) -> bool {
        local >= self.called + sync
    }

    /// Judges a request that is charged to several clients, where that needs no trip.
    pub(crate) fn judge(
        &mut self,
        rule: &Rule,
        cost: Cost,
        mode: Mode,
        time: Time,
    ) -> Option<Judgement> {
        let limit = rule.limit();
        let (now, takes) = (self.at(limit, time), algorithm::of(limit).takes(cost));
        let (allowed, figures) = self.step(limit, now, cost, Mode::Peek);
        if allowed && !self.covers(takes, mode, time, Basis::Share) {
            return None;
        }
        self.touch(mode, !allowed && limit.policy() == Policy::Strict, time);
        Some(Judgement::new(rule, allowed, || figures.retry_after))
    }

    /// Does what was settled of a request that was judged, and tells when, and the figures after it.
    pub(crate) fn settle(
        &mut self,
        rule: &Rule,
        cost: Cost,
        settled: Mode,
        time: Time,
    ) -> (Nanos, Figures) {
        let now = self.at(rule.limit(), time);
        let figures = self.store(rule.limit(), cost, settled, now);
        self.touch(settled, false, time);
        (now, figures)
    }

    /// The figures, with the request stored unless it is a peek.
    fn store(&mut self, limit: &Limit, cost: Cost, mode: Mode, now: Nanos) -> Figures {
        let mode = if mode == Mode::Peek { mode } else { Mode::Charge };
        let (_, figures) = self.step(limit, now, cost, mode);
        if mode == Mode::Charge && !cost.is_zero() {
            self.unsent.add(limit, now, cost, algorithm::of(limit).takes(cost));
        }
        figures
    }

    /// Whether what is known will do, should the limit allow a request that takes so much.
    fn covers(&self, takes: f64, mode: Mode, time: Time, basis: Basis) -> bool {
        let until = if mode == Mode::Peek { self.fresh } else { self.until };
        let within = || self.spent() + takes <= self.share * ROUNDING;
        let stores = mode == Mode::Check && takes > 0.0;
        basis == Basis::State || time.local <= until && (!stores || within())
    }

    /// What Redis does not have yet, as far as is known.
    fn spent(&self) -> f64 {
        self.unsent.spent + self.under_way.as_ref().map_or(0.0, |sent| sent.1.spent)
    }

    /// Redis's present time. What is kept moves with its clock, should that be set.
    fn at(&mut self, limit: &Limit, time: Time) -> Nanos {
        let now = time.redis();
        if self.offset.abs_diff(time.offset) > SET {
            let from = later(time.local, self.offset);
            let moved = |state: &mut Option<State>| {
                *state = state.take().map(|state| algorithm::of(limit).moved(state, from, now));
            };
            moved(&mut self.state);
            moved(&mut self.unsent.state);
            if let Some(sent) = &mut self.under_way {
                moved(&mut sent.1.state);
            }
            self.latest = Nanos::ZERO;
        }
        self.offset = time.offset;
        self.latest = self.latest.max(now);
        self.latest
    }

    /// Takes a request out that Redis was not sent yet; answers whether there was one.
    pub(crate) fn take_back(
        &mut self,
        limit: &Limit,
        cost: Cost,
        charged_at: Option<Nanos>,
        time: Time,
    ) -> bool {
        let now = self.at(limit, time);
        let here = charged_at.is_none_or(|at| at >= self.unsent.since);
        if !here || self.unsent.sum < cost || self.unsent.state.is_none() {
            return false;
        }
        let last = || limit.last_charge(self.unsent.state.as_ref());
        let at = charged_at.or_else(last).unwrap_or(now);
        let unsent = self.unsent.state.take();
        self.unsent.state = limit.refund(unsent, now, at, cost);
        let left = self.unsent.sum.billionths().saturating_sub(cost.billionths());
        self.unsent.sum = Cost::from_billionths(left);
        self.unsent.spent = (self.unsent.spent - algorithm::of(limit).takes(cost)).max(0.0);
        if self.unsent.state.is_none() {
            self.unsent = Counted::default();
        }
        self.state = limit.refund(self.state.take(), now, at, cost);
        true
    }

    /// The rule has other parameters: the history stays.
    pub(crate) fn convert(&mut self, from: &Limit, to: &Limit, time: Time) {
        let now = self.at(from, time);
        let converted = |state: &mut Option<State>| {
            *state = state.take().and_then(|state| to.convert(from, state, now));
        };
        converted(&mut self.state);
        converted(&mut self.unsent.state);
        if let Some(sent) = &mut self.under_way {
            converted(&mut sent.1.state);
        }
        (self.share, self.until, self.fresh) = (0.0, Nanos::ZERO, Nanos::ZERO);
    }

    /// Forgets what is known, and what was not sent yet.
    pub(crate) fn forget(&mut self) {
        let Self { sent, awaited, due, since, listed, group, .. } = *self;
        let told = sent;
        *self = Self { sent, told, awaited, due, since, listed, group, ..Self::default() };
    }

    /// Asks before it decides again: its record was changed otherwise.
    pub(crate) fn is_stale(&mut self, local: Nanos) {
        self.distrust();
        self.list(Due::Soon, local);
    }

    /// What is known will do for nothing any more.
    pub(crate) fn distrust(&mut self) {
        (self.until, self.fresh) = (Nanos::ZERO, Nanos::ZERO);
    }

    /// Whether Redis lacks something of it.
    pub(crate) fn owes(&self) -> bool {
        self.unsent.state.is_some() || self.under_way.is_some()
    }

    /// Whether it may be forgotten: it costs a trip more.
    pub(crate) fn is_settled(&self) -> bool {
        !self.owes() && self.listed == Due::Never && self.awaited == 0.0
    }
}
