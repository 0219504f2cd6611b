//! One rule tried on a log: every client's state, and who was denied.

use std::hint::black_box;

use earrrl::{Cost, Decision, Mode, Nanos, Rule, State};

use super::reader::Request;

/// A rule and what became of the requests under it.
pub(crate) struct Trial {
    /// The rule.
    pub(crate) rule: Rule,
    /// How many requests it denied.
    pub(crate) denied: u64,
    /// By client's number.
    clients: Vec<Client>,
}

#[derive(Default)]
struct Client {
    state: Option<State>,
    denied: u64,
}

/// A client and how often it was denied.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Offender {
    /// Its number.
    pub(crate) client: u32,
    /// Its denied requests.
    pub(crate) denied: u64,
}

impl Trial {
    /// A rule under which nobody has sent anything.
    pub(crate) fn new(rule: Rule) -> Self {
        Self { rule, denied: 0, clients: Vec::new() }
    }

    /// Looks at the clients of requests that are judged next, so that they are near then.
    pub(crate) fn fetch(&self, requests: &[Request]) {
        let clients = requests.iter().filter_map(|r| self.clients.get(r.client as usize));
        black_box(clients.fold(0, |seen, c| seen ^ c.denied ^ u64::from(c.state.is_some())));
    }

    /// Judges a request and stores it. Time must not go back.
    #[inline]
    pub(crate) fn judge(&mut self, client: u32, now: Nanos, cost: Cost) -> bool {
        let client = slot(&mut self.clients, client);
        let allowed = self.rule.limit().admit(&mut client.state, now, cost, Mode::Check);
        client.denied += u64::from(!allowed);
        self.denied += u64::from(!allowed);
        allowed
    }

    /// As [`Trial::judge`], with all the figures.
    pub(crate) fn decide(&mut self, client: u32, now: Nanos, cost: Cost) -> Decision {
        let client = slot(&mut self.clients, client);
        let state = client.state.take();
        let (state, decision) = self.rule.limit().decide(state, now, cost, Mode::Check);
        client.state = state;
        client.denied += u64::from(!decision.allowed);
        self.denied += u64::from(!decision.allowed);
        decision
    }

    /// Whether the rule measures a rate.
    pub(crate) fn measures(&self) -> bool {
        let (_, decision) = self.rule.limit().decide(None, Nanos::ZERO, Cost::ONE, Mode::Peek);
        decision.rate.is_some()
    }

    /// How many clients were denied at least once.
    pub(crate) fn clients_limited(&self) -> usize {
        self.clients.iter().filter(|client| client.denied > 0).count()
    }

    /// The most denied clients, at most `most`; of equals, those that came first.
    pub(crate) fn offenders(&self, most: usize) -> Vec<Offender> {
        let denied = (0u32..).zip(&self.clients).filter(|(_, client)| client.denied > 0);
        let mut offenders: Vec<Offender> =
            denied.map(|(number, c)| Offender { client: number, denied: c.denied }).collect();
        offenders.sort_by_key(|offender| std::cmp::Reverse(offender.denied));
        offenders.truncate(most);
        offenders
    }
}

#[inline]
fn slot(clients: &mut Vec<Client>, client: u32) -> &mut Client {
    let client = client as usize;
    if client >= clients.len() {
        clients.resize_with(client + 1, Client::default);
    }
    &mut clients[client]
}
