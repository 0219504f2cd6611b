//! Judges requests under several rules at once, in the order of their times.

use std::hint::black_box;

use earrrl::{Decision, Nanos, Rule};

use super::timeline::Timeline;
use super::trial::Trial;
use crate::reading::LoggedRequest;

/// Several rules tried on one log, their common clock, and the counts of the log's requests.
///
/// ```
/// use earrrl::{Cost, Rule};
/// use earrrl_logs::reading::LoggedRequest;
/// use earrrl_logs::replay::Replay;
///
/// let rules: [Rule; 2] = ["gcra 1/s burst=1".parse()?, "fixed-window 2/1d".parse()?];
/// let mut replay = Replay::new(rules);
/// let request = LoggedRequest { time: 1_700_000_000_000_000_000, client: 0, cost: Cost::ONE };
/// replay.judge_all(&[request, request]);
/// assert_eq!(replay.requests(0), 2);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Replay {
    /// One trial for each rule, in the order in which the rules were given.
    pub trials: Vec<Trial>,
    /// The number of requests that were judged.
    pub events: u64,
    /// The time of the first request.
    pub from: Option<Nanos>,
    /// The latest time of a request so far. Earlier requests after it are judged as of this time.
    pub now: Nanos,
    /// The number of requests that were earlier than one before them.
    pub back: u64,
    /// The requests asked and permitted over time, if they are counted.
    pub timeline: Option<Timeline>,
    /// The number of requests of each client, indexed by client number.
    requests: Vec<u64>,
}

impl Replay {
    /// Creates a replay of the rules that has judged no requests.
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

    /// Returns the replay with a timeline, so that it also counts requests over time.
    ///
    /// ```
    /// # use earrrl::{Cost, Rule};
    /// # use earrrl_logs::{reading::LoggedRequest, replay::Replay};
    /// let rule: Rule = "fixed-window 1/1d".parse()?;
    /// let request = LoggedRequest { time: 1_700_000_000_000_000_000, client: 0, cost: Cost::ONE };
    /// let mut replay = Replay::new([rule]).with_timeline();
    /// replay.judge_all(&[request, request]);
    /// let timeline = replay.timeline.ok_or("no timeline")?;
    /// assert_eq!(*timeline.counts[0], [2, 1]); // asked, permitted
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn with_timeline(self) -> Self {
        Self {
            timeline: Some(Timeline::new(self.trials.len())),
            ..self
        }
    }

    /// Judges each request under every rule.
    ///
    /// ```
    /// # use earrrl::{Cost, Rule};
    /// # use earrrl_logs::{reading::LoggedRequest, replay::Replay};
    /// let rule: Rule = "fixed-window 1/1d".parse()?;
    /// let request = LoggedRequest { time: 1_700_000_000_000_000_000, client: 0, cost: Cost::ONE };
    /// let mut replay = Replay::new([rule]);
    /// replay.judge_all(&[request, request]);
    /// assert_eq!((replay.events, replay.trials[0].denied), (2, 1));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn judge_all(&mut self, requests: &[LoggedRequest]) {
        self.fetch(requests);
        for &request in requests {
            let judge = |_, trial: &mut Trial, now| trial.judge(request.client, now, request.cost);
            self.each(&request, judge);
        }
    }

    /// Prefetches the clients' states. These reads do not depend on each other, so their cache
    /// misses overlap, which those of decisions do not.
    fn fetch(&self, requests: &[LoggedRequest]) {
        let counts = requests
            .iter()
            .map(|r| self.requests.get(r.client as usize).unwrap_or(&0));
        black_box(counts.fold(0, |seen, count| seen ^ count));
        self.trials.iter().for_each(|trial| trial.fetch(requests));
    }

    /// Judges a request under every rule; passes each rule's index and decision to `take`.
    ///
    /// ```
    /// # use earrrl::{Cost, Rule};
    /// # use earrrl_logs::{reading::LoggedRequest, replay::Replay};
    /// let rule: Rule = "fixed-window 1/1d".parse()?;
    /// let request = LoggedRequest { time: 1_700_000_000_000_000_000, client: 0, cost: Cost::ONE };
    /// let mut replay = Replay::new([rule]);
    /// let mut allowed = Vec::new();
    /// for _ in 0..2 {
    ///     replay.decide(request, |_rule, decision| {
    ///         allowed.push(decision.allowed);
    ///         Ok::<(), std::io::Error>(())
    ///     })?;
    /// }
    /// assert_eq!(allowed, [true, false]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// Returns the first error that `take` returns.
    pub fn decide<E>(
        &mut self,
        request: LoggedRequest,
        mut take: impl FnMut(usize, Decision) -> Result<(), E>,
    ) -> Result<(), E> {
        let mut taken = Ok(());
        self.each(&request, |place, trial, now| {
            let decision = trial.decide(request.client, now, request.cost);
            if taken.is_ok() {
                taken = take(place, decision);
            }
            decision.allowed
        });
        taken
    }

    /// Counts a request, and passes each rule's index and trial to `judge`, which returns true if the rule allows
    /// the request.
    #[inline]
    fn each(
        &mut self,
        request: &LoggedRequest,
        mut judge: impl FnMut(usize, &mut Trial, Nanos) -> bool,
    ) {
        let now = self.count(request);
        let mut counts = self
            .timeline
            .as_mut()
            .map(|timeline| timeline.at(now.get()));
        if let Some(counts) = &mut counts {
            counts[0] += 1;
        }
        for (place, trial) in self.trials.iter_mut().enumerate() {
            let allowed = judge(place, trial, now);
            if let Some(counts) = &mut counts {
                counts[place + 1] += u64::from(allowed);
            }
        }
    }

    /// Returns the number of requests of the client with this number.
    ///
    /// ```
    /// # use earrrl::{Cost, Rule};
    /// # use earrrl_logs::{reading::LoggedRequest, replay::Replay};
    /// let rule: Rule = "fixed-window 1/1d".parse()?;
    /// let request = LoggedRequest { time: 1_700_000_000_000_000_000, client: 0, cost: Cost::ONE };
    /// let mut replay = Replay::new([rule]);
    /// replay.judge_all(&[request]);
    /// assert_eq!((replay.requests(0), replay.requests(1)), (1, 0));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn requests(&self, client: u32) -> u64 {
        self.requests.get(client as usize).copied().unwrap_or(0)
    }

    /// Counts a request. Returns the time as of which it is judged: its own, or the latest time so
    /// far if that is later, since a limiter's time never goes back.
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
