//! Tries one rule on a log: keeps the state of every client, and counts denied requests.

use std::hint::black_box;

use earrrl::algorithm::State;
use earrrl::{Cost, Decision, Mode, Nanos, Rule};

use crate::reading::LoggedRequest;

/// A rule, and the counts of its decisions on the requests of a log.
///
/// ```
/// use earrrl::{Cost, Nanos};
/// use earrrl_logs::replay::Trial;
///
/// let mut trial = Trial::new("fixed-window 1/1d".parse()?);
/// let now = Nanos::from_secs(1_700_000_000);
/// assert!(trial.decide(0, now, Cost::ONE).allowed);
/// assert!(!trial.decide(0, now, Cost::ONE).allowed);
/// assert_eq!((trial.denied, trial.clients_limited()), (1, 1));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Trial {
    /// The rule that judges the requests.
    pub rule: Rule,
    /// The number of requests that the rule denied.
    pub denied: u64,
    /// The state of each client, indexed by client number. The number of denials is stored
    /// separately, so that an allowed request touches less memory.
    states: Vec<Option<State>>,
    denials: Vec<u64>,
}

/// A client, and the number of its denied requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Offender {
    /// The number of the client in the table of clients.
    pub client: u32,
    /// The number of the client's denied requests.
    pub denied: u64,
}

impl Trial {
    /// Creates a trial that has judged no requests.
    pub fn new(rule: Rule) -> Self {
        Self {
            rule,
            denied: 0,
            states: Vec::new(),
            denials: Vec::new(),
        }
    }

    /// Prefetches the states of the clients whose requests are judged next.
    pub(crate) fn fetch(&self, requests: &[LoggedRequest]) {
        let states = requests
            .iter()
            .filter_map(|r| self.states.get(r.client as usize));
        black_box(states.fold(0, |seen, state| seen ^ u64::from(state.is_some())));
    }

    /// Judges a request and updates the client's state. Returns true if the request is allowed.
    /// Successive times must not decrease.
    #[inline]
    pub(crate) fn judge(&mut self, client: u32, now: Nanos, cost: Cost) -> bool {
        let state = slot(&mut self.states, client);
        let allowed = self.rule.limit().admit(state, now, cost, Mode::Check);
        if !allowed {
            self.deny(client);
        }
        allowed
    }

    /// Judges a request of the client with this number, and returns the decision.
    pub fn decide(&mut self, client: u32, now: Nanos, cost: Cost) -> Decision {
        let state = slot(&mut self.states, client);
        let (after, decision) = self
            .rule
            .limit()
            .decide(state.take(), now, cost, Mode::Check);
        *state = after;
        if !decision.allowed {
            self.deny(client);
        }
        decision
    }

    fn deny(&mut self, client: u32) {
        *slot(&mut self.denials, client) += 1;
        self.denied += 1;
    }

    /// Returns the number of clients that were denied at least once.
    pub fn clients_limited(&self) -> usize {
        self.denials.iter().filter(|denied| **denied > 0).count()
    }

    /// Returns the number of denied requests of a client.
    pub(crate) fn denied_of(&self, client: u32) -> u64 {
        self.denials.get(client as usize).copied().unwrap_or(0)
    }

    /// Returns the clients with the most denied requests, at most `most` of them. Clients with
    /// equal numbers come in the order of their first requests.
    pub(crate) fn offenders(&self, most: usize) -> Vec<Offender> {
        let denied = (0u32..)
            .zip(&self.denials)
            .filter(|(_, denied)| **denied > 0);
        let mut offenders: Vec<Offender> = denied
            .map(|(client, &denied)| Offender { client, denied })
            .collect();
        offenders.sort_by_key(|offender| std::cmp::Reverse(offender.denied));
        offenders.truncate(most);
        offenders
    }
}

#[inline]
fn slot<T: Default>(clients: &mut Vec<T>, client: u32) -> &mut T {
    let client = client as usize;
    if client >= clients.len() {
        clients.resize_with(client + 1, T::default);
    }
    &mut clients[client]
}
