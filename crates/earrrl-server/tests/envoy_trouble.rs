//! What a real Envoy's clients notice of reloads, certificates, restarts and crashes, under load.
//!
//! The limit is zero, so every request that passes was let through without a limit: Envoy had no answer
//! in time. How many those are is printed. With `EARRRL_LONG=1` Envoy waits for 20 ms, as it does by
//! default, and everything happens twenty times.
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

/// Clients that ask as fast as they are answered.
const CLIENTS: usize = 4;
/// Requests from one change to the next.
const BETWEEN: u64 = 1000;

/// What clients were answered since the last look.
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
            self.longest.fetch_max(started.elapsed().as_micros() as u64, Relaxed);
            match answer.status {
                429 => self.denied.fetch_add(1, Relaxed),
                200 => self.unlimited.fetch_add(1, Relaxed),
                _ => panic!("{answer:?}"),
            };
        }
    }

    /// Waits until the limit holds again, and tells how many passed since the last look.
    fn look(&self, what: &str, timeout: Duration) -> u64 {
        let before = self.denied.load(Relaxed);
        until("requests are denied", || self.denied.load(Relaxed) >= before + BETWEEN);
        let [unlimited, denied] =
            [&self.unlimited, &self.denied].map(|count| count.swap(0, Relaxed));
        let longest = Duration::from_micros(self.longest.swap(0, Relaxed));
        println!(
            "{what}: {unlimited} of {} requests unlimited, the longest took {longest:.1?}",
            unlimited + denied
        );
        // What the machine does besides may take its time, but nothing waits for an answer that never comes.
        assert!(longest < timeout + Duration::from_secs(5), "{what}: {longest:?}");
        unlimited
    }
}

/// What a server is started with.
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
        let setup = Self { folder: tempfile::tempdir().unwrap(), authority, listener };
        setup.write_descriptors(0);
        // Every second the client connects anew, by the certificate of then.
        let table = setup.authority.table("");
        let config = format!("[server]\nmax_connection_age = \"1s\"\n{table}");
        std::fs::write(setup.path("earrrl.toml"), config).unwrap();
        setup
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// A tree that is another one each time; the limit is zero in all.
    fn write_descriptors(&self, nth: usize) {
        let limit = "rate_limit: {unit: minute, requests_per_unit: 0}";
        let text = format!(
            "domain: shop\ndescriptors:\n  - key: user\n    {limit}\n  - key: user\n    value: u{nth}\n    {limit}\n"
        );
        let next = self.path("next");
        std::fs::write(&next, text).unwrap();
        std::fs::rename(next, self.path("shop.yaml")).unwrap();
    }

    /// A server on the listener, which outlives it.
    fn serve(&self) -> Process {
        let script =
            "exec 3<&0; export LISTEN_PID=$$ LISTEN_FDS=1 LISTEN_FDNAMES=grpc; exec \"$@\"";
        let mut shell = Command::new("sh");
        shell.args(["-c", script, "sh", BINARY, "serve", "--config"]);
        shell.arg(self.path("earrrl.toml")).arg("--envoy-config").arg(self.path("shop.yaml"));
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
                .replace("timeout: 30s", &format!("timeout: {}s", timeout.as_secs_f64()))
                .replace("failure_mode_deny: true", "failure_mode_deny: false")
        })
    }
}

#[test]
fn few_requests_pass_without_a_limit() {
    let long = std::env::var_os("EARRRL_LONG").is_some();
    let (rounds, timeout) =
        if long { (20, Duration::from_millis(20)) } else { (1, Duration::from_secs(5)) };
    let setup = Setup::new();
    let mut server = setup.serve();
    let (envoy, load) = (setup.envoy(timeout), Load::default());
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
        // Within 20 ms a busy machine may not answer.
        assert!(long || without_restart == 0, "{without_restart}");
    });
}

/// Ends the load, also when a test fails.
struct Stop<'a>(&'a AtomicBool);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Relaxed);
    }
}
