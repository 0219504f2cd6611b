//! Reservations under the limits of descriptors.

use earrrl::{Clock, HoldId, HoldTerms};

use super::asked::{self, Asked, Hits};
use super::judged::JudgedRequest;
use super::prepared::{Descriptors, LimitKind};
use super::verdict::Verdicts;
use super::{answer, figures};
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
    pub async fn reserve(
        &self,
        engine: &Engine,
        rules: &ActiveRules,
        clock: &dyn Clock,
        request: &RateLimitRequest,
        terms: HoldTerms,
    ) -> Result<(bool, Option<HoldId>), AskError> {
        terms.check()?;
        if request.descriptors.iter().any(|one| one.limit.is_some()) {
            return Err(AskError::invalid(
                "descriptors: a reservation under a limit that it brings is not possible; expected none with `limit`",
            ));
        }
        let Asked { limits, failed } = asked::asked(self, rules, request, engine)?;
        if let Some(error) = failed {
            return Err(error);
        }
        let denied = limits.iter().any(|asked| {
            let is_zero = matches!(asked.kind, LimitKind::Zero(_));
            is_zero && !asked.shadow_mode && asked.hits != Hits::Charged(0)
        });
        let charges = asked::charges(&limits);
        let (judged, id) = if denied || charges.is_empty() {
            (JudgedRequest::default(), None)
        } else {
            let holding = engine.hold(&charges, terms).await?;
            (JudgedRequest::of(holding.decision), holding.id)
        };
        let allowed = !denied && judged.only().is_none_or(|decision| decision.allowed);
        let own = limits.iter().map(|_| None).collect();
        let figures = figures(engine, &limits, &judged, &own).await;
        let verdicts = Verdicts::new(&limits, figures, &judged, clock.now());
        answer::count(self, engine, request, &limits, &verdicts);
        Ok((allowed, id))
    }
}
