//! The one task that connects, tries Redis again after an outage, lets it back in, and hands over
//! what was counted meanwhile. Decisions never wait for it.

use std::collections::hash_map::RandomState;
use std::hash::BuildHasher;
use std::sync::Arc;
use std::time::Duration;

use tokio::task::{JoinError, JoinSet};
use tokio::time::{Instant, sleep, timeout};

use crate::ledger::{Client, Entry};
use crate::link::{Fault, Link};
use crate::options::Options;
use crate::rules::Prepared;
use crate::shared::Shared;
use crate::status::count;

/// How long a connection, or a try of it, may take.
const PATIENCE: Duration = Duration::from_secs(2);
/// The same for a try over a connection that worked until now, unless decisions wait longer.
const PROBE: Duration = Duration::from_millis(100);
/// How often a Redis at work is tried.
const CHECKED_EVERY: Duration = Duration::from_secs(1);
/// Tries that may fail before the connection is given up.
const TRIES: u32 = 3;
const SHORTEST_BACKOFF: Duration = Duration::from_millis(10);
/// Clients handed over at a time.
const AT_ONCE: usize = 64;
/// How long earlier parameters of a rule are kept: longer than any record lives.
const HISTORY: Duration = Duration::from_secs(400 * 366 * 86_400);

pub(crate) async fn run(shared: Arc<Shared>) {
    let mut backoff = Backoff::new(shared.options.longest_backoff);
    let probes = probes(&shared);
    shared.breakers.groups().for_each(|group| {
        shared.breakers.failed(group, true);
    });
    loop {
        if let Some(link) = connect(&shared).await {
            shared.set_link(link.clone());
            serve(&shared, link, &probes, &mut backoff).await;
        }
        backoff.wait().await;
    }
}

async fn connect(shared: &Shared) -> Option<Link> {
    let options = Options { urls: shared.urls(), ..shared.options.clone() };
    let link = timeout(PATIENCE, Link::connect(&options)).await;
    let link =
        link.unwrap_or_else(|_| Err(std::io::Error::from(std::io::ErrorKind::TimedOut).into()));
    match link {
        Ok(link) => {
            count(&shared.counters.connected);
            Some(link)
        }
        Err(error) => {
            let fault = Fault::from(error);
            // Once for each reason, not once a second for as long as it lasts.
            if shared.note(&fault) {
                let policy = shared.options.when_gone.name();
                tracing::warn!(
                    why = fault.detail(),
                    policy,
                    "Redis can't be reached; the policy decides"
                );
            }
            None
        }
    }
}

/// Lets groups back in over this connection as they answer, and waits for trouble, until the
/// connection has to be given up.
async fn serve(shared: &Arc<Shared>, link: Link, probes: &[String], backoff: &mut Backoff) {
    let (mut tries, mut written) = (0, Vec::new());
    loop {
        match repair(shared, &link, probes, &mut written).await {
            Ok(()) => {
                tries = 0;
                shared.settled.send_replace(shared.breakers.open_groups() == 0);
                let since = Instant::now();
                watch(shared, &link, probes).await;
                // Trouble again so soon: a Redis with too much to do is left alone for longer.
                if since.elapsed() < shared.options.longest_backoff {
                    backoff.wait().await;
                } else {
                    *backoff = Backoff::new(shared.options.longest_backoff);
                }
            }
            Err(fault) if tries >= TRIES || matches!(fault, Fault::Lost(_)) => {
                // It may have been let in already, and nobody need be asking who would notice.
                if !shared.options.cluster {
                    shared.failed(0, &fault);
                }
                return;
            }
            Err(_) => {
                tries += 1;
                backoff.wait().await;
            }
        }
    }
}

/// Waits for trouble. A single Redis is tried now and then, so that it is seen to be gone although
/// nobody asks for a decision.
async fn watch(shared: &Shared, link: &Link, probes: &[String]) {
    while let Err(_elapsed) = timeout(CHECKED_EVERY, shared.trouble.notified()).await {
        let Some(key) = probes.first().filter(|_| !shared.options.cluster) else { continue };
        if let Err(fault) = probe(shared, link.clone(), key).await {
            shared.failed(0, &fault);
        }
    }
}

async fn repair(
    shared: &Arc<Shared>,
    link: &Link,
    probes: &[String],
    written: &mut Vec<(String, u32)>,
) -> Result<(), Fault> {
    let mended = mend(shared, link, probes).await;
    // A shard that is gone for long keeps nothing from the others.
    write_rules_down(shared, link, written).await?;
    mended?;
    hand_over(shared, link).await
}

/// Tries every group that is left alone, and lets it back in if it takes a write.
async fn mend(shared: &Shared, link: &Link, probes: &[String]) -> Result<(), Fault> {
    let (mut worst, mut closed) = (Ok(()), 0);
    for group in shared.breakers.groups().filter(|group| shared.breakers.is_open(*group)) {
        match probe(shared, link.clone(), &probes[group]).await {
            Ok(()) => {
                shared.breakers.close(group);
                count(&shared.counters.closed);
                closed += 1;
            }
            Err(fault) => {
                shared.note(&fault);
                let lost = matches!(fault, Fault::Lost(_)) && !shared.options.cluster;
                worst = Err(fault);
                if lost {
                    break;
                }
            }
        }
    }
    match closed {
        0 => {}
        _ if shared.options.cluster => {
            let of = shared.breakers.groups().len();
            tracing::info!(groups = closed, of, "Redis decides again for these groups of slots");
        }
        _ => tracing::info!("Redis decides"),
    }
    worst
}

/// A write, since a Redis that is out of memory or read-only answers everything else.
async fn probe(shared: &Shared, mut link: Link, key: &str) -> Result<(), Fault> {
    let mut set = redis::cmd("SET");
    set.arg(key).arg(1).arg("PX").arg(1000);
    let patience = PROBE.max(shared.options.deadline);
    timeout(patience, link.send(&set)).await.map_err(|_| Fault::Late)??;
    Ok(())
}

/// A key for each group.
fn probes(shared: &Shared) -> Vec<String> {
    let keys = |group| {
        let mut keys = (0u32..).map(|number| shared.keys.probe(number));
        keys.find(|key| shared.group(key.as_bytes()) == group)
    };
    shared.breakers.groups().filter_map(keys).collect()
}

/// Writes down the parameters of every rule, for engines to come that meet their records.
async fn write_rules_down(
    shared: &Shared,
    link: &Link,
    written: &mut Vec<(String, u32)>,
) -> Result<(), Fault> {
    let (mut worst, mut failing) = (Ok(()), Vec::new());
    for rule in shared.rules.all() {
        let parameters = (rule.name.clone(), rule.tag);
        let key = shared.keys.history(&rule.name);
        let group = shared.group(key.as_bytes());
        let left = shared.breakers.is_open(group) || failing.contains(&group);
        if left || written.contains(&parameters) {
            continue;
        }
        let call = write_down(link.clone(), &rule, &key);
        match timeout(PATIENCE, call).await.unwrap_or(Err(Fault::Late)) {
            Ok(()) => written.push(parameters),
            Err(Fault::Record(why)) => {
                tracing::warn!(rule = rule.name, why, "a rule can't be written down");
                written.push(parameters);
            }
            Err(fault) => {
                failing.push(group);
                worst = Err(fault);
            }
        }
    }
    worst
}

async fn write_down(mut link: Link, rule: &Prepared, key: &str) -> Result<(), Fault> {
    let mut set = redis::cmd("HSET");
    set.arg(key).arg(rule.tag).arg(rule.rule.to_string());
    link.send(&set).await?;
    let mut expire = redis::cmd("PEXPIRE");
    expire.arg(key).arg(HISTORY.as_millis() as u64);
    link.send(&expire).await?;
    Ok(())
}

/// Adds what was counted here to the records, until Redis fails: the rest is kept for the next time.
async fn hand_over(shared: &Arc<Shared>, link: &Link) -> Result<(), Fault> {
    let entries = shared.ledger.drain();
    let (clients, mut tasks, mut went) = (entries.len(), JoinSet::new(), Went::default());
    for (client, entry) in entries {
        if tasks.len() >= AT_ONCE {
            went.note(tasks.join_next().await);
        }
        if went.failed.is_some() {
            shared.ledger.put_back(client, entry);
        } else {
            tasks.spawn(hand_over_one(shared.clone(), link.clone(), client, entry));
        }
    }
    while !tasks.is_empty() {
        went.note(tasks.join_next().await);
    }
    match went.failed.as_ref().or(went.unusable.as_ref()) {
        None if clients == 0 => {}
        None => tracing::info!(clients, "what was counted here is handed over"),
        Some(fault) => {
            tracing::warn!(clients, why = fault.detail(), "not everything could be handed over");
        }
    }
    went.failed.map_or(Ok(()), Err)
}

/// What has gone wrong so far.
#[derive(Default)]
struct Went {
    /// With Redis.
    failed: Option<Fault>,
    /// With a client's record alone.
    unusable: Option<Fault>,
}

impl Went {
    fn note(&mut self, task: Option<Result<Result<(), Fault>, JoinError>>) {
        match task {
            Some(Ok(Err(fault @ Fault::Record(_)))) => self.unusable = Some(fault),
            Some(Ok(Err(fault))) => self.failed = Some(fault),
            _ => {}
        }
    }
}

async fn hand_over_one(
    shared: Arc<Shared>,
    link: Link,
    client: Client,
    entry: Entry,
) -> Result<(), Fault> {
    let rule = shared.rules.get(client.rule).filter(|rule| rule.tag == entry.tag);
    let Some(rule) = rule else {
        count(&shared.counters.not_handed_over);
        shared.ledger.done();
        return Ok(());
    };
    let charge = earrrl::Charge { rule: rule.id, key: &client.key, cost: earrrl::Cost::ZERO };
    let adjustments = entry.adjustments(rule.rule.limit(), shared.clock.now());
    let asked = shared.asked(rule, &charge, 0);
    let adjustments = adjustments.into_iter().filter(|adjustment| !adjustment.cost.is_zero());
    for (done, adjustment) in adjustments.enumerate() {
        let call = shared.adjust_over(link.clone(), &asked, adjustment, None);
        if let Err(fault) = timeout(PATIENCE, call).await.unwrap_or(Err(Fault::Late)) {
            if done == 0 && !matches!(fault, Fault::Record(_)) {
                // Redis may have taken it all the same: then it counts twice, never not at all.
                shared.ledger.put_back(client, entry);
            } else {
                count(&shared.counters.not_handed_over);
                shared.ledger.done();
            }
            return Err(fault);
        }
    }
    count(&shared.counters.handed_over);
    shared.ledger.done();
    Ok(())
}

/// Ever longer waits, each anywhere in its upper half, so that a fleet does not come back in step.
struct Backoff {
    next: Duration,
    longest: Duration,
}

impl Backoff {
    fn new(longest: Duration) -> Self {
        Self { next: SHORTEST_BACKOFF.min(longest), longest }
    }

    async fn wait(&mut self) {
        let share = RandomState::new().hash_one(()) as f64 / u64::MAX as f64;
        sleep(self.next.mul_f64(0.5 + share / 2.0)).await;
        self.next = (self.next * 2).min(self.longest);
    }
}
