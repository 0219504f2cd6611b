//! The engine's decision on the charges of a request, which may consist of several parts.
//!
//! The engine decides at most [`MAX_CHARGES`] charges together, and an error for one of them fails
//! all of them. So more charges are decided in batches, and the charges of a failed batch are
//! decided one by one: neither case may let a client pass.

use earrrl::{Charge, Decision, EngineError, MAX_CHARGES, Mode, Nanos};
use smallvec::SmallVec;

use crate::engine::Engine;

/// The decisions on all charges of a request.
#[derive(Debug, Default)]
pub(super) struct JudgedRequest {
    /// The decisions in the order of the charges; usually a single one covers all charges.
    parts: SmallVec<[DecidedPart; 1]>,
}

/// The decision on a sequence of consecutive charges of a request.
#[derive(Debug)]
struct DecidedPart {
    /// The index of the first charge that this decision covers.
    first: usize,
    decided: Result<Decision, EngineError>,
}

impl JudgedRequest {
    /// Decides the charges of a request. In [`Mode::Check`] the first denial stops this, and the
    /// charges after it are not judged.
    pub(super) async fn new(engine: &Engine, charges: &[Charge<'_>], mode: Mode) -> Self {
        let mut judged = Self::default();
        for (batch, first) in charges.chunks(MAX_CHARGES).zip((0..).step_by(MAX_CHARGES)) {
            match engine.decide(batch, mode).await {
                // The future is boxed, so that it takes no space when no charge fails.
                Err(_) if batch.len() > 1 => {
                    Box::pin(judged.decide_each(engine, batch, first, mode)).await;
                }
                decided => judged.parts.push(DecidedPart { first, decided }),
            }
            if judged.ends(mode) {
                break;
            }
        }
        judged
    }

    /// Returns the decision that covers all charges of a request.
    pub(super) fn of(decision: Decision) -> Self {
        Self {
            parts: [DecidedPart {
                first: 0,
                decided: Ok(decision),
            }]
            .into_iter()
            .collect(),
        }
    }

    async fn decide_each(
        &mut self,
        engine: &Engine,
        batch: &[Charge<'_>],
        first: usize,
        mode: Mode,
    ) {
        for (charge, first) in batch.iter().zip(first..) {
            let decided = engine.decide(std::slice::from_ref(charge), mode).await;
            self.parts.push(DecidedPart { first, decided });
            if self.ends(mode) {
                break;
            }
        }
    }

    /// Returns true if the last decision denies the request in a mode that charges no denied
    /// request.
    pub(super) fn ends(&self, mode: Mode) -> bool {
        let last = self
            .parts
            .last()
            .and_then(|part| part.decided.as_ref().ok());
        mode == Mode::Check && last.is_some_and(|decision| !decision.allowed)
    }

    /// Returns the decision if a single one covers all charges.
    pub(super) fn only(&self) -> Option<&Decision> {
        let [part] = &*self.parts else { return None };
        part.decided.as_ref().ok()
    }

    /// Returns true if the charge at this index exceeds its own limit.
    pub(super) fn is_over(&self, place: usize) -> bool {
        self.part(place)
            .is_some_and(|(decision, place)| decision.is_over(place))
    }

    /// Returns the instant at which [`Mode::Check`] stored the charge at this index; `None` if it did
    /// not. The result is meaningless for a charge that exceeds its own limit.
    pub(super) fn stored_at(&self, place: usize) -> Option<Nanos> {
        let (decision, _) = self.part(place)?;
        decision.allowed.then_some(decision.at)
    }

    /// Returns the error for the charge at this index, if the engine failed to judge it.
    pub(super) fn error(&self, place: usize) -> Option<&EngineError> {
        let part = self.parts.iter().find(|part| part.first == place)?;
        part.decided.as_ref().err()
    }

    /// Returns the decision that covers the charge at this index, and the charge's index within
    /// that decision.
    fn part(&self, place: usize) -> Option<(&Decision, usize)> {
        let part = self.parts.iter().rev().find(|part| part.first <= place)?;
        Some((part.decided.as_ref().ok()?, place - part.first))
    }
}
