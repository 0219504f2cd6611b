//! The engine that the server uses. The kinds of engines are an enum, so that a decision needs no
//! allocation and no dynamic dispatch.

pub mod redis;
pub mod reserve;
pub mod state;
pub mod throttle;

use std::sync::Arc;
use std::time::Duration;

use earrrl::table::{KeyHash, Swept};
use earrrl::{
    Brief, Charge, Clock, Decision, Engine as _, EngineError, MemoryEngine, Mode, Nanos,
    Preparation, Rule, RuleId, StateDirectory, Survey,
};

use earrrl_redis::{Consistency, WhenGone};

use self::redis::Redis;
use self::state::EngineState;
use self::throttle::{Call, Throttle, Throttled};
use crate::config::rule::OnError;
use crate::config::{EngineConfig, StateConfig};
use crate::metrics::Family;

/// A limit to prepare in the engine.
#[derive(Clone, Copy, Debug)]
pub struct PlannedLimit<'a> {
    /// The limit's name in the engine.
    pub name: &'a str,
    /// The limit, as an engine's rule.
    pub rule: &'a Arc<Rule>,
    /// The number of clients to size the limit's table for.
    pub capacity: usize,
    /// The consistency of the limit's decisions between servers.
    pub consistency: Consistency,
    /// The name of the store that the limit shares with others in memory; see [`Preparation::store`].
    pub store: Option<&'a str>,
}

/// The engine that the server uses, for rules and for `CL.THROTTLE`.
#[derive(Debug)]
pub struct Engine {
    /// The engine that decides by rules.
    rules: RuleEngine,
    /// The states of `CL.THROTTLE` keys in memory. An engine over Redis uses them only while Redis
    /// is unavailable.
    pub throttle: Throttle,
    /// The directory of state files that the engine was made with.
    state: Option<StateConfig>,
}

/// The engine that decides by rules, by where it stores states.
enum RuleEngine {
    /// States are stored in the memory of this process.
    Memory(MemoryEngine<Arc<dyn Clock>>),
    /// States are stored in Redis, which several servers share.
    Redis(Redis),
}

impl Engine {
    /// Creates the engine of a configuration, with memory for `capacity` keys of `CL.THROTTLE`.
    ///
    /// # Errors
    /// Returns an error if memory, or randomness for the hash function, is not available.
    pub fn new(
        config: &EngineConfig,
        capacity: usize,
        clock: Arc<dyn Clock>,
    ) -> Result<Self, EngineError> {
        let throttle = Throttle::new(capacity, Arc::clone(&clock))?;
        let rules = match config {
            EngineConfig::Memory => RuleEngine::memory(clock)?,
            EngineConfig::State(config) => RuleEngine::files(config, clock)?,
            EngineConfig::Redis(config) => RuleEngine::Redis(Redis::new(config, clock)?),
        };
        let state = match config {
            EngineConfig::State(state) => Some(state.clone()),
            _ => None,
        };
        Ok(Self {
            rules,
            throttle,
            state,
        })
    }

    /// Prepares a rule for a number of clients, as [`earrrl::Engine::prepare`] does.
    ///
    /// # Errors
    /// Returns an error if the rule is invalid or memory runs short.
    pub fn prepare(&self, name: &str, rule: &Rule, capacity: usize) -> Result<RuleId, EngineError> {
        match &self.rules {
            RuleEngine::Memory(engine) => engine.prepare_with(name, rule, capacity),
            RuleEngine::Redis(redis) => redis.engine.prepare_with(name, rule, capacity),
        }
    }

    /// Prepares several limits. On an error, none of them is prepared.
    ///
    /// # Errors
    /// Returns an error if a limit is invalid or memory runs short.
    pub fn prepare_all(&self, limits: &[PlannedLimit<'_>]) -> Result<Vec<RuleId>, EngineError> {
        match &self.rules {
            RuleEngine::Memory(engine) => {
                let wanted = limits.iter().map(
                    |&PlannedLimit {
                         name,
                         rule,
                         capacity,
                         store,
                         ..
                     }| {
                        Preparation {
                            name,
                            rule,
                            capacity,
                            store,
                        }
                    },
                );
                engine.prepare_all(&wanted.collect::<Vec<_>>())
            }
            RuleEngine::Redis(redis) => {
                let wanted = limits.iter();
                let wanted = wanted
                    .map(|limit| (limit.name, &**limit.rule, limit.capacity, limit.consistency));
                redis.engine.prepare_all(&wanted.collect::<Vec<_>>())
            }
        }
    }

    /// Logs which of the rules begin afresh or keep another capacity since they were prepared.
    pub fn log_notices(&self, is_wanted: impl Fn(&str) -> bool) {
        let RuleEngine::Memory(engine) = &self.rules else {
            return;
        };
        for notice in engine.notices() {
            if is_wanted(notice.rule()) {
                tracing::warn!("{notice}");
            }
        }
    }

    /// Sets the verdicts of rules for requests that the engine cannot judge; these replace the
    /// engine's policy.
    pub fn set_on_error(&self, verdicts: &[(RuleId, Option<OnError>)]) {
        let RuleEngine::Redis(redis) = &self.rules else {
            return;
        };
        let allows = |on_error: Option<OnError>| on_error.map(|verdict| verdict == OnError::Allow);
        let verdicts: Vec<_> = verdicts
            .iter()
            .map(|(id, verdict)| (*id, allows(*verdict)))
            .collect();
        redis.engine.set_verdicts_without_redis(&verdicts);
    }

    /// Returns the number of requests that passed although the engine could not judge them.
    pub fn unjudged(&self) -> u64 {
        match &self.rules {
            RuleEngine::Memory(_) => 0,
            RuleEngine::Redis(redis) => redis.engine.status().counts.unjudged,
        }
    }

    /// Returns true if decisions wait for the network, so that several decisions should be
    /// requested at once.
    #[inline]
    pub fn waits(&self) -> bool {
        !matches!(self.rules, RuleEngine::Memory(_))
    }

    /// Returns true if limits can share a store; see [`PlannedLimit::store`].
    pub fn shares_stores(&self) -> bool {
        matches!(self.rules, RuleEngine::Memory(_)) && self.state.is_none()
    }

    /// Returns true if states are in files, which other processes may use too.
    pub fn has_files(&self) -> bool {
        self.state.is_some()
    }

    /// Returns true if a request is allowed when its deadline passes before the decision.
    pub fn passes_undecided(&self) -> bool {
        match &self.rules {
            RuleEngine::Memory(_) => true,
            RuleEngine::Redis(redis) => redis.engine.options().when_gone != WhenGone::Deny,
        }
    }

    /// Waits until the engine is ready, for at most `patience`.
    pub async fn ready(&self, patience: Duration) {
        if let RuleEngine::Redis(redis) = &self.rules {
            redis.ready(patience).await;
        }
    }

    /// Sends the counts that the engine has not stored yet, for at most `patience`. No decision may
    /// follow.
    pub async fn flush(&self, patience: Duration) {
        if let RuleEngine::Redis(redis) = &self.rules {
            redis.engine.flush(patience).await;
        }
    }

    /// Checks that the running engine can apply a new configuration without a restart.
    ///
    /// # Errors
    /// Returns the settings whose change needs a restart.
    pub fn may_reload(&self, config: &EngineConfig) -> Result<(), String> {
        match (&self.rules, config) {
            (RuleEngine::Memory(_), EngineConfig::Memory) if self.state.is_none() => Ok(()),
            (RuleEngine::Memory(_), EngineConfig::State(config))
                if self.state.as_ref() == Some(config) =>
            {
                Ok(())
            }
            (RuleEngine::Memory(_), EngineConfig::Memory | EngineConfig::State(_)) => {
                Err("[engine] state or not_persisted has changed; that needs a restart".into())
            }
            (RuleEngine::Redis(redis), EngineConfig::Redis(config)) => redis.may_reload(config),
            _ => Err("[engine] has changed between memory and redis; that needs a restart".into()),
        }
    }

    /// Applies the settings that [`Engine::may_reload`] accepted.
    pub fn reload(&self, config: &EngineConfig) {
        if let (RuleEngine::Redis(redis), EngineConfig::Redis(config)) = (&self.rules, config) {
            redis.reload(config);
        }
    }

    /// Returns how decisions are made at present.
    pub fn state(&self) -> EngineState {
        match &self.rules {
            RuleEngine::Memory(_) => EngineState {
                mode: "memory",
                trouble: None,
                owed: None,
            },
            RuleEngine::Redis(redis) => redis.state(),
        }
    }

    /// Returns the engine's own metrics.
    pub fn metrics(&self) -> Vec<Family> {
        match &self.rules {
            RuleEngine::Memory(_) => Vec::new(),
            RuleEngine::Redis(redis) => redis.metrics(),
        }
    }

    /// Returns the number of clients of a rule in memory, and the number of its active clients that
    /// were evicted.
    pub fn usage(&self, rule: RuleId) -> Option<(usize, u64)> {
        match &self.rules {
            RuleEngine::Memory(engine) => engine.usage(rule),
            RuleEngine::Redis(_) => None,
        }
    }

    /// Walks over the clients of a rule; `None` if their states are not in memory.
    ///
    /// # Errors
    /// Returns an error if the rule is unknown.
    pub fn survey(&self, rule: RuleId, count: usize) -> Result<Option<Survey>, EngineError> {
        match &self.rules {
            RuleEngine::Memory(engine) => engine.survey(rule, count).map(Some),
            RuleEngine::Redis(_) => Ok(None),
        }
    }

    /// Returns the hash of a key, by which clients are named.
    pub fn hash(&self, key: &[u8]) -> KeyHash {
        match &self.rules {
            RuleEngine::Memory(engine) => engine.hash(key),
            RuleEngine::Redis(_) => self.throttle.hash(key),
        }
    }

    /// Judges a charge and stores nothing; `None` if the engine would have to wait.
    pub fn peek_at_once(&self, charge: &Charge<'_>) -> Option<Decision> {
        let RuleEngine::Memory(engine) = &self.rules else {
            return None;
        };
        let hash = engine.hash(charge.key);
        engine
            .decide_hashed(charge.rule, hash, charge.cost, Mode::Peek, None)
            .ok()
    }

    /// Prefetches a client's state if it is in memory, and returns the hash of its key.
    #[inline]
    pub fn prefetch(&self, rule: RuleId, key: &[u8]) -> Option<KeyHash> {
        let RuleEngine::Memory(engine) = &self.rules else {
            return None;
        };
        let hash = engine.hash(key);
        engine.prefetch(rule, hash);
        Some(hash)
    }

    /// Decides one charge with the hash of its key that [`Engine::prefetch`] has returned.
    ///
    /// # Errors
    /// Returns the errors of [`Engine::decide`].
    #[inline]
    pub async fn decide_hashed(
        &self,
        charge: &Charge<'_>,
        hash: KeyHash,
        mode: Mode,
    ) -> Result<Decision, EngineError> {
        match &self.rules {
            RuleEngine::Memory(engine) => {
                engine.decide_hashed(charge.rule, hash, charge.cost, mode, None)
            }
            RuleEngine::Redis(_) => self.decide(std::slice::from_ref(charge), mode).await,
        }
    }

    /// Decides one charge with the hash that [`Engine::prefetch`] has returned, and returns a short
    /// decision; `None` if the engine would have to wait.
    #[inline]
    pub fn check_at_once(
        &self,
        charge: &Charge<'_>,
        hash: Option<KeyHash>,
    ) -> Option<Result<Brief, EngineError>> {
        let RuleEngine::Memory(engine) = &self.rules else {
            return None;
        };
        let hash = hash.unwrap_or_else(|| engine.hash(charge.key));
        Some(engine.check_hashed(charge.rule, hash, charge.cost))
    }

    /// Logs the entries that were removed from state files when they were opened.
    pub fn log_swept(&self) {
        let RuleEngine::Memory(engine) = &self.rules else {
            return;
        };
        for (rule, swept) in engine.swept() {
            let Swept {
                claims,
                ahead,
                duplicates,
                ..
            } = swept;
            tracing::warn!(
                rule,
                claims,
                ahead,
                duplicates,
                "removed entries from a state file"
            );
        }
    }

    /// Frees the memory of idle clients, and removes the state files that a changed rule has left behind.
    pub fn tidy(&self) {
        let RuleEngine::Memory(engine) = &self.rules else {
            return;
        };
        engine.tidy();
    }

    /// Decides a request at the present time of the engine's clock, as [`earrrl::Engine::decide`]
    /// does.
    ///
    /// # Errors
    /// Returns an error if a charge is invalid or the engine is unavailable.
    #[inline]
    pub async fn decide(
        &self,
        charges: &[Charge<'_>],
        mode: Mode,
    ) -> Result<Decision, EngineError> {
        match &self.rules {
            RuleEngine::Memory(engine) => engine.decide(charges, mode, None).into_inner(),
            RuleEngine::Redis(redis) => redis.engine.decide(charges, mode, redis.now()).await,
        }
    }

    /// Decides a call of `CL.THROTTLE`, by the state in Redis if the engine has one.
    ///
    /// # Errors
    /// Returns an error if the call's parameters cannot be counted exactly.
    pub async fn throttle(&self, key: &[u8], call: Call) -> Result<Throttled, EngineError> {
        match &self.rules {
            RuleEngine::Memory(_) => Ok(self.throttle.throttle(self.throttle.hash(key), call)),
            RuleEngine::Redis(redis) => redis.throttle(key, call, &self.throttle).await,
        }
    }

    /// Deletes the state of a key of `CL.THROTTLE`. Returns true if there was one.
    ///
    /// # Errors
    /// Returns an error if the engine is unavailable.
    pub async fn delete_throttle(&self, key: &[u8]) -> Result<bool, EngineError> {
        let here = self.throttle.delete(self.throttle.hash(key));
        match &self.rules {
            RuleEngine::Memory(_) => Ok(here),
            RuleEngine::Redis(redis) => redis.engine.delete_shift(key).await,
        }
    }

    /// Refunds a charge at the present time of the engine's clock, as [`earrrl::Engine::refund`]
    /// does.
    ///
    /// # Errors
    /// Returns an error if the charge is invalid or the engine is unavailable.
    pub async fn refund(
        &self,
        charge: &Charge<'_>,
        charged_at: Option<Nanos>,
    ) -> Result<(), EngineError> {
        match &self.rules {
            RuleEngine::Memory(engine) => engine.refund(charge, charged_at, None).into_inner(),
            RuleEngine::Redis(redis) => redis.engine.refund(charge, charged_at, redis.now()).await,
        }
    }

    /// Deletes a client's state under a rule, as [`earrrl::Engine::reset`] does.
    ///
    /// # Errors
    /// Returns an error if the engine is unavailable.
    pub async fn reset(&self, rule: RuleId, key: &[u8]) -> Result<(), EngineError> {
        match &self.rules {
            RuleEngine::Memory(engine) => engine.reset(rule, key).into_inner(),
            RuleEngine::Redis(redis) => redis.engine.reset(rule, key).await,
        }
    }
}

/// Returns the reason why rules cannot be prepared, such as a file that cannot be used. The engine itself
/// works on.
pub(crate) fn why_not_prepared(error: EngineError) -> String {
    match error {
        EngineError::Unavailable(why) => why,
        error => error.to_string(),
    }
}

impl RuleEngine {
    fn files(config: &StateConfig, clock: Arc<dyn Clock>) -> Result<Self, EngineError> {
        let directory = StateDirectory::open(&config.directory)
            .map_err(|error| EngineError::Unavailable(error.to_string()))?;
        let directory = directory.accept_rules_in_memory(config.accepts_other_rules);
        let engine = MemoryEngine::in_directory(1, directory, clock);
        engine
            .map(Self::Memory)
            .map_err(|error| EngineError::Unavailable(error.to_string()))
    }

    fn memory(clock: Arc<dyn Clock>) -> Result<Self, EngineError> {
        // A capacity of 1 is enough here, since each rule's capacity is set when the rule is
        // prepared.
        let engine = MemoryEngine::with_clock(1, clock);
        engine
            .map(Self::Memory)
            .map_err(|error| EngineError::Unavailable(error.to_string()))
    }
}

impl std::fmt::Debug for RuleEngine {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Memory(_) => "Memory",
            Self::Redis(_) => "Redis",
        })
    }
}
