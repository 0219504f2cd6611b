//! Heartbeats. A node announces itself before its first claim, reports every second that it is
//! alive, and reads the number of live nodes.

use std::sync::Arc;
use std::time::Duration;

use redis::Value;
use tokio::time::{Instant, timeout};

use crate::node::{ALIVE, SETTLING};
use crate::shared::Shared;

/// The interval of heartbeats. The constant below is a shorter one for the time in which nodes that
/// start together learn of each other.
const INTERVAL: Duration = Duration::from_secs(1);
const FIRST_INTERVAL: Duration = Duration::from_millis(200);
/// The pause before a heartbeat that failed is repeated.
const RETRY: Duration = Duration::from_millis(50);
/// The timeout of a heartbeat.
const TIMEOUT: Duration = Duration::from_secs(2);

/// Sends heartbeats for as long as there are near rules, unless the number of nodes is configured.
pub(crate) async fn run(shared: Arc<Shared>) {
    while shared.options.nodes.is_none() {
        let is_near = shared.rules.all().iter().any(|rule| rule.is_near);
        let pause = match is_near {
            true if beat(&shared).await.is_none() => RETRY,
            true if shared.node.is_settling() => FIRST_INTERVAL,
            _ => INTERVAL,
        };
        timeout(pause, shared.rules.near_prepared.notified())
            .await
            .ok();
    }
}

/// Reports that this node is alive, and reads the number of live nodes. Returns `None` if Redis did
/// not answer.
async fn beat(shared: &Shared) -> Option<()> {
    let key = shared.connection.keys.nodes().into_bytes();
    let mut link = shared.connection.link(shared.connection.group(&key)).ok()?;
    let args = [
        shared.node.name.to_vec(),
        ALIVE.as_millis().to_string().into_bytes(),
    ];
    let keys = [key];
    let call = link.call(&shared.connection.scripts.nodes, &keys, &args);
    let Ok(Ok(Value::Int(nodes))) = timeout(TIMEOUT, call).await else {
        return None;
    };
    shared
        .node
        .announced(u32::try_from(nodes).unwrap_or(1), Instant::now());
    Some(())
}

/// Waits until this node is announced, but only as long as that matters. Without the wait, the
/// first claims of nodes that start together would leave nothing for the others.
pub(crate) async fn announced(shared: &Shared) {
    if !shared.node.is_announced() {
        let announced = async { shared.node.wait_for_announcement().await };
        timeout(shared.options.deadline.min(SETTLING), announced)
            .await
            .ok();
    }
}
