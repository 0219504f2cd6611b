//! Requests of proxies that the engine does not decide before the proxy stops waiting.

use std::time::Instant;

use earrrl::EngineError;

use super::Service;
use super::answer::{Answer, Unjudged};
use super::ask::Manner;
use super::attributes::Attributes;
use super::descriptors::in_time;
use super::rules::ActiveRules;
use crate::metrics::PassReason;

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
