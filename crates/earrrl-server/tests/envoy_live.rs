//! Tests Envoy's rate limit service during changes: of files, control planes and Redis, and with
//! hostile clients.
#![allow(clippy::unwrap_used, clippy::panic)]

use std::io::{Read as _, Write as _};
use std::net::SocketAddr;
use std::os::unix::fs::symlink;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::support::certificates::{Authority, shown};
use crate::support::envoy::Envoy;
use crate::support::ports::free_address;
use crate::support::process::Process;
use crate::support::redis::Redis;
use crate::support::resp::Reply;
use crate::support::{TestServer, connect, grpc, http, http2, parse, testdata, until};
use earrrl::SystemClock;
use earrrl_server::config::envoy::ControlPlane;
use earrrl_server::config::envoy::load::TYPE_URL;
use earrrl_server::protobuf::Any;
use earrrl_server::protobuf::discovery::{
    DiscoveryRequest, DiscoveryResponse, RateLimitConfig, RateLimitDescriptor, RateLimitPolicy,
};
use earrrl_server::protobuf::ratelimit::{
    Entry, RateLimitDescriptor as Descriptor, RateLimitRequest, RateLimitResponse,
};
use prost::Message as _;
use rustix::process::Signal;
use serde_json::{Value, json};
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Request, Response, Status, Streaming};

/// Returns the answer of `POST /json` for a descriptor with one entry.
fn ask(address: SocketAddr, (domain, key, value): (&str, &str, &str), more: &Value) -> Value {
    let mut descriptor = json!({"entries": [{"key": key, "value": value}]});
    descriptor
        .as_object_mut()
        .unwrap()
        .extend(more.as_object().cloned().unwrap_or_default());
    let body = json!({"domain": domain, "descriptors": [descriptor]}).to_string();
    http::Client::connect(address).post("/json", &body).json()
}

#[test]
fn files_are_reloaded_whole_or_not_at_all() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    let write = |version: &str, limit: &str| {
        std::fs::create_dir_all(path(version)).unwrap();
        let limit = format!("    rate_limit: {{unit: year, requests_per_unit: {limit}}}\n");
        let levels = ["k", "plan\n    value: free", "plan\n    value: paid"]
            .map(|level| format!("  - key: {level}\n{limit}"));
        let text = format!("domain: d\ndescriptors:\n{}", levels.concat());
        std::fs::write(path(version).join("d.yaml"), text).unwrap();
    };
    write("one", "5");
    write("two", "50");
    symlink(path("one"), path("current")).unwrap();
    let mut server = Process::start(&["--envoy-config", path("current").to_str().unwrap()]);
    // Three limits with the same text: each has clients of its own.
    let shown = |server: &Process| {
        [
            ("d", "k", "x"),
            ("d", "plan", "free"),
            ("d", "plan", "paid"),
        ]
        .map(|entry| {
            let status = ask(server.http, entry, &json!({}))["statuses"][0].clone();
            let limit = status["currentLimit"]["requestsPerUnit"].as_u64().unwrap();
            (limit, limit - status["limitRemaining"].as_u64().unwrap())
        })
    };
    assert_eq!(shown(&server), [(5, 1); 3]);

    // Swaps a symbolic link, as Kubernetes does; the clients keep their history.
    symlink(path("two"), path("next")).unwrap();
    std::fs::rename(path("next"), path("current")).unwrap();
    server.until_logged("reloaded");
    assert_eq!(shown(&server), [(50, 2); 3]);

    write("two", "many");
    let refused = server.until_logged("not reloaded");
    let error = refused["fields"]["error"].as_str().unwrap();
    assert!(
        error.contains("d.yaml:4:49: requests_per_unit: expected a whole number"),
        "{error}"
    );
    assert_eq!(shown(&server), [(50, 3); 3]);
    write("two", "60");
    server.until_logged("reloaded");
    assert_eq!(shown(&server), [(60, 4); 3]);
}

/// Limits stay in force when the file that has them is no file any more, or is gone.
#[test]
fn descriptors_do_not_vanish_with_their_file() {
    let folder = tempfile::tempdir().unwrap();
    let [file, away] = ["d.yaml", "away"].map(|name| folder.path().join(name));
    let limit = "    rate_limit: {unit: year, requests_per_unit: 5}\n";
    std::fs::write(
        &file,
        format!("domain: d\ndescriptors:\n  - key: k\n{limit}"),
    )
    .unwrap();
    let path = folder.path().to_str().unwrap();
    let mut server = Process::start(&["--envoy-config", path]);
    let left = |server: &Process| {
        ask(server.http, ("d", "k", "x"), &json!({}))["statuses"][0]["limitRemaining"].clone()
    };
    assert_eq!(left(&server), 4);
    std::fs::rename(&file, &away).unwrap();
    let error = server.until_logged("not reloaded")["fields"]["error"].to_string();
    assert!(
        error.contains("no file with descriptors is left"),
        "{error}"
    );
    assert_eq!(left(&server), 3);
    symlink("/nowhere", &file).unwrap();
    let error = server.until_logged("not reloaded")["fields"]["error"].to_string();
    assert!(
        error.contains("d.yaml: expected a file, or a link to one"),
        "{error}"
    );
    assert_eq!(left(&server), 2);
    std::fs::remove_file(&file).unwrap();
    std::fs::write(&away, "domain: d\n").unwrap();
    std::fs::rename(&away, &file).unwrap();
    server.until_logged("reloaded");
    assert!(left(&server).is_null());
}

#[test]
fn clients_that_descriptors_displace_are_counted() {
    let mut config = parse("[engine]\ncapacity = 100");
    config.envoy.files = vec![testdata("envoy/shop.yaml")];
    config.envoy.load().unwrap();
    let server = TestServer::with_clock(config, Arc::new(SystemClock::new()));
    let displaced = || {
        let metrics = server.http().get("/metrics").body;
        let line = "earrrl_clients_displaced_total{rule=\"ENVOY\"} ";
        let found = metrics
            .lines()
            .find_map(|each| each.strip_prefix(line)?.parse::<u64>().ok());
        found.expect("a line for descriptors")
    };
    assert_eq!(displaced(), 0);
    for user in 0..5000 {
        ask(server.http, ("shop", "user", &user.to_string()), &json!({}));
    }
    assert!(displaced() > 1000, "{}", displaced());
}

/// With room for 1,000 clients, a single descriptor for any value has a table of its own, while two would share a
/// store. A reload that adds or removes the second one leaves the first one where its clients are.
#[test]
fn clients_keep_their_counts_when_descriptors_crowd() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("d.yaml");
    let write = |keys: &[&str]| {
        let limit = "    rate_limit: {unit: year, requests_per_unit: 9}\n";
        let levels: Vec<_> = keys
            .iter()
            .map(|key| format!("  - key: {key}\n{limit}"))
            .collect();
        let next = folder.path().join("next");
        std::fs::write(
            &next,
            format!("domain: d\ndescriptors:\n{}", levels.concat()),
        )
        .unwrap();
        std::fs::rename(next, &file).unwrap();
    };
    let left = |server: &Process, key| {
        ask(server.http, ("d", key, "x"), &json!({}))["statuses"][0]["limitRemaining"].clone()
    };
    for [before, after] in [[&["k", "l"][..], &["k"]], [&["k"], &["k", "l"]]] {
        write(before);
        let path = file.to_str().unwrap();
        let mut server = Process::start(&["--envoy-config", path, "--capacity", "1000"]);
        assert_eq!([left(&server, "k"), left(&server, "k")], [8, 7]);
        for (keys, expected) in [(after, 6), (before, 5), (after, 4)] {
            write(keys);
            server.until_logged("reloaded");
            assert_eq!(left(&server, "k"), expected, "{before:?}, then {keys:?}");
        }
    }
}

/// Stream resets by one client must not end the connection that Envoy shares among all clients.
#[test]
fn resets_behind_envoy_leave_its_connection_open() {
    let server = TestServer::with_descriptors("");
    let open = |text: &str| text.replace("failure_mode_deny: true", "failure_mode_deny: false");
    let envoy = Envoy::start_with(server.grpc, open);
    let ask = || {
        envoy
            .client()
            .request("GET", "/", "x-user: mallory\r\n", b"")
            .status
    };
    assert_eq!(ask(), 200);
    let accepted = || server.server.service.metrics.accepted.get();
    let before = accepted();
    let mut client = connect(envoy.proxy);
    let mut bytes = http2::greeting(65_535);
    for stream in (1..=499).step_by(2) {
        bytes.extend(http2::get_with(stream, "/", "x-user", "mallory"));
        bytes.extend(http2::frame(http2::RST_STREAM, 0, stream, &[0, 0, 0, 8]));
    }
    client.write_all(&bytes).unwrap();
    until("the client is over its limit", || ask() == 429);
    assert_eq!(accepted(), before, "one connection");
}

#[test]
fn servers_over_one_redis_share_descriptors() {
    let redis = Redis::start();
    let engine = format!(
        "[engine]\nredis = \"{}\"\ndeadline = \"10s\"\ncapacity = 1000",
        redis.url()
    );
    let start = || {
        let mut config = parse(&engine);
        config.envoy.files = vec![testdata("envoy/shop.yaml")];
        config.envoy.load().unwrap();
        let server = TestServer::with_clock(config, Arc::new(SystemClock::new()));
        let mode = || server.http().get("/readyz").json()["engine"]["mode"].clone();
        until("Redis decides", || mode() == "redis");
        server
    };
    let servers = [start(), start()];
    let of = |server: usize, key: &str, value: &str, more: Value| {
        let answer = ask(servers[server].http, ("shop", key, value), &more);
        let remaining = answer["statuses"][0]["limitRemaining"]
            .as_u64()
            .unwrap_or(0);
        (
            answer["overallCode"].as_str().unwrap().to_owned(),
            remaining,
        )
    };
    let ok = |remaining| ("OK".to_owned(), remaining);
    let over = ("OVER_LIMIT".to_owned(), 0);
    for number in 0..41 {
        assert_eq!(
            of(number % 2, "flag", "true", json!({})),
            ok(40 - number as u64)
        );
    }
    assert_eq!(of(0, "flag", "true", json!({})), over);
    let hits = |hits: u64| json!({ "hitsAddend": hits });
    assert_eq!(of(0, "team", "small", hits(0)), ok(100));
    assert_eq!(of(0, "team", "small", hits(150)), over);
    assert_eq!(of(1, "team", "small", hits(0)), over);
    assert_eq!(
        of(
            1,
            "team",
            "small",
            json!({"hitsAddend": 90, "isNegativeHits": true})
        ),
        ok(40)
    );
    assert_eq!(of(0, "team", "small", hits(0)), ok(40));
}

/// Redis stores nothing for a number that requests bring.
#[test]
fn numbers_of_requests_have_no_records_on_redis() {
    let redis = Redis::start();
    let engine = format!("[engine]\nredis = \"{}\"\ndeadline = \"10s\"", redis.url());
    let start = || {
        let mut config = parse(&engine);
        config.envoy.files = vec![testdata("envoy/shop.yaml")];
        config.envoy.load().unwrap();
        let server = TestServer::with_clock(config, Arc::new(SystemClock::new()));
        let mode = || server.http().get("/readyz").json()["engine"]["mode"].clone();
        until("Redis decides", || mode() == "redis");
        server
    };
    let servers = [start(), start()];
    let count = || match redis.client().line("KEYS *plan=x*") {
        Reply::Array(keys) => keys.len(),
        other => panic!("{other:?}"),
    };
    let of = |number: usize, limit: usize| {
        let more = json!({"limit": {"requestsPerUnit": limit, "unit": "YEAR"}});
        let answer = ask(servers[number % 2].http, ("shop", "plan", "x"), &more);
        answer["overallCode"].clone()
    };
    for number in 0..100 {
        assert_eq!(of(number, 1000 - number), "OK", "{number}");
    }
    // The refund of what a request is denied has a record of its own beside the client's.
    assert_eq!(of(0, 100), "OVER_LIMIT");
    let before = count();
    for number in 1..100 {
        assert_eq!(of(number, 100 - number), "OVER_LIMIT", "{number}");
    }
    assert_eq!(of(0, 101), "OK");
    assert_eq!(count(), before);
}

/// A control plane that answers each request with the next response of a list. The stream ends
/// after the list, or at a response of `None`.
#[derive(Clone, Default)]
struct Plane {
    responses: Arc<Mutex<Vec<Option<DiscoveryResponse>>>>,
    requests: Arc<Mutex<Vec<DiscoveryRequest>>>,
}

impl Plane {
    /// Serves the control plane at an address.
    async fn serve(self, address: SocketAddr) {
        let method =
            "/envoy.service.discovery.v3.AggregatedDiscoveryService/StreamAggregatedResources";
        let handler = tower::service_fn(move |requests| self.clone().answer(requests));
        grpc::serve_stream(address, method, handler).await;
    }

    async fn answer(
        self,
        request: Request<Streaming<DiscoveryRequest>>,
    ) -> Result<Response<ReceiverStream<Result<DiscoveryResponse, Status>>>, Status> {
        let mut requests = request.into_inner();
        let plane = self;
        let (sender, receiver) = tokio::sync::mpsc::channel(1);
        tokio::spawn(async move {
            while let Ok(Some(request)) = requests.message().await {
                plane.requests.lock().unwrap().push(request);
                let next = {
                    let mut responses = plane.responses.lock().unwrap();
                    if responses.is_empty() {
                        None
                    } else {
                        Some(responses.remove(0))
                    }
                };
                match next {
                    Some(Some(response)) => drop(sender.send(Ok(response)).await),
                    Some(None) => return,
                    None => {}
                }
            }
        });
        Ok(Response::new(ReceiverStream::new(receiver)))
    }
}

fn response(version: &str, domain: &str, limit: u32) -> Option<DiscoveryResponse> {
    let policy = RateLimitPolicy {
        unit: 6,
        requests_per_unit: limit,
        ..Default::default()
    };
    let descriptor = RateLimitDescriptor {
        key: "k".into(),
        rate_limit: Some(policy),
        ..Default::default()
    };
    let config = RateLimitConfig {
        name: "c".into(),
        domain: domain.into(),
        descriptors: vec![descriptor],
    };
    let resource = Any {
        type_url: TYPE_URL.into(),
        value: config.encode_to_vec(),
    };
    Some(DiscoveryResponse {
        version_info: version.into(),
        nonce: format!("nonce-{version}"),
        type_url: TYPE_URL.into(),
        resources: vec![resource],
    })
}

/// Redis does not answer, and the caller's deadline passes before that of the engine.
#[test]
fn what_cannot_be_decided_in_time_is_answered_by_policy() {
    let redis = Redis::start();
    let start = |policy: &str| {
        let engine = format!(
            "[engine]\nredis = \"{}\"\ndeadline = \"10s\"\npolicy = \"{policy}\"\ncapacity = 1000",
            redis.url()
        );
        let mut config = parse(&engine);
        config.envoy.files = vec![testdata("envoy/shop.yaml")];
        config.envoy.load().unwrap();
        let server = TestServer::with_clock(config, Arc::new(SystemClock::new()));
        until("Redis decides", || {
            server.http().get("/readyz").json()["engine"]["mode"] == "redis"
        });
        server
    };
    let servers = ["local", "allow", "deny"].map(start);
    redis.signal(Signal::STOP);
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let ask = &|server: &TestServer, key: &str, negative: bool| {
        let entry = Entry {
            key: key.into(),
            value: "small".into(),
        };
        let descriptor = Descriptor {
            entries: vec![entry],
            is_negative_hits: negative,
            ..Descriptor::default()
        };
        let mut request = Request::new(RateLimitRequest {
            domain: "shop".into(),
            descriptors: vec![descriptor],
            hits_addend: 1,
        });
        // The server answers after three quarters of it, and a busy machine may need some time for the rest.
        request.set_timeout(Duration::from_secs(6));
        runtime.block_on(async {
            let method = "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit";
            let channel = grpc::connect(server.grpc).await;
            let answer =
                grpc::call::<RateLimitRequest, RateLimitResponse>(&channel, method, request);
            answer.await.unwrap().overall_code
        })
    };
    let ok = 1;
    let over = 2;
    // The requests run concurrently, since each waits for its deadline.
    std::thread::scope(|scope| {
        for (server, expected) in servers.iter().zip([ok, ok, over]) {
            scope.spawn(move || {
                assert_eq!(ask(server, "team", false), expected);
                // A request that meets no limit, or only gives tokens back, is not denied by the
                // policy.
                assert_eq!(ask(server, "nobody", false), ok);
                assert_eq!(ask(server, "team", true), ok);
            });
        }
    });
}

#[test]
fn a_control_plane_is_followed() {
    let plane = Plane::default();
    *plane.responses.lock().unwrap() = vec![
        response("1", "d", 5),
        response("2", "", 9),
        None,
        response("3", "d", 7),
    ];
    let address = free_address();
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.spawn(plane.clone().serve(address));
    let mut config = parse("[metrics]\nenvoy = true");
    config.envoy.control_plane = Some(ControlPlane::new(&address.to_string(), "node-7").unwrap());
    let server = TestServer::with_clock(config, Arc::new(SystemClock::new()));
    let limit = || {
        let answer = ask(server.http, ("d", "k", "x"), &json!({"hitsAddend": 0}));
        answer["statuses"][0]["currentLimit"]["requestsPerUnit"].as_u64()
    };
    until("the third version is in force", || limit() == Some(7));
    until("it is acknowledged", || {
        plane.requests.lock().unwrap().len() >= 5
    });
    let requests = plane.requests.lock().unwrap().clone();
    let told: Vec<_> = requests
        .iter()
        .take(5)
        .map(|r| {
            (
                r.version_info.as_str(),
                r.response_nonce.as_str(),
                r.error_detail.is_some(),
            )
        })
        .collect();
    // The first request, an acknowledgement and a rejection; then the same on a new stream.
    let expected = [
        ("", "", false),
        ("1", "nonce-1", false),
        ("1", "nonce-2", true),
        ("1", "", false),
        ("3", "nonce-3", false),
    ];
    assert_eq!(told, expected);
    assert_eq!(requests[0].node.as_ref().unwrap().id, "node-7");
    let refusal = &requests[2].error_detail.as_ref().unwrap().message;
    assert_eq!(refusal, "xds c: config file cannot have empty domain");
    let metrics = server.http().get("/metrics").body;
    assert!(
        metrics.contains("\nratelimit_service_config_load_error 1\n"),
        "{metrics}"
    );
}

/// Terminates TLS and forwards the plain bytes; reports whether each handshake succeeded.
async fn unwrap_tls(
    listener: tokio::net::TcpListener,
    config: rustls::ServerConfig,
    to: SocketAddr,
    shaken: Arc<Mutex<Vec<bool>>>,
) {
    let acceptor = tokio_rustls::TlsAcceptor::from(Arc::new(config));
    loop {
        let (stream, _) = listener.accept().await.unwrap();
        let acceptor = acceptor.clone();
        let shaken = Arc::clone(&shaken);
        tokio::spawn(async move {
            let accepted = acceptor.accept(stream).await;
            shaken.lock().unwrap().push(accepted.is_ok());
            let Ok(mut client) = accepted else { return };
            let mut server = tokio::net::TcpStream::connect(to).await.unwrap();
            let _ = tokio::io::copy_bidirectional(&mut client, &mut server).await;
        });
    }
}

/// Both sides verify the other's certificate, as Envoy Gateway requires.
#[test]
fn a_control_plane_is_spoken_to_over_tls() {
    let authority = Authority::new("ours");
    let other = Authority::new("other");
    authority.issue("plane", &["localhost"]);
    authority.issue("node", &["ratelimit"]);
    other.issue("node", &["ratelimit"]);
    let plane = Plane::default();
    *plane.responses.lock().unwrap() = vec![response("1", "d", 5)];
    let address = free_address();
    let shaken = Arc::<Mutex<Vec<bool>>>::default();
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.spawn(plane.clone().serve(address));
    let listener = runtime
        .block_on(tokio::net::TcpListener::bind("127.0.0.1:0"))
        .unwrap();
    let port = listener.local_addr().unwrap().port();
    let config = authority.server("plane");
    runtime.spawn(unwrap_tls(listener, config, address, Arc::clone(&shaken)));
    let text = std::fs::read_to_string(testdata("../contrib/envoy/gateway.toml")).unwrap();
    let follow = |node: &Authority| {
        let text = text.replace("/certs/ca.crt", &shown(&authority.path("ca.pem")));
        let text = text.replace("/certs/tls.crt", &shown(&node.path("node.pem")));
        let text = text.replace("/certs/tls.key", &shown(&node.path("node.key")));
        let config = parse(&text.replace("envoy-gateway:18001", &format!("localhost:{port}")));
        TestServer::with_clock(config, Arc::new(SystemClock::new()))
    };
    let stranger = follow(&other);
    until("a stranger is refused", || {
        shaken.lock().unwrap().contains(&false)
    });
    assert!(plane.requests.lock().unwrap().is_empty());
    drop(stranger);
    let server = follow(&authority);
    until("the limit is in force", || {
        let answer = ask(server.http, ("d", "k", "x"), &json!({"hitsAddend": 0}));
        answer["statuses"][0]["currentLimit"]["requestsPerUnit"] == 5
    });
    assert_eq!(
        plane.requests.lock().unwrap()[0].node.as_ref().unwrap().id,
        "envoy-ratelimit"
    );
}

const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = (payload.len() as u32).to_be_bytes();
    let head = [&length[1..], &[kind, flags], &stream.to_be_bytes()].concat();
    [&head, payload].concat()
}

/// Returns the headers of a call without header compression.
fn headers() -> Vec<u8> {
    let mut block = Vec::new();
    for (name, value) in [
        (":method", "POST"),
        (":scheme", "http"),
        (
            ":path",
            "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit",
        ),
        (":authority", "test"),
        ("content-type", "application/grpc"),
    ] {
        block.extend([0, name.len() as u8]);
        block.extend(name.as_bytes());
        block.push(value.len() as u8);
        block.extend(value.as_bytes());
    }
    block
}

/// Sends all bytes while reading, until the server closes the connection or stops answering.
fn flood(address: SocketAddr, bytes: &[u8]) {
    let mut stream = connect(address);
    let mut reader = stream.try_clone().unwrap();
    let reading = std::thread::spawn(move || {
        let mut sink = [0; 65536];
        while reader.read(&mut sink).is_ok_and(|count| count > 0) {}
    });
    // Writing fails if the server has already closed the connection, which is allowed.
    let _ = stream.write_all(bytes);
    let _ = stream.shutdown(std::net::Shutdown::Write);
    reading.join().unwrap();
}

#[test]
fn floods_disturb_nobody_else() {
    let server = TestServer::with_descriptors("");
    let start = [PREFACE, &frame(4, 0, 0, &[])].concat();
    let mut resets = start.clone();
    let mut opened = start.clone();
    let block = headers();
    for number in 0..10_000 {
        let stream = number * 2 + 1;
        opened.extend(frame(1, 4, stream, &block));
        resets.extend(frame(1, 4, stream, &block));
        resets.extend(frame(3, 0, stream, &8_u32.to_be_bytes()));
    }
    let mut settings = start.clone();
    let mut pings = start;
    for _ in 0..100_000 {
        settings.extend(frame(4, 0, 0, &[]));
        pings.extend(frame(6, 0, 0, &[0; 8]));
    }
    for bytes in [
        opened,
        resets,
        settings,
        pings,
        vec![0xff; 100_000],
        PREFACE.to_vec(),
    ] {
        flood(server.grpc, &bytes);
        let answer = ask(server.http, ("shop", "internal", "x"), &json!({}));
        assert_eq!(answer["overallCode"], "OK");
    }
    until("all are gone", || server.server.connections.len() <= 1);
}
