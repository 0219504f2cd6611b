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
use crate::conclude::{Conclusion, Pass};
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
            pass: Option<Pass<E>>,
        },
        /// What the response costs is charged.
        Charging { charging: E::Decide, shared: Arc<Shared<E>>, response: Option<Response<R>> },
        /// The request is answered in the inner service's place.
        Answered { response: Option<Response<Bytes>> },
    }
}

impl<S: Service<Request<B>>, B, E: Engine, R> ResponseFuture<S, B, E, R> {
    pub(crate) fn answered(response: Response<Bytes>) -> Self {
        Self { state: State::Answered { response: Some(response) } }
    }

    pub(crate) fn serving(serving: S::Future, pass: Pass<E>) -> Self {
        Self { state: State::Serving { serving, pass: Some(pass) } }
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
                    let response = ready!(serving.poll(context))?;
                    match finish(pass.take(), response) {
                        (response, Some((charging, shared))) => {
                            State::Charging { charging, shared, response: Some(response) }
                        }
                        (response, None) => return Poll::Ready(Ok(inner(response))),
                    }
                }
                StateProjection::Charging { charging, shared, response } => {
                    if let Err(error) = ready!(Pin::new(charging).poll(context)) {
                        shared.tell(&Event::EngineFailed(&error));
                    }
                    return response.take().map_or(Poll::Pending, |r| Poll::Ready(Ok(inner(r))));
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

/// A charge under way, and for whom a failure of it is told.
type Charging<E> = (<E as Engine>::Decide, Arc<Shared<E>>);

/// Adds the headers, and begins to charge what the response costs.
fn finish<E: Engine, R>(
    pass: Option<Pass<E>>,
    mut response: Response<R>,
) -> (Response<R>, Option<Charging<E>>) {
    let Some(mut pass) = pass else { return (response, None) };
    std::mem::take(&mut pass.marks).apply(response.headers_mut());
    let Some((shared, asked)) = pass.after() else { return (response, None) };
    let (parts, body) = response.into_parts();
    let charging = shared.charge(&asked, |of| {
        let cost = of.rule(&shared.rules).cost_after.as_ref();
        cost.map_or(Cost::ZERO, |cost| cost(&parts))
    });
    (Response::from_parts(parts, body), Some((charging, shared)))
}

/// A request whose turn has not come.
pub(crate) struct Waiting<S, B, E: Engine> {
    service: S,
    request: Request<B>,
    reason: Reason<E>,
}

enum Reason<E: Engine> {
    Asking { shared: Arc<Shared<E>>, asked: Asked, questions: Questions<E::Decide> },
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
                State::Serving { serving: service.call(request), pass: Some(pass) }
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
