//! The decisions that are computed from scripts' answers.

use earrrl::algorithm::State;
use earrrl::internal::{Figures, Judgement, combine, restore_places};
use earrrl::{Cost, Decision, Limit, Mode, Nanos, Rule};

use crate::algorithm::{self, AlgorithmKind};
use crate::reply::{Observation, ScriptVerdict};
use crate::request::Request;

/// The judgement of a charge under a rule, and the figures after it.
pub(crate) type Judged<'a> = (&'a Rule, Judgement, Figures);

/// Computes the decision on a request from the observations, and each client's state after it.
pub(crate) fn decide(
    request: &Request,
    observed: &[Observation],
) -> (Decision, Vec<Option<State>>) {
    let charges = &request.charges;
    let mut states = Vec::with_capacity(charges.len());
    let mut judgements = Vec::with_capacity(charges.len());
    for (charge, one) in charges.iter().zip(observed) {
        let rule = &charge.rule.rule;
        let cost = charge.cost;
        let state = observed_state(rule.limit(), cost, one);
        let peek = || rule.limit().step(state.clone(), one.at, cost, Mode::Peek);
        let is_allowed = one.verdict == ScriptVerdict::Allowed;
        judgements.push(Judgement::new(rule, is_allowed, || peek().2.earliest));
        states.push(state);
    }
    let all_pass = judgements.iter().all(Judgement::passes);
    let mut judged = Vec::with_capacity(charges.len());
    for (place, judgement) in judgements.into_iter().enumerate() {
        let charge = &charges[place];
        let rule = &charge.rule.rule;
        let limit = rule.limit();
        let mode = match AlgorithmKind::of(limit).is_tally() {
            // The state includes the request already.
            true => Mode::Peek,
            false => judgement.settle(request.mode, all_pass),
        };
        let (state, _, figures) =
            limit.step(states[place].take(), observed[place].at, charge.cost, mode);
        states[place] = state;
        judged.push((rule, judgement, figures));
    }
    let at = observed.first().map_or(Nanos::ZERO, |one| one.at);
    let mut decision = combined(at, &judged);
    restore_places(&mut decision, &request.places());
    (decision, states)
}

/// Returns the state that a script has reported for a charge, without what was taken back or is not the client's.
fn observed_state(limit: &Limit, cost: Cost, observed: &Observation) -> Option<State> {
    let now = observed.at;
    let state = algorithm::reported(limit, &observed.state, now)?;
    // The units after the first are this node's.
    let more = Cost::from_units(u64::from(observed.granted).saturating_sub(1));
    match AlgorithmKind::of(limit).is_tally() {
        true if observed.undone => limit.refund(Some(state), now, now, cost),
        true if !more.is_zero() => limit.refund(Some(state), now, now, more),
        _ => Some(state),
    }
}

/// Computes the decision that a request of one unit would get under each of these rules, given the
/// clients' states at the times at which scripts reported them.
pub(crate) fn standing<'a>(states: impl Iterator<Item = (&'a Rule, Vec<u8>, Nanos)>) -> Decision {
    let mut at = Nanos::ZERO;
    let mut judged = Vec::new();
    for (rule, state, now) in states {
        let limit = rule.limit();
        let state = algorithm::reported(limit, &state, now);
        let (_, allowed, figures) = limit.step(state, now, Cost::ONE, Mode::Peek);
        at = if judged.is_empty() { now } else { at };
        let judgement = Judgement::new(rule, allowed, || figures.earliest);
        judged.push((rule, judgement, figures));
    }
    combined(at, &judged)
}

/// Returns the decision on a request with these judgements.
pub(crate) fn combined(at: Nanos, judged: &[Judged<'_>]) -> Decision {
    let each = judged.iter();
    combine(
        at,
        each.map(|(rule, judgement, figures)| (*rule, judgement, figures)),
    )
}
