//! Compares the decisions of Rust and Lua over random rules, costs and times: 2 000 requests of
//! every algorithm, or a million with `EARRRL_LONG=1`.
#![allow(clippy::unwrap_used, clippy::panic)]

use std::time::Duration;

use earrrl::algorithm::Visitor;
use earrrl::{Action, Cost, Limit, Nanos, Rule};
use earrrl_redis::{Options, RedisEngine, WhenGone, check_rule};
use earrrl_testing::{Lockstep, Operation, Profile, Random};

use crate::support::{PATIENCE, Server};

/// The number of requests under one rule before the next random rule.
const STRETCH: usize = 500;

fn requests() -> usize {
    if std::env::var_os("EARRRL_LONG").is_some() {
        1_000_000
    } else {
        2_000
    }
}

/// Returns a random number of two or three digits, from a thousandth to many thousands.
fn number(random: &mut Random, powers: i32) -> f64 {
    let power = random.below(2 * powers as u64 + 1) as i32 - powers;
    (1 + random.below(999)) as f64 * 10f64.powi(power - 1)
}

fn whole(random: &mut Random) -> u64 {
    1 + random.below(*random.clone().pick(&[5, 20, 1000, 9_000_000]))
}

/// Returns a duration in the rule grammar, and its seconds.
fn span(random: &mut Random) -> (&'static str, f64) {
    *random.pick(&[
        ("1ms", 1e-3),
        ("250ms", 0.25),
        ("1s", 1.0),
        ("7s", 7.0),
        ("1m", 60.0),
        ("1h", 3600.0),
        ("30d", 2.592e6),
        ("400d", 3.456e7),
    ])
}

/// The most random rules that are drawn until one is valid; some pools would take too long to fill.
const TRIES: usize = 100;

/// Returns a random rule of an algorithm, and the seconds in which it lets about one request pass.
fn rule(algorithm: &str, random: &mut Random) -> (Rule, f64) {
    let mut refused = String::new();
    for _ in 0..TRIES {
        let (text, pace) = rule_text(algorithm, random);
        match text
            .parse::<Rule>()
            .and_then(|rule| check_rule(&rule).map(|()| rule))
        {
            Ok(rule) => return (varied(rule, pace, random), pace),
            Err(error) => refused = format!("`{text}`: {error}"),
        }
    }
    panic!("{algorithm}: none of {TRIES} rules is valid, such as {refused}")
}

fn rule_text(algorithm: &str, random: &mut Random) -> (String, f64) {
    let (span, secs) = span(random);
    let policy = *random.pick(&["strict", "leaky"]);
    let quota = whole(random);
    match algorithm {
        "recent-average" => {
            let rate = number(random, 2);
            (
                format!("recent-average {rate:.5}/1s half-life={span} {policy}"),
                1.0 / rate,
            )
        }
        "exponential" => (
            format!("exponential {quota}/{span} {policy}"),
            secs / quota as f64,
        ),
        "token-bucket" => {
            let rate = whole(random);
            (
                format!("token-bucket {quota} refill={rate}/{span}"),
                secs / rate as f64,
            )
        }
        "sliding-window" => {
            let parts = 1 + random.below(70);
            let edge = *random.pick(&["harsh", "lenient"]);
            let text = format!("sliding-window {quota}/{span} sub-windows={parts} {edge} {policy}");
            (text, secs / quota as f64)
        }
        "sliding-log" => {
            let quota = quota.min(1000);
            (
                format!("sliding-log {quota}/{span} {policy}"),
                secs / quota as f64,
            )
        }
        "fixed-window" if random.below(3) == 0 => {
            let (period, days) = *random.pick(&[
                ("day tz=Australia/Lord_Howe", 1.0),
                ("week", 7.0),
                ("month from=30 tz=America/Sao_Paulo", 30.0),
                ("year from=02-29 tz=Europe/Berlin", 365.0),
            ]);
            let text = format!("fixed-window {quota}/{period} {policy}");
            (text, days * 86_400.0 / quota as f64)
        }
        other => (
            format!("{other} {quota}/{span} {policy}"),
            secs / quota as f64,
        ),
    }
}

/// Adds properties that a rule's text cannot express: a small log, or a delay.
fn varied(rule: Rule, pace: f64, random: &mut Random) -> Rule {
    let rule = match *rule.limit() {
        Limit::SlidingLog(log) if random.below(2) == 0 => {
            log.with_max_entries(1 + random.below(30) as usize).into()
        }
        _ => rule,
    };
    let max = Duration::from_secs_f64(pace * random.below(10) as f64);
    match rule.clone().with_action(Action::Delay { max }) {
        Ok(delayed) if random.below(4) == 0 && check_rule(&delayed).is_ok() => delayed,
        _ => rule,
    }
}

fn cost(random: &mut Random) -> Cost {
    let text = random.pick(&[
        "1",
        "1",
        "1",
        "1",
        "1",
        "0",
        "2",
        "3",
        "0.1",
        "0.000000001",
        "50",
    ]);
    text.parse().unwrap()
}

/// Returns a random amount to refund. For a recent average it is small, since after a large refund
/// the remaining count is known less precisely.
fn refund(algorithm: &str, random: &mut Random) -> Cost {
    if algorithm == "recent-average" {
        "0.01".parse().unwrap()
    } else {
        cost(random)
    }
}

/// Returns the time of the next request: the same instant, about as fast as is allowed, or much
/// later.
fn gap(random: &mut Random, pace: f64) -> Duration {
    let paces = match random.below(10) {
        0..=3 => 0.0,
        4..=7 => random.unit(),
        8 => 2.0,
        _ => 40.0 * random.unit(),
    };
    Duration::from_secs_f64((pace * paces).min(3e6))
}

async fn agree(algorithm: &str, seed: u64) {
    let server = Server::start(&[]).await;
    let mut random = Random::new(seed);
    let mut compared = 0;
    while compared < requests() {
        let mut options = Options::new(&server.url());
        options.prefix = format!("stretch{compared}-");
        options.linger = Duration::from_secs(3600);
        options.deadline = PATIENCE;
        options.when_gone = WhenGone::Deny;
        let engine = RedisEngine::connect(options, PATIENCE).await.unwrap();
        assert!(engine.ready(PATIENCE).await);
        let (rule, pace) = rule(algorithm, &mut random);
        let scene = rule.to_string();
        let mut lockstep =
            Lockstep::new(&scene, engine, std::slice::from_ref(&rule), &Profile::REDIS).unwrap();
        let mut now = Nanos::from_secs(1_700_000_000 + random.below(100_000_000));
        let mut last = now;
        for _ in 0..STRETCH {
            now = lockstep.rounded(now + gap(&mut random, pace));
            let operation = match random.below(20) {
                0 => Operation::Refund(last),
                1 => Operation::Peek,
                _ => Operation::Check,
            };
            let amount = match operation {
                Operation::Refund(_) => refund(algorithm, &mut random),
                _ => cost(&mut random),
            };
            let charge = (0, random.pick(&[&b"a"[..], b"b"]).to_owned(), amount);
            let asked = lockstep.ask(operation, &[charge], now).await;
            asked.unwrap_or_else(|error| panic!("{error}"));
            last = if operation == Operation::Check {
                now
            } else {
                last
            };
        }
        compared += lockstep.compared;
        server.command::<String>(&["FLUSHALL", "ASYNC"]).unwrap();
    }
}

macro_rules! algorithms {
    ($($name:ident $Algorithm:ident $text:literal $seed:literal)*; $($reserved:ident $Reserved:ident $word:literal)*) => {
        $(
            #[tokio::test]
            async fn $name() {
                agree($text, $seed).await;
            }
        )*

        const ALGORITHMS: &[&str] = &[$($text),*];

        /// Fails to compile if the list lacks an algorithm. Those after the semicolon are reserved and
        /// not checked, so another file tests them.
        pub(crate) struct Listed;

        impl<'a> Visitor<'a> for Listed {
            type Out = &'static str;
            $(
                fn $name(self, _: &'a earrrl::algorithm::$Algorithm) -> &'static str {
                    $text
                }
            )*
            $(
                fn $reserved(self, _: &'a earrrl::algorithm::$Reserved) -> &'static str {
                    $word
                }
            )*
        }
    };
}

#[test]
fn every_algorithm_makes_rules_of_its_own() {
    let mut random = Random::new(8);
    for name in ALGORITHMS {
        assert_eq!(rule(name, &mut random).0.limit().visit(Listed), *name);
    }
}

algorithms! {
    recent_average RecentAverage "recent-average" 1
    exponential Exponential "exponential" 2
    token_bucket TokenBucket "token-bucket" 3
    fixed_window FixedWindow "fixed-window" 4
    sliding_log SlidingLog "sliding-log" 5
    sliding_window SlidingWindow "sliding-window" 6
    sliding_counter SlidingCounter "sliding-counter" 7;
    concurrent Concurrent "concurrent"
}
