//! Known sequences of requests, with every field of every answer written out.

use std::time::Duration;

use crate::{Lockstep, Mismatch, Operation, Profile};
use earrrl::{Cost, Engine, Nanos, Outcome, Rule, Wait};

/// A request at `ms`, and its expected answer. Times are in milliseconds; a retry of -1 stands for
/// never.
struct Row {
    operation: Operation,
    ms: u64,
    cost: &'static str,
    outcome: Outcome,
    rate: Option<f64>,
    remaining: u64,
    retry_ms: i64,
    reset_ms: u64,
}

const fn row(
    ms: u64,
    cost: &'static str,
    allowed: bool,
    rate: Option<f64>,
    remaining: u64,
    retry_ms: i64,
    reset_ms: u64,
) -> Row {
    let outcome = if allowed {
        Outcome::Allow
    } else {
        Outcome::Deny
    };
    let operation = Operation::Check;
    Row {
        operation,
        ms,
        cost,
        outcome,
        rate,
        remaining,
        retry_ms,
        reset_ms,
    }
}

/// Returns the same row for a request that is stored even if it is over the limit.
const fn charged(row: Row) -> Row {
    Row {
        operation: Operation::Charge,
        ..row
    }
}

/// A rule, its limit per second, and the requests of one client with their answers.
type Table = (&'static str, f64, &'static [Row]);

const TABLES: &[Table] = &[
    (
        "gcra 1/s burst=5", // the sequence in the tests of throttled and redis-cell
        1.0,
        &[
            row(0, "6", false, None, 5, -1, 0),
            row(0, "1", true, None, 4, 0, 1000),
            row(0, "1", true, None, 3, 0, 2000),
            row(0, "1", true, None, 2, 0, 3000),
            row(0, "1", true, None, 1, 0, 4000),
            row(0, "1", true, None, 0, 0, 5000),
            row(0, "1", false, None, 0, 1000, 5000),
            row(3000, "1", true, None, 2, 0, 3000),
            row(3100, "1", true, None, 1, 0, 3900),
            row(4000, "1", true, None, 1, 0, 4000),
            row(8000, "1", true, None, 4, 0, 1000),
            row(9500, "1", true, None, 4, 0, 1000),
            row(9500, "0", true, None, 4, 0, 1000),
            row(9500, "2", true, None, 2, 0, 3000),
            row(9500, "5", false, None, 2, 3000, 3000),
        ],
    ),
    (
        "token-bucket 0.3 refill=0.1/s", // costs of 0.1 must add up without a rounding error
        0.1,
        &[
            row(0, "0.1", true, None, 0, 0, 1000),
            row(0, "0.1", true, None, 0, 0, 2000),
            row(0, "0.1", true, None, 0, 0, 3000),
            row(0, "0.1", false, None, 0, 1000, 3000),
            row(1000, "0.1", true, None, 0, 0, 3000),
        ],
    ),
    (
        "fixed-window 3/1m",
        0.05,
        &[
            row(59_000, "2", true, Some(2.0 / 60.0), 1, 0, 1000),
            row(59_000, "2", false, Some(2.0 / 60.0), 1, 1000, 1000),
            row(59_999, "1", true, Some(3.0 / 60.0), 0, 0, 1),
            row(60_000, "3", true, Some(3.0 / 60.0), 0, 0, 60_000),
            row(60_000, "4", false, Some(3.0 / 60.0), 0, -1, 60_000),
        ],
    ),
    (
        "sliding-log 2/1m strict",
        2.0 / 60.0,
        &[
            row(0, "1", true, Some(1.0 / 60.0), 1, 0, 60_000),
            row(30_000, "1", true, Some(2.0 / 60.0), 0, 0, 60_000),
            row(59_999, "1", false, Some(3.0 / 60.0), 0, 30_001, 60_000),
            row(90_000, "1", true, Some(2.0 / 60.0), 0, 0, 60_000),
        ],
    ),
    (
        "sliding-window 2/1m sub-windows=6 harsh",
        2.0 / 60.0,
        &[
            row(5_000, "1", true, Some(1.0 / 60.0), 1, 0, 65_000),
            row(15_000, "1", true, Some(2.0 / 60.0), 0, 0, 65_000),
            row(69_999, "1", false, Some(2.0 / 60.0), 0, 1, 10_001),
            row(70_000, "1", true, Some(2.0 / 60.0), 0, 0, 70_000),
        ],
    ),
    (
        "sliding-window 2/1m sub-windows=6 lenient",
        2.0 / 60.0,
        &[
            row(5_000, "1", true, Some(1.0 / 60.0), 1, 0, 55_000),
            row(15_000, "1", true, Some(2.0 / 60.0), 0, 0, 55_000),
            row(59_999, "1", false, Some(2.0 / 60.0), 0, 1, 10_001),
            row(60_000, "1", true, Some(2.0 / 60.0), 0, 0, 60_000),
        ],
    ),
    (
        "sliding-counter 4/1m",
        4.0 / 60.0,
        &[
            row(30_000, "4", true, Some(4.0 / 60.0), 0, 0, 90_000),
            row(59_000, "1", false, Some(4.0 / 60.0), 0, 16_000, 61_000),
            row(75_000, "1", true, Some(4.0 / 60.0), 0, 0, 105_000),
            row(75_000, "1", false, Some(4.0 / 60.0), 0, 15_000, 105_000),
            row(90_000, "5", false, Some(3.0 / 60.0), 1, -1, 90_000),
        ],
    ),
];

/// Charges are stored even if they are over the limit, and answered as checks are.
const CHARGES: &[Table] = &[
    (
        "gcra 1/s burst=5", // charges beyond the balance put the bucket into debt
        1.0,
        &[
            charged(row(0, "4", true, None, 1, 0, 4000)),
            charged(row(0, "4", false, None, 0, 7000, 8000)),
            charged(row(0, "9", false, None, 0, -1, 17_000)),
            row(12_000, "1", false, None, 0, 1000, 5000),
            charged(row(13_000, "1", true, None, 0, 0, 5000)),
        ],
    ),
    (
        "fixed-window 3/1m",
        0.05,
        &[
            charged(row(0, "2", true, Some(2.0 / 60.0), 1, 0, 60_000)),
            charged(row(0, "2", false, Some(4.0 / 60.0), 0, 60_000, 60_000)),
            charged(row(59_999, "7", false, Some(11.0 / 60.0), 0, -1, 1)),
            row(60_000, "3", true, Some(0.05), 0, 0, 60_000),
        ],
    ),
    (
        "sliding-log 3/1m",
        0.05,
        &[
            charged(row(0, "3", true, Some(3.0 / 60.0), 0, 0, 60_000)),
            charged(row(20_000, "2", false, Some(5.0 / 60.0), 0, 60_000, 60_000)),
            row(60_000, "1", true, Some(3.0 / 60.0), 0, 0, 60_000),
            row(60_000, "1", false, Some(3.0 / 60.0), 0, 20_000, 60_000),
        ],
    ),
    (
        "sliding-window 2/1m sub-windows=6 harsh",
        2.0 / 60.0,
        &[
            charged(row(5_000, "2", true, Some(2.0 / 60.0), 0, 0, 65_000)),
            charged(row(15_000, "1", false, Some(3.0 / 60.0), 0, 55_000, 65_000)),
            row(70_000, "2", false, Some(1.0 / 60.0), 1, 10_000, 10_000),
        ],
    ),
    (
        "sliding-counter 4/1m",
        4.0 / 60.0,
        &[
            charged(row(0, "4", true, Some(4.0 / 60.0), 0, 0, 120_000)),
            charged(row(30_000, "4", false, Some(8.0 / 60.0), 0, 90_000, 90_000)),
            row(90_000, "1", false, Some(4.0 / 60.0), 0, 7_500, 30_000),
        ],
    ),
];

/// The instant of each table's first row: a multiple of a day, so that windows start at it.
const START: u64 = 20_000 * 86_400_000;

pub(super) async fn run<E: Engine>(
    make: &impl AsyncFn() -> E,
    profile: &Profile,
) -> Result<usize, Mismatch> {
    let mut compared = 0;
    let charges = if profile.charges { CHARGES } else { &[] };
    for table in TABLES.iter().chain(charges) {
        compared += play(make().await, table, profile).await?;
    }
    Ok(compared)
}

async fn play<E: Engine>(engine: E, table: &Table, profile: &Profile) -> Result<usize, Mismatch> {
    let (text, limit, rows) = table;
    let invalid = |error| Mismatch::new(text, error);
    let rule: Rule = text.parse().map_err(invalid)?;
    let mut lockstep = Lockstep::new(text, engine, &[rule], profile)?;
    for (place, row) in rows.iter().enumerate() {
        let cost: Cost = row.cost.parse().map_err(invalid)?;
        let now = Nanos::new((START + row.ms) * 1_000_000);
        let charges = [(0, b"client".as_slice(), cost)];
        let answer = lockstep.ask(row.operation, &charges, now).await?;
        let Some(got) = answer else { continue };
        let retry = u64::try_from(row.retry_ms).map(|ms| Wait::For(Duration::from_millis(ms)));
        let same = got.outcome == row.outcome
            && got.rate.is_some() == row.rate.is_some()
            && got
                .rate
                .zip(row.rate)
                .is_none_or(|(a, b)| (a - b).abs() < 1e-6)
            && (got.limit - limit).abs() < 1e-9
            && got.remaining == row.remaining
            && got.retry_after == retry.unwrap_or(Wait::Never)
            && got.reset_after == Duration::from_millis(row.reset_ms);
        if !same {
            return Err(Mismatch::new(
                text,
                format!("row {place} is not as written: {got:?}"),
            ));
        }
    }
    Ok(lockstep.compared)
}
