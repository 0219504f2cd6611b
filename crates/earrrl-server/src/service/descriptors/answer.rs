//! The response to a request of Envoy: a status for each descriptor, and one verdict for the
//! request.

use earrrl::{Charge, Decision, Mode};
use smallvec::SmallVec;

use super::asked::{AskedLimit, Hits, LimitRef, RuleLimit};
use super::counts::Became;
use super::prepared::{Descriptors, LimitKind};
use super::verdict::{LimitVerdict, Verdicts, whole_seconds};
use super::{headers, metadata};
use crate::engine::Engine;
use crate::protobuf::Duration as ProtoDuration;
use crate::protobuf::ratelimit::{
    Code, DescriptorStatus, RateLimit, RateLimitDescriptor, RateLimitRequest, RateLimitResponse,
};
use crate::service::limit::places;

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
    let nothing = DescriptorStatus {
        code: Code::Ok.into(),
        ..DescriptorStatus::default()
    };
    response.statuses = vec![nothing; request.descriptors.len()];
    let mut shown = SmallVec::<[bool; 8]>::from_elem(false, request.descriptors.len());
    for (asked, verdict) in limits.iter().zip(&verdicts.each) {
        let status = &mut response.statuses[asked.descriptor];
        // Envoy can make headers of statuses, so limits that clients must not learn of have no figures.
        if descriptors.config.shadow_mode || !asked.limit.is_shown() {
            if verdict.enforced {
                status.code = Code::OverLimit.into();
            }
            continue;
        }
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
        // Envoy cuts off fractions of a second.
        duration_until_reset: verdict.reset.map(|reset| ProtoDuration {
            seconds: i64::try_from(whole_seconds(reset)).unwrap_or(i64::MAX),
            nanos: 0,
        }),
    }
}

/// Counts the outcomes of all limits in the metrics, and notes clients of rules that are over or close
/// to a limit.
pub(super) fn count(
    descriptors: &Descriptors,
    engine: &Engine,
    request: &RateLimitRequest,
    limits: &[AskedLimit<'_>],
    verdicts: &Verdicts,
) {
    for ((asked, verdict), figures) in limits.iter().zip(&verdicts.each).zip(&verdicts.figures) {
        // A request that one limit denies is not charged under those that allow it.
        let is_charged = verdict.over || !verdicts.over() || descriptors.config.drain_denied;
        match &asked.limit {
            LimitRef::Rule(rule) if is_charged => {
                count_rule(engine, rule, asked, verdict, figures.as_ref());
            }
            LimitRef::Rule(_) => {}
            _ => {
                count_descriptor(descriptors, request, asked, verdict);
                if let Some(figures) = figures.filter(|_| is_charged) {
                    name_client(descriptors, engine, request, asked, (verdict.over, figures));
                }
            }
        }
    }
}

fn count_rule(
    engine: &Engine,
    limit: &RuleLimit<'_>,
    asked: &AskedLimit<'_>,
    verdict: &LimitVerdict,
    figures: Option<&Decision>,
) {
    let RuleLimit { rule, prepared, .. } = limit;
    rule.outcomes.count(verdict.outcome);
    let (Some(id), Hits::Charged(hits @ 1..)) = (asked.counted(), asked.hits) else {
        return;
    };
    let charge = Charge {
        rule: id,
        key: &asked.key,
        cost: asked.cost(hits),
    };
    rule.try_limit(&charge, Mode::Check, verdict.over);
    let Some(mut figures) = figures.copied() else {
        return;
    };
    if verdict.over || figures.remaining < prepared.named_below {
        figures.over = places(verdict.over);
        rule.directory.note(
            engine.hash(charge.key),
            prepared.rule.limit(),
            &figures,
            charge.key,
        );
    }
}

/// Notes a client that is over or close to a limit in Envoy's format.
fn name_client(
    descriptors: &Descriptors,
    engine: &Engine,
    request: &RateLimitRequest,
    asked: &AskedLimit<'_>,
    (is_over, mut figures): (bool, Decision),
) {
    let LimitKind::Counted(_, rule) = &asked.limit.kind else {
        return;
    };
    let is_charge = matches!(asked.hits, Hits::Charged(1..));
    if is_charge && (is_over || figures.remaining < asked.limit.named_below) {
        let name = asked.client_name(request);
        figures.over = places(is_over);
        descriptors
            .directory
            .note(engine.hash(&name), rule.limit(), &figures, &name);
    }
}

fn count_descriptor(
    descriptors: &Descriptors,
    request: &RateLimitRequest,
    asked: &AskedLimit<'_>,
    verdict: &LimitVerdict,
) {
    let Hits::Charged(hits) = asked.hits else {
        return;
    };
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
