//! The service around an inner one.

use std::fmt;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use bytes::Bytes;
use earrrl::Engine;
use http::{HeaderMap, Request, Response};
use http_body::Body;
use tower_service::Service;

use crate::asked::Asked;
use crate::conclude::{Conclusion, Pass};
use crate::future::{ResponseFuture, Waiting};
use crate::questions::Questions;
use crate::response::ResponseBody;
use crate::shared::Shared;

/// Limits the requests to an inner service; made by a [`RateLimitLayer`](crate::RateLimitLayer).
pub struct RateLimit<S, E> {
    inner: S,
    shared: Arc<Shared<E>>,
}

impl<S, E> RateLimit<S, E> {
    pub(crate) fn new(inner: S, shared: Arc<Shared<E>>) -> Self {
        Self { inner, shared }
    }
}

impl<S: Clone, E> Clone for RateLimit<S, E> {
    fn clone(&self) -> Self {
        Self { inner: self.inner.clone(), shared: Arc::clone(&self.shared) }
    }
}

impl<S: fmt::Debug, E> fmt::Debug for RateLimit<S, E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RateLimit").field("inner", &self.inner).finish_non_exhaustive()
    }
}

impl<S, E, B, R> Service<Request<B>> for RateLimit<S, E>
where
    S: Service<Request<B>, Response = Response<R>> + Clone,
    R: Body<Data = Bytes>,
    E: Engine + Send + Sync + 'static,
    E::Decide: Unpin,
{
    type Response = Response<ResponseBody<R>>;
    type Error = S::Error;
    type Future = ResponseFuture<S, B, E, R>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(context)
    }

    #[inline]
    fn call(&mut self, request: Request<B>) -> Self::Future {
        let (mut parts, body) = request.into_parts();
        let mut asked = Asked::default();
        if let Err(status) = asked.read(&self.shared.rules, &parts) {
            return ResponseFuture::answered(self.shared.no_key(status, &parts.headers));
        }
        if asked.is_empty() || self.shared.admits_at_once(&asked) {
            let request = Request::from_parts(parts, body);
            return ResponseFuture::serving(self.inner.call(request), Pass::plain());
        }
        match self.ask(&asked, &parts.headers) {
            Asking::Concluded(Conclusion::Pass(mut pass)) => {
                pass.equip(&mut parts.extensions);
                let request = Request::from_parts(parts, body);
                ResponseFuture::serving(self.inner.call(request), pass)
            }
            Asking::Concluded(Conclusion::Refuse(response)) => ResponseFuture::answered(response),
            Asking::Concluded(Conclusion::Hold(pass, delay, held)) => {
                let (service, request) = (self.take_ready(), Request::from_parts(parts, body));
                ResponseFuture::waiting(Waiting::held(service, request, pass, delay, held))
            }
            Asking::Pending(questions) => {
                let (service, request) = (self.take_ready(), Request::from_parts(parts, body));
                let shared = Arc::clone(&self.shared);
                ResponseFuture::waiting(Waiting::asking(service, request, shared, asked, questions))
            }
        }
    }
}

/// How far an engine has come.
enum Asking<E: Engine> {
    Concluded(Conclusion<E>),
    Pending(Questions<E::Decide>),
}

impl<S, E> RateLimit<S, E>
where
    E: Engine + Send + Sync + 'static,
    E::Decide: Unpin,
{
    /// An engine in memory answers at once: then the inner service is called as it is. It is cloned
    /// only for a request that must wait.
    #[inline]
    fn ask(&self, asked: &Asked, request: &HeaderMap) -> Asking<E> {
        let shared = &self.shared;
        let known = shared.known.load();
        let mut questions = Questions::new(&shared.engine, &known, asked);
        let context = &mut Context::from_waker(Waker::noop());
        let on_allowed = shared.settings.headers_on_allowed;
        match questions.poll(context, &shared.engine, &known, asked, on_allowed) {
            Poll::Ready(answer) => {
                Asking::Concluded(shared.conclude(asked, answer, &known, request))
            }
            Poll::Pending => Asking::Pending(questions),
        }
    }

    /// The inner service that was found ready; a clone takes its place.
    fn take_ready(&mut self) -> S
    where
        S: Clone,
    {
        let clone = self.inner.clone();
        std::mem::replace(&mut self.inner, clone)
    }
}
