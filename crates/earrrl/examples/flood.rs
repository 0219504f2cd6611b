//! A flood of one-hit keys through a full table: memory stays, offenders stay, nobody innocent is
//! denied.
//!
//! `cargo run --release -p earrrl --example flood [-- MILLIONS_OF_KEYS]`, 100 by default.
//!
//! The keys pass through a table made for a million clients; mixed in are 10 000 offenders at ten
//! times the limit. An unbounded map and the pure functions, for the offenders alone, are the
//! reference.
#![allow(clippy::print_stdout)]

use std::collections::HashMap;
use std::time::Duration;

use earrrl::{Cost, Limiter, Mode, Nanos, Rule, State};

const CLIENTS: usize = 1_000_000;
const OFFENDERS: u64 = 10_000;
/// One-hit keys between two requests of offenders.
const SHARE: u64 = 10;
const START: Nanos = Nanos::from_secs(1_800_000_000);

/// The offenders' states, unbounded.
type Reference = HashMap<u64, Option<State>>;

#[derive(Default)]
struct Tally {
    innocent_denied: u64,
    offences_denied: u64,
    reference_denied: u64,
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let millions: u64 = std::env::args().nth(1).map_or(Ok(100), |text| text.parse())?;
    let keys = millions * 1_000_000;
    // Each offender comes every SHARE * OFFENDERS requests; ten times the limit is one a second.
    let gap = Duration::from_secs(1) / (SHARE * OFFENDERS) as u32;
    let rule: Rule = "recent-average 0.1/s half-life=20s strict".parse()?;
    let clock = earrrl::ManualClock::new(START);
    let limiter = Limiter::builder(rule).capacity(CLIENTS).clock(clock).build()?;
    let mut reference: Reference = (0..OFFENDERS).map(|offender| (offender, None)).collect();
    let before = resident_pages()?;
    let tally = flood(&limiter, &mut reference, keys, gap)?;
    let grown = resident_pages()?.saturating_sub(before);
    let kept = tally.offences_denied as f64 / tally.reference_denied as f64;
    println!("{keys} one-hit keys through a table for {CLIENTS} clients");
    println!("resident memory: {} bytes in the table, {grown} pages grown", limiter.bytes());
    println!("offenders' denials kept: {:.4} % of {}", 100.0 * kept, tally.reference_denied);
    println!("innocent denied: {}", tally.innocent_denied);
    if kept < 0.999 || tally.innocent_denied > 0 || grown > 0 {
        return Err("the flood left a mark".into());
    }
    Ok(())
}

fn flood<C: earrrl::Clock>(
    limiter: &Limiter<u64, C>,
    reference: &mut Reference,
    keys: u64,
    gap: Duration,
) -> Result<Tally, earrrl::RuleError> {
    let (mut tally, mut now) = (Tally::default(), START);
    for nth in 0..keys {
        now = now + gap;
        let innocent = limiter.check_at(&(OFFENDERS + nth), Cost::ONE, now)?;
        tally.innocent_denied += u64::from(!innocent.is_allowed());
        if nth % SHARE == 0 {
            let offender = nth / SHARE % OFFENDERS;
            let verdict = limiter.check_at(&offender, Cost::ONE, now)?;
            let state = reference.entry(offender).or_default();
            let limit = limiter.rule().limit();
            let allowed = limit.admit(state, now, Cost::ONE, Mode::Check);
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
