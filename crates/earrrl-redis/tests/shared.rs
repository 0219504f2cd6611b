//! Tests that processes with a common Redis share counts, clock and answers.
#![allow(clippy::unwrap_used, clippy::panic)]

use std::process::{Command, Stdio};
use std::time::Duration;

use earrrl::{Charge, Cost, Decision, Engine, Mode, Nanos, RuleId};
use earrrl_redis::{ClientKeys, EngineMode, Options, RedisEngine};
use redis::FromRedisValue;

use crate::support;
use crate::support::cluster::Cluster;
use crate::support::{PATIENCE, Server};

const PROCESSES: usize = 8;
/// Rules, and the number of requests of cost 1 that each admits at one instant from idle.
pub(crate) const BURSTS: [(&str, usize); 7] = [
    ("recent-average 1/s half-life=1h leaky", 5194),
    ("exponential 300/1h", 300),
    ("gcra 1/1h burst=300", 300),
    ("fixed-window 300/3650d", 300),
    ("sliding-log 300/3650d", 300),
    ("sliding-window 300/3650d", 300),
    ("sliding-counter 300/3650d", 300),
];
/// The address of a worker's server, and the rule that it uses.
const WORK: &str = "EARRRL_REDIS_TEST_WORK";

fn patient(url: &str) -> Options {
    let mut options = Options::new(url);
    options.deadline = PATIENCE;
    options
}

async fn connect(options: Options) -> RedisEngine {
    let engine = RedisEngine::connect(options, PATIENCE).await.unwrap();
    assert!(engine.ready(PATIENCE).await, "{:?}", engine.status());
    engine
}

async fn ask(engine: &RedisEngine, rule: RuleId, key: &[u8], now: Option<Nanos>) -> Decision {
    engine
        .decide(
            &[Charge {
                rule,
                key,
                cost: Cost::ONE,
            }],
            Mode::Check,
            now,
        )
        .await
        .unwrap()
}

/// Is not a test by itself, but the code of the processes that another test starts.
#[tokio::test]
async fn worker() {
    let Ok(work) = std::env::var(WORK) else {
        return;
    };
    let (url, place) = work.split_once(' ').unwrap();
    let (text, burst) = BURSTS[place.parse::<usize>().unwrap()];
    let engine = connect(patient(url)).await;
    let rule = engine.prepare("shared", &text.parse().unwrap()).unwrap();
    let now = Some(Nanos::from_secs(1_700_000_000));
    let mut allowed = 0;
    for _ in 0..burst / 2 {
        allowed += usize::from(ask(&engine, rule, b"one key", now).await.allowed);
    }
    println!("allowed {allowed}");
}

/// The async runtime suspends a task that has used up its time slice; this must not reorder the
/// task's requests.
#[tokio::test]
async fn what_a_task_asks_at_once_is_decided_in_order() {
    let server = Server::start(&[]).await;
    let engine = connect(patient(&server.url())).await;
    let rule = engine
        .prepare("shared", &"gcra 1/1h burst=1000".parse().unwrap())
        .unwrap();
    // Scripts that Redis does not have yet are called for some requests.
    let prepare = |(text, _): &(&str, usize)| {
        engine
            .prepare(text.split(' ').next().unwrap(), &text.parse().unwrap())
            .unwrap()
    };
    let others: Vec<_> = BURSTS.iter().map(prepare).collect();
    let rules = (0..1000).flat_map(|place| {
        let other = (place % 32 < 7).then(|| others[place / 32 % others.len()]);
        [Some(rule), other].into_iter().flatten()
    });
    let rules: Vec<_> = rules.collect();
    let requests = rules
        .iter()
        .map(|rule| ask(&engine, *rule, b"one key", None));
    let decisions = futures_util::future::join_all(requests).await;
    let remaining = rules.iter().zip(&decisions).filter(|(of, _)| **of == rule);
    let remaining: Vec<_> = remaining.map(|(_, decision)| decision.remaining).collect();
    assert_eq!(remaining, (0..1000).rev().collect::<Vec<_>>());
}

/// Requests that arrive together are decided by few calls of a script, each as if it had come alone.
#[tokio::test]
async fn what_arrives_together_is_sent_together() {
    let server = Server::start(&[]).await;
    let engine = connect(patient(&server.url())).await;
    let prepare = |(place, (text, _)): (usize, &(&str, usize))| {
        engine
            .prepare(
                &format!("rule-{place}"),
                &text.replace("300", "3").parse().unwrap(),
            )
            .unwrap()
    };
    let rules: Vec<_> = BURSTS.iter().enumerate().skip(1).map(prepare).collect();
    let now = Some(Nanos::from_secs(1_700_000_000));
    ask(&engine, rules[0], b"other", now).await;
    let other = support::key_of(&server, "other", "rule-1");
    server.command::<i64>(&["DEL", &other]).unwrap();
    server.command::<i64>(&["LPUSH", &other, "a list"]).unwrap();
    let calls = || support::called(&server, "evalsha");
    let before = calls();
    // Five requests of two clients under each of six rules, some with several charges, and one client
    // whose key has another type.
    let charges = |rule, key| {
        vec![Charge {
            rule,
            key,
            cost: Cost::ONE,
        }]
    };
    let mut requests = Vec::new();
    for _ in 0..5 {
        for key in [&b"a"[..], b"b"] {
            requests.extend(rules.iter().map(|rule| charges(*rule, key)));
        }
    }
    requests.insert(30, charges(rules[0], b"other"));
    let all = rules.iter().map(|rule| Charge {
        rule: *rule,
        key: b"c",
        cost: Cost::ONE,
    });
    requests.insert(20, all.collect());
    let decisions = requests
        .iter()
        .map(|charges| engine.decide(charges, Mode::Check, now));
    let decisions = futures_util::future::join_all(decisions).await;
    let allowed = |rule: RuleId, key: &[u8]| {
        let of = |charges: &Vec<Charge<'_>>| {
            charges.len() == 1 && charges[0].rule == rule && charges[0].key == key
        };
        let decisions = requests
            .iter()
            .zip(&decisions)
            .filter(|(charges, _)| of(charges));
        decisions
            .map(|(_, decision)| decision.as_ref().unwrap().allowed)
            .collect::<Vec<_>>()
    };
    for &rule in &rules {
        for key in [&b"a"[..], b"b"] {
            assert_eq!(
                allowed(rule, key),
                [true, true, true, false, false],
                "{rule:?}"
            );
        }
    }
    assert!(decisions[20].as_ref().unwrap().allowed);
    let counts = engine.status().counts;
    assert_eq!(
        (counts.shared, counts.alone, counts.unusable),
        (62, 1, 1),
        "the list is left alone"
    );
    let calls = calls() - before;
    assert!(calls <= 8, "{calls} calls");
}

#[tokio::test]
async fn eight_processes_admit_what_one_would() {
    for (place, (text, burst)) in BURSTS.iter().enumerate() {
        let server = Server::start(&[]).await;
        let start = |_| {
            Command::new(std::env::current_exe().unwrap())
                .args(["--exact", "shared::worker", "--nocapture"])
                .env(WORK, format!("{} {place}", server.url()))
                .stdout(Stdio::piped())
                .spawn()
                .unwrap()
        };
        let processes: Vec<_> = (0..PROCESSES).map(start).collect();
        let mut allowed = 0;
        for process in processes {
            let output = String::from_utf8(process.wait_with_output().unwrap().stdout).unwrap();
            let line = output.lines().find_map(|line| line.split_once("allowed "));
            allowed += line.unwrap().1.trim().parse::<usize>().unwrap();
        }
        assert_eq!(allowed, *burst, "{text}");
    }
}

/// The experiment of the EARRRL article: a request about every second, with the gaps of its printed
/// run.
#[tokio::test]
async fn the_article_s_run_gives_its_printed_estimates() {
    let server = Server::start(&[]).await;
    let engine = connect(patient(&server.url())).await;
    let text = "recent-average 0.5/s half-life=10s strict";
    let rule = engine.prepare("article", &text.parse().unwrap()).unwrap();
    let run = std::fs::read_to_string(concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../../testdata/vectors/redis_run.json"
    ));
    let run: serde_json::Value = serde_json::from_str(&run.unwrap()).unwrap();
    let mut seconds = 0.0;
    let at = |seconds: f64| {
        Some(Nanos::new(
            1_700_000_000_000_000_000 + (seconds * 1e9) as u64,
        ))
    };
    for request in 0..=70_usize {
        if request > 0 {
            let gap = run["gaps_s"][request - 1].as_f64();
            seconds += gap.unwrap_or(run["gap_to_70_s"].as_f64().unwrap());
        }
        let decision = ask(&engine, rule, b"user_id_123", at(seconds)).await;
        if let Some(printed) = run["printed"][request.to_string()].as_f64() {
            let rate = decision.rate.unwrap();
            let tolerance = if request < 70 { 1e-7 } else { 1e-4 };
            assert!(
                (rate - printed).abs() < tolerance,
                "request {request}: {rate}, not {printed}"
            );
            assert_eq!(decision.allowed, request < 11, "request {request}");
        }
    }
    seconds += run["last_sleep_s"].as_f64().unwrap();
    let rate = ask(&engine, rule, b"user_id_123", at(seconds))
        .await
        .rate
        .unwrap();
    assert!((rate - run["printed"]["70+10s"].as_f64().unwrap()).abs() < 1e-4);
}

/// If the caller gives no time, Redis's clock counts.
#[tokio::test]
async fn redis_tells_the_time() {
    let server = Server::start(&[]).await;
    let engine = connect(patient(&server.url())).await;
    let rule = engine
        .prepare("clock", &"gcra 1/1h burst=2".parse().unwrap())
        .unwrap();
    let answers = [
        ask(&engine, rule, b"k", None).await,
        ask(&engine, rule, b"k", None).await,
        ask(&engine, rule, b"k", None).await,
    ];
    assert_eq!(answers.map(|answer| answer.allowed), [true, true, false]);
    let time: Vec<u64> = server.command(&["TIME"]).unwrap();
    let record: Vec<u8> = server
        .command(&["GET", &support::key_of(&server, "k", "clock")])
        .unwrap();
    let full_at = record[1..8]
        .iter()
        .rev()
        .fold(0, |all, byte| all << 8 | u64::from(*byte));
    assert!((full_at / 1_000_000).abs_diff(time[0] + 7200) <= PATIENCE.as_secs());
}

/// A record expires as soon as it can no longer change a decision.
#[tokio::test]
async fn records_expire_when_they_say_nothing_any_more() {
    let server = Server::start(&[]).await;
    // An average decays from a hundred times the limit to a billionth in 25.3 periods, and its
    // expiry is set in steps of a factor of two. The other algorithms are as if unused at
    // `reset_after`.
    let period = 10.0 / std::f64::consts::LN_2;
    for (text, least, most) in [
        (
            "recent-average 1/s half-life=10s",
            25.3 * period,
            27.5 * period,
        ),
        ("exponential 60/1m", 25.3 * 60.0, 27.5 * 60.0),
        ("gcra 1/s burst=60", 1.0, 17.1),
        ("fixed-window 5/1h", 0.0, 3601.1),
        ("sliding-counter 5/1h", 3600.0, 7201.1),
        ("sliding-log 5/1h", 3599.0, 4501.1),
        ("sliding-window 5/1h sub-windows=60", 3599.0, 3661.1),
    ] {
        let name = text.split(' ').next().unwrap();
        let engine = connect(patient(&server.url())).await;
        let rule = engine.prepare(name, &text.parse().unwrap()).unwrap();
        let now = Some(Nanos::from_secs(1_700_000_000));
        let life = |when: &str| {
            let keys: Vec<String> = server
                .command(&["KEYS", &format!("earrrl2:{{k}}:{name}:*")])
                .unwrap();
            let left: i64 = server.command(&["PTTL", &keys[0]]).unwrap();
            let left = left as f64 / 1e3;
            assert!(
                (least..=most).contains(&left),
                "{text}, {when}: {left} s, not {least} to {most}"
            );
        };
        ask(&engine, rule, b"k", now).await;
        life("new");
        for second in 0..50 {
            let now = Some(Nanos::from_secs(1_700_000_000 + second * 10));
            ask(&engine, rule, b"k", now).await;
        }
        life("used");
    }
}

/// While servers change a rule's algorithm one by one, each algorithm counts all requests of its
/// servers.
#[tokio::test]
async fn algorithms_that_take_turns_count_in_full() {
    let server = Server::start(&[]).await;
    let texts = [
        "gcra 1/1h burst=10",
        "fixed-window 10/3650d",
        "recent-average 10/1h half-life=10h",
    ];
    let mut engines = Vec::new();
    for text in texts {
        let engine = connect(patient(&server.url())).await;
        let rule = engine.prepare("login", &text.parse().unwrap()).unwrap();
        engines.push((engine, rule));
    }
    let mut allowed = [0; 3];
    for _ in 0..400 {
        for ((engine, rule), allowed) in engines.iter().zip(&mut allowed) {
            *allowed += u32::from(ask(engine, *rule, b"k", None).await.allowed);
        }
    }
    assert_eq!(allowed[..2], [10, 10]);
    assert!((100..200).contains(&allowed[2]), "{allowed:?}");
}

/// A changed rate, burst or quota applies to the records that are there; a changed half-life, window or
/// algorithm begins afresh, and going back finds the earlier records.
#[tokio::test]
async fn records_are_named_by_what_they_mean() {
    let server = Server::start(&[]).await;
    let engine = connect(patient(&server.url())).await;
    let now = |secs: u64| Some(Nanos::from_secs(1_700_000_000 + secs));
    for (old, new, before, after) in [
        ("fixed-window 10/1h", "fixed-window 20/1h", 6, 15),
        ("fixed-window 10/1h", "fixed-window 20/2h", 6, 19),
        ("sliding-log 10/1h", "sliding-log 20/1h", 6, 15),
        (
            "sliding-window 10/1h",
            "sliding-window 10/1h sub-windows=10",
            6,
            9,
        ),
        ("sliding-counter 10/1h", "sliding-counter 20/1h", 6, 15),
        (
            "recent-average 10/1h period=1h leaky",
            "recent-average 20/1h period=1h leaky",
            7,
            16,
        ),
        (
            "recent-average 10/1h period=1h leaky",
            "recent-average 10/2h period=2h leaky",
            7,
            10,
        ),
        ("exponential 10/1h", "exponential 20/1h", 6, 15),
        ("gcra 1/1h burst=10", "gcra 1/1h burst=20", 6, 15),
        // The time at which a bucket is full is kept.
        ("gcra 1/1h burst=10", "gcra 1/2h burst=10", 6, 7),
        ("gcra 1/1h burst=10", "fixed-window 10/1h", 6, 9),
    ] {
        let rule = engine.prepare("rule", &old.parse().unwrap()).unwrap();
        for _ in 0..3 {
            ask(&engine, rule, b"k", now(0)).await;
        }
        assert_eq!(
            ask(&engine, rule, b"k", now(0)).await.remaining,
            before,
            "{old}"
        );
        engine.prepare("rule", &new.parse().unwrap()).unwrap();
        let left = ask(&engine, rule, b"k", now(0)).await.remaining;
        assert!(
            left.abs_diff(after) <= u64::from(old.starts_with("exp")),
            "{old}, {new}: {left}"
        );
        engine.prepare("rule", &old.parse().unwrap()).unwrap();
        let charge = Charge {
            rule,
            key: b"k",
            cost: Cost::ONE,
        };
        let back = engine
            .decide(&[charge], Mode::Peek, now(0))
            .await
            .unwrap()
            .remaining;
        assert!(back <= before, "{old}: {back}");
        server.command::<String>(&["FLUSHALL"]).unwrap();
    }
}

/// A raised refill bounds the wait of a stored bucket by that of an empty one.
#[tokio::test]
async fn a_faster_refill_ends_long_waits() {
    let server = Server::start(&[]).await;
    let engine = connect(patient(&server.url())).await;
    let now = Some(Nanos::from_secs(1_700_000_000));
    let rule = engine
        .prepare("rule", &"gcra 1/1d burst=10".parse().unwrap())
        .unwrap();
    for _ in 0..11 {
        ask(&engine, rule, b"k", now).await;
    }
    engine
        .prepare("rule", &"gcra 10/s burst=10".parse().unwrap())
        .unwrap();
    let wait = ask(&engine, rule, b"k", now).await.retry_after;
    assert!(
        wait.duration().unwrap() <= Duration::from_millis(101),
        "{wait:?}"
    );
}

/// Some Redis-compatible servers reject keys that a script does not declare, and a user may lack
/// the right to use them.
#[tokio::test]
async fn receipts_are_declared_and_probed() {
    let server = Server::start(&["--slowlog-log-slower-than", "0"]).await;
    let engine = connect(patient(&server.url())).await;
    let rule = engine
        .prepare("login", &"gcra 1/1h burst=10".parse().unwrap())
        .unwrap();
    ask(&engine, rule, b"declared", None).await;
    let slow: Vec<Vec<redis::Value>> = server.command(&["SLOWLOG", "GET", "100"]).unwrap();
    let words = |entry: &Vec<redis::Value>| -> Vec<String> {
        let words = Vec::<Vec<u8>>::from_redis_value_ref(&entry[3]).unwrap();
        words
            .iter()
            .map(|word| String::from_utf8_lossy(word).into_owned())
            .collect()
    };
    let is_call =
        |words: &Vec<String>| words[0].starts_with("EVAL") && words[3].contains("{declared}");
    let call = slow.iter().map(words).find(is_call).unwrap();
    assert_eq!(call[2], "2", "{call:?}");
    assert!(call[4].contains("receipts"), "{call:?}");

    let words = [
        "ACL",
        "SETUSER",
        "limiter",
        "on",
        ">secret",
        "~earrrl2:{*",
        "~earrrl2:probe*",
        "+@all",
    ];
    server.command::<String>(&words).unwrap();
    let url = format!("redis://limiter:secret@127.0.0.1:{}", server.port);
    let engine = RedisEngine::new(patient(&url)).unwrap();
    support::until("the probe's receipt is refused", || {
        engine
            .status()
            .last_failure
            .is_some_and(|why| why.contains("permission"))
    })
    .await;
    assert_ne!(engine.status().mode, EngineMode::Shared);
}

/// Buckets that take decades to fill deny requests, and buckets that Redis cannot count are
/// rejected.
#[tokio::test]
async fn the_slowest_buckets_deny() {
    let server = Server::start(&[]).await;
    let engine = connect(patient(&server.url())).await;
    let slow = engine
        .prepare("slow", &"token-bucket 100 refill=1/365d".parse().unwrap())
        .unwrap();
    let mut allowed = 0;
    for _ in 0..150 {
        allowed += usize::from(ask(&engine, slow, b"k", None).await.allowed);
    }
    assert_eq!(allowed, 100);
    let error = engine.prepare("slower", &"token-bucket 400 refill=1/365d".parse().unwrap());
    let error = error.unwrap_err().to_string();
    assert!(error.contains("hundred years"), "{error}");
    let max = Duration::from_secs(36_000 * 86_400);
    let held: earrrl::Rule = "token-bucket 10 refill=1/365d".parse().unwrap();
    let held = held.with_action(earrrl::Action::Delay { max }).unwrap();
    assert!(engine.prepare("held", &held).is_err());
}

/// Clients in several slots of a Cluster at once: a denied request stores nothing in any slot.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn all_or_nothing_over_slots() {
    let cluster = Cluster::start().await;
    let urls = cluster.urls();
    let mut options = Options::cluster(urls.iter().map(String::as_str));
    options.deadline = PATIENCE;
    let engine = connect(options).await;
    let texts = [
        "gcra 1/1h burst=3",
        "fixed-window 2/3650d",
        "sliding-log 2/3650d",
    ];
    let now = Some(Nanos::from_secs(1_700_000_000));
    for text in texts {
        let name = text.split(' ').next().unwrap();
        let narrow = engine
            .prepare(&format!("narrow-{name}"), &text.parse().unwrap())
            .unwrap();
        let strict = "recent-average 1/s half-life=1h strict".parse().unwrap();
        let strict = engine.prepare(&format!("strict-{name}"), &strict).unwrap();
        let wide = engine.prepare(
            &format!("wide-{name}"),
            &text.replace("/", "00/").parse().unwrap(),
        );
        let wide = wide.unwrap();
        let charge = |rule, key| Charge {
            rule,
            key,
            cost: Cost::ONE,
        };
        let charges = [
            charge(narrow, b"a"),
            charge(wide, b"b"),
            charge(strict, b"c"),
        ];
        let mut allowed = 0;
        for _ in 0..6 {
            allowed += u64::from(
                engine
                    .decide(&charges, Mode::Check, now)
                    .await
                    .unwrap()
                    .allowed,
            );
        }
        assert_eq!(allowed, if name == "gcra" { 3 } else { 2 });
        let peek = async |charge| engine.decide(&[charge], Mode::Peek, now).await.unwrap();
        let fresh = peek(charge(wide, b"nobody")).await.remaining;
        assert_eq!(
            peek(charge(wide, b"b")).await.remaining,
            fresh - allowed,
            "{text}"
        );
        let count =
            peek(charge(strict, b"c")).await.rate.unwrap() * 3600.0 / std::f64::consts::LN_2;
        assert!(
            (count - 6.0).abs() < 1e-6,
            "denied attempts count under strict: {count}"
        );
    }
}

#[tokio::test]
async fn over_a_unix_socket_as_an_acl_user_with_hashed_clients() {
    let server = Server::start(&[]).await;
    let words = "ACL SETUSER limiter on >secret ~rate2:* -@all +eval +evalsha +get +set +setrange \
                 +getrange +del +pexpire +time +ping +select";
    let words: Vec<&str> = words.split_whitespace().collect();
    server.command::<String>(&words).unwrap();
    let socket = server.socket();
    let mut options = patient(&format!(
        "redis+unix://{}?user=limiter&pass=secret",
        socket.display()
    ));
    options.prefix = "rate".into();
    options.clients = ClientKeys::Hashed(b"a secret of the fleet".to_vec());
    let engine = connect(options).await;
    for (text, burst) in BURSTS {
        let name = text.split(' ').next().unwrap();
        let rule = engine.prepare(name, &text.parse().unwrap()).unwrap();
        assert_eq!(
            ask(&engine, rule, b"alice", None).await.remaining,
            burst as u64 - 1,
            "{text}"
        );
        let charge = Charge {
            rule,
            key: b"alice",
            cost: Cost::ONE,
        };
        engine.refund(&charge, None, None).await.unwrap();
        engine.reset(rule, b"alice").await.unwrap();
    }
    assert_eq!(engine.status().counts.alone, 0, "{:?}", engine.status());
    let keys: Vec<String> = server.command(&["KEYS", "*"]).unwrap();
    assert!(keys.iter().all(|key| !key.contains("alice")), "{keys:?}");
}

#[tokio::test]
async fn options_that_can_t_be_are_refused() {
    let wrong = |change: fn(&mut Options)| {
        let mut options = Options::new("redis://127.0.0.1:1");
        change(&mut options);
        RedisEngine::new(options).unwrap_err().to_string()
    };
    assert!(wrong(|options| options.prefix = "{a}".into()).contains("prefix"));
    assert!(wrong(|options| options.deadline = Duration::ZERO).contains("deadline"));
    assert!(wrong(|options| options.urls.clear()).contains("urls"));
    let zero = wrong(|options| options.longest_backoff = Duration::ZERO);
    assert!(zero.contains("longest_backoff"), "{zero}");
    let engine = RedisEngine::new(Options::new("redis://127.0.0.1:1")).unwrap();
    let mut window =
        earrrl::algorithm::FixedWindow::new(Cost::ONE, Duration::from_nanos(1_000_001));
    let error = engine
        .prepare("w", &earrrl::Limit::from(window.unwrap()).into())
        .unwrap_err();
    assert!(error.to_string().contains("microseconds"), "{error}");
    window = earrrl::algorithm::FixedWindow::new(Cost::ONE, Duration::from_millis(1));
    assert!(
        engine
            .prepare("w", &earrrl::Limit::from(window.unwrap()).into())
            .is_ok()
    );
}
