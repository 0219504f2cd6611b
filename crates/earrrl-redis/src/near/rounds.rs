//! What goes on in the background: again and again, the clients of whom something was decided are exchanged.

use std::sync::Arc;
use std::time::Duration;

use earrrl::{Charge, Cost, Nanos};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout};

use super::client::Due;
use super::exchange::{Unfinished, begin, exchange_one, finish};
use super::table::SHARDS;
use crate::convert::convert;
use crate::link::{Fault, Link};
use crate::request::AskedCharge;
use crate::rules::PreparedRule;
use crate::shared::Shared;
use crate::status::count;

/// Clients of each rule that are exchanged in a second, of those that could wait once.
const EARLY: f64 = 5000.0;
/// Clients in one write, and writes of a group under way.
const AT_ONCE: usize = 64;
const UNDER_WAY: usize = 16;
/// How long an answer to them is waited for. Nothing is lost then, and nothing counts twice.
const PATIENCE: Duration = Duration::from_secs(2);
/// How long the next round waits for groups that are not done with this one.
const LAG: Duration = Duration::from_millis(100);
/// How often a node says that it is alive, and how long it counts as such.
const BEAT: Duration = Duration::from_secs(1);
const ALIVE: Duration = Duration::from_secs(10);

/// A client that is to be exchanged.
type DueClient = (Arc<PreparedRule>, Box<[u8]>);

pub(crate) async fn run(shared: Arc<Shared>) {
    let groups = shared.breakers.groups().map(|_| JoinSet::new()).collect();
    let mut rounds = Rounds { shared, groups, beat: None, beating: JoinSet::new() };
    loop {
        sleep(rounds.shared.options.sync).await;
        // By a caller's time, clients are exchanged before their requests are decided.
        if rounds.shared.last_given().is_none() {
            rounds.next().await;
        }
    }
}

/// Each group's clients are exchanged by themselves: one whose shard does not answer misses the next rounds, and
/// keeps no other waiting.
struct Rounds {
    shared: Arc<Shared>,
    groups: Vec<JoinSet<bool>>,
    /// When this node last said that it is alive, and where it is saying so.
    beat: Option<Instant>,
    beating: JoinSet<()>,
}

impl Rounds {
    async fn next(&mut self) {
        let rules = self.shared.rules.all();
        if rules.iter().all(|rule| rule.near.is_none()) {
            return;
        }
        self.say_alive();
        let idle = |group: &mut JoinSet<bool>| {
            while group.try_join_next().is_some() {}
            group.is_empty()
        };
        let idle: Vec<bool> = self.groups.iter_mut().map(idle).collect();
        let open = self.shared.breakers.open_groups() == idle.len();
        if idle.contains(&true) && !open {
            for (group, clients) in due(&self.shared, &rules).into_iter().enumerate() {
                match idle[group] {
                    true if clients.is_empty() => {}
                    true => {
                        let round = exchange_group(self.shared.clone(), clients);
                        self.groups[group].spawn(round);
                    }
                    false => clients.iter().for_each(|(rule, key)| later(&self.shared, rule, key)),
                }
            }
        }
        if self.end().await && !open {
            self.shared.near.exchanged(self.shared.clock.now());
        }
    }

    /// Waits for the groups; answers whether all were exchanged.
    async fn end(&mut self) -> bool {
        let mut whole = true;
        let all = async {
            for group in &mut self.groups {
                while let Some(done) = group.join_next().await {
                    whole &= matches!(done, Ok(true));
                }
            }
        };
        timeout(LAG, all).await.is_ok() && whole
    }

    fn say_alive(&mut self) {
        while self.beating.try_join_next().is_some() {}
        let known = self.shared.options.nodes.is_some();
        let lately = self.beat.is_some_and(|beat| beat.elapsed() < BEAT);
        if !known && !lately && self.beating.is_empty() {
            self.beat = Some(Instant::now());
            self.beating.spawn(heartbeat(self.shared.clone()));
        }
    }
}

/// Says that this node is alive, and hears how many are.
async fn heartbeat(shared: Arc<Shared>) {
    let key = shared.keys.nodes().into_bytes();
    let Ok(mut link) = shared.link(shared.group(&key)) else { return };
    let args = [shared.near.node.to_vec(), ALIVE.as_millis().to_string().into_bytes()];
    let keys = [key];
    let call = link.call(&shared.scripts.nodes, &keys, &args);
    if let Ok(Ok(redis::Value::Int(nodes))) = timeout(PATIENCE, call).await {
        shared.near.set_nodes(u32::try_from(nodes).unwrap_or(1));
    }
}

/// The clients of each group that are to be exchanged now. Those that can wait may do so until their claims are half
/// over, in time for another round.
fn due(shared: &Shared, rules: &[Arc<PreparedRule>]) -> Vec<Vec<DueClient>> {
    let mut groups: Vec<_> = shared.breakers.groups().map(|_| Vec::new()).collect();
    let sync = shared.options.sync;
    let early = (EARLY * sync.as_secs_f64() / SHARDS as f64).ceil() as usize;
    for rule in rules {
        let Some(table) = &rule.near else { continue };
        if !rule.is_near && table.owed() == 0 {
            table.clear();
            continue;
        }
        let waits = (rule.lease * 3 / 8).saturating_sub(sync).as_nanos() as u64;
        let by = Nanos::new(shared.clock.now().get().saturating_sub(waits));
        for listed in table.take_due(by, early) {
            groups[listed.group].push((rule.clone(), listed.key));
        }
    }
    groups
}

/// Has a client exchanged in the next round.
fn later(shared: &Shared, rule: &PreparedRule, key: &[u8]) {
    if let Some(table) = &rule.near {
        table.with(key, |client| client.list(Due::Soon, shared.clock.now()));
    }
}

/// Answers whether all were exchanged.
async fn exchange_group(shared: Arc<Shared>, clients: Vec<DueClient>) -> bool {
    let (mut tasks, mut whole) = (JoinSet::new(), true);
    for some in clients.chunks(AT_ONCE) {
        if tasks.len() >= UNDER_WAY {
            whole &= matches!(tasks.join_next().await, Some(Ok(true)));
        }
        let asked = some.iter().map(|(rule, key)| {
            shared.asked(rule.clone(), &Charge { rule: rule.id, key, cost: Cost::ZERO }, 0)
        });
        tasks.spawn(exchange_some(shared.clone(), asked.collect()));
    }
    while let Some(task) = tasks.join_next().await {
        whole &= matches!(task, Ok(true));
    }
    whole
}

/// Exchanges some clients of one group in one write. Those whose exchange fails are on the list again.
async fn exchange_some(shared: Arc<Shared>, all: Vec<AskedCharge>) -> bool {
    let link = all.first().and_then(|asked| shared.link(asked.group).ok());
    let Some(mut link) = link else {
        all.iter().for_each(|asked| later(&shared, &asked.rule, &asked.client));
        return false;
    };
    let (mut calls, mut commands) = (Vec::new(), Vec::new());
    for asked in all {
        let Some((call, keys, args)) = begin(&shared, &asked, Cost::ZERO, None) else { continue };
        let script = shared.scripts.near(asked.rule.kind);
        commands.push(Link::command("EVALSHA", &script.hash, &keys, &args));
        calls.push((asked, call));
    }
    let sent = shared.clock.now();
    let answers = timeout(PATIENCE, link.send_all(commands)).await.unwrap_or_default();
    let (mut answers, mut whole) = (answers.into_iter(), true);
    for (asked, call) in calls {
        let done = answers.next().map(|answer| finish(&shared, &asked, &call, answer, sent, None));
        whole &= settle(&shared, &mut link, &asked, done).await;
    }
    whole
}

/// Sees to a client that may not have been exchanged; answers whether nothing is left to do.
async fn settle(
    shared: &Arc<Shared>,
    link: &mut Link,
    asked: &AskedCharge,
    done: Option<Result<(), Unfinished>>,
) -> bool {
    match done {
        Some(Ok(())) => {
            count(&shared.counters.exchanged);
            return true;
        }
        Some(Err(Unfinished::Failed(Fault::Record(why)))) => {
            shared.failed(asked.group, &Fault::Record(why));
            shared.with_near(asked, None, |client, _| client.give_up());
            count(&shared.counters.not_handed_over);
            return true;
        }
        Some(Err(Unfinished::Failed(fault))) => shared.failed(asked.group, &fault),
        Some(Err(Unfinished::Foreign(at))) => {
            timeout(PATIENCE, convert(shared, link, asked, at)).await.ok();
        }
        // By itself it goes with the script's text: its shard may have lost that, or be led by a replica now.
        Some(Err(Unfinished::Unknown)) => {
            let call = exchange_one(shared, link.clone(), asked, Cost::ZERO, None);
            if let Ok(Ok(())) = timeout(PATIENCE, call).await {
                count(&shared.counters.exchanged);
                return true;
            }
        }
        None => {}
    }
    later(shared, &asked.rule, &asked.client);
    false
}
