//! Any limit, any requests, refunds and changes of the limit: no panic, nothing that is not a number,
//! and verdicts, `remaining` and waits that agree.
#![no_main]

use std::time::Duration;

use arbitrary::Arbitrary;
use earrrl::algorithm::{
    Concurrent, Exponential, FixedWindow, RecentAverage, SlidingCounter, SlidingLog, SlidingWindow,
    State, TokenBucket, sliding_window::Edge,
};
use earrrl::{Cost, Limit, Mode, Nanos, Policy, Rate, Rule, Wait};
use libfuzzer_sys::fuzz_target;

#[derive(Arbitrary, Debug)]
struct Input {
    limit: Parameters,
    start: u64,
    steps: Vec<Step>,
}

/// A number of any magnitude: random bits alone would nearly all be huge.
#[derive(Arbitrary, Clone, Copy, Debug)]
struct Number(u32, u8);

impl Number {
    fn nanos(self) -> u64 {
        u64::from(self.0) << (self.1 % 33)
    }

    fn cost(self) -> Cost {
        Cost::from_billionths(u128::from(self.0) << (self.1 % 64))
    }

    fn between(self, least: u64, most: u64) -> Duration {
        Duration::from_nanos(self.nanos().clamp(least, most))
    }
}

const TEN_YEARS: u64 = 3660 * 86_400 * 1_000_000_000;

#[derive(Arbitrary, Debug)]
struct Parameters {
    algorithm: u8,
    quota: Number,
    span: Number,
    per: Number,
    sub_windows: u16,
    strict: bool,
    lenient: bool,
}

#[derive(Arbitrary, Debug)]
enum Step {
    Ask { gap: Number, cost: Number },
    Plain { gap: Number },
    Refund { back: Number, cost: Number },
}

impl Parameters {
    /// The limit, if there can be such a one.
    fn build(&self) -> Option<Limit> {
        let quota = self.quota.cost();
        let span = self.span.between(1_000_000, TEN_YEARS);
        let per = self.per.between(1, TEN_YEARS);
        let policy = if self.strict {
            Policy::Strict
        } else {
            Policy::Leaky
        };
        let edge = if self.lenient {
            Edge::Lenient
        } else {
            Edge::Harsh
        };
        Some(match self.algorithm % 9 {
            0 => RecentAverage::with_half_life(Rate::new(quota, per).ok()?, span)
                .ok()?
                .with_policy(policy)
                .into(),
            1 => RecentAverage::with_period(Rate::new(quota, per).ok()?, span)
                .ok()?
                .into(),
            2 => Exponential::new(quota, span)
                .ok()?
                .with_policy(policy)
                .into(),
            3 => TokenBucket::new(self.span.cost(), Rate::new(quota, per).ok()?)
                .ok()?
                .into(),
            4 => FixedWindow::new(quota, span)
                .ok()?
                .with_policy(policy)
                .into(),
            5 => SlidingLog::new(quota, span)
                .ok()?
                .with_policy(policy)
                .with_max_entries(usize::from(self.sub_windows))
                .into(),
            6 => SlidingWindow::new(quota, span)
                .ok()?
                .with_sub_windows(self.sub_windows.into())
                .ok()?
                .with_edge(edge)
                .with_policy(policy)
                .into(),
            7 => SlidingCounter::new(quota, span)
                .ok()?
                .with_policy(policy)
                .into(),
            _ => Concurrent::new(self.sub_windows.into(), span).ok()?.into(),
        })
    }
}

fn allowed(limit: &Limit, state: &Option<State>, now: u64, cost: Cost) -> bool {
    limit
        .step(state.clone(), Nanos::new(now), cost, Mode::Peek)
        .1
}

/// The wait of a state is when its verdict turns; exponential's doubles may be off by a little.
fn check_wait(limit: &Limit, state: &Option<State>, now: Nanos, cost: Cost, wait: Wait) {
    let Some(wait) = wait.duration() else {
        assert!(!allowed(limit, state, now.get(), cost));
        assert!(!allowed(limit, state, u64::MAX, cost));
        return;
    };
    let haze = match limit {
        Limit::Exponential(limit) => (limit.period_nanos() as f64 * 1e-14) as u64 + 1,
        _ => 0,
    };
    let wait = u64::try_from(wait.as_nanos()).unwrap_or(u64::MAX);
    if let Some(end) = now
        .get()
        .checked_add(wait)
        .and_then(|end| end.checked_add(haze))
    {
        assert!(allowed(limit, state, end, cost), "denied after {wait} ns");
    }
    if wait > haze + 1 {
        let before = now.get().saturating_add(wait - haze - 1);
        assert!(
            !allowed(limit, state, before, cost),
            "allowed before {wait} ns"
        );
    }
}

fn ask(limit: &Limit, state: &mut Option<State>, now: Nanos, cost: Cost) {
    let peeked = limit.decide(state.clone(), now, cost, Mode::Peek).1;
    let (after, decision) = limit.decide(state.take(), now, cost, Mode::Check);
    assert_eq!(peeked.allowed, decision.allowed);
    let rate = decision.rate.unwrap_or(0.0);
    assert!(rate.is_finite() && rate >= 0.0, "rate {rate}");
    assert_eq!(decision.allowed, decision.retry_after == Wait::NONE);
    let (_, _, report) = limit.step(after.clone(), now, cost, Mode::Peek);
    check_wait(limit, &after, now, cost, report.retry_after);
    assert_eq!(
        allowed(limit, &after, now.get(), Cost::ONE),
        decision.remaining > 0
    );
    *state = after;
}

/// Fails with the names of the algorithms that `Parameters::build` never makes.
fn assert_every_algorithm() {
    let made = |algorithm| {
        let number = Number(1_000_000_000, 1);
        let quota = number;
        let span = number;
        let per = number;
        let sub_windows = 60;
        let strict = false;
        let lenient = false;
        Parameters {
            algorithm,
            quota,
            span,
            per,
            sub_windows,
            strict,
            lenient,
        }
        .build()
    };
    let made: Vec<String> = (0..=u8::MAX)
        .filter_map(made)
        .map(|limit| Rule::from(limit).to_string())
        .collect();
    for name in earrrl::internal::algorithms() {
        assert!(
            made.iter().any(|rule| rule.starts_with(name)),
            "`Parameters::build` makes no {name}"
        );
    }
}

fuzz_target!(init: assert_every_algorithm(), |input: Input| {
    let Some(limit) = input.limit.build() else { return };
    let (mut state, mut now) = (None, Nanos::new(input.start));
    for step in input.steps.iter().take(200) {
        match step {
            Step::Ask { gap, cost } => {
                now = Nanos::new(now.get().saturating_add(gap.nanos()));
                ask(&limit, &mut state, now, cost.cost());
            }
            Step::Plain { gap } => {
                now = Nanos::new(now.get().saturating_add(gap.nanos()));
                ask(&limit, &mut state, now, Cost::ONE);
            }
            Step::Refund { back, cost } => {
                let charged_at = Nanos::new(now.get().saturating_sub(back.nanos()));
                state = limit.refund(state, now, charged_at, cost.cost());
            }
        }
    }
});
