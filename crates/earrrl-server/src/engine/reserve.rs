//! Reservations by the server's engine. Only an engine in memory keeps them.

use std::sync::Arc;

use earrrl::{
    Actual, Charge, Clock, Committed, EngineError, HoldId, HoldTerms, Holding, MemoryEngine,
    RuleError, RuleId,
};

use super::{Engine, RuleEngine};
use crate::config::NEEDS_MEMORY;
use crate::metrics::Family;

impl Engine {
    /// Reserves an estimate, as [`MemoryEngine::hold`] does.
    ///
    /// # Errors
    /// Returns the errors of [`MemoryEngine::hold`], and an error if states are in Redis.
    pub fn hold(&self, charges: &[Charge<'_>], terms: HoldTerms) -> Result<Holding, EngineError> {
        self.reserving()?.hold(charges, terms, None)
    }

    /// Corrects a reservation to the actual cost, as [`MemoryEngine::commit`] does.
    ///
    /// # Errors
    /// Returns the errors of [`MemoryEngine::commit`], and an error if states are in Redis.
    pub fn commit(&self, id: HoldId, actual: Actual<'_>) -> Result<Committed, EngineError> {
        self.reserving()?.commit(id, actual, None)
    }

    /// Returns true if this engine made a reservation of this id, as [`MemoryEngine::has_issued`]
    /// does.
    pub fn has_issued(&self, id: HoldId) -> bool {
        self.reserving().is_ok_and(|engine| engine.has_issued(id))
    }

    /// Returns the rules of a reservation.
    ///
    /// # Errors
    /// Returns an error if the reservation is unknown or expired, or states are in Redis.
    pub fn reserved_rules(&self, id: HoldId) -> Result<Vec<RuleId>, EngineError> {
        self.reserving()?.reserved_rules(id)
    }

    /// Sets the most reservations that are live at a time.
    pub fn set_max_reservations(&self, most: usize) {
        if let RuleEngine::Memory(engine) = &self.rules {
            engine.set_max_reservations(most);
        }
    }

    /// Ends the reservations that have expired.
    pub fn expire_reservations(&self) {
        if let RuleEngine::Memory(engine) = &self.rules {
            engine.expire();
        }
    }

    /// Returns the metrics of reservations; none if states are in Redis.
    pub fn reservation_metrics(&self) -> Vec<Family> {
        let RuleEngine::Memory(engine) = &self.rules else { return Vec::new() };
        let reservations = engine.reservations();
        let gauge = |name, help, value: usize| Family::gauge(name, help).value(value as f64);
        let ended = [("committed", reservations.committed), ("expired", reservations.expired)];
        let ended = ended.map(|(reason, count)| (reason, count as f64));
        vec![
            gauge("earrrl_reservations", "Live reservations.", reservations.live),
            gauge("earrrl_reservations_max", "The bound on live reservations.", reservations.most),
            gauge("earrrl_reservations_bytes", "Memory of reservations.", reservations.bytes),
            Family::counter(
                "earrrl_reservations_ended_total",
                "Reservations that have ended, by reason.",
            )
            .labelled("reason", ended),
        ]
    }

    fn reserving(&self) -> Result<&MemoryEngine<Arc<dyn Clock>>, EngineError> {
        match &self.rules {
            RuleEngine::Memory(engine) => Ok(engine),
            RuleEngine::Redis(_) => Err(RuleError::new(NEEDS_MEMORY.to_owned()).into()),
        }
    }
}
