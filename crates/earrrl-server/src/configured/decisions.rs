//! Decides the requests of a log under a server's configuration, with the code that serves
//! requests. Each line is a request with its attributes. All rules that match a request judge it
//! together, and it is counted only if all of them allow it.

use std::borrow::Cow;
use std::sync::Arc;

use earrrl::{Decision, EngineError, ManualClock, Mode, Nanos};
use earrrl_server::config::{Config, EngineConfig};
use earrrl_server::service::Service;
use earrrl_server::service::answer::Answer;
use earrrl_server::service::attributes::Attributes;
use earrrl_server::service::key::split;
use earrrl_server::service::rule::ActiveRule;
use earrrl_server::service::rules::ActiveRules;
use futures_util::FutureExt as _;

use super::attributes::AttributeNames;
use earrrl_logs::reading::{ClientNumbers, LoggedRequest};
use earrrl_logs::replay::Timeline;

/// A configuration under which a log is replayed, and the results so far.
pub(crate) struct Configured {
    service: Service,
    clock: Arc<ManualClock>,
    rules: Arc<ActiveRules>,
    attributes: AttributeNames,
    now: u64,
    /// The tally of each rule, in the order of the configuration.
    pub(crate) tallies: Vec<RuleTally>,
    /// The number of requests that were replayed.
    pub(crate) events: u64,
    /// The number of requests that the rules together did not allow.
    pub(crate) denied: u64,
    /// The number of requests over time, if it is to be shown: all requests and the allowed ones,
    /// and for each rule the requests that it judged and the requests within its limit.
    pub(crate) timeline: Option<Timeline>,
    /// The time of the first request, in nanoseconds since the epoch.
    pub(crate) from: u64,
    /// The number of requests that a server would reject as invalid, and the reason for the first.
    pub(crate) invalid: (u64, String),
}

/// The results of one rule.
pub(crate) struct RuleTally {
    /// The name of the rule.
    pub(crate) name: String,
    /// The limit of the rule, as text.
    pub(crate) rule: String,
    /// The action of the rule when its limit is exceeded.
    pub(crate) action: &'static str,
    /// The number of requests that the rule judged.
    pub(crate) events: u64,
    /// The number of requests that exceeded the rule's limit.
    pub(crate) over: u64,
    /// The clients that the rule judged, numbered by their keys.
    pub(crate) clients: ClientNumbers,
    /// The results of the clients, by client number.
    pub(crate) counts: Vec<ClientTally>,
}

/// The results of one client under one rule.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct ClientTally {
    /// The number of the client's requests that the rule judged.
    pub(crate) requests: u64,
    /// The number of the client's requests that exceeded the limit.
    pub(crate) over: u64,
    /// The times of the client's first and last request, in nanoseconds since the epoch.
    pub(crate) seen: (u64, u64),
    /// The times of the first and the last request that exceeded the limit, in nanoseconds since
    /// the epoch.
    pub(crate) limited: (u64, u64),
}

/// The decision on one request of the log.
pub(crate) struct RequestFate<'a> {
    /// The client's address, found as the server finds it.
    pub(crate) client: Option<Cow<'a, str>>,
    /// The name of the rule that determined the decision.
    pub(crate) rule: Option<&'a str>,
    /// The decision; `None` if no rule applies to the request.
    pub(crate) decision: Option<&'a Decision>,
}

impl Configured {
    /// Creates the results of a configuration before any request. The states of clients are kept in
    /// memory, even if the configuration names a Redis.
    ///
    /// # Errors
    /// Returns an error if there is not enough memory for the tables of the rules.
    pub(crate) fn new(config: &Config) -> Result<Self, EngineError> {
        let clock = Arc::new(ManualClock::new(Nanos::ZERO));
        let mut here = config.clone();
        here.engine = EngineConfig::default();
        let service = Service::new(&here, clock.clone())?;
        let rules = Arc::clone(&service.rules());
        Ok(Self {
            attributes: AttributeNames::of(config),
            tallies: rules.iter().map(RuleTally::new).collect(),
            service,
            clock,
            rules,
            now: 0,
            events: 0,
            denied: 0,
            timeline: None,
            from: 0,
            invalid: (0, String::new()),
        })
    }

    /// Also counts the requests over time from now on.
    pub(crate) fn with_timeline(self) -> Self {
        Self {
            timeline: Some(Timeline::new(1 + 2 * self.tallies.len())),
            ..self
        }
    }

    /// Returns the time of the last request, in nanoseconds since the epoch.
    pub(crate) fn until(&self) -> u64 {
        self.now
    }

    /// Returns the names of the attributes that the configuration reads from a line.
    pub(crate) fn attributes(&self) -> AttributeNames {
        self.attributes.clone()
    }

    /// Advances the clock to the time of a request. An earlier time leaves the clock as it is,
    /// since a server's time never goes back.
    fn pass_to(&mut self, time: u64) {
        if self.events == 0 {
            self.from = time;
        }
        self.events += 1;
        self.now = self.now.max(time);
        self.clock.set(Nanos::new(self.now));
    }

    /// Decides the request whose attributes are in `key`, and passes the result to `take`.
    pub(crate) fn decide<E>(
        &mut self,
        clients: &ClientNumbers,
        request: LoggedRequest,
        take: impl FnOnce(RequestFate<'_>) -> Result<(), E>,
    ) -> Result<(), E> {
        self.pass_to(request.time);
        let rules = Arc::clone(&self.rules);
        let pairs = self.attributes.pairs(clients.key(request.client));
        let attributes = Attributes::new(pairs, &rules.reading);
        // The engine in memory never waits, so one poll is enough.
        let answer = self
            .service
            .ask_matching(&rules, &attributes, Mode::Check.into())
            .now_or_never();
        let answer = match answer.map(Answer::judged) {
            Some(Ok(answer)) => answer,
            Some(Err(error)) => {
                self.invalid.0 += 1;
                if self.invalid.0 == 1 {
                    self.invalid.1 = error.to_string();
                }
                return Ok(());
            }
            None => return Ok(()),
        };
        let decision = answer.decision.as_ref();
        let denied = decision.is_some_and(|decision| !decision.allowed);
        self.denied += u64::from(denied);
        let mut row = self.timeline.as_mut().map(|timeline| timeline.at(self.now));
        if let Some(row) = &mut row {
            row[0] += 1;
            row[1] += u64::from(!denied);
        }
        count(
            (&mut self.tallies, row),
            self.now,
            &rules,
            &attributes,
            &answer,
        );
        let rule = answer.deciding().map(|charged| charged.rule.name.as_str());
        let client = attributes.get("client").map(String::from_utf8_lossy);
        take(RequestFate {
            client,
            rule,
            decision,
        })
    }
}

fn count(
    (tallies, mut row): (&mut [RuleTally], Option<&mut [u64]>),
    now: u64,
    rules: &ActiveRules,
    attributes: &Attributes<'_>,
    answer: &Answer<'_>,
) {
    for charged in &answer.charged {
        let over = charged.is_over();
        let name = charged.rule.name.as_bytes();
        let Some((at, rule)) = rules.position(name).zip(rules.get(name)) else {
            continue;
        };
        if let Some(row) = &mut row {
            row[2 + 2 * at] += 1;
            row[3 + 2 * at] += u64::from(!over);
        }
        let key = rule.key(attributes);
        let parts = split(&key, rule.config.key.len()).unwrap_or_default();
        tallies[at].add(&parts.join(&b','), now, over);
    }
}

impl RuleTally {
    fn new(rule: &ActiveRule) -> Self {
        Self {
            name: rule.name.clone(),
            rule: rule.own.rule.to_string(),
            action: rule.action_name(),
            events: 0,
            over: 0,
            clients: ClientNumbers::new(),
            counts: Vec::new(),
        }
    }

    fn add(&mut self, key: &[u8], now: u64, over: bool) {
        self.events += 1;
        self.over += u64::from(over);
        let Some(client) = self.clients.number(key) else {
            return;
        };
        let client = client as usize;
        if client >= self.counts.len() {
            let new = ClientTally {
                seen: (now, now),
                ..ClientTally::default()
            };
            self.counts.resize(client + 1, new);
        }
        let counted = &mut self.counts[client];
        counted.requests += 1;
        counted.seen.1 = now;
        if over {
            if counted.over == 0 {
                counted.limited.0 = now;
            }
            counted.over += 1;
            counted.limited.1 = now;
        }
    }

    /// Returns the number of clients that exceeded the rule's limit at least once.
    pub(crate) fn limited(&self) -> usize {
        self.counts
            .iter()
            .filter(|counted| counted.over > 0)
            .count()
    }

    /// Returns at most `most` clients that exceeded the rule's limit most often. Among clients with
    /// equal counts, those seen first come first.
    pub(crate) fn worst(&self, most: usize) -> Vec<(u32, ClientTally)> {
        let counts = (0u32..).zip(self.counts.iter().copied());
        let mut worst: Vec<_> = counts.filter(|(_, counted)| counted.over > 0).collect();
        worst.sort_by_key(|(_, counted)| std::cmp::Reverse(counted.over));
        worst.truncate(most);
        worst
    }
}
