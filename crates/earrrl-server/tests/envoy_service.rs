//! Tests the answers of Envoy's rate limit service by tables, without a socket.
#![allow(clippy::unwrap_used)]

use std::path::PathBuf;
use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use earrrl::{ManualClock, Mode, Nanos};
use earrrl_server::config::Config;
use earrrl_server::protobuf::ratelimit::{
    Entry, RateLimitDescriptor, RateLimitOverride, RateLimitRequest,
};
use earrrl_server::service::Service;
use earrrl_server::service::error::AskError;
use earrrl_testing::block_on;
use serde_json::{Map, Value, json};

fn testdata(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
        .join("../../testdata")
        .join(name)
}

/// Returns a service with the descriptors of `envoy/shop.yaml`, and its clock.
fn service(toml: &str) -> (Service, Arc<ManualClock>) {
    let mut config = Config::parse(toml, "f").unwrap();
    config.envoy.files = vec![testdata("envoy/shop.yaml")];
    assert_eq!(config.envoy.load().unwrap(), Vec::<String>::new());
    let clock = Arc::new(ManualClock::new(Nanos::ZERO));
    (
        Service::new(&config, Arc::clone(&clock) as _).unwrap(),
        clock,
    )
}

/// Parses a request such as `path=/login,user=u h2; a=b x3`: `x` is the hits of the request, `h`
/// those of the descriptor, `n` negative hits, and `l5/2` a limit of 5 in unit 2.
fn request(text: &str) -> Value {
    let mut request = Map::from_iter([("domain".to_owned(), json!("shop"))]);
    let mut descriptors = Vec::new();
    for descriptor in text.split("; ") {
        let mut words = descriptor.split(' ');
        let pair = |entry: &str| {
            let (key, value) = entry.split_once('=').unwrap();
            json!({"key": key, "value": value})
        };
        let entries: Vec<_> = words.next().unwrap().split(',').map(pair).collect();
        let mut object = json!({ "entries": entries });
        for word in words {
            let number = word[1..].to_owned();
            match &word[..1] {
                "x" => request.extend([("hits_addend".to_owned(), number.into())]),
                "h" => object["hitsAddend"] = number.into(),
                "n" => {
                    object["hitsAddend"] = number.into();
                    object["is_negative_hits"] = true.into();
                }
                _ => {
                    let (requests, unit) = number.split_once('/').unwrap();
                    let unit: i64 = unit.parse().unwrap();
                    object["limit"] = json!({"requests_per_unit": requests, "unit": unit});
                }
            }
        }
        descriptors.push(object);
    }
    request.extend([("descriptors".to_owned(), descriptors.into())]);
    request.into()
}

fn ask(service: &Service, request: &Value) -> Result<Value, AskError> {
    let request = serde_json::from_value::<RateLimitRequest>(request.clone()).unwrap();
    block_on(service.should_rate_limit(&request, Mode::Check, None))
        .map(|answer| serde_json::to_value(answer).unwrap())
}

/// Writes a status as `X 0 57`: the code, the remaining hits, and the seconds until the reset.
fn short(status: &Value) -> String {
    let code = if status["code"] == "OK" { "O" } else { "X" };
    let limited = status.get("currentLimit").is_some();
    let remaining = status.get("limitRemaining").and_then(Value::as_u64);
    let reset = status.get("durationUntilReset").and_then(Value::as_str);
    let remaining = remaining
        .or(limited.then_some(0))
        .map(|remaining| format!(" {remaining}"));
    let reset = reset.map(|reset| format!(" {}", reset.trim_end_matches('s')));
    format!(
        "{code}{}{}",
        remaining.unwrap_or_default(),
        reset.unwrap_or_default()
    )
}

#[test]
fn answers_are_those_of_the_tables() {
    let text = std::fs::read_to_string(testdata("vectors/envoy_service.json")).unwrap();
    let cases: Value = serde_json::from_str(&text).unwrap();
    for case in cases["cases"].as_array().unwrap() {
        let drains = case.get("drain_denied").is_some();
        let (service, clock) = service(&format!("[envoy]\ndrain_denied = {drains}"));
        for step in case["steps"].as_array().unwrap() {
            clock.set(Nanos::new((step[0].as_f64().unwrap() * 1e9) as u64));
            let answer = ask(&service, &request(step[1].as_str().unwrap())).unwrap();
            let code = if answer["overallCode"] == "OK" {
                "O"
            } else {
                "X"
            };
            let statuses: Vec<_> = answer["statuses"]
                .as_array()
                .unwrap()
                .iter()
                .map(short)
                .collect();
            assert_eq!(
                (json!(code), json!(statuses)),
                (step[2].clone(), step[3].clone()),
                "{}: {step}",
                case["name"]
            );
        }
    }
}

#[test]
fn what_cannot_be_has_the_peers_error() {
    let (service, _) = service("");
    let entry = json!([{"entries": [{"key": "path", "value": "/login"}]}]);
    let over = vec![json!({"entries": [{"key": "a", "value": "b"}]}); 65];
    let unit = json!([{"entries": [{"key": "a"}], "limit": {"requestsPerUnit": 1, "unit": 0}}]);
    for (request, why) in [
        (
            json!({"descriptors": entry}),
            "rate limit domain must not be empty",
        ),
        (
            json!({"domain": "shop"}),
            "rate limit descriptor list must not be empty",
        ),
        (
            json!({"domain": "shop", "descriptors": over}),
            "65 descriptors; at most 64",
        ),
        (
            json!({"domain": "shop", "descriptors": unit}),
            "limit.unit: 0 is not from 1 (SECOND) to 6 (YEAR)",
        ),
    ] {
        let refused = ask(&service, &request).unwrap_err();
        assert_eq!(refused, AskError::Invalid(why.into()));
    }
    let bare = Service::new(&Config::default(), Arc::new(ManualClock::new(Nanos::ZERO))).unwrap();
    let refused = ask(&bare, &request("path=/login")).unwrap_err();
    assert_eq!(refused.to_string(), "no rate limit configuration loaded");
}

/// In the last second of January, which is the last of no 30 days since 1970.
#[test]
fn months_and_years_are_of_the_calendar_if_asked_for() {
    const JANUARY: u64 = 31 * 86_400 - 1;
    for (toml, unit, requests, expected) in [
        ("", 5, 3, "2505601s"),
        ("[envoy]\nalgorithm = \"calendar\"", 5, 3, "1s"),
        ("[envoy]\nalgorithm = \"calendar\"", 6, 3, "28857601s"),
        ("[envoy]\nalgorithm = \"calendar\"", 4, 3, "1s"),
    ] {
        let (service, clock) = service(toml);
        clock.set(Nanos::from_secs(JANUARY));
        let answer = ask(&service, &request(&format!("a=b l{requests}/{unit}"))).unwrap();
        let status = &answer["statuses"][0];
        assert_eq!(status["durationUntilReset"], expected, "{toml} {unit}");
        assert_eq!(
            status["currentLimit"]["requestsPerUnit"], requests,
            "{toml} {unit}"
        );
    }
}

/// A rule's month and year are Envoy's units in answers.
#[test]
fn a_calendar_month_is_reported_as_a_month() {
    let (service, _) = service("[envoy]\nalgorithm = \"calendar\"");
    let answer = ask(&service, &request("status=404")).unwrap();
    let limit = &answer["statuses"][0]["currentLimit"];
    assert_eq!(
        (&limit["requestsPerUnit"], &limit["unit"]),
        (&json!(40), &json!("MONTH"))
    );
}

/// The number that a request brings is no part of its counter.
#[test]
fn a_limit_that_changes_with_each_request_is_a_limit() {
    for toml in [
        "",
        "[envoy]\nalgorithm = \"sliding-window\"",
        "[envoy]\nalgorithm = \"gcra\"",
    ] {
        let (service, _) = service(toml);
        let code = |limit: usize| {
            let answer = ask(&service, &request(&format!("a=b l{limit}/4"))).unwrap();
            answer["overallCode"].clone()
        };
        for limit in 1..=1000 {
            assert_eq!(code(2000 - limit), "OK", "{toml} {limit}");
        }
        for limit in 0..=1000 {
            assert_eq!(code(limit), "OVER_LIMIT", "{toml} {limit}");
        }
        assert_eq!(code(1001), "OK", "what is denied is not counted");
        assert_eq!(code(1001), "OVER_LIMIT");
    }
}

/// The counters of limits in requests hold as many clients as those of limits in files.
#[test]
fn limits_of_requests_count_as_many_clients_as_configured() {
    let (service, _) = service("[engine]\ncapacity = 100000");
    for clients in [20_000, 60_000] {
        let ask = |client: usize| {
            let entry = Entry {
                key: "client".into(),
                value: format!("{clients}-{client}").into(),
            };
            let descriptor = RateLimitDescriptor {
                entries: vec![entry],
                limit: Some(RateLimitOverride {
                    requests_per_unit: 1,
                    unit: 3,
                }),
                ..Default::default()
            };
            let request = RateLimitRequest {
                domain: "shop".into(),
                descriptors: vec![descriptor],
                hits_addend: 0,
            };
            let answer = block_on(service.should_rate_limit(&request, Mode::Check, None));
            answer.unwrap().overall_code == 1
        };
        assert!((0..clients).all(ask), "{clients}: the first requests");
        let passed_twice = (0..clients).filter(|client| ask(*client)).count();
        assert_eq!(passed_twice, 0, "of {clients}");
    }
}

/// A request must not be able to switch its limit off by bringing one that cannot be counted.
#[test]
fn the_configured_limit_applies_where_that_of_a_request_cannot() {
    let (service, _) = service("");
    let codes = [(); 6].map(|()| {
        let answer = ask(&service, &request("path=/login l1000/9")).unwrap();
        answer["overallCode"].clone()
    });
    assert_eq!(codes[..5], vec![json!("OK"); 5]);
    assert_eq!(codes[5], "OVER_LIMIT");
    assert_eq!(service.descriptor_counts().refused_limits.get(), 6);
}

#[test]
fn the_error_of_one_descriptor_skips_no_other() {
    let (service, _) = service("");
    let both = || ask(&service, &request("a=b l1/9; path=/login"));
    for _ in 0..5 {
        assert!(both().is_err());
    }
    assert_eq!(both().unwrap()["overallCode"], "OVER_LIMIT");
}

/// One decision of the engine contains at most 64 limits.
#[test]
fn more_limits_than_one_decision_takes_are_all_or_nothing() {
    let rule = |name: &str, burst: u32, more: &str| {
        format!(
            "[[rule]]\nname = \"{name}\"\nlimit = \"gcra 0.01/s burst={burst}\"\n\
             key = \"descriptor:user\"\nmatch = {{ domain = \"shop\"{more} }}\n"
        )
    };
    let last = ", \"descriptor:user\" = \"u63\"";
    let (service, _) = service(&[rule("a", 9, ""), rule("b", 9, ""), rule("c", 2, last)].concat());
    let all: Vec<String> = (0..64).map(|user| format!("user=u{user}")).collect();
    let ask_all = || ask(&service, &request(&all.join("; "))).unwrap();
    for code in ["OK", "OK", "OVER_LIMIT", "OVER_LIMIT"] {
        let answer = ask_all();
        assert_eq!(answer["overallCode"], code);
        let over = answer["statuses"]
            .as_array()
            .unwrap()
            .iter()
            .filter(|s| s["code"] != "OK");
        assert_eq!(over.count(), usize::from(code != "OK"));
    }
    let first = ask(&service, &request("user=u0 h0")).unwrap();
    assert_eq!(
        first["statuses"][0]["limitRemaining"], 7,
        "the denials cost nothing: {first}"
    );
}

#[test]
fn metadata_is_that_of_descriptors_that_passed() {
    let (service, _) = service("[envoy]\ndynamic_metadata = true");
    let of = |text: &str| ask(&service, &request(text)).unwrap()["dynamicMetadata"].clone();
    let first = of("pool=a h1; pool=b h0 x3");
    let pool = json!({"live": true, "name": "a", "tags": ["x", "y"], "weight": 0.5});
    assert_eq!(first["metadata"]["pool"], pool);
    assert_eq!(first["domain"], "shop");
    assert_eq!(first["hitsAddend"], 3.0);
    assert_eq!(
        first["descriptors"][0],
        json!({"entries": ["pool=a"], "hitsAddend": 1})
    );
    assert_eq!(
        of("pool=a; pool=b")["metadata"]["pool"],
        json!({"name": "b"})
    );
}

#[test]
fn headers_are_the_ones_asked_for() {
    let of = |toml: &str, text: &str| {
        let (service, clock) = service(toml);
        clock.set(Nanos::from_secs(10));
        let answer = ask(&service, &request(text)).unwrap();
        let text = |name: &str| match answer.get(name).and_then(Value::as_array) {
            Some(list) => list
                .iter()
                .map(|h| {
                    format!(
                        "{}: {}",
                        h["key"].as_str().unwrap(),
                        h["value"].as_str().unwrap()
                    )
                })
                .collect::<Vec<_>>(),
            None => Vec::new(),
        };
        (
            text("responseHeadersToAdd"),
            answer.get("rawBody").is_some(),
        )
    };
    let (headers, _) = of("", "path=/login; partner=gold");
    let policy = "ratelimit-policy: \"default\";q=5;w=60, \"default\";q=50;w=60";
    let limits = "ratelimit: \"default\";r=4;t=50, \"default\";r=49;t=50";
    assert_eq!(headers, [policy, limits], "the tightest comes first");
    let (headers, _) = of("[envoy]\nheaders = \"envoyproxy-ratelimit\"", "banned=x");
    assert_eq!(
        headers,
        [
            "ratelimit-limit: 0",
            "ratelimit-remaining: 0",
            "ratelimit-reset: 50",
            "retry-after: 50"
        ]
    );
    let (headers, body) = of("[envoy]\nheaders = \"off\"", "banned=x");
    assert_eq!((headers, body), (vec!["retry-after: 50".to_owned()], false));
    let (headers, _) = of("", "path=/login x6");
    let policy = "ratelimit-policy: \"default\";q=5;w=60";
    assert_eq!(
        headers,
        [policy, "ratelimit: \"default\";r=0"],
        "no wait helps a request that costs more than the quota"
    );
    let (headers, body) = of(
        "[envoy]\nheaders = \"off\"\nproblem_body = true",
        "banned=x",
    );
    assert_eq!(
        headers,
        ["retry-after: 50", "content-type: application/problem+json"]
    );
    assert!(body);
    let (denied, _) = service("[envoy]\nproblem_body = true");
    let answer = ask(&denied, &request("banned=x")).unwrap();
    assert_eq!(
        answer["rawBody"],
        STANDARD.encode(
            r#"{"type":"https://iana.org/assignments/http-problem-types#quota-exceeded","title":"Too Many Requests","status":429,"violated-policies":["banned"]}"#
        )
    );
    let (service, _) = service("");
    ask(&service, &request("abuser=x x10000")).unwrap();
    let flagged = &ask(&service, &request("abuser=x")).unwrap()["requestHeadersToAdd"];
    assert_eq!(
        *flagged,
        json!([{"key": "x-earrrl-action", "value": "quarantine"}])
    );
}

#[test]
fn rules_of_the_server_serve_descriptors() {
    let rule = "[[rule]]\nname = \"login\"\nlimit = \"fixed-window 2/1m\"\nkey = [\"descriptor:user\"]\n\
                match = { domain = \"shop\", \"descriptor:page\" = \"/login\" }\n";
    let (service, _) = service(rule);
    let of = |text: &str| ask(&service, &request(text)).unwrap();
    assert_eq!(short(&of("page=/login,user=a")["statuses"][0]), "O 1 60");
    assert_eq!(
        of("page=/login,user=a")["statuses"][0]["currentLimit"]["name"],
        "login"
    );
    assert_eq!(of("page=/login,user=a")["overallCode"], "OVER_LIMIT");
    assert_eq!(short(&of("page=/login,user=b")["statuses"][0]), "O 1 60");
    assert_eq!(short(&of("page=/other,user=b")["statuses"][0]), "O");
    let clients = service.survey("login").unwrap().clients;
    let named: Vec<_> = clients
        .into_iter()
        .filter_map(|client| client.name)
        .collect();
    let counts: Vec<_> = named
        .iter()
        .map(|one| (&*one.name, one.allowed, one.denied))
        .collect();
    assert_eq!(counts, [(&b"a"[..], 1, 1)]);
}

/// A call that charges nothing, as Kuadrant's `CheckRateLimit`, is not counted; the charge that follows it is.
#[test]
fn a_peek_is_counted_nowhere() {
    let (service, _) = service("");
    for text in ["path=/login; banned=x", "path=/login l1/2", "trial=x h5"] {
        let request = serde_json::from_value::<RateLimitRequest>(request(text)).unwrap();
        let peek = service.should_rate_limit(&request, Mode::Peek, None);
        block_on(peek).unwrap();
    }
    assert_eq!(service.metrics.outcomes.total(), 0);
    let answer = ask(&service, &request("path=/login")).unwrap();
    assert_eq!(short(&answer["statuses"][0]), "O 4 60");
    assert_eq!(service.metrics.outcomes.total(), 1);
}

#[test]
fn shadow_mode_reports_denials_and_denies_nothing() {
    let (service, _) = service("shadow_mode = true\n[envoy]\nproblem_body = true\n");
    let answers: Vec<_> = (0..6)
        .map(|_| ask(&service, &request("path=/login")).unwrap())
        .collect();
    assert!(answers.iter().all(|answer| answer["overallCode"] == "OK"));
    assert_eq!(short(&answers[4]["statuses"][0]), "O");
    assert_eq!(short(&answers[5]["statuses"][0]), "X");
    assert_eq!(answers[5].get("rawBody"), None);
    assert_eq!(answers[5].get("responseHeadersToAdd"), None);
}

/// A dry run must not change responses, and a client must not learn that it is shadow-banned.
#[test]
fn limits_that_deny_nobody_are_not_shown() {
    let year = "rate_limit: {unit: year, requests_per_unit: 1}";
    let yaml = format!(
        "domain: shop\ndescriptors:\n\
         \x20 - {{key: shadow, shadow_mode: true, {year}}}\n\
         \x20 - {{key: seen, action: observe, {year}}}\n\
         \x20 - {{key: banned, action: shadow-ban, {year}}}\n\
         \x20 - {{key: flagged, action: quarantine, {year}}}\n\
         \x20 - {{key: real, rate_limit: {{unit: year, requests_per_unit: 9}}}}\n"
    );
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("d.yaml"), yaml).unwrap();
    let rules = ["observe", "shadow-ban", "quarantine"].map(|action| {
        format!(
            "[[rule]]\nname = \"{action}\"\nlimit = \"fixed-window 1/1h\"\naction = \"{action}\"\n\
             key = \"descriptor:{action}\"\nmatch = {{ domain = \"shop\" }}\n"
        )
    });
    for toml in ["", "[envoy]\nheaders = \"envoyproxy-ratelimit\"\n"] {
        let text = format!("{toml}{}", rules.concat());
        let mut config = Config::parse(&text, "f").unwrap();
        config.envoy.files = vec![folder.path().to_owned()];
        config.envoy.load().unwrap();
        let clock = Arc::new(ManualClock::new(Nanos::ZERO));
        let service = Service::new(&config, clock).unwrap();
        for key in [
            "shadow",
            "seen",
            "banned",
            "flagged",
            "observe",
            "shadow-ban",
            "quarantine",
        ] {
            for _ in 0..3 {
                let answer = ask(&service, &request(&format!("{key}=x"))).unwrap();
                assert_eq!(answer["overallCode"], "OK", "{key}");
                assert_eq!(answer["statuses"], json!([{"code": "OK"}]), "{key}");
                assert_eq!(answer.get("responseHeadersToAdd"), None, "{key}");
            }
            let both = ask(&service, &request(&format!("{key}=x; real={key}"))).unwrap();
            let alone = ask(&service, &request(&format!("real={key}2"))).unwrap();
            assert_eq!(
                both["responseHeadersToAdd"], alone["responseHeadersToAdd"],
                "{key}"
            );
        }
    }
}

#[test]
fn metrics_have_the_peers_names_and_labels() {
    let yaml = "domain: d\ndescriptors:\n\
                \x20 - key: plain\n    rate_limit: {unit: minute, requests_per_unit: 5}\n\
                \x20 - key: named\n    detailed_metric: true\n    rate_limit: {unit: minute, requests_per_unit: 1}\n\
                \x20 - key: wild\n    value: a*\n    value_to_metric: true\n    rate_limit: {unit: minute, requests_per_unit: 1}\n\
                \x20 - key: shared\n    value: a*\n    share_threshold: true\n    detailed_metric: true\n    rate_limit: {unit: minute, requests_per_unit: 1}\n\
                \x20 - key: top\n    value: v\n    descriptors: [{key: sub, shadow_mode: true, rate_limit: {unit: minute, requests_per_unit: 1}}]\n";
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("d.yaml"), yaml).unwrap();
    let mut config = Config::parse("[metrics]\nenvoy = true", "f").unwrap();
    config.envoy.files = vec![folder.path().to_owned()];
    config.envoy.load().unwrap();
    let server =
        earrrl_server::server::Server::new(&config, None, Arc::new(ManualClock::new(Nanos::ZERO)));
    let server = server.unwrap();
    for text in [
        "plain=x x5",
        "plain=x",
        "named=bob x2",
        "wild=ab",
        "shared=ab",
        "top=v,sub=w",
        "top=v,sub=w",
        "wild=ab h18446744073709551615",
    ] {
        let mut request = request(text);
        request["domain"] = "d".into();
        ask(&server.service, &request).unwrap();
    }
    let metrics = String::from_utf8(server.metrics()).unwrap();
    for line in [
        r#"total_hits{domain="d",key1="plain"} 6"#,
        r#"within_limit{domain="d",key1="plain"} 5"#,
        r#"near_limit{domain="d",key1="plain"} 1"#,
        r#"over_limit{domain="d",key1="plain"} 1"#,
        r#"over_limit{domain="d",key1="named_bob"} 2"#,
        // A claim of 2^64 - 1 hits counts as 2^32 - 1, so that sums do not overflow.
        r#"total_hits{domain="d",key1="wild_ab"} 4294967296"#,
        r#"total_hits{domain="d",key1="shared_a*"} 1"#,
        r#"shadow_mode{domain="d",key1="top_v",key2="sub"} 1"#,
    ] {
        let line = format!("\nratelimit_service_rate_limit_{line}\n");
        assert!(metrics.contains(&line), "{line}{metrics}");
    }
    for line in [
        r#"{rule="ENVOY",outcome="deny"} 3"#,
        r#"{rule="ENVOY",outcome="observe"} 1"#,
    ] {
        let line = format!("\nearrrl_decisions_total{line}\n");
        assert!(metrics.contains(&line), "{line}{metrics}");
    }
    for name in [
        "total_requests{grpc_method",
        "config_load_success 1",
        "config_load_error 0",
        "response_time_seconds_bucket{grpc_method",
    ] {
        assert!(
            metrics.contains(&format!("ratelimit_service_{name}")),
            "{name}"
        );
    }
}

/// JSON is read as protojson does: null stands for a missing field, and integers may be written
/// with a decimal point.
#[test]
fn json_is_read_as_the_peer_reads_it() {
    let read = |text: &str| serde_json::from_str::<RateLimitRequest>(text);
    let all = r#"{"domain":"d","descriptors":[{"entries":[{"key":"k","value":null}],"limit":{"requestsPerUnit":1e1,"unit":null},"hitsAddend":"7","isNegativeHits":null}],"hits_addend":3.0}"#;
    let request = read(all).unwrap();
    let descriptor = &request.descriptors[0];
    let limit = descriptor.limit.as_ref().unwrap();
    assert_eq!((request.hits_addend, descriptor.hits_addend), (3, Some(7)));
    assert_eq!((limit.requests_per_unit, limit.unit), (10, 0));
    let value = descriptor.entries[0].value.as_slice();
    assert_eq!((value, descriptor.is_negative_hits), (&b""[..], false));
    let nothing = r#"{"domain":null,"descriptors":null,"hitsAddend":null}"#;
    assert_eq!(read(nothing).unwrap(), Default::default());
    let unset = r#"{"domain":"d","descriptors":[{"entries":null,"limit":null,"hitsAddend":null}]}"#;
    let descriptor = &read(unset).unwrap().descriptors[0];
    assert!(descriptor.limit.is_none() && descriptor.hits_addend.is_none());

    for (text, expected) in [
        (
            r#"{"hitsAddend":1.5}"#,
            "expected a whole number from 0, not 1.5",
        ),
        (
            r#"{"hitsAddend":-1}"#,
            "expected a whole number from 0, not -1",
        ),
        (
            r#"{"hitsAddend":4294967296}"#,
            "hitsAddend: 4294967296 is above 4294967295",
        ),
        (
            r#"{"descriptors":[{"limit":{"requests_per_unit":4294967296,"unit":1}}]}"#,
            "requestsPerUnit: 4294967296 is above 4294967295",
        ),
    ] {
        let error = read(text).unwrap_err().to_string();
        assert!(error.starts_with(expected), "{text}: {error}");
    }
}

/// Numbers in metadata are floating point; protojson writes integers among them without a decimal
/// point.
#[test]
fn whole_numbers_of_metadata_have_no_point() {
    let (service, _) = service("[envoy]\ndynamic_metadata = true");
    let answer = ask(&service, &request("pool=a x3")).unwrap();
    assert_eq!(answer["dynamicMetadata"]["hitsAddend"].to_string(), "3");
}
