//! The charge that depends on the response. It is made even if the client leaves before the
//! response.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use earrrl::{Cost, Engine};
use http::{Response, StatusCode, response};

use crate::charges::RequestCharges;
use crate::event::Event;
use crate::pending_charge::PendingCharge;
use crate::shared::SharedLimits;

/// The charge of the rules with [`cost_after`](crate::RequestRule::cost_after). It is made at the
/// latest when this value is dropped, unless the service was never called.
pub(crate) struct CostAfter {
    charges: Option<Box<dyn ByResponse>>,
    service_called: bool,
}

trait ByResponse: Send {
    fn charge(&self, response: &response::Parts) -> PendingCharge;
}

struct Charges<E> {
    shared: Arc<SharedLimits<E>>,
    charges: RequestCharges,
}

impl CostAfter {
    pub(crate) fn new<E>(shared: Arc<SharedLimits<E>>, charges: RequestCharges) -> Self
    where
        E: Engine + Send + Sync + 'static,
    {
        Self {
            charges: Some(Box::new(Charges { shared, charges })),
            service_called: false,
        }
    }

    pub(crate) fn note_service_called(&mut self) {
        self.service_called = true;
    }

    /// Starts to charge the cost of the response.
    pub(crate) fn charge(mut self, response: &response::Parts) -> PendingCharge {
        self.charges
            .take()
            .map_or(PendingCharge::none(), |charges| charges.charge(response))
    }
}

impl Drop for CostAfter {
    fn drop(&mut self) {
        let Some(charges) = self.charges.take().filter(|_| self.service_called) else {
            return;
        };
        // The user's closure computes the cost. If it panicked while a panic of the service is
        // unwinding, the process would abort.
        let _ = catch_unwind(AssertUnwindSafe(|| drop(charges.charge(&no_response()))));
    }
}

impl<E> ByResponse for Charges<E>
where
    E: Engine + Send + Sync + 'static,
{
    fn charge(&self, response: &response::Parts) -> PendingCharge {
        let shared = Arc::clone(&self.shared);
        let decided = shared.charge(&self.charges, |charge| {
            let cost = charge.rule(&shared.rules).cost_after.as_ref();
            cost.map_or(Cost::ZERO, |cost| cost(response))
        });
        PendingCharge::new(async move {
            if let Err(error) = decided.await {
                shared.emit(&Event::EngineFailed(&error));
            }
        })
    }
}

/// Returns the response that the closure gets if there is none. It has status 499, which nginx logs
/// in this case.
fn no_response() -> response::Parts {
    let status = StatusCode::from_u16(499).unwrap_or(StatusCode::REQUEST_TIMEOUT);
    let mut parts = Response::new(()).into_parts().0;
    parts.status = status;
    parts
}
