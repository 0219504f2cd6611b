//! Tests decisions without a round trip: how much several nodes admit together, the final counts in
//! Redis, and the number of round trips. `EARRRL_LONG=1` runs more nodes for longer.
#![allow(clippy::unwrap_used, clippy::panic)]

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use earrrl::conformance::{Profile, run};
use earrrl::random::Random;
use earrrl::{
    Charge, Cost, Decision, Engine, EngineError, Limit, Mode, Nanos, Rule, RuleId, State,
};
use earrrl_redis::{Answer, Consistency, Options, RedisEngine, WhenGone, check_near};

use crate::support::proxy::Proxy;
use crate::support::{PATIENCE, Server, until};

const LONG_SYNC: Duration = Duration::from_secs(3600);

async fn node(url: &str, sync: Duration, nodes: u32) -> Arc<RedisEngine> {
    node_within(url, sync, nodes, Duration::from_secs(10)).await
}

async fn node_within(
    url: &str,
    sync: Duration,
    nodes: u32,
    deadline: Duration,
) -> Arc<RedisEngine> {
    let mut options = Options::new(url);
    options.deadline = deadline;
    options.linger = Duration::from_secs(3600);
    (options.sync, options.nodes) = (sync, Some(nodes));
    let node = RedisEngine::connect(options, PATIENCE).await.unwrap();
    assert!(node.ready(PATIENCE).await, "{:?}", node.status());
    Arc::new(node)
}

fn prepare(node: &RedisEngine, rule: &str) -> RuleId {
    node.prepare_as("rule", &rule.parse().unwrap(), 10_000, Consistency::Near)
        .unwrap()
}

async fn ask(node: &RedisEngine, rule: RuleId, key: &str, mode: Mode) -> Decision {
    let charge = Charge {
        rule,
        key: key.as_bytes(),
        cost: Cost::ONE,
    };
    node.decide(&[charge], mode, None).await.unwrap()
}

/// An engine in which every rule is near that can be.
struct Near(RedisEngine);

impl Engine for Near {
    type Decide = Answer<Decision>;
    type Done = Answer<()>;

    fn prepare(&self, name: &str, rule: &Rule) -> Result<RuleId, EngineError> {
        // A node has only a summary of logs and sub-windows, so its waits may be longer than exact
        // ones.
        let whole = !matches!(rule.limit(), Limit::SlidingLog(_) | Limit::SlidingWindow(_));
        let near = whole && check_near(rule).is_ok();
        let consistency = if near {
            Consistency::Near
        } else {
            Consistency::Exact
        };
        self.0.prepare_as(name, rule, 1000, consistency)
    }

    fn prepared(&self, name: &str) -> Option<Rule> {
        self.0.prepared(name)
    }

    fn decide(&self, charges: &[Charge<'_>], mode: Mode, now: Option<Nanos>) -> Self::Decide {
        self.0.decide(charges, mode, now)
    }

    fn refund(&self, charge: &Charge<'_>, at: Option<Nanos>, now: Option<Nanos>) -> Self::Done {
        self.0.refund(charge, at, now)
    }

    fn reset(&self, rule: RuleId, key: &[u8]) -> Self::Done {
        self.0.reset(rule, key)
    }
}

/// A single node returns the same answers as every other engine.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_node_alone_is_exact() {
    let server = Server::start(&[]).await;
    let scene = AtomicU32::new(0);
    let make = async || {
        let mut options = Options::new(&server.url());
        options.prefix = format!("scene{}-", scene.fetch_add(1, Ordering::Relaxed));
        options.linger = Duration::from_secs(3600);
        options.deadline = PATIENCE;
        options.when_gone = WhenGone::Deny;
        (options.sync, options.nodes) = (Duration::from_millis(5), Some(1));
        let engine = RedisEngine::connect(options, PATIENCE).await.unwrap();
        assert!(engine.ready(PATIENCE).await);
        Near(engine)
    };
    let profile = Profile {
        charges: false,
        ..Profile::REDIS
    };
    let compared = run(make, &profile)
        .await
        .unwrap_or_else(|error| panic!("{error}"));
    assert!(compared > 10_000);
}

/// The pattern of the requests of a run.
#[derive(Clone, Copy, Debug)]
enum Pattern {
    Steady,
    Bursty,
}

struct Run {
    nodes: usize,
    sync: Duration,
    rule: &'static str,
    /// The request rate as a multiple of the limit.
    load: f64,
    pattern: Pattern,
    requests: usize,
    /// The part of the requests that the first node gets; the other nodes share the rest equally.
    first: f64,
}

/// The requests that a run admitted, those of the exact model, and the round trips.
struct Outcome {
    near: u64,
    exact: u64,
    trips: f64,
}

/// Sends the requests of a client that moves between nodes, in virtual time, and judges the same
/// requests by the pure function.
async fn hop(server: &Server, run: &Run, seed: u64) -> Outcome {
    let mut nodes = Vec::new();
    for _ in 0..run.nodes {
        nodes.push(node(&server.url(), run.sync, run.nodes as u32).await);
    }
    let rule: Rule = run.rule.parse().unwrap();
    let rules: Vec<_> = nodes.iter().map(|node| prepare(node, run.rule)).collect();
    let mut random = Random::new(seed);
    let key = format!("client-{seed}");
    let gap = 1.0 / (run.load * rule.limit().per_second());
    let mut now = Nanos::from_secs(1_800_000_000);
    let (mut state, mut near, mut exact): (Option<State>, u64, u64) = (None, 0, 0);
    for number in 0..run.requests {
        let pause = match run.pattern {
            Pattern::Steady => gap,
            Pattern::Bursty if number % 40 == 0 => 40.0 * gap,
            Pattern::Bursty => 0.0,
        };
        now = now + Duration::from_micros((pause * 1e6 * (0.5 + random.unit())) as u64);
        let place = match random.unit() < run.first {
            true => 0,
            false => 1 + random.below(run.nodes as u64 - 1) as usize,
        };
        let charge = Charge {
            rule: rules[place],
            key: key.as_bytes(),
            cost: Cost::ONE,
        };
        let decision = nodes[place]
            .decide(&[charge], Mode::Check, Some(now))
            .await
            .unwrap();
        near += u64::from(decision.allowed);
        exact += u64::from(rule.limit().admit(&mut state, now, Cost::ONE, Mode::Check));
    }
    for node in &nodes {
        let status = node.status();
        assert_eq!((status.counts.alone, status.last_failure), (0, None));
    }
    let trips: u64 = nodes.iter().map(|node| node.status().counts.shared).sum();
    Outcome {
        near,
        exact,
        trips: trips as f64 / run.requests as f64,
    }
}

/// Rules that must admit no more near than in one place.
pub(crate) const LEAKY: [&str; 7] = [
    "gcra 10/s burst=20",
    "token-bucket 60 refill=1/s",
    "recent-average 5/s half-life=10s leaky",
    "fixed-window 60/1m",
    "sliding-log 60/1m",
    "sliding-window 60/1m",
    "sliding-counter 60/1m",
];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn leaky_rules_and_buckets_admit_no_more_than_they_would_in_one_place() {
    let server = Server::start(&[]).await;
    let long = std::env::var_os("EARRRL_LONG").is_some();
    let (sizes, requests) = if long {
        (&[2, 4, 8][..], 20_000)
    } else {
        (&[2, 4][..], 400)
    };
    let mut seed = 0;
    for rule in LEAKY {
        for &nodes in sizes {
            for load in [0.1, 0.5, 2.0, 100.0] {
                for pattern in [Pattern::Steady, Pattern::Bursty] {
                    seed += 1;
                    let sync = LONG_SYNC;
                    let first = 1.0 / nodes as f64;
                    let run = Run {
                        nodes,
                        sync,
                        rule,
                        load,
                        pattern,
                        requests,
                        first,
                    };
                    let Outcome { near, exact, trips } = hop(&server, &run, seed).await;
                    println!("{rule:40} {nodes} {load:5} {pattern:?} {near} {exact} {trips:.3}");
                    let most = exact as f64 * 1.01 + 1.0;
                    assert!(
                        near as f64 <= most,
                        "{rule}, {nodes} nodes, {load}: {near} {exact}"
                    );
                }
            }
        }
    }
}

/// Under strict rules, requests on other nodes are seen one `sync` late, as `docs/near.md` states.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn strict_rules_admit_what_is_not_seen_yet_at_most() {
    let server = Server::start(&[]).await;
    let long = std::env::var_os("EARRRL_LONG").is_some();
    let (sizes, requests) = if long {
        (&[2, 4, 8][..], 20_000)
    } else {
        (&[2, 4][..], 1000)
    };
    let mut seed = 1000;
    for rule in [
        "recent-average 5/s half-life=10s",
        "fixed-window 60/1m strict",
        "sliding-counter 60/1m strict",
    ] {
        let rate = rule.parse::<Rule>().unwrap().limit().per_second();
        for &nodes in sizes {
            for sync in [Duration::from_millis(100), Duration::from_secs(1)] {
                for load in [0.5, 2.0, 10.0, 100.0] {
                    seed += 1;
                    // In virtual time a node sends its charges only during a request, so requests
                    // must be frequent.
                    if load * rate * sync.as_secs_f64() < 2.0 * nodes as f64 {
                        continue;
                    }
                    let pattern = Pattern::Steady;
                    let first = 1.0 / nodes as f64;
                    let run = Run {
                        nodes,
                        sync,
                        rule,
                        load,
                        pattern,
                        requests,
                        first,
                    };
                    let Outcome { near, exact, trips } = hop(&server, &run, seed).await;
                    println!("{rule:40} {nodes} {load:5} {sync:?} {near} {exact} {trips:.3}");
                    let others = (nodes - 1) as f64 / nodes as f64;
                    let unseen = load * rate * sync.as_secs_f64() * others;
                    let most = exact as f64 * 1.01 + unseen + 1.0;
                    assert!(
                        near as f64 <= most,
                        "{rule}, {nodes} nodes, {load}: {near} {exact}"
                    );
                }
            }
        }
    }
}

/// For clients far above the limit and below half of it, most decisions need no round trip, even if
/// exchanges between nodes are counted.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn most_decisions_need_no_trip() {
    let server = Server::start(&[]).await;
    let sync = Duration::from_secs(5);
    for (seed, (rule, load, most)) in (2000..).zip([
        ("recent-average 10/s half-life=1m", 100.0, 0.02),
        ("gcra 10/s burst=100", 100.0, 0.02),
        ("recent-average 10/s half-life=1m", 0.45, 0.35),
        ("recent-average 10/s half-life=1m leaky", 0.2, 0.35),
        ("gcra 10/s burst=100", 0.45, 0.35),
        ("fixed-window 600/1m", 0.45, 0.35),
        ("sliding-counter 600/1m", 0.45, 0.35),
    ]) {
        let nodes = 4;
        let pattern = Pattern::Steady;
        let requests = 10_000;
        let first = 0.25;
        let run = Run {
            nodes,
            sync,
            rule,
            load,
            pattern,
            requests,
            first,
        };
        let Outcome { near, exact, trips } = hop(&server, &run, seed).await;
        println!("{rule:40} {load:5} {near} {exact} {trips:.4}");
        assert!(
            trips <= most,
            "{rule}, {load} times the limit: {trips} trips a decision"
        );
        assert!(near as f64 <= exact as f64 * 1.01 + 1.0, "{near} {exact}");
    }
}

/// A node that gets nearly all requests of a client also gets nearly all of the limit, and a strict
/// rule does not ban a client for attempts that were denied only for want of a share.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn skew_bans_nobody() {
    let server = Server::start(&[]).await;
    let mut low = Vec::new();
    for (seed, (rule, load, nodes)) in (3000..).zip([
        ("recent-average 1/s half-life=10s", 1.0, 2),
        ("recent-average 1/s half-life=10s", 1.0, 4),
        ("recent-average 1/s half-life=10s", 0.8, 8),
        ("fixed-window 60/1m strict", 0.5, 2),
        ("fixed-window 60/1m strict", 0.5, 4),
        ("fixed-window 60/1m strict", 0.9, 4),
        ("sliding-counter 60/1m strict", 0.5, 8),
        ("gcra 1/s burst=60", 0.9, 4),
        ("gcra 1/s burst=60", 3.0, 4),
        ("recent-average 1/s half-life=10s leaky", 3.0, 4),
    ]) {
        let sync = Duration::from_secs(1);
        let pattern = Pattern::Steady;
        let requests = 400;
        let run = Run {
            nodes,
            sync,
            rule,
            load,
            pattern,
            requests,
            first: 0.9,
        };
        let Outcome { near, exact, trips } = hop(&server, &run, seed).await;
        println!("{rule:40} {nodes} {load:5} {near} {exact} {trips:.3}");
        // At exactly its limit, a client under a strict rule is over it now and then in one place.
        let most = if load == 1.0 {
            requests as f64
        } else {
            exact as f64 * 1.02 + 1.0
        };
        if (near as f64) < exact as f64 * 0.9 || near as f64 > most {
            low.push((rule, nodes, load, near, exact));
        }
    }
    assert!(low.is_empty(), "admitted, and in one place: {low:#?}");
}

/// Nodes do not claim all of a small burst for a client that they have just met: a node that knows
/// nothing of the client finds a unit for its first requests.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn new_clients_with_small_bursts_pass() {
    const CLIENTS: usize = 30;
    let mut random = Random::new(4000);
    for (limit, count) in [("gcra 2/s burst=6", 4), ("gcra 6/s burst=12", 8)] {
        let server = Server::start(&[]).await;
        let mut nodes = Vec::new();
        for _ in 0..count {
            nodes.push(node(&server.url(), Duration::from_millis(100), count as u32).await);
        }
        let ids: Vec<RuleId> = nodes.iter().map(|node| prepare(node, limit)).collect();
        let rule: Rule = limit.parse().unwrap();
        let chance = 0.045 * rule.limit().per_second();
        let mut states: [Option<State>; CLIENTS] = Default::default();
        let mut near = 0;
        let mut exact = 0;
        for round in 0..100 {
            let now = Nanos::from_secs(1_800_000_000) + Duration::from_millis(100 * round);
            for node in &nodes {
                node.exchange_due(now).await;
            }
            for (client, state) in states.iter_mut().enumerate() {
                if random.unit() >= chance {
                    continue;
                }
                let key = format!("client-{client}");
                let place = random.below(count) as usize;
                let charge = Charge {
                    rule: ids[place],
                    key: key.as_bytes(),
                    cost: Cost::ONE,
                };
                let decision = nodes[place].decide(&[charge], Mode::Check, Some(now)).await;
                let decision = decision.unwrap();
                near += u64::from(decision.allowed);
                exact += u64::from(rule.limit().admit(state, now, Cost::ONE, Mode::Check));
            }
        }
        println!("{limit}, {count} nodes: {near} of {exact} allowed");
        assert!(
            near >= exact - exact / 100,
            "{limit}: {near} of {exact} allowed"
        );
    }
}

/// Nodes that start together announce themselves before they claim quota, however long `sync` is.
/// Clients well below the limit that move between them are never denied.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_long_sync_starves_nobody_after_a_start() {
    const NODES: usize = 4;
    for rule in [
        "fixed-window 240/1h",
        "gcra 1/1m burst=240",
        "recent-average 40/1h half-life=4h",
    ] {
        let server = Server::start(&[]).await;
        let mut nodes = Vec::new();
        for _ in 0..NODES {
            let mut options = Options::new(&server.url());
            (options.deadline, options.sync) = (Duration::from_secs(10), Duration::from_secs(15));
            let node = RedisEngine::connect(options, PATIENCE).await.unwrap();
            assert!(node.ready(PATIENCE).await, "{:?}", node.status());
            let id = prepare(&node, rule);
            nodes.push((node, id));
        }
        let mut random = Random::new(7);
        let mut denied = [0; 10];
        let mut poll = async |from: usize, to: usize| {
            for _ in 0..30 {
                for (client, denied) in denied.iter_mut().enumerate() {
                    let (node, id) = &nodes[from + random.below((to - from) as u64) as usize];
                    let allowed = ask(node, *id, &format!("c{client}"), Mode::Check)
                        .await
                        .allowed;
                    *denied += u32::from(!allowed);
                }
            }
        };
        // First two nodes exchange, which do not know the others yet, and then all.
        poll(0, 2).await;
        for (node, _) in &nodes {
            until("every node knows the others", || {
                node.status().nodes == NODES as u32
            })
            .await;
        }
        poll(0, NODES).await;
        assert_eq!(denied, [0; 10], "{rule}: of 60 requests each");
    }
}

/// Whatever happens to the connection, every charge must be counted in Redis exactly once.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_sent_again_counts_once() {
    let server = Server::start(&[]).await;
    let proxy = Proxy::start(server.port).await;
    let mut nodes = Vec::new();
    for _ in 0..2 {
        let sync = Duration::from_millis(5);
        let deadline = Duration::from_millis(200);
        nodes.push(node_within(&proxy.url(), sync, 2, deadline).await);
    }
    let rules: Vec<_> = nodes
        .iter()
        .map(|node| prepare(node, "fixed-window 9000000/3650d"))
        .collect();
    let mut sent = [0; 5];
    for turn in 0..2000 {
        let place = turn % 2;
        let client = turn % 5;
        let decision = ask(
            &nodes[place],
            rules[place],
            &format!("c{client}"),
            Mode::Check,
        )
        .await;
        assert!(decision.allowed);
        sent[client] += 1;
        match turn % 400 {
            100 => proxy.swallow(),
            200 => drop(server.command::<i64>(&["CLIENT", "KILL", "TYPE", "normal"])),
            300 => drop(server.command::<String>(&["SCRIPT", "FLUSH"])),
            _ => {}
        }
        if turn % 50 == 0 {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }
    for node in &nodes {
        assert!(node.ready(PATIENCE).await);
        until("everything is sent", || node.status().unsent == 0).await;
    }
    let other = node(&server.url(), LONG_SYNC, 3).await;
    let rule = prepare(&other, "fixed-window 9000000/3650d");
    for (client, sent) in sent.into_iter().enumerate() {
        let decision = ask(&other, rule, &format!("c{client}"), Mode::Peek).await;
        assert_eq!(9_000_000 - decision.remaining, sent, "client {client}");
    }
}

/// Two nodes that were separated end with the state of one node that had all requests.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn states_are_those_of_one_node_once_a_partition_heals() {
    let mut server = Server::start(&["--appendonly", "yes", "--appendfsync", "always"]).await;
    let rule: Rule = "recent-average 1/s half-life=1h".parse().unwrap();
    let mut nodes = Vec::new();
    for _ in 0..2 {
        nodes.push(node(&server.url(), Duration::from_millis(20), 2).await);
    }
    let rules: Vec<_> = nodes
        .iter()
        .map(|node| prepare(node, "recent-average 1/s half-life=1h"))
        .collect();
    let mut state = None;
    let mut send = async |times: usize| {
        for turn in 0..times {
            let decision = ask(&nodes[turn % 2], rules[turn % 2], "k", Mode::Check).await;
            rule.limit()
                .admit(&mut state, decision.at, Cost::ONE, Mode::Charge);
        }
    };
    send(100).await;
    server.kill();
    send(200).await;
    server.restart().await;
    send(10).await;
    for node in &nodes {
        assert!(node.ready(PATIENCE).await);
        until("everything is sent", || node.status().unsent == 0).await;
    }
    let other = node(&server.url(), LONG_SYNC, 3).await;
    let found = ask(
        &other,
        prepare(&other, "recent-average 1/s half-life=1h"),
        "k",
        Mode::Peek,
    )
    .await;
    let (_, expected) = rule.limit().decide(state, found.at, Cost::ONE, Mode::Peek);
    let found = found.rate.unwrap();
    let expected = expected.rate.unwrap();
    assert!((found / expected - 1.0).abs() < 1e-6, "{found} {expected}");
}

/// A client over its limit is denied without a round trip, based on the requests that all nodes
/// have seen.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_is_far_over_makes_no_trips() {
    let server = Server::start(&[]).await;
    let mut nodes = Vec::new();
    for _ in 0..2 {
        nodes.push(node(&server.url(), Duration::from_millis(50), 2).await);
    }
    let rules: Vec<_> = nodes
        .iter()
        .map(|node| prepare(node, "recent-average 0.01/s half-life=1h"))
        .collect();
    let mut allowed = 0;
    for turn in 0..4000 {
        let decision = ask(&nodes[turn % 2], rules[turn % 2], "k", Mode::Check).await;
        allowed += usize::from(decision.allowed);
    }
    // 52 requests fit, and one more is admitted that exceeds the limit.
    assert!((40..=53).contains(&allowed), "{allowed}");
    let trips: u64 = nodes.iter().map(|node| node.status().counts.shared).sum();
    assert!(trips < 80, "{trips}");
    for (node, rule) in nodes.iter().zip(&rules) {
        until("both know of all requests", || {
            let decision = ask(node, *rule, "k", Mode::Peek);
            let peeked = tokio::task::block_in_place(|| {
                tokio::runtime::Handle::current().block_on(decision)
            });
            // The count is less than the number of requests by what has decayed in a minute.
            let count = peeked.rate.unwrap() * 3600.0 / std::f64::consts::LN_2;
            (3950.0..=4000.1).contains(&count) && node.status().unsent == 0
        })
        .await;
    }
}

/// A node sees its own resets and refunds at once.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn refunds_and_resets() {
    let server = Server::start(&[]).await;
    let node = node(&server.url(), LONG_SYNC, 1).await;
    let rule = prepare(&node, "gcra 1/1h burst=10");
    let charge = Charge {
        rule,
        key: b"k",
        cost: Cost::ONE,
    };
    for left in [9, 8, 7] {
        assert_eq!(ask(&node, rule, "k", Mode::Check).await.remaining, left);
    }
    node.refund(&charge, None, None).await.unwrap();
    assert_eq!(ask(&node, rule, "k", Mode::Peek).await.remaining, 8);
    node.reset(rule, b"k").await.unwrap();
    assert_eq!(ask(&node, rule, "k", Mode::Peek).await.remaining, 10);
    let keys: i64 = server.command(&["EXISTS", "earrrl1:{k}:rule:b"]).unwrap();
    assert_eq!(keys, 0);
}

/// Under a rule whose counts cannot be added, a node that has dropped all clients must not find
/// their old counts again.
#[tokio::test]
async fn a_rule_that_forgets_its_clients_begins_anew() {
    let server = Server::start(&[]).await;
    let node = node(&server.url(), LONG_SYNC, 1).await;
    for _ in 0..2 {
        let rule = prepare(&node, "recent-average 1/s half-life=1h");
        for client in 0..2000 {
            let key = format!("k{client}");
            assert!(ask(&node, rule, &key, Mode::Check).await.allowed);
        }
        let exponential = "exponential 100/1m".parse().unwrap();
        node.prepare_as("rule", &exponential, 10_000, Consistency::Exact)
            .unwrap();
        assert_eq!(node.status().unsent, 0);
    }
}

/// A reload also applies the new limit to clients with unsent charges, and changes between near and
/// exact decisions; the counts continue.
#[tokio::test]
async fn a_rule_changes_its_limit_and_who_decides() {
    let server = Server::start(&[]).await;
    let node = node(&server.url(), LONG_SYNC, 1).await;
    let counts = || {
        let counts = node.status().counts;
        (counts.shared, counts.near)
    };
    let rule = prepare(&node, "recent-average 1/s half-life=1h");
    for _ in 0..4 {
        assert!(ask(&node, rule, "k", Mode::Check).await.allowed);
    }
    assert_eq!(counts(), (1, 3));
    assert_eq!(prepare(&node, "recent-average 1/1h half-life=1h"), rule);
    assert!(
        !ask(&node, rule, "k", Mode::Check).await.allowed,
        "4 of at most 1.4"
    );
    let exact = "recent-average 1/1h half-life=1h".parse().unwrap();
    node.prepare_as("rule", &exact, 10_000, Consistency::Exact)
        .unwrap();
    let before = counts();
    assert!(
        !ask(&node, rule, "k", Mode::Check).await.allowed,
        "what was not sent goes first"
    );
    assert_eq!(counts(), (before.0 + 1, before.1));
    assert_eq!(node.status().unsent, 0);
    prepare(&node, "recent-average 1/s half-life=1h");
    for _ in 0..4 {
        assert!(ask(&node, rule, "k", Mode::Check).await.allowed);
    }
    assert_eq!(counts(), (before.0 + 2, before.1 + 3));
}

/// A node whose callers give the time exchanges clients when it is told to.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn clients_are_exchanged_at_given_times() {
    let server = Server::start(&[]).await;
    let at = |secs: u64| Nanos::from_secs(1_800_000_000 + secs);
    let mut left = Vec::new();
    for (first, times) in [(0, 5), (60, 1)] {
        let node = node(&server.url(), Duration::from_secs(1), 2).await;
        let rule = prepare(&node, "gcra 1/1h burst=20");
        let charge = Charge {
            rule,
            key: b"k",
            cost: Cost::ONE,
        };
        for second in first..first + times {
            let decision = node
                .decide(&[charge], Mode::Check, Some(at(second)))
                .await
                .unwrap();
            left.push(decision.remaining);
        }
        assert_eq!(node.status().unsent, 1);
        node.exchange_due(at(first)).await;
        node.exchange_due(at(first + 50)).await;
        assert_eq!(node.status().unsent, 0);
    }
    assert_eq!(left, [19, 18, 17, 16, 15, 14]);
}

/// Two old and two new servers run while a rule changes. They convert its records back and forth, and
/// under a near rule they claim quota in different units. Clients below the limit move between all four
/// servers; each client is counted separately.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn polite_clients_pass_while_a_rule_changes() {
    let rules = [
        (
            "recent-average 1/s half-life=60s",
            "recent-average 1/s half-life=10s",
            0.4,
        ),
        (
            "recent-average 1/s half-life=10s",
            "recent-average 1/s half-life=60s",
            0.4,
        ),
        ("gcra 1/s burst=10", "gcra 5/s burst=10", 0.4),
        ("gcra 5/s burst=10", "gcra 1/s burst=10", 0.4),
        ("gcra 1/s burst=10", "gcra 1/s burst=40", 0.4),
        ("fixed-window 60/1m", "fixed-window 300/1m", 0.4),
        ("sliding-counter 60/1m", "sliding-counter 60/30s", 0.4),
        ("fixed-window 60/10s", "fixed-window 42/7s", 2.5),
        ("sliding-counter 60/10s", "sliding-counter 360/60s", 2.5),
        ("sliding-window 60/10s", "sliding-window 42/7s", 2.5),
        (
            "sliding-window 60/11s sub-windows=31",
            "sliding-window 60/13s sub-windows=56",
            2.0,
        ),
    ];
    let mut worst = Vec::new();
    let each = rules.iter().flat_map(|rule| {
        [Consistency::Exact, Consistency::Near].map(|consistency| (consistency, *rule))
    });
    for (consistency, (old, new, rate)) in each {
        let server = Server::start(&[]).await;
        let mut nodes = Vec::new();
        for rule in [old, old, new, new] {
            let node = node(&server.url(), Duration::from_secs(1), 4).await;
            let rule = node
                .prepare_as("rule", &rule.parse().unwrap(), 100, consistency)
                .unwrap();
            nodes.push((node, rule));
        }
        let mut random = Random::new(7);
        let mut now = Nanos::from_secs(1_800_000_000);
        let mut denied = [0; 4];
        for _ in 0..100 {
            for (client, denied) in denied.iter_mut().enumerate() {
                let (node, rule) = random.pick(&nodes);
                let key = format!("c{client}");
                let charge = Charge {
                    rule: *rule,
                    key: key.as_bytes(),
                    cost: Cost::ONE,
                };
                let decision = node
                    .decide(&[charge], Mode::Check, Some(now))
                    .await
                    .unwrap();
                *denied += u32::from(!decision.allowed);
            }
            now = now + Duration::from_secs_f64(1.0 / rate);
        }
        for (node, _) in &nodes {
            let status = node.status();
            assert_eq!(
                (status.counts.alone, status.last_failure),
                (0, None),
                "{old}, {new}"
            );
        }
        worst.push((consistency, old, new, denied));
    }
    let good = worst
        .iter()
        .all(|(.., denied)| denied.iter().all(|denied| *denied <= 1));
    assert!(good, "of 100 requests each: {worst:#?}");
}

/// One of two servers gets a lower rate by a reload, and a client's requests go to the other server. The
/// client's bucket is as full at the reloaded server as the other server has left it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_reloads_first_finds_full_buckets_full() {
    for consistency in [Consistency::Exact, Consistency::Near] {
        for (old, new) in [
            ("gcra 9/s burst=12", "gcra 6/s burst=12"),
            ("token-bucket 20 refill=8/s", "token-bucket 20 refill=5/s"),
            ("fixed-window 60/10s", "fixed-window 60/11s"),
        ] {
            let server = Server::start(&[]).await;
            let sync = Duration::from_millis(100);
            let nodes = [
                node(&server.url(), sync, 2).await,
                node(&server.url(), sync, 2).await,
            ];
            let prepare = |node: &RedisEngine, limit: &str| {
                node.prepare_as("rule", &limit.parse().unwrap(), 100, consistency)
                    .unwrap()
            };
            let rules = nodes.each_ref().map(|node| prepare(node, old));
            let ask = async |place: usize, key: &str, now| {
                nodes[0].exchange_due(now).await;
                let charge = Charge {
                    rule: rules[place],
                    key: key.as_bytes(),
                    cost: Cost::ONE,
                };
                nodes[place]
                    .decide(&[charge], Mode::Check, Some(now))
                    .await
                    .unwrap()
            };
            let start = Nanos::from_secs(1_800_000_000);
            assert!(ask(1, "other", start).await.allowed);
            prepare(&nodes[1], new);
            for turn in 0..60 {
                let now = start + Duration::from_millis(370 * turn);
                assert!(ask(0, "polite", now).await.allowed);
            }
            let now = start + Duration::from_millis(370 * 60);
            let decision = ask(1, "polite", now).await;
            assert!(
                decision.allowed,
                "{consistency:?}, {old} to {new}: {decision:?}"
            );
            assert!(
                decision.remaining >= 5,
                "{consistency:?}, {old} to {new}: {decision:?}"
            );
        }
    }
}

/// Three processes run one after another, two minutes apart by Redis's clock. Each has a near and an
/// exact rule.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_named_node_uses_its_keys_again() {
    for (name, claims, receipts) in [(Some("edge-1"), 1, 1), (None, 3, 3)] {
        let server = Server::start_with_a_clock(&[]).await;
        for behind in [360, 240, 120] {
            server.put_behind(Duration::from_secs(behind));
            let mut options = Options::new(&server.url());
            options.deadline = PATIENCE;
            options.node = name.map(str::to_owned);
            let node = RedisEngine::connect(options, PATIENCE).await.unwrap();
            assert!(node.ready(PATIENCE).await, "{:?}", node.status());
            let limit = "recent-average 100/h half-life=1h".parse().unwrap();
            let near = prepare(&node, "recent-average 100/h half-life=1h");
            let exact = node.prepare("exact", &limit).unwrap();
            for rule in [near, exact] {
                assert!(ask(&node, rule, "k", Mode::Check).await.allowed);
            }
            node.flush(PATIENCE).await;
        }
        let bytes: i64 = server
            .command(&["STRLEN", "earrrl1:{k}:rule:a:near"])
            .unwrap();
        let keys: Vec<String> = server.command(&["KEYS", "earrrl1:receipts:*"]).unwrap();
        assert_eq!((bytes, keys.len()), (32 * claims, receipts), "{name:?}");
    }
}

/// A leaky limit of each algorithm. A strict one would admit more than in one place, since it counts
/// denials, and only half the servers have it.
const ALGORITHMS: [&str; 7] = [
    "gcra 1/s burst=10",
    "recent-average 1/s half-life=10s leaky",
    "exponential 60/1m leaky",
    "fixed-window 60/1m",
    "sliding-counter 60/1m",
    "sliding-log 60/1m",
    "sliding-window 60/1m sub-windows=6",
];

/// Changes of one parameter of each algorithm.
const PARAMETERS: [(&str, &str); 9] = [
    ("gcra 1/s burst=10", "gcra 5/s burst=10"),
    (
        "recent-average 1/s half-life=10s leaky",
        "recent-average 1/s half-life=60s leaky",
    ),
    ("exponential 60/1m leaky", "exponential 60/30s leaky"),
    ("fixed-window 60/1m", "fixed-window 60/30s"),
    ("fixed-window 60/10s", "fixed-window 42/7s"),
    ("sliding-counter 60/1m", "sliding-counter 60/30s"),
    ("sliding-counter 60/1m", "sliding-counter 10/10s"),
    ("sliding-log 60/1m", "sliding-log 60/30s"),
    (
        "sliding-window 60/1m sub-windows=6",
        "sliding-window 60/1m sub-windows=10",
    ),
];

/// Returns the requests of a client that one engine allows under a limit.
async fn allowed_in_one_place(limit: &str, times: &[Nanos]) -> u32 {
    let memory = earrrl::MemoryEngine::new(10).unwrap();
    let rule = memory.prepare("rule", &limit.parse().unwrap()).unwrap();
    let charge = Charge {
        rule,
        key: b"abuser",
        cost: Cost::ONE,
    };
    let mut allowed = 0;
    for now in times {
        let decision = memory
            .decide(&[charge], Mode::Check, Some(*now))
            .await
            .unwrap();
        allowed += u32::from(decision.allowed);
    }
    allowed
}

/// Returns how many requests of a client far above both limits are allowed, and how many of a polite
/// one are denied, by two old and two new servers.
async fn while_a_rule_changes(
    (old, new): (&str, &str),
    consistency: Consistency,
    times: &[Nanos],
) -> (u32, u32) {
    let server = Server::start(&[]).await;
    let mut nodes = Vec::new();
    for limit in [old, old, new, new] {
        let node = node(&server.url(), Duration::from_secs(1), 4).await;
        let rule = node
            .prepare_as("rule", &limit.parse().unwrap(), 100, consistency)
            .unwrap();
        nodes.push((node, rule));
    }
    let mut random = Random::new(7);
    let mut allowed = 0;
    let mut denied = 0;
    for (turn, now) in times.iter().enumerate() {
        let polite = (turn % 25 == 0).then_some("polite");
        for key in [Some("abuser"), polite].into_iter().flatten() {
            let (node, rule) = random.pick(&nodes);
            let charge = Charge {
                rule: *rule,
                key: key.as_bytes(),
                cost: Cost::ONE,
            };
            let decision = node
                .decide(&[charge], Mode::Check, Some(*now))
                .await
                .unwrap();
            allowed += u32::from(key == "abuser" && decision.allowed);
            denied += u32::from(key == "polite" && !decision.allowed);
        }
    }
    (allowed, denied)
}

/// Two old and two new servers run while a rule changes its algorithm or a parameter, in either
/// direction. A client far above both limits is admitted at most what both admit together, and a polite
/// one always.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn abusers_get_at_most_both_limits_while_a_rule_changes() {
    let start = Nanos::from_secs(1_800_000_000);
    let times: Vec<_> = (0..600)
        .map(|turn| start + Duration::from_millis(100 * turn))
        .collect();
    let algorithms = ALGORITHMS
        .iter()
        .flat_map(|old| ALGORITHMS.map(|new| (*old, new)));
    let parameters = PARAMETERS
        .into_iter()
        .flat_map(|(old, new)| [(old, new), (new, old)]);
    let mut wrong = Vec::new();
    for (old, new) in algorithms.filter(|(old, new)| old != new).chain(parameters) {
        let most =
            allowed_in_one_place(old, &times).await + allowed_in_one_place(new, &times).await;
        for consistency in [Consistency::Near, Consistency::Exact] {
            let is_near = consistency == Consistency::Near;
            if is_near
                && [old, new]
                    .iter()
                    .any(|limit| check_near(&limit.parse().unwrap()).is_err())
            {
                continue;
            }
            let (allowed, denied) = while_a_rule_changes((old, new), consistency, &times).await;
            if allowed > most || denied > 0 {
                wrong.push(format!(
                    "{consistency:?} {old}, {new}: {allowed} of {most}, {denied} denied"
                ));
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

/// Old and new servers ask about one client at the same time, so that each converts its record back
/// before another has counted. No request is decided without Redis for that reason.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn servers_that_convert_a_record_in_turns_all_count_in_it() {
    let server = Server::start(&[]).await;
    let old = "gcra 1/s burst=10";
    let new = "gcra 5/s burst=10";
    let mut nodes = Vec::new();
    for limit in [old, new].repeat(6) {
        let node = node(&server.url(), Duration::from_secs(1), 12).await;
        let limit = limit.parse().unwrap();
        let rule = node
            .prepare_as("rule", &limit, 100, Consistency::Exact)
            .unwrap();
        nodes.push((node, rule));
    }
    let start = Nanos::from_secs(1_800_000_000);
    let times: Vec<_> = (0..100)
        .map(|turn| start + Duration::from_millis(100 * turn))
        .collect();
    let mut allowed = 0;
    for now in &times {
        let requests = nodes.iter().cycle().take(48).map(|(node, rule)| {
            let node = node.clone();
            let rule = *rule;
            let now = *now;
            tokio::spawn(async move {
                let charge = Charge {
                    rule,
                    key: b"abuser",
                    cost: Cost::ONE,
                };
                node.decide(&[charge], Mode::Check, Some(now))
                    .await
                    .unwrap()
                    .allowed
            })
        });
        for request in requests.collect::<Vec<_>>() {
            allowed += u32::from(request.await.unwrap());
        }
    }
    let most = allowed_in_one_place(old, &times).await + allowed_in_one_place(new, &times).await;
    let alone: u64 = nodes
        .iter()
        .map(|(node, _)| node.status().counts.alone)
        .sum();
    assert_eq!(alone, 0, "{:?}", nodes[0].0.status().last_failure);
    assert!(allowed <= most, "{allowed} of {most}");
}
