//! A request that a rule with the action `delay` holds back. It is charged when it comes. If it is not passed on,
//! because too many are held back or because its client leaves, it is refunded: otherwise the next request would wait
//! for the turns of requests that are gone.

use std::sync::Arc;

use earrrl::{Engine, Nanos};

use crate::charges::RequestCharges;
use crate::shared::SharedLimits;

/// A place among the requests that are held back. Dropping it frees the place, and refunds the request unless it was
/// passed on.
pub(crate) struct Held(Box<dyn HeldBack>);

trait HeldBack: Send + Sync {
    /// Keeps the charge of the request.
    fn keep_charge(&mut self);
}

struct HeldRequest<E>
where
    E: Engine + Send + Sync + 'static,
{
    shared: Arc<SharedLimits<E>>,
    /// The charges with their instant; `None` if a refund is not due.
    charged: Option<(RequestCharges, Nanos)>,
}

impl Held {
    /// Takes a place for a request with its charges and their instant. Returns `None`, and refunds the request, if all
    /// places are taken.
    pub(crate) fn new<E>(
        shared: &Arc<SharedLimits<E>>,
        charged: Option<(RequestCharges, Nanos)>,
    ) -> Option<Self>
    where
        E: Engine + Send + Sync + 'static,
    {
        let has_place = shared.try_hold();
        if !has_place && let Some((charges, at)) = charged {
            drop(shared.refund(&charges, at));
            return None;
        }
        has_place.then(|| {
            let shared = Arc::clone(shared);
            Self(Box::new(HeldRequest { shared, charged }))
        })
    }

    /// Frees the place of a request that is passed on now.
    pub(crate) fn pass_on(mut self) {
        self.0.keep_charge();
    }
}

impl<E> HeldBack for HeldRequest<E>
where
    E: Engine + Send + Sync + 'static,
{
    fn keep_charge(&mut self) {
        self.charged = None;
    }
}

impl<E> Drop for HeldRequest<E>
where
    E: Engine + Send + Sync + 'static,
{
    fn drop(&mut self) {
        self.shared.free_place();
        if let Some((charges, at)) = self.charged.take() {
            // An engine in memory has refunded when this value is dropped.
            drop(self.shared.refund(&charges, at));
        }
    }
}
