//! Decides requests by the rules that they are charged under, and counts each rule's outcome.

use std::borrow::Cow;
use std::ops::Range;
use std::time::Duration;

use earrrl::internal::{Brief, table::KeyHash};
use earrrl::{
    Charge, Cost, Decision, EngineError, Limit, MAX_CHARGES, Mode, Nanos, Outcome, Policy, Wait,
};
use earrrl_tower::headers::Available;
use smallvec::SmallVec;

use super::Service;
use super::answer::{AllCharged, Answer, Charged};
use super::error::AskError;
use super::key::{Key, bounded};
use super::limit::{PreparedLimit, places};
use super::names::Notice;
use super::rule::{ActiveRule, NamedRule};

/// A request under one rule, with the client's limit, the stored form of its key, and the cost.
#[derive(Clone, Debug)]
pub struct Ask<'a> {
    pub(super) rule: &'a NamedRule,
    /// The limit that applies to the client; `None` if the rule exempts the client, or counts nothing.
    pub(super) limit: Option<&'a PreparedLimit>,
    pub(super) key: Cow<'a, [u8]>,
    pub(super) cost: Cost,
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

    /// Prepares a request that is charged under `limit` to the client whose key is stored in this form.
    pub(super) fn under(
        rule: &'a NamedRule,
        limit: Option<&'a PreparedLimit>,
        key: Key,
        cost: Cost,
    ) -> Self {
        Self {
            rule,
            limit,
            key: key.into_vec().into(),
            cost,
            hash: None,
        }
    }

    /// Returns the charge of the request, as it is before and as the engine takes it; `None` if nothing is counted.
    #[inline]
    pub(super) fn charge(&self) -> Option<(Charged<'a>, Charge<'_>)> {
        let limit = self.limit?;
        let charge = Charge {
            rule: limit.id,
            key: &self.key,
            cost: self.cost,
        };
        Some((Charged::new(self.rule, limit), charge))
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
        if let (Some(limit), Some(memory)) = (ask.limit, self.engine.memory()) {
            let hash = memory.hash(&ask.key);
            memory.prefetch(limit.id, hash);
            ask.hash = Some(hash);
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
        let Some((charged, charge)) = ask.charge() else {
            return Ok(self.exempt(ask.rule));
        };
        let charged = SmallVec::from_slice(&[charged]);
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
        let Some((charged, charge)) = ask.charge() else {
            self.exempt(ask.rule);
            return Ok(None);
        };
        if let Some(memory) = self.engine.memory() {
            let hash = ask.hash.unwrap_or_else(|| memory.hash(charge.key));
            let brief = memory.check_hashed(charge.rule, hash, charge.cost)?;
            ask.rule.count(brief.outcome, &ask.key);
            let is_over = brief.outcome != Outcome::Allow;
            if (brief.remaining < charged.limit.named_below) | is_over {
                let outcome = Some(brief.outcome);
                self.note(&Charged { outcome, ..charged }, &charge, None);
            }
            return Ok(Some(brief));
        }
        // The future is boxed, so that it takes no space in `check` when the engine answers at
        // once.
        let charged = SmallVec::from_slice(&[charged]);
        let answer =
            Box::pin(self.charge(charged, &[charge], ask.hash, Mode::Check.into())).await?;
        Ok(answer.decision.as_ref().map(Brief::from))
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
        let (charged, charges) = charges_of(asks);
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
        self.tell(ask.rule, charge.key, Notice::Reset);
        Ok(())
    }

    /// Notes the name of a client that is over its limit, or close to it, with the figures of a request of
    /// cost 1. `decision` is the one with the figures of this charge; if there is none, or if it is on
    /// another cost, they are read from memory. Over Redis a client is noted only with the figures of a
    /// decision.
    #[cold]
    #[inline(never)]
    pub(super) fn note(
        &self,
        charged: &Charged<'_>,
        charge: &Charge<'_>,
        decision: Option<&Decision>,
    ) {
        let Charged { rule, limit, .. } = charged;
        let hash = self.engine.hash(charge.key);
        let is_usable = charge.cost == Cost::ONE || self.engine.waits();
        let alone = match decision.filter(|_| is_usable) {
            Some(decision) => Some(*decision),
            None => self.engine.memory().and_then(|memory| {
                let peek = memory.decide_hashed(charge.rule, hash, Cost::ONE, Mode::Peek, None);
                peek.ok()
            }),
        };
        if let Some(mut alone) = alone {
            alone.over = places(charged.is_over());
            show_wait(limit, &mut alone);
            rule.directory
                .note(hash, limit.rule.limit(), &alone, charge.key);
        }
    }

    /// Decides a request by these charges, counts it, and finds out the available quota if `manner` asks
    /// for it.
    #[inline]
    pub(super) async fn charge<'a>(
        &self,
        charged: AllCharged<'a>,
        charges: &[Charge<'_>],
        hash: Option<KeyHash>,
        Manner { mode, available }: Manner,
    ) -> Result<Answer<'a>, EngineError> {
        if charges.is_empty() {
            return Ok(Answer::default());
        }
        let decision = self.engine.decide(charges, hash, mode).await?;
        let mut answer = Answer::new(charged, decision);
        self.count(&answer, charges, mode);
        if available {
            self.add_available(&mut answer, charges).await;
        }
        Ok(answer)
    }

    /// Decides a request by any number of charges, all or nothing, without an error: what the engine cannot
    /// judge is in [`Answer::unjudged`], and the other charges are judged all the same. The caller counts
    /// the answer.
    pub(super) async fn judge<'a>(
        &self,
        charged: AllCharged<'a>,
        charges: &[Charge<'_>],
        mode: Mode,
    ) -> Answer<'a> {
        let mut answer = Answer {
            charged,
            ..Answer::default()
        };
        if charges.is_empty() {
            return answer;
        }
        match self.engine.decide(charges, None, mode).await {
            Ok(decision) => answer.add(decision, 0..charges.len()),
            Err(error) if charges.len() == 1 => answer.fail(0, error),
            // The future is boxed, so that it takes no space in other requests.
            Err(_) => Box::pin(self.judge_apart(&mut answer, charges, mode)).await,
        }
        answer
    }

    /// Judges charges that the engine did not judge together: as many at once as one decision takes, and those
    /// of a failed decision one by one, since the error of one charge fails all. In [`Mode::Check`] a denial
    /// takes the charges before it back.
    async fn judge_apart(&self, answer: &mut Answer<'_>, charges: &[Charge<'_>], mode: Mode) {
        let at_once = if charges.len() > MAX_CHARGES {
            MAX_CHARGES
        } else {
            1
        };
        let firsts = (0..charges.len()).step_by(at_once);
        let parts = firsts.map(|first| first..charges.len().min(first + at_once));
        let mut waiting: Vec<Range<usize>> = parts.rev().collect();
        while let Some(part) = waiting.pop() {
            match self.engine.decide(&charges[part.clone()], None, mode).await {
                Ok(decision) => answer.add(decision, part),
                Err(_) if part.len() > 1 => {
                    waiting.extend(part.rev().map(|place| place..place + 1));
                }
                Err(error) => answer.fail(part.start, error),
            }
            if mode == Mode::Check && answer.is_denied() {
                break;
            }
        }
        if mode == Mode::Check && answer.is_denied() {
            self.take_back(answer, charges).await;
        }
    }

    /// Refunds what a check has stored for a request that is denied all the same. A charge over its own limit was
    /// not stored.
    pub(super) async fn take_back(&self, answer: &mut Answer<'_>, charges: &[Charge<'_>]) {
        for (one, charge) in answer.charged.iter_mut().zip(charges) {
            if let Some(at) = one.stored_at.take().filter(|_| !one.is_over()) {
                // An error of the engine is ignored, since the request is denied in any case.
                let _ = self.engine.refund(charge, Some(at)).await;
            }
        }
    }

    /// Counts the outcome of each charge in the metrics, and notes clients over or close to a limit. A denied
    /// request is not charged under the rules that allow it, so it is counted under the others alone.
    #[inline]
    pub(super) fn count(&self, answer: &Answer<'_>, charges: &[Charge<'_>], mode: Mode) {
        if mode == Mode::Peek {
            return;
        }
        let all = mode == Mode::Charge || !answer.is_denied();
        for (place, (one, charge)) in answer.charged.iter().zip(charges).enumerate() {
            let Some(outcome) = one.outcome.filter(|_| all || one.is_over()) else {
                continue;
            };
            one.rule.count(outcome, charge.key);
            if is_named(answer, place, one) || is_level_of_named(answer, one) {
                self.note(one, charge, figures_of(answer, place));
            }
        }
    }

    /// Finds out the quota available to the client under each charge, from the decision or by a peek. Where
    /// a peek fails there is none: the request is charged already, and its answer is valid without it.
    #[inline]
    pub(super) async fn add_available(&self, answer: &mut Answer<'_>, charges: &[Charge<'_>]) {
        let Answer {
            decision, charged, ..
        } = answer;
        if let Some(decision) = decision
            && let Some(one) = charged.get_mut(decision.rule)
        {
            one.available = Available::from_decision(&one.limit.rule, decision, decision.rule);
            one.reset_after = decision.reset_after;
        }
        if charged.iter().any(|one| one.available.is_none()) {
            // The future is boxed, so that it takes no space in requests that need no peek.
            Box::pin(self.peek_available(charged, charges)).await;
        }
    }

    async fn peek_available(&self, charged: &mut [Charged<'_>], charges: &[Charge<'_>]) {
        for (one, charge) in charged.iter_mut().zip(charges) {
            // A denied charge is asked for again, so that the peek has its wait.
            let cost = if one.is_over() {
                charge.cost
            } else {
                Cost::ONE
            };
            let peek = [Charge { cost, ..*charge }];
            if one.available.is_none()
                && let Ok(peek) = self.engine.decide(&peek, None, Mode::Peek).await
            {
                one.set_available(&peek);
            }
        }
    }

    fn exempt<'a>(&self, rule: &NamedRule) -> Answer<'a> {
        rule.outcomes.count(Outcome::Allow);
        Answer::default()
    }
}

/// Returns the decision if its figures are those of the charge at `place`.
#[inline]
fn figures_of<'d>(answer: &'d Answer<'_>, place: usize) -> Option<&'d Decision> {
    let decision = answer.decision.as_ref();
    decision.filter(|decision| decision.rule == place)
}

/// Returns true if the client of the charge at `place` is over its limit, or known to be close to it.
#[inline]
fn is_named(answer: &Answer<'_>, place: usize, one: &Charged<'_>) -> bool {
    let is_close = |own: &Decision| own.remaining < one.limit.named_below;
    figures_of(answer, place).is_some_and(is_close) | one.is_over()
}

/// Returns true if the client at another level of the rule is named for this request. Then those of all levels are,
/// so that lists show whose clients are whose.
#[inline]
fn is_level_of_named(answer: &Answer<'_>, one: &Charged<'_>) -> bool {
    let is_level = |(place, other): (usize, &Charged<'_>)| {
        other.rule.group == one.rule.group && is_named(answer, place, other)
    };
    one.rule.group.is_some() && answer.charged.iter().enumerate().any(is_level)
}

/// Returns the charges of requests under several rules, without those of rules that exempt the client.
pub(super) fn charges_of<'s, 'a>(
    asks: &'s [Ask<'a>],
) -> (AllCharged<'a>, SmallVec<[Charge<'s>; 4]>) {
    asks.iter().filter_map(Ask::charge).unzip()
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
