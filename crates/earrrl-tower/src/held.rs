//! A request that a rule with the action `delay` holds back. It is charged when it comes. If it is not passed on,
//! because too many are held back or because its client leaves, it is refunded: otherwise the next request would wait
//! for the turns of requests that are gone.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use earrrl::{Engine, Nanos};

use crate::charges::RequestCharges;
use crate::lasting::PendingCharge;
use crate::shared::SharedLimits;

/// A place among the requests that are held back. Dropping it frees the place, and refunds the request unless it was
/// passed on.
pub(crate) struct Held {
    /// The number of requests that are held back, if this one is among them.
    places: Option<Arc<AtomicUsize>>,
    refund: Option<Refund>,
}

type Refund = Box<dyn FnOnce() -> PendingCharge + Send + Sync>;

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
        let refund = charged.map(|(charges, at)| -> Refund {
            let shared = Arc::clone(shared);
            Box::new(move || shared.refund(&charges, at))
        });
        let mut held = Self {
            places: None,
            refund,
        };
        held.places = Some(shared.take_place()?);
        Some(held)
    }

    /// Frees the place of a request that is passed on now, which keeps its charge.
    pub(crate) fn pass_on(mut self) {
        self.refund = None;
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        if let Some(places) = &self.places {
            places.fetch_sub(1, Ordering::Relaxed);
        }
        if let Some(refund) = self.refund.take() {
            // An engine in memory has refunded when this value is dropped.
            drop(refund());
        }
    }
}
