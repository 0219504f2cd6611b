//! The engine that stores states in Redis: its thread, its clock and its metrics.

use std::io;
use std::ops::Deref;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use earrrl::{Clock, EngineError, Nanos};
use earrrl_redis::{
    Counts, EngineMode, Options, RedisEngine, Shift, WhenGone, without_credentials,
};
use tokio::runtime;
use tokio::sync::oneshot;

use super::throttle::{Call, Throttle, Throttled};
use crate::config::engine::RedisConfig;
use crate::metrics::Family;

/// The engine's modes, as `/readyz` and metrics name them. In the mode `partly` some shards of a
/// Redis Cluster are unavailable.
const MODES: [&str; 5] = ["redis", "partly", "local", "allow", "deny"];

/// The way in which the engine makes decisions at present, as `/readyz` reports it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EngineState {
    /// The name of the engine's mode, such as `redis` or `local`.
    pub mode: &'static str,
    /// The reason why the mode is not the usual one; `None` in the usual mode.
    pub trouble: Option<String>,
    /// The number of clients whose counts are still to be sent to Redis.
    pub owed: Option<usize>,
}

/// The engine that stores states in Redis.
///
/// The connection with Redis, and the task that reconnects it, run on a thread of their own. So a
/// flood of client connections or a reload cannot delay replies of Redis until they time out.
pub struct Redis {
    engine: RedisEngine,
    config: RedisConfig,
    clock: Arc<dyn Clock>,
    /// The thread ends when this sender is dropped.
    _stop: oneshot::Sender<()>,
}

impl Deref for Redis {
    type Target = RedisEngine;

    fn deref(&self) -> &RedisEngine {
        &self.engine
    }
}

impl Redis {
    /// Starts to connect to Redis. If Redis is unavailable, this still succeeds, and the engine
    /// keeps trying.
    ///
    /// # Errors
    /// Returns an error if an option is invalid or the thread cannot be started.
    pub fn new(config: &RedisConfig, clock: Arc<dyn Clock>) -> Result<Self, EngineError> {
        let failed = |error: io::Error| EngineError::Unavailable(error.to_string());
        let runtime = runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .map_err(failed)?;
        let handle = runtime.handle().clone();
        let (stop, stopped) = oneshot::channel::<()>();
        thread::Builder::new()
            .name("redis".to_owned())
            .spawn(move || runtime.block_on(async { drop(stopped.await) }))
            .map_err(failed)?;
        let _inside = handle.enter();
        let engine = RedisEngine::with_clock(config.options.clone(), Arc::clone(&clock))?;
        Ok(Self {
            engine,
            config: config.clone(),
            clock,
            _stop: stop,
        })
    }

    /// Decides a call of `CL.THROTTLE`. While Redis is unavailable, the policy and the table
    /// `local` decide.
    pub(crate) async fn throttle(
        &self,
        key: &[u8],
        call: Call,
        local: &Throttle,
    ) -> Result<Throttled, EngineError> {
        let (by, most) = call.shift();
        match self.engine.shift(key, Shift { by, most }, self.now()).await {
            Ok(seen) if self.engine.options().when_gone == WhenGone::Local => {
                Ok(local.follow(local.hash(key), call, seen.now, seen.before))
            }
            Ok(seen) => Ok(call.answer(seen.now, seen.before)),
            Err(EngineError::Unavailable(_)) => Ok(match self.engine.options().when_gone {
                WhenGone::Allow => call.answer_by_fiat(true),
                WhenGone::Deny => call.answer_by_fiat(false),
                _ => local.throttle(local.hash(key), call),
            }),
            Err(error) => Err(error),
        }
    }

    /// Waits until Redis makes the decisions, for at most `patience`.
    pub(crate) async fn ready(&self, patience: Duration) {
        let options = self.engine.options();
        let urls: Vec<String> = options
            .urls
            .iter()
            .map(|url| without_credentials(url))
            .collect();
        let redis = urls.join(", ");
        if self.engine.ready(patience).await {
            tracing::info!(redis, "Redis decides; limits are shared");
        } else {
            let policy = options.when_gone.name();
            let why = self.engine.status().last_failure;
            let why = why.unwrap_or_else(|| "no answer yet".to_owned());
            tracing::warn!(
                redis,
                policy,
                why,
                "serving without Redis for now; the policy decides"
            );
        }
    }

    /// Checks that a new configuration differs from the current one only in user and password,
    /// which the next connection will use.
    ///
    /// # Errors
    /// Returns the reason for a restart if another setting has changed.
    pub(crate) fn may_reload(&self, config: &RedisConfig) -> Result<(), String> {
        if same_but_for_credentials(&self.config.options, &config.options) {
            return Ok(());
        }
        Err(
            "[engine] has changed; that needs a restart (a new user or password alone does not)"
                .to_owned(),
        )
    }

    /// Applies the settings that [`Redis::may_reload`] accepted.
    pub(crate) fn reload(&self, config: &RedisConfig) {
        let options = &config.options;
        self.engine.set_urls(options.urls.clone());
        self.engine.set_sentinel_login(
            options.sentinel_user.clone(),
            options.sentinel_password.clone(),
        );
    }

    /// Returns true if Redis makes the decisions at present.
    pub(crate) fn decides(&self) -> bool {
        self.engine.status().mode == EngineMode::Shared
    }

    /// Returns the way in which decisions are made at present.
    pub(crate) fn state(&self) -> EngineState {
        let status = self.engine.status();
        let mode = match status.mode {
            EngineMode::Shared => "redis",
            EngineMode::Partly => "partly",
            _ => self.engine.options().when_gone.name(),
        };
        let trouble = status.last_failure.filter(|_| mode != "redis");
        EngineState {
            mode,
            trouble,
            owed: Some(status.owed),
        }
    }

    /// Returns the metrics of the engine.
    pub(crate) fn metrics(&self) -> Vec<Family> {
        let status = self.engine.status();
        let state = self.state();
        let policy = self.engine.options().when_gone.name();
        let modes = MODES.map(|mode| (mode, f64::from(mode == state.mode)));
        let mut families = vec![
            Family::gauge(
                "earrrl_engine_mode",
                "1 for how decisions are made at present.",
            )
            .labelled("mode", modes),
            Family::gauge(
                "earrrl_redis_owed_clients",
                "Clients whose counts Redis lacks yet.",
            )
            .value(status.owed as f64),
            Family::gauge(
                "earrrl_redis_unsettled_calls",
                "Calls without an answer that Redis may have executed.",
            )
            .value(status.unsettled as f64),
        ];
        families.extend(counters(&status.counts, policy));
        families
    }

    /// Returns the time of the clock of Redis, or of the server's own clock if that is configured.
    pub(super) fn now(&self) -> Option<Nanos> {
        self.config.own_clock.then(|| self.clock.now())
    }
}

/// Returns the counters of the engine's decisions and other events. `policy` is the name
/// of the policy for decisions while Redis is gone.
fn counters(counts: &Counts, policy: &'static str) -> [Family; 2] {
    let by = [
        ("redis", counts.shared),
        ("near", counts.near),
        (policy, counts.alone),
    ];
    // These counts have metrics of their own.
    let named = ["shared", "near", "alone"];
    let events = counts.each().filter(|(name, _)| !named.contains(name));
    let counted = |(name, count): (&'static str, u64)| (name, count as f64);
    [
        Family::counter(
            "earrrl_engine_decisions_total",
            "Decisions by who made them.",
        )
        .labelled("by", by.map(counted)),
        Family::counter("earrrl_redis_events_total", "What happened with Redis.")
            .labelled("event", events.map(counted)),
    ]
}

fn same_but_for_credentials(one: &Options, other: &Options) -> bool {
    let places = |options: &Options| {
        options
            .urls
            .iter()
            .map(|url| without_credentials(url))
            .collect()
    };
    let (here, there): (Vec<_>, Vec<_>) = (places(one), places(other));
    let mut other = other.clone();
    other.urls.clone_from(&one.urls);
    other.sentinel_user.clone_from(&one.sentinel_user);
    other.sentinel_password.clone_from(&one.sentinel_password);
    here == there && *one == other
}
