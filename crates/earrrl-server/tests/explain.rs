//! Tests `earrrl config explain` on the rules of a server's configuration.
#![allow(clippy::unwrap_used, clippy::panic, reason = "helpers of tests")]

use crate::command::earrrl;
use crate::support::{TestServer, testdata};

const CONFIG: &str = r#"
version = 1
[client_address]
trusted_proxies = ["10.0.0.0/8"]
[[rule]]
name = "login"
limit = "gcra 1/m burst=5"
key = ["client", "user"]
match = { path = "/login", method = ["POST", "PUT"] }
[[rule]]
name = "api"
limit = "gcra 10/s burst=50"
cost = { "/login" = 5 }
exempt = { client = "192.0.2.200" }
[[rule.override]]
key = { client = "192.0.2.7" }
limit = "gcra 100/s burst=500"
"#;

/// Explains a request, which is given as attributes separated by blanks.
fn explain(attributes: &str) -> String {
    explain_under(CONFIG, attributes)
}

pub(crate) fn explain_under(config: &str, attributes: &str) -> String {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("limits.toml");
    std::fs::write(&file, config).unwrap();
    let words = ["config", "explain", file.to_str().unwrap()].into_iter();
    let outcome = earrrl(&words.chain(attributes.split(' ')).collect::<Vec<_>>());
    assert_eq!(outcome.code, Some(0), "{}", outcome.err);
    outcome.out
}

#[test]
fn a_request_is_explained_rule_by_rule() {
    let text = explain("client=192.0.2.7 path=/LOGIN/ method=post user=alice");
    let expected = "login: applies, action deny\n  key: \"9:192.0.2.7,5:alice,\"\n  cost: 1\n  \
                    limit: gcra 1/m burst=5\n\
                    api: applies, action deny\n  key: \"192.0.2.7\"\n  cost: 5\n  \
                    limit: gcra 100/s burst=500, by an override of gcra 10/s burst=50\n";
    assert_eq!(text, expected);
}

#[test]
fn an_explanation_names_what_keeps_a_rule_from_applying() {
    let text = explain("client=192.0.2.200 path=/login method=GET");
    let expected = "login: does not apply: needs method = [\"POST\", \"PUT\"], and the request has \
                    \"GET\"\napi: exempts the request\n";
    assert_eq!(text, expected);
}

#[test]
fn an_explanation_names_missing_and_unread_attributes() {
    let text = explain("ip=192.0.2.7 path=/login method=POST");
    assert!(text.contains("the request has no `client`: all requests without it share one key"));
    assert!(text.contains("the request has no `user`"), "{text}");
    assert!(
        text.ends_with("no rule reads the attribute `ip`\n"),
        "{text}"
    );
}

#[test]
fn the_client_of_an_explanation_is_behind_trusted_proxies() {
    let text = explain("client=10.0.0.1 header:X-Forwarded-For=192.0.2.7 path=/");
    assert!(text.contains("  key: \"192.0.2.7\"\n"), "{text}");
    assert!(!text.contains("no rule reads"), "{text}");
}

/// The server takes the names of attributes as the configuration spells them, over every protocol.
#[test]
fn the_server_decides_what_an_explanation_says() {
    const RULE: &str = "[[rule]]\nname = \"tokens\"\nlimit = \"gcra 1/h burst=20\"\n\
                        cost = \"attribute:tokens\"\nmax_cost = 10\n\
                        match = { \"attribute:host\" = \"shop.example\" }\n";
    let words = [
        "attribute:tokens=5",
        "attribute:host=Shop.example",
        "client=192.0.2.7",
    ];
    let text = explain_under(RULE, &words.join(" "));
    assert!(
        text.contains("tokens: applies") && text.contains("  cost: 5\n"),
        "{text}"
    );
    let (server, _) = TestServer::manual(RULE);
    let pairs: Vec<_> = words
        .iter()
        .map(|word| word.split_once('=').unwrap())
        .collect();
    let pair = |(name, value): &(&str, &str)| format!("{name:?}:{value:?}");
    let pairs_json = pairs.iter().map(pair).collect::<Vec<_>>().join(",");
    let body = format!("{{\"attributes\":{{{pairs_json}}}}}");
    let answer = server.http().post("/v1/check", &body);
    assert!(answer.body.contains("\"remaining\":15"), "{answer:?}");
    let flat: Vec<_> = pairs
        .iter()
        .map(|(name, value)| format!("{name} {value}"))
        .collect();
    let answer = server
        .resp()
        .line(&format!("EARRRL.CHECKATTR {}", flat.join(" ")));
    assert!(format!("{answer:?}").contains("10"), "{answer:?}");
}

#[test]
fn descriptors_are_explained_only_with_their_domain() {
    let file = testdata("envoy/shop.yaml");
    let outcome = earrrl(&["config", "explain", file.to_str().unwrap(), "user=alice"]);
    assert_eq!(outcome.code, Some(2), "{}", outcome.out);
    assert!(
        outcome.err.contains("descriptors need their domain first"),
        "{}",
        outcome.err
    );
}
