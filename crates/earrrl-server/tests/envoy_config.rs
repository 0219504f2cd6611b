//! Tests envoyproxy/ratelimit's configuration format: which descriptors match, and which files are
//! errors.
#![allow(clippy::unwrap_used)]

use std::path::PathBuf;

use earrrl_server::config::envoy::file::{self, Amount};
use earrrl_server::config::envoy::load::{files, load};
use earrrl_server::config::envoy::tree::{Matched, Tree, WalkStep};
use serde_json::Value;

fn testdata(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
        .join("../../testdata")
        .join(name)
}

fn cases(name: &str) -> Vec<Value> {
    let text = std::fs::read_to_string(testdata(&format!("vectors/{name}"))).unwrap();
    let json: Value = serde_json::from_str(&text).unwrap();
    json["cases"].as_array().unwrap().clone()
}

fn tree(texts: &[&str]) -> Result<Tree, String> {
    let mut warnings = Vec::new();
    let parsed = texts
        .iter()
        .map(|text| file::parse(text, "f.yaml", &mut warnings));
    let domains: Vec<_> = parsed
        .collect::<Result<_, _>>()
        .map_err(|error| error.to_string())?;
    Tree::new(&domains, false).map_err(|error| error.to_string())
}

fn way(step: &WalkStep<'_>) -> String {
    let shared = if step.share { "shared " } else { "" };
    match step.matched {
        Matched::Exact => "exact".into(),
        Matched::Wildcard(pattern) => format!("{shared}{pattern}"),
        Matched::Key => "key".into(),
    }
}

#[test]
fn descriptors_meet_the_limits_that_the_peer_gives_them() {
    let tree = load(&[testdata("envoy/shop.yaml")], false).unwrap().tree;
    for case in cases("envoy_matching.json") {
        let text = |value: &Value| value.as_str().unwrap().to_owned();
        let pair = |entry: &Value| (text(&entry[0]), text(&entry[1]));
        let entries: Vec<_> = case[1].as_array().unwrap().iter().map(pair).collect();
        let entries = entries
            .iter()
            .map(|(key, value)| (key.as_str(), value.as_str()));
        let walk = tree.walk(case[0].as_str().unwrap(), entries);
        let limit = walk
            .limit
            .map(|index| match tree.limits()[index].config.amount {
                Amount::Unlimited => "unlimited".to_owned(),
                Amount::PerUnit(requests, unit) => format!("{requests} {}", unit.name()),
                Amount::Own => "own".to_owned(),
            });
        assert_eq!(limit.as_deref(), case[2].as_str(), "{case}");
        let ways: Vec<_> = walk.steps.iter().map(way).collect();
        assert_eq!(serde_json::json!(ways), case[3], "{case}");
    }
}

#[test]
fn errors_are_the_peers_own_with_their_places() {
    for case in cases("envoy_errors.json") {
        let error = tree(&[case[0].as_str().unwrap()]).unwrap_err();
        let wanted = format!("f.yaml:{}", case[1].as_str().unwrap());
        let first = error.lines().next().unwrap();
        let open = wanted.ends_with(' ') || wanted.ends_with(':');
        let agree = if open {
            first.starts_with(&wanted)
        } else {
            first == wanted
        };
        assert!(
            agree,
            "{}\nwanted {wanted}\n   got {error}",
            case[0].as_str().unwrap()
        );
    }
}

#[test]
fn a_domain_stands_in_one_file_unless_they_are_merged() {
    let one = "domain: test\ndescriptors: [{key: a}]";
    let other = "descriptors: [{key: b}]\ndomain: test";
    let error = tree(&[one, other]).unwrap_err();
    assert_eq!(error, "f.yaml:2:9: duplicate domain 'test' in config file");
    let parse = |text| file::parse(text, "f", &mut Vec::new()).unwrap();
    let merged = Tree::new(&[parse(one), parse(other)], true).unwrap();
    assert_eq!(merged.walk("test", [("b", "x")].into_iter()).steps.len(), 1);
    let twice = Tree::new(&[parse(one), parse(one)], true)
        .unwrap_err()
        .to_string();
    assert_eq!(twice, "f:2:15: duplicate descriptor composite key 'test.a'");
}

#[test]
fn a_key_where_it_means_nothing_is_a_warning() {
    let text = "domain: d\ndescriptors:\n  - key: k\n    rate_limit:\n      unit: day\n      requests_per_unit: 1\n      shadow_mode: true\n";
    let mut warnings = Vec::new();
    file::parse(text, "f.yaml", &mut warnings).unwrap();
    assert_eq!(
        warnings,
        ["f.yaml:7:20: 'shadow_mode' is no key of a rate_limit; ignored"]
    );
    let text = "domain: d\ndescriptors:\n  - {key: k, rate_limit: {unit: day}}\n";
    let mut warnings = Vec::new();
    file::parse(text, "f.yaml", &mut warnings).unwrap();
    assert_eq!(
        warnings,
        ["f.yaml:3:26: no requests_per_unit is 0 requests: all are denied"]
    );
}

#[test]
fn metadata_is_free_and_keeps_its_types() {
    let tree = load(&[testdata("envoy/shop.yaml")], false).unwrap().tree;
    let pool = tree
        .limits()
        .iter()
        .find(|limit| limit.metadata.is_some())
        .unwrap();
    let expected = r#"{"pool":{"live":true,"name":"a","tags":["x","y"],"weight":0.5}}"#;
    assert_eq!(
        Value::Object(*pool.metadata.clone().unwrap()).to_string(),
        expected
    );
}

#[test]
fn a_folder_is_its_yaml_files_by_name() {
    let folder = tempfile::tempdir().unwrap();
    for name in ["b.yaml", "a.yml", "c.txt", ".hidden.yaml"] {
        std::fs::write(folder.path().join(name), "domain: x").unwrap();
    }
    let found = files(&[folder.path().to_owned()]).unwrap();
    let names: Vec<_> = found.iter().map(|path| path.file_name().unwrap()).collect();
    assert_eq!(names, ["a.yml", "b.yaml"]);
    let missing = load(&[folder.path().join("missing")], false).unwrap_err();
    assert!(
        missing.to_string().contains("missing: No such file"),
        "{missing}"
    );
}

#[test]
fn explaining_names_the_limit_and_the_way_to_it() {
    use earrrl_server::config::envoy::EnvoyAlgorithm;
    use earrrl_server::config::envoy::explain::explain;
    let tree = load(&[testdata("envoy/shop.yaml")], false).unwrap().tree;
    let of = |domain, entries: &[_]| explain(&tree, EnvoyAlgorithm::FixedWindow, domain, entries);
    let text = of("shop", &[("user", "u1"), ("plan", "free")]);
    let expected = "domain `shop`\n  user=u1 matches its key alone; each value counts for itself\n  \
                    plan=free matches its key and value\nuser > plan_free, ";
    assert!(text.starts_with(expected), "{text}");
    assert!(
        text.ends_with("  2 a minute: fixed-window 2/60s\n"),
        "{text}"
    );
    let text = of("shop", &[("pool", "a"), ("x", "y")]);
    assert!(
        text.ends_with("  x=y matches nothing on this level: no limit, OK\n"),
        "{text}"
    );
    assert_eq!(
        of("nowhere", &[("a", "b")]),
        "domain `nowhere` is unknown: no limit, OK\n"
    );
    let text = of("shop", &[("banned", "x")]);
    assert!(
        text.contains("named banned") && text.contains("nothing is allowed"),
        "{text}"
    );
}

#[test]
fn what_is_no_text_is_an_error_with_its_place() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(
        folder.path().join("d.yaml"),
        b"domain: d\ndescr\xc3\xa9\xffiptors:\n",
    )
    .unwrap();
    let error = load(&[folder.path().to_owned()], false)
        .unwrap_err()
        .to_string();
    assert!(error.ends_with("d.yaml:2:7: expected UTF-8"), "{error}");
}
