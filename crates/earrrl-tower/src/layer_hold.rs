//! The commit of a request's reservation in the engine that made it.

use std::sync::Arc;

use earrrl::{Actual, Cost, Engine, HoldId, RuleId};

use crate::event::Event;
use crate::pending_charge::PendingCharge;
use crate::request_hold::StartCommit;
use crate::shared::SharedLimits;

/// A reservation in an engine of the layer.
pub(crate) struct LayerHold<E> {
    pub(crate) shared: Arc<SharedLimits<E>>,
    pub(crate) id: HoldId,
    /// True if the engine is the one that decides while the layer's own engine fails.
    pub(crate) is_local: bool,
}

impl<E> StartCommit for LayerHold<E>
where
    E: Engine + Send + Sync + 'static,
{
    fn start(&self, costs: &[(RuleId, Cost)]) -> PendingCharge {
        let shared = Arc::clone(&self.shared);
        let actual = Actual::ByRule(costs);
        let committed = match &shared.local {
            Some((local, _)) if self.is_local => local.commit_hold(self.id, actual, None),
            _ => shared.engine.commit_hold(self.id, actual, None),
        };
        PendingCharge::new(async move {
            if let Err(error) = committed.await {
                shared.emit(&Event::CommitFailed(&error));
            }
        })
    }
}
