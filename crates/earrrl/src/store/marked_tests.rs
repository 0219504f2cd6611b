use core::time::Duration;
use std::sync::Arc;
use std::thread;

use proptest::prelude::*;

use super::*;
use crate::algorithm::Mode;
use crate::cost::Cost;
use crate::rule::Rule;

const NOW: Nanos = Nanos::from_secs(1_800_000_000);
/// Costs of which the sums of some fit a word and the sums of others do not.
const COSTS: [&str; 6] = ["1", "2.5", "0.000000001", "1000000", "40000000000", "1e15"];

fn key() -> KeyHash {
    KeyHash::from_bits(7 << 40 | 77)
}

fn clients(rule: &Rule) -> Arc<Clients> {
    Arc::new(Clients::new(rule.limit(), 100, None).unwrap())
}

fn cost(text: &str) -> Cost {
    text.parse().unwrap()
}

fn charge(clients: &Clients, rule: &Rule, now: Nanos, cost: Cost) -> Option<State> {
    let decide = |state| {
        let after = rule.limit().decide(state, now, cost, Mode::Charge).0;
        (after.clone(), after)
    };
    clients.update(key(), rule.limit(), now, decide)
}

fn state(clients: &Clients, rule: &Rule) -> Option<State> {
    clients.inspect(key(), rule.limit(), NOW, |state| (state.clone(), state))
}

fn is_in_overflow(clients: &Clients) -> bool {
    clients
        .states_beside_words()
        .is_some_and(|states| states.lock_of(key()).state_of(key()).is_some())
}

#[test]
fn a_clear_removes_states_that_fit_no_word() {
    let rule: Rule = "fixed-window 5/1s".parse().unwrap();
    let clients = clients(&rule);
    charge(&clients, &rule, NOW, cost("1e15"));
    charge(&clients, &rule, NOW, cost("0.000000001"));
    assert!(is_in_overflow(&clients));
    let decide = |_| {
        (
            rule.limit().decide(None, NOW, Cost::ONE, Mode::Charge).0,
            (),
        )
    };
    clients.update(KeyHash::from_bits(9 << 40 | 99), rule.limit(), NOW, decide);
    assert_eq!(clients.clear(rule.limit(), NOW), 2);
    assert_eq!(
        (state(&clients, &rule), is_in_overflow(&clients)),
        (None, false)
    );
    assert_eq!(clients.clear(rule.limit(), NOW), 0);
}

proptest! {
    #[test]
    fn states_are_those_of_the_pure_functions(
        steps in prop::collection::vec((0..700_u64, 0..COSTS.len(), any::<bool>()), 1..60),
    ) {
        for text in ["fixed-window 5/1s", "sliding-counter 5/1s", "sliding-counter 7.5/100ms"] {
            let (rule, mut now) = (text.parse::<Rule>().unwrap(), NOW);
            let (clients, limit) = (clients(&rule), rule.limit());
            let (mut exact, mut last) = (None, NOW);
            for (millis, nth, refunds) in &steps {
                now = now + Duration::from_millis(*millis);
                let cost = cost(COSTS[*nth]);
                if *refunds {
                    clients.refund(key(), limit, now, Some(last), cost);
                    exact = limit.refund(exact, now, last, cost);
                } else {
                    let stored = charge(&clients, &rule, now, cost);
                    exact = limit.decide(exact, now, cost, Mode::Charge).0;
                    last = now;
                    prop_assert_eq!(&stored, &exact);
                }
                prop_assert_eq!(&state(&clients, &rule), &exact);
                let fits = exact.as_ref().is_none_or(|state| limit.word(state).is_some());
                prop_assert_eq!(is_in_overflow(&clients), !fits);
            }
        }
    }
}

#[test]
fn no_charge_is_lost_between_the_table_and_the_map() {
    let rule: Rule = "sliding-counter 1000/1h".parse().unwrap();
    let clients = clients(&rule);
    let whole = cost("1000000");
    let fraction = cost("0.000000001");
    let work = |nth: u64| {
        for _ in 0..2000 {
            charge(
                &clients,
                &rule,
                NOW,
                if nth.is_multiple_of(2) {
                    whole
                } else {
                    fraction
                },
            );
            if nth == 3 {
                clients.refund(key(), rule.limit(), NOW, Some(NOW), fraction);
            }
        }
    };
    thread::scope(|scope| (0..4).for_each(|nth| drop(scope.spawn(move || work(nth)))));
    let Some(State::SlidingCounter(counts)) = state(&clients, &rule) else {
        panic!("no state")
    };
    let expected = 4000 * whole.billionths() + 2000 * fraction.billionths();
    assert_eq!(counts.current, expected);
    assert!(is_in_overflow(&clients) && clients.len() == 1);
}

#[test]
fn every_client_of_a_table_may_have_a_state_in_the_map() {
    let rule: Rule = "fixed-window 5/1s".parse().unwrap();
    let clients = clients(&rule);
    let limit = rule.limit();
    for nth in 1..=50_u64 {
        let key = KeyHash::from_bits(nth.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1);
        let decide = |state| (limit.decide(state, NOW, cost("1e15"), Mode::Charge).0, ());
        clients.update(key, limit, NOW, decide);
    }
    let beside = clients.states_beside_words().unwrap();
    assert_eq!(beside.each().map(|shard| shard.len()).sum::<usize>(), 50);
}

/// After the end of a window, the words of new clients are greater than those of clients that spent
/// their quota in the window before.
#[test]
fn new_clients_do_not_displace_those_over_their_limit() {
    let rule: Rule = "sliding-counter 5/1m".parse().unwrap();
    let clients = Clients::new(rule.limit(), 1000, None).unwrap();
    let limit = rule.limit();
    let mix = |nth: u64| KeyHash::from_bits(nth.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1);
    let admit = |nth, now| {
        let decide = |mut state| {
            let allowed = limit.admit(&mut state, now, Cost::ONE, Mode::Check);
            (state, allowed)
        };
        clients.update(mix(nth), limit, now, decide)
    };
    let next_window = NOW + Duration::from_secs(61);
    for offender in 0..300 {
        while admit(offender, NOW) {}
    }
    for newcomer in 1000..20_000 {
        assert!(admit(newcomer, next_window));
    }
    assert_eq!(
        (0..300)
            .filter(|offender| admit(*offender, next_window))
            .count(),
        0
    );
}
