//! A layer with a manual clock, around a service that counts requests.
#![allow(
    dead_code,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "for tests, each of which uses a part"
)]

pub(crate) mod spellings;

use std::convert::Infallible;
use std::future::{Ready, ready};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::Bytes;
use earrrl::{ManualClock, MemoryEngine, Nanos};
use earrrl_tower::{PeerAddress, RateLimitLayer, RequestRule, ResponseBody};
use futures_util::FutureExt;
use http::{HeaderMap, Request, Response};
use http_body_util::Full;
use tower::{Layer, Service};

pub(crate) type Engine = Arc<MemoryEngine<Arc<ManualClock>>>;

/// Returns an engine and its clock, which stands at a time that is not the start of a window.
pub(crate) fn engine() -> (Engine, Arc<ManualClock>) {
    let clock = Arc::new(ManualClock::new(Nanos::from_secs(1_800_000_007)));
    (
        Arc::new(MemoryEngine::with_clock(10_000, clock.clone()).unwrap()),
        clock,
    )
}

pub(crate) fn layer(
    engine: &Engine,
    rules: impl IntoIterator<Item = RequestRule>,
) -> RateLimitLayer<Engine> {
    let builder = RateLimitLayer::builder(engine.clone());
    rules
        .into_iter()
        .fold(builder, |builder, rule| builder.rule(rule))
        .build()
        .unwrap()
}

/// An inner service that counts the requests that reach it.
#[derive(Clone, Default)]
pub(crate) struct Counting(Arc<AtomicUsize>);

impl Counting {
    pub(crate) fn count(&self) -> usize {
        self.0.load(Ordering::SeqCst)
    }
}

impl<B> Service<Request<B>> for Counting {
    type Response = Response<Full<Bytes>>;
    type Error = Infallible;
    type Future = Ready<Result<Self::Response, Infallible>>;

    fn poll_ready(
        &mut self,
        _: &mut std::task::Context<'_>,
    ) -> std::task::Poll<Result<(), Infallible>> {
        std::task::Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: Request<B>) -> Self::Future {
        self.0.fetch_add(1, Ordering::SeqCst);
        ready(Ok(Response::new(Full::from("served"))))
    }
}

/// Returns a request from a peer, with these headers.
pub(crate) fn request(peer: &str, headers: &[(&str, &str)]) -> Request<()> {
    let mut request = Request::builder().uri("/");
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    request
        .extension(PeerAddress(peer.parse().unwrap()))
        .body(())
        .unwrap()
}

/// Returns the response of a service that responds at once.
pub(crate) fn ask<S>(service: &mut S, request: Request<()>) -> Response<ResponseBody<Full<Bytes>>>
where
    S: Service<Request<()>, Response = Response<ResponseBody<Full<Bytes>>>, Error = Infallible>,
{
    service
        .call(request)
        .now_or_never()
        .expect("an answer at once")
        .unwrap()
}

/// Sends requests, one after the other, and returns how many were served.
pub(crate) fn served(
    layer: &RateLimitLayer<Engine>,
    requests: impl IntoIterator<Item = Request<()>>,
) -> usize {
    let inner = Counting::default();
    let mut service = layer.layer(inner.clone());
    requests
        .into_iter()
        .for_each(|request| drop(ask(&mut service, request)));
    inner.count()
}

/// Returns `r` and `t` of the first item of `RateLimit`, read by a parser of structured fields.
pub(crate) fn available(headers: &HeaderMap) -> Option<(u64, Option<u64>)> {
    let header = headers.get("ratelimit")?;
    let list: sfv::List = sfv::Parser::new(header.as_bytes()).parse().unwrap();
    let Some(sfv::ListEntry::Item(item)) = list.first() else {
        panic!("{header:?}")
    };
    let number = |name: &str| {
        let value = item.params.get(name)?.as_integer()?;
        u64::try_from(i64::from(value)).ok()
    };
    Some((number("r")?, number("t")))
}

pub(crate) fn number(headers: &HeaderMap, name: &str) -> Option<u64> {
    headers.get(name)?.to_str().ok()?.parse().ok()
}
