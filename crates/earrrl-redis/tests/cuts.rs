//! Cuts connections at any request, answer or cancellation. Every client's count must equal its
//! number of allowed requests. `EARRRL_LONG=1` makes 10,000 cuts.
#![allow(clippy::unwrap_used, clippy::panic, clippy::print_stdout)]

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use earrrl::{Charge, Cost, Engine, Mode, RuleId};
use earrrl_redis::{Options, RedisEngine};
use tokio::task::JoinHandle;

use crate::support::cluster::Cluster;
use crate::support::proxy::Proxy;
use crate::support::{PATIENCE, Server, until};

const NODES: usize = 4;
const TASKS: usize = 4;
/// One of this many pieces is lost with its connection. The second number is for a Cluster, where
/// many pieces are exchanged at the start of each connection.
const CUT: u64 = 12;
const CUT_OF_CLUSTER: u64 = 80;
/// Rules whose quotas no client reaches, and the cost of a request under each. All except the last
/// are leaky.
const WIDE: [(&str, u64, u64); 4] = [
    ("gcra 1/3h burst=290000", 290_000, 1),
    ("fixed-window 9000000/3650d", 9_000_000, 1),
    ("sliding-log 9000/3650d", 9000, 2),
    ("sliding-counter 9000000/3650d", 9_000_000, 3),
];
/// A rule under which clients exceed their limit.
const NARROW: &str = "fixed-window 1/3650d";

fn cuts_wanted() -> u64 {
    if std::env::var_os("EARRRL_LONG").is_some() {
        10_000
    } else {
        300
    }
}

struct Rules {
    wide: Vec<RuleId>,
    narrow: RuleId,
}

fn prepare(engine: &RedisEngine) -> Rules {
    let wide = WIDE.iter().map(|(text, ..)| {
        engine
            .prepare(text.split(' ').next().unwrap(), &text.parse().unwrap())
            .unwrap()
    });
    let narrow = engine.prepare("narrow", &NARROW.parse().unwrap()).unwrap();
    Rules {
        wide: wide.collect(),
        narrow,
    }
}

async fn node(mut options: Options) -> (Arc<RedisEngine>, Arc<Rules>) {
    options.deadline = Duration::from_millis(100);
    // Nodes reconnect without a pause after a cut, so that there are many cuts.
    options.longest_backoff = Duration::from_millis(1);
    let engine = RedisEngine::connect(options, PATIENCE).await.unwrap();
    assert!(engine.ready(PATIENCE).await, "{:?}", engine.status());
    let rules = prepare(&engine);
    (Arc::new(engine), Arc::new(rules))
}

/// The number of allowed requests of every client. Each client number stands for `WIDE.len()`
/// clients, one for each rule.
struct Ledger(Vec<AtomicU64>);

fn key(rule: usize, number: usize) -> String {
    format!("client-{rule}-{number}")
}

/// Sends requests under one rule, under all wide rules, and under all rules; the latter are denied.
fn load(
    (engine, rules): &(Arc<RedisEngine>, Arc<Rules>),
    ledger: &Arc<Ledger>,
    stop: &Arc<AtomicBool>,
) -> Vec<JoinHandle<()>> {
    let tasks = (0..TASKS).map(|task| {
        let engine = engine.clone();
        let rules = rules.clone();
        let ledger = ledger.clone();
        let stop = stop.clone();
        tokio::spawn(async move {
            let clients = ledger.0.len() / WIDE.len();
            for turn in task.. {
                if stop.load(Ordering::SeqCst) {
                    return;
                }
                let number = turn * 7 % clients;
                let places = if turn % 3 == 0 {
                    vec![turn % WIDE.len()]
                } else {
                    (0..WIDE.len()).collect()
                };
                let mut keys: Vec<_> = places.iter().map(|rule| key(*rule, number)).collect();
                let mut asked: Vec<_> = places
                    .iter()
                    .map(|rule| (rules.wide[*rule], WIDE[*rule].2))
                    .collect();
                if turn % 3 == 2 {
                    keys.push("full".to_owned());
                    asked.push((rules.narrow, 2));
                }
                let charges = asked.iter().zip(&keys).map(|((rule, cost), key)| Charge {
                    rule: *rule,
                    key: key.as_bytes(),
                    cost: Cost::from_units(*cost),
                });
                let charges: Vec<_> = charges.collect();
                let decision = engine.decide(&charges, Mode::Check, None).await.unwrap();
                assert_eq!(decision.allowed, turn % 3 != 2, "{decision:?}");
                for rule in places.iter().filter(|_| decision.allowed) {
                    ledger.0[number * WIDE.len() + rule].fetch_add(1, Ordering::SeqCst);
                }
                tokio::time::sleep(Duration::from_millis(2)).await;
            }
        })
    });
    tasks.collect()
}

/// Cuts connections under load, waits until all is settled, and compares every client's count.
async fn every_count_is_right(
    options: impl Fn(usize) -> Options,
    direct: Options,
    proxies: &[Proxy],
    one_in: u64,
) {
    let clients = 20 * cuts_wanted().div_ceil(1000) as usize;
    let ledger = Arc::new(Ledger(
        (0..clients * WIDE.len())
            .map(|_| AtomicU64::new(0))
            .collect(),
    ));
    let stop = Arc::new(AtomicBool::new(false));
    let mut nodes = Vec::new();
    for number in 0..NODES {
        nodes.push(node(options(number)).await);
    }
    let tasks: Vec<_> = nodes
        .iter()
        .flat_map(|node| load(node, &ledger, &stop))
        .collect();
    proxies.iter().for_each(|proxy| proxy.cut_one_in(one_in));
    let cuts = || proxies.iter().map(Proxy::cuts).sum::<u64>();
    while cuts() < cuts_wanted() {
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    stop.store(true, Ordering::SeqCst);
    for task in tasks {
        task.await.unwrap();
    }
    // Lets cuts also hit cancellations and the reading of counts.
    tokio::time::sleep(Duration::from_secs(3)).await;
    proxies.iter().for_each(|proxy| proxy.cut_one_in(0));
    for (node, _) in &nodes {
        assert!(node.ready(PATIENCE).await);
        until("everything is settled", || {
            let status = node.status();
            status.owed == 0 && status.unsettled == 0
        })
        .await;
        assert_eq!(node.status().counts.not_handed_over, 0);
    }
    let (other, rules) = node(direct).await;
    let mut lost = Vec::new();
    let mut double = Vec::new();
    for number in 0..clients {
        for (rule, (text, quota, cost)) in WIDE.iter().enumerate() {
            let key = key(rule, number);
            let charge = Charge {
                rule: rules.wide[rule],
                key: key.as_bytes(),
                cost: Cost::ONE,
            };
            let left = other
                .decide(&[charge], Mode::Peek, None)
                .await
                .unwrap()
                .remaining;
            let sent = cost * ledger.0[number * WIDE.len() + rule].load(Ordering::SeqCst);
            match (quota - left).cmp(&sent) {
                std::cmp::Ordering::Less => lost.push((text, key, quota - left, sent)),
                std::cmp::Ordering::Equal => {}
                std::cmp::Ordering::Greater => double.push((text, key, quota - left, sent)),
            }
        }
    }
    let sent: u64 = ledger
        .0
        .iter()
        .map(|sent| sent.load(Ordering::SeqCst))
        .sum();
    println!(
        "{} cuts, {sent} charges, {} lost, {} double",
        cuts(),
        lost.len(),
        double.len()
    );
    assert!(
        lost.is_empty() && double.is_empty(),
        "lost {lost:?}, double {double:?}"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_one_server() {
    let server = Server::start(&[]).await;
    let mut proxies = Vec::new();
    for _ in 0..NODES {
        proxies.push(Proxy::start(server.port).await);
    }
    let options = |number: usize| Options::new(&proxies[number].url());
    every_count_is_right(options, Options::new(&server.url()), &proxies, CUT).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_a_cluster() {
    let cluster = Cluster::start().await;
    let proxies = cluster.behind_proxies().await;
    let urls: Vec<_> = proxies.iter().map(Proxy::url).collect();
    let options = |_| Options::cluster(urls.iter().map(String::as_str));
    every_count_is_right(options, options(0), &proxies, CUT_OF_CLUSTER).await;
}

/// A refund whose answer is lost is applied once, and its caller gets no error that asks for a
/// retry.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_refund_without_an_answer_is_made_once() {
    let server = Server::start(&[]).await;
    let proxy = Proxy::start(server.port).await;
    let (engine, rules) = node(Options::new(&proxy.url())).await;
    let (other, _) = node(Options::new(&server.url())).await;
    for (rule, (text, quota, cost)) in WIDE.iter().enumerate() {
        let key = key(rule, 0);
        let cost = Cost::from_units(*cost);
        let charge = Charge {
            rule: rules.wide[rule],
            key: key.as_bytes(),
            cost,
        };
        for _ in 0..3 {
            engine.decide(&[charge], Mode::Check, None).await.unwrap();
        }
        proxy.mute();
        engine.refund(&charge, None, None).await.unwrap();
        proxy.cut();
        assert!(engine.ready(PATIENCE).await);
        until("the refund is confirmed", || engine.status().owed == 0).await;
        assert!(
            engine.status().counts.take_backs_failed > rule as u64,
            "{text}"
        );
        let left = other
            .decide(&[charge], Mode::Peek, None)
            .await
            .unwrap()
            .remaining;
        assert_eq!(quota - left, 2 * WIDE[rule].2, "{text}");
    }
}
