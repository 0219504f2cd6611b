//! The changes of clients under all rules, step by step, for one subscriber.

use std::collections::HashMap;

use tokio::sync::broadcast::Receiver;
use tokio::sync::broadcast::error::TryRecvError;

use super::Service;
use super::changes::{Budget, ClientEvent, LimitedClients};
use super::names::{ENVOY, ResetClient};

/// The greatest number of events that a subscriber gets in a step; the others follow.
const MAX_EVENTS: usize = 1_000;
/// The greatest number of limited clients for which a subscriber gets events.
const MAX_CLIENTS: usize = 20_000;

/// A change of a client under one rule.
#[derive(Clone, Debug)]
pub enum RuleEvent {
    /// The client of the rule of this name crossed its limit, or was forgiven.
    Changed(String, ClientEvent),
    /// The client was reset.
    Reset(ResetClient),
}

/// The state of one subscriber: what it was sent of each rule.
#[derive(Debug)]
pub struct EventSource {
    limited: HashMap<String, LimitedClients>,
    resets: Receiver<ResetClient>,
}

impl EventSource {
    /// Returns the source for a new subscriber. Its first step has the clients that are over their limit already.
    pub fn new(service: &Service) -> Self {
        Self {
            limited: HashMap::new(),
            resets: service.resets(),
        }
    }

    /// Returns the events since the step before under the rules that `permitted` names.
    pub fn step(&mut self, service: &Service, permitted: impl Fn(&str) -> bool) -> Vec<RuleEvent> {
        let rules = service.rules();
        let now = service.now();
        let mut events = self.reset_clients(&permitted);
        self.limited
            .retain(|rule, _| rules.get(rule.as_bytes()).is_some() || rule == ENVOY);
        let known: usize = self.limited.values().map(LimitedClients::len).sum();
        let mut budget = Budget {
            events: MAX_EVENTS,
            clients: MAX_CLIENTS.saturating_sub(known),
        };
        let of_rules = rules.iter().map(|rule| (&*rule.name, &rule.directory));
        let all = of_rules.chain([(ENVOY, &service.descriptor_records.directory)]);
        for (rule, directory) in all.filter(|(rule, _)| permitted(rule)) {
            let Some(names) = directory.names() else {
                continue;
            };
            let limited = self.limited.entry(rule.to_owned()).or_default();
            let changes = limited.step(names.top(usize::MAX), now, &mut budget);
            events.extend(
                changes
                    .into_iter()
                    .map(|one| RuleEvent::Changed(rule.to_owned(), one)),
            );
        }
        events
    }

    fn reset_clients(&mut self, permitted: impl Fn(&str) -> bool) -> Vec<RuleEvent> {
        let mut events = Vec::new();
        loop {
            match self.resets.try_recv() {
                Ok(reset) if permitted(&reset.rule) => {
                    if let Some(limited) = self.limited.get_mut(&reset.rule) {
                        limited.reset(reset.fingerprint);
                    }
                    events.push(RuleEvent::Reset(reset));
                }
                Ok(_) | Err(TryRecvError::Lagged(_)) => {}
                Err(TryRecvError::Empty | TryRecvError::Closed) => return events,
            }
        }
    }
}
