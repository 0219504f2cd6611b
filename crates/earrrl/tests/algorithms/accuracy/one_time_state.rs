//! The recent average's state, one time, beside a sum that decays in double-double arithmetic.
//!
//! Within 1e-9 for rates up to 1e5 a second at half-lives of a second and more; within 1e-6 up to
//! 1e8 a second, down to a millisecond and beyond a year.

use std::time::Duration;

use earrrl::algorithm::{Algorithm, Moment, RecentAverage};
use earrrl::{Cost, Nanos, Rate};
use earrrl_testing::Random;

use super::double_double::DoubleDouble;

const MILLIS: u64 = 1_000_000;
const SECOND: u64 = 1_000 * MILLIS;
const YEAR: u64 = 365 * 86_400 * SECOND;

#[derive(Clone, Copy, Debug)]
enum Arrivals {
    Steady,
    Random,
    Bursty,
}

impl Arrivals {
    /// Returns the nanoseconds from one request to the next, which are `mean` on average.
    fn gap(self, mean: f64, request: u64, random: &mut Random) -> u64 {
        match self {
            Self::Steady => mean as u64,
            Self::Random => (-(1.0 - random.unit()).ln() * mean) as u64,
            Self::Bursty if request.is_multiple_of(100) => (100.0 * mean) as u64,
            Self::Bursty => 0,
        }
    }
}

/// The decayed count in double-double arithmetic.
struct Reference {
    period: DoubleDouble,
    count: DoubleDouble,
    last_gap: (u64, DoubleDouble),
}

impl Reference {
    fn new(half_life: u64) -> Self {
        let period = DoubleDouble::whole(half_life.into()) / DoubleDouble::LN_2;
        Self {
            period,
            count: DoubleDouble::ZERO,
            last_gap: (0, DoubleDouble::ONE),
        }
    }

    fn charge(&mut self, gap: u64, cost: Cost) {
        if self.last_gap.0 != gap {
            let periods = DoubleDouble::whole(gap.into()) / self.period;
            self.last_gap = (gap, periods.exp_of_minus());
        }
        let cost = DoubleDouble::whole(cost.billionths()) / DoubleDouble::of(1e9);
        self.count = self.count * self.last_gap.1 + cost;
    }
}

/// Returns the greatest relative error over a number of updates, beginning at the settled rate.
fn worst_error(rate: f64, half_life: u64, arrivals: Arrivals, updates: u64) -> f64 {
    let any_rate = Rate::per_second(1).unwrap();
    let limit = RecentAverage::with_half_life(any_rate, Duration::from_nanos(half_life)).unwrap();
    let mut random = Random::new(updates ^ half_life ^ rate.to_bits());
    let mut now = Nanos::from_secs(1_700_000_000);
    let mut reference = Reference::new(half_life);
    let settled = Cost::try_from((rate * limit.period_secs()).max(1.0)).unwrap();
    reference.charge(0, settled);
    let mut state: Moment = limit.charge(None, now, settled);
    let mut worst = 0f64;
    for request in 0..updates {
        let gap = arrivals.gap(1e9 / rate, request, &mut random);
        now = Nanos::new(now.get() + gap);
        state = limit.charge(Some(state), now, Cost::ONE);
        reference.charge(gap, Cost::ONE);
        if request.is_multiple_of(64) {
            let exact = reference.count.to_f64();
            worst = worst.max((limit.count(Some(&state), now) / exact - 1.0).abs());
        }
    }
    worst
}

fn long() -> bool {
    std::env::var_os("EARRRL_LONG").is_some()
}

/// Returns the greatest error over three patterns of requests.
fn assert_within(tolerance: f64, rates: &[f64], half_lives: &[u64]) {
    let updates = if long() { 10_000_000 } else { 50_000 };
    for (rate, half_life) in rates
        .iter()
        .flat_map(|r| half_lives.iter().map(move |h| (*r, *h)))
    {
        for arrivals in [Arrivals::Steady, Arrivals::Random, Arrivals::Bursty] {
            let worst = worst_error(rate, half_life, arrivals, updates);
            let half_life = Duration::from_nanos(half_life);
            eprintln!("{rate:e}/s, half-life {half_life:?}, {arrivals:?}: {worst:.1e}");
            assert!(
                worst <= tolerance,
                "{worst:e}: {rate}/s, {half_life:?}, {arrivals:?}"
            );
        }
    }
}

#[test]
fn within_1e9th_at_everyday_rates() {
    let half_lives = [SECOND, 10 * SECOND, 3600 * SECOND];
    assert_within(1e-9, &[0.001, 0.1, 1.0, 37.0, 1e3, 1e5], &half_lives);
}

#[test]
fn within_1e6th_at_the_highest_rates_and_the_shortest_half_lives() {
    let half_lives = [MILLIS, 10 * MILLIS, SECOND, 10 * SECOND, 3600 * SECOND];
    assert_within(1e-6, &[1e6, 1e8], &half_lives);
    assert_within(1e-6, &[0.001, 1.0, 1e3, 1e5], &[MILLIS]);
}

#[test]
fn within_1e6th_at_half_lives_above_a_year() {
    assert_within(1e-6, &[0.001, 1.0, 1e3, 1e5], &[2 * YEAR, 10 * YEAR]);
}

#[test]
fn ten_million_updates_change_nothing_about_that() {
    let worst = worst_error(1e5, 10 * SECOND, Arrivals::Steady, 10_000_000);
    assert!(worst < 1e-9, "{worst:e}");
}
