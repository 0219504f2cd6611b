//! Tests the binary as a process: its memory, descriptors, signals and command line.
#![allow(clippy::unwrap_used, clippy::panic)]

use std::fs::{File, OpenOptions};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use crate::support::certificates::{Authority, shake};
use crate::support::process::{BINARY, Process};
use crate::support::resp::{Client, Reply, encode};
use crate::support::{connect, http, make_pipe, pipe_that_is_read, until};
use earrrl_server::serve::handover;
use rustix::process::{Pid, Resource, Rlimit, Signal, getrlimit, kill_process, prlimit};

fn run(arguments: &[&str]) -> Output {
    Command::new(BINARY).args(arguments).output().unwrap()
}

fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).unwrap()
}

#[test]
fn idle_connections_take_four_kilobytes_at_most() {
    let room = handover::raise().unwrap().unwrap_or(u64::MAX);
    let count = room.saturating_sub(200).min(10_000);
    let process = Process::start(&["--capacity", "1000"]);
    let mut warm: Vec<Client> = (0..100).map(|_| Client::connect(process.resp)).collect();
    warm.iter_mut()
        .for_each(|client| drop(client.line("CL.THROTTLE k 1 1 1")));
    let before = process.resident_kib();
    let idle: Vec<TcpStream> = (0..count)
        .map(|_| {
            let mut stream = connect(process.resp);
            stream
                .write_all(&encode(&[b"CL.THROTTLE", b"k", b"1", b"1", b"1"]))
                .unwrap();
            stream
        })
        .collect();
    // Each connection has been served once and is idle now.
    for mut stream in &idle {
        stream.read_exact(&mut [0; 20]).unwrap();
    }
    let each = (process.resident_kib() - before) * 1024 / count;
    assert!(each <= 4096, "{each} bytes a connection");
    assert_eq!(
        Client::connect(process.resp).line("PING"),
        Reply::Simple("PONG".into())
    );
}

#[test]
fn out_of_descriptors_is_survived() {
    let mut shell = Command::new("sh");
    shell.args(["-c", "ulimit -n 40; exec \"$@\"", "sh", BINARY, "serve"]);
    let mut process = Process::spawn(&mut shell);
    let mut crowd: Vec<Client> = (0..100).map(|_| Client::connect(process.resp)).collect();
    process.until_logged("can't accept now");
    // Connections that were accepted are served.
    assert_eq!(crowd[0].line("PING"), Reply::Simple("PONG".into()));
    // When accepted connections close, all waiting ones are accepted in turn.
    while let Some(mut client) = (!crowd.is_empty()).then(|| crowd.remove(0)) {
        assert_eq!(client.line("PING"), Reply::Simple("PONG".into()));
    }
    assert_eq!(
        http::Client::connect(process.http).get("/healthz").status,
        200
    );
    // The log had one line about it, although every attempt to accept failed for a while.
    process.signal(Signal::TERM);
    loop {
        let line = process.until_logged("");
        let message = line["fields"]["message"].as_str().unwrap();
        assert!(!message.starts_with("can't accept now"), "{message}");
        if message == "stopped" {
            break;
        }
    }
}

#[test]
fn the_start_warns_of_what_looks_right_and_does_nothing() {
    let mut shell = Command::new("sh");
    shell.args(["-c", "ulimit -n 300; exec \"$@\"", "sh", BINARY, "serve"]);
    shell
        .env("EARRRL_ALOW_REMOTE", "1")
        .env("EARRRL_SERVICE_HOST", "10.0.0.1")
        .env("EARRRL_PORT_8080_TCP", "tcp://10.0.0.1:8080");
    let mut process =
        Process::begin(shell.args(["--http", "127.0.0.1:0", "--resp", "127.0.0.1:0"]));
    for expected in [
        "the environment variable EARRRL_ALOW_REMOTE sets no option; did you mean EARRRL_ALLOW_REMOTE?",
        "max_connections = 16384 is more than the limit of 300 open files allows: raise the limit to 16484",
    ] {
        let warning = process.until_warned();
        let message = warning["fields"]["message"].as_str().unwrap();
        assert!(message.starts_with(expected), "{message}");
    }
    process.until_serving();
}

/// systemd learns that the server accepts, that a reload begins and ends, and that it stops.
#[test]
fn systemd_learns_of_the_start_of_reloads_and_of_the_end() {
    let folder = tempfile::tempdir().unwrap();
    let socket = std::os::unix::net::UnixDatagram::bind(folder.path().join("notify")).unwrap();
    let config = folder.path().join("limits.toml");
    let rule = "[[rule]]\nname = \"a\"\nlimit = \"gcra 1/s burst=9\"\n";
    std::fs::write(&config, rule).unwrap();
    let mut command = Command::new(BINARY);
    command
        .args(["serve", "--config"])
        .arg(&config)
        .env("NOTIFY_SOCKET", folder.path().join("notify"));
    let process = Process::spawn(&mut command);
    let received = || {
        let mut bytes = [0; 1000];
        let length = socket.recv(&mut bytes).unwrap();
        text(&bytes[..length]).to_owned()
    };
    assert_eq!(received(), "READY=1\n");
    // A refused reload has an end, too: the rules before stay in force.
    for text in [rule, "[[rule]]\n"] {
        std::fs::write(&config, text).unwrap();
        process.signal(Signal::HUP);
        let reloading = received();
        let at = reloading
            .strip_prefix("RELOADING=1\nMONOTONIC_USEC=")
            .unwrap();
        assert!(at.trim_end().parse::<u64>().is_ok(), "{reloading}");
        assert_eq!(received(), "READY=1\n");
    }
    process.signal(Signal::TERM);
    assert_eq!(received(), "STOPPING=1\n");
}

/// Returns the value of a metric of the server at `http`.
fn metric<S: Read + Write>(mut client: http::Client<S>, name: &str) -> u64 {
    let text = client.get("/metrics").body;
    let line = text
        .lines()
        .find(|line| line.split(' ').next() == Some(name));
    line.unwrap_or_else(|| panic!("no {name} in {text}"))
        .rsplit(' ')
        .next()
        .unwrap()
        .parse()
        .unwrap()
}

/// Opens connections until the process has no descriptors left, so that it logs an error, and
/// closes them again.
fn exhaust_descriptors(resp: SocketAddr) {
    let mut crowd: Vec<Client> = (0..100).map(|_| Client::connect(resp)).collect();
    assert_eq!(crowd[0].line("PING"), Reply::Simple("PONG".into()));
    while let Some(mut client) = (!crowd.is_empty()).then(|| crowd.remove(0)) {
        assert_eq!(client.line("PING"), Reply::Simple("PONG".into()));
    }
}

#[test]
fn a_log_that_nobody_reads_ends_nothing() {
    let mut shell = Command::new("sh");
    shell.args(["-c", "ulimit -n 40; exec \"$@\"", "sh", BINARY, "serve"]);
    let mut process = Process::spawn(&mut shell);
    process.close_log();
    exhaust_descriptors(process.resp);
    assert_eq!(
        Client::connect(process.resp).line("PING"),
        Reply::Simple("PONG".into())
    );
    until("lines are lost", || {
        metric(
            http::Client::connect(process.http),
            "earrrl_log_lines_lost_total",
        ) > 0
    });
    process.signal(Signal::TERM);
    assert!(process.child.wait().unwrap().success());
}

#[test]
fn other_signals_end_nothing() {
    let process = Process::start(&[]);
    for signal in [Signal::USR1, Signal::USR2, Signal::QUIT, Signal::ALARM] {
        process.signal(signal);
        assert_eq!(
            Client::connect(process.resp).line("PING"),
            Reply::Simple("PONG".into())
        );
    }
}

/// After one signal, clients and probes have the configured time to disconnect; a second signal
/// ends this wait.
#[test]
fn a_second_signal_ends_the_wait_of_the_first() {
    let mut process = serve_with("shutdown_delay = \"1h\"\n");
    process.signal(Signal::TERM);
    process.until_logged("SIGTERM: stopping");
    process.signal(Signal::TERM);
    assert!(process.child.wait().unwrap().success());
}

#[test]
fn a_client_that_has_quit_does_not_hold_up_a_stop() {
    let mut process = serve_with("shutdown_timeout = \"1h\"\nrequest_timeout = \"1h\"\n");
    let mut client = Client::connect(process.resp);
    assert_eq!(client.line("QUIT"), Reply::Simple("OK".into()));
    process.signal(Signal::TERM);
    assert!(process.child.wait().unwrap().success());
}

#[test]
fn the_warnings_of_config_check_are_logged() {
    let mut process =
        serve_with("\n[[rule]]\nname = \"slots\"\nlimit = \"concurrent 5 timeout=60s\"\n");
    process.until_logged("slots: concurrent 5 timeout=60s applies to reservations alone");
}

/// A key can contain the value of a header, which may be a credential.
#[test]
fn observed_keys_are_not_logged() {
    let mut process = serve_with(
        "\n[[rule]]\nname = \"api\"\nlimit = \"gcra 1/h burst=1\"\naction = \"observe\"\n",
    );
    let mut client = Client::connect(process.resp);
    for _ in 0..2 {
        client.line("EARRRL.CHECK api secret-token");
    }
    let line = process.until_logged("over the limit").to_string();
    assert!(
        line.contains("\"client\"") && !line.contains("secret-token"),
        "{line}"
    );
}

/// Starts a server with these settings in `[server]`.
fn serve_with(settings: &str) -> Process {
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), format!("[server]\n{settings}")).unwrap();
    Process::start(&["--config", file.path().to_str().unwrap()])
}

/// A server that logs to a file, and whose rule is changed by reloads. It listens on a Unix socket,
/// since a port that is free now may belong to another test when the server starts.
struct Reloading {
    process: Killed,
    folder: tempfile::TempDir,
    burst: u32,
}

impl Reloading {
    fn start(log: File) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("limits.toml");
        std::fs::write(&file, rule_file(5)).unwrap();
        let http = format!("unix:{}", folder.path().join("http").display());
        let mut command = Command::new(BINARY);
        command.args(["serve", "--log-json", "--config", file.to_str().unwrap()]);
        command.args(["--http", &http, "--resp", "127.0.0.1:0"]);
        let process = Killed(command.stderr(log).spawn().unwrap());
        let server = Self {
            process,
            folder,
            burst: 5,
        };
        until("it serves", || UnixStream::connect(server.socket()).is_ok());
        server
    }

    fn socket(&self) -> PathBuf {
        self.folder.path().join("http")
    }

    fn client(&self) -> http::Client<UnixStream> {
        http::Client::over(UnixStream::connect(self.socket()).unwrap())
    }

    fn pid(&self) -> Pid {
        Pid::from_child(&self.process.0)
    }

    /// Changes the rule, and waits until the change is in force.
    fn reload(&mut self) {
        self.burst += 1;
        std::fs::write(
            self.folder.path().join("limits.toml"),
            rule_file(self.burst),
        )
        .unwrap();
        kill_process(self.pid(), Signal::HUP).unwrap();
        until("it has reloaded", || {
            let rules = self.client().get("/v1/rules").json();
            rules["rules"][0]["quota"] == self.burst
        });
    }

    fn lost(&self) -> u64 {
        metric(self.client(), "earrrl_log_lines_lost_total")
    }
}

#[test]
fn a_full_disk_stops_no_reload() {
    let mut server = Reloading::start(OpenOptions::new().write(true).open("/dev/full").unwrap());
    (0..3).for_each(|_| server.reload());
    until("its lines are lost", || server.lost() >= 3);
}

#[test]
fn names_in_the_log_are_visible_ascii() {
    let file = tempfile::NamedTempFile::new().unwrap();
    let rule = "[[rule]]\nname = \"dry\"\nlimit = \"gcra 1/h burst=1\"\nkey = \"user\"\naction = \"observe\"\n";
    std::fs::write(file.path(), rule).unwrap();
    let mut command = Command::new(BINARY);
    command
        .args(["serve", "--config", file.path().to_str().unwrap()])
        .env("RUST_LOG", "debug");
    let mut process = Process::spawn(&mut command);
    let mut client = crate::support::resp::Client::connect(process.resp);
    let key = "<b>\u{202e}\x1b[2J\n\u{7f}".as_bytes();
    for _ in 0..2 {
        client.call(&[b"EARRRL.CHECK", b"dry", key]);
    }
    let line = process.until_logged("the key of a client");
    assert_eq!(line["fields"]["key"], r"<b>\xe2\x80\xae\x1b[2J\n\x7f");
}

/// A limit on the size of files simulates a full disk.
#[test]
fn a_log_goes_on_once_its_disk_has_room_again() {
    let folder = tempfile::tempdir().unwrap();
    let log = folder.path().join("log");
    let mut server = Reloading::start(
        OpenOptions::new()
            .create(true)
            .append(true)
            .open(&log)
            .unwrap(),
    );
    let written = || std::fs::read_to_string(&log).unwrap();
    let give_room = |server: &Reloading, current| {
        let limit = Rlimit {
            current,
            ..getrlimit(Resource::Fsize)
        };
        prlimit(Some(server.pid()), Resource::Fsize, limit).unwrap();
    };
    let is_json = |line: &&str| serde_json::from_str::<serde_json::Value>(line).is_ok();
    for round in 1..=3 {
        // There may be room for the first part of a line.
        give_room(&server, Some(written().len() as u64 + 30));
        let lost = server.lost();
        (0..3).for_each(|_| server.reload());
        until("lines are lost", || server.lost() >= lost + 3);
        let lost = server.lost();
        let whole = written().lines().filter(is_json).count();
        give_room(&server, None);
        server.reload();
        until("a line is written", || {
            written().lines().filter(is_json).count() > whole
        });
        assert_eq!(server.lost(), lost);
        let torn = written().lines().filter(|line| !is_json(line)).count();
        assert!(torn <= round, "{}", written());
    }
}

/// A process that is killed when this value is dropped.
struct Killed(std::process::Child);

impl Drop for Killed {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn rules_and_addresses_come_from_the_command_line_and_the_environment() {
    let mut command = Command::new(BINARY);
    command
        .args(["serve", "--rule", "login=gcra 1/s burst=7"])
        .env("EARRRL_CAPACITY", "1000");
    command.env("EARRRL_ALLOW_INLINE_RULES", "1");
    let process = Process::spawn(&mut command);
    let mut client = http::Client::connect(process.http);
    let rules = client.get("/v1/rules").json();
    assert_eq!(
        (&rules["rules"][0]["name"], &rules["rules"][0]["quota"]),
        (&"login".into(), &7.into())
    );
    let inline = client.post("/v1/check", r#"{"rule":"gcra 1/s burst=9","key":"k"}"#);
    assert_eq!(inline.json()["remaining"], 8);

    let server = format!("http://localhost:{}", process.http.port());
    let mut check = Command::new(BINARY);
    let output = check
        .args(["check", "login", "alice"])
        .env("EARRRL_SERVER", &server)
        .output();
    assert_eq!(output.unwrap().status.code(), Some(0));
    for (arguments, expected) in [
        (["serve", "--rule", "gcra 1/s"], "burst"),
        (["serve", "--http", "localhost"], "\"localhost:8080\""),
        (["serve", "--redis", "localhost"], "redis://"),
    ] {
        let output = run(&arguments);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}");
        assert!(
            text(&output.stderr).contains(expected),
            "{}",
            text(&output.stderr)
        );
    }
}

/// Starts clients that send the next request when they have an answer, until the server announces
/// its end. Each thread returns the number of its answered requests.
fn hammer(address: SocketAddr, stop: &Arc<AtomicBool>) -> Vec<std::thread::JoinHandle<u64>> {
    let client = |number: u64| {
        let stop = Arc::clone(stop);
        let request = encode(&[b"EARRRL.CHECK", b"default", format!("c{number}").as_bytes()]);
        move || {
            let mut stream = connect(address);
            let mut answered = 0;
            let mut answer = [0; 512];
            while !stop.load(Relaxed) {
                if stream.write_all(&request).is_err() {
                    break;
                }
                match stream.read(&mut answer) {
                    Ok(1..) => answered += 1,
                    // The connection ended without a reset, so every answer has arrived.
                    Ok(0) => break,
                    Err(error) => panic!("{error}"),
                }
            }
            answered
        }
    };
    (0..8)
        .map(|number| std::thread::spawn(client(number)))
        .collect()
}

#[test]
fn sigterm_under_load_loses_no_answer() {
    let mut process = Process::start(&[]);
    let never = Arc::new(AtomicBool::new(false));
    let clients = hammer(process.resp, &never);
    // The last count is read over HTTP, on a connection that the server closes after the answer.
    let mut observer = http::Client::connect(process.http);
    let counted = |observer: &mut http::Client| -> u64 {
        let metrics = observer.get("/metrics").body;
        let of = |line: &&str| line.starts_with("earrrl_decisions_total");
        metrics
            .lines()
            .filter(of)
            .map(|line| line.rsplit(' ').next().unwrap().parse::<u64>().unwrap())
            .sum()
    };
    while counted(&mut observer) < 1000 {}
    process.signal(Signal::TERM);
    let answered: u64 = clients
        .into_iter()
        .map(|client| client.join().unwrap())
        .sum();
    assert!(answered >= 1000);
    assert!(process.child.wait().unwrap().success());
    let stopped = process.until_logged("stopped");
    assert_eq!(
        stopped["fields"]["decisions"].as_u64(),
        Some(answered),
        "{stopped}"
    );
}

/// Starts a server that inherits this listener, as systemd does it.
fn activated(listener: &std::net::TcpListener) -> Process {
    let mut shell = Command::new("sh");
    let script = "exec 3<&0; export LISTEN_PID=$$ LISTEN_FDS=1 LISTEN_FDNAMES=resp; exec \"$@\"";
    shell.args(["-c", script, "sh", BINARY, "serve"]);
    shell.stdin(std::os::fd::OwnedFd::from(listener.try_clone().unwrap()));
    Process::spawn(&mut shell)
}

#[test]
fn a_restart_by_socket_activation_refuses_nobody() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let mut first = activated(&listener);
    assert_eq!(first.resp, address);
    assert_eq!(
        Client::connect(address).line("PING"),
        Reply::Simple("PONG".into())
    );
    first.signal(Signal::TERM);
    assert!(first.child.wait().unwrap().success());
    // No server is running now; the client waits in the backlog for the next one.
    let mut between = Client::connect(address);
    let _second = activated(&listener);
    assert_eq!(between.line("PING"), Reply::Simple("PONG".into()));
}

#[test]
fn idle_clients_hold_up_no_restart() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("limits.toml");
    // The timeouts are so long that the test would fail if stopping waited for one of them.
    std::fs::write(&file, "rules = \"none\"\n[server]\nshutdown_timeout = \"1h\"\nrequest_timeout = \"1h\"\nidle_timeout = \"1h\"\n").unwrap();
    let mut process = Process::start(&["--config", file.to_str().unwrap()]);
    let mut pool: Vec<Client> = (0..100).map(|_| Client::connect(process.resp)).collect();
    pool.iter_mut().for_each(|client| drop(client.line("PING")));
    let mut web: Vec<_> = (0..20)
        .map(|_| http::Client::connect(process.http))
        .collect();
    web.iter_mut()
        .take(10)
        .for_each(|client| drop(client.get("/healthz")));
    process.signal(Signal::TERM);
    until("it has stopped", || {
        process.child.try_wait().unwrap().is_some()
    });
    assert!(process.child.wait().unwrap().success());
    assert!(pool.iter_mut().all(|client| client.rest().is_empty()));
}

#[test]
fn garbage_under_load_leaves_the_rules_in_force() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("limits.toml");
    let write = |text: &str| std::fs::write(&file, text).unwrap();
    write(&rule_file(5));
    let mut process = Process::start(&["--config", file.to_str().unwrap()]);
    let stop = Arc::new(AtomicBool::new(false));
    let clients = hammer(process.resp, &stop);
    let mut observer = http::Client::connect(process.http);

    write("[[rule]]\nname = \"default\"\nlimt = \"");
    process.signal(Signal::HUP);
    process.until_logged("not reloaded");
    let ready = observer.get("/readyz");
    assert_eq!(ready.status, 200);
    assert!(
        ready.json()["reload_error"]
            .as_str()
            .unwrap()
            .contains("limits.toml:3:")
    );
    assert_eq!(observer.get("/v1/rules").json()["rules"][0]["quota"], 5);

    // The server must notice the change of the file without a signal.
    write(&rule_file(77));
    process.until_logged("reloaded");
    assert_eq!(observer.get("/v1/rules").json()["rules"][0]["quota"], 77);
    assert_eq!(
        observer.get("/readyz").json()["reload_error"],
        serde_json::Value::Null
    );
    stop.store(true, Relaxed);
    let answered: u64 = clients
        .into_iter()
        .map(|client| client.join().unwrap())
        .sum();
    assert!(answered > 0);
}

fn rule_file(burst: u32) -> String {
    format!("[[rule]]\nname = \"default\"\nlimit = \"gcra 1/s burst={burst}\"\n")
}

#[test]
fn a_reload_refused_for_want_of_descriptors_is_tried_again() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("limits.toml");
    let authority = Authority::new("ours");
    authority.issue("server", &["localhost"]);
    let config = |burst| rule_file(burst) + &authority.table("listeners = [\"grpc\"]");
    std::fs::write(&file, config(5)).unwrap();
    let mut shell = Command::new("sh");
    shell
        .args([
            "-c",
            "ulimit -n 40; exec \"$@\"",
            "sh",
            BINARY,
            "serve",
            "--config",
        ])
        .arg(&file);
    let mut process = Process::spawn(&mut shell);
    let mut observer = http::Client::connect(process.http);
    assert_eq!(observer.get("/healthz").status, 200);
    let crowd: Vec<_> = (0..100).map(|_| connect(process.resp)).collect();
    process.until_logged("can't accept now");
    std::fs::write(&file, config(77)).unwrap();
    process.signal(Signal::HUP);
    let refused = process.until_logged("not reloaded");
    assert!(
        refused["fields"]["error"]
            .as_str()
            .unwrap()
            .contains("open files"),
        "{refused}"
    );
    assert_eq!(observer.get("/v1/rules").json()["rules"][0]["quota"], 5);
    authority.issue("server", &["localhost"]);
    process.until_logged("certificates not reloaded");
    // Once descriptors are free, the server must retry both reloads, without a signal or a new
    // change of the files.
    drop(crowd);
    let mut awaited = vec!["certificates reloaded", "reloaded"];
    while !awaited.is_empty() {
        let line = process.until_logged("");
        awaited.retain(|message| line["fields"]["message"] != *message);
    }
    assert_eq!(observer.get("/v1/rules").json()["rules"][0]["quota"], 77);
}

/// Files are given as systemd gives a unit those of `LoadCredential=`.
#[test]
fn tokens_and_keys_may_be_a_units_credentials() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("limits.toml");
    let authority = Authority::new("ours");
    authority.issue("server", &["localhost"]);
    let token = "check-token-0123456789";
    std::fs::write(authority.path("check-token"), token).unwrap();
    let config = "[server]\ncheck_token_file = \"$CREDENTIALS_DIRECTORY/check-token\"\n\
                  [server.tls]\ncert = \"$CREDENTIALS_DIRECTORY/server.pem\"\n\
                  key = \"$CREDENTIALS_DIRECTORY/server.key\"\nlisteners = [\"resp\"]\n";
    std::fs::write(&file, config.to_owned() + &rule_file(5)).unwrap();
    let mut command = Command::new(BINARY);
    command.args(["serve", "--config"]).arg(&file);
    let process = Process::spawn(command.env("CREDENTIALS_DIRECTORY", authority.folder.path()));
    let mut client = http::Client::connect(process.http);
    assert_eq!(client.get("/v1/rules").status, 401);
    client.token = Some(token.to_owned());
    assert_eq!(client.get("/v1/rules").status, 200);
    let client = authority.client(None, &[&rustls::version::TLS13], &[]);
    assert!(shake(&client, process.resp).is_ok());

    let mut check = Command::new(BINARY);
    let check = check
        .args(["config", "check"])
        .arg(&file)
        .env_remove("CREDENTIALS_DIRECTORY");
    let output = check.output().unwrap();
    let error = text(&output.stderr);
    assert!(
        error.contains(":2:20: check_token_file: CREDENTIALS_DIRECTORY is not set"),
        "{error}"
    );
    assert!(
        error.contains(":4:8: ") && error.contains(":5:7: "),
        "{error}"
    );
}

#[test]
fn a_hangup_before_it_serves_is_a_reload_after() {
    let folder = tempfile::tempdir().unwrap();
    let [file, next] = ["limits.toml", "next"].map(|name| folder.path().join(name));
    make_pipe(&file);
    let mut command = Command::new(BINARY);
    command.args([
        "serve",
        "--http",
        "127.0.0.1:0",
        "--resp",
        "127.0.0.1:0",
        "--config",
    ]);
    let mut process = Process::begin(command.arg(&file));
    let mut pipe = pipe_that_is_read(&file);
    process.signal(Signal::HUP);
    std::fs::write(&next, rule_file(77)).unwrap();
    std::fs::rename(&next, &file).unwrap();
    pipe.write_all(rule_file(5).as_bytes()).unwrap();
    drop(pipe);
    process.until_serving();
    process.until_logged("reloaded");
    let rules = http::Client::connect(process.http).get("/v1/rules").json();
    assert_eq!(rules["rules"][0]["quota"], 77);
}

#[test]
fn a_reload_that_never_ends_holds_up_no_stop() {
    let folder = tempfile::tempdir().unwrap();
    let [file, pipe] = ["limits.toml", "pipe"].map(|name| folder.path().join(name));
    std::fs::write(&file, rule_file(5)).unwrap();
    make_pipe(&pipe);
    let mut process = Process::start(&["--config", file.to_str().unwrap()]);
    std::fs::rename(&pipe, &file).unwrap();
    process.signal(Signal::HUP);
    let _pipe = pipe_that_is_read(&file);
    process.until_logged("a reload has taken 5 s and goes on");
    process.signal(Signal::TERM);
    until("it has stopped", || {
        process.child.try_wait().unwrap().is_some()
    });
    assert!(process.child.wait().unwrap().success());
}

#[test]
fn listeners_can_be_turned_off() {
    for (flag, other) in [("--http", "--resp"), ("--resp", "--http")] {
        let mut command = Command::new(BINARY);
        command.args(["serve", flag, "off", other, "127.0.0.1:0", "--log-json"]);
        let mut process = Killed(
            command
                .stderr(std::process::Stdio::piped())
                .spawn()
                .unwrap(),
        );
        let mut log = std::io::BufReader::new(process.0.stderr.take().unwrap());
        let mut line = String::new();
        std::io::BufRead::read_line(&mut log, &mut line).unwrap();
        let serving: serde_json::Value = serde_json::from_str(&line).unwrap();
        assert_eq!(serving["fields"][&flag[2..]], "off", "{line}");
        assert_ne!(serving["fields"][&other[2..]], "off", "{line}");
    }
    let output = run(&["serve", "--http", "of"]);
    assert!(
        text(&output.stderr).contains("or \"off\""),
        "{}",
        text(&output.stderr)
    );
}

#[test]
fn other_machines_are_not_served_unasked() {
    let output = run(&["serve", "--http", "0.0.0.0:0"]);
    assert_eq!(output.status.code(), Some(2));
    let error = text(&output.stderr);
    assert!(
        error.contains("--allow-remote") && error.lines().count() == 1,
        "{error}"
    );
}

#[test]
fn the_flags_and_addresses_of_other_servers_are_understood_or_get_a_hint() {
    for (arguments, hint) in [
        (
            &["serve", "-c", "/nowhere.toml"][..],
            "/nowhere.toml: No such file",
        ),
        (&["serve", "--http", "x"], "\"8080\" for this machine only"),
        (
            &["serve", "--port", "6379"],
            "'--port' found; --http 8080 or --resp 6380?",
        ),
        (
            &["serve", "--port=6379", "--http", "off"],
            "; --http 8080 or --resp 6380?",
        ),
        (
            &["serve", "limits.toml"],
            "did you mean --config limits.toml?",
        ),
        (
            &["start"],
            "unrecognized subcommand 'start'; did you mean `earrrl serve`?",
        ),
        (&["run"], "; did you mean `earrrl serve`?"),
        (
            &["serve", "--limit", "5/s"],
            "'--limit' found; did you mean --rule 'recent-average 1/s half-life=10s'?",
        ),
        (&["version"], "did you mean `earrrl --version`?"),
        (
            &["-c", "/nowhere.toml"],
            "a command comes first, as in `earrrl serve`",
        ),
        (
            &["serve", "--http", ":8080"],
            "\"8080\", is for this machine only",
        ),
        (&["server"], "did you mean `earrrl serve`?"),
        (&["serve", "--rule", "A b=gcra 1/s burst=5"], "name: `A b`"),
        (
            &["serve", "--rule", "a=gcra 1/s burst=0.5"],
            "cost: 1 can never pass",
        ),
        (
            &["serve", "--rule", "a=gcra 1/s burst=5;;b=gcra 1/s;"],
            "burst",
        ),
        (&["serve", "--rule", " ; "], "expected NAME=RULE"),
        (&["serve", "--capacity", "-1"], "'-1' for '--capacity <N>'"),
        (
            &["serve", "--http", "off", "--resp", "off"],
            "http and resp are off",
        ),
        (
            &[
                "serve",
                "--http",
                "127.0.0.1:46311",
                "--resp",
                "127.0.0.1:46311",
            ],
            "resp: http has this address",
        ),
        (
            &["serve", "--envoy-algorithm", "gcra"],
            "--envoy-algorithm: only with descriptors",
        ),
        (
            &["serve", "--envoy-config", "/nonexist"],
            "--envoy-config: /nonexist: No such file",
        ),
        (
            &["check", "a", "b", "--cost", "-1"],
            "`-1` is not a decimal number",
        ),
        (
            &["simulate", "--seed", "x"],
            "expected a whole number, 0 or more",
        ),
        (&["simulate", "--duration", "0s"], "expected a time above 0"),
        (&["replay", "--expire", "0s"], "expected a time above 0"),
        (&["man", "/nonexist/x"], "/nonexist/x/"),
    ] {
        let output = run(arguments);
        let error = text(&output.stderr);
        assert_eq!(
            (output.status.code(), error.lines().count()),
            (Some(2), 1),
            "{error}"
        );
        assert!(error.contains(hint), "{arguments:?}: {error}");
    }
}

#[test]
fn a_second_server_on_the_same_port_is_an_error() {
    let first = Process::start(&[]);
    let address = first.resp.to_string();
    let output = run(&["serve", "--http", "127.0.0.1:0", "--resp", &address]);
    assert_eq!(output.status.code(), Some(2));
    let error = text(&output.stderr);
    assert!(
        error.contains(&format!("can't listen on {address}")),
        "{error}"
    );
    assert!(
        error.contains("; `--resp off` if no client needs it"),
        "{error}"
    );
}

#[test]
fn check_asks_a_running_server() {
    let process = Process::start(&[]);
    let server = process.http.to_string();
    let check = |more: &[&str]| run(&[&["check", "--server", &server], more].concat());
    let allowed = check(&["default", "alice"]);
    assert_eq!(allowed.status.code(), Some(0), "{}", text(&allowed.stderr));
    assert!(text(&allowed.stdout).starts_with("{\"allowed\":true,"));
    assert_eq!(
        check(&["default", "alice", "--cost", "100", "-q"])
            .status
            .code(),
        Some(0)
    );
    assert_eq!(check(&["default", "alice"]).status.code(), Some(1));
    assert_eq!(
        check(&["default", "alice", "--peek"]).status.code(),
        Some(1)
    );
    let unknown = check(&["nothing", "alice"]);
    assert_eq!(unknown.status.code(), Some(2));
    assert_eq!(text(&unknown.stderr).lines().count(), 1);
}

#[test]
fn config_check_tells_every_mistake() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("limits.toml");
    let check = |text: &str| {
        std::fs::write(&file, text).unwrap();
        run(&["config", "check", file.to_str().unwrap()])
    };
    let good = check("[[rule]]\nname = \"a\"\nlimit = \"gcra 1/s burst=5\"\n");
    assert_eq!(good.status.code(), Some(0));
    let printed = text(&good.stdout);
    assert!(
        printed.contains("a: gcra 1/s burst=5: 5 requests at once"),
        "{printed}"
    );
    let empty = check("version = 1\n");
    assert_eq!(empty.status.code(), Some(2));
    assert!(
        text(&empty.stderr).contains("0 rules: nothing is limited"),
        "{empty:?}"
    );
    assert_eq!(check("rules = \"none\"\n").status.code(), Some(0));
    let no_yaml = run(&["config", "check", folder.path().to_str().unwrap()]);
    let error = text(&no_yaml.stderr);
    assert_eq!(no_yaml.status.code(), Some(2));
    assert!(
        error.contains("no .yaml or .yml file that can be read") && error.contains("0 rules"),
        "{error}"
    );
    let bad = check("[[rule]]\nname = \"A\"\nlimit = \"gcra\"\naction = \"dney\"\n");
    assert_eq!(bad.status.code(), Some(2));
    let error = text(&bad.stderr);
    assert_eq!(error.lines().count(), 3, "{error}");
    assert!(
        error.contains("limits.toml:4:10:") && error.contains("did you mean `deny`?"),
        "{error}"
    );
    let missing = check("[server.tls]\ncert = \"/nowhere/c.pem\"\nkey = \"/nowhere/k.pem\"\n");
    assert_eq!(missing.status.code(), Some(2));
    let error = text(&missing.stderr);
    assert!(
        error.contains("limits.toml:2:8: [server.tls] /nowhere/c.pem: No such file"),
        "{error}"
    );
    assert_eq!(
        run(&["config", "check", "/nonexistent"]).status.code(),
        Some(2)
    );
    for (setting, right) in [
        (
            "[engine]\nstate = \"/dev/null\"",
            "state: /dev/null is something else already",
        ),
        (
            "[server]\nhttp = \"unix:/nonexist/x\"",
            "http: the folder of /nonexist/x: No such file",
        ),
        (
            "[server]\nresp = \"unix:/etc/hostname\"",
            "resp: /etc/hostname is something else",
        ),
        (
            "[server]\nhttp = \":9166\"",
            "http: 0.0.0.0:9166 can be reached",
        ),
        (
            "[server]\nhttp = \":9166\"",
            "allow_remote = true in [server]",
        ),
    ] {
        let wrong = check(&format!("rules = \"none\"\n{setting}\n"));
        let error = text(&wrong.stderr);
        assert_eq!(
            (wrong.status.code(), error.lines().count()),
            (Some(2), 1),
            "{error}"
        );
        assert!(
            error.contains("limits.toml: ") && error.contains(right),
            "{error}"
        );
    }
}

#[test]
fn config_check_tells_of_tables_beyond_memory() {
    let file = tempfile::NamedTempFile::new().unwrap();
    let rule = "[[rule]]\nname = \"a\"\nlimit = \"gcra 1/s burst=5\"\ncapacity = 10_000_000_000\n";
    std::fs::write(file.path(), rule).unwrap();
    let output = run(&["config", "check", file.path().to_str().unwrap()]);
    let error = text(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{error}");
    assert!(
        error.contains(":4:12: capacity: the 10000000000 clients of rule a need 199 GiB"),
        "{error}"
    );
    assert_eq!(error.lines().count(), 1, "{error}");
}

/// Runs the health check command of the container image, at another port.
#[test]
fn the_containers_health_check_tells_health() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../contrib/Dockerfile");
    let dockerfile = std::fs::read_to_string(folder).unwrap();
    let line = dockerfile
        .lines()
        .find(|line| line.starts_with("HEALTHCHECK "))
        .unwrap();
    let words: Vec<String> = serde_json::from_str(line.split_once(" CMD ").unwrap().1).unwrap();
    let mut process = Process::start(&[]);
    let port = process.http.port().to_string();
    let healthy = || {
        let words = words.iter().map(|word| word.replace("8080", &port));
        let words: Vec<String> = words.collect();
        Command::new(&words[0])
            .args(&words[1..])
            .output()
            .unwrap()
            .status
            .success()
    };
    assert!(healthy());
    process.signal(Signal::TERM);
    assert!(process.child.wait().unwrap().success());
    assert!(!healthy());
}

#[test]
fn the_example_configuration_is_valid() {
    let example = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../contrib/limits.toml");
    let output = run(&["config", "check", example.to_str().unwrap()]);
    assert_eq!((output.status.code(), text(&output.stderr)), (Some(0), ""));
}

#[test]
fn every_command_has_a_manual_page() {
    let folder = tempfile::tempdir().unwrap();
    assert_eq!(
        run(&["man", folder.path().to_str().unwrap()]).status.code(),
        Some(0)
    );
    for page in [
        "earrrl",
        "earrrl-serve",
        "earrrl-replay",
        "earrrl-config-check",
    ] {
        let text = std::fs::read_to_string(folder.path().join(format!("{page}.1"))).unwrap();
        for section in [
            "SYNOPSIS",
            "EXAMPLES",
            "\"EXIT STATUS\"",
            "FILES",
            "\"SEE ALSO\"",
        ] {
            // The command without a subcommand has no examples section.
            let found = text.contains(&format!(".SH {section}\n")) || page == "earrrl";
            assert!(found, "{page}: {section}: {text}");
        }
    }
}

#[test]
fn completions_are_printed() {
    for shell in ["bash", "zsh", "fish"] {
        let output = run(&["completions", shell]);
        assert!(
            output.status.success() && text(&output.stdout).contains("earrrl"),
            "{shell}"
        );
    }
}
