//! Costs that turn out only while a request is served.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use earrrl::{Cost, Decision, Engine, EngineError};

use crate::asked::Asked;
use crate::shared::Shared;

/// Charges a request afterwards, under the rules that are [`settled`](crate::RequestRule::settled).
/// It stands in the request's extensions; take it out and keep it as long as you like.
///
/// What is charged stands even where it goes over the limit: the client's next requests are judged
/// with it.
///
/// ```
/// use earrrl::{Cost, Rule};
/// use earrrl_tower::{RequestRule, Settlement, key};
/// // Tokens of a language model: judged before, charged when they are known.
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

struct Of<E> {
    shared: Arc<Shared<E>>,
    asked: Asked,
}

impl Settlement {
    pub(crate) fn new<E>(shared: Arc<Shared<E>>, asked: Asked) -> Self
    where
        E: Engine + Send + Sync + 'static,
        E::Decide: Unpin,
    {
        Self(Arc::new(Of { shared, asked }))
    }

    /// Charges so much, at most each rule's `max_cost`. An engine in memory is done when this
    /// returns, so it may be called where nothing can be awaited, in `Drop` say; for others the
    /// future must be driven to its end.
    pub fn charge(&self, cost: Cost) -> Charged {
        self.0.charge(cost)
    }
}

impl<E> Settle for Of<E>
where
    E: Engine + Send + Sync + 'static,
    E::Decide: Unpin,
{
    fn charge(&self, cost: Cost) -> Charged {
        let mut charging = self.shared.charge(&self.asked, |_| cost);
        match Pin::new(&mut charging).poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(result) => Charged(State::Done(Some(result))),
            Poll::Pending => Charged(State::Pending(Box::pin(charging))),
        }
    }
}

/// The end of a charge.
#[must_use = "over an engine that is not in memory, nothing is charged unless this is awaited"]
pub struct Charged(State);

type Answer = Result<Decision, EngineError>;

enum State {
    Done(Option<Answer>),
    Pending(Pin<Box<dyn Future<Output = Answer> + Send>>),
}

impl Future for Charged {
    /// What a check would have answered; the charge stands in any case.
    type Output = Answer;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Answer> {
        match &mut self.0 {
            State::Done(answer) => answer.take().map_or(Poll::Pending, Poll::Ready),
            State::Pending(charging) => charging.as_mut().poll(context),
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
