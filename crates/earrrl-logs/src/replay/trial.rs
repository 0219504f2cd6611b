//! One rule tried on a log: every client's state, and who was denied.

use std::hint::black_box;

use earrrl::{Cost, Decision, Mode, Nanos, Rule, State};

use crate::reading::LoggedRequest;

/// A rule and the results of its decisions.
pub struct Trial {
    /// The rule.
    pub rule: Rule,
    /// The number of requests that it denied.
    pub denied: u64,
    /// By client's number: its state, and how often it was denied. Apart, so that a request which is
    /// allowed takes less memory from far away.
    states: Vec<Option<State>>,
    denials: Vec<u64>,
}

/// A client and how often it was denied.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Offender {
    /// Its number.
    pub client: u32,
    /// Its denied requests.
    pub denied: u64,
}

impl Trial {
    /// Creates a trial without requests.
    pub fn new(rule: Rule) -> Self {
        Self { rule, denied: 0, states: Vec::new(), denials: Vec::new() }
    }

    /// Prefetches the states of clients whose requests are judged next.
    pub fn fetch(&self, requests: &[LoggedRequest]) {
        let states = requests.iter().filter_map(|r| self.states.get(r.client as usize));
        black_box(states.fold(0, |seen, state| seen ^ u64::from(state.is_some())));
    }

    /// Judges a request and stores it. Time must not go back.
    #[inline]
    pub fn judge(&mut self, client: u32, now: Nanos, cost: Cost) -> bool {
        let state = slot(&mut self.states, client);
        let allowed = self.rule.limit().admit(state, now, cost, Mode::Check);
        if !allowed {
            self.deny(client);
        }
        allowed
    }

    /// Judges a request as [`Trial::judge`] does, and returns the whole decision.
    pub fn decide(&mut self, client: u32, now: Nanos, cost: Cost) -> Decision {
        let state = slot(&mut self.states, client);
        let (after, decision) = self.rule.limit().decide(state.take(), now, cost, Mode::Check);
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

    /// Returns true if the rule measures a rate.
    pub fn measures(&self) -> bool {
        let (_, decision) = self.rule.limit().decide(None, Nanos::ZERO, Cost::ONE, Mode::Peek);
        decision.rate.is_some()
    }

    /// Returns the number of clients that were denied at least once.
    pub fn clients_limited(&self) -> usize {
        self.denials.iter().filter(|denied| **denied > 0).count()
    }

    /// The most denied clients, at most `most`; of equals, those that came first.
    pub fn offenders(&self, most: usize) -> Vec<Offender> {
        let denied = (0u32..).zip(&self.denials).filter(|(_, denied)| **denied > 0);
        let mut offenders: Vec<Offender> =
            denied.map(|(client, &denied)| Offender { client, denied }).collect();
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
