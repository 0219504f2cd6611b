//! Costs that are known only while a request is served, or afterwards.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use earrrl::{Cost, Decision, Engine, EngineError};

use crate::charges::RequestCharges;
use crate::shared::SharedLimits;

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
pub struct Settlement(Arc<dyn Settle>);

trait Settle: Send + Sync {
    fn charge(&self, cost: Cost) -> Charged;
}

struct SettledCharges<E> {
    shared: Arc<SharedLimits<E>>,
    charges: RequestCharges,
}

impl Settlement {
    pub(crate) fn new<E>(shared: Arc<SharedLimits<E>>, charges: RequestCharges) -> Self
    where
        E: Engine + Send + Sync + 'static,
        E::Decide: Unpin,
    {
        Self(Arc::new(SettledCharges { shared, charges }))
    }

    /// Charges `cost`, but at most each rule's `max_cost`. If the engine is in memory, the charge
    /// is complete when this function returns, so it can be called where nothing can be awaited,
    /// such as in `Drop`. With other engines the future must be awaited.
    pub fn charge(&self, cost: Cost) -> Charged {
        self.0.charge(cost)
    }
}

impl<E> Settle for SettledCharges<E>
where
    E: Engine + Send + Sync + 'static,
    E::Decide: Unpin,
{
    fn charge(&self, cost: Cost) -> Charged {
        let mut charging = self.shared.charge(&self.charges, |_| cost);
        match Pin::new(&mut charging).poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(result) => Charged(ChargeStage::Done(Some(result))),
            Poll::Pending => Charged(ChargeStage::Pending(Box::pin(charging))),
        }
    }
}

/// The future of a charge by a [`Settlement`].
///
/// It returns the decision that a check would have returned. The charge is stored in any case.
#[must_use = "over an engine that is not in memory, nothing is charged unless this is awaited"]
pub struct Charged(ChargeStage);

type Answer = Result<Decision, EngineError>;

enum ChargeStage {
    Done(Option<Answer>),
    Pending(Pin<Box<dyn Future<Output = Answer> + Send>>),
}

impl Future for Charged {
    type Output = Answer;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Answer> {
        match &mut self.0 {
            ChargeStage::Done(answer) => answer.take().map_or(Poll::Pending, Poll::Ready),
            ChargeStage::Pending(charging) => charging.as_mut().poll(context),
        }
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
