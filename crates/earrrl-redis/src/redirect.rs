//! Commands to a Cluster, sent on as its nodes say.
//!
//! The `redis` crate would do that, too, but sends once more what a broken connection may have executed, and that
//! would count twice: so it is told never to send anything again, and what a node has refused is sent on here.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use redis::aio::ConnectionLike;
use redis::cluster_async::ClusterConnection;
use redis::cluster_routing::SingleNodeRoutingInfo;
use redis::{
    Cmd, ErrorKind, Pipeline, RedisError, RedisResult, RetryMethod, ServerErrorKind, Value,
};
use tokio::time::sleep;

/// How often one command is sent on.
const MOST: u32 = 3;
/// What is waited at first for a node that is not ready.
const WAIT: Duration = Duration::from_millis(1);
/// How long a node is not asked for that there is no connection to: asking has the crate connect to all anew.
const UNKNOWN: Duration = Duration::from_secs(1);

/// A connection to a Cluster.
#[derive(Clone)]
pub(crate) struct Cluster {
    connection: ClusterConnection,
    /// When a key was last found to be on its way to a node without a connection.
    unknown: Arc<Mutex<Option<Instant>>>,
}

impl Cluster {
    pub(crate) fn new(connection: ClusterConnection) -> Self {
        Self { connection, unknown: Arc::default() }
    }

    pub(crate) async fn send(&mut self, command: &Cmd) -> RedisResult<Value> {
        let mut answer = self.once(command).await;
        for times in 0..MOST {
            let Err(error) = &answer else { break };
            answer = match error.retry_method() {
                // The crate has asked for all slots meanwhile.
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
        self.connection.req_packed_command(command).await?.extract_error()
    }

    /// To the node that a key is going to.
    async fn ask(&mut self, command: &Cmd, node: SingleNodeRoutingInfo) -> RedisResult<Value> {
        let mut pipeline = Pipeline::new();
        pipeline.cmd("ASKING").add_command(command.clone());
        let answers = self.connection.route_pipeline(pipeline, 1, 1, node).await;
        if answers.as_ref().is_err_and(|error| error.kind() == ErrorKind::ClusterConnectionNotFound)
        {
            *self.unknown.lock().unwrap_or_else(PoisonError::into_inner) = Some(Instant::now());
        }
        answers?.pop().unwrap_or(Value::Nil).extract_error()
    }

    fn knows_all(&self) -> bool {
        let unknown = self.unknown.lock().unwrap_or_else(PoisonError::into_inner);
        unknown.is_none_or(|since| since.elapsed() > UNKNOWN)
    }
}

/// The node that a redirection names.
fn node(error: &RedisError) -> Option<SingleNodeRoutingInfo> {
    let (host, port) = error.redirect_node()?.0.rsplit_once(':')?;
    let node = SingleNodeRoutingInfo::ByAddress { host: host.to_owned(), port: port.parse().ok()? };
    (!host.is_empty()).then_some(node)
}

/// Whether a node has only some of a call's keys, since their slot is on its way. One of a single key is taken.
pub(crate) fn is_moving(error: &RedisError) -> bool {
    error.kind() == ErrorKind::Server(ServerErrorKind::TryAgain)
}
