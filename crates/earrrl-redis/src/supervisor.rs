//! The supervisor. It connects, probes every shard whose breaker is open, closes the breaker when
//! Redis answers reliably, and delivers the pending changes. Each shard has a task of its own, so
//! that none waits for another.

use std::collections::hash_map::RandomState;
use std::hash::BuildHasher;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use earrrl::{Cost, Mode};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout};

use crate::batches::Ticket;
use crate::connection::fault::Fault;
use crate::connection::link::Link;
use crate::decide::exchange;
use crate::deliver::hand_over;
use crate::request::{Request, UNITS_PATIENCE};
use crate::shared::Shared;
use crate::status::count;

/// The timeout of establishing a connection. For a Cluster it must be longer than that of a single
/// node that does not answer.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// The interval of probes of a shard that is in use. The constant below is the time in use after
/// which the shard counts as healthy.
const PROBE_INTERVAL: Duration = Duration::from_secs(1);
const SOUND: Duration = Duration::from_secs(10);
/// The number of successful probes in a row that close a breaker. A single one may be luck.
const SUCCESSES: u32 = 3;
/// The number of failed probes in a row after which the connection is replaced.
const FAILURES: u32 = 3;
const SHORTEST_BACKOFF: Duration = Duration::from_millis(10);

pub(crate) async fn run(shared: Arc<Shared>) {
    let mut backoff = Backoff::new(SHORTEST_BACKOFF, shared.options.longest_backoff);
    let mut link = connect(&shared, &mut backoff).await;
    loop {
        shared.connection.set_link(link.clone());
        let since = Instant::now();
        // Earlier requests to replace the link concerned the previous link, so they are dropped.
        pin!(shared.connection.reconnect.notified()).enable();
        let next = async {
            shared.connection.reconnect.notified().await;
            if since.elapsed() > SOUND {
                backoff.reset();
            }
            // Groups that work continue to use the old link meanwhile.
            backoff.wait().await;
            connect(&shared, &mut backoff).await
        };
        link = tokio::select! {
            next = next => next,
            () = supervise(&shared, &link) => return,
        };
    }
}

/// Connects, with as many attempts as necessary.
async fn connect(shared: &Shared, backoff: &mut Backoff) -> Link {
    loop {
        let options = shared.connection.options();
        let link = timeout(CONNECT_TIMEOUT, Link::connect(&options)).await;
        let none = || Fault::Lost(format!("no connection within {CONNECT_TIMEOUT:?}"));
        match link.unwrap_or_else(|_| Err(none())) {
            Ok(link) => {
                shared.connection.scripts.forget();
                count(&shared.connection.counters.connected);
                return link;
            }
            Err(fault) => {
                shared.connection.note(&fault);
                if shared.connection.deserves_warning(&fault) {
                    let policy = shared.options.when_gone.name();
                    let why = fault.detail();
                    tracing::warn!(why, policy, "Redis can't be reached; the policy decides");
                }
            }
        }
        backoff.wait().await;
    }
}

/// Supervises every shard over a link. Never returns.
async fn supervise(shared: &Arc<Shared>, link: &Link) {
    let mut groups = JoinSet::new();
    for group in shared.connection.breakers.groups() {
        groups.spawn(GroupSupervisor::new(shared, link, group).run());
    }
    while groups.join_next().await.is_some() {}
}

/// The supervisor of one group of slots over one link. Without a Cluster, there is one group.
struct GroupSupervisor {
    shared: Arc<Shared>,
    link: Link,
    group: usize,
    /// The pause between failing probes.
    backoff: Backoff,
    /// The pause before the breaker may be closed. It grows each time that the group fails soon
    /// afterwards.
    cooldown: Backoff,
    let_in: Option<Instant>,
    probe: Request,
}

impl GroupSupervisor {
    fn new(shared: &Arc<Shared>, link: &Link, group: usize) -> Self {
        let longest = shared.options.longest_backoff;
        Self {
            shared: shared.clone(),
            link: link.clone(),
            group,
            backoff: Backoff::new(SHORTEST_BACKOFF, longest),
            cooldown: Backoff::new(10 * SHORTEST_BACKOFF, 10 * longest),
            let_in: None,
            probe: probe(shared, group),
        }
    }

    async fn run(mut self) {
        loop {
            if self.shared.connection.breakers.is_open(self.group) {
                self.recover().await;
            } else {
                self.watch().await;
            }
        }
    }

    /// Probes Redis until it answers reliably, then closes the breaker.
    async fn recover(&mut self) {
        if let Some(let_in) = self.let_in.take() {
            if let_in.elapsed() > SOUND {
                self.cooldown.reset();
            }
            self.cooldown.wait().await;
        }
        let mut good = 0;
        let mut bad = 0;
        let mut nearest = Duration::MAX;
        while good < SUCCESSES {
            match self.probe_once().await {
                Ok(round_trip) => {
                    nearest = nearest.min(round_trip);
                    (good, bad) = (good + 1, 0);
                }
                Err(fault) => {
                    (good, bad) = (0, bad + 1);
                    self.warn_if_late(&fault);
                    if self.shared.connection.breakers.is_far(self.group) {
                        bad = 0;
                        self.hand_over().await;
                    }
                    self.shared.connection.note(&fault);
                    if bad > FAILURES || matches!(fault, Fault::Lost(_)) {
                        bad = 0;
                        self.shared.connection.reconnect.notify_one();
                    }
                    self.backoff.wait().await;
                }
            }
        }
        self.backoff.reset();
        self.warn_if_far(nearest);
        self.let_in = Some(Instant::now());
        self.shared.connection.let_in(self.group);
        self.hand_over().await;
    }

    /// Warns at the start if Redis answers too late for decisions. Otherwise nothing would say why this node
    /// never uses it.
    fn warn_if_late(&self, fault: &Fault) {
        let deadline = self.shared.options.deadline;
        let is_late = self.let_in.is_none() && matches!(fault, Fault::Late);
        if is_late && self.shared.connection.deserves_warning(fault) {
            let policy = self.shared.options.when_gone.name();
            tracing::warn!(
                ?deadline,
                policy,
                "Redis answers later than the deadline; the policy decides. Set a longer deadline"
            );
        }
    }

    /// Warns at the start if the shortest round trip of the probes takes most of the deadline: then many
    /// decisions are made without Redis, and the shared limit is partly one of each node.
    fn warn_if_far(&self, round_trip: Duration) {
        let deadline = self.shared.options.deadline;
        if self.let_in.is_none() && self.group == 0 && round_trip > deadline / 2 {
            tracing::warn!(
                ?round_trip,
                ?deadline,
                "a round trip to Redis takes more than half the deadline, so many decisions will be made \
                 without it; set a deadline of at least twice the round trip"
            );
        }
    }

    /// Waits for work. Probes Redis regularly, so that an outage is noticed even if there are no
    /// requests.
    async fn watch(&mut self) {
        let attention = self.shared.connection.attention[self.group].notified();
        if timeout(PROBE_INTERVAL, attention).await.is_ok() {
            return self.hand_over().await;
        }
        while let Err(fault) = self.probe_once().await {
            self.shared.connection.failed(self.group, &fault);
            if self.shared.connection.breakers.is_open(self.group) {
                return;
            }
            self.backoff.wait().await;
        }
        self.backoff.reset();
        self.shared.connection.breakers.succeeded(self.group);
        self.hand_over().await;
    }

    /// Makes a real decision within the deadline, which stores a state and a receipt, and returns how long it took. A
    /// server that accepts a write might still reject scripts, or be too far away, and one that is out of memory,
    /// read-only, or does not permit receipts would answer commands that store nothing. If there are near rules, whose
    /// calls may take longer, notes that an answer came after the deadline.
    async fn probe_once(&mut self) -> Result<Duration, Fault> {
        let connection = &self.shared.connection;
        let deadline = self.shared.options.deadline;
        self.probe.patience = match self.shared.rules.some_near() {
            true => deadline.max(UNITS_PATIENCE),
            false => deadline,
        };
        let ticket = Arc::<Ticket>::default();
        let sent = Instant::now();
        let asked = exchange(&self.shared, Some(&self.link), &self.probe, &[0], &ticket);
        let answered = timeout(self.probe.patience, asked).await;
        let answered = answered.unwrap_or(Err(Fault::Late));
        let round_trip = sent.elapsed();
        let is_late = answered.is_ok() && round_trip > deadline;
        connection.breakers.set_far(self.group, is_late);
        answered?;
        let place = ticket.receipt();
        place.iter().for_each(|place| place.receipt.answered(true));
        if is_late {
            Err(Fault::Late)
        } else {
            Ok(round_trip)
        }
    }

    async fn hand_over(&self) {
        if self.shared.connection.distant_link(self.group).is_err() {
            return;
        }
        // The delivery runs in a task of its own. On a connection that is dead without having been
        // reset, it would take a minute, during which the link would not be replaced.
        let handed_over = tokio::select! {
            biased;
            handed_over = hand_over(&self.shared, &self.link, self.group) => handed_over,
            () = self.shared.connection.attention[self.group].notified() => Ok(()),
        };
        if let Err(fault) = handed_over {
            self.shared.connection.failed(self.group, &fault);
        }
    }
}

/// Returns the request of a group's probes, under a rule of the engine's own, whose limit is never reached.
fn probe(shared: &Shared, group: usize) -> Request {
    let connection = &shared.connection;
    let tags = connection.keys.receipt_tags().iter();
    let mut keys = tags.map(|tag| connection.keys.probe(*tag).into_bytes());
    let is_of_group = |key: &Vec<u8>| connection.group(key) == group;
    let key = keys.find(is_of_group).unwrap_or_default();
    Request {
        charges: vec![shared.of_record(shared.probe.clone(), key, Cost::ONE)],
        now: None,
        mode: Mode::Check,
        patience: shared.options.deadline,
        hold: None,
        units: None,
    }
}

/// Exponential backoff with jitter. Each wait is random in the upper half of its range, so that
/// several nodes do not reconnect at the same time.
struct Backoff {
    first: Duration,
    next: Duration,
    longest: Duration,
}

impl Backoff {
    fn new(first: Duration, longest: Duration) -> Self {
        let first = first.min(longest);
        Self {
            first,
            next: first,
            longest,
        }
    }

    fn reset(&mut self) {
        self.next = self.first;
    }

    async fn wait(&mut self) {
        let share = RandomState::new().hash_one(()) as f64 / u64::MAX as f64;
        sleep(self.next.mul_f64(0.5 + share / 2.0)).await;
        self.next = (self.next * 2).min(self.longest);
    }
}
