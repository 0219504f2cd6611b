//! The servers of a simulation: engines that share a Redis.

use std::time::Duration;

use earrrl::{Charge, Cost, Engine, Mode, Nanos, RuleId};
use earrrl_redis::{EngineMode, Options, RedisEngine};

use super::{Scene, Time};
use crate::support::proxy::Proxy;
use crate::support::{Server, until};

const PATIENCE: Duration = Duration::from_secs(60);
/// The commands that scripts call.
const COMMANDS: [&str; 8] = [
    "get", "mget", "set", "setrange", "getrange", "del", "pexpire", "pttl",
];

pub struct Fleet<'a> {
    engines: Vec<RedisEngine>,
    rule: RuleId,
    /// The way of the first engine to Redis.
    proxy: Proxy,
    redis: &'a Server,
}

/// What a fleet has used of Redis.
pub struct Used {
    pub calls: u64,
    pub trips: u64,
    pub commands: u64,
    /// The mean microseconds of a call since Redis was started.
    pub micros: f64,
}

impl<'a> Fleet<'a> {
    pub async fn start(redis: &'a Server, scene: &Scene<'_>) -> Self {
        let proxy = Proxy::start(redis.port).await;
        let rule = scene.rule.parse().expect("a rule");
        let clients: usize = scene.loads.iter().map(|load| load.clients).sum();
        let mut engines = Vec::new();
        let mut id = RuleId(0);
        for number in 0..scene.servers {
            let is_first = number == 0 && scene.partitioned.is_some();
            let mut options = Options::new(&if is_first { proxy.url() } else { redis.url() });
            options.deadline = PATIENCE;
            options.local_capacity = 1000;
            options.sync = scene.sync;
            options.nodes = (scene.time != Time::Started).then_some(scene.servers as u32);
            let engine = RedisEngine::new(options).expect("options");
            id = engine
                .prepare_as("rule", &rule, 1000 + 4 * clients, scene.consistency)
                .expect("a rule");
            engines.push(engine);
        }
        for engine in &engines {
            assert!(engine.ready(PATIENCE).await, "{:?}", engine.status());
        }
        Self {
            engines,
            rule: id,
            proxy,
            redis,
        }
    }

    pub async fn decide(&self, server: usize, client: usize, now: Option<Nanos>) -> bool {
        let key = format!("user_id_{client:06}");
        let charge = Charge {
            rule: self.rule,
            key: key.as_bytes(),
            cost: Cost::ONE,
        };
        self.engines[server]
            .decide(&[charge], Mode::Check, now)
            .await
            .expect("no decision fails")
            .allowed
    }

    pub async fn exchange_due(&self, server: usize, now: Nanos) {
        self.engines[server].exchange_due(now).await;
    }

    /// Cuts the first server off from Redis, or connects it again.
    pub async fn cut(&self, cut: bool) {
        let wanted = if cut {
            EngineMode::Alone
        } else {
            EngineMode::Shared
        };
        self.proxy.cut_one_in(u64::from(cut));
        if cut {
            self.proxy.cut();
        }
        until("the engine notices", || {
            self.engines[0].status().mode == wanted
        })
        .await;
    }

    pub fn used(&self) -> Used {
        let mut used = Used {
            calls: 0,
            trips: 0,
            commands: 0,
            micros: 0.0,
        };
        (used.commands, used.micros) = self.stats();
        for counts in self.engines.iter().map(|engine| engine.status().counts) {
            // A near decision's trip consists of the exchanges that it waited for.
            let is_near = counts.near + counts.awaited > 0;
            used.calls += counts.exchanged
                + if is_near {
                    counts.awaited
                } else {
                    counts.shared
                };
            used.trips += counts.shared;
        }
        used
    }

    /// Returns how many commands scripts have called, and the mean microseconds of a script. The engines' probes call
    /// three commands a second each.
    fn stats(&self) -> (u64, f64) {
        let stats: String = self
            .redis
            .command(&["INFO", "commandstats"])
            .expect("Redis answers");
        let field = |line: &str, name: &str| {
            line.split_once(name)?
                .1
                .split(',')
                .next()?
                .parse::<f64>()
                .ok()
        };
        let mut commands = 0.0;
        let mut micros = 0.0;
        for line in stats
            .lines()
            .filter_map(|line| line.strip_prefix("cmdstat_"))
        {
            let name = line.split(':').next().unwrap_or_default();
            if COMMANDS.contains(&name) {
                commands += field(line, "calls=").unwrap_or_default();
            } else if name == "evalsha" {
                micros = field(line, "usec_per_call=").unwrap_or_default();
            }
        }
        (commands as u64, micros)
    }

    /// Returns the bytes of all records, and those of all claims.
    pub fn bytes(&self) -> (f64, f64) {
        let client = redis::Client::open(self.redis.url()).expect("an address");
        let mut connection = client.get_connection().expect("Redis answers");
        let mut bytes = |pattern: &str| {
            let keys: Vec<String> = redis::cmd("KEYS")
                .arg(pattern)
                .query(&mut connection)
                .expect("Redis answers");
            let mut usage = redis::pipe();
            for key in &keys {
                usage.cmd("MEMORY").arg("USAGE").arg(key);
            }
            if keys.is_empty() {
                return 0.0;
            }
            let each: Vec<u64> = usage.query(&mut connection).expect("Redis answers");
            each.iter().sum::<u64>() as f64
        };
        let claims = bytes("earrrl1:{user*:near");
        (bytes("earrrl1:{user*") - claims, claims)
    }
}
