//! A real proxy with a recipe of `contrib/`, between clients, an application and `earrrl serve`.

use std::fs::{self, File};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::Relaxed};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process_group};

use super::http::{Client, Response};
use super::ports::free_address;
use super::process::{BINARY, Process};
use super::{PATIENCE, until};

/// The last byte of a client's loopback address; each client has its own.
pub const HAMMERING: u8 = 2;
pub const POLITE: u8 = 3;

/// `earrrl serve` at an address that it keeps when it is killed and restarted.
pub struct Limiter {
    http: SocketAddr,
    grpc: SocketAddr,
    folder: tempfile::TempDir,
    process: Option<Process>,
}

impl Limiter {
    /// Starts a limiter under which a client may log in 3 times, then once in 1000 s, and may
    /// request the host `shop.example` once. It also has the rule of the recipes' self-test.
    pub fn start(deny_status: u16) -> Self {
        let host = "[[rule]]\nname = \"host\"\nlimit = \"gcra 0.001/s burst=1\"\nkey = \"client\"\n\
                    match = { \"attribute:host\" = \"shop.example\" }\n";
        Self::start_with(deny_status, &format!("{LOGIN}{host}{}", self_test()))
    }

    pub fn start_with(deny_status: u16, rules: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let config = format!(
            "[client_address]\ntrusted_proxies = [\"127.0.0.1/32\"]\n\
             [authz]\ndeny_status = {deny_status}\n{rules}"
        );
        fs::write(folder.path().join("limits.toml"), config).unwrap();
        let [http, grpc] = [(); 2].map(|()| free_address());
        let mut limiter = Self {
            http,
            grpc,
            folder,
            process: None,
        };
        limiter.serve();
        limiter
    }

    pub fn serve(&mut self) {
        let mut command = Command::new(BINARY);
        command
            .arg("serve")
            .arg("--config")
            .arg(self.folder.path().join("limits.toml"));
        self.process = Some(Process::spawn_at(
            &self.http.to_string(),
            &self.grpc.to_string(),
            &mut command,
        ));
    }

    /// Returns the body of `/readyz`.
    pub fn readiness(&self) -> serde_json::Value {
        Client::connect(self.http).get("/readyz").json()
    }

    /// Kills the limiter with SIGKILL.
    pub fn kill(&mut self) {
        self.process = None;
    }

    /// Suspends the limiter until [`Limiter::resume`] is called.
    pub fn suspend(&self) {
        self.process.as_ref().unwrap().suspend();
    }

    pub fn resume(&self) {
        self.process.as_ref().unwrap().signal(Signal::CONT);
    }
}

/// Returns the rule of the self-test from the documentation.
fn self_test() -> String {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/proxies.md");
    let page = fs::read_to_string(page).unwrap();
    let start = page.find("[[rule]]\nname  = \"self-test\"").unwrap();
    page[start..].split_once("```").unwrap().0.to_owned()
}

/// An application that answers with the method, the target, the limiter's action and the body of
/// the request. Of a body of [`LONG`] bytes or more it answers with the checksum instead, and at
/// `/download` it answers with [`long_body`]. At `/status/N` it answers with status N; at `/crash` it
/// closes the connection; a websocket echoes.
///
/// No long response follows a long request, since proxies in Go may cut it: `net/http` closes the
/// body of a request when its response begins, although its client may not have seen the end of that
/// body yet, and then closes the connection to the application (golang/go issue 40747).
struct Application {
    address: SocketAddr,
    crashes: Arc<AtomicU32>,
}

impl Application {
    fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let crashes = Arc::<AtomicU32>::default();
        let counted = Arc::clone(&crashes);
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let crashes = Arc::clone(&counted);
                thread::spawn(move || serve(stream, &crashes));
            }
        });
        Self { address, crashes }
    }
}

/// The length from which the application does not repeat a body.
const LONG: usize = 1000;

/// Returns a body that takes many reads.
fn long_body() -> String {
    "all of it\r\n\r\n".repeat(20_000)
}

/// Returns a text that shows if a long body arrived complete.
fn checksum(body: &[u8]) -> String {
    let fnv = body.iter().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)
    });
    format!("{} bytes, {fnv:x}", body.len())
}

/// The answer to the handshake in section 1.3 of RFC 6455.
const SWITCHING: &[u8] = b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\n\
    Connection: Upgrade\r\nSec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=\r\n\r\n";

fn serve(stream: TcpStream, crashes: &AtomicU32) -> std::io::Result<()> {
    let mut reader = BufReader::new(stream);
    loop {
        let mut first = String::new();
        let mut length = 0;
        let mut action = "none".to_owned();
        let mut upgrades = false;
        if reader.read_line(&mut first)? == 0 {
            return Ok(());
        }
        loop {
            let mut line = String::new();
            reader.read_line(&mut line)?;
            let Some((name, value)) = line.trim_end().split_once(": ") else {
                break;
            };
            match name.to_ascii_lowercase().as_str() {
                "content-length" => length = value.parse().unwrap(),
                "x-ratelimit-action" => action = value.to_owned(),
                "upgrade" => upgrades = value.eq_ignore_ascii_case("websocket"),
                _ => {}
            }
        }
        let mut body = vec![0; length];
        reader.read_exact(&mut body)?;
        let target = first.rsplit_once(' ').unwrap().0;
        if target.ends_with("/crash") {
            crashes.fetch_add(1, Relaxed);
            return Ok(());
        }
        if upgrades {
            reader.get_mut().write_all(SWITCHING)?;
            let mut back = reader.get_ref().try_clone()?;
            return std::io::copy(&mut reader, &mut back).map(drop);
        }
        let status = target
            .split_once("/status/")
            .map_or("200", |(_, status)| status);
        let mut answer = format!("{target} {action} ").into_bytes();
        match body.len() {
            _ if target.ends_with("/download") => answer.extend(long_body().into_bytes()),
            LONG.. => answer.extend(checksum(&body).into_bytes()),
            _ => answer.extend(body),
        }
        let head = format!(
            "HTTP/1.1 {status} OK\r\nContent-Length: {}\r\n\r\n",
            answer.len()
        );
        reader
            .get_mut()
            .write_all(&[head.as_bytes(), &answer].concat())?;
    }
}

/// A proxy in a folder of its own, which is killed when this value is dropped.
pub struct Proxy {
    process: Child,
    pub address: SocketAddr,
    app: Application,
    _folder: tempfile::TempDir,
}

impl Proxy {
    /// Runs a command in a copy of a folder of `contrib/`, with free ports and timeouts for a busy
    /// machine.
    pub fn start(recipe: &str, limiter: &Limiter, command: &mut Command) -> Self {
        Self::start_with(recipe, limiter, command, |_, text| patient(text))
    }

    /// Runs a command in a copy of a folder of `contrib/`, with free ports and a change to each
    /// file.
    pub fn start_with(
        recipe: &str,
        limiter: &Limiter,
        command: &mut Command,
        change: impl Fn(&Path, &str) -> String,
    ) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let application = Application::start();
        let app = application.address;
        let [address, asking] = [(); 2].map(|()| free_address());
        let source = Path::new(env!("CARGO_MANIFEST_DIR"))
            .join("../../contrib")
            .join(recipe);
        for file in fs::read_dir(source).unwrap().flatten() {
            let text = fs::read_to_string(file.path()).unwrap();
            let text = text
                .replace("127.0.0.1:8080", &limiter.http.to_string())
                .replace("127.0.0.1:3000", &app.to_string())
                .replace(":8000", &format!(":{}", address.port()))
                .replace("127.0.0.1:8085", &asking.to_string());
            let text = with_named_headers(&text);
            let places = [
                (8080, limiter.http),
                (8081, limiter.grpc),
                (3000, app),
                (8000, address),
            ];
            let text = places.into_iter().fold(text, |text, (known, address)| {
                let envoys = |ip: IpAddr, port| format!("address: {ip}, port_value: {port}}}");
                let known = envoys(Ipv4Addr::LOCALHOST.into(), known);
                text.replace(&known, &envoys(address.ip(), address.port()))
            });
            let copy = folder.path().join(file.file_name());
            fs::write(&copy, change(&copy, &text)).unwrap();
        }
        let log = folder.path().join("log");
        let output = File::create(&log).unwrap();
        command
            .current_dir(folder.path())
            .env("HOME", folder.path());
        command.stdout(Stdio::null()).stderr(output);
        // A process group lets the proxy's workers be killed with it.
        let process = command.process_group(0).spawn().unwrap();
        let mut proxy = Self {
            process,
            address,
            app: application,
            _folder: folder,
        };
        until("the proxy serves", || {
            let ended = proxy.process.try_wait().unwrap();
            assert_eq!(ended, None, "{}", fs::read_to_string(&log).unwrap());
            // Traefik listens before it has loaded its routes.
            TcpStream::connect(address).is_ok() && proxy.client(POLITE).get("/").status == 200
        });
        proxy
    }

    /// Returns true unless the proxy has ended.
    pub fn runs(&mut self) -> bool {
        self.process.try_wait().unwrap().is_none()
    }

    /// Returns the process id of the proxy.
    pub fn id(&self) -> u32 {
        self.process.id()
    }

    /// Returns the number of requests at which the application crashed.
    pub fn crashes(&self) -> u32 {
        self.app.crashes.load(Relaxed)
    }

    /// Returns a client with the address 127.0.0.N.
    pub fn client(&self, number: u8) -> Client {
        client(self.address, number)
    }

    /// Connects from 127.0.0.N; reads on the connection time out after some seconds.
    pub fn connect(&self, number: u8) -> TcpStream {
        let stream = connect(self.address, number);
        stream
            .set_read_timeout(Some(Duration::from_secs(5)))
            .unwrap();
        stream
    }

    /// Sends a login from 127.0.0.N.
    pub fn login(&self, number: u8, headers: &str) -> Response {
        self.client(number)
            .request("POST", "/login?next=/", headers, b"user=alice")
    }
}

/// Returns a recipe with timeouts for a busy machine.
fn patient(text: &str) -> String {
    text.replace("50ms", "20s").replace("0.05s", "20s")
}

/// Returns a recipe with the headers that the tests' rules need, inserted where its comments
/// indicate.
fn with_named_headers(text: &str) -> String {
    const NAMED: [&str; 3] = ["x-api-key", "user-agent", "x-cost"];
    let all = |line: fn(&str) -> String| NAMED.map(line).concat();
    let nginx = all(|name| format!("proxy_set_header {name} $http_{}; ", name.replace('-', "_")));
    let caddy = all(|name| format!("\n\t\t\theader_up {name} {{header.{name}}}"));
    let envoy = all(|name| format!("{{exact: {name}}}, "));
    text.replace(
        "proxy_pass_request_headers off;",
        &format!("proxy_pass_request_headers off; {nginx}"),
    )
    .replace(
        "local named = {}",
        &format!(
            "local named = {{{}}}",
            NAMED.map(|name| format!("{name:?}")).join(", ")
        ),
    )
    .replace("header_up -*", &format!("header_up -*{caddy}"))
    .replace(
        "patterns: [{exact: x-forwarded-for}",
        &format!("patterns: [{envoy}{{exact: x-forwarded-for}}"),
    )
}

pub fn client(proxy: SocketAddr, number: u8) -> Client {
    let stream = connect(proxy, number);
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    Client::over(stream)
}

fn connect(proxy: SocketAddr, number: u8) -> TcpStream {
    let socket = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None);
    let socket = socket.unwrap();
    let own = SocketAddr::new(IpAddr::V4(Ipv4Addr::new(127, 0, 0, number)), 0);
    socket.bind(&own.into()).unwrap();
    socket.connect(&proxy.into()).unwrap();
    socket.into()
}

impl Drop for Proxy {
    fn drop(&mut self) {
        let _ = kill_process_group(Pid::from_child(&self.process), Signal::KILL);
        let _ = self.process.wait();
    }
}

/// Headers by which a client may try to pass for another client, or its request for another.
const FORGERIES: [&str; 19] = [
    "",
    "X-Forwarded-For: 203.0.113.1\r\nX-Real-Ip: 203.0.113.1\r\n",
    "X-Forwarded-For: 203.0.113.1\r\nX-Forwarded-For: 203.0.113.2\r\n",
    "X-Forwarded-Uri: /\r\nX-Forwarded-Method: GET\r\n",
    "X-Forwarded-Uri: /\r\nX-Forwarded-Uri: /\r\nX-Forwarded-Host: other\r\n",
    "X-Original-Uri: /\r\nX-Original-Url: /\r\nX-Original-Method: GET\r\n",
    "Forwarded: for=203.0.113.2\r\nX-RateLimit-Action: allow\r\n",
    "X-Forwarded-For: 127.0.0.1, 127.0.0.1\r\n",
    "X-Forwarded-For: 127.0.0.1,203.0.113.1,127.0.0.1\r\n",
    "X-Forwarded-For:\r\nX-Forwarded-Uri:\r\nX-Forwarded-Method:\r\n",
    "X-Forwarded-Host: \",\"path\":\"/\r\nX-Forwarded-Proto: https\"\r\n",
    "X-HTTP-Method-Override: GET\r\nX-Method-Override: GET\r\n",
    "X_Forwarded_For: 203.0.113.1\r\nX_Forwarded_Uri: /\r\n",
    "X-Forwarded-For : 203.0.113.1\r\n",
    "X-Folded: a\r\n X-Forwarded-Uri: /\r\n",
    "X-Split: a\rX-Forwarded-Uri: /\r\n",
    "Connection: X-Forwarded-For, X-Forwarded-Uri, X-Forwarded-Method\r\n",
    "Authorization: Bearer whatever\r\nCookie: path=/; client=6.6.6.6\r\n",
    "X-Envoy-External-Address: 203.0.113.1\r\nX-Envoy-Original-Path: /\r\nX-Envoy-Internal: true\r\n",
];

/// Other spellings of the limited path.
const SPELLINGS: [&str; 20] = [
    "/login?deny_status=200&path=/&method=GET&rule=other",
    "/login?/../other",
    "/login?a=%0d%0aX-Forwarded-Uri:%20/",
    "/login?\"},\"path\":\"/",
    "/%6Cogin",
    "/%6c%6F%67%69%6e",
    "/./login",
    "//login",
    "/a/../login",
    "/a/%2e%2e/login",
    "/%C3%A9/../login",
    "/login;x=1",
    "/LOGIN",
    "/login/",
    "/x%2f..%2flogin",
    "/x/..%2Flogin",
    "/%5clogin",
    "/x/..;a/login",
    "/x/%2e%2e%2flogin",
    "http://other.example/login",
];

/// Checks that a client over its limit is denied whatever headers it sends, and that other clients
/// are not affected.
pub fn keeps_out_who_hammers(proxy: &Proxy, shows_limits: bool) {
    for remaining in (0..3).rev() {
        let answer = proxy.login(HAMMERING, "X-RateLimit-Action: quarantine\r\n");
        let body = "POST /login?next=/ allow user=alice";
        assert_eq!((answer.status, answer.body.as_str()), (200, body));
        let shown = answer
            .header("ratelimit")
            .is_some_and(|value| value.starts_with(&format!("\"login\";r={remaining};t=")));
        assert_eq!(shown, shows_limits, "{answer:?}");
    }
    for headers in FORGERIES {
        never_passes(headers, &proxy.login(HAMMERING, headers));
    }
    let long = format!("/login?{}", "a".repeat(8000));
    for target in SPELLINGS.iter().chain([&&*long]) {
        let answer = proxy.client(HAMMERING).request("POST", target, "", b"");
        never_passes(target, &answer);
    }
    let mut client = proxy.client(HAMMERING);
    assert_eq!(client.get("/login").status, 200, "another method");
    assert_eq!(proxy.login(POLITE, "").status, 200);
    let self_test = [(); 6].map(|()| proxy.client(POLITE).get("/earrrl-self-test").status);
    assert_eq!(self_test, [200, 200, 200, 200, 200, 429]);
    let of_host = ["shop.example", "other.example", "SHOP.example:8000"].map(|host| {
        let mut client = proxy.client(POLITE);
        client.send(format!("GET / HTTP/1.1\r\nHost: {host}\r\n\r\n").as_bytes());
        client.response().status
    });
    assert_eq!(of_host, [200, 200, 429]);
}

/// Checks that a request was denied by the limiter, or rejected by the proxy as malformed, or
/// redirected to the usual spelling (Caddy and Traefik).
fn never_passes(tried: &str, answer: &Response) {
    match answer.status {
        429 => is_denied(answer),
        301 | 307 | 308 | 400 | 403 | 404 | 405 => {}
        _ => panic!("{tried:?}: {answer:?}"),
    }
}

fn is_denied(answer: &Response) {
    assert_eq!(answer.status, 429, "{answer:?}");
    let wait: u64 = answer.header("retry-after").unwrap().parse().unwrap();
    assert!((900..=1000).contains(&wait), "{answer:?}");
    assert_eq!(
        answer.header("ratelimit"),
        Some(format!("\"login\";r=0;t={wait}").as_str())
    );
    let policy = answer.header("ratelimit-policy").unwrap();
    assert!(policy.starts_with("\"login\";q=3;"), "{answer:?}");
    assert_eq!(
        answer.header("content-type"),
        Some("application/problem+json")
    );
    assert_eq!(answer.json()["status"], 429);
}

/// Checks that bodies arrive complete and once, that the application's own errors are forwarded,
/// and that websockets work.
pub fn leaves_the_rest_alone(proxy: &Proxy) {
    let mut client = proxy.client(POLITE);
    let body = long_body();
    let answer = client.request("POST", "/upload", "", body.as_bytes());
    let expected = format!("POST /upload allow {}", checksum(body.as_bytes()));
    assert_eq!((answer.status, answer.body), (200, expected));
    let answer = client.get("/download");
    assert_eq!(
        (answer.status, answer.body),
        (200, format!("GET /download allow {body}"))
    );
    for status in [401, 403, 429, 500, 502, 503] {
        let path = format!("/status/{status}");
        let answer = client.request("POST", &path, "", b"once");
        assert_eq!(
            (answer.status, answer.body),
            (status, format!("POST {path} allow once"))
        );
    }
    let answer = proxy.client(POLITE).request("POST", "/crash", "", b"once");
    assert!((500..=504).contains(&answer.status), "{answer:?}");
    assert_eq!(proxy.crashes(), 1, "the application got it once");
    websockets_pass(proxy);
}

fn websockets_pass(proxy: &Proxy) {
    let mut stream = proxy.connect(POLITE);
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    let handshake = "GET /socket HTTP/1.1\r\nHost: a.example\r\nUpgrade: websocket\r\n\
                     Connection: Upgrade\r\nSec-WebSocket-Version: 13\r\n\
                     Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n";
    stream.write_all(handshake.as_bytes()).unwrap();
    let mut reader = BufReader::new(stream);
    let mut head = String::new();
    while !head.ends_with("\r\n\r\n") {
        assert!(reader.read_line(&mut head).unwrap() > 0, "{head}");
    }
    assert!(head.starts_with("HTTP/1.1 101 "), "{head}");
    reader.get_mut().write_all(b"to and fro").unwrap();
    let mut back = [0; 10];
    reader.read_exact(&mut back).unwrap();
    assert_eq!(&back, b"to and fro");
}

/// Kills and restarts the limiter while clients send POST requests; the application must answer
/// each.
pub fn stays_open_without_us(proxy: &Proxy, limiter: &mut Limiter) {
    let crowd = Crowd::start(proxy);
    crowd.serve_more();
    limiter.kill();
    crowd.serve_more();
    for _ in 0..5 {
        let answer = proxy.login(HAMMERING, "X-RateLimit-Action: quarantine\r\n");
        let body = "POST /login?next=/ none user=alice";
        assert_eq!((answer.status, answer.body.as_str()), (200, body));
    }
    limiter.serve();
    crowd.serve_more();
    crowd.join();
    limits_are_back(proxy);
}

/// Checks that a recipe with a change serves requests, and answers with `status` while the limiter is
/// gone.
pub fn stays_closed_without_us(
    recipe: &str,
    command: &mut Command,
    (deny_status, status): (u16, u16),
    change: impl Fn(&str) -> String,
) {
    let mut limiter = Limiter::start(deny_status);
    let proxy = Proxy::start_with(recipe, &limiter, command, |_, text| patient(&change(text)));
    assert_eq!(proxy.login(POLITE, "").status, 200);
    limiter.kill();
    for _ in 0..3 {
        let answer = proxy.login(POLITE, "");
        assert_eq!(answer.status, status, "{}", answer.body);
        assert!(!answer.body.contains("POST"), "{}", answer.body);
    }
}

/// Checks that the proxy, with its recipe's own timeouts, serves every request while the limiter
/// hangs.
pub fn stays_open_while_we_hang(proxy: &Proxy, limiter: &Limiter) {
    until("limits are enforced", || {
        proxy.login(HAMMERING, "").status == 429
    });
    limiter.suspend();
    for _ in 0..5 {
        let stream = proxy.connect(HAMMERING);
        // This is much longer than the recipes wait, and shorter than the proxies' defaults.
        stream
            .set_read_timeout(Some(Duration::from_secs(15)))
            .unwrap();
        let answer = Client::over(stream).request("POST", "/login", "", b"");
        assert_eq!((answer.status, &*answer.body), (200, "POST /login none "));
    }
    limiter.resume();
    limits_are_back(proxy);
}

const LOGIN: &str = "[[rule]]\nname = \"login\"\nlimit = \"gcra 0.001/s burst=3\"\nkey = \"client\"\n\
                     match = { path = \"/login\", method = \"POST\" }\n";
const TOKEN: &str = "a-token-of-some-length";

/// Starts a limiter that demands a token, which no recipe has.
pub fn limiter_with_a_token() -> Limiter {
    Limiter::start_with(
        403,
        &format!("[server]\ncheck_token = \"{TOKEN}\"\n{LOGIN}"),
    )
}

/// Writes the token into a recipe, as its comment says.
pub fn with_the_token(text: &str) -> String {
    let token = "token: {headers: {customRequestHeaders: {Authorization: \"Bearer …\"}}}";
    let text = text
        .replace("middlewares: [open]", "middlewares: [open, token]")
        .replace("    open:\n", &format!("    {token}\n    open:\n"));
    patient(&text)
        .replace("# Where earrrl has a check_token: proxy_set", "proxy_set")
        .replace("# Where earrrl has a check_token: header_up", "header_up")
        .replace("# initial_metadata", "initial_metadata")
        .replace(
            "local authorization = nil",
            "local authorization = \"Bearer …\"",
        )
        .replace('…', TOKEN)
}

/// Checks that the proxy sends its own token, whatever token a client sends. A token that the limiter refuses
/// turns limits off.
pub fn keeps_its_own_token(proxy: &Proxy) {
    let headers = "Authorization: Bearer of-a-client\r\n";
    let seen = [(); 4].map(|()| proxy.login(HAMMERING, headers).status);
    assert_eq!(seen[..3], [200; 3]);
    assert!([403, 429].contains(&seen[3]), "{seen:?}");
}

/// Checks that a site is served while its proxy has a wrong token.
pub fn serves_with_a_wrong_token(proxy: &Proxy) {
    let answer = proxy.login(HAMMERING, "X-RateLimit-Action: quarantine\r\n");
    assert_eq!(
        (answer.status, &*answer.body),
        (200, "POST /login?next=/ none user=alice")
    );
    assert_eq!(answer.header("www-authenticate"), None);
}

/// Clients that send POST requests without a pause and expect the application to answer each.
struct Crowd {
    over: Arc<AtomicBool>,
    served: Arc<AtomicU32>,
    threads: Vec<JoinHandle<()>>,
}

impl Crowd {
    fn start(proxy: &Proxy) -> Self {
        let mut crowd = Self {
            over: Arc::default(),
            served: Arc::default(),
            threads: Vec::new(),
        };
        for number in 10..14 {
            let address = proxy.address;
            let over = Arc::clone(&crowd.over);
            let served = Arc::clone(&crowd.served);
            crowd.threads.push(thread::spawn(move || {
                let mut kept = None;
                while !over.load(Relaxed) {
                    let mut client = kept.take().unwrap_or_else(|| client(address, number));
                    let answer = client.request("POST", "/other", "", b"a body");
                    let head = "POST /other ";
                    let body = " a body";
                    let whole = answer.body.starts_with(head) && answer.body.ends_with(body);
                    assert!(answer.status == 200 && whole, "{answer:?}");
                    served.fetch_add(1, Relaxed);
                    let ends = answer
                        .header("connection")
                        .is_some_and(|value| value == "close");
                    kept = (!ends).then_some(client);
                }
            }));
        }
        crowd
    }

    fn serve_more(&self) {
        let goal = self.served.load(Relaxed) + 200;
        until("more posts are served", || {
            self.served.load(Relaxed) >= goal
        });
    }

    /// Waits for the clients, and fails if one of them failed.
    fn join(self) {
        self.over.store(true, Relaxed);
        self.threads
            .into_iter()
            .for_each(|thread| thread.join().unwrap());
    }
}

pub fn limits_are_back(proxy: &Proxy) {
    until("it is denied again", || {
        proxy.login(HAMMERING, "").status == 429
    });
    assert_eq!(proxy.client(POLITE).get("/").status, 200);
}
