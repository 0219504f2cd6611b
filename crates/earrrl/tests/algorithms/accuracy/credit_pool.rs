//! Compares token buckets with rational arithmetic.
//!
//! With whole costs and a refill that divides 720,720 in lowest terms every answer is the exact one;
//! else rounding takes at most `max(1e-9 unit, ρ·2^-16 ns)` a request, on the deny side.

use std::time::Duration;

use earrrl::algorithm::TokenBucket;
use earrrl::{Cost, Limit, Nanos, Rate, Wait};
use earrrl_testing::Random;

use crate::algorithms::client::{Client, units};

/// The exact balance, in billionths of a unit times the nanoseconds of the refill, so that it is a
/// whole number.
struct Exact {
    capacity: i128,
    balance: i128,
    amount: i128,
    per: i128,
    now: u64,
    /// The requests that were allowed since the pool was full.
    roundings: i128,
}

impl Exact {
    fn new(capacity: Cost, rate: Rate) -> Self {
        let (amount, per) = rate.parts();
        let amount = amount.billionths() as i128;
        let per = per.as_nanos() as i128;
        let capacity = capacity.billionths() as i128 * per;
        Self {
            capacity,
            balance: capacity,
            amount,
            per,
            now: 0,
            roundings: 0,
        }
    }

    fn advance(&mut self, now: Nanos) {
        let refilled = self.balance + self.amount * i128::from(now.get() - self.now);
        (self.balance, self.now) = (refilled.min(self.capacity), now.get());
        if self.balance == self.capacity {
            self.roundings = 0;
        }
    }

    fn price(&self, cost: Cost) -> i128 {
        cost.billionths() as i128 * self.per
    }

    fn wait(&self, missing: i128) -> Duration {
        let nanos = (missing.max(0) + self.amount - 1).div_euclid(self.amount);
        Duration::from_nanos(nanos as u64)
    }

    /// Returns the greatest rounding error by now.
    fn slack(&self) -> i128 {
        (self.roundings + 1) * self.per.max((self.amount >> 16) + 1)
    }
}

/// Plays random requests on both; the exact balance is charged what the bucket allowed.
fn play(capacity: Cost, rate: Rate, cost: impl Fn(&mut Random) -> Cost, whole: bool) {
    let limit = Limit::from(TokenBucket::new(capacity, rate).unwrap());
    let mut client = Client::new(limit);
    let mut exact = Exact::new(capacity, rate);
    let mut random = Random::new(rate.parts().1.as_nanos() as u64);
    let mut now = 0u64;
    let unit = (1e9 / rate.per_second_f64()) as u64 + 1;
    for step in 0..20_000 {
        if now > Nanos::MAX.get() / 2 {
            break;
        }
        let cost = cost(&mut random);
        let gap = if random.below(3) == 0 {
            random.below(4 * unit)
        } else {
            random.below(3)
        };
        now += gap
            + if random.below(500) == 0 {
                300 * unit
            } else {
                0
            };
        exact.advance(Nanos::new(now));
        let fits = exact.price(cost) <= exact.balance;
        let missing = exact.price(cost) - exact.balance;
        let decision = client.ask(Nanos::new(now), cost);
        let what = format!("{rate}, step {step}: {decision:?}, {missing} missing");
        assert!(fits || !decision.allowed, "{what}");
        assert!(decision.allowed || -missing <= exact.slack(), "{what}");
        if decision.allowed {
            exact.balance -= exact.price(cost);
            exact.roundings += 1;
        }
        if whole {
            assert_eq!(decision.allowed, fits, "{what}");
            let remaining = exact.balance / (exact.per * 1_000_000_000);
            assert_eq!(i128::from(decision.remaining), remaining, "{what}");
            let wait = if fits {
                Duration::ZERO
            } else {
                exact.wait(missing)
            };
            let wait = if cost > capacity {
                Wait::Never
            } else {
                Wait::For(wait)
            };
            assert_eq!(decision.retry_after, wait, "{what}");
            let reset = exact.wait(exact.capacity - exact.balance);
            assert_eq!(decision.reset_after, reset, "{what}");
        }
    }
}

fn rate(amount: &str, per: Duration) -> Rate {
    Rate::new(amount.parse().unwrap(), per).unwrap()
}

const MINUTE: Duration = Duration::from_secs(60);
const SECOND: Duration = Duration::from_secs(1);

#[test]
fn whole_costs_are_exact() {
    for rate in [
        rate("3", SECOND),
        rate("7", MINUTE),
        rate("0.7", MINUTE),
        rate("9", Duration::from_secs(3600)),
        rate("13", SECOND),
        rate("1", Duration::from_nanos(999_999_937)),
        rate("720720", Duration::from_nanos(1_000_003)),
        rate("1", Duration::from_secs(3600 * 24 * 365)),
    ] {
        for capacity in [1, 2, 60, 1000] {
            play(
                units(capacity),
                rate,
                |random| units(1 + random.below(3)),
                true,
            );
        }
    }
}

#[test]
fn other_rates_and_fractions_round_by_little_and_on_the_deny_side() {
    for rate in [
        rate("600000007", SECOND),
        rate("999999999.999999999", SECOND),
        rate("999983", Duration::from_secs(3600)),
        rate("1000000", Duration::from_nanos(1_000_003)),
        rate("17", SECOND),
        rate("3", SECOND),
        rate("7", MINUTE),
        rate("1234.000000567", SECOND),
        rate("0.000000001", Duration::from_nanos(31)),
    ] {
        let billionths =
            |random: &mut Random| Cost::from_billionths(random.below(3_000_000_000).into());
        for capacity in ["1", "60", "7.5", "0.000000003", "1000.000000001"] {
            play(capacity.parse().unwrap(), rate, billionths, false);
            play(
                capacity.parse().unwrap(),
                rate,
                |random| units(1 + random.below(3)),
                false,
            );
        }
    }
}

/// Rounding what costs and what fits apart would never allow a request of the whole capacity.
#[test]
fn a_full_pool_pays_its_whole_capacity() {
    for amount in [
        "600000007",
        "3",
        "0.7",
        "1234.000000567",
        "999999999.999999999",
    ] {
        for capacity in ["1", "7", "0.3", "60.000000001", "1000"] {
            let capacity: Cost = capacity.parse().unwrap();
            let bucket = TokenBucket::new(capacity, rate(amount, SECOND)).unwrap();
            let mut client = Client::new(bucket.into());
            assert!(
                client.ask(Nanos::from_secs(9), capacity).allowed,
                "{capacity} at {amount}/s"
            );
            let denied = client.ask(Nanos::from_secs(9), capacity);
            let wait = denied.retry_after.duration().unwrap();
            assert!(
                client.ask(Nanos::from_secs(9) + wait, capacity).allowed,
                "{capacity}"
            );
        }
    }
}
