//! Valkey servers for the tests, on free ports. They are real servers, not mocks.
#![allow(
    dead_code,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    unreachable_pub
)]

pub mod cluster;
pub mod load;
pub mod ports;
pub mod proxy;
pub mod skew;
pub mod tools;

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use redis::{FromRedisValue, RedisResult};
use tempfile::TempDir;

use ports::free_port;

/// The longest time that a test waits for an event, on a machine that is busy with other work.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// A server, which is stopped when this value is dropped.
pub struct Server {
    pub port: u16,
    pub folder: TempDir,
    options: Vec<String>,
    /// The environment variables by which the server's clock can be shifted.
    environment: Vec<(&'static str, PathBuf)>,
    process: Child,
}

impl Server {
    pub async fn start(options: &[&str]) -> Self {
        Self::start_in(tempfile::tempdir().unwrap(), options, Vec::new()).await
    }

    /// Starts a server whose clock the test can shift.
    pub async fn start_with_a_clock(options: &[&str]) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let environment = skew::environment(folder.path()).into();
        Self::start_in(folder, options, environment).await
    }

    async fn start_in(
        folder: TempDir,
        options: &[&str],
        environment: Vec<(&'static str, PathBuf)>,
    ) -> Self {
        // If `RUST_LOG` is set, the log of the engine is printed.
        let log = tracing_subscriber::fmt()
            .with_env_filter(tracing_subscriber::EnvFilter::from_default_env());
        log.with_test_writer().try_init().ok();
        let port = free_port();
        let options: Vec<String> = options.iter().map(|option| (*option).to_owned()).collect();
        let process = launch(port, folder.path(), &options, &environment);
        let server = Self {
            port,
            folder,
            options,
            environment,
            process,
        };
        server.answers().await;
        server
    }

    pub fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port)
    }

    pub fn socket(&self) -> PathBuf {
        self.folder.path().join("redis.sock")
    }

    /// Sends a command over a new connection.
    pub fn command<T: FromRedisValue>(&self, words: &[&str]) -> RedisResult<T> {
        command(&self.url(), words)
    }

    /// Returns the process id of the server.
    pub fn id(&self) -> u32 {
        self.process.id()
    }

    pub fn kill(&mut self) {
        self.process.kill().unwrap();
        self.process.wait().unwrap();
    }

    pub async fn restart(&mut self) {
        self.kill();
        self.process = launch(
            self.port,
            self.folder.path(),
            &self.options,
            &self.environment,
        );
        self.answers().await;
    }

    /// Sets the server's clock behind the real time by `by`.
    pub fn put_behind(&self, by: Duration) {
        skew::put_behind(self.folder.path(), by);
    }

    /// Sends the server a signal, such as STOP or CONT.
    pub fn signal(&self, signal: &str) {
        let pid = self.process.id().to_string();
        assert!(
            Command::new("kill")
                .args(["-s", signal, &pid])
                .status()
                .unwrap()
                .success()
        );
    }

    async fn answers(&self) {
        let socket = format!("redis+unix://{}", self.socket().display());
        until("the server answers", || {
            command::<String>(&socket, &["PING"]).is_ok()
                || command::<String>(&socket, &["PING"])
                    .is_err_and(|error| error.to_string().contains("NOAUTH"))
        })
        .await;
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.process.kill().ok();
        self.process.wait().ok();
    }
}

fn launch(
    port: u16,
    folder: &Path,
    options: &[String],
    environment: &[(&'static str, PathBuf)],
) -> Child {
    let socket = folder.join("redis.sock");
    tools::redis_server()
        .args([
            "--port",
            &port.to_string(),
            "--bind",
            "127.0.0.1",
            "--save",
            "",
        ])
        .args(["--dir", &folder.display().to_string()])
        .args(["--unixsocket", &socket.display().to_string()])
        .args(["--loglevel", "warning"])
        .args(options)
        .envs(environment.iter().cloned())
        .stdout(Stdio::null())
        .spawn()
        .expect("the server starts")
}

pub fn command<T: FromRedisValue>(url: &str, words: &[&str]) -> RedisResult<T> {
    let client = redis::Client::open(url)?;
    let mut connection = client.get_connection_with_timeout(Duration::from_secs(2))?;
    let mut command = redis::cmd(words[0]);
    command.arg(&words[1..]);
    command.query(&mut connection)
}

/// Waits until a condition holds.
pub async fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let deadline = tokio::time::Instant::now() + PATIENCE;
    while !holds() {
        assert!(
            tokio::time::Instant::now() < deadline,
            "waited in vain until {what}"
        );
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

/// Returns the key of a client's record under a rule.
pub fn key_of(server: &Server, client: &str, rule: &str) -> String {
    let pattern = format!("earrrl2:{{{client}}}:{rule}:?????????");
    let keys: Vec<String> = server.command(&["KEYS", &pattern]).unwrap();
    assert_eq!(keys.len(), 1, "{keys:?}");
    keys[0].clone()
}

/// Returns how often Redis has executed a command.
pub fn called(server: &Server, command: &str) -> u64 {
    let stats: String = server.command(&["INFO", "commandstats"]).unwrap();
    let line = stats
        .lines()
        .find(|line| line.starts_with(&format!("cmdstat_{command}:")));
    let calls = line.and_then(|line| line.split_once("calls=")?.1.split(',').next());
    calls.map_or(0, |calls| calls.parse().unwrap())
}
