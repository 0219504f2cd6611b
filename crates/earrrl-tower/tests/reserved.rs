//! Rules that reserve an estimate before the service is called, and charge the actual cost when the
//! response's body has ended.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "helpers of tests")]

use std::convert::Infallible;
use std::future::{pending, ready};
use std::sync::{Arc, Barrier, Mutex};
use std::time::Duration;

use bytes::Bytes;
use earrrl::internal::Reserving;
use earrrl::{
    Actual, Charge, Committed, Cost, Engine as _, EngineError, HoldId, HoldTerms, Holding,
    MemoryEngine, Mode, Nanos, Rule, RuleId,
};
use earrrl_tower::{Judged, RateLimitLayer, RequestHold, RequestRule, key};
use futures_util::{FutureExt, StreamExt, stream};
use http::{Request, Response};
use http_body::Frame;
use http_body_util::{BodyExt, Full, StreamBody};
use tokio::sync::Notify;
use tower::{Layer, Service, service_fn};

use crate::support::{Counting, Engine, engine, layer, request};

const TOKENS: &str = "fixed-window 1000/1d";

fn tokens(estimate: u64) -> RequestRule {
    let limit: Rule = TOKENS.parse().unwrap();
    RequestRule::new("tokens", limit, key::Everyone)
        .cost(Cost::from_units(estimate))
        .reserved()
}

/// Returns the quota that is left under the rule `tokens`.
fn left(engine: &Engine) -> u64 {
    let rule = engine.prepare("tokens", &TOKENS.parse().unwrap()).unwrap();
    let charge = Charge {
        rule,
        key: b"",
        cost: Cost::ONE,
    };
    engine
        .decide(&[charge], Mode::Peek, None)
        .into_inner()
        .unwrap()
        .remaining
}

fn hold(request: &Request<()>) -> RequestHold {
    request
        .extensions()
        .get::<RequestHold>()
        .expect("a reservation")
        .clone()
}

type Stream = StreamBody<stream::Iter<std::vec::IntoIter<Result<Frame<Bytes>, std::io::Error>>>>;

/// Returns a body of five frames.
fn five_frames() -> Stream {
    let frame = |_| Ok(Frame::data(Bytes::from_static(b"token")));
    StreamBody::new(stream::iter((0..5).map(frame).collect::<Vec<_>>()))
}

#[test]
fn the_cost_is_corrected_when_the_body_ends() {
    let (engine, _) = engine();
    let seen = Arc::new(Mutex::new(None));
    let holds = seen.clone();
    let mut service = layer(&engine, [tokens(400)]).layer(service_fn(move |request| {
        *holds.lock().unwrap() = Some(hold(&request));
        ready(Ok::<_, Infallible>(Response::new(five_frames())))
    }));
    let response = service
        .call(request("192.0.2.1", &[]))
        .now_or_never()
        .unwrap()
        .unwrap();
    assert_eq!(left(&engine), 600, "the estimate counts");
    let hold = seen.lock().unwrap().take().unwrap();
    assert_eq!(hold.granted(), Cost::from_units(400));
    assert_eq!(hold.granted_under("tokens"), Some(Cost::from_units(400)));
    assert!(!hold.report_under("requests", Cost::ONE));

    let mut body = response.into_body();
    let mut read = 0;
    while let Some(frame) = body.frame().now_or_never().unwrap() {
        frame.unwrap();
        read += 1;
        hold.report(Cost::from_units(10 * read));
        assert_eq!(left(&engine), 600, "while the body goes on");
    }
    assert_eq!(left(&engine), 950, "at the end of the body");
    hold.report(Cost::from_units(7));
    drop(body);
    assert_eq!(left(&engine), 950, "a late report has no effect");
}

#[test]
fn a_client_that_leaves_pays_what_was_reported() {
    let (engine, _) = engine();
    for (reported, left_over) in [(Some(30), 970), (None, 570), (Some(0), 570), (Some(700), 0)] {
        let mut service = layer(&engine, [tokens(400)]).layer(service_fn(move |request| {
            if let Some(reported) = reported {
                hold(&request).report(Cost::from_units(reported));
            }
            ready(Ok::<_, Infallible>(Response::new(five_frames())))
        }));
        let response = service
            .call(request("192.0.2.1", &[]))
            .now_or_never()
            .unwrap()
            .unwrap();
        let mut body = response.into_body();
        body.frame().now_or_never().unwrap().unwrap().unwrap();
        drop(body);
        assert_eq!(left(&engine), left_over, "{reported:?}");
    }
}

#[test]
fn a_client_that_leaves_before_the_response_pays_what_was_reported() {
    let (engine, _) = engine();
    let mut service = layer(&engine, [tokens(400)]).layer(service_fn(|request: Request<()>| {
        let hold = hold(&request);
        async move {
            hold.report(Cost::from_units(12));
            pending::<Result<Response<Full<Bytes>>, Infallible>>().await
        }
    }));
    let mut response = Box::pin(service.call(request("192.0.2.1", &[])));
    assert!(response.as_mut().now_or_never().is_none());
    assert_eq!(left(&engine), 600);
    drop(response);
    assert_eq!(left(&engine), 988);
}

/// An engine whose reservations arrive when the gate is opened.
struct Gated(Engine, Arc<Notify>);

impl earrrl::Engine for Gated {
    type Decide = <Engine as earrrl::Engine>::Decide;
    type Done = <Engine as earrrl::Engine>::Done;

    fn prepare(&self, name: &str, rule: &Rule) -> Result<RuleId, EngineError> {
        self.0.prepare(name, rule)
    }

    fn prepared(&self, name: &str) -> Option<Rule> {
        self.0.prepared(name)
    }

    fn decide(&self, charges: &[Charge<'_>], mode: Mode, now: Option<Nanos>) -> Self::Decide {
        self.0.decide(charges, mode, now)
    }

    fn refund(&self, charge: &Charge<'_>, at: Option<Nanos>, now: Option<Nanos>) -> Self::Done {
        self.0.refund(charge, at, now)
    }

    fn reset(&self, rule: RuleId, key: &[u8]) -> Self::Done {
        self.0.reset(rule, key)
    }

    fn place_hold(
        &self,
        charges: &[Charge<'_>],
        terms: HoldTerms,
        now: Option<Nanos>,
    ) -> Reserving<Holding> {
        let placed = self.0.place_hold(charges, terms, now);
        let gate = self.1.clone();
        Box::pin(async move {
            gate.notified().await;
            placed.await
        })
    }

    fn commit_hold(
        &self,
        id: HoldId,
        actual: Actual<'_>,
        now: Option<Nanos>,
    ) -> Reserving<Committed> {
        self.0.commit_hold(id, actual, now)
    }
}

#[tokio::test]
async fn a_client_that_leaves_before_its_reservation_arrives_pays_nothing() {
    let (engine, _) = engine();
    let gate = Arc::new(Notify::new());
    let gated = Gated(engine.clone(), gate.clone());
    let layer = RateLimitLayer::builder(gated)
        .rule(tokens(400))
        .build()
        .unwrap();
    let inner = Counting::default();
    let mut response = Box::pin(layer.layer(inner.clone()).call(request("192.0.2.1", &[])));
    assert!(response.as_mut().now_or_never().is_none());
    drop(response);
    assert_eq!(
        left(&engine),
        600,
        "the estimate counts until the reservation arrives"
    );
    gate.notify_one();
    // The runtime has one thread, which runs the other tasks now.
    for _ in 0..10 {
        tokio::task::yield_now().await;
    }
    assert_eq!((left(&engine), inner.count()), (1000, 0));
}

#[test]
fn a_service_that_fails_pays_what_was_reported() {
    let (engine, _) = engine();
    let mut service = layer(&engine, [tokens(400)]).layer(service_fn(|request: Request<()>| {
        hold(&request).report(Cost::ZERO);
        ready(Err::<Response<Full<Bytes>>, _>(std::io::Error::other(
            "the model is gone",
        )))
    }));
    let response = service
        .call(request("192.0.2.1", &[]))
        .now_or_never()
        .unwrap();
    assert!(response.is_err());
    assert_eq!(left(&engine), 1000);
}

#[test]
fn all_rules_reserve_or_none() {
    let (engine, _) = engine();
    let requests: Rule = "fixed-window 2/1d".parse().unwrap();
    let requests = || RequestRule::new("requests", requests.clone(), key::Everyone);
    let layer = layer(&engine, [tokens(400), requests()]);
    let mut service = layer.layer(service_fn(|request: Request<()>| {
        hold(&request).report(Cost::from_units(50));
        ready(Ok::<_, Infallible>(Response::new(Full::from("served"))))
    }));
    let mut ask = || {
        service
            .call(request("192.0.2.1", &[]))
            .now_or_never()
            .unwrap()
            .unwrap()
    };
    let statuses: Vec<_> = (0..4).map(|_| ask().status().as_u16()).collect();
    assert_eq!(statuses, [200, 200, 429, 429]);
    assert_eq!(
        left(&engine),
        900,
        "two requests of 50; those that were denied reserve nothing"
    );
}

#[test]
fn a_grant_may_be_less_than_the_estimate() {
    let (engine, _) = engine();
    let builder = RateLimitLayer::builder(engine.clone()).rule(tokens(700));
    let layer = builder
        .hold_terms(HoldTerms::default().at_most())
        .build()
        .unwrap();
    let mut granted = Vec::new();
    let mut bodies = Vec::new();
    for _ in 0..3 {
        let request = request("192.0.2.1", &[]).into_parts().0;
        if let Judged::Pass(mut passed) = layer.judge(&request) {
            let mut extensions = http::Extensions::new();
            passed.enter(&mut extensions);
            granted.push(extensions.get::<RequestHold>().unwrap().granted());
            bodies.push(passed);
        }
    }
    assert_eq!(granted, [Cost::from_units(700), Cost::from_units(300)]);
}

#[test]
fn more_reservations_than_are_kept_are_denied() {
    let (engine, _) = engine();
    engine.set_max_reservations(1);
    let mut service = layer(&engine, [tokens(1)]).layer(service_fn(|_: Request<()>| {
        ready(Ok::<_, Infallible>(Response::new(Full::from("served"))))
    }));
    let mut ask = || {
        service
            .call(request("192.0.2.1", &[]))
            .now_or_never()
            .unwrap()
            .unwrap()
    };
    let first = ask();
    assert_eq!(
        [first.status().as_u16(), ask().status().as_u16()],
        [200, 429]
    );
    drop(first);
    assert_eq!(ask().status(), 200);
}

#[test]
fn terms_out_of_bounds_are_refused() {
    let terms = HoldTerms::default().ttl(Duration::ZERO);
    let builder = RateLimitLayer::builder(MemoryEngine::new(10).unwrap()).hold_terms(terms);
    let error = builder.rule(tokens(1)).build().unwrap_err();
    assert!(error.to_string().contains("ttl"), "{error}");
}

/// A place is taken until the body ends or is dropped.
#[test]
fn a_concurrent_rule_is_reserved_until_the_body_ends() {
    let limit: Rule = "concurrent 1 timeout=60s".parse().unwrap();
    let rule = || RequestRule::new("streams", limit.clone(), key::Everyone);
    let unreserved = RateLimitLayer::builder(MemoryEngine::new(10).unwrap())
        .rule(rule())
        .build();
    assert!(
        unreserved
            .unwrap_err()
            .to_string()
            .contains("counts live reservations")
    );
    let (engine, _) = engine();
    let mut service = layer(&engine, [rule().reserved()]).layer(service_fn(|_: Request<()>| {
        ready(Ok::<_, Infallible>(Response::new(five_frames())))
    }));
    let mut ask = || {
        service
            .call(request("192.0.2.1", &[]))
            .now_or_never()
            .unwrap()
            .unwrap()
    };
    for _ in 0..3 {
        let first = ask();
        assert_eq!(
            [first.status().as_u16(), ask().status().as_u16()],
            [200, 429]
        );
        drop(first);
    }
}

/// Each of 100 streams reserves 30 and uses up to that, so at most 33 run at any time.
#[test]
fn concurrent_streams_never_exceed_the_limit() {
    let (engine, _) = engine();
    let layer = layer(&engine, [tokens(30)]);
    let barrier = Barrier::new(100);
    let used = Mutex::new(0);
    std::thread::scope(|scope| {
        for stream in 0..100_u64 {
            let layer = layer.clone();
            let barrier = &barrier;
            let used = &used;
            scope.spawn(move || {
                let actual = stream % 31;
                let mut service = layer.layer(service_fn(move |request| {
                    hold(&request).report(Cost::from_units(actual));
                    ready(Ok::<_, Infallible>(Response::new(five_frames())))
                }));
                let answer = service
                    .call(request("192.0.2.1", &[]))
                    .now_or_never()
                    .unwrap();
                barrier.wait();
                let response = answer.unwrap();
                if response.status() == 200 {
                    *used.lock().unwrap() += actual;
                    response
                        .into_body()
                        .into_data_stream()
                        .for_each(|_| ready(()))
                        .now_or_never();
                }
            });
        }
    });
    let used = used.into_inner().unwrap();
    assert!(used <= 1000, "{used}");
    assert_eq!(
        left(&engine),
        1000 - used,
        "the state is that of the actual costs"
    );
}
