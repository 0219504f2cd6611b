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
struct Sentinel {
    port: u16,
    process: Child,
    _folder: tempfile::TempDir,
}

impl Sentinel {
    async fn start(master: u16) -> Self {
        let (port, folder) = (free_port(), tempfile::tempdir().unwrap());
        let file = folder.path().join("sentinel.conf");
        let text = format!(
            "port {port}\nbind 127.0.0.1\nsentinel monitor main 127.0.0.1 {master} 1\n\
             sentinel down-after-milliseconds main 1000\nsentinel failover-timeout main 2000\n"
        );
        std::fs::write(&file, text).unwrap();
        let mut command = redis_server();
        command.arg(file).arg("--sentinel").stdout(Stdio::null());
        let sentinel = Self { port, process: command.spawn().unwrap(), _folder: folder };
        until("the Sentinel knows the replica", || {
            let known: String = sentinel.master("num-slaves").unwrap_or_default();
            known == "1"
        })
        .await;
        sentinel
    }

    fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port)
    }

    /// Returns a field of the Sentinel's report on the master.
    fn master(&self, field: &str) -> Option<String> {
        let words: Vec<String> = command(&self.url(), &["SENTINEL", "MASTER", "main"]).ok()?;
        let pairs = words.chunks_exact(2);
        pairs.filter(|pair| pair[0] == field).map(|pair| pair[1].clone()).next()
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
        let info: String = replica.command(&["INFO", "replication"]).unwrap_or_default();
        info.contains("master_link_status:up")
    })
    .await;
    let sentinel = Sentinel::start(master.port).await;
    let mut options = Options::sentinel("main", [sentinel.url().as_str()]);
    options.deadline = Duration::from_millis(100);
    let engine = Arc::new(RedisEngine::connect(options, PATIENCE).await.unwrap());
    assert!(engine.ready(PATIENCE).await, "{:?}", engine.status());
    let rule = engine.prepare("wide", &"fixed-window 9000000/3650d".parse().unwrap()).unwrap();
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
