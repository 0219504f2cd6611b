//! Floods of new keys through a full limiter, for every algorithm: whether memory stays, whether offenders
//! stay, and whether an innocent client is denied.
//!
//! `cargo run --release -p earrrl --example flood [-- MILLIONS_OF_REQUESTS [CAPACITY]]`, 10 million requests for
//! each rule and room for 100 000 clients by default.
//!
//! 1 000 offenders send at ten times the limit meanwhile, or
//! pause, once they are denied, until the flood is over. The pure functions and an unbounded map, for
//! the offenders alone, are the reference.
#![allow(clippy::print_stdout)]

use std::collections::HashMap;
use std::time::Duration;

use earrrl::algorithm::State;
use earrrl::{Clock, Cost, Limiter, Mode, Nanos, Rule, RuleError};

const OFFENDERS: u64 = 1_000;
/// The keys between two requests of busy offenders.
const SHARE: u64 = 10;
const START: Nanos = Nanos::from_secs(1_800_000_000);
/// The time between two keys while offenders are busy: ten times 5 in 15 minutes, by each offender.
const GAP: Duration = Duration::from_micros(18_000_000 / (SHARE * OFFENDERS));
/// The time for which offenders pause. All of them are still denied afterwards.
const PAUSE: Duration = Duration::from_secs(10);

/// The keys of a flood, and what the offenders do meanwhile.
#[derive(Clone, Copy)]
struct Flood {
    /// The requests of each key, and the cost of each request.
    requests: u64,
    cost: u64,
    offenders_pause: bool,
}

const ONE_HIT: Flood = Flood {
    requests: 1,
    cost: 1,
    offenders_pause: false,
};
const PAUSED: Flood = Flood {
    offenders_pause: true,
    ..ONE_HIT
};
/// Keys that cost as much as the limit of 5 allows, and more.
const OVER: Flood = Flood {
    requests: 6,
    ..PAUSED
};
const COSTLY: Flood = Flood {
    cost: 1000,
    ..ONE_HIT
};

/// The rules under which one-hit keys must free no offender.
const RULES: [&str; 10] = [
    "recent-average 5/15m half-life=1h strict",
    "recent-average 5/15m half-life=1h leaky",
    "token-bucket 5 refill=5/15m",
    "gcra 5/15m burst=5",
    "exponential 5/15m strict",
    "exponential 5/15m leaky",
    "fixed-window 5/15m",
    "sliding-log 5/15m",
    "sliding-window 5/15m sub-windows=5",
    "sliding-counter 5/15m",
];

/// Floods that look like offenders: they displace one at the price of a full table of such keys.
const PRICED: [(&str, Flood); 5] = [
    ("gcra 5/15m burst=1", ONE_HIT),
    ("recent-average 5/15m half-life=1h strict", COSTLY),
    ("recent-average 5/15m half-life=1h strict", OVER),
    ("gcra 5/15m burst=5", OVER),
    ("fixed-window 5/15m", OVER),
];

/// The least share of denials that one-hit keys must leave.
const PROMISED: f64 = 0.9999;

/// The offenders' states, unbounded.
type Reference = HashMap<u64, Option<State>>;

#[derive(Default)]
struct Tally {
    innocent_denied: u64,
    offences_denied: u64,
    reference_denied: u64,
}

impl Tally {
    fn kept(&self) -> f64 {
        self.offences_denied as f64 / self.reference_denied as f64
    }
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let millions: f64 = std::env::args()
        .nth(1)
        .map_or(Ok(10.0), |text| text.parse())?;
    let capacity = std::env::args()
        .nth(2)
        .map_or(Ok(100_000), |text| text.parse())?;
    println!("{millions} million requests through room for {capacity} clients\n");
    println!(
        "| rule | requests × cost of a key | offenders | bytes a client | pages grown | denials of offenders kept | innocents denied |"
    );
    println!("|---|---:|---|---:|---:|---:|---:|");
    let kept = RULES
        .into_iter()
        .flat_map(|rule| [ONE_HIT, PAUSED].map(|flood| (rule, flood, PROMISED)));
    let priced = PRICED.into_iter().map(|(rule, flood)| (rule, flood, 0.0));
    let mut broken = Vec::new();
    for (rule, flood, promised) in kept.chain(priced) {
        let tally = measure(rule, flood, (millions * 1e6) as u64, capacity)?;
        if tally.kept() < promised || tally.innocent_denied > 0 {
            broken.push(rule);
        }
    }
    if broken.is_empty() {
        Ok(())
    } else {
        Err(format!("broken by: {}", broken.join("; ")).into())
    }
}

/// Runs one flood and prints its row.
fn measure(
    rule: &str,
    flood: Flood,
    requests: u64,
    capacity: usize,
) -> Result<Tally, Box<dyn std::error::Error>> {
    let clock = earrrl::ManualClock::new(START);
    let limiter = Limiter::builder(rule.parse::<Rule>()?)
        .capacity(capacity)
        .clock(clock)
        .build()?;
    let before = resident_pages()?;
    let tally = run(&limiter, requests / flood.requests, flood)?;
    let grown = resident_pages()?.saturating_sub(before);
    let Flood {
        requests,
        cost,
        offenders_pause,
    } = flood;
    let offenders = if offenders_pause { "pause" } else { "busy" };
    let bytes = limiter.bytes() / capacity;
    let kept = 100.0 * tally.kept();
    let innocent = tally.innocent_denied;
    println!(
        "| `{rule}` | {requests} × {cost} | {offenders} | {bytes} | {grown} | {kept:.3} % | {innocent} |"
    );
    Ok(tally)
}

fn run<C: Clock>(limiter: &Limiter<u64, C>, keys: u64, flood: Flood) -> Result<Tally, RuleError> {
    let mut reference: Reference = HashMap::new();
    let mut tally = Tally::default();
    let mut now = START;
    let gap = match flood.offenders_pause {
        true => PAUSE / u32::try_from(keys.max(1)).unwrap_or(u32::MAX),
        false => GAP,
    };
    let mut all_offend = |now, tally: &mut Tally| {
        (0..OFFENDERS)
            .try_for_each(|offender| offend(limiter, &mut reference, offender, now, tally))
    };
    if flood.offenders_pause {
        (0..50).try_for_each(|_| all_offend(now, &mut Tally::default()))?;
    }
    for nth in 0..keys {
        now = now + gap;
        for _ in 0..flood.requests {
            let cost = Cost::from_units(flood.cost);
            let innocent = limiter.check_at(&(OFFENDERS + nth), cost, now)?;
            let is_innocent = flood.cost * flood.requests == 1;
            tally.innocent_denied += u64::from(is_innocent && !innocent.is_allowed());
        }
        if !flood.offenders_pause && nth % (SHARE * OFFENDERS) == 0 {
            all_offend(now, &mut tally)?;
        }
    }
    if flood.offenders_pause {
        all_offend(now, &mut tally)?;
    }
    Ok(tally)
}

/// Sends one request of an offender, and counts whether it is denied and should be.
fn offend<C: Clock>(
    limiter: &Limiter<u64, C>,
    reference: &mut Reference,
    offender: u64,
    now: Nanos,
    tally: &mut Tally,
) -> Result<(), RuleError> {
    let verdict = limiter.check_at(&offender, Cost::ONE, now)?;
    let state = reference.entry(offender).or_default();
    let allowed = limiter
        .rule()
        .limit()
        .admit(state, now, Cost::ONE, Mode::Check);
    tally.reference_denied += u64::from(!allowed);
    tally.offences_denied += u64::from(!allowed && !verdict.is_allowed());
    Ok(())
}

/// Returns the pages of this process in memory, without those of its program file, which come as its
/// functions are first called; 0 where the system does not say.
fn resident_pages() -> Result<u64, Box<dyn std::error::Error>> {
    let Ok(text) = std::fs::read_to_string("/proc/self/statm") else {
        return Ok(0);
    };
    let mut fields = text.split_whitespace().skip(1).map(str::parse::<u64>);
    let resident = fields.next().unwrap_or(Ok(0))?;
    let of_files = fields.next().unwrap_or(Ok(0))?;
    Ok(resident.saturating_sub(of_files))
}
