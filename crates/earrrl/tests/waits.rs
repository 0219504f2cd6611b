//! Programs that share a key and wait as long as they are told, beside those that do not. Time is a number.

// A test fails by panicking, in its helpers too.
#![allow(clippy::unwrap_used, clippy::panic)]

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::time::Duration;

use earrrl::algorithm::{State, Waits};
use earrrl::{Cost, Decision, Limiter, ManualClock, Mode, Nanos, Rule};
use earrrl_testing::Random;

const MILLI: u64 = 1_000_000;
const START: u64 = 1_700_000_000_000 * MILLI;

/// One client under one rule.
struct Shared {
    rule: Rule,
    state: Option<State>,
}

impl Shared {
    fn new(rule: &str) -> Self {
        Self {
            rule: rule.parse().unwrap(),
            state: None,
        }
    }

    fn check(&mut self, at: u64) -> Decision {
        let limit = self.rule.limit();
        let (state, decision) =
            limit.decide(self.state.take(), Nanos::new(at), Cost::ONE, Mode::Check);
        self.state = state;
        decision
    }

    fn per_second(&self) -> f64 {
        self.rule.limit().per_second()
    }
}

/// The result of the second half of a run.
#[derive(Debug)]
struct Served {
    /// Requests that were allowed, as a share of the limit.
    share: f64,
    denials_each: f64,
    /// The worker with the fewest requests, relative to the mean.
    least: f64,
}

/// Runs workers that send a request every 35 to 85 ms while they are allowed, and sleep whole seconds when they are
/// told to. They start at random times within a number of seconds.
fn crowd(rule: &str, workers: usize, started_in: f64) -> Served {
    let mut key = Shared::new(rule);
    let mut random = Random::new(workers as u64);
    let secs = (30.0 * workers.max(30) as f64 / key.per_second()).max(600.0);
    let end = START + (secs * 1e9) as u64;
    let mut next: BinaryHeap<_> = (0..workers)
        .map(|worker| Reverse((START + (started_in * 1e9 * random.unit()) as u64, worker)))
        .collect();
    let mut served = vec![0u32; workers];
    let mut denied = 0;
    while let Some(Reverse((at, worker))) = next.pop().filter(|next| next.0.0 < end) {
        let decision = key.check(at);
        let counts = u32::from(at > START + (end - START) / 2);
        let pause = if decision.allowed {
            served[worker] += counts;
            Duration::from_millis(35 + random.below(50))
        } else {
            denied += counts;
            let told = decision.retry_after.duration().unwrap();
            let whole = told.as_secs() + u64::from(told.subsec_nanos() > 0);
            Duration::from_secs(whole) + Duration::from_millis(random.below(20))
        };
        next.push(Reverse((at + pause.as_nanos() as u64, worker)));
    }
    let all: u32 = served.iter().sum();
    Served {
        share: f64::from(all) / (secs / 2.0) / key.per_second(),
        denials_each: f64::from(denied) / f64::from(all.max(1)),
        least: f64::from(*served.iter().min().unwrap()) * workers as f64 / f64::from(all.max(1)),
    }
}

const STRICT: [&str; 6] = [
    "recent-average 0.2/s half-life=60s strict",
    "recent-average 1/s half-life=10s strict",
    "recent-average 10/s half-life=30s strict",
    "exponential 17/85s strict",
    "exponential 15/15s strict",
    "exponential 430/43s strict",
];

#[test]
fn workers_that_share_a_key_and_obey_are_all_served() {
    for rule in STRICT {
        for (workers, started_in) in [1, 2, 5, 20, 100]
            .into_iter()
            .flat_map(|workers| [1.0, 10.0, 60.0].map(|secs| (workers, secs)))
        {
            let served = crowd(rule, workers, started_in);
            let is_served = served.share >= 0.5 && served.denials_each <= 1.0;
            let what = format!("{rule}, {workers} workers in {started_in} s: {served:?}");
            assert!(is_served, "{what}");
            assert!(workers != 20 || served.least >= 0.5, "{what}");
        }
    }
}

/// Without the queue, the same workers deny each other for good.
#[test]
fn without_a_queue_five_workers_starve() {
    let served = crowd(
        "recent-average 1/s half-life=10s strict waits=first",
        5,
        1.0,
    );
    assert!(served.share < 0.01, "{served:?}");
}

/// Hammers for a number of seconds and returns the number of requests that were allowed in the second half, and the
/// last decision.
fn hammer(key: &mut Shared, times: f64, secs: f64) -> (u32, Decision) {
    let gap = 1e9 / (times * key.per_second());
    let steps = (secs * 1e9 / gap) as u64;
    let mut late = 0;
    for step in 0..steps {
        let decision = key.check(START + (step as f64 * gap) as u64);
        late += u32::from(decision.allowed && step > steps / 2);
    }
    (late, key.check(START + (steps as f64 * gap) as u64))
}

#[test]
fn a_client_that_hammers_gets_nothing_as_before() {
    for rule in STRICT {
        for times in [1.2, 2.0, 5.0, 20.0] {
            let mut key = Shared::new(rule);
            let secs = 2000.0 / key.per_second();
            let (late, _) = hammer(&mut key, times, secs);
            assert_eq!(late, 0, "{rule}, {times} times the limit");
        }
    }
}

/// Its attempts have decayed, which shows that they are not those of a crowd. So it is told the first possible time, and
/// its next denials have no places that were given out while it hammered.
#[test]
fn a_client_that_hammered_and_then_obeys_is_not_told_the_end_of_its_own_queue() {
    for rule in STRICT {
        for times in [10.0, 20.0] {
            let mut key = Shared::new(rule);
            let (_, last) = hammer(&mut key, times, 60.0);
            let [told, first] =
                [last.retry_after, last.earliest()].map(|wait| wait.duration().unwrap());
            assert!(told <= 2 * first, "{rule}: told {told:?}, first {first:?}");
            let mut at = Nanos::new(START + 60_000 * MILLI) + told;
            for _ in 0..50 {
                let decision = key.check(at.get());
                let told = decision.retry_after.duration().unwrap();
                let most = Duration::from_secs_f64(8.0 / key.per_second());
                assert!(told <= most, "{rule}: later told {told:?}");
                at = at + told.max(Duration::from_millis(50));
            }
        }
    }
}

#[test]
fn verdicts_do_not_depend_on_the_waits() {
    let mut random = Random::new(7);
    for rule in STRICT {
        let mut queue = Shared::new(rule);
        let mut first = Shared::new(&format!("{rule} waits=first"));
        let mut at = START;
        for _ in 0..20_000 {
            at += (2e9 * random.unit() / queue.per_second() * random.unit()) as u64;
            let (queued, plain) = (queue.check(at), first.check(at));
            assert_eq!(queued.allowed, plain.allowed, "{rule} at {at}");
            assert_eq!(queued.remaining, plain.remaining, "{rule} at {at}");
            let [told, shortest] = [queued.retry_after, queued.earliest()];
            assert!(told >= shortest && plain.retry_after == plain.earliest());
        }
    }
}

#[test]
fn a_lone_client_that_obeys_is_never_denied_twice() {
    for rule in STRICT {
        let mut key = Shared::new(rule);
        let mut at = START;
        let mut was_denied = false;
        for _ in 0..5000 {
            let decision = key.check(at);
            assert!(decision.allowed || !was_denied, "{rule} at {at}");
            was_denied = !decision.allowed;
            at += decision.retry_after.duration().unwrap().as_nanos() as u64;
        }
    }
}

/// The figures of two limiters whose clients are in a table, as those of the pure function.
#[test]
fn denials_at_one_instant_are_told_instants_of_their_own() {
    let rule: Rule = "recent-average 1/s half-life=10s strict".parse().unwrap();
    let clock = ManualClock::new(Nanos::new(START));
    let limiter = Limiter::<str>::builder(rule.clone())
        .clock(clock)
        .build()
        .unwrap();
    let mut key = Shared::new("recent-average 1/s half-life=10s strict");
    let mut told = Vec::new();
    for _ in 0..100 {
        let verdict = limiter.check("key");
        let expected = key.check(START);
        assert_eq!(verdict.decision(), expected);
        told.extend(
            (!expected.allowed).then(|| expected.retry_after.duration().unwrap().as_secs()),
        );
    }
    assert_eq!(told.len(), 85);
    assert!(told.windows(2).all(|pair| pair[0] < pair[1]), "{told:?}");
    let peeked = limiter.peek("key", Cost::ONE).unwrap().decision();
    assert_eq!(peeked.retry_after, peeked.earliest(), "a peek has no place");
}

#[test]
fn the_word_waits() {
    let waits = |text: &str| text.parse::<Rule>().map(|rule| rule.limit().waits());
    for (rule, expected) in [
        ("recent-average 1/s half-life=10s", Waits::Queue),
        ("recent-average 1/s half-life=10s waits=queue", Waits::Queue),
        ("recent-average 1/s half-life=10s waits=first", Waits::First),
        ("recent-average 1/s half-life=10s leaky", Waits::First),
        ("exponential 60/1m", Waits::First),
        ("exponential 60/1m strict", Waits::Queue),
        ("exponential 60/1m strict waits=first", Waits::First),
        ("gcra 1/s burst=5", Waits::First),
    ] {
        assert_eq!(waits(rule), Ok(expected), "{rule}");
    }
    for (rule, error) in [
        (
            "exponential 60/1m waits=queue",
            "column 25: `waits` is for strict",
        ),
        (
            "fixed-window 60/1m waits=queue",
            "column 20: `waits` is for strict",
        ),
        (
            "sliding-log 60/1m strict waits=queue",
            "column 26: `waits` is for strict",
        ),
        (
            "exponential 60/1m waits=last",
            "column 25: `last` is not first or queue",
        ),
    ] {
        let got = waits(rule).unwrap_err().to_string();
        assert!(got.starts_with(error), "{rule}: {got}");
    }
    let limit = *"recent-average 1/s half-life=10s waits=first"
        .parse::<Rule>()
        .unwrap()
        .limit();
    assert_eq!(
        Rule::from(limit).to_string(),
        "recent-average 1/s half-life=10s strict waits=first"
    );
}
