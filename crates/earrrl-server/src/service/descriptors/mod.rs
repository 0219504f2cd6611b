//! Envoy's rate limit service: decides the descriptors of a request.
//!
//! ```text
//! descriptors -> asked.rs: limits -> charges -> Service::judge -> verdict.rs -> response.rs
//! ```
//!
//! Descriptors are decided, counted and named as all requests are. Only Envoy's own ideas are decided here: limits
//! that allow nothing, quota mode, refunds, and the numbers that requests bring.
//!
//! A number that a request brings is no part of a counter's key. Such a request is counted where the
//! same descriptor is counted without a number, so a client whose number changes goes on with its count,
//! and nothing is stored for a number. A descriptor without a configured limit in the request's unit
//! is counted under a limit that all such descriptors share, one for each unit.
//!
//! The engine stores the request whatever its limit says, and reports the count. The number is
//! compared with that count, and a request that exceeds it is refunded. Another request may meanwhile
//! see a count that is too high, but never one that is too low.

use std::pin::pin;
use std::time::{Duration, Instant};

use asked::{Asked, AskedLimit, Source, whole_seconds};
use earrrl::{Cost, Decision, EngineError, HoldId, HoldTerms, Mode, Outcome, Wait};
use earrrl_tower::headers::Available;
use verdict::{Charges, DecidedApart, Met, Verdict, met, settle};

use super::Service;
use super::descriptor_limits::Descriptors;
use super::error::AskError;
use super::matching::in_time;
use super::reserve::Reserved;
use super::rules::ActiveRules;
use crate::metrics::PassReason;
use crate::protobuf::ratelimit::{RateLimit, RateLimitRequest, RateLimitResponse, Unit};

mod asked;
mod response;
mod verdict;

impl Service {
    /// Decides a request of Envoy. A request that cannot be decided before `deadline` is denied if a
    /// rule for one of its descriptors denies on errors, or if the engine's policy denies.
    ///
    /// # Errors
    /// Returns an [`AskError`] if there are no descriptors, the request is invalid, or the engine
    /// fails.
    pub async fn should_rate_limit(
        &self,
        request: &RateLimitRequest,
        mode: Mode,
        deadline: Option<Instant>,
    ) -> Result<RateLimitResponse, AskError> {
        let descriptors = self.descriptors.load();
        let descriptors = descriptors.as_ref().ok_or(AskError::NotConfigured)?;
        let rules = self.rules.load();
        // The future is pinned on the stack, since moving it would copy many bytes.
        let answer = pin!(self.answer(descriptors, &rules, request, mode));
        let answer = match deadline.filter(|_| self.engine.waits()) {
            None => answer.await,
            Some(deadline) => in_time(answer, deadline)
                .await
                .unwrap_or_else(|_| Ok(self.late_response(descriptors, &rules, request))),
        };
        let is_limited = |answer: &RateLimitResponse| {
            let mut statuses = answer.statuses.iter();
            statuses.any(|status| status.current_limit.is_some())
        };
        if answer.as_ref().is_ok_and(|answer| !is_limited(answer))
            && !descriptors.tree.has_domain(&request.domain)
        {
            self.hints.unknown_domain(&request.domain);
        }
        answer
    }

    /// Returns the response to a request that could not be decided before its deadline.
    fn late_response(
        &self,
        descriptors: &Descriptors,
        rules: &ActiveRules,
        request: &RateLimitRequest,
    ) -> RateLimitResponse {
        let denies = |asked: &AskedLimit<'_>| matches!(asked.source, Source::Rule(rule) if rule.denies_on_error());
        let asked = self.asked(descriptors, rules, request, Mode::Peek);
        let passes = self.engine.passes_undecided()
            && !asked.is_ok_and(|asked| asked.limits.iter().any(denies));
        if passes {
            self.metrics.unjudged.count(PassReason::Late);
        }
        response::undecided(request, passes)
    }

    /// Decides a request and returns the response. An error for one descriptor fails the request
    /// only if no other descriptor denies it, and no rule denies it because it could not be
    /// judged.
    async fn answer(
        &self,
        descriptors: &Descriptors,
        rules: &ActiveRules,
        request: &RateLimitRequest,
        mode: Mode,
    ) -> Result<RateLimitResponse, AskError> {
        let Asked { limits, mut failed } = self.asked(descriptors, rules, request, mode)?;
        let now = self.now();
        let (mut met, Charges { charged, charges }) = met(&limits, now);
        failed = failed.or(self.decide_apart(&mut met, true, mode).await);
        // A denied check is counted, though nothing is stored for it.
        let counted = match mode {
            Mode::Check if descriptors.stores_denied(&limits, request) => Mode::Charge,
            mode => mode,
        };
        let is_forbidden = limits.iter().any(AskedLimit::is_forbidden);
        let mode = if counted == Mode::Check && is_forbidden {
            Mode::Peek
        } else {
            counted
        };
        let mut answer = self.judge(charged, &charges, mode).await;
        // Limits that the request brings come last, so that they count no request that others deny.
        let own_mode = if mode == Mode::Check && answer.is_denied() {
            Mode::Peek
        } else {
            mode
        };
        failed = failed.or(self.decide_apart(&mut met, false, own_mode).await);
        self.add_available(&mut answer, &charges).await;
        let over = settle(&mut met, &mut answer, now);
        if over && mode == Mode::Check {
            self.take_back(&mut answer, &charges).await;
            self.take_back_apart(&met).await;
        }
        failed = failed.or(answer.unjudged.take().map(|unjudged| unjudged.error));
        if let (Some(error), false) = (failed, over) {
            return Err(error);
        }
        self.count(&answer, &charges, counted);
        self.count_beside(&met, over, counted);
        descriptors.count(request, &met);
        Ok(response::response(descriptors, request, &met, over))
    }

    /// Reserves an estimate under the limits of descriptors. Returns true if the request is allowed,
    /// and the id of the reservation, if any limit counts the request.
    ///
    /// # Errors
    /// Returns an [`AskError`] if there are no descriptors, the request or the terms are invalid, or the engine
    /// fails.
    pub async fn reserve_descriptors(
        &self,
        request: &RateLimitRequest,
        terms: HoldTerms,
    ) -> Result<(bool, Option<HoldId>), AskError> {
        let descriptors = self.descriptors.load_full();
        let descriptors = descriptors.as_ref().ok_or(AskError::NotConfigured)?;
        let rules = self.rules.load_full();
        terms.check()?;
        if request.descriptors.iter().any(|one| one.limit.is_some()) {
            return Err(AskError::invalid(
                "descriptors: a reservation under a limit that it brings is not possible; expected none with `limit`",
            ));
        }
        let Asked { limits, failed } = self.asked(descriptors, &rules, request, Mode::Check)?;
        if let Some(error) = failed {
            return Err(error);
        }
        let is_forbidden = limits.iter().any(AskedLimit::is_forbidden);
        let now = self.now();
        let (mut met, together) = met(&limits, now);
        let Charges {
            charged,
            mut charges,
        } = together;
        if is_forbidden {
            charges.clear();
        }
        let Reserved { mut answer, id, .. } = self.hold(charged, &charges, terms, true).await?;
        let allowed = !is_forbidden && !answer.is_over();
        let over = settle(&mut met, &mut answer, now);
        self.count_beside(&met, over, Mode::Check);
        descriptors.count(request, &met);
        Ok((allowed, id))
    }

    /// Counts the outcomes of limits that are not part of the engine's decision.
    fn count_beside(&self, met: &[Met<'_, '_>], over: bool, mode: Mode) {
        if mode == Mode::Peek {
            return;
        }
        let all = mode == Mode::Charge || !over;
        for one in met {
            let Met {
                asked,
                apart,
                verdict,
                ..
            } = one;
            if asked.is_refund || !(all || verdict.is_over()) {
                continue;
            }
            // The engine's decision, and refusals by the server's own rules, are counted already.
            let is_beside = apart.is_some() || asked.ask.limit.is_none();
            if is_beside && !matches!(asked.source, Source::Rule(_)) {
                asked.ask.rule.count(verdict.outcome, &asked.ask.key);
            }
            let charge = asked.ask.charge().filter(|_| verdict.is_over());
            if let (Some(apart), Some((_, charge))) = (apart, charge) {
                self.note(&apart.charged, &charge, Some(&apart.decision));
            }
        }
    }
}

impl Descriptors {
    /// Returns true if a check stores all charges whatever the verdict: if a descriptor sets its own number of
    /// hits, since these report work that is already done, or if the configuration charges denied
    /// requests as envoyproxy/ratelimit does.
    fn stores_denied(&self, limits: &[AskedLimit<'_>], request: &RateLimitRequest) -> bool {
        let bills = |asked: &AskedLimit<'_>| {
            let own = &request.descriptors[asked.descriptor].hits_addend;
            own.is_some_and(|hits| hits > 0)
        };
        self.config.drain_denied || limits.iter().any(bills)
    }
}

impl Service {
    /// Makes the refunds of a request if `refunds` is true, and otherwise counts it under the limits that it
    /// brings, one after the other. Nothing is stored if `mode` is [`Mode::Peek`]. An error does not prevent the
    /// other limits from being judged: the first is returned.
    async fn decide_apart(
        &self,
        met: &mut [Met<'_, '_>],
        refunds: bool,
        mode: Mode,
    ) -> Option<AskError> {
        let mut failed = None;
        for one in met {
            if one.asked.is_decided_together() || one.asked.is_refund != refunds {
                continue;
            }
            match self.decide_one(one.asked, mode).await {
                Ok(Some(apart)) => {
                    one.verdict = Verdict::of(one.asked, &apart.charged, self.now());
                    one.apart = Some(apart);
                }
                Ok(None) => {}
                Err(error) => failed = failed.or(Some(error.into())),
            }
        }
        failed
    }

    async fn decide_one<'a>(
        &self,
        asked: &AskedLimit<'a>,
        mode: Mode,
    ) -> Result<Option<DecidedApart<'a>>, EngineError> {
        let Some((mut charged, mut charge)) = asked.ask.charge() else {
            return Ok(None);
        };
        let changes = mode != Mode::Peek && asked.hits > 0;
        let is_stored = changes && !asked.is_refund;
        if asked.is_refund {
            if changes {
                self.engine.refund(&charge, None).await?;
            }
            charge.cost = Cost::ZERO;
        }
        let mode = if is_stored { Mode::Charge } else { Mode::Peek };
        let mut decision = self.engine.decide(&[charge], None, mode).await?;
        if let Source::Request(limit) = &asked.source {
            let missing = if is_stored { Cost::ZERO } else { charge.cost };
            compare(limit, &mut decision, missing.as_f64());
        }
        // A refund is never over.
        let is_over = decision.is_over(0) && !asked.is_refund;
        charged.outcome = Some(if is_over {
            Outcome::Deny
        } else {
            Outcome::Allow
        });
        charged.stored_at = is_stored.then_some(decision.at);
        charged.reset_after = decision.reset_after;
        charged.available = Some(Available {
            units: decision.remaining,
            seconds: Some(whole_seconds(decision.reset_after)),
        });
        Ok(Some(DecidedApart { charged, decision }))
    }

    /// Refunds what was stored under single limits of a request that is denied all the same.
    async fn take_back_apart(&self, met: &[Met<'_, '_>]) {
        for one in met {
            let stored_at = one.apart.and_then(|apart| apart.charged.stored_at);
            if let (Some(at), Some((_, charge))) = (stored_at, one.asked.ask.charge()) {
                // An error of the engine is ignored, since the request is denied in any case.
                let _ = self.engine.refund(&charge, Some(at)).await;
            }
        }
    }
}

/// Turns the decision of a counter into that under a number which the request brings. `missing` is the cost of the
/// request as far as the count does not include it.
fn compare(limit: &RateLimit, decision: &mut Decision, missing: f64) {
    let unit = Unit::from_number(limit.unit);
    let window = unit.map_or(Duration::from_secs(1), Unit::duration);
    let number = f64::from(limit.requests_per_unit);
    // Counts are whole numbers far below 2^53, so rounding the product makes it exact.
    let counted = (decision.rate.unwrap_or(0.0) * window.as_secs_f64()).round();
    let is_over = counted + missing > number;
    decision.allowed = !is_over;
    decision.over = is_over.then_some(0).into_iter().collect();
    decision.limit = number / window.as_secs_f64();
    decision.remaining = if is_over {
        0
    } else {
        (number - counted).max(0.0) as u64
    };
    decision.retry_after = if is_over {
        Wait::For(decision.reset_after)
    } else {
        Wait::NONE
    };
}
