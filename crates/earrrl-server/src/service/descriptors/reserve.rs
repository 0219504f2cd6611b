//! Reservations under the limits of descriptors.

use earrrl::{HoldId, HoldTerms};

use super::asked::{self, Asked, Hits};
use super::prepared::{Descriptors, LimitKind};
use crate::engine::Engine;
use crate::protobuf::ratelimit::RateLimitRequest;
use crate::service::error::AskError;
use crate::service::rules::ActiveRules;

impl Descriptors {
    /// Reserves the hits of a request under all limits that its descriptors match. Returns true if
    /// the request is allowed, and the id of the reservation; `None` if no limit counts the request
    /// or it is denied.
    ///
    /// # Errors
    /// Returns an [`AskError`] if the request or the terms are invalid, or the engine fails.
    pub fn reserve(
        &self,
        engine: &Engine,
        rules: &ActiveRules,
        request: &RateLimitRequest,
        terms: HoldTerms,
    ) -> Result<(bool, Option<HoldId>), AskError> {
        terms.check()?;
        let Asked { mut limits, failed } = asked::asked(self, rules, request, engine)?;
        if let Some(error) = failed {
            return Err(error);
        }
        asked::place(&mut limits);
        let denied = limits.iter().any(|asked| {
            let is_zero = matches!(asked.limit.kind, LimitKind::Zero(_));
            is_zero && !asked.limit.shadow_mode && asked.hits != Hits::Charged(0)
        });
        let charges = asked::charges(&limits);
        if denied || charges.is_empty() {
            return Ok((!denied, None));
        }
        let holding = engine.hold(&charges, terms)?;
        Ok((holding.decision.allowed, holding.id))
    }
}
