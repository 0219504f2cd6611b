//! What keeps the states, one of several kinds: an enum, so that nothing is boxed and nothing is
//! looked up on the way of a decision.

pub mod redis;
pub mod state;
pub mod throttle;

use std::sync::Arc;
use std::time::Duration;

use earrrl::table::KeyHash;
use earrrl::{
    Brief, Charge, Clock, Decision, Engine as _, EngineError, MemoryEngine, Mode, Nanos, Rule,
    RuleId,
};

use earrrl_redis::{Consistency, WhenGone};

use self::redis::Redis;
use self::state::State;
use self::throttle::{Call, Throttle, Throttled};
use crate::config::EngineConfig;
use crate::metrics::Family;

/// The server's engine.
#[derive(Debug)]
pub struct Engine {
    /// The rules' clients.
    rules: Rules,
    /// `CL.THROTTLE`'s keys; over Redis, for while it is gone.
    pub throttle: Throttle,
}

/// What keeps the rules' clients.
enum Rules {
    /// This process's own memory.
    Memory(MemoryEngine<Arc<dyn Clock>>),
    /// Redis, for every server that uses it alike.
    Redis(Redis),
}

impl Engine {
    /// The engine that a configuration asks for, with room for `capacity` keys of `CL.THROTTLE`.
    ///
    /// # Errors
    /// When the operating system has no randomness for the hash, say, or there is not enough memory.
    pub fn new(
        config: &EngineConfig,
        capacity: usize,
        clock: Arc<dyn Clock>,
    ) -> Result<Self, EngineError> {
        let throttle = Throttle::new(capacity, Arc::clone(&clock))?;
        let rules = match config {
            EngineConfig::Memory => Rules::memory(clock)?,
            EngineConfig::Redis(config) => Rules::Redis(Redis::new(config, clock)?),
        };
        Ok(Self { rules, throttle })
    }

    /// As [`earrrl::Engine::prepare`], for this many live clients.
    ///
    /// # Errors
    /// As there.
    pub fn prepare(&self, name: &str, rule: &Rule, capacity: usize) -> Result<RuleId, EngineError> {
        match &self.rules {
            Rules::Memory(engine) => engine.prepare_with(name, rule, capacity),
            Rules::Redis(redis) => redis.engine.prepare_with(name, rule, capacity),
        }
    }

    /// As [`Engine::prepare`], for several rules at once, each with the clients it is meant for:
    /// all of them, or on an error none.
    ///
    /// # Errors
    /// As there.
    pub fn prepare_all(
        &self,
        rules: &[(&str, &Rule, usize, Consistency)],
    ) -> Result<Vec<RuleId>, EngineError> {
        match &self.rules {
            Rules::Memory(engine) => {
                let each = rules.iter();
                let rules: Vec<_> =
                    each.map(|(name, rule, room, _)| (*name, *rule, *room)).collect();
                engine.prepare_all(&rules)
            }
            Rules::Redis(redis) => redis.engine.prepare_all(rules),
        }
    }

    /// Whether answers are waited for, so that several are best asked for at once.
    #[inline]
    pub fn waits(&self) -> bool {
        !matches!(self.rules, Rules::Memory(_))
    }

    /// Whether a request passes that there is no time left to decide.
    pub fn passes_undecided(&self) -> bool {
        match &self.rules {
            Rules::Memory(_) => true,
            Rules::Redis(redis) => redis.engine.options().when_gone != WhenGone::Deny,
        }
    }

    /// Waits until it is at work, for at most `patience`.
    pub async fn ready(&self, patience: Duration) {
        if let Rules::Redis(redis) = &self.rules {
            redis.ready(patience).await;
        }
    }

    /// Whether an engine at work can take over what has changed.
    ///
    /// # Errors
    /// What has changed needs a restart.
    pub fn may_reload(&self, config: &EngineConfig) -> Result<(), String> {
        match (&self.rules, config) {
            (Rules::Memory(_), EngineConfig::Memory) => Ok(()),
            (Rules::Redis(redis), EngineConfig::Redis(config)) => redis.may_reload(config),
            _ => Err("[engine] has changed between memory and redis; that needs a restart".into()),
        }
    }

    /// Takes over what [`Engine::may_reload`].
    pub fn reload(&self, config: &EngineConfig) {
        if let (Rules::Redis(redis), EngineConfig::Redis(config)) = (&self.rules, config) {
            redis.reload(config);
        }
    }

    /// How decisions are made at present.
    pub fn state(&self) -> State {
        match &self.rules {
            Rules::Memory(_) => State { mode: "memory", trouble: None, owed: None },
            Rules::Redis(redis) => redis.state(),
        }
    }

    /// Figures of its own, for `/metrics`.
    pub fn metrics(&self) -> Vec<Family> {
        match &self.rules {
            Rules::Memory(_) => Vec::new(),
            Rules::Redis(redis) => redis.metrics(),
        }
    }

    /// How many clients of a rule are stored here, and how many that were not idle had to go.
    pub fn usage(&self, rule: RuleId) -> Option<(usize, u64)> {
        match &self.rules {
            Rules::Memory(engine) => engine.usage(rule),
            Rules::Redis(_) => None,
        }
    }

    /// Begins to fetch a client's state where that is in memory. The hash of its key there.
    #[inline]
    pub fn prefetch(&self, rule: RuleId, key: &[u8]) -> Option<KeyHash> {
        let Rules::Memory(engine) = &self.rules else { return None };
        let hash = engine.hash(key);
        engine.prefetch(rule, hash);
        Some(hash)
    }

    /// As [`Engine::decide`] on one charge whose key [`Engine::prefetch`] has hashed.
    ///
    /// # Errors
    /// As there.
    #[inline]
    pub async fn decide_hashed(
        &self,
        charge: &Charge<'_>,
        hash: KeyHash,
        mode: Mode,
    ) -> Result<Decision, EngineError> {
        match &self.rules {
            Rules::Memory(engine) => {
                engine.decide_hashed(charge.rule, hash, charge.cost, mode, None)
            }
            Rules::Redis(_) => self.decide(std::slice::from_ref(charge), mode).await,
        }
    }

    /// A check of one charge, told in brief; `None` where it has to be waited for. The hash is that of
    /// [`Engine::prefetch`].
    #[inline]
    pub fn check_at_once(
        &self,
        charge: &Charge<'_>,
        hash: Option<KeyHash>,
    ) -> Option<Result<Brief, EngineError>> {
        let Rules::Memory(engine) = &self.rules else { return None };
        let hash = hash.unwrap_or_else(|| engine.hash(charge.key));
        Some(engine.check_hashed(charge.rule, hash, charge.cost))
    }

    /// Gives back the memory of tables that a reload has replaced, once their clients are gone from them.
    pub fn tidy(&self) {
        if let Rules::Memory(engine) = &self.rules {
            engine.tidy();
        }
    }

    /// As [`earrrl::Engine::decide`], by the engine's own clock.
    ///
    /// # Errors
    /// As there.
    #[inline]
    pub async fn decide(
        &self,
        charges: &[Charge<'_>],
        mode: Mode,
    ) -> Result<Decision, EngineError> {
        match &self.rules {
            Rules::Memory(engine) => engine.decide(charges, mode, None).into_inner(),
            Rules::Redis(redis) => redis.engine.decide(charges, mode, redis.now()).await,
        }
    }

    /// Answers a call of `CL.THROTTLE`, by the state that all servers share where there is one.
    ///
    /// # Errors
    /// Parameters that can't be counted exactly there.
    pub async fn throttle(&self, key: &[u8], call: Call) -> Result<Throttled, EngineError> {
        match &self.rules {
            Rules::Memory(_) => Ok(self.throttle.throttle(self.throttle.hash(key), call)),
            Rules::Redis(redis) => redis.throttle(key, call, &self.throttle).await,
        }
    }

    /// As [`earrrl::Engine::refund`], by the engine's own clock.
    ///
    /// # Errors
    /// As there.
    pub async fn refund(
        &self,
        charge: &Charge<'_>,
        charged_at: Option<Nanos>,
    ) -> Result<(), EngineError> {
        match &self.rules {
            Rules::Memory(engine) => engine.refund(charge, charged_at, None).into_inner(),
            Rules::Redis(redis) => redis.engine.refund(charge, charged_at, redis.now()).await,
        }
    }

    /// As [`earrrl::Engine::reset`].
    ///
    /// # Errors
    /// As there.
    pub async fn reset(&self, rule: RuleId, key: &[u8]) -> Result<(), EngineError> {
        match &self.rules {
            Rules::Memory(engine) => engine.reset(rule, key).into_inner(),
            Rules::Redis(redis) => redis.engine.reset(rule, key).await,
        }
    }
}

impl Rules {
    fn memory(clock: Arc<dyn Clock>) -> Result<Self, EngineError> {
        // Every rule says its own capacity when it is prepared.
        let engine = MemoryEngine::with_clock(1, clock);
        engine.map(Self::Memory).map_err(|error| EngineError::Unavailable(error.to_string()))
    }
}

impl std::fmt::Debug for Rules {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Memory(_) => "Memory",
            Self::Redis(_) => "Redis",
        })
    }
}
