//! Tests what the clients of a real Envoy notice of reloads, certificate changes, restarts and
//! crashes, under load.
//!
//! The limit is zero, so a request that passes means that Envoy had no answer in time. The number
//! of these is printed. With `EARRRL_LONG=1` Envoy waits for 20 ms, its default, and every change
//! happens twenty times.
#![allow(clippy::unwrap_used, clippy::panic, clippy::print_stdout)]

use std::net::{SocketAddr, TcpListener};
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::thread;
use std::time::{Duration, Instant};

use crate::support;
use crate::support::certificates::{Authority, shown};
use crate::support::envoy::Envoy;
use crate::support::process::{BINARY, Process};
use crate::support::until;
use rustix::process::Signal;

/// The number of clients, which send the next request as soon as they have an answer.
const CLIENTS: usize = 4;
/// The number of requests between two changes.
const BETWEEN: u64 = 1000;

/// The answers that clients received since the last call of `look`.
#[derive(Default)]
struct Load {
    stop: AtomicBool,
    denied: AtomicU64,
    unlimited: AtomicU64,
    longest: AtomicU64,
}

impl Load {
    fn ask(&self, proxy: SocketAddr) {
        let mut client = support::http::Client::connect(proxy);
        while !self.stop.load(Relaxed) {
            let started = Instant::now();
            let answer = client.request("GET", "/", "x-user: mallory\r\n", b"");
            self.longest
                .fetch_max(started.elapsed().as_micros() as u64, Relaxed);
            match answer.status {
                429 => self.denied.fetch_add(1, Relaxed),
                200 => self.unlimited.fetch_add(1, Relaxed),
                _ => panic!("{answer:?}"),
            };
        }
    }

    /// Waits until the limit holds again, and returns how many requests passed since the last call.
    fn look(&self, what: &str, timeout: Duration) -> u64 {
        let before = self.denied.load(Relaxed);
        until("requests are denied", || {
            self.denied.load(Relaxed) >= before + BETWEEN
        });
        let [unlimited, denied] =
            [&self.unlimited, &self.denied].map(|count| count.swap(0, Relaxed));
        let longest = Duration::from_micros(self.longest.swap(0, Relaxed));
        println!(
            "{what}: {unlimited} of {} requests unlimited, the longest took {longest:.1?}",
            unlimited + denied
        );
        // A busy machine may add some delay, but no request may wait for an answer that never
        // comes.
        assert!(
            longest < timeout + Duration::from_secs(5),
            "{what}: {longest:?}"
        );
        unlimited
    }
}

/// The settings with which a server is started.
struct Setup {
    folder: tempfile::TempDir,
    authority: Authority,
    listener: TcpListener,
}

impl Setup {
    fn new() -> Self {
        let authority = Authority::new("ours");
        authority.issue("server", &["localhost"]);
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let setup = Self {
            folder: tempfile::tempdir().unwrap(),
            authority,
            listener,
        };
        setup.write_descriptors(0);
        // The client reconnects every second, and then uses the certificate of that time.
        let table = setup.authority.table("");
        let config = format!("[server]\nmax_connection_age = \"1s\"\n{table}");
        std::fs::write(setup.path("earrrl.toml"), config).unwrap();
        setup
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Writes a different descriptor tree each time; all its limits are zero.
    fn write_descriptors(&self, nth: usize) {
        let limit = "rate_limit: {unit: minute, requests_per_unit: 0}";
        let text = format!(
            "domain: shop\ndescriptors:\n  - key: user\n    {limit}\n  - key: user\n    value: u{nth}\n    {limit}\n"
        );
        let next = self.path("next");
        std::fs::write(&next, text).unwrap();
        std::fs::rename(next, self.path("shop.yaml")).unwrap();
    }

    /// Starts a server on the listener, which outlives it.
    fn serve(&self) -> Process {
        let script =
            "exec 3<&0; export LISTEN_PID=$$ LISTEN_FDS=1 LISTEN_FDNAMES=grpc; exec \"$@\"";
        let mut shell = Command::new("sh");
        shell.args(["-c", script, "sh", BINARY, "serve", "--config"]);
        shell
            .arg(self.path("earrrl.toml"))
            .arg("--envoy-config")
            .arg(self.path("shop.yaml"));
        shell.stdin(OwnedFd::from(self.listener.try_clone().unwrap()));
        Process::spawn(&mut shell)
    }

    fn envoy(&self, timeout: Duration) -> Envoy {
        let ca = shown(&self.authority.path("ca.pem"));
        let context =
            "type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.UpstreamTlsContext";
        let tls = format!(
            "    - name: ratelimit\n      transport_socket:\n        name: envoy.transport_sockets.tls\n        \
             typed_config:\n          \"@type\": {context}\n          sni: localhost\n          \
             common_tls_context: {{validation_context: {{trusted_ca: {{filename: \"{ca}\"}}}}}}\n"
        );
        Envoy::start_with(self.listener.local_addr().unwrap(), |text| {
            text.replacen("    - name: ratelimit\n", &tls, 1)
                .replace(
                    "timeout: 30s",
                    &format!("timeout: {}s", timeout.as_secs_f64()),
                )
                .replace("failure_mode_deny: true", "failure_mode_deny: false")
        })
    }
}

#[test]
fn few_requests_pass_without_a_limit() {
    let long = std::env::var_os("EARRRL_LONG").is_some();
    let (rounds, timeout) = if long {
        (20, Duration::from_millis(20))
    } else {
        (1, Duration::from_secs(5))
    };
    let setup = Setup::new();
    let mut server = setup.serve();
    let envoy = setup.envoy(timeout);
    let load = Load::default();
    thread::scope(|scope| {
        let _stop = Stop(&load.stop);
        for _ in 0..CLIENTS {
            scope.spawn(|| load.ask(envoy.proxy));
        }
        load.look("at first", timeout);
        let mut without_restart = load.look("nothing changes", timeout);
        for round in 1..=rounds {
            setup.write_descriptors(round);
            server.signal(Signal::HUP);
            server.until_logged("reloaded");
            without_restart += load.look("reload", timeout);

            setup.authority.issue("server", &["localhost"]);
            server.until_logged("certificates reloaded");
            without_restart += load.look("other certificate", timeout);

            server.signal(Signal::TERM);
            assert!(server.child.wait().unwrap().success());
            server = setup.serve();
            load.look("restart", timeout);

            server.child.kill().unwrap();
            server.child.wait().unwrap();
            server = setup.serve();
            load.look("crash", timeout);
        }
        // Without `EARRRL_LONG` Envoy waits long enough for a busy machine; within 20 ms that
        // cannot be expected.
        assert!(long || without_restart == 0, "{without_restart}");
    });
}

/// Ends the load when dropped, also if a test fails.
struct Stop<'a>(&'a AtomicBool);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Relaxed);
    }
}
