//! The limits that a request meets with what becomes of it: the charges that are decided together, the decisions
//! apart, and the verdict of each limit and of all together.

use std::cmp::Reverse;
use std::time::Duration;

use earrrl::{Charge, Decision, Limit, Nanos, Outcome};
use earrrl_tower::headers::Available;
use smallvec::SmallVec;

use super::asked::{AskedLimit, whole_seconds};
use crate::service::answer::{AllCharged, Answer, Charged};

/// A limit that a request meets, and what becomes of the request under it.
#[derive(Debug)]
pub(super) struct Met<'s, 'a> {
    pub(super) asked: &'s AskedLimit<'a>,
    /// The index of the limit's charge among those that are decided together; `None` if it has none. Descriptors with
    /// the same limit and the same client share one charge.
    pub(super) place: Option<usize>,
    /// The decision under this limit alone, if it is not decided together with others.
    pub(super) apart: Option<DecidedApart<'a>>,
    pub(super) verdict: Verdict,
}

/// The decision on one limit of a request.
#[derive(Clone, Copy, Debug)]
pub(super) struct DecidedApart<'a> {
    pub(super) charged: Charged<'a>,
    pub(super) decision: Decision,
}

/// The verdict of one limit on a request.
#[derive(Clone, Copy, Debug)]
pub(super) struct Verdict {
    /// The outcome of the request under this limit alone.
    pub(super) outcome: Outcome,
    /// The quota that the client has left. A denied request has the time until it would be allowed, if any wait
    /// helps.
    pub(super) available: Available,
    /// The seconds until the window ends or the client's requests no longer count; for a denied request, until
    /// it would be allowed.
    pub(super) reset: Option<u64>,
}

/// All limits that a request meets.
pub(super) type AllMet<'s, 'a> = SmallVec<[Met<'s, 'a>; 2]>;

/// The charges that are decided together.
#[derive(Default)]
pub(super) struct Charges<'s, 'a> {
    pub(super) charged: AllCharged<'a>,
    pub(super) charges: SmallVec<[Charge<'s>; 2]>,
}

/// Returns the limits that a request meets, as far as their verdicts need no decision, and the charges to decide
/// together.
pub(super) fn met<'s, 'a>(
    limits: &'s [AskedLimit<'a>],
    now: Nanos,
) -> (AllMet<'s, 'a>, Charges<'s, 'a>) {
    let mut all = Charges::default();
    let met = limits.iter().map(|asked| Met {
        asked,
        place: all.add(asked),
        apart: None,
        verdict: Verdict::without_charge(asked, now),
    });
    (met.collect(), all)
}

impl<'s, 'a> Charges<'s, 'a> {
    fn add(&mut self, asked: &'s AskedLimit<'a>) -> Option<usize> {
        let (charged, charge) = asked.ask.charge().filter(|_| asked.is_decided_together())?;
        let is_same = |known: &Charge<'_>| known.rule == charge.rule && known.key == charge.key;
        if let Some(place) = self.charges.iter().position(is_same) {
            let cost = &mut self.charges[place].cost;
            *cost = (*cost + charge.cost).min(charged.limit.rule.max_cost());
            return Some(place);
        }
        self.charged.push(charged);
        self.charges.push(charge);
        Some(self.charges.len() - 1)
    }
}

/// Sets the verdicts that follow from the answer to the charges, and the outcomes in the answer to those that the
/// request has under Envoy's limits. Returns true if the limits deny the request.
pub(super) fn settle(met: &mut [Met<'_, '_>], answer: &mut Answer<'_>, now: Nanos) -> bool {
    for one in &mut *met {
        if let Some(charged) = one.place.and_then(|place| answer.charged.get_mut(place)) {
            one.verdict = Verdict::of(one.asked, charged, now);
            charged.outcome = charged.outcome.map(|_| one.verdict.outcome);
        }
    }
    let denials = |of_quotas: bool| {
        let some = met
            .iter()
            .filter(move |one| one.asked.quota_mode() == of_quotas);
        some.map(|one| one.verdict.denies())
    };
    let all_quotas = denials(true).next().is_some() && denials(true).all(|denies| denies);
    let over = all_quotas || denials(false).any(|denies| denies);
    if let Some(decision) = &mut answer.decision {
        decision.allowed &= !over;
    }
    over
}

/// Returns the seconds after which a denied request would be allowed; `None` if no wait helps.
pub(super) fn retry_after(met: &[Met<'_, '_>]) -> Option<u64> {
    let denying = || {
        met.iter()
            .map(|one| &one.verdict)
            .filter(|verdict| verdict.denies())
    };
    if denying().any(|verdict| verdict.available.seconds.is_none()) {
        return None;
    }
    denying().filter_map(|verdict| verdict.reset).max()
}

impl Verdict {
    /// Returns the verdict of a limit that counts the request.
    pub(super) fn of(asked: &AskedLimit<'_>, charged: &Charged<'_>, now: Nanos) -> Self {
        let is_denied = charged.outcome == Some(Outcome::Deny);
        let outcome = match charged.outcome {
            None => Outcome::Allow,
            // Envoy cannot hold a request back.
            Some(Outcome::Delay) => Outcome::Deny,
            Some(Outcome::Observe) if asked.quota_mode() => Outcome::Deny,
            Some(outcome) => outcome,
        };
        let available = charged.available.unwrap_or(Available {
            units: 0,
            seconds: None,
        });
        let resets = || whole_seconds(charged.reset_after);
        let reset = match charged.limit.rule.limit() {
            _ if charged.available.is_none() => None,
            Limit::FixedWindow(limit) => Some(whole_seconds(limit.until_window_ends(now))),
            _ if is_denied => Some(available.seconds.unwrap_or_else(resets)),
            _ => Some(resets()),
        };
        let available = match outcome {
            Outcome::Allow => available,
            _ => Available {
                units: 0,
                // A limit that the engine does not enforce has no wait in its figures.
                seconds: if is_denied { available.seconds } else { reset },
            },
        };
        Self {
            outcome,
            available,
            reset,
        }
    }

    /// Returns the verdict of a limit that allows everything, or nothing.
    fn without_charge(asked: &AskedLimit<'_>, now: Nanos) -> Self {
        let zero = asked.zero();
        let outcome = match zero {
            Some(_) if asked.hits == 0 || asked.is_refund => Outcome::Allow,
            Some(_) if asked.shadow_mode() => Outcome::Observe,
            Some(_) => Outcome::Deny,
            None => Outcome::Allow,
        };
        let reset = zero.map(|unit| until_window_ends(now, unit.duration()));
        let units = if zero.is_some() { 0 } else { u64::MAX };
        Self {
            outcome,
            available: Available {
                units,
                seconds: reset,
            },
            reset,
        }
    }

    /// Returns true if the request exceeds the limit.
    pub(super) fn is_over(&self) -> bool {
        self.outcome != Outcome::Allow
    }

    /// Returns true if the limit denies the request by itself.
    pub(super) fn denies(&self) -> bool {
        self.outcome == Outcome::Deny
    }

    /// Returns a key by which verdicts are sorted: those that restrict the client most come first.
    pub(super) fn tightness(&self) -> (Reverse<bool>, u64) {
        (Reverse(self.denies()), self.available.units)
    }
}

/// Returns the seconds until the end of the current window. Windows are of this length, and begin at
/// multiples of it.
fn until_window_ends(now: Nanos, length: Duration) -> u64 {
    let length = u64::try_from(length.as_nanos()).unwrap_or(u64::MAX).max(1);
    whole_seconds(Duration::from_nanos(length - now.get() % length))
}
