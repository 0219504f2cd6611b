//! Any limit, any state: what can be asked of every algorithm.

use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;
#[cfg(feature = "std")]
use core::time::Duration;

use super::contract::{Algorithm, ClientState, Judged, decide, judge};
use super::list::Stored;
use super::{Limit, State, each};
use crate::clock::Nanos;
use crate::cost::Cost;
use crate::decision::{Decision, Figures};
use crate::error::RuleError;
use crate::grammar::{self, Word, Words};
use crate::policy::{Mode, Policy, Replenishment};

impl Limit {
    /// Judges a request and stores it as `mode` requires: the whole of a rate limiter, as a function.
    ///
    /// ```
    /// use earrrl::{Cost, Limit, Mode, Nanos, Rule};
    /// let rule: Rule = "fixed-window 1/1m".parse()?;
    /// let (state, first) = rule.limit().decide(None, Nanos::ZERO, Cost::ONE, Mode::Check);
    /// let (_, second) = rule.limit().decide(state, Nanos::ZERO, Cost::ONE, Mode::Check);
    /// assert!(first.allowed && !second.allowed);
    /// # Ok::<(), earrrl::RuleError>(())
    /// ```
    pub fn decide(
        &self,
        state: Option<State>,
        now: Nanos,
        cost: Cost,
        mode: Mode,
    ) -> (Option<State>, Decision) {
        let (state, allowed, figures) = self.step(state, now, cost, mode);
        (state, Decision::single(allowed, now, figures))
    }

    /// Judges and stores as [`Limit::decide`] does, and returns the state, the verdict, and the figures
    /// whatever the verdict.
    pub fn step(
        &self,
        state: Option<State>,
        now: Nanos,
        cost: Cost,
        mode: Mode,
    ) -> (Option<State>, bool, Figures) {
        each!(self, limit => step(limit, state, now, cost, mode))
    }

    /// Judges and stores as [`Limit::decide`] does on a state in its place, and returns the verdict only:
    /// several times as fast.
    #[inline]
    pub fn admit(&self, state: &mut Option<State>, now: Nanos, cost: Cost, mode: Mode) -> bool {
        each!(self, limit => admit(limit, state, now, cost, mode))
    }

    /// Returns true if a request is allowed, without storing it, and the state without what no longer counts.
    #[cfg(feature = "std")]
    #[inline]
    pub(crate) fn allows(
        &self,
        state: Option<State>,
        now: Nanos,
        cost: Cost,
    ) -> (Option<State>, bool) {
        each!(self, limit => allows(limit, state, now, cost))
    }

    /// Returns true if a client may send one more request, and its rate in units per second. Drops from the
    /// state what no longer counts.
    #[cfg(feature = "std")]
    pub(crate) fn standing(&self, state: &mut Option<State>, now: Nanos) -> (bool, f64) {
        each!(self, limit => standing(limit, state, now))
    }

    /// Takes a request that was stored at `charged_at` out of the state again; never below empty.
    /// Exact, but for exponential, which can only approximate it, and for a log that has forgotten
    /// what the request outweighed.
    pub fn refund(
        &self,
        state: Option<State>,
        now: Nanos,
        charged_at: Nanos,
        cost: Cost,
    ) -> Option<State> {
        each!(self, limit => refund(limit, state?, now, charged_at, cost))
    }

    /// Returns the policy: whether denied attempts count.
    #[inline]
    pub fn policy(&self) -> Policy {
        each!(self, limit => limit.policy())
    }

    /// Returns the rate allowed, in cost units per second.
    pub fn per_second(&self) -> f64 {
        each!(self, limit => limit.limit())
    }

    /// Units, and the seconds in which they are allowed.
    pub(crate) fn allowance(&self) -> (f64, f64) {
        each!(self, limit => limit.allowance())
    }

    /// Returns how used units come back.
    pub fn replenishment(&self) -> Replenishment {
        each!(self, limit => limit.replenishment())
    }

    /// Returns the most by which the instant of a stored request may lag behind the present one: a 128th of the
    /// time in which the rule forgets (the time that refills a bucket, or the averaging period), and zero where
    /// the state is more than one time.
    #[cfg(feature = "std")]
    pub fn lag(&self) -> Duration {
        if !self.is_one_time() {
            return Duration::ZERO;
        }
        let (_, forgets_in) = self.allowance();
        Duration::try_from_secs_f64(forgets_in / 128.0).unwrap_or(Duration::MAX)
    }

    /// Returns the time of the last stored request, if a refund must name it to find the request. A refund
    /// without a time takes that request back; where this is `None`, the present time does as well.
    pub fn last_charge(&self, state: Option<&State>) -> Option<Nanos> {
        match state? {
            State::SlidingLog(tally) => tally.newest().map(Nanos::new),
            _ => None,
        }
    }

    /// Returns true if a request can be held back until it is allowed; see [`Algorithm::CAN_DELAY`].
    pub fn can_delay(&self) -> bool {
        each!(self, limit => can_delay(limit))
    }

    /// Returns true if a client's state is one time, and so fits the bounded table.
    #[inline]
    pub fn is_one_time(&self) -> bool {
        each!(self, limit => state_of(limit, 0)).is_some()
    }

    /// Returns the most bytes that a busy client's state takes, with what it has on the heap.
    pub fn state_bytes(&self) -> usize {
        size_of::<State>() + each!(self, limit => limit.most_heap_bytes())
    }

    /// Returns the rule's text, every option spelled out.
    pub(crate) fn text(&self) -> String {
        each!(self, limit => limit.write())
    }

    /// Returns the state that a word of the table stands for.
    #[cfg(feature = "std")]
    pub(crate) fn state_of(&self, word: i128) -> Option<State> {
        each!(self, limit => state_of(limit, word))
    }

    /// Returns the word up to which a client is as good as new.
    #[cfg(feature = "std")]
    pub(crate) fn idle(&self, now: Nanos) -> i128 {
        each!(self, limit => limit.idle(now)).0
    }
}

fn step<A: Stored<State>>(
    limit: &A,
    state: Option<State>,
    now: Nanos,
    cost: Cost,
    mode: Mode,
) -> (Option<State>, bool, Figures) {
    let (state, allowed, figures) = decide(limit, state.and_then(A::open), now, cost, mode);
    (state.map(A::wrap), allowed, figures)
}

fn admit<A: Stored<State>>(
    limit: &A,
    state: &mut Option<State>,
    now: Nanos,
    cost: Cost,
    mode: Mode,
) -> bool {
    let before = state.take().and_then(A::open);
    let Judged { after, allowed, .. } = judge(limit, before, now, cost, mode, |_| ());
    *state = after.map(A::wrap);
    allowed
}

#[cfg(feature = "std")]
fn allows<A: Stored<State>>(
    limit: &A,
    state: Option<State>,
    now: Nanos,
    cost: Cost,
) -> (Option<State>, bool) {
    let before = limit.advance(state.and_then(A::open), now);
    let allowed = limit.allows(before.as_ref(), now, cost);
    (before.map(A::wrap), allowed)
}

#[cfg(feature = "std")]
fn standing<A: Stored<State>>(limit: &A, state: &mut Option<State>, now: Nanos) -> (bool, f64) {
    let before = limit.advance(state.take().and_then(A::open), now);
    let allowed = limit.allows(before.as_ref(), now, Cost::ONE);
    let rate = limit.estimate(before.as_ref(), now, Cost::ONE);
    let rate = rate.or_else(|| limit.counted(before.as_ref(), now));
    *state = before.map(A::wrap);
    (allowed, rate.unwrap_or_default())
}

fn refund<A: Stored<State>>(
    limit: &A,
    state: State,
    now: Nanos,
    charged_at: Nanos,
    cost: Cost,
) -> Option<State> {
    limit.refund(A::open(state)?, now, charged_at, cost).map(A::wrap)
}

fn can_delay<A: Algorithm>(_limit: &A) -> bool {
    A::CAN_DELAY
}

#[inline]
fn state_of<A: Stored<State>>(_limit: &A, word: i128) -> Option<State> {
    A::State::from_word(word).map(A::wrap)
}

/// Reads a rule. The whole line is one limit; nothing may be left over.
pub(crate) fn parse(text: &str) -> Result<Limit, RuleError> {
    if text.len() > grammar::LONGEST {
        let problem =
            format!("the rule is {} bytes long; at most {}", text.len(), grammar::LONGEST);
        return Err(RuleError::syntax(problem));
    }
    let mut words = Words::new(text);
    let name = words.next(&format!("expected {}", names()))?;
    let limit = Limit::read(name.text, &mut words).unwrap_or_else(|| Err(unknown(&name)))?;
    words.finish()?;
    Ok(limit)
}

/// `recent-average, …, sliding-window or sliding-counter`.
fn names() -> String {
    let names: Vec<&str> = Limit::NAMES.iter().copied().flatten().copied().collect();
    match names.split_last() {
        Some((last, others)) => format!("{} or {last}", others.join(", ")),
        None => String::new(),
    }
}

fn unknown(name: &Word<'_>) -> RuleError {
    let known = Limit::NAMES.iter().copied().flatten().copied();
    let meant = grammar::did_you_mean(name.text, known);
    name.error(format!("unknown algorithm {}; expected {}{meant}", name.quoted(), names()))
}
