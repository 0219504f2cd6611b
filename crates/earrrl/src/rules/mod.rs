//! Several rules on one request: all judge the request, then each stores it as its policy requires.
//!
//! A request passes if every enforcing rule lets it pass. Strict rules then store it in any case. A
//! leaky rule stores it only if this rule allowed it and the request passed, so that a request that
//! one rule denies never uses up the quota of another.

#[cfg(feature = "std")]
mod alone;
#[cfg(feature = "std")]
mod at_home;
#[cfg(feature = "std")]
pub(crate) mod atomic;
pub mod grant;
#[cfg(feature = "std")]
pub(crate) mod part;
#[cfg(feature = "std")]
pub(crate) mod reserve;

use core::time::Duration;

#[cfg(feature = "std")]
use crate::algorithm::State;
use crate::algorithm::{Mode, Policy};
use crate::clock::Nanos;
#[cfg(feature = "std")]
use crate::cost::Cost;
use crate::decision::{Action, Decision, Figures, Outcome, Places, Wait};
use crate::rule::Rule;

/// One rule's judgement of a request, made before the request is stored.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Judgement {
    /// True if the request is within the rule's limit.
    pub allowed: bool,
    /// The time for which the request is held back before it is served, if the rule's action is to
    /// delay it.
    pub hold: Option<Duration>,
    enforces: bool,
    policy: Policy,
}

impl Judgement {
    /// Judges a request that the rule's limit allows or not. If the action is to delay, `wait` is
    /// called; it returns the wait until the limit allows the request.
    #[inline]
    pub fn new(rule: &Rule, allowed: bool, wait: impl FnOnce() -> Wait) -> Self {
        let hold = match rule.action() {
            Action::Delay { max } if !allowed => wait().duration().filter(|hold| *hold <= max),
            _ => None,
        };
        Self {
            allowed,
            hold,
            enforces: rule.action().enforces(),
            policy: rule.limit().policy(),
        }
    }

    /// Returns true if the rule lets the request pass, even if it is over the limit.
    #[inline]
    pub fn passes(&self) -> bool {
        self.allowed || self.hold.is_some() || !self.enforces
    }

    /// Returns [`Mode::Peek`] if the rule must not store the request, [`Mode::Check`] if it must store it as a denied
    /// one, and else [`Mode::Charge`]. `all_pass` is true if the request passes every rule.
    #[inline]
    pub fn settle(&self, mode: Mode, all_pass: bool) -> Mode {
        let leaky = all_pass && (self.allowed || self.hold.is_some());
        match mode {
            // Stores a denied request too, and gives it a place in the queue.
            Mode::Check
                if self.policy == Policy::Strict && !self.allowed && self.hold.is_none() =>
            {
                mode
            }
            Mode::Check if self.policy == Policy::Strict || leaky => Mode::Charge,
            Mode::Check => Mode::Peek,
            Mode::Charge | Mode::Peek => mode,
        }
    }
}

/// The judgement of one rule, and the rule's figures after the decision.
#[cfg(feature = "std")]
type Judged = (Judgement, Figures);

#[cfg(feature = "std")]
impl Rule {
    /// Judges a request and computes no figures. Returns the state advanced to `now`.
    fn judge(
        &self,
        mut state: Option<State>,
        cost: Cost,
        now: Nanos,
    ) -> (Option<State>, Judgement) {
        let limit = self.limit();
        let allowed = limit.admit(&mut state, now, cost, Mode::Peek);
        // Only a delaying rule needs the wait, as it is before the request is stored.
        let wait = || limit.step(state.clone(), now, cost, Mode::Peek).2.earliest;
        let judgement = Judgement::new(self, allowed, wait);
        (state, judgement)
    }

    /// Judges a request, and stores it if `mode` and the judgement require that.
    fn settle(
        &self,
        state: Option<State>,
        cost: Cost,
        mode: Mode,
        now: Nanos,
    ) -> (Option<State>, Judged) {
        let (state, judgement) = self.judge(state, cost, now);
        let mode = judgement.settle(mode, judgement.passes());
        let (after, _, figures) = self.limit().step(state, now, cost, mode);
        (after, (judgement, figures))
    }
}

/// The figures of one rule after a decision, each computed on demand.
pub trait Report {
    /// Returns the remaining quota; see [`Figures::remaining`].
    fn remaining(&self) -> u64;
    /// Returns the shortest wait, and the one that the client is told; see [`Figures::earliest`] and
    /// [`Figures::retry_after`].
    fn waits(&self) -> [Wait; 2];
    /// Returns the measured rate, the allowed rate, and the wait until the client is as good as
    /// new. Only the rule that determines the decision is asked.
    fn standing(&self) -> (Option<f64>, f64, Duration);
}

impl Report for Figures {
    fn remaining(&self) -> u64 {
        self.remaining
    }

    fn waits(&self) -> [Wait; 2] {
        [self.earliest, self.retry_after]
    }

    fn standing(&self) -> (Option<f64>, f64, Duration) {
        (self.rate, self.limit, self.reset_after)
    }
}

/// Returns an allowed decision, to which each rule's result is then added.
const fn unjudged(at: Nanos) -> Decision {
    Decision {
        allowed: true,
        at,
        outcome: Outcome::Allow,
        rule: 0,
        rate: None,
        limit: 0.0,
        remaining: u64::MAX,
        retry_after: Wait::NONE,
        queued: 0,
        reset_after: Duration::ZERO,
        delay: Duration::ZERO,
        over: Places::NONE,
    }
}

/// Combines the judgements and figures of several rules into one decision. A dry-run rule affects
/// the outcome only if no rule beside it enforces; otherwise only [`Decision::over`] shows it.
#[inline]
pub fn combine<'a, R: Report + 'a>(
    at: Nanos,
    judged: impl Iterator<Item = (&'a Rule, &'a Judgement, &'a R)> + Clone,
) -> Decision {
    let all_pass = judged.clone().all(|(_, judgement, _)| judgement.passes());
    let some_act = judged
        .clone()
        .any(|(rule, ..)| rule.action() != Action::Observe);
    let mut answer = unjudged(at);
    let mut deciding: Option<(Wait, &R)> = None;
    for (place, (rule, judgement, report)) in judged.enumerate() {
        if !judgement.allowed {
            answer.over.insert(place);
        }
        if some_act && rule.action() == Action::Observe {
            continue;
        }
        let remaining = report.remaining();
        if all_pass && judgement.allowed {
            if deciding.is_none() || remaining < answer.remaining {
                (answer.rule, answer.remaining) = (place, remaining);
                deciding = Some((Wait::NONE, report));
            }
            continue;
        }
        let waits = if all_pass {
            [Wait::NONE; 2]
        } else {
            waits_of(rule, report)
        };
        let wait = waits[0];
        let decides = match (all_pass, judgement.passes()) {
            (true, _) => deciding.is_none() || remaining < answer.remaining,
            (false, true) => false,
            (false, false) => deciding.is_none_or(|(longest, _)| wait > longest),
        };
        if decides {
            (answer.rule, deciding) = (place, Some((wait, report)));
        }
        add_outcome(&mut answer, (rule, judgement), (remaining, waits), all_pass);
    }
    if let Some((_, report)) = deciding {
        (answer.rate, answer.limit, answer.reset_after) = report.standing();
    }
    answer.allowed = answer.outcome != Outcome::Deny;
    answer
}

/// Adds the outcome of one rule to that of the rules before it.
#[inline]
fn add_outcome(
    answer: &mut Decision,
    (rule, judgement): (&Rule, &Judgement),
    (remaining, [earliest, told]): (u64, [Wait; 2]),
    all_pass: bool,
) {
    answer.remaining = answer.remaining.min(remaining);
    answer.outcome = worse(answer.outcome, outcome_of(rule, judgement, all_pass));
    answer.delay = answer
        .delay
        .max(judgement.hold.filter(|_| all_pass).unwrap_or_default());
    if !all_pass && rule.action().enforces() {
        let waits = [
            answer.earliest().max(earliest),
            answer.retry_after.max(told),
        ];
        *answer = answer.with_waits(waits);
    }
}

/// Returns the waits until the rule lets the request pass: the shortest one, and the one that the client is told. A
/// delaying rule lets it pass as soon as it would hold it for at most `max`.
fn waits_of(rule: &Rule, report: &impl Report) -> [Wait; 2] {
    report.waits().map(|wait| match (rule.action(), wait) {
        (Action::Delay { max }, Wait::For(wait)) => Wait::For(wait.saturating_sub(max)),
        (_, wait) => wait,
    })
}

fn outcome_of(rule: &Rule, judgement: &Judgement, all_pass: bool) -> Outcome {
    if judgement.allowed {
        return Outcome::Allow;
    }
    match rule.action() {
        Action::Observe => Outcome::Observe,
        Action::Quarantine => Outcome::Quarantine,
        Action::ShadowBan => Outcome::ShadowBan,
        Action::Delay { .. } if judgement.hold.is_some() && all_pass => Outcome::Delay,
        Action::Delay { .. } if judgement.hold.is_some() => Outcome::Allow,
        Action::Delay { .. } | Action::Deny => Outcome::Deny,
    }
}

fn worse(one: Outcome, other: Outcome) -> Outcome {
    if one as u8 >= other as u8 { one } else { other }
}
