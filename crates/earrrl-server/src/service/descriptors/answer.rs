//! The response to a request of Envoy: a status for each descriptor, and one verdict for the
//! request.

use std::time::Duration;

use earrrl::{Charge, Mode};
use smallvec::SmallVec;

use super::asked::{AskedLimit, Hits, LimitRef};
use super::counts::Became;
use super::prepared::{Descriptors, LimitKind};
use super::verdict::{LimitVerdict, Verdicts};
use super::{headers, metadata};
use crate::protobuf::Duration as ProtoDuration;
use crate::protobuf::ratelimit::{
    Code, DescriptorStatus, RateLimit, RateLimitDescriptor, RateLimitRequest, RateLimitResponse,
};

/// Returns the response to a request that could not be decided before its deadline.
pub(in crate::service) fn undecided(request: &RateLimitRequest, passes: bool) -> RateLimitResponse {
    // A refund is never denied.
    let denies = |descriptor: &RateLimitDescriptor| !passes && !descriptor.is_negative_hits;
    let status = |descriptor| DescriptorStatus {
        code: code(denies(descriptor)).into(),
        ..DescriptorStatus::default()
    };
    RateLimitResponse {
        overall_code: code(request.descriptors.iter().any(denies)).into(),
        statuses: request.descriptors.iter().map(status).collect(),
        ..RateLimitResponse::default()
    }
}

/// Returns the response to a request that has been decided.
pub(super) fn response(
    descriptors: &Descriptors,
    request: &RateLimitRequest,
    limits: &[AskedLimit<'_>],
    verdicts: &Verdicts,
) -> RateLimitResponse {
    let mut response = RateLimitResponse {
        overall_code: code(verdicts.over() && !descriptors.config.shadow_mode).into(),
        ..RateLimitResponse::default()
    };
    let nothing = DescriptorStatus { code: Code::Ok.into(), ..DescriptorStatus::default() };
    response.statuses = vec![nothing; request.descriptors.len()];
    let mut shown = SmallVec::<[bool; 8]>::from_elem(false, request.descriptors.len());
    for (asked, verdict) in limits.iter().zip(&verdicts.each) {
        count(descriptors, request, asked, verdict, verdicts.over());
        let status = &mut response.statuses[asked.descriptor];
        // A status shows one limit, so if several limits apply to a descriptor, the tightest is
        // shown.
        let tighter = !std::mem::replace(&mut shown[asked.descriptor], true)
            || verdict.enforced
            || (status.code != i32::from(Code::OverLimit)
                && verdict.remaining < u64::from(status.limit_remaining));
        if tighter {
            *status = status_of(asked, verdict);
        }
    }
    headers::add(descriptors, limits, verdicts, &mut response);
    if descriptors.config.dynamic_metadata {
        response.dynamic_metadata = Some(metadata::of(request, limits, verdicts));
    }
    response
}

fn code(over: bool) -> Code {
    if over { Code::OverLimit } else { Code::Ok }
}

fn status_of(asked: &AskedLimit<'_>, verdict: &LimitVerdict) -> DescriptorStatus {
    let current = &asked.limit.current;
    let limit = RateLimit {
        name: current.name.clone(),
        requests_per_unit: current.requests,
        unit: current.unit,
    };
    DescriptorStatus {
        code: code(verdict.enforced).into(),
        current_limit: (!matches!(asked.limit.kind, LimitKind::Unlimited)).then_some(limit),
        limit_remaining: u32::try_from(verdict.remaining).unwrap_or(u32::MAX),
        duration_until_reset: verdict.reset.map(whole_seconds),
    }
}

/// Converts a duration to whole seconds, rounded up, since Envoy cuts off fractions of a second.
fn whole_seconds(duration: Duration) -> ProtoDuration {
    let seconds = duration.as_secs().saturating_add(u64::from(duration.subsec_nanos() > 0));
    ProtoDuration { seconds: i64::try_from(seconds).unwrap_or(i64::MAX), nanos: 0 }
}

fn count(
    descriptors: &Descriptors,
    request: &RateLimitRequest,
    asked: &AskedLimit<'_>,
    verdict: &LimitVerdict,
    is_denied: bool,
) {
    if let LimitRef::Rule(rule) = &asked.limit {
        // A request that one limit denies is not charged under the rules that allow it.
        if verdict.over || !is_denied || descriptors.config.drain_denied {
            rule.rule.outcomes.count(verdict.outcome);
            if let (Some(id), Hits::Charged(hits @ 1..)) = (asked.counted(), asked.hits) {
                let charge = Charge { rule: id, key: &asked.key, cost: asked.cost(hits) };
                rule.rule.try_limit(&charge, Mode::Check, verdict.over);
            }
        }
        return;
    }
    let Hits::Charged(hits) = asked.hits else { return };
    if !descriptors.config.metrics || matches!(asked.limit.kind, LimitKind::Unlimited) {
        return;
    }
    if let Some(counts) = asked.counts(descriptors, request) {
        counts.count(Became {
            hits,
            over: verdict.over,
            shadow: asked.limit.shadow_mode,
            limit: asked.limit.current.requests.into(),
            remaining: verdict.remaining,
        });
    }
}
