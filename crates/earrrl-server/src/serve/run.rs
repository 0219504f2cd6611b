//! A server's life: listen, serve, reload, stop.

use std::fmt;
use std::io;
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use axum::Router;
use earrrl::Clock;
use socket2::SockRef;
use tokio::net::{TcpListener, TcpStream as Stream};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::time::{Interval, MissedTickBehavior, interval, sleep, timeout};

use super::accept::{accept, listen};
use super::workers::{Accepted, Workers};
use crate::config::{Config, ConfigError};
use crate::connections::{Connection, Refused};
use crate::protocol::{http, resp};
use crate::server::Server;

/// How long the first request may wait for the engine to be at work.
const ENGINE_PATIENCE: Duration = Duration::from_secs(1);

/// The protocols.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Protocol {
    Http,
    Resp,
}

/// A server that listens.
#[derive(Debug)]
pub struct Running {
    /// Its shared parts.
    pub server: Arc<Server>,
    /// Where HTTP is served.
    pub http: Option<SocketAddr>,
    /// Where RESP is served.
    pub resp: Option<SocketAddr>,
    listeners: Vec<(Protocol, TcpListener)>,
    workers: Workers<Protocol>,
}

/// The signals that a server heeds. They are caught from here on, so this comes before anybody is
/// told that it serves.
#[derive(Debug)]
pub struct Signals {
    terminate: Signal,
    interrupt: Signal,
    hangup: Signal,
}

impl Signals {
    /// Catches them.
    ///
    /// # Errors
    /// When they can't be.
    pub fn catch() -> io::Result<Self> {
        Ok(Self {
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
            hangup: signal(SignalKind::hangup())?,
        })
    }
}

/// The file that a server's configuration comes from.
pub struct ConfigSource {
    /// Where it is.
    pub path: PathBuf,
    /// Reads it, and adds what the command line says.
    pub load: Box<dyn Fn() -> Result<Config, ConfigError> + Send>,
}

/// Why a server could not be started.
#[derive(Debug)]
pub struct StartError(String);

impl fmt::Display for StartError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for StartError {}

impl Running {
    /// Opens the sockets and starts the threads. It accepts once [`Running::until_signal`] or
    /// [`Running::until`] is called.
    ///
    /// # Errors
    /// When an address can't be listened on, or may not be without a token.
    pub fn start(config: &Config, clock: Arc<dyn Clock>) -> Result<Self, StartError> {
        if let Some(why) = config.server.exposed() {
            return Err(StartError(why));
        }
        let server = Server::new(config, clock).map_err(|error| StartError(error.to_string()))?;
        let mut listeners = Vec::new();
        let mut open = |protocol, address: Option<SocketAddr>| {
            let Some(address) = address else { return Ok(None) };
            let failed =
                |error: io::Error| StartError(format!("can't listen on {address}: {error}"));
            let listener = listen(address).map_err(failed)?;
            let bound = listener.local_addr().map_err(failed)?;
            listeners.push((protocol, listener));
            Ok(Some(bound))
        };
        let http = open(Protocol::Http, config.server.http)?;
        let resp = open(Protocol::Resp, config.server.resp)?;
        let workers = start_workers(&server)
            .map_err(|error| StartError(format!("can't start a thread: {error}")))?;
        Ok(Self { server, http, resp, listeners, workers })
    }

    /// Serves until SIGTERM or SIGINT; reloads the file on SIGHUP and when it changes.
    pub async fn until_signal(self, signals: Signals, source: Option<ConfigSource>) {
        let Signals { mut terminate, mut interrupt, hangup } = signals;
        let reloading = tokio::spawn(reload_forever(Arc::clone(&self.server), source, hangup));
        let stop = async {
            tokio::select! {
                _ = terminate.recv() => tracing::info!("SIGTERM: stopping"),
                _ = interrupt.recv() => tracing::info!("SIGINT: stopping"),
            }
        };
        self.until(stop).await;
        reloading.abort();
    }

    /// Serves until `stop`, then answers what is under way.
    pub async fn until(self, stop: impl Future<Output = ()>) {
        let Self { server, listeners, workers, .. } = self;
        server.service.engine().ready(ENGINE_PATIENCE).await;
        let ticking = tokio::spawn(tick_forever(Arc::clone(&server)));
        let workers = Arc::new(workers);
        let accepting = listeners.into_iter().map(|(protocol, listener)| {
            tokio::spawn(accept_all(protocol, listener, Arc::clone(&server), Arc::clone(&workers)))
        });
        let accepting: Vec<_> = accepting.collect();
        stop.await;

        server.announce_stop();
        sleep(Duration::from_secs(server.config.shutdown_delay.into())).await;
        for task in accepting {
            task.abort();
            // Awaited, so that its listener is closed.
            let _ = task.await;
        }
        server.connections.stop();
        let patience = Duration::from_secs(server.config.shutdown_timeout.into());
        if timeout(patience, server.connections.gone()).await.is_err() {
            tracing::warn!(connections = server.connections.len(), "still open; closing them");
        }
        ticking.abort();
        tracing::info!(decisions = server.service.metrics.outcomes.total(), "stopped");
    }
}

fn start_workers(server: &Arc<Server>) -> io::Result<Workers<Protocol>> {
    let cores = || std::thread::available_parallelism().map_or(1, Into::into);
    let threads = server.config.threads.unwrap_or_else(cores);
    let router = http::router(Arc::clone(server));
    let server = Arc::clone(server);
    Workers::start(threads, move |protocol, stream, connection| {
        serve_one(protocol, stream, connection, Arc::clone(&server), router.clone())
    })
}

async fn serve_one(
    protocol: Protocol,
    stream: Stream,
    connection: Connection,
    server: Arc<Server>,
    router: Router,
) {
    match protocol {
        // Boxed, so that the larger of the two does not set the size of both.
        Protocol::Http => Box::pin(http::serve::serve(stream, connection, server, router)).await,
        Protocol::Resp => {
            let session = resp::session::Session::new(server, connection.id());
            resp::serve::serve(stream, connection, session).await;
        }
    }
}

async fn accept_all(
    protocol: Protocol,
    listener: TcpListener,
    server: Arc<Server>,
    workers: Arc<Workers<Protocol>>,
) {
    let metrics = &server.service.metrics;
    let pass_on = |stream, connection| {
        metrics.accepted.increment();
        workers.serve(Accepted { protocol, stream, connection });
    };
    let refuse = |stream: &TcpStream, refused| {
        metrics.refused.increment();
        say_refused(protocol, stream, refused);
    };
    accept(listener, Arc::clone(&server.connections), pass_on, refuse).await;
}

/// Tells a client why it is not served, if that takes no waiting.
fn say_refused(protocol: Protocol, stream: &TcpStream, refused: Refused) {
    let line = match (protocol, refused) {
        (Protocol::Resp, Refused::Full) => "-ERR max number of clients reached\r\n",
        (Protocol::Resp, Refused::AddressFull) => "-ERR too many connections from this address\r\n",
        (Protocol::Resp, Refused::Stopping) => "-ERR the server is stopping\r\n",
        (Protocol::Http, _) => {
            "HTTP/1.1 503 Service Unavailable\r\nretry-after: 1\r\n\
             content-length: 0\r\nconnection: close\r\n\r\n"
        }
    };
    // It is being closed in any case.
    let _ = SockRef::from(stream).send(line.as_bytes());
}

/// Once a second, the deadlines of connections are looked at.
async fn tick_forever(server: Arc<Server>) {
    let mut seconds = each_second();
    loop {
        seconds.tick().await;
        server.connections.tick();
    }
}

fn each_second() -> Interval {
    let mut seconds = interval(Duration::from_secs(1));
    seconds.set_missed_tick_behavior(MissedTickBehavior::Delay);
    seconds
}

/// Reloads on SIGHUP and when the file has changed. It is looked at once a second: that sees a file
/// that is replaced, a symbolic link that is turned (as Kubernetes does) and network file systems,
/// where notifications see one of these or none. A change counts once it has stood for a second: a
/// file that is being written is empty for a moment, and an empty one has no rules.
async fn reload_forever(server: Arc<Server>, source: Option<ConfigSource>, mut hangup: Signal) {
    let Some(source) = source else {
        while hangup.recv().await.is_some() {
            tracing::warn!("SIGHUP: there is no configuration file to reload");
        }
        return;
    };
    let mut seconds = each_second();
    let mut loaded = stamp(&source.path);
    let mut last = loaded;
    loop {
        tokio::select! {
            _ = hangup.recv() => {}
            _ = seconds.tick() => {
                let now = stamp(&source.path);
                let settled = now == last;
                last = now;
                if now == loaded || !settled {
                    continue;
                }
            }
        }
        loaded = stamp(&source.path);
        reload(&server, (source.load)());
    }
}

/// What changes when a file does.
fn stamp(file: &Path) -> Option<(SystemTime, u64)> {
    let metadata = std::fs::metadata(file).ok()?;
    Some((metadata.modified().ok()?, metadata.len()))
}

fn reload(server: &Server, config: Result<Config, ConfigError>) {
    if let Ok(config) = &config
        && config.server != server.config
    {
        tracing::warn!("[server] has changed; that takes effect at the next start only");
    }
    match server.reload(config.map_err(|error| error.to_string())) {
        Ok(()) => tracing::info!(rules = server.service.rules().len(), "reloaded"),
        Err(error) => tracing::error!(%error, "not reloaded; the rules before stay in force"),
    }
}
