//! Limits that operators try beside the limits in force. What such a limit would deny is counted, and nothing is
//! denied by it.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};

use arc_swap::ArcSwapOption;
use earrrl::{BuildError, Charge, Clock, Limiter, Mode, Nanos, Rule};

use crate::metrics::Counter;

/// The trials of all rules, which stay across reloads.
#[derive(Debug, Default)]
pub struct Trials(Mutex<BTreeMap<String, Arc<TrialOfRule>>>);

/// The place for the trial of one rule, which is empty most of the time.
#[derive(Debug, Default)]
pub struct TrialOfRule {
    /// True while there is a trial, so that the decisions of other rules cost no more than this comparison.
    is_running: AtomicBool,
    trial: ArcSwapOption<Trial>,
}

/// A limit on trial, and the counts of the requests that it judged.
pub struct Trial {
    limiter: Limiter<[u8], Arc<dyn Clock>>,
    capacity: usize,
    started: Nanos,
    requests: Counter,
    denied: Counter,
    denied_in_force: Counter,
}

/// The results of a trial.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TrialReport {
    /// The limit on trial.
    pub limit: String,
    /// The instant at which the trial began.
    pub since: Nanos,
    /// The number of requests since then.
    pub requests: u64,
    /// The number of these requests that the limit on trial would have denied.
    pub denied: u64,
    /// The number of these requests that were over the limit in force.
    pub denied_in_force: u64,
}

impl fmt::Debug for Trial {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.report().fmt(f)
    }
}

impl Trials {
    /// Returns the place for the trial of the rule of this name.
    pub fn of_rule(&self, name: &str) -> Arc<TrialOfRule> {
        let mut by_rule = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        Arc::clone(by_rule.entry(name.to_owned()).or_default())
    }

    /// Ends the trials of rules that were removed.
    pub fn retain(&self, is_kept: impl Fn(&str) -> bool) {
        let mut by_rule = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        by_rule.retain(|name, _| is_kept(name));
    }
}

impl TrialOfRule {
    /// Begins the trial of a limit for up to `capacity` clients, and ends the trial before. The clients begin without
    /// states, like those of a new rule.
    ///
    /// # Errors
    /// Returns an error if there is not enough memory.
    pub fn begin(
        &self,
        limit: Rule,
        capacity: usize,
        clock: Arc<dyn Clock>,
    ) -> Result<TrialReport, BuildError> {
        let started = clock.now();
        let limiter = Limiter::builder(limit)
            .capacity(capacity)
            .clock(clock)
            .build()?;
        let trial = Trial {
            limiter,
            capacity,
            started,
            requests: Counter::default(),
            denied: Counter::default(),
            denied_in_force: Counter::default(),
        };
        let report = trial.report();
        self.trial.store(Some(Arc::new(trial)));
        self.is_running.store(true, Relaxed);
        Ok(report)
    }

    /// Ends the trial, if there is one.
    pub fn end(&self) {
        self.is_running.store(false, Relaxed);
        self.trial.store(None);
    }

    /// Judges a request by the limit on trial, if there is one. `is_over` is true if the request was over the limit in
    /// force.
    #[inline]
    pub fn judge(&self, charge: &Charge<'_>, mode: Mode, is_over: bool) {
        if let Some(trial) = self.running() {
            trial.judge(charge, mode, is_over);
        }
    }

    /// Refunds a charge, if there is a trial.
    pub fn refund(&self, charge: &Charge<'_>, charged_at: Option<Nanos>) {
        if let Some(trial) = self.running() {
            trial.limiter.refund(charge.key, charge.cost, charged_at);
        }
    }

    /// Deletes the state of a client, if there is a trial.
    pub fn reset(&self, key: &[u8]) {
        if let Some(trial) = self.running() {
            trial.limiter.reset(key);
        }
    }

    /// Returns the results; `None` if there is no trial.
    pub fn report(&self) -> Option<TrialReport> {
        self.trial.load().as_ref().map(|trial| trial.report())
    }

    /// Returns the number of clients in the trial's table, the number of those that it displaced, and its capacity;
    /// `None` if there is no trial.
    pub fn usage(&self) -> Option<((usize, u64), usize)> {
        let trial = self.running()?;
        Some((
            (trial.limiter.len(), trial.limiter.displaced()),
            trial.capacity,
        ))
    }

    /// Returns the trial, if there is one.
    #[inline]
    fn running(&self) -> Option<Arc<Trial>> {
        if self.is_running.load(Relaxed) {
            self.trial.load_full()
        } else {
            None
        }
    }
}

impl Trial {
    fn report(&self) -> TrialReport {
        TrialReport {
            limit: self.limiter.rule().to_string(),
            since: self.started,
            requests: self.requests.get(),
            denied: self.denied.get(),
            denied_in_force: self.denied_in_force.get(),
        }
    }

    #[cold]
    #[inline(never)]
    fn judge(&self, charge: &Charge<'_>, mode: Mode, is_over: bool) {
        let judged = match mode {
            Mode::Charge => self.limiter.charge(charge.key, charge.cost),
            _ => self.limiter.check_cost(charge.key, charge.cost),
        };
        // A cost above the largest of the limit on trial is denied, as it would be in force.
        let is_allowed = judged.is_ok_and(|verdict| verdict.is_allowed());
        self.requests.increment();
        self.denied.add(u64::from(!is_allowed));
        self.denied_in_force.add(u64::from(is_over));
    }
}
