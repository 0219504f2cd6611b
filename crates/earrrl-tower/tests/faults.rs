//! Inner services that panic and clients that leave: each request is charged once, and nothing leaks.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "helpers of tests"
)]

use std::convert::Infallible;
use std::future::{Future, pending};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use crate::support::{Counting, Engine, ask, engine, layer, number, request};
use bytes::Bytes;
use earrrl::{Action, Charge, Cost, Decision, Engine as _, EngineError, Mode, Nanos, Rule, RuleId};
use earrrl_tower::{ClientAddress, Judged, RateLimitLayer, RequestRule, Settlement, key};
use futures_util::FutureExt;
use http::{Request, Response};
use http_body::{Body, Frame};
use http_body_util::{BodyExt, Full};
use tower::{Layer, Service, service_fn};

const RULE: &str = "gcra 0.01/s burst=10";

fn per_address() -> RequestRule {
    RequestRule::new("rule", RULE.parse().unwrap(), ClientAddress::default())
}

/// Returns the number of requests that the client may still send.
fn remaining(engine: &Engine, rule: &str, key: &[u8]) -> u64 {
    let rule = engine
        .prepare("rule", &rule.parse::<Rule>().unwrap())
        .unwrap();
    let charge = Charge {
        rule,
        key,
        cost: Cost::ONE,
    };
    engine
        .decide(&[charge], Mode::Peek, None)
        .into_inner()
        .unwrap()
        .remaining
}

#[test]
fn a_request_that_is_cancelled_is_charged_once() {
    let (engine, _) = engine();
    let held = Arc::new(());
    let inner = {
        let held = held.clone();
        service_fn(move |_: Request<()>| {
            let held = held.clone();
            async move {
                pending::<()>().await;
                drop(held);
                Ok::<_, Infallible>(Response::new(Full::<Bytes>::default()))
            }
        })
    };
    let mut service = layer(&engine, [per_address()]).layer(inner);
    for _ in 0..3 {
        assert!(
            service
                .call(request("192.0.2.7", &[]))
                .now_or_never()
                .is_none()
        );
    }
    drop(service);
    assert_eq!(remaining(&engine, RULE, b"192.0.2.7"), 7);
    assert_eq!(Arc::strong_count(&held), 1, "the inner futures are gone");
}

/// A rule that charges 3 after a response, and 5 if there is none.
fn charged_after() -> RequestRule {
    per_address()
        .cost(Cost::ZERO)
        .cost_after(|response| match response.status.as_u16() {
            499 => Cost::from_units(5),
            _ => Cost::from_units(3),
        })
}

/// A service that answers, fails, panics or never answers, depending on the header `x-then`.
async fn answer_as_asked(request: Request<()>) -> Result<Response<Full<Bytes>>, String> {
    match request.headers().get("x-then").map(|then| then.as_bytes()) {
        Some(b"fail") => Err("failed as asked".to_owned()),
        Some(b"panic") => panic!("as asked"),
        Some(_) => pending().await,
        None => Ok(Response::default()),
    }
}

#[test]
fn a_client_that_leaves_before_the_response_is_charged_after_all() {
    for (then, left) in [("wait", 5), ("fail", 5), ("panic", 5), ("", 7)] {
        let (engine, _) = engine();
        let mut service = layer(&engine, [charged_after()]).layer(service_fn(answer_as_asked));
        let headers = [("x-then", then)];
        let request = request("192.0.2.7", if then.is_empty() { &[] } else { &headers });
        let call = std::panic::AssertUnwindSafe(|| service.call(request).now_or_never().map(drop));
        let _ = std::panic::catch_unwind(call);
        assert_eq!(remaining(&engine, RULE, b"192.0.2.7"), left, "{then}");
    }
}

#[test]
fn a_client_that_leaves_before_its_turn_has_cost_nothing_afterwards() {
    let (engine, _) = engine();
    let used = holding().cost_after(|_| Cost::from_units(1000));
    let mut service = layer(&engine, [used]).layer(service_fn(answer_as_asked));
    let waiting = || request("192.0.2.7", &[("x-then", "wait")]);
    let mut calls = [0, 1].map(|_| Box::pin(service.call(waiting())));
    let mut context = Context::from_waker(Waker::noop());
    assert!(
        calls
            .iter_mut()
            .all(|call| call.as_mut().poll(&mut context).is_pending())
    );
    let charge = |engine: &Engine| {
        let rule = engine
            .prepare("rule", &engine.prepared("rule").unwrap())
            .unwrap();
        let charge = Charge {
            rule,
            key: b"192.0.2.7",
            cost: Cost::ONE,
        };
        engine
            .decide(&[charge], Mode::Peek, None)
            .into_inner()
            .unwrap()
            .reset_after
    };
    let [serving, held] = calls;
    let before = charge(&engine);
    drop(held);
    let refunded = before - Duration::from_secs(1);
    assert_eq!(charge(&engine), refunded, "the service was never called");
    drop(serving);
    assert_eq!(charge(&engine), refunded + Duration::from_secs(1000));
}

#[cfg(feature = "tokio")]
#[tokio::test]
async fn a_charge_goes_on_without_its_client() {
    let (engine, _) = engine();
    let slow = RateLimitLayer::builder(Slow(engine.clone()))
        .rule(charged_after())
        .build()
        .unwrap();
    let mut service = slow.layer(service_fn(answer_as_asked));
    let mut call = Box::pin(service.call(request("192.0.2.7", &[("x-then", "wait")])));
    // Over a slow engine the first poll asks for a decision, and a later one calls the service.
    let mut context = Context::from_waker(Waker::noop());
    for _ in 0..5 {
        assert!(call.as_mut().poll(&mut context).is_pending());
    }
    drop(call);
    for _ in 0..100 {
        tokio::task::yield_now().await;
    }
    assert_eq!(remaining(&engine, RULE, b"192.0.2.7"), 5);
}

#[test]
fn an_inner_service_that_panics_charges_once_and_harms_nobody_else() {
    let (engine, _) = engine();
    let inner = service_fn(async |request: Request<()>| {
        assert!(!request.headers().contains_key("x-panic"), "as asked");
        Ok::<_, Infallible>(Response::new(Full::<Bytes>::default()))
    });
    let mut service = layer(&engine, [per_address()]).layer(inner);
    let panicking = || request("192.0.2.7", &[("x-panic", "1")]);
    for _ in 0..3 {
        let call = std::panic::AssertUnwindSafe(|| ask(&mut service, panicking()));
        assert!(std::panic::catch_unwind(call).is_err());
    }
    assert_eq!(ask(&mut service, request("192.0.2.7", &[])).status(), 200);
    assert_eq!(remaining(&engine, RULE, b"192.0.2.7"), 6);
}

/// A body that charges for the chunks that were read when it is dropped.
struct Metered {
    chunks: u64,
    read: u64,
    settlement: Settlement,
}

impl Body for Metered {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        if self.read == self.chunks {
            return Poll::Ready(None);
        }
        self.read += 1;
        Poll::Ready(Some(Ok(Frame::data(Bytes::from_static(b"token ")))))
    }
}

impl Drop for Metered {
    fn drop(&mut self) {
        drop(self.settlement.charge(Cost::from_units(self.read)));
    }
}

#[test]
fn a_body_that_is_dropped_half_read_is_charged_for_what_was_read() {
    const TOKENS: &str = "token-bucket 100 refill=0.01/s";
    let (engine, _) = engine();
    let rule = RequestRule::new("rule", TOKENS.parse().unwrap(), key::Everyone);
    let inner = service_fn(async |request: Request<()>| {
        let settlement = request.extensions().get::<Settlement>().unwrap().clone();
        Ok::<_, Infallible>(Response::new(Metered {
            chunks: 30,
            read: 0,
            settlement,
        }))
    });
    let mut service = layer(&engine, [rule.cost(Cost::ZERO).settled()]).layer(inner);
    let mut call = || {
        service
            .call(request("192.0.2.7", &[]))
            .now_or_never()
            .unwrap()
            .unwrap()
    };
    let mut half = call().into_body();
    for _ in 0..12 {
        half.frame().now_or_never().unwrap().unwrap().unwrap();
    }
    assert_eq!(remaining(&engine, TOKENS, b""), 100, "not charged yet");
    drop(half);
    assert_eq!(remaining(&engine, TOKENS, b""), 88);
    drop(
        call()
            .into_body()
            .collect()
            .now_or_never()
            .unwrap()
            .unwrap(),
    );
    assert_eq!(remaining(&engine, TOKENS, b""), 58);
}

/// A rule that holds requests back.
fn holding() -> RequestRule {
    let rule: Rule = "gcra 1/s burst=1".parse().unwrap();
    let rule = rule
        .with_action(Action::Delay {
            max: Duration::from_secs(60),
        })
        .unwrap();
    RequestRule::new("rule", rule, ClientAddress::default())
}

#[test]
fn requests_that_are_denied_or_dropped_while_held_back_are_refunded() {
    let (engine, _) = engine();
    let inner = Counting::default();
    let builder = RateLimitLayer::builder(engine.clone()).rule(holding());
    let layer = builder.max_held(2).build().unwrap();
    let mut service = layer.layer(inner.clone());
    assert_eq!(ask(&mut service, request("192.0.2.7", &[])).status(), 200);
    let mut held: Vec<_> = (0..2)
        .map(|_| Box::pin(service.call(request("192.0.2.7", &[]))))
        .collect();
    let mut context = Context::from_waker(Waker::noop());
    assert!(
        held.iter_mut()
            .all(|held| held.as_mut().poll(&mut context).is_pending())
    );
    assert_eq!((layer.held(), inner.count()), (2, 1));
    let refused = ask(&mut service, request("192.0.2.7", &[]));
    assert_eq!(refused.status(), 429, "no more than two are held");
    drop(held);
    assert_eq!((layer.held(), inner.count()), (0, 1));
    // The next request waits for the first one only.
    let request = request("192.0.2.7", &[]).into_parts().0;
    let Judged::Pass(passed) = layer.judge(&request) else {
        panic!("held back");
    };
    assert_eq!(passed.delay(), Duration::from_secs(1));
    drop(passed);
    let Judged::Pass(mut passed) = layer.judge(&request) else {
        panic!("held back");
    };
    assert_eq!(passed.delay(), Duration::from_secs(1));
    passed.enter(&mut http::Extensions::new());
    assert_eq!(layer.held(), 0);
    let Judged::Pass(passed) = layer.judge(&request) else {
        panic!("held back");
    };
    assert_eq!(
        passed.delay(),
        Duration::from_secs(2),
        "the other was served"
    );
}

#[tokio::test]
async fn a_request_that_is_held_back_is_served_when_its_turn_comes() {
    let rule: Rule = "gcra 50/s burst=1".parse().unwrap();
    let rule = rule
        .with_action(Action::Delay {
            max: Duration::from_secs(60),
        })
        .unwrap();
    let rule = RequestRule::new("rule", rule, ClientAddress::default());
    let engine = earrrl::MemoryEngine::new(100).unwrap();
    let layer = RateLimitLayer::builder(engine).rule(rule).build().unwrap();
    let inner = Counting::default();
    let mut service = layer.layer(inner.clone());
    let answers: Vec<_> = (0..5)
        .map(|_| service.call(request("192.0.2.7", &[])))
        .collect();
    for answer in answers {
        assert_eq!(answer.await.unwrap().status(), 200);
    }
    assert_eq!((inner.count(), layer.held()), (5, 0));
}

/// An engine whose futures are ready at the second poll, as those of an engine over a network may be.
struct Slow(Engine);

struct Later<T>(Option<T>, bool);

impl<T: Unpin> Future for Later<T> {
    type Output = T;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<T> {
        if !std::mem::replace(&mut self.1, true) {
            context.waker().wake_by_ref();
            return Poll::Pending;
        }
        Poll::Ready(self.0.take().expect("polled once more than it may be"))
    }
}

impl earrrl::Engine for Slow {
    type Decide = Later<Result<Decision, EngineError>>;
    type Done = Later<Result<(), EngineError>>;

    fn prepare(&self, name: &str, rule: &Rule) -> Result<RuleId, EngineError> {
        self.0.prepare(name, rule)
    }

    fn prepared(&self, name: &str) -> Option<Rule> {
        self.0.prepared(name)
    }

    fn decide(&self, charges: &[Charge<'_>], mode: Mode, now: Option<Nanos>) -> Self::Decide {
        Later(Some(self.0.decide(charges, mode, now).into_inner()), false)
    }

    fn refund(&self, charge: &Charge<'_>, at: Option<Nanos>, now: Option<Nanos>) -> Self::Done {
        Later(Some(self.0.refund(charge, at, now).into_inner()), false)
    }

    fn reset(&self, rule: RuleId, key: &[u8]) -> Self::Done {
        Later(Some(self.0.reset(rule, key).into_inner()), false)
    }
}

#[tokio::test]
async fn an_engine_that_answers_later_decides_alike() {
    let (engine, _) = engine();
    let rule = |name: &str, text: &str| {
        RequestRule::new(name, text.parse().unwrap(), ClientAddress::default())
    };
    let layer = RateLimitLayer::builder(Slow(engine.clone()))
        .rule(
            rule("rule", RULE)
                .cost_after(|_| Cost::from_units(3))
                .settled(),
        )
        .rule(rule("other", "fixed-window 100/1m"))
        .build()
        .unwrap();
    let inner = service_fn(async |request: Request<()>| {
        let settlement = request.extensions().get::<Settlement>().unwrap();
        settlement.charge(Cost::ONE).await.unwrap();
        Ok::<_, Infallible>(Response::new(Full::<Bytes>::default()))
    });
    let mut service = layer.layer(inner);
    let mut seen = Vec::new();
    for _ in 0..3 {
        let response = service.call(request("192.0.2.7", &[])).await.unwrap();
        let items = response.headers()["ratelimit"]
            .to_str()
            .unwrap()
            .matches(";r=")
            .count();
        seen.push((
            response.status().as_u16(),
            items,
            remaining(&engine, RULE, b"192.0.2.7"),
        ));
    }
    assert_eq!(seen, [(200, 2, 5), (200, 2, 0), (429, 2, 0)]);
    let denied = service.call(request("192.0.2.7", &[])).await.unwrap();
    assert_eq!(
        (
            denied.status().as_u16(),
            number(denied.headers(), "retry-after").is_some()
        ),
        (429, true)
    );
}
