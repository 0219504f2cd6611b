//! Redis at a distance: connections do not wait for acknowledgements, and decisions are Redis's as long as the
//! deadline is longer than the round trip.
#![allow(clippy::unwrap_used, clippy::panic)]

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::time::Duration;

use earrrl::{Charge, Cost, Engine, Mode};
use earrrl_redis::{Options, RedisEngine};
use redis::io::tcp::socket2::SockRef;

use crate::sentinel::Sentinel;
use crate::support::cluster::Cluster;
use crate::support::proxy::Proxy;
use crate::support::{PATIENCE, Server};

/// Calls a function with each open file of this process.
#[allow(unsafe_code)]
fn each_file(mut see: impl FnMut(BorrowedFd<'_>)) {
    for entry in std::fs::read_dir("/proc/self/fd").unwrap() {
        let number = entry
            .unwrap()
            .file_name()
            .to_str()
            .unwrap()
            .parse()
            .unwrap();
        // SAFETY: a file that was closed meanwhile, or replaced by another one, only answers with an error
        // or about itself; it is not closed here.
        see(unsafe { BorrowedFd::borrow_raw(number) });
    }
}

/// Returns for each connection of this process to one of these ports if Nagle's algorithm is off.
fn without_nagle(ports: &[u16]) -> Vec<bool> {
    let mut found = Vec::new();
    each_file(|file| {
        let file = file.as_fd();
        let socket = SockRef::from(&file);
        let peer = socket.peer_addr().ok().and_then(|peer| peer.as_socket());
        if peer.is_some_and(|peer| ports.contains(&peer.port())) {
            found.push(socket.tcp_nodelay().unwrap());
        }
    });
    found
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_connection_waits_for_acknowledgements() {
    let server = Server::start(&[]).await;
    let cluster = Cluster::start().await;
    let sentinel = Sentinel::start_with(server.port, "");
    let urls = cluster.urls();
    let ports: Vec<u16> = cluster.nodes.iter().map(|node| node.port).collect();
    for (options, ports) in [
        (Options::new(&server.url()), vec![server.port]),
        (Options::cluster(urls.iter().map(String::as_str)), ports),
        (
            Options::sentinel("main", [sentinel.url().as_str()]),
            vec![server.port],
        ),
    ] {
        let engine = RedisEngine::connect(options, PATIENCE).await.unwrap();
        assert!(engine.ready(PATIENCE).await);
        let sockets = without_nagle(&ports);
        assert!(
            !sockets.is_empty() && sockets.iter().all(|off| *off),
            "{ports:?}: {sockets:?}"
        );
    }
}

/// Sixteen tasks ask about clients of their own. The deadline leaves time for a machine that is busy with other work.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn decisions_are_redis_s_at_a_distance() {
    let server = Server::start(&[]).await;
    for one_way in [1_000, 2_500, 5_000, 20_000].map(Duration::from_micros) {
        let proxy = Proxy::start(server.port).await;
        proxy.set_latency(one_way);
        let mut options = Options::new(&proxy.url());
        options.deadline = 3 * one_way + Duration::from_millis(250);
        options.failures = 1000;
        let engine = Arc::new(RedisEngine::connect(options, PATIENCE).await.unwrap());
        assert!(engine.ready(PATIENCE).await, "{:?}", engine.status());
        let rule = engine
            .prepare("far", &"gcra 1000/s burst=1000".parse().unwrap())
            .unwrap();
        let tasks: Vec<_> = (0..16u8)
            .map(|task| {
                let engine = engine.clone();
                tokio::spawn(async move {
                    for _ in 0..20 {
                        let charge = Charge {
                            rule,
                            key: &[task],
                            cost: Cost::ONE,
                        };
                        assert!(
                            engine
                                .decide(&[charge], Mode::Check, None)
                                .await
                                .unwrap()
                                .allowed
                        );
                        tokio::time::sleep(Duration::from_millis(1)).await;
                    }
                })
            })
            .collect();
        for task in tasks {
            task.await.unwrap();
        }
        let counts = engine.status().counts;
        println!(
            "{one_way:?} each way: {} by Redis, {} alone",
            counts.shared, counts.alone
        );
        assert_eq!(counts.shared + counts.alone, 320);
        assert!(counts.shared > 4 * counts.alone, "{one_way:?}: {counts:?}");
    }
}
