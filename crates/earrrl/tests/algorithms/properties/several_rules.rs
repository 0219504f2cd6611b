//! Several rules on one request, against the definition written out once more.

use std::sync::Arc;
use std::time::Duration;

use earrrl::{
    Action, Charge, Cost, Decision, Engine, Limit, ManualClock, Mode, Nanos, Outcome, Policy, Rule,
    RuleId, Wait,
};
use earrrl_testing::ReferenceEngine;
use proptest::prelude::*;

use super::strategies::{cases, costs, limits, requests, starts};
use crate::algorithms::client::Client;

fn actions() -> impl Strategy<Value = Action> {
    prop_oneof![
        4 => Just(Action::Deny),
        1 => Just(Action::ShadowBan),
        1 => Just(Action::Quarantine),
        1 => Just(Action::Observe),
        2 => prop_oneof![Just(0), Just(u64::MAX), 0u64..100_000_000_000]
            .prop_map(|max| Action::Delay { max: Duration::from_nanos(max) }),
    ]
}

fn rules() -> impl Strategy<Value = Vec<Rule>> {
    let rule = (limits(), actions()).prop_map(|(limit, action)| {
        Rule::from(limit)
            .with_action(action)
            .unwrap_or_else(|_| Rule::from(limit))
    });
    proptest::collection::vec(rule, 1..=4)
}

/// What one rule says before anything is stored, by the definition.
struct Opinion {
    allowed: bool,
    hold: Option<Duration>,
    passes: bool,
}

fn opinion(rule: &Rule, client: &Client, now: Nanos, cost: Cost) -> Opinion {
    let decision = client.peek(now, cost);
    let hold = match (rule.action(), decision.retry_after) {
        (Action::Delay { max }, Wait::For(wait)) if !decision.allowed && wait <= max => Some(wait),
        _ => None,
    };
    let enforces = !matches!(rule.action(), Action::Quarantine | Action::Observe);
    let passes = decision.allowed || hold.is_some() || !enforces;
    Opinion {
        allowed: decision.allowed,
        hold,
        passes,
    }
}

/// All or nothing: charges the clients as the definition says, and tells whether all passed.
fn charge_all(
    rules: &[Rule],
    clients: &mut [Client],
    now: Nanos,
    cost: Cost,
) -> (bool, Vec<Opinion>) {
    let opinions: Vec<Opinion> = rules
        .iter()
        .zip(&*clients)
        .map(|(rule, client)| opinion(rule, client, now, cost))
        .collect();
    let pass = opinions.iter().all(|opinion| opinion.passes);
    for (client, opinion) in clients.iter_mut().zip(&opinions) {
        let leaky = pass && (opinion.allowed || opinion.hold.is_some());
        match client.limit.policy() {
            // A denied request gets a place in the queue, whose number is a part of the state.
            Policy::Strict if opinion.hold.is_none() => {
                client.ask(now, cost);
            }
            Policy::Leaky if !leaky => {}
            _ => client.charge(now, cost),
        }
    }
    (pass, opinions)
}

fn check_answer(
    answer: &Decision,
    rules: &[Rule],
    clients: &[Client],
    (pass, opinions): (bool, Vec<Opinion>),
    now: Nanos,
    cost: Cost,
) -> Result<(), TestCaseError> {
    let reports: Vec<_> = clients
        .iter()
        .map(|client| client.report(now, cost))
        .collect();
    // A dry run answers only where no rule beside it acts.
    let acts = |rule: &Rule| rule.action() != Action::Observe;
    let answers = |place: usize| acts(&rules[place]) || !rules.iter().any(acts);
    let answering = || (0..rules.len()).filter(|place| answers(*place));
    let least = answering().map(|place| reports[place].remaining).min();
    prop_assert_eq!(Some(answer.remaining), least);
    prop_assert_eq!(pass, answer.outcome < Severity(Outcome::ShadowBan));
    prop_assert!(answer.outcome != Outcome::Observe || !rules.iter().any(acts));
    let from = answer.rule;
    let figures = (answer.limit, answer.reset_after);
    prop_assert_eq!(figures, (reports[from].limit, reports[from].reset_after));
    if pass {
        prop_assert_eq!(answer.retry_after, Wait::NONE);
        let first = answering().find(|place| Some(reports[*place].remaining) == least);
        prop_assert_eq!(Some(from), first);
        let hold = opinions.iter().filter_map(|opinion| opinion.hold).max();
        prop_assert_eq!(answer.delay, hold.unwrap_or_default());
        return Ok(());
    }
    // A rule that delays lets a request pass as soon as it would hold it no longer than it may.
    let waits: Vec<Wait> = rules
        .iter()
        .zip(&reports)
        .map(|(rule, report)| match (rule.action(), report.earliest) {
            (Action::Quarantine | Action::Observe, _) => Wait::NONE,
            (Action::Delay { max }, Wait::For(wait)) => Wait::For(wait.saturating_sub(max)),
            (_, wait) => wait,
        })
        .collect();
    prop_assert_eq!(Some(answer.earliest()), waits.iter().copied().max());
    prop_assert!(answer.retry_after >= answer.earliest());
    prop_assert!(!opinions[from].passes);
    let denying = waits
        .iter()
        .zip(&opinions)
        .filter(|(_, opinion)| !opinion.passes);
    let longest = denying.map(|(wait, _)| *wait).max();
    let first = (0..waits.len()).find(|k| !opinions[*k].passes && Some(waits[*k]) == longest);
    prop_assert_eq!(Some(from), first);
    prop_assert_eq!(answer.delay, Duration::ZERO);
    Ok(())
}

/// Outcomes in their order: which of several rules' outcomes is told.
struct Severity(Outcome);

impl PartialEq<Severity> for Outcome {
    fn eq(&self, other: &Severity) -> bool {
        *self == other.0
    }
}

impl PartialOrd<Severity> for Outcome {
    fn partial_cmp(&self, other: &Severity) -> Option<std::cmp::Ordering> {
        let order = |outcome: Outcome| match outcome {
            Outcome::Allow => 0,
            Outcome::Observe => 1,
            Outcome::Quarantine => 2,
            Outcome::Delay => 3,
            Outcome::ShadowBan => 4,
            _ => 5,
        };
        order(*self).partial_cmp(&order(other.0))
    }
}

proptest! {
    #![proptest_config(cases(1000))]
    #[test]
    fn all_or_nothing(
        rules in rules(), start in starts(), requests in requests(25), peeked in costs(),
    ) {
        let engine = ReferenceEngine::new(Arc::new(ManualClock::default()));
        let prepare = |(k, rule): (usize, &Rule)| engine.prepare(&format!("r{k}"), rule).unwrap();
        let ids: Vec<RuleId> = rules.iter().enumerate().map(prepare).collect();
        let mut clients: Vec<Client> = rules.iter().map(|r| Client::new(*r.limit())).collect();
        let mut now = start;
        for request in &requests {
            let cost = request.cost;
            now = request.after(now, rules[0].limit());
            let charges: Vec<Charge<'_>> =
                ids.iter().map(|rule| Charge { rule: *rule, key: b"client", cost }).collect();
            let peek = [Charge { cost: peeked, ..charges[0] }];
            engine.decide(&peek, Mode::Peek, Some(now)).into_inner().unwrap();
            let answer = engine.decide(&charges, Mode::Check, Some(now)).into_inner().unwrap();
            let expected = charge_all(&rules, &mut clients, now, cost);
            let over = (0..rules.len()).filter(|place| !expected.1[*place].allowed);
            prop_assert!(answer.over.iter().eq(over), "{:?}", answer.over);
            check_answer(&answer, &rules, &clients, expected, now, cost)?;
            for (charge, client) in charges.iter().zip(&clients) {
                let kept = engine.decide(&[*charge], Mode::Peek, Some(now)).into_inner().unwrap();
                prop_assert_eq!(kept.reset_after, client.report(now, cost).reset_after);
                prop_assert_eq!(kept.remaining, client.report(now, cost).remaining);
            }
        }
    }

    #[test]
    fn one_rule_and_key_twice_is_one_charge_of_the_sum(
        limit in limits(), (one, other) in (costs(), costs()), now in starts(),
    ) {
        let rule = Rule::from(limit);
        let (twice, once) = (engine_of(&rule), engine_of(&rule));
        let charge = |(_, rule): &(ReferenceEngine, RuleId), cost| Charge { rule: *rule, key: b"k", cost };
        let both = [charge(&twice, one), charge(&twice, other)];
        let found = twice.0.decide(&both, Mode::Check, Some(now)).into_inner().unwrap();
        let sum = once.0.decide(&[charge(&once, one + other)], Mode::Check, Some(now)).into_inner().unwrap();
        prop_assert_eq!(found, sum);
    }
}

fn engine_of(rule: &Rule) -> (ReferenceEngine, RuleId) {
    let engine = ReferenceEngine::new(Arc::new(ManualClock::default()));
    let id = engine.prepare("rule", rule).unwrap();
    (engine, id)
}

#[test]
fn max_cost_bounds_the_sum_of_a_request_s_charges() {
    let rule: Rule = "gcra 1/s burst=60".parse().unwrap();
    let (engine, rule) = engine_of(&rule.with_max_cost(Cost::from_units(3)).unwrap());
    let charge = |units| Charge {
        rule,
        key: b"k",
        cost: Cost::from_units(units),
    };
    let decide = |charges: &[Charge<'_>]| engine.decide(charges, Mode::Check, None).into_inner();
    assert!(decide(&[charge(4)]).is_err());
    assert!(decide(&[charge(2), charge(2)]).is_err());
    assert_eq!(decide(&[charge(2), charge(1)]).unwrap().remaining, 57);
}

#[test]
fn held_requests_queue_instead_of_stampeding() {
    let max = Duration::from_secs(3);
    for (text, first_wait) in [
        ("gcra 1/s burst=1", 1.0),
        ("token-bucket 1 refill=1/s", 1.0),
    ] {
        let rule: Rule = text.parse().unwrap();
        let (engine, rule) = engine_of(&rule.with_action(Action::Delay { max }).unwrap());
        let ask = || {
            let charge = Charge {
                rule,
                key: b"k",
                cost: Cost::ONE,
            };
            engine
                .decide(&[charge], Mode::Check, Some(Nanos::from_secs(9)))
                .into_inner()
                .unwrap()
        };
        assert_eq!(ask().outcome, Outcome::Allow);
        for k in 0..3 {
            let held = ask();
            assert_eq!(held.outcome, Outcome::Delay, "{text}");
            assert_eq!(
                held.delay.as_secs_f64(),
                first_wait + f64::from(k),
                "{text}"
            );
        }
        let denied = ask();
        assert_eq!(
            (denied.outcome, denied.allowed),
            (Outcome::Deny, false),
            "{text}"
        );
        assert_eq!(
            denied.retry_after,
            Wait::For(Duration::from_secs(1)),
            "{text}"
        );
    }
    assert!(
        Rule::from(Limit::from(
            earrrl::algorithm::FixedWindow::new(Cost::ONE, max).unwrap()
        ))
        .with_action(Action::Delay { max })
        .is_err()
    );
}
