//! A connection to Redis, to the master that Sentinels name, or to a Cluster, and calls of scripts over it.
//!
//! Both kinds are multiplexed: any number of calls are under way on one connection, written together
//! and answered in order.

use std::time::Duration;

use earrrl::EngineError;
use redis::aio::{ConnectionLike, MultiplexedConnection};
use redis::cluster::ClusterClientBuilder;
use redis::sentinel::{SentinelClientBuilder, SentinelServerType};
use redis::{
    AsyncConnectionConfig, Client, Cmd, ConnectionAddr, ErrorKind, IntoConnectionInfo, RedisError,
    RedisResult, ServerErrorKind, TlsMode, Value,
};
use tokio::task::coop::unconstrained;

use crate::options::Options;
use crate::redirect::Cluster;
use crate::script::Script;

/// How long a connection may take to come about.
const PATIENCE: Duration = Duration::from_secs(2);
/// Longer than anything is waited for: deadlines are kept elsewhere.
const NEVER: Duration = Duration::from_secs(600);
/// Calls that may wait for the socket.
const BUFFER: usize = 4096;

#[derive(Clone)]
pub(crate) enum Link {
    Single(MultiplexedConnection),
    Cluster(Cluster),
}

impl Link {
    pub(crate) async fn connect(options: &Options) -> RedisResult<Self> {
        #[cfg(feature = "tls")]
        if rustls::crypto::CryptoProvider::get_default().is_none() {
            rustls::crypto::ring::default_provider().install_default().ok();
        }
        if options.cluster {
            let builder = ClusterClientBuilder::new(options.urls.iter().map(String::as_str));
            let builder = builder.connection_timeout(PATIENCE).response_timeout(NEVER);
            // See `redirect`.
            let builder = builder.retries(0);
            #[cfg(feature = "tls")]
            let builder = match &options.certificates {
                Some(certificates) => builder.certs(certificates.to_redis()),
                None => builder,
            };
            return Ok(Self::Cluster(Cluster::new(builder.build()?.get_async_connection().await?)));
        }
        let url = options.urls.first().map_or("", String::as_str);
        let config = AsyncConnectionConfig::new()
            .set_connection_timeout(Some(PATIENCE))
            .set_response_timeout(None)
            .set_pipeline_buffer_size(BUFFER);
        let client = match &options.sentinel {
            Some(name) => sentinels(name, options)?.build()?.async_get_client().await?,
            None => open(url, options)?,
        };
        Ok(Self::Single(client.get_multiplexed_async_connection_with_config(&config).await?))
    }

    /// Makes scripts known to Redis. A call of an unknown one is sent twice, and then decided after calls that
    /// came later. What cannot be loaded now goes with its first call; so does everything on a Cluster, where
    /// a shard that does not answer would keep the others waiting. It is one write: Redis may be far away.
    pub(crate) async fn load(&mut self, scripts: impl Iterator<Item = &Script>) {
        if let Self::Cluster(_) = self {
            return;
        }
        let load = |script: &Script| {
            let mut command = redis::cmd("SCRIPT");
            command.arg("LOAD").arg(&script.code);
            command
        };
        self.send_all(scripts.map(load).collect()).await;
    }

    /// Commands are written in the order in which they are polled first. That takes more than the
    /// connection's queue: of a task that has used up its budget, tokio wakes the parts it put off
    /// the last one first.
    pub(crate) async fn send(&mut self, command: &Cmd) -> RedisResult<Value> {
        let answer = match self {
            Self::Single(connection) => unconstrained(connection.req_packed_command(command)).await,
            // In a box: it is large, and every call of every connection would have room for it.
            Self::Cluster(cluster) => unconstrained(Box::pin(cluster.send(command))).await,
        };
        answer?.extract_error()
    }

    /// Calls a script by its name, or where Redis has lost it, by its text.
    pub(crate) async fn call(
        &mut self,
        script: &Script,
        keys: &[Vec<u8>],
        args: &[Vec<u8>],
    ) -> RedisResult<Value> {
        match self.send(&Self::command("EVALSHA", &script.hash, keys, args)).await {
            Err(error) if error.kind() == ErrorKind::Server(ServerErrorKind::NoScript) => {
                self.send(&Self::command("EVAL", &script.code, keys, args)).await
            }
            answer => answer,
        }
    }

    /// The call of a script.
    pub(crate) fn command(verb: &str, script: &str, keys: &[Vec<u8>], args: &[Vec<u8>]) -> Cmd {
        let mut command = redis::cmd(verb);
        command.arg(script).arg(keys.len()).arg(keys).arg(args);
        command
    }

    /// Sends commands in one write, to a Cluster one by one; what has no answer failed.
    pub(crate) async fn send_all(&mut self, commands: Vec<Cmd>) -> Vec<RedisResult<Value>> {
        match self {
            Self::Single(connection) => {
                let (count, mut pipeline) = (commands.len(), redis::Pipeline::new());
                commands.into_iter().for_each(|command| {
                    pipeline.add_command(command);
                });
                match connection.req_packed_commands(&pipeline, 0, count).await {
                    Ok(values) => values.into_iter().map(Value::extract_error).collect(),
                    Err(error) => vec![Err(error)],
                }
            }
            Self::Cluster(cluster) => {
                let calls = commands.into_iter().map(|command| {
                    let mut cluster = cluster.clone();
                    tokio::spawn(async move { cluster.send(&command).await })
                });
                let mut answers = Vec::new();
                for call in calls.collect::<Vec<_>>() {
                    let stopped = |_| Err(std::io::Error::other("a task was stopped").into());
                    answers.push(call.await.unwrap_or_else(stopped));
                }
                answers
            }
        }
    }
}

/// Asks Sentinels for the master of this name.
fn sentinels(name: &str, options: &Options) -> RedisResult<SentinelClientBuilder> {
    let infos = options.urls.iter().map(|url| url.as_str().into_connection_info());
    let infos: Vec<_> = infos.collect::<RedisResult<_>>()?;
    let addresses: Vec<_> = infos.iter().map(|info| info.addr().clone()).collect();
    let tls = addresses.iter().any(|address| matches!(address, ConnectionAddr::TcpTls { .. }));
    let mut builder = SentinelClientBuilder::new(addresses, name, SentinelServerType::Master)?;
    if let Some(settings) = infos.first().map(|info| info.redis_settings()) {
        builder = builder.set_client_to_redis_db(settings.db());
        if let Some(user) = settings.username() {
            builder = builder.set_client_to_redis_username(user);
        }
        if let Some(password) = settings.password() {
            builder = builder.set_client_to_redis_password(password);
        }
    }
    if tls {
        builder = builder.set_client_to_redis_tls_mode(TlsMode::Secure);
    }
    #[cfg(feature = "tls")]
    if let Some(certificates) = &options.certificates {
        builder = builder
            .set_client_to_redis_certificates(certificates.to_redis())
            .set_client_to_sentinel_certificates(certificates.to_redis());
    }
    Ok(builder)
}

#[cfg(feature = "tls")]
fn open(url: &str, options: &Options) -> RedisResult<Client> {
    match &options.certificates {
        Some(certificates) => Client::build_with_tls(url, certificates.to_redis()),
        None => Client::open(url),
    }
}

#[cfg(not(feature = "tls"))]
fn open(url: &str, _: &Options) -> RedisResult<Client> {
    Client::open(url)
}

/// Why a call was not answered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    /// Not in time.
    Late,
    /// The connection is gone, or was never there.
    Lost(String),
    /// Redis is there and refuses: out of memory, read-only, loading, a wrong password.
    Refused(String),
    /// The record is unusable: another type under its key, or an invalid answer.
    Record(String),
    /// Redis was not asked, since it failed just now.
    Left,
}

impl Fault {
    /// A short name, for metrics and logs.
    pub(crate) fn name(&self) -> &'static str {
        match self {
            Self::Late => "late",
            Self::Lost(_) => "lost",
            Self::Refused(_) => "refused",
            Self::Record(_) => "record",
            Self::Left => "left alone",
        }
    }

    pub(crate) fn detail(&self) -> &str {
        match self {
            Self::Late => "no answer within the deadline",
            Self::Left => "Redis failed just now",
            Self::Lost(why) | Self::Refused(why) | Self::Record(why) => why,
        }
    }
}

/// A change that Redis alone can make, and did not.
impl From<Fault> for EngineError {
    fn from(fault: Fault) -> Self {
        Self::Unavailable(format!("{}: {}", fault.name(), fault.detail()))
    }
}

impl From<RedisError> for Fault {
    fn from(error: RedisError) -> Self {
        let text = error.to_string();
        if error.is_timeout() {
            return Self::Late;
        }
        if error.is_io_error() || error.is_unrecoverable_error() {
            return Self::Lost(text);
        }
        let wrong_type = text.contains("WRONGTYPE");
        if wrong_type || error.detail().is_some_and(is_of_script) {
            Self::Record(text)
        } else {
            Self::Refused(text)
        }
    }
}

/// Whether a script met something that it can't compute with, by the message of Redis 7 and Valkey or
/// of earlier ones. A command refused to a script is another matter.
fn is_of_script(detail: &str) -> bool {
    let earlier = detail.starts_with("Error running script") && detail.contains(": user_script:");
    earlier || detail.starts_with("user_script:")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_wrong_with_a_record_is_the_record_s() {
        let fault = |code: &str, detail: &str| {
            Fault::from(redis::make_extension_error(code.into(), Some(detail.into())))
        };
        for (code, detail) in [
            ("WRONGTYPE", "Operation against a key holding the wrong kind of value"),
            ("ERR", "user_script:1: bad argument #2 to 'unpack' script: 5f51, on @user_script:1."),
            ("ERR", "Error running script (call to f_5f51): @user_script:1: user_script:1: bad"),
        ] {
            assert!(matches!(fault(code, detail), Fault::Record(_)), "{detail}");
        }
        for (code, detail) in [
            ("OOM", "command not allowed when used memory > 'maxmemory'."),
            ("NOPERM", "this user has no permissions to run the 'evalsha' command"),
            ("ERR", "unknown command 'EVALSHA', with args beginning with: "),
            ("ERR", "The user executing the script can't run this command, on @user_script:1."),
            ("ERR", "Error running script (call to f_5f51): @user_script:1: @user_script: 1: -OOM"),
        ] {
            assert!(matches!(fault(code, detail), Fault::Refused(_)), "{detail}");
        }
    }
}
