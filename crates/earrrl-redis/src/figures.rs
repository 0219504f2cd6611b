//! The decisions that are computed from scripts' answers.

use earrrl::algorithm::State;
use earrrl::internal::{Figures, Judgement, combine};
use earrrl::{Cost, Decision, Mode, Nanos, Rule};

use crate::algorithm;
use crate::reply::{Observation, ScriptVerdict};

/// Computes the decision from the observations, and each client's state after it.
pub(crate) fn decide(
    charges: &[(&Rule, Cost)],
    observed: &[Observation],
    mode: Mode,
) -> (Decision, Vec<Option<State>>) {
    let each: Vec<ObservedCharge<'_>> = charges
        .iter()
        .zip(observed)
        .map(|(&(rule, cost), observed)| ObservedCharge::new(rule, cost, observed))
        .collect();
    let all_pass = each.iter().all(|charged| charged.judgement.passes());
    let after = each.iter().map(|charged| charged.after(mode, all_pass));
    let (states, figures): (Vec<_>, Vec<_>) = after.unzip();
    let judged = each.iter().zip(&figures);
    let judged = judged.map(|(charged, figures)| (charged.rule, &charged.judgement, figures));
    let at = observed.first().map_or(Nanos::ZERO, |observed| observed.at);
    (combine(at, judged), states)
}

/// Computes the decision that a request of one unit would get under each of these rules, given the
/// clients' states at the times at which scripts reported them.
pub(crate) fn standing<'a>(
    states: impl Iterator<Item = (&'a Rule, &'a (Vec<u8>, Nanos))>,
) -> Decision {
    let mut at = Nanos::ZERO;
    let mut judged = Vec::new();
    for (rule, (state, now)) in states {
        let limit = rule.limit();
        let state = algorithm::reported(limit, state, *now);
        let (_, allowed, figures) = limit.step(state, *now, Cost::ONE, Mode::Peek);
        at = if judged.is_empty() { *now } else { at };
        judged.push((
            rule,
            Judgement::new(rule, allowed, || figures.earliest),
            figures,
        ));
    }
    combine(
        at,
        judged
            .iter()
            .map(|(rule, judgement, figures)| (*rule, judgement, figures)),
    )
}

struct ObservedCharge<'a> {
    rule: &'a Rule,
    cost: Cost,
    now: Nanos,
    judgement: Judgement,
    state: Option<State>,
    /// True if the state already includes the request.
    after: bool,
}

impl<'a> ObservedCharge<'a> {
    fn new(rule: &'a Rule, cost: Cost, observed: &Observation) -> Self {
        let limit = rule.limit();
        let now = observed.at;
        let after = algorithm::of(limit).is_tally();
        let state = match algorithm::reported(limit, &observed.state, now) {
            Some(state) if after && observed.undone => limit.refund(Some(state), now, now, cost),
            // The units after the first are this node's.
            Some(state) if after && observed.granted > 1 => {
                let more = Cost::from_units(u64::from(observed.granted) - 1);
                limit.refund(Some(state), now, now, more)
            }
            state => state,
        };
        let wait = || limit.step(state.clone(), now, cost, Mode::Peek).2.earliest;
        let judgement = Judgement::new(rule, observed.verdict == ScriptVerdict::Allowed, wait);
        Self {
            rule,
            cost,
            now,
            judgement,
            state,
            after,
        }
    }

    /// Returns the state and the figures after the decision.
    fn after(&self, mode: Mode, all_pass: bool) -> (Option<State>, Figures) {
        let mode = if self.after {
            Mode::Peek
        } else {
            self.judgement.settle(mode, all_pass)
        };
        let (state, _, figures) =
            self.rule
                .limit()
                .step(self.state.clone(), self.now, self.cost, mode);
        (state, figures)
    }
}
