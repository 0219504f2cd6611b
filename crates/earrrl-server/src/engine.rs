//! What keeps the states, one of several kinds: an enum, so that nothing is boxed and nothing is
//! looked up on the way of a decision.

use std::sync::Arc;
use std::time::Duration;

use earrrl::{
    Charge, Clock, Decision, Engine as _, EngineError, MemoryEngine, Mode, Nanos, Rule, RuleId,
};

use crate::config::EngineConfig;
use crate::metrics::Family;
#[cfg(feature = "redis")]
use crate::redis::Redis;

/// The server's engine.
pub enum Engine {
    /// This process's own memory.
    Memory(MemoryEngine<Arc<dyn Clock>>),
    /// Redis, for every server that uses it alike.
    #[cfg(feature = "redis")]
    Redis(Redis),
}

/// How decisions are made at present, for `/readyz`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct State {
    /// In a word.
    pub mode: &'static str,
    /// Why it is not the usual one, if it is not.
    pub trouble: Option<String>,
    /// Clients whose counts are to be handed over to what is shared.
    pub owed: Option<usize>,
}

impl Engine {
    /// The engine that a configuration asks for.
    ///
    /// # Errors
    /// When the operating system has no randomness for the hash, say.
    pub fn new(config: &EngineConfig, clock: Arc<dyn Clock>) -> Result<Self, EngineError> {
        match config {
            EngineConfig::Memory => Self::memory(clock),
            #[cfg(feature = "redis")]
            EngineConfig::Redis(config) => Redis::new(config, clock).map(Self::Redis),
        }
    }

    fn memory(clock: Arc<dyn Clock>) -> Result<Self, EngineError> {
        // Every rule says its own capacity when it is prepared.
        let engine = MemoryEngine::with_clock(1, clock);
        engine.map(Self::Memory).map_err(|error| EngineError::Unavailable(error.to_string()))
    }

    /// As [`earrrl::Engine::prepare`], for so many live clients.
    ///
    /// # Errors
    /// As there.
    pub fn prepare(&self, name: &str, rule: &Rule, capacity: usize) -> Result<RuleId, EngineError> {
        match self {
            Self::Memory(engine) => engine.prepare_with(name, rule, capacity),
            #[cfg(feature = "redis")]
            Self::Redis(engine) => engine.prepare(name, rule, capacity),
        }
    }

    /// Whether answers are waited for, so that several are best asked for at once.
    #[inline]
    pub fn waits(&self) -> bool {
        !matches!(self, Self::Memory(_))
    }

    /// Waits until it is at work, for at most `patience`.
    pub async fn ready(&self, patience: Duration) {
        match self {
            Self::Memory(_) => {
                let _ = patience;
            }
            #[cfg(feature = "redis")]
            Self::Redis(engine) => engine.ready(patience).await,
        }
    }

    /// Takes over what may change of an engine at work.
    ///
    /// # Errors
    /// What has changed needs a restart.
    pub fn reload(&self, config: &EngineConfig) -> Result<(), String> {
        match (self, config) {
            (Self::Memory(_), EngineConfig::Memory) => Ok(()),
            #[cfg(feature = "redis")]
            (Self::Redis(engine), EngineConfig::Redis(config)) => engine.reload(config),
            #[cfg(feature = "redis")]
            _ => Err("[engine] has changed between memory and redis; that needs a restart".into()),
        }
    }

    /// How decisions are made at present.
    pub fn state(&self) -> State {
        match self {
            Self::Memory(_) => State { mode: "memory", trouble: None, owed: None },
            #[cfg(feature = "redis")]
            Self::Redis(engine) => engine.state(),
        }
    }

    /// Figures of its own, for `/metrics`.
    pub fn metrics(&self) -> Vec<Family> {
        match self {
            Self::Memory(_) => Vec::new(),
            #[cfg(feature = "redis")]
            Self::Redis(engine) => engine.metrics(),
        }
    }

    /// How many clients of a rule are stored here, and how many that were not idle had to go.
    pub fn usage(&self, rule: RuleId) -> Option<(usize, u64)> {
        match self {
            Self::Memory(engine) => engine.usage(rule),
            #[cfg(feature = "redis")]
            Self::Redis(_) => None,
        }
    }

    /// Begins to fetch a client's state where that is in memory.
    #[inline]
    pub fn prefetch(&self, rule: RuleId, key: &[u8]) {
        match self {
            Self::Memory(engine) => engine.prefetch(rule, key),
            #[cfg(feature = "redis")]
            Self::Redis(_) => {}
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
        match self {
            Self::Memory(engine) => engine.decide(charges, mode, None).into_inner(),
            #[cfg(feature = "redis")]
            Self::Redis(engine) => engine.decide(charges, mode).await,
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
        match self {
            Self::Memory(engine) => engine.refund(charge, charged_at, None).into_inner(),
            #[cfg(feature = "redis")]
            Self::Redis(engine) => engine.refund(charge, charged_at).await,
        }
    }

    /// As [`earrrl::Engine::reset`].
    ///
    /// # Errors
    /// As there.
    pub async fn reset(&self, rule: RuleId, key: &[u8]) -> Result<(), EngineError> {
        match self {
            Self::Memory(engine) => engine.reset(rule, key).into_inner(),
            #[cfg(feature = "redis")]
            Self::Redis(engine) => engine.reset(rule, key).await,
        }
    }
}

impl std::fmt::Debug for Engine {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Memory(_) => "Memory",
            #[cfg(feature = "redis")]
            Self::Redis(_) => "Redis",
        })
    }
}
