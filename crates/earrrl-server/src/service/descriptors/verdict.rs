//! The verdicts of the limits that a request meets, and of all limits together.

use std::cmp::Reverse;
use std::time::Duration;

use earrrl::{Decision, Limit, Nanos, Outcome};
use earrrl_tower::headers::Available;
use smallvec::SmallVec;

use super::asked::{AskedLimit, whole_seconds};
use crate::service::answer::{Answer, Charged};

/// The decisions on single limits of a request, in the order of its limits; `None` for those that are decided
/// together.
pub(super) type Apart<'a> = SmallVec<[Option<DecidedApart<'a>>; 2]>;

/// The decision on one limit of a request.
#[derive(Clone, Copy, Debug)]
pub(super) struct DecidedApart<'a> {
    pub(super) charged: Charged<'a>,
    pub(super) decision: Decision,
}

/// The verdicts of all limits that a request meets.
#[derive(Debug)]
pub(super) struct Verdicts {
    /// The verdicts in the order of the limits.
    pub(super) each: SmallVec<[Verdict; 2]>,
    /// True if the limits together deny the request.
    pub(super) over: bool,
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
    /// The index of the charge, if the limit was decided together with others.
    pub(super) place: Option<usize>,
}

impl Verdicts {
    /// Returns the verdicts that follow from the answer to the charges at `places` and from the decisions apart.
    /// Sets the outcomes in the answer to those that the request has under Envoy's limits.
    pub(super) fn new(
        limits: &[AskedLimit<'_>],
        places: &[Option<usize>],
        apart: &Apart<'_>,
        answer: &mut Answer<'_>,
        now: Nanos,
    ) -> Self {
        let mut each: SmallVec<[Verdict; 2]> = SmallVec::new();
        for ((asked, place), apart) in limits.iter().zip(places).zip(apart) {
            let charged = place.and_then(|place| answer.charged.get_mut(place));
            let mut verdict = match (&charged, apart) {
                (Some(charged), _) => Verdict::of(asked, charged, now),
                (None, Some(apart)) => Verdict::of(asked, &apart.charged, now),
                (None, None) => Verdict::without_charge(asked, now),
            };
            verdict.place = *place;
            if let Some(charged) = charged.filter(|charged| charged.outcome.is_some()) {
                charged.outcome = Some(verdict.outcome);
            }
            each.push(verdict);
        }
        let denials = |of_quotas: bool| {
            let all = limits.iter().zip(&each);
            let some = all.filter(move |(asked, _)| asked.quota_mode() == of_quotas);
            some.map(|(_, verdict): (_, &Verdict)| verdict.denies())
        };
        let all_quotas = denials(true).next().is_some() && denials(true).all(|denies| denies);
        let over = all_quotas || denials(false).any(|denies| denies);
        if let Some(decision) = &mut answer.decision {
            decision.allowed &= !over;
        }
        Self { each, over }
    }

    /// Returns the seconds after which a denied request would be allowed; `None` if no wait helps.
    pub(super) fn retry_after(&self) -> Option<u64> {
        let denying = || self.each.iter().filter(|verdict| verdict.denies());
        if denying().any(|verdict| verdict.available.seconds.is_none()) {
            return None;
        }
        denying().filter_map(|verdict| verdict.reset).max()
    }
}

impl Verdict {
    /// Returns the verdict of a limit that counts the request.
    fn of(asked: &AskedLimit<'_>, charged: &Charged<'_>, now: Nanos) -> Self {
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
            place: None,
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
            place: None,
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
