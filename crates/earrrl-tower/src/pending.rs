//! A decision in flight: first the engine decides, then a peek follows for each rule whose headers
//! need figures that the decision lacks.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use earrrl::{Decision, Engine, EngineError, Mode, Outcome};
use smallvec::SmallVec;

use crate::charges::PreparedCharges;
use crate::headers::{Available, peek_cost};
use crate::request_hold::{HoldGuard, Placed, PlacingHold};

/// A decision in flight; `D` is the engine's future.
#[allow(
    clippy::large_enum_variant,
    reason = "a box would cost each request an allocation"
)]
pub(crate) enum PendingDecision<D> {
    Deciding(D),
    /// The decision on an estimate.
    Placing(PlacingHold),
    Peeking(ItemizedDecision, Vec<Peek<D>>),
}

/// A peek for a charge whose figures the decision lacks.
pub(crate) struct Peek<D> {
    /// The index of the peek's item in [`ItemizedDecision::items`].
    item: usize,
    answer: D,
}

/// The decision on a request, and the quota that its headers report.
pub(crate) struct ItemizedDecision {
    pub(crate) decision: Decision,
    /// The rules that headers report, the deciding one first.
    pub(crate) items: SmallVec<[Item; 1]>,
    /// The request's reservation, which is released if the request is not passed on.
    pub(crate) reserved: Option<HoldGuard>,
}

/// The quota that is available under one rule.
pub(crate) struct Item {
    /// The place of the charge in the request.
    pub(crate) place: usize,
    /// The available quota; `None` before the peek was answered, or if it failed.
    pub(crate) available: Option<Available>,
}

impl<D: Future<Output = Result<Decision, EngineError>> + Unpin> PendingDecision<D> {
    /// Starts a decision on a request whose costs are not reserved.
    pub(crate) fn new(engine: &impl Engine<Decide = D>, charges: PreparedCharges<'_>) -> Self {
        Self::Deciding(match charges.charges.only() {
            Some(only) => {
                let charge = charges.with_cost(only, only.cost);
                engine.decide(&[charge], Mode::Check, None)
            }
            None => engine.decide(&charges.for_engine(), Mode::Check, None),
        })
    }

    /// Continues until all figures are known. If `on_allowed` is true, that includes the figures of
    /// allowed requests.
    pub(crate) fn poll(
        &mut self,
        context: &mut Context<'_>,
        engine: &impl Engine<Decide = D>,
        charges: PreparedCharges<'_>,
        on_allowed: bool,
    ) -> Poll<Result<&mut ItemizedDecision, EngineError>> {
        if let Some((decision, reserved)) = ready!(self.poll_decision(context))? {
            let needs_items = on_allowed || decision.outcome == Outcome::Deny;
            let judgement = ItemizedDecision {
                decision,
                items: SmallVec::new(),
                reserved,
            };
            *self = Self::Peeking(judgement, Vec::new());
            if let Self::Peeking(judgement, peeks) = self
                && needs_items
            {
                add_items(judgement, peeks, engine, charges);
            }
        }
        let Self::Peeking(judgement, peeks) = self else {
            return Poll::Pending;
        };
        while let Some(peek) = peeks.last_mut() {
            // If a peek fails, the response lacks this rule's item, but the request continues.
            let decision = ready!(Pin::new(&mut peek.answer).poll(context)).ok();
            let item = &mut judgement.items[peek.item];
            item.available = decision
                .zip(charges.rule_at(item.place))
                .map(|(decision, rule)| rule.available(&decision));
            peeks.pop();
        }
        Poll::Ready(Ok(judgement))
    }

    /// Returns the decision and its reservation when they arrive; `None` if they arrived before.
    fn poll_decision(
        &mut self,
        context: &mut Context<'_>,
    ) -> Poll<Result<Option<Placed>, EngineError>> {
        Poll::Ready(Ok(match self {
            Self::Deciding(deciding) => Some((ready!(Pin::new(deciding).poll(context))?, None)),
            Self::Placing(placing) => Some(ready!(Pin::new(placing).poll(context))?),
            Self::Peeking(..) => None,
        }))
    }
}

/// Adds an item for each rule that headers report, the deciding one first, and starts a peek where
/// the decision lacks its figures.
fn add_items<D>(
    judgement: &mut ItemizedDecision,
    peeks: &mut Vec<Peek<D>>,
    engine: &impl Engine<Decide = D>,
    charges: PreparedCharges<'_>,
) {
    let decision = &judgement.decision;
    let places = charges.charges.iter().map(|(place, _)| place);
    let others = places.filter(|place| *place != decision.rule);
    for place in std::iter::once(decision.rule).chain(others) {
        let Some(charge) = charges.charges.get(place) else {
            continue;
        };
        let rule = charges.rule(charge);
        if !rule.is_shown() {
            continue;
        }
        let has_figures = Available::is_in(decision, &rule.rule, place);
        let available = has_figures.then(|| rule.available(decision));
        if available.is_none() {
            let cost = peek_cost(decision, place, charge.cost);
            let peeked = charges.with_cost(charge, cost);
            let item = judgement.items.len();
            peeks.push(Peek {
                item,
                answer: engine.decide(&[peeked], Mode::Peek, None),
            });
        }
        judgement.items.push(Item { place, available });
    }
}
