//! A flood of one-hit keys through a full limiter, for every algorithm: whether memory stays, whether
//! offenders stay, and whether anybody innocent is denied.
//!
//! `cargo run --release -p earrrl --example flood [-- MILLIONS_OF_KEYS]`, 10 by default for each rule.
//!
//! The keys pass through room for 100 000 clients; mixed in are 1 000 offenders at ten times the limit.
//! An unbounded map and the pure functions, for the offenders alone, are the reference.
#![allow(clippy::print_stdout)]

use std::collections::HashMap;
use std::time::Duration;

use earrrl::{Cost, Limiter, Mode, Nanos, Rule, State};

const CLIENTS: usize = 100_000;
const OFFENDERS: u64 = 1_000;
/// One-hit keys between two requests of offenders.
const SHARE: u64 = 10;
const START: Nanos = Nanos::from_secs(1_800_000_000);
/// Ten times 5 in 15 minutes, by each offender.
const GAP: Duration = Duration::from_micros(18_000_000 / (SHARE * OFFENDERS));

/// The rules, the cost of one-hit keys, and the least share of denials kept that is promised.
const FLOODS: [(&str, u64, f64); 12] = [
    ("recent-average 5/15m half-life=1h strict", 1, 0.999),
    ("recent-average 5/15m half-life=1h leaky", 1, 0.999),
    ("token-bucket 5 refill=5/15m", 1, 0.999),
    ("gcra 5/15m burst=5", 1, 0.999),
    ("exponential 5/15m strict", 1, 0.999),
    ("exponential 5/15m leaky", 1, 0.999),
    ("fixed-window 5/15m", 1, 0.999),
    ("sliding-log 5/15m", 1, 0.999),
    ("sliding-window 5/15m sub-windows=5", 1, 0.999),
    ("sliding-counter 5/15m", 1, 0.999),
    ("gcra 5/15m burst=1", 1, 0.0),
    ("recent-average 5/15m half-life=1h strict", 1000, 0.0),
];

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
    let millions: u64 = std::env::args().nth(1).map_or(Ok(10), |text| text.parse())?;
    println!("{millions} million one-hit keys through room for {CLIENTS} clients\n");
    println!(
        "| rule | a one-hit key costs | bytes a client | pages grown | denials of offenders kept | innocents denied |"
    );
    println!("|---|---:|---:|---:|---:|---:|");
    let mut marks = Vec::new();
    for (rule, cost, promised) in FLOODS {
        let clock = earrrl::ManualClock::new(START);
        let limiter =
            Limiter::builder(rule.parse::<Rule>()?).capacity(CLIENTS).clock(clock).build()?;
        let before = resident_pages()?;
        let tally = flood(&limiter, millions * 1_000_000, Cost::from_units(cost))?;
        let grown = resident_pages()?.saturating_sub(before);
        let (bytes, kept) = (limiter.bytes() / CLIENTS, 100.0 * tally.kept());
        let innocent = tally.innocent_denied;
        println!("| `{rule}` | {cost} | {bytes} | {grown} | {kept:.3} % | {innocent} |");
        if tally.kept() < promised || innocent > 0 {
            marks.push(rule);
        }
    }
    if marks.is_empty() { Ok(()) } else { Err(format!("left a mark: {}", marks.join("; ")).into()) }
}

fn flood<C: earrrl::Clock>(
    limiter: &Limiter<u64, C>,
    keys: u64,
    cost: Cost,
) -> Result<Tally, earrrl::RuleError> {
    let mut reference: Reference = (0..OFFENDERS).map(|offender| (offender, None)).collect();
    let (mut tally, mut now) = (Tally::default(), START);
    for nth in 0..keys {
        now = now + GAP;
        let innocent = limiter.check_at(&(OFFENDERS + nth), cost, now)?;
        tally.innocent_denied += u64::from(cost == Cost::ONE && !innocent.is_allowed());
        if nth % SHARE == 0 {
            let offender = nth / SHARE % OFFENDERS;
            let verdict = limiter.check_at(&offender, Cost::ONE, now)?;
            let state = reference.entry(offender).or_default();
            let allowed = limiter.rule().limit().admit(state, now, Cost::ONE, Mode::Check);
            tally.reference_denied += u64::from(!allowed);
            tally.offences_denied += u64::from(!allowed && !verdict.is_allowed());
        }
    }
    Ok(tally)
}

/// Pages of this process in memory, without those of its program file, which come as its functions
/// are first called; 0 where nobody tells.
fn resident_pages() -> Result<u64, Box<dyn std::error::Error>> {
    let Ok(text) = std::fs::read_to_string("/proc/self/statm") else { return Ok(0) };
    let mut fields = text.split_whitespace().skip(1).map(str::parse::<u64>);
    let (resident, of_files) = (fields.next().unwrap_or(Ok(0))?, fields.next().unwrap_or(Ok(0))?);
    Ok(resident.saturating_sub(of_files))
}
