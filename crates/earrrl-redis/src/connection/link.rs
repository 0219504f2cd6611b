//! A link to a single Redis, to the master that Sentinels report, or to a Cluster; and the calls of
//! scripts over it.
//!
//! Links are multiplexed: any number of calls are in flight on one connection, written together and
//! answered in order.

use std::time::Duration;

use redis::aio::{ConnectionLike, MultiplexedConnection};
use redis::cluster::ClusterClientBuilder;
use redis::{
    AsyncConnectionConfig, Client, Cmd, ConnectionAddr, ErrorKind, IntoConnectionInfo, RedisError,
    RedisResult, ServerErrorKind, Value,
};
use tokio::task::coop::unconstrained;

use crate::connection::fault::Fault;
use crate::connection::redirect::Cluster;
use crate::connection::script::Script;
use crate::connection::sentinel;
use crate::options::{Options, tcp_settings};

/// The timeout of establishing a connection.
const TIMEOUT: Duration = Duration::from_secs(2);
/// The response timeout of the `redis` crate. It is longer than every deadline, since deadlines are
/// enforced elsewhere.
const NEVER: Duration = Duration::from_secs(600);
/// The most calls that may wait to be written to the socket.
const BUFFER: usize = 4096;

#[derive(Clone)]
pub(crate) enum Link {
    Single(MultiplexedConnection),
    Cluster(Cluster),
}

impl Link {
    pub(crate) async fn connect(options: &Options) -> Result<Self, Fault> {
        #[cfg(feature = "tls")]
        if rustls::crypto::CryptoProvider::get_default().is_none() {
            rustls::crypto::ring::default_provider()
                .install_default()
                .ok();
        }
        if options.cluster {
            let builder = ClusterClientBuilder::new(options.urls.iter().map(String::as_str))
                .connection_timeout(TIMEOUT)
                .response_timeout(NEVER)
                .tcp_settings(tcp_settings())
                // A retry could execute a call twice if the connection broke after the first execution;
                // see `redirect`.
                .retries(0);
            #[cfg(feature = "tls")]
            let builder = match &options.certificates {
                Some(certificates) => builder.certs(certificates.to_redis()),
                None => builder,
            };
            return Ok(Self::Cluster(Cluster::new(
                builder.build()?.get_async_connection().await?,
            )));
        }
        let url = options.urls.first().map_or("", String::as_str);
        let config = AsyncConnectionConfig::new()
            .set_connection_timeout(Some(TIMEOUT))
            .set_response_timeout(None)
            .set_pipeline_buffer_size(BUFFER);
        let client = match &options.sentinel {
            Some(name) => sentinel::master(name, options).await?,
            None => open(url, options)?,
        };
        let connected = client
            .get_multiplexed_async_connection_with_config(&config)
            .await;
        let address = client.get_connection_info().addr();
        connected
            .map(Self::Single)
            .map_err(|error| no_connection(address, error))
    }

    /// Sends a command. Commands are written in the order in which they are first polled. The
    /// connection's queue alone does not ensure this order: when a task has used up its budget,
    /// tokio wakes its postponed parts in reverse order. `unconstrained` prevents that.
    pub(crate) async fn send(&mut self, command: &Cmd) -> RedisResult<Value> {
        let answer = match self {
            Self::Single(connection) => unconstrained(connection.req_packed_command(command)).await,
            // Boxed because the future is large, and every call would otherwise reserve stack space
            // for it.
            Self::Cluster(cluster) => unconstrained(Box::pin(cluster.send(command))).await,
        };
        answer?.extract_error()
    }

    /// Calls a script by its hash, or by its text if Redis does not have it. A call that Redis
    /// rejects for want of the text would be decided after calls that came later, so the first call
    /// over a connection contains the text. Each shard of a Cluster has scripts of its own.
    pub(crate) async fn call(
        &mut self,
        script: &Script,
        keys: &[Vec<u8>],
        args: &[Vec<u8>],
    ) -> RedisResult<Value> {
        if matches!(self, Self::Single(_)) && script.is_first() {
            return self
                .send(&Self::command("EVAL", &script.code, keys, args))
                .await;
        }
        match self
            .send(&Self::command("EVALSHA", &script.hash, keys, args))
            .await
        {
            Err(error) if error.kind() == ErrorKind::Server(ServerErrorKind::NoScript) => {
                self.send(&Self::command("EVAL", &script.code, keys, args))
                    .await
            }
            answer => answer,
        }
    }

    /// Returns the command that calls a script.
    fn command(verb: &str, script: &str, keys: &[Vec<u8>], args: &[Vec<u8>]) -> Cmd {
        let mut command = redis::cmd(verb);
        command.arg(script).arg(keys.len()).arg(keys).arg(args);
        command
    }
}

/// Returns why there is no connection to an address. A port without TLS mostly waits for the rest of
/// what it takes for a command.
fn no_connection(address: &ConnectionAddr, error: RedisError) -> Fault {
    let is_silent = error.is_timeout() || error.to_string().contains("InvalidContentType");
    if is_silent && matches!(address, ConnectionAddr::TcpTls { .. }) {
        let why = "no answer in TLS; rediss:// needs a port of Redis that speaks TLS";
        return Fault::Lost(format!("{address}: {why}"));
    }
    Fault::from(error).at(&address.to_string())
}

fn open(url: &str, options: &Options) -> RedisResult<Client> {
    let info = url.into_connection_info()?.set_tcp_settings(tcp_settings());
    #[cfg(feature = "tls")]
    if let Some(certificates) = &options.certificates {
        return Client::build_with_tls(info, certificates.to_redis());
    }
    #[cfg(not(feature = "tls"))]
    let _ = options;
    Client::open(info)
}
