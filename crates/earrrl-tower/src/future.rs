//! The future of a response.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use earrrl::{Cost, Engine};
use futures_timer::Delay;
use http::{Request, Response};
use pin_project_lite::pin_project;
use tower_service::Service;

use crate::asked::Asked;
use crate::conclude::{After, Conclusion, Pass};
use crate::event::Event;
use crate::questions::Questions;
use crate::response::ResponseBody;
use crate::shared::{Held, Shared};

pin_project! {
    /// The future of a response.
    pub struct ResponseFuture<S, B, E, R>
    where
        S: Service<Request<B>>,
        E: Engine,
    {
        #[pin]
        state: State<S, B, E, R>,
    }
}

pin_project! {
    #[project = StateProjection]
    enum State<S, B, E, R>
    where
        S: Service<Request<B>>,
        E: Engine,
    {
        /// The engine is asked, or the request is held back.
        Waiting { waiting: Option<Box<Waiting<S, B, E>>> },
        /// The inner service is at work.
        Serving {
            #[pin]
            serving: S::Future,
            pass: Pass<E>,
        },
        /// What the response costs is charged.
        Charging { charging: Box<Charging<E, R>> },
        /// The request is answered in the inner service's place.
        Answered { response: Option<Response<Bytes>> },
    }
}

impl<S: Service<Request<B>>, B, E: Engine, R> ResponseFuture<S, B, E, R> {
    pub(crate) fn answered(response: Response<Bytes>) -> Self {
        Self { state: State::Answered { response: Some(response) } }
    }

    pub(crate) fn serving(serving: S::Future, pass: Pass<E>) -> Self {
        Self { state: State::Serving { serving, pass } }
    }

    pub(crate) fn waiting(waiting: Waiting<S, B, E>) -> Self {
        Self { state: State::Waiting { waiting: Some(Box::new(waiting)) } }
    }
}

impl<S, B, E, R> Future for ResponseFuture<S, B, E, R>
where
    S: Service<Request<B>, Response = Response<R>>,
    E: Engine + Send + Sync + 'static,
    E::Decide: Unpin,
{
    type Output = Result<Response<ResponseBody<R>>, S::Error>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let mut state = self.project().state;
        loop {
            let next = match state.as_mut().project() {
                StateProjection::Waiting { waiting } => {
                    let Some(open) = waiting else { return Poll::Pending };
                    let conclusion = ready!(open.poll(context));
                    let Some(done) = waiting.take() else { return Poll::Pending };
                    done.follow(conclusion)
                }
                StateProjection::Serving { serving, pass } => {
                    let mut response = ready!(serving.poll(context))?;
                    let after = pass.mark(response.headers_mut());
                    let Some(after) = after else { return Poll::Ready(Ok(inner(response))) };
                    charge(after, response)
                }
                StateProjection::Charging { charging } => {
                    if let Err(error) = ready!(Pin::new(&mut charging.charge).poll(context)) {
                        charging.shared.tell(&Event::EngineFailed(&error));
                    }
                    return charging
                        .response
                        .take()
                        .map_or(Poll::Pending, |r| Poll::Ready(Ok(inner(r))));
                }
                StateProjection::Answered { response } => {
                    let own = |response: Response<Bytes>| Ok(response.map(ResponseBody::own));
                    return response.take().map_or(Poll::Pending, |r| Poll::Ready(own(r)));
                }
            };
            state.set(next);
        }
    }
}

fn inner<R>(response: Response<R>) -> Response<ResponseBody<R>> {
    response.map(ResponseBody::inner)
}

/// A response whose cost is being charged.
struct Charging<E: Engine, R> {
    charge: E::Decide,
    shared: Arc<Shared<E>>,
    response: Option<Response<R>>,
}

/// Begins to charge what the response costs.
fn charge<S, B, E, R>((shared, asked): After<E>, response: Response<R>) -> State<S, B, E, R>
where
    S: Service<Request<B>>,
    E: Engine,
{
    let (parts, body) = response.into_parts();
    let charge = shared.charge(&asked, |of| {
        let cost = of.rule(&shared.rules).cost_after.as_ref();
        cost.map_or(Cost::ZERO, |cost| cost(&parts))
    });
    let response = Some(Response::from_parts(parts, body));
    State::Charging { charging: Box::new(Charging { charge, shared, response }) }
}

/// A request whose turn has not come.
pub(crate) struct Waiting<S, B, E: Engine> {
    service: S,
    request: Request<B>,
    reason: Reason<E>,
}

enum Reason<E: Engine> {
    Asking { shared: Arc<Shared<E>>, asked: Asked, questions: Box<Questions<E::Decide>> },
    Held { timer: Delay, pass: Option<Pass<E>>, _held: Held<E> },
}

impl<S, B, E> Waiting<S, B, E>
where
    E: Engine + Send + Sync + 'static,
    E::Decide: Unpin,
{
    pub(crate) fn asking(
        service: S,
        request: Request<B>,
        shared: Arc<Shared<E>>,
        asked: Asked,
        questions: Questions<E::Decide>,
    ) -> Self {
        let questions = Box::new(questions);
        Self { service, request, reason: Reason::Asking { shared, asked, questions } }
    }

    pub(crate) fn held(
        service: S,
        request: Request<B>,
        pass: Pass<E>,
        delay: Duration,
        held: Held<E>,
    ) -> Self {
        let reason = Reason::Held { timer: Delay::new(delay), pass: Some(pass), _held: held };
        Self { service, request, reason }
    }

    fn poll(&mut self, context: &mut Context<'_>) -> Poll<Conclusion<E>> {
        match &mut self.reason {
            Reason::Asking { shared, asked, questions } => {
                let on_allowed = shared.settings.headers_on_allowed;
                let known = shared.known.load();
                let answer =
                    ready!(questions.poll(context, &shared.engine, &known, asked, on_allowed));
                Poll::Ready(shared.conclude(asked, answer, &known, self.request.headers()))
            }
            Reason::Held { timer, pass, .. } => {
                ready!(Pin::new(timer).poll(context));
                let pass = pass.take().unwrap_or_else(Pass::plain);
                Poll::Ready(Conclusion::Pass(pass))
            }
        }
    }

    fn follow<R>(mut self: Box<Self>, conclusion: Conclusion<E>) -> State<S, B, E, R>
    where
        S: Service<Request<B>, Response = Response<R>>,
    {
        match conclusion {
            Conclusion::Pass(mut pass) => {
                let Self { mut service, mut request, reason } = *self;
                drop(reason);
                pass.equip(request.extensions_mut());
                State::Serving { serving: service.call(request), pass }
            }
            Conclusion::Hold(pass, delay, held) => {
                self.reason =
                    Reason::Held { timer: Delay::new(delay), pass: Some(pass), _held: held };
                State::Waiting { waiting: Some(self) }
            }
            Conclusion::Refuse(response) => State::Answered { response: Some(response) },
        }
    }
}
