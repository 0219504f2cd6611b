//! The verdicts of each limit, and of all limits together, on a request.

use std::time::Duration;

use earrrl::{Action, Decision, Nanos, Outcome, Wait};
use smallvec::SmallVec;

use super::asked::{AskedLimit, Hits};
use super::judged::JudgedRequest;
use super::prepared::{DescriptorLimit, LimitKind, fixed_window};

/// The verdicts of the limits on a request, in the order of its shares.
#[derive(Debug)]
pub(super) struct Verdicts {
    pub(super) each: SmallVec<[ShareVerdict; 2]>,
    over: bool,
}

/// The verdict of one limit on a request.
#[derive(Clone, Copy, Debug)]
pub(super) struct ShareVerdict {
    /// True if the request is over the limit.
    pub(super) over: bool,
    /// True if the request is over the limit, and the limit is enforced.
    pub(super) enforced: bool,
    /// The outcome for the request, unless it is denied.
    pub(super) outcome: Outcome,
    /// The number of requests that remain.
    pub(super) remaining: u64,
    /// The time until more requests remain, or until such a request would be allowed.
    pub(super) reset: Option<Duration>,
}

impl Verdicts {
    pub(super) fn new(
        shares: &[AskedLimit<'_>],
        figures: SmallVec<[Option<Decision>; 2]>,
        judged: &JudgedRequest,
        now: Nanos,
    ) -> Self {
        let verdict = |(share, figures): (&AskedLimit<'_>, Option<Decision>)| {
            ShareVerdict::new(share, figures.as_ref(), judged, now)
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

    /// Returns true if the request is denied.
    pub(super) fn over(&self) -> bool {
        self.over
    }
}

impl ShareVerdict {
    fn new(
        share: &AskedLimit<'_>,
        figures: Option<&Decision>,
        judged: &JudgedRequest,
        now: Nanos,
    ) -> Self {
        let counts_over = |place| {
            judged.is_over(place) || (judged.error(place).is_some() && share.denies_on_error())
        };
        let over = share.place.is_some_and(counts_over);
        let (over, remaining, reset) = match (&share.limit.kind, figures) {
            (LimitKind::Unlimited, _) => (false, u64::MAX, None),
            (LimitKind::Zero(unit), _) => {
                let length = unit.duration().as_nanos() as u64;
                let over = matches!(share.hits, Hits::Charged(hits) if hits > 0);
                (over, 0, Some(until_window_ends(now, length)))
            }
            (LimitKind::Counted(_, rule), Some(figures)) => {
                let reset = match (over, figures.retry_after, fixed_window(rule)) {
                    // A limit that is not enforced makes no client wait.
                    (true, Wait::For(wait), _) if !wait.is_zero() => wait,
                    (_, _, Some(window)) => until_window_ends(now, window.window_nanos()),
                    _ => figures.reset_after,
                };
                (over, if over { 0 } else { figures.remaining }, Some(reset))
            }
            (LimitKind::Counted(..), None) => (over, 0, None),
        };
        let outcome = share.limit.outcome(over);
        Self { over, enforced: outcome == Outcome::Deny, outcome, remaining, reset }
    }
}

impl DescriptorLimit {
    /// Returns the outcome of a request that is, or is not, over this limit.
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

/// Returns the time until a window that began at a multiple of `length` ends.
fn until_window_ends(now: Nanos, length: u64) -> Duration {
    Duration::from_nanos(length - now.get() % length.max(1))
}
