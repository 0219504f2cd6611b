//! After an outage, the charges of a node are in Redis exactly once, under every algorithm.
#![allow(clippy::unwrap_used, clippy::panic)]

use std::io::{BufRead, BufReader, Write};
use std::net::TcpStream;
use std::time::Duration;

use earrrl::{Charge, Cost, Engine, Mode, Nanos, RuleId};
use earrrl_redis::{Consistency, EngineMode, Options, RedisEngine};

use crate::support::cluster::Cluster;
use crate::support::load::becomes;
use crate::support::proxy::Proxy;
use crate::support::{PATIENCE, Server, until};

/// Rules, and the number of requests of cost 1 that each admits from idle. They are so slow that a
/// test sees no refill.
pub(crate) const RULES: [(&str, u64); 6] = [
    ("recent-average 1/s half-life=1h", 5194),
    ("gcra 1/1h burst=300", 300),
    ("fixed-window 300/3650d", 300),
    ("sliding-log 300/3650d", 300),
    ("sliding-window 300/3650d", 300),
    ("sliding-counter 300/3650d", 300),
];

async fn ask(engine: &impl Engine, rule: RuleId, times: usize) {
    for _ in 0..times {
        let charge = Charge {
            rule,
            key: b"k",
            cost: Cost::ONE,
        };
        assert!(
            engine
                .decide(&[charge], earrrl::Mode::Check, None)
                .await
                .unwrap()
                .allowed
        );
    }
}

async fn used(engine: &RedisEngine, rule: RuleId, burst: u64) -> u64 {
    let charge = Charge {
        rule,
        key: b"k",
        cost: Cost::ONE,
    };
    burst
        - engine
            .decide(&[charge], earrrl::Mode::Peek, None)
            .await
            .unwrap()
            .remaining
}

async fn back(engine: &RedisEngine) {
    becomes(engine, EngineMode::Shared).await;
    until("counts are handed over", || engine.status().owed == 0).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn counts_of_two_nodes_and_of_redis_add_up() {
    let server = Server::start(&[]).await;
    let mut nodes = Vec::new();
    for _ in 0..2 {
        let mut options = Options::new(&server.url());
        options.deadline = Duration::from_millis(100);
        let node = RedisEngine::connect(options, PATIENCE).await.unwrap();
        assert!(node.ready(PATIENCE).await);
        nodes.push(node);
    }
    let rules = RULES.map(|(text, burst)| {
        let name = text.split(' ').next().unwrap();
        let id = |node: &RedisEngine| node.prepare(name, &text.parse().unwrap()).unwrap();
        (id(&nodes[0]), id(&nodes[1]), burst)
    });
    for (rule, ..) in rules {
        ask(&nodes[0], rule, 3).await;
    }
    server.signal("STOP");
    for (one, other, _) in rules {
        ask(&nodes[0], one, 4).await;
        ask(&nodes[1], other, 5).await;
    }
    becomes(&nodes[0], EngineMode::Alone).await;
    becomes(&nodes[1], EngineMode::Alone).await;
    server.signal("CONT");
    back(&nodes[0]).await;
    back(&nodes[1]).await;
    for ((rule, _, burst), (text, _)) in rules.into_iter().zip(RULES) {
        // Requests that were in flight when Redis stopped also count there, until the node detects
        // that they were counted twice and cancels one of each.
        until(&format!("{text} has all requests once"), || {
            let used = used(&nodes[0], rule, burst);
            tokio::task::block_in_place(|| tokio::runtime::Handle::current().block_on(used)) == 12
        })
        .await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_refund_of_what_was_counted_alone_is_never_handed_over() {
    let mut server = Server::start(&[]).await;
    let mut options = Options::new(&server.url());
    options.deadline = Duration::from_millis(100);
    let engine = RedisEngine::connect(options, PATIENCE).await.unwrap();
    assert!(engine.ready(PATIENCE).await);
    let rule = engine
        .prepare("window", &"fixed-window 300/3650d".parse().unwrap())
        .unwrap();
    server.kill();
    ask(&engine, rule, 5).await;
    let charge = Charge {
        rule,
        key: b"k",
        cost: Cost::ONE,
    };
    engine.refund(&charge, None, None).await.unwrap();
    let nobody = Charge {
        key: b"nobody",
        ..charge
    };
    let error = engine.refund(&nobody, None, None).await.unwrap_err();
    assert!(error.to_string().contains("unavailable"), "{error}");
    server.restart().await;
    back(&engine).await;
    assert_eq!(used(&engine, rule, 300).await, 4);
}

/// A client at half its limit goes to two nodes, one of which cannot reach Redis for 100 times the time that
/// fills its bucket. The charges that this node hands over afterwards leave the bucket empty, so the client
/// is allowed a second later. Without a bound, they would leave a debt of 47 seconds.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn charges_of_a_long_outage_leave_no_debt() {
    let server = Server::start(&[]).await;
    let proxy = Proxy::start(server.port).await;
    let limit = "gcra 6/s burst=12".parse().unwrap();
    let mut nodes = Vec::new();
    for url in [server.url(), proxy.url()] {
        let mut options = Options::new(&url);
        options.deadline = Duration::from_millis(100);
        let node = RedisEngine::connect(options, PATIENCE).await.unwrap();
        assert!(node.ready(PATIENCE).await);
        let rule = node
            .prepare_as("rule", &limit, 100, Consistency::Exact)
            .unwrap();
        nodes.push((node, rule));
    }
    let at = |turn: u64| Nanos::from_secs(1_800_000_000) + Duration::from_millis(333 * turn);
    let ask = async |place: usize, turn: u64| {
        let (node, rule) = &nodes[place];
        let charge = Charge {
            rule: *rule,
            key: b"k",
            cost: Cost::ONE,
        };
        let decision = node
            .decide(&[charge], Mode::Check, Some(at(turn)))
            .await
            .unwrap();
        assert!(decision.allowed, "{place}, {turn}: {decision:?}");
    };
    proxy.cut_one_in(1);
    for turn in 0..600 {
        ask(turn as usize % 2, turn).await;
    }
    proxy.cut_one_in(0);
    becomes(&nodes[1].0, EngineMode::Shared).await;
    for turn in 607..650 {
        ask(0, turn).await;
    }
}

/// Calls that Redis has executed without an answer count twice until their receipts are read. If another node has
/// emptied the bucket meanwhile, the second count was dropped, and taking it back must not admit anybody.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_second_count_that_was_dropped_gives_nothing_back() {
    let server = Server::start(&[]).await;
    let proxy = Proxy::start(server.port).await;
    let limit = "gcra 1/1h burst=40".parse().unwrap();
    let mut nodes = Vec::new();
    for url in [proxy.url(), server.url()] {
        let mut options = Options::new(&url);
        options.deadline = Duration::from_millis(100);
        let node = RedisEngine::connect(options, PATIENCE).await.unwrap();
        assert!(node.ready(PATIENCE).await);
        let rule = node.prepare("rule", &limit).unwrap();
        nodes.push((node, rule));
    }
    let admitted = async |place: usize, times| {
        let (node, rule) = &nodes[place];
        let charge = Charge {
            rule: *rule,
            key: b"k",
            cost: Cost::ONE,
        };
        let mut admitted = 0;
        for _ in 0..times {
            let decision = node.decide(&[charge], Mode::Check, None).await.unwrap();
            admitted += u64::from(decision.allowed);
        }
        admitted
    };
    let before = admitted(0, 30).await;
    proxy.mute();
    let alone = admitted(0, 10).await;
    let rest = admitted(1, 20).await;
    assert!(
        before == 30 && alone == 10 && rest <= 10,
        "{before}, {alone}, {rest}"
    );
    proxy.cut();
    back(&nodes[0].0).await;
    until("all is settled", || {
        let status = nodes[0].0.status();
        status.owed == 0 && status.unsettled == 0
    })
    .await;
    assert_eq!(used(&nodes[1].0, nodes[1].1, 40).await, 40);
}

/// A client that uses up its bucket asks a node that cannot reach Redis for longer than the record in Redis
/// lives. When the node hands over its charges, the bucket is as empty as the node knew it, although Redis
/// has nothing to add them to.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_outage_longer_than_a_record_lives_fills_no_bucket() {
    for consistency in [Consistency::Exact] {
        let server = Server::start(&[]).await;
        let proxy = Proxy::start(server.port).await;
        let mut options = Options::new(&proxy.url());
        options.deadline = Duration::from_millis(100);
        let node = RedisEngine::connect(options, PATIENCE).await.unwrap();
        assert!(node.ready(PATIENCE).await);
        let limit = "gcra 6/s burst=12".parse().unwrap();
        let rule = node.prepare_as("rule", &limit, 100, consistency).unwrap();
        let at = |turn: u64| Nanos::from_secs(1_800_000_000) + Duration::from_millis(100 * turn);
        let ask = async |turns: std::ops::Range<u64>| {
            let mut allowed = 0;
            for turn in turns {
                let charge = Charge {
                    rule,
                    key: b"k",
                    cost: Cost::ONE,
                };
                let decision = node
                    .decide(&[charge], Mode::Check, Some(at(turn)))
                    .await
                    .unwrap();
                allowed += u64::from(decision.allowed);
            }
            allowed
        };
        let before = ask(0..50).await;
        assert_eq!(before, 12 + 29, "{consistency:?}");
        proxy.cut_one_in(1);
        assert_eq!(ask(50..100).await, 30, "{consistency:?}");
        // The record is gone when the bucket would have been full without the charges of the outage.
        server.command::<String>(&["FLUSHALL"]).unwrap();
        proxy.cut_one_in(0);
        back(&node).await;
        let after = ask(100..120).await;
        assert!((11..=12).contains(&after), "{consistency:?}: {after}");
    }
}

/// Changes that apply to the records that are there, so slow that a test sees no refill.
const CHANGES: [(&str, &str); 5] = [
    ("gcra 1/3h burst=300", "gcra 1/3h burst=400"),
    ("fixed-window 300/3650d", "fixed-window 400/3650d"),
    ("sliding-log 300/3650d", "sliding-log 400/3650d"),
    ("sliding-window 300/3650d", "sliding-window 400/3650d"),
    ("sliding-counter 300/3650d", "sliding-counter 400/3650d"),
];

/// A rule is changed while its node is alone. Afterwards, Redis has all counts: also those of calls that
/// Redis executed without an answer.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_rule_that_changes_in_an_outage_keeps_its_counts() {
    for is_killed in [true, false] {
        let options = ["--appendonly", "yes", "--appendfsync", "always"];
        let mut server = Server::start(&options).await;
        let proxy = Proxy::start(server.port).await;
        let mut options = Options::new(&proxy.url());
        options.deadline = Duration::from_millis(100);
        let node = RedisEngine::connect(options, PATIENCE).await.unwrap();
        assert!(node.ready(PATIENCE).await);
        let prepare = |(old, _): (&str, &str), text: &str| {
            let name = old.split(' ').next().unwrap();
            node.prepare(name, &text.parse().unwrap()).unwrap()
        };
        for change in CHANGES {
            ask(&node, prepare(change, change.0), 2).await;
        }
        if is_killed {
            server.kill()
        } else {
            proxy.mute()
        }
        for change in CHANGES {
            ask(&node, prepare(change, change.0), 3).await;
            ask(&node, prepare(change, change.1), 4).await;
        }
        if is_killed {
            server.restart().await
        } else {
            proxy.cut()
        }
        becomes(&node, EngineMode::Shared).await;
        until("all is settled", || {
            let status = node.status();
            status.owed == 0 && status.unsettled == 0
        })
        .await;
        assert_eq!(node.status().counts.not_handed_over, 0);
        for change in CHANGES {
            let rule = prepare(change, change.1);
            assert_eq!(
                used(&node, rule, 400).await,
                9,
                "{change:?}, killed: {is_killed}"
            );
        }
    }
}

/// Charges under an algorithm that a rule has no longer go to the record of that algorithm, which
/// other nodes may still use.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn counts_of_an_earlier_algorithm_go_to_its_record() {
    let mut server = Server::start(&[]).await;
    let mut options = Options::new(&server.url());
    options.deadline = Duration::from_millis(100);
    let node = RedisEngine::connect(options, PATIENCE).await.unwrap();
    assert!(node.ready(PATIENCE).await);
    let [log, window] = ["sliding-log 300/3650d", "fixed-window 300/3650d"];
    let prepare = |text: &str| node.prepare("rule", &text.parse().unwrap()).unwrap();
    server.kill();
    ask(&node, prepare(log), 3).await;
    ask(&node, prepare(window), 4).await;
    server.restart().await;
    back(&node).await;
    assert_eq!(node.status().counts.not_handed_over, 0);
    assert_eq!(used(&node, prepare(window), 300).await, 4);
    assert_eq!(used(&node, prepare(log), 300).await, 3);
}

/// A connection that hears the commands of a server.
struct Monitor {
    port: u16,
    lines: BufReader<TcpStream>,
}

impl Monitor {
    fn start(port: u16) -> Self {
        let mut stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream.write_all(b"MONITOR\r\n").unwrap();
        Self {
            port,
            lines: BufReader::new(stream),
        }
    }

    /// Returns the deliveries that the server has got so far.
    fn deliveries(mut self) -> Vec<Vec<Vec<u8>>> {
        crate::support::command::<()>(
            &format!("redis://127.0.0.1:{}", self.port),
            &["ECHO", "the end"],
        )
        .ok();
        let mut found = Vec::new();
        loop {
            let mut line = Vec::new();
            self.lines.read_until(b'\n', &mut line).unwrap();
            let words = words(&line);
            if words.last().is_some_and(|word| word == b"the end") {
                return found;
            }
            if words.get(4).is_some_and(|key| key.ends_with(b":added")) {
                found.push(words);
            }
        }
    }
}

/// Returns the words of a command in a line of a monitor.
fn words(line: &[u8]) -> Vec<Vec<u8>> {
    let mut words = Vec::new();
    let mut word: Option<Vec<u8>> = None;
    let mut bytes = line.iter().copied();
    while let Some(byte) = bytes.next() {
        match (&mut word, byte) {
            (None, b'"') => word = Some(Vec::new()),
            (Some(_), b'"') => words.extend(word.take()),
            (Some(word), b'\\') => word.push(match bytes.next().unwrap() {
                b'n' => b'\n',
                b'r' => b'\r',
                b't' => b'\t',
                b'a' => 7,
                b'b' => 8,
                b'x' => {
                    let digits = [bytes.next().unwrap(), bytes.next().unwrap()];
                    u8::from_str_radix(std::str::from_utf8(&digits).unwrap(), 16).unwrap()
                }
                other => other,
            }),
            (Some(word), other) => word.push(other),
            (None, _) => {}
        }
    }
    words
}

/// Deliveries that come again, and in another order, change nothing. They are charges of two outages, a refund, and
/// units that a near rule gives back.
async fn deliveries_count_once(ports: &[u16], options: impl Fn() -> Options, lose: impl Fn()) {
    let monitors: Vec<_> = ports.iter().map(|port| Monitor::start(*port)).collect();
    let mut lost = options();
    lost.deadline = Duration::from_millis(100);
    let node = RedisEngine::connect(lost, PATIENCE).await.unwrap();
    assert!(node.ready(PATIENCE).await);
    let rules = RULES.map(|(text, burst)| {
        let name = text.split(' ').next().unwrap();
        (node.prepare(name, &text.parse().unwrap()).unwrap(), burst)
    });
    for _ in 0..2 {
        for (rule, _) in rules {
            ask(&node, rule, 2).await;
        }
        lose();
        for (rule, _) in rules {
            ask(&node, rule, 3).await;
        }
        assert!(node.ready(PATIENCE).await);
        until("counts are handed over", || {
            node.status().owed + node.status().unsettled == 0
        })
        .await;
    }
    for (rule, _) in rules {
        let charge = Charge {
            rule,
            key: b"k",
            cost: Cost::ONE,
        };
        node.refund(&charge, None, None).await.unwrap();
    }
    let window = "fixed-window 400/3650d".parse().unwrap();
    let near = node
        .prepare_as("near", &window, 100, Consistency::Near)
        .unwrap();
    ask(&node, near, 20).await;
    node.flush(PATIENCE).await;
    let near = node.prepare("near", &window).unwrap();
    let mut all = 0;
    for monitor in monitors {
        let port = monitor.port;
        let mut deliveries = monitor.deliveries();
        deliveries.reverse();
        let client = redis::Client::open(format!("redis://127.0.0.1:{port}")).unwrap();
        let mut connection = client.get_connection().unwrap();
        for words in deliveries.iter().cycle().take(2 * deliveries.len()) {
            let mut again = redis::Cmd::new();
            words.iter().for_each(|word| {
                again.arg(word);
            });
            again.query::<redis::Value>(&mut connection).unwrap();
            all += 1;
        }
    }
    assert!(
        all >= 2 * (3 * RULES.len() + 1),
        "{all} deliveries came again"
    );
    for ((rule, burst), (text, _)) in rules.into_iter().zip(RULES) {
        assert_eq!(used(&node, rule, burst).await, 9, "{text}");
    }
    assert_eq!(used(&node, near, 400).await, 20);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn deliveries_count_once_in_any_order() {
    let server = Server::start(&[]).await;
    let proxy = Proxy::start(server.port).await;
    let options = || Options::new(&proxy.url());
    deliveries_count_once(&[server.port], options, || proxy.swallow()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn deliveries_count_once_in_any_order_on_a_cluster() {
    let cluster = Cluster::start().await;
    let proxies = cluster.behind_proxies().await;
    let urls: Vec<_> = proxies.iter().map(Proxy::url).collect();
    let ports: Vec<_> = cluster.nodes.iter().map(|node| node.port).collect();
    let options = || Options::cluster(urls.iter().map(String::as_str));
    deliveries_count_once(&ports, options, || proxies.iter().for_each(Proxy::swallow)).await;
}
