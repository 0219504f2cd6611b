//! A request that a rule with the action `delay` holds back. It is charged when it comes. If it is not passed on,
//! because too many are held back or because its client leaves, it is refunded: otherwise the next request would wait
//! for the turns of requests that are gone.

use std::sync::Arc;

use earrrl::{Engine, Nanos};

use crate::charges::RequestCharges;
use crate::shared::SharedLimits;

/// A place among the requests that are held back. Dropping it frees the place, and refunds the request unless it was
/// passed on.
pub(crate) struct Held(Option<Box<dyn FnOnce(Passage) + Send + Sync>>);

/// The end of a request's wait.
#[derive(PartialEq)]
enum Passage {
    PassedOn,
    GivenUp,
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
            Self(Some(Box::new(move |passage| {
                shared.free_place();
                let refunded = charged.filter(|_| passage == Passage::GivenUp);
                if let Some((charges, at)) = refunded {
                    // An engine in memory has refunded when this value is dropped.
                    drop(shared.refund(&charges, at));
                }
            })))
        })
    }

    /// Frees the place of a request that is passed on now, which keeps its charge.
    pub(crate) fn pass_on(mut self) {
        self.end(Passage::PassedOn);
    }

    fn end(&mut self, passage: Passage) {
        if let Some(end) = self.0.take() {
            end(passage);
        }
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.end(Passage::GivenUp);
    }
}
