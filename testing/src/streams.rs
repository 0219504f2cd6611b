//! Seeded random traffic under every algorithm and action, with one rule and with several.

use std::time::Duration;

use crate::lockstep::Asked;
use crate::{Lockstep, Mismatch, Operation, Profile};
use earrrl::{Action, Cost, Engine, Limit, Nanos, Rule, internal::Random};

const COSTS: &[&str] = &[
    "1",
    "1",
    "1",
    "1",
    "1",
    "1",
    "0",
    "2",
    "5",
    "0.25",
    "0.000000001",
    "30",
    "1000000",
];

/// Rules of every algorithm whose requests can be checked: with every option, and small, large, fast and slow limits.
const RULES: &[&str] = &[
    "recent-average 1/s half-life=10s strict",
    "recent-average 1/s half-life=10s leaky",
    "recent-average 0.2/s period=5m strict",
    "recent-average 1000/s half-life=1ms leaky",
    "recent-average 20/1m half-life=400d strict",
    "exponential 10/1m leaky",
    "exponential 10/1m strict",
    "exponential 600/1h leaky",
    "exponential 0.5/1s strict",
    "token-bucket 60 refill=1/s",
    "credit-pool 100 refill=7/m",
    "credit-pool 2.5 refill=0.3/s",
    "gcra 3/s burst=10",
    "gcra 600000007/s burst=40",
    "gcra 1234567/d burst=5",
    "fixed-window 5/1s leaky",
    "fixed-window 20/1m strict",
    "fixed-window 5/10s start=first leaky",
    "fixed-window 500000/1h start=first strict",
    "fixed-window 50/week leaky",
    "fixed-window 500/month from=31 leaky",
    "fixed-window 2000/year from=04-06 leaky",
    "fixed-window 20/day tz=Europe/Berlin leaky",
    "fixed-window 500/month tz=America/New_York leaky",
    "sliding-log 5/1s leaky",
    "sliding-log 20/1m strict",
    "sliding-window 20/1m sub-windows=60 harsh leaky",
    "sliding-window 20/1m sub-windows=7 lenient strict",
    "sliding-window 5/1s",
    "sliding-counter 5/1s leaky",
    "sliding-counter 20/1m strict",
    "sliding-counter 8500000/1h leaky",
];

const KEYS: &[&[u8]] = &[b"alice", b"bob", b"192.0.2.7"];

/// The number of requests in a stream.
const LENGTH: usize = 600;

pub(super) async fn run<E: Engine>(
    make: &impl AsyncFn() -> E,
    profile: &Profile,
) -> Result<usize, Mismatch> {
    let mut compared = 0;
    for name in earrrl::internal::algorithms().filter(|name| *name != "concurrent") {
        if !RULES.iter().any(|rule| rule.starts_with(name)) {
            return Err(Mismatch::new(name, "no engine is tested with it"));
        }
    }
    for (seed, &text) in RULES.iter().enumerate() {
        let rule = parse(text)?;
        compared += stream(make().await, text, &[rule], seed as u64, profile).await?;
    }
    for seed in 0..24 {
        let rules = several(&mut Random::new(seed))?;
        let texts: Vec<_> = rules.iter().map(Rule::to_string).collect();
        let scene = format!("several rules, seed {seed}: {}", texts.join(", "));
        compared += stream(make().await, &scene, &rules, 1000 + seed, profile).await?;
    }
    Ok(compared)
}

fn parse(text: &str) -> Result<Rule, Mismatch> {
    text.parse().map_err(|error| Mismatch::new(text, error))
}

/// Returns two to four random rules with random actions.
fn several(random: &mut Random) -> Result<Vec<Rule>, Mismatch> {
    let mut rules = Vec::new();
    for _ in 0..2 + random.below(3) {
        let rule = parse(random.pick::<&str>(RULES))?;
        let max = Duration::from_millis(random.below(8_000));
        let action = match random.below(8) {
            0 => Action::ShadowBan,
            1 => Action::Quarantine,
            2 => Action::Observe,
            3 | 4 if rule.limit().can_delay() => Action::Delay { max },
            _ => Action::Deny,
        };
        rules.push(
            rule.with_action(action)
                .map_err(|error| Mismatch::new("action", error))?,
        );
    }
    Ok(rules)
}

async fn stream<E: Engine>(
    engine: E,
    scene: &str,
    rules: &[Rule],
    seed: u64,
    profile: &Profile,
) -> Result<usize, Mismatch> {
    let mut random = Random::new(seed);
    let mut lockstep = Lockstep::new(scene, engine, rules, profile)?;
    let mut now = Nanos::from_secs(1_800_000_000);
    let mut last = Nanos::from_secs(1_800_000_000);
    let pace = pace(rules[0].limit());
    for _ in 0..LENGTH {
        now = lockstep.rounded(now + gap(&mut random, pace));
        let key = *random.pick(KEYS);
        let (operation, charges) = match random.below(20) {
            0 => (
                Operation::Reset,
                Vec::from([(random.below(rules.len() as u64) as usize, key, Cost::ONE)]),
            ),
            1 => (
                Operation::Refund(last),
                Vec::from([(0, key, cost(&mut random, &rules[0])?)]),
            ),
            2 | 3 => (Operation::Peek, charges(rules, key, &mut random)?),
            4 if profile.charges => (Operation::Charge, charges(rules, key, &mut random)?),
            _ => (Operation::Check, charges(rules, key, &mut random)?),
        };
        lockstep.ask(operation, &charges, now).await?;
        last = if matches!(operation, Operation::Check | Operation::Charge) {
            now
        } else {
            last
        };
    }
    Ok(lockstep.compared)
}

fn charges<'k>(
    rules: &[Rule],
    key: &'k [u8],
    random: &mut Random,
) -> Result<Vec<Asked<'k>>, Mismatch> {
    let each = rules.iter().enumerate();
    each.map(|(place, rule)| Ok((place, key, cost(random, rule)?)))
        .collect()
}

/// Returns a random cost. It is whole under sliding-counter, whose two counts have few decimals in a word if
/// one of them is large.
fn cost(random: &mut Random, rule: &Rule) -> Result<Cost, Mismatch> {
    let text = random.pick(COSTS);
    let cost: Cost = text.parse().map_err(|error| Mismatch::new(text, error))?;
    Ok(match rule.limit() {
        Limit::SlidingCounter(_) => {
            Cost::from_units(cost.billionths().div_ceil(1_000_000_000) as u64)
        }
        _ => cost,
    })
}

/// Returns the time in which a limit allows about one request.
fn pace(limit: &Limit) -> Duration {
    Duration::from_secs_f64(1.0 / limit.per_second().max(1e-6))
}

/// Returns a random gap before the next request, so that the traffic has bursts at one instant,
/// stretches near the limit, and long silences.
fn gap(random: &mut Random, pace: Duration) -> Duration {
    match random.below(10) {
        0..=3 => Duration::ZERO,
        4..=8 => pace.mul_f64(random.unit()),
        _ => pace.mul_f64(30.0 * random.unit()),
    }
}
