//! Envoy's rate limit service: decides the descriptors of a request.
//!
//! ```text
//! descriptors -> asked.rs: limits -> charges -> Service::judge -> verdict.rs -> response.rs
//! ```
//!
//! Descriptors are decided, counted and named as all requests are. Only Envoy's own ideas are decided here: limits
//! that allow nothing, quota mode, refunds, and the numbers that requests bring.

mod apart;
mod asked;
mod response;
mod verdict;

use std::pin::pin;
use std::time::Instant;

use earrrl::{HoldId, HoldTerms, Mode};

use self::apart::Apart;
use self::asked::{Asked, AskedLimit, Charges, Source};
use self::verdict::Verdicts;
use super::Service;
use super::descriptor_limits::Descriptors;
use super::error::AskError;
use super::matching::in_time;
use super::reserve::Reserved;
use super::rules::ActiveRules;
use crate::metrics::PassReason;
use crate::protobuf::ratelimit::{RateLimitRequest, RateLimitResponse};

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
        let mut apart: Apart<'_> = limits.iter().map(|_| None).collect();
        let refunded = self.decide_apart(&limits, true, mode, &mut apart);
        failed = failed.or(refunded.await);
        let Charges {
            charged,
            charges,
            places,
        } = Charges::of(&limits);
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
        let own = self.decide_apart(&limits, false, own_mode, &mut apart);
        failed = failed.or(own.await);
        self.add_available(&mut answer, &charges).await;
        let verdicts = Verdicts::new(&limits, &places, &apart, &mut answer, self.now());
        if verdicts.over && mode == Mode::Check {
            self.take_back(&mut answer, &charges).await;
            self.take_back_apart(&limits, &apart).await;
        }
        failed = failed.or(answer.unjudged.take().map(|unjudged| unjudged.error));
        if let (Some(error), false) = (failed, verdicts.over) {
            return Err(error);
        }
        self.count(&answer, &charges, counted);
        self.count_beside(&limits, &apart, &verdicts, counted);
        descriptors.count(request, &limits, &verdicts);
        Ok(response::response(descriptors, request, &limits, &verdicts))
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
        let mut charges = Charges::of(&limits);
        if is_forbidden {
            charges.charges.clear();
        }
        let charged = std::mem::take(&mut charges.charged);
        let Reserved { mut answer, id, .. } =
            self.hold(charged, &charges.charges, terms, true).await?;
        let allowed = !is_forbidden && !answer.is_over();
        let apart: Apart<'_> = limits.iter().map(|_| None).collect();
        let verdicts = Verdicts::new(&limits, &charges.places, &apart, &mut answer, self.now());
        self.count_beside(&limits, &apart, &verdicts, Mode::Check);
        descriptors.count(request, &limits, &verdicts);
        Ok((allowed, id))
    }

    /// Counts the outcomes of limits that are not part of the engine's decision.
    fn count_beside(
        &self,
        limits: &[AskedLimit<'_>],
        apart: &Apart<'_>,
        verdicts: &Verdicts,
        mode: Mode,
    ) {
        if mode == Mode::Peek {
            return;
        }
        let all = mode == Mode::Charge || !verdicts.over;
        for ((asked, apart), verdict) in limits.iter().zip(apart).zip(&verdicts.each) {
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
