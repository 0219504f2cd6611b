//! What an engine is asked about one request: the decision, and where that does not tell all that
//! headers need, a peek for each rule that is missing.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use earrrl::{Decision, Engine, EngineError, Mode, Outcome};
use smallvec::SmallVec;

use crate::asked::Asked;
use crate::headers::{Available, peek_cost};
use crate::known::Known;

/// Questions under way; `D` is the engine's future.
pub(crate) enum Questions<D> {
    Decide(D),
    Peek(Told, Vec<Peek<D>>),
}

/// A question about a rule that the decision does not tell enough of.
pub(crate) struct Peek<D> {
    /// Which of [`Told::available`] it is about.
    item: usize,
    asked: D,
}

/// All that is known of a request.
pub(crate) struct Told {
    pub(crate) decision: Decision,
    /// Only the rules that headers tell of, the deciding one first.
    pub(crate) available: SmallVec<[Item; 1]>,
}

/// What is available under one rule, once that is known.
pub(crate) struct Item {
    /// The place of the charge.
    pub(crate) place: usize,
    pub(crate) available: Option<Available>,
}

impl<D: Future<Output = Result<Decision, EngineError>> + Unpin> Questions<D> {
    pub(crate) fn new(engine: &impl Engine<Decide = D>, known: &[Known], asked: &Asked) -> Self {
        Self::Decide(match asked.only() {
            Some(of) => engine.decide(&[asked.charge(known, of, of.cost)], Mode::Check, None),
            None => engine.decide(&asked.charges(known), Mode::Check, None),
        })
    }

    /// Goes on asking.
    pub(crate) fn poll(
        &mut self,
        context: &mut Context<'_>,
        engine: &impl Engine<Decide = D>,
        known: &[Known],
        asked: &Asked,
        on_allowed: bool,
    ) -> Poll<Result<&Told, EngineError>> {
        if let Self::Decide(deciding) = self {
            let decision = ready!(Pin::new(deciding).poll(context))?;
            let wanted = on_allowed || decision.outcome == Outcome::Deny;
            *self = Self::Peek(Told { decision, available: SmallVec::new() }, Vec::new());
            if let Self::Peek(told, peeks) = self
                && wanted
            {
                tell(told, peeks, engine, known, asked);
            }
        }
        let Self::Peek(told, peeks) = self else { return Poll::Pending };
        while let Some(peek) = peeks.last_mut() {
            let decision = ready!(Pin::new(&mut peek.asked).poll(context)).ok();
            let item = &mut told.available[peek.item];
            let rule = asked.get(item.place).map(|of| of.known(known));
            item.available = decision.zip(rule).map(|(decision, rule)| rule.available(&decision));
            peeks.pop();
        }
        Poll::Ready(Ok(told))
    }
}

/// Every rule that the headers tell of, the deciding one first, and a peek where it takes one. Where
/// that fails, the headers go without the rule.
fn tell<D>(
    told: &mut Told,
    peeks: &mut Vec<Peek<D>>,
    engine: &impl Engine<Decide = D>,
    known: &[Known],
    asked: &Asked,
) {
    let decision = &told.decision;
    let others = asked.each().map(|(place, _)| place).filter(|place| *place != decision.rule);
    for place in std::iter::once(decision.rule).chain(others) {
        let Some(of) = asked.get(place) else { continue };
        let of_rule = of.known(known);
        if !of_rule.is_shown() {
            continue;
        }
        let tells = Available::tells(&of_rule.rule, decision, place);
        let available = tells.then(|| of_rule.available(decision));
        if available.is_none() {
            let charge = asked.charge(known, of, peek_cost(decision, place, of.cost));
            let item = told.available.len();
            peeks.push(Peek { item, asked: engine.decide(&[charge], Mode::Peek, None) });
        }
        told.available.push(Item { place, available });
    }
}
