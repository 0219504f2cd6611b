//! Tests quotas as services sell them: budgets at several levels, and money.
#![allow(clippy::unwrap_used, clippy::panic, reason = "helpers of tests")]

use serde_json::{Value, json};

use crate::support::TestServer;

const LEVELS: &str = r#"
[[rule]]
name = "quota"
cost = "attribute:tokens"
levels = [
    { name = "org", limit = "fixed-window 5/month", key = "attribute:org" },
    { name = "team", limit = "fixed-window 4/day", key = "attribute:team" },
    { name = "user", limit = "fixed-window 2/1h", key = "user" },
]
"#;

#[test]
fn a_request_is_charged_at_all_levels_or_at_none() {
    let (server, _) = TestServer::manual(LEVELS);
    let over = |org: &str, team: &str, user: &str| {
        let body = json!({"attributes": {"org": org, "team": team, "user": user}});
        let answer = server.http().post("/v1/check", &body.to_string()).json();
        answer["over"].clone()
    };
    for (org, team, user, expected) in [
        ("acme", "a", "ann", json!([])),
        ("acme", "a", "ann", json!([])),
        ("acme", "a", "ann", json!(["quota-user"])),
        ("acme", "a", "bob", json!([])),
        ("acme", "a", "bob", json!([])),
        ("acme", "a", "eve", json!(["quota-team"])),
        ("acme", "b", "eve", json!([])),
        ("acme", "b", "eve", json!(["quota-org"])),
        ("other", "a", "ann", json!([])),
    ] {
        assert_eq!(over(org, team, user), expected, "{org} {team} {user}");
    }
    let left = |rule: &str, key: &str| {
        let body = json!({"rule": rule, "key": key}).to_string();
        server.http().post("/v1/peek", &body).json()["remaining"].clone()
    };
    assert_eq!(left("quota-org", "acme"), 0);
    assert_eq!(left("quota-team", "4:acme,1:b,"), 3);
    assert_eq!(left("quota-user", "4:acme,1:b,3:eve,"), 1);
    assert_eq!(left("quota-user", "4:acme,1:a,3:eve,"), 2);
}

#[test]
fn a_reservation_and_its_commit_are_at_all_levels() {
    let (server, _) = TestServer::manual(LEVELS);
    let mut http = server.http();
    let body = json!({"attributes": {"org": "acme", "team": "a", "user": "ann", "tokens": 2}});
    let reserved = http.post("/v1/reserve", &body.to_string()).json();
    let left = |server: &TestServer| {
        [
            ("quota-org", "acme"),
            ("quota-team", "4:acme,1:a,"),
            ("quota-user", "4:acme,1:a,3:ann,"),
        ]
        .map(|(rule, key)| {
            let body = json!({"rule": rule, "key": key}).to_string();
            server.http().post("/v1/peek", &body).json()["remaining"]
                .as_u64()
                .unwrap()
        })
    };
    assert_eq!(left(&server), [3, 2, 0]);
    let body = json!({"reservation": reserved["reservation"], "cost": 0.5}).to_string();
    assert_eq!(http.post("/v1/commit", &body).status, 200);
    assert_eq!(left(&server), [4, 3, 1]);
}

/// With a unit, an answer says what remains to the millionth, and headers in whole units.
#[test]
fn what_remains_of_money_has_its_fraction() {
    for (limit, whole) in [
        ("fixed-window 5/day", "4"),
        ("fixed-window 5/month tz=Europe/Berlin", "4"),
        ("sliding-log 5/1d", "4"),
        ("sliding-counter 5/1d", "4"),
        ("token-bucket 5 refill=5/d", "4"),
    ] {
        let (server, _) = TestServer::manual(&format!(
            "[[rule]]\nname = \"spend\"\nlimit = \"{limit}\"\nkey = \"user\"\nunit = \"USD\"\n\
             cost = \"attribute:dollars\"\nmin_cost = 0\n"
        ));
        let mut http = server.http();
        let mut spend = |dollars: &str| {
            let body = json!({"attributes": {"user": "ann", "dollars": dollars}}).to_string();
            let answer = http.post("/v1/check", &body);
            let header = answer.header("ratelimit").unwrap().to_owned();
            (
                answer.json()["remaining"].clone(),
                answer.json()["unit"].clone(),
                header,
            )
        };
        let (remaining, unit, header) = spend("0.000315");
        assert_eq!(
            (remaining, unit),
            (json!(4.999_685), json!("USD")),
            "{limit}"
        );
        assert!(header.contains(&format!(";r={whole}")), "{limit}: {header}");
        assert_eq!(spend("4.5").0, json!(0.499_685), "{limit}");
        // A denied request takes nothing.
        assert_eq!(spend("0.5").0, json!(0.499_685), "{limit}");
        assert_eq!(spend("0.499685").0, json!(0), "{limit}");
        let rules = http.get("/v1/rules").json();
        assert_eq!(rules["rules"][0]["unit"], "USD");
    }
}

#[test]
fn money_is_counted_exactly() {
    let (server, _) = TestServer::manual(
        "[[rule]]\nname = \"spend\"\nlimit = \"fixed-window 1/month\"\nkey = \"user\"\n\
         cost = \"attribute:dollars\"\nmin_cost = 0\n",
    );
    let passes = |dollars: Option<&str>| {
        let mut attributes = json!({"user": "ann"});
        if let Some(dollars) = dollars {
            attributes["dollars"] = Value::from(dollars);
        }
        let body = json!({ "attributes": attributes }).to_string();
        server.http().post("/v1/check", &body).status == 200
    };
    for (dollars, expected) in [
        (Some("0.999185"), true),
        // A request without usage costs nothing.
        (None, true),
        (Some("0"), true),
        (Some("0.0005"), true),
        (Some("0.000315"), true),
        (Some("0.000001"), false),
    ] {
        assert_eq!(passes(dollars), expected, "{dollars:?}");
    }
}
