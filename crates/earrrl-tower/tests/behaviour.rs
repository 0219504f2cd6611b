//! The treatment of requests by the layer: keys, costs, plans, actions, failures.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "helpers of tests")]

use std::future::{Ready, ready};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::support::{
    Counting, Engine, ask, available, engine, layer, number, request, served, spellings,
};
use bytes::Bytes;
use earrrl::{
    Action, Charge, Cost, Decision, Engine as _, EngineError, ManualClock, MemoryEngine, Mode,
    Nanos, Outcome, Rule, RuleId, Wait,
};
use earrrl_tower::{
    AddressSource, ClientAddress, Event, LayerError, Missing, OnFailure, RateLimitLayer, Reason,
    RequestRule, Settlement, Verdict, cost, key,
};
use futures_util::FutureExt;
use http::{HeaderName, Method, Request, Response, StatusCode};
use http_body_util::{BodyExt, Full};
use tower::{Layer, Service, service_fn};

fn rule(text: &str) -> Rule {
    text.parse().unwrap()
}

fn per_address(text: &str) -> RequestRule {
    RequestRule::new("per-address", rule(text), ClientAddress::default())
}

fn by_header(name: &'static str, text: &str) -> RequestRule {
    RequestRule::new(
        "per-key",
        rule(text),
        key::header(HeaderName::from_static(name)),
    )
}

#[test]
fn clients_are_told_apart_by_their_key() {
    let (engine, _) = engine();
    let layer = layer(&engine, [per_address("gcra 1/s burst=2")]);
    let from = |peer: &'static str| (0..5).map(move |_| request(peer, &[]));
    assert_eq!(served(&layer, from("192.0.2.1")), 2);
    assert_eq!(served(&layer, from("192.0.2.2")), 2);
    assert_eq!(served(&layer, from("2001:db8::1")), 2);
    assert_eq!(
        served(&layer, from("2001:db8::2")),
        0,
        "a /64 is one client"
    );
}

#[test]
fn a_request_without_a_key_is_dealt_with_as_asked() {
    for (missing, statuses) in [
        (Missing::Shared, [200, 429]),
        (Missing::Skip, [200, 200]),
        (Missing::Deny(StatusCode::UNAUTHORIZED), [401, 401]),
    ] {
        let (engine, _) = engine();
        let rule = by_header("x-api-key", "gcra 1/s burst=1").missing(missing);
        let mut service = layer(&engine, [rule]).layer(Counting::default());
        let asked = statuses.map(|_| {
            ask(&mut service, request("192.0.2.1", &[]))
                .status()
                .as_u16()
        });
        assert_eq!(asked, statuses, "{missing:?}");
    }
}

#[test]
fn a_long_key_is_limited_like_any_other() {
    let long = "k".repeat(5000);
    let other = format!("{long}2");
    for missing in [
        Missing::Shared,
        Missing::Skip,
        Missing::Deny(StatusCode::UNAUTHORIZED),
    ] {
        let (engine, _) = engine();
        let rule = by_header("x-api-key", "gcra 1/s burst=2").missing(missing);
        let layer = layer(&engine, [rule]);
        let with = |key: &str| request("192.0.2.1", &[("x-api-key", key)]);
        assert_eq!(
            served(&layer, (0..5).map(|_| with(&long))),
            2,
            "{missing:?}"
        );
        assert_eq!(
            served(&layer, (0..5).map(|_| with(&other))),
            2,
            "{missing:?}: another client"
        );
    }
}

#[test]
fn a_denial_is_a_problem_with_headers() {
    let (engine, _) = engine();
    let builder = RateLimitLayer::builder(engine).rule(per_address("gcra 0.1/s burst=2"));
    let mut service = builder
        .x_rate_limit(true)
        .build()
        .unwrap()
        .layer(Counting::default());
    let first = ask(&mut service, request("192.0.2.1", &[]));
    assert_eq!(
        first.headers()["ratelimit-policy"],
        "\"per-address\";q=2;w=20"
    );
    assert_eq!(first.headers()["ratelimit"], "\"per-address\";r=1;t=10");
    assert_eq!(first.headers()["x-ratelimit-remaining"], "1");
    assert!(first.headers().get("retry-after").is_none());
    ask(&mut service, request("192.0.2.1", &[]));
    let denied = ask(&mut service, request("192.0.2.1", &[]));
    assert_eq!(denied.status(), 429);
    for (name, value) in [
        ("content-type", "application/problem+json"),
        ("ratelimit", "\"per-address\";r=0;t=10"),
        ("retry-after", "10"),
        ("x-ratelimit-limit", "2"),
        ("x-ratelimit-reset", "10"),
    ] {
        assert_eq!(denied.headers()[name], value);
    }
    let body = denied
        .into_body()
        .collect()
        .now_or_never()
        .unwrap()
        .unwrap()
        .to_bytes();
    assert_eq!(
        body,
        "{\"type\":\"https://iana.org/assignments/http-problem-types#quota-exceeded\",\
         \"title\":\"Too Many Requests\",\"status\":429,\"violated-policies\":[\"per-address\"]}"
    );
}

#[test]
fn several_rules_are_all_or_nothing_and_each_has_an_item() {
    let (engine, _) = engine();
    let rules = [
        RequestRule::new("wide", rule("fixed-window 100/1m"), key::Everyone),
        RequestRule::new("narrow", rule("gcra 1/s burst=2"), ClientAddress::default()),
    ];
    let mut service = layer(&engine, rules).layer(Counting::default());
    let told =
        |response: &Response<_>| response.headers()["ratelimit"].to_str().unwrap().to_owned();
    let first = ask(&mut service, request("192.0.2.1", &[]));
    assert_eq!(told(&first), "\"narrow\";r=1;t=1, \"wide\";r=99;t=53");
    assert_eq!(
        first.headers()["ratelimit-policy"],
        "\"narrow\";q=2;w=2, \"wide\";q=100;w=60"
    );
    ask(&mut service, request("192.0.2.1", &[]));
    for _ in 0..3 {
        let denied = ask(&mut service, request("192.0.2.1", &[]));
        assert_eq!(
            told(&denied),
            "\"narrow\";r=0;t=1, \"wide\";r=98;t=53",
            "no denial is charged"
        );
    }
}

#[test]
fn costs_depend_on_the_request() {
    let (engine, _) = engine();
    let by_path =
        per_address("gcra 1/s burst=10").cost_by(cost::by_path([("/export", Cost::from_units(5))]));
    let by_method = RequestRule::new(
        "by-method",
        rule("gcra 1/s burst=100"),
        ClientAddress::default(),
    )
    .cost_by(cost::by_method([(Method::POST, Cost::from_units(3))]));
    let mut service = layer(&engine, [by_path, by_method]).layer(Counting::default());
    let mut left = |method: Method, path: &str| {
        let mut request = request("192.0.2.1", &[]);
        (*request.method_mut(), *request.uri_mut()) = (method, path.parse().unwrap());
        available(ask(&mut service, request).headers()).unwrap().0
    };
    assert_eq!(left(Method::GET, "/"), 9);
    assert_eq!(left(Method::GET, "/export?x"), 4);
    assert_eq!(left(Method::POST, "/"), 3);
}

#[test]
fn no_spelling_of_a_path_evades_its_rule_or_costs_less() {
    let (engine, _) = engine();
    let key = (ClientAddress::default(), key::path());
    let login = RequestRule::new("login", rule("gcra 1/s burst=10"), key)
        .paths([spellings::PATH.parse().unwrap()])
        .cost_by(cost::by_path([(spellings::PATH, Cost::from_units(5))]));
    let mut service = layer(&engine, [login]).layer(Counting::default());
    let mut left = |client: usize, uri: &http::Uri| {
        let mut request = request(&format!("10.0.0.{client}"), &[]);
        *request.uri_mut() = uri.clone();
        available(ask(&mut service, request).headers()).map(|(units, _)| units)
    };
    let login: http::Uri = spellings::PATH.parse().unwrap();
    let taken = spellings::all().into_iter();
    let taken = taken.filter(|spelling| !spelling.takers.is_empty());
    for (client, spelling) in taken.enumerate() {
        // The layer's server has refused the other targets.
        if let Ok(uri) = http::Uri::try_from(&spelling.target[..]) {
            let shown = spelling.shown;
            assert_eq!(left(client, &uri), Some(5), "{shown}");
            assert_eq!(left(client, &login), Some(0), "{shown}");
        }
    }
    assert_eq!(left(0, &"/v1/logout".parse().unwrap()), None);
}

#[test]
fn a_cost_that_may_never_be_is_denied() {
    let (engine, _) = engine();
    let limited = rule("gcra 1/s burst=10")
        .with_max_cost(Cost::from_units(3))
        .unwrap();
    let rule = RequestRule::new("capped", limited, ClientAddress::default())
        .cost_by(|request| Cost::from_units(request.uri.path().len() as u64));
    let mut service = layer(&engine, [rule]).layer(Counting::default());
    let mut status = |path: &str| {
        let mut request = request("192.0.2.1", &[]);
        *request.uri_mut() = path.parse().unwrap();
        ask(&mut service, request).status()
    };
    assert_eq!([status("/a"), status("/long/er")], [200, 429]);
}

#[test]
fn what_a_response_costs_is_charged_even_over_the_limit() {
    let (engine, clock) = engine();
    let rule = RequestRule::new(
        "tokens",
        rule("token-bucket 1000 refill=10/s"),
        key::Everyone,
    )
    .cost(Cost::ZERO)
    .cost_after(|response| {
        let tokens = response
            .headers
            .get("x-tokens")
            .and_then(|v| v.to_str().ok()?.parse().ok());
        Cost::from_units(tokens.unwrap_or(0))
    });
    let inner = service_fn(async |_: Request<()>| {
        Ok::<_, std::convert::Infallible>(
            Response::builder()
                .header("x-tokens", "1400")
                .body(Full::<Bytes>::default())
                .unwrap(),
        )
    });
    let mut service = layer(&engine, [rule]).layer(inner);
    assert_eq!(ask(&mut service, request("192.0.2.1", &[])).status(), 200);
    let denied = ask(&mut service, request("192.0.2.1", &[]));
    assert_eq!(
        (
            denied.status().as_u16(),
            number(denied.headers(), "retry-after")
        ),
        (429, Some(40))
    );
    clock.advance(Duration::from_secs(40));
    assert_eq!(ask(&mut service, request("192.0.2.1", &[])).status(), 200);
}

#[test]
fn a_handler_settles_what_it_used() {
    let (engine, _) = engine();
    let rules = [
        RequestRule::new("tokens", rule("token-bucket 100 refill=1/s"), key::Everyone)
            .cost(Cost::ZERO)
            .settled(),
        per_address("gcra 1/s burst=10"),
    ];
    let inner = service_fn(async |request: Request<()>| {
        let settlement = request.extensions().get::<Settlement>().unwrap();
        let after = settlement.charge(Cost::from_units(60)).await.unwrap();
        let body = Full::from(after.remaining.to_string());
        Ok::<_, std::convert::Infallible>(Response::new(body))
    });
    let mut service = layer(&engine, rules).layer(inner);
    let mut body = || {
        let response = ask(&mut service, request("192.0.2.1", &[]));
        let status = response.status().as_u16();
        let body = response.into_body();
        (
            status,
            body.collect().now_or_never().unwrap().unwrap().to_bytes(),
        )
    };
    assert_eq!(body(), (200, Bytes::from("40")));
    assert_eq!(body(), (200, Bytes::from("0")), "into debt");
    assert_eq!(body().0, 429);
}

#[test]
fn plans_and_exemptions_are_told_by_the_request_and_limits_change_live() {
    let (engine, clock) = engine();
    let rule_of = per_address("gcra 1/s burst=1")
        .exempt(|request| request.uri.path() == "/healthz")
        .plan("partner", rule("gcra 1/s burst=3"), |r| {
            r.headers.contains_key("x-partner")
        });
    let layer = layer(&engine, [rule_of]);
    let times = |count, headers: &'static [(&str, &str)]| {
        (0..count).map(move |_| request("192.0.2.1", headers))
    };
    assert_eq!(served(&layer, times(5, &[])), 1);
    assert_eq!(served(&layer, times(5, &[("x-partner", "1")])), 3);
    layer
        .change("per-address", &rule("gcra 1/s burst=4"))
        .unwrap();
    clock.advance(Duration::from_secs(10));
    assert_eq!(served(&layer, times(5, &[])), 4);
    let error = layer
        .change("other", &rule("gcra 1/s burst=4"))
        .unwrap_err();
    assert_eq!(error, LayerError::UnknownName("other".to_owned()));
    let health = (0..5).map(|_| {
        let mut request = request("192.0.2.1", &[]);
        *request.uri_mut() = "/healthz".parse().unwrap();
        request
    });
    assert_eq!(served(&layer, health), 5);
}

#[test]
fn a_function_gives_clients_limits_while_requests_go_on() {
    let (engine, clock) = engine();
    let limit = Arc::new(Mutex::new(""));
    let told = limit.clone();
    let rule_of =
        per_address("fixed-window 3/1h").limit_by(move |_| told.lock().unwrap().parse().ok());
    let layer = layer(&engine, [rule_of]);
    let ask = || {
        ask(
            &mut layer.layer(Counting::default()),
            request("192.0.2.1", &[]),
        )
    };
    // The quota that headers show, and how many of 9 requests are served.
    for (text, quota, count) in [
        ("", 3, 3),
        ("fixed-window 5/1h", 5, 2),
        ("fixed-window 4/1h", 4, 0),
        ("fixed-window 8/1h", 8, 3),
        ("fixed-window many/1h", 3, 0),
        ("concurrent 9 timeout=1m", 3, 0),
        ("fixed-window 9/2h", 9, 9),
        ("gcra 1/s burst=2", 2, 2),
        ("gcra 1/s burst=6", 6, 4),
        ("", 3, 3),
    ] {
        *limit.lock().unwrap() = text;
        let responses: Vec<_> = (0..9).map(|_| ask()).collect();
        let policy = responses[0].headers()["ratelimit-policy"].to_str().unwrap();
        assert!(
            policy.starts_with(&format!("\"per-address\";q={quota};")),
            "{text}: {policy}"
        );
        let is_served = |response: &&Response<_>| response.status() == StatusCode::OK;
        assert_eq!(responses.iter().filter(is_served).count(), count, "{text}");
    }
    layer
        .change("per-address", &rule("fixed-window 4/1h"))
        .unwrap();
    assert_eq!(
        [ask().status(), ask().status()],
        [StatusCode::OK, StatusCode::TOO_MANY_REQUESTS]
    );
    *limit.lock().unwrap() = "gcra 1/s burst=6";
    clock.advance(Duration::from_secs(60));
    assert_eq!(
        served(&layer, (0..9).map(|_| request("192.0.2.1", &[]))),
        6,
        "the change is the rule's"
    );
}

#[test]
fn the_rules_own_limit_applies_where_a_layer_has_too_many_others() {
    let (engine, _) = engine();
    let rule_of = by_header("x-user", "gcra 1/s burst=1").limit_by(|request| {
        let user = request.headers["x-user"].to_str().ok()?;
        format!("gcra 1/s burst={user}").parse().ok()
    });
    let layer = layer(&engine, [rule_of]);
    let of_user = |user: usize, count| {
        let user = user.to_string();
        served(
            &layer,
            (0..count).map(|_| request("192.0.2.1", &[("x-user", &user)])),
        )
    };
    assert!((1..=1000).all(|user| of_user(user, 1) == 1));
    assert_eq!(
        [of_user(1000, 1000), of_user(1001, 9), of_user(1002, 9)],
        [999, 1, 1]
    );
    assert_eq!(engine.rules().len(), 1001);
}

#[test]
fn a_limit_of_a_request_is_in_force_while_the_engine_fails() {
    let (engine, _) = engine();
    let off = Arc::new(AtomicBool::new(true));
    let rule_of = per_address("gcra 1/m burst=1").limit_by(|request| {
        request
            .headers
            .contains_key("x-paid")
            .then(|| rule("gcra 1/m burst=3"))
    });
    let verdicts = Arc::new(Mutex::new(Vec::new()));
    let seen = verdicts.clone();
    let builder = RateLimitLayer::builder(Failing { engine, off })
        .rule(rule_of)
        .on_failure(OnFailure::Local(100))
        .respond_with(move |denial| {
            seen.lock().unwrap().push(denial.verdict.limit.clone());
            Response::new(Bytes::new())
        });
    let layer = builder.build().unwrap();
    for headers in [
        &[][..],
        &[],
        &[("x-paid", "1")],
        &[("x-paid", "1")],
        &[("x-paid", "1")],
    ] {
        ask(
            &mut layer.layer(Counting::default()),
            request("192.0.2.1", headers),
        );
    }
    let paid = rule("gcra 1/m burst=3");
    assert_eq!(*verdicts.lock().unwrap(), [None, Some(Arc::new(paid))]);
}

#[test]
fn rules_with_invalid_or_double_names_are_refused() {
    let (engine, _) = engine();
    let build = |rules: Vec<RequestRule>| {
        let builder = RateLimitLayer::builder(engine.clone());
        rules
            .into_iter()
            .fold(builder, |builder, rule| builder.rule(rule))
            .build()
            .map(drop)
    };
    let twice = vec![
        per_address("gcra 1/s burst=1"),
        per_address("gcra 1/s burst=1"),
    ];
    assert_eq!(
        build(twice),
        Err(LayerError::NameTwice("per-address".to_owned()))
    );
    let named = |name: &str| RequestRule::new(name, rule("gcra 1/s burst=1"), key::Everyone);
    let error = build(vec![named("Per Address")]).unwrap_err();
    assert!(std::error::Error::source(&error).is_some(), "{error}");
    let many = (0..65).map(|place| named(&format!("r{place}"))).collect();
    assert_eq!(
        build(many),
        Err(LayerError::Engine(EngineError::Charges(65)))
    );
}

#[test]
fn two_layers_do_not_replace_each_others_rules() {
    let (engine, _) = engine();
    let build = |text: &str| {
        RateLimitLayer::builder(engine.clone())
            .rule(per_address(text))
            .build()
    };
    let first = build("gcra 1/s burst=2").unwrap();
    let plan = per_address("gcra 1/s burst=2").plan("partner", rule("gcra 1/s burst=9"), |_| true);
    let _partners = RateLimitLayer::builder(engine.clone())
        .rule(plan)
        .build()
        .unwrap();
    let taken = |name: &str, rule: &str| LayerError::NameTaken {
        name: name.into(),
        rule: rule.into(),
    };
    let error = build("gcra 9/s burst=90").map(drop).unwrap_err();
    assert_eq!(error, taken("per-address", "gcra 1/s burst=2"));
    assert!(error.to_string().contains("use another name"), "{error}");
    let named = RequestRule::new("partner", rule("gcra 1/s burst=5"), key::Everyone);
    let unnamed = RequestRule::new("new", rule("gcra 1/s burst=5"), key::Everyone);
    let builder = RateLimitLayer::builder(engine.clone())
        .rule(unnamed)
        .rule(named);
    assert_eq!(
        builder.build().map(drop),
        Err(taken("partner", "gcra 1/s burst=9"))
    );
    assert_eq!(
        engine.prepared("new"),
        None,
        "a layer that is refused prepares nothing"
    );
    let same = build("gcra 1/s burst=2").unwrap();
    let times = |count| (0..count).map(|_| request("192.0.2.1", &[]));
    assert_eq!(
        (served(&first, times(1)), served(&same, times(3))),
        (1, 1),
        "clients are shared"
    );
}

/// Counts the warnings of a thread.
#[derive(Clone, Default)]
struct Warnings(Arc<AtomicUsize>);

impl tracing::Subscriber for Warnings {
    fn enabled(&self, metadata: &tracing::Metadata<'_>) -> bool {
        *metadata.level() == tracing::Level::WARN
    }

    fn new_span(&self, _: &tracing::span::Attributes<'_>) -> tracing::span::Id {
        tracing::span::Id::from_u64(1)
    }

    fn record(&self, _: &tracing::span::Id, _: &tracing::span::Record<'_>) {}

    fn record_follows_from(&self, _: &tracing::span::Id, _: &tracing::span::Id) {}

    fn event(&self, _: &tracing::Event<'_>) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }

    fn enter(&self, _: &tracing::span::Id) {}

    fn exit(&self, _: &tracing::span::Id) {}
}

#[test]
fn a_server_that_does_not_supply_addresses_is_warned_of_once() {
    let pair = (
        ClientAddress::default(),
        key::header(HeaderName::from_static("x-api-key")),
    );
    let pair = RequestRule::new("pair", rule("gcra 1/s burst=2"), pair).missing(Missing::Skip);
    for (rule, with_address, without) in [
        (per_address("gcra 1/s burst=2"), 0, 1),
        (pair, 0, 1),
        (by_header("x-api-key", "gcra 1/s burst=2"), 0, 0),
    ] {
        let (engine, _) = engine();
        let mut service = layer(&engine, [rule]).layer(Counting::default());
        let warnings = Warnings::default();
        tracing::subscriber::with_default(warnings.clone(), || {
            ask(&mut service, request("192.0.2.1", &[]));
            assert_eq!(warnings.0.load(Ordering::SeqCst), with_address);
            for _ in 0..3 {
                ask(&mut service, Request::new(()));
            }
            assert_eq!(warnings.0.load(Ordering::SeqCst), without);
        });
    }
}

/// Requests come from an address of this machine or of a private network and have `X-Forwarded-For`, but the layer
/// trusts no such proxy and so does not read the header.
#[test]
fn a_proxy_that_is_not_trusted_is_warned_of_once() {
    let forwarded = [("x-forwarded-for", "192.0.2.7")];
    let trusting = ClientAddress::default().trust("10.0.0.0/8".parse().unwrap());
    let limit = || rule("gcra 1/s burst=2");
    for (rule, peer, headers, expected) in [
        (
            per_address("gcra 1/s burst=2"),
            "127.0.0.1",
            &forwarded[..],
            1,
        ),
        (
            per_address("gcra 1/s burst=2"),
            "::ffff:10.0.0.1",
            &forwarded,
            1,
        ),
        (per_address("gcra 1/s burst=2"), "127.0.0.1", &[], 0),
        (
            per_address("gcra 1/s burst=2"),
            "198.51.100.1",
            &forwarded,
            0,
        ),
        (
            RequestRule::new("a", limit(), trusting.clone()),
            "127.0.0.1",
            &forwarded,
            1,
        ),
        (
            RequestRule::new("a", limit(), trusting.clone()),
            "10.0.0.1",
            &forwarded,
            0,
        ),
        (
            RequestRule::new("a", limit(), (trusting, key::Method)),
            "127.0.0.1",
            &forwarded,
            1,
        ),
        (
            RequestRule::new("a", limit(), key::Everyone),
            "127.0.0.1",
            &forwarded,
            0,
        ),
    ] {
        let (engine, _) = engine();
        let mut service = layer(&engine, [rule]).layer(Counting::default());
        let warnings = Warnings::default();
        tracing::subscriber::with_default(warnings.clone(), || {
            (0..3).for_each(|_| drop(ask(&mut service, request(peer, headers))));
        });
        assert_eq!(
            warnings.0.load(Ordering::SeqCst),
            expected,
            "{peer} {headers:?}"
        );
    }
}

/// Returns the status, the outcome that the handler saw, and the presence of headers, of four
/// requests under a rule that allows two.
fn flagged(
    action: Action,
    builder: impl FnOnce(Engine) -> earrrl_tower::Builder<Engine>,
) -> Vec<(u16, Outcome, bool)> {
    let (engine, _) = engine();
    let rule = rule("gcra 1/s burst=2").with_action(action).unwrap();
    let rule = RequestRule::new("flagging", rule, ClientAddress::default());
    let layer = builder(engine).rule(rule).build().unwrap();
    let seen = Arc::new(std::sync::Mutex::new(Vec::new()));
    let inner = service_fn(|request: Request<()>| {
        seen.lock().unwrap().push(
            request
                .extensions()
                .get::<Verdict>()
                .cloned()
                .unwrap_or_default(),
        );
        ready(Ok::<_, std::convert::Infallible>(Response::new(Full::<
            Bytes,
        >::default(
        ))))
    });
    let mut service = layer.layer(inner);
    let answers: Vec<_> = (0..4)
        .map(|_| ask(&mut service, request("192.0.2.1", &[])))
        .collect();
    let seen = seen.lock().unwrap();
    answers
        .iter()
        .zip(seen.iter())
        .map(|(a, v)| {
            (
                a.status().as_u16(),
                v.outcome(),
                a.headers().contains_key("ratelimit"),
            )
        })
        .collect()
}

#[test]
fn what_only_flags_is_passed_on_with_its_verdict_and_shows_in_no_header() {
    for (action, outcome) in [
        (Action::ShadowBan, Outcome::ShadowBan),
        (Action::Quarantine, Outcome::Quarantine),
        (Action::Observe, Outcome::Observe),
    ] {
        let seen = flagged(action, RateLimitLayer::builder);
        let allowed = (200, Outcome::Allow, false);
        let over = (200, outcome, false);
        assert_eq!(seen, [allowed, allowed, over, over]);
    }
}

#[test]
fn a_verdict_can_be_had_on_every_request() {
    let (engine, _) = engine();
    let builder = RateLimitLayer::builder(engine).rule(per_address("gcra 1/s burst=2"));
    let inner = service_fn(async |request: Request<()>| {
        let verdict = request.extensions().get::<Verdict>().unwrap();
        assert_eq!(verdict.rule.as_deref(), Some("per-address"));
        assert_eq!(verdict.decision.unwrap().remaining, 1);
        Ok::<_, std::convert::Infallible>(Response::new(Full::<Bytes>::default()))
    });
    let mut service = builder.always_verdict(true).build().unwrap().layer(inner);
    assert_eq!(ask(&mut service, request("192.0.2.1", &[])).status(), 200);
}

#[test]
fn headers_can_be_left_off_what_is_allowed() {
    let (engine, _) = engine();
    let builder = RateLimitLayer::builder(engine).rule(per_address("gcra 1/s burst=1"));
    let layer = builder
        .headers_on_allowed(false)
        .status(StatusCode::SERVICE_UNAVAILABLE);
    let mut service = layer.build().unwrap().layer(Counting::default());
    assert!(
        !ask(&mut service, request("192.0.2.1", &[]))
            .headers()
            .contains_key("ratelimit")
    );
    let denied = ask(&mut service, request("192.0.2.1", &[]));
    assert_eq!(
        (denied.status().as_u16(), available(denied.headers())),
        (503, Some((0, Some(1))))
    );
}

#[test]
fn a_closure_answers_and_a_hook_is_told() {
    let (engine, _) = engine();
    let denials = Arc::new(AtomicUsize::new(0));
    let counted = denials.clone();
    let layer = RateLimitLayer::builder(engine)
        .rule(per_address("gcra 1/s burst=1"))
        .respond_with(|denial| {
            assert_eq!(
                (denial.reason, &denial.violated[..]),
                (Reason::OverLimit, &["per-address"][..])
            );
            let mut response = denial.problem();
            *response.status_mut() = StatusCode::IM_A_TEAPOT;
            response
        })
        .on_event(move |event| {
            if let Event::Decided {
                rule: "per-address",
                decision,
            } = event
                && !decision.allowed
            {
                counted.fetch_add(1, Ordering::SeqCst);
            }
        });
    let mut service = layer.build().unwrap().layer(Counting::default());
    let statuses: Vec<u16> = (0..3)
        .map(|_| {
            ask(&mut service, request("192.0.2.1", &[]))
                .status()
                .as_u16()
        })
        .collect();
    assert_eq!(
        (statuses, denials.load(Ordering::SeqCst)),
        (vec![200, 418, 418], 2)
    );
}

#[test]
fn calls_of_grpc_are_answered_by_a_status_in_headers() {
    let (engine, _) = engine();
    let mut service =
        layer(&engine, [per_address("gcra 0.5/s burst=1")]).layer(Counting::default());
    let call = || request("192.0.2.1", &[("content-type", "application/grpc+proto")]);
    ask(&mut service, call());
    let denied = ask(&mut service, call());
    assert_eq!(denied.status(), 200);
    for (name, value) in [
        ("content-type", "application/grpc"),
        ("grpc-status", "8"),
        ("grpc-retry-pushback-ms", "2000"),
        ("retry-after", "2"),
    ] {
        assert_eq!(denied.headers()[name], value);
    }
    assert!(http_body::Body::is_end_stream(denied.body()));
}

#[test]
fn a_grpc_call_without_a_key_gets_the_code_of_the_status_that_was_chosen() {
    for (status, code) in [
        (400, "3"),
        (401, "16"),
        (403, "7"),
        (429, "8"),
        (503, "14"),
        (418, "2"),
    ] {
        let (engine, _) = engine();
        let missing = Missing::Deny(StatusCode::from_u16(status).unwrap());
        let rule = by_header("x-api-key", "gcra 1/s burst=1").missing(missing);
        let mut service = layer(&engine, [rule]).layer(Counting::default());
        let response = ask(
            &mut service,
            request("192.0.2.1", &[("content-type", "application/grpc")]),
        );
        assert_eq!(response.status(), StatusCode::OK);
        assert_eq!(response.headers()["grpc-status"], code, "{status}");
    }
}

/// An engine that can be made to fail.
#[derive(Clone)]
struct Failing {
    engine: Engine,
    off: Arc<AtomicBool>,
}

impl earrrl::Engine for Failing {
    type Decide = Ready<Result<Decision, EngineError>>;
    type Done = Ready<Result<(), EngineError>>;

    fn prepare(&self, name: &str, rule: &Rule) -> Result<RuleId, EngineError> {
        self.engine.prepare(name, rule)
    }

    fn prepared(&self, name: &str) -> Option<Rule> {
        self.engine.prepared(name)
    }

    fn decide(&self, charges: &[Charge<'_>], mode: Mode, now: Option<Nanos>) -> Self::Decide {
        if self.off.load(Ordering::SeqCst) {
            return ready(Err(EngineError::Unavailable("switched off".to_owned())));
        }
        self.engine.decide(charges, mode, now)
    }

    fn refund(&self, charge: &Charge<'_>, at: Option<Nanos>, now: Option<Nanos>) -> Self::Done {
        self.engine.refund(charge, at, now)
    }

    fn reset(&self, rule: RuleId, key: &[u8]) -> Self::Done {
        self.engine.reset(rule, key)
    }
}

#[test]
fn a_failing_engine_allows_denies_or_leaves_it_to_this_process() {
    for (on_failure, expected) in [
        (OnFailure::Allow, [200, 200, 200]),
        (OnFailure::Deny, [503, 503, 503]),
        (OnFailure::Local(100), [200, 200, 429]),
    ] {
        let (engine, _) = engine();
        let failing = Failing {
            engine,
            off: Arc::new(AtomicBool::new(true)),
        };
        let failures = Arc::new(AtomicUsize::new(0));
        let counted = failures.clone();
        let builder = RateLimitLayer::builder(failing.clone())
            .rule(per_address("gcra 0.01/s burst=2"))
            .on_failure(on_failure)
            .on_event(move |event| {
                counted.fetch_add(
                    usize::from(matches!(event, Event::EngineFailed(_))),
                    Ordering::SeqCst,
                );
            });
        let mut service = builder.build().unwrap().layer(Counting::default());
        let mut status = || {
            ask(&mut service, request("192.0.2.1", &[]))
                .status()
                .as_u16()
        };
        assert_eq!([status(), status(), status()], expected, "{on_failure:?}");
        assert_eq!(failures.load(Ordering::SeqCst), 3);
        failing.off.store(false, Ordering::SeqCst);
        assert_eq!(
            [status(), status(), status()],
            [200, 200, 429],
            "{on_failure:?}"
        );
    }
}

#[test]
fn an_engine_is_still_the_users_own() {
    let (engine, clock) = engine();
    let layer = layer(&engine, [per_address("gcra 0.01/s burst=1")]);
    let times = |count| (0..count).map(|_| request("192.0.2.1", &[]));
    assert_eq!(served(&layer, times(3)), 1);
    let id = engine
        .prepare("per-address", &rule("gcra 0.01/s burst=1"))
        .unwrap();
    let charge = Charge {
        rule: id,
        key: b"192.0.2.1",
        cost: Cost::ONE,
    };
    let peek = layer
        .engine()
        .decide(&[charge], Mode::Peek, None)
        .into_inner()
        .unwrap();
    assert_eq!(peek.retry_after, Wait::For(Duration::from_secs(100)));
    engine.reset(id, b"192.0.2.1").into_inner().unwrap();
    assert_eq!(served(&layer, times(3)), 1);
    ManualClock::advance(&clock, Duration::from_secs(100));
    assert_eq!(served(&layer, times(3)), 1);
    let _: MemoryEngine = MemoryEngine::new(1).unwrap();
}

#[test]
fn a_client_behind_a_proxy_is_found() {
    let (engine, _) = engine();
    let behind = ClientAddress::default()
        .trust("10.0.0.0/8".parse().unwrap())
        .source(AddressSource::Forwarded);
    let rule = RequestRule::new("behind", rule("gcra 1/s burst=1"), behind);
    let layer = layer(&engine, [rule]);
    let from = |client: &str| request("10.0.0.1", &[("forwarded", &format!("for={client}"))]);
    assert_eq!(
        served(&layer, ["192.0.2.1", "192.0.2.2", "192.0.2.1"].map(from)),
        2
    );
}

#[test]
fn readiness_is_the_inner_services() {
    let (engine, _) = engine();
    let inner = tower::util::MapErr::new(NeverReady, |never| never);
    let mut service = layer(&engine, [per_address("gcra 1/s burst=1")]).layer(inner);
    let waker = std::task::Waker::noop();
    let mut context = std::task::Context::from_waker(waker);
    let ready: std::task::Poll<Result<(), std::convert::Infallible>> =
        Service::<Request<()>>::poll_ready(&mut service, &mut context);
    assert!(ready.is_pending());
}

#[derive(Clone)]
struct NeverReady;

impl Service<Request<()>> for NeverReady {
    type Response = Response<Full<Bytes>>;
    type Error = std::convert::Infallible;
    type Future = Ready<Result<Self::Response, Self::Error>>;

    fn poll_ready(
        &mut self,
        _: &mut std::task::Context<'_>,
    ) -> std::task::Poll<Result<(), Self::Error>> {
        std::task::Poll::Pending
    }

    fn call(&mut self, _: Request<()>) -> Self::Future {
        ready(Ok(Response::default()))
    }
}

/// Without headers on allowed responses, the engine is asked for the verdict alone. Its verdicts, and the
/// headers of denials, must be the same.
#[test]
fn without_headers_on_allowed_answers_are_the_same() {
    for text in [
        "recent-average 1/s half-life=2s strict",
        "recent-average 1/s half-life=2s leaky",
        "gcra 1/s burst=3",
        "fixed-window 3/2s",
        "sliding-log 3/2s strict",
        "sliding-window 3/2s",
        "exponential 3/2s",
    ] {
        for action in [
            Action::Deny,
            Action::Observe,
            Action::Delay {
                max: Duration::ZERO,
            },
        ] {
            let Ok(rule) = rule(text).with_action(action) else {
                continue;
            };
            let services = [true, false].map(|told| {
                let (engine, clock) = engine();
                let rule = RequestRule::new("rule", rule.clone(), ClientAddress::default())
                    .cost_by(|request| Cost::from_units(request.uri.path().len() as u64 - 1));
                let builder = RateLimitLayer::builder(engine)
                    .rule(rule)
                    .headers_on_allowed(told);
                (builder.build().unwrap().layer(Counting::default()), clock)
            });
            let [(mut telling, one), (mut silent, other)] = services;
            for (step, path) in ["/c", "/c", "/", "/c", "/cc", "/c", "/", "/c"]
                .iter()
                .cycle()
                .take(40)
                .enumerate()
            {
                let asked = |service: &mut _| {
                    let mut request = request("192.0.2.1", &[]);
                    *request.uri_mut() = path.parse().unwrap();
                    ask(service, request)
                };
                let told = asked(&mut telling);
                let untold = asked(&mut silent);
                assert_eq!(told.status(), untold.status(), "{text} {action:?} {step}");
                if untold.status() == StatusCode::OK {
                    assert!(untold.headers().is_empty(), "{text} {action:?} {step}");
                } else {
                    assert_eq!(told.headers(), untold.headers(), "{text} {action:?} {step}");
                }
                let pause = Duration::from_millis(step as u64 % 5 * 170);
                [&one, &other]
                    .into_iter()
                    .for_each(|clock| clock.advance(pause));
            }
        }
    }
}
