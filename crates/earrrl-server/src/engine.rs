//! What keeps the states, one of several kinds: an enum, so that nothing is boxed and nothing is
//! looked up on the way of a decision.

use std::sync::Arc;

use earrrl::{
    Charge, Clock, Decision, Engine as _, EngineError, MemoryEngine, Nanos, Rule, RuleId,
};

/// The server's engine.
pub enum Engine {
    /// This process's own memory.
    Memory(MemoryEngine<Arc<dyn Clock>>),
}

impl Engine {
    /// An engine in this process's memory.
    ///
    /// # Errors
    /// When the operating system has no randomness for the hash.
    pub fn memory(clock: Arc<dyn Clock>) -> Result<Self, EngineError> {
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
        }
    }

    /// How many clients of a rule are stored, and how many that were not idle had to go.
    pub fn usage(&self, rule: RuleId) -> Option<(usize, u64)> {
        match self {
            Self::Memory(engine) => engine.usage(rule),
        }
    }

    /// As [`earrrl::Engine::decide`], by the engine's own clock.
    ///
    /// # Errors
    /// As there.
    #[inline]
    pub async fn decide(&self, charges: &[Charge<'_>]) -> Result<Decision, EngineError> {
        match self {
            Self::Memory(engine) => engine.decide(charges, None).await,
        }
    }

    /// As [`earrrl::Engine::peek`], by the engine's own clock.
    ///
    /// # Errors
    /// As there.
    pub async fn peek(&self, charges: &[Charge<'_>]) -> Result<Decision, EngineError> {
        match self {
            Self::Memory(engine) => engine.peek(charges, None).await,
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
            Self::Memory(engine) => engine.refund(charge, charged_at, None).await,
        }
    }

    /// As [`earrrl::Engine::reset`].
    ///
    /// # Errors
    /// As there.
    pub async fn reset(&self, rule: RuleId, key: &[u8]) -> Result<(), EngineError> {
        match self {
            Self::Memory(engine) => engine.reset(rule, key).await,
        }
    }
}

impl std::fmt::Debug for Engine {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Memory(_) => f.write_str("Memory"),
        }
    }
}
