//! The clients that cross their limit or are forgiven, for other tools to follow.
//!
//! Changes are found by comparing the directory of names with its state a second before, so decisions do no work for
//! them, and an attack with a million clients produces no more events than the directory has names.

use std::collections::HashMap;

use earrrl::internal::Name;
use earrrl::{Nanos, Wait};
use tokio::sync::broadcast::Receiver;
use tokio::sync::broadcast::error::TryRecvError;

use super::Service;
use super::names::{ClientNotice, ENVOY, Notice};

/// A change in the state of a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClientChange {
    /// The client crossed its limit.
    Limited,
    /// The client's next request is within its limit again.
    Forgiven,
}

impl ClientChange {
    /// Returns the change's name in events.
    pub fn name(self) -> &'static str {
        match self {
            Self::Limited => "limited",
            Self::Forgiven => "forgiven",
        }
    }
}

/// A change of a client under one rule.
#[derive(Clone, Debug)]
pub struct ClientEvent {
    /// The change.
    pub change: ClientChange,
    /// The part of the client's hash that the table stores.
    pub fingerprint: u64,
    /// The name of the client, with its latest decision.
    pub name: Name,
}

/// The bounds of one step of a subscriber under all rules. What is beyond them is left to later steps.
#[derive(Clone, Copy, Debug)]
pub struct Budget {
    /// The number of events.
    pub events: usize,
    /// The number of clients that are limited.
    pub clients: usize,
}

/// The clients of a rule for which a subscriber was sent [`ClientChange::Limited`] and nothing since.
#[derive(Debug, Default)]
pub struct LimitedClients {
    /// The ends of the clients' waits, and their names.
    clients: HashMap<u64, (Nanos, Name)>,
    /// The instant of the step before.
    stepped: Option<Nanos>,
}

impl LimitedClients {
    /// Returns the changes since the step before, and subtracts them from `budget`. `names` is the directory of the
    /// rule.
    pub fn step(
        &mut self,
        names: Vec<(u64, Name)>,
        now: Nanos,
        budget: &mut Budget,
    ) -> Vec<ClientEvent> {
        let before = self.stepped.replace(now);
        let mut crossed = Vec::new();
        for (fingerprint, name) in names {
            if let Some(known) = self.clients.get_mut(&fingerprint) {
                // A client that was denied again has a later wait.
                *known = (end_of(&name), name);
            } else if is_limited(&name, before, now) {
                crossed.push((fingerprint, name));
            }
        }
        let mut events = self.forgive(now, budget);
        crossed.truncate(budget.events.min(budget.clients));
        budget.events -= crossed.len();
        budget.clients -= crossed.len();
        for (fingerprint, name) in crossed {
            self.clients
                .insert(fingerprint, (end_of(&name), name.clone()));
            events.push(ClientEvent {
                change: ClientChange::Limited,
                fingerprint,
                name,
            });
        }
        events
    }

    /// Removes the clients whose waits have passed. One that the directory has dropped is forgiven at the time that was
    /// known last.
    fn forgive(&mut self, now: Nanos, budget: &mut Budget) -> Vec<ClientEvent> {
        let passed = self.clients.iter().filter(|(_, (until, _))| *until <= now);
        let passed: Vec<_> = passed
            .map(|(fingerprint, _)| *fingerprint)
            .take(budget.events)
            .collect();
        budget.events -= passed.len();
        budget.clients += passed.len();
        let remove = |fingerprint| {
            let (_, name) = self.clients.remove(&fingerprint)?;
            Some(ClientEvent {
                change: ClientChange::Forgiven,
                fingerprint,
                name,
            })
        };
        passed.into_iter().filter_map(remove).collect()
    }

    /// Returns the number of clients that are limited.
    pub fn len(&self) -> usize {
        self.clients.len()
    }

    /// Returns true if no client is limited.
    pub fn is_empty(&self) -> bool {
        self.clients.is_empty()
    }

    /// Removes a client that was reset.
    pub fn reset(&mut self, fingerprint: u64) {
        self.clients.remove(&fingerprint);
    }
}

/// Returns true if a client was denied since the step before, or before and waits still.
fn is_limited(name: &Name, before: Option<Nanos>, now: Nanos) -> bool {
    let Some(denied) = name.last_denied else {
        return false;
    };
    end_of(name) > now || before.is_some_and(|before| denied > before)
}

/// Returns the end of the wait of a client's latest decision.
fn end_of(name: &Name) -> Nanos {
    match name.latest.retry_after {
        Wait::For(wait) => name.latest.at + wait,
        Wait::Never => Nanos::new(u64::MAX),
    }
}

/// The greatest number of events that a subscriber gets in a step; the others follow.
const MAX_EVENTS: usize = 1_000;
/// The greatest number of limited clients for which a subscriber gets events.
const MAX_CLIENTS: usize = 20_000;

/// A change of a client under one rule.
#[derive(Clone, Debug)]
pub enum RuleEvent {
    /// The client of the rule of this name crossed its limit, or was forgiven.
    Changed(String, ClientEvent),
    /// Something was done to the client.
    Noticed(ClientNotice),
}

/// The state of one subscriber: what it was sent of each rule.
#[derive(Debug)]
pub struct EventSource {
    limited: HashMap<String, LimitedClients>,
    notices: Receiver<ClientNotice>,
}

impl EventSource {
    /// Returns the source for a new subscriber. Its first step has the clients that are over their limit already.
    pub fn new(service: &Service) -> Self {
        Self {
            limited: HashMap::new(),
            notices: service.notices(),
        }
    }

    /// Returns the events since the step before under the rules that `permitted` names.
    pub fn step(&mut self, service: &Service, permitted: impl Fn(&str) -> bool) -> Vec<RuleEvent> {
        let rules = service.rules();
        let now = service.now();
        let mut events = self.noticed(&permitted);
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

    fn noticed(&mut self, permitted: impl Fn(&str) -> bool) -> Vec<RuleEvent> {
        let mut events = Vec::new();
        loop {
            match self.notices.try_recv() {
                Ok(notice) if permitted(&notice.client.rule) => {
                    if let Notice::Reset = notice.what
                        && let Some(limited) = self.limited.get_mut(&notice.client.rule)
                    {
                        limited.reset(notice.client.fingerprint);
                    }
                    events.push(RuleEvent::Noticed(notice));
                }
                Ok(_) | Err(TryRecvError::Lagged(_)) => {}
                Err(TryRecvError::Empty | TryRecvError::Closed) => return events,
            }
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use earrrl::internal::{NameOptions, Names};
    use earrrl::{Charge, Cost, Engine as _, ManualClock, MemoryEngine, Mode, Rule, RuleId};

    use super::*;

    /// One rule, one request in ten seconds for each client.
    struct Scene {
        engine: MemoryEngine<ManualClock>,
        id: RuleId,
        rule: Rule,
        names: Names,
        limited: LimitedClients,
    }

    impl Scene {
        fn new() -> Self {
            let rule: Rule = "gcra 1/10s burst=1".parse().unwrap();
            let engine = MemoryEngine::with_clock(1000, ManualClock::new(Nanos::ZERO)).unwrap();
            let id = engine.prepare("api", &rule).unwrap();
            let names = Names::new(rule.limit(), NameOptions::default());
            Self {
                engine,
                id,
                rule,
                names,
                limited: LimitedClients::default(),
            }
        }

        fn request(&self, client: &str, second: u64) {
            let at = Nanos::new(second * 1_000_000_000);
            let charge = Charge {
                rule: self.id,
                key: client.as_bytes(),
                cost: Cost::ONE,
            };
            let decided = self
                .engine
                .decide(&[charge], Mode::Check, Some(at))
                .into_inner();
            let hash = self.engine.hash(client.as_bytes());
            self.names
                .note(hash, self.rule.limit(), &decided.unwrap(), || client.into());
        }

        /// Returns the changes of a step, each as a word and the client's name.
        fn step(&mut self, second: u64, mut budget: Budget) -> Vec<String> {
            let now = Nanos::new(second * 1_000_000_000);
            let events = self
                .limited
                .step(self.names.top(usize::MAX), now, &mut budget);
            let text = |event: &ClientEvent| {
                format!(
                    "{:?} {}",
                    event.change,
                    String::from_utf8_lossy(&event.name.name)
                )
            };
            let mut all: Vec<_> = events.iter().map(text).collect();
            all.sort();
            all
        }
    }

    const AMPLE: Budget = Budget {
        events: 100,
        clients: 100,
    };

    #[test]
    fn a_client_is_limited_once_and_forgiven_when_its_wait_has_passed() {
        let mut scene = Scene::new();
        scene.request("alice", 1);
        scene.request("bob", 1);
        assert!(scene.step(1, AMPLE).is_empty());
        scene.request("alice", 2);
        assert_eq!(scene.step(2, AMPLE), ["Limited alice"]);
        scene.request("alice", 3);
        assert!(scene.step(3, AMPLE).is_empty());
        assert!(scene.step(10, AMPLE).is_empty());
        assert_eq!(scene.step(11, AMPLE), ["Forgiven alice"]);
        assert!(scene.step(12, AMPLE).is_empty());
    }

    #[test]
    fn a_short_wait_between_two_steps_is_not_missed() {
        let mut scene = Scene::new();
        assert!(scene.step(0, AMPLE).is_empty());
        scene.request("alice", 1);
        scene.request("alice", 2);
        assert_eq!(scene.step(20, AMPLE), ["Limited alice"]);
        assert_eq!(scene.step(21, AMPLE), ["Forgiven alice"]);
    }

    #[test]
    fn what_is_beyond_the_budget_follows_later() {
        let mut scene = Scene::new();
        for nth in 0..5 {
            let client = format!("client-{nth}");
            scene.request(&client, 1);
            scene.request(&client, 2);
        }
        let small = Budget {
            events: 2,
            clients: 100,
        };
        let steps: Vec<_> = (0..4).map(|_| scene.step(2, small).len()).collect();
        assert_eq!(steps, [2, 2, 1, 0]);
        let none_more = Budget {
            events: 100,
            clients: 0,
        };
        scene.request("late", 2);
        scene.request("late", 2);
        assert!(scene.step(2, none_more).is_empty());
    }

    #[test]
    fn a_client_that_was_reset_can_be_limited_again() {
        let mut scene = Scene::new();
        scene.request("alice", 1);
        scene.request("alice", 2);
        assert_eq!(scene.step(2, AMPLE), ["Limited alice"]);
        let hash = scene.engine.hash(b"alice");
        scene.names.forget(hash);
        scene.limited.reset(hash.fingerprint());
        assert!(scene.step(3, AMPLE).is_empty());
        scene.request("alice", 3);
        assert_eq!(scene.step(3, AMPLE), ["Limited alice"]);
    }
}
