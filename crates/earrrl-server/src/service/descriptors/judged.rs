//! The decision on a request's charges, in several parts where the engine cannot make it at once.
//!
//! The engine decides at most [`MAX_CHARGES`] together, and fails for all of them if it fails for one. Neither
//! may let a client pass: more charges are decided in batches, and the charges of a batch that failed one by
//! one.

use earrrl::{Charge, Decision, EngineError, MAX_CHARGES, Mode};
use smallvec::SmallVec;

use crate::engine::Engine;

/// The decisions on a request's charges.
#[derive(Debug, Default)]
pub(super) struct JudgedRequest {
    /// The parts that were decided, in the order of their charges; mostly one.
    parts: SmallVec<[DecidedPart; 1]>,
}

/// The decision on some charges of a request.
#[derive(Debug)]
struct DecidedPart {
    /// The place of the first of them.
    first: usize,
    decided: Result<Decision, EngineError>,
}

impl JudgedRequest {
    /// Decides charges. With [`Mode::Check`], a denial ends it: the charges after it are not judged.
    pub(super) async fn new(engine: &Engine, charges: &[Charge<'_>], mode: Mode) -> Self {
        let mut judged = Self::default();
        for (batch, first) in charges.chunks(MAX_CHARGES).zip((0..).step_by(MAX_CHARGES)) {
            match engine.decide(batch, mode).await {
                // Boxed, so that it takes no room where nothing fails.
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

    /// Returns true if the last part denies a request that is not charged then.
    fn ends(&self, mode: Mode) -> bool {
        let last = self.parts.last().and_then(|part| part.decided.as_ref().ok());
        mode == Mode::Check && last.is_some_and(|decision| !decision.allowed)
    }

    /// Returns the decision, if one part is all.
    pub(super) fn only(&self) -> Option<&Decision> {
        let [part] = &*self.parts else { return None };
        part.decided.as_ref().ok()
    }

    /// Returns true if the charge at this place is over its own limit.
    pub(super) fn is_over(&self, place: usize) -> bool {
        self.part(place).is_some_and(|(decision, place)| decision.is_over(place))
    }

    /// Returns true if the charge at this place was stored by [`Mode::Check`], unless its own limit is over.
    pub(super) fn is_stored(&self, place: usize) -> bool {
        self.part(place).is_some_and(|(decision, _)| decision.allowed)
    }

    /// Returns the error of the charge at this place.
    pub(super) fn error(&self, place: usize) -> Option<&EngineError> {
        let part = self.parts.iter().find(|part| part.first == place)?;
        part.decided.as_ref().err()
    }

    /// Returns the decision on the charge at this place, and the charge's place in it.
    fn part(&self, place: usize) -> Option<(&Decision, usize)> {
        let part = self.parts.iter().rev().find(|part| part.first <= place)?;
        Some((part.decided.as_ref().ok()?, place - part.first))
    }
}
