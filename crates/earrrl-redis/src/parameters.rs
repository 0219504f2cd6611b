//! What a script is told of a rule and a request: one packed string, which Lua reads in one call.
//!
//! Times are microseconds, amounts billionths of a unit (units in the two averages), all as doubles:
//! whole numbers below 2^53 are exact.

use std::time::Duration;

use earrrl::{
    Action, Cost, Limit, Mode, Policy, RecentAverage, Rule, RuleError, SlidingWindow, TokenBucket,
    algorithm::sliding_window::Edge,
};

use crate::script::Kind;

/// A limit meant as whole is whole, as in `recent_average.rs` and `exponential.rs`.
const AVERAGE_TOLERANCE: f64 = 1e-9;
const EXPONENTIAL_TOLERANCE: f64 = 1e-12;
/// An average is forgotten when it is down to this share of the limit: less than the tolerance can
/// change no decision.
const FORGOTTEN: f64 = 1e-9;
/// Averages of up to so many times the limit are forgotten within the same time.
const MANY: f64 = 100.0;
/// The time of a recent average's record, in microseconds, is told modulo this.
pub(crate) const TURN: f64 = 1_099_511_627_776.0;
pub(crate) const WIDE_TURN: f64 = TURN * 65_536.0;
const MOST_EXACT: f64 = 9_007_199_254_740_992.0;

const STORES: u8 = 1;
const STRICT: u8 = 2;
const ENFORCES: u8 = 4;

/// Begins with the tag of the rule's records, and goes on with its parameters and `cost`; `sign` is -1
/// to take back.
pub(crate) fn pack(rule: &Rule, tag: u32, cost: Cost, sign: f64, linger: Duration) -> Vec<u8> {
    let mut packed = Vec::with_capacity(96);
    packed.extend(tag_bytes(rule.limit(), tag));
    let mut numbers = |numbers: &[f64]| {
        numbers.iter().for_each(|number| packed.extend(number.to_le_bytes()));
    };
    let (units, billionths) = (cost.as_f64() * sign, cost.billionths() as f64 * sign);
    let linger_ms = linger.as_millis() as f64;
    match rule.limit() {
        Limit::RecentAverage(limit) => {
            let period = limit.period_secs() * 1e6;
            let most = limit.burst() * (1.0 + AVERAGE_TOLERANCE);
            let held = hold(rule).map_or(-1.0, |max| most * (micros(max) / period).exp());
            let Life { step, lives } = life(period, linger_ms);
            numbers(&[period, most, held, units, step, lives, MANY * most]);
            packed.push(u8::from(is_wide(limit)));
        }
        Limit::Exponential(limit) => {
            let period = limit.period() as f64 / 1e3;
            let most = limit.quota().as_f64() * (1.0 + EXPONENTIAL_TOLERANCE);
            let Life { step, lives } = life(period, linger_ms);
            numbers(&[period, most, units, step, lives, MANY * most]);
        }
        Limit::TokenBucket(limit) => {
            let [full, held, price] = spans(limit, rule, cost);
            let step = ((full.0 / 4.0).ceil() + 1000.0).floor();
            let ticks = ticks_per_micro(limit) as f64;
            numbers(&[ticks, full.0, full.1, held.0, held.1, price.0, price.1, step, linger_ms]);
        }
        Limit::FixedWindow(limit) => {
            let quota = limit.quota().billionths() as f64;
            numbers(&[whole_micros(limit.window()), quota, billionths, linger_ms]);
        }
        Limit::SlidingCounter(limit) => {
            let quota = limit.quota().billionths() as f64;
            numbers(&[whole_micros(limit.window()), quota, billionths, linger_ms]);
        }
        Limit::SlidingLog(limit) => {
            let (window, quota) = (whole_micros(limit.window()), limit.quota().billionths() as f64);
            let (most, step) = (limit.max_entries() as f64, (window / 4.0).ceil());
            let lives = (window + step) / 1e3 + linger_ms;
            numbers(&[window, quota, billionths, most, step, lives.ceil()]);
        }
        Limit::SlidingWindow(limit) => {
            let (window, quota) = (whole_micros(limit.window()), limit.quota().billionths() as f64);
            let (parts, common) = (limit.sub_windows(), common_divisor(limit));
            let (share, width) = (parts / common, limit.window() / 1000 / common);
            let lifetime = parts + u64::from(limit.edge() == Edge::Harsh);
            let lives = window / 1e3 * (lifetime as f64 / parts as f64) + linger_ms;
            let (parts, share, width) = (parts as f64, share as f64, width as f64);
            let lifetime = lifetime as f64;
            numbers(&[window, parts, share, width, lifetime, quota, billionths, lives.ceil()]);
        }
        _ => {}
    }
    packed
}

/// A tag as records of this limit begin with it: one byte where every byte counts.
pub(crate) fn tag_bytes(limit: &Limit, tag: u32) -> Vec<u8> {
    let bytes = tag.to_le_bytes();
    let small = matches!(limit, Limit::RecentAverage(_) | Limit::TokenBucket(_));
    if small { vec![bytes[0]] } else { bytes.to_vec() }
}

/// Whether records of this limit may live so long that their times need more bytes.
pub(crate) fn is_wide(limit: &RecentAverage) -> bool {
    life(limit.period_secs() * 1e6, 0.0).lives * 1e3 > TURN / 2.0
}

/// The flags of a charge. Cost 0 is judged and stores nothing, as a peek does.
pub(crate) fn flags(rule: &Rule, cost: Cost, mode: Mode) -> u8 {
    let stores = if mode == Mode::Peek || cost.is_zero() { 0 } else { STORES };
    let strict = if rule.limit().policy() == Policy::Strict { STRICT } else { 0 };
    stores | strict | if rule.action().enforces() { ENFORCES } else { 0 }
}

/// Refuses what Redis's whole microseconds can't count exactly.
pub(crate) fn check(limit: &Limit) -> Result<(), RuleError> {
    let window = match limit {
        Limit::FixedWindow(limit) => limit.window(),
        Limit::SlidingLog(limit) => limit.window(),
        Limit::SlidingCounter(limit) => limit.window(),
        Limit::SlidingWindow(limit) => {
            let shares = limit.sub_windows() / common_divisor(limit);
            if whole_micros(limit.window()) * shares as f64 >= MOST_EXACT {
                let problem = format!(
                    "{} parts of {}us can't be told exactly on Redis; take a divisor of the window",
                    limit.sub_windows(),
                    limit.window() / 1000
                );
                return Err(RuleError::new(problem).of("sub-windows"));
            }
            limit.window()
        }
        _ => return Ok(()),
    };
    if window % 1000 != 0 {
        let problem = format!("{window}ns is not whole microseconds, which Redis's clock tells");
        return Err(RuleError::new(problem).of("window"));
    }
    Ok(())
}

/// A stable number of everything that gives a record its meaning: the algorithm and those parameters
/// without which its state can't be read. A record with another tag is converted before use.
pub(crate) fn tag(limit: &Limit) -> u32 {
    let kind = Kind::of(limit).map_or(u64::MAX, |kind| kind as u64);
    let meaning = match limit {
        Limit::RecentAverage(limit) => [limit.period_secs().to_bits(), 0, 0, 0],
        Limit::Exponential(limit) => [limit.period(), 0, 0, 0],
        Limit::TokenBucket(limit) => {
            let (amount, per) = limit.refill().parts();
            let rate = amount.billionths() as f64 / per as f64;
            let capacity = limit.capacity().billionths();
            [
                rate.to_bits(),
                limit.ticks_per_nano() as u64,
                capacity as u64,
                (capacity >> 64) as u64,
            ]
        }
        Limit::FixedWindow(limit) => [limit.window(), 0, 0, 0],
        Limit::SlidingCounter(limit) => [limit.window(), 0, 0, 0],
        Limit::SlidingWindow(limit) => [limit.window(), limit.sub_windows(), 0, 0],
        _ => [0; 4],
    };
    let bytes = [kind].into_iter().chain(meaning).flat_map(u64::to_le_bytes);
    let fnv = bytes.fold(0xcbf2_9ce4_8422_2325, |hash: u64, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    });
    (fnv ^ fnv >> 32) as u32
}

/// Ticks of a token bucket's times in a microsecond.
pub(crate) fn ticks_per_micro(limit: &TokenBucket) -> i128 {
    limit.ticks_per_nano() * 1000
}

/// Ticks as whole microseconds and a rest.
pub(crate) fn in_two(ticks: i128, limit: &TokenBucket) -> (f64, f64) {
    let micro = ticks_per_micro(limit);
    (ticks.div_euclid(micro) as f64, ticks.rem_euclid(micro) as f64)
}

struct Life {
    step: f64,
    lives: f64,
}

/// Whole microseconds between changes of an average's expiry, and the milliseconds after which an
/// average of [`MANY`] times the limit has come down to [`FORGOTTEN`].
fn life(period: f64, linger_ms: f64) -> Life {
    let step = (2.0 * period).ceil();
    let lives = (period * (MANY / FORGOTTEN).ln() + step) / 1e3;
    Life { step, lives: lives + linger_ms }
}

/// Capacity, the most that may be missing for a request that is held, and the price.
fn spans(limit: &TokenBucket, rule: &Rule, cost: Cost) -> [(f64, f64); 3] {
    let price = limit.price(cost);
    // A full pool pays for its whole capacity, though the price may be rounded up by a tick.
    let fits = cost <= limit.capacity();
    let full = if fits { limit.full_ticks().max(price) } else { limit.full_ticks() };
    let held = hold(rule).filter(|_| fits).map_or((-1.0, 0.0), |max| {
        let ticks = i128::try_from(max.as_nanos()).unwrap_or(i128::MAX);
        in_two(ticks.saturating_mul(limit.ticks_per_nano()).saturating_add(full), limit)
    });
    [in_two(full, limit), held, in_two(price, limit)]
}

fn hold(rule: &Rule) -> Option<Duration> {
    match rule.action() {
        Action::Delay { max } => Some(max),
        _ => None,
    }
}

fn micros(span: Duration) -> f64 {
    span.as_secs_f64() * 1e6
}

fn whole_micros(nanos: u64) -> f64 {
    (nanos / 1000) as f64
}

/// Of the window in microseconds and its number of sub-windows.
fn common_divisor(limit: &SlidingWindow) -> u64 {
    let (mut a, mut b) = (limit.window() / 1000, limit.sub_windows());
    while b != 0 {
        (a, b) = (b, a % b);
    }
    a.max(1)
}
