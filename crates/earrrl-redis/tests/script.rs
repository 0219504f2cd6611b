//! Tests of `contrib/redis/recent-average.lua`, the script that limits without an engine.
#![allow(clippy::unwrap_used, clippy::panic)]

use earrrl::{Cost, Limiter, ManualClock, Nanos, Rule};
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};

use crate::support::Server;

const SCRIPT: &str = include_str!("../../../contrib/redis/recent-average.lua");

/// What the script answers: allowed, the rate, and the wait in seconds.
struct Answer {
    allowed: bool,
    rate: f64,
    retry_after: f64,
}

fn ask(server: &Server, key: &str, arguments: &[&str]) -> Result<Answer, String> {
    let command = [&["EVAL", SCRIPT, "1", key], arguments].concat();
    let (_, allowed, _, rate, _, retry_after): (String, u8, String, f64, String, f64) = server
        .command(&command)
        .map_err(|error| error.to_string())?;
    Ok(Answer {
        allowed: allowed == 1,
        rate,
        retry_after,
    })
}

/// The article asked once a second under 0.5/s with a half-life of 10 s, and once more after 10 s.
#[tokio::test]
async fn the_script_repeats_the_articles_run() {
    let server = Server::start(&[]).await;
    let estimates = [
        (0, 0.0),
        (1, 0.0646729187453149),
        (2, 0.125014885593673),
        (5, 0.282859571841073),
        (10, 0.482871493213419),
        (11, 0.515207952586076),
        (70, 0.958198119345378),
        (80, 0.513756418700686),
    ];
    let times = (0..=70).chain([80]);
    let answers: Vec<(u32, Answer)> = times
        .map(|time| {
            let arguments = ["0.5", "10", "1", "strict", &time.to_string()];
            (time, ask(&server, "client", &arguments).unwrap())
        })
        .collect();
    for (time, estimate) in estimates {
        let (_, answer) = answers.iter().find(|(at, _)| *at == time).unwrap();
        assert!(
            (answer.rate - estimate).abs() < 1e-12,
            "{time}: {}",
            answer.rate
        );
        assert_eq!(answer.allowed, time < 11, "{time}");
    }
}

#[tokio::test]
async fn the_script_agrees_with_the_engine() {
    let server = Server::start(&[]).await;
    let requests = proptest::collection::vec((0u64..20_000, 0u32..4), 1..60);
    let histories = (any::<bool>(), 1u32..40, 1u32..30, requests);
    let config = Config {
        failure_persistence: None,
        ..Config::with_cases(100)
    };
    let number = std::cell::Cell::new(0);
    TestRunner::new(config)
        .run(&histories, |(strict, tenths, half_life, requests)| {
            number.set(number.get() + 1);
            let mode = if strict { "strict" } else { "leaky" };
            let limit = format!("{}", f64::from(tenths) / 10.0);
            let rule = format!("recent-average {limit}/s half-life={half_life}s {mode}");
            let rule: Rule = rule.parse().unwrap();
            let limiter = Limiter::<str>::builder(rule)
                .clock(ManualClock::new(Nanos::ZERO))
                .build()
                .unwrap();
            let mut now = 0;
            for (pause, cost) in requests {
                now += pause;
                let time = format!("{}", now as f64 / 1e3);
                let arguments = [
                    &*limit,
                    &half_life.to_string(),
                    &cost.to_string(),
                    mode,
                    &time,
                ];
                let answer = ask(&server, &number.get().to_string(), &arguments).unwrap();
                let cost = Cost::from_units(u64::from(cost));
                let verdict = limiter
                    .check_at("client", cost, Nanos::new(now * 1_000_000))
                    .unwrap();
                prop_assert_eq!(answer.allowed, verdict.is_allowed());
                let rate = verdict.rate().unwrap();
                prop_assert!(
                    (answer.rate - rate).abs() <= rate * 1e-6,
                    "{} {}",
                    answer.rate,
                    rate
                );
                let wait = verdict
                    .decision()
                    .earliest()
                    .duration()
                    .map_or(0.0, |wait| wait.as_secs_f64());
                prop_assert!((answer.retry_after - wait).abs() <= 2e-6 + wait * 1e-6);
            }
            Ok(())
        })
        .unwrap();
}

#[tokio::test]
async fn the_script_names_what_is_wrong_and_keeps_nothing_for_ever() {
    let server = Server::start(&[]).await;
    let mistakes: [(&[&str], &str); 5] = [
        (&[], "limit: ``"),
        (&["0", "10"], "limit: `0`"),
        (&["1", "soon"], "half-life: `soon`"),
        (&["1", "10", "-1"], "cost: `-1`"),
        (&["1", "10", "1", "harsh"], "mode: `harsh`"),
    ];
    for (arguments, mistake) in mistakes {
        let error = ask(&server, "client", arguments).err().unwrap();
        assert!(error.contains(mistake), "{error}");
    }
    assert!(ask(&server, "client", &["1", "10", "0"]).unwrap().allowed);
    assert_eq!(server.command::<u8>(&["EXISTS", "client"]).unwrap(), 0);
    assert!(ask(&server, "client", &["1", "10"]).unwrap().allowed);
    let lives: i64 = server.command(&["PTTL", "client"]).unwrap();
    assert!((290_000..310_000).contains(&lives), "{lives}");
}
