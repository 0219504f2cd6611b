//! The clients that cross their limit or are forgiven, for other tools to follow.
//!
//! Changes are found by comparing the directory of names with its state a second before, so decisions do no work for
//! them, and an attack with a million clients produces no more events than the directory has names.

use std::collections::HashMap;
use std::sync::Arc;

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
    /// The name of the rule.
    pub rule: Arc<str>,
    /// The change.
    pub change: ClientChange,
    /// The part of the client's hash that the table stores.
    pub fingerprint: u64,
    /// The name of the client, with its latest decision.
    pub name: Name,
}

/// The greatest number of changes in one step; the others follow.
const MAX_EVENTS: usize = 1_000;
/// The greatest number of limited clients for which a subscriber gets events.
const MAX_CLIENTS: usize = 20_000;

/// The clients for which a subscriber was sent [`ClientChange::Limited`] and nothing since.
#[derive(Debug, Default)]
struct LimitedClients {
    /// The ends of the clients' waits and their names, by the rules and fingerprints of the clients.
    clients: HashMap<(Arc<str>, u64), (Nanos, Name)>,
    /// The instant of the step before.
    stepped: Option<Nanos>,
}

impl LimitedClients {
    /// Returns the changes since the step before. `directories` has the names of each rule's clients.
    fn step(
        &mut self,
        directories: impl Iterator<Item = (Arc<str>, Vec<(u64, Name)>)>,
        now: Nanos,
    ) -> Vec<ClientEvent> {
        let before = self.stepped.replace(now);
        let mut crossed = Vec::new();
        for (rule, names) in directories {
            for (fingerprint, name) in names {
                let client = (Arc::clone(&rule), fingerprint);
                if let Some(known) = self.clients.get_mut(&client) {
                    // A client that was denied again has a later wait.
                    *known = (end_of(&name), name);
                } else if crossed.len() < MAX_EVENTS && is_limited(&name, before, now) {
                    crossed.push((client, name));
                }
            }
        }
        let mut events = self.forgive(now);
        crossed.truncate(MAX_EVENTS - events.len());
        crossed.truncate(MAX_CLIENTS.saturating_sub(self.clients.len()));
        for (client, name) in crossed {
            events.push(event(client.clone(), ClientChange::Limited, name.clone()));
            self.clients.insert(client, (end_of(&name), name));
        }
        events
    }

    /// Removes the clients whose waits have passed. One that the directory has dropped is forgiven at the time that was
    /// known last.
    fn forgive(&mut self, now: Nanos) -> Vec<ClientEvent> {
        let passed = self.clients.extract_if(|_, (until, _)| *until <= now);
        let forgiven = |(client, (_, name))| event(client, ClientChange::Forgiven, name);
        passed.take(MAX_EVENTS).map(forgiven).collect()
    }
}

fn event((rule, fingerprint): (Arc<str>, u64), change: ClientChange, name: Name) -> ClientEvent {
    ClientEvent {
        rule,
        change,
        fingerprint,
        name,
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

/// An event under one rule.
#[derive(Clone, Debug)]
pub enum RuleEvent {
    /// A client crossed its limit, or was forgiven.
    Changed(ClientEvent),
    /// Something was done to a client.
    Noticed(ClientNotice),
}

/// The state of one subscriber: what it was sent so far.
#[derive(Debug)]
pub struct EventSource {
    limited: LimitedClients,
    notices: Receiver<ClientNotice>,
}

impl EventSource {
    /// Returns the source for a new subscriber. Its first step has the clients that are over their limit already.
    pub fn new(service: &Service) -> Self {
        Self {
            limited: LimitedClients::default(),
            notices: service.notices(),
        }
    }

    /// Returns the events since the step before under the rules that `permitted` names.
    pub fn step(&mut self, service: &Service, permitted: impl Fn(&str) -> bool) -> Vec<RuleEvent> {
        let rules = service.rules();
        let mut events = self.noticed(&permitted);
        let is_shown =
            |rule: &str| permitted(rule) && (rule == ENVOY || rules.get(rule.as_bytes()).is_some());
        self.limited.clients.retain(|(rule, _), _| is_shown(rule));
        let of_rules = rules.iter().map(|rule| (&*rule.name, &rule.directory));
        let all = of_rules.chain([(ENVOY, &service.descriptor_records.directory)]);
        let directories =
            all.filter(|(rule, _)| permitted(rule))
                .filter_map(|(rule, directory)| {
                    Some((rule.into(), directory.names()?.top(usize::MAX)))
                });
        let changes = self.limited.step(directories, service.now());
        events.extend(changes.into_iter().map(RuleEvent::Changed));
        events
    }

    fn noticed(&mut self, permitted: impl Fn(&str) -> bool) -> Vec<RuleEvent> {
        let mut events = Vec::new();
        loop {
            match self.notices.try_recv() {
                Ok(notice) if permitted(&notice.client.rule) => {
                    if let Notice::Reset = notice.what {
                        let client = &notice.client;
                        let client = (client.rule.as_str().into(), client.fingerprint);
                        self.limited.clients.remove(&client);
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
            let engine = MemoryEngine::with_clock(10_000, ManualClock::new(Nanos::ZERO)).unwrap();
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
        fn step(&mut self, second: u64) -> Vec<String> {
            let now = Nanos::new(second * 1_000_000_000);
            let names = [("api".into(), self.names.top(usize::MAX))];
            let events = self.limited.step(names.into_iter(), now);
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

    #[test]
    fn a_client_is_limited_once_and_forgiven_when_its_wait_has_passed() {
        let mut scene = Scene::new();
        scene.request("alice", 1);
        scene.request("bob", 1);
        assert!(scene.step(1).is_empty());
        scene.request("alice", 2);
        assert_eq!(scene.step(2), ["Limited alice"]);
        scene.request("alice", 3);
        assert!(scene.step(3).is_empty());
        assert!(scene.step(10).is_empty());
        assert_eq!(scene.step(11), ["Forgiven alice"]);
        assert!(scene.step(12).is_empty());
    }

    #[test]
    fn a_short_wait_between_two_steps_is_not_missed() {
        let mut scene = Scene::new();
        assert!(scene.step(0).is_empty());
        scene.request("alice", 1);
        scene.request("alice", 2);
        assert_eq!(scene.step(20), ["Limited alice"]);
        assert_eq!(scene.step(21), ["Forgiven alice"]);
    }

    #[test]
    fn what_is_beyond_the_bounds_follows_later() {
        let mut scene = Scene::new();
        for nth in 0..MAX_EVENTS + 5 {
            let client = format!("client-{nth}");
            scene.request(&client, 1);
            scene.request(&client, 2);
        }
        let steps: Vec<_> = (0..3).map(|_| scene.step(2).len()).collect();
        assert_eq!(steps, [MAX_EVENTS, 5, 0]);
        let (_, name) = scene.names.top(1).remove(0);
        let known = |nth| (("other".into(), nth), (Nanos::new(u64::MAX), name.clone()));
        scene
            .limited
            .clients
            .extend((0..MAX_CLIENTS as u64).map(known));
        scene.request("late", 2);
        scene.request("late", 2);
        assert!(scene.step(2).is_empty());
    }

    #[test]
    fn a_client_that_was_reset_can_be_limited_again() {
        let mut scene = Scene::new();
        scene.request("alice", 1);
        scene.request("alice", 2);
        assert_eq!(scene.step(2), ["Limited alice"]);
        let hash = scene.engine.hash(b"alice");
        scene.names.forget(hash);
        let client = ("api".into(), hash.fingerprint());
        scene.limited.clients.remove(&client);
        assert!(scene.step(3).is_empty());
        scene.request("alice", 3);
        assert_eq!(scene.step(3), ["Limited alice"]);
    }
}
