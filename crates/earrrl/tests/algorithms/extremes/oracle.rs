//! Each algorithm's definition, implemented a second time: by arithmetic that cannot overflow or
//! lose digits, over whole histories instead of states. Slow, but simple enough to be evidently
//! right.

use earrrl::algorithm::{
    Exponential, FixedWindow, RecentAverage, SlidingWindow, TokenBucket, sliding_window::Edge,
};
use earrrl::{Cost, Limit, Nanos, Policy};
use num_bigint::BigUint;

use crate::algorithms::accuracy::double_double::DoubleDouble;

/// The relation of a verdict to the exact one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Exact {
    Allow,
    Deny,
    /// The request is within the stated error, so that either verdict is right.
    Either,
}

/// The requests that an algorithm has stored.
#[derive(Clone, Debug, Default)]
pub(crate) struct History {
    stored: Vec<(Nanos, Cost)>,
}

impl History {
    pub(crate) fn store(&mut self, now: Nanos, cost: Cost) {
        if !cost.is_zero() {
            self.stored.push((now, cost));
        }
    }

    /// Returns the exact verdict on a request.
    pub(crate) fn verdict(&self, limit: &Limit, now: Nanos, cost: Cost) -> Exact {
        match limit {
            Limit::RecentAverage(limit) => self.recent_average(limit, now),
            Limit::Exponential(limit) => self.exponential(limit, now, cost),
            Limit::TokenBucket(limit) => self.token_bucket(limit, now, cost),
            Limit::FixedWindow(limit) => {
                let number = match limit.starts_with_first() {
                    true => self.first_of_window(limit, now),
                    false => limit.number(now),
                };
                let start = limit.begins(number);
                self.fits(|t| i128::from(t) >= start, cost, limit.quota())
            }
            Limit::SlidingLog(limit) => {
                let age = |t: u64| now.get() - t;
                self.fits(|t| age(t) < limit.window_nanos(), cost, limit.quota())
            }
            Limit::SlidingWindow(limit) => {
                let first = slot(limit, now.get()).saturating_sub(lifetime(limit) - 1);
                self.fits(|t| slot(limit, t) >= first, cost, limit.quota())
            }
            Limit::SlidingCounter(limit) => {
                let w = limit.window_nanos();
                let window = now.get() / limit.window_nanos();
                let current = self.sum(|t| t / w == window) + cost.billionths();
                let previous = self.sum(|t| window > 0 && t / w == window - 1);
                let left = w - now.get() % w;
                let sum = BigUint::from(previous) * left + BigUint::from(current) * w;
                exactly(sum <= BigUint::from(limit.quota().billionths()) * w)
            }
            Limit::Concurrent(limit) => {
                let places = |cost: Cost| cost.billionths().div_ceil(1_000_000_000);
                let is_taken = |t: Nanos| now.get() - t.get() < limit.timeout_nanos();
                let taken = self.stored.iter().filter(|(t, _)| is_taken(*t));
                let sum: u128 = taken.map(|(_, cost)| places(*cost)).sum();
                exactly(sum + places(cost) <= limit.places().into())
            }
            _ => panic!("extremes/oracle.rs has no definition of {limit:?}"),
        }
    }

    /// Returns the millisecond of the first request of the window that contains `now`.
    fn first_of_window(&self, limit: &FixedWindow, now: Nanos) -> u64 {
        let attempts = self.stored.iter().map(|(t, _)| *t).chain([now]);
        let ends = |first| limit.begins(first) + i128::from(limit.window_nanos());
        attempts.fold(0, |first, t| match i128::from(t.get()) < ends(first) {
            true => first,
            false => limit.number(t),
        })
    }

    fn sum(&self, counts: impl Fn(u64) -> bool) -> u128 {
        let counted = self.stored.iter().filter(|(t, _)| counts(t.get()));
        counted.map(|(_, cost)| cost.billionths()).sum()
    }

    fn fits(&self, counts: impl Fn(u64) -> bool, cost: Cost, quota: Cost) -> Exact {
        exactly(self.sum(counts) + cost.billionths() <= quota.billionths())
    }

    /// `Σ c·e^-λt` against `B`, the error of an estimate on either side.
    fn recent_average(&self, limit: &RecentAverage, now: Nanos) -> Exact {
        let period = DoubleDouble::of(limit.period_secs() * 1e9);
        let mut count = DoubleDouble::ZERO;
        for (t, cost) in &self.stored {
            let age = DoubleDouble::whole((now.get() - t.get()).into());
            let cost = DoubleDouble::whole(cost.billionths()) / DoubleDouble::of(1e9);
            count = count + cost * (age / period).exp_of_minus();
        }
        let most = DoubleDouble::of(limit.burst());
        if count.is_above(most * DoubleDouble::of(1.0 + 2e-6)) {
            Exact::Deny
        } else if most.is_above(count) {
            Exact::Allow
        } else {
            Exact::Either
        }
    }

    /// The recurrence of the source, from the first request on.
    fn exponential(&self, limit: &Exponential, now: Nanos, cost: Cost) -> Exact {
        let period = limit.period_nanos() as f64;
        let measure = |last: Option<(Nanos, f64)>, t: Nanos, cost: f64| match last {
            None => cost,
            Some((before, rate)) => {
                let i = ((t.get() - before.get()) as f64 / period).max(1e-10);
                (-(-i).exp_m1() * cost / i + (-i).exp() * rate).max(cost)
            }
        };
        let last = self.stored.iter().fold(None, |last, (t, cost)| {
            Some((*t, measure(last, *t, cost.as_f64())))
        });
        let r = measure(last, now, cost.as_f64());
        let most = limit.quota().as_f64();
        match r / most {
            over if over > 1.0 + 1e-9 => Exact::Deny,
            over if over <= 1.0 => Exact::Allow,
            _ => Exact::Either,
        }
    }

    /// Balances in billionths of a unit times the nanoseconds of the refill. A charge is rounded up by
    /// less than one tick of 1/720,720 ns for each unit, and another one for a fraction.
    fn token_bucket(&self, limit: &TokenBucket, now: Nanos, cost: Cost) -> Exact {
        let (amount, per) = limit.refill().parts();
        let per = per.as_nanos() as u64;
        let amount = BigUint::from(amount.billionths());
        let price = |cost: Cost| BigUint::from(cost.billionths()) * per;
        let full = price(limit.capacity());
        let refilled = |balance: BigUint, since: u64| full.clone().min(balance + &amount * since);
        let mut balance = full.clone();
        let mut last = 0;
        for (t, cost) in &self.stored {
            balance = refilled(balance, t.get() - last) - price(*cost);
            last = t.get();
        }
        balance = refilled(balance, now.get() - last);
        let most_ticks = |cost: Cost| cost.billionths() / 1_000_000_000 + 2;
        let stored: u128 = self.stored.iter().map(|(_, c)| most_ticks(*c)).sum();
        let error = amount * (stored + most_ticks(cost)) / 720_720u32 + 1u8;
        if balance < price(cost) {
            Exact::Deny
        } else if balance >= price(cost) + error {
            Exact::Allow
        } else {
            Exact::Either
        }
    }

    /// What a strict log merges counts on the deny side.
    pub(crate) fn is_bounded(limit: &Limit) -> bool {
        matches!(limit, Limit::SlidingLog(_)) && limit.policy() == Policy::Strict
    }
}

fn exactly(fits: bool) -> Exact {
    if fits { Exact::Allow } else { Exact::Deny }
}

fn slot(limit: &SlidingWindow, t: u64) -> u64 {
    (u128::from(t) * u128::from(limit.sub_windows()) / u128::from(limit.window_nanos())) as u64
}

fn lifetime(limit: &SlidingWindow) -> u64 {
    limit.sub_windows() + u64::from(limit.edge() == Edge::Harsh)
}
