//! What is said of a decision: a status for each descriptor, and one verdict for all.

use std::time::Duration;

use earrrl::{Action, Decision, Nanos, Outcome, Wait};
use envoy_types::pb::envoy::service::ratelimit::v3::rate_limit_response::{
    Code, DescriptorStatus, RateLimit,
};
use envoy_types::pb::envoy::service::ratelimit::v3::{RateLimitRequest, RateLimitResponse};
use envoy_types::pb::google::protobuf::Duration as ProtoDuration;
use smallvec::SmallVec;

use super::asked::{Hits, LimitRef, Share};
use super::counts::Became;
use super::prepared::{Descriptors, Kind, Limit, fixed_window};
use super::until_window_ends;
use super::{headers, metadata};

/// What each share's limit says, in order.
#[derive(Debug)]
pub(super) struct Verdicts {
    pub(super) each: SmallVec<[Verdict; 4]>,
    over: bool,
}

/// What one limit says of a request.
#[derive(Clone, Copy, Debug)]
pub(super) struct Verdict {
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
        shares: &[Share<'_>],
        figures: SmallVec<[Option<Decision>; 4]>,
        decision: Option<&Decision>,
        now: Nanos,
    ) -> Self {
        let verdict = |(share, figures): (&Share<'_>, Option<Decision>)| {
            Verdict::new(share, figures.as_ref(), decision, now)
        };
        let each: SmallVec<[Verdict; 4]> = shares.iter().zip(figures).map(verdict).collect();
        let quotas = || shares.iter().zip(&each).filter(|(share, _)| share.limit.quota_mode);
        let denied =
            |(share, verdict): (&Share<'_>, &Verdict)| verdict.enforced && !share.limit.quota_mode;
        let all_quotas = quotas().count() > 0 && quotas().all(|(_, verdict)| verdict.enforced);
        let over = all_quotas || shares.iter().zip(&each).any(denied);
        Self { each, over }
    }

    /// Whether the request is denied.
    pub(super) fn over(&self) -> bool {
        self.over
    }
}

impl Verdict {
    fn new(
        share: &Share<'_>,
        figures: Option<&Decision>,
        decision: Option<&Decision>,
        now: Nanos,
    ) -> Self {
        let (over, remaining, reset) = match (&share.limit.kind, figures) {
            (Kind::Unlimited, _) => (false, u64::MAX, None),
            (Kind::Zero(unit), _) => {
                let length = unit.duration().as_nanos() as u64;
                let over = matches!(share.hits, Hits::Charged(hits) if hits > 0);
                (over, 0, Some(until_window_ends(now, length)))
            }
            (Kind::Counted(_, rule), Some(figures)) => {
                let place = share.place.zip(decision);
                let over = place.is_some_and(|(place, decision)| decision.is_over(place));
                let reset = match (over, figures.retry_after, fixed_window(rule)) {
                    // A limit that is not enforced has nobody wait.
                    (true, Wait::For(wait), _) if !wait.is_zero() => wait,
                    (_, _, Some(window)) => until_window_ends(now, window.window()),
                    _ => figures.reset_after,
                };
                (over, if over { 0 } else { figures.remaining }, Some(reset))
            }
            (Kind::Counted(..), None) => (false, 0, None),
        };
        let outcome = share.limit.outcome(over);
        Self { over, enforced: outcome == Outcome::Deny, outcome, remaining, reset }
    }
}

impl Limit {
    /// What is done with a request that is over this limit, or not.
    fn outcome(&self, over: bool) -> Outcome {
        let action = match &self.kind {
            Kind::Counted(_, rule) => rule.action(),
            Kind::Unlimited | Kind::Zero(_) => Action::Deny,
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

/// The answer where there is no time to decide.
pub(super) fn unlimited(request: &RateLimitRequest) -> RateLimitResponse {
    let passes = DescriptorStatus { code: Code::Ok.into(), ..DescriptorStatus::default() };
    RateLimitResponse {
        overall_code: Code::Ok.into(),
        statuses: vec![passes; request.descriptors.len()],
        ..RateLimitResponse::default()
    }
}

/// The whole answer.
pub(super) fn response(
    descriptors: &Descriptors,
    request: &RateLimitRequest,
    shares: &[Share<'_>],
    verdicts: &Verdicts,
) -> RateLimitResponse {
    let mut response = RateLimitResponse {
        overall_code: code(verdicts.over).into(),
        ..RateLimitResponse::default()
    };
    let nothing = DescriptorStatus { code: Code::Ok.into(), ..DescriptorStatus::default() };
    response.statuses = vec![nothing; request.descriptors.len()];
    let mut shown = SmallVec::<[bool; 8]>::from_elem(false, request.descriptors.len());
    for (share, verdict) in shares.iter().zip(&verdicts.each) {
        count(descriptors, request, share, verdict);
        let status = &mut response.statuses[share.descriptor];
        // Of several limits on one descriptor the tightest is shown.
        let tighter = !std::mem::replace(&mut shown[share.descriptor], true)
            || verdict.enforced
            || (status.code != i32::from(Code::OverLimit)
                && verdict.remaining < u64::from(status.limit_remaining));
        if tighter {
            *status = status_of(share, verdict);
        }
    }
    headers::add(descriptors, shares, verdicts, &mut response);
    if descriptors.config.dynamic_metadata {
        response.dynamic_metadata = Some(metadata::of(request, shares, verdicts));
    }
    response
}

fn code(over: bool) -> Code {
    if over { Code::OverLimit } else { Code::Ok }
}

fn status_of(share: &Share<'_>, verdict: &Verdict) -> DescriptorStatus {
    let current = &share.limit.current;
    let limit = RateLimit {
        name: current.name.clone(),
        requests_per_unit: current.requests,
        unit: current.unit,
    };
    DescriptorStatus {
        code: code(verdict.enforced).into(),
        current_limit: (!matches!(share.limit.kind, Kind::Unlimited)).then_some(limit),
        limit_remaining: u32::try_from(verdict.remaining).unwrap_or(u32::MAX),
        duration_until_reset: verdict.reset.map(whole_seconds),
        ..DescriptorStatus::default()
    }
}

/// Rounded up: Envoy cuts off what is not whole.
fn whole_seconds(duration: Duration) -> ProtoDuration {
    let seconds = duration.as_secs().saturating_add(u64::from(duration.subsec_nanos() > 0));
    ProtoDuration { seconds: i64::try_from(seconds).unwrap_or(i64::MAX), nanos: 0 }
}

fn count(
    descriptors: &Descriptors,
    request: &RateLimitRequest,
    share: &Share<'_>,
    verdict: &Verdict,
) {
    if let LimitRef::Rule(rule) = &share.limit {
        rule.rule.outcomes.count(verdict.outcome);
        return;
    }
    let Hits::Charged(hits) = share.hits else { return };
    if !descriptors.config.metrics || matches!(share.limit.kind, Kind::Unlimited) {
        return;
    }
    if let Some(counts) = share.counts(descriptors, request) {
        counts.count(Became {
            hits,
            over: verdict.over,
            shadow: share.limit.shadow_mode,
            limit: share.limit.current.requests.into(),
            remaining: verdict.remaining,
        });
    }
}
