//! Tests the properties of commits on Redis under every algorithm, with random reservations.
#![allow(clippy::unwrap_used, clippy::panic)]

use std::time::Duration;

use earrrl::{Actual, Charge, Cost, Engine, HoldId, HoldTerms, Mode, Nanos, RuleId};
use earrrl_redis::{Options, RedisEngine};
use earrrl_testing::Random;

use crate::reservations::{node, prepare};
use crate::support::Server;

const START: Nanos = Nanos::from_secs(1_800_000_000);
/// The cost of each client's first request, which no bucket refills within a test.
const FIRST: u64 = 400;

/// Rules of every algorithm, each with the units by which the figures may differ from exact ones: those of
/// averages are rounded down.
const RULES: [(&str, u64); 8] = [
    ("recent-average 1000/h half-life=20m", 1),
    ("exponential 1000/1h", 1),
    ("token-bucket 1000 refill=1/s", 0),
    ("gcra 1/s burst=1000", 0),
    ("fixed-window 1000/1h", 0),
    ("sliding-log 1000/1h", 0),
    ("sliding-window 1000/1h sub-windows=60", 0),
    ("sliding-counter 1000/1h", 0),
];

/// A client under one rule.
struct Client<'a> {
    engine: &'a RedisEngine,
    rule: RuleId,
    key: String,
}

/// A reservation: its id, its estimate and its actual cost.
type Pending = (HoldId, u64, u64);

impl Client<'_> {
    fn charge(&self, cost: u64) -> Charge<'_> {
        Charge {
            rule: self.rule,
            key: self.key.as_bytes(),
            cost: Cost::from_units(cost),
        }
    }

    /// Sends a request, which is allowed. One of cost 0 was never sent.
    async fn check(&self, cost: u64, now: Nanos) {
        if cost > 0 {
            let asked = [self.charge(cost)];
            assert!(
                self.engine
                    .decide(&asked, Mode::Check, Some(now))
                    .await
                    .unwrap()
                    .allowed
            );
        }
    }

    async fn remaining(&self, now: Nanos) -> u64 {
        let peek = self
            .engine
            .decide(&[self.charge(1)], Mode::Peek, Some(now))
            .await;
        peek.unwrap().remaining
    }

    async fn hold(&self, cost: u64, now: Nanos) -> HoldId {
        let holding = self
            .engine
            .hold(&[self.charge(cost)], HoldTerms::default(), Some(now))
            .await;
        holding.unwrap().id.unwrap()
    }

    /// Commits a reservation, which frees at most its estimate. The figures are those of a peek.
    async fn commit(&self, (id, estimate, actual): Pending, now: Nanos, slack: u64) {
        let before = self.remaining(now).await;
        let actual = Actual::All(Cost::from_units(actual));
        let committed = self.engine.commit(id, actual, Some(now)).await.unwrap();
        let freed = committed.decision.remaining.saturating_sub(before);
        assert!(freed <= estimate + slack, "{freed} of {estimate}");
        let peeked = self
            .engine
            .decide(&[self.charge(1)], Mode::Peek, Some(now))
            .await
            .unwrap();
        assert_eq!(committed.decision, peeked);
    }
}

/// Makes the same random requests of one client in several ways, and compares what is left of the quota.
async fn compare(engine: &RedisEngine, rule: RuleId, nth: u64, (text, slack): (&str, u64)) {
    let of = |way: &str| Client {
        engine,
        rule,
        key: format!("{way}-{nth}"),
    };
    let one = of("committed");
    let other = of("in another order");
    let estimated = of("estimated");
    let checked = of("checked");
    let exact = of("exact");
    for client in [&one, &other, &estimated, &checked, &exact] {
        client.check(FIRST, START).await;
    }
    let mut random = Random::new(nth);
    let mut now = START;
    let mut ones = Vec::new();
    let mut others = Vec::new();
    let mut difference = 0;
    for _ in 0..1 + random.below(5) {
        now = now + Duration::from_millis(random.below(10_000));
        let estimate = 1 + random.below(20);
        let actual = random.below(28).saturating_sub(7);
        difference += estimate.abs_diff(actual);
        ones.push((one.hold(estimate, now).await, estimate, actual));
        others.push((other.hold(estimate, now).await, estimate, actual));
        let same = (estimated.hold(estimate, now).await, estimate, estimate);
        estimated.commit(same, now, slack).await;
        checked.check(estimate, now).await;
        exact.check(actual, now).await;
    }
    for pending in ones {
        one.commit(pending, now, slack).await;
    }
    while !others.is_empty() {
        let next = others.swap_remove(random.below(others.len() as u64) as usize);
        other.commit(next, now, slack).await;
    }
    assert_eq!(
        estimated.remaining(now).await,
        checked.remaining(now).await,
        "{text}, {nth}"
    );
    // The bound of an exponential average is the difference of the costs, in either order.
    let slack = if text.starts_with("exponential") {
        difference + 1
    } else {
        slack
    };
    let wanted = exact.remaining(now).await;
    for client in [&one, &other] {
        let found = client.remaining(now).await;
        assert!(
            found.abs_diff(wanted) <= slack,
            "{text}, {}: {found}, {wanted}",
            client.key
        );
    }
}

/// A commit of the estimate leaves what a check leaves, one of 0 as if the client had never asked, and commits
/// in any order leave what the actual costs alone leave.
#[tokio::test]
async fn commits_leave_what_the_actual_costs_leave_in_any_order() {
    let server = Server::start(&[]).await;
    let engine = node(Options::new(&server.url())).await;
    let rounds = if std::env::var_os("EARRRL_LONG").is_some() {
        300
    } else {
        15
    };
    for (number, rule) in RULES.into_iter().enumerate() {
        let id = prepare(&engine, &format!("rule-{number}"), rule.0);
        for nth in 0..rounds {
            compare(&engine, id, nth, rule).await;
        }
    }
}

/// A commit changes nothing once the window of its reservation has passed, even if the client has sent
/// requests since.
#[tokio::test]
async fn an_excess_goes_with_the_window_of_its_reservation() {
    const WINDOWS: [&str; 5] = [
        "fixed-window 20/2s",
        "sliding-log 20/2s",
        "sliding-window 20/2s sub-windows=2",
        "sliding-window 20/2s sub-windows=2 lenient",
        "sliding-counter 20/2s",
    ];
    let server = Server::start(&[]).await;
    let engine = node(Options::new(&server.url())).await;
    for (number, text) in WINDOWS.into_iter().enumerate() {
        let rule = prepare(&engine, &format!("window-{number}"), text);
        let client = Client {
            engine: &engine,
            rule,
            key: "alice".to_owned(),
        };
        // An engine's time never goes back.
        let start = START + Duration::from_secs(10) * number as u32;
        let later = start + Duration::from_millis(4100);
        let first = client.hold(10, start).await;
        client.hold(5, later).await;
        for (actual, repeated) in [(15, false), (0, true)] {
            let actual = Actual::All(Cost::from_units(actual));
            let committed = engine.commit(first, actual, Some(later)).await.unwrap();
            assert_eq!(committed.repeated, repeated);
            assert_eq!(client.remaining(later).await, 15, "{text}");
        }
    }
}
