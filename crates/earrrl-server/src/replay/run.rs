//! Requests through rules: all of them at once, in the order of their times.

use earrrl::{Cost, Decision, Nanos, Rule};

use super::reader::Request;
use super::trial::Trial;

/// All rules, the clock that they share, and what the log asked for.
pub(crate) struct Replay {
    /// A trial a rule, in the order given.
    pub(crate) trials: Vec<Trial>,
    /// How many requests there were.
    pub(crate) events: u64,
    /// The first time seen.
    pub(crate) from: Option<Nanos>,
    /// The latest time used.
    pub(crate) now: Nanos,
    /// Requests by client's number.
    requests: Vec<u64>,
}

impl Replay {
    /// Nothing replayed yet.
    pub(crate) fn new(rules: impl IntoIterator<Item = Rule>) -> Self {
        let trials = rules.into_iter().map(Trial::new).collect();
        Self { trials, events: 0, from: None, now: Nanos::ZERO, requests: Vec::new() }
    }

    /// Judges one request under every rule.
    #[inline]
    pub(crate) fn judge(&mut self, request: Request) {
        let now = self.count(&request);
        for trial in &mut self.trials {
            trial.judge(request.client, now, request.cost);
        }
    }

    /// As [`Replay::judge`]; hands every rule's place and decision to `tell`.
    pub(crate) fn decide<E>(
        &mut self,
        request: Request,
        mut tell: impl FnMut(usize, Decision) -> Result<(), E>,
    ) -> Result<(), E> {
        let now = self.count(&request);
        for (place, trial) in self.trials.iter_mut().enumerate() {
            tell(place, trial.decide(request.client, now, request.cost))?;
        }
        Ok(())
    }

    /// How often a client sent something.
    pub(crate) fn requests(&self, client: u32) -> u64 {
        self.requests.get(client as usize).copied().unwrap_or(0)
    }

    /// A limiter's time never goes back: an earlier request counts as of the latest time used.
    #[inline]
    fn count(&mut self, request: &Request) -> Nanos {
        self.events += 1;
        let client = request.client as usize;
        if client >= self.requests.len() {
            self.requests.resize(client + 1, 0);
        }
        self.requests[client] += 1;
        let time = Nanos::new(request.time);
        self.from.get_or_insert(time);
        self.now = self.now.max(time);
        self.now
    }
}

/// Requests held back to be put in order, their costs under small numbers.
#[derive(Default)]
pub(crate) struct Held {
    events: super::Ordered,
    costs: Vec<Cost>,
    numbers: hashbrown::HashMap<Cost, u32, foldhash::fast::RandomState>,
}

impl Held {
    /// Holds a request behind all others of its time.
    pub(crate) fn push(&mut self, Request { time, client, cost }: Request) {
        let cost = match self.costs.last() {
            // Most logs have one cost only.
            Some(&last) if last == cost => self.costs.len() as u32 - 1,
            _ => *self.numbers.entry(cost).or_insert_with(|| {
                self.costs.push(cost);
                self.costs.len() as u32 - 1
            }),
        };
        self.events.push(super::Event { time, client, cost });
    }

    /// The requests in order.
    pub(crate) fn into_requests(self) -> impl Iterator<Item = Request> {
        let costs = self.costs;
        let request = move |event: super::Event| Request {
            time: event.time,
            client: event.client,
            cost: costs[event.cost as usize],
        };
        self.events.into_iter().map(request)
    }
}
