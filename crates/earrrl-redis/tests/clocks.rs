//! Tests in which the clocks of Redis and of servers are set back and forward, and the clocks of a
//! Cluster's shards differ.
#![allow(clippy::unwrap_used, clippy::panic)]

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use earrrl::{Charge, Clock, Cost, Decision, Engine, Mode, Nanos, Rule, RuleId, SystemClock, Wait};
use earrrl_redis::{Consistency, Options, RedisEngine, Shift, check_near};
use earrrl_testing::Random;

use crate::support::cluster::Cluster;
use crate::support::{PATIENCE, Server, until};

async fn connect(mut options: Options) -> RedisEngine {
    options.deadline = PATIENCE;
    let engine = RedisEngine::connect(options, PATIENCE).await.unwrap();
    assert!(engine.ready(PATIENCE).await, "{:?}", engine.status());
    engine
}

async fn ask(engine: &RedisEngine, mode: Mode, charges: &[Charge<'_>]) -> Decision {
    engine.decide(charges, mode, None).await.unwrap()
}

fn charge(rule: RuleId, key: &[u8]) -> Charge<'_> {
    Charge {
        rule,
        key,
        cost: Cost::ONE,
    }
}

/// Limits that refill within seconds must also do so after the clock was set back by an hour, and
/// their answers must state such waits.
#[tokio::test]
async fn a_clock_set_back_locks_nobody_out() {
    for text in [
        "recent-average 1/s half-life=5s leaky",
        "recent-average 1/s half-life=5s strict",
        "exponential 5/10s",
        "gcra 1/5s burst=5",
        "fixed-window 5/10s",
        "sliding-log 5/10s",
        "sliding-window 5/10s sub-windows=5",
        "sliding-counter 5/10s",
    ] {
        let server = Server::start_with_a_clock(&[]).await;
        let engine = connect(Options::new(&server.url())).await;
        let rule = engine.prepare("limit", &text.parse().unwrap()).unwrap();
        for _ in 0..20 {
            ask(&engine, Mode::Check, &[charge(rule, b"k")]).await;
        }
        assert!(
            !ask(&engine, Mode::Check, &[charge(rule, b"k")])
                .await
                .allowed,
            "{text}"
        );
        let time = || server.command::<Vec<u64>>(&["TIME"]).unwrap()[0];
        let before = time();
        server.put_behind(Duration::from_secs(3600));
        until("the clock is back", || time() < before).await;
        let waits = |decision: Decision| match decision.retry_after {
            Wait::For(wait) => wait,
            _ => panic!("{text} will be allowed some time"),
        };
        let peeked = waits(ask(&engine, Mode::Peek, &[charge(rule, b"k")]).await);
        let denied = waits(ask(&engine, Mode::Check, &[charge(rule, b"k")]).await);
        assert!(
            peeked.max(denied) < Duration::from_secs(60),
            "{text}: {peeked:?}, {denied:?}"
        );
        // The wait is stored, and gets shorter as time passes.
        let first = waits(ask(&engine, Mode::Peek, &[charge(rule, b"k")]).await);
        let mut next = first;
        while next >= first && !next.is_zero() {
            next = waits(ask(&engine, Mode::Peek, &[charge(rule, b"k")]).await);
        }
    }
}

/// `CL.THROTTLE` continues from its stored time if the clock is set back, whichever client comes
/// first.
#[tokio::test]
async fn a_clock_set_back_throttles_nobody() {
    let server = Server::start_with_a_clock(&[]).await;
    let second = 1_000_000_000i128 << 16;
    let engine = connect(Options::new(&server.url())).await;
    let ahead = async |seconds: i128| {
        let by = seconds * second;
        let most = 1000 * second;
        let shifted = engine.shift(b"k", Shift { by, most }, None).await.unwrap();
        shifted
            .before
            .map(|before| (before - shifted.now) as f64 / second as f64)
    };
    assert_eq!(ahead(500).await, None);
    for (behind, expected) in [(3600, 500.0), (3660, 510.0), (90_000, 520.0), (0, 0.0)] {
        server.put_behind(Duration::from_secs(behind));
        until("the clock is set", || {
            let behind = server.command::<Vec<u64>>(&["TIME"]).unwrap()[0] + behind;
            behind.abs_diff(SystemClock::new().now().get() / 1_000_000_000) < 30
        })
        .await;
        let before = ahead(10).await.unwrap_or_default();
        assert!(
            before < expected + 1.0,
            "{behind} s behind: {before} s ahead"
        );
        assert!(
            before > expected - 60.0 || behind == 0,
            "{behind} s behind: {before} s ahead"
        );
    }
}

/// Calls with parameters of their own advance the times of keys exactly, in units of 2⁻¹⁶ ns.
#[tokio::test]
async fn throttled_keys_are_advanced_exactly() {
    let server = Server::start(&[]).await;
    let mut options = Options::new(&server.url());
    options.linger = Duration::from_secs(3600);
    let engine = connect(options).await;
    let mut random = Random::new(5);
    let mut known = [0i128; 5];
    let mut now = Nanos::from_secs(1_800_000_000);
    for turn in 0..1000 {
        now = now + Duration::from_micros(random.below(3_000_000));
        let key = random.below(5) as usize;
        // Up to four seconds, and up to seventeen.
        let by = i128::from(random.below(2) * random.below(1 << 48));
        let most = i128::from(random.below(1 << 50));
        let shift = Shift { by, most };
        let shifted = engine.shift(&[key as u8], shift, Some(now)).await.unwrap();
        let at = i128::from(now.get()) << 16;
        let from = known[key].max(at);
        assert_eq!(shifted.now, at);
        assert_eq!(
            shifted.before.map_or(at, |before| before.max(at)),
            from,
            "{turn}"
        );
        if by > 0 && from + by <= at + most {
            known[key] = from + by;
        }
    }
}

/// A denied request stores nothing in the slots that would have allowed it, whatever their clocks
/// are.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_denied_request_leaves_nothing_though_clocks_differ() {
    let cluster = Cluster::start().await;
    for (place, node) in cluster.nodes.iter().enumerate() {
        node.put_behind(Duration::from_millis(50) * place as u32);
    }
    let urls = cluster.urls();
    let engine = connect(Options::cluster(urls.iter().map(String::as_str))).await;
    let narrow = engine
        .prepare("narrow", &"gcra 1/3650d burst=1".parse().unwrap())
        .unwrap();
    for text in [
        "sliding-log 300/1h",
        "fixed-window 300/1d",
        "sliding-counter 300/1h",
        "gcra 1/1h burst=300",
    ] {
        let wide = text.split(' ').next().unwrap();
        let wide = engine.prepare(wide, &text.parse().unwrap()).unwrap();
        // The keys are on all shards, so that the clock of one is behind and that of another is
        // ahead.
        for key in [&b"a"[..], b"b", b"c", b"d", b"e", b"f"] {
            let charges = [charge(wide, key), charge(narrow, b"full")];
            for _ in 0..10 {
                ask(&engine, Mode::Check, &charges).await;
            }
            let left = ask(&engine, Mode::Peek, &[charge(wide, key)])
                .await
                .remaining;
            assert!(
                left >= 299,
                "{text}: of 10 requests at most one was allowed, {left} are left"
            );
        }
    }
}

/// Clients within their limits use near rules on two nodes while Redis's clock is set back and
/// forward. Each client is checked separately, since a sum would hide one that is locked out.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn near_clients_are_not_denied_when_the_clock_is_set() {
    const RULES: [&str; 6] = [
        "gcra 50/s burst=50",
        "recent-average 50/s half-life=5s",
        "fixed-window 200/10s",
        "sliding-log 200/10s",
        "sliding-window 200/10s sub-windows=5",
        "sliding-counter 200/10s",
    ];
    let server = Server::start_with_a_clock(&[]).await;
    let mut nodes = Vec::new();
    for _ in 0..2 {
        let mut options = Options::new(&server.url());
        options.deadline = PATIENCE;
        nodes.push(connect(options).await);
    }
    let prepare = |node: &RedisEngine| {
        let near = |rule: &&str| {
            let name = rule.split(' ').next().unwrap();
            node.prepare_as(name, &rule.parse().unwrap(), 1000, Consistency::Near)
                .unwrap()
        };
        RULES.iter().map(near).collect::<Vec<_>>()
    };
    let rules: Vec<_> = nodes.iter().map(prepare).collect();
    let mut denied = Vec::new();
    for turn in 0..160usize {
        match turn {
            20 => server.put_behind(Duration::from_secs(3600)),
            80 => server.put_behind(Duration::from_secs(3660)),
            140 => server.put_behind(Duration::ZERO),
            _ => {}
        }
        // A bucket counts as empty when the clock is set back, and fills within a second after both
        // nodes have noticed it.
        let may_fill = (20..70).contains(&turn) || (80..130).contains(&turn);
        for client in 0..10usize {
            let node = (turn + client) % 2;
            for (rule, text) in rules[node].iter().zip(RULES) {
                let key = format!("client-{client}");
                let decision =
                    ask(&nodes[node], Mode::Check, &[charge(*rule, key.as_bytes())]).await;
                if !decision.allowed && !may_fill {
                    denied.push((turn, client, text, decision.retry_after));
                }
            }
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    assert!(
        denied.is_empty(),
        "{} denied, such as {:?}",
        denied.len(),
        &denied[..denied.len().min(5)]
    );
}

/// A server's clock, which can be set.
pub(crate) struct SetClock {
    clock: SystemClock,
    ahead: AtomicI64,
}

impl SetClock {
    pub(crate) fn new(ahead_secs: i64) -> Arc<Self> {
        Arc::new(Self {
            clock: SystemClock::new(),
            ahead: (ahead_secs * 1_000_000_000).into(),
        })
    }

    pub(crate) fn set(&self, ahead_secs: i64) {
        self.ahead
            .store(ahead_secs * 1_000_000_000, Ordering::Relaxed);
    }
}

impl Clock for SetClock {
    fn now(&self) -> Nanos {
        let ahead = self.ahead.load(Ordering::Relaxed);
        Nanos::new(self.clock.now().get().saturating_add_signed(ahead))
    }
}

/// The rules of polite clients that send 10 requests a second. Each is prepared as an exact rule,
/// and as a near rule if possible.
pub(crate) const POLITE: [&str; 7] = [
    "gcra 25/s burst=25",
    "recent-average 25/s half-life=5s",
    "fixed-window 100/4s",
    "sliding-log 100/4s",
    "sliding-window 100/4s sub-windows=4",
    "sliding-counter 100/4s",
    "exponential 100/4s",
];

/// A server of the test.
struct Node {
    engine: RedisEngine,
    clock: Arc<SetClock>,
    rules: Vec<(RuleId, String)>,
}

impl Node {
    async fn start(url: &str, ahead_secs: i64) -> Self {
        let clock = SetClock::new(ahead_secs);
        let mut options = Options::new(url);
        options.deadline = PATIENCE;
        let engine = RedisEngine::with_clock(options, clock.clone()).unwrap();
        assert!(engine.ready(PATIENCE).await, "{:?}", engine.status());
        let mut rules = Vec::new();
        for text in POLITE {
            let (algorithm, rule): (_, Rule) =
                (text.split(' ').next().unwrap(), text.parse().unwrap());
            for (kind, consistency) in [("exact", Consistency::Exact), ("near", Consistency::Near)]
            {
                if kind == "near" && check_near(&rule).is_err() {
                    continue;
                }
                let name = format!("{kind}-{algorithm}");
                rules.push((
                    engine.prepare_as(&name, &rule, 100, consistency).unwrap(),
                    name,
                ));
            }
        }
        Self {
            engine,
            clock,
            rules,
        }
    }

    /// Sends a client's request under each rule. Returns the rules that deny it.
    async fn denials(&self, key: &[u8]) -> Vec<String> {
        let mut denied = Vec::new();
        for (rule, name) in &self.rules {
            if !ask(&self.engine, Mode::Check, &[charge(*rule, key)])
                .await
                .allowed
            {
                denied.push(name.clone());
            }
        }
        denied
    }
}

/// Sets the clocks of Redis, of servers, or both, by a number of seconds. Returns the denials of
/// polite clients from four seconds later. A server's clock never goes back while it runs, so that is
/// a restart on a machine whose clock was set.
async fn denials_after_a_step(seconds: i64, of_redis: bool, of_servers: bool) -> Vec<String> {
    const BASE: i64 = 100_000;
    let behind = |seconds: i64| Duration::from_secs((BASE - seconds).unsigned_abs());
    let server = Server::start_with_a_clock(&[]).await;
    server.put_behind(behind(0));
    let url = server.url();
    let mut nodes = [
        Node::start(&url, -BASE).await,
        Node::start(&url, -BASE).await,
    ];
    let mut denied = Vec::new();
    for turn in 0..80 {
        if turn == 20 && of_redis {
            server.put_behind(behind(seconds));
        }
        if turn == 20 && of_servers {
            nodes[1].engine.flush(PATIENCE).await;
            nodes[1] = Node::start(&url, seconds - BASE).await;
            if seconds > 0 {
                nodes[0].clock.set(seconds - BASE);
            }
        }
        for key in [&b"a"[..], b"b"] {
            let node = &nodes[(turn + usize::from(key == b"b")) % 2];
            for rule in node.denials(key).await {
                if !(20..60).contains(&turn) {
                    denied.push(format!("{seconds:+} s, turn {turn}: {rule}"));
                }
            }
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    denied
}

async fn steps_deny_nobody(of_redis: bool, of_servers: bool) {
    const STEPS: [i64; 6] = [-60, 60, -3600, 3600, -86_400, 86_400];
    let steps = STEPS.map(|seconds| denials_after_a_step(seconds, of_redis, of_servers));
    let denied = futures_util::future::join_all(steps).await.concat();
    assert!(
        denied.is_empty(),
        "{} denials: {:?}",
        denied.len(),
        &denied[..denied.len().min(9)]
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn steps_of_redis_s_clock_deny_no_polite_client() {
    steps_deny_nobody(true, false).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn steps_of_servers_clocks_deny_no_polite_client() {
    steps_deny_nobody(false, true).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn steps_of_both_clocks_deny_no_polite_client() {
    steps_deny_nobody(true, true).await;
}

/// Sends a client's requests at even times given by the caller, and returns how many are allowed.
async fn allowed(
    engine: &RedisEngine,
    asked: Charge<'_>,
    (from, every): (Nanos, Duration),
    times: u32,
) -> u32 {
    let mut allowed = 0;
    for turn in 0..times {
        let decision = engine
            .decide(&[asked], Mode::Check, Some(from + every * turn))
            .await;
        allowed += u32::from(decision.unwrap().allowed);
    }
    allowed
}

/// After a step back across a window's edge, a client at 90 % of its limit is not denied, and a client
/// far above it gets no more than the limit gives in that time. An engine never takes an earlier time
/// than it was given before, so another engine sends the requests after the step.
#[tokio::test]
async fn windows_keep_their_counts_when_the_clock_is_set_back() {
    let server = Server::start(&[]).await;
    let mut wrong = Vec::new();
    let start = Nanos::from_secs(1_800_000_000);
    for name in [
        "fixed-window",
        "sliding-counter",
        "sliding-log",
        "sliding-window",
    ] {
        for (span, window) in [("1m", 60), ("1h", 3600)] {
            let window = Duration::from_secs(window);
            let rule: Rule = format!("{name} 100/{span}").parse().unwrap();
            for step in [0.95, 1.0, 1.6, 1.9, 24.0] {
                // Seven tenths of the second window have passed at the step.
                let end = start + window.mul_f64(1.7);
                let after = Nanos::new(end.get() - window.mul_f64(step).as_nanos() as u64);
                let into = after.get() % window.as_nanos() as u64;
                let left = 1.0 - into as f64 / window.as_nanos() as f64;
                for (key, each) in [(&b"polite"[..], 90), (b"abuser", 300)] {
                    let mut options = Options::new(&server.url());
                    options.prefix = format!("{name}-{span}-{}-", step * 100.0);
                    let old = connect(options.clone()).await;
                    let new = connect(options).await;
                    let [asked, later] = [&old, &new]
                        .map(|engine| charge(engine.prepare("limit", &rule).unwrap(), key));
                    let every = window / each;
                    let before = allowed(&old, asked, (start, every), each * 17 / 10).await;
                    let rest = (f64::from(each) * left) as u32;
                    let rest = allowed(&new, later, (after, every), rest).await;
                    let right = match key {
                        b"polite" => (before, rest) == (153, (90.0 * left) as u32),
                        // The rest of the window, as of before or after the step.
                        _ if matches!(name, "fixed-window" | "sliding-counter") => {
                            f64::from(rest) <= 100.0 * left.max(0.3) + 1.0
                        }
                        _ => rest <= 100,
                    };
                    if !right {
                        let key = String::from_utf8_lossy(key);
                        wrong.push(format!(
                            "{rule}, {step} windows: {key} {before} {rest} {left}"
                        ));
                    }
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}
