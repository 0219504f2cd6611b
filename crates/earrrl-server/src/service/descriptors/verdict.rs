//! The engine's decision on a request, and the verdicts that follow: one for each limit that the request
//! matches, and one for all limits together.
//!
//! The engine decides at most [`MAX_CHARGES`] charges together, and an error for one of them fails
//! all of them. So more charges are decided in batches, and the charges of a failed batch are
//! decided one by one: neither case may let a client pass.

use std::time::Duration;

use earrrl::{
    Action, Charge, Decision, EngineError, Limit, MAX_CHARGES, Mode, Nanos, Outcome, Wait,
};
use earrrl_tower::headers::is_shown;
use smallvec::SmallVec;

use super::asked::{AskedLimit, Hits, Source};
use super::prepared::LimitKind;
use crate::engine::Engine;

/// The decisions on all charges of a request.
#[derive(Debug, Default)]
pub(super) struct JudgedRequest {
    /// The decisions in the order of the charges; usually a single one covers all charges.
    parts: SmallVec<[DecidedPart; 1]>,
}

/// The decision on a sequence of consecutive charges of a request.
#[derive(Debug)]
struct DecidedPart {
    /// The index of the first charge that this decision covers.
    first: usize,
    decided: Result<Decision, EngineError>,
}

impl JudgedRequest {
    /// Decides the charges of a request. In [`Mode::Check`] the first denial stops this, and the
    /// charges after it are not judged.
    pub(super) async fn new(engine: &Engine, charges: &[Charge<'_>], mode: Mode) -> Self {
        let mut judged = Self::default();
        for (batch, first) in charges.chunks(MAX_CHARGES).zip((0..).step_by(MAX_CHARGES)) {
            match engine.decide(batch, mode).await {
                // The future is boxed, so that it takes no space when no charge fails.
                Err(_) if batch.len() > 1 => {
                    Box::pin(judged.decide_each(engine, batch, first, mode)).await;
                }
                decided => judged.parts.push(DecidedPart { first, decided }),
            }
            if judged.ends(mode) {
                break;
            }
        }
        judged
    }

    /// Returns the decision that covers all charges of a request.
    pub(super) fn of(decision: Decision) -> Self {
        Self {
            parts: [DecidedPart {
                first: 0,
                decided: Ok(decision),
            }]
            .into_iter()
            .collect(),
        }
    }

    async fn decide_each(
        &mut self,
        engine: &Engine,
        batch: &[Charge<'_>],
        first: usize,
        mode: Mode,
    ) {
        for (charge, first) in batch.iter().zip(first..) {
            let decided = engine.decide(std::slice::from_ref(charge), mode).await;
            self.parts.push(DecidedPart { first, decided });
            if self.ends(mode) {
                break;
            }
        }
    }

    /// Returns true if the last decision denies the request in a mode that charges no denied
    /// request.
    pub(super) fn ends(&self, mode: Mode) -> bool {
        let last = self
            .parts
            .last()
            .and_then(|part| part.decided.as_ref().ok());
        mode == Mode::Check && last.is_some_and(|decision| !decision.allowed)
    }

    /// Returns the decision if a single one covers all charges.
    pub(super) fn only(&self) -> Option<&Decision> {
        let [part] = &*self.parts else { return None };
        part.decided.as_ref().ok()
    }

    /// Returns true if the charge at this index exceeds its own limit.
    pub(super) fn is_over(&self, place: usize) -> bool {
        self.part(place)
            .is_some_and(|(decision, place)| decision.is_over(place))
    }

    /// Returns the instant at which [`Mode::Check`] stored the charge at this index; `None` if it did
    /// not. The result is meaningless for a charge that exceeds its own limit.
    pub(super) fn stored_at(&self, place: usize) -> Option<Nanos> {
        let (decision, _) = self.part(place)?;
        decision.allowed.then_some(decision.at)
    }

    /// Returns the error for the charge at this index, if the engine failed to judge it.
    pub(super) fn error(&self, place: usize) -> Option<&EngineError> {
        let part = self.parts.iter().find(|part| part.first == place)?;
        part.decided.as_ref().err()
    }

    /// Returns the decision that covers the charge at this index, and the charge's index within
    /// that decision.
    fn part(&self, place: usize) -> Option<(&Decision, usize)> {
        let part = self.parts.iter().rev().find(|part| part.first <= place)?;
        Some((part.decided.as_ref().ok()?, place - part.first))
    }
}

/// The verdicts of all limits that a request matches, in the order of the limits.
#[derive(Debug)]
pub(super) struct Verdicts {
    pub(super) each: SmallVec<[LimitVerdict; 2]>,
    /// The figures under each limit; `None` where the engine does not count or cannot judge.
    pub(super) figures: SmallVec<[Option<Decision>; 2]>,
    over: bool,
}

/// The verdict of one limit on a request.
#[derive(Clone, Copy, Debug)]
pub(super) struct LimitVerdict {
    /// True if the request exceeds the limit.
    pub(super) over: bool,
    /// True if the request exceeds the limit and the limit is enforced.
    pub(super) enforced: bool,
    /// The outcome of the request under this limit alone.
    pub(super) outcome: Outcome,
    /// The number of requests that the client may still make.
    pub(super) remaining: u64,
    /// The time until the client may make more requests; for a denied request, the time until it
    /// would be allowed.
    pub(super) reset: Option<Duration>,
    /// True if the request is denied and no wait helps, since it costs more than the quota.
    pub(super) is_hopeless: bool,
}

impl Verdicts {
    pub(super) fn new(
        limits: &[AskedLimit<'_>],
        figures: SmallVec<[Option<Decision>; 2]>,
        judged: &JudgedRequest,
        now: Nanos,
    ) -> Self {
        let verdict = |(asked, figures): (&AskedLimit<'_>, &Option<Decision>)| {
            LimitVerdict::new(asked, figures.as_ref(), judged, now)
        };
        let each: SmallVec<[LimitVerdict; 2]> = limits.iter().zip(&figures).map(verdict).collect();
        let quotas = || {
            limits
                .iter()
                .zip(&each)
                .filter(|(asked, _)| asked.quota_mode())
        };
        let denied = |(asked, verdict): (&AskedLimit<'_>, &LimitVerdict)| {
            verdict.enforced && !asked.quota_mode()
        };
        let all_quotas = quotas().count() > 0 && quotas().all(|(_, verdict)| verdict.enforced);
        let over = all_quotas || limits.iter().zip(&each).any(denied);
        Self {
            each,
            figures,
            over,
        }
    }

    /// Returns the whole seconds after which a denied request would be allowed, rounded up; `None` if no wait
    /// helps.
    pub(super) fn retry_after(&self) -> Option<u64> {
        let denying = || self.each.iter().filter(|verdict| verdict.enforced);
        if denying().any(|verdict| verdict.is_hopeless) {
            return None;
        }
        let longest = denying().filter_map(|verdict| verdict.reset).max()?;
        Some(whole_seconds(longest))
    }

    /// Returns true if the limits together deny the request.
    pub(super) fn over(&self) -> bool {
        self.over
    }
}

impl LimitVerdict {
    fn new(
        asked: &AskedLimit<'_>,
        figures: Option<&Decision>,
        judged: &JudgedRequest,
        now: Nanos,
    ) -> Self {
        let counts_over = |place| {
            judged.is_over(place) || (judged.error(place).is_some() && asked.denies_on_error())
        };
        let over = match asked.source {
            Source::Request(_) => figures.is_some_and(|figures| figures.is_over(0)),
            Source::Tree(..) | Source::Rule(_) => asked.place.is_some_and(counts_over),
        };
        let (over, remaining, reset) = match (asked.kind, figures) {
            (LimitKind::Unlimited, _) => (false, u64::MAX, None),
            (LimitKind::Zero(unit), _) => {
                let length = unit.duration();
                let over = matches!(asked.hits, Hits::Charged(hits) if hits > 0);
                (over, 0, Some(until_window_ends(now, length)))
            }
            (LimitKind::Counted(limit), Some(figures)) => {
                let reset = match (over, figures.retry_after, limit.rule.limit()) {
                    // A limit that is not enforced reports a wait of zero.
                    (true, Wait::For(wait), _) if !wait.is_zero() => wait,
                    (_, _, Limit::FixedWindow(limit)) => until_window_ends(now, limit.window()),
                    _ => figures.reset_after,
                };
                (over, if over { 0 } else { figures.remaining }, Some(reset))
            }
            (LimitKind::Counted(_), None) => (over, 0, None),
        };
        let outcome = asked.outcome(over);
        Self {
            over,
            enforced: outcome == Outcome::Deny,
            outcome,
            remaining,
            reset,
            is_hopeless: over && figures.is_some_and(|figures| figures.retry_after == Wait::Never),
        }
    }
}

impl AskedLimit<'_> {
    /// Returns true if clients may learn of the limit: it can deny their requests. A dry run must not
    /// change responses, and a client must not learn that it is shadow-banned.
    pub(super) fn is_shown(&self) -> bool {
        match (self.kind, &self.source) {
            _ if self.shadow_mode => false,
            (_, Source::Request(_)) => true,
            (LimitKind::Counted(limit), _) => self.quota_mode() || is_shown(limit.rule.action()),
            (LimitKind::Unlimited | LimitKind::Zero(_), _) => true,
        }
    }

    /// Returns the outcome of a request that exceeds (`over`) or meets this limit.
    fn outcome(&self, over: bool) -> Outcome {
        let action = match (self.kind, &self.source) {
            // The number of the request is enforced, whatever the counter's own limit does.
            (_, Source::Request(_)) | (LimitKind::Unlimited | LimitKind::Zero(_), _) => {
                Action::Deny
            }
            (LimitKind::Counted(limit), _) => limit.rule.action(),
        };
        match action {
            _ if !over => Outcome::Allow,
            _ if self.shadow_mode => Outcome::Observe,
            Action::Observe if !self.quota_mode() => Outcome::Observe,
            Action::Quarantine => Outcome::Quarantine,
            Action::ShadowBan => Outcome::ShadowBan,
            _ => Outcome::Deny,
        }
    }
}

/// Returns a duration in whole seconds, rounded up.
pub(super) fn whole_seconds(duration: Duration) -> u64 {
    duration
        .as_secs()
        .saturating_add(u64::from(duration.subsec_nanos() > 0))
}

/// Returns the time until the end of the current window. Windows are of this length, and begin at multiples of `length`.
fn until_window_ends(now: Nanos, length: Duration) -> Duration {
    let length = u64::try_from(length.as_nanos()).unwrap_or(u64::MAX).max(1);
    Duration::from_nanos(length - now.get() % length)
}
