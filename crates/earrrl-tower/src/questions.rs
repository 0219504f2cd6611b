//! What an engine is asked about one request: the decision, and where that does not tell all that
//! headers need, a peek for each rule that is missing.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use earrrl::{Cost, Decision, Engine, EngineError, Mode, Outcome};
use smallvec::SmallVec;

use crate::asked::Asked;
use crate::headers::{Available, peek_cost};
use crate::known::Known;

/// Questions under way; `D` is the engine's future.
pub(crate) enum Questions<D> {
    Decide(D),
    Peek(Decision, SmallVec<[Item<D>; 1]>),
}

/// A rule that the headers tell of.
pub(crate) struct Item<D> {
    place: usize,
    state: ItemState<D>,
}

enum ItemState<D> {
    Asked(D),
    Told(Option<Available>),
}

/// All that is known of a request.
pub(crate) struct Told {
    pub(crate) decision: Decision,
    /// By the charges' places, the deciding one first; only what headers tell of.
    pub(crate) available: SmallVec<[(usize, Available); 2]>,
}

impl<D: Future<Output = Result<Decision, EngineError>> + Unpin> Questions<D> {
    pub(crate) fn new(engine: &impl Engine<Decide = D>, known: &[Known], asked: &Asked) -> Self {
        Self::Decide(engine.decide(&asked.charges(known), Mode::Check, None))
    }

    /// Goes on asking. Once it has answered, it must not be polled again.
    pub(crate) fn poll(
        &mut self,
        context: &mut Context<'_>,
        engine: &impl Engine<Decide = D>,
        known: &[Known],
        asked: &Asked,
        on_allowed: bool,
    ) -> Poll<Result<Told, EngineError>> {
        if let Self::Decide(deciding) = self {
            let decision = ready!(Pin::new(deciding).poll(context))?;
            let wanted = on_allowed || decision.outcome == Outcome::Deny;
            let items =
                if wanted { items(engine, known, asked, &decision) } else { SmallVec::new() };
            *self = Self::Peek(decision, items);
        }
        let Self::Peek(decision, items) = self else { return Poll::Pending };
        for item in items.iter_mut() {
            ready!(item.poll(context, known, asked));
        }
        let available = items.iter().filter_map(|item| match item.state {
            ItemState::Told(available) => Some((item.place, available?)),
            ItemState::Asked(_) => None,
        });
        Poll::Ready(Ok(Told { decision: *decision, available: available.collect() }))
    }
}

/// Every rule that the headers tell of, the deciding one first, and a peek where it takes one.
fn items<D>(
    engine: &impl Engine<Decide = D>,
    known: &[Known],
    asked: &Asked,
    decision: &Decision,
) -> SmallVec<[Item<D>; 1]> {
    let deciding = decision.rule;
    let others = asked.each().map(|(place, _)| place).filter(|place| *place != deciding);
    let places = std::iter::once(deciding).chain(others);
    let shown = places.filter_map(|place| {
        let of = asked.get(place)?;
        let known_rule = of.known(known);
        known_rule.is_shown().then(|| Item {
            place,
            state: match Available::told(&known_rule.rule, decision, place) {
                Some(available) => ItemState::Told(Some(available)),
                None => {
                    let cost: Cost = peek_cost(decision, place, of.cost);
                    let charge = asked.charge(known, of, cost);
                    ItemState::Asked(engine.decide(&[charge], Mode::Peek, None))
                }
            },
        })
    });
    shown.collect()
}

impl<D: Future<Output = Result<Decision, EngineError>> + Unpin> Item<D> {
    /// Where a peek fails, the header goes without the rule.
    fn poll(&mut self, context: &mut Context<'_>, known: &[Known], asked: &Asked) -> Poll<()> {
        if let ItemState::Asked(peek) = &mut self.state {
            let decision = ready!(Pin::new(peek).poll(context)).ok();
            let rule = asked.get(self.place).map(|of| &of.known(known).rule);
            let available = decision.zip(rule);
            self.state = ItemState::Told(
                available.map(|(decision, rule)| Available::peeked(rule, &decision)),
            );
        }
        Poll::Ready(())
    }
}
