//! The service that limits the requests to an inner service.

use std::fmt;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use earrrl::Engine;
use http::{Request, Response};
use http_body::Body;
use tower_service::Service;

use crate::charges::RequestCharges;
use crate::future::ResponseFuture;
use crate::judge::Progress;
use crate::response::{ResponseBody, is_grpc};
use crate::shared::SharedLimits;

/// A service that limits the requests to an inner service.
///
/// A [`RateLimitLayer`](crate::RateLimitLayer) makes it.
///
/// ```
/// use earrrl::MemoryEngine;
/// use earrrl_tower::{ClientAddress, RateLimit, RateLimitLayer, RequestRule};
/// use tower::Layer;
///
/// let rule = RequestRule::new("api", "gcra 5/s burst=20".parse()?, ClientAddress::default());
/// let layer = RateLimitLayer::builder(MemoryEngine::new(1000)?).rule(rule).build()?;
/// let inner = tower::service_fn(async |_: http::Request<()>| {
///     Ok::<_, std::convert::Infallible>(http::Response::new(String::new()))
/// });
/// let limited: RateLimit<_, MemoryEngine> = layer.layer(inner);
/// # let _ = limited;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct RateLimit<S, E> {
    inner: S,
    shared: Arc<SharedLimits<E>>,
}

impl<S, E> RateLimit<S, E> {
    pub(crate) fn new(inner: S, shared: Arc<SharedLimits<E>>) -> Self {
        Self { inner, shared }
    }
}

impl<S: Clone, E> Clone for RateLimit<S, E> {
    fn clone(&self) -> Self {
        Self {
            inner: self.inner.clone(),
            shared: Arc::clone(&self.shared),
        }
    }
}

impl<S: fmt::Debug, E> fmt::Debug for RateLimit<S, E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RateLimit")
            .field("inner", &self.inner)
            .finish_non_exhaustive()
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
    type Future = ResponseFuture<S, B, R>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(context)
    }

    /// Calls the inner service as it is if the engine decides at once, as one in memory does. It is cloned only for a
    /// request that must wait.
    #[inline]
    fn call(&mut self, request: Request<B>) -> Self::Future {
        let (parts, body) = request.into_parts();
        let mut charges = RequestCharges::default();
        match self.shared.judge(&mut charges, &parts) {
            Progress::Concluded(judged) => {
                let request = Request::from_parts(parts, body);
                ResponseFuture::of(judged, &mut self.inner, request)
            }
            Progress::Pending(pending) => {
                let judging = self.shared.later(charges, pending, is_grpc(&parts.headers));
                let request = Request::from_parts(parts, body);
                ResponseFuture::waiting(judging, &mut self.inner, request)
            }
        }
    }
}
