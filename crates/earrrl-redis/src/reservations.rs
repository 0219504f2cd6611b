//! The methods of the engine for reservations.

use std::time::Duration;

use earrrl::{
    Actual, Charge, Committed, Engine as _, EngineError, HoldId, HoldTerms, Holding, Nanos, RuleId,
};

use crate::engine::RedisEngine;
use crate::hold_format::is_of_redis;
use crate::holds;

impl RedisEngine {
    /// Checks a request whose cost is only estimated, and reserves the estimate under all rules if
    /// it is allowed, as [`MemoryEngine::hold`](earrrl::MemoryEngine::hold) does. Any node can
    /// commit the reservation.
    ///
    /// ```no_run
    /// # use earrrl_redis::{Options, RedisEngine};
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// use earrrl::{Actual, Charge, Cost, Engine, HoldTerms};
    /// let engine = RedisEngine::new(Options::new("redis://127.0.0.1:6379"))?;
    /// let rule = engine.prepare("tokens", &"token-bucket 100000 refill=100000/1d".parse()?)?;
    /// let charge = Charge { rule, key: b"alice", cost: Cost::from_units(4096) };
    /// let holding = engine.hold(&[charge], HoldTerms::default(), None).await?;
    /// if let Some(id) = holding.id {
    ///     // … the model answers with 731 tokens …
    ///     engine.commit(id, Actual::All(Cost::from_units(731)), None).await?;
    /// }
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// Returns an error if a charge or the terms are invalid, a rule is near, this node has made as
    /// many reservations as it may, or Redis does not answer. Nothing is reserved then.
    pub async fn hold(
        &self,
        charges: &[Charge<'_>],
        terms: HoldTerms,
        now: Option<Nanos>,
    ) -> Result<Holding, EngineError> {
        self.place_hold(charges, terms, now).await
    }

    /// Corrects the charges of a reservation to the actual cost, exactly once, as
    /// [`MemoryEngine::commit`](earrrl::MemoryEngine::commit) does. Any node may do it.
    ///
    /// A bucket gets less back than in memory if newer reservations of its client have given
    /// something back before, and it could have been full.
    ///
    /// # Errors
    /// Returns an error if the reservation is unknown or expired, or a cost is for a rule that is not
    /// part of the reservation. If Redis does not answer, the
    /// reservation may or may not be committed; a repeated commit is safe.
    pub async fn commit(
        &self,
        id: HoldId,
        actual: Actual<'_>,
        now: Option<Nanos>,
    ) -> Result<Committed, EngineError> {
        self.commit_hold(id, actual, now).await
    }

    /// Prolongs a live reservation: it then expires after `ttl` from now, or sooner if the timeout of
    /// one of its rules of concurrent is shorter.
    ///
    /// # Errors
    /// Returns an error if the reservation is unknown, expired or committed, `ttl` is out of its
    /// bounds, or Redis does not answer.
    pub async fn renew(
        &self,
        id: HoldId,
        ttl: Duration,
        now: Option<Nanos>,
    ) -> Result<(), EngineError> {
        HoldTerms::default().ttl(ttl).check()?;
        let shared = self.shared();
        let given = shared.clocks.given(now);
        holds::renew(shared, id, ttl, given).await?;
        shared.holds.renew(id, shared.clocks.now(given) + ttl);
        Ok(())
    }

    /// Returns true if `id` is that of a reservation which any node made, also if that has expired, or was
    /// committed so long ago that Redis has forgotten it.
    ///
    /// ```
    /// # use earrrl::HoldId;
    /// # use earrrl_redis::RedisEngine;
    /// assert!(!RedisEngine::has_issued(HoldId::from_bits(7)));
    /// ```
    #[must_use]
    pub fn has_issued(id: HoldId) -> bool {
        is_of_redis(id)
    }

    /// Returns the rules of a reservation that is live or was committed lately.
    ///
    /// # Errors
    /// Returns an error if the reservation is unknown or expired, or Redis does not answer.
    pub async fn reserved_rules(
        &self,
        id: HoldId,
        now: Option<Nanos>,
    ) -> Result<Vec<RuleId>, EngineError> {
        let shared = self.shared();
        holds::rules(shared, id, shared.clocks.given(now)).await
    }

    /// Sets the most reservations of this node that may be live at a time; 100 000 by default. One
    /// that another node commits counts until it would have expired.
    ///
    /// ```
    /// # use earrrl_redis::{Options, RedisEngine};
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let engine = RedisEngine::new(Options::new("redis://127.0.0.1:6379"))?;
    /// engine.set_max_reservations(10_000);
    /// # Ok(())
    /// # }
    /// ```
    pub fn set_max_reservations(&self, most: usize) {
        self.shared().holds.set_most(most);
    }
}
