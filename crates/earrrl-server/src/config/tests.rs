use std::time::Duration;

use earrrl::{Action, Cost};
use earrrl_tower::{ClientAddress, Prefixes};

use super::attribute::KeyPart;
use super::rule::{CostSource, OnError};
use super::*;

#[test]
fn what_a_rule_allows_at_once_is_named_by_its_unit() {
    for (fields, expected) in [
        ("", "60 requests"),
        ("cost = 2", "60 units"),
        ("cost = \"attribute:tokens\"", "60 units"),
        (
            "cost = \"attribute:tokens\"\nunit = \"tokens\"",
            "60 tokens",
        ),
    ] {
        let config = Config::parse(&rule(fields), "f").unwrap();
        assert_eq!(config.rules[0].at_once(), expected, "{fields}");
    }
    let half =
        "[[rule]]\nname = \"a\"\nlimit = \"fixed-window 0.5/day\"\ncost = 0.1\nunit = \"USD\"\n";
    assert_eq!(
        Config::parse(half, "f").unwrap().rules[0].at_once(),
        "0.5 USD"
    );
    for (unit, got) in [
        ("\"\"", "``"),
        ("\"US$\"", "`US$`"),
        ("\"abcdefghijklmnopq\"", "`abcdefghijklmnopq`"),
    ] {
        let expected = format!(
            "f:4:8: unit: {got}: expected a unit of 1 to 16 letters and digits, as \"USD\" or \"tokens\""
        );
        assert_eq!(problems(&rule(&format!("unit = {unit}"))), [expected]);
    }
}

/// Each level has the fields of the rule, and a key that begins with those of the levels before. Only its group shows
/// that it is a level.
#[test]
fn levels_are_the_rules_that_one_could_write() {
    let levels = "[[rule]]\nname = \"tokens\"\ncost = \"attribute:tokens\"\nmatch = { path = \"/v1/*\" }\n\
        levels = [\n\
        { name = \"org\", key = \"header:x-org\", limit = \"fixed-window 9/month\", override = [\n\
        { key = { \"header:x-org\" = \"acme\" }, limit = \"fixed-window 90/month\" } ] },\n\
        { name = \"team\", key = [\"header:x-team\"], limit = \"fixed-window 5/day\", action = \"observe\" },\n\
        { name = \"user\", key = \"user\", limit = \"gcra 1/s burst=2\", cost = 1 } ]\n";
    let shared = "match = { path = \"/v1/*\" }\n";
    let by_hand = format!(
        "[[rule]]\nname = \"tokens-org\"\ncost = \"attribute:tokens\"\n{shared}key = \"header:x-org\"\n\
         limit = \"fixed-window 9/month\"\n[[rule.override]]\nkey = {{ \"header:x-org\" = \"acme\" }}\n\
         limit = \"fixed-window 90/month\"\n\
         [[rule]]\nname = \"tokens-team\"\ncost = \"attribute:tokens\"\n{shared}\
         key = [\"header:x-org\", \"header:x-team\"]\nlimit = \"fixed-window 5/day\"\naction = \"observe\"\n\
         [[rule]]\nname = \"tokens-user\"\ncost = 1\n{shared}key = [\"header:x-org\", \"header:x-team\", \"user\"]\n\
         limit = \"gcra 1/s burst=2\"\n"
    );
    let [mut levels, by_hand] =
        [levels, &by_hand].map(|text| Config::parse(text, "f").unwrap().rules);
    for rule in &mut levels {
        assert_eq!(rule.group.take().as_deref(), Some("tokens"));
    }
    assert_eq!(format!("{levels:?}"), format!("{by_hand:?}"));
}

#[test]
fn mistakes_in_levels_show_with_their_places() {
    let org = "{ name = \"org\", key = \"user\", limit = \"gcra 1/s burst=2\" }";
    for (fields, expected) in [
        ("levels = []", "f:3:10: levels: 0 levels; expected 1 to 16"),
        (
            "levels = 3",
            "f:3:10: levels: expected a list of tables in [[rule]]; a level has none",
        ),
        (
            "levels = [\"org\"]",
            "f:3:11: levels: expected tables, as { name = \"team\", … }",
        ),
        (
            &format!("levels = [{org}, {org}]"),
            "f:3:93: key: that is there twice; once is enough",
        ),
        (
            &format!("levels = [{org}]\nkey = \"user\""),
            "f:4:7: key: each level has its own; write it in `levels`",
        ),
        (
            &format!("levels = [{org}]\nlimit = \"gcra 1/s burst=2\""),
            "f:4:9: limit: each level has its own; write it in `levels`",
        ),
        (
            &format!("levels = [{org}]\nmach = {{}}"),
            "f:4:1: unknown field `mach`",
        ),
        (
            "levels = [{ name = \"org\", limit = \"gcra 1/s burst=2\" }]",
            "f:3:11: missing field `key`, which tells the clients of this level apart",
        ),
        (
            "levels = [{ key = \"user\", limit = \"gcra 1/s burst=2\" }]",
            "f:3:11: missing field `name`",
        ),
        (
            "levels = [{ name = \"org\", key = \"user\" }]",
            "f:3:11: missing field `limit`",
        ),
        (
            "levels = [{ name = \"org\", key = \"user\", limit = \"gcra 1/s burst=2\", levels = [] }]",
            "f:3:78: levels: expected a list of tables in [[rule]]; a level has none",
        ),
        (
            "levels = [{ name = \"org\", key = \"user\", limit = \"gcra 1/s\" }]",
            "f:3:58: limit: expected burst=60",
        ),
        (
            "levels = [{ name = \"Org\", key = \"user\", limit = \"gcra 1/s burst=2\" }]",
            "f:3:20: name: `a-Org` is not 1 to 64",
        ),
    ] {
        let found = problems(&format!("[[rule]]\nname = \"a\"\n{fields}\n"));
        let times = found
            .iter()
            .filter(|line| line.starts_with(expected))
            .count();
        assert_eq!(times, 1, "{fields}: {found:#?}");
    }
    let found = problems(
        "[[rule]]\nlevels = [{ name = \"org\", key = \"user\", limit = \"gcra 1/s burst=2\" }]\n",
    );
    assert_eq!(found, ["f:1:1: missing field `name`"]);
    let many = vec![org; 17].join(", ");
    let found = problems(&format!("[[rule]]\nname = \"a\"\nlevels = [{many}]\n"));
    assert!(
        found[0].starts_with("f:3:10: levels: 17 levels; expected 1 to 16"),
        "{found:?}"
    );
}

#[test]
fn in_shadow_mode_every_rule_and_override_observes() {
    let rule = "[[rule]]\nname = \"a\"\nlimit = \"gcra 1/s burst=5\"\naction = \"deny\"\n\
                on_error = \"deny\"\n[[rule.override]]\nkey = { client = \"192.0.2.7\" }\n\
                limit = \"gcra 2/s burst=5\"\n";
    for (mode, action, on_error) in [
        ("shadow_mode = true\n", Action::Observe, OnError::Allow),
        ("", Action::Deny, OnError::Deny),
    ] {
        let config = Config::parse(&format!("{mode}{rule}"), "f").unwrap();
        let rule = &config.rules[0];
        assert_eq!(
            (rule.rule.action(), rule.on_error),
            (action, Some(on_error))
        );
        assert_eq!(rule.overrides[0].rule.action(), action);
    }
}

const WHOLE: &str = r#"
version = 1

[server]
http = "127.0.0.1:9000"
resp = "off"
threads = 2
max_connections = 100
idle_timeout = "1m"
check_token = "check-token-of-sixteen"

[engine]
capacity = 5000

[client_address]
trusted_proxies = ["10.0.0.0/8", "::1"]
ipv6_prefix = 56

[[rule]]
name = "login"
limit = "recent-average 0.2/s half-life=5m strict"
key = ["client", "user", "'login'"]
match = { path = "/login", method = ["POST", "PUT"] }
cost = "attribute:cost"
max_cost = 1000
action = "deny"
capacity = 1_000_000
exempt = { client = ["10.1.0.0/16"] }
[[rule.override]]
key = { user = "partner-7" }
limit = "recent-average 50/s half-life=5m"

[[rule]]
name = "api"
limit = "gcra 1/s burst=60"
match = { path = "/api/*" }
cost = { "/api/*" = 2, "/api/search" = 5.5 }
action = "delay"
max_delay = "1m30s"
"#;

fn problems(text: &str) -> Vec<String> {
    let error = Config::parse(text, "f").unwrap_err();
    error.to_string().lines().map(str::to_owned).collect()
}

fn rule(fields: &str) -> String {
    format!("[[rule]]\nname = \"a\"\nlimit = \"gcra 1/s burst=60\"\n{fields}\n")
}

#[test]
fn a_whole_file() {
    let config = Config::parse(WHOLE, "f").unwrap();
    assert_eq!(config.server.http, Some("127.0.0.1:9000".parse().unwrap()));
    assert_eq!((config.server.resp, config.server.threads), (None, Some(2)));
    assert_eq!(
        (config.server.limits.connections, config.server.limits.idle),
        (100, 60)
    );
    let access = config.server.tokens.with(b"check-token-of-sixteen");
    assert_eq!(access.permit(access::Scope::Check), Ok(()));
    let near = ["10.0.0.0/8", "::1/128"].map(|network| network.parse().unwrap());
    let trusting = near
        .into_iter()
        .fold(ClientAddress::default(), ClientAddress::trust);
    assert_eq!(
        config.client_address,
        trusting.prefixes(Prefixes::new(32, 56))
    );

    let [login, api] = &config.rules[..] else {
        panic!("two rules")
    };
    assert_eq!(
        login.rule.to_string(),
        "recent-average 0.2/s half-life=5m strict"
    );
    assert_eq!(login.rule.max_cost(), Cost::from_units(1000));
    assert_eq!(login.key[2].to_string(), "'login'");
    assert_eq!(login.cost, CostSource::Attribute("cost".to_owned()));
    assert_eq!((login.capacity, api.capacity), (Some(1_000_000), None));
    assert_eq!(config.capacity, 5000);
    assert_eq!(api.key, [KeyPart::client()]);
    assert_eq!(
        api.rule.action(),
        Action::Delay {
            max: Duration::from_secs(90)
        }
    );
    assert!(login.exempt[0].holds(b"10.1.255.7") && !login.exempt[0].holds(b"10.2.0.1"));
    assert!(login.overrides[0].conditions[0].holds(b"partner-7"));
}

/// The names of headers are in small letters, as requests have them.
#[test]
fn the_cost_is_an_attribute_or_a_header() {
    for (text, name) in [
        ("attribute:tokens", "tokens"),
        ("attribute:Tokens", "Tokens"),
        ("header:X-Tokens", "header:x-tokens"),
        ("attribute:header:X-Tokens", "header:x-tokens"),
    ] {
        let config = Config::parse(&rule(&format!("cost = \"{text}\"")), "f").unwrap();
        assert_eq!(
            config.rules[0].cost,
            CostSource::Attribute(name.to_owned()),
            "{text}"
        );
    }
}

/// Some requests can pass such a limit: their costs are below 1.
#[test]
fn a_limit_below_one_is_for_costs_below_one() {
    for fields in [
        "cost = 0.1",
        "cost = \"attribute:x\"\nmin_cost = 0.1",
        "cost = { \"/\" = 0.5 }",
    ] {
        assert!(
            Config::parse(&limited("gcra 1/s burst=0.5", fields), "f").is_ok(),
            "{fields}"
        );
    }
}

#[test]
fn the_nearest_path_has_its_cost() {
    let config = Config::parse(WHOLE, "f").unwrap();
    let CostSource::ByPath(costs) = &config.rules[1].cost else {
        panic!("by path")
    };
    let cost = |path: &[u8]| {
        costs
            .iter()
            .find(|(c, _)| c.holds(path))
            .map(|(_, cost)| *cost)
    };
    assert_eq!(cost(b"/api/search"), Some("5.5".parse().unwrap()));
    assert_eq!(cost(b"/api/searches"), Some(Cost::from_units(2)));
    assert_eq!(cost(b"/api"), Some(Cost::from_units(2)), "as /api/");
    assert_eq!(cost(b"/apis"), None);
}

mod redis {
    use earrrl_redis::{ClientKeys, WhenGone};

    use super::*;

    fn engine(fields: &str) -> String {
        format!("[engine]\n{fields}")
    }

    fn options(fields: &str) -> earrrl_redis::Options {
        match Config::parse(&engine(fields), "f").unwrap().engine {
            EngineConfig::Redis(redis) => redis.options,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_url_is_enough() {
        let config = Config::parse(&engine("redis = \"redis://h\""), "f").unwrap();
        assert_eq!(config.capacity, 100_000);
        let options = options("redis = \"redis://u:p@h:1/2\"");
        assert_eq!(
            (&options.urls[..], options.cluster),
            (&["redis://u:p@h:1/2".to_owned()][..], false)
        );
        assert_eq!(
            (options.deadline, options.when_gone),
            (Duration::from_millis(5), WhenGone::Local)
        );
    }

    #[test]
    fn everything_can_be_chosen() {
        let options = options(
            "redis = [\"redis://a\", \"redis://b\"]\nprefix = \"api\"\npolicy = \"deny\"\n\
             deadline = \"20ms\"\nhmac_key = \"0123456789abcdef\"\ncapacity = 5000",
        );
        assert_eq!((options.urls.len(), options.cluster), (2, true));
        assert_eq!(
            (options.deadline, options.when_gone),
            (Duration::from_millis(20), WhenGone::Deny)
        );
        assert_eq!((&options.prefix[..], options.local_capacity), ("api", 5000));
        assert_eq!(
            options.clients,
            ClientKeys::Hashed(b"0123456789abcdef".to_vec())
        );
    }

    #[test]
    fn sentinels_and_near_rules() {
        let text = "[engine]\nredis = [\"redis://a\", \"redis://b\"]\nsentinel = \"main\"\n\
                    node = \"edge-1\"\n[[rule]]\nname = \"a\"\nlimit = \"gcra 1/s burst=5\"\nconsistency = \"near\"";
        let config = Config::parse(text, "f").unwrap();
        assert_eq!(config.rules[0].consistency, earrrl_redis::Consistency::Near);
        let EngineConfig::Redis(redis) = config.engine else {
            panic!("another engine")
        };
        let options = redis.options;
        assert_eq!(
            (options.sentinel.as_deref(), options.cluster),
            (Some("main"), false)
        );
        assert_eq!(options.node.as_deref(), Some("edge-1"));
        let error = Config::parse(&text.replace("edge-1", ""), "f")
            .unwrap_err()
            .to_string();
        assert!(
            error.contains("node: `` is not 1 to 64 printing characters"),
            "{error}"
        );
    }

    #[test]
    fn certificates_that_never_work_are_mistakes() {
        let folder = tempfile::tempdir().unwrap();
        let written = |name: &str, text: &str| {
            let path = folder.path().join(name);
            std::fs::write(&path, text).unwrap();
            path.display().to_string()
        };
        let new = || rcgen::generate_simple_self_signed(vec!["h".into()]).unwrap();
        let one = new();
        let other = new();
        let certificate = written("one.crt", &one.cert.pem());
        let key = written("one.key", &one.signing_key.serialize_pem());
        let wrong_key = written("other.key", &other.signing_key.serialize_pem());
        let found = |url: &str, ca: &str, key: &str| {
            let text = engine(&format!(
                "redis = \"{url}\"\nca_file = \"{ca}\"\ncert_file = \"{certificate}\"\nkey_file = \"{key}\""
            ));
            Config::parse(&text, "f")
                .map_err(|error| error.to_string())
                .err()
                .unwrap_or_default()
        };
        assert_eq!(found("rediss://h", &certificate, &key), "");
        let error = found("rediss://h", &certificate, &wrong_key);
        let expected = format!("f:4:13: cert_file, key_file: `{certificate}`: keys may not be");
        assert!(error.starts_with(&expected), "{error}");
        let error = found("rediss://h", &key, &key);
        assert!(
            error.starts_with(&format!("f:3:11: ca_file: `{key}`: no certificate")),
            "{error}"
        );
        let error = found("redis://u:p@h", &certificate, &key);
        assert!(
            error.contains("only with rediss://, but redis is redis://h"),
            "{error}"
        );
    }

    #[test]
    fn sentinels_have_a_user_and_a_password_of_their_own() {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), "very-secret\n").unwrap();
        let text = "redis = \"redis://:other@a\"\nsentinel = \"main\"\nsentinel_user = \"u\"";
        let password = format!("sentinel_password_file = \"{}\"", file.path().display());
        let config = Config::parse(&engine(&format!("{text}\n{password}")), "f").unwrap();
        assert!(!format!("{config:?}").contains("very-secret"));
        let EngineConfig::Redis(redis) = config.engine else {
            panic!("another engine")
        };
        let earrrl_redis::Options {
            sentinel_user,
            sentinel_password,
            ..
        } = redis.options;
        assert_eq!(sentinel_user.as_deref(), Some("u"));
        assert_eq!(sentinel_password.as_deref(), Some("very-secret"));
    }

    #[test]
    fn a_secret_address_is_read_from_a_file_and_never_printed() {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), "redis://u:very-secret@h\n").unwrap();
        let text = engine(&format!(
            "redis_file = \"{}\"\ncluster = true",
            file.path().display()
        ));
        let config = Config::parse(&text, "f").unwrap();
        assert!(!format!("{config:?}").contains("very-secret"));
        let EngineConfig::Redis(redis) = config.engine else {
            panic!("another engine")
        };
        assert!(redis.options.cluster && redis.options.urls == ["redis://u:very-secret@h"]);
    }

    #[test]
    fn every_mistake_shows_with_its_place() {
        for (fields, expected) in [
            ("redis = \"localhost\"", "2:9: redis: expected redis://"),
            (
                "redis = [\"redis://a\", \"b\"]",
                "2:9: redis: expected redis://",
            ),
            (
                "redis = 5",
                "2:9: redis: expected a string or a list of strings, got 5",
            ),
            (
                "redis_file = \"/nowhere\"",
                "2:14: redis_file: No such file",
            ),
            ("policy = \"local\"", "2:10: policy: only with redis"),
            ("cluster = true", "2:11: cluster: only with redis"),
            (
                "redis = \"redis://h\"\nredis_file = \"x\"",
                "3:14: redis_file: redis is set",
            ),
            (
                "redis = \"redis://h\"\npolicy = \"alow\"",
                "3:10: policy: `alow` is none of local, allow, deny; did you mean `allow`?",
            ),
            (
                "redis = \"redis://h\"\ndeadline = \"5\"",
                "3:12: deadline: `5`: expected a duration",
            ),
            (
                "redis = \"redis://h\"\ndeadline = \"1m\"",
                "3:12: deadline: `1m`: expected a duration from 1ms to 10s",
            ),
            (
                "redis = \"redis://h\"\nprefix = \"a{b\"",
                "3:10: prefix: `a{b`",
            ),
            (
                "redis = \"redis://h\"\nhmac_key = \"short\"",
                "3:12: hmac_key: 5 bytes",
            ),
            (
                "redis = \"redis://h\"\nsentinel_password = \"p\"",
                "3:21: sentinel_password: only with sentinel",
            ),
            (
                "redis = \"redis://h\"\nsentinel = \"main\"\nsentinel_user = \"u\"",
                "4:17: sentinel_user: only with sentinel_password",
            ),
            (
                "redis = \"redis://h\"\nsentinel = \"main\"\nsentinel_password = \"\"",
                "4:21: sentinel_password: expected a password",
            ),
            (
                "redis = \"rediss://h\"\nca_file = \"/nowhere\"",
                "3:11: ca_file: No such file",
            ),
            (
                "redis = \"redis://h/-1\"",
                "2:9: redis: database -1: expected 0 or more",
            ),
            (
                "redis = \"rediss://h/#insecure\"",
                "2:9: redis: #insecure: certificates are",
            ),
            (
                "redis = [\"redis://a\", \"redis://b\"]\ncluster = false",
                "3:11: cluster: false, but several",
            ),
            (
                "redis = \"redis://h\"\n[[rule]]\nname = \"a\"\nlimit = \"fixed-window 5/1500001ns\"",
                "5:9: limit: window: 1500001ns is not whole microseconds",
            ),
            (
                "[[rule]]\nname = \"a\"\nlimit = \"fixed-window 5/1s\"\nconsistency = \"near\"",
                "5:15: consistency: only with redis",
            ),
            (
                "redis = \"redis://h\"\n[[rule]]\nname = \"a\"\nlimit = \"fixed-window 5/1s\"\n\
                 consistency = \"naer\"",
                "6:15: consistency: `naer` is none of exact, near; did you mean `near`?",
            ),
            (
                "redis = \"redis://h\"\n[[rule]]\nname = \"a\"\nlimit = \"exponential 5/1s\"\n\
                 consistency = \"near\"",
                "6:15: consistency: near is not for exponential",
            ),
        ] {
            let found = problems(&engine(fields));
            assert!(
                found[0].starts_with(&format!("f:{expected}")),
                "{expected}: {found:?}"
            );
            assert_eq!(found.len(), 1, "{found:?}");
        }
    }
}

#[test]
fn an_empty_file_has_the_defaults() {
    let config = Config::parse("", "f").unwrap();
    assert_eq!(config.server.http, Some("127.0.0.1:8080".parse().unwrap()));
    assert_eq!(config.server.resp, Some("127.0.0.1:6380".parse().unwrap()));
    assert!(config.rules.is_empty() && config.server.exposed().is_none());
}

#[test]
fn unknown_fields_show_where_and_what_was_meant() {
    for (text, expected) in [
        ("[server]\nhttpp = \"x\"", "f:2:1: unknown field `httpp`"),
        (
            "[[rule]]\nname = \"a\"\nlimt = \"x\"",
            "f:3:1: unknown field `limt`",
        ),
        ("[servr]\n", "f:1:2: unknown field `servr`"),
    ] {
        let found = problems(text);
        let unknown = found.iter().find(|found| found.starts_with(expected));
        let is_meant = unknown.is_some_and(|found| found.contains("; did you mean `"));
        assert!(is_meant, "{found:?}");
    }
}

/// The check of `max_bytes` covers the rule's own clients, and the clients of each override whose
/// states are larger.
#[test]
fn a_rule_says_what_its_clients_may_take() {
    let overrides =
        [("1", "exponential 9/1m"), ("2", "gcra 9/s burst=9")].map(|(client, limit)| {
            format!("[[rule.override]]\nkey = {{ client = \"{client}\" }}\nlimit = \"{limit}\"\n")
        });
    let rule = "[[rule]]\nname = \"a\"\nlimit = \"sliding-log 9/1m\"\nmax_bytes = 5_000_000\n";
    let config = Config::parse(&(rule.to_owned() + &overrides.concat()), "f").unwrap();
    let rule = &config.rules[0];
    let bounds = rule.overrides.iter().map(|entry| entry.rule.max_bytes());
    assert_eq!(rule.rule.max_bytes(), Some(5_000_000));
    assert_eq!(bounds.collect::<Vec<_>>(), [Some(5_000_000), None]);
}

#[test]
fn every_mistake_shows_with_its_place() {
    for (text, expected) in [
        (rule("action = \"deyn\""), "4:10: action: `deyn` is none of"),
        (
            rule("action = \"delay\""),
            "4:10: action: delay needs max_delay",
        ),
        (
            rule("max_delay = \"1s\""),
            "4:13: max_delay: only with action",
        ),
        (rule("key = [\"usr\"]"), "4:8: key: unknown attribute `usr`"),
        (
            rule("key = \"ip\""),
            "4:7: key: unknown attribute `ip`, expected client, user, path, method, domain, header:NAME, \
             attribute:NAME or descriptor:NAME; did you mean `client`?",
        ),
        (rule("key = []"), "4:7: key: 0 values; expected 1 to 64"),
        (
            rule("match = { pth = \"/\" }"),
            "4:11: match: unknown attribute `pth`",
        ),
        (rule("match = { path = \"/*/a\" }"), "4:18: match: `/*/a`"),
        (
            rule("match = { path = 5 }"),
            "4:18: match: expected a string or a list",
        ),
        (
            rule("match = { path = \"/a?b=1\" }"),
            "4:18: match: `/a?b=1`: a path ends before `?`",
        ),
        (
            rule("cost = -1"),
            "4:8: cost: `-1` is not a decimal number from 0",
        ),
        (rule("cost = nan"), "4:8: cost: `nan`"),
        (
            rule("cost = 1e-10"),
            "4:8: cost: `1e-10` is not a whole multiple of 1e-9",
        ),
        (
            rule("cost = 9223372036854775807"),
            "4:8: cost: `9223372036854775807` is not",
        ),
        (
            rule("cost = 4\noverride = [{ key = { user = \"a\" }, limit = \"gcra 1/h burst=3\" }]"),
            "5:45: cost: 4 can never pass under this limit; at most 3 can",
        ),
        (
            rule("max_cost = 0.5"),
            "4:12: max_cost: 0.5 is below 1, the cost of a request without",
        ),
        (rule("max_cost = 0"), "4:12: max_cost: 0 is not above 0"),
        (rule("capacity = 0"), "4:12: capacity: 0 is not from 1"),
        (
            "[[rule]]\nname = \"a\"\nlimit = \"sliding-log 9/1m\"\nmax_bytes = 5".to_owned(),
            "4:13: max_bytes: 5 is not from 1000000 to",
        ),
        (
            rule("max_bytes = 5000000"),
            "4:13: max_bytes: `gcra 1/s burst=60` keeps 22 bytes a client",
        ),
        (
            "[[rule]]\nname = \"A\"\nlimit = \"gcra 1/s burst=1\"".to_owned(),
            "2:8: name: `A`",
        ),
        (
            "[[rule]]\nname = \"a\"\nlimit = \"gcra 1/s burst=0\"".to_owned(),
            "3:25: limit: burst: 0 is not above 0",
        ),
        (
            "[[rule]]\nname = \"a\"".to_owned(),
            "1:1: missing field `limit`",
        ),
        (rule("") + &rule(""), "6:8: name: another rule has it"),
        (
            "[server]\nhttp = \"localhost\"".to_owned(),
            "2:8: http: `localhost`: expected an address",
        ),
        (
            "[server]\nidle_timeout = \"0s\"".to_owned(),
            "2:16: idle_timeout: `0s`: expected whole",
        ),
        (
            "[server]\ncheck_token = \"short\"".to_owned(),
            "2:15: check_token: 5 bytes",
        ),
        (
            "[client_address]\nipv6_prefix = 129".to_owned(),
            "2:15: ipv6_prefix: 129 is not",
        ),
        ("version = 2".to_owned(), "1:11: this version reads"),
        ("[server".to_owned(), "1:8:"),
    ] {
        let found = problems(&text);
        assert!(
            found[0].starts_with(&format!("f:{expected}")),
            "{expected}: {found:?}"
        );
        assert_eq!(found.len(), 1, "{found:?}");
    }
}

#[test]
fn so_many_rules_for_every_request_are_too_many() {
    let rule = |nth| format!("[[rule]]\nname = \"r{nth}\"\nlimit = \"gcra 1/s burst=1\"\n");
    let rules = |count| (0..count).map(rule).collect::<String>();
    assert!(Config::parse(&rules(64), "f").is_ok());
    assert_eq!(
        problems(&rules(70)),
        ["f:194:8: match: 65 rules have none; at most 64 may"]
    );
}

#[test]
fn all_mistakes_show_at_once() {
    let found =
        problems("[server]\nhttp = \"x\"\nthreads = 0\n[[rule]]\nname = \"a\"\nlimit = \"x\"");
    assert_eq!(found.len(), 3, "{found:?}");
}

/// An option replaces the field of its name alone, and its mistakes have no line.
#[test]
fn options_replace_fields_of_the_file() {
    let text = "[server]\nhttp = \"x\"\n[engine]\nredis = \"redis://a\"\npolicy = \"deny\"\n";
    let options = "[server]\nhttp = \"off\"\n[engine]\nredis = \"redis://b\"\n";
    let config = Config::parse_with(text, "f", options).unwrap();
    let EngineConfig::Redis(redis) = config.engine else {
        panic!("another engine")
    };
    assert_eq!(config.server.http, None);
    assert_eq!(redis.options.urls, ["redis://b"]);
    assert_eq!(redis.options.when_gone, earrrl_redis::WhenGone::Deny);
    let error = Config::parse_with("x = 1", "f", "[server]\nhttp = \"of\"").unwrap_err();
    let found: Vec<_> = error.problems.iter().map(ToString::to_string).collect();
    assert!(found[0].starts_with("1:1: unknown field `x`"), "{found:?}");
    assert!(
        found[1].starts_with(" options: http: `of`: expected"),
        "{found:?}"
    );
}

#[test]
fn other_machines_need_a_token_or_permission() {
    let config = |extra: &str| {
        Config::parse(&format!("[server]\nhttp = \"0.0.0.0:80\"\n{extra}"), "f").unwrap()
    };
    assert!(config("").server.exposed().unwrap().contains("0.0.0.0:80"));
    assert_eq!(config("allow_remote = true").server.exposed(), None);
    assert_eq!(
        config("check_token = \"0123456789abcdef\"")
            .server
            .exposed(),
        None
    );
}

#[test]
fn tokens_are_never_printed() {
    let config = Config::parse("[server]\nadmin_token = \"0123456789abcdef\"", "f").unwrap();
    assert!(!format!("{config:?}").contains("0123456789abcdef"));
}

/// A reload that only moves a table within the file asks for no restart.
#[test]
fn where_certificates_are_named_is_no_part_of_what_is_served() {
    let text = "[server.tls]\ncert = \"a.pem\"\nkey = \"b.pem\"\n";
    let parse = |text: &str| Config::parse(text, "f").unwrap();
    let one = parse(text);
    let other = parse(&format!("# Moved down.\n{text}"));
    assert_eq!(one.server, other.server);
    assert_ne!(one.tls_places, other.tls_places);
    assert_eq!(one.tls_places.len(), 2);
}

/// Returns the text of a rule that has this limit in line 3 and these fields in line 4.
fn limited(limit: &str, fields: &str) -> String {
    format!("[[rule]]\nname = \"a\"\nlimit = \"{limit}\"\n{fields}\n")
}

/// Each mistake is reported with its line and column, and with the value that would be right.
#[test]
fn every_mistake_says_what_would_be_right() {
    let server = |fields: &str| format!("[server]\n{fields}\n");
    let address = |fields: &str| format!("[client_address]\n{fields}\n");
    let attributes = |fields: &str| format!("[attributes]\n{fields}\n");
    let mistakes = [
        (
            "[rule]\nname = \"a\"".to_owned(),
            "1:1:",
            "expected [[rule]]",
        ),
        (
            "[[rules]]\nname = \"a\"".to_owned(),
            "1:1:",
            "expected [[rule]]",
        ),
        (
            "[[rule]]\nname = \"a\"\nlimit = 5\n".to_owned(),
            "3:9:",
            "limit: expected a limit, as \"fixed-window 5/1m\", got 5",
        ),
        (server("http = \"[::1]\""), "2:8:", "\"[::1]:8080\""),
        (
            server("http = \"example.org:80\""),
            "2:8:",
            "\":8080\" for all addresses",
        ),
        (
            server("http = \":80\"\nresp = \":80\""),
            "3:8:",
            "http has this address",
        ),
        (
            server("resp = \"81\"\nadmin = \"localhost:81\""),
            "3:9:",
            "resp has this address",
        ),
        (
            server("resp = \"127.0.0.1:8080\""),
            "2:8:",
            "http has this address",
        ),
        (
            server("grpc = \":6380\""),
            "2:8:",
            "resp has this address; want another",
        ),
        (
            server("max_conections = 5"),
            "2:1:",
            "did you mean `max_connections`?",
        ),
        (
            "version = 2".to_owned(),
            "1:11:",
            "configurations of version 1",
        ),
        (
            "[authz]\ndeny_status = 200".to_owned(),
            "2:15:",
            "401, 403, 429, 503",
        ),
        (
            "[engine]\nredis = \"localhost\"".to_owned(),
            "2:9:",
            "expected redis://",
        ),
        (
            "[engine]\npolicy = \"local\"".to_owned(),
            "2:10:",
            "only with redis",
        ),
        (rule("action = \"deyn\""), "4:10:", "did you mean `deny`?"),
        (rule("action = \"delay\""), "4:10:", "needs max_delay"),
        (
            rule("max_delay = \"1s\""),
            "4:13:",
            "only with action = \"delay\"",
        ),
        (rule("key = \"ip\""), "4:7:", "did you mean `client`?"),
        (
            rule("key = [\"usr\"]"),
            "4:8:",
            "expected client, user, path",
        ),
        (
            rule("match = { path = \"/*/a\" }"),
            "4:18:",
            "at the end only",
        ),
        (rule("cost = -1"), "4:8:", "a decimal number from 0"),
        (address("ipv6_prefix = 129"), "2:15:", "from 0 to 128"),
        (server("max_connections = 0"), "2:19:", "from 1 to"),
        (
            server("max_connections_per_address = 0"),
            "2:31:",
            "from 1 to",
        ),
        (server("max_body = 10"), "2:12:", "from 1024 to"),
        (server("max_held_memory = 5"), "2:19:", "from 1048576 to"),
        (
            server("shutdown_timeout = \"2h\""),
            "2:20:",
            "from 0s to 3600s",
        ),
        (
            server("request_timeout = \"1.5s\""),
            "2:19:",
            "as \"30s\" or \"5m\"",
        ),
        (server("threads = 0"), "2:11:", "from 1 to 1024"),
        (
            server("threads = \"two\""),
            "2:11:",
            "threads: `two`: expected a whole number",
        ),
        (
            server("threads = -1"),
            "2:11:",
            "threads: -1 is not from 1 to 1024",
        ),
        (
            server("http = 8080"),
            "2:8:",
            "http: expected a string, as \"8080\", got 8080",
        ),
        ("server = 5".to_owned(), "1:10:", "server: expected a table"),
        (
            server("allow_remote = 1"),
            "2:16:",
            "allow_remote: expected true or false",
        ),
        (
            server("check_token_file = \"/nowhere\""),
            "2:20:",
            "No such file",
        ),
        (
            server("admin_token = \"with a space in it\""),
            "2:15:",
            "visible ASCII",
        ),
        (
            server("check_token = \"0123456789abcdef\"\ncheck_token_file = \"x\""),
            "3:20:",
            "want one",
        ),
        (server("admin_token = \"\""), "2:15:", "expected one"),
        (
            server("check_token = \"replace-me-by-a-secret\""),
            "2:15:",
            "that is the example",
        ),
        (
            server("hosts = [\"http://a.example\"]"),
            "2:10:",
            "without scheme and port",
        ),
        (
            server("hosts = [\"a.example\", \"\"]"),
            "2:23:",
            "expected a host",
        ),
        (server("hosts = [\"*\"]"), "2:10:", "expected a host"),
        (
            server("proxy_protocol = [\"http\"]"),
            "2:18:",
            "needs [client_address] trusted_proxies",
        ),
        (
            server("proxy_protocol = [\"tcp\"]\n[client_address]\ntrusted_proxies = [\"::1\"]"),
            "2:19:",
            "`tcp` is none of http, resp, admin, grpc",
        ),
        (
            address("trusted_proxies = [\"0.0.0.0/0\"]"),
            "2:20:",
            "set hops",
        ),
        (
            address("trusted_proxies = [\"10.0.0.0/33\"]"),
            "2:20:",
            "\"10.0.0.0/8\"",
        ),
        (
            address("trusted_proxies = [\"proxy\"]"),
            "2:20:",
            "\"10.0.0.0/8\"",
        ),
        (
            address("trusted_proxies = [\"10.0.0.1\"]\nhops = 1"),
            "3:8:",
            "want one",
        ),
        (address("hops = 17"), "2:8:", "from 0 to 16"),
        (address("ipv4_prefix = 33"), "2:15:", "from 0 to 32"),
        (
            attributes("path_matching = \"lax\""),
            "2:17:",
            "path_matching: `lax` is none of exact, tolerant",
        ),
        (
            attributes("path_case = \"no\""),
            "2:13:",
            "`no` is none of sensitive, insensitive",
        ),
        (
            attributes("trailing_slash = \"strip\""),
            "2:18:",
            "trailing_slash: `strip` is none of keep, ignore",
        ),
        (
            attributes("path_parameters = \"drop\""),
            "2:19:",
            "path_parameters: `drop` is none of keep, ignore",
        ),
        ("rules = \"off\"".to_owned(), "1:9:", "or \"none\""),
        (
            "rules = \"none\"\n".to_owned() + &rule(""),
            "1:9:",
            "without any [[rule]]",
        ),
        (
            rule("exempt = { client = \"10.0.0.0/66\" }"),
            "4:21:",
            "`10.0.0.0/66`: expected an address or a network, as",
        ),
        (
            rule("exempt = { client = [] }"),
            "4:21:",
            "expected 1 to 1000",
        ),
        (
            rule("match = { path = \"login\" }"),
            "4:18:",
            "as \"/login\"",
        ),
        (
            rule("match = { path = [\"/a\", \"b*\"] }"),
            "4:25:",
            "as \"/login\"",
        ),
        (
            rule("match = { methd = \"POST\" }"),
            "4:11:",
            "did you mean `method`?",
        ),
        (rule("cost = { \"api\" = 2 }"), "4:18:", "as \"/login\""),
        (rule("cost = 61"), "4:8:", "at most 60 can"),
        (rule("cost = { \"/big\" = 100 }"), "4:8:", "at most 60 can"),
        (rule("cost = \"attribute:\""), "4:8:", "attribute:NAME"),
        (rule("cost = true"), "4:8:", "expected a number"),
        (rule("max_cost = \"5\""), "4:12:", "expected a number"),
        (rule("capacity = 10_000_000_001"), "4:12:", "to 10000000000"),
        (rule("key = \"header:\""), "4:7:", "header:NAME"),
        (rule("key = \"'a\""), "4:7:", "closing quote"),
        (
            rule("action = \"delay\"\nmax_delay = \"5\""),
            "5:13:",
            "as \"250ms\"",
        ),
        (rule("overide = 1"), "4:1:", "did you mean `override`?"),
        (
            rule("[[rule.override]]\nkey = {}\nlimit = \"gcra 1/s burst=1\""),
            "5:7:",
            "as { user = \"alice\" }",
        ),
        (
            rule("[[rule.override]]\nkey = { user = \"a\" }\nlimit = \"gcra 1/s\""),
            "6:",
            "burst",
        ),
        (limited("gcr 1/s burst=5", ""), "3:10:", "gcra"),
        (
            rule(
                "[[rule.override]]\nkey = { client = \"10.0.0.0/8\" }\nlimit = \"gcra 1/s burst=1\"\n\
                  [[rule.override]]\nkey = { client = \"10.1.0.0/16\", user = \"a\" }\n\
                  limit = \"gcra 1/s burst=1\"",
            ),
            "8:7:",
            "put it first",
        ),
        (
            rule("key = [\"client\", \"client\"]"),
            "4:18:",
            "once is enough",
        ),
        (
            "[[server]]\nthreads = 1".to_owned(),
            "1:1:",
            "expected [server]",
        ),
        (
            "[client_address]\nheader = \"a b\"".to_owned(),
            "2:10:",
            "\"forwarded\" or \"x-real-ip\"",
        ),
        (rule("match = [\"/login\"]"), "4:9:", "expected a table"),
        (
            rule("match = \"/login\""),
            "4:9:",
            "match: `/login`: expected a table, as { path = \"/login\" }",
        ),
        (
            rule("exempt = \"10.0.0.1\""),
            "4:10:",
            "expected a table, as { client = \"10.0.0.1\" }",
        ),
        (
            rule("exempt = \"alice\""),
            "4:10:",
            "expected a table, as { user = \"alice\" }",
        ),
        (
            rule("key = “client”"),
            "4:7:",
            "expected a string without typographic quotes; write \" or ' around it",
        ),
        (
            "rule = \"gcra 1/s burst=5\"".to_owned(),
            "1:8:",
            "expected [[rule]], in two brackets each",
        ),
        (
            limited("GCRA 1/s burst=5", ""),
            "3:10:",
            "did you mean `gcra`?",
        ),
        (
            limited("leaky-bucket 1/s burst=5", ""),
            "3:10:",
            "did you mean `gcra`?",
        ),
        (
            limited("gcra 1/minut burst=5", ""),
            "3:17:",
            "did you mean `minute`?",
        ),
        (
            rule("missing = \"dney\""),
            "4:11:",
            "none of share, skip, deny",
        ),
        (limited("gcra 1/s", ""), "3:", "burst"),
        (
            limited("gcra 1/w burst=5", ""),
            "3:17:",
            "a unit such as s, m, h, d",
        ),
        (limited("recent-average 1/s", ""), "3:", "half-life"),
        (limited("fixed-window 5", ""), "3:23:", "such as 60/1m"),
        (
            limited("gcra 1/s burst=5 strict", ""),
            "3:27:",
            "can't be strict",
        ),
        ("name = 1\nname = 2".to_owned(), "2:1:", "duplicate key"),
        ("[server]\nhttp = ".to_owned(), "2:8:", "expected"),
        ("[server\nhttp = \"off\"".to_owned(), "1:8:", "]"),
        (
            limited("gcra 1/s burst=0.5", ""),
            "3:9:",
            "cost: 1 can never pass",
        ),
        (
            limited("gcra 1/s burst=0.5", "cost = 1"),
            "4:8:",
            "only costs below 1 can",
        ),
        (
            limited("sliding-log 0.5/1m", ""),
            "3:9:",
            "only costs below 1 can",
        ),
        (
            limited("exponential 0.5/1m", ""),
            "3:9:",
            "only costs below 1 can",
        ),
        (
            rule("override = [{ key = { user = \"a\" }, limit = \"gcra 1/s burst=0.5\" }]"),
            "4:45:",
            "only costs below 1 can",
        ),
        (
            server("check_token = \"0123456789abcdef\"\nadmin_token = \"0123456789abcdef\""),
            "3:15:",
            "the secret of \"admin_token\" is that of \"check_token\"",
        ),
        (
            server(
                "check_token = \"0123456789abcdef\"\n[[server.token]]\nname = \"a\"\n\
                 token = \"0123456789abcdef\"\nscopes = [\"top\"]",
            ),
            "5:9:",
            "the secret of \"a\" is that of \"check_token\"",
        ),
        (
            "[[rules]]\nname = \"a\"".to_owned(),
            "1:1:",
            "rules: expected [[rule]], without s",
        ),
        (
            "[rule.override]\nlimit = \"x\"".to_owned(),
            "1:",
            "rule: expected [[rule]]",
        ),
        (
            "[[rule.override]]\nlimit = \"x\"".to_owned(),
            "1:",
            "rule: expected [[rule]]",
        ),
        (
            rule("[rule.override]\nlimit = \"x\""),
            "4:1:",
            "rule.override: expected [[rule.override]], in two",
        ),
        (
            "[server.token]\nname = \"x\"".to_owned(),
            "1:1:",
            "server.token: expected [[server.token]]",
        ),
        (
            rule("match = [[\"a\"]]"),
            "4:9:",
            "match: expected a table, got a list",
        ),
        (
            rule("match = 1979-05-27"),
            "4:9:",
            "match: expected a table, got a date",
        ),
        (
            rule("cost = [1]"),
            "4:8:",
            "cost: expected a number from 0, got a list",
        ),
        (rule("cost = 1e300"), "4:8:", "cost: `1e300` is not"),
        (
            rule("key = 5"),
            "4:7:",
            "key: expected a string or a list of strings, got 5",
        ),
        (
            rule("match = { path = 5 }"),
            "4:18:",
            "match: expected a string or a list of strings, got 5",
        ),
        (
            "[engine]\nredis = 5".to_owned(),
            "2:9:",
            "redis: expected a string or a list",
        ),
        (
            server("check_token = 987654321987654321"),
            "2:15:",
            "check_token: expected a string, got a value of another type",
        ),
        (
            rule("key = \"clinet\""),
            "4:7:",
            "domain, header:NAME, attribute:NAME or descriptor:NAME",
        ),
        (
            rule("key = \"clinet\""),
            "4:7:",
            "did you mean `client`?; a fixed text is in quotes",
        ),
        (
            limited("gcra 1/x burst=5", ""),
            "3:17:",
            "`x` is not a unit such as s, m, h, d",
        ),
        (
            limited("gcra 1/s,burst=5", ""),
            "3:18:",
            "expected a blank between words, got `,`",
        ),
        (
            limited("gcra 1/s;burst=5", ""),
            "3:18:",
            "expected a blank between words, got `;`",
        ),
        (
            server("max_connections = 99999999999999999999999"),
            "2:19:",
            "max_connections: 99999999999999999999999 is not from 1 to 4294967295",
        ),
        (
            server("http = \"x\""),
            "2:8:",
            "http: `x`: expected an address",
        ),
        (
            server("idle_timeout = \"x\""),
            "2:16:",
            "idle_timeout: `x`: expected whole seconds",
        ),
        (
            server("socket_mode = \"9\""),
            "2:15:",
            "socket_mode: `9`: expected",
        ),
        (
            address("trusted_proxies = [\"x\"]"),
            "2:20:",
            "trusted_proxies: `x`: expected",
        ),
        (
            attributes("path_matching = \"x\""),
            "2:17:",
            "path_matching: `x` is none of exact, tolerant",
        ),
        (
            "[envoy]\nalgorithm = \"x\"".to_owned(),
            "2:13:",
            "algorithm: `x` is none of fixed-window",
        ),
        (
            address("header = \"x-real-ip\""),
            "2:10:",
            "only with trusted_proxies or hops",
        ),
        (
            "[envoy]\nxds = \"h:1\"\nfiles = \"f\"".to_owned(),
            "2:7:",
            "files is set already",
        ),
        (
            "[envoy]\nxds_ca = \"f\"".to_owned(),
            "2:10:",
            "xds_ca: only with xds",
        ),
        (
            "[envoy]\nnode = \"f\"".to_owned(),
            "2:8:",
            "node: only with xds",
        ),
        (
            "[engine]\nredis = \"redis://h\"\nsentinel = \"\"".to_owned(),
            "3:12:",
            "sentinel: ``: expected the name of the master",
        ),
        (
            "[engine]\nredis = [\"redis://h\", \"redis://h\"]".to_owned(),
            "2:9:",
            "there twice",
        ),
        (
            rule("exempt = { client = \"0.0.0.0/0\" }"),
            "4:21:",
            "that is everybody",
        ),
        (
            rule("exempt = { client = [\"::1\", \"*\"] }"),
            "4:21:",
            "that is everybody",
        ),
        (
            rule(
                "exempt = { client = \"10.0.0.0/8\" }\n[[rule.override]]\n\
                 key = { client = \"10.0.0.7\", user = \"a\" }\nlimit = \"gcra 1/s burst=5\"",
            ),
            "6:7:",
            "key: these are exempt from the rule",
        ),
        (
            rule("cost = \"tokens\""),
            "4:8:",
            "\"attribute:NAME\", \"header:NAME\" or a table",
        ),
        (
            rule("cost = \"header:X Y\""),
            "4:8:",
            "cost: `X Y` is no name of a header",
        ),
        (rule("cost = \"attribute:header:\""), "4:8:", "header:NAME"),
        (
            rule("key = \"header:X Y\""),
            "4:7:",
            "key: `X Y` is no name of a header",
        ),
        (
            rule("key = \"client/24/7\""),
            "4:7:",
            "key: `client/24/7`: expected a length of IPv4 up to 32, one of IPv6 from 33 to 128, or both",
        ),
        (
            rule("key = \"user | cleint\""),
            "4:7:",
            "key: unknown attribute `cleint`",
        ),
        (
            rule("key = [\"client\", \"user | client/24\"]"),
            "4:7:",
            "key: client is there with two lengths; want one, and a second rule for the other",
        ),
        (
            rule("key = \"user | user\""),
            "4:7:",
            "key: `user | user`: expected each alternative once",
        ),
        (
            rule("match = { \"header:b:c\" = \"1\" }"),
            "4:11:",
            "`b:c` is no name of a header",
        ),
        (
            rule("match = { \"attribute:host\" = \"example.com:443\" }"),
            "4:30:",
            "`example.com:443`: requests have a host without port and last dot; want `example.com`",
        ),
    ];
    let mut missed = String::new();
    for (text, place, right) in &mistakes {
        let found = problems(text);
        let told = found.len() == 1
            && found[0].starts_with(&format!("f:{place}"))
            && found[0].contains(right);
        if !told {
            missed += &format!("{text:?}: wanted {place} {right}: {found:?}\n");
        }
    }
    assert!(missed.is_empty(), "{missed}");
    assert!(mistakes.len() >= 68, "{}", mistakes.len());
}

/// Returns a rule with a limit and further fields.
fn named(name: &str, limit: &str, fields: &str) -> String {
    format!("[[rule]]\nname = \"{name}\"\nlimit = \"{limit}\"\n{fields}\n")
}

/// Returns the warnings about a configuration.
fn cautions(text: &str) -> Vec<String> {
    Config::parse(text, "f").unwrap().cautions()
}

#[test]
fn a_half_life_under_which_one_request_is_all_is_warned_of() {
    let rule = |limit: &str| cautions(&format!("[[rule]]\nname = \"a\"\nlimit = \"{limit}\"\n"));
    let warned = rule("recent-average 1000/d half-life=10s waits=first");
    assert_eq!(warned.len(), 1);
    assert!(
        warned[0].contains("lets 1 request of a client through at once"),
        "{warned:?}"
    );
    for fine in [
        "recent-average 1000/d half-life=10m waits=first",
        "gcra 1/h burst=1",
        "recent-average 1/s half-life=10s",
    ] {
        assert_eq!(rule(fine), Vec::<String>::new(), "{fine}");
    }
}

#[test]
fn waits_that_are_too_long_for_those_who_obey_are_warned_about() {
    for (limit, advice) in [
        ("recent-average 59/h half-life=10m", "want waits=first"),
        ("exponential 50/1h strict", "want waits=first"),
        ("sliding-log 20/1m strict", "more than about 20 programs"),
    ] {
        let found = cautions(&named("a", limit, ""));
        assert!(found.len() == 1 && found[0].contains(advice), "{found:?}");
    }
    for limit in [
        "recent-average 61/h half-life=10m",
        "recent-average 59/h half-life=10m waits=first",
        "recent-average 59/h half-life=10m leaky",
        "exponential 50/1h",
        "sliding-log 20/1m",
    ] {
        assert_eq!(cautions(&named("a", limit, "")), [""; 0], "{limit}");
    }
}

#[test]
fn a_burst_that_takes_long_to_earn_is_warned_about() {
    let login = "match = { path = \"/login\" }";
    let slow = named("login", "recent-average 0.2/s half-life=5m", login);
    let found = cautions(&slow);
    assert_eq!(found.len(), 1, "{found:?}");
    let start = "login: recent-average 0.2/s half-life=5m lets 87 requests";
    assert!(found[0].starts_with(start), "{found:?}");
    // Bursts that are small, that are earned soon, or that the rule states.
    for limit in [
        "recent-average 10/h half-life=1h waits=first",
        "recent-average 10/s half-life=1m",
        "gcra 0.2/s burst=87",
        "fixed-window 87/1d",
    ] {
        assert_eq!(cautions(&named("a", limit, "")), [""; 0], "{limit}");
    }
    // Another rule limits the burst if it applies to the same requests, and its key is not finer.
    let small = "gcra 1/m burst=5";
    for (fields, count) in [
        (login, 0),
        ("", 0),
        ("match = { path = [\"/login\", \"/password\"] }", 0),
        ("match = { path = \"/password\" }", 1),
        ("match = { path = \"/login\", method = \"POST\" }", 1),
        ("key = [\"client\", \"user\"]", 1),
        ("action = \"observe\"", 1),
        ("exempt = { client = \"192.0.2.7\" }", 1),
    ] {
        let found = cautions(&(slow.clone() + &named("burst", small, fields)));
        assert_eq!(found.len(), count, "{fields}: {found:?}");
    }
    let large = named("burst", "gcra 1/m burst=80", login);
    assert_eq!(cautions(&(slow + &large)).len(), 1);
}

#[test]
fn an_override_that_almost_names_a_part_of_the_key_is_warned_about() {
    for (name, expected) in [
        ("header:x-api-key", None),
        (
            "header:x-apikey",
            Some("did you mean the key's `header:x-api-key`?"),
        ),
        ("header:x-api-tier", None),
        ("attribute:api-key", None),
        ("user", None),
    ] {
        let fields = format!(
            "key = [\"client\", \"header:x-api-key\"]\n\
             override = [{{ key = {{ {name:?} = \"gold-1\" }}, limit = \"gcra 9/s burst=9\" }}]"
        );
        let found = cautions(&named("a", "gcra 1/s burst=5", &fields));
        assert_eq!(
            found.len(),
            usize::from(expected.is_some()),
            "{name}: {found:?}"
        );
        assert!(
            found.iter().all(|found| found.ends_with(expected.unwrap())),
            "{found:?}"
        );
    }
}

#[test]
fn a_key_that_requests_lack_is_warned_about() {
    let envoy = "match = { domain = \"shop\" }";
    let proxied = "[client_address]\ntrusted_proxies = [\"10.0.0.0/8\"]\n";
    let small = "gcra 1/s burst=5";
    for (before, fields, expected) in [
        ("", format!("{envoy}\nkey = \"descriptor:user\""), None),
        ("", envoy.to_owned(), Some("have no `client`")),
        (
            "",
            format!("{envoy}\nkey = [\"domain\", \"user\"]"),
            Some("have no `user`"),
        ),
        ("", "key = \"user\"".to_owned(), None),
        (proxied, "key = \"user\"".to_owned(), Some("have no `user`")),
        (
            proxied,
            "key = [\"client\", \"attribute:plan\"]".to_owned(),
            Some(
                "have no `plan`: they count by the rest of the key, so an office shares one quota",
            ),
        ),
        (
            proxied,
            "key = [\"user\", \"attribute:plan\"]".to_owned(),
            Some("have no `user`"),
        ),
        (
            proxied,
            "key = [\"client\", \"header:x-key\", \"attribute:host\"]".to_owned(),
            None,
        ),
        (
            proxied,
            "key = \"user\"\nmissing = \"skip\"".to_owned(),
            None,
        ),
        (
            proxied,
            "key = \"user\"\nmatch = { user = \"a*\" }".to_owned(),
            None,
        ),
        (proxied, "cost = \"header:x-tokens\"".to_owned(), None),
    ] {
        let found = cautions(&format!("{before}{}", named("a", small, &fields)));
        assert_eq!(
            found.len(),
            usize::from(expected.is_some()),
            "{fields}: {found:?}"
        );
        if let Some(expected) = expected {
            assert!(
                found[0].starts_with("a: key: ") && found[0].contains(expected),
                "{found:?}"
            );
        }
    }
}

#[test]
fn a_cost_that_requests_lack_and_a_server_without_listeners_are_warned_about() {
    let proxied = "[client_address]\nhops = 1\n";
    let cost = named("a", "gcra 1/s burst=5", "cost = \"attribute:tokens\"");
    let off = "[server]\nhttp = \"off\"\nresp = \"off\"\n";
    for (text, expected) in [
        (
            proxied.to_owned() + &cost,
            "a: cost: requests that a proxy describes have no `tokens`",
        ),
        (off.to_owned() + &cost, "[server] http and resp are off"),
    ] {
        let found = cautions(&text);
        assert!(
            found.len() == 1 && found[0].starts_with(expected),
            "{found:?}"
        );
    }
    assert_eq!(cautions(&cost), [""; 0]);
}

#[test]
fn the_most_specific_path_sets_the_cost() {
    let text = r#"
        [[rule]]
        name = "a"
        limit = "gcra 1/s burst=100"
        cost = { "/search" = 50, "/search*" = 1, "/api/x/y" = 70, "/api/x/*" = 2, "*" = 9 }
    "#;
    let config = Config::parse(text, "f").unwrap();
    let CostSource::ByPath(costs) = &config.rules[0].cost else {
        panic!("by path")
    };
    for (path, units) in [
        ("/search", 50),
        ("/searches", 1),
        ("/api/x/y", 70),
        ("/api/x/z", 2),
        ("/", 9),
    ] {
        let cost = costs
            .iter()
            .find(|(condition, _)| condition.holds(path.as_bytes()));
        assert_eq!(
            cost.map(|(_, cost)| *cost),
            Some(Cost::from_units(units)),
            "{path}"
        );
    }
}

/// The values that no request can have, for every attribute about whose values something is known.
#[test]
fn impossible_values_are_mistakes() {
    for (attribute, values) in [
        (
            "method",
            &["GET,POST", "GET|POST", "GET POST", "/login", "GET, *"][..],
        ),
        (
            "client",
            &[
                "192.0.2.300",
                "10.0.0.1-10.0.0.9",
                "10.0.0.1,10.0.0.2",
                "192.0.2.7:443",
                "10.0.0.0/33",
                "2001:db8::/129",
                "[2001:db8::1]",
                "2001:db8:::1",
                "10.0.0.1-*",
            ],
        ),
        (
            "path",
            &[
                "login",
                "/a?b=c",
                "/a#b",
                "/a*b",
                "*/login",
                "http://a/login",
            ],
        ),
        (
            "attribute:host",
            &[
                "shop.example:443",
                "shop.example.",
                "http://shop.example",
                "a.example,b.example",
                "*.example",
                "bücher.example",
            ],
        ),
        (
            "header:x-plan",
            &[" gold", "gold ", "gold\t", "go\\nld", "*gold"],
        ),
    ] {
        for value in values {
            for field in ["match", "exempt"] {
                let found = problems(&rule(&format!(
                    "{field} = {{ {attribute:?} = \"{value}\" }}"
                )));
                assert!(
                    found.len() == 1 && found[0].starts_with("f:4:"),
                    "{attribute} {value}: {found:?}"
                );
            }
            let key = format!(
                "[[rule.override]]\nkey = {{ {attribute:?} = \"{value}\" }}\nlimit = \"gcra 9/s burst=9\""
            );
            let found = problems(&rule(&key));
            assert_eq!(found.len(), 1, "{attribute} {value}: {found:?}");
        }
    }
    for everybody in [
        "path = \"/*\"",
        "path = \"*\"",
        "path = [\"/a\", \"/*\"]",
        "method = \"*\"",
        "\"attribute:host\" = \"*\"",
        "client = \"*\"",
        "client = \"0.0.0.0/0\"",
        "client = \"::/0\"",
        "client = [\"0.0.0.0/1\", \"128.0.0.0/1\"]",
    ] {
        let found = problems(&rule(&format!("exempt = {{ {everybody} }}")));
        let is_told = found.len() == 1 && found[0].contains("exempt: that is everybody");
        assert!(is_told, "{everybody}: {found:?}");
        let exact = format!(
            "[attributes]\npath_matching = \"exact\"\n{}",
            rule(&format!("exempt = {{ {everybody} }}"))
        );
        assert_eq!(problems(&exact).len(), 1, "{everybody}");
    }
}

/// Values that hardly any request has, and those that are usual.
#[test]
fn doubtful_values_are_warned_about() {
    let with = |fields: &str| cautions(&rule(fields));
    for (fields, warning) in [
        (
            "match = { method = \"PSOT\" }",
            "a: match: method = \"PSOT\": that is no usual method; did you mean `POST`?",
        ),
        (
            "match = { method = [\"GET\", \"FETCH\"] }",
            "method = \"FETCH\": that is no usual method",
        ),
        (
            "exempt = { client = \"office.example.com\" }",
            "a: exempt: client = \"office.example.com\": a client is an address;",
        ),
        (
            "exempt = { client = \"office*\" }",
            "client = \"office*\": a client is an address",
        ),
        (
            "match = { path = \"/login,/password\" }",
            "path = \"/login,/password\": several paths are a list",
        ),
        (
            "match = { \"attribute:proto\" = \"HTTPS\" }",
            "proto = \"HTTPS\": proxies send http, https",
        ),
        (
            "override = [{ key = { client = \"alice\" }, limit = \"gcra 9/s burst=9\" }, \
             { key = { client = \"bob\" }, limit = \"gcra 9/s burst=9\" }]",
            "a: override: client = \"alice\": a client is an address;",
        ),
        (
            "override = [{ key = { method = \"*\" }, limit = \"gcra 9/s burst=9\" }]",
            "a: override: gcra 9/s burst=9 is for everybody; the rule's own limit, gcra 1/s burst=60, is for none",
        ),
        (
            "key = \"user\"\nmatch = { path = \"/login\" }",
            "a: key: anybody can name a user",
        ),
        (
            "key = \"header:X-Forwarded-For\"",
            "a: key: a client writes the header x-forwarded-for itself",
        ),
        (
            "key = [\"client\", \"header:user-agent\"]",
            "a: key: a client writes the header user-agent itself",
        ),
    ] {
        let found = with(fields);
        assert!(
            found.len() == 1 && found[0].contains(warning),
            "{fields}: {found:?}"
        );
    }
    for fields in [
        "match = { method = [\"get\", \"PROPFIND\", \"\"] }",
        "match = { method = \"P*\" }",
        "exempt = { client = [\"10.0.0.0/8\", \"192.0.2.*\", \"2001:db8:*\", \"::1\"] }",
        "match = { path = [\"/a,b\", \"\", \"/*\"] }",
        "match = { \"attribute:host\" = [\"shop.example\", \"[::1]\", \"shop.*\"] }",
        "exempt = { \"header:x-user\" = \"*\" }",
        "exempt = { user = [\"alice\", \"10.0.0.300\"] }",
        "key = [\"client\", \"user\"]\nmatch = { path = \"/login\" }",
        "key = \"user\"",
        "key = \"header:x-api-key\"",
    ] {
        assert_eq!(with(fields), [""; 0], "{fields}");
    }
}

#[test]
fn a_removed_field_names_its_successor() {
    let text = "[server]\nhttp = \"off\"\n[server.otlp]\nendpoint = \"localhost:1\"\n";
    let error = Config::parse(text, "limits.toml").unwrap_err().to_string();
    let right =
        "limits.toml:3:9: otlp: removed; a collector reads /metrics, see docs/visibility.md";
    assert_eq!(error, right);
}
