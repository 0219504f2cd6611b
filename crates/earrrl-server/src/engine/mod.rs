//! The engine that the server uses. The kinds of engines are an enum, so that a decision needs no
//! allocation and no dynamic dispatch. Both kinds have the methods of [`Engine`]; what only one of them has is
//! found at [`Engine::memory`] and [`Engine::redis`].

pub mod redis;
pub mod throttle;

use std::sync::Arc;
use std::time::Duration;

use earrrl::internal::table::KeyHash;
use earrrl::internal::{Preparation, StateDirectory};
use earrrl::{
    Actual, Charge, Clock, Committed, Decision, Engine as _, EngineError, HoldId, HoldTerms,
    Holding, MemoryEngine, Mode, Nanos, Rule, RuleId,
};
use earrrl_redis::{Consistency, RedisEngine, WhenGone};
use earrrl_tower::bounded_key;

use self::redis::{EngineState, Redis};
use self::throttle::{Call, Throttle, Throttled};
use crate::config::{EngineConfig, StateConfig};
use crate::metrics::Family;

/// A limit to prepare in the engine.
#[derive(Clone, Debug)]
pub struct PlannedLimit {
    /// The limit's name in the engine.
    pub name: Arc<str>,
    /// The limit, as an engine's rule.
    pub rule: Arc<Rule>,
    /// The number of clients to size the limit's table for.
    pub capacity: usize,
    /// The consistency of the limit's decisions between servers.
    pub consistency: Consistency,
    /// The name of the store that the limit shares with others in memory; see [`Preparation::store`].
    pub store: Option<Arc<str>>,
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

/// The engine with its states in the memory of this process.
pub type Memory = MemoryEngine<Arc<dyn Clock>>;

/// The engine that decides by rules, by where it stores states.
enum RuleEngine {
    /// States are stored in the memory of this process.
    Memory(Memory),
    /// States are stored in Redis, which several servers share.
    Redis(Redis),
}

/// # Making the engine, and changing its configuration
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
            RuleEngine::Redis(redis) => redis.prepare_with(name, rule, capacity),
        }
    }

    /// Prepares several limits. On an error, none of them is prepared.
    ///
    /// # Errors
    /// Returns an error if a limit is invalid or memory runs short.
    pub fn prepare_all(&self, limits: &[&PlannedLimit]) -> Result<Vec<RuleId>, EngineError> {
        match &self.rules {
            RuleEngine::Memory(engine) => {
                let wanted = limits.iter().map(|limit| Preparation {
                    name: &limit.name,
                    rule: &limit.rule,
                    capacity: limit.capacity,
                    store: limit.store.as_deref(),
                });
                engine.prepare_all(&wanted.collect::<Vec<_>>())
            }
            RuleEngine::Redis(redis) => {
                let wanted = limits.iter().map(|limit| {
                    (
                        &*limit.name,
                        &*limit.rule,
                        limit.capacity,
                        limit.consistency,
                    )
                });
                redis.prepare_all(&wanted.collect::<Vec<_>>())
            }
        }
    }

    /// Returns the engine in memory; `None` if states are in Redis.
    #[inline]
    pub fn memory(&self) -> Option<&Memory> {
        match &self.rules {
            RuleEngine::Memory(memory) => Some(memory),
            RuleEngine::Redis(_) => None,
        }
    }

    /// Returns the engine over Redis; `None` if states are in memory.
    pub fn redis(&self) -> Option<&Redis> {
        match &self.rules {
            RuleEngine::Memory(_) => None,
            RuleEngine::Redis(redis) => Some(redis),
        }
    }

    /// Returns true if decisions wait for the network, so that several decisions should be
    /// requested at once.
    #[inline]
    pub fn waits(&self) -> bool {
        self.memory().is_none()
    }

    /// Returns true if limits can share a store; see [`PlannedLimit::store`].
    pub fn shares_stores(&self) -> bool {
        !self.waits() && self.state.is_none()
    }

    /// Returns true if states are in files, which other processes may use too.
    pub fn has_files(&self) -> bool {
        self.state.is_some()
    }

    /// Returns true if a request is allowed when its deadline passes before the decision.
    pub fn passes_undecided(&self) -> bool {
        let redis = self.redis();
        redis.is_none_or(|redis| redis.options().when_gone != WhenGone::Deny)
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
        let in_memory = || EngineState {
            mode: "memory",
            trouble: None,
            owed: None,
        };
        self.redis().map_or_else(in_memory, Redis::state)
    }
}

/// # Decisions and the states of clients
impl Engine {
    /// Returns the hash of a key, by which clients are named.
    #[inline]
    pub fn hash(&self, key: &[u8]) -> KeyHash {
        match &self.rules {
            RuleEngine::Memory(memory) => memory.hash(key),
            RuleEngine::Redis(_) => self.throttle.hash(key),
        }
    }

    /// Decides a request at the present time of the engine's clock, as [`earrrl::Engine::decide`]
    /// does. `hash` is that of the key of the only charge, if it is known already.
    ///
    /// # Errors
    /// Returns an error if a charge is invalid or the engine is unavailable.
    #[inline]
    pub async fn decide(
        &self,
        charges: &[Charge<'_>],
        hash: Option<KeyHash>,
        mode: Mode,
    ) -> Result<Decision, EngineError> {
        match (&self.rules, charges, hash) {
            (RuleEngine::Memory(memory), [charge], Some(hash)) => {
                memory.decide_hashed(charge.rule, hash, charge.cost, mode, None)
            }
            (RuleEngine::Memory(memory), ..) => memory.decide(charges, mode, None).into_inner(),
            (RuleEngine::Redis(redis), ..) => redis.decide(charges, mode, redis.now()).await,
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
            RuleEngine::Memory(memory) => memory.refund(charge, charged_at, None).into_inner(),
            RuleEngine::Redis(redis) => redis.refund(charge, charged_at, redis.now()).await,
        }
    }

    /// Deletes a client's state under a rule, as [`earrrl::Engine::reset`] does.
    ///
    /// # Errors
    /// Returns an error if the engine is unavailable.
    pub async fn reset(&self, rule: RuleId, key: &[u8]) -> Result<(), EngineError> {
        match &self.rules {
            RuleEngine::Memory(memory) => memory.reset(rule, key).into_inner(),
            RuleEngine::Redis(redis) => redis.reset(rule, key).await,
        }
    }

    /// Decides a call of `CL.THROTTLE`, by the state in Redis if the engine has one, which all servers share.
    /// In memory only the hash of a key is stored, so a long key needs no digest.
    ///
    /// # Errors
    /// Returns an error if the call's parameters cannot be counted exactly.
    pub async fn throttle(&self, key: &[u8], call: Call) -> Result<Throttled, EngineError> {
        match self.redis() {
            None => Ok(self.throttle.throttle(self.throttle.hash(key), call)),
            Some(redis) => {
                redis
                    .throttle(&bounded_key(key), call, &self.throttle)
                    .await
            }
        }
    }

    /// Deletes the state of a key of `CL.THROTTLE`. Returns true if there was one.
    ///
    /// # Errors
    /// Returns an error if the engine is unavailable.
    pub async fn delete_throttle(&self, key: &[u8]) -> Result<bool, EngineError> {
        let here = self.throttle.delete(self.throttle.hash(key));
        match self.redis() {
            None => Ok(here),
            Some(redis) => redis.delete_shift(&bounded_key(key)).await,
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

impl Engine {
    /// Reserves an estimate, as [`MemoryEngine::hold`](earrrl::MemoryEngine::hold) does.
    ///
    /// # Errors
    /// Returns the errors of the engine.
    pub async fn hold(
        &self,
        charges: &[Charge<'_>],
        terms: HoldTerms,
    ) -> Result<Holding, EngineError> {
        match &self.rules {
            RuleEngine::Memory(engine) => engine.hold(charges, terms, None),
            // Boxed here and below, so that it takes no space in futures of the engine in memory.
            RuleEngine::Redis(redis) => Box::pin(redis.hold(charges, terms, redis.now())).await,
        }
    }

    /// Corrects a reservation to the actual cost, as
    /// [`MemoryEngine::commit`](earrrl::MemoryEngine::commit) does.
    ///
    /// # Errors
    /// Returns the errors of the engine.
    pub async fn commit(&self, id: HoldId, actual: Actual<'_>) -> Result<Committed, EngineError> {
        match &self.rules {
            RuleEngine::Memory(engine) => engine.commit(id, actual, None),
            RuleEngine::Redis(redis) => Box::pin(redis.commit(id, actual, redis.now())).await,
        }
    }

    /// Prolongs a reservation, as [`MemoryEngine::renew`](earrrl::MemoryEngine::renew) does.
    ///
    /// # Errors
    /// Returns the errors of the engine.
    pub async fn renew(&self, id: HoldId, ttl: Duration) -> Result<(), EngineError> {
        match &self.rules {
            RuleEngine::Memory(engine) => engine.renew(id, ttl, None),
            RuleEngine::Redis(redis) => Box::pin(redis.renew(id, ttl, redis.now())).await,
        }
    }

    /// Returns true if this engine made a reservation of this id, as
    /// [`MemoryEngine::has_issued`](earrrl::MemoryEngine::has_issued) does; over Redis, if any server
    /// did.
    pub fn has_issued(&self, id: HoldId) -> bool {
        match &self.rules {
            RuleEngine::Memory(engine) => engine.has_issued(id),
            RuleEngine::Redis(_) => RedisEngine::has_issued(id),
        }
    }

    /// Returns the rules of a reservation.
    ///
    /// # Errors
    /// Returns an error if the reservation is unknown or expired, or Redis does not answer.
    pub async fn reserved_rules(&self, id: HoldId) -> Result<Vec<RuleId>, EngineError> {
        match &self.rules {
            RuleEngine::Memory(engine) => engine.reserved_rules(id),
            RuleEngine::Redis(redis) => Box::pin(redis.reserved_rules(id, redis.now())).await,
        }
    }

    /// Sets the most reservations that are live at a time.
    pub fn set_max_reservations(&self, most: usize) {
        match &self.rules {
            RuleEngine::Memory(engine) => engine.set_max_reservations(most),
            RuleEngine::Redis(redis) => redis.set_max_reservations(most),
        }
    }

    /// Ends the reservations that have expired.
    pub fn expire_reservations(&self) {
        if let Some(memory) = self.memory() {
            memory.expire();
        }
    }

    /// Returns the metrics of reservations; none if states are in Redis.
    pub fn reservation_metrics(&self) -> Vec<Family> {
        let Some(memory) = self.memory() else {
            return Vec::new();
        };
        let reservations = memory.reservations();
        let gauge = |name, help, value: usize| Family::gauge(name, help).value(value as f64);
        let ended = [
            ("committed", reservations.committed),
            ("expired", reservations.expired),
        ];
        let ended = ended.map(|(reason, count)| (reason, count as f64));
        vec![
            gauge(
                "earrrl_reservations",
                "Live reservations.",
                reservations.live,
            ),
            gauge(
                "earrrl_reservations_max",
                "The bound on live reservations.",
                reservations.most,
            ),
            gauge(
                "earrrl_reservations_bytes",
                "Memory of reservations.",
                reservations.bytes,
            ),
            Family::counter(
                "earrrl_reservations_ended_total",
                "Reservations that have ended, by reason.",
            )
            .labelled("reason", ended),
        ]
    }
}
