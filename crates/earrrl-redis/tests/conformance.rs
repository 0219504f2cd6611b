//! The conformance suite over a real Redis.
#![allow(clippy::unwrap_used)]

mod support;

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use earrrl::conformance::{Profile, run};
use earrrl_redis::{Options, RedisEngine, WhenGone};

use support::{PATIENCE, Server};

/// Options under which virtual times can be tested: records don't go while the test takes its time,
/// and a slow machine is no outage.
fn options(url: &str, prefix: &str) -> Options {
    let mut options = Options::new(url);
    options.prefix = prefix.to_owned();
    options.linger = Duration::from_secs(3600);
    options.deadline = PATIENCE;
    options.when_gone = WhenGone::Deny;
    options
}

#[tokio::test]
async fn a_single_redis_conforms() {
    let server = Server::start(&[]).await;
    let scene = AtomicU32::new(0);
    let make = async || {
        let prefix = format!("scene{}-", scene.fetch_add(1, Ordering::Relaxed));
        let engine = RedisEngine::connect(options(&server.url(), &prefix), PATIENCE).await.unwrap();
        assert!(engine.ready(PATIENCE).await);
        engine
    };
    let compared = run(make, &Profile::REDIS).await.unwrap_or_else(|error| panic!("{error}"));
    assert!(compared > 10_000);
}
