//! Commands to a Cluster, sent on as its nodes say.
//!
//! The `redis` crate would do that, too, but sends once more what a broken connection may have executed, and that
//! would count twice: so it is told never to send anything again, and what a node has refused is sent on here.

use std::time::Duration;

use redis::aio::ConnectionLike;
use redis::cluster_async::ClusterConnection;
use redis::cluster_routing::{RoutingInfo, SingleNodeRoutingInfo};
use redis::{Cmd, Pipeline, RedisError, RedisResult, RetryMethod, Value};
use tokio::time::sleep;

/// How often one command is sent on.
const MOST: u32 = 3;
/// What is waited at first for a slot that is between two nodes.
const WAIT: Duration = Duration::from_millis(1);

pub(crate) async fn send(connection: &mut ClusterConnection, command: &Cmd) -> RedisResult<Value> {
    let mut answer = once(connection, command).await;
    for times in 0..MOST {
        let Err(error) = &answer else { break };
        answer = match error.retry_method() {
            RetryMethod::MovedRedirect => moved(connection, command, node(error)).await,
            RetryMethod::AskRedirect => asked(connection, command, node(error)).await,
            RetryMethod::RefreshSlotsAndRetry => once(connection, command).await,
            RetryMethod::WaitAndRetry => {
                sleep(WAIT * 2u32.pow(times)).await;
                once(connection, command).await
            }
            _ => break,
        };
    }
    answer
}

async fn once(connection: &mut ClusterConnection, command: &Cmd) -> RedisResult<Value> {
    connection.req_packed_command(command).await?.extract_error()
}

/// The node that a redirection names.
fn node(error: &RedisError) -> Option<SingleNodeRoutingInfo> {
    let (host, port) = error.redirect_node()?.0.rsplit_once(':')?;
    Some(SingleNodeRoutingInfo::ByAddress { host: host.to_owned(), port: port.parse().ok()? })
}

/// To the slot's new owner; without its address, to where the crate finds it after it has asked for all slots.
async fn moved(
    connection: &mut ClusterConnection,
    command: &Cmd,
    node: Option<SingleNodeRoutingInfo>,
) -> RedisResult<Value> {
    let Some(node) = node else { return once(connection, command).await };
    let answer = connection.route_command(command.clone(), RoutingInfo::SingleNode(node)).await;
    match answer.and_then(Value::extract_error) {
        Err(error) if is_unknown(&error) => once(connection, command).await,
        answer => answer,
    }
}

/// To the node that the key is going to, or where that is not known yet, once more to its old one.
async fn asked(
    connection: &mut ClusterConnection,
    command: &Cmd,
    node: Option<SingleNodeRoutingInfo>,
) -> RedisResult<Value> {
    let Some(node) = node else { return once(connection, command).await };
    let mut pipeline = Pipeline::new();
    pipeline.cmd("ASKING").add_command(command.clone());
    match connection.route_pipeline(pipeline, 1, 1, node).await {
        Err(error) if is_unknown(&error) => once(connection, command).await,
        answers => answers?.pop().unwrap_or(Value::Nil).extract_error(),
    }
}

/// Nothing was sent: there is no connection to that node.
fn is_unknown(error: &RedisError) -> bool {
    error.kind() == redis::ErrorKind::ClusterConnectionNotFound
}
