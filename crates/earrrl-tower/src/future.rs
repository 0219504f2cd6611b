//! The future of a response.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use earrrl::Engine;
use futures_timer::Delay;
use http::{Request, Response};
use pin_project_lite::pin_project;
use tower_service::Service;

use crate::charges::RequestCharges;
use crate::conclusion::{Judged, Passed};
use crate::lasting::PendingCharge;
use crate::pending::PendingDecision;
use crate::response::ResponseBody;
use crate::shared::SharedLimits;

pin_project! {
    /// The future of a response of [`RateLimit`](crate::RateLimit).
    pub struct ResponseFuture<S, B, E, R>
    where
        S: Service<Request<B>>,
        E: Engine,
    {
        #[pin]
        stage: ResponseStage<S, B, E, R>,
    }
}

pin_project! {
    #[project = StageProjection]
    enum ResponseStage<S, B, E, R>
    where
        S: Service<Request<B>>,
        E: Engine,
    {
        /// The engine has not answered yet, or the request is held back.
        Waiting { waiting: Option<Box<WaitingRequest<S, B, E>>> },
        /// The inner service processes the request.
        Serving {
            #[pin]
            serving: S::Future,
            pass: Passed,
        },
        /// The cost of the response is being charged.
        Charging { charging: Box<Charging<R>> },
        /// The request is answered without the inner service.
        Answered { response: Option<Response<Bytes>> },
    }
}

/// A response whose cost is being charged.
struct Charging<R> {
    charge: Option<PendingCharge>,
    response: Option<Response<ResponseBody<R>>>,
}

impl<S: Service<Request<B>>, B, E: Engine, R> ResponseFuture<S, B, E, R> {
    pub(crate) fn answered(response: Response<Bytes>) -> Self {
        Self {
            stage: ResponseStage::Answered {
                response: Some(response),
            },
        }
    }

    pub(crate) fn serving(serving: S::Future, pass: Passed) -> Self {
        Self {
            stage: ResponseStage::Serving { serving, pass },
        }
    }

    pub(crate) fn waiting(waiting: WaitingRequest<S, B, E>) -> Self {
        Self {
            stage: ResponseStage::Waiting {
                waiting: Some(Box::new(waiting)),
            },
        }
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
        let mut stage = self.project().stage;
        loop {
            let next = match stage.as_mut().project() {
                StageProjection::Waiting { waiting } => {
                    let Some(unfinished) = waiting else {
                        return Poll::Pending;
                    };
                    let conclusion = ready!(unfinished.poll(context));
                    let Some(finished) = waiting.take() else {
                        return Poll::Pending;
                    };
                    finished.follow(conclusion)
                }
                StageProjection::Serving { serving, pass } => {
                    let mut response = ready!(serving.poll(context))?;
                    let (cost_after, hold) = pass.finish(response.headers_mut());
                    let response = response.map(|body| ResponseBody::inner(body, hold));
                    let Some(cost_after) = cost_after else {
                        return Poll::Ready(Ok(response));
                    };
                    let (parts, body) = response.into_parts();
                    let charge = cost_after.charge(&parts);
                    let response = Some(Response::from_parts(parts, body));
                    ResponseStage::Charging {
                        charging: Box::new(Charging { charge, response }),
                    }
                }
                StageProjection::Charging { charging } => {
                    if let Some(charge) = &mut charging.charge {
                        ready!(Pin::new(charge).poll(context));
                    }
                    let response = charging.response.take();
                    return response.map_or(Poll::Pending, |response| Poll::Ready(Ok(response)));
                }
                StageProjection::Answered { response } => {
                    return response
                        .take()
                        .map_or(Poll::Pending, |r| Poll::Ready(Ok(r.map(ResponseBody::own))));
                }
            };
            stage.set(next);
        }
    }
}

/// A request that waits, with the service to which it will be passed on.
pub(crate) struct WaitingRequest<S, B, E: Engine> {
    service: S,
    request: Request<B>,
    cause: Cause<E>,
}

enum Cause<E: Engine> {
    Decision {
        shared: Arc<SharedLimits<E>>,
        charges: RequestCharges,
        pending: Box<PendingDecision<E::Decide>>,
    },
    Turn {
        timer: Delay,
        pass: Option<Passed>,
    },
}

impl<S, B, E> WaitingRequest<S, B, E>
where
    E: Engine + Send + Sync + 'static,
    E::Decide: Unpin,
{
    /// Returns a future that waits for the engine's decision.
    pub(crate) fn for_decision(
        service: S,
        request: Request<B>,
        shared: Arc<SharedLimits<E>>,
        charges: RequestCharges,
        pending: PendingDecision<E::Decide>,
    ) -> Self {
        let pending = Box::new(pending);
        Self {
            service,
            request,
            cause: Cause::Decision {
                shared,
                charges,
                pending,
            },
        }
    }

    /// Returns a future that waits until the request's delay is over.
    pub(crate) fn for_turn(service: S, request: Request<B>, pass: Passed) -> Self {
        let cause = Cause::Turn {
            timer: Delay::new(pass.delay),
            pass: Some(pass),
        };
        Self {
            service,
            request,
            cause,
        }
    }

    fn poll(&mut self, context: &mut Context<'_>) -> Poll<Judged> {
        match &mut self.cause {
            Cause::Decision {
                shared,
                charges,
                pending,
            } => {
                let on_allowed = shared.settings.headers_on_allowed;
                let prepared = shared.prepared.load();
                let engine = &shared.engine;
                let answer = pending.poll(context, engine, &prepared, charges, on_allowed);
                let headers = self.request.headers();
                Poll::Ready(shared.conclude(charges, ready!(answer), &prepared, headers))
            }
            Cause::Turn { timer, pass } => {
                ready!(Pin::new(timer).poll(context));
                let mut pass = pass.take().unwrap_or_else(Passed::plain);
                pass.delay = Duration::ZERO;
                Poll::Ready(Judged::Pass(pass))
            }
        }
    }

    fn follow<R>(self, conclusion: Judged) -> ResponseStage<S, B, E, R>
    where
        S: Service<Request<B>, Response = Response<R>>,
    {
        let Self {
            mut service,
            mut request,
            ..
        } = self;
        match conclusion {
            Judged::Pass(mut pass) if pass.delay.is_zero() => {
                pass.enter(request.extensions_mut());
                ResponseStage::Serving {
                    serving: service.call(request),
                    pass,
                }
            }
            Judged::Pass(pass) => {
                let waiting = Self::for_turn(service, request, pass);
                ResponseStage::Waiting {
                    waiting: Some(Box::new(waiting)),
                }
            }
            Judged::Refuse(response) => ResponseStage::Answered {
                response: Some(response),
            },
        }
    }
}
