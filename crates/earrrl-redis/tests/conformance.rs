//! Runs the conformance suite on a real Redis and on a real Cluster.
#![allow(clippy::unwrap_used, clippy::panic)]

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use earrrl_redis::{Options, RedisEngine, WhenGone};
use earrrl_testing::{Profile, conformance, interleavings};

use crate::support::cluster::Cluster;
use crate::support::{PATIENCE, Server};

/// Runs the suite with separate keys for every part. Its times are virtual, so records must not
/// expire while the test runs, and a slow machine must not count as an outage.
async fn conforms(options: &Options) {
    let scene = AtomicU32::new(0);
    let make = async || {
        let mut options = options.clone();
        options.prefix = format!("scene{}-", scene.fetch_add(1, Ordering::Relaxed));
        options.linger = Duration::from_secs(3600);
        options.deadline = PATIENCE;
        options.when_gone = WhenGone::Deny;
        let engine = RedisEngine::connect(options, PATIENCE).await.unwrap();
        assert!(engine.ready(PATIENCE).await, "{:?}", engine.status());
        engine
    };
    let compared = conformance(
        make,
        &Profile {
            charges: false,
            ..Profile::REDIS
        },
    )
    .await
    .unwrap_or_else(|error| panic!("{error}"));
    assert!(compared > 10_000);
}

#[tokio::test]
async fn a_single_redis_conforms() {
    let server = Server::start(&[]).await;
    conforms(&Options::new(&server.url())).await;
}

#[tokio::test]
async fn a_cluster_conforms() {
    let cluster = Cluster::start().await;
    let urls = cluster.urls();
    conforms(&Options::cluster(urls.iter().map(String::as_str))).await;
}

#[tokio::test]
async fn interleavings_over_redis_agree_with_the_list_of_all_charges() {
    let server = Server::start(&[]).await;
    let engine = crate::reservations::node(Options::new(&server.url())).await;
    let compared = interleavings(engine, &Profile::REDIS, false, None).await;
    assert!(compared.unwrap_or_else(|error| panic!("{error}")) > 10_000);
}
