//! A request's reservation: made, and committed in the engine that made it.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use earrrl::internal::Reserving;
use earrrl::{Actual, Cost, Decision, Engine, EngineError, HoldId, Holding, RuleId};

use crate::event::Event;
use crate::pending_charge::PendingCharge;
use crate::request_hold::{HoldGuard, ReservedRule, StartCommit};
use crate::shared::SharedLimits;

/// A decision with its reservation, if it is allowed.
pub(crate) type Placed = (Decision, Option<HoldGuard>);

/// A reservation in flight. If this value is dropped, the reservation is released when it arrives, since
/// the service is not called then.
pub(crate) struct PlacingHold(Option<Placing>);

struct Placing {
    holding: Reserving<Holding>,
    /// The rules whose costs are reserved, each with its place in the request.
    rules: Vec<(usize, ReservedRule)>,
    /// Taken when the reservation has arrived.
    commit: Option<Box<dyn StartCommit>>,
}

impl PlacingHold {
    pub(crate) fn new(
        holding: Reserving<Holding>,
        rules: Vec<(usize, ReservedRule)>,
        commit: Box<dyn StartCommit>,
    ) -> Self {
        Self(Some(Placing {
            holding,
            rules,
            commit: Some(commit),
        }))
    }
}

impl Future for PlacingHold {
    type Output = Result<Placed, EngineError>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let Some(placing) = &mut self.0 else {
            return Poll::Pending;
        };
        let placed = ready!(Pin::new(placing).poll(context));
        self.0 = None;
        Poll::Ready(placed)
    }
}

impl Drop for PlacingHold {
    fn drop(&mut self) {
        if let Some(placing) = self.0.take() {
            drop(PendingCharge::new(async move { drop(placing.await) }));
        }
    }
}

impl Future for Placing {
    type Output = Result<Placed, EngineError>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let holding = ready!(self.holding.as_mut().poll(context))?;
        let granted = |place: usize| holding.granted().get(place).copied().unwrap_or_default();
        let rules = std::mem::take(&mut self.rules).into_iter();
        let rules = rules.map(|(place, rule)| ReservedRule {
            granted: granted(place),
            ..rule
        });
        let owned = holding.id.zip(self.commit.take());
        let guard = owned.map(|(id, commit)| HoldGuard::new(id, commit, rules.collect()));
        Poll::Ready(Ok((holding.decision, guard)))
    }
}

/// The engine of a layer in which a reservation is.
pub(crate) struct LayerHold<E> {
    pub(crate) shared: Arc<SharedLimits<E>>,
    /// True if the engine is the one that decides while the layer's own engine fails.
    pub(crate) is_local: bool,
}

impl<E> StartCommit for LayerHold<E>
where
    E: Engine + Send + Sync + 'static,
{
    fn start(&self, id: HoldId, costs: &[(RuleId, Cost)]) -> PendingCharge {
        let shared = Arc::clone(&self.shared);
        let actual = Actual::ByRule(costs);
        let committed = match &shared.local {
            Some((local, _)) if self.is_local => local.commit_hold(id, actual, None),
            _ => shared.engine.commit_hold(id, actual, None),
        };
        PendingCharge::new(async move {
            if let Err(error) = committed.await {
                shared.emit(&Event::CommitFailed(&error));
            }
        })
    }
}
