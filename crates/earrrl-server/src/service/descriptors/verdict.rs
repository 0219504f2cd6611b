//! What each limit says of a request, and all of them together.

use std::time::Duration;

use earrrl::{Action, Decision, Nanos, Outcome, Wait};
use smallvec::SmallVec;

use super::asked::{AskedLimit, Hits};
use super::prepared::{DescriptorLimit, LimitKind, fixed_window};

/// What each share's limit says, in order.
#[derive(Debug)]
pub(super) struct Verdicts {
    pub(super) each: SmallVec<[ShareVerdict; 2]>,
    over: bool,
}

/// What one limit says of a request.
#[derive(Clone, Copy, Debug)]
pub(super) struct ShareVerdict {
    /// Over the limit.
    pub(super) over: bool,
    /// Over it, and that counts.
    pub(super) enforced: bool,
    /// What is done with the request, where it is not denied.
    pub(super) outcome: Outcome,
    /// How many requests remain.
    pub(super) remaining: u64,
    /// When there will be more, or when such a request would pass.
    pub(super) reset: Option<Duration>,
}

impl Verdicts {
    pub(super) fn new(
        shares: &[AskedLimit<'_>],
        figures: SmallVec<[Option<Decision>; 2]>,
        decision: Option<&Decision>,
        now: Nanos,
    ) -> Self {
        let verdict = |(share, figures): (&AskedLimit<'_>, Option<Decision>)| {
            ShareVerdict::new(share, figures.as_ref(), decision, now)
        };
        let each: SmallVec<[ShareVerdict; 2]> = shares.iter().zip(figures).map(verdict).collect();
        let quotas = || shares.iter().zip(&each).filter(|(share, _)| share.limit.quota_mode);
        let denied = |(share, verdict): (&AskedLimit<'_>, &ShareVerdict)| {
            verdict.enforced && !share.limit.quota_mode
        };
        let all_quotas = quotas().count() > 0 && quotas().all(|(_, verdict)| verdict.enforced);
        let over = all_quotas || shares.iter().zip(&each).any(denied);
        Self { each, over }
    }

    /// Whether the request is denied.
    pub(super) fn over(&self) -> bool {
        self.over
    }
}

impl ShareVerdict {
    fn new(
        share: &AskedLimit<'_>,
        figures: Option<&Decision>,
        decision: Option<&Decision>,
        now: Nanos,
    ) -> Self {
        let (over, remaining, reset) = match (&share.limit.kind, figures) {
            (LimitKind::Unlimited, _) => (false, u64::MAX, None),
            (LimitKind::Zero(unit), _) => {
                let length = unit.duration().as_nanos() as u64;
                let over = matches!(share.hits, Hits::Charged(hits) if hits > 0);
                (over, 0, Some(until_window_ends(now, length)))
            }
            (LimitKind::Counted(_, rule), Some(figures)) => {
                let place = share.place.zip(decision);
                let over = place.is_some_and(|(place, decision)| decision.is_over(place));
                let reset = match (over, figures.retry_after, fixed_window(rule)) {
                    // A limit that is not enforced has nobody wait.
                    (true, Wait::For(wait), _) if !wait.is_zero() => wait,
                    (_, _, Some(window)) => until_window_ends(now, window.window_nanos()),
                    _ => figures.reset_after,
                };
                (over, if over { 0 } else { figures.remaining }, Some(reset))
            }
            (LimitKind::Counted(..), None) => (false, 0, None),
        };
        let outcome = share.limit.outcome(over);
        Self { over, enforced: outcome == Outcome::Deny, outcome, remaining, reset }
    }
}

impl DescriptorLimit {
    /// What is done with a request that is over this limit, or not.
    fn outcome(&self, over: bool) -> Outcome {
        let action = match &self.kind {
            LimitKind::Counted(_, rule) => rule.action(),
            LimitKind::Unlimited | LimitKind::Zero(_) => Action::Deny,
        };
        match action {
            _ if !over => Outcome::Allow,
            _ if self.shadow_mode => Outcome::Observe,
            Action::Observe if !self.quota_mode => Outcome::Observe,
            Action::Quarantine => Outcome::Quarantine,
            Action::ShadowBan => Outcome::ShadowBan,
            _ => Outcome::Deny,
        }
    }
}

/// The time until a window that began at a multiple of `length` ends.
fn until_window_ends(now: Nanos, length: u64) -> Duration {
    Duration::from_nanos(length - now.get() % length.max(1))
}
