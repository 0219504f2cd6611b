//! Decides requests under all rules that match their attributes, if need be before a proxy stops waiting.

use std::time::Instant;

use earrrl::{Action, Cost, Decision, EngineError, Mode, Nanos, Outcome, Rule, Wait};
use smallvec::SmallVec;
use tokio::time::error::Elapsed;

use super::answer::{Answer, Unjudged};
use super::ask::{Ask, Manner, charges_of};
use super::attributes::Attributes;
use super::key::bounded_owned;
use super::rule::ActiveRule;
use super::rules::ActiveRules;
use super::{Service, hints};
use crate::config::rule::OnMissing;
use crate::metrics::PassReason;

/// The effect of a rule on a request that it matches.
pub(super) enum Application<'a> {
    /// The request is charged.
    Charge(Ask<'a>),
    /// The rule does not count the request.
    None,
    /// The rule denies the request, since it lacks an attribute of the rule's key.
    Denial(Box<Answer<'a>>),
}

impl Service {
    /// Decides a request under every rule that matches it. A rule that cannot be judged is
    /// reported in [`Answer::unjudged`], and the other rules are judged all the same, so this
    /// never fails. Rules of concurrent do not apply, since nothing tells when the request ends.
    pub async fn ask_matching<'a>(
        &self,
        rules: &'a ActiveRules,
        request: &Attributes<'_>,
        manner: Manner,
    ) -> Answer<'a> {
        let mut checked = rules.iter().filter(|rule| rule.is_checked());
        let asks = match self.matched(checked.clone(), request, manner.mode) {
            Ok(asks) => asks,
            Err(denial) => return *denial,
        };
        if asks.is_empty()
            && manner.mode != Mode::Peek
            && !checked.any(|rule| rule.matches(request))
        {
            self.metrics.unmatched.increment();
        }
        let (charged, charges) = charges_of(&asks);
        let mut answer = self.judge(charged, &charges, manner.mode).await;
        self.count(&answer, &charges, manner.mode);
        if manner.available {
            self.add_available(&mut answer, &charges).await;
        }
        answer
    }

    /// Returns a request under those of the rules that match it, or the denial of a rule whose key it lacks.
    pub(super) fn matched<'a>(
        &self,
        rules: impl Iterator<Item = &'a ActiveRule>,
        request: &Attributes<'_>,
        mode: Mode,
    ) -> Result<SmallVec<[Ask<'a>; 2]>, Box<Answer<'a>>> {
        let mut asks = SmallVec::new();
        for rule in rules.filter(|rule| rule.matches(request)) {
            match self.application(rule, request, mode) {
                Application::Charge(ask) => asks.push(ask),
                Application::None => {}
                Application::Denial(answer) => return Err(answer),
            }
        }
        Ok(asks)
    }

    /// Finds out how a rule that matches a request applies to it, and counts the request if it
    /// lacks an attribute of the rule's key.
    pub(super) fn application<'a>(
        &self,
        rule: &'a ActiveRule,
        request: &Attributes<'_>,
        mode: Mode,
    ) -> Application<'a> {
        let Some(applied) = rule.applied_to(request) else {
            return Application::None;
        };
        let limit = applied.limit;
        let key = rule.key(request);
        let counted = mode != Mode::Peek;
        if counted && rule.has_invalid_cost(request) {
            hints::invalid_cost(rule, &key);
        }
        let charge = |key| {
            let key = applied.stored_key(bounded_owned(key));
            Application::Charge(Ask::under(rule, Some(limit), key, rule.cost(request)))
        };
        let Some(attribute) = rule.lacks(request, &key) else {
            return charge(key);
        };
        if counted {
            if rule.config.missing == OnMissing::Share {
                hints::lacks(rule, attribute);
            }
            rule.outcomes.missing.increment();
        }
        match (rule.config.missing, limit.rule.action()) {
            (OnMissing::Share, _) => return charge(key),
            (OnMissing::Skip, _) => return Application::None,
            (OnMissing::Deny, Action::Observe) if counted => rule.count(Outcome::Observe, &key),
            (OnMissing::Deny, Action::Observe) => {}
            (OnMissing::Deny, _) => {
                if counted {
                    rule.count(Outcome::Deny, &key);
                }
                let refusal = refusal(&limit.rule, self.clock.0.now());
                return Application::Denial(Box::new(Answer::refusal(rule, limit, refusal)));
            }
        }
        Application::None
    }
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

impl Service {
    /// Decides like [`Service::ask_matching`], but at the latest shortly before `deadline`, after
    /// which a proxy would let the request pass. If the engine has not decided by then, the
    /// `on_error` of the matching rules decides, or the engine's policy for those without it.
    pub async fn ask_matching_before<'a>(
        &self,
        rules: &'a ActiveRules,
        request: &Attributes<'_>,
        manner: Manner,
        deadline: Option<Instant>,
    ) -> Answer<'a> {
        let Some(deadline) = deadline.filter(|_| self.engine.waits()) else {
            return self.ask_matching(rules, request, manner).await;
        };
        // The future is boxed, so that it takes no space in requests without a deadline.
        let answered = Box::pin(in_time(self.ask_matching(rules, request, manner), deadline));
        answered
            .await
            .unwrap_or_else(|_| self.undecided(rules, request))
    }

    fn undecided<'a>(&self, rules: &'a ActiveRules, request: &Attributes<'_>) -> Answer<'a> {
        let policy_denies = !self.engine.passes_undecided();
        let matching = rules.iter().filter(|rule| rule.matches(request));
        let unjudged = matching.map(|rule| Unjudged {
            rule,
            error: EngineError::Unavailable("no decision before the deadline".into()).into(),
            denies: rule
                .on_error
                .map_or(policy_denies, |_| rule.denies_on_error()),
            reason: PassReason::Late,
        });
        Answer {
            unjudged: unjudged.max_by_key(|unjudged| unjudged.denies),
            ..Answer::default()
        }
    }
}

/// Waits for an answer until shortly before the deadline, after which Envoy would let the request
/// pass and count an error.
pub(super) async fn in_time<F: Future>(answer: F, deadline: Instant) -> Result<F::Output, Elapsed> {
    // A quarter of the remaining time is left for sending the response.
    let left = deadline.saturating_duration_since(Instant::now()) * 3 / 4;
    tokio::time::timeout(left, answer).await
}
