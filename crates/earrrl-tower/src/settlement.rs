//! Costs that are known only while a request is served, which a handler settles, or afterwards, by
//! the response. The latter are charged even if the client leaves before the response.

use std::fmt;
use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use earrrl::{Cost, Decision, Engine, EngineError};
use http::{Response, StatusCode, response};

use crate::charges::RequestCharges;
use crate::lasting::PendingCharge;
use crate::shared::SharedLimits;
use crate::verdict::Event;

/// A handle that charges a request after the decision, under the rules that are
/// [`settled`](crate::RequestRule::settled). The layer adds it to the request's extensions. It can
/// be cloned and kept for any time.
///
/// The charge is stored even if it exceeds the limit, so it affects the client's next requests.
///
/// ```
/// use earrrl::{Cost, Rule};
/// use earrrl_tower::{RequestRule, Settlement, key};
/// // Tokens of a language model: the request is judged before, and charged when they are known.
/// let tokens: Rule = "token-bucket 100000 refill=100000/1d".parse()?;
/// let rule = RequestRule::new("tokens", tokens, key::Everyone).cost(Cost::ZERO).settled();
///
/// async fn handler(request: http::Request<()>) {
///     let settlement = request.extensions().get::<Settlement>().cloned();
///     let tokens_used = 812;
///     if let Some(settlement) = settlement {
///         let _ = settlement.charge(Cost::from_units(tokens_used)).await;
///     }
/// }
/// # let _ = (handler, rule);
/// # Ok::<(), earrrl::RuleError>(())
/// ```
#[derive(Clone)]
pub struct Settlement(Arc<dyn Fn(Cost) -> Charged + Send + Sync>);

impl Settlement {
    pub(crate) fn new<E>(shared: Arc<SharedLimits<E>>, charges: RequestCharges) -> Self
    where
        E: Engine + Send + Sync + 'static,
    {
        Self(Arc::new(move |cost| {
            Charged(Box::pin(shared.charge(&charges, |_| cost)))
        }))
    }

    /// Charges `cost`, but at most each rule's `max_cost`. If the engine is in memory, the charge
    /// is complete when this function returns, so it can be called where nothing can be awaited,
    /// such as in `Drop`. With other engines the future must be awaited.
    pub fn charge(&self, cost: Cost) -> Charged {
        (self.0)(cost)
    }
}

/// The future of a charge by a [`Settlement`].
///
/// It returns the decision that a check would have returned. The charge is stored in any case.
#[must_use = "over an engine that is not in memory, nothing is charged unless this is awaited"]
pub struct Charged(Pin<Box<dyn Future<Output = Answer> + Send>>);

type Answer = Result<Decision, EngineError>;

impl Future for Charged {
    type Output = Answer;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Answer> {
        self.0.as_mut().poll(context)
    }
}

impl fmt::Debug for Settlement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Settlement")
    }
}

impl fmt::Debug for Charged {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Charged")
    }
}

/// The charge of the rules with [`cost_after`](crate::RequestRule::cost_after), which depends on the response.
pub(crate) type ChargeByResponse = Box<dyn FnOnce(&response::Parts) -> PendingCharge + Send>;

impl<E: Engine + Send + Sync + 'static> SharedLimits<E> {
    /// Returns the charge by the response of a request.
    pub(crate) fn charge_by_response(self: Arc<Self>, charges: RequestCharges) -> ChargeByResponse {
        Box::new(move |response: &response::Parts| {
            let decided = self.charge(&charges, |charge| {
                let cost = charge.rule(&self.rules).cost_after.as_ref();
                cost.map_or(Cost::ZERO, |cost| cost(response))
            });
            PendingCharge::new(async move {
                if let Err(error) = decided.await {
                    self.emit(&Event::EngineFailed(&error));
                }
            })
        })
    }
}

/// The charge of a request that is passed on. It is made at the latest when this value is dropped.
pub(crate) struct CostAfter(pub(crate) Option<ChargeByResponse>);

impl CostAfter {
    /// Starts to charge the cost of the response.
    pub(crate) fn charge(mut self, response: &response::Parts) -> Option<PendingCharge> {
        self.0.take().map(|charge| charge(response))
    }
}

impl Drop for CostAfter {
    fn drop(&mut self) {
        let Some(charge) = self.0.take() else {
            return;
        };
        // The user's closure computes the cost. If it panicked while a panic of the service is
        // unwinding, the process would abort.
        let _ = catch_unwind(AssertUnwindSafe(|| drop(charge(&no_response()))));
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
