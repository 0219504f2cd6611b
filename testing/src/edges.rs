//! Checks of an engine's edge cases: keys, time, errors, changed rules, and extreme values.

use std::time::Duration;

use crate::{Lockstep, Mismatch, Operation, Profile};
use earrrl::{Charge, Cost, Engine, EngineError, MAX_CHARGES, Mode, Nanos, Rule, RuleId};

const START: Nanos = Nanos::from_secs(1_800_000_000);

pub(super) async fn run<E: Engine>(
    make: &impl AsyncFn() -> E,
    profile: &Profile,
) -> Result<usize, Mismatch> {
    let mut compared = keys_are_bytes(make().await, profile).await?;
    compared += time_never_goes_back(make().await, profile).await?;
    compared += same_rule_and_key_twice_add_up(make().await, profile).await?;
    compared += a_refund_without_its_time(make().await, profile).await?;
    compared += a_changed_limit_keeps_histories(make().await, profile).await?;
    compared += far_apart_in_time(make().await, profile).await?;
    compared += the_largest_quota_is_exact(make().await, profile).await?;
    compared += what_is_wrong_is_refused(make().await, profile).await?;
    rules_are_known_by_their_names(&make().await)?;
    Ok(compared)
}

fn rules_are_known_by_their_names(engine: &impl Engine) -> Result<(), Mismatch> {
    for rule in rules(&["gcra 1/s burst=2", "gcra 1/s burst=3"])? {
        engine
            .prepare("named", &rule)
            .map_err(|error| Mismatch::new("prepare", error))?;
        let known = [engine.prepared("named"), engine.prepared("unknown")];
        if known != [Some(rule.clone()), None] {
            return Err(Mismatch::new(
                "prepared",
                format!("{known:?} after preparing {rule}"),
            ));
        }
    }
    Ok(())
}

fn rules(texts: &[&str]) -> Result<Vec<Rule>, Mismatch> {
    texts
        .iter()
        .map(|text| text.parse().map_err(|error| Mismatch::new(text, error)))
        .collect()
}

async fn keys_are_bytes<E: Engine>(engine: E, profile: &Profile) -> Result<usize, Mismatch> {
    let long = [b'x'; 4096];
    let keys: [&[u8]; 12] = [
        b"",
        b"a",
        b"A",
        b"a\0",
        b"\xff\xfe",
        b"a:b",
        b"{a}",
        b"a}b{",
        b"\r\n",
        b"a b",
        "é".as_bytes(),
        &long,
    ];
    let rules = rules(&[
        "gcra 1/s burst=2",
        "fixed-window 2/1m",
        "recent-average 1/s half-life=1s",
    ])?;
    let mut lockstep = Lockstep::new("keys are bytes", engine, &rules, profile)?;
    for _ in 0..4 {
        for (rule, key) in (0..rules.len()).flat_map(|rule| keys.map(|key| (rule, key))) {
            lockstep
                .ask(Operation::Check, &[(rule, key, Cost::ONE)], START)
                .await?;
        }
    }
    Ok(lockstep.compared)
}

async fn time_never_goes_back<E: Engine>(engine: E, profile: &Profile) -> Result<usize, Mismatch> {
    let rules = rules(&[
        "gcra 1/s burst=2",
        "sliding-log 2/10s",
        "recent-average 1/s half-life=1s",
    ])?;
    let mut lockstep = Lockstep::new("time never goes back", engine, &rules, profile)?;
    for seconds in [10, 3, 0, 11, 5, 12, 12, 1] {
        for rule in 0..rules.len() {
            let now = START + Duration::from_secs(seconds);
            lockstep
                .ask(Operation::Check, &[(rule, b"k", Cost::ONE)], now)
                .await?;
        }
    }
    Ok(lockstep.compared)
}

async fn same_rule_and_key_twice_add_up<E: Engine>(
    engine: E,
    profile: &Profile,
) -> Result<usize, Mismatch> {
    let rules = rules(&["gcra 1/s burst=5", "fixed-window 5/1m"])?;
    let mut lockstep = Lockstep::new("the same rule and key twice", engine, &rules, profile)?;
    let one = Cost::ONE;
    let two = Cost::from_units(2);
    for _ in 0..4 {
        let twice: [(usize, &[u8], Cost); 4] = [
            (1, b"k", one),
            (0, b"k", one),
            (0, b"other", one),
            (0, b"k", two),
        ];
        lockstep.ask(Operation::Check, &twice, START).await?;
    }
    Ok(lockstep.compared)
}

/// Checks that a refund without a time takes back the latest charge, as far as the engine knows it.
async fn a_refund_without_its_time<E: Engine>(
    engine: E,
    profile: &Profile,
) -> Result<usize, Mismatch> {
    let rules = rules(&[
        "sliding-log 3/1h",
        "sliding-log 3/1h strict",
        "sliding-window 3/1h",
        "sliding-counter 3/1h",
        "fixed-window 3/1h",
        "gcra 1/1h burst=3",
        "exponential 3/1h",
        "recent-average 1/s half-life=10s",
    ])?;
    let mut lockstep = Lockstep::new("a refund without its time", engine, &rules, profile)?;
    let charge = |rule| [(rule, &b"k"[..], Cost::ONE)];
    for (seconds, rule) in (0..3).flat_map(|s| (0..rules.len()).map(move |rule| (s, rule))) {
        let now = START + Duration::from_secs(seconds);
        lockstep.ask(Operation::Check, &charge(rule), now).await?;
    }
    let now = START + Duration::from_secs(10);
    for (rule, text) in rules.iter().enumerate() {
        lockstep
            .ask(Operation::RefundLast, &charge(rule), now)
            .await?;
        let again = lockstep.ask(Operation::Check, &charge(rule), now).await?;
        if again.is_none_or(|answer| !answer.allowed) {
            let problem = format!("{text}: not taken back: {again:?}");
            return Err(Mismatch::new("a refund without its time", problem));
        }
    }
    Ok(lockstep.compared)
}

async fn a_changed_limit_keeps_histories<E: Engine>(
    engine: E,
    profile: &Profile,
) -> Result<usize, Mismatch> {
    let texts = [
        "recent-average 1/s half-life=10s",
        "recent-average 2/s half-life=10s",
        "gcra 2/s burst=8",
        "exponential 10/1m",
        "exponential 12/1m",
        "fixed-window 10/1m",
        "fixed-window 12/1m",
        "sliding-log 10/1m",
        "sliding-log 12/1m",
        "sliding-window 10/1m",
        "sliding-window 12/1m",
        "sliding-counter 10/1m",
        "sliding-counter 12/1m",
    ];
    let first = rules(&texts[..1])?;
    let mut lockstep = Lockstep::new("a changed limit", engine, &first, profile)?;
    for (turn, text) in texts.iter().enumerate() {
        lockstep.prepare(0, &rules(&[text])?[0])?;
        for request in 0..6 {
            let now = START + Duration::from_millis(turn as u64 * 3_000 + request * 250);
            lockstep
                .ask(Operation::Check, &[(0, b"k", Cost::ONE)], now)
                .await?;
        }
    }
    Ok(lockstep.compared)
}

async fn far_apart_in_time<E: Engine>(engine: E, profile: &Profile) -> Result<usize, Mismatch> {
    let rules = rules(&[
        "recent-average 1/3650d half-life=3650d",
        "recent-average 1000000000/s half-life=1ms",
        "gcra 1/3650d burst=3",
        "exponential 3/3650d strict",
        "fixed-window 3/3650d",
        "sliding-log 3/3650d",
        "sliding-window 3/3650d",
        "sliding-counter 3/3650d",
    ])?;
    let mut lockstep = Lockstep::new("far apart in time", engine, &rules, profile)?;
    let year = 31_557_600;
    for seconds in [
        1,
        2,
        year,
        9 * year,
        30 * year,
        130 * year,
        230 * year,
        230 * year + 1,
    ] {
        for rule in (0..rules.len()).flat_map(|rule| [rule; 3]) {
            let now = Nanos::from_secs(seconds);
            lockstep
                .ask(Operation::Check, &[(rule, b"k", Cost::ONE)], now)
                .await?;
        }
    }
    Ok(lockstep.compared)
}

async fn the_largest_quota_is_exact<E: Engine>(
    engine: E,
    profile: &Profile,
) -> Result<usize, Mismatch> {
    let scene = "the largest quota, to its last part";
    let quota = profile.largest_quota.min(Cost::from_units(9_000_000));
    let texts = [
        format!("fixed-window {quota}/1h"),
        format!("sliding-log {quota}/1h"),
        format!("sliding-window {quota}/1h"),
        format!("sliding-counter {quota}/1h"),
        format!("gcra 10/s burst={quota}"),
    ];
    let rules = rules(&texts.each_ref().map(|text| text.as_str()))?;
    let mut lockstep = Lockstep::new(scene, engine, &rules, profile)?;
    for (rule, expected) in (0..rules.len()).flat_map(|rule| [(rule, true), (rule, false)]) {
        // More decimals of so many units do not fit a word, in which a sliding counter has two counts.
        let is_counter = texts[rule].starts_with("sliding-counter");
        let least = Cost::from_billionths(if is_counter { 10_000_000 } else { 1 });
        let most = quota.saturating_sub(least);
        let first = if expected { most } else { Cost::ZERO };
        lockstep
            .ask(Operation::Check, &[(rule, b"k", first)], START)
            .await?;
        let answer = lockstep
            .ask(Operation::Check, &[(rule, b"k", least)], START)
            .await?;
        if answer.is_none_or(|answer| answer.allowed != expected) {
            return Err(Mismatch::new(scene, format!("{}: {answer:?}", texts[rule])));
        }
    }
    Ok(lockstep.compared)
}

async fn what_is_wrong_is_refused<E: Engine>(
    engine: E,
    profile: &Profile,
) -> Result<usize, Mismatch> {
    let scene = "what is wrong is refused";
    let invalid = |error| Mismatch::new(scene, error);
    let rule = rules(&["gcra 1/s burst=5"])?.remove(0);
    let rule = rule.with_max_cost(Cost::from_units(3)).map_err(invalid)?;
    let lockstep = Lockstep::new(scene, engine, std::slice::from_ref(&rule), profile)?;
    let engine = &lockstep.engine;
    let id = lockstep.id(0);
    let charge = |rule, cost| Charge {
        rule,
        key: b"k",
        cost,
    };
    let too_many = [charge(id, Cost::ONE); MAX_CHARGES + 1];
    let unknown = RuleId(u32::MAX);
    let dear = charge(id, Cost::from_units(4));
    for (what, charges) in [
        ("no charge", &[][..]),
        ("too many charges", &too_many[..]),
        ("an unknown rule", &[charge(unknown, Cost::ONE)][..]),
        ("a cost above max_cost", &[dear][..]),
    ] {
        if let Ok(answer) = engine.decide(charges, Mode::Check, Some(START)).await {
            return Err(Mismatch::new(
                scene,
                format!("{what} was answered: {answer:?}"),
            ));
        }
    }
    let last = engine
        .decide(&[charge(id, Cost::ONE)], Mode::Check, Some(START))
        .await;
    match (last, engine.prepare("No Name!", &rule)) {
        (Ok(answer), Err(EngineError::Invalid(_))) if answer.remaining == 4 => Ok(6),
        other => Err(Mismatch::new(
            scene,
            format!("a mistake left a mark: {other:?}"),
        )),
    }
}
