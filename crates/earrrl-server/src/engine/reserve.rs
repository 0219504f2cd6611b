//! Reservations by the server's engine, in memory or in Redis.

use std::time::Duration;

use earrrl::{Actual, Charge, Committed, EngineError, HoldId, HoldTerms, Holding, RuleId};
use earrrl_redis::RedisEngine;

use super::{Engine, RuleEngine};
use crate::metrics::Family;

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
