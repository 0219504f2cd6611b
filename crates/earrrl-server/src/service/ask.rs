//! Decides requests by the rules that they are charged under, and counts each rule's outcome.

use std::borrow::Cow;

use earrrl::table::KeyHash;
use earrrl::{
    Action, Brief, Charge, Cost, Decision, EngineError, MAX_CHARGES, Mode, Nanos, Outcome, Places,
    Rule, Wait,
};
use earrrl_tower::headers::{Available, peek_cost};
use smallvec::SmallVec;

use super::Service;
use super::attributes::Attributes;
use super::error::AskError;
use super::key::{Key, bounded, bounded_owned};
use super::limit::PreparedLimit;
use super::rules::{ActiveRule, ActiveRules};
use crate::config::rule::Missing;
use crate::metrics::PassReason;

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

    /// Returns the client's limit and the charge under it; `None` if the rule exempts the client.
    #[inline]
    pub(super) fn charge(&self) -> Option<(&'a PreparedLimit, Charge<'_>)> {
        let limit = self.limit?;
        Some((limit, Charge { rule: limit.id, key: &self.key, cost: self.cost }))
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
        Self { mode, available: false }
    }
}

/// The answer to a request under one rule or several rules.
#[derive(Clone, Debug, Default)]
pub struct Answer<'a> {
    /// The decision on the request; `None` if no rule applies or no rule could be judged.
    pub decision: Option<Decision>,
    /// The rules under which the request was charged, in the order of the charges.
    pub charged: SmallVec<[(&'a ActiveRule, &'a PreparedLimit); 2]>,
    /// The quota that the client has left under each of the `charged` rules; empty unless
    /// [`Manner::available`] is set.
    pub available: SmallVec<[Available; 2]>,
    /// A rule that could not be judged. If several rules could not be judged, this is one that
    /// denies on errors, if there is any.
    pub unjudged: Option<Unjudged<'a>>,
}

/// The effect of a rule on a request that it matches.
pub(super) enum Application<'a> {
    /// The request is charged to the client that is stored under this key, under this limit.
    Charge(&'a PreparedLimit, Key),
    /// The rule does not count the request.
    None,
    /// The rule denies the request, since it lacks an attribute of the rule's key.
    Denial(Box<Answer<'a>>),
}

/// A rule that could not be judged, and the error that prevented it.
#[derive(Clone, Debug)]
pub struct Unjudged<'a> {
    /// The rule.
    pub rule: &'a ActiveRule,
    /// The error that prevented the rule from being judged.
    pub error: AskError,
    /// True if the request is denied for it.
    pub denies: bool,
    /// The reason that is counted if the request passes.
    pub reason: PassReason,
}

impl<'a> Unjudged<'a> {
    /// Reports a rule that the engine failed to judge, whose `on_error` decides the request.
    fn failed(rule: &'a ActiveRule, error: EngineError) -> Self {
        let denies = rule.denies_on_error();
        Self { rule, error: error.into(), denies, reason: PassReason::RuleFailed }
    }
}

impl<'a> Answer<'a> {
    /// Returns the answer to a request that one rule denies without a charge.
    fn refusal(rule: &'a ActiveRule, limit: &'a PreparedLimit, refusal: Decision) -> Self {
        let charged = SmallVec::from_slice(&[(rule, limit)]);
        let available = decided_quota(&refusal, &charged).unwrap_or_default();
        Self { decision: Some(refusal), charged, available, unjudged: None }
    }

    /// Returns the rule and the limit that the figures in the decision belong to; `None` without a
    /// decision.
    pub fn rule(&self) -> Option<(&'a ActiveRule, &'a PreparedLimit)> {
        self.charged.get(self.decision.as_ref()?.rule).copied()
    }

    /// Returns true if a limit denies the request.
    pub fn is_over(&self) -> bool {
        self.decision.as_ref().is_some_and(|decision| !decision.allowed)
    }

    /// Returns true if the request is denied because a rule could not be judged.
    pub fn is_denied_by_error(&self) -> bool {
        self.unjudged.as_ref().is_some_and(|unjudged| unjudged.denies)
    }

    /// Returns this answer, or the error of a rule that could not be judged. It is for callers
    /// that handle errors themselves, unlike a proxy, which needs a verdict for its client.
    ///
    /// # Errors
    /// Returns the [`AskError`] of a rule that could not be judged, unless a limit denies the
    /// request.
    pub fn judged(mut self) -> Result<Self, AskError> {
        match self.unjudged.take() {
            Some(unjudged) if !self.is_over() => Err(unjudged.error),
            _ => Ok(self),
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
        Ok(self.charge(charged, &[charge], ask.hash, manner.into()).await?)
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
        let (charged, charges) = ([(ask.rule, limit)], [charge]);
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

    /// Decides a request under every rule that matches it. A rule that cannot be judged is
    /// reported in [`Answer::unjudged`], and the other rules are judged all the same, so this
    /// never fails.
    pub async fn ask_matching<'a>(
        &self,
        rules: &'a ActiveRules,
        request: &Attributes<'_>,
        manner: Manner,
    ) -> Answer<'a> {
        let mut charged = SmallVec::new();
        let mut keyed: SmallVec<[(Key, Cost); 4]> = SmallVec::new();
        let mut unmatched = true;
        for rule in rules.iter().filter(|rule| rule.matches(request)) {
            unmatched = false;
            match self.application(rule, request, manner) {
                Application::Charge(limit, key) => {
                    charged.push((rule, limit));
                    keyed.push((key, rule.cost(request)));
                }
                Application::None => {}
                Application::Denial(answer) => return *answer,
            }
        }
        if unmatched && manner.mode != Mode::Peek {
            self.metrics.unmatched.increment();
        }
        let limits = charged.iter().map(|(_, limit): &(_, &PreparedLimit)| limit.id);
        let each = limits.zip(&keyed).map(|(rule, (key, cost))| Charge { rule, key, cost: *cost });
        let charges: SmallVec<[Charge<'_>; 4]> = each.collect();
        match self.charge(charged, &charges, None, manner).await {
            Ok(answer) => answer,
            // The future is boxed, so that it takes no space when no rule fails.
            Err(_) => Box::pin(self.ask_each(rules, request, manner)).await,
        }
    }

    /// Finds out how a rule that matches a request applies to it, and counts the request if it
    /// lacks an attribute of the rule's key.
    pub(super) fn application<'a>(
        &self,
        rule: &'a ActiveRule,
        request: &Attributes<'_>,
        manner: Manner,
    ) -> Application<'a> {
        let Some(applied) = rule.applied_to(request) else { return Application::None };
        let (limit, key) = (applied.limit, rule.key(request));
        let stored = |key| applied.stored_key(bounded_owned(key));
        if rule.lacks(request, &key).is_none() {
            return Application::Charge(limit, stored(key));
        }
        let counted = manner.mode != Mode::Peek;
        if counted {
            rule.outcomes.missing.increment();
        }
        match (rule.missing, limit.rule.action()) {
            (Missing::Share, _) => return Application::Charge(limit, stored(key)),
            (Missing::Skip, _) => return Application::None,
            (Missing::Deny, Action::Observe) if counted => rule.count(Outcome::Observe, &key),
            (Missing::Deny, Action::Observe) => {}
            (Missing::Deny, _) => {
                if counted {
                    rule.count(Outcome::Deny, &key);
                }
                let refusal = refusal(&limit.rule, self.clock.0.now());
                return Application::Denial(Box::new(Answer::refusal(rule, limit, refusal)));
            }
        }
        Application::None
    }

    /// Judges the rules that match a request one by one, until one denies it, after the engine
    /// failed to judge them together. A request that one rule denies stays charged under the rules
    /// before it.
    async fn ask_each<'a>(
        &self,
        rules: &'a ActiveRules,
        request: &Attributes<'_>,
        manner: Manner,
    ) -> Answer<'a> {
        let mut all = Answer::default();
        let peek = Manner::from(Mode::Peek);
        for rule in rules.iter().filter(|rule| rule.matches(request)) {
            // `ask_matching` has already returned every denial for a missing attribute.
            let Application::Charge(limit, key) = self.application(rule, request, peek) else {
                continue;
            };
            let charge = Charge { rule: limit.id, key: &key, cost: rule.cost(request) };
            let charged = SmallVec::from_slice(&[(rule, limit)]);
            match self.charge(charged, &[charge], None, manner).await {
                Ok(answer) if all.decision.is_none() || answer.is_over() => {
                    all = Answer { unjudged: all.unjudged, ..answer };
                }
                Ok(_) => {}
                Err(error) if all.unjudged.is_none() || rule.denies_on_error() => {
                    all.unjudged = Some(Unjudged::failed(rule, error));
                }
                Err(_) => {}
            }
            if all.is_over() || all.is_denied_by_error() {
                break;
            }
        }
        all
    }

    /// Refunds the charge of an earlier request.
    ///
    /// # Errors
    /// Returns an [`AskError`] if the engine fails.
    pub async fn refund(&self, ask: &Ask<'_>, charged_at: Option<Nanos>) -> Result<(), AskError> {
        let Some((_, charge)) = ask.charge() else { return Ok(()) };
        Ok(self.engine.refund(&charge, charged_at).await?)
    }

    /// Deletes the state of one client under one rule.
    ///
    /// # Errors
    /// Returns an [`AskError`] if the engine fails.
    pub async fn reset(&self, ask: &Ask<'_>) -> Result<(), AskError> {
        let Some((_, charge)) = ask.charge() else { return Ok(()) };
        self.engine.reset(charge.rule, charge.key).await?;
        ask.rule.directory.forget(self.engine.hash(charge.key));
        self.reports.clear();
        Ok(())
    }

    /// Notes the name of a client that is over its limit, or close to it. A decision under several
    /// rules has the figures of one of them; those of another are read from memory, and over Redis
    /// only that one is noted.
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
        if place != decision.rule {
            return self.note_brief(rule, limit, charge, is_over);
        }
        let mut alone = *decision;
        alone.over = over(is_over);
        rule.directory.note(self.engine.hash(charge.key), limit.rule.limit(), &alone, charge.key);
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
        if let Some(mut peek) = self.engine.peek_at_once(charge) {
            peek.over = over(is_over);
            let hash = self.engine.hash(charge.key);
            rule.directory.note(hash, limit.rule.limit(), &peek, charge.key);
        }
    }

    #[inline]
    async fn charge<'a>(
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
            true => match decided_quota(&decision, &charged) {
                Some(available) => available,
                // The future is boxed, so that it takes no space in requests that do not ask for
                // these figures. If the peek fails, the answer is valid without them, since the
                // request is charged already.
                None => {
                    let figures = Box::pin(self.available(&decision, &charged, charges)).await;
                    figures.unwrap_or_default()
                }
            },
            false => SmallVec::new(),
        };
        Ok(Answer { decision: Some(decision), charged, available, unjudged: None })
    }

    /// Returns the quota available to the client under each rule, from the decision or from a
    /// peek.
    pub(super) async fn available(
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
                    let peek =
                        self.engine.decide(&[Charge { cost, ..*charge }], Mode::Peek).await?;
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

/// Returns the quota available to the client under each rule, if the decision includes the quota
/// for all of them.
pub(super) fn decided_quota(
    decision: &Decision,
    charged: &[(&ActiveRule, &PreparedLimit)],
) -> Option<SmallVec<[Available; 2]>> {
    let rules = charged.iter().enumerate();
    rules
        .map(|(place, (_, limit))| Available::from_decision(&limit.rule, decision, place))
        .collect()
}

/// Returns the places of a decision under one rule.
fn over(is_over: bool) -> Places {
    is_over.then_some(0).into_iter().collect()
}

/// Returns the denial of a request that is refused for another reason than the use of its quota, so
/// that no wait helps. The figures are those of a new client.
fn refusal(rule: &Rule, now: Nanos) -> Decision {
    let (_, mut refusal) = rule.limit().decide(None, now, Cost::ONE, Mode::Peek);
    refusal.allowed = false;
    refusal.outcome = Outcome::Deny;
    refusal.remaining = 0;
    refusal.retry_after = Wait::Never;
    refusal.over = [0].into_iter().collect();
    refusal
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
