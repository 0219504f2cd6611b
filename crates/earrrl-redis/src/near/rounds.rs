//! Background exchanges: at every interval `sync`, the clients that this node decided are exchanged
//! with Redis.

use std::sync::Arc;
use std::time::Duration;

use earrrl::{Charge, Cost, Nanos};
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use super::exchange::{Unfinished, begin, exchange, finish};
use crate::calls::contribute::Arguments;
use crate::calls::convert::convert;
use crate::clients::client::Urgency;
use crate::clients::table::SHARDS;
use crate::connection::fault::Fault;
use crate::connection::link::Link;
use crate::request::KeyedCharge;
use crate::rules::PreparedRule;
use crate::shared::Shared;
use crate::status::count;

/// The number of clients per rule and second that an almost full table exchanges before they are due.
const EARLY: f64 = 5000.0;
/// The most clients in one write. The constant below is the most writes of a group in flight.
const BATCH: usize = 64;
const MAX_IN_FLIGHT: usize = 16;
/// The timeout of a write. The write is then repeated, which neither loses nor double-counts a
/// charge.
const TIMEOUT: Duration = Duration::from_secs(2);
/// The time for which a round waits for slow groups before the next round begins without them.
const GROUP_TIMEOUT: Duration = Duration::from_millis(100);

/// A client that will be exchanged, with its rule.
type DueClient = (Arc<PreparedRule>, Box<[u8]>);

pub(crate) async fn run(shared: Arc<Shared>) {
    let groups = shared
        .connection
        .breakers
        .groups()
        .map(|_| JoinSet::new())
        .collect();
    let mut rounds = Rounds { shared, groups };
    loop {
        sleep(rounds.shared.options.sync).await;
        // If callers give the time, clients are exchanged only when their requests are decided.
        if rounds.shared.clocks.last_given().is_none() {
            rounds.next().await;
        }
    }
}

/// Sends the pending charges of all near clients and ends this node's claims, in preparation for the
/// end of the process.
pub(crate) async fn flush(shared: &Arc<Shared>) {
    shared.node.leave();
    exchange_due(shared, Nanos::MAX, None).await;
}

/// Exchanges all clients that are due at a time, and waits for the answers. `given` is the time that
/// the caller gave, if any.
pub(crate) async fn exchange_due(shared: &Arc<Shared>, by: Nanos, given: Option<Nanos>) {
    let rules = shared.rules.all();
    let mut groups = JoinSet::new();
    for clients in due(shared, &rules, by) {
        if !clients.is_empty() {
            groups.spawn(exchange_group(shared.clone(), clients, given));
        }
    }
    while groups.join_next().await.is_some() {}
}

/// The rounds of all groups. Each group's clients are exchanged in a task of its own, so that a
/// group whose shard does not answer misses the next rounds without delaying the others.
struct Rounds {
    shared: Arc<Shared>,
    groups: Vec<JoinSet<bool>>,
}

impl Rounds {
    async fn next(&mut self) {
        let rules = self.shared.rules.all();
        if rules.iter().all(|rule| rule.near.is_none()) {
            return;
        }
        let idle = |group: &mut JoinSet<bool>| {
            while group.try_join_next().is_some() {}
            group.is_empty()
        };
        let idle: Vec<bool> = self.groups.iter_mut().map(idle).collect();
        let open = self.shared.connection.breakers.open_groups() == idle.len();
        let now = self.shared.clocks.local();
        if idle.contains(&true) && !open {
            for (group, clients) in due(&self.shared, &rules, now).into_iter().enumerate() {
                match idle[group] {
                    true if clients.is_empty() => {}
                    true => {
                        let round = exchange_group(self.shared.clone(), clients, None);
                        self.groups[group].spawn(round);
                    }
                    false => clients
                        .iter()
                        .for_each(|(rule, key)| retry_later(&self.shared, rule, key)),
                }
            }
        }
        if self.end().await && !open {
            self.shared.node.set_exchanged(self.shared.clocks.local());
        }
    }

    /// Waits for the groups. Returns true if all were exchanged.
    async fn end(&mut self) -> bool {
        let mut whole = true;
        let all = async {
            for group in &mut self.groups {
                while let Some(done) = group.join_next().await {
                    whole &= matches!(done, Ok(true));
                }
            }
        };
        timeout(GROUP_TIMEOUT, all).await.is_ok() && whole
    }
}

/// Takes the clients of each group that are due for an exchange at `now`.
fn due(shared: &Shared, rules: &[Arc<PreparedRule>], now: Nanos) -> Vec<Vec<DueClient>> {
    let mut groups: Vec<_> = shared
        .connection
        .breakers
        .groups()
        .map(|_| Vec::new())
        .collect();
    let sync = shared.options.sync;
    let early = (EARLY * sync.as_secs_f64() / SHARDS as f64).ceil() as usize;
    for rule in rules {
        let Some(table) = &rule.near else { continue };
        if !rule.is_near && table.pending() == 0 {
            table.clear();
            continue;
        }
        for queued in table.take_due(now, early) {
            groups[queued.group].push((rule.clone(), queued.key));
        }
    }
    groups
}

/// Queues a client for the next round.
fn retry_later(shared: &Shared, rule: &PreparedRule, key: &[u8]) {
    if let Some(table) = &rule.near {
        table.with(key, |client| {
            client.request_exchange(Urgency::Urgent, shared.clocks.local())
        });
    }
}

/// Exchanges the clients of one group. Returns true if all were exchanged.
async fn exchange_group(
    shared: Arc<Shared>,
    clients: Vec<DueClient>,
    given: Option<Nanos>,
) -> bool {
    let mut tasks = JoinSet::new();
    let mut whole = true;
    for some in clients.chunks(BATCH) {
        if tasks.len() >= MAX_IN_FLIGHT {
            whole &= matches!(tasks.join_next().await, Some(Ok(true)));
        }
        let charge = some.iter().map(|(rule, key)| {
            shared.keyed(
                rule.clone(),
                &Charge {
                    rule: rule.id,
                    key,
                    cost: Cost::ZERO,
                },
                0,
            )
        });
        tasks.spawn(exchange_batch(shared.clone(), charge.collect(), given));
    }
    while let Some(task) = tasks.join_next().await {
        whole &= matches!(task, Ok(true));
    }
    whole
}

/// Exchanges some clients of one group in one write. Returns true if all were exchanged, and queues
/// the others again.
async fn exchange_batch(shared: Arc<Shared>, all: Vec<KeyedCharge>, given: Option<Nanos>) -> bool {
    let link = all
        .first()
        .and_then(|charge| shared.connection.link(charge.group).ok());
    let Some(mut link) = link else {
        all.iter()
            .for_each(|charge| retry_later(&shared, &charge.rule, &charge.client));
        return false;
    };
    let mut calls = Vec::new();
    let mut commands = Vec::new();
    for charge in all {
        let Some((call, Arguments { keys, args })) = begin(&shared, &charge, Cost::ZERO, given)
        else {
            continue;
        };
        let script = shared.connection.scripts.near(charge.rule.kind);
        commands.push(Link::command("EVALSHA", &script.hash, &keys, &args));
        calls.push((charge, call));
    }
    let sent = shared.clocks.now(given);
    let answers = timeout(TIMEOUT, link.send_all(commands))
        .await
        .unwrap_or_default();
    let mut answers = answers.into_iter();
    let mut whole = true;
    for (charge, call) in calls {
        let done = answers
            .next()
            .map(|answer| finish(&shared, &charge, &call, answer, sent, given));
        whole &= conclude(&shared, &mut link, &charge, done, given).await;
    }
    whole
}

/// Handles the answer about one client. Returns true if the client is exchanged.
async fn conclude(
    shared: &Arc<Shared>,
    link: &mut Link,
    charge: &KeyedCharge,
    done: Option<Result<(), Unfinished>>,
    given: Option<Nanos>,
) -> bool {
    match done {
        Some(Ok(())) => {
            count(&shared.connection.counters.exchanged);
            return true;
        }
        Some(Err(Unfinished::Failed(Fault::Record(why)))) => {
            shared.connection.failed(charge.group, &Fault::Record(why));
            shared.with_near(charge, given, |client, _| client.drop_in_flight());
            count(&shared.connection.counters.not_handed_over);
            return true;
        }
        // The next exchange sends the charges again, with their times converted to the clock that
        // was set.
        Some(Err(Unfinished::ClockSet)) | None => {}
        Some(Err(Unfinished::Failed(fault))) => shared.connection.failed(charge.group, &fault),
        Some(Err(Unfinished::Foreign(at))) => {
            timeout(TIMEOUT, convert(shared, link, charge, at))
                .await
                .ok();
        }
        // Sent alone, the call includes the script's text: the shard may have lost the script, or a
        // replica may have taken over.
        Some(Err(Unfinished::NoScript)) => {
            let call = exchange(shared, link.clone(), charge, Cost::ZERO, given);
            if let Ok(Ok(())) = timeout(TIMEOUT, call).await {
                count(&shared.connection.counters.exchanged);
                return true;
            }
        }
    }
    retry_later(shared, &charge.rule, &charge.client);
    false
}
