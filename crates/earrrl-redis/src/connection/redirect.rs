//! Redirection of commands in a Cluster.
//!
//! The `redis` crate can redirect commands, but it also sends commands again that a broken
//! connection may have executed, which would count them twice. So the crate's retries are turned
//! off, and commands that a node has rejected are redirected by this module.

use earrrl::internal::lock;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use redis::aio::ConnectionLike;
use redis::cluster_async::ClusterConnection;
use redis::cluster_routing::SingleNodeRoutingInfo;
use redis::{
    Cmd, ErrorKind, Pipeline, RedisError, RedisResult, RetryMethod, ServerErrorKind, Value,
};
use tokio::time::sleep;

/// The most redirections of one command.
const MAX_REDIRECTIONS: u32 = 3;
/// The first pause before a node that is not ready is asked again.
const WAIT: Duration = Duration::from_millis(1);
/// The time for which a node without a connection is not asked. Asking it makes the crate connect
/// to all nodes again.
const UNKNOWN_NODE_PAUSE: Duration = Duration::from_secs(1);

/// A connection to a Cluster.
#[derive(Clone)]
pub(crate) struct Cluster {
    connection: ClusterConnection,
    /// The time at which a redirection last named a node without a connection.
    unknown: Arc<Mutex<Option<Instant>>>,
}

impl Cluster {
    pub(crate) fn new(connection: ClusterConnection) -> Self {
        Self {
            connection,
            unknown: Arc::default(),
        }
    }

    pub(crate) async fn send(&mut self, command: &Cmd) -> RedisResult<Value> {
        let mut answer = self.once(command).await;
        for times in 0..MAX_REDIRECTIONS {
            let Err(error) = &answer else { break };
            answer = match error.retry_method() {
                // The crate has updated its map of slots meanwhile.
                RetryMethod::MovedRedirect | RetryMethod::RefreshSlotsAndRetry => {
                    self.once(command).await
                }
                RetryMethod::AskRedirect => match node(error).filter(|_| self.knows_all()) {
                    Some(node) => self.ask(command, node).await,
                    None => break,
                },
                RetryMethod::WaitAndRetry if !is_moving(error) => {
                    sleep(WAIT * 2u32.pow(times)).await;
                    self.once(command).await
                }
                _ => break,
            };
        }
        answer
    }

    async fn once(&mut self, command: &Cmd) -> RedisResult<Value> {
        self.connection
            .req_packed_command(command)
            .await?
            .extract_error()
    }

    /// Sends a command to the node to which a slot is moving.
    async fn ask(&mut self, command: &Cmd, node: SingleNodeRoutingInfo) -> RedisResult<Value> {
        let mut pipeline = Pipeline::new();
        pipeline.cmd("ASKING").add_command(command.clone());
        let answers = self.connection.route_pipeline(pipeline, 1, 1, node).await;
        if answers
            .as_ref()
            .is_err_and(|error| error.kind() == ErrorKind::ClusterConnectionNotFound)
        {
            *lock(&self.unknown) = Some(Instant::now());
        }
        answers?.pop().unwrap_or(Value::Nil).extract_error()
    }

    fn knows_all(&self) -> bool {
        let unknown = lock(&self.unknown);
        unknown.is_none_or(|since| since.elapsed() > UNKNOWN_NODE_PAUSE)
    }
}

/// Returns the node that a redirection names.
fn node(error: &RedisError) -> Option<SingleNodeRoutingInfo> {
    let (host, port) = error.redirect_node()?.0.rsplit_once(':')?;
    let node = SingleNodeRoutingInfo::ByAddress {
        host: host.to_owned(),
        port: port.parse().ok()?,
    };
    (!host.is_empty()).then_some(node)
}

/// Returns true if a node rejected a call because its slot is moving and some of its keys are on
/// another node. Calls with a single key are never rejected for this reason.
pub(crate) fn is_moving(error: &RedisError) -> bool {
    error.kind() == ErrorKind::Server(ServerErrorKind::TryAgain)
}
