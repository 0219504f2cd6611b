//! Decides requests by the rules that they are charged under, and counts each rule's outcome.

use std::borrow::Cow;
use std::time::Duration;

use earrrl::table::KeyHash;
use earrrl::{
    Action, Brief, Charge, Cost, Decision, EngineError, Limit, MAX_CHARGES, Mode, Nanos, Outcome,
    Policy, Wait,
};
use earrrl_tower::headers::{Available, peek_cost};
use smallvec::SmallVec;

use super::Service;
use super::answer::{Answer, decided_quota};
use super::error::AskError;
use super::key::bounded;
use super::limit::{PreparedLimit, places};
use super::rule::ActiveRule;

/// A request under one rule, with the client's limit, the stored form of its key, and the cost.
#[derive(Clone, Debug)]
pub struct Ask<'a> {
    pub(super) rule: &'a ActiveRule,
    /// The limit that applies to the client; `None` if the rule exempts the client.
    limit: Option<&'a PreparedLimit>,
    key: Cow<'a, [u8]>,
    cost: Cost,
    /// The hash of the key; `None` unless the client's state was prefetched.
    hash: Option<KeyHash>,
}

impl<'a> Ask<'a> {
    /// Prepares a request under `rule` of the client with this key. If `cost` is `None`, the
    /// request costs what the rule sets.
    #[inline]
    pub fn new(rule: &'a ActiveRule, key: &'a [u8], cost: Option<Cost>) -> Self {
        Self {
            rule,
            limit: rule.limit_for_key(key),
            key: bounded(key),
            cost: cost.unwrap_or_else(|| rule.plain_cost()),
            hash: None,
        }
    }

    /// Returns the cost of the request.
    pub(super) fn cost(&self) -> Cost {
        self.cost
    }

    /// Returns the client's limit and the charge under it; `None` if the rule exempts the client.
    #[inline]
    pub(super) fn charge(&self) -> Option<(&'a PreparedLimit, Charge<'_>)> {
        let limit = self.limit?;
        Some((
            limit,
            Charge {
                rule: limit.id,
                key: &self.key,
                cost: self.cost,
            },
        ))
    }
}

/// The way in which a request is decided.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Manner {
    /// The engine's mode: whether the request is only judged, or also charged.
    pub mode: Mode,
    /// True if the answer needs the remaining quota and the waiting time for `RateLimit` headers.
    /// A request under several rules then needs additional peeks at the clients' state.
    pub available: bool,
}

impl From<Mode> for Manner {
    fn from(mode: Mode) -> Self {
        Self {
            mode,
            available: false,
        }
    }
}

impl Service {
    /// Starts loading a client's state into the CPU's cache, before the request is decided.
    #[inline]
    pub fn prefetch(&self, ask: &mut Ask<'_>) {
        if let Some(limit) = ask.limit {
            ask.hash = self.engine.prefetch(limit.id, &ask.key);
        }
    }

    /// Decides a request under one rule, and charges it if `manner` asks for that.
    ///
    /// # Errors
    /// Returns an [`AskError`] if the engine fails; the request is not charged then.
    #[inline]
    pub async fn ask<'a>(
        &self,
        ask: &Ask<'a>,
        manner: impl Into<Manner>,
    ) -> Result<Answer<'a>, AskError> {
        let Some((limit, charge)) = ask.charge() else {
            return Ok(self.exempt(ask.rule));
        };
        let charged = SmallVec::from_slice(&[(ask.rule, limit)]);
        Ok(self
            .charge(charged, &[charge], ask.hash, manner.into())
            .await?)
    }

    /// Checks a request against one rule and returns a short decision; `None` if the rule exempts
    /// the client.
    ///
    /// # Errors
    /// Returns an [`AskError`] if the engine fails; the request is not charged then.
    #[inline]
    pub async fn check(&self, ask: &Ask<'_>) -> Result<Option<Brief>, AskError> {
        let Some((limit, charge)) = ask.charge() else {
            self.exempt(ask.rule);
            return Ok(None);
        };
        if let Some(brief) = self.engine.check_at_once(&charge, ask.hash) {
            let brief = brief?;
            ask.rule.count(brief.outcome, &ask.key);
            let is_over = brief.outcome != Outcome::Allow;
            if (brief.remaining < limit.named_below) | is_over {
                self.note_brief(ask.rule, limit, &charge, is_over);
            }
            return Ok(Some(brief));
        }
        // The future is boxed, so that it takes no space in `check` when the engine answers at
        // once.
        let charged = [(ask.rule, limit)];
        let charges = [charge];
        let decided = Box::pin(self.decide(&charged, &charges, ask.hash, Mode::Check)).await?;
        Ok(Some(Brief::from(&decided)))
    }

    /// Decides a request, and counts the outcome of each rule in the metrics.
    #[inline]
    async fn decide(
        &self,
        charged: &[(&ActiveRule, &PreparedLimit)],
        charges: &[Charge<'_>],
        hash: Option<KeyHash>,
        mode: Mode,
    ) -> Result<Decision, EngineError> {
        let decision = match (charges, hash) {
            ([charge], Some(hash)) => self.engine.decide_hashed(charge, hash, mode).await?,
            _ => self.engine.decide(charges, mode).await?,
        };
        if mode != Mode::Peek {
            self.count(charged, charges, &decision, mode);
        }
        Ok(decision)
    }

    /// Counts the outcome of each rule in the metrics, and notes clients over or close to a limit.
    #[inline]
    pub(super) fn count(
        &self,
        charged: &[(&ActiveRule, &PreparedLimit)],
        charges: &[Charge<'_>],
        decision: &Decision,
        mode: Mode,
    ) {
        for (place, (rule, limit)) in charged.iter().enumerate() {
            // A request that one rule denies is not charged under the rules that allow it.
            if decision.allowed || mode == Mode::Charge || decision.is_over(place) {
                rule.count(outcome(decision, place, limit), charges[place].key);
                let is_over = decision.is_over(place);
                let is_close = place == decision.rule && decision.remaining < limit.named_below;
                if is_close | is_over {
                    self.note(rule, limit, &charges[place], decision, place);
                }
            }
        }
    }

    /// Decides a request under several rules. It is charged under all of them, or, if one denies
    /// it, under none.
    ///
    /// # Errors
    /// Returns an [`AskError`] if the engine fails or there are more than `MAX_CHARGES` rules; the
    /// request is not charged then.
    pub async fn ask_all<'a>(
        &self,
        asks: &[Ask<'a>],
        manner: impl Into<Manner>,
    ) -> Result<Answer<'a>, AskError> {
        if asks.len() > MAX_CHARGES {
            return Err(EngineError::Charges(asks.len()).into());
        }
        let mut charged = SmallVec::with_capacity(asks.len());
        let mut charges: SmallVec<[Charge<'_>; 4]> = SmallVec::with_capacity(asks.len());
        for ask in asks {
            if let Some((limit, charge)) = ask.charge() {
                charged.push((ask.rule, limit));
                charges.push(charge);
            }
        }
        Ok(self.charge(charged, &charges, None, manner.into()).await?)
    }

    /// Refunds the charge of an earlier request.
    ///
    /// # Errors
    /// Returns an [`AskError`] if the engine fails.
    pub async fn refund(&self, ask: &Ask<'_>, charged_at: Option<Nanos>) -> Result<(), AskError> {
        let Some((_, charge)) = ask.charge() else {
            return Ok(());
        };
        Ok(self.engine.refund(&charge, charged_at).await?)
    }

    /// Deletes the state of one client under one rule.
    ///
    /// # Errors
    /// Returns an [`AskError`] if the engine fails.
    pub async fn reset(&self, ask: &Ask<'_>) -> Result<(), AskError> {
        let Some((_, charge)) = ask.charge() else {
            return Ok(());
        };
        self.engine.reset(charge.rule, charge.key).await?;
        let hash = self.engine.hash(charge.key);
        ask.rule.directory.forget(hash);
        self.reports.clear();
        if self.resets.receiver_count() > 0 {
            let reset = ask
                .rule
                .directory
                .reset_client(&ask.rule.name, hash, charge.key);
            // A receiver that has left needs no events.
            let _ = self.resets.send(reset);
        }
        Ok(())
    }

    /// Notes the name of a client that is over its limit, or close to it, with the figures of a request of
    /// cost 1. A decision under several rules has the figures of one of them, and one on another cost
    /// has others; these are read from memory. Over Redis a client is noted only with the figures of the
    /// decision, under the rule that they belong to.
    #[cold]
    #[inline(never)]
    fn note(
        &self,
        rule: &ActiveRule,
        limit: &PreparedLimit,
        charge: &Charge<'_>,
        decision: &Decision,
        place: usize,
    ) {
        let is_over = decision.is_over(place);
        let is_read = charge.cost != Cost::ONE && !self.engine.waits();
        if place != decision.rule || is_read {
            return self.note_brief(rule, limit, charge, is_over);
        }
        let mut alone = *decision;
        alone.over = places(is_over);
        show_wait(limit, &mut alone);
        rule.directory.note(
            self.engine.hash(charge.key),
            limit.rule.limit(),
            &alone,
            charge.key,
        );
    }

    #[cold]
    #[inline(never)]
    fn note_brief(
        &self,
        rule: &ActiveRule,
        limit: &PreparedLimit,
        charge: &Charge<'_>,
        is_over: bool,
    ) {
        if let Some(mut peek) = self.engine.peek_at_once(&Charge {
            cost: Cost::ONE,
            ..*charge
        }) {
            peek.over = places(is_over);
            show_wait(limit, &mut peek);
            let hash = self.engine.hash(charge.key);
            rule.directory
                .note(hash, limit.rule.limit(), &peek, charge.key);
        }
    }

    /// Decides a request by these charges, with the available quota if `manner` asks for it.
    #[inline]
    pub(super) async fn charge<'a>(
        &self,
        charged: SmallVec<[(&'a ActiveRule, &'a PreparedLimit); 2]>,
        charges: &[Charge<'_>],
        hash: Option<KeyHash>,
        Manner { mode, available }: Manner,
    ) -> Result<Answer<'a>, EngineError> {
        if charges.is_empty() {
            return Ok(Answer::default());
        }
        let decision = self.decide(&charged, charges, hash, mode).await?;
        let available = match available {
            true => self.left_of(&decision, &charged, charges).await,
            false => SmallVec::new(),
        };
        Ok(Answer {
            decision: Some(decision),
            charged,
            available,
            unjudged: None,
        })
    }

    /// Returns the quota available to the client under each rule, from the decision or from a
    /// peek. If the peek fails, the list is empty: the request is charged already, and its answer is
    /// valid without these figures.
    #[inline]
    pub(super) async fn left_of(
        &self,
        decision: &Decision,
        charged: &[(&ActiveRule, &PreparedLimit)],
        charges: &[Charge<'_>],
    ) -> SmallVec<[Available; 2]> {
        match decided_quota(decision, charged) {
            Some(available) => available,
            // The future is boxed, so that it takes no space in requests that need no peek.
            None => {
                let available = Box::pin(self.available(decision, charged, charges)).await;
                available.unwrap_or_default()
            }
        }
    }

    async fn available(
        &self,
        decision: &Decision,
        charged: &[(&ActiveRule, &PreparedLimit)],
        charges: &[Charge<'_>],
    ) -> Result<SmallVec<[Available; 2]>, EngineError> {
        let mut all = SmallVec::new();
        for (place, ((_, limit), charge)) in charged.iter().zip(charges).enumerate() {
            let decided = Available::from_decision(&limit.rule, decision, place);
            all.push(match decided {
                Some(available) => available,
                None => {
                    let cost = peek_cost(decision, place, charge.cost);
                    let peek = self
                        .engine
                        .decide(&[Charge { cost, ..*charge }], Mode::Peek)
                        .await?;
                    Available::from_peek(&limit.rule, &peek)
                }
            });
        }
        Ok(all)
    }

    fn exempt<'a>(&self, rule: &ActiveRule) -> Answer<'a> {
        rule.outcomes.count(Outcome::Allow);
        Answer::default()
    }
}

/// Sets `retry_after` of a client that is over the limit of a rule that only observes or quarantines. The
/// decision has none, since the request passes, but the rule's events must tell when the client is
/// within its limit again.
fn show_wait(limit: &PreparedLimit, decision: &mut Decision) {
    if decision.over.is_empty() || limit.rule.action().enforces() {
        return;
    }
    let within = within_after(limit.rule.limit(), decision);
    decision.retry_after = Wait::For(Duration::try_from_secs_f64(within).unwrap_or(Duration::MAX));
}

/// Returns the seconds until a client without further requests is within its limit again: for logs and
/// sub-windows until all of its requests have left the window, and for exponential about that time.
fn within_after(limit: &Limit, decision: &Decision) -> f64 {
    let reset_after = decision.reset_after.as_secs_f64();
    // A strict rule has counted the request, after its rate was measured.
    let is_strict = limit.policy() == Policy::Strict;
    let decays = |seconds: f64| {
        let counted = if is_strict { 1.0 / seconds } else { 0.0 };
        decision
            .rate
            .map(|rate| seconds * ((rate + counted) / decision.limit).ln())
    };
    let within = match limit {
        Limit::RecentAverage(average) => decays(average.period_secs()),
        Limit::Exponential(average) => decays(average.period().as_secs_f64()),
        Limit::TokenBucket(bucket) => {
            let unit = bucket.fill_secs() / bucket.capacity().as_f64();
            Some(reset_after - bucket.fill_secs() + unit)
        }
        _ => None,
    };
    within
        .unwrap_or(reset_after)
        .clamp(0.0, reset_after.max(0.0))
}

/// Returns the outcome that one of the charged rules alone has for the request.
fn outcome(decision: &Decision, place: usize, limit: &PreparedLimit) -> Outcome {
    if !decision.is_over(place) {
        return Outcome::Allow;
    }
    match limit.rule.action() {
        Action::Observe => Outcome::Observe,
        Action::Quarantine => Outcome::Quarantine,
        Action::ShadowBan => Outcome::ShadowBan,
        Action::Delay { .. } if decision.outcome == Outcome::Delay => Outcome::Delay,
        _ => Outcome::Deny,
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    /// Compares the computed wait of a rule that only observes with the `retry_after` of one that denies.
    #[test]
    fn a_client_is_within_its_limit_when_a_denied_one_would_be_allowed() {
        for text in [
            "gcra 1/1h burst=5",
            "token-bucket 5 refill=1/10m",
            "recent-average 5/h half-life=1h",
            "exponential 5/1h",
            "fixed-window 5/1h",
        ] {
            let rule: earrrl::Rule = text.parse().unwrap();
            let mut state = None;
            let now = Nanos::from_secs(1_800_000_000);
            let denied = loop {
                let (after, decision) = rule.limit().decide(state, now, Cost::ONE, Mode::Check);
                state = after;
                if !decision.allowed {
                    break decision;
                }
            };
            let wait = denied.retry_after.duration().unwrap().as_secs_f64();
            let within = within_after(rule.limit(), &denied);
            // Exponential averages by its own formula, not by a curve.
            let part = if text.starts_with("exponential") {
                10.0
            } else {
                100.0
            };
            assert!(
                (within - wait).abs() <= 1.0 + wait / part,
                "{text}: {within}, {wait}"
            );
        }
    }
}
