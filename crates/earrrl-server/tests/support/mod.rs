//! A server in this process, and simple clients that expose every byte.
#![allow(
    dead_code,
    unreachable_pub,
    missing_docs,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic
)]

pub mod balancer;
pub mod certificates;
pub mod envoy;
pub mod grpc;
pub mod hostile;
pub mod http;
pub mod http2;
#[path = "../../../earrrl-redis/tests/support/ports.rs"]
pub mod ports;
pub mod process;
pub mod proxy;
pub mod redis;
pub mod resp;
#[path = "../../../earrrl-tower/tests/support/spellings.rs"]
pub mod spellings;
#[path = "../../../earrrl-redis/tests/support/tools.rs"]
pub mod tools;

use std::fs::{File, OpenOptions};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use earrrl::{Clock, ManualClock, Nanos, SystemClock};
use earrrl_server::config::Config;
use earrrl_server::config::listen::{ListenAddress, Protocol};
use earrrl_server::serve::run::Running;
use earrrl_server::server::Server;
use tokio::sync::oneshot;

/// The longest time that a test waits for an event.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// A server on free ports, which stops when this value is dropped.
pub struct TestServer {
    pub server: Arc<Server>,
    pub http: SocketAddr,
    pub resp: SocketAddr,
    pub admin: Option<SocketAddr>,
    pub grpc: SocketAddr,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl TestServer {
    /// Starts a server with this configuration and the system clock.
    pub fn start(config: &str) -> Self {
        Self::with_clock(parse(config), Arc::new(SystemClock::new()))
    }

    /// Starts a server with this configuration and a clock that stands at 1 800 000 000 s until the
    /// test moves it.
    pub fn manual(config: &str) -> (Self, Arc<ManualClock>) {
        let clock = Arc::new(ManualClock::new(Nanos::from_secs(1_800_000_000)));
        (Self::with_clock(parse(config), clock.clone()), clock)
    }

    pub fn with_clock(mut config: Config, clock: Arc<dyn Clock>) -> Self {
        let server = &mut config.server;
        for address in [&mut server.http, &mut server.resp, &mut server.grpc] {
            *address = Some("127.0.0.1:0".parse().unwrap());
        }
        let (started, wait) = std::sync::mpsc::channel();
        let (stop, stopped) = oneshot::channel();
        let thread = thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build();
            runtime.unwrap().block_on(async {
                let running = Running::start(&config, clock).unwrap();
                let addresses = Protocol::ALL
                    .map(|protocol| running.address(protocol).and_then(ListenAddress::tcp));
                started
                    .send((Arc::clone(&running.server), addresses))
                    .unwrap();
                running.until(async { drop(stopped.await) }).await.unwrap();
            });
        });
        let (server, [http, resp, admin, grpc]) = wait.recv().unwrap();
        let http = http.unwrap();
        let resp = resp.unwrap();
        let grpc = grpc.unwrap();
        Self {
            server,
            http,
            resp,
            grpc,
            admin,
            stop: Some(stop),
            thread: Some(thread),
        }
    }

    /// Starts a server with the descriptors of `testdata/envoy/shop.yaml` and a clock that stands
    /// still.
    pub fn with_descriptors(config: &str) -> Self {
        let mut config = parse(config);
        config.envoy.files = vec![testdata("envoy/shop.yaml")];
        config.envoy.load().unwrap();
        Self::with_clock(
            config,
            Arc::new(ManualClock::new(Nanos::from_secs(1_800_000_000))),
        )
    }

    /// Requests the server to stop.
    pub fn stop(&mut self) {
        drop(self.stop.take());
    }

    /// Waits until the server has stopped.
    pub fn join(mut self) {
        self.stop();
        self.thread.take().unwrap().join().unwrap();
    }

    pub fn http(&self) -> http::Client {
        http::Client::connect(self.http)
    }

    pub fn resp(&self) -> resp::Client {
        resp::Client::connect(self.resp)
    }
}

impl Drop for TestServer {
    fn drop(&mut self) {
        self.stop();
    }
}

/// Parses a configuration, and sets small tables and a single thread for tests.
pub fn parse(config: &str) -> Config {
    let mut config = Config::parse(config, "test").unwrap();
    config.capacity = config.capacity.min(10_000);
    config.server.threads = config.server.threads.or(Some(1));
    config
}

pub fn testdata(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../../testdata")
        .join(name)
}

/// Returns the path of a program that `scripts/setup` installs. A missing one is an error, never a
/// skipped test.
pub fn installed(name: &str) -> PathBuf {
    let path = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../../target/tools")
        .join(name);
    assert!(
        path.exists(),
        "{} is missing: run scripts/setup",
        path.display()
    );
    path
}

/// Waits until a condition holds.
pub fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let started = Instant::now();
    while !holds() {
        assert!(started.elapsed() < PATIENCE, "waited in vain until {what}");
        thread::sleep(Duration::from_millis(5));
    }
}

/// Connects with small segments and a small receive buffer. With the 64 KiB segments of the loopback
/// interface, the kernel would take more than 2 MB from a server whose client does not read.
pub fn connect_narrow(address: SocketAddr) -> TcpStream {
    let socket = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).unwrap();
    socket.set_recv_buffer_size(4096).unwrap();
    socket.set_tcp_mss(536).unwrap();
    socket.connect(&address.into()).unwrap();
    socket.into()
}

pub fn connect(address: SocketAddr) -> TcpStream {
    let stream = TcpStream::connect(address).unwrap();
    stream.set_nodelay(true).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream
}

/// Creates a named pipe, at which a reader blocks until it is opened for writing.
pub fn make_pipe(file: &Path) {
    assert!(Command::new("mkfifo").arg(file).status().unwrap().success());
}

/// Returns the writing end of a named pipe, once a reader has opened it.
pub fn pipe_that_is_read(file: &Path) -> File {
    const O_NONBLOCK: i32 = 0o4000;
    let mut pipe = None;
    until("the pipe is read", || {
        let opened = OpenOptions::new()
            .write(true)
            .custom_flags(O_NONBLOCK)
            .open(file);
        pipe = opened.ok();
        pipe.is_some()
    });
    pipe.unwrap()
}
