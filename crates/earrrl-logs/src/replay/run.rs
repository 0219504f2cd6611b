//! Requests through rules: all of them at once, in the order of their times.

use std::hint::black_box;

use earrrl::{Decision, Nanos, Rule};

use super::timeline::Timeline;
use super::trial::Trial;
use crate::reading::LoggedRequest;

/// All rules, the clock that they share, and what the log asked for.
pub struct Replay {
    /// A trial a rule, in the order given.
    pub trials: Vec<Trial>,
    /// How many requests there were.
    pub events: u64,
    /// The first time seen.
    pub from: Option<Nanos>,
    /// The latest time used.
    pub now: Nanos,
    /// How many requests were earlier than one before them.
    pub back: u64,
    /// What was asked and permitted when, if that is to be shown.
    pub timeline: Option<Timeline>,
    /// Requests by client's number.
    requests: Vec<u64>,
}

impl Replay {
    /// Nothing replayed yet.
    pub fn new(rules: impl IntoIterator<Item = Rule>) -> Self {
        let trials = rules.into_iter().map(Trial::new).collect();
        Self {
            trials,
            events: 0,
            from: None,
            now: Nanos::ZERO,
            back: 0,
            timeline: None,
            requests: Vec::new(),
        }
    }

    /// Counts by time, too.
    pub fn with_timeline(self) -> Self {
        Self { timeline: Some(Timeline::new(self.trials.len())), ..self }
    }

    /// Judges requests under every rule, one after the other.
    pub fn judge_all(&mut self, requests: &[LoggedRequest]) {
        self.fetch(requests);
        requests.iter().for_each(|&request| self.judge(request));
    }

    /// Looks at what requests will need. The looks don't wait for each other, as judging does.
    fn fetch(&self, requests: &[LoggedRequest]) {
        let counts = requests.iter().map(|r| self.requests.get(r.client as usize).unwrap_or(&0));
        black_box(counts.fold(0, |seen, count| seen ^ count));
        self.trials.iter().for_each(|trial| trial.fetch(requests));
    }

    /// Judges one request under every rule.
    #[inline]
    fn judge(&mut self, request: LoggedRequest) {
        let now = self.count(&request);
        let mut counts = self.timeline.as_mut().map(|timeline| timeline.at(now.get()));
        if let Some(counts) = &mut counts {
            counts[0] += 1;
        }
        for (place, trial) in self.trials.iter_mut().enumerate() {
            let allowed = trial.judge(request.client, now, request.cost);
            if let Some(counts) = &mut counts {
                counts[place + 1] += u64::from(allowed);
            }
        }
    }

    /// Judges one request under every rule and hands the place and decision of each to `tell`.
    ///
    /// # Errors
    /// Returns the error of `tell`.
    pub fn decide<E>(
        &mut self,
        request: LoggedRequest,
        mut tell: impl FnMut(usize, Decision) -> Result<(), E>,
    ) -> Result<(), E> {
        let now = self.count(&request);
        let mut counts = self.timeline.as_mut().map(|timeline| timeline.at(now.get()));
        if let Some(counts) = &mut counts {
            counts[0] += 1;
        }
        for (place, trial) in self.trials.iter_mut().enumerate() {
            let decision = trial.decide(request.client, now, request.cost);
            if let Some(counts) = &mut counts {
                counts[place + 1] += u64::from(decision.allowed);
            }
            tell(place, decision)?;
        }
        Ok(())
    }

    /// How often a client sent something.
    pub fn requests(&self, client: u32) -> u64 {
        self.requests.get(client as usize).copied().unwrap_or(0)
    }

    /// A limiter's time never goes back: an earlier request counts as of the latest time used.
    #[inline]
    fn count(&mut self, request: &LoggedRequest) -> Nanos {
        self.events += 1;
        let client = request.client as usize;
        if client >= self.requests.len() {
            self.requests.resize(client + 1, 0);
        }
        self.requests[client] += 1;
        let time = Nanos::new(request.time);
        self.from.get_or_insert(time);
        self.back += u64::from(time < self.now);
        self.now = self.now.max(time);
        self.now
    }
}
