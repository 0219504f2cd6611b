//! What goes on beside decisions: connects, tries every shard that is left alone, lets it back in, and
//! hands over what was counted meanwhile. Each shard by itself, so that none waits for another.

use std::collections::hash_map::RandomState;
use std::hash::BuildHasher;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout};

use crate::hand_over::hand_over;
use crate::link::{Fault, Link};
use crate::options::Options;
use crate::rules::PreparedRule;
use crate::shared::Shared;
use crate::status::count;

/// How long a connection may take: to a Cluster, longer than to a node of it that does not answer.
const CONNECTING: Duration = Duration::from_secs(10);
/// How long it may take to write a rule down.
const PATIENCE: Duration = Duration::from_secs(2);
/// How often a shard at work is tried, and how long it must have been at work to count as sound.
const CHECKED_EVERY: Duration = Duration::from_secs(1);
const SOUND: Duration = Duration::from_secs(10);
/// Tries in a row that must do before a shard is let back in: one may be luck.
const GOOD: u32 = 3;
/// Tries in a row that may fail before the connection is given up.
const TRIES: u32 = 3;
const SHORTEST_BACKOFF: Duration = Duration::from_millis(10);
/// How long earlier parameters of a rule are kept: longer than any record lives.
const HISTORY: Duration = Duration::from_secs(400 * 366 * 86_400);

pub(crate) async fn run(shared: Arc<Shared>) {
    shared.breakers.groups().for_each(|group| {
        shared.breakers.failed(group, true);
    });
    let mut backoff = Backoff::new(SHORTEST_BACKOFF, shared.options.longest_backoff);
    let mut link = connect(&shared, &mut backoff).await;
    loop {
        shared.set_link(link.clone());
        let since = Instant::now();
        // What was told of the connection before is no reason to give this one up.
        pin!(shared.give_up.notified()).enable();
        let next = async {
            shared.give_up.notified().await;
            if since.elapsed() > SOUND {
                backoff.reset();
            }
            // The others go on over the old connection meanwhile.
            backoff.wait().await;
            connect(&shared, &mut backoff).await
        };
        link = tokio::select! {
            next = next => next,
            () = tend(&shared, &link) => return,
        };
    }
}

/// Makes a connection, however long it takes.
async fn connect(shared: &Shared, backoff: &mut Backoff) -> Link {
    loop {
        let options = Options { urls: shared.urls(), ..shared.options.clone() };
        let connected = async {
            let mut link = Link::connect(&options).await?;
            link.load(shared.scripts.common()).await;
            Ok::<_, redis::RedisError>(link)
        };
        let link = timeout(CONNECTING, connected).await;
        let link =
            link.unwrap_or_else(|_| Err(std::io::Error::from(std::io::ErrorKind::TimedOut).into()));
        match link {
            Ok(link) => {
                count(&shared.counters.connected);
                return link;
            }
            Err(error) => {
                let fault = Fault::from(error);
                // Once for each reason, not once a second for as long as it lasts.
                if shared.note(&fault) {
                    let policy = shared.options.when_gone.name();
                    let why = fault.detail();
                    tracing::warn!(why, policy, "Redis can't be reached; the policy decides");
                }
            }
        }
        backoff.wait().await;
    }
}

/// Looks after every shard over this connection. Never ends.
async fn tend(shared: &Arc<Shared>, link: &Link) {
    let mut groups = JoinSet::new();
    for group in shared.breakers.groups() {
        groups.spawn(Tended::new(shared.clone(), link.clone(), group).run());
    }
    keep_rules_written(shared, link).await;
}

/// One group of slots over one connection; of a Redis that is no Cluster, all of it.
struct Tended {
    shared: Arc<Shared>,
    link: Link,
    group: usize,
    /// Between tries that fail.
    backoff: Backoff,
    /// Before it is let back in: the longer, the oftener it failed just after that.
    rest: Backoff,
    let_in: Option<Instant>,
}

impl Tended {
    fn new(shared: Arc<Shared>, link: Link, group: usize) -> Self {
        let longest = shared.options.longest_backoff;
        Self {
            shared,
            link,
            group,
            backoff: Backoff::new(SHORTEST_BACKOFF, longest),
            rest: Backoff::new(10 * SHORTEST_BACKOFF, 10 * longest),
            let_in: None,
        }
    }

    async fn run(mut self) {
        loop {
            if self.shared.breakers.is_open(self.group) {
                self.mend().await;
            } else {
                self.watch().await;
            }
        }
    }

    /// Tries until Redis decides well enough, and lets it back in.
    async fn mend(&mut self) {
        if let Some(let_in) = self.let_in.take() {
            if let_in.elapsed() > SOUND {
                self.rest.reset();
            }
            self.rest.wait().await;
        }
        let (mut good, mut bad) = (0, 0);
        while good < GOOD {
            match self.try_it().await {
                Ok(()) => (good, bad) = (good + 1, 0),
                Err(fault) => {
                    (good, bad) = (0, bad + 1);
                    self.shared.note(&fault);
                    if bad > TRIES || matches!(fault, Fault::Lost(_)) {
                        bad = 0;
                        self.shared.give_up.notify_one();
                    }
                    self.backoff.wait().await;
                }
            }
        }
        self.backoff.reset();
        self.let_in = Some(Instant::now());
        self.shared.let_in(self.group);
        self.hand_over().await;
    }

    /// Waits for something to do. Redis is tried now and then, so that it is seen to be gone although
    /// nobody asks for a decision.
    async fn watch(&mut self) {
        let told = self.shared.trouble[self.group].notified();
        if timeout(CHECKED_EVERY, told).await.is_ok() {
            return self.hand_over().await;
        }
        while let Err(fault) = self.try_it().await {
            self.shared.failed(self.group, &fault);
            if self.shared.breakers.is_open(self.group) {
                return;
            }
            self.backoff.wait().await;
        }
        self.backoff.reset();
        self.shared.breakers.succeeded(self.group);
        self.hand_over().await;
    }

    /// A real decision, within the time that decisions have: what takes a write need not take a
    /// script, or be near enough.
    async fn try_it(&self) -> Result<(), Fault> {
        let Shared { probe, scripts, .. } = &*self.shared;
        let call = probe.ask(scripts, self.link.clone(), self.group);
        timeout(self.shared.options.deadline, call).await.unwrap_or(Err(Fault::Late))
    }

    async fn hand_over(&self) {
        if self.shared.breakers.is_open(self.group) {
            return;
        }
        // Handing over goes on by itself. On a connection that is dead without a word it would take a
        // minute, and meanwhile nobody would look for another.
        let handed_over = tokio::select! {
            biased;
            handed_over = hand_over(&self.shared, &self.link, self.group) => handed_over,
            () = self.shared.trouble[self.group].notified() => Ok(()),
        };
        if let Err(fault) = handed_over {
            self.shared.failed(self.group, &fault);
        }
    }
}

/// Writes down the parameters of every rule, for engines to come that meet their records.
async fn keep_rules_written(shared: &Shared, link: &Link) {
    let mut written: Vec<(String, u32)> = Vec::new();
    loop {
        for rule in shared.rules.all().iter() {
            let parameters = (rule.name.clone(), rule.tag);
            if !written.contains(&parameters) && write_down(shared, link.clone(), rule).await {
                written.push(parameters);
            }
        }
        timeout(CHECKED_EVERY, shared.rules_changed.notified()).await.ok();
    }
}

/// Answers whether it needs not be tried again.
async fn write_down(shared: &Shared, mut link: Link, rule: &PreparedRule) -> bool {
    let key = shared.keys.history(&rule.name);
    if shared.breakers.is_open(shared.group(key.as_bytes())) {
        return false;
    }
    let call = async {
        let mut set = redis::cmd("HSET");
        set.arg(&key).arg(rule.tag).arg(rule.rule.to_string());
        link.send(&set).await?;
        let mut expire = redis::cmd("PEXPIRE");
        expire.arg(&key).arg(HISTORY.as_millis() as u64);
        link.send(&expire).await.map_err(Fault::from)
    };
    match timeout(PATIENCE, call).await.unwrap_or(Err(Fault::Late)) {
        Ok(_) => true,
        Err(Fault::Record(why)) => {
            tracing::warn!(rule = rule.name, why, "a rule can't be written down");
            true
        }
        Err(_) => false,
    }
}

/// Ever longer waits, each anywhere in its upper half, so that a fleet does not come back in step.
struct Backoff {
    first: Duration,
    next: Duration,
    longest: Duration,
}

impl Backoff {
    fn new(first: Duration, longest: Duration) -> Self {
        let first = first.min(longest);
        Self { first, next: first, longest }
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
