//! Tests that the replica decides when a master dies that Sentinels watch.
#![allow(clippy::unwrap_used, clippy::panic)]

use std::process::{Child, Stdio};
use std::sync::Arc;
use std::time::Duration;

use earrrl::Engine;
use earrrl_redis::{EngineMode, Options, RedisEngine};

use crate::support::load::{Load, becomes};
use crate::support::ports::free_port;
use crate::support::tools::redis_server;
use crate::support::{PATIENCE, Server, command, until};

/// A single Sentinel, which decides alone.
pub(crate) struct Sentinel {
    port: u16,
    process: Child,
    _folder: tempfile::TempDir,
}

impl Sentinel {
    async fn start(master: u16) -> Self {
        let sentinel = Self::start_with(master, "");
        until("the Sentinel knows the replica", || {
            let known: String = sentinel.master("num-slaves").unwrap_or_default();
            known == "1"
        })
        .await;
        sentinel
    }

    /// Starts a Sentinel with further lines of its configuration.
    pub(crate) fn start_with(master: u16, lines: &str) -> Self {
        let port = free_port();
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("sentinel.conf");
        let text = format!(
            "port {port}\nbind 127.0.0.1\nsentinel monitor main 127.0.0.1 {master} 1\n\
             sentinel down-after-milliseconds main 1000\nsentinel failover-timeout main 2000\n{lines}"
        );
        std::fs::write(&file, text).unwrap();
        let mut command = redis_server();
        command.arg(file).arg("--sentinel").stdout(Stdio::null());
        Self {
            port,
            process: command.spawn().unwrap(),
            _folder: folder,
        }
    }

    pub(crate) fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port)
    }

    /// Returns a field of the Sentinel's report on the master.
    fn master(&self, field: &str) -> Option<String> {
        let words: Vec<String> = command(&self.url(), &["SENTINEL", "MASTER", "main"]).ok()?;
        let pairs = words.chunks_exact(2);
        pairs
            .filter(|pair| pair[0] == field)
            .map(|pair| pair[1].clone())
            .next()
    }
}

impl Drop for Sentinel {
    fn drop(&mut self) {
        self.process.kill().ok();
        self.process.wait().ok();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_failover() {
    let mut master = Server::start(&[]).await;
    let replica = Server::start(&["--replicaof", "127.0.0.1", &master.port.to_string()]).await;
    until("the replica is in step", || {
        let info: String = replica
            .command(&["INFO", "replication"])
            .unwrap_or_default();
        info.contains("master_link_status:up")
    })
    .await;
    let sentinel = Sentinel::start(master.port).await;
    let mut options = Options::sentinel("main", [sentinel.url().as_str()]);
    options.deadline = Duration::from_millis(100);
    let engine = Arc::new(RedisEngine::connect(options, PATIENCE).await.unwrap());
    assert!(engine.ready(PATIENCE).await, "{:?}", engine.status());
    let rule = engine
        .prepare("wide", &"fixed-window 9000000/3650d".parse().unwrap())
        .unwrap();
    let load = Load::start(&engine, rule);
    load.goes_on(500).await;
    master.kill();
    becomes(&engine, EngineMode::Alone).await;
    load.goes_on(500).await;
    becomes(&engine, EngineMode::Shared).await;
    assert_eq!(sentinel.master("port"), Some(replica.port.to_string()));
    load.goes_on(500).await;
    load.stop().await;
    until("counts are handed over", || engine.status().owed == 0).await;
    assert!(engine.status().counts.handed_over > 0);
}

/// The options for a master and a Sentinel, each with a password of its own.
fn with_passwords(sentinel: &Sentinel) -> Options {
    let url = format!("redis://:dbpass@127.0.0.1:{}", sentinel.port);
    let mut options = Options::sentinel("main", [url.as_str()]);
    options.deadline = PATIENCE;
    options
}

/// Waits until the engine's last failure contains all these texts.
async fn until_failure(engine: &RedisEngine, texts: &[&str]) {
    until("the failure is told", || {
        let why = engine.status().last_failure.unwrap_or_default();
        texts.iter().all(|text| why.contains(text))
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sentinels_with_a_password() {
    let master = Server::start(&["--requirepass", "dbpass"]).await;
    let lines = "sentinel auth-pass main dbpass\nrequirepass watch\n";
    let sentinel = Sentinel::start_with(master.port, lines);
    let mut options = with_passwords(&sentinel);
    for wrong in [None, Some("dbpass".to_owned())] {
        options.sentinel_password = wrong;
        let engine = RedisEngine::new(options.clone()).unwrap();
        let place = format!("the Sentinel redis://127.0.0.1:{}: ", sentinel.port);
        until_failure(&engine, &[&place, "sentinel_password"]).await;
        engine.set_sentinel_login(None, Some("watch".to_owned()));
        assert!(engine.ready(PATIENCE).await, "{:?}", engine.status());
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sentinels_with_a_user() {
    let master = Server::start(&["--requirepass", "dbpass"]).await;
    let lines =
        "sentinel auth-pass main dbpass\nuser default off\nuser limits on >watch ~* &* +@all\n";
    let sentinel = Sentinel::start_with(master.port, lines);
    let mut options = with_passwords(&sentinel);
    options.sentinel_user = Some("limits".to_owned());
    options.sentinel_password = Some("watch".to_owned());
    let engine = RedisEngine::new(options).unwrap();
    assert!(engine.ready(PATIENCE).await, "{:?}", engine.status());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_wrong_password_of_the_master_is_told_as_such() {
    let master = Server::start(&["--requirepass", "other"]).await;
    let lines = "sentinel auth-pass main other\nrequirepass watch\n";
    let sentinel = Sentinel::start_with(master.port, lines);
    let mut options = with_passwords(&sentinel);
    options.sentinel_password = Some("watch".to_owned());
    let engine = RedisEngine::new(options).unwrap();
    until_failure(&engine, &["the master `main`: "]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_master_that_is_down_is_told_as_such() {
    let mut master = Server::start(&[]).await;
    let sentinel = Sentinel::start_with(master.port, "");
    let mut options = Options::sentinel("main", [sentinel.url().as_str()]);
    options.deadline = PATIENCE;
    master.kill();
    let engine = RedisEngine::new(options).unwrap();
    let why = "the Sentinels have no reachable master of the name `main`";
    until_failure(&engine, &[why]).await;
}
