use std::format;
use std::string::ToString;
use std::vec::Vec;

use super::*;
use crate::algorithm::Limit;
use crate::algorithm::Mode;
use crate::clock::ManualClock;
use crate::cost::Cost;
use crate::decision::Decision;
use crate::engine::{Charge, Engine, RuleId};
use crate::memory::MemoryEngine;
use crate::rule::Rule;
use crate::store::table::KeyHash;

const START: Nanos = Nanos::from_secs(1_800_000_000);
/// Rules that allow hundreds of requests, of every algorithm.
const RULES: [&str; 8] = [
    "recent-average 10/s half-life=1m strict",
    "exponential 600/1m leaky",
    "token-bucket 600 refill=10/s",
    "gcra 10/s burst=600",
    "fixed-window 600/1m",
    "sliding-log 600/1m",
    "sliding-window 600/1m",
    "sliding-counter 600/1m",
];

fn engine() -> MemoryEngine<ManualClock> {
    MemoryEngine::with_clock(10_000, ManualClock::new(START)).unwrap()
}

fn request(engine: &MemoryEngine<ManualClock>, rule: RuleId, key: &[u8], mode: Mode) -> Decision {
    let charge = Charge {
        rule,
        key,
        cost: Cost::ONE,
    };
    engine.decide(&[charge], mode, None).into_inner().unwrap()
}

/// Sends a number of requests of one client.
fn requests(engine: &MemoryEngine<ManualClock>, rule: RuleId, client: u32, count: u32) {
    for _ in 0..count {
        request(engine, rule, &name(client), Mode::Check);
    }
}

fn name(client: u32) -> Vec<u8> {
    format!("client-{client}").into_bytes()
}

#[test]
fn the_top_clients_are_in_order_and_have_the_figures_of_a_peek() {
    for text in RULES {
        let engine = engine();
        let rule = engine.prepare("r", &text.parse().unwrap()).unwrap();
        for client in 1..=50 {
            requests(&engine, rule, client, client);
        }
        let top = engine.survey(rule, 10).unwrap().top;
        let expected: Vec<_> = (41..=50)
            .rev()
            .map(|client| engine.hash(&name(client)).fingerprint())
            .collect();
        let found: Vec<_> = top.iter().map(|client| client.fingerprint).collect();
        assert_eq!(found, expected, "{text}");
        for (nth, client) in top.iter().enumerate() {
            let peek = request(&engine, rule, &name(50 - nth as u32), Mode::Peek);
            let figures = (
                client.rate,
                client.limit,
                client.remaining,
                client.reset_after,
            );
            assert_eq!(
                figures,
                (peek.rate, peek.limit, peek.remaining, peek.reset_after),
                "{text}"
            );
            assert_eq!(client.retry_after, peek.retry_after, "{text}");
        }
    }
}

#[test]
fn the_distribution_counts_every_client_and_its_share_of_requests() {
    let engine = engine();
    let rule = engine
        .prepare("r", &"fixed-window 600/1m".parse().unwrap())
        .unwrap();
    // One client with 53 requests, one with 20, and 27 clients with one each.
    for (client, count) in (0..29).map(|client| (client, [53, 20, 1][client.min(2) as usize])) {
        requests(&engine, rule, client, count);
    }
    let rates = engine.survey(rule, 0).unwrap().rates;
    assert_eq!(rates.clients(), 29);
    assert!((rates.total() - 100.0 / 60.0).abs() < 1e-9);
    assert_eq!(
        rates
            .buckets()
            .map(|bucket| bucket.clients)
            .collect::<Vec<_>>(),
        [27, 1, 1]
    );
    for (rate, clients, share) in [
        (0.0, 29, 1.0),
        (0.1, 2, 0.73),
        (0.5, 1, 0.53),
        (2.0, 0, 0.0),
    ] {
        let above = rates.above(rate);
        assert_eq!(above.clients, clients, "{rate}");
        assert!(
            (above.share - share).abs() < 1e-9,
            "{rate}: {}",
            above.share
        );
        assert!(
            above.rate <= rate && (rate == 0.0 || above.rate > rate * 0.957),
            "{rate}"
        );
        // Asked for the edge that it returned, it returns the same.
        assert_eq!(rates.above(above.rate), above);
    }
    let mut twice = rates.clone();
    twice.merge(&rates);
    assert_eq!((twice.clients(), twice.above(0.1).clients), (58, 4));
}

#[test]
fn rates_that_are_no_numbers_are_counted() {
    let mut rates = Rates::default();
    for rate in [
        0.0,
        -1.0,
        f64::NAN,
        f64::INFINITY,
        f64::MIN_POSITIVE,
        f64::MAX,
    ] {
        rates.add(rate);
    }
    assert_eq!(rates.clients(), 6);
    assert_eq!(rates.buckets().map(|bucket| bucket.clients).sum::<u64>(), 6);
    assert_eq!(rates.above(f64::NAN).clients, 6);
}

fn options(capacity: usize) -> NameOptions {
    NameOptions {
        capacity,
        ..NameOptions::default()
    }
}

/// Returns true if the request is denied, or leaves few enough of the limit.
fn is_noted(limit: &Limit, decision: &Decision) -> bool {
    decision.is_over(0) || decision.remaining < NameOptions::default().remaining_below(limit)
}

#[test]
fn clients_above_the_share_and_denied_ones_are_named() {
    let clock = std::sync::Arc::new(ManualClock::new(START));
    let engine = MemoryEngine::with_clock(100, std::sync::Arc::clone(&clock)).unwrap();
    let parsed: Rule = "fixed-window 10/1h".parse().unwrap();
    let rule = engine.prepare("r", &parsed).unwrap();
    let names = Names::new(parsed.limit(), options(100));
    let alice = engine.hash(b"alice");
    for nth in 1..=13 {
        clock.advance(Duration::from_secs(1));
        let charge = Charge {
            rule,
            key: b"alice",
            cost: Cost::ONE,
        };
        let decision = engine
            .decide(&[charge], Mode::Check, None)
            .into_inner()
            .unwrap();
        assert_eq!(is_noted(parsed.limit(), &decision), nth > 5, "{nth}");
        if is_noted(parsed.limit(), &decision) {
            names.note(alice, parsed.limit(), &decision, || b"alice".to_vec());
        }
    }
    let found = names.get(alice.fingerprint()).unwrap();
    assert_eq!((found.allowed, found.denied), (5, 3));
    let after = |secs| START + Duration::from_secs(secs);
    assert_eq!(found.first_seen, after(6));
    assert_eq!(
        (found.first_denied, found.last_denied),
        (Some(after(11)), Some(after(13)))
    );
    assert_eq!(found.latest.at, after(13));
    names.forget(alice);
    assert!(names.top(1).is_empty() && names.get(alice.fingerprint()).is_none());
    // A limit that is ten times as high leaves the same client far below the share.
    let higher: Rule = "fixed-window 100/1h".parse().unwrap();
    assert_eq!(options(100).remaining_below(higher.limit()), 50);
}

#[test]
fn a_full_directory_drops_the_client_with_the_lowest_rate() {
    for text in RULES {
        let engine = engine();
        let parsed: Rule = text.parse().unwrap();
        let rule = engine.prepare("r", &parsed).unwrap();
        let names = Names::new(parsed.limit(), options(20));
        for round in 1..=40 {
            for client in round..=40 {
                let key = name(client);
                let decision = request(&engine, rule, &key, Mode::Check);
                names.note(engine.hash(&key), parsed.limit(), &decision, || key);
            }
        }
        assert_eq!(names.top(usize::MAX).len(), 20, "{text}");
        let found: Vec<_> = names
            .top(20)
            .into_iter()
            .map(|(_, found)| found.name)
            .collect();
        let expected: Vec<_> = (21..=40).rev().map(|nth| name(nth).into()).collect();
        assert_eq!(found, expected, "{text}");
    }
}

#[test]
fn long_names_are_cut_and_the_directory_is_bounded() {
    let parsed: Rule = "gcra 1/s burst=1".parse().unwrap();
    let names = Names::new(parsed.limit(), options(1000));
    let engine = engine();
    let rule = engine.prepare("r", &parsed).unwrap();
    for client in 0..20_000 {
        let decision = request(&engine, rule, &name(client), Mode::Check);
        names.note(
            engine.hash(&name(client)),
            parsed.limit(),
            &decision,
            || [name(client), std::vec![b'x'; 4096]].concat(),
        );
    }
    let all = names.top(usize::MAX);
    assert!((900..=1000).contains(&all.len()), "{}", all.len());
    assert!(
        all.iter()
            .all(|(_, found)| found.name.len() == 256 && found.is_cut)
    );
}

/// A flood of keys that occur once each, among them the requests of a hundred fast clients. The
/// table holds a hundredth of the keys.
#[test]
fn after_a_flood_the_fastest_clients_are_found_with_their_names() {
    const FAST: u32 = 100;
    let flood = if std::env::var_os("EARRRL_LONG").is_some() {
        100_000_000
    } else {
        300_000
    };
    for text in [
        "recent-average 1/s half-life=1m strict",
        "gcra 1/s burst=60",
    ] {
        let clock = std::sync::Arc::new(ManualClock::new(START));
        let engine = MemoryEngine::with_clock(10_000, std::sync::Arc::clone(&clock)).unwrap();
        let parsed: Rule = text.parse().unwrap();
        let rule = engine.prepare("r", &parsed).unwrap();
        let names = Names::new(parsed.limit(), options(1_000));
        let step = |key: &[u8], mode| {
            let charge = Charge {
                rule,
                key,
                cost: Cost::ONE,
            };
            let decision = engine.decide(&[charge], mode, None).into_inner().unwrap();
            if is_noted(parsed.limit(), &decision) {
                names.note(engine.hash(key), parsed.limit(), &decision, || key.to_vec());
            }
        };
        for nth in 0..flood {
            step(&u32::to_le_bytes(nth), Mode::Check);
            if nth % 8 == 0 {
                step(&name(nth / 8 % FAST), Mode::Check);
                clock.advance(Duration::from_micros(500));
            }
        }
        let top = engine.survey(rule, FAST as usize).unwrap().top;
        let named: std::collections::HashSet<_> = top
            .iter()
            .filter_map(|client| Some(names.get(client.fingerprint)?.name))
            .filter(|name| name.starts_with(b"client-"))
            .collect();
        assert_eq!(named.len(), FAST as usize, "{text}");
    }
}

/// Threads decide while another one walks: the walk finds every client that stays.
#[test]
fn a_walk_beside_decisions_finds_the_clients_that_stay() {
    for text in [
        "recent-average 10/s half-life=1m strict",
        "sliding-window 600/1m",
    ] {
        let engine = engine();
        let rule = engine.prepare("r", &text.parse().unwrap()).unwrap();
        for client in 0..10 {
            requests(&engine, rule, client, 300);
        }
        std::thread::scope(|scope| {
            let engine = &engine;
            scope.spawn(move || {
                for nth in 0..50_000_u32 {
                    request(engine, rule, &nth.to_le_bytes(), Mode::Check);
                }
            });
            let expected: std::collections::HashSet<_> = (0..10)
                .map(|client| engine.hash(&name(client)).fingerprint())
                .collect();
            for _ in 0..20 {
                let top = engine.survey(rule, 10).unwrap().top;
                let found = top.iter().map(|client| client.fingerprint).collect();
                assert_eq!(expected, found, "{text}");
            }
        });
    }
}

#[test]
fn idle_clients_are_no_part_of_a_survey() {
    for text in RULES {
        let clock = std::sync::Arc::new(ManualClock::new(START));
        let engine = MemoryEngine::with_clock(100, std::sync::Arc::clone(&clock)).unwrap();
        let rule = engine.prepare("r", &text.parse().unwrap()).unwrap();
        let ask = |key| {
            let charge = Charge {
                rule,
                key,
                cost: Cost::ONE,
            };
            engine
                .decide(&[charge], Mode::Check, None)
                .into_inner()
                .unwrap()
        };
        ask(b"idle");
        // Long enough that even an average has decayed to nothing.
        clock.advance(Duration::from_secs(100 * 86_400));
        ask(b"active");
        let survey = engine.survey(rule, 10).unwrap();
        assert_eq!((survey.rates.clients(), survey.top.len()), (1, 1), "{text}");
        assert_eq!(
            survey.top[0].fingerprint,
            engine.hash(b"active").fingerprint(),
            "{text}"
        );
    }
}

#[test]
fn an_unknown_rule_is_an_error() {
    let unknown = engine().survey(RuleId(7), 1).unwrap_err();
    assert_eq!(unknown.to_string(), "rule 7 is not prepared");
    assert_ne!(KeyHash::from_bits(0).fingerprint(), 0);
}
