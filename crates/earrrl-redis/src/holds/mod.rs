//! Reservations: an estimate is charged at once, and a commit corrects it to the actual cost.
//!
//! A reservation is a key beside the records of its client, in the same slot, so that one script
//! charges the estimate and stores the reservation, and one corrects the records and marks the
//! reservation as committed. If a reservation's records are in several slots of a Cluster, each slot
//! has a part of it, which is committed exactly once. The id contains the slot of the first one.

mod commit;
mod reserve;

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use earrrl::{
    Actual, Charge, Committed, Cost, EngineError, HoldId, HoldTerms, Holding, Mode, Nanos,
    RuleError, RuleId,
};

use crate::engine::RedisEngine;
use crate::hold_format as format;
use crate::request::{HoldRequest, Request};

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
        terms.check()?;
        let shared = self.shared().clone();
        let mut request = self.request(charges, Mode::Check, shared.clocks.given(now))?;
        if let Some(charge) = request.charges.iter().find(|charge| charge.rule.is_near) {
            let problem = format!("{}: a near rule has no reservations", charge.rule.name);
            return Err(RuleError::new(problem).of("consistency").into());
        }
        if terms.at_most {
            for place in 0..request.charges.len() {
                let charge = &request.charges[place];
                request.charges[place].cost = reserve::grant(&shared, charge, &request).await?;
            }
        }
        let timeouts = request.charges.iter();
        let timeouts = timeouts.filter_map(|charge| charge.rule.rule.limit().hold_timeout());
        let ttl = timeouts.fold(terms.ttl, Duration::min);
        let hold = HoldRequest { id: new_id(&request)?, ttl };
        let mut granted = vec![Cost::ZERO; charges.len()];
        for charge in &request.charges {
            granted[charge.place] = charge.cost;
        }
        let request = Arc::new(Request { hold: Some(hold), ..request });
        let since = shared.clocks.now(request.now);
        shared.holds.take(hold.id, since, since + ttl)?;
        let decision = in_task(async move {
            let decision = reserve::reserve(&shared, &request).await;
            if !decision.as_ref().is_ok_and(|decision| decision.allowed) {
                shared.holds.end(hold.id);
            }
            decision
        })
        .await?;
        if !decision.allowed {
            granted.fill(Cost::ZERO);
        }
        let id = decision.allowed.then_some(hold.id);
        Ok(Holding::new(decision, id, granted))
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
        let shared = self.shared();
        let committed = commit::commit(shared, id, actual, shared.clocks.given(now)).await?;
        shared.holds.end(id);
        Ok(committed)
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
        commit::renew(shared, id, ttl, given).await?;
        shared.holds.renew(id, shared.clocks.now(given) + ttl);
        Ok(())
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
        let holds = commit::read(shared, id, shared.clocks.given(now)).await?;
        commit::rules(shared, id, &holds)
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

/// Returns an id that nobody can guess, in the slot of the request's first charge.
fn new_id(request: &Request) -> Result<HoldId, EngineError> {
    let mut random = [0; 16];
    getrandom::fill(&mut random).map_err(|error| EngineError::Unavailable(error.to_string()))?;
    let slot = request.charges.first().map_or(0, |charge| charge.slot);
    Ok(format::id_in(slot, u128::from_le_bytes(random)))
}

/// Runs a reservation to its end, even if the caller stops waiting for it.
async fn in_task<T: Send + 'static>(
    work: impl Future<Output = Result<T, EngineError>> + Send + 'static,
) -> Result<T, EngineError> {
    let stopped = |_| Err(EngineError::Unavailable("a task was stopped".to_owned()));
    tokio::spawn(work).await.unwrap_or_else(stopped)
}
