//! The future of a response.

use std::future::Future;
use std::mem;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use futures_timer::Delay;
use http::{Request, Response};
use pin_project_lite::pin_project;
use tower_service::Service;

use crate::conclusion::{Judged, Passed};
use crate::judge::Judging;
use crate::lasting::PendingCharge;
use crate::response::ResponseBody;

pin_project! {
    /// The future of a response of [`RateLimit`](crate::RateLimit).
    pub struct ResponseFuture<S, B, R>
    where
        S: Service<Request<B>>,
    {
        #[pin]
        stage: ResponseStage<S, B, R>,
    }
}

pin_project! {
    #[project = StageProjection]
    enum ResponseStage<S, B, R>
    where
        S: Service<Request<B>>,
    {
        /// The engine has not answered yet, or the request is held back.
        Waiting { waiting: Option<Box<WaitingRequest<S, B>>> },
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

/// A request that waits, with the service that is ready for it.
struct WaitingRequest<S, B> {
    service: S,
    request: Request<B>,
    judging: Judging,
}

/// A response whose cost is being charged.
struct Charging<R> {
    charge: PendingCharge,
    response: Option<Response<ResponseBody<R>>>,
}

impl<S: Service<Request<B>> + Clone, B, R> ResponseFuture<S, B, R> {
    /// Returns the future of a request that is judged.
    #[inline]
    pub(crate) fn of(judged: Judged, service: &mut S, request: Request<B>) -> Self {
        let stage = ResponseStage::of(judged, service, request);
        Self { stage }
    }

    /// Returns the future of a request whose decision is in flight.
    pub(crate) fn waiting(judging: Judging, service: &mut S, request: Request<B>) -> Self {
        let stage = ResponseStage::waiting(judging, service, request);
        Self { stage }
    }
}

impl<S: Service<Request<B>> + Clone, B, R> ResponseStage<S, B, R> {
    #[inline]
    fn of(judged: Judged, service: &mut S, mut request: Request<B>) -> Self {
        match judged {
            Judged::Pass(mut pass) if pass.delay.is_zero() => {
                pass.enter(request.extensions_mut());
                let serving = service.call(request);
                Self::Serving { serving, pass }
            }
            Judged::Pass(mut pass) => {
                let turn = Delay::new(mem::take(&mut pass.delay));
                let judging = async move {
                    turn.await;
                    Judged::Pass(pass)
                };
                Self::waiting(Box::pin(judging), service, request)
            }
            Judged::Refuse(response) => Self::Answered {
                response: Some(response),
            },
        }
    }

    /// Takes the service, which `poll_ready` found ready, and leaves a clone, which may not be ready.
    fn waiting(judging: Judging, service: &mut S, request: Request<B>) -> Self {
        let clone = service.clone();
        let waiting = WaitingRequest {
            service: mem::replace(service, clone),
            request,
            judging,
        };
        Self::Waiting {
            waiting: Some(Box::new(waiting)),
        }
    }
}

impl<S, B, R> Future for ResponseFuture<S, B, R>
where
    S: Service<Request<B>, Response = Response<R>> + Clone,
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
                    let judged = ready!(unfinished.judging.as_mut().poll(context));
                    let Some(mut finished) = waiting.take() else {
                        return Poll::Pending;
                    };
                    ResponseStage::of(judged, &mut finished.service, finished.request)
                }
                StageProjection::Serving { serving, pass } => {
                    let (mut parts, body) = ready!(serving.poll(context))?.into_parts();
                    let (charge, hold) = pass.finish(&mut parts);
                    let response = Response::from_parts(parts, ResponseBody::inner(body, hold));
                    let Some(charge) = charge else {
                        return Poll::Ready(Ok(response));
                    };
                    let response = Some(response);
                    ResponseStage::Charging {
                        charging: Box::new(Charging { charge, response }),
                    }
                }
                StageProjection::Charging { charging } => {
                    ready!(Pin::new(&mut charging.charge).poll(context));
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
