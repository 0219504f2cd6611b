//! Random interleavings of checks, charges, refunds, reservations, commits, expiries, resets and restarts,
//! compared with a model that keeps the list of all charges.
//!
//! The model is each algorithm's definition over whole histories. So it cannot forget what a later
//! refund or commit makes count again. Exponential, whose corrections are approximate, is compared with the
//! documented approximation. A bucket is never above the exact level, and never below the one that it would
//! have if nothing was given back.

use std::time::Duration;

use crate::{Mismatch, Profile};
use earrrl::{
    Actual, Charge, Cost, Engine, HoldId, HoldTerms, Limit, Mode, Nanos, OnExpiry, Policy, Rule,
    RuleId, algorithm::TokenBucket, algorithm::sliding_window::Edge, internal::Random,
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

/// The histories under each rule, and the steps of a history.
const HISTORIES: u64 = 30;
const STEPS: usize = 30;
/// The steps of a history of a log, and the most requests that it keeps although newer ones outweigh the quota. It
/// merges others, and may then deny more.
const STEPS_OF_LOGS: usize = 150;
const OUTWEIGHED: usize = 32;

/// Stops an engine and starts it again at an instant.
pub type Restart<'a, E> = &'a mut dyn FnMut(E, Nanos) -> E;

/// Runs random histories under every rule that `engine` accepts. Returns the number of verdicts that
/// were compared. Expired reservations are released only if `releases` is true. With `restart`, the engine is
/// restarted now and then; it must keep the states of [`Limit::fits_words`] and no others, and all reservations.
///
/// # Errors
/// Returns the first wrong verdict as an error.
pub async fn interleavings<E: Engine>(
    engine: E,
    profile: &Profile,
    releases: bool,
    mut restart: Option<Restart<'_, E>>,
) -> Result<usize, Mismatch> {
    let mut engine = Some(engine);
    let mut compared = 0;
    let mut now = Nanos::from_secs(1_800_000_000);
    for (nth, text) in RULES.iter().enumerate() {
        for (on_expiry, name) in [(OnExpiry::Keep, "keep"), (OnExpiry::Release, "release")] {
            let rule: Rule = text.parse().map_err(|error| Mismatch::new(text, error))?;
            let rule = rule.with_on_expiry(on_expiry);
            // A place of concurrent that expires is always released, but by such an engine only after the timeout.
            let is_released = on_expiry == OnExpiry::Release || rule.limit().is_concurrent();
            if is_released && !releases {
                continue;
            }
            let rule_name = format!("interleaved-{nth}-{name}");
            let prepared = engine
                .as_ref()
                .map(|engine| engine.prepare(&rule_name, &rule));
            let Some(Ok(mut id)) = prepared else {
                continue;
            };
            for seed in 0..HISTORIES {
                let key = format!("{nth}-{name}-{seed}");
                let mut history = History {
                    engine: engine.take(),
                    restart: restart
                        .as_mut()
                        .map(|restart| &mut **restart as Restart<'_, E>),
                    rule: &rule,
                    rule_name: &rule_name,
                    id,
                    key: &key,
                    profile,
                    now,
                    sent: Vec::new(),
                    measured: None,
                    is_measured: true,
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
                (engine, id) = (history.engine, history.id);
            }
        }
    }
    Ok(compared)
}

/// A charge of the model, in billionths of a unit. It is negative if a bucket was refilled by it.
struct Sent {
    at: Nanos,
    cost: i128,
    /// The cost if nothing of it was given back.
    most: i128,
    can_be_refunded: bool,
}

/// A live reservation, and the place of its charge.
struct Live {
    id: HoldId,
    place: usize,
    estimate: i128,
    expires: Nanos,
    /// True if the state that it charged is gone.
    is_gone: bool,
}

/// The measure of exponential: the cost per period at an instant.
#[derive(Clone, Copy)]
struct Measured {
    at: Nanos,
    rate: f64,
}

struct History<'a, E> {
    /// `None` only while it is restarted.
    engine: Option<E>,
    restart: Option<Restart<'a, E>>,
    rule: &'a Rule,
    rule_name: &'a str,
    id: RuleId,
    key: &'a str,
    profile: &'a Profile,
    now: Nanos,
    sent: Vec<Sent>,
    measured: Option<Measured>,
    /// True if the measure is known. Engines differ in the time of an excess that finds no measure.
    is_measured: bool,
    live: Vec<Live>,
    compared: usize,
    trace: Vec<String>,
}

impl<'a, E: Engine> History<'a, E> {
    async fn play(&mut self, random: &mut Random) -> Result<(), String> {
        let is_concurrent = self.rule.limit().is_concurrent();
        let is_log = matches!(self.rule.limit(), Limit::SlidingLog(_));
        let steps = if is_log { STEPS_OF_LOGS } else { STEPS };
        for step in 0..steps {
            // Now and then many requests of a log come in a second.
            if !is_log || step % 75 < 25 {
                self.pass_time(random).await?;
            }
            if random.below(30) == 0 {
                self.reset().await?;
            }
            if random.below(10) == 0 {
                self.restart()?;
            }
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
        // An engine ends expired reservations when another one is made.
        let other = Charge {
            key: b"other",
            ..self.charge(1)
        };
        let engine = self.engine()?;
        let made = engine
            .place_hold(&[other], HoldTerms::default(), Some(self.now))
            .await;
        if let Some(id) = made.map_err(|error| format!("{error}"))?.id {
            let released = Actual::All(Cost::ZERO);
            let done = engine.commit_hold(id, released, Some(self.now)).await;
            done.map_err(|error| format!("{error}"))?;
        }
        while let Some(gone) = self.live.iter().position(|live| live.expires <= self.now) {
            let live = self.live.remove(gone);
            self.trace
                .push(format!("{:?} expires {}", self.now, live.place));
            if self.rule.on_expiry() == OnExpiry::Release && !live.is_gone {
                self.correct(live.place, 0);
            }
        }
        Ok(())
    }

    fn engine(&self) -> Result<&E, String> {
        self.engine
            .as_ref()
            .ok_or_else(|| "the engine is gone".into())
    }

    async fn reset(&mut self) -> Result<(), String> {
        let done = self.engine()?.reset(self.id, self.key.as_bytes()).await;
        done.map_err(|error| format!("{error}"))?;
        self.trace.push(format!("{:?} reset", self.now));
        self.forget();
        Ok(())
    }

    /// Restarts the engine. Larger states are in memory, so they are gone.
    fn restart(&mut self) -> Result<(), String> {
        let Some(restart) = &mut self.restart else {
            return Ok(());
        };
        let now = self.now;
        self.engine = self.engine.take().map(|engine| restart(engine, now));
        let prepared = self.engine()?.prepare(self.rule_name, self.rule);
        self.id = prepared.map_err(|error| format!("{error}"))?;
        self.trace.push(format!("{:?} restart", self.now));
        if !self.rule.limit().fits_words() {
            self.forget();
        }
        Ok(())
    }

    fn forget(&mut self) {
        for sent in &mut self.sent {
            *sent = Sent {
                cost: 0,
                most: 0,
                can_be_refunded: false,
                ..*sent
            };
        }
        self.live.iter_mut().for_each(|live| live.is_gone = true);
        self.measured = None;
        self.is_measured = true;
    }

    fn store(&mut self, units: i128, can_be_refunded: bool) {
        let cost = units * 1_000_000_000;
        self.sent.push(Sent {
            at: self.now,
            cost,
            most: cost.max(0),
            can_be_refunded,
        });
        if let Limit::Exponential(limit) = self.rule.limit() {
            let period = limit.period_nanos() as f64;
            let rate = self.measure(units as f64, period);
            self.measured = Some(Measured { at: self.now, rate });
        }
    }

    /// Corrects an earlier charge to an actual cost.
    fn correct(&mut self, place: usize, actual: i128) {
        let Sent { at, cost, .. } = self.sent[place];
        let more = actual - cost;
        if self.rule.limit().is_concurrent() {
            self.sent[place].cost = 0;
        } else if self.is_bucket() && more > 0 {
            self.store(more / 1_000_000_000, false);
        } else {
            self.sent[place].cost = actual;
        }
        self.correct_measured(at, more as f64 / 1e9);
    }

    /// Adds a cost to the measure of exponential that was charged at an earlier instant, or takes it back.
    fn correct_measured(&mut self, at: Nanos, more: f64) {
        let Limit::Exponential(limit) = self.rule.limit() else {
            return;
        };
        let period = limit.period_nanos() as f64;
        let decayed = |until: Nanos| (-((until.get() - at.get()) as f64) / period).exp();
        if more > 0.0 {
            let rate = self.measure(more * decayed(self.now), period);
            self.measured = Some(Measured { at: self.now, rate });
        } else if let Some(measured) = &mut self.measured {
            measured.rate = (measured.rate + more * decayed(measured.at)).max(0.0);
        }
    }

    /// Returns the measure of exponential if this cost was charged now.
    fn measure(&self, cost: f64, period: f64) -> f64 {
        let Some(Measured { at, rate }) = self.measured else {
            return cost;
        };
        let periods = ((self.now.get() - at.get()) as f64 / period).max(1e-10);
        (-(-periods).exp_m1() * cost / periods + (-periods).exp() * rate).max(cost)
    }

    async fn decide(&mut self, units: u64, mode: Mode) -> Result<(), String> {
        let asked = [self.charge(units)];
        let decided = self.engine()?.decide(&asked, mode, Some(self.now)).await;
        let decision = decided.map_err(|error| format!("{error}"))?;
        let what = format!("{:?} {mode:?} of {units}: {}", self.now, decision.allowed);
        self.compare(what, units, decision.allowed)?;
        let is_strict = self.rule.limit().policy() == Policy::Strict;
        if decision.allowed || is_strict || mode == Mode::Charge {
            self.store(units.into(), true);
        }
        Ok(())
    }

    /// Reserves, and now and then sends the request again under the id that it chose.
    async fn hold(&mut self, units: u64, random: &mut Random) -> Result<(), String> {
        let mut terms = HoldTerms::default().ttl(Duration::from_secs(1 + random.below(40)));
        let is_chosen = random.below(3) == 0;
        if is_chosen {
            terms = terms.id(HoldId::from_bits(
                u128::from(random.next_u64()) << 32 ^ u128::from(self.now.get()),
            ));
        }
        let asked = [self.charge(units)];
        let held = self
            .engine()?
            .place_hold(&asked, terms, Some(self.now))
            .await;
        let holding = held.map_err(|error| format!("{error}"))?;
        if is_chosen && holding.id.is_some() {
            let again = self
                .engine()?
                .place_hold(&asked, terms, Some(self.now))
                .await;
            let again = again.map_err(|error| format!("{error}"))?;
            if again.id != holding.id || !again.decision.allowed {
                return Err(format!("{:?} was repeated as {:?}", holding.id, again.id));
            }
        }
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
                estimate: i128::from(units) * 1_000_000_000,
                expires: self.now + terms.ttl,
                is_gone: false,
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
            .engine()?
            .commit_hold(live.id, actual, Some(self.now))
            .await;
        done.map_err(|error| format!("{error}"))?;
        self.trace
            .push(format!("{:?} commit {} as {units}", self.now, live.place));
        let actual = i128::from(units) * 1_000_000_000;
        if !live.is_gone {
            self.correct(live.place, actual);
            return Ok(());
        }
        // The estimate went with the state, and what exceeds it is charged.
        let more = actual - live.estimate;
        if more > 0 && !self.rule.limit().is_concurrent() {
            if self.is_bucket() {
                self.store(more / 1_000_000_000, false);
            } else {
                self.sent[live.place].cost += more;
                self.is_measured = false;
            }
        }
        Ok(())
    }

    /// Takes back a random earlier request. A bucket is refilled by it at the present time.
    async fn refund(&mut self, random: &mut Random) -> Result<(), String> {
        let known = (0..self.sent.len()).filter(|place| self.sent[*place].can_be_refunded);
        let known: Vec<usize> = known.collect();
        if known.is_empty() {
            return Ok(());
        }
        let place = *random.pick(&known);
        let at = self.sent[place].at;
        let units = self.sent[place].cost / 1_000_000_000;
        let charge = self.charge(units as u64);
        let refunded = self.engine()?.refund(&charge, Some(at), Some(self.now));
        let done = refunded.await;
        done.map_err(|error| format!("{error}"))?;
        self.trace
            .push(format!("{:?} refund {place} of {units}", self.now));
        self.sent[place].can_be_refunded = false;
        if self.is_bucket() {
            self.store(-units, false);
        } else {
            self.correct(place, 0);
        }
        Ok(())
    }

    fn is_bucket(&self) -> bool {
        matches!(self.rule.limit(), Limit::TokenBucket(_))
    }

    /// Compares a verdict with the model's. A bucket may deny more, since a commit cannot know exactly how much
    /// refill was lost, but no more than if nothing was given back.
    fn compare(&mut self, what: String, units: u64, allowed: bool) -> Result<(), String> {
        self.trace.push(what);
        let cost = i128::from(units) * 1_000_000_000;
        let expected = self.verdict(cost);
        self.compared += usize::from(expected.is_some());
        let may_deny = match self.rule.limit() {
            Limit::TokenBucket(limit) => {
                !has_balance(limit, &self.sent, |sent| sent.most, self.now, cost)
            }
            Limit::SlidingLog(_) => {
                self.sent.iter().filter(|sent| sent.cost > 0).count() > OUTWEIGHED
            }
            _ => false,
        };
        match expected {
            Some(false) if allowed => Err("allowed, but the model denies".into()),
            Some(true) if !allowed && !may_deny => Err("denied, but the model allows".into()),
            _ => Ok(()),
        }
    }

    fn sum(&self, counts: impl Fn(u64) -> bool) -> i128 {
        let counted = self.sent.iter().filter(|sent| counts(sent.at.get()));
        counted.map(|sent| sent.cost).sum()
    }

    /// Returns the model's verdict; `None` if an estimate is too close to the limit to tell.
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
            Limit::TokenBucket(limit) => Some(has_balance(
                limit,
                &self.sent,
                |sent| sent.cost,
                self.now,
                cost,
            )),
            Limit::Exponential(limit) => {
                let measured = self.measure(cost as f64 / 1e9, limit.period_nanos() as f64);
                let share = measured / limit.quota().as_f64();
                (self.is_measured && (share - 1.0).abs() > 1e-5).then_some(share <= 1.0)
            }
            Limit::Concurrent(limit) => {
                let taken = self.sum(|at| now - at < limit.timeout_nanos());
                Some(taken + cost <= i128::from(limit.places()) * 1_000_000_000)
            }
            _ => None,
        }
    }
}

/// Returns true if a bucket has the balance for a cost at `now`, after these charges.
fn has_balance(
    limit: &TokenBucket,
    sent: &[Sent],
    cost_of: impl Fn(&Sent) -> i128,
    now: Nanos,
    cost: i128,
) -> bool {
    let (amount, per) = limit.refill().parts();
    let amount = amount.billionths() as i128;
    let per = per.as_nanos() as i128;
    let full = limit.capacity().billionths() as i128 * per;
    let mut balance = full;
    let mut last = 0;
    for sent in sent {
        balance = full.min(balance + amount * i128::from(sent.at.get() - last));
        balance = full.min(balance - cost_of(sent) * per);
        last = sent.at.get();
    }
    balance = full.min(balance + amount * i128::from(now.get() - last));
    balance >= cost * per
}
