//! Tests that the files for containers and Kubernetes in `contrib/` fit the server: its ports, routes,
//! arguments and fields.
#![allow(clippy::unwrap_used, clippy::panic, reason = "helpers of tests")]

use std::fs;
use std::path::Path;

use earrrl_server::config::{Config, ServerConfig};
use granit_parser::{Event, Parser};
use serde_json::{Value, json};

use crate::support::TestServer;

fn contrib(name: &str) -> String {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    fs::read_to_string(root.join(name)).unwrap()
}

/// Returns the documents of a YAML file, whose scalars are texts.
fn documents(text: &str) -> Vec<Value> {
    let mut events = Parser::new_from_str(text).map(|event| event.unwrap().0);
    let mut documents = Vec::new();
    while let Some(event) = events.next() {
        if matches!(event, Event::DocumentStart(..)) {
            let first = events.next().unwrap();
            documents.push(value(first, &mut events));
        }
    }
    documents
}

/// Returns the value that begins with an event.
fn value<'a>(first: Event<'a>, rest: &mut impl Iterator<Item = Event<'a>>) -> Value {
    match first {
        Event::Scalar(text, ..) => text.into_owned().into(),
        Event::SequenceStart(..) => {
            let mut items = Vec::new();
            loop {
                match rest.next().unwrap() {
                    Event::SequenceEnd => return items.into(),
                    event => items.push(value(event, rest)),
                }
            }
        }
        Event::MappingStart(..) => {
            let mut entries = serde_json::Map::new();
            loop {
                match rest.next().unwrap() {
                    Event::MappingEnd => return entries.into(),
                    Event::Scalar(key, ..) => {
                        let first = rest.next().unwrap();
                        let known = entries.insert(key.clone().into_owned(), value(first, rest));
                        assert!(known.is_none(), "{key} occurs twice");
                    }
                    other => panic!("{other:?}"),
                }
            }
        }
        other => panic!("{other:?}"),
    }
}

/// Returns the value of a field in each item of a list.
fn each<'a>(list: &'a Value, field: &str) -> Vec<&'a str> {
    list.as_array()
        .unwrap()
        .iter()
        .map(|item| item[field].as_str().unwrap())
        .collect()
}

/// Returns the words of a list of texts.
fn words(list: &Value) -> Vec<&str> {
    list.as_array()
        .unwrap()
        .iter()
        .map(|word| word.as_str().unwrap())
        .collect()
}

/// Returns the ports that the server listens on by default: HTTP and RESP.
fn usual_ports() -> [String; 2] {
    let usual = ServerConfig::default();
    [usual.http, usual.resp].map(|address| address.unwrap().tcp().unwrap().port().to_string())
}

#[test]
fn the_parts_of_the_kubernetes_manifest_name_each_other() {
    let parts = documents(&contrib("contrib/kubernetes.yaml"));
    let part = |kind: &str| parts.iter().find(|part| part["kind"] == kind).unwrap();
    let deployment = &part("Deployment")["spec"];
    let service = &part("Service")["spec"];
    let labels = &deployment["template"]["metadata"]["labels"];
    assert_eq!(&deployment["selector"]["matchLabels"], labels);
    assert_eq!(&service["selector"], labels);
    assert_eq!(
        &part("PodDisruptionBudget")["spec"]["selector"]["matchLabels"],
        labels
    );
    let monitor = &documents(&contrib("contrib/kubernetes-monitor.yaml"))[0];
    assert_eq!(monitor["kind"], "ServiceMonitor");
    let monitor = &monitor["spec"];
    assert_eq!(
        monitor["selector"]["matchLabels"],
        part("Service")["metadata"]["labels"]
    );

    // A rolling update would run two pods, each with the full limit.
    assert_eq!(deployment["strategy"]["type"], "Recreate");
    let pod = &deployment["template"]["spec"];
    let container = &pod["containers"][0];
    let names = each(&container["ports"], "name");
    assert_eq!(each(&container["ports"], "containerPort"), usual_ports());
    assert_eq!(each(&service["ports"], "targetPort"), names);
    assert_eq!(each(&service["ports"], "port"), usual_ports());
    assert!(
        each(&service["ports"], "name")
            .contains(&monitor["endpoints"][0]["port"].as_str().unwrap())
    );
    let image = container["image"].as_str().unwrap();
    assert!(
        image.ends_with(concat!(":", env!("CARGO_PKG_VERSION"))),
        "{image}"
    );

    let server = TestServer::start("rules = \"none\"");
    for probe in ["readinessProbe", "livenessProbe"] {
        let asked = &container[probe]["httpGet"];
        assert_eq!(asked["port"], "http", "{probe}");
        let path = asked["path"].as_str().unwrap();
        assert_eq!(server.http().get(path).status, 200, "{probe}: {path}");
    }
    assert_eq!(server.http().get("/metrics").status, 200);
}

#[test]
fn the_configuration_for_kubernetes_fits_its_pod() {
    let parts = documents(&contrib("contrib/kubernetes.yaml"));
    let part = |kind: &str| parts.iter().find(|part| part["kind"] == kind).unwrap();
    let pod = &part("Deployment")["spec"]["template"]["spec"];
    let container = &pod["containers"][0];
    let mounts = &container["volumeMounts"];
    assert_eq!(each(mounts, "name").len(), 3);
    for name in each(mounts, "name") {
        assert!(each(&pod["volumes"], "name").contains(&name), "{name}");
    }
    let mounted = |name: &str| {
        let mount = mounts
            .as_array()
            .unwrap()
            .iter()
            .find(|mount| mount["name"] == name);
        format!("{}/", mount.unwrap()["mountPath"].as_str().unwrap())
    };
    let files = &part("ConfigMap")["data"];
    let file = words(&container["args"])[1]
        .strip_prefix(&mounted("config"))
        .unwrap();
    let text = files[file].as_str().unwrap();
    assert!(text.contains(&format!("state = \"{}", mounted("state"))));

    // The tokens come from a secret; here they are in the test's folder.
    let folder = tempfile::tempdir().unwrap();
    let text = text.replace(&mounted("tokens"), &format!("{}/", folder.path().display()));
    for token in ["check-token", "admin-token"] {
        fs::write(folder.path().join(token), format!("{token}-0123456789\n")).unwrap();
    }
    let config = Config::parse(&text, "limits.toml").unwrap();
    assert_eq!(config.server.exposed(), None);
    let listening = [&config.server.http, &config.server.resp]
        .map(|address| address.as_ref().unwrap().tcp().unwrap().port().to_string());
    assert_eq!(each(&container["ports"], "containerPort"), listening);
    let grace = pod["terminationGracePeriodSeconds"]
        .as_str()
        .unwrap()
        .parse::<u32>()
        .unwrap();
    assert!(grace > config.server.shutdown_delay + config.server.shutdown_timeout);
}

/// Returns the words of the entry point of `contrib/Dockerfile`.
fn entry_point() -> Vec<String> {
    let file = contrib("contrib/Dockerfile");
    let line = file
        .lines()
        .find_map(|line| line.strip_prefix("ENTRYPOINT "))
        .unwrap();
    serde_json::from_str(line).unwrap()
}

/// Arguments after the image's name, such as `--config`, are added to the same command in both
/// images.
#[test]
fn both_images_start_alike() {
    let script = contrib("scripts/dist").replace("\\\n", "");
    let words = script.split_whitespace().collect::<Vec<_>>();
    let own: Vec<&str> = words
        .windows(2)
        .filter(|pair| pair[0] == "--config.entrypoint")
        .map(|pair| pair[1])
        .collect();
    assert_eq!(own[0], "/earrrl");
    assert_eq!(own[1..], entry_point()[1..]);
    assert!(!script.contains("--config.cmd"));
    for port in usual_ports() {
        assert!(
            own.iter().any(|word| word.ends_with(&format!(":{port}"))),
            "{own:?}"
        );
        assert!(script.contains(&format!("--config.exposedports {port}")));
    }
}

#[test]
fn the_composition_of_containers_names_files_and_ports_that_exist() {
    let compose = &documents(&contrib("contrib/compose.yaml"))[0]["services"];
    let earrrl = &compose["earrrl"];
    let file = earrrl["build"]["dockerfile"].as_str().unwrap();
    assert!(!contrib(file).is_empty());
    let [http, resp] = usual_ports();
    let published = [http, resp].map(|port| format!("127.0.0.1:{port}:{port}"));
    assert_eq!(words(&earrrl["ports"]), published);
    // The image's entry point has the command `serve`; these are further arguments of it.
    assert_eq!(entry_point()[1], "serve");
    let command = words(&earrrl["command"]);
    assert_eq!(command[0], "--config");
    for service in ["earrrl", "prometheus"] {
        for volume in words(&compose[service]["volumes"]) {
            let (ours, _) = volume.split_once(':').unwrap();
            let path = Path::new(env!("CARGO_MANIFEST_DIR"))
                .join("../../contrib")
                .join(ours);
            assert!(path.exists(), "{volume}");
        }
    }
    let volume = format!("./limits.toml:{}:ro", command[1]);
    assert_eq!(earrrl["volumes"], json!([volume]));
    let scraped = &documents(&contrib("contrib/prometheus/prometheus.yml"))[0];
    let target = &scraped["scrape_configs"][0]["static_configs"][0]["targets"];
    assert_eq!(words(target), [format!("earrrl:{}", usual_ports()[0])]);
}

#[test]
fn the_operators_page_has_every_alert_and_no_other() {
    let alerts = &documents(&contrib("contrib/prometheus/alerts.yml"))[0]["groups"][0]["rules"];
    let page = contrib("docs/production.md");
    let (_, table) = page.split_once("\n## Alerts\n").unwrap();
    let rows = table.lines().filter(|line| line.starts_with("| `")).count();
    assert_eq!(alerts.as_array().unwrap().len(), rows);
    for alert in alerts.as_array().unwrap() {
        let expression = alert["expr"].as_str().unwrap();
        let metric = expression.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
        let metric = metric.into_iter().find(|word| word.starts_with("earrrl_"));
        assert!(
            metric.is_none_or(|metric| page.contains(metric)),
            "{expression}"
        );
    }
}
