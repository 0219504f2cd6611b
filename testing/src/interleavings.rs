//! Random interleavings of checks, charges, refunds, reservations, commits and expiries, compared
//! with a model that keeps the list of all charges.
//!
//! The model is each algorithm's definition over whole histories. So it cannot forget what a later
//! refund or commit makes count again.

use std::time::Duration;

use crate::{Mismatch, Profile};
use earrrl::{
    Actual, Charge, Cost, Engine, HoldId, HoldTerms, Limit, Mode, Nanos, OnExpiry, Policy, Rule,
    RuleId, algorithm::sliding_window::Edge, internal::Random,
};

/// Rules of every algorithm under both policies.
const RULES: &[&str] = &[
    "recent-average 5/m half-life=1m strict",
    "recent-average 5/m half-life=1m leaky",
    "exponential 5/1m strict",
    "exponential 5/1m leaky",
    "token-bucket 5 refill=5/m",
    "gcra 1/10s burst=3",
    "fixed-window 5/1m strict",
    "fixed-window 5/1m leaky",
    "sliding-log 5/1m strict",
    "sliding-log 5/1m leaky",
    "sliding-window 5/1m sub-windows=6 strict",
    "sliding-window 5/1m sub-windows=6 lenient leaky",
    "sliding-counter 5/1m strict",
    "sliding-counter 5/1m leaky",
    "concurrent 5 timeout=1m",
];

/// The histories under each rule, and the steps of a history. A log merges requests in longer ones.
const HISTORIES: u64 = 30;
const STEPS: usize = 30;

/// Runs random histories under every rule that `engine` accepts. Returns the number of verdicts that
/// were compared. Reservations expire only if `expires` is true; that needs an engine whose
/// reservations expire by the instants that it is given.
///
/// # Errors
/// Returns the first wrong verdict as an error.
pub async fn interleavings<E: Engine>(
    engine: &E,
    profile: &Profile,
    expires: bool,
) -> Result<usize, Mismatch> {
    let mut compared = 0;
    let mut now = Nanos::from_secs(1_800_000_000);
    for (nth, text) in RULES.iter().enumerate() {
        for (on_expiry, name) in [(OnExpiry::Keep, "keep"), (OnExpiry::Release, "release")] {
            let rule: Rule = text.parse().map_err(|error| Mismatch::new(text, error))?;
            let rule = rule.with_on_expiry(on_expiry);
            // The timeout of a place is an expiry.
            if rule.limit().is_concurrent() && !expires {
                continue;
            }
            let Ok(id) = engine.prepare(&format!("interleaved-{nth}-{name}"), &rule) else {
                continue;
            };
            for seed in 0..HISTORIES {
                let key = format!("{nth}-{name}-{seed}");
                let mut history = History {
                    engine,
                    rule: &rule,
                    id,
                    key: &key,
                    profile,
                    expires,
                    now,
                    sent: Vec::new(),
                    live: Vec::new(),
                    compared: 0,
                    trace: Vec::new(),
                };
                let played = history.play(&mut Random::new(seed)).await;
                let scene = format!("{text}, {name} on expiry, seed {seed}");
                played.map_err(|problem| {
                    Mismatch::new(&scene, format!("{problem}\n{}", history.trace.join("\n")))
                })?;
                compared += history.compared;
                now = history.now;
            }
        }
    }
    Ok(compared)
}

/// A charge of the model, in billionths of a unit. It is negative if a bucket was refilled by it.
struct Sent {
    at: Nanos,
    cost: i128,
    can_be_refunded: bool,
}

/// A live reservation, and the place of its charge.
struct Live {
    id: HoldId,
    place: usize,
    expires: Nanos,
}

struct History<'a, E> {
    engine: &'a E,
    rule: &'a Rule,
    id: RuleId,
    key: &'a str,
    profile: &'a Profile,
    expires: bool,
    now: Nanos,
    sent: Vec<Sent>,
    live: Vec<Live>,
    compared: usize,
    trace: Vec<String>,
}

impl<'a, E: Engine> History<'a, E> {
    async fn play(&mut self, random: &mut Random) -> Result<(), String> {
        let is_concurrent = self.rule.limit().is_concurrent();
        for _ in 0..STEPS {
            self.pass_time(random).await?;
            let cost = 1 + random.below(3);
            match random.below(8) {
                0 | 1 => self.hold(cost, random).await?,
                2 | 3 => self.commit(random).await?,
                4 if !is_concurrent => self.refund(random).await?,
                5 if !is_concurrent && self.profile.charges => {
                    self.decide(1 + random.below(12), Mode::Charge).await?;
                }
                _ if is_concurrent => self.hold(cost, random).await?,
                _ => self.decide(cost, Mode::Check).await?,
            }
        }
        Ok(())
    }

    fn charge(&self, units: u64) -> Charge<'a> {
        Charge {
            rule: self.id,
            key: self.key.as_bytes(),
            cost: Cost::from_units(units),
        }
    }

    async fn pass_time(&mut self, random: &mut Random) -> Result<(), String> {
        let most = if random.below(8) == 0 { 90 } else { 10 };
        let step = self.profile.step.as_nanos() as u64;
        let gap = (most as f64 * 1e9 * random.unit()) as u64 / step * step;
        self.now = self.now + Duration::from_nanos(gap + step);
        if !self.expires {
            return Ok(());
        }
        // An engine ends expired reservations when another one is made.
        let other = Charge {
            key: b"other",
            ..self.charge(1)
        };
        let made = self
            .engine
            .place_hold(&[other], HoldTerms::default(), Some(self.now))
            .await;
        if let Some(id) = made.map_err(|error| format!("{error}"))?.id {
            let released = Actual::All(Cost::ZERO);
            let done = self.engine.commit_hold(id, released, Some(self.now)).await;
            done.map_err(|error| format!("{error}"))?;
        }
        while let Some(gone) = self.live.iter().position(|live| live.expires <= self.now) {
            let place = self.live.remove(gone).place;
            self.trace.push(format!("{:?} expires {place}", self.now));
            if self.rule.on_expiry() == OnExpiry::Release {
                self.sent[place].cost = 0;
            }
        }
        Ok(())
    }

    fn store(&mut self, units: i128, can_be_refunded: bool) {
        self.sent.push(Sent {
            at: self.now,
            cost: units * 1_000_000_000,
            can_be_refunded,
        });
    }

    async fn decide(&mut self, units: u64, mode: Mode) -> Result<(), String> {
        let asked = [self.charge(units)];
        let decided = self.engine.decide(&asked, mode, Some(self.now)).await;
        let decision = decided.map_err(|error| format!("{error}"))?;
        let what = format!("{:?} {mode:?} of {units}: {}", self.now, decision.allowed);
        self.compare(what, units, decision.allowed)?;
        let is_strict = self.rule.limit().policy() == Policy::Strict;
        if decision.allowed || is_strict || mode == Mode::Charge {
            self.store(units.into(), true);
        }
        Ok(())
    }

    /// Reserves. Several live reservations of one bucket may leave it lower than the model.
    async fn hold(&mut self, units: u64, random: &mut Random) -> Result<(), String> {
        if self.is_bucket() && !self.live.is_empty() {
            return Ok(());
        }
        let ttl = Duration::from_secs(1 + random.below(40));
        let terms = HoldTerms::default().ttl(if self.expires { ttl } else { HOUR });
        let asked = [self.charge(units)];
        let held = self.engine.place_hold(&asked, terms, Some(self.now)).await;
        let holding = held.map_err(|error| format!("{error}"))?;
        let allowed = holding.decision.allowed;
        self.compare(
            format!("{:?} hold of {units}: {allowed}", self.now),
            units,
            allowed,
        )?;
        if let Some(id) = holding.id {
            self.live.push(Live {
                id,
                place: self.sent.len(),
                expires: self.now + terms.ttl,
            });
        }
        if allowed || self.rule.limit().policy() == Policy::Strict {
            self.store(units.into(), false);
        }
        Ok(())
    }

    async fn commit(&mut self, random: &mut Random) -> Result<(), String> {
        if self.live.is_empty() {
            return Ok(());
        }
        let live = self
            .live
            .remove(random.below(self.live.len() as u64) as usize);
        let units = random.below(6);
        let actual = Actual::All(Cost::from_units(units));
        let done = self
            .engine
            .commit_hold(live.id, actual, Some(self.now))
            .await;
        done.map_err(|error| format!("{error}"))?;
        self.trace
            .push(format!("{:?} commit {} as {units}", self.now, live.place));
        let actual = i128::from(units) * 1_000_000_000;
        let more = actual - self.sent[live.place].cost;
        if self.rule.limit().is_concurrent() {
            self.sent[live.place].cost = 0;
        } else if self.is_bucket() && more > 0 {
            self.store(more / 1_000_000_000, false);
        } else {
            self.sent[live.place].cost = actual;
        }
        Ok(())
    }

    /// Takes back a random earlier request. A bucket is refilled by it at the present time, which a
    /// reservation that was made before knows nothing about.
    async fn refund(&mut self, random: &mut Random) -> Result<(), String> {
        let known = (0..self.sent.len()).filter(|place| self.sent[*place].can_be_refunded);
        let known: Vec<usize> = known.collect();
        if known.is_empty() || self.is_bucket() && !self.live.is_empty() {
            return Ok(());
        }
        let place = *random.pick(&known);
        let at = self.sent[place].at;
        let units = self.sent[place].cost / 1_000_000_000;
        let charge = self.charge(units as u64);
        let done = self.engine.refund(&charge, Some(at), Some(self.now)).await;
        done.map_err(|error| format!("{error}"))?;
        self.trace
            .push(format!("{:?} refund {place} of {units}", self.now));
        self.sent[place].can_be_refunded = false;
        if self.is_bucket() {
            self.store(-units, false);
        } else {
            self.sent[place].cost = 0;
        }
        Ok(())
    }

    fn is_bucket(&self) -> bool {
        matches!(self.rule.limit(), Limit::TokenBucket(_))
    }

    /// Compares a verdict with the model's. A bucket may deny more, since a commit cannot know
    /// exactly how much refill was lost.
    fn compare(&mut self, what: String, units: u64, allowed: bool) -> Result<(), String> {
        self.trace.push(what);
        let expected = self.verdict(i128::from(units) * 1_000_000_000);
        self.compared += usize::from(expected.is_some());
        match expected {
            Some(false) if allowed => Err("allowed, but the model denies".into()),
            Some(true) if !allowed && !self.is_bucket() => {
                Err("denied, but the model allows".into())
            }
            _ => Ok(()),
        }
    }

    fn sum(&self, counts: impl Fn(u64) -> bool) -> i128 {
        let counted = self.sent.iter().filter(|sent| counts(sent.at.get()));
        counted.map(|sent| sent.cost).sum()
    }

    /// Returns the model's verdict; `None` if an estimate is too close to the limit to tell, and
    /// under exponential, whose corrections are approximate.
    fn verdict(&self, cost: i128) -> Option<bool> {
        let now = self.now.get();
        let fits = |sum: i128, quota: Cost| Some(sum + cost <= quota.billionths() as i128);
        match self.rule.limit() {
            Limit::FixedWindow(limit) => {
                let start = now - now % limit.window_nanos();
                fits(self.sum(|at| at >= start), limit.quota())
            }
            Limit::SlidingLog(limit) => fits(
                self.sum(|at| now - at < limit.window_nanos()),
                limit.quota(),
            ),
            Limit::SlidingWindow(limit) => {
                let parts = u128::from(limit.sub_windows());
                let slot = |at: u64| u128::from(at) * parts / u128::from(limit.window_nanos());
                let lives = parts + u128::from(limit.edge() == Edge::Harsh);
                let counts = |at| slot(at) + lives > slot(now);
                fits(self.sum(counts), limit.quota())
            }
            Limit::SlidingCounter(limit) => {
                let window = limit.window_nanos();
                let index = now / window;
                let current = (self.sum(|at| at / window == index) + cost) * i128::from(window);
                let previous = self.sum(|at| at / window + 1 == index);
                let weighted = previous * i128::from(window - now % window);
                let most = limit.quota().billionths() as i128 * i128::from(window);
                Some(weighted + current <= most)
            }
            Limit::RecentAverage(limit) => {
                let period = limit.period_secs() * 1e9;
                let decayed = |sent: &Sent| {
                    let age = (now - sent.at.get()) as f64;
                    sent.cost as f64 / 1e9 * (-age / period).exp()
                };
                let share = self.sent.iter().map(decayed).sum::<f64>() / limit.burst();
                ((share - 1.0).abs() > 1e-5).then_some(share <= 1.0)
            }
            Limit::TokenBucket(limit) => {
                let (amount, per) = limit.refill().parts();
                let amount = amount.billionths() as i128;
                let per = per.as_nanos() as i128;
                let full = limit.capacity().billionths() as i128 * per;
                let mut balance = full;
                let mut last = 0;
                for sent in &self.sent {
                    balance = full.min(balance + amount * i128::from(sent.at.get() - last));
                    balance = full.min(balance - sent.cost * per);
                    last = sent.at.get();
                }
                balance = full.min(balance + amount * i128::from(now - last));
                Some(balance >= cost * per)
            }
            Limit::Concurrent(limit) => {
                let taken = self.sum(|at| now - at < limit.timeout_nanos());
                Some(taken + cost <= i128::from(limit.places()) * 1_000_000_000)
            }
            _ => None,
        }
    }
}

const HOUR: Duration = Duration::from_secs(3600);
